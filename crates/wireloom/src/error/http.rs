//! Errors of an HTTP exchange and its content.

use std::fmt;

use super::IoError;

/// Why an HTTP exchange failed, on either side: its connection, its stream over HTTP/2, or the content of a request or response. As the
/// return value of a server's handler it is the response for a request whose content failed.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum HttpError {
    /// The connection or the stream is closed: nothing can be sent any more.
    Closed,
    /// The connection was lost: it ended before the message was complete.
    ConnectionLost,
    /// No byte of the peer arrived, not even the answer to a ping.
    KeepaliveTimeout,
    /// The content took too long.
    BodyTimeout,
    /// The content is larger than the limit.
    TooLarge,
    /// HTTP/1.1: the message or its content is malformed, and why.
    Malformed(&'static str),
    /// A header that cannot be sent.
    InvalidHeader,
    /// The memory limit of the server is reached ([`ServerConfig::memory_max`](crate::ServerConfig::memory_max)), or that of its
    /// HTTP/2 connection.
    Overloaded,
    /// HTTP/2: the peer broke the protocol or a limit was reached, on the connection or on this stream; or this end misused the API.
    #[cfg(feature = "http2")]
    Http2(wireloom_http2::error::Error),
    /// A stream of HTTP/2 was reset, by the peer or by the application, with this code (RFC 9113 §7).
    #[cfg(feature = "http2")]
    StreamReset(wireloom_http2::error::ErrorCode),
    /// The peer ended the HTTP/2 connection, with this code in GOAWAY (RFC 9113 §6.8). A request that was open may have been
    /// processed.
    #[cfg(feature = "http2")]
    GoAway(wireloom_http2::error::ErrorCode),
    /// The peer has not processed the request: it may be sent again, on another connection (RFC 9113 §8.7).
    NotProcessed,
    /// The transport or the operating system failed.
    Io(IoError),
}

impl fmt::Display for HttpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the connection is closed"),
            Self::ConnectionLost => f.write_str("the connection was lost"),
            Self::KeepaliveTimeout => f.write_str("the peer has been silent for too long"),
            Self::BodyTimeout => f.write_str("the content took too long"),
            Self::TooLarge => f.write_str("the content is too large"),
            Self::Malformed(why) => f.write_str(why),
            Self::InvalidHeader => f.write_str("a header that cannot be sent"),
            Self::Overloaded => f.write_str("a memory limit of the server is reached"),
            #[cfg(feature = "http2")]
            Self::Http2(error) => write!(f, "HTTP/2: {error}"),
            #[cfg(feature = "http2")]
            Self::StreamReset(code) => write!(f, "the stream was reset: {code}"),
            #[cfg(feature = "http2")]
            Self::GoAway(code) => write!(f, "the peer ended the connection: {code}"),
            Self::NotProcessed => f.write_str("the peer has not processed the request"),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for HttpError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            #[cfg(feature = "http2")]
            Self::Http2(error) => Some(error),
            Self::Io(error) => Some(error.get_ref()),
            _ => None,
        }
    }
}

#[cfg(feature = "http2")]
impl From<wireloom_http2::error::Error> for HttpError {
    fn from(error: wireloom_http2::error::Error) -> Self {
        use wireloom_http2::error::{Error as Http2, Misuse};
        match error {
            Http2::Misuse(Misuse::GoingAway | Misuse::StreamIdsExhausted) => Self::NotProcessed,
            Http2::Misuse(Misuse::ConnectionClosed | Misuse::StreamGone) => Self::Closed,
            error => Self::Http2(error),
        }
    }
}

#[cfg(feature = "http2")]
impl From<wireloom_http2::error::Misuse> for HttpError {
    fn from(misuse: wireloom_http2::error::Misuse) -> Self {
        wireloom_http2::error::Error::from(misuse).into()
    }
}

impl From<std::io::Error> for HttpError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error.into())
    }
}
