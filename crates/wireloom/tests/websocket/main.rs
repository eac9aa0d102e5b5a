//! WebSockets over transports in memory and over real sockets.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod backlog;
mod batches;
mod closing;
mod ends;
mod fairness;
mod fanout;
mod flush;
mod load;
mod messages;
mod observer;
mod opening;
#[path = "../pace/mod.rs"]
mod pace;
mod prepared;
mod reentry;
mod slow;
mod transports;
