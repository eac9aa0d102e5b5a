//! Servers and clients in separate processes, measured over loopback: the measured process on one core, the load
//! generator on another. Work within this process is timed by [`crate::race`].

pub(crate) mod clients;
pub(crate) mod cores;
pub(crate) mod echo;
pub(crate) mod fanout;
pub(crate) mod firehose;
pub(crate) mod flooding;
pub(crate) mod members;
pub(crate) mod opening;
pub(crate) mod pacing;
pub(crate) mod process;
pub(crate) mod protocol;
mod raw_client;
mod reading;
pub(crate) mod rounds;
pub(crate) mod servers;
mod tls;
mod tunnel;
pub(crate) mod tunnels;
