//! Validation of a client's opening handshake (RFC 6455 §4.2.1), and the answer to it (§4.2.2).
//!
//! This module makes the checks that every server must make. The application decides about origins, paths and cookies:
//! [`Request`] has all of them.

use alloc::borrow::Cow;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use super::error::{HandshakeError, Malformed, Misuse, RequestError};
use super::extensions::{Extension, parse_lines};
use super::head::{Head, Occurs, RequestHead, Version};
use super::key::{accept_key, is_key};
use super::response::{Response, check_header};
use super::token::{is_connection_specific, is_token, list, list_contains};
use super::uri::{is_authority, split_target};
use super::{HTTP2_STATUS, Negotiated, VERSION};
use crate::deflate::DeflateConfig;

/// A valid opening handshake.
#[derive(Clone, PartialEq, Eq)]
pub struct Request {
    /// The fields, and the texts below.
    pub(super) head: Head,
    pub(super) resource: Range<usize>,
    pub(super) host: Range<usize>,
    /// The answer to the key; `None` over HTTP/2, which has no key (RFC 8441 §5).
    pub(super) accept: Option<[u8; 28]>,
}

/// The answer of a server that accepts a request; by default without subprotocol, extensions and headers.
#[derive(Clone, Copy, Default)]
pub struct Acceptance<'a> {
    /// The chosen subprotocol: one that the client offered.
    pub subprotocol: Option<&'a str>,
    /// The configuration of permessage-deflate, if the client offers it.
    pub deflate: Option<&'a DeflateConfig>,
    /// Headers to add, such as `Set-Cookie`.
    pub headers: &'a [(&'a str, &'a str)],
}

/// Shows neither the query nor the values of headers: they may be secrets.
impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("host", &self.host())
            .field("path", &self.path())
            .field("headers", &self.head)
            .finish_non_exhaustive()
    }
}

/// Shows the names of headers, not their values.
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
    /// Checks a request that an HTTP library has parsed: its method, its target (origin-form or absolute), its version and all
    /// of its header fields. The library bounds their number and length.
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
    /// The request is not a valid opening handshake; [`HandshakeError::refusal`] is the answer to send.
    pub fn from_parts<'a, N: AsRef<[u8]>>(
        method: &str,
        target: &str,
        version: Version,
        headers: impl IntoIterator<Item = (N, &'a [u8])>,
    ) -> Result<Self, HandshakeError> {
        let mut head = Head::from_fields(headers).map_err(RequestError::Malformed)?;
        let target = head.push_text(target);
        let (resource, host) = check_request_line(method == "GET", target, version, &mut head)?;
        Ok(Self::from_fields(head, resource, host)?)
    }

    /// Checks a head that was read from bytes.
    pub(super) fn from_head(request: RequestHead) -> Result<Self, RequestError> {
        let RequestHead { method, target, version, mut head } = request;
        let is_get = head.text(method).ok_or(Malformed::StartLine)? == "GET";
        let (resource, host) = check_request_line(is_get, target, version, &mut head)?;
        Self::from_fields(head, resource, host)
    }

    fn from_fields(head: Head, resource: Range<usize>, host: Range<usize>) -> Result<Self, RequestError> {
        check_no_body(&head)?;
        check_upgrade(&head)?;
        check_version(&head)?;
        let accept = Some(accept_key(find_key(&head)?));
        check_shared_fields(&head)?;
        Ok(Self { head, resource, host, accept })
    }

    /// The resource name: path and query (RFC 6455 §3).
    pub fn resource(&self) -> &str {
        self.text(&self.resource)
    }

    /// The path as it was sent; it always begins with `/`.
    pub fn path(&self) -> &str {
        let resource = self.resource();
        resource.split_once('?').map_or(resource, |(path, _)| path)
    }

    /// The query, without its `?`.
    pub fn query(&self) -> Option<&str> {
        self.resource().split_once('?').map(|(_, query)| query)
    }

    /// The authority of the server: host, and port if it is not the scheme's default.
    ///
    /// It is `Host`, or the authority of a target in absolute form (RFC 9112 §3.2.2).
    pub fn host(&self) -> &str {
        self.text(&self.host)
    }

    fn text(&self, range: &Range<usize>) -> &str {
        // Both were text when they were checked.
        self.head.text(range.clone()).unwrap_or_default()
    }

    /// The origin of the web page that opens the connection. A server that is not meant for every page refuses unknown origins
    /// with 403 (RFC 6455 §4.2.2, §10.2). Clients other than browsers send none.
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
        // The lines were parsed when the request was checked, so that no error is left.
        extension_lines(&self.head).and_then(|lines| parse_lines(lines).ok()).unwrap_or_default()
    }

    /// The version of WebSocket: always 13.
    pub fn version(&self) -> u8 {
        VERSION
    }

    /// All header fields in their order: names as they were sent, values without surrounding whitespace.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.head.fields()
    }

    /// The value of the first header with this name, in any case.
    pub fn header<'a>(&'a self, name: &'a str) -> Option<&'a [u8]> {
        self.head.values(name).next()
    }

    /// The response that opens the connection (101; 200 over HTTP/2), and the negotiated parameters.
    ///
    /// # Errors
    /// [`Misuse`]: the client did not offer the subprotocol, or a header cannot be sent.
    pub fn accept(&self, acceptance: &Acceptance<'_>) -> Result<(Response, Negotiated), Misuse> {
        let mut response = Response::new(self.accepted_status());
        let negotiated = self.accept_with(acceptance, |name, value| response.push(name, value.to_vec()))?;
        Ok((response, negotiated))
    }

    /// The status of the response that [`accept`](Self::accept) returns.
    pub fn accepted_status(&self) -> u16 {
        if self.accept.is_some() { 101 } else { HTTP2_STATUS }
    }

    /// As [`accept`](Self::accept), for a library that has a list of headers of its own: passes each header of the response to `push`, in
    /// order.
    ///
    /// # Errors
    /// As for `accept`. Some headers may have been passed.
    pub fn accept_with(
        &self,
        acceptance: &Acceptance<'_>,
        mut push: impl FnMut(Cow<'static, str>, &[u8]),
    ) -> Result<Negotiated, Misuse> {
        let is_http1 = self.accept.is_some();
        if let Some(accept) = &self.accept {
            // RFC 6455 §4.2.2, item 5.
            push(Cow::Borrowed("Upgrade"), b"websocket");
            push(Cow::Borrowed("Connection"), b"Upgrade");
            push(Cow::Borrowed("Sec-WebSocket-Accept"), accept);
        }
        let mut push = |name: Cow<'static, str>, value: &[u8]| {
            if is_http1 {
                push(name, value);
            } else if !is_connection_specific(name.as_bytes()) {
                // RFC 9113 §8.2.
                push(Cow::Owned(name.to_ascii_lowercase()), value);
            }
        };
        let mut negotiated = Negotiated::default();
        if let Some(subprotocol) = acceptance.subprotocol {
            // RFC 6455 §4.2.2, item 4: the value "MUST be derived from the client's handshake".
            if !self.subprotocols().any(|offered| offered == subprotocol) {
                return Err(Misuse::SubprotocolNotOffered);
            }
            push(Cow::Borrowed("Sec-WebSocket-Protocol"), subprotocol.as_bytes());
            negotiated.subprotocol = Some(String::from(subprotocol));
        }
        if let Some(deflate) = acceptance.deflate {
            let mut accepted = String::new();
            negotiated.deflate = deflate.accept_offers(self.extensions().iter(), &mut accepted);
            if negotiated.deflate.is_some() {
                push(Cow::Borrowed("Sec-WebSocket-Extensions"), accepted.as_bytes());
            }
        }
        for (name, value) in acceptance.headers {
            check_header(name, value)?;
            push(Cow::Owned(String::from(*name)), value.as_bytes());
        }
        Ok(negotiated)
    }
}

/// Checks the request line and `Host`. Returns the resource name and the host.
fn check_request_line(
    is_get: bool,
    target: Range<usize>,
    version: Version,
    head: &mut Head,
) -> Result<(Range<usize>, Range<usize>), RequestError> {
    // RFC 6455 §4.2.1, item 1: an HTTP/1.1 or higher GET request with a resource name or an absolute URI.
    if version == Version::Http10 {
        return Err(RequestError::HttpVersionTooLow);
    }
    if !is_get {
        return Err(RequestError::Method);
    }
    let target = head.text(target).ok_or(Malformed::StartLine)?;
    let (authority, resource) = split_target(target).ok_or(RequestError::Target)?;
    // RFC 6455 §4.2.1, item 2; RFC 9112 §3.2: exactly one, whatever the target.
    let host = match head.one("host") {
        Occurs::Once(host) if is_authority(host) => host,
        Occurs::Once(_) => return Err(RequestError::HostInvalid),
        Occurs::Never => return Err(RequestError::HostMissing),
        Occurs::Often => return Err(RequestError::HostDuplicate),
    };
    // RFC 9112 §3.2.2: the host of an absolute-form target takes the place of `Host`.
    let host = head.range_of(authority.map_or(host, str::as_bytes));
    let resource = match resource {
        Cow::Borrowed(resource) => head.range_of(resource.as_bytes()),
        Cow::Owned(resource) => head.push_text(&resource),
    };
    Ok((resource, host))
}

/// A body would be where frames begin: two readers that disagree about it allow request smuggling.
fn check_no_body(head: &Head) -> Result<(), RequestError> {
    let zero = |len: &[u8]| !len.is_empty() && len.iter().all(|&digit| digit == b'0');
    if head.has("transfer-encoding") || !head.values("content-length").all(zero) {
        return Err(RequestError::Body);
    }
    Ok(())
}

fn check_upgrade(head: &Head) -> Result<(), RequestError> {
    // RFC 6455 §4.2.1, item 3: Upgrade contains "websocket", in any case.
    match names(head, "upgrade", "websocket") {
        None => return Err(RequestError::UpgradeMissing),
        Some(false) => return Err(RequestError::UpgradeInvalid),
        Some(true) => {}
    }
    // RFC 6455 §4.2.1, item 4: Connection includes the token "Upgrade", in any case.
    match names(head, "connection", "upgrade") {
        None => Err(RequestError::ConnectionMissing),
        Some(false) => Err(RequestError::ConnectionInvalid),
        Some(true) => Ok(()),
    }
}

/// Whether the lists of this field contain an element; `None` without the field.
fn names(head: &Head, field: &str, element: &str) -> Option<bool> {
    let mut lists = head.values(field).map(|list| list_contains(list, element));
    let first = lists.next()?;
    Some(first || lists.any(|contains| contains))
}

/// RFC 6455 §4.2.1, item 6; §4.2.2, item 4; §11.3.5: at most once.
pub(super) fn check_version(head: &Head) -> Result<(), RequestError> {
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
fn find_key(head: &Head) -> Result<&[u8], RequestError> {
    match head.one("sec-websocket-key") {
        Occurs::Once(key) if is_key(key) => Ok(key),
        Occurs::Once(_) => Err(RequestError::KeyInvalid),
        Occurs::Never => Err(RequestError::KeyMissing),
        Occurs::Often => Err(RequestError::KeyDuplicate),
    }
}

/// Checks the fields that HTTP/1.1 and HTTP/2 have in common: origin, subprotocols, extensions.
pub(super) fn check_shared_fields(head: &Head) -> Result<(), RequestError> {
    // RFC 6454 §7.3: at most one Origin.
    match head.one("origin") {
        Occurs::Never => {}
        Occurs::Once(origin) if origin.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ') => {}
        Occurs::Once(_) => return Err(RequestError::OriginInvalid),
        Occurs::Often => return Err(RequestError::OriginDuplicate),
    }
    check_subprotocols(head)?;
    if !head.has("sec-websocket-extensions") {
        return Ok(());
    }
    let lines = extension_lines(head).ok_or(RequestError::ExtensionsInvalid)?;
    parse_lines(lines).map_err(RequestError::Extensions)?;
    Ok(())
}

fn check_subprotocols(head: &Head) -> Result<(), RequestError> {
    // RFC 6455 §4.1, item 10; §11.3.4: `1#token`, and all of them unique. Some clients send an empty value when they offer none.
    let mut offered = subprotocols(head);
    let Some(first) = offered.next() else { return Ok(()) };
    if !subprotocols(head).all(is_token) {
        return Err(RequestError::SubprotocolInvalid);
    }
    let Some(second) = offered.next() else { return Ok(()) };
    let mut offered: Vec<&[u8]> = [first, second].into_iter().chain(offered).collect();
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

    fn request(extra: &[(&str, &[u8])]) -> Result<Request, HandshakeError> {
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
    fn gives_access_to_all_fields() {
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
        // RFC 6455 §11.3.4: the names are tokens, which are compared byte by byte.
        assert_eq!(request.select_subprotocol(&["c"]), None);
        assert_eq!(request.select_subprotocol(&[]), None);
    }

    // A published client library sends the field with an empty value when it offers no subprotocol.
    #[test]
    fn an_empty_list_of_subprotocols_is_absent() {
        for value in [&b""[..], b" ", b",, ,"] {
            let request = request(&[("Sec-WebSocket-Protocol", value)]).unwrap();
            assert_eq!((request.subprotocols().count(), request.select_subprotocol(&["a"])), (0, None));
            let (response, negotiated) = request.accept(&Acceptance::default()).unwrap();
            assert_eq!((response.header("sec-websocket-protocol"), negotiated.subprotocol), (None, None));
        }
    }

    #[test]
    fn checks_many_subprotocols_in_less_than_quadratic_time() {
        let names: Vec<String> = (0..100_000).map(|i| alloc::format!("p{i}")).collect();
        let list = names.join(",").into_bytes();
        let request = request(&[("Sec-WebSocket-Protocol", &list)]).unwrap();
        assert_eq!(request.subprotocols().count(), 100_000);
    }
}
