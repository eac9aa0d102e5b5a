//! The subcommands, one a file.

pub(crate) mod connect;
pub(crate) mod serve;
