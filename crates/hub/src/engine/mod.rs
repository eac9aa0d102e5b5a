//! Engines: where histories and presence are kept, and how publications reach the other nodes.
//!
//! Layers: `event_queue`, `logs`, `peers`, `status` → `commands`, `memory` → `disk`, `nats`, `redis`.

#[cfg(any(feature = "nats", feature = "redis"))]
mod commands;
mod disk;
mod event_queue;
mod logs;
mod memory;
#[cfg(feature = "nats")]
mod nats;
#[cfg(any(feature = "nats", feature = "redis"))]
mod peers;
#[cfg(feature = "redis")]
mod redis;
mod status;

use std::collections::HashSet;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use prost::Message as _;
use serde::{Deserialize, Serialize};

use crate::budget::{self, charge};
use crate::config::RecoveryMode;
use crate::history::{History, HistoryQuery, Position, Recovery, Retention, count_within};
use crate::protocol::{ClientInfo, PresenceStatsResult, Publication};

pub use crate::idempotency::IDEMPOTENCY_TTL;
pub use disk::{DiskEngine, DiskError, FileReport, Salvaged};
pub(crate) use event_queue::reported_at;
pub use event_queue::{EventQueue, Lease, QUEUE_MAX, QueuedEvent, TAKEN_TIMEOUT};
pub use memory::MemoryEngine;
#[cfg(feature = "nats")]
pub use nats::NatsEngine;
#[cfg(feature = "redis")]
pub use redis::RedisEngine;

/// The result of an engine's operation.
pub type EngineFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, EngineError>> + Send + 'a>>;

/// The work of [`Engine::maintain`].
pub type Maintaining<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Why an engine could not carry out an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineError {
    /// The limit of channels is reached.
    ChannelLimit,
    /// The publication is longer than the engine accepts.
    TooLong,
    /// The operation was refused for a reason that lies in it, such as a URL that cannot be used; the message says why.
    Refused(String),
    /// The storage or the network failed; the message describes it.
    Unavailable(String),
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ChannelLimit => f.write_str("the limit of channels with history is reached"),
            Self::TooLong => f.write_str("the publication is longer than the engine accepts"),
            Self::Refused(reason) | Self::Unavailable(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for EngineError {}

/// A change of a channel's clients.
#[derive(Clone, Debug, PartialEq)]
pub enum Membership {
    /// It subscribed.
    Join(ClientInfo),
    /// It unsubscribed, or its connection ended.
    Leave(ClientInfo),
}

/// A command of the server API for the connections of a user, on every node: those that a node has when it reads the command. A node
/// that was cut off reads it later, and cannot know whether a connection that it accepted meanwhile came before or after the command:
/// better that one ends once more than that one stays which was to end. A connection whose user is not known yet when the command is read
/// is concerned by [`Action::Disconnect`] alone; the other actions change only those that are connected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Control {
    /// The user; if empty, that of the connection.
    pub user: String,
    /// Only this connection; if empty, every connection of the user. One of the two is not empty.
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
        /// The reason, as a text.
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
    /// Delivers a publication to this node's subscribers. The publications of a channel with history are delivered in
    /// the order of their offsets. `previous` is the offset of the previous one, or 0 if that is no longer kept;
    /// `epoch` is that of the history. A publication that is in no history has offset 0.
    ///
    /// An engine may call this while it has the history locked, so that the order is kept: this only queues the publication, and does not
    /// call the engine. The engine finishes the delivery after the unlock.
    fn deliver_publication(
        &self,
        channel: &str,
        epoch: &str,
        previous: u64,
        publication: &Arc<Publication>,
    ) -> PendingDelivery;
    /// Delivers a join or a leave.
    fn deliver_membership(&self, channel: &str, membership: &Membership);
    /// Reports that the history which the subscribers of a channel follow no longer exists.
    fn deliver_history_lost(&self, channel: &str);
    /// Delivers a message of another node, which it gave to [`Engine::send_to_node`].
    fn deliver_from_node(&self, _message: &[u8]) {}
    /// Delivers a command of the server API.
    fn deliver_control(&self, control: &Control);
    /// How much of a channel's history is kept; `None` if it has no history.
    fn retention(&self, channel: &str) -> Option<Retention>;
    /// The most bytes that a channel's subscribers can be sent at once. An engine that has missed more reports the history as lost, so that
    /// those with a position recover it, each at its pace, and delivers it in parts for those without one.
    fn catch_up_len_max(&self, _channel: &str) -> usize {
        1 << 20
    }
    /// Whether a channel has subscribers without a position. Otherwise nothing is delivered in parts: those that have recovered would wait
    /// for what follows until all parts were read.
    fn has_unpositioned(&self, _channel: &str) -> bool {
        true
    }
}

/// How much an engine reads at once of what it has missed in a channel.
#[cfg(any(feature = "nats", feature = "redis"))]
struct CatchUp {
    count_max: usize,
    len_max: usize,
}

#[cfg(any(feature = "nats", feature = "redis"))]
impl CatchUp {
    fn new(delivery: &dyn Delivery, channel: &str) -> Self {
        let len_max = delivery.catch_up_len_max(channel);
        // A short publication takes several times its length in a queue.
        Self { count_max: (len_max / 1_024).max(1), len_max: len_max / 2 }
    }
}

/// The outcome for publications that an engine missed in a channel and has read from its history.
#[cfg(any(feature = "nats", feature = "redis"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CaughtUp {
    /// It is delivered, and nothing is missing then.
    Whole,
    /// It is delivered to those without a position, and there is more. Those with one recover.
    Part,
    /// There is more, and all have a position: they recover, and nothing is delivered.
    Skipped,
    /// The history no longer contains all that was missed: those with a position recover, and nothing is delivered.
    Lost,
}

#[cfg(any(feature = "nats", feature = "redis"))]
impl CaughtUp {
    /// Decides about the publications that were read, drops them if they are not delivered, and reports the history as lost if subscribers
    /// are to recover it. `is_in_parts`: it was, for the parts before.
    async fn decide(
        delivery: &dyn Delivery,
        channel: &str,
        is_lost: bool,
        has_more: bool,
        is_in_parts: bool,
        publications: &mut Vec<Arc<Publication>>,
    ) -> Self {
        let decided = match (is_lost, has_more) {
            (true, _) => Self::Lost,
            (false, false) => Self::Whole,
            (false, true) if delivery.has_unpositioned(channel) => Self::Part,
            (false, true) => Self::Skipped,
        };
        if matches!(decided, Self::Lost | Self::Skipped) {
            charge(budget::of_publications(&std::mem::take(publications))).await;
        }
        if decided != Self::Whole && !(decided == Self::Part && is_in_parts) {
            delivery.deliver_history_lost(channel);
        }
        decided
    }
}

/// The pause between two parts of what an engine has missed: subscribers are written to meanwhile.
#[cfg(any(feature = "nats", feature = "redis"))]
const CATCH_UP_PAUSE: Duration = Duration::from_millis(20);

/// The number of publications that an engine delivers in one turn, of those that it has missed.
#[cfg(any(feature = "nats", feature = "redis"))]
const DELIVERIES_PER_TURN: usize = 64;

/// The rest of the delivery of a publication that is queued: it is forwarded to the subscribers, and a subscriber that missed one before
/// is unsubscribed from the engine. Dropping this does it as well.
#[derive(Default)]
#[must_use = "it calls the engine when it is dropped: keep it until no history is locked"]
pub struct PendingDelivery(Option<Box<dyn FnOnce() + Send>>);

impl PendingDelivery {
    /// A delivery that `rest` finishes. Without one, [`default`](Self::default) is a delivery that is finished.
    pub fn new(rest: impl FnOnce() + Send + 'static) -> Self {
        Self(Some(Box::new(rest)))
    }

    /// Finishes the delivery. No history may be locked.
    pub fn finish(self) {}
}

impl Drop for PendingDelivery {
    fn drop(&mut self) {
        if let Some(rest) = self.0.take() {
            rest();
        }
    }
}

impl fmt::Debug for PendingDelivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingDelivery").field("is_finished", &self.0.is_none()).finish()
    }
}

/// Where histories and presence are kept, and how publications reach the other nodes.
pub trait Engine: Send + Sync + 'static {
    /// The engine's name, for logs.
    fn name(&self) -> &'static str;

    /// Starts the engine. Called once, before the other methods, within the runtime of the hub. Those who use the hub meanwhile wait: this
    /// must not use it, but for `delivery`.
    fn start(&self, delivery: Weak<dyn Delivery>);

    /// Adds a publication to the history, if there is a `retention`, and delivers it on every node. Returns its
    /// position, with offset 0 if there is no history.
    ///
    /// A position is a promise: the publication is stored, and survives what the engine says it survives. After an error
    /// it may have been published or not. A second call with the same key, if that is not empty, then publishes it at
    /// most once, for at least [`IDEMPOTENCY_TTL`]. Without a `retention`, keys are ignored. Those that begin with NUL belong to publications
    /// of clients: an engine that remembers a limited number of keys remembers as many of the others.
    fn publish<'a>(
        &'a self,
        channel: &'a str,
        publication: Publication,
        retention: Option<Retention>,
        idempotency_key: &'a str,
    ) -> EngineFuture<'a, Position>;

    /// Whether [`publish`](Self::publish) delivers to this node's subscribers before it first waits.
    fn is_immediate(&self, _retention: Option<&Retention>) -> bool {
        false
    }

    /// Announces a client that joined or left, on every node.
    fn publish_membership<'a>(&'a self, channel: &'a str, membership: Membership) -> EngineFuture<'a, ()>;

    /// Subscribes this node to a channel for one of its clients. Publications after this returns are delivered.
    ///
    /// # Cancel safety
    /// A subscription that is given up is undone.
    fn subscribe<'a>(&'a self, channel: &'a str) -> EngineFuture<'a, ()>;

    /// Ends one subscription of this node's clients.
    fn unsubscribe(&self, channel: &str);

    /// Returns part of a history.
    fn history<'a>(
        &'a self,
        channel: &'a str,
        query: &'a HistoryQuery,
        retention: Retention,
    ) -> EngineFuture<'a, History>;

    /// Returns the publications that a client at `since` missed; without `since`, only the position. If there are several, and they have
    /// more than `len_max` bytes, it has not recovered; no more than that and one further is read.
    fn recover<'a>(
        &'a self,
        channel: &'a str,
        since: Option<&'a Position>,
        mode: RecoveryMode,
        retention: Retention,
        len_max: usize,
    ) -> EngineFuture<'a, Recovery>;

    /// Removes a history. Its subscribers start again with a new epoch.
    fn remove_history<'a>(&'a self, channel: &'a str) -> EngineFuture<'a, ()>;

    /// Adds a client of this node to a channel's presence. Called again every [`PRESENCE_REFRESH`] while the client is
    /// subscribed.
    fn add_presence<'a>(&'a self, channel: &'a str, info: &'a ClientInfo) -> EngineFuture<'a, ()>;

    /// Removes a client from a channel's presence.
    fn remove_presence<'a>(&'a self, channel: &'a str, client: &'a str) -> EngineFuture<'a, ()>;

    /// Returns the clients of a channel, on every node; `None` if their ids and infos have more than `len_max` bytes. No more than that and
    /// one further is read at once.
    fn presence<'a>(
        &'a self,
        channel: &'a str,
        len_max: usize,
    ) -> EngineFuture<'a, Option<Vec<Arc<ClientInfo>>>>;

    /// Counts the clients and the users of a channel, on every node.
    fn presence_stats<'a>(&'a self, channel: &'a str) -> EngineFuture<'a, PresenceStatsResult> {
        Box::pin(async move { Ok(count(&self.presence(channel, usize::MAX).await?.unwrap_or_default())) })
    }

    /// Executes a command of the server API on every node. Returns when it is stored: a node that is cut off executes it when it is
    /// connected again. After an error at least this node has executed it.
    fn control(&self, control: Control) -> EngineFuture<'_, ()>;

    /// The name of this node among those that share the engine; `None` if there are no others. It has only ASCII letters, digits, `-`
    /// and `_`.
    fn node_name(&self) -> Option<&str> {
        None
    }

    /// Sends a message to another node, which receives it by [`Delivery::deliver_from_node`] or not at all.
    fn send_to_node<'a>(&'a self, _node: &'a str, _message: Vec<u8>) -> EngineFuture<'a, ()> {
        let no_nodes = EngineError::Unavailable("the engine has no other nodes".into());
        Box::pin(std::future::ready(Err(no_nodes)))
    }

    /// The names of the other nodes that are alive.
    fn peers(&self) -> Vec<String> {
        Vec::new()
    }

    /// The queue of events for the application's backend, if the engine has one.
    fn events(&self) -> Option<&dyn EventQueue> {
        None
    }

    /// How long a channel takes up room after its last publication. An engine that drops unused channels near its limit keeps nothing for
    /// longer than the publications where that room is needed.
    fn channel_ttl(&self, retention: Retention) -> Duration {
        retention.ttl
    }

    /// Drops expired publications. Called every second, but never while a previous call runs. It charges its work to its task and yields.
    fn maintain(&self) -> Maintaining<'_>;

    /// Whether publications, presence and events can be stored now.
    fn health(&self) -> EngineHealth {
        EngineHealth::default()
    }
}

/// A subscriber that an engine has counted. It is uncounted again after an error, or if the caller gives up; once it is subscribed, this
/// is forgotten.
#[cfg(any(feature = "nats", feature = "redis"))]
struct Counted<'a> {
    engine: &'a dyn Engine,
    channel: &'a str,
}

#[cfg(any(feature = "nats", feature = "redis"))]
impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.engine.unsubscribe(self.channel);
    }
}

/// The recovery without publications, and with `recovered` false, if the client has not recovered or they take more than `len_max` bytes.
/// The task is charged here for the publications that were read in vain.
pub(crate) async fn within(mut recovery: Recovery, len_max: usize) -> Recovery {
    recovery.recovered &= count_within(&recovery.publications, len_max) == recovery.publications.len();
    if !recovery.recovered {
        charge(budget::of_publications(&std::mem::take(&mut recovery.publications))).await;
    }
    recovery
}

/// The prefix, if it is one.
#[cfg(any(feature = "nats", feature = "redis"))]
fn checked_prefix(prefix: &str) -> Result<&str, EngineError> {
    crate::config::check_prefix(prefix).map_err(|error| EngineError::Refused(error.to_string()))?;
    Ok(prefix)
}

/// The room that is left for clients after this one; `None` if it does not fit.
fn room_after(room: usize, client: &ClientInfo) -> Option<usize> {
    room.checked_sub(client.client.len() + client.encoded_len())
}

/// Counts clients, and the different users among them.
fn count(clients: &[Arc<ClientInfo>]) -> PresenceStatsResult {
    let users: HashSet<&str> = clients.iter().map(|info| &*info.user).collect();
    let [num_clients, num_users] =
        [clients.len(), users.len()].map(|count| u32::try_from(count).unwrap_or(u32::MAX));
    PresenceStatsResult { num_clients, num_users }
}

/// Whether an engine can store publications, presence and events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineHealth {
    /// Why it cannot, as a text; `None` if it can.
    pub failure: Option<String>,
    /// How often storing has failed so far.
    pub failures: u64,
    /// How many messages of other nodes were dropped so far, because they arrived faster than they were delivered. Those that are in a
    /// history are read again.
    pub dropped: u64,
}

/// The interval at which presence is refreshed. An entry that has not been refreshed for three intervals is dropped.
pub const PRESENCE_REFRESH: Duration = Duration::from_secs(10);
