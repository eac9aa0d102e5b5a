#![doc = include_str!("../README.md")]
//!
//! ## Modules
//!
//! Layers: `limits` → `entry`, `tcp` → `packet`, `secret`, `websocket` → `http1` → `http2` → `session` → `recording`, `tls` →
//! `connection` → `inspector` → `input` → `replay`.

#![forbid(unsafe_code)]

mod connection;
mod entry;
mod http1;
mod http2;
mod input;
mod inspector;
pub mod limits;
mod packet;
pub mod recording;
pub mod replay;
pub mod secret;
mod session;
mod tcp;
mod tls;
mod websocket;

pub use entry::{Detail, Direction, Entry, Payload, Problem, ProblemKind, Protocol};
pub use input::{Format, ReadError, Sink, detect, read};
pub use inspector::{Config, Inspector, Skipped};
pub use packet::LinkType;
pub use session::Assume;
