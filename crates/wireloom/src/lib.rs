//! WebSocket and HTTP on tokio: client and server, over HTTP/1.1, HTTP/2 and TLS.
//!
//! Messages are borrowed from the read buffer or owned, as you ask; all frames of a read are drained before the next;
//! what one wake-up produced leaves in one write; an idle connection holds no buffer. The protocol itself is
//! [`wireloom_ws`], which does no I/O.
//!
//! Layers: `error`, `memory`, `version` → `headers`, `transport` → `http1`, `http2`, `websocket` → `registry` → `http` →
//! `client`, `server` → `tower` → `axum`.

#[cfg(feature = "axum")]
pub mod axum;
pub mod client;
pub mod error;
mod headers;
pub mod http;
mod http1;
mod http2;
#[allow(dead_code, reason = "some categories are reported by optional parts")]
mod memory;
mod registry;
pub mod server;
#[cfg(feature = "tower")]
pub mod tower;
mod transport;
mod version;
pub mod websocket;

#[cfg(feature = "tls")]
pub use client::tls::ClientTls;
pub use client::{Connector, Proxy, ProxyError, connect};
pub use error::{Error, IoError, Stage};
pub use headers::Headers;
pub use http::{Body, BodySender, IntoResponse, OriginPolicy, Request, Response, Upgrade, Version};
pub use memory::MemoryStats;
pub use server::{Handler, Server, ServerConfig, ServerHandle};
pub use transport::Transport;
#[cfg(feature = "tls")]
pub use transport::tls::{self, ServerTls};
pub use websocket::{
    Message, Observed, Observer, OwnedMessage, Payload, PreparedMessage, Receiver, Sender, Session, SlowPeer,
    Traffic, Utf8Bytes, Watch, WebSocket, WebSocketConfig,
};
pub use wireloom_http2;
pub use wireloom_ws;
pub use wireloom_ws::deflate::DeflateConfig;
pub use wireloom_ws::{CloseCode, Config, Keepalive, Limits};

/// The README's examples, so that they compile and hold.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
