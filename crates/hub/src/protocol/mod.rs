//! The Centrifugal client protocol, version 2: its messages, its two encodings and its codes.
//!
//! A client sends [`Command`]s, the server sends [`Reply`]s. A reply with an `id` answers the command with that `id`; a reply
//! without one carries a [`Push`]. An empty message is a ping from the server and a pong from the client. In JSON the fields of
//! messages have the names of the Protobuf schema, empty ones are left out, and `data`, `conn_info` and `chan_info` are any JSON
//! value.
//!
//! Layers: `codec` + `command` + `push` + `reply` + `schema` → `codes`.

mod codec;
mod codes;
mod command;
mod push;
mod reply;
mod schema;

pub use codec::{Commands, DecodeError, Encoding, encode_reply};
pub(crate) use codec::{bounded, decode_object, json_text};
pub use codes::{Disconnect, ErrorCode, Unsubscribe as UnsubscribeCode};
pub use command::*;
pub use push::*;
pub use reply::*;
