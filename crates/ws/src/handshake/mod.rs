//! The opening handshake (RFC 6455 §4) in both roles, over HTTP/1.1 bytes.

pub mod extensions;
mod token;
