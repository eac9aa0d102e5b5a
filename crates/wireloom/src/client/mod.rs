//! The client: from a URL to an open WebSocket. It resolves the host, connects directly or through a proxy, performs the TLS and
//! WebSocket handshakes, and follows a limited number of redirects.
//!
//! ```text
//! URL -> target -> dial (Happy Eyeballs) -> proxy: CONNECT, SOCKS5 -> TLS -> opening handshake -> WebSocket
//!          ^                                                                        | 3xx
//!          '------------------------------------------------------------------------'
//! ```
//!
//! By default there is no proxy, no redirect, no compression, and WebSockets use HTTP/1.1. A client behind a company's proxy, with
//! its own certificate authority and a client certificate:
//!
//! ```no_run
//! use wireloom::{ClientTls, Connector, DeflateConfig, Proxy};
//!
//! # async fn example() -> Result<(), wireloom::Error> {
//! let tls = ClientTls::default()
//!     .with_platform_roots()
//!     .with_root_file("company.pem")?
//!     .with_identity("client.pem", "client.key")?;
//! let connector = Connector::new()
//!     .tls(tls)
//!     .proxy(Proxy::new("http://proxy.example:3128")?.credentials("anna", "secret"))
//!     .subprotocol("chat")
//!     .deflate(DeflateConfig::default())
//!     .redirects_max(3);
//! let mut socket = connector.connect("wss://example.com/chat").await?;
//! socket.send("hello").await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`Connector::connect_http2`] opens a connection for many requests and many WebSockets at once, and
//! [`Connector::reconnecting`] a WebSocket that is opened again after a loss.

mod credentials;
mod dial;
mod event;
mod exchange;
mod http1;
mod http11;
#[cfg(feature = "http2")]
mod http2;
mod opened;
mod pool;
mod proxy;
mod reconnect;
mod refusal;
mod request;
mod target;
#[cfg(feature = "tls")]
pub(crate) mod tls;
#[cfg(feature = "tls")]
mod verifier;

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::BytesMut;
#[cfg(feature = "tracing")]
use tracing::Instrument as _;
#[cfg(feature = "http2")]
use wireloom_ws::Keepalive;
use wireloom_ws::Role;
use wireloom_ws::deflate::DeflateConfig;
use wireloom_ws::handshake::client::{ClientHandshake, ClientOptions, Progress};
use wireloom_ws::handshake::uri::UriError;
use wireloom_ws::handshake::{self, HandshakeLimits};

pub use event::ConnectEvent;
pub use exchange::{Exchange, Informational, Response};
#[cfg(feature = "http2")]
pub use http2::Http2;
pub use opened::Opened;
pub use pool::Pool;
pub use proxy::{Proxy, ProxyError};
pub use reconnect::{
    Attempt, Connected, Loss, LossReason, ReconnectEvent, ReconnectPolicy, Reconnecting, ReconnectingSender,
    Retry,
};
pub use request::Request;

use crate::error::{Error, HttpError};
use crate::headers::Headers;
use crate::http::{TlsInfo, Version};
use crate::memory::Account;
use crate::transport::{Io, Tap, Transport, is_lost, read, write_all};
use crate::websocket::{SharedConfig, WebSocket, WebSocketConfig};
use dial::Dialer;
use event::Events;
use http11::Http11Servers;
use opened::Sent;
use proxy::Environment;
use refusal::Refusal;
use target::Target;
#[cfg(feature = "tls")]
use tls::ClientTls;

/// The default `User-Agent`.
const USER_AGENT: &str = concat!("wireloom/", env!("CARGO_PKG_VERSION"));

fn is_user_agent(name: &str) -> bool {
    name.eq_ignore_ascii_case("user-agent")
}

/// Opens a WebSocket: `ws://` or `wss://`, with the defaults of [`Connector`].
///
/// # Errors
/// As for [`Connector::connect`].
pub async fn connect(url: &str) -> Result<WebSocket, Error> {
    Connector::new().connect(url).await
}

/// Opens a WebSocket over a stream that is open already; see [`Connector::connect_over`].
///
/// ```
/// # async fn example() -> Result<(), wireloom::Error> {
/// let stream = tokio::net::TcpStream::connect("127.0.0.1:8080").await?;
/// let socket = wireloom::connect_over(stream, "ws://127.0.0.1:8080/echo").await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As for [`Connector::connect_over`].
pub async fn connect_over(transport: impl Transport, url: &str) -> Result<WebSocket, Error> {
    Connector::new().connect_over(transport, url).await
}

/// The options of connections: requests, timeouts, TLS, proxies.
///
/// ```no_run
/// # async fn example() -> Result<(), wireloom::Error> {
/// let socket = wireloom::Connector::new()
///     .subprotocol("chat")
///     .header("Authorization", "Bearer …")
///     .connect("wss://example.com/chat")
///     .await?;
/// assert_eq!(socket.subprotocol(), Some("chat"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct Connector {
    config: SharedConfig,
    subprotocols: Vec<String>,
    headers: Vec<(String, String)>,
    origin: Option<String>,
    user_agent: Option<Cow<'static, str>>,
    deflate: Option<DeflateConfig>,
    connect_timeout: Duration,
    handshake_timeout: Duration,
    response_limits: HandshakeLimits,
    redirects_max: u8,
    route: Route,
    dialer: Dialer,
    #[cfg(feature = "http2")]
    is_http2: bool,
    #[cfg(feature = "http2")]
    is_http1_only: bool,
    http11_servers: Http11Servers,
    is_http11_assumed: bool,
    host: Option<String>,
    server_name: Option<String>,
    events: Events,
    tap: Option<Tap>,
    #[cfg(feature = "http2")]
    http2_config: wireloom_http2::Config,
    #[cfg(feature = "http2")]
    http2_keepalive: Option<Keepalive>,
    #[cfg(feature = "tls")]
    tls: ClientTls,
}

/// The protocols to use; with TLS, those to offer by ALPN (RFC 7301).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocols {
    Http1,
    #[cfg(feature = "http2")]
    Http2,
    /// HTTP/2 if the server supports it.
    #[cfg(feature = "http2")]
    Any,
}

/// The route to the server.
#[derive(Clone, Debug)]
enum Route {
    Direct,
    Proxy(Proxy),
    Environment(Environment),
}

impl Default for Connector {
    fn default() -> Self {
        Self {
            config: WebSocketConfig::client().into(),
            subprotocols: Vec::new(),
            headers: Vec::new(),
            origin: None,
            user_agent: Some(Cow::Borrowed(USER_AGENT)),
            deflate: None,
            connect_timeout: Duration::from_secs(10),
            handshake_timeout: Duration::from_secs(10),
            response_limits: HandshakeLimits { head_len_max: 256 << 10, headers_max: 1_000 },
            redirects_max: 0,
            route: Route::Direct,
            dialer: Dialer::default(),
            #[cfg(feature = "http2")]
            is_http2: false,
            #[cfg(feature = "http2")]
            is_http1_only: false,
            http11_servers: Http11Servers::default(),
            is_http11_assumed: false,
            host: None,
            server_name: None,
            events: Events::default(),
            tap: None,
            #[cfg(feature = "http2")]
            http2_config: wireloom_http2::Config::new(wireloom_http2::Role::Client),
            #[cfg(feature = "http2")]
            http2_keepalive: None,
            #[cfg(feature = "tls")]
            tls: ClientTls::default(),
        }
    }
}

impl Connector {
    /// No subprotocols, no headers, no compression, no redirects, no proxy; 10 s to connect and 10 s for the handshake; the
    /// platform's roots.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the configuration of open WebSockets, [`WebSocketConfig::client`] by default.
    pub fn config(mut self, config: WebSocketConfig) -> Self {
        self.config = config.into();
        self
    }

    /// Offers a subprotocol, the preferred one first.
    pub fn subprotocol(mut self, name: impl Into<String>) -> Self {
        self.subprotocols.push(name.into());
        self
    }

    /// Adds a header, such as `Authorization` or `Cookie`.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sends the origin of a web page, as browsers do.
    pub fn origin(mut self, origin: impl Into<String>) -> Self {
        self.origin = Some(origin.into());
        self
    }

    /// Sends this `User-Agent` (RFC 9110 §10.1.5) with handshakes and requests, or none; `wireloom/` and the version of this crate by
    /// default. A [`header`](Self::header) of that name, or one of the request, takes precedence.
    pub fn user_agent(mut self, user_agent: Option<&str>) -> Self {
        self.user_agent = user_agent.map(|user_agent| Cow::Owned(user_agent.to_owned()));
        self
    }

    /// Offers permessage-deflate.
    pub fn deflate(mut self, deflate: DeflateConfig) -> Self {
        self.deflate = Some(deflate);
        self
    }

    /// Sets the timeout for resolving the host and connecting to it, also through a proxy.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets the timeout for TLS and the opening handshake.
    pub fn handshake_timeout(mut self, timeout: Duration) -> Self {
        self.handshake_timeout = timeout;
        self
    }

    /// Limits the heads of responses over HTTP/1.1, to a request and to an opening handshake: 256 KiB and 1,000 headers by default, as
    /// much as other clients read. Over HTTP/2 [`http2_config`](Self::http2_config) does.
    pub fn response_limits(mut self, limits: HandshakeLimits) -> Self {
        self.response_limits = limits;
        self
    }

    /// Follows at most this number of redirects (RFC 6455 §4.1 allows it), 0 by default.
    ///
    /// Another origin (scheme, host and port) receives subprotocols, [`origin`](Self::origin) and extensions, but neither the
    /// [`header`](Self::header)s, any of which may be a secret, nor credentials of the URL, nor a client certificate;
    /// [`host`](Self::host) and [`server_name`](Self::server_name) are the URL's alone. A redirect from TLS to plain text is an
    /// error. Browsers follow none. For other rules, and where a subprotocol is a secret, as some servers take tokens, follow redirects
    /// yourself: [`Error::Refused`] has the `Location`.
    pub fn redirects_max(mut self, max: u8) -> Self {
        self.redirects_max = max;
        self
    }

    /// Connects through this proxy.
    pub fn proxy(mut self, proxy: Proxy) -> Self {
        self.route = Route::Proxy(proxy);
        self
    }

    /// Connects through the proxy that the environment names now: `wss_proxy`, `https_proxy` or `all_proxy` for `wss` and `https`,
    /// `ws_proxy`, `http_proxy` or `all_proxy` for `ws` and `http`, except for the hosts in `no_proxy`. Names in upper case apply too,
    /// except for `HTTP_PROXY`, which the clients of a CGI script can set. Without this call the environment is not read.
    pub fn proxy_from_env(mut self) -> Self {
        self.route = Route::Environment(Environment::read());
        self
    }

    /// Whether [`connect`](Self::connect) opens WebSockets over HTTP/2 (RFC 8441), each over a connection of its own; by default
    /// over HTTP/1.1. Many over one connection: [`Http2::websocket`]. [`send`](Self::send) and [`request`](Self::request) begin with HTTP/2
    /// for `http` URLs too then, where nothing but the server's answer tells whether it speaks it.
    #[cfg(feature = "http2")]
    pub fn http2(mut self, is_http2: bool) -> Self {
        self.is_http2 = is_http2;
        self
    }

    /// Whether [`send`](Self::send) and [`request`](Self::request) use HTTP/1.1 only, instead of HTTP/2 where the server supports it.
    #[cfg(feature = "http2")]
    pub fn http1_only(mut self, is_http1_only: bool) -> Self {
        self.is_http1_only = is_http1_only;
        self
    }

    /// Whether servers are taken to speak HTTP/1.1 before they have answered; `false` by default.
    ///
    /// RFC 9112 §6.1 allows content of unknown length (a streaming [`Body`](crate::Body)) over HTTP/1.1 only to a server that is known
    /// to speak it: one that said so by ALPN, or that has answered this connector or a clone of it in HTTP/1.1. Any other is first
    /// asked with `OPTIONS *`, over a connection of its own; from a server of HTTP/1.0 the request fails with
    /// [`Error::LengthRequired`]. `true` saves that question.
    pub fn assume_http11(mut self, is_assumed: bool) -> Self {
        self.is_http11_assumed = is_assumed;
        self
    }

    /// Sends this host, with an optional port, in `Host` or `:authority`, instead of the URL's. The connection still goes to the
    /// host of the URL.
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.host = Some(host.into());
        self
    }

    /// Sends this name in the TLS handshake (SNI) and checks the certificate against it, instead of the host of the URL.
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    /// Calls `receiver` at each step of opening a connection, also when opening it fails later.
    ///
    /// ```
    /// use wireloom::Connector;
    /// use wireloom::client::ConnectEvent;
    ///
    /// let connector = Connector::new().on_event(|event| {
    ///     if let ConnectEvent::Connected { peer } = event {
    ///         eprintln!("connected to {peer}");
    ///     }
    /// });
    /// ```
    pub fn on_event(mut self, receiver: impl Fn(&ConnectEvent<'_>) + Send + Sync + 'static) -> Self {
        self.events = Events::new(receiver);
        self
    }

    /// Observes the bytes of all connections above TLS, to record them.
    pub fn tap(mut self, tap: Tap) -> Self {
        self.tap = Some(tap);
        self
    }

    /// Sets the configuration of HTTP/2 connections: settings, windows, limits.
    #[cfg(feature = "http2")]
    pub fn http2_config(mut self, config: wireloom_http2::Config) -> Self {
        self.http2_config = config;
        self
    }

    /// Sends a PING (RFC 9113 §6.7) to HTTP/2 servers that have been silent, also while no request is open. When no byte follows, the
    /// connection ends and its requests fail with [`HttpError::KeepaliveTimeout`]. Off by default: some servers
    /// treat many pings as an attack. For WebSockets over HTTP/1.1 see [`config`](Self::config).
    #[cfg(feature = "http2")]
    pub fn http2_keepalive(mut self, keepalive: Keepalive) -> Self {
        self.http2_keepalive = Some(keepalive);
        self
    }

    /// Connects to these addresses for `host`, instead of resolving it. Port 0 means the port of the URL.
    pub fn resolve(mut self, host: impl Into<String>, addresses: impl Into<Vec<SocketAddr>>) -> Self {
        self.dialer.add(host.into(), addresses.into());
        self
    }

    /// Opens transports by `dial`, from a host and a port, in the place of resolver and TCP: over a Unix socket, a tunnel of one's own, a
    /// simulated network. Proxies and TLS are on top of it, and [`connect_timeout`](Self::connect_timeout) bounds it.
    ///
    /// ```
    /// use tokio::net::UnixStream;
    /// use wireloom::Connector;
    ///
    /// # #[cfg(unix)]
    /// let connector = Connector::new().dial_with(|_host, _port| UnixStream::connect("/run/service.sock"));
    /// ```
    pub fn dial_with<F, Fut, T>(mut self, dial: F) -> Self
    where
        F: Fn(String, u16) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = io::Result<T>> + Send + 'static,
        T: Transport,
    {
        self.dialer.dial_with(dial);
        self
    }

    /// Sets the trusted certificates and the client certificate.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: ClientTls) -> Self {
        self.tls = tls;
        self
    }

    /// Opens a WebSocket. A user and a password in the URL are sent as Basic credentials (RFC 7617).
    ///
    /// `ws+unix:/run/app.sock:/chat` is the resource `/chat` of the server at a Unix socket, and `http+unix:` is such a URL for requests;
    /// proxies do not apply.
    ///
    /// # Cancel safety
    /// Dropping the future closes what was opened.
    ///
    /// # Errors
    /// The URL is not one of a WebSocket; the host cannot be resolved or reached in time; a proxy refuses; TLS fails; the server
    /// refuses with a response ([`Error::Refused`]), or sends an invalid one.
    pub async fn connect(&self, url: &str) -> Result<WebSocket, Error> {
        Ok(self.open(url).await?.socket)
    }

    /// The same connector for a server that another one has named, as redirects use it: without the client's certificate, headers other
    /// than User-Agent, and the host and server name that were set instead of those of the URL.
    pub fn for_other_origin(&self) -> Self {
        let mut other = self.clone();
        other.headers.retain(|(name, _)| is_user_agent(name));
        (other.host, other.server_name) = (None, None);
        #[cfg(feature = "tls")]
        {
            other.tls = self.tls.without_identity();
        }
        other
    }

    /// Opens a WebSocket over a stream that is open already: one of a proxy or a TLS library of your own, of a Unix socket, or of a pipe
    /// in memory. The stream is used as it is, so for a `wss` URL its TLS is done already; the URL is that of the handshake. No
    /// redirect is followed.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect), without those of dialing.
    pub async fn connect_over(&self, transport: impl Transport, url: &str) -> Result<WebSocket, Error> {
        let target = Target::websocket(url)?;
        let handshake = self.handshake(&target, &self.headers_for(&target)?)?;
        let opening = self.exchange_handshake(self.observed(Io::of(transport)), handshake);
        let (socket, ..) = self.answer_in_time(opening).await?;
        Ok(socket)
    }

    /// As [`connect`](Self::connect), with the response and the facts of the connection.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub async fn open(&self, url: &str) -> Result<Opened, Error> {
        let mut target = Target::websocket(url)?;
        let mut headers = self.headers_for(&target)?;
        let mut redirects = self.redirects_max;
        let mut connector = Cow::Borrowed(self);
        loop {
            let attempt = connector.attempt(&target, &headers);
            #[cfg(feature = "tracing")]
            let attempt = attempt.instrument(tracing::debug_span!("connect", ?target));
            let response = match attempt.await {
                Err(Error::Refused(response))
                    if self.redirects_max > 0 && matches!(response.status(), 301 | 302 | 303 | 307 | 308) =>
                {
                    response
                }
                done => return done,
            };
            redirects = redirects.checked_sub(1).ok_or(Error::Redirect)?;
            let location = response.header("location").ok_or(Error::Redirect)?;
            let next = target.redirected(location).ok_or(Error::Redirect)?;
            if !next.is_same_origin(&target) {
                headers.retain(|(name, _)| is_user_agent(name));
                connector = Cow::Owned(self.for_other_origin());
            }
            #[cfg(feature = "tracing")]
            tracing::debug!(from = ?target, to = ?next, "redirected");
            target = next;
        }
    }

    /// The headers, with the credentials of a URL.
    fn headers_for(&self, target: &Target) -> Result<Vec<(String, String)>, Error> {
        let mut headers = self.headers.clone();
        if let Some(credentials) = &target.credentials
            && !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization"))
        {
            let basic = credentials.basic().ok_or(Error::InvalidUrl(UriError::UserInfo))?;
            headers.push(("Authorization".to_owned(), basic));
        }
        if let Some(user_agent) = &self.user_agent
            && !headers.iter().any(|(name, _)| is_user_agent(name))
        {
            headers.push(("User-Agent".to_owned(), user_agent.to_string()));
        }
        Ok(headers)
    }

    async fn attempt(&self, target: &Target, headers: &[(String, String)]) -> Result<Opened, Error> {
        #[cfg(feature = "tracing")]
        tracing::debug!(?target, "opening a WebSocket");
        #[cfg(feature = "http2")]
        if self.is_http2 {
            return self.http2_to(target.clone(), headers.to_vec()).await?.open_at(target).await;
        }
        let handshake = self.handshake(target, headers)?;
        let (io, peer) = tokio::time::timeout(self.connect_timeout, self.dial(target))
            .await
            .map_err(|_| Error::ConnectTimeout)??;
        let opening = async {
            let (io, tls) = self.secure(target, io, Protocols::Http1).await?;
            let exchanged = self.exchange_handshake(io, handshake).await?;
            Ok(exchanged.map(|(socket, response, request)| {
                let headers = headers_of(&response);
                let request = Sent::Http1(request);
                let (version, status) = (Version::Http11, response.status());
                Opened { socket, version, status, headers, peer, tls, request }
            }))
        };
        self.answer_in_time(opening).await
    }

    /// Waits for the answer to a handshake for at most the timeout.
    async fn answer_in_time<T>(
        &self,
        answering: impl Future<Output = Result<Result<T, Refusal>, Error>>,
    ) -> Result<T, Error> {
        let answered = tokio::time::timeout(self.handshake_timeout, answering).await;
        match answered.map_err(|_| Error::HandshakeTimeout)?? {
            Ok(opened) => Ok(opened),
            Err(refusal) => Err(refusal.into_error().await),
        }
    }

    /// A handshake over HTTP/1.1 that has not been sent.
    fn handshake(&self, target: &Target, headers: &[(String, String)]) -> Result<ClientHandshake, Error> {
        let mut nonce = [0; 16];
        getrandom::getrandom(&mut nonce)
            .map_err(|error| Error::Io(io::Error::other(error.to_string()).into()))?;
        Ok(ClientHandshake::new(self.options(target, headers), nonce, self.response_limits)?)
    }

    fn options(&self, target: &Target, headers: &[(String, String)]) -> ClientOptions {
        let mut options = ClientOptions::new(self.host_of(target), &*target.resource);
        for name in &self.subprotocols {
            options = options.subprotocol(name);
        }
        for (name, value) in headers {
            options = options.header(name, value);
        }
        if let Some(origin) = &self.origin {
            options = options.origin(origin);
        }
        if let Some(deflate) = &self.deflate {
            options = options.deflate(deflate.clone());
        }
        options
    }

    /// The value of `Host` or `:authority`.
    fn host_of<'a>(&'a self, target: &'a Target) -> &'a str {
        self.host.as_deref().unwrap_or(&target.authority)
    }

    /// A transport to the server, directly or through a proxy, and the address at its other end.
    async fn dial(&self, target: &Target) -> Result<(Io, Option<SocketAddr>), Error> {
        let Target { secure, host, port, .. } = target;
        #[cfg(unix)]
        if let Some(path) = &target.unix {
            return Ok((Io::Other(Box::new(tokio::net::UnixStream::connect(path).await?)), None));
        }
        let found;
        let proxy = match &self.route {
            Route::Direct => None,
            Route::Proxy(proxy) => Some(proxy),
            Route::Environment(environment) => {
                found = environment.proxy(*secure, host, *port)?;
                found.as_ref()
            }
        };
        let (io, peer) = match proxy {
            None => self.dialer.dial(host, *port).await?,
            #[cfg(feature = "tls")]
            Some(proxy) => proxy.dial(&self.dialer, &self.tls, host, *port).await?,
            #[cfg(not(feature = "tls"))]
            Some(proxy) => proxy.dial(&self.dialer, host, *port).await?,
        };
        if let Some(peer) = peer {
            self.events.emit(&ConnectEvent::Connected { peer });
        }
        Ok((io, peer))
    }

    #[cfg(feature = "tls")]
    async fn secure(
        &self,
        target: &Target,
        io: Io,
        protocols: Protocols,
    ) -> Result<(Io, Option<TlsInfo>), Error> {
        if !target.secure {
            return Ok((self.observed(io), None));
        }
        let name = self.server_name.as_deref().unwrap_or(&target.host);
        let (io, info) = self.tls.connect(name, io, protocols).await?;
        self.events.emit(&ConnectEvent::Tls(&info));
        Ok((self.observed(io), Some(info)))
    }

    #[cfg(not(feature = "tls"))]
    async fn secure(&self, target: &Target, io: Io, _: Protocols) -> Result<(Io, Option<TlsInfo>), Error> {
        if target.secure { Err(Error::NoTls) } else { Ok((self.observed(io), None)) }
    }

    /// The transport, observed if there is a tap.
    fn observed(&self, io: Io) -> Io {
        match &self.tap {
            Some(tap) => tap.wrap(io, &[]),
            None => io,
        }
    }

    async fn exchange_handshake(
        &self,
        mut io: Io,
        mut handshake: ClientHandshake,
    ) -> Result<Result<(WebSocket, handshake::Response, Vec<u8>), Refusal>, Error> {
        if self.events.is_enabled() {
            let fields = opened::http1_fields(handshake.request());
            self.events.emit(&ConnectEvent::Request { version: Version::Http11, fields: &fields });
        }
        // When this fails, the server has closed. Its reason (a TLS alert, a refusal) may still be readable.
        let _ = write_all(&mut io, &[handshake.request()]).await;
        let mut bytes = BytesMut::new();
        let mut is_first = true;
        loop {
            bytes.clear();
            if read(&mut io, &mut bytes).await.map_err(failed)? == 0 {
                return Err(Error::Http(HttpError::ConnectionLost));
            }
            if std::mem::take(&mut is_first) && is_tls_alert(&bytes) {
                return Err(Error::TlsRequired);
            }
            match handshake.handle_input(&bytes)? {
                Progress::Incomplete => {}
                Progress::Done { negotiated, consumed } => {
                    let response = handshake.response().ok_or(Error::Http(HttpError::ConnectionLost))?;
                    self.emit_response(&response, &headers_of(&response));
                    let (deflate, config) = (self.deflate.as_ref(), self.config.clone());
                    let (arrived, account) = (&bytes[consumed..], Account::default());
                    let socket =
                        WebSocket::open(io, Role::Client, negotiated, deflate, config, arrived, &account);
                    return Ok(Ok((socket, response, handshake.into_request())));
                }
                Progress::Refused { response, consumed } => {
                    let headers = headers_of(&response);
                    self.emit_response(&response, &headers);
                    return Ok(Err(Refusal::http1(response, io, headers, &bytes[consumed..])));
                }
            }
        }
    }
}

impl Connector {
    fn emit_response(&self, response: &handshake::Response, headers: &Headers) {
        let (version, status, reason) = (Version::Http11, response.status(), response.reason());
        self.events.emit(&ConnectEvent::Response { version, status, reason, headers });
    }
}

fn headers_of(response: &handshake::Response) -> Headers {
    let mut headers = Headers::new();
    for (name, value) in response.headers() {
        headers.push_unchecked(name.as_bytes(), value);
    }
    headers
}

/// Whether a server answered plain text with a TLS alert record (RFC 8446 §5.1), as TLS ports do.
pub(crate) fn is_tls_alert(bytes: &[u8]) -> bool {
    bytes.starts_with(&[21, 3])
}

/// The target of a redirect from `url`, as an absolute `http` or `https` URL, or `http+unix` at the same Unix socket. The credentials of `url`
/// stay within its origin. `None` for a `Location` that is invalid, changes from TLS to plain text, has another scheme or contains
/// credentials.
///
/// ```
/// use wireloom::client::redirect_url;
///
/// assert_eq!(redirect_url("https://a.example/x/y", b"../z").as_deref(), Some("https://a.example/z"));
/// assert_eq!(redirect_url("https://a.example/", b"http://a.example/"), None);
/// ```
pub fn redirect_url(url: &str, location: &[u8]) -> Option<String> {
    let from = Target::http(url).ok()?;
    let to = from.redirected(location)?;
    if let Some(path) = &to.unix {
        return Some(format!("http+unix://{path}:{}", to.resource));
    }
    let userinfo = Some(url).filter(|_| from.is_same_origin(&to)).and_then(target::userinfo);
    let userinfo = userinfo.map_or_else(String::new, |userinfo| format!("{userinfo}@"));
    let scheme = if to.secure { "https" } else { "http" };
    Some(format!("{scheme}://{userinfo}{}{}", to.authority, to.resource))
}

/// A URL, or a reference to one, for errors and logs: scheme, host and path, without user information, query and fragment, which may be
/// secrets. If it is no URL, everything up to the last `@` is left out: that may be a password.
///
/// ```
/// use wireloom::client::url_without_secrets;
///
/// assert_eq!(url_without_secrets("wss://anna:secret@a.example/x?token=1"), "wss://a.example/x");
/// assert_eq!(url_without_secrets("wss://anna:sec/ret@a.example/x"), "wss://a.example/x");
/// ```
#[must_use]
pub fn url_without_secrets(url: &str) -> String {
    target::without_secrets(url)
}

/// Whether two URLs have the same origin (RFC 6454 §5): then a redirect from one to the other may take credentials along. False if one
/// of them is invalid.
///
/// ```
/// use wireloom::client::is_same_origin;
///
/// assert!(is_same_origin("https://a.example/x", "https://A.example:443/y"));
/// assert!(!is_same_origin("https://a.example/x", "https://b.example/x"));
/// ```
pub fn is_same_origin(url: &str, other: &str) -> bool {
    matches!((Target::http(url), Target::http(other)), (Ok(url), Ok(other)) if url.is_same_origin(&other))
}

/// The error for a transport that failed while the connection was being opened.
pub(crate) fn failed(error: io::Error) -> Error {
    if is_lost(&error) { HttpError::ConnectionLost.into() } else { error.into() }
}

/// Shows the names of headers, not their values, which must not reach a log.
impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector")
            .field("subprotocols", &self.subprotocols.len())
            .field("headers", &self.headers.iter().map(|(name, _)| name).collect::<Vec<_>>())
            .field("origin", &self.origin)
            .field("deflate", &self.deflate)
            .field("connect_timeout", &self.connect_timeout)
            .field("handshake_timeout", &self.handshake_timeout)
            .field("redirects_max", &self.redirects_max)
            .field("route", &self.route)
            .finish_non_exhaustive()
    }
}
