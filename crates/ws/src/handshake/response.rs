//! A response as a value: the answer of a server, or the one that a client received instead of 101.
//!
//! It checks that one header cannot become two. It does not read bodies that a peer sends.

use alloc::borrow::Cow;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use super::error::{HandshakeError, Misuse, RequestError};
use super::head::{Head, ResponseHead};
use super::token::{is_connection_specific, is_field_value, is_token};

/// A response to an opening handshake.
///
/// A server refuses with one: it writes it as bytes, or passes its parts to an HTTP library. A client receives one when the server
/// did not switch protocols, for example to follow a redirect or to send credentials.
///
/// ```
/// use wireloom_ws::handshake::Response;
///
/// let response = Response::refusal(401)?.with_header("WWW-Authenticate", "Basic realm=\"chat\"")?;
/// let mut bytes = Vec::new();
/// response.write_to(&mut bytes);
/// assert_eq!(
///     bytes,
///     b"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"chat\"\r\n\
///       Connection: close\r\nContent-Length: 0\r\n\r\n",
/// );
/// # Ok::<(), wireloom_ws::handshake::error::Misuse>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Response {
    status: u16,
    reason: Cow<'static, str>,
    headers: Vec<(Cow<'static, str>, Cow<'static, [u8]>)>,
    body: Vec<u8>,
}

impl Response {
    /// A refusal with this status, without headers and body of its own.
    ///
    /// # Errors
    /// [`Misuse::Status`] unless the status is from 200 to 599.
    pub fn refusal(status: u16) -> Result<Self, Misuse> {
        if (200..600).contains(&status) { Ok(Self::new(status)) } else { Err(Misuse::Status) }
    }

    /// Adds a header.
    ///
    /// # Errors
    /// [`Misuse`]: the name is not a token, the value contains a control character, or the handshake itself writes this header.
    pub fn with_header(mut self, name: &str, value: &str) -> Result<Self, Misuse> {
        self.push_checked(name, value)?;
        Ok(self)
    }

    /// Sets the body and its content type.
    ///
    /// # Errors
    /// [`Misuse::Body`]: the status allows no body (204, 304). [`Misuse::HeaderValue`]: the type cannot be sent.
    pub fn with_body(mut self, content_type: &str, body: impl Into<Vec<u8>>) -> Result<Self, Misuse> {
        if !self.allows_body() {
            return Err(Misuse::Body);
        }
        self.push_checked("Content-Type", content_type)?;
        self.body = body.into();
        Ok(self)
    }

    /// Sets the body that a client read after the head of a refusal.
    #[must_use]
    pub fn with_received_body(self, body: Vec<u8>) -> Self {
        Self { body, ..self }
    }

    /// The status.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The reason phrase; empty when the peer sent none, or one outside ASCII.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// The headers in their order.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.headers.iter().map(|(name, value)| (&**name, &**value))
    }

    /// The value of the first header with this name, in any case, such as `Location`, `WWW-Authenticate` or `Retry-After`.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers().find(|(candidate, _)| candidate.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The body: the one that a server sends, or the part that a client has read ([`with_received_body`](Self::with_received_body)).
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Appends the response as HTTP/1.1. A refusal gets `Connection` and `Content-Length`: close the connection after it, since the
    /// peer may already have sent frames.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"HTTP/1.1 ");
        let digit = |divisor: u16| b'0' + (self.status / divisor % 10) as u8;
        out.extend_from_slice(&[digit(100), digit(10), digit(1), b' ']);
        out.extend_from_slice(self.reason.as_bytes());
        out.extend_from_slice(b"\r\n");
        for (name, value) in self.headers() {
            push_line(out, name, value);
        }
        if self.status >= 200 {
            // RFC 9110 §7.8: a sender of Upgrade names it in Connection.
            let upgrades = self.header("upgrade").is_some();
            push_line(out, "Connection", if upgrades { b"Upgrade, close" } else { b"close" });
            if self.allows_body() {
                let len = alloc::format!("{}", self.body.len());
                push_line(out, "Content-Length", len.as_bytes());
            }
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(&self.body);
    }

    pub(super) fn new(status: u16) -> Self {
        // As many as the answer to a handshake has.
        let headers = Vec::with_capacity(5);
        Self { status, reason: Cow::Borrowed(reason_phrase(status)), headers, body: Vec::new() }
    }

    pub(super) fn from_head(response: &ResponseHead) -> Self {
        let mut refused = Self::from_fields(response.status, &response.head);
        let reason = response.head.text(response.reason.clone()).unwrap_or_default();
        refused.reason = Cow::Owned(String::from(reason));
        refused
    }

    pub(super) fn from_fields(status: u16, head: &Head) -> Self {
        let owned =
            |(name, value): (&str, &[u8])| (Cow::Owned(String::from(name)), Cow::Owned(value.to_vec()));
        Self { headers: head.fields().map(owned).collect(), ..Self::new(status) }
    }

    /// Adds a header that was checked, or that the handshake itself writes.
    pub(super) fn push(&mut self, name: impl Into<Cow<'static, str>>, value: impl Into<Cow<'static, [u8]>>) {
        self.headers.push((name.into(), value.into()));
    }

    /// Adds a header of the caller.
    pub(super) fn push_checked(&mut self, name: &str, value: &str) -> Result<(), Misuse> {
        check_header(name, value)?;
        self.push(String::from(name), value.as_bytes().to_vec());
        Ok(())
    }

    /// The response in the form of HTTP/2: names in lower case (RFC 9113 §8.2), no connection-specific headers.
    pub(super) fn into_http2(mut self) -> Self {
        self.headers.retain(|(name, _)| !is_connection_specific(name.as_bytes()));
        for (name, _) in &mut self.headers {
            *name = Cow::Owned(name.to_ascii_lowercase());
        }
        self
    }

    pub(super) fn with_status(self, status: u16) -> Self {
        Self { status, reason: Cow::Borrowed(reason_phrase(status)), ..self }
    }

    pub(super) fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(candidate, _)| !candidate.eq_ignore_ascii_case(name));
        self
    }

    fn allows_body(&self) -> bool {
        // RFC 9110 §15.3.5, §15.4.5; §8.6: no Content-Length in a 204.
        !matches!(self.status, ..200 | 204 | 304)
    }
}

/// Shows the names of headers and the length of the body: values must not reach a log.
impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response")
            .field("status", &self.status)
            .field("headers", &self.headers().map(|(name, _)| name).collect::<Vec<_>>())
            .field("body_len", &self.body.len())
            .finish()
    }
}

impl HandshakeError {
    /// The complete refusal with which a server answers this error over HTTP/1.1.
    ///
    /// ```
    /// use wireloom_ws::handshake::error::{HandshakeError, RequestError};
    ///
    /// let refusal = HandshakeError::from(RequestError::VersionUnsupported(8)).refusal();
    /// assert_eq!(refusal.status(), 426);
    /// assert_eq!(refusal.header("Sec-WebSocket-Version"), Some(&b"13"[..]));
    /// ```
    pub fn refusal(self) -> Response {
        let mut response = Response::new(self.status());
        match self {
            // RFC 9110 §15.5.6: a 405 MUST list the allowed methods.
            Self::Request(RequestError::Method) => response.push("Allow", b"GET"),
            Self::Request(error) => {
                if error.status() == 426 {
                    // RFC 9110 §15.5.22: a 426 MUST name the required protocol.
                    response.push("Upgrade", b"websocket");
                }
                // RFC 6455 §4.2.2, item 4; §4.4: the refusal lists the supported versions.
                if matches!(
                    error,
                    RequestError::VersionUnsupported(_)
                        | RequestError::UpgradeMissing
                        | RequestError::UpgradeInvalid
                        | RequestError::HttpVersionTooLow
                        | RequestError::VersionMissing
                        | RequestError::VersionInvalid
                        | RequestError::VersionDuplicate
                ) {
                    response.push("Sec-WebSocket-Version", b"13");
                }
            }
            _ => {}
        }
        response.push("Content-Type", b"text/plain; charset=utf-8");
        response.body = alloc::format!("{}\n", self.reason()).into_bytes();
        response
    }
}

fn push_line(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Headers that determine the end of a message, or whether it is a handshake.
const RESERVED: [&str; 9] = [
    "connection",
    "upgrade",
    "content-length",
    "transfer-encoding",
    "sec-websocket-key",
    "sec-websocket-accept",
    "sec-websocket-version",
    "sec-websocket-protocol",
    "sec-websocket-extensions",
];

/// Whether the caller may add this header.
pub(super) fn check_header(name: &str, value: &str) -> Result<(), Misuse> {
    if !is_token(name.as_bytes()) {
        return Err(Misuse::HeaderName);
    }
    if RESERVED.iter().any(|reserved| name.eq_ignore_ascii_case(reserved)) {
        return Err(Misuse::HeaderReserved);
    }
    if is_field_value(value.as_bytes()) { Ok(()) } else { Err(Misuse::HeaderValue) }
}

/// The reason phrase of a status (RFC 9110 §15, RFC 6585); empty for others, which RFC 9112 §4 allows.
pub fn reason_phrase(status: u16) -> &'static str {
    match status {
        101 => "Switching Protocols",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        205 => "Reset Content",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        410 => "Gone",
        413 => "Content Too Large",
        414 => "URI Too Long",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        426 => "Upgrade Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_final_statuses_refuse() {
        for (status, allowed) in
            [(101, false), (199, false), (200, true), (599, true), (600, false), (0, false)]
        {
            assert_eq!(Response::refusal(status).is_ok(), allowed, "{status}");
        }
    }

    #[test]
    fn rejects_headers_that_would_become_two() {
        for (name, value, misuse) in [
            ("X", "a\r\nSet-Cookie: b", Misuse::HeaderValue),
            ("X", "a\nb", Misuse::HeaderValue),
            ("X", "a\rb", Misuse::HeaderValue),
            ("X", "a\0b", Misuse::HeaderValue),
            ("X", "a\x7F", Misuse::HeaderValue),
            ("X\r\nY", "a", Misuse::HeaderName),
            ("X: a\r\nY", "b", Misuse::HeaderName),
            ("X ", "a", Misuse::HeaderName),
            ("", "a", Misuse::HeaderName),
            ("X:", "a", Misuse::HeaderName),
            ("é", "a", Misuse::HeaderName),
            ("content-LENGTH", "0", Misuse::HeaderReserved),
            ("Transfer-Encoding", "chunked", Misuse::HeaderReserved),
            ("Connection", "close", Misuse::HeaderReserved),
            ("Upgrade", "websocket", Misuse::HeaderReserved),
            ("Sec-WebSocket-Accept", "x", Misuse::HeaderReserved),
            ("sec-websocket-protocol", "x", Misuse::HeaderReserved),
            ("Sec-WebSocket-Extensions", "x", Misuse::HeaderReserved),
        ] {
            let made = Response::refusal(400).unwrap().with_header(name, value);
            assert_eq!(made, Err(misuse), "{name:?}: {value:?}");
        }
        assert!(Response::refusal(400).unwrap().with_header("X", "a\tb é").is_ok());
        let body = Response::refusal(400).unwrap().with_body("text/plain\r\nX: y", "z");
        assert_eq!(body, Err(Misuse::HeaderValue));
    }

    #[test]
    fn bodies_have_a_length_or_are_rejected() {
        let mut out = Vec::new();
        Response::refusal(403).unwrap().with_body("text/plain", "no").unwrap().write_to(&mut out);
        assert_eq!(
            out,
            b"HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno"
        );
        for status in [204, 304] {
            let response = Response::refusal(status).unwrap();
            assert_eq!(response.clone().with_body("text/plain", ""), Err(Misuse::Body));
            out.clear();
            response.write_to(&mut out);
            assert!(!out.windows(8).any(|bytes| bytes == b"Content-"), "{status}");
        }
    }

    #[test]
    fn refusals_have_the_headers_that_the_rfcs_require() {
        let text = |error: RequestError| {
            let mut out = Vec::new();
            HandshakeError::from(error).refusal().write_to(&mut out);
            String::from_utf8(out).unwrap()
        };
        // RFC 6455 §4.2.2, item 4; RFC 9110 §15.5.22, §7.8.
        assert_eq!(
            text(RequestError::VersionUnsupported(8)),
            "HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Content-Type: text/plain; charset=utf-8\r\nConnection: Upgrade, close\r\nContent-Length: 33\r\n\r\n\
             Sec-WebSocket-Version must be 13\n"
        );
        assert!(text(RequestError::VersionMissing).contains("\r\nSec-WebSocket-Version: 13\r\n"));
        // RFC 9110 §15.5.6.
        assert!(text(RequestError::Method).starts_with("HTTP/1.1 405 Method Not Allowed\r\nAllow: GET\r\n"));
    }

    // RFC 9110 §15, RFC 6585.
    #[test]
    fn status_lines_have_the_registered_reasons() {
        for line in [
            "200 OK",
            "204 No Content",
            "301 Moved Permanently",
            "302 Found",
            "303 See Other",
            "307 Temporary Redirect",
            "308 Permanent Redirect",
            "400 Bad Request",
            "401 Unauthorized",
            "403 Forbidden",
            "404 Not Found",
            "405 Method Not Allowed",
            "408 Request Timeout",
            "410 Gone",
            "421 Misdirected Request",
            "426 Upgrade Required",
            "429 Too Many Requests",
            "431 Request Header Fields Too Large",
            "500 Internal Server Error",
            "501 Not Implemented",
            "502 Bad Gateway",
            "503 Service Unavailable",
            "505 HTTP Version Not Supported",
            "599 ",
        ] {
            let mut out = Vec::new();
            Response::refusal(line[..3].parse().unwrap()).unwrap().write_to(&mut out);
            assert!(out.starts_with(alloc::format!("HTTP/1.1 {line}\r\n").as_bytes()), "{line}");
        }
    }
}
