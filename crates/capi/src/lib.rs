//! libwireloom: the WebSocket and HTTP/2 cores for C. `include/wireloom.h` is its reference.
//!
//! ## Modules
//!
//! Layers: `status` → `call`, `handle`, `memory` → `slice` → `config` → `frame`, `mask`, `utf8`, `deflate`, `prepared`, `hpack` →
//! `ws` → `handshake`, `h2`.
//!
//! ## Rules of the border
//!
//! - Every exported function is the body of one [`call`](call::call), which catches panics and turns errors into a [`wl_status`].
//! - Pointers become references only in `memory`, which checks them for null, alignment, length and overlap.
//! - Objects live in tables ([`handle`]); C has their numbers. A number that is stale, of another type or in use by another thread is
//!   an error.

#![allow(unsafe_code)] // A language binding; each block states what it relies on.
#![allow(non_camel_case_types)] // The names of C.
#![allow(clippy::missing_safety_doc)] // The contract of all functions is at the top of the header (`header.toml`).

mod call;
mod config;
mod deflate;
mod frame;
mod h2;
mod handle;
mod handshake;
mod hpack;
mod mask;
mod memory;
mod prepared;
mod slice;
mod status;
mod utf8;
mod ws;

pub use config::*;
pub use deflate::*;
pub use frame::*;
pub use h2::*;
pub use handshake::*;
pub use hpack::*;
pub use mask::*;
pub use prepared::*;
pub use slice::*;
pub use status::*;
pub use utf8::*;
pub use ws::*;
