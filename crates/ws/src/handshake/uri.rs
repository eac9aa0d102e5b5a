//! `ws` and `wss` URIs (RFC 6455 §3), the authority in `Host`, and the target of a request: checked and split. Names are neither
//! resolved nor converted to ASCII.

use alloc::borrow::Cow;
use alloc::format;
use core::fmt;
use core::net::Ipv6Addr;
use core::ops::Range;

/// A `ws` or `wss` URI.
///
/// ```
/// use wireloom_ws::handshake::uri::Uri;
///
/// let uri = Uri::parse("wss://example.com?room=1")?;
/// assert!(uri.secure());
/// assert_eq!((uri.host(), uri.port()), ("example.com", 443));
/// assert_eq!((uri.authority(), uri.resource()), ("example.com", "/?room=1"));
/// # Ok::<(), wireloom_ws::handshake::uri::UriError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uri<'a> {
    secure: bool,
    /// Without the port if it is the scheme's default.
    authority: &'a str,
    host: &'a str,
    port: u16,
    resource: Cow<'a, str>,
}

/// The part of a WebSocket URI that is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UriError {
    /// The scheme is neither `ws` nor `wss`.
    Scheme,
    /// It contains a user, which RFC 6455 §3 does not allow. Send credentials in an `Authorization` header.
    UserInfo,
    /// The host is missing or invalid, or the port is not a number up to 65,535.
    Authority,
    /// The path or the query contains a space, a control character or a byte outside of ASCII.
    Resource,
    /// It contains a fragment, which RFC 6455 §3 forbids. Any other `#` is written `%23`.
    Fragment,
}

impl fmt::Display for UriError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scheme => "the scheme is neither ws nor wss",
            Self::UserInfo => "a WebSocket URI cannot contain a user",
            Self::Authority => "invalid host or port",
            Self::Resource => "invalid character in the path or the query",
            Self::Fragment => "a WebSocket URI cannot contain a fragment",
        })
    }
}

impl core::error::Error for UriError {}

impl<'a> Uri<'a> {
    /// Splits a URI.
    ///
    /// # Errors
    /// It is not a URI of RFC 6455 §3.
    pub fn parse(uri: &'a str) -> Result<Self, UriError> {
        let (scheme, rest) = uri.split_once("://").ok_or(UriError::Scheme)?;
        // RFC 3986 §3.1: schemes are case-insensitive.
        let secure = match scheme {
            _ if scheme.eq_ignore_ascii_case("ws") => false,
            _ if scheme.eq_ignore_ascii_case("wss") => true,
            _ => return Err(UriError::Scheme),
        };
        // RFC 6455 §3: fragments MUST NOT be used.
        if rest.contains('#') {
            return Err(UriError::Fragment);
        }
        let (authority, resource) = split_authority(rest);
        if authority.contains('@') {
            return Err(UriError::UserInfo);
        }
        let (host, port) = split_port(authority.as_bytes()).ok_or(UriError::Authority)?;
        let host = &authority[host];
        // RFC 6455 §3: the default ports are 80 and 443.
        let default_port = if secure { 443 } else { 80 };
        let port = port.unwrap_or(default_port);
        if !is_resource(resource.as_bytes()) {
            return Err(UriError::Resource);
        }
        // RFC 6455 §4.1: `Host` has the port only if it is not the default one.
        let authority =
            if port == default_port { &authority[..bracketed_len(authority, host)] } else { authority };
        Ok(Self { secure, authority, host, port, resource })
    }

    /// Whether the scheme is `wss`: connect over TLS (RFC 6455 §4.1).
    pub fn secure(&self) -> bool {
        self.secure
    }

    /// The host to connect to, an IPv6 address without its brackets.
    pub fn host(&self) -> &'a str {
        self.host
    }

    /// The port to connect to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The value of `Host`: the host, and the port if it is not the scheme's default.
    pub fn authority(&self) -> &'a str {
        self.authority
    }

    /// The resource name: path and query, never empty (RFC 6455 §3).
    pub fn resource(&self) -> &str {
        &self.resource
    }
}

/// The length of the host in an authority, with brackets.
fn bracketed_len(authority: &str, host: &str) -> usize {
    if authority.starts_with('[') { host.len() + 2 } else { host.len() }
}

/// Splits a URI after its `://` into authority and resource name.
pub(crate) fn split_authority(rest: &str) -> (&str, Cow<'_, str>) {
    let (authority, resource) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    // RFC 6455 §3: the path is "/" if it is empty.
    let resource =
        if resource.starts_with('/') { Cow::Borrowed(resource) } else { Cow::Owned(format!("/{resource}")) };
    (authority, resource)
}

/// Where the host of an authority is, without brackets, and the port; `None` when it is malformed.
fn split_port(authority: &[u8]) -> Option<(Range<usize>, Option<u16>)> {
    let (host, rest) = match authority.strip_prefix(b"[") {
        Some(literal) => {
            // RFC 3986 §3.2.2: IP-literal, without IPvFuture, which nothing uses.
            let len = literal.iter().position(|&byte| byte == b']')?;
            core::str::from_utf8(&literal[..len]).ok()?.parse::<Ipv6Addr>().ok()?;
            (1..1 + len, &literal[len + 1..])
        }
        None => {
            let len = authority.iter().take_while(|&&byte| REG_NAME[usize::from(byte)]).count();
            (len > 0).then_some((0..len, &authority[len..]))?
        }
    };
    // RFC 3986 §3.2.3: `port = *DIGIT`.
    let port = match rest {
        [] | [b':'] => None,
        [b':', digits @ ..] => Some(digits.iter().try_fold(0_u16, |port, digit| {
            let digit = digit.is_ascii_digit().then(|| u16::from(digit - b'0'))?;
            port.checked_mul(10)?.checked_add(digit)
        })?),
        _ => return None,
    };
    Some((host, port))
}

/// RFC 3986 §3.2.2: `reg-name`, without the comma: no host contains one, and proxies join repeated headers with it.
const REG_NAME: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0_u8;
    while byte < 0x80 {
        table[byte as usize] = byte.is_ascii_alphanumeric()
            || matches!(
                byte,
                b'-' | b'.' | b'_' | b'~' | b'%' | b'!' | b'$' | b'&' | b'\''..=b'+' | b';' | b'='
            );
        byte += 1;
    }
    table
};

/// Whether this is a valid `Host` or `:authority`: a host with an optional port up to 65,535, without a user (RFC 9110 §7.2, RFC 3986
/// §3.2). An empty host is not one.
pub fn is_authority(bytes: &[u8]) -> bool {
    split_port(bytes).is_some()
}

/// Whether this is a resource name (RFC 6455 §3): it begins with `/` and consists of visible ASCII without `#`. Visible characters that
/// RFC 3986 requires to be escaped are accepted, since browsers send some of them.
pub(crate) fn is_resource(bytes: &[u8]) -> bool {
    bytes.starts_with(b"/") && bytes.iter().all(|&byte| byte.is_ascii_graphic() && byte != b'#')
}

/// The authority (in an absolute-form target) and the resource name of a request's target; `None` when it is neither
/// origin-form nor an absolute `http` or `https` URI (RFC 6455 §4.2.1).
pub(crate) fn split_target(target: &str) -> Option<(Option<&str>, Cow<'_, str>)> {
    let (authority, resource) = if target.starts_with('/') {
        (None, Cow::Borrowed(target))
    } else {
        let (scheme, rest) = target.split_once("://")?;
        if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
            return None;
        }
        let (authority, resource) = split_authority(rest);
        is_authority(authority.as_bytes()).then_some(())?;
        (Some(authority), resource)
    };
    is_resource(resource.as_bytes()).then_some((authority, resource))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_uris() {
        // RFC 6455 §3.
        for (uri, secure, host, port, authority, resource) in [
            ("ws://example.com", false, "example.com", 80, "example.com", "/"),
            ("WSS://example.com/", true, "example.com", 443, "example.com", "/"),
            ("ws://example.com?a=b", false, "example.com", 80, "example.com", "/?a=b"),
            ("ws://example.com/chat?a=/b?c", false, "example.com", 80, "example.com", "/chat?a=/b?c"),
            ("ws://h:80/x", false, "h", 80, "h", "/x"),
            ("ws://h:/x", false, "h", 80, "h", "/x"),
            ("ws://h:443/x", false, "h", 443, "h:443", "/x"),
            ("wss://h:443/x", true, "h", 443, "h", "/x"),
            ("ws://[::1]", false, "::1", 80, "[::1]", "/"),
            ("ws://[::1]:80/x", false, "::1", 80, "[::1]", "/x"),
            ("ws://[2001:db8::1]:9000/x", false, "2001:db8::1", 9000, "[2001:db8::1]:9000", "/x"),
            ("ws://127.0.0.1:65535", false, "127.0.0.1", 65535, "127.0.0.1:65535", "/"),
        ] {
            let parsed = Uri::parse(uri).unwrap();
            assert_eq!((parsed.secure(), parsed.host(), parsed.port()), (secure, host, port), "{uri}");
            assert_eq!((parsed.authority(), parsed.resource()), (authority, resource), "{uri}");
        }
    }

    #[test]
    fn rejects_invalid_uris() {
        // RFC 6455 §3, §4.1: "If this is not a valid ws or wss URI, the client MUST fail".
        for (uri, error) in [
            ("", UriError::Scheme),
            ("example.com", UriError::Scheme),
            ("http://example.com", UriError::Scheme),
            ("ws:/example.com", UriError::Scheme),
            ("ws://", UriError::Authority),
            ("ws:///path", UriError::Authority),
            ("ws://:80", UriError::Authority),
            ("ws://a b", UriError::Authority),
            ("ws://a\r\nHost: b", UriError::Authority),
            ("ws://bücher.example", UriError::Authority),
            ("ws://h:65536", UriError::Authority),
            ("ws://h:+80", UriError::Authority),
            ("ws://h:8o", UriError::Authority),
            ("ws://[::1", UriError::Authority),
            ("ws://[::g]", UriError::Authority),
            ("ws://[::1]x", UriError::Authority),
            ("ws://a\\b", UriError::Authority),
            ("ws://user@h", UriError::UserInfo),
            ("ws://user:secret@h/", UriError::UserInfo),
            ("ws://h/#", UriError::Fragment),
            ("ws://h#x", UriError::Fragment),
            ("ws://h/a b", UriError::Resource),
            ("ws://h/a\r\nX: y", UriError::Resource),
            ("ws://h/\0", UriError::Resource),
            ("ws://h/ü", UriError::Resource),
        ] {
            assert_eq!(Uri::parse(uri), Err(error), "{uri:?}");
        }
    }

    #[test]
    fn accepts_targets_in_origin_and_absolute_form() {
        // RFC 6455 §4.2.1, item 1.
        assert_eq!(split_target("/chat?x"), Some((None, "/chat?x".into())));
        assert_eq!(split_target("HTTP://a:1/b"), Some((Some("a:1"), "/b".into())));
        assert_eq!(split_target("https://a?b"), Some((Some("a"), "/?b".into())));
        for target in [
            "*",
            "a:80",
            "chat",
            "ws://a/",
            "http://",
            "http:///x",
            "http://u@a/",
            "/a#b",
            "/é",
            "http://a/#",
        ] {
            assert_eq!(split_target(target), None, "{target}");
        }
    }
}
