//! The command `wireloom` at the shell. One binary, because each costs the time to link it.

#![allow(clippy::unwrap_used)]
#![cfg(unix)]

mod admin;
mod bad_input;
mod command;
mod configuration;
mod connect;
mod events;
mod files;
mod hub;
mod inspect;
mod listen;
mod live;
mod monitoring;
#[path = "../../../hub/tests/nats/server.rs"]
#[allow(dead_code)]
mod nats_server;
mod process;
mod requests;
mod running;
#[cfg(target_os = "linux")]
mod terminal;
#[cfg(feature = "opentelemetry")]
mod traces;
mod unread;
