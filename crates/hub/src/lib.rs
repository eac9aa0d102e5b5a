#![doc = include_str!("../README.md")]
//!
//! Layers: `protocol` → `random`, `clock`, `budget`, `concurrently`, `shards`, `subscriptions`, `pattern`, `filter`, `fossil`, `spans`, `nullable`, `trusted_proxies`, `config` → `reference`, `centrifugo`, `history`, `jwks`, `jwt`, `meta`, `opened`, `overrides`, `undelivered` → `auth`, `token`, `outbox`, `hooks`, `idempotency`, `turns` → `client`, `engine`, `endpoint`, `sessions`, `logins` → `calls` → `proxy` → `settings` → `events`, `metrics`, `rights`,
//! `batch`, `encoded`, `changes`, `connecting`, `timers` → `clients`, `channels` → `channel_limits` → `node` + `subscribe` + `session` → `hub`, `transport` → `api` → `admin`, `serve` → `sdk`, `simulation`, `fuzzing`

#![cfg_attr(docsrs, feature(doc_cfg))]

mod admin;
mod api;
mod auth;
mod batch;
mod budget;
mod calls;
mod centrifugo;
mod changes;
mod channel_limits;
mod channels;
mod client;
mod clients;
mod clock;
mod concurrently;
mod config;
mod connecting;
mod encoded;
mod endpoint;
pub mod engine;
mod events;
mod filter;
mod fossil;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod history;
mod hooks;
mod hub;
mod idempotency;
mod jwks;
mod jwt;
mod logins;
mod meta;
mod metrics;
mod node;
mod nullable;
mod opened;
mod outbox;
mod overrides;
mod pattern;
pub mod protocol;
mod proxy;
mod random;
mod reference;
mod rights;
#[cfg(feature = "client")]
pub mod sdk;
mod serve;
mod session;
mod sessions;
mod settings;
mod shards;
#[cfg(test)]
mod simulation;
mod spans;
mod subscribe;
mod subscriptions;
mod timers;
mod token;
mod transport;
mod trusted_proxies;
mod turns;
mod undelivered;

pub use centrifugo::{Converted, convert_centrifugo};
pub use config::{
    Access, ApiConfig, ChannelOptions, ClientConfig, ConfigError, DeltaType, EngineConfig, EventsConfig,
    HistoryConfig, HubConfig, ProxiesConfig, ProxyChoice, ProxyConfig, RecoveryMode, SlowPolicy, TokenConfig,
    TransportsConfig,
};
pub use history::{History, HistoryQuery, Position, Recovery, Retention};
pub use hooks::{
    ConnectEvent, ConnectGrant, DisconnectEvent, HookFuture, PublishEvent, Refusal, RpcEvent, SubscribeEvent,
    SubscribeGrant,
};
pub use hub::{Hub, HubBuilder, PublishOptions};
pub use metrics::{HubStats, SlowClient};
pub use node::PublishError;
pub use reference::{Setting, reference, settings};
#[cfg(feature = "client")]
pub use sdk::Client;
pub use token::TokenClaims;

/// The examples of the book's pages compile.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../docs/src/guides/chat.md")]
    mod chat {}
    #[cfg(feature = "client")]
    #[doc = include_str!("../../../docs/src/guides/hub.md")]
    mod hub {}
}
