//! Errors of connections, split by their cause.

use std::fmt;

use wireloom_ws::handshake::uri::UriError;
use wireloom_ws::handshake::{HandshakeError, Response};

mod io;
mod proxy;
#[cfg(feature = "tls")]
mod tls;

pub use self::io::IoError;
pub use proxy::ProxyError;

/// The error of an operation.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// The peer broke the protocol, a limit was reached, or this end misused the API.
    WebSocket(wireloom_ws::Error),
    /// The opening handshake failed.
    Handshake(HandshakeError),
    /// The server answered with another response than a WebSocket.
    Refused(Box<Response>),
    /// The URL is not one of a WebSocket, or of a request, or leads to another server than the connection does.
    Url(UriError),
    /// No address is known for the host; the resolver's error, if it gave one.
    Host(Option<IoError>),
    /// The proxy opened no tunnel to the server.
    Proxy(ProxyError),
    /// More redirects than the client follows, or one to a URL that it does not follow.
    Redirect,
    /// The connection is closing or closed: nothing can be sent any more.
    Closed,
    /// The transport ended without a closing handshake.
    Cut,
    /// The peer did not read what was sent to it, and the policy for that is to disconnect.
    SlowPeer,
    /// An operation timed out.
    Timeout(Stage),
    /// The transport or the operating system failed.
    Io(IoError),
    /// The memory limit of the server is reached ([`ServerConfig::memory_max`](crate::ServerConfig::memory_max)), or that of its
    /// HTTP/2 connection.
    Overloaded,
    /// The server answered plain text with a TLS alert: its port accepts only TLS.
    TlsPort,
    /// TLS failed: a certificate was not accepted, or there is no protocol in common.
    #[cfg(feature = "tls")]
    Tls(Box<rustls::Error>),
    /// The URL begins with `wss` or `https`, and this build has no TLS (feature `tls`).
    NoTls,
    /// HTTP/2: the peer broke the protocol, a limit was reached, or this end misused the API.
    #[cfg(feature = "http2")]
    Http2(wireloom_http2::error::Error),
    /// A stream of HTTP/2 ended before its time, by either end, with this code (RFC 9113 §7).
    #[cfg(feature = "http2")]
    StreamReset(wireloom_http2::error::ErrorCode),
    /// The peer ended the HTTP/2 connection, with this code in GOAWAY (RFC 9113 §6.8). A request that was open may have been
    /// processed.
    #[cfg(feature = "http2")]
    GoAway(wireloom_http2::error::ErrorCode),
    /// The peer has not processed the request: it may be sent again, on another connection (RFC 9113 §8.7).
    NotProcessed,
    /// HTTP/2 was wanted, and the server does not speak it: with the error that its first bytes caused, if it sent any.
    #[cfg(feature = "http2")]
    NoHttp2(Option<wireloom_http2::error::Error>),
    /// The server does not offer WebSocket over HTTP/2 (RFC 8441, `SETTINGS_ENABLE_CONNECT_PROTOCOL`).
    NoExtendedConnect,
    /// A header that cannot be sent.
    Header,
    /// The content is larger than the limit.
    TooLarge,
    /// HTTP/1.1: the content is malformed, and why.
    Malformed(&'static str),
    /// HTTP/1.1: a line of the head of the response, numbered from 1, is malformed, and why.
    ResponseHead(usize, &'static str),
    /// The length of the content is unknown, and the server speaks HTTP/1.0, which has no chunks (RFC 9112 §6.1).
    LengthRequired,
}

/// The operation that timed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stage {
    /// Finding the host and connecting to it.
    Connect,
    /// TLS and the opening handshake.
    Handshake,
    /// Waiting for any byte of the peer ([`wireloom_ws::Keepalive`]).
    Silence,
    /// The content of a request or a response.
    Body,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WebSocket(error) => error.fmt(f),
            Self::Handshake(error) => error.fmt(f),
            Self::Refused(response) => {
                write!(f, "the server answered {} {}", response.status(), response.reason())
            }
            Self::Url(UriError::Scheme) => f.write_str(
                "the URL begins with neither ws:// nor wss:// (nor, for requests, http:// or https://)",
            ),
            Self::Url(error) => write!(f, "the URL cannot be used: {error}"),
            Self::Host(None) => f.write_str("no address is known for the host"),
            Self::Host(Some(error)) => write!(f, "no address is known for the host: {error}"),
            Self::Proxy(error) => error.fmt(f),
            Self::Redirect => f.write_str("the server redirects to where this client does not follow"),
            Self::Closed => f.write_str("the connection is closed"),
            Self::Cut => f.write_str("the connection ended without a closing handshake"),
            Self::SlowPeer => f.write_str("the peer reads too slowly"),
            Self::Timeout(Stage::Connect) => f.write_str("connecting took too long"),
            Self::Timeout(Stage::Handshake) => f.write_str("the opening handshake took too long"),
            Self::Timeout(Stage::Silence) => f.write_str("the peer has been silent for too long"),
            Self::Timeout(Stage::Body) => f.write_str("the content took too long"),
            Self::Io(error) => error.fmt(f),
            Self::Overloaded => f.write_str("a memory limit of the server is reached"),
            #[cfg(feature = "tls")]
            Self::Tls(error) => {
                f.write_str("TLS: ")?;
                tls::reason(error, f)
            }
            Self::TlsPort => f.write_str("the server speaks TLS on this port: use wss:// or https://"),
            Self::NoTls => f.write_str("this build does not support TLS"),
            #[cfg(feature = "http2")]
            Self::Http2(error) => write!(f, "HTTP/2: {error}"),
            #[cfg(feature = "http2")]
            Self::StreamReset(code) => write!(f, "the stream was reset: {code}"),
            #[cfg(feature = "http2")]
            Self::GoAway(code) => write!(f, "the peer ended the connection: {code}"),
            Self::NotProcessed => f.write_str("the peer has not processed the request"),
            #[cfg(feature = "http2")]
            Self::NoHttp2(_) => f.write_str("the server does not speak HTTP/2"),
            Self::NoExtendedConnect => f.write_str("the server does not offer WebSocket over HTTP/2"),
            Self::Header => f.write_str("a header that cannot be sent"),
            Self::TooLarge => f.write_str("the content is too large"),
            Self::Malformed(why) => f.write_str(why),
            Self::LengthRequired => {
                f.write_str("the server speaks HTTP/1.0, which needs the length of the content")
            }
            Self::ResponseHead(line, why) => write!(f, "line {line} of the response's head: {why}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::WebSocket(error) => Some(error),
            Self::Handshake(error) => Some(error),
            Self::Url(error) => Some(error),
            Self::Host(Some(error)) | Self::Io(error) => Some(error.get_ref()),
            Self::Proxy(error) => Some(error),
            #[cfg(feature = "tls")]
            Self::Tls(error) => Some(&**error),
            #[cfg(feature = "http2")]
            Self::Http2(error) | Self::NoHttp2(Some(error)) => Some(error),
            _ => None,
        }
    }
}

impl From<wireloom_ws::Error> for Error {
    fn from(error: wireloom_ws::Error) -> Self {
        match error {
            wireloom_ws::Error::Misuse(wireloom_ws::Misuse::NotOpen) => Self::Closed,
            error => Self::WebSocket(error),
        }
    }
}

#[cfg(feature = "http2")]
impl From<wireloom_http2::error::Error> for Error {
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
impl From<wireloom_http2::error::Misuse> for Error {
    fn from(misuse: wireloom_http2::error::Misuse) -> Self {
        wireloom_http2::error::Error::from(misuse).into()
    }
}

#[cfg(feature = "tls")]
impl From<rustls::Error> for Error {
    fn from(error: rustls::Error) -> Self {
        // Boxed: every result of a WebSocket would be as large.
        Self::Tls(Box::new(error))
    }
}

impl From<HandshakeError> for Error {
    fn from(error: HandshakeError) -> Self {
        Self::Handshake(error)
    }
}

impl From<wireloom_ws::handshake::error::Misuse> for Error {
    fn from(misuse: wireloom_ws::handshake::error::Misuse) -> Self {
        Self::Handshake(misuse.into())
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        #[cfg(feature = "tls")]
        if let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            return tls.clone().into();
        }
        Self::Io(error.into())
    }
}
