//! Several nodes through Redis or Valkey: streams for histories, PUB/SUB for fan-out, a hash for presence.
//!
//! ```text
//! publish --> script: stream P:{=CHANNEL}:s, position P:{=CHANNEL}:m, PUBLISH P:c:{=CHANNEL} --> every node with subscribers
//! P is the prefix of the hub
//! ```
//!
//! One script stores a publication and announces it, so that the order of announcements is that of offsets. Offsets of a
//! channel are consecutive. A node that finds one missing, or that was disconnected, reads the stream.
//!
//! In a cluster the announcements of a channel are sharded (SPUBLISH): they reach the server that has its history, and no other.
//!
//! Redis may lose what it has acknowledged: when it is restarted without a log that is synced at every write, and when a
//! replica takes over. So a history belongs to one run of the server. Another run begins a new epoch for each channel, and
//! clients learn that they cannot recover.
//!
//! Layers: `names` → `connection` → `live` + `script` → `events`.

mod connection;
mod events;
mod live;
mod names;
mod script;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use prost::Message as _;

use self::connection::Connection;
use self::live::Live;
use self::names::Names;
use self::script::{Part, Read, Reading};
use super::commands::{self, Receiver};
use super::status::Status;
use super::{
    Control, Counted, Delivery, Engine, EngineError, EngineFuture, EngineHealth, EventQueue, Maintaining,
    Membership, PRESENCE_REFRESH, within,
};
use crate::config::{EngineConfig, RecoveryMode};
use crate::history::{History, HistoryQuery, Position, Recovery, Retention, count_within};
use crate::protocol::{ClientInfo, Join, Leave, Publication, Push};
use crate::random::token;

/// The number of calls of [`Engine::maintain`] between two comparisons of a followed history with its stream.
const SYNC_EVERY: u64 = 10;

/// The maximum number of publications that one command reads.
const READ_MAX: usize = 10_000;

/// Histories and presence in Redis, shared by every node that is connected to it.
pub struct RedisEngine {
    connection: Arc<Connection>,
    live: Arc<Live>,
    name: String,
    ticks: AtomicU64,
    receiver: Arc<Receiver>,
    events: events::Events,
    /// Of publications that are stored, which a server may refuse that executes other commands.
    stored: Status,
    /// Of the entries of presence.
    present: Status,
}

impl std::fmt::Debug for RedisEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisEngine").field("name", &self.name).finish_non_exhaustive()
    }
}

pub(super) fn unavailable(error: impl std::fmt::Display) -> EngineError {
    EngineError::Unavailable(format!("Redis: {error}"))
}

pub(super) fn refused(error: impl std::fmt::Display) -> EngineError {
    EngineError::Refused(format!("Redis: {error}"))
}

impl RedisEngine {
    /// Connects to a server, `redis://HOST:PORT`; to the master that sentinels name, `redis+sentinel://HOST:PORT,HOST:PORT/MASTER`; or
    /// to a cluster, of which some nodes are named, `redis+cluster://HOST:PORT,HOST:PORT`. The server is Redis 7.0 or later, or Valkey.
    ///
    /// `rediss://` and `rediss+cluster://` use TLS; `?ca=FILE` names the root certificate in PEM, if it is not one of the platform's.
    ///
    /// # Errors
    /// The URL cannot be read, or the server cannot be reached.
    pub async fn connect(url: &str) -> Result<Self, EngineError> {
        Self::connect_with_prefix(url, &EngineConfig::default().prefix).await
    }

    /// Connects as [`connect`](Self::connect) does. The names of keys and of channels begin with the prefix: see [`EngineConfig::prefix`].
    ///
    /// # Errors
    /// As for [`connect`](Self::connect), and the prefix has other characters than it may.
    pub async fn connect_with_prefix(url: &str, prefix: &str) -> Result<Self, EngineError> {
        let names = Names::new(super::checked_prefix(prefix)?);
        let connection = Arc::new(Connection::new(url, names)?);
        let name = token();
        let live = Arc::new(Live::new(connection.clone(), name.clone()));
        live.connect().await?;
        let (events, receiver, stored, present) = Default::default();
        let ticks = AtomicU64::new(0);
        let engine = Self { connection, live, name, ticks, receiver, events, stored, present };
        commands::follow(&engine).await?;
        Ok(engine)
    }
}

impl Engine for RedisEngine {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn start(&self, delivery: Weak<dyn Delivery>) {
        if self.receiver.set_hub(delivery) {
            let receiver: Arc<dyn Delivery> = self.receiver.clone();
            tokio::spawn(self.live.clone().run(Arc::downgrade(&receiver)));
        }
    }

    fn publish<'a>(
        &'a self,
        channel: &'a str,
        publication: Publication,
        retention: Option<Retention>,
        idempotency_key: &'a str,
    ) -> EngineFuture<'a, Position> {
        Box::pin(async move {
            let payload = publication.encode_to_vec();
            match retention {
                Some(retention) => {
                    let stored =
                        script::publish(&self.connection, channel, &payload, retention, idempotency_key);
                    self.stored.checked(stored.await)
                }
                None => {
                    self.live.announce(channel, live::EPHEMERAL, &payload).await?;
                    Ok(Position::default())
                }
            }
        })
    }

    fn publish_membership<'a>(&'a self, channel: &'a str, membership: Membership) -> EngineFuture<'a, ()> {
        Box::pin(async move {
            let push = match membership {
                Membership::Join(info) => Push { join: Some(Join { info: Some(info) }), ..Push::default() },
                Membership::Leave(info) => {
                    Push { leave: Some(Leave { info: Some(info) }), ..Push::default() }
                }
            };
            self.live.announce(channel, live::MEMBERSHIP, &push.encode_to_vec()).await
        })
    }

    fn subscribe<'a>(&'a self, channel: &'a str) -> EngineFuture<'a, ()> {
        Box::pin(async move {
            self.live.count(channel);
            let counted = Counted { engine: self, channel };
            self.live.subscribe(channel).await?;
            std::mem::forget(counted);
            Ok(())
        })
    }

    fn unsubscribe(&self, channel: &str) {
        self.live.unsubscribe(channel);
    }

    fn history<'a>(
        &'a self,
        channel: &'a str,
        query: &'a HistoryQuery,
        retention: Retention,
    ) -> EngineFuture<'a, History> {
        Box::pin(async move {
            let since = query.since.as_ref().map(|since| since.offset);
            let limit = query.limit.unwrap_or(READ_MAX).min(READ_MAX);
            let part = match (query.reverse, since) {
                (false, since) => Part::After { since: since.unwrap_or(0), limit },
                (true, None) => Part::Before { offset: u64::MAX, limit },
                (true, Some(offset)) => Part::Before { offset, limit },
            };
            let len_max = query.len_max.unwrap_or(usize::MAX);
            let reading = Reading { channel, part, len_max, retention, is_followed: false };
            let Read { mut publications, position } = script::read(&self.connection, reading).await?;
            publications.truncate(count_within(&publications, len_max));
            Ok(History { publications, position })
        })
    }

    fn recover<'a>(
        &'a self,
        channel: &'a str,
        since: Option<&'a Position>,
        mode: RecoveryMode,
        retention: Retention,
        len_max: usize,
    ) -> EngineFuture<'a, Recovery> {
        Box::pin(async move {
            let part = match (since, mode) {
                (None, _) => Part::After { since: 0, limit: 0 },
                (Some(_), RecoveryMode::Cache) => Part::Before { offset: u64::MAX, limit: 1 },
                (Some(since), RecoveryMode::Stream) => Part::After { since: since.offset, limit: READ_MAX },
            };
            // Commands may be compared long after the start of the node.
            let is_followed = channel == commands::COMMANDS;
            let reading = Reading { channel, part, len_max, retention, is_followed };
            let read = script::read(&self.connection, reading).await?;
            self.live.follow_from(channel, &read.position);
            Ok(within(read.recovery(since, mode), len_max).await)
        })
    }

    fn remove_history<'a>(&'a self, channel: &'a str) -> EngineFuture<'a, ()> {
        Box::pin(script::remove(&self.connection, channel))
    }

    fn add_presence<'a>(&'a self, channel: &'a str, info: &'a ClientInfo) -> EngineFuture<'a, ()> {
        let ttl = 3 * PRESENCE_REFRESH;
        Box::pin(async move {
            let info_bytes = info.encode_to_vec();
            let added = script::add_presence(&self.connection, channel, &info.client, &info_bytes, ttl);
            self.present.checked(added.await)
        })
    }

    fn remove_presence<'a>(&'a self, channel: &'a str, client: &'a str) -> EngineFuture<'a, ()> {
        Box::pin(script::remove_presence(&self.connection, channel, client))
    }

    fn presence<'a>(
        &'a self,
        channel: &'a str,
        len_max: usize,
    ) -> EngineFuture<'a, Option<Vec<Arc<ClientInfo>>>> {
        Box::pin(async move {
            let infos = script::presence(&self.connection, channel, len_max).await?;
            let decoded = |info: Vec<u8>| ClientInfo::decode(&*info).ok().map(Arc::new);
            Ok(infos.map(|infos| infos.into_iter().filter_map(decoded).collect()))
        })
    }

    fn control(&self, control: Control) -> EngineFuture<'_, ()> {
        Box::pin(async move { commands::publish(self, &self.receiver, &control).await })
    }

    fn node_name(&self) -> Option<&str> {
        Some(&self.name)
    }

    fn send_to_node<'a>(&'a self, node: &'a str, message: Vec<u8>) -> EngineFuture<'a, ()> {
        Box::pin(async move { self.connection.publish(&self.connection.names.inbox(node), &message).await })
    }

    fn peers(&self) -> Vec<String> {
        self.live.peers()
    }

    fn events(&self) -> Option<&dyn EventQueue> {
        Some(self)
    }

    fn channel_ttl(&self, retention: Retention) -> Duration {
        retention.position_ttl
    }

    fn maintain(&self) -> Maintaining<'_> {
        Box::pin(async {
            if self.ticks.fetch_add(1, Ordering::Relaxed).is_multiple_of(SYNC_EVERY) {
                self.live.sync.notify_one();
            }
        })
    }

    fn health(&self) -> EngineHealth {
        let (commands, announcements) = (self.connection.health(), self.live.health());
        EngineHealth {
            failure: commands
                .failure
                .or(announcements.failure)
                .or(self.stored.recent_health().failure)
                .or(self.present.recent_health().failure),
            // The connection counts each command that fails.
            failures: commands.failures + announcements.failures,
            dropped: 0,
        }
    }
}
