//! The subcommands.

pub(crate) mod connect;
pub(crate) mod hub;
pub(crate) mod inspect;
pub(crate) mod load;
pub(crate) mod man;
pub(crate) mod serve;
