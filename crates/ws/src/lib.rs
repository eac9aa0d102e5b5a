//! WebSocket without I/O: framing, masking, UTF-8, permessage-deflate and the opening handshake of RFC 6455 and RFC 7692
//! as state machines that never touch a socket, a clock, a thread or a global random source.

#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

pub mod deflate;
pub mod handshake;
pub mod mask;
pub mod role;
pub mod utf8;
