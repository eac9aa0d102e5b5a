//! Servers and clients in processes of their own, measured over loopback: theirs on one core, what loads them on another.
//! What runs in this process alone is timed by [`crate::measure`].

pub(crate) mod clients;
pub(crate) mod cores;
pub(crate) mod echo;
pub(crate) mod firehose;
pub(crate) mod opening;
pub(crate) mod process;
pub(crate) mod rounds;
pub(crate) mod servers;
pub(crate) mod tunnels;
