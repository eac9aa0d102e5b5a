//! Tests of the HTTP/2 core with raw peers and with itself: the rules of RFC 9113 and RFC 7541.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod commands;
mod end_of_input;
mod fairness;
mod flow;
mod foreign_client;
mod foreign_server;
mod found_by_fuzzing;
mod frames;
mod goaway;
mod hpack_appendix_c;
mod hpack_encoder;
mod hpack_hostile;
mod hpack_stories;
mod limits;
mod messages;
mod promises;
#[cfg(not(miri))]
mod public_api;
mod receiving;
mod sending;
mod stalls;
mod streams;
mod updates;
mod whole_connections;
mod wire;
