#![doc = include_str!("../README.md")]
//!
//! Layers: `protocol` → `random`, `clock`, `shards`, `config` → `history` → `auth`, `outbox`, `hooks`, `metrics` → `client`, `engine`, `proxy` →
//! `channels` → `hub` + `subscribe` + `session` → `transport`, `api` → `serve` → `simulation`

#![cfg_attr(docsrs, feature(doc_cfg))]

mod api;
mod auth;
mod channels;
mod client;
mod clock;
mod config;
pub mod engine;
mod history;
mod hooks;
mod hub;
mod metrics;
mod outbox;
pub mod protocol;
mod proxy;
mod random;
mod serve;
mod session;
mod shards;
#[cfg(test)]
mod simulation;
mod subscribe;
mod transport;

pub use config::{
    Access, ApiConfig, ChannelOptions, ClientConfig, ConfigError, HubConfig, RecoveryMode, RpcConfig,
    SlowPolicy, TokenConfig,
};
pub use history::{History, HistoryQuery, Position, Recovery, Retention};
pub use hooks::{
    ConnectEvent, ConnectGrant, DisconnectEvent, HookFuture, PublishEvent, Refusal, RpcEvent, SubscribeEvent,
    SubscribeGrant,
};
pub use hub::{Hub, HubBuilder, PublishError, PublishOptions};
pub use metrics::HubStats;

/// The examples of the book's page compile.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/src/guides/chat.md")]
struct ChatGuide;
