//! Events of a [`Connector`](super::Connector) while it opens a connection.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::headers::Headers;
use crate::http::{TlsInfo, Version};

/// A step on the way to an open connection, for logs and debugging; see [`Connector::on_event`](super::Connector::on_event).
///
/// Request heads contain credentials and cookies. Redact them before you show them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ConnectEvent<'a> {
    /// A TCP connection to the server, or to the proxy in front of it, is established.
    Connected {
        /// The address of the server or proxy.
        peer: SocketAddr,
    },
    /// The TLS handshake with the server is complete.
    Tls(&'a TlsInfo),
    /// A request head is about to be sent.
    Request {
        /// The version of HTTP.
        version: Version,
        /// Over HTTP/1.1 the first pair is the method and the rest of the request line; over HTTP/2 the pseudo-header fields come
        /// first. The headers follow.
        fields: &'a [(String, String)],
    },
    /// The final response to a WebSocket handshake arrived. The responses to other requests are returned by the
    /// [`Exchange`](super::Exchange).
    Response {
        /// The version of HTTP.
        version: Version,
        /// The status code.
        status: u16,
        /// The reason phrase; empty over HTTP/2.
        reason: &'a str,
        /// The headers.
        headers: &'a Headers,
    },
}

type Receiver = dyn Fn(&ConnectEvent<'_>) + Send + Sync;

/// The function that receives the events, if there is one.
#[derive(Clone, Default)]
pub(super) struct Events(Option<Arc<Receiver>>);

impl Events {
    pub(super) fn new(receiver: impl Fn(&ConnectEvent<'_>) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(receiver)))
    }

    pub(super) fn is_enabled(&self) -> bool {
        self.0.is_some()
    }

    pub(super) fn emit(&self, event: &ConnectEvent<'_>) {
        if let Some(receiver) = &self.0 {
            receiver(event);
        }
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_enabled() { "Events(enabled)" } else { "Events(none)" })
    }
}
