//! The subcommands.
//!
//! Layers: `bind`, `inspect`, `print` → `man` → `hub` → `join` → `connect` → `listen`, `load`, `serve`.

mod bind;
pub(crate) mod connect;
pub(crate) mod hub;
pub(crate) mod inspect;
mod join;
pub(crate) mod listen;
pub(crate) mod load;
pub(crate) mod man;
mod print;
pub(crate) mod serve;
