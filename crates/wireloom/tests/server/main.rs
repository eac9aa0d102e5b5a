//! The server against raw clients and clients of others over real sockets.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod bodies;
mod connect_events;
mod examples;
mod hostile;
mod leaving;
mod panic;
mod requests;
mod shutdown;
mod tls;
mod tower;
