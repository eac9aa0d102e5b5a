//! Why a proxy opened no tunnel.

use std::fmt;

use super::Error;

/// Why a proxy opened no tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProxyError {
    /// The URL is not one of a proxy.
    InvalidUrl,
    /// An HTTP proxy answered CONNECT with this status; 407 when it wants (other) credentials.
    Refused(u16),
    /// A SOCKS5 proxy answered with this code (RFC 1928 §6).
    Socks(u8),
    /// A SOCKS5 proxy requires an authentication method that was not offered.
    Method,
    /// A SOCKS5 proxy does not accept the credentials.
    Credentials,
    /// The credentials cannot be sent: they are too long for SOCKS5 (255 bytes each), empty, or hold control characters.
    Unsendable,
    /// The host's name is too long for SOCKS5: over 255 bytes.
    HostTooLong,
    /// Its answer is not valid in its protocol.
    Malformed,
    /// The head of its answer is longer than 16 KiB.
    HeadTooLong,
    /// It closed the connection.
    ConnectionLost,
}

impl fmt::Display for ProxyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidUrl => f.write_str(
                "not the URL of a proxy (http, https, socks5 or socks5h; in a password / is %2F, ? is %3F, # is %23)",
            ),
            Self::Refused(407) => f.write_str("the proxy wants credentials (407)"),
            Self::Refused(status) => write!(f, "the proxy answered {status}"),
            Self::Socks(code) => write!(f, "the proxy answered: {}", socks_reason(*code)),
            Self::Method => f.write_str("the proxy accepts no authentication that this client offers"),
            Self::Credentials => f.write_str("the proxy does not accept the credentials"),
            Self::Unsendable => f.write_str("the credentials cannot be sent to the proxy"),
            Self::HostTooLong => f.write_str("the name of the host is too long for the proxy"),
            Self::Malformed => f.write_str("the proxy does not speak its protocol"),
            Self::HeadTooLong => f.write_str("the answer of the proxy is too long"),
            Self::ConnectionLost => f.write_str("the proxy closed the connection"),
        }
    }
}

impl std::error::Error for ProxyError {}

impl From<ProxyError> for Error {
    fn from(error: ProxyError) -> Self {
        Self::Proxy(error)
    }
}

/// RFC 1928 §6.
fn socks_reason(code: u8) -> &'static str {
    match code {
        1 => "general failure",
        2 => "not allowed by its rules",
        3 => "network unreachable",
        4 => "host unreachable",
        5 => "connection refused",
        6 => "time to live expired",
        7 => "command not supported",
        8 => "address type not supported",
        _ => "unknown failure",
    }
}
