//! Adapters for applications that use `http`, `tower` and `hyper` (feature `tower`; feature `hyper` for WebSockets on hyper's
//! server).
//!
//! - [`handler`]: Wireloom's [`Server`](crate::Server) serves any `tower` service of `http` requests, an axum `Router` too.
//! - [`service`]: a [`Handler`] as a `tower` service, to be mounted in an existing application.
//! - [`upgrade`]: only the WebSocket part, in a handler of axum or hyper, on either server.
//!
//! ```
//! # #[cfg(feature = "hyper")] mod example {
//! use wireloom::{Body, Response};
//!
//! // Also a handler of axum: `Router::new().route("/echo", axum::routing::any(echo))`.
//! async fn echo(mut request: http::Request<Body>) -> http::Response<Body> {
//!     let answer = match wireloom::tower::upgrade(&mut request) {
//!         Ok(upgrade) => upgrade.on_open(|mut socket| async move {
//!             while let Ok(Some(message)) = socket.recv_owned().await {
//!                 if socket.send(message).await.is_err() {
//!                     break;
//!                 }
//!             }
//!         }),
//!         Err(refusal) => refusal,
//!     };
//!     answer.into()
//! }
//! # }
//! ```

mod convert;
#[cfg(feature = "hyper")]
mod tracker;

use std::future::poll_fn;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tower_service::Service;

#[cfg(feature = "hyper")]
pub use tracker::WebSocketTracker;

use crate::http::{Body, Origin, Request, RequestConfig, Response, TlsInfo, Upgrade};
use crate::memory::Account;
use crate::server::{Handler, ServerConfig};

/// The peer of a request, in the extensions of requests that Wireloom's server has received.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The address of the peer.
    pub address: SocketAddr,
    /// The outcome of the TLS handshake; `None` without TLS.
    pub tls: Option<Arc<TlsInfo>>,
}

/// Validates a request as the opening handshake of a WebSocket, as [`Request::websocket`] does: on Wireloom's server behind
/// [`handler`], and on hyper's (and so axum's) with the feature `hyper`. The response that
/// [`on_open`](Upgrade::on_open) makes becomes an `http::Response` by `into()`, and is to be returned as it is. A layer that refuses has to
/// do so before the handler accepts: with another status Wireloom's server opens nothing, but hyper's hands the connection over all the
/// same.
///
/// On hyper's server the WebSocket is served by a task of its own, which a `WebSocketTracker` among the extensions of the request
/// tracks.
///
/// # Errors
/// The response to refuse it with.
pub fn upgrade<B>(request: &mut http::Request<B>) -> Result<Upgrade, Response> {
    convert::upgrade(request)
}

/// A `tower` service as a [`Handler`]. It is cloned for every request; an error of it is answered with 500.
///
/// ```no_run
/// # async fn example<S>(router: S) -> std::io::Result<()>
/// # where
/// #     S: tower_service::Service<http::Request<wireloom::Body>, Response = http::Response<wireloom::Body>>,
/// #     S: Clone + Send + Sync + 'static, S::Future: Send, S::Error: Send,
/// # {
/// let server = wireloom::Server::bind("127.0.0.1:8080").await?;
/// server.serve(wireloom::tower::handler(router)).await
/// # }
/// ```
pub fn handler<S, B>(service: S) -> ServiceHandler<S>
where
    S: Service<http::Request<Body>, Response = http::Response<B>> + Clone + Send + Sync + 'static,
    S::Future: Send,
    S::Error: Send,
    B: http_body::Body<Data = Bytes> + Send + 'static,
{
    ServiceHandler { service }
}

/// The handler that [`handler`] returns.
#[derive(Clone, Debug)]
pub struct ServiceHandler<S> {
    service: S,
}

impl<S, B> Handler for ServiceHandler<S>
where
    S: Service<http::Request<Body>, Response = http::Response<B>> + Clone + Send + Sync + 'static,
    S::Future: Send,
    S::Error: Send,
    B: http_body::Body<Data = Bytes> + Send + 'static,
{
    async fn handle(&self, request: Request) -> Response {
        let version = request.version();
        let request = match convert::request_out(request) {
            Ok(request) => request,
            Err(refusal) => return refusal,
        };
        let mut service = self.service.clone();
        let answered = match poll_fn(|cx| service.poll_ready(cx)).await {
            Ok(()) => service.call(request).await,
            Err(error) => Err(error),
        };
        match answered {
            Ok(response) => convert::response_in(response, version),
            Err(_) => Response::text(500, "internal server error\n"),
        }
    }
}

/// A [`Handler`] as a `tower` service. The parts of `config` for bodies and WebSockets apply; connections are those of the server
/// that it is mounted on. Without a [`Peer`] among the extensions, requests come from 0.0.0.0:0.
pub fn service<H: Handler>(handler: H, config: ServerConfig) -> HandlerService<H> {
    HandlerService { handler: Arc::new(handler), config: Arc::new(config.for_requests()) }
}

/// The service that [`service`] returns.
#[derive(Debug)]
pub struct HandlerService<H> {
    handler: Arc<H>,
    config: Arc<RequestConfig>,
}

impl<H> Clone for HandlerService<H> {
    fn clone(&self) -> Self {
        Self { handler: self.handler.clone(), config: self.config.clone() }
    }
}

impl<H, B> Service<http::Request<B>> for HandlerService<H>
where
    H: Handler,
    B: http_body::Body<Data = Bytes> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let peer = request.extensions().get::<Peer>().cloned();
        let peer =
            peer.unwrap_or_else(|| Peer { address: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)), tls: None });
        let origin = Arc::new(Origin {
            peer: peer.address,
            tls: peer.tls,
            config: self.config.clone(),
            account: Account::default(),
        });
        let request = convert::request_in(request, &origin);
        let handler = self.handler.clone();
        Box::pin(async move { Ok(handler.handle(request).await.into()) })
    }
}
