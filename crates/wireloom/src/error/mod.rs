//! Errors, by operation: [`WebSocketError`] of an open WebSocket, [`HttpError`] of an HTTP exchange and its content, and [`Error`] of a
//! client that opens connections, into which both convert.

use std::fmt;

use wireloom_ws::handshake::uri::UriError;
use wireloom_ws::handshake::{HandshakeError, Response};

mod http;
mod io;
mod proxy;
#[cfg(feature = "tls")]
mod tls;
mod websocket;

pub use self::http::HttpError;
pub use self::io::IoError;
pub use self::websocket::WebSocketError;
pub use proxy::ProxyError;

/// The error of a client that opens WebSockets and sends requests. The errors of all other operations convert into it, so that a function
/// which returns it can use `?` on each of them.
///
/// ```
/// async fn greet(url: &str) -> Result<(), wireloom::Error> {
///     let mut socket = wireloom::connect(url).await?; // fails with `Error`
///     socket.send("hello").await?; // fails with `WebSocketError`
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// An open WebSocket failed.
    WebSocket(WebSocketError),
    /// The connection, the request or the response failed.
    Http(HttpError),
    /// The opening handshake failed.
    Handshake(HandshakeError),
    /// The server answered with another response than a WebSocket.
    Refused(Box<Response>),
    /// The server answered the request for a tunnel with this status.
    TunnelRefused(u16),
    /// The URL is not one of a WebSocket, or of a request, or leads to another server than the connection does.
    InvalidUrl(UriError),
    /// No address is known for the host; the resolver's error, if it gave one.
    HostNotFound(Option<IoError>),
    /// Finding the host and connecting to it took too long.
    ConnectTimeout,
    /// TLS and the opening handshake took too long.
    HandshakeTimeout,
    /// The proxy opened no tunnel to the server.
    Proxy(ProxyError),
    /// More redirects than the client follows, or one to a URL that it does not follow.
    Redirect,
    /// The transport or the operating system failed.
    Io(IoError),
    /// The server answered plain text with a TLS alert: its port accepts only TLS.
    TlsRequired,
    /// TLS failed: a certificate was not accepted, or there is no protocol in common.
    #[cfg(feature = "tls")]
    Tls(Box<rustls::Error>),
    /// The URL begins with `wss` or `https`, and this build has no TLS (feature `tls`).
    NoTls,
    /// HTTP/2 was wanted, and the server does not speak it: with the error that its first bytes caused, if it sent any.
    #[cfg(feature = "http2")]
    NoHttp2(Option<wireloom_http2::error::Error>),
    /// The server does not offer WebSocket over HTTP/2 (RFC 8441, `SETTINGS_ENABLE_CONNECT_PROTOCOL`).
    NoExtendedConnect,
    /// HTTP/1.1: a line of the head of the response, numbered from 1, is malformed, and why.
    InvalidResponse(usize, &'static str),
    /// The length of the content is unknown, and the server speaks HTTP/1.0, which has no chunks (RFC 9112 §6.1).
    LengthRequired,
}

impl Error {
    /// The error of a WebSocket, if that failed.
    pub fn as_websocket(&self) -> Option<&WebSocketError> {
        match self {
            Self::WebSocket(error) => Some(error),
            _ => None,
        }
    }

    /// The error of an HTTP exchange, if that failed.
    pub fn as_http(&self) -> Option<&HttpError> {
        match self {
            Self::Http(error) => Some(error),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WebSocket(error) => error.fmt(f),
            Self::Http(error) => error.fmt(f),
            Self::Handshake(error) => error.fmt(f),
            Self::Refused(response) => {
                write!(f, "the server answered {} {}", response.status(), response.reason())
            }
            Self::TunnelRefused(status) => write!(f, "the server opens no tunnel: it answered {status}"),
            Self::InvalidUrl(UriError::Scheme) => f.write_str(
                "the URL begins with neither ws:// nor wss:// (nor, for requests, http:// or https://)",
            ),
            Self::InvalidUrl(error) => write!(f, "the URL cannot be used: {error}"),
            Self::HostNotFound(None) => f.write_str("no address is known for the host"),
            Self::HostNotFound(Some(error)) => write!(f, "no address is known for the host: {error}"),
            Self::ConnectTimeout => f.write_str("connecting took too long"),
            Self::HandshakeTimeout => f.write_str("the opening handshake took too long"),
            Self::Proxy(error) => error.fmt(f),
            Self::Redirect => f.write_str("the server redirects to where this client does not follow"),
            Self::Io(error) => error.fmt(f),
            #[cfg(feature = "tls")]
            Self::Tls(error) => {
                f.write_str("TLS: ")?;
                tls::reason(error, f)
            }
            Self::TlsRequired => f.write_str("the server speaks TLS on this port: use wss:// or https://"),
            Self::NoTls => f.write_str("this build does not support TLS"),
            #[cfg(feature = "http2")]
            Self::NoHttp2(_) => f.write_str("the server does not speak HTTP/2"),
            Self::NoExtendedConnect => f.write_str("the server does not offer WebSocket over HTTP/2"),
            Self::LengthRequired => {
                f.write_str("the server speaks HTTP/1.0, which needs the length of the content")
            }
            Self::InvalidResponse(line, why) => write!(f, "line {line} of the response's head: {why}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::WebSocket(error) => error.source(),
            Self::Http(error) => error.source(),
            Self::Handshake(error) => Some(error),
            Self::InvalidUrl(error) => Some(error),
            Self::HostNotFound(Some(error)) | Self::Io(error) => Some(error.get_ref()),
            Self::Proxy(error) => Some(error),
            #[cfg(feature = "tls")]
            Self::Tls(error) => Some(&**error),
            #[cfg(feature = "http2")]
            Self::NoHttp2(Some(error)) => Some(error),
            _ => None,
        }
    }
}

impl From<WebSocketError> for Error {
    fn from(error: WebSocketError) -> Self {
        Self::WebSocket(error)
    }
}

impl From<HttpError> for Error {
    fn from(error: HttpError) -> Self {
        Self::Http(error)
    }
}

#[cfg(feature = "http2")]
impl From<wireloom_http2::error::Error> for Error {
    fn from(error: wireloom_http2::error::Error) -> Self {
        HttpError::from(error).into()
    }
}

#[cfg(feature = "http2")]
impl From<wireloom_http2::error::Misuse> for Error {
    fn from(misuse: wireloom_http2::error::Misuse) -> Self {
        HttpError::from(misuse).into()
    }
}

#[cfg(feature = "tls")]
impl From<rustls::Error> for Error {
    fn from(error: rustls::Error) -> Self {
        // Boxed: every result would be as large.
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
