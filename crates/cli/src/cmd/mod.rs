//! The subcommands.
//!
//! Layers: `bind`, `inspect`, `man` → `hub` → `join` → `connect` → `listen`, `load`, `serve`.

mod bind;
pub(crate) mod connect;
pub(crate) mod hub;
pub(crate) mod inspect;
mod join;
pub(crate) mod listen;
pub(crate) mod load;
pub(crate) mod man;
pub(crate) mod serve;
