//! An opened WebSocket with the details of its connection and handshake.

use std::fmt;
use std::net::SocketAddr;

use crate::headers::Headers;
use crate::http::{TlsInfo, Version};
use crate::websocket::WebSocket;

/// An opened WebSocket with the details of its connection and handshake.
#[non_exhaustive]
pub struct Opened {
    /// The WebSocket.
    pub socket: WebSocket,
    /// The version of HTTP that it was opened over.
    pub version: Version,
    /// The status of the response that opened it: 101, or 200 over HTTP/2.
    pub status: u16,
    /// The headers of that response.
    pub headers: Headers,
    /// The address of the server, or of the proxy before it.
    pub peer: Option<SocketAddr>,
    /// The outcome of the TLS handshake with the server; `None` without TLS.
    pub tls: Option<TlsInfo>,
    pub(super) request: Sent,
}

/// The head of a request as it was sent.
pub(super) enum Sent {
    /// The bytes.
    Http1(Vec<u8>),
    /// The fields.
    #[cfg(feature = "http2")]
    Http2(Vec<(String, String)>),
}

impl Opened {
    /// The request that opened it, as it was sent: method and target over HTTP/1.1 (the pseudo-header fields over HTTP/2), then the
    /// headers, credentials among them.
    pub fn request(&self) -> Vec<(String, String)> {
        match &self.request {
            #[cfg(feature = "http2")]
            Sent::Http2(fields) => fields.clone(),
            Sent::Http1(bytes) => http1_fields(bytes),
        }
    }
}

/// The request line, split at its first space, and the headers of a request head.
pub(super) fn http1_fields(head: &[u8]) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(head);
    let mut lines = text.split("\r\n");
    let first = lines.next().unwrap_or_default().split_once(' ');
    let fields = lines.filter_map(|line| line.split_once(": "));
    first.into_iter().chain(fields).map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Omits the request, which contains secrets.
impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened")
            .field("socket", &self.socket)
            .field("version", &self.version)
            .field("status", &self.status)
            .field("headers", &self.headers)
            .field("peer", &self.peer)
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}
