//! A client's HTTP/2 connection: requests and WebSockets side by side (RFC 9113, RFC 8441).
//!
//! ```text
//! Connector::connect_http2 -> Http2 -- send(Request) --> Exchange -> Informational ..., Response { body, trailers }
//!                               '----- websocket(url) -> WebSocket (extended CONNECT)
//! ```

mod stream;

use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use wireloom_http2::Role;
use wireloom_http2::field::{Field, Token};
use wireloom_ws::handshake::client::Outcome;
use wireloom_ws::handshake::http2::{check_response, request_fields};
use wireloom_ws::handshake::uri::UriError;

pub(super) use stream::Stream;

use super::exchange::{Exchange, RequestConnection, Response};
use super::http1::Http1;
use super::opened::Sent;
use super::refusal::Refusal;
use super::request::Request;
use super::target::Target;
use super::{ConnectEvent, Connector, Opened, Protocols};
use crate::error::{Error, HttpError};
use crate::headers::{Head, Headers};
use crate::http::{Body, TlsInfo, Version};
use crate::http2::{Driver, RecvStream, Requests, SendStream, Tunnel};
use crate::memory::Account;
use crate::transport::{Io, Transport};
use crate::websocket::WebSocket;

/// An HTTP/2 connection to one server. Clones refer to the same connection, which ends when the last of them is dropped and
/// all streams have finished.
///
/// ```no_run
/// use wireloom::Connector;
/// use wireloom::client::Request;
///
/// # async fn example() -> Result<(), wireloom::Error> {
/// let http2 = Connector::new().connect_http2("https://example.com").await?;
/// // Side by side.
/// let (one, two) = (http2.send(Request::get("/one"))?, http2.send(Request::get("/two"))?);
/// println!("{} {}", one.response().await?.status, two.response().await?.status);
///
/// let mut response = http2.request(Request::post("/upload", "hello")).await?;
/// println!("{:?}", response.body.bytes().await?);
///
/// let mut socket = http2.websocket("/chat").await?;
/// socket.send("hello").await?;
/// # Ok(())
/// # }
/// ```
///
/// Responses have no time limit: use `tokio::time::timeout`. Dropping a future cancels its request.
///
/// # What is safe to retry
/// [`HttpError::NotProcessed`] means that the server has not processed the request: it was refused, or came after GOAWAY (RFC 9113
/// §8.7). [`is_open`](Self::is_open) is false when another connection is needed. After any other error the request may have had
/// its effect.
#[derive(Clone)]
pub struct Http2 {
    pub(super) requests: Requests,
    about: Arc<About>,
}

/// State shared by all clones.
struct About {
    connector: Connector,
    target: Target,
    /// Added to every request.
    headers: Vec<(String, String)>,
    peer: Option<SocketAddr>,
    tls: Option<TlsInfo>,
}

impl Connector {
    /// Opens an HTTP/2 connection to the server that a URL names (`https` or `wss`: chosen by ALPN; `http` or `ws`: by prior
    /// knowledge); its path is ignored. [`header`](Self::header)s, and credentials of the URL, go with every request.
    ///
    /// # Cancel safety
    /// Dropping the future closes what was opened.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect), and [`Error::NoHttp2`] when the server speaks something else.
    pub async fn connect_http2(&self, url: &str) -> Result<Http2, Error> {
        let target = Target::http(url)?;
        let headers = self.headers_for(&target)?;
        self.http2_to(target, headers).await
    }

    /// Connects for one request: HTTP/2 where the server speaks it, otherwise HTTP/1.1.
    pub(super) async fn negotiate_http2(
        &self,
        target: &Target,
        headers: &[(String, String)],
    ) -> Result<RequestConnection, Error> {
        let (io, peer) = self.reach(target).await?;
        let beginning = async {
            let (io, tls) = self.secure(target, io, Protocols::Any).await?;
            match tls {
                Some(tls) if tls.alpn.as_deref() != Some(b"h2") => Ok(Err((io, tls))),
                tls => self.begin_http2(io, tls.as_ref()).await.map(|requests| Ok((requests, tls))),
            }
        };
        let begun = tokio::time::timeout(self.handshake_timeout, beginning)
            .await
            .map_err(|_| Error::HandshakeTimeout)?;
        match begun {
            Ok(Ok((requests, tls))) => {
                let (connector, target, headers) = (self.clone(), target.clone(), headers.to_vec());
                let about = Arc::new(About { connector, target, headers, peer, tls });
                Ok(RequestConnection::Http2(Http2 { requests, about }))
            }
            Ok(Err((io, tls))) => {
                let limits = self.response_limits;
                Ok(RequestConnection::Http1(Http1 { io, peer, tls: Some(tls), limits }))
            }
            // RFC 9113 §3.4: no HTTP/1.1 server acts on the preface, it responds with an error or closes.
            Err(Error::NoHttp2(_)) if !target.secure => {
                self.connect_http1(target).await.map(RequestConnection::Http1)
            }
            Err(error) => Err(error),
        }
    }

    pub(super) async fn http2_to(
        &self,
        target: Target,
        headers: Vec<(String, String)>,
    ) -> Result<Http2, Error> {
        let (io, peer) = self.reach(&target).await?;
        let beginning = async {
            let (io, tls) = self.secure(&target, io, Protocols::Http2).await?;
            if tls.as_ref().is_some_and(|tls| tls.alpn.as_deref() != Some(b"h2")) {
                // RFC 9113 §3.2: over TLS, ALPN selects HTTP/2.
                return Err(Error::NoHttp2(None));
            }
            Ok((self.begin_http2(io, tls.as_ref()).await?, tls))
        };
        let (requests, tls) = tokio::time::timeout(self.handshake_timeout, beginning)
            .await
            .map_err(|_| Error::HandshakeTimeout)??;
        let about = About { connector: self.clone(), target, headers, peer, tls };
        Ok(Http2 { requests, about: Arc::new(about) })
    }

    /// Starts the driver and waits for the server's SETTINGS.
    async fn begin_http2(&self, io: Io, tls: Option<&TlsInfo>) -> Result<Requests, Error> {
        let driver = Driver::new(io, Role::Client, self.http2_config)?.with_keepalive(self.http2_keepalive);
        let requests = driver.requests();
        tokio::spawn(driver.run());
        match requests.ready().await {
            Ok(()) => Ok(requests),
            // RFC 9113 §3.4: a server's first frame is SETTINGS.
            Err(HttpError::Http2(error)) if requests.may_be_http1() => Err(Error::NoHttp2(Some(error))),
            Err(HttpError::ConnectionLost) if tls.is_none() && requests.may_be_http1() => {
                Err(Error::NoHttp2(None))
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl Http2 {
    /// Sends a request and waits for the response; interim ones are skipped.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the request.
    ///
    /// # Errors
    /// As for [`send`](Self::send) and [`Exchange::response`].
    pub async fn request(&self, request: Request) -> Result<Response, Error> {
        self.send(request)?.response().await
    }

    /// Sends a request, at once or when the server's concurrency limit allows it.
    ///
    /// # Errors
    /// [`HttpError::NotProcessed`] when the connection is going away; the URL belongs to another server; a header cannot be sent; the
    /// connection has failed. Nothing was sent.
    pub fn send(&self, request: Request) -> Result<Exchange, Error> {
        let target = self.target_of(request.url())?.for_request(&request);
        let mut headers = Headers::new();
        request.add_missing(&self.headers_of(&target)?, &mut headers)?;
        let (method, mut body, expects) = request.into_parts(&mut headers)?;
        headers.make_names_lowercase();
        let whole = body.whole();
        let is_empty = whole.as_ref().is_some_and(Bytes::is_empty);
        let host = self.about.connector.host_of(&target);
        let fields = [
            Field::known(Token::Method, method.as_bytes()),
            Field::known(Token::Scheme, if target.secure { b"https" } else { b"http" }),
            Field::known(Token::Authority, host.as_bytes()),
            Field::known(Token::Path, target.resource.as_bytes()),
        ];
        self.emit_request(&fields, &headers);
        let fields = fields.into_iter().chain(crate::http2::to_fields(&headers));
        let (send, recv) = self.requests.open(fields, is_empty)?;
        let content = match whole {
            Some(bytes) if bytes.is_empty() => None,
            Some(bytes) => Some((send, bytes.into())),
            None => Some((send, body)),
        };
        Ok(Exchange::http2(recv, content, expects, method == "HEAD", self.clone()))
    }

    /// Opens a WebSocket over this connection (RFC 8441), with the options of the [`Connector`]. `url` is a path, or a URL of this
    /// server.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the request.
    ///
    /// # Errors
    /// [`Error::NoExtendedConnect`] when the server does not offer it; [`Error::Refused`] with the server's response when it
    /// refuses; and as for [`send`](Self::send).
    pub async fn websocket(&self, url: &str) -> Result<WebSocket, Error> {
        Ok(self.open(url).await?.socket)
    }

    /// As [`websocket`](Self::websocket), with the response and the connection.
    ///
    /// # Errors
    /// As there.
    pub async fn open(&self, url: &str) -> Result<Opened, Error> {
        self.open_at(&self.target_of(url)?).await
    }

    pub(super) async fn open_at(&self, target: &Target) -> Result<Opened, Error> {
        // RFC 8441 §3: only after the server has sent SETTINGS_ENABLE_CONNECT_PROTOCOL.
        if !self.requests.supports_extended_connect() {
            self.requests.ready().await?;
            return Err(Error::NoExtendedConnect);
        }
        let connector = &self.about.connector;
        let headers = self.headers_of(target)?;
        let options = connector.options(target, &headers);
        let fields = request_fields(&options, target.secure)?;
        let version = Version::Http2;
        connector.events.emit(&ConnectEvent::Request { version, fields: &fields });
        let sent = fields.iter().map(|(name, value)| Field::new(name.as_bytes(), value.as_bytes()));
        let (send, recv) = self.requests.open(sent, false)?;
        let answered = self.answered(&options, fields, send, recv);
        connector.answer_in_time(answered).await
    }

    /// Opens a tunnel of bytes by an extended CONNECT with this `:protocol` (RFC 8441 §4), such as `connect-udp` (RFC 9298). `url` is a
    /// path, or a URL of this server. For WebSockets see [`websocket`](Self::websocket).
    ///
    /// # Cancel safety
    /// Dropping the future cancels the request.
    ///
    /// # Errors
    /// [`Error::NoExtendedConnect`] when the server does not offer it; [`Error::TunnelRefused`] when it refuses; and as for
    /// [`send`](Self::send).
    pub async fn tunnel(&self, protocol: &str, url: &str) -> Result<Box<dyn Transport>, Error> {
        let target = self.target_of(url)?;
        if !self.requests.supports_extended_connect() {
            self.requests.ready().await?;
            return Err(Error::NoExtendedConnect);
        }
        let connector = &self.about.connector;
        let mut headers = Headers::new();
        for (name, value) in &*self.headers_of(&target)? {
            headers.push(name, value)?;
        }
        headers.make_names_lowercase();
        let fields = [
            Field::known(Token::Method, b"CONNECT"),
            Field::known(Token::Protocol, protocol.as_bytes()),
            Field::known(Token::Scheme, if target.secure { b"https" } else { b"http" }),
            Field::known(Token::Authority, connector.host_of(&target).as_bytes()),
            Field::known(Token::Path, target.resource.as_bytes()),
        ];
        self.emit_request(&fields, &headers);
        let fields = fields.into_iter().chain(crate::http2::to_fields(&headers));
        let (send, mut recv) = self.requests.open(fields, false)?;
        let answering = async {
            loop {
                let head = recv.head().await?;
                if head.status >= 200 {
                    return Ok::<_, HttpError>(head);
                }
            }
        };
        let head = tokio::time::timeout(connector.handshake_timeout, answering).await;
        let head = head.map_err(|_| Error::HandshakeTimeout)??;
        self.emit_response(&head);
        if head.status / 100 != 2 {
            return Err(Error::TunnelRefused(head.status));
        }
        Ok(Box::new(Tunnel::new(send, recv).with_requests(self.requests.clone())))
    }

    async fn answered(
        &self,
        options: &wireloom_ws::handshake::ClientOptions,
        fields: Vec<(String, String)>,
        send: SendStream,
        mut recv: RecvStream,
    ) -> Result<Result<Opened, Refusal>, Error> {
        loop {
            let head = recv.head().await?;
            let status = head.status.to_string();
            let first = (&b":status"[..], status.as_bytes());
            let rest = head.headers.iter().map(|(name, value)| (name.as_bytes(), value));
            match check_response(options, std::iter::once(first).chain(rest))? {
                Outcome::Informational => {}
                Outcome::Refused(response) => {
                    self.emit_response(&head);
                    // Dropping `send` would reset the stream before the body has arrived.
                    return Ok(Err(Refusal::http2(response, Body::http2(recv.with_unsent(send), None))));
                }
                Outcome::Accepted(negotiated) => {
                    self.emit_response(&head);
                    let tunnel = Tunnel::new(send, recv).with_requests(self.requests.clone());
                    let connector = &self.about.connector;
                    let socket = WebSocket::open(
                        Io::Tunnel(Box::new(tunnel)),
                        wireloom_ws::Role::Client,
                        negotiated,
                        connector.deflate.as_ref(),
                        connector.config.clone(),
                        &[],
                        &Account::default(),
                    );
                    return Ok(Ok(Opened {
                        socket,
                        version: Version::Http2,
                        status: head.status,
                        headers: head.headers,
                        peer: self.about.peer,
                        tls: self.about.tls.clone(),
                        request: Sent::Http2(fields),
                    }));
                }
            }
        }
    }

    fn emit_request(&self, pseudo: &[Field<'_>], headers: &Headers) {
        let events = &self.about.connector.events;
        if events.is_enabled() {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let pseudo = pseudo.iter().map(|field| (text(field.name()), text(field.value())));
            let headers = headers.iter().map(|(name, value)| (name.to_owned(), text(value)));
            let fields: Vec<_> = pseudo.chain(headers).collect();
            events.emit(&ConnectEvent::Request { version: Version::Http2, fields: &fields });
        }
    }

    fn emit_response(&self, head: &Head) {
        let (status, headers) = (head.status, &head.headers);
        let response = ConnectEvent::Response { version: Version::Http2, status, reason: "", headers };
        self.about.connector.events.emit(&response);
    }

    /// Resolves a path, or a URL of this server.
    fn target_of(&self, url: &str) -> Result<Target, Error> {
        let own = &self.about.target;
        if url.starts_with('/') {
            return own.with_resource(url);
        }
        let target = Target::http(url)?;
        if target.is_same_origin(own) { Ok(target) } else { Err(Error::InvalidUrl(UriError::Authority)) }
    }

    /// The headers of this connection, or with the credentials of the URL if it has others.
    fn headers_of(&self, target: &Target) -> Result<Cow<'_, [(String, String)]>, Error> {
        let About { connector, target: own, headers, .. } = &*self.about;
        if target.credentials.is_none() || target.credentials == own.credentials {
            return Ok(Cow::Borrowed(headers));
        }
        connector.headers_for(target).map(Cow::Owned)
    }

    /// The same connection with the headers, subprotocols, compression and limits of another [`Connector`].
    ///
    /// # Errors
    /// The credentials of the URL cannot be sent.
    pub fn with_connector(&self, connector: &Connector) -> Result<Self, Error> {
        let target = self.about.target.clone();
        let headers = connector.headers_for(&target)?;
        let (connector, peer, tls) = (connector.clone(), self.about.peer, self.about.tls.clone());
        let about = Arc::new(About { connector, target, headers, peer, tls });
        Ok(Self { requests: self.requests.clone(), about })
    }

    /// Whether requests can be sent: not after GOAWAY from either end, nor once 2^30 requests were sent.
    pub fn is_open(&self) -> bool {
        self.requests.is_open()
    }

    /// Whether the server accepts WebSockets over this connection (RFC 8441 §3).
    pub fn takes_websockets(&self) -> bool {
        self.requests.supports_extended_connect()
    }

    /// Ends the connection gracefully: open streams are finished, and no new one is opened.
    pub fn shut_down(&self) {
        self.requests.shut_down();
    }

    /// [`shut_down`](Self::shut_down)s, and waits until the connection has ended: open streams are finished, and the server has
    /// acknowledged GOAWAY (RFC 9113 §6.8) or did not for a second. A runtime that is dropped earlier aborts the connection.
    ///
    /// # Cancel safety
    /// Dropping the future stops waiting; the connection ends all the same.
    pub async fn close(self) {
        self.requests.shut_down();
        self.requests.closed().await;
    }

    /// The address of the server, or of the proxy before it.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.about.peer
    }

    /// The outcome of the TLS handshake; `None` without TLS.
    pub fn tls(&self) -> Option<&TlsInfo> {
        self.about.tls.as_ref()
    }
}

impl fmt::Debug for Http2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http2").field("peer", &self.about.peer).field("is_open", &self.is_open()).finish()
    }
}
