//! Errors of the opening handshake: in the client's request, in the server's response, limits, and misuse by the caller.

use core::fmt;

use super::extensions::ExtensionsError;
use crate::deflate::NegotiationError;

/// The error of a failed opening handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The client's request is not a valid opening handshake; the server refuses it.
    Request(RequestError),
    /// The server's response does not answer the handshake; the client fails the connection (RFC 6455 §4.1).
    Response(ResponseError),
    /// A limit was reached.
    Limit(LimitReached),
    /// The caller misused the API: an input that cannot be sent, or a call in the wrong state.
    Misuse(Misuse),
}

/// The part of an HTTP/1.1 head that is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Malformed {
    /// The first line is not a request line (or not a status line).
    StartLine,
    /// A header name is missing or not a token. Folded lines are errors of this kind (RFC 9112 §5.2).
    HeaderName,
    /// A header value contains a forbidden byte.
    HeaderValue,
    /// A carriage return without a line feed after it.
    LineEnd,
    /// A control character, such as NUL.
    ControlByte,
}

/// An error in a client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestError {
    /// It is not an HTTP/1.1 request.
    Malformed(Malformed),
    /// HTTP/1.0 or older, which cannot be upgraded (RFC 6455 §4.2.1, item 1).
    HttpVersionTooLow,
    /// An unsupported HTTP version.
    HttpVersionUnknown,
    /// The method is not GET (over HTTP/2: not CONNECT).
    Method,
    /// The target is neither a resource name nor an absolute http or https URI.
    Target,
    /// No `Host`.
    HostMissing,
    /// More than one `Host`, or one that contradicts `:authority`.
    HostDuplicate,
    /// `Host` is not a host with an optional port.
    HostInvalid,
    /// The request announces a body; the bytes after the head must be frames.
    Body,
    /// No `Upgrade`: an ordinary request.
    UpgradeMissing,
    /// `Upgrade` does not name `websocket`.
    UpgradeInvalid,
    /// No `Connection`.
    ConnectionMissing,
    /// `Connection` does not name `Upgrade`.
    ConnectionInvalid,
    /// No `Sec-WebSocket-Version`.
    VersionMissing,
    /// More than one `Sec-WebSocket-Version`.
    VersionDuplicate,
    /// `Sec-WebSocket-Version` is not a number from 0 to 255.
    VersionInvalid,
    /// Another version than 13.
    VersionUnsupported(u8),
    /// No `Sec-WebSocket-Key`.
    KeyMissing,
    /// More than one `Sec-WebSocket-Key`.
    KeyDuplicate,
    /// `Sec-WebSocket-Key` is not 16 bytes in base64.
    KeyInvalid,
    /// More than one `Origin`: a policy could check the wrong one.
    OriginDuplicate,
    /// `Origin` contains a byte outside of ASCII.
    OriginInvalid,
    /// A name in `Sec-WebSocket-Protocol` is not a token.
    SubprotocolInvalid,
    /// A name occurs twice in `Sec-WebSocket-Protocol`.
    SubprotocolDuplicate,
    /// `Sec-WebSocket-Extensions` breaks its grammar.
    Extensions(ExtensionsError),
    /// `Sec-WebSocket-Extensions` is not text.
    ExtensionsInvalid,
    /// HTTP/2: a pseudo-header is missing, repeated, unknown, or after a header.
    PseudoHeader,
    /// HTTP/2: `:protocol` is not `websocket`.
    Protocol,
    /// HTTP/2: `:scheme` is neither `http` nor `https`.
    Scheme,
    /// HTTP/2: a header that belongs to an HTTP/1.1 connection (RFC 9113 §8.2.2).
    ConnectionSpecific,
}

/// An error in a server's response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResponseError {
    /// It is not an HTTP/1.1 response.
    Malformed(Malformed),
    /// A 101 of another HTTP version than 1.1.
    HttpVersion,
    /// No `Upgrade`.
    UpgradeMissing,
    /// `Upgrade` is not `websocket`.
    UpgradeInvalid,
    /// No `Connection`.
    ConnectionMissing,
    /// `Connection` does not name `Upgrade`.
    ConnectionInvalid,
    /// No `Sec-WebSocket-Accept`.
    AcceptMissing,
    /// More than one `Sec-WebSocket-Accept`.
    AcceptDuplicate,
    /// `Sec-WebSocket-Accept` does not answer the key that was sent.
    AcceptInvalid,
    /// A subprotocol that was not offered.
    SubprotocolNotOffered,
    /// More than one `Sec-WebSocket-Protocol`.
    SubprotocolDuplicate,
    /// `Sec-WebSocket-Extensions` breaks its grammar.
    Extensions(ExtensionsError),
    /// `Sec-WebSocket-Extensions` is not text.
    ExtensionsInvalid,
    /// An extension that was not offered.
    ExtensionNotOffered,
    /// An extension was accepted twice.
    ExtensionDuplicate,
    /// An answer to the offer of permessage-deflate that RFC 7692 §7.1 does not allow.
    Deflate(NegotiationError),
    /// HTTP/2: `:status` is missing, repeated, or not the only pseudo-header.
    PseudoHeader,
    /// HTTP/2: a header that belongs to an HTTP/1.1 connection (RFC 9113 §8.2.2).
    ConnectionSpecific,
}

/// The limit that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitReached {
    /// [`HandshakeLimits::head_len_max`](super::HandshakeLimits::head_len_max).
    HeadLen,
    /// [`HandshakeLimits::headers_max`](super::HandshakeLimits::headers_max).
    Headers,
}

/// A misuse of the API by the caller. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Misuse {
    /// The host is not a host with an optional port.
    Host,
    /// The resource name does not begin with `/`, or contains a space, a control character, `#`, or a byte outside of ASCII.
    Resource,
    /// The origin contains a byte other than visible ASCII.
    Origin,
    /// A subprotocol is not a token.
    Subprotocol,
    /// A subprotocol is offered twice (RFC 6455 §4.1, item 10).
    SubprotocolDuplicate,
    /// The client did not offer the chosen subprotocol.
    SubprotocolNotOffered,
    /// The name of a header is not a token.
    HeaderName,
    /// The value of a header contains CR, LF, NUL or another control character.
    HeaderValue,
    /// A header that the handshake itself writes.
    HeaderReserved,
    /// The status cannot refuse a handshake: only 200 to 599 can.
    Status,
    /// The status allows no body.
    Body,
    /// The request is incomplete, or it has been answered.
    NoRequest,
    /// The handshake has ended: the input belongs to the connection.
    Finished,
    /// The request came over the other version of HTTP.
    HttpVersion,
}

impl RequestError {
    /// The status of the refusal.
    pub fn status(self) -> u16 {
        match self {
            // RFC 9110 §15.5.6, §15.6.6.
            Self::Method => 405,
            Self::HttpVersionUnknown => 505,
            // RFC 6455 §4.2.2, item 4; §4.4. RFC 9110 §7.8: another protocol is not an error, and HTTP/1.0 has no Upgrade; §15.5.22.
            Self::VersionUnsupported(_)
            | Self::UpgradeMissing
            | Self::UpgradeInvalid
            | Self::HttpVersionTooLow => 426,
            // RFC 9220 §3: an unsupported :protocol.
            Self::Protocol => 501,
            // RFC 6455 §4.2.1: "an appropriate HTTP error code (such as 400 Bad Request)".
            _ => 400,
        }
    }

    fn reason(self) -> &'static str {
        match self {
            Self::Malformed(malformed) => malformed.reason(),
            Self::HttpVersionTooLow => "WebSocket needs HTTP/1.1",
            Self::HttpVersionUnknown => "unknown HTTP version",
            Self::Method => "the method of a WebSocket handshake is GET",
            Self::Target => "invalid request target",
            Self::HostMissing => "Host is missing",
            Self::HostDuplicate => "more than one Host",
            Self::HostInvalid => "invalid Host",
            Self::Body => "a WebSocket handshake has no body",
            Self::UpgradeMissing => "Upgrade is missing",
            Self::UpgradeInvalid => "Upgrade does not name websocket",
            Self::ConnectionMissing => "Connection is missing",
            Self::ConnectionInvalid => "Connection does not name Upgrade",
            Self::VersionMissing => "Sec-WebSocket-Version is missing",
            Self::VersionDuplicate => "more than one Sec-WebSocket-Version",
            Self::VersionInvalid => "invalid Sec-WebSocket-Version",
            Self::VersionUnsupported(_) => "Sec-WebSocket-Version must be 13",
            Self::KeyMissing => "Sec-WebSocket-Key is missing",
            Self::KeyDuplicate => "more than one Sec-WebSocket-Key",
            Self::KeyInvalid => "Sec-WebSocket-Key is not 16 bytes in base64",
            Self::OriginDuplicate => "more than one Origin",
            Self::OriginInvalid => "invalid Origin",
            Self::SubprotocolInvalid => "a name in Sec-WebSocket-Protocol is not a token",
            Self::SubprotocolDuplicate => "a name occurs twice in Sec-WebSocket-Protocol",
            Self::Extensions(_) | Self::ExtensionsInvalid => "invalid Sec-WebSocket-Extensions",
            Self::PseudoHeader => "invalid pseudo-header",
            Self::Protocol => ":protocol is not websocket",
            Self::Scheme => "invalid :scheme",
            Self::ConnectionSpecific => "connection-specific header",
        }
    }
}

impl Malformed {
    fn reason(self) -> &'static str {
        match self {
            Self::StartLine => "invalid first line",
            Self::HeaderName => "invalid header name",
            Self::HeaderValue => "invalid header value",
            Self::LineEnd => "invalid line end",
            Self::ControlByte => "control character in the head",
        }
    }
}

impl ResponseError {
    fn reason(self) -> &'static str {
        match self {
            Self::Malformed(malformed) => malformed.reason(),
            Self::HttpVersion => "the server switched protocols in an HTTP version that cannot",
            Self::UpgradeMissing => "the server sent no Upgrade",
            Self::UpgradeInvalid => "the server upgraded to something other than websocket",
            Self::ConnectionMissing => "the server sent no Connection",
            Self::ConnectionInvalid => "the server's Connection does not name Upgrade",
            Self::AcceptMissing => "the server sent no Sec-WebSocket-Accept",
            Self::AcceptDuplicate => "the server sent more than one Sec-WebSocket-Accept",
            Self::AcceptInvalid => "the server's Sec-WebSocket-Accept does not answer the key",
            Self::SubprotocolNotOffered => "the server chose a subprotocol that was not offered",
            Self::SubprotocolDuplicate => "the server chose more than one subprotocol",
            Self::Extensions(_) | Self::ExtensionsInvalid => {
                "the server sent invalid Sec-WebSocket-Extensions"
            }
            Self::ExtensionNotOffered => "the server accepted an extension that was not offered",
            Self::ExtensionDuplicate => "the server accepted an extension twice",
            Self::Deflate(_) => "the server's answer to the offer of permessage-deflate is invalid",
            Self::PseudoHeader => "the server sent invalid pseudo-headers",
            Self::ConnectionSpecific => "the server sent a connection-specific header over HTTP/2",
        }
    }
}

impl LimitReached {
    fn reason(self) -> &'static str {
        match self {
            Self::HeadLen => "the head of the handshake is too long",
            Self::Headers => "too many headers in the handshake",
        }
    }
}

impl Misuse {
    fn reason(self) -> &'static str {
        match self {
            Self::Host => "invalid host",
            Self::Resource => "invalid resource name",
            Self::Origin => "invalid origin",
            Self::Subprotocol => "a subprotocol must be a token",
            Self::SubprotocolDuplicate => "a subprotocol is offered twice",
            Self::SubprotocolNotOffered => "the client did not offer this subprotocol",
            Self::HeaderName => "the name of a header must be a token",
            Self::HeaderValue => "control character in the value of a header",
            Self::HeaderReserved => "the handshake writes this header itself",
            Self::Status => "this status cannot refuse a handshake",
            Self::Body => "this status allows no body",
            Self::NoRequest => "no request waits for an answer",
            Self::Finished => "the handshake has ended",
            Self::HttpVersion => "the request came over another version of HTTP",
        }
    }
}

impl HandshakeError {
    /// The status with which a server refuses. For a [`Misuse`] that is 500, an error of the server; for a [`ResponseError`] 502, the
    /// status of a gateway.
    pub fn status(self) -> u16 {
        match self {
            Self::Request(error) => error.status(),
            // RFC 6585 §5.
            Self::Limit(_) => 431,
            Self::Response(_) => 502,
            Self::Misuse(_) => 500,
        }
    }

    /// One short sentence that may be shown to the peer.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Request(error) => error.reason(),
            Self::Response(error) => error.reason(),
            Self::Limit(limit) => limit.reason(),
            Self::Misuse(misuse) => misuse.reason(),
        }
    }
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())?;
        match self {
            Self::Request(RequestError::Extensions(error))
            | Self::Response(ResponseError::Extensions(error)) => {
                write!(f, ": {error}")
            }
            Self::Response(ResponseError::Deflate(error)) => write!(f, ": {error}"),
            Self::Request(RequestError::VersionUnsupported(version)) => write!(f, ", not {version}"),
            _ => Ok(()),
        }
    }
}

impl core::error::Error for HandshakeError {}

macro_rules! part {
    ($($part:ident => $variant:ident),*) => {$(
        impl From<$part> for HandshakeError {
            fn from(part: $part) -> Self {
                Self::$variant(part)
            }
        }

        impl fmt::Display for $part {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                HandshakeError::from(*self).fmt(f)
            }
        }

        impl core::error::Error for $part {}
    )*};
}

part!(RequestError => Request, ResponseError => Response, LimitReached => Limit, Misuse => Misuse);
