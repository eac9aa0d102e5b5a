//! Errors of an open WebSocket.

use std::fmt;

use super::IoError;

/// Why an operation of an open WebSocket failed. A closing handshake is no error.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum WebSocketError {
    /// The peer broke the protocol, a limit was reached, or this end misused the API.
    Protocol(wireloom_ws::Error),
    /// The connection is closing or closed: nothing can be sent any more.
    Closed,
    /// The transport ended without a closing handshake.
    ConnectionLost,
    /// The peer did not read what was sent to it, and the policy for that is to disconnect.
    SlowPeer,
    /// No byte of the peer arrived, not even the answer to a ping ([`wireloom_ws::Keepalive`]).
    KeepaliveTimeout,
    /// The memory limit of the server is reached ([`ServerConfig::memory_max`](crate::ServerConfig::memory_max)).
    Overloaded,
    /// Over HTTP/2: the peer ended the connection, with this code in GOAWAY (RFC 9113 §6.8).
    #[cfg(feature = "http2")]
    GoAway(wireloom_http2::error::ErrorCode),
    /// The transport or the operating system failed.
    Io(IoError),
}

impl fmt::Display for WebSocketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Protocol(error) => error.fmt(f),
            Self::Closed => f.write_str("the connection is closed"),
            Self::ConnectionLost => f.write_str("the connection ended without a closing handshake"),
            Self::SlowPeer => f.write_str("the peer reads too slowly"),
            Self::KeepaliveTimeout => f.write_str("the peer has been silent for too long"),
            Self::Overloaded => f.write_str("a memory limit of the server is reached"),
            #[cfg(feature = "http2")]
            Self::GoAway(code) => write!(f, "the peer ended the connection: {code}"),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for WebSocketError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Protocol(error) => Some(error),
            Self::Io(error) => Some(error.get_ref()),
            _ => None,
        }
    }
}

impl From<std::io::Error> for WebSocketError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error.into())
    }
}

impl From<wireloom_ws::Error> for WebSocketError {
    fn from(error: wireloom_ws::Error) -> Self {
        match error {
            wireloom_ws::Error::Misuse(wireloom_ws::Misuse::NotOpen) => Self::Closed,
            error => Self::Protocol(error),
        }
    }
}
