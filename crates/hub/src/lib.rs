//! Channels over WebSocket.
mod config;
mod history;
pub mod protocol;
pub use config::{Access, ApiConfig, ChannelOptions, ClientConfig, ConfigError, HubConfig, RecoveryMode, SlowPolicy, TokenConfig};
pub use history::{History, HistoryQuery, Position, Recovery, Retention};
