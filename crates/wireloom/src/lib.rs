#![doc = include_str!("../README.md")]
//!
//! ## Modules
//!
//! Layers: `error`, `memory`, `version` → `headers`, `transport` → `http1`, `http2`, `websocket` → `registry` → `http` →
//! `client`, `server` → `tower` → `axum`.

#![cfg_attr(docsrs, feature(doc_cfg))]

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

/// The examples of the README and of the book's pages compile.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../README.md")]
    mod readme {}
    #[doc = include_str!("../../../docs/src/start/rust.md")]
    mod rust {}
    #[doc = include_str!("../../../docs/src/start/cores.md")]
    mod cores {}
    #[doc = include_str!("../../../docs/src/guides/firehose.md")]
    mod firehose {}
    #[doc = include_str!("../../../docs/src/guides/http2.md")]
    mod http2 {}
    #[doc = include_str!("../../../docs/src/guides/axum.md")]
    mod axum {}
    #[doc = include_str!("../../../docs/src/guides/backpressure.md")]
    mod backpressure {}
    #[doc = include_str!("../../../docs/src/guides/limits.md")]
    mod limits {}
    #[doc = include_str!("../../../docs/src/guides/observability.md")]
    mod observability {}
    #[doc = include_str!("../../../docs/src/guides/shutdown.md")]
    mod shutdown {}
    #[doc = include_str!("../../../docs/src/migrating/tungstenite.md")]
    mod tungstenite {}
    #[doc = include_str!("../../../docs/src/migrating/fastwebsockets.md")]
    mod fastwebsockets {}
}
