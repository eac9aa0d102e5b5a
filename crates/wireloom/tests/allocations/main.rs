//! The memory of connections and messages, counted by the allocator.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod counting;
mod idle;
mod owned;
mod send_queue;
mod thread_end;
