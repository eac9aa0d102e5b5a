//! What a connection of a run is made of.

use wireloom::WebSocket;
use wireloom::client::Http2;

/// The transport of a connection.
pub(super) enum Link {
    WebSocket(WebSocket),
    Http2(Http2),
    /// The scenario opens its connections itself.
    None,
}
