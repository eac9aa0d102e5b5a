//! The opening handshake (RFC 6455 §4, §9.1, §11.3) in both roles, over HTTP/1.1 bytes or from the parts that an HTTP library has
//! parsed, and the field rules of WebSocket over HTTP/2 (RFC 8441 §5).
//!
//! It validates requests and responses, writes the headers of the handshake, and limits the bytes that a peer may send before
//! the connection is open. It uses no socket and has no policy: the application decides about origins, paths and credentials
//! between [`Request`] and [`Acceptance`]. HTTP/1.1 heads are parsed by `httparse`.
//!
//! ```text
//! server   bytes → ServerHandshake::handle_input → Request → accept → 101, Negotiated
//!                                                           reject → any Response
//!                                    HandshakeError::refusal → 400, 405, 426, 431, ...
//! client   ClientHandshake::new → request → bytes
//!          bytes → ClientHandshake::handle_input → Done(Negotiated) | Refused(Response)
//! ```
//!
//! Bytes after a head belong to the connection: each call returns the number of bytes that it consumed.
//!
//! Layers: `key`, `limits`, `token`, `uri` → `extensions` → `error` → `head` → `response` → `request` → `client`, `server` → `http2`.

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
pub use head::{
    HeadError, HeaderLines, RequestLine, StatusLine, Version, lower_minor_version, parse_request,
    parse_response, replace_obs_fold,
};
pub use key::accept_key;
pub use limits::HandshakeLimits;
pub use request::{Acceptance, Request};
pub use response::{Response, reason_phrase};
pub use server::ServerHandshake;
pub use token::{
    is_connection_specific, is_connection_specific_request_field, is_field_value, is_token, is_token_byte,
};

/// The version of WebSocket that RFC 6455 describes (§4.1, item 9).
pub const VERSION: u8 = 13;

/// The status that opens a connection over HTTP/2 (RFC 8441 §5).
const HTTP2_STATUS: u16 = 200;

/// The negotiated parameters of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Negotiated {
    /// The subprotocol.
    pub subprotocol: Option<String>,
    /// The parameters of permessage-deflate, if it was negotiated.
    pub deflate: Option<DeflateParams>,
}
