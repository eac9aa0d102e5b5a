//! HTTP requests and responses as values, and what makes a WebSocket of one. How they travel is [`crate::server`]'s.

use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use wireloom_ws::deflate::DeflateConfig;
use wireloom_ws::handshake::error::RequestError;
use wireloom_ws::handshake::{self, Acceptance, HandshakeError, Negotiated, Version};

use crate::server::ServerConfig;
use crate::websocket::{WebSocket, WebSocketConfig};

/// A request that has arrived, with its body.
pub struct Request {
    pub(crate) head: Bytes,
    pub(crate) method: Range<usize>,
    pub(crate) target: Range<usize>,
    pub(crate) version: Version,
    pub(crate) fields: Vec<(Range<usize>, Range<usize>)>,
    pub(crate) body: Bytes,
    pub(crate) peer: SocketAddr,
    pub(crate) tls: Option<Arc<TlsInfo>>,
    pub(crate) config: Arc<ServerConfig>,
}

/// What TLS agreed upon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsInfo {
    /// The name that the client asked for (SNI).
    pub server_name: Option<String>,
    /// The version, such as `TLSv1_3`.
    pub version: String,
    /// The application protocol, such as `http/1.1` (ALPN).
    pub alpn: Option<Vec<u8>>,
}

impl Request {
    fn text(&self, range: &Range<usize>) -> &str {
        // What a head's names and target may hold is ASCII, as the parser has checked.
        self.head.get(range.clone()).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
    }

    /// The method, such as `GET`.
    pub fn method(&self) -> &str {
        self.text(&self.method)
    }

    /// The target as it was sent.
    pub fn target(&self) -> &str {
        self.text(&self.target)
    }

    /// Path and query: of an absolute target what follows the authority (RFC 9112 §3.2.2).
    fn resource(&self) -> &str {
        let target = self.target();
        match target.split_once("://") {
            Some((scheme, rest)) if !scheme.contains('/') => {
                rest.find(['/', '?']).map_or("/", |at| &rest[at..])
            }
            _ => target,
        }
    }

    /// The path. Nothing in it is decoded or resolved.
    pub fn path(&self) -> &str {
        let path = self.resource().split(['?', '#']).next().unwrap_or_default();
        if path.is_empty() { "/" } else { path }
    }

    /// The query, without its `?`.
    pub fn query(&self) -> Option<&str> {
        self.resource().split_once('?').map(|(_, query)| query)
    }

    /// The value of a parameter of the query, as it was sent: nothing is decoded.
    pub fn query_param(&self, name: &str) -> Option<&str> {
        let mut params = self.query()?.split('&').map(|param| param.split_once('=').unwrap_or((param, "")));
        params.find(|(candidate, _)| *candidate == name).map(|(_, value)| value)
    }

    /// All header fields in their order.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.fields.iter().map(|(name, value)| (self.text(name), &self.head[value.clone()]))
    }

    /// The value of the first header with this name, in any case.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers().find(|(candidate, _)| candidate.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The values of all headers with this name, in any case.
    pub(crate) fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.headers()
            .filter(move |(candidate, _)| candidate.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    /// Whether one of the comma-separated values of a header is this token.
    pub(crate) fn names(&self, header: &str, token: &str) -> bool {
        self.values(header)
            .flat_map(|value| value.split(|&byte| byte == b','))
            .any(|item| item.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
    }

    /// The body.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Where it came from.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// What TLS agreed upon, if it came over TLS.
    pub fn tls(&self) -> Option<&TlsInfo> {
        self.tls.as_deref()
    }

    /// Whether the client wants a WebSocket.
    pub fn is_websocket(&self) -> bool {
        self.names("upgrade", "websocket")
    }

    /// Judges the request as the opening handshake of a WebSocket (RFC 6455 §4.2).
    ///
    /// # Errors
    /// The response to refuse it with, when it is none or not a valid one.
    pub fn websocket(&self) -> Result<Upgrade, Response> {
        let judged =
            handshake::Request::from_parts(self.method(), self.target(), self.version, self.headers());
        match judged {
            Ok(request) => Ok(Upgrade {
                request,
                config: self.config.websocket.clone(),
                deflate: self.config.deflate.clone(),
                subprotocol: None,
                headers: Vec::new(),
            }),
            // RFC 9110 §15.5.22: nothing is wrong with it but that it is no handshake.
            Err(HandshakeError::Request(RequestError::UpgradeMissing)) => {
                Err(Response::text(426, "this is a WebSocket\n").with_header("Upgrade", "websocket"))
            }
            Err(error) => Err(Response::from(&error.refusal())),
        }
    }
}

/// The names of the headers alone: their values have no business in a log.
impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("method", &self.method())
            .field("path", &self.path())
            .field("headers", &self.headers().map(|(name, _)| name).collect::<Vec<_>>())
            .field("body_len", &self.body.len())
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

/// A valid opening handshake that waits for an answer: [`on_open`](Self::on_open) accepts it, any other response refuses.
#[derive(Debug)]
pub struct Upgrade {
    request: handshake::Request,
    config: WebSocketConfig,
    deflate: Option<DeflateConfig>,
    subprotocol: Option<String>,
    headers: Vec<(String, String)>,
}

impl Upgrade {
    /// The handshake: origin, subprotocols, extensions.
    pub fn request(&self) -> &handshake::Request {
        &self.request
    }

    /// Speaks the first of these subprotocols that the client offers.
    #[must_use]
    pub fn subprotocols(mut self, preferences: &[&str]) -> Self {
        self.subprotocol = self.request.select_subprotocol(preferences).map(String::from);
        self
    }

    /// Adds a header to the answer, such as `Set-Cookie`.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Chooses for this WebSocket alone, instead of [`ServerConfig::websocket`].
    #[must_use]
    pub fn config(mut self, config: WebSocketConfig) -> Self {
        self.config = config;
        self
    }

    /// Offers compression to this client, or does not, instead of [`ServerConfig::deflate`].
    #[must_use]
    pub fn deflate(mut self, deflate: Option<DeflateConfig>) -> Self {
        self.deflate = deflate;
        self
    }

    /// Accepts: the response to return from the handler. Once it has been sent, `run` is given the WebSocket.
    pub fn on_open<F, Fut>(self, run: F) -> Response
    where
        F: FnOnce(WebSocket) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let headers: Vec<(&str, &str)> =
            self.headers.iter().map(|(name, value)| (&**name, &**value)).collect();
        let acceptance = Acceptance {
            subprotocol: self.subprotocol.as_deref(),
            deflate: self.deflate.as_ref(),
            headers: &headers,
        };
        let Ok((answer, negotiated)) = self.request.accept(&acceptance) else {
            return Response::text(500, "a header of the answer cannot be sent\n");
        };
        let mut response = Response::from(&answer);
        response.opening = Some(Box::new(Opening {
            negotiated,
            deflate: self.deflate,
            config: self.config,
            run: Box::new(move |socket| Box::pin(run(socket))),
        }));
        response
    }
}

/// What serves an open WebSocket.
pub(crate) type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What becomes of the connection once a handshake has been answered.
pub(crate) struct Opening {
    pub(crate) negotiated: Negotiated,
    pub(crate) deflate: Option<DeflateConfig>,
    pub(crate) config: WebSocketConfig,
    pub(crate) run: Box<dyn FnOnce(WebSocket) -> Running + Send>,
}

/// A response to send.
pub struct Response {
    status: u16,
    headers: Vec<(String, Vec<u8>)>,
    body: Bytes,
    pub(crate) opening: Option<Box<Opening>>,
}

impl Response {
    /// A response without headers and body of its own. A status outside 200 to 599 becomes 500.
    pub fn new(status: u16) -> Self {
        let status = if (200..600).contains(&status) { status } else { 500 };
        Self { status, headers: Vec::new(), body: Bytes::new(), opening: None }
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
        Self::text(404, "there is nothing here\n")
    }

    /// Adds a header. One that cannot be sent (its name is no token, its value holds a control character, or it decides
    /// where the response ends) is left out.
    #[must_use]
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        let framing = ["content-length", "transfer-encoding", "connection"];
        let sendable = !name.is_empty()
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
            && value.bytes().all(|byte| byte == b'\t' || (byte >= b' ' && byte != 0x7F))
            && !framing.iter().any(|own| name.eq_ignore_ascii_case(own));
        debug_assert!(sendable, "the header {name} cannot be sent");
        if sendable {
            self.headers.push((name.into(), value.into()));
        }
        self
    }

    /// Sets the body, and says what it is.
    #[must_use]
    pub fn with_body(self, content_type: &str, body: impl Into<Bytes>) -> Self {
        let mut response = self.with_header("Content-Type", content_type);
        response.body = body.into();
        response
    }

    /// The status.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The headers in their order.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.headers.iter().map(|(name, value)| (&**name, &**value))
    }

    /// The body.
    pub fn body(&self) -> &Bytes {
        &self.body
    }
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response")
            .field("status", &self.status)
            .field("headers", &self.headers().map(|(name, _)| name).collect::<Vec<_>>())
            .field("body_len", &self.body.len())
            .finish_non_exhaustive()
    }
}

impl From<&handshake::Response> for Response {
    fn from(response: &handshake::Response) -> Self {
        Self {
            status: response.status(),
            headers: response.headers().map(|(name, value)| (name.into(), value.into())).collect(),
            body: Bytes::copy_from_slice(response.body()),
            opening: None,
        }
    }
}
