//! The opening handshake (RFC 6455 §4, §9.1, §11.3) in both roles, over HTTP/1.1 bytes or from parts that somebody else has
//! parsed, and the field rules of WebSocket over HTTP/2 (RFC 8441 §5).
//!
//! It owns the judgement of requests and responses, the headers that are its own, and the bounds on what a peer may send
//! before there is a connection. It owns no socket and no policy: which origins, paths and credentials are welcome is for
//! the application to say between [`Request`] and [`Acceptance`]. HTTP/1.1 heads are parsed by `httparse`.
//!
//! ```text
//! server   bytes → ServerHandshake::handle_input → Request → accept → 101, Negotiated
//!                                                           reject → any Response
//!                                    HandshakeError::refusal → 400, 405, 426, 431, ...
//! client   ClientHandshake::new → request → bytes
//!          bytes → ClientHandshake::handle_input → Done(Negotiated) | Refused(Response)
//! ```
//!
//! Bytes behind a head belong to the connection: each call says how many it consumed.

use alloc::string::String;

use crate::deflate::DeflateParams;

pub mod client;
pub mod error;
pub mod extensions;
mod head;
pub mod http2;
mod key;
mod limits;
mod request;
mod response;
pub mod server;
mod token;
pub mod uri;

pub use client::{ClientHandshake, ClientOptions};
pub use error::HandshakeError;
pub use head::Version;
pub use key::accept_key;
pub use limits::HandshakeLimits;
pub use request::{Acceptance, Request};
pub use response::Response;
pub use server::ServerHandshake;

/// The version of WebSocket that RFC 6455 describes (§4.1, item 9).
pub const VERSION: u8 = 13;

/// What opens a connection over HTTP/2 (RFC 8441 §5).
const HTTP2_STATUS: u16 = 200;

/// What both ends have agreed upon: what a connection needs to know of its handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Negotiated {
    /// The subprotocol to speak.
    pub subprotocol: Option<String>,
    /// How messages are compressed, if they are.
    pub deflate: Option<DeflateParams>,
}
