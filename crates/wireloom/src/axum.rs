//! An extractor for axum (feature `axum`): the WebSocket part of a handler, on axum's own server and on Wireloom's
//! ([`tower::handler`](crate::tower::handler)).
//!
//! ```
//! use axum::Router;
//! use axum::response::Response;
//! use axum::routing::any;
//! use wireloom::axum::WebSocketUpgrade;
//!
//! async fn echo(upgrade: WebSocketUpgrade) -> Response {
//!     upgrade.on_open(async |socket| {
//!         let (mut sender, mut receiver) = socket.split();
//!         while let Ok(Some(message)) = receiver.recv().await {
//!             if sender.send(message).await.is_err() {
//!                 break;
//!             }
//!         }
//!     })
//! }
//!
//! let router: Router = Router::new().route("/echo", any(echo));
//! ```
//!
//! On Wireloom's server the WebSocket takes part in its graceful shutdown; on axum's it does with a
//! [`WebSocketTracker`](crate::tower::WebSocketTracker) among the extensions.

use axum_core::extract::FromRequestParts;
use axum_core::response::{IntoResponse, Response};
use wireloom_ws::deflate::DeflateConfig;
use wireloom_ws::handshake;

use crate::http::Upgrade;
use crate::websocket::{WebSocket, WebSocketConfig};

/// A valid opening handshake, over HTTP/1.1 or HTTP/2. A request that is none is refused before the handler is called.
#[derive(Debug)]
#[must_use]
pub struct WebSocketUpgrade(Upgrade);

impl WebSocketUpgrade {
    /// The handshake: origin, subprotocols, extensions.
    pub fn request(&self) -> &handshake::Request {
        self.0.request()
    }

    /// Selects the first of these subprotocols that the client offers.
    pub fn subprotocols(self, preferences: &[&str]) -> Self {
        Self(self.0.subprotocols(preferences))
    }

    /// Adds a header to the response, such as `Set-Cookie`.
    pub fn header(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        Self(self.0.header(name, value))
    }

    /// Sets the configuration of this WebSocket.
    pub fn config(self, config: WebSocketConfig) -> Self {
        Self(self.0.config(config))
    }

    /// Accepts permessage-deflate with this configuration, or not at all.
    pub fn deflate(self, deflate: Option<DeflateConfig>) -> Self {
        Self(self.0.deflate(deflate))
    }

    /// Accepts: the response to return from the handler. Once it has been sent, `run` gets the WebSocket.
    pub fn on_open<F, Fut>(self, run: F) -> Response
    where
        F: FnOnce(WebSocket) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.0.on_open(run).into_response()
    }

    /// The handshake without axum's types.
    pub fn into_inner(self) -> Upgrade {
        self.0
    }
}

impl<S: Send + Sync> FromRequestParts<S> for WebSocketUpgrade {
    type Rejection = crate::http::Response;

    async fn from_request_parts(
        parts: &mut http::request::Parts,
        _state: &S,
    ) -> Result<Self, Self::Rejection> {
        let empty = http::Request::new(()).into_parts().0;
        let mut request = http::Request::from_parts(std::mem::replace(parts, empty), ());
        let upgrade = crate::tower::upgrade(&mut request);
        *parts = request.into_parts().0;
        upgrade.map(Self)
    }
}

impl IntoResponse for crate::http::Response {
    fn into_response(self) -> Response {
        http::Response::from(self).map(axum_core::body::Body::new)
    }
}
