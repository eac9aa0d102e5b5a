//! A request as a value, before it is sent.

use std::fmt;

use wireloom_ws::handshake::{is_connection_specific_request_field, is_token};

use super::target::without_secrets;
use crate::error::{Error, HttpError};
use crate::headers::Headers;
use crate::http::Body;

/// A request to send: a method, a URL or path, headers, content.
///
/// ```
/// use wireloom::Body;
/// use wireloom::client::Request;
///
/// let request = Request::get("/search?q=loom").header("Accept", "text/html");
/// // Content that is produced while it is sent.
/// let (mut sender, body) = Body::channel();
/// let upload = Request::new("PUT", "https://example.com/file").with_body(body);
/// ```
pub struct Request {
    method: String,
    url: String,
    headers: Vec<Header>,
    body: Body,
    may_repeat: bool,
}

#[derive(Clone)]
struct Header {
    name: String,
    value: Vec<u8>,
    is_sensitive: bool,
}

impl Request {
    /// A request with this method, without headers and content. Sending it checks the method. OPTIONS for a URL without a path, such as
    /// `https://example.com`, is for the whole server, and has the target `*`.
    pub fn new(method: impl Into<String>, url: impl Into<String>) -> Self {
        let (method, url) = (method.into(), url.into());
        Self { method, url, headers: Vec::new(), body: Body::empty(), may_repeat: false }
    }

    /// GET.
    pub fn get(url: impl Into<String>) -> Self {
        Self::new("GET", url)
    }

    /// POST, with this content.
    pub fn post(url: impl Into<String>, body: impl Into<Body>) -> Self {
        Self::new("POST", url).with_body(body)
    }

    /// Adds a header; it replaces those of the [`Connector`](crate::Connector) with the same name. Connection-specific headers
    /// (`Connection`, `Host` and the like) cannot be sent.
    ///
    /// With `Expect: 100-continue` the content is held back until the server asks for it, for at most a second.
    #[must_use]
    pub fn header(self, name: impl Into<String>, value: impl AsRef<[u8]>) -> Self {
        self.with_header(name.into(), value.as_ref(), false)
    }

    /// As [`header`](Self::header), for a value that compression must not reveal: see [`Headers::push_sensitive`]. A proxy forwards
    /// the headers for which [`Headers::is_sensitive`] is true with this method.
    #[must_use]
    pub fn sensitive_header(self, name: impl Into<String>, value: impl AsRef<[u8]>) -> Self {
        self.with_header(name.into(), value.as_ref(), true)
    }

    fn with_header(mut self, name: String, value: &[u8], is_sensitive: bool) -> Self {
        self.headers.push(Header { name, value: value.to_vec(), is_sensitive });
        self
    }

    /// Sets the content: bytes, text, or a streaming [`Body`]. `Content-Length` is sent when the length is known.
    #[must_use]
    pub fn with_body(mut self, body: impl Into<Body>) -> Self {
        self.body = body.into();
        self
    }

    /// Declares that the server may process the request twice, whatever its method: a [`Pool`](super::Pool) may send it again.
    #[must_use]
    pub fn idempotent(mut self) -> Self {
        self.may_repeat = true;
        self
    }

    /// RFC 9110 §4.2.3: an empty path is `/` except in the target of OPTIONS.
    pub(super) fn is_for_server(&self) -> bool {
        let url = self.url.split('#').next().unwrap_or_default();
        let rest = url.split_once("://").map(|(_, rest)| rest);
        self.method == "OPTIONS" && rest.is_some_and(|rest| !rest.contains(['/', '?']))
    }

    /// Whether it may be processed twice. RFC 9110 §9.2.2: these methods are idempotent.
    pub(super) fn is_idempotent(&self) -> bool {
        self.may_repeat || matches!(&*self.method, "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE")
    }

    /// A copy; `None` if the content is a stream.
    pub(super) fn try_clone(&self) -> Option<Self> {
        let Self { method, url, headers, body, may_repeat } = self;
        let (method, url, headers) = (method.clone(), url.clone(), headers.clone());
        Some(Self { method, url, headers, body: body.try_clone()?, may_repeat: *may_repeat })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Whether its content is sent in chunks over HTTP/1.1: the length is unknown.
    pub(super) fn needs_chunks(&self, connector_headers: &[(String, String)]) -> bool {
        let names_length =
            connector_headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-length"));
        self.body.len_hint().is_none() && !self.has("content-length") && !names_length
    }

    fn has(&self, name: &str) -> bool {
        self.headers.iter().any(|own| own.name.eq_ignore_ascii_case(name))
    }

    /// Adds the headers of every request whose names this one does not have.
    pub(super) fn add_missing(&self, headers: &[(String, String)], into: &mut Headers) -> Result<(), Error> {
        for (name, value) in headers {
            if is_of_connection(name, value.as_bytes()) {
                return Err(Error::Http(HttpError::InvalidHeader));
            }
            if !self.has(name) {
                into.push(name, value)?;
            }
        }
        Ok(())
    }

    /// Adds the headers to `into`; returns the method, the content, and whether it waits for `100 Continue`.
    ///
    /// # Errors
    /// The method or a header cannot be sent.
    pub(super) fn into_parts(self, into: &mut Headers) -> Result<(String, Body, bool), Error> {
        // RFC 9110 §9.1: a token. CONNECT opens a tunnel, which is no request.
        if !is_token(self.method.as_bytes()) || self.method == "CONNECT" {
            return Err(Error::Http(HttpError::InvalidHeader));
        }
        for Header { name, value, is_sensitive } in &self.headers {
            if is_of_connection(name, value) {
                return Err(Error::Http(HttpError::InvalidHeader));
            }
            into.push(name, value)?;
            if *is_sensitive {
                into.mark_last_sensitive();
            }
        }
        let len =
            self.body.len_hint().filter(|&len| len > 0 || self.method == "POST" || self.method == "PUT");
        if let Some(len) = len
            && !self.has("content-length")
        {
            into.push("content-length", len.to_string())?;
        }
        // RFC 9112 §6.3: a message with two lengths is ambiguous.
        if into.get_all("content-length").nth(1).is_some() {
            return Err(Error::Http(HttpError::InvalidHeader));
        }
        let expects = into.names("expect", "100-continue");
        Ok((self.method, self.body, expects))
    }
}

/// Connection-specific headers (RFC 9113 §8.2.2, §8.3.1), which this crate sends itself over HTTP/1.1.
fn is_of_connection(name: &str, value: &[u8]) -> bool {
    name.eq_ignore_ascii_case("host") || is_connection_specific_request_field(name.as_bytes(), value)
}

/// Without the credentials and the query of the URL and the values of headers, which may be secrets.
impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("method", &self.method)
            .field("url", &without_secrets(&self.url))
            .field("headers", &self.headers.iter().map(|header| &header.name).collect::<Vec<_>>())
            .field("body", &self.body)
            .finish()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    // RFC 7541 §6.2.3: an intermediary MUST use the same representation.
    #[test]
    fn a_header_stays_sensitive_until_it_is_sent() {
        let request = Request::get("/").header("a", "1").sensitive_header("Authorization", "secret");
        let copy = request.try_clone().unwrap();
        let mut headers = Headers::new();
        copy.into_parts(&mut headers).unwrap();
        assert!(headers.is_sensitive("authorization") && !headers.is_sensitive("a"));
    }
}
