//! Upgrades of requests to WebSockets, over HTTP/1.1 and HTTP/2.

use std::borrow::Cow;
#[cfg(feature = "hyper")]
use std::net::Ipv4Addr;
use std::pin::Pin;
#[cfg(feature = "hyper")]
use std::sync::Arc;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use wireloom_ws::Role;
use wireloom_ws::deflate::DeflateConfig;
use wireloom_ws::handshake::{self, Acceptance, Negotiated};

use super::Response;
#[cfg(any(feature = "http2", feature = "hyper"))]
use crate::error::HttpError;
use crate::headers::Headers;
use crate::registry::Registration;
#[cfg(feature = "hyper")]
use crate::registry::Registry;
use crate::transport::Io;
#[cfg(feature = "http2")]
use crate::transport::Transport;
use crate::websocket::{Driven, IoUring, SharedConfig, WebSocket, WebSocketConfig};

/// The fields of most answers to a handshake, with room for a subprotocol and extensions.
const ANSWER_FIELDS: usize = 5;

/// The bytes of their names and values.
const ANSWER_LEN: usize = 192;

/// The server that hands the connection over after the response.
#[derive(Clone, Debug)]
pub(crate) enum Carrier {
    /// This crate's server.
    Own,
    /// hyper's.
    #[cfg(feature = "hyper")]
    Hyper(crate::transport::PendingUpgrade, Option<Arc<Registry>>),
    /// A server that cannot hand over connections.
    #[cfg_attr(not(feature = "tower"), expect(dead_code, reason = "every other server is behind `tower`"))]
    None,
}

/// A valid opening handshake that has not been answered: [`on_open`](Self::on_open) accepts it, any other response refuses it.
#[derive(Debug)]
pub struct Upgrade {
    request: handshake::Request,
    config: SharedConfig,
    deflate: Option<DeflateConfig>,
    subprotocol: Option<String>,
    headers: Vec<(String, String)>,
    carrier: Carrier,
}

impl Upgrade {
    pub(super) fn new(
        request: handshake::Request,
        config: SharedConfig,
        deflate: Option<DeflateConfig>,
        carrier: Carrier,
    ) -> Self {
        Self { request, config, deflate, subprotocol: None, headers: Vec::new(), carrier }
    }

    /// The handshake: origin, subprotocols, extensions.
    pub fn request(&self) -> &handshake::Request {
        &self.request
    }

    /// Selects the first of these subprotocols that the client offers.
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

    /// Configures this WebSocket alone, instead of [`ServerConfig::websocket`](crate::ServerConfig::websocket). WebSockets with equal
    /// configurations mostly share the memory of one.
    #[must_use]
    pub fn config(mut self, config: WebSocketConfig) -> Self {
        self.config = config.into();
        self
    }

    /// Whether this WebSocket may use io_uring, for a configuration of its own that keeps the choice of the server.
    pub fn io_uring(&self) -> IoUring {
        self.config.io_uring()
    }

    /// Offers compression to this client, or does not, instead of [`ServerConfig::deflate`](crate::ServerConfig::deflate).
    #[must_use]
    pub fn deflate(mut self, deflate: Option<DeflateConfig>) -> Self {
        self.deflate = deflate;
        self
    }

    /// Accepts the handshake: returns the response for the handler to return. Once it has been sent, `run` is called with the WebSocket.
    /// `run` may pass the WebSocket on and return: the connection counts, and a shutdown closes it, until it has ended. Only its receiver
    /// notices that the client has left: the task that has it must keep receiving, or drop it.
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
        let mut answer = Headers::with_capacity(ANSWER_FIELDS, ANSWER_LEN);
        let push = |name: Cow<'_, str>, value: &[u8]| answer.push_unchecked(name.as_bytes(), value);
        let Ok(negotiated) = self.request.accept_with(&acceptance, push) else {
            return Response::text(500, "a header of the response is invalid\n");
        };
        let mut response = Response::switching(self.request.accepted_status(), answer);
        response.opening = Some(Box::new(Opening {
            negotiated,
            deflate: self.deflate,
            config: self.config,
            carrier: self.carrier,
            run,
        }));
        response
    }
}

/// An extended CONNECT that has not been answered ([`Request::tunnel`](super::Request::tunnel)): [`on_open`](Self::on_open) accepts it,
/// any other response refuses it.
#[cfg(feature = "http2")]
#[derive(Debug)]
pub struct TunnelUpgrade {
    headers: Headers,
}

#[cfg(feature = "http2")]
impl TunnelUpgrade {
    pub(super) fn new() -> Self {
        Self { headers: Headers::new() }
    }

    /// Adds a header to the answer, such as `capsule-protocol`.
    ///
    /// # Errors
    /// [`HttpError::InvalidHeader`]
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Result<Self, HttpError> {
        self.headers.push(name, value)?;
        Ok(self)
    }

    /// Accepts the tunnel: returns the response, with status 200, for the handler to return. Once it has been sent, `run` is called with
    /// the stream of bytes. Dropping the stream before its end resets it.
    pub fn on_open<F, Fut>(self, run: F) -> Response
    where
        F: FnOnce(Box<dyn Transport>) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let mut response = Response::new(200);
        response.headers = self.headers;
        response.opening = Some(Box::new(OpeningTunnel(run)));
        response
    }
}

#[cfg(feature = "http2")]
struct OpeningTunnel<F>(F);

#[cfg(feature = "http2")]
impl<F, Fut> Open for OpeningTunnel<F>
where
    F: FnOnce(Box<dyn Transport>) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    fn open(self: Box<Self>, io: Io, _: &[u8], registration: Option<Registration>) -> Running {
        let running = (self.0)(io.into_transport());
        Box::pin(async move {
            running.await;
            drop(registration);
        })
    }

    #[cfg(feature = "hyper")]
    fn spawn_when_upgraded(self: Box<Self>) -> Result<Option<Box<dyn Open>>, HttpError> {
        Ok(Some(self))
    }
}

/// The future that serves an open WebSocket.
pub(crate) type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Opens the WebSocket once the handshake has been answered.
pub(crate) trait Open: Send {
    /// Opens the WebSocket over `io`, on which the response has been sent, and returns the future that serves it. `arrived` was
    /// read after the request; the future holds the registration.
    fn open(self: Box<Self>, io: Io, arrived: &[u8], registration: Option<Registration>) -> Running;

    /// On hyper's server: spawns a task that waits for the connection. Returns `self` on any other server.
    ///
    /// # Errors
    /// [`HttpError::Overloaded`] where there is no memory for another WebSocket.
    #[cfg(feature = "hyper")]
    fn spawn_when_upgraded(self: Box<Self>) -> Result<Option<Box<dyn Open>>, HttpError>;
}

struct Opening<F> {
    negotiated: Negotiated,
    deflate: Option<DeflateConfig>,
    config: SharedConfig,
    #[cfg_attr(not(feature = "hyper"), expect(dead_code, reason = "there is one carrier alone"))]
    carrier: Carrier,
    run: F,
}

impl<F, Fut> Open for Opening<F>
where
    F: FnOnce(WebSocket) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    fn open(self: Box<Self>, io: Io, arrived: &[u8], registration: Option<Registration>) -> Running {
        let Self { negotiated, deflate, config, run, .. } = *self;
        let account =
            registration.as_ref().map(|registration| registration.account().clone()).unwrap_or_default();
        let deflate = deflate.as_ref();
        let socket = WebSocket::open(io, Role::Server, negotiated, deflate, config, arrived, &account);
        let shared = socket.shared().clone();
        if let Some(registration) = &registration {
            registration.open(&shared);
        }
        let driven = Driven::new(&shared, run(socket));
        Box::pin(Registered { driven, registration })
    }

    #[cfg(feature = "hyper")]
    fn spawn_when_upgraded(self: Box<Self>) -> Result<Option<Box<dyn Open>>, HttpError> {
        let Carrier::Hyper(pending, registry) = self.carrier.clone() else { return Ok(Some(self)) };
        // Registered now, so that a shutdown waits for upgrades in progress.
        let admit = |registry: Arc<Registry>| registry.admit(Ipv4Addr::UNSPECIFIED.into(), None);
        let registration =
            registry.map(|registry| admit(registry).ok_or(HttpError::Overloaded)).transpose()?;
        tokio::spawn(async move {
            // The client may have disconnected before the response was sent.
            if let Ok(io) = pending.wait().await {
                self.open(io, &[], registration).await;
            }
        });
        Ok(None)
    }
}

pin_project! {
    /// Serves a WebSocket, then closes its transport. The WebSocket is registered with the server until then.
    struct Registered<F> {
        #[pin]
        driven: Driven<F>,
        registration: Option<Registration>,
    }
}

impl<F: Future<Output = ()>> Future for Registered<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.project().driven.poll_ended(cx)
    }
}
