#![doc = include_str!("../README.md")]
//!
//! ## Modules
//!
//! Layers: `deadline`, `error`, `sync`, `version` → `event_queue`, `guard` → `scheduler` → `memory` → `headers`, `transport` → `http1`, `http2`, `websocket` →
//! `registry` → `http` → `client`, `server` → `tower` → `axum`.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(all(feature = "client", feature = "server", feature = "http2")),
    allow(dead_code, unused_imports, unreachable_pub, reason = "parts that other features use")
)]

#[cfg(feature = "axum")]
pub mod axum;
#[cfg(feature = "client")]
pub mod client;
mod deadline;
pub mod error;
mod event_queue;
mod guard;
mod headers;
#[cfg(any(feature = "client", feature = "server"))]
pub mod http;
#[cfg(any(feature = "client", feature = "server"))]
mod http1;
#[cfg(all(feature = "http2", any(feature = "client", feature = "server")))]
mod http2;
mod memory;
#[cfg(feature = "server")]
mod registry;
mod scheduler;
#[cfg(feature = "server")]
pub mod server;
mod sync;
#[cfg(feature = "tower")]
pub mod tower;
mod transport;
mod version;
pub mod websocket;

#[cfg(all(feature = "client", feature = "tls"))]
pub use client::tls::ClientTls;
#[cfg(feature = "client")]
pub use client::{Connector, Proxy, ProxyError, connect, connect_over};
pub use error::{Error, HttpError, IoError, WebSocketError};
pub use headers::Headers;
#[cfg(any(feature = "client", feature = "server"))]
pub use http::{Body, BodySender, Version};
#[cfg(feature = "server")]
pub use http::{IntoResponse, OriginPolicy, Request, Response, Upgrade};
#[cfg(feature = "server")]
pub use ipnet::IpNet;
pub use memory::MemoryStats;
#[cfg(feature = "server")]
pub use server::{Handler, Server, ServerConfig, ServerHandle};
#[cfg(all(feature = "server", feature = "tls"))]
pub use transport::tls::{self, ServerTls};
pub use transport::{Tap, TapEvent, Transport};
pub use websocket::{
    Delivery, Fanout, IoUring, Message, Observer, ObserverEvent, OwnedMessage, Payload, PreparedMessage,
    Receiver, Sender, Session, SlowPeer, Traffic, Utf8Bytes, WebSocket, WebSocketConfig, accept,
};
#[cfg(feature = "http2")]
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
    #[doc = include_str!("../../../docs/src/guides/cookbook.md")]
    mod cookbook {}
    #[doc = include_str!("../../../docs/src/guides/testing.md")]
    mod testing {}
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
