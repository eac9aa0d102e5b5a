//! The judgement of a client's opening handshake (RFC 6455 §4.2.1), and the answer to it (§4.2.2).
//!
//! It owns what every server must check. Whether this origin, this path or this cookie is welcome is for the
//! application to say: everything it needs is on [`Request`].

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use super::error::{HandshakeError, Malformed, Misuse, RequestError};
use super::extensions::{Extension, parse_lines};
use super::head::{Head, Occurs, RequestHead, Version};
use super::key::{accept_key, is_key};
use super::response::Response;
use super::token::{is_token, list, list_contains};
use super::uri::{is_authority, split_target};
use super::{HTTP2_STATUS, Negotiated, VERSION};
use crate::deflate::DeflateConfig;

/// An opening handshake with nothing wrong in it.
#[derive(Clone, PartialEq, Eq)]
pub struct Request {
    pub(super) head: Head,
    pub(super) resource: String,
    pub(super) host: String,
    /// The answer to the key, which HTTP/2 has not (RFC 8441 §5).
    pub(super) accept: Option<[u8; 28]>,
}

/// What a server grants to a request; by default nothing but the connection.
#[derive(Clone, Copy, Default)]
pub struct Acceptance<'a> {
    /// The subprotocol to speak: one of those that the client offered.
    pub subprotocol: Option<&'a str>,
    /// How permessage-deflate may be used, if the client offers it.
    pub deflate: Option<&'a DeflateConfig>,
    /// Headers to add, such as `Set-Cookie`.
    pub headers: &'a [(&'a str, &'a str)],
}

/// Without the query, and of the headers the names alone: the rest may be a secret.
impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("host", &self.host)
            .field("path", &self.resource.split('?').next())
            .field("headers", &self.head)
            .finish_non_exhaustive()
    }
}

/// Of the headers the names alone.
impl fmt::Debug for Acceptance<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acceptance")
            .field("subprotocol", &self.subprotocol)
            .field("deflate", &self.deflate)
            .field("headers", &self.headers.iter().map(|(name, _)| name).collect::<Vec<_>>())
            .finish()
    }
}

impl Request {
    /// Judges a request that was already parsed by whatever speaks HTTP there: its method, its target (origin-form or
    /// absolute), its version and all of its header fields. The bounds on their number and length are that parser's.
    ///
    /// ```
    /// use wireloom_ws::handshake::{Acceptance, Request, Version};
    ///
    /// let headers: [(&str, &[u8]); 5] = [
    ///     ("host", b"server.example.com"),
    ///     ("upgrade", b"websocket"),
    ///     ("connection", b"keep-alive, Upgrade"),
    ///     ("sec-websocket-key", b"dGhlIHNhbXBsZSBub25jZQ=="),
    ///     ("sec-websocket-version", b"13"),
    /// ];
    /// let request = Request::from_parts("GET", "/chat", Version::Http11, headers)?;
    /// let (response, _) = request.accept(&Acceptance::default())?;
    /// assert_eq!(response.header("sec-websocket-accept"), Some(&b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="[..]));
    /// # Ok::<(), wireloom_ws::handshake::error::HandshakeError>(())
    /// ```
    ///
    /// # Errors
    /// When it is no valid opening handshake; [`HandshakeError::refusal`] is the answer to send.
    pub fn from_parts<'a, N: AsRef<[u8]>>(
        method: &str,
        target: &str,
        version: Version,
        headers: impl IntoIterator<Item = (N, &'a [u8])>,
    ) -> Result<Self, HandshakeError> {
        let head = Head::from_fields(headers).map_err(RequestError::Malformed)?;
        let (resource, host) = judge_line(method, target, version, &head)?;
        Ok(Self::judge(head, resource, host)?)
    }

    /// Judges a head that was read from bytes.
    pub(super) fn from_head(request: RequestHead) -> Result<Self, RequestError> {
        let RequestHead { method, target, version, head } = request;
        let (Some(method), Some(target)) = (head.text(method), head.text(target)) else {
            return Err(RequestError::Malformed(Malformed::StartLine));
        };
        let (resource, host) = judge_line(method, target, version, &head)?;
        Self::judge(head, resource, host)
    }

    fn judge(head: Head, resource: String, host: String) -> Result<Self, RequestError> {
        judge_body(&head)?;
        judge_upgrade(&head)?;
        judge_version(&head)?;
        let accept = Some(accept_key(judge_key(&head)?));
        judge_fields(&head)?;
        Ok(Self { head, resource, host, accept })
    }

    /// The resource name that the client wants to talk to: path and query (RFC 6455 §3).
    pub fn resource(&self) -> &str {
        &self.resource
    }

    /// The path; always begins with `/`. Nothing in it is decoded or resolved.
    pub fn path(&self) -> &str {
        self.resource.split_once('?').map_or(&*self.resource, |(path, _)| path)
    }

    /// The query, without its `?`.
    pub fn query(&self) -> Option<&str> {
        self.resource.split_once('?').map(|(_, query)| query)
    }

    /// The authority that the client believes to talk to: host, and port if it is not the scheme's own.
    ///
    /// It is `Host`, unless the target is a whole URI: then it is that URI's (RFC 9112 §3.2.2).
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Where the script comes from that a browser runs. A server that is not meant for every page refuses, with 403,
    /// origins that it does not know (RFC 6455 §4.2.2, §10.2). Clients that are no browsers send none.
    pub fn origin(&self) -> Option<&str> {
        self.head.values("origin").next().and_then(|value| core::str::from_utf8(value).ok())
    }

    /// The subprotocols offered, in the client's order of preference.
    pub fn subprotocols(&self) -> impl Iterator<Item = &str> {
        subprotocols(&self.head).filter_map(|name| core::str::from_utf8(name).ok())
    }

    /// The first of the server's `preferences` that the client offers.
    pub fn select_subprotocol<'a>(&self, preferences: &[&'a str]) -> Option<&'a str> {
        preferences.iter().copied().find(|wanted| self.subprotocols().any(|offered| offered == *wanted))
    }

    /// The extensions offered, in the client's order of preference.
    pub fn extensions(&self) -> Vec<Extension<'_>> {
        // The lines were parsed when the request was judged, so that there is no error left.
        extension_lines(&self.head).and_then(|lines| parse_lines(lines).ok()).unwrap_or_default()
    }

    /// The version of WebSocket: always 13.
    pub fn version(&self) -> u8 {
        VERSION
    }

    /// All header fields in their order: names as they were sent, values without blanks around them.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.head.fields()
    }

    /// The value of the first header with this name, in any case.
    pub fn header<'a>(&'a self, name: &'a str) -> Option<&'a [u8]> {
        self.head.values(name).next()
    }

    /// The response that opens the connection (101; 200 over HTTP/2), and what was agreed with it.
    ///
    /// # Errors
    /// A [`Misuse`] when the client did not offer the subprotocol, or a header cannot be sent.
    pub fn accept(&self, acceptance: &Acceptance<'_>) -> Result<(Response, Negotiated), Misuse> {
        let mut response = Response::new(if self.accept.is_some() { 101 } else { HTTP2_STATUS });
        if let Some(accept) = self.accept {
            // RFC 6455 §4.2.2, item 5.
            response.push("Upgrade", b"websocket");
            response.push("Connection", b"Upgrade");
            response.push("Sec-WebSocket-Accept", accept.to_vec());
        }
        let mut negotiated = Negotiated::default();
        if let Some(subprotocol) = acceptance.subprotocol {
            // RFC 6455 §4.2.2, item 4: the value "MUST be derived from the client's handshake".
            if !self.subprotocols().any(|offered| offered == subprotocol) {
                return Err(Misuse::SubprotocolNotOffered);
            }
            response.push("Sec-WebSocket-Protocol", subprotocol.as_bytes().to_vec());
            negotiated.subprotocol = Some(String::from(subprotocol));
        }
        if let Some(deflate) = acceptance.deflate {
            let mut accepted = String::new();
            negotiated.deflate = deflate.accept_offers(self.extensions().iter(), &mut accepted);
            if negotiated.deflate.is_some() {
                response.push("Sec-WebSocket-Extensions", accepted.into_bytes());
            }
        }
        for (name, value) in acceptance.headers {
            response.push_checked(name, value)?;
        }
        let response = if self.accept.is_some() { response } else { response.into_http2() };
        Ok((response, negotiated))
    }
}

/// The request line and `Host`: the resource name and the host.
fn judge_line(
    method: &str,
    target: &str,
    version: Version,
    head: &Head,
) -> Result<(String, String), RequestError> {
    // RFC 6455 §4.2.1, item 1: an HTTP/1.1 or higher GET request with a resource name or an absolute URI.
    if version == Version::Http10 {
        return Err(RequestError::HttpVersionTooLow);
    }
    if method != "GET" {
        return Err(RequestError::Method);
    }
    let (authority, resource) = split_target(target).ok_or(RequestError::Target)?;
    // RFC 6455 §4.2.1, item 2; RFC 9112 §3.2: exactly one, whatever the target.
    let host = match head.one("host") {
        Occurs::Once(host) => host,
        Occurs::Never => return Err(RequestError::HostMissing),
        Occurs::Often => return Err(RequestError::HostDuplicate),
    };
    let host = core::str::from_utf8(host).map_err(|_| RequestError::HostInvalid)?;
    if !is_authority(host.as_bytes()) {
        return Err(RequestError::HostInvalid);
    }
    // RFC 9112 §3.2.2: the host of an absolute-form target takes the place of `Host`.
    let host = String::from(authority.unwrap_or(host));
    Ok((resource, host))
}

/// A body would lie where frames begin, and two readers that disagree about it can be played against each other.
fn judge_body(head: &Head) -> Result<(), RequestError> {
    let zero = |len: &[u8]| !len.is_empty() && len.iter().all(|&digit| digit == b'0');
    if head.has("transfer-encoding") || !head.values("content-length").all(zero) {
        return Err(RequestError::Body);
    }
    Ok(())
}

fn judge_upgrade(head: &Head) -> Result<(), RequestError> {
    // RFC 6455 §4.2.1, item 3: Upgrade contains "websocket", in any case.
    if !head.has("upgrade") {
        return Err(RequestError::UpgradeMissing);
    }
    if !head.values("upgrade").any(|value| list_contains(value, "websocket")) {
        return Err(RequestError::UpgradeInvalid);
    }
    // RFC 6455 §4.2.1, item 4: Connection includes the token "Upgrade", in any case.
    if !head.has("connection") {
        return Err(RequestError::ConnectionMissing);
    }
    if !head.values("connection").any(|value| list_contains(value, "upgrade")) {
        return Err(RequestError::ConnectionInvalid);
    }
    Ok(())
}

/// RFC 6455 §4.2.1, item 6; §4.2.2, item 4; §11.3.5: at most once.
pub(super) fn judge_version(head: &Head) -> Result<(), RequestError> {
    let version = match head.one("sec-websocket-version") {
        Occurs::Once(version) => version,
        Occurs::Never => return Err(RequestError::VersionMissing),
        Occurs::Often => return Err(RequestError::VersionDuplicate),
    };
    // RFC 6455 §4.3: one to three digits up to 255, without a leading zero.
    let number = match version {
        [b'0'..=b'9'] | [b'1'..=b'9', b'0'..=b'9'] | [b'1' | b'2', b'0'..=b'9', b'0'..=b'9'] => {
            version.iter().fold(0, |number, digit| number * 10 + u16::from(digit - b'0'))
        }
        _ => return Err(RequestError::VersionInvalid),
    };
    match u8::try_from(number) {
        Ok(VERSION) => Ok(()),
        Ok(other) => Err(RequestError::VersionUnsupported(other)),
        Err(_) => Err(RequestError::VersionInvalid),
    }
}

/// RFC 6455 §4.2.1, item 5; §11.3.1: at most once.
fn judge_key(head: &Head) -> Result<&[u8], RequestError> {
    match head.one("sec-websocket-key") {
        Occurs::Once(key) if is_key(key) => Ok(key),
        Occurs::Once(_) => Err(RequestError::KeyInvalid),
        Occurs::Never => Err(RequestError::KeyMissing),
        Occurs::Often => Err(RequestError::KeyDuplicate),
    }
}

/// What HTTP/1.1 and HTTP/2 have in common: origin, subprotocols, extensions.
pub(super) fn judge_fields(head: &Head) -> Result<(), RequestError> {
    // RFC 6454 §7.3: at most one Origin.
    match head.one("origin") {
        Occurs::Never => {}
        Occurs::Once(origin) if origin.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ') => {}
        Occurs::Once(_) => return Err(RequestError::OriginInvalid),
        Occurs::Often => return Err(RequestError::OriginDuplicate),
    }
    judge_subprotocols(head)?;
    if !head.has("sec-websocket-extensions") {
        return Ok(());
    }
    let lines = extension_lines(head).ok_or(RequestError::ExtensionsInvalid)?;
    parse_lines(lines).map_err(RequestError::Extensions)?;
    Ok(())
}

fn judge_subprotocols(head: &Head) -> Result<(), RequestError> {
    if !head.has("sec-websocket-protocol") {
        return Ok(());
    }
    let mut offered: Vec<&[u8]> = subprotocols(head).collect();
    // RFC 6455 §4.1, item 10; §11.3.4: `1#token`, and all of them unique.
    if offered.is_empty() {
        return Err(RequestError::SubprotocolEmpty);
    }
    if !offered.iter().all(|name| is_token(name)) {
        return Err(RequestError::SubprotocolInvalid);
    }
    offered.sort_unstable();
    if offered.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(RequestError::SubprotocolDuplicate);
    }
    Ok(())
}

fn subprotocols(head: &Head) -> impl Iterator<Item = &[u8]> {
    // RFC 6455 §11.3.4: several lines are the same as one.
    head.values("sec-websocket-protocol").flat_map(list)
}

/// The lines of `Sec-WebSocket-Extensions`; `None` when one is not text.
pub(super) fn extension_lines(head: &Head) -> Option<Vec<&str>> {
    head.values("sec-websocket-extensions").map(|line| core::str::from_utf8(line).ok()).collect()
}

impl From<Malformed> for RequestError {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(extra: &[(&'static str, &'static [u8])]) -> Result<Request, HandshakeError> {
        let mut headers: Vec<(&str, &[u8])> = alloc::vec![
            ("Host", b"h"),
            ("Upgrade", b"websocket"),
            ("Connection", b"Upgrade"),
            ("Sec-WebSocket-Key", b"dGhlIHNhbXBsZSBub25jZQ=="),
            ("Sec-WebSocket-Version", b"13"),
        ];
        headers.extend_from_slice(extra);
        Request::from_parts("GET", "/a/b?c?d", Version::Http11, headers)
    }

    #[test]
    fn shows_everything_a_policy_needs() {
        let request = request(&[
            ("Origin", b"https://example.com"),
            ("Sec-WebSocket-Protocol", b"chat, superchat"),
            ("X", b" \xFF "),
            ("sec-websocket-protocol", b"last"),
            ("Sec-WebSocket-Extensions", b"a"),
            ("Sec-WebSocket-Extensions", b"b; c"),
        ])
        .unwrap();
        assert_eq!((request.resource(), request.path(), request.query()), ("/a/b?c?d", "/a/b", Some("c?d")));
        assert_eq!((request.host(), request.origin()), ("h", Some("https://example.com")));
        assert!(request.subprotocols().eq(["chat", "superchat", "last"]));
        assert_eq!(request.extensions().iter().map(|ext| ext.name).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!((request.header("x"), request.headers().count()), (Some(&b"\xFF"[..]), 11));
        assert_eq!(request.version(), 13);
    }

    #[test]
    fn selects_by_the_servers_preference() {
        let request = request(&[("Sec-WebSocket-Protocol", b"a, b, C")]).unwrap();
        assert_eq!(request.select_subprotocol(&["x", "b", "a"]), Some("b"));
        // RFC 6455 §11.3.4: the names are tokens, and tokens are compared as they are.
        assert_eq!(request.select_subprotocol(&["c"]), None);
        assert_eq!(request.select_subprotocol(&[]), None);
    }

    #[test]
    fn many_subprotocols_take_no_quadratic_time() {
        let names: Vec<String> = (0..100_000).map(|i| alloc::format!("p{i}")).collect();
        let list = names.join(",").into_bytes().leak();
        let request = request(&[("Sec-WebSocket-Protocol", list)]).unwrap();
        assert_eq!(request.subprotocols().count(), 100_000);
    }
}
