//! The transport of a connection in a run: a WebSocket, HTTP/2 or HTTP/1.1.

use wireloom::WebSocket;
use wireloom::client::{Http2, Pool};

/// The transport of a connection.
pub(super) enum Link {
    WebSocket(WebSocket),
    Http2(Http2),
    /// One connection for HTTP/1.1 at most, which is opened when a request needs it, and the URL.
    Http1(Pool, String),
    /// The scenario opens its connections itself.
    None,
}
