//! A response as a value.

use std::fmt;

use bytes::Bytes;
#[cfg(feature = "http2")]
use wireloom_http2::error::ErrorCode;
use wireloom_ws::handshake::{self, is_connection_specific};

use super::body::Body;
use super::upgrade::Open;
use crate::error::{Error, HttpError};
use crate::headers::Headers;

/// A response to send.
pub struct Response {
    status: u16,
    pub(crate) headers: Headers,
    body: Body,
    pub(crate) opening: Option<Box<dyn Open>>,
    pub(crate) afterwards: Afterwards,
}

/// The state of the connection after a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Afterwards {
    /// More requests may follow on the connection.
    #[default]
    KeepAlive,
    /// The connection ends.
    CloseConnection,
}

impl Response {
    /// A response without headers or body. A status outside 200 to 599 becomes 500.
    pub fn new(status: u16) -> Self {
        let status = if (200..600).contains(&status) { status } else { 500 };
        Self {
            status,
            headers: Headers::new(),
            body: Body::empty(),
            opening: None,
            afterwards: Afterwards::default(),
        }
    }

    /// The answer that accepts a handshake: also 101, which [`new`](Self::new) does not accept.
    pub(super) fn switching(status: u16, headers: Headers) -> Self {
        Self { status, headers, ..Self::new(200) }
    }

    /// Text.
    pub fn text(status: u16, text: impl Into<String>) -> Self {
        Self::new(status).with_body("text/plain; charset=utf-8", text.into())
    }

    /// A page.
    pub fn html(page: impl Into<String>) -> Self {
        Self::new(200).with_body("text/html; charset=utf-8", page.into())
    }

    /// 404.
    pub fn not_found() -> Self {
        Self::text(404, "not found\n")
    }

    /// Adds a header. A `Date` replaces the server's own.
    ///
    /// ```
    /// use wireloom::{HttpError, Request, Response};
    ///
    /// async fn handle(_: Request) -> Result<Response, HttpError> {
    ///     Response::new(302).with_header("Location", "/elsewhere")
    /// }
    /// ```
    ///
    /// # Errors
    /// [`HttpError::InvalidHeader`] for a header that cannot be sent: its name is not a token, its value holds a control character, or it
    /// belongs to the connection, whose headers the server writes (`Content-Length`, `Transfer-Encoding`, `Connection`,
    /// `Keep-Alive`, `Proxy-Connection`, `TE`). A handler may return the error: it is answered with 500.
    pub fn with_header(mut self, name: &str, value: impl AsRef<[u8]>) -> Result<Self, HttpError> {
        if is_framing(name.as_bytes()) {
            return Err(HttpError::InvalidHeader);
        }
        self.headers.push(name, value)?;
        Ok(self)
    }

    /// Sets the body and its media type: bytes, text, or a [`Body`] that is produced while it is sent. A media type that is not a
    /// valid header value becomes `application/octet-stream`.
    #[must_use]
    pub fn with_body(mut self, content_type: &str, body: impl Into<Body>) -> Self {
        // RFC 9110 §8.3: one media type.
        self.headers.remove("content-type");
        if self.headers.push("Content-Type", content_type).is_err() {
            self.headers.push_unchecked(b"Content-Type", b"application/octet-stream");
        }
        self.body = body.into();
        self
    }

    /// Ends the connection after this response: over HTTP/1.1 with `Connection: close`, over HTTP/2 with GOAWAY, after which its
    /// other requests finish.
    #[must_use]
    pub fn close_connection(mut self) -> Self {
        self.afterwards = Afterwards::CloseConnection;
        self
    }

    /// No response: over HTTP/2 the stream is reset with this code (RFC 9113 §6.4), over HTTP/1.1 the connection is; a transport without
    /// resets, such as a Unix socket, ends. On servers of other crates it is a response with 500 whose body fails. A response that has begun is reset with the code of an
    /// [`HttpError::StreamReset`] that its body produces.
    #[cfg(feature = "http2")]
    pub fn reset(code: ErrorCode) -> Self {
        Self { body: Body::reset(code), ..Self::new(500) }
    }

    /// The status.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The headers in their order.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.headers.iter()
    }

    /// The body.
    pub fn body_mut(&mut self) -> &mut Body {
        &mut self.body
    }

    /// The code with which the stream is reset instead of a response.
    #[cfg(feature = "http2")]
    pub(crate) fn reset_code(&self) -> Option<ErrorCode> {
        self.body.reset_code()
    }

    /// Whether the status allows a body (RFC 9110 §6.4.1).
    pub(crate) fn allows_body(&self) -> bool {
        !matches!(self.status, 204 | 304)
    }

    /// A response from parts that a library has validated. This crate writes the framing headers, except those of a WebSocket handshake.
    #[cfg(feature = "tower")]
    pub(crate) fn from_parts(
        status: u16,
        mut headers: Headers,
        body: Body,
        opening: Option<Box<dyn Open>>,
    ) -> Self {
        if opening.is_some() {
            return Self { status, headers, body, opening, afterwards: Afterwards::default() };
        }
        let body = match content_length(&headers) {
            // A response to HEAD, of which only the length is known.
            Some(len) if body.is_empty() => Body::omitted(len),
            Some(len) if body.len_hint().is_none() => body.with_len(len),
            _ => body,
        };
        headers.remove_if(is_framing);
        Self { headers, body, ..Self::new(status) }
    }

    /// The status, the headers and the body to send.
    pub(crate) fn into_parts(self) -> (u16, Headers, Body) {
        // RFC 9110 §15.3.6: a server does not generate content in a response with 205. Over HTTP/1.1 its length is 0.
        let body = if self.status == 205 { Body::empty() } else { self.body };
        (self.status, self.headers, body)
    }
}

#[cfg(feature = "tower")]
fn content_length(headers: &Headers) -> Option<u64> {
    std::str::from_utf8(headers.get("content-length")?).ok()?.parse().ok()
}

/// Headers that determine where a message ends, or belong to the connection (RFC 9112 §6, RFC 9113 §8.2.2). `Upgrade` belongs to the
/// answer of some requests over HTTP/1.1.
fn is_framing(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"content-length")
        || (is_connection_specific(name) && !name.eq_ignore_ascii_case(b"upgrade"))
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response")
            .field("status", &self.status)
            .field("headers", &self.headers)
            .field("body", &self.body)
            .finish_non_exhaustive()
    }
}

impl From<&handshake::Response> for Response {
    fn from(response: &handshake::Response) -> Self {
        let len = response.headers().map(|(name, value)| name.len() + value.len()).sum();
        let mut headers = Headers::with_capacity(response.headers().count(), len);
        for (name, value) in response.headers() {
            headers.push_unchecked(name.as_bytes(), value);
        }
        // `new` does not accept 101.
        Self {
            status: response.status(),
            headers,
            body: Bytes::copy_from_slice(response.body()).into(),
            opening: None,
            afterwards: Afterwards::default(),
        }
    }
}

/// The response for a failure to read the body of a request.
impl From<HttpError> for Response {
    fn from(error: HttpError) -> Self {
        match error {
            // RFC 9110 §15.5.14, §15.5.9.
            HttpError::TooLarge => Self::text(413, "the body is too large\n"),
            HttpError::BodyTimeout => Self::text(408, "the body took too long\n"),
            // RFC 9110 §15.6.4.
            HttpError::Overloaded => Self::text(503, "the server is overloaded\n"),
            HttpError::Malformed(why) => Self::text(400, format!("{why}\n")),
            HttpError::ConnectionLost | HttpError::Closed => Self::text(400, "the body is incomplete\n"),
            #[cfg(feature = "http2")]
            HttpError::StreamReset(_) | HttpError::GoAway(_) => Self::text(400, "the body is incomplete\n"),
            #[cfg(feature = "http2")]
            HttpError::Http2(error @ wireloom_http2::error::Error::Peer { .. }) => {
                Self::text(400, format!("{error}\n"))
            }
            _ => Self::text(500, "internal server error\n"),
        }
    }
}

/// The response for a handler that failed: that for the content of its request, or 500.
impl From<Error> for Response {
    fn from(error: Error) -> Self {
        match error {
            Error::Http(error) => error.into(),
            _ => Self::text(500, "internal server error\n"),
        }
    }
}

/// The return types of handlers: a [`Response`], a `Result` of two of them, a status, or text.
pub trait IntoResponse {
    /// The response.
    fn into_response(self) -> Response;
}

impl IntoResponse for Response {
    fn into_response(self) -> Response {
        self
    }
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        self.into()
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        self.into()
    }
}

impl<T: IntoResponse, E: IntoResponse> IntoResponse for Result<T, E> {
    fn into_response(self) -> Response {
        match self {
            Ok(response) => response.into_response(),
            Err(response) => response.into_response(),
        }
    }
}

/// A status alone.
impl IntoResponse for u16 {
    fn into_response(self) -> Response {
        Response::new(self)
    }
}

impl IntoResponse for String {
    fn into_response(self) -> Response {
        Response::text(200, self)
    }
}

impl IntoResponse for &'static str {
    fn into_response(self) -> Response {
        Response::text(200, self)
    }
}
