//! A received request, over HTTP/1.1 or HTTP/2.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
#[cfg(feature = "http2")]
use wireloom_http2::StreamKey;
#[cfg(feature = "http2")]
use wireloom_http2::field::{Field, Token};
#[cfg(feature = "http2")]
use wireloom_http2::message::RequestKind;
#[cfg(feature = "http2")]
use wireloom_http2::priority::Priority;
use wireloom_ws::deflate::DeflateConfig;
use wireloom_ws::handshake::{self, HandshakeError};

#[cfg(feature = "http2")]
use super::TunnelUpgrade;
use super::{Body, Carrier, OriginPolicy, Response, TlsInfo, Upgrade, Version};
use crate::error::HttpError;
use crate::headers::{Headers, Span};
#[cfg(feature = "http2")]
use crate::http2::{Incoming, Shared};
use crate::memory::Account;
use crate::websocket::SharedConfig;

/// A request that has arrived. Its [`body`](Self::bytes) may still be arriving.
pub struct Request {
    head: Headers,
    method: Span,
    target: Span,
    scheme: Option<Span>,
    protocol: Option<Span>,
    version: Version,
    body: Body,
    origin: Arc<Origin>,
    carrier: Carrier,
    /// The stream of HTTP/2 on which this server received it.
    #[cfg(feature = "http2")]
    stream: Option<(Arc<Shared>, StreamKey)>,
}

/// The part of a server's configuration that requests need.
#[derive(Debug)]
pub(crate) struct RequestConfig {
    pub(crate) body_len_max: usize,
    pub(crate) body_timeout: Duration,
    pub(crate) websocket: SharedConfig,
    pub(crate) deflate: Option<DeflateConfig>,
    pub(crate) origins: OriginPolicy,
    #[cfg(feature = "http2")]
    pub(crate) connect_protocols: Vec<String>,
    #[cfg(feature = "http2")]
    pub(crate) streams_max: usize,
}

impl Default for RequestConfig {
    fn default() -> Self {
        Self {
            body_len_max: 1 << 20,
            body_timeout: Duration::from_secs(30),
            websocket: SharedConfig::default(),
            deflate: None,
            origins: OriginPolicy::default(),
            #[cfg(feature = "http2")]
            connect_protocols: Vec::new(),
            #[cfg(feature = "http2")]
            streams_max: 256,
        }
    }
}

/// The peer of a connection, and the configuration of its server.
pub(crate) struct Origin {
    pub(crate) peer: SocketAddr,
    pub(crate) tls: Option<Arc<TlsInfo>>,
    pub(crate) config: Arc<RequestConfig>,
    /// The memory of the connection.
    pub(crate) account: Account,
}

#[cfg(feature = "tower")]
impl Origin {
    /// The origin of a request whose connection is unknown, such as one of another server.
    pub(crate) fn unknown() -> Arc<Self> {
        let peer = SocketAddr::from((std::net::Ipv4Addr::UNSPECIFIED, 0));
        Arc::new(Self { peer, tls: None, config: Arc::default(), account: Account::default() })
    }
}

impl Request {
    pub(crate) fn http1(
        head: Headers,
        method: Span,
        target: Span,
        version: Version,
        origin: &Arc<Origin>,
    ) -> Self {
        Self {
            head,
            method,
            target,
            scheme: None,
            protocol: None,
            version,
            body: Body::empty(),
            origin: origin.clone(),
            carrier: Carrier::Own,
            #[cfg(feature = "http2")]
            stream: None,
        }
    }

    #[cfg(feature = "http2")]
    pub(crate) fn http2(incoming: Incoming, origin: &Arc<Origin>) -> Self {
        let Incoming { headers, method, path, .. } = incoming;
        let request = Self::http1(headers, method, path, Version::Http2, origin);
        Self { scheme: Some(incoming.scheme), protocol: incoming.protocol, ..request }
    }

    /// A request that another HTTP server received; `extended` are scheme and protocol of an extended CONNECT.
    #[cfg(feature = "tower")]
    pub(crate) fn foreign(
        head: Headers,
        method: Span,
        target: Span,
        extended: Option<(Span, Span)>,
        version: Version,
        origin: &Arc<Origin>,
        carrier: Carrier,
    ) -> Self {
        let request = Self::http1(head, method, target, version, origin);
        let (scheme, protocol) = extended.unzip();
        Self { scheme, protocol, carrier, ..request }
    }

    /// Sets the stream on which it was received.
    #[cfg(feature = "http2")]
    pub(crate) fn set_stream(&mut self, shared: &Arc<Shared>, key: StreamKey) {
        self.stream = Some((shared.clone(), key));
    }

    /// The scheme, over HTTP/2.
    #[cfg(feature = "tower")]
    pub(crate) fn scheme(&self) -> Option<&str> {
        self.scheme.map(|scheme| self.head.text(scheme))
    }

    #[cfg(feature = "tower")]
    pub(crate) fn origin(&self) -> &Arc<Origin> {
        &self.origin
    }

    pub(crate) fn set_body(&mut self, body: Body) {
        let len_max = self.origin.config.body_len_max;
        self.body = if body.is_whole() && body.len_hint().is_none_or(|len| len <= len_max as u64) {
            body
        } else {
            body.with_len_max(len_max)
                .with_timeout(Some(self.origin.config.body_timeout))
                .with_account(&self.origin.account)
        };
    }

    /// The method, such as `GET`.
    pub fn method(&self) -> &str {
        self.head.text(self.method)
    }

    pub(crate) fn is_method(&self, method: &str) -> bool {
        self.head.at(self.method) == method.as_bytes()
    }

    /// The target as it was sent; over HTTP/2, the path.
    pub fn target(&self) -> &str {
        self.head.text(self.target)
    }

    /// The version of HTTP.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Path and query: of an absolute target what follows the authority (RFC 9112 §3.2.2).
    fn resource(&self) -> &str {
        let target = self.target();
        if target.starts_with('/') {
            return target;
        }
        match target.split_once("://") {
            Some((scheme, rest)) if !scheme.contains('/') => {
                rest.find(['/', '?']).map_or("/", |at| &rest[at..])
            }
            _ => target,
        }
    }

    /// The path, neither percent-decoded nor with dot segments resolved.
    pub fn path(&self) -> &str {
        let path = self.resource().split(['?', '#']).next().unwrap_or_default();
        if path.is_empty() { "/" } else { path }
    }

    /// The query, without its `?`.
    pub fn query(&self) -> Option<&str> {
        self.resource().split_once('?').map(|(_, query)| query)
    }

    /// The value of a query parameter as it was sent, not decoded.
    pub fn query_param(&self, name: &str) -> Option<&str> {
        let mut params = self.query()?.split('&').map(|param| param.split_once('=').unwrap_or((param, "")));
        params.find(|(candidate, _)| *candidate == name).map(|(_, value)| value)
    }

    /// All header fields in their order. Over HTTP/2 their names are in lower case, and `host` replaces `:authority`.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.head.iter()
    }

    /// The value of the first header with this name, in any case.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.head.get(name)
    }

    pub(crate) fn head(&self) -> &Headers {
        &self.head
    }

    /// Whether one of the comma-separated values of a header is this token.
    pub(crate) fn names(&self, header: &str, token: &str) -> bool {
        self.head.names(header, token)
    }

    /// The whole body, once it has arrived.
    ///
    /// ```
    /// use wireloom::{HttpError, Request, Response};
    ///
    /// async fn echo(mut request: Request) -> Result<Response, HttpError> {
    ///     let body = request.bytes().await?;
    ///     Ok(Response::new(200).with_body("application/octet-stream", body))
    /// }
    /// ```
    ///
    /// # Errors
    /// [`HttpError::TooLarge`] beyond [`ServerConfig::body_len_max`](crate::ServerConfig::body_len_max); the client
    /// disconnected, broke a rule of the protocol or took too long. A handler may return the error: the response has the matching status.
    pub async fn bytes(&mut self) -> Result<Bytes, HttpError> {
        self.body.bytes().await
    }

    /// The body, for reading it as it arrives.
    pub fn body_mut(&mut self) -> &mut Body {
        &mut self.body
    }

    /// Takes the body, for reading it as it arrives or forwarding it.
    pub fn into_body(self) -> Body {
        self.body
    }

    /// Sends an interim response before the final one, over HTTP/2: such as 103 with links to what the client will need (RFC 8297).
    /// Over HTTP/1.1 nothing is sent, because many clients of it take an interim response for the final one (RFC 8297 §3).
    ///
    /// ```
    /// use wireloom::{Headers, HttpError, Request, Response};
    ///
    /// async fn page(request: Request) -> Result<Response, HttpError> {
    ///     let mut hints = Headers::new();
    ///     hints.push("link", "</style.css>; rel=preload; as=style")?;
    ///     request.send_informational(103, &hints)?;
    ///     // The page takes longer.
    ///     Ok(Response::text(200, "…"))
    /// }
    /// ```
    ///
    /// # Errors
    /// [`HttpError::InvalidHeader`] for a status that is not from 102 to 199; the client has left.
    #[cfg_attr(not(feature = "http2"), expect(unused_variables, reason = "HTTP/1.1 sends none"))]
    pub fn send_informational(&self, status: u16, headers: &Headers) -> Result<(), HttpError> {
        if !(102..=199).contains(&status) {
            return Err(HttpError::InvalidHeader);
        }
        #[cfg(feature = "http2")]
        if let Some((shared, key)) = &self.stream {
            let mut headers = headers.clone();
            headers.make_names_lowercase();
            let status = status.to_string();
            let first = Field::known(Token::Status, status.as_bytes());
            let fields = std::iter::once(first).chain(crate::http2::to_fields(&headers));
            return shared.send_informational(*key, fields);
        }
        Ok(())
    }

    /// The priority of the response over HTTP/2, as the client has signalled it by now, in the header `priority` or by PRIORITY_UPDATE
    /// (RFC 9218); `None` over HTTP/1.1, and when the stream has ended.
    #[cfg(feature = "http2")]
    pub fn priority(&self) -> Option<Priority> {
        let (shared, key) = self.stream.as_ref()?;
        shared.priority(*key)
    }

    /// Sets the priority of the response over HTTP/2; signals of the client are ignored from then on (RFC 9218 §8). Over HTTP/1.1 it has
    /// no effect.
    ///
    /// # Errors
    /// The client has left.
    #[cfg(feature = "http2")]
    pub fn set_priority(&self, priority: Priority) -> Result<(), HttpError> {
        match &self.stream {
            Some((shared, key)) => shared.set_priority(*key, priority),
            None => Ok(()),
        }
    }

    /// The protocol of an extended CONNECT (RFC 8441 §4), such as `websocket` or `connect-udp`.
    pub fn protocol(&self) -> Option<&str> {
        self.protocol.map(|protocol| self.head.text(protocol))
    }

    /// Accepts the tunnel of an extended CONNECT for another protocol than WebSocket: one of those that
    /// [`ServerConfig::connect_protocols`](crate::ServerConfig::connect_protocols) names.
    ///
    /// ```
    /// use tokio::io::copy;
    /// use wireloom::{Request, Response};
    ///
    /// async fn handle(request: Request) -> Response {
    ///     match request.tunnel() {
    ///         Ok(tunnel) => tunnel.on_open(|stream| async move {
    ///             let (mut reader, mut writer) = tokio::io::split(stream);
    ///             let _ = copy(&mut reader, &mut writer).await;
    ///         }),
    ///         Err(refusal) => refusal,
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// The response that refuses a request which opens no such tunnel.
    #[cfg(feature = "http2")]
    pub fn tunnel(&self) -> Result<TunnelUpgrade, Response> {
        match (&self.stream, self.protocol) {
            (Some(_), Some(_)) if !self.is_websocket() => Ok(TunnelUpgrade::new()),
            _ => Err(Response::text(400, "this requires an extended CONNECT\n")),
        }
    }

    /// The address of the connection's peer.
    pub fn peer(&self) -> SocketAddr {
        self.origin.peer
    }

    /// The outcome of the TLS handshake; `None` without TLS.
    pub fn tls(&self) -> Option<&TlsInfo> {
        self.origin.tls.as_deref()
    }

    /// Whether the client wants a WebSocket. RFC 9110 §7.8: a request of HTTP/1.0 cannot; its `Upgrade` is ignored.
    pub fn is_websocket(&self) -> bool {
        match self.protocol {
            Some(protocol) => self.head.text(protocol).eq_ignore_ascii_case("websocket"),
            None => self.version == Version::Http11 && self.head.names("upgrade", "websocket"),
        }
    }

    /// Validates the request as the opening handshake of a WebSocket (RFC 6455 §4.2, RFC 8441 §5).
    ///
    /// # Errors
    /// The response that refuses a request which is not a valid opening handshake, or whose origin is not allowed.
    pub fn websocket(&self) -> Result<Upgrade, Response> {
        self.websocket_by(|| self.carrier.clone())
    }

    /// The same; `carrier` is called once the request is accepted.
    pub(crate) fn websocket_by(&self, carrier: impl FnOnce() -> Carrier) -> Result<Upgrade, Response> {
        let request = self.check_handshake()?;
        let config = &self.origin.config;
        if !config.origins.allows(&request) {
            return Err(Response::text(403, "the origin is not allowed\n"));
        }
        match carrier() {
            Carrier::None => Err(Response::text(501, "this server cannot upgrade connections\n")),
            carrier => Ok(Upgrade::new(request, config.websocket.clone(), config.deflate.clone(), carrier)),
        }
    }

    fn check_handshake(&self) -> Result<handshake::Request, Response> {
        let checked = match self.version {
            Version::Http10 => self.check_http1(handshake::Version::Http10),
            Version::Http11 => self.check_http1(handshake::Version::Http11),
            Version::Http2 => return self.check_http2(),
        };
        checked.map_err(|error| Response::from(&error.refusal()))
    }

    fn check_http1(&self, version: handshake::Version) -> Result<handshake::Request, HandshakeError> {
        handshake::Request::from_parts(self.method(), self.target(), version, self.head.fields())
    }

    fn check_http2(&self) -> Result<handshake::Request, Response> {
        let (Some(protocol), Some(scheme)) = (self.protocol, self.scheme) else {
            // RFC 9113 §8.6: HTTP/2 has no Upgrade header, which 426 requires.
            return Err(Response::text(400, "a WebSocket over HTTP/2 requires CONNECT with :protocol\n"));
        };
        let pseudo = [
            (&b":method"[..], self.method().as_bytes()),
            (b":protocol", self.head.at(protocol)),
            (b":scheme", self.head.at(scheme)),
            (b":path", self.target().as_bytes()),
        ];
        let fields = self.head.fields();
        let checked = handshake::http2::check_request(pseudo.into_iter().chain(fields));
        checked.map_err(|error| Response::from(&handshake::http2::refusal(error)))
    }

    /// The kind of the request for the HTTP/2 core.
    #[cfg(feature = "http2")]
    pub(crate) fn kind(&self) -> RequestKind {
        match self.method() {
            "HEAD" => RequestKind::Head,
            "CONNECT" if self.protocol.is_some() => RequestKind::ExtendedConnect,
            "CONNECT" => RequestKind::Connect,
            _ => RequestKind::Plain,
        }
    }
}

/// Shows the names of headers, not their values, which must not reach a log.
impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("version", &self.version)
            .field("method", &self.method())
            .field("path", &self.path())
            .field("headers", &self.head)
            .field("body", &self.body)
            .field("peer", &self.origin.peer)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A handler may pass `&Request` to a function that awaits.
    #[test]
    fn a_request_is_sync() {
        fn is_sync<T: Send + Sync>() {}
        is_sync::<Request>();
    }
}
