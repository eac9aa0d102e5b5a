//! Allocations of the core, counted by the allocator.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod counting;
mod deflate;
mod messages;
