#![doc = include_str!("../README.md")]
//!
//! ## Modules
//!
//! Layers: `field`, `flow_control`, `limits`, `role` → `hpack`, `priority`, `stream_id` → `error` → `frame`, `rate_limit` → `message`,
//! `settings` → `config`, `memory`, `upgrade` → `stream` → `event` → `connection`.

#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod config;
mod connection;
pub mod error;
mod event;
pub mod field;
mod flow_control;
pub mod frame;
pub mod hpack;
pub mod limits;
mod memory;
pub mod message;
pub mod priority;
pub mod rate_limit;
mod role;
pub mod settings;
mod stream;
mod stream_id;
pub mod upgrade;

pub use config::Config;
pub use connection::{Connection, Ended};
pub use event::Event;
pub use limits::Limits;
pub use memory::Memory;
pub use role::Role;
pub use settings::Settings;
pub use stream::StreamKey;
