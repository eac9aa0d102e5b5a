//! The WebSocket core against raw peers and against itself: RFC 6455 and RFC 7692, rule by rule.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod connection;
mod deflate;
mod growth;
mod handshake;
mod handshake_hostile_client;
mod handshake_hostile_server;
mod hostile;
mod pair;
mod public_api;
mod reader;
mod rfc6455;
mod rfc7692;
