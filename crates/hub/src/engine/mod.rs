//! Engines: where histories and presence are kept, and how publications reach the other nodes.

mod disk;
mod memory;
#[cfg(feature = "nats")]
mod nats;

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::RecoveryMode;
use crate::history::{History, HistoryQuery, Position, Recovery, Retention};
use crate::protocol::{ClientInfo, Publication};

pub use disk::{DiskEngine, DiskError};
pub use memory::MemoryEngine;
#[cfg(feature = "nats")]
pub use nats::NatsEngine;

/// The result of an engine's operation.
pub type EngineFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, EngineError>> + Send + 'a>>;

/// Why an engine could not carry out an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineError {
    /// It keeps as many channels as it may.
    ChannelLimit,
    /// The storage or the network failed; the message describes it.
    Unavailable(String),
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ChannelLimit => f.write_str("the limit of channels with history is reached"),
            Self::Unavailable(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for EngineError {}

/// A client of a channel joined or left.
#[derive(Clone, Debug, PartialEq)]
pub enum Membership {
    /// It subscribed.
    Join(ClientInfo),
    /// It unsubscribed, or its connection ended.
    Leave(ClientInfo),
}

/// A command of the server API to the connections of a user, wherever they are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Control {
    /// The user.
    pub user: String,
    /// Only this connection; every one of the user's when empty.
    pub client: String,
    /// The action.
    pub action: Action,
}

/// The action of a [`Control`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Action {
    /// Ends the connections, but not those named by `except`.
    Disconnect {
        /// See [`Disconnect`](crate::protocol::Disconnect).
        code: u16,
        /// In words.
        reason: String,
        /// The connections to keep.
        except: Vec<String>,
    },
    /// Subscribes the connections to a channel.
    Subscribe {
        /// The channel.
        channel: String,
    },
    /// Ends the subscriptions to a channel.
    Unsubscribe {
        /// The channel.
        channel: String,
    },
    /// Sets when the connections expire.
    Refresh {
        /// In seconds since 1970; `None` for never.
        expire_at: Option<u64>,
    },
}

/// The receiving end of an engine: the hub of this node.
pub trait Delivery: Send + Sync {
    /// A publication for this node's subscribers. The publications of a channel with history come in the order of their
    /// offsets; `previous` is the offset of the one before, or 0 when that is not kept any more; `epoch` is that of the history.
    /// A publication that is in no history has offset 0.
    fn deliver_publication(&self, channel: &str, epoch: &str, previous: u64, publication: &Arc<Publication>);
    /// A client joined or left.
    fn deliver_membership(&self, channel: &str, membership: &Membership);
    /// The history of a channel is no longer the one that its subscribers follow.
    fn deliver_history_lost(&self, channel: &str);
    /// A command of the server API.
    fn deliver_control(&self, control: &Control);
    /// How much of a channel's history is kept; `None` when it has none.
    fn retention(&self, channel: &str) -> Option<Retention>;
}

/// Where histories and presence are kept, and how publications reach the other nodes.
pub trait Engine: Send + Sync + 'static {
    /// The name, for logs.
    fn name(&self) -> &'static str;

    /// Called once, before anything else, within the runtime that drives the hub.
    fn start(&self, delivery: Weak<dyn Delivery>);

    /// Adds a publication to the history, where `retention` asks for one, and delivers it on every node. Its position; that of
    /// offset 0 without a history.
    fn publish<'a>(
        &'a self,
        channel: &'a str,
        publication: Publication,
        retention: Option<Retention>,
    ) -> EngineFuture<'a, Position>;

    /// Announces a client that joined or left, on every node.
    fn publish_membership<'a>(&'a self, channel: &'a str, membership: Membership) -> EngineFuture<'a, ()>;

    /// A client of this node subscribes: publications are delivered from the time this returns on.
    fn subscribe<'a>(&'a self, channel: &'a str) -> EngineFuture<'a, ()>;

    /// A client of this node has unsubscribed.
    fn unsubscribe(&self, channel: &str);

    /// Part of a history.
    fn history<'a>(
        &'a self,
        channel: &'a str,
        query: &'a HistoryQuery,
        retention: Retention,
    ) -> EngineFuture<'a, History>;

    /// The publications that a client at `since` missed; the position alone without `since`.
    fn recover<'a>(
        &'a self,
        channel: &'a str,
        since: Option<&'a Position>,
        mode: RecoveryMode,
        retention: Retention,
    ) -> EngineFuture<'a, Recovery>;

    /// Drops a history. Its subscribers start again from a new epoch.
    fn remove_history<'a>(&'a self, channel: &'a str) -> EngineFuture<'a, ()>;

    /// Lists a client of this node under a channel. Called again every [`PRESENCE_REFRESH`] while the client is subscribed.
    fn add_presence<'a>(&'a self, channel: &'a str, info: &'a ClientInfo) -> EngineFuture<'a, ()>;

    /// No longer lists a client.
    fn remove_presence<'a>(&'a self, channel: &'a str, client: &'a str) -> EngineFuture<'a, ()>;

    /// The clients of a channel, on every node.
    fn presence<'a>(&'a self, channel: &'a str) -> EngineFuture<'a, Vec<ClientInfo>>;

    /// Carries out a command of the server API on every node.
    fn control(&self, control: Control) -> EngineFuture<'_, ()>;

    /// The other nodes that are alive, by name.
    fn peers(&self) -> Vec<String> {
        Vec::new()
    }

    /// Called every second: drops expired publications.
    fn maintain(&self);
}

/// How often presence is refreshed; an entry that was not for three times as long is dropped.
pub const PRESENCE_REFRESH: Duration = Duration::from_secs(10);
