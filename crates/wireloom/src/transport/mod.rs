//! Transports: TCP, TLS over it, or anything else that reads and writes bytes in order, and the buffers that reads fill.

pub(crate) mod budget;
pub(crate) mod buffer;
#[cfg(feature = "tls")]
pub(crate) mod counted;
#[cfg(feature = "hyper")]
mod hyper;
mod io;
mod linger;
#[cfg(test)]
pub(crate) mod model;
#[cfg(feature = "tls")]
mod records;
#[cfg(target_os = "linux")]
pub(crate) mod ring;
#[cfg(not(target_os = "linux"))]
#[path = "no_ring.rs"]
pub(crate) mod ring;
mod tap;
#[cfg(feature = "tls")]
pub mod tls;
#[cfg(target_os = "linux")]
mod unsent;

#[cfg(feature = "hyper")]
pub(crate) use hyper::PendingUpgrade;
pub use io::Transport;
pub(crate) use io::{Io, Tunnel, poll_read, poll_read_at_most, poll_write_all, read, write_all};
pub(crate) use linger::Linger;
pub use tap::{Tap, TapEvent};

/// A peer that accepts less than this number of bytes in the time of a stall timeout accepts nothing: a trickle keeps connections open on
/// purpose. The same as for a stream in the HTTP/2 core.
pub(crate) const PROGRESS_LEN_MIN: usize = 1 << 10;

/// Bytes that a transport may buffer itself: rustls's default. It accepts more only when these have left.
pub(crate) const BUFFERED_LEN_MAX: usize = 64 << 10;

/// Whether a transport has failed because the peer has gone. TLS calls an end without close_notify unexpected; so do resets.
pub(crate) fn is_lost(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe)
}

/// The outcome of a TLS handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsInfo {
    /// The server name that the client sent (SNI); `None` if it connected to an IP address.
    pub server_name: Option<String>,
    /// The protocol version, such as `TLSv1_3`.
    pub version: String,
    /// The application protocol, such as `http/1.1` (ALPN).
    pub alpn: Option<Vec<u8>>,
}
