//! HTTP requests and responses as values, and what makes a WebSocket of one: the same over HTTP/1.1 and HTTP/2. How they
//! travel is [`crate::server`]'s.

mod body;
mod request;
mod response;
mod upgrade;

#[cfg(feature = "tower")]
pub(crate) use body::Piece;
pub use body::{Body, BodySender};
pub(crate) use request::Origin;
pub use request::Request;
pub use response::{IntoResponse, Response};
pub use upgrade::Upgrade;
pub(crate) use upgrade::{Carrier, Open, Running};

/// A version of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    Http11,
    /// HTTP/2.
    Http2,
}

/// What TLS agreed upon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsInfo {
    /// The name that the client asked for (SNI).
    pub server_name: Option<String>,
    /// The version, such as `TLSv1_3`.
    pub version: String,
    /// The application protocol, such as `http/1.1` (ALPN).
    pub alpn: Option<Vec<u8>>,
}
