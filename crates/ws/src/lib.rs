#![doc = include_str!("../README.md")]
//!
//! ## Modules
//!
//! Layers: `assembly`, `close` + `error`, `limits`, `mask`, `opcode`, `role` → `config`, `deflate` +
//! `handshake`, `end`, `frame`, `keys`, `utf8` → `send_queue`, `owned` → `event` → `decoder`, `inflate`, `prepared` + `send`,
//! `timers` → `inbound` → `reader`, `connection` + `outbound`.

#![cfg_attr(not(feature = "std"), no_std)]
#![cfg_attr(docsrs, feature(doc_cfg))]

extern crate alloc;

mod assembly;
pub mod close;
mod config;
mod connection;
mod decoder;
pub mod deflate;
mod end;
mod error;
mod event;
pub mod frame;
pub mod handshake;
mod inbound;
mod inflate;
mod keys;
pub mod limits;
pub mod mask;
mod opcode;
mod outbound;
mod owned;
mod prepared;
mod reader;
pub mod role;
mod send;
mod send_queue;
mod timers;
pub mod utf8;

pub use close::{CloseCode, CloseFrame};
pub use config::{Config, Delivery, Keepalive};
pub use connection::{Connection, RecvSlot, Transport};
pub use end::{Cause, End, Initiator};
pub use error::{Error, LimitExceeded, Misuse, PeerMisbehaved};
pub use event::{Binary, Chunk, Event, Pong, Text};
pub use inbound::{IdleInbound, Inbound};
pub use limits::Limits;
pub use opcode::{Kind, Opcode};
pub use outbound::Outbound;
pub use owned::{OwnedMessage, Utf8Bytes};
pub use prepared::{FrameCompressor, PreparedFrame};
pub use reader::{Reader, Received, Space, Step};
pub use role::Role;
