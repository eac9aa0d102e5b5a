//! What makes a WebSocket of a request, over HTTP/1.1 and HTTP/2 alike.

use std::pin::Pin;

use wireloom_ws::Role;
use wireloom_ws::deflate::DeflateConfig;
use wireloom_ws::handshake::{self, Acceptance, Negotiated};

use super::Response;
use crate::io::Io;
use crate::websocket::{Driven, WebSocket, WebSocketConfig};

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
    pub(super) fn new(
        request: handshake::Request,
        config: WebSocketConfig,
        deflate: Option<DeflateConfig>,
    ) -> Self {
        Self { request, config, deflate, subprotocol: None, headers: Vec::new() }
    }

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

    /// Chooses for this WebSocket alone, instead of [`ServerConfig::websocket`](crate::ServerConfig::websocket).
    #[must_use]
    pub fn config(mut self, config: WebSocketConfig) -> Self {
        self.config = config;
        self
    }

    /// Offers compression to this client, or does not, instead of [`ServerConfig::deflate`](crate::ServerConfig::deflate).
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
            run: Box::new(move |socket| {
                let shared = socket.shared().clone();
                Driven::new(&shared, Box::pin(run(socket)))
            }),
        }));
        response
    }
}

/// What serves an open WebSocket.
pub(crate) type Running = Driven<Pin<Box<dyn Future<Output = ()> + Send>>>;

/// What is given a WebSocket, once.
pub(crate) type Run = Box<dyn FnOnce(WebSocket) -> Running + Send>;

/// What becomes of the connection once a handshake has been answered.
pub(crate) struct Opening {
    negotiated: Negotiated,
    deflate: Option<DeflateConfig>,
    config: WebSocketConfig,
    run: Run,
}

impl Opening {
    /// The WebSocket over a transport on which the answer has been sent, and what serves it. `arrived` came behind the
    /// request.
    pub(crate) fn open(self, io: Io, role: Role, arrived: &[u8]) -> (WebSocket, Run) {
        let deflate = self.deflate.as_ref();
        let socket = WebSocket::open(io, role, self.negotiated, deflate, self.config, arrived);
        (socket, self.run)
    }
}
