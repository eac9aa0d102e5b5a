//! Several nodes through NATS: core subjects for fan-out, JetStream for histories, its key-value store for presence.
//!
//! ```text
//! publish --> stream of the namespace: P.log.nEPOCHNAMESPACE.CHANNEL --republished by NATS, with its sequence--> P.live.nEPOCHNAMESPACE.CHANNEL
//! publish without history, join, leave ------------------------------------------------------------> P.live.{p,m}.CHANNEL
//! every node follows P.live.*.CHANNEL for each channel with local subscribers; P is the prefix of the hub
//! ```
//!
//! An offset is a sequence of the stream. With each publication, the server sends the sequence of the channel's
//! previous one, so that a node notices a gap and reads the missing ones before it continues. The epoch is a name that the
//! stream gets when it is made. It is in every subject, so that nothing of one epoch is taken for that of another.
//!
//! Layers: `backlog`, `names`, `newest`, `try_cell` → `streams` → `history`, `nodes` → `events`, `follower`, `presence`.

mod backlog;
mod events;
mod follower;
mod history;
mod names;
mod newest;
mod nodes;
mod presence;
mod streams;
mod try_cell;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{self, kv};
use async_nats::{Event, ServerAddr};
use bytes::Bytes;
use prost::Message as _;
use tokio::sync::OnceCell;
use tokio::task::AbortHandle;
use tracing::{info, warn};

use self::follower::Follower;
use self::names::{Names, encoded};
use self::nodes::Announcements;
use self::streams::{Nats, epoch, subject};
use self::try_cell::TryCell;
use super::commands::{self, Receiver};
use super::peers::Peers;
use super::status::Status;
use super::{
    Control, Counted, Delivery, Engine, EngineError, EngineFuture, EngineHealth, EventQueue, Maintaining,
    Membership, MemoryEngine, within,
};
use crate::budget::{LOOKS_PER_UNIT, charge};
use crate::clock::{Clock, WarningLimit};
use crate::config::{EngineConfig, RecoveryMode};
use crate::history::{History, HistoryQuery, Position, Recovery, Retention};
use crate::protocol::{ClientInfo, Join, Leave, Publication, Push};
use crate::random::token;
use crate::shards::{Shards, lock};

/// The number of calls of [`Engine::maintain`] between two comparisons of a followed history with its stream.
const SYNC_EVERY: u64 = 10;

const NOT_CONNECTED: &str = "the connection is lost";

/// The interval of pings to NATS. After two unanswered pings, the connection is closed.
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// Histories and presence in NATS, shared by every node that is connected to it.
pub struct NatsEngine {
    nats: Arc<Nats>,
    name: String,
    channels: Shards<Followed>,
    /// Forgotten after a failure: a NATS that was restarted has lost the bucket.
    presence: TryCell<Arc<kv::Store>>,
    events: TryCell<Arc<events::Parts>>,
    lease: Mutex<Option<events::OwnLease>>,
    /// Presence of this node's clients, used while NATS cannot be reached.
    local: MemoryEngine,
    peers: Arc<Peers>,
    /// Moved into the task that follows them.
    announcements: Mutex<Option<Announcements>>,
    receiver: Arc<Receiver>,
    ticks: AtomicU64,
    /// Of publications that are stored.
    stored: Status,
    /// Of the entries of presence.
    present: Status,
    /// Of what is open, and of the queue of events.
    reported: Status,
    /// The connection at the last maintenance.
    connection: AtomicU64,
}

impl std::fmt::Debug for NatsEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NatsEngine").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A channel with subscribers on this node. Dropping it ends the subscription to NATS.
struct Followed {
    subscribers: usize,
    follower: Arc<Follower>,
    task: Arc<OnceCell<AbortHandle>>,
}

impl Followed {
    fn new(channel: &str) -> Self {
        Self { subscribers: 0, follower: Arc::new(Follower::new(channel)), task: Arc::default() }
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

fn unavailable(error: impl std::fmt::Display) -> EngineError {
    EngineError::Unavailable(format!("NATS: {error}"))
}

/// A URL that cannot be used.
fn refused(error: impl std::fmt::Display) -> EngineError {
    EngineError::Refused(format!("NATS: {error}"))
}

/// The user and the password of a URL, or a token.
fn credentials(url: &ServerAddr) -> Option<(String, Option<String>)> {
    let decoded = |text| percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
    Some((decoded(url.username()?), url.password().map(decoded)))
}

/// The URL without them: async-nats logs the URL of each attempt to connect.
fn without_credentials(url: ServerAddr) -> std::io::Result<ServerAddr> {
    let mut url = url.into_inner();
    // They fail for URLs without a host, which are no addresses of servers.
    let _ = url.set_password(None);
    let _ = url.set_username("");
    ServerAddr::from_url(url)
}

impl NatsEngine {
    /// Connects to a server, or to the servers of a cluster. `urls` are separated by commas. The credentials of the first that has some,
    /// `nats://USER:PASSWORD@HOST` or `nats://TOKEN@HOST`, are those of the node.
    ///
    /// # Errors
    /// A URL cannot be read, no server can be reached, or it runs without JetStream.
    pub async fn connect(urls: &str) -> Result<Self, EngineError> {
        Self::connect_with_prefix(urls, &EngineConfig::default().prefix).await
    }

    /// Connects as [`connect`](Self::connect) does. The names of subjects, streams and buckets begin with the prefix: see
    /// [`EngineConfig::prefix`].
    ///
    /// # Errors
    /// As for [`connect`](Self::connect), and the prefix has other characters than it may.
    pub async fn connect_with_prefix(urls: &str, prefix: &str) -> Result<Self, EngineError> {
        let names = Names::new(super::checked_prefix(prefix)?);
        let name = token();
        let (clock, warnings) = (Clock::new(), WarningLimit::default());
        let options = async_nats::ConnectOptions::new()
            .name(format!("wireloom-{name}"))
            // Publications without history are delivered to the node's own subscribers directly.
            .no_echo()
            .ping_interval(PING_INTERVAL)
            .request_timeout(Some(Duration::from_secs(5)))
            .event_callback(move |event| {
                match event {
                    Event::Connected => info!("connected to NATS"),
                    Event::Disconnected => {
                        warn!("the connection to NATS is lost; subscribers of this node go on")
                    }
                    // Each attempt to connect again fails with one.
                    other if warnings.may_warn(clock.now()) => info!("NATS: {other}"),
                    _ => {}
                }
                std::future::ready(())
            });
        let urls = urls.split(',').map(|url| url.trim().parse::<ServerAddr>());
        let urls = urls.collect::<Result<Vec<_>, _>>().map_err(refused)?;
        // async-nats does not send those of URLs.
        let options = match urls.iter().find_map(credentials) {
            Some((user, Some(password))) => options.user_and_password(user, password),
            Some((token, None)) => options.token(token),
            None => options,
        };
        let urls = urls.into_iter().map(without_credentials).collect::<Result<Vec<_>, _>>();
        let client = options.connect(urls.map_err(refused)?).await.map_err(unavailable)?;
        let jetstream = jetstream::new(client.clone());
        jetstream.query_account().await.map_err(|error| {
            unavailable(format!("JetStream does not answer; is it on (nats-server -js)? {error}"))
        })?;
        let nats = Arc::new(Nats::new(names, client, jetstream));
        let announcements = Announcements::subscribe(&nats, &name).await?;
        let engine = Self {
            nats,
            name,
            channels: Shards::new(),
            presence: Default::default(),
            events: TryCell::default(),
            lease: Mutex::default(),
            local: MemoryEngine::new(0),
            peers: Arc::default(),
            announcements: Mutex::new(Some(announcements)),
            receiver: Arc::default(),
            ticks: AtomicU64::new(0),
            stored: Status::default(),
            present: Status::default(),
            reported: Status::default(),
            connection: AtomicU64::default(),
        };
        commands::follow(&engine).await?;
        Ok(engine)
    }

    async fn bucket(&self) -> Result<Arc<kv::Store>, EngineError> {
        self.presence.get_or_make(async { presence::bucket(&self.nats).await.map(Arc::new) }).await
    }

    /// The result of an operation on a bucket. After an error the next one makes the bucket again if it is lost.
    fn checked<T>(&self, used: &Arc<kv::Store>, result: Result<T, EngineError>) -> Result<T, EngineError> {
        if result.is_err() {
            self.presence.forget_if(|bucket| Arc::ptr_eq(bucket, used));
        }
        result
    }

    /// Adds a message to the stream of a channel. One with a key that the stream remembers is not added again.
    async fn append(
        &self,
        channel: &str,
        retention: Retention,
        payload: Bytes,
        key: &str,
    ) -> Result<Position, EngineError> {
        self.stored.checked(self.try_append(channel, retention, payload, key).await)
    }

    async fn try_append(
        &self,
        channel: &str,
        retention: Retention,
        payload: Bytes,
        key: &str,
    ) -> Result<Position, EngineError> {
        // The client would keep it until the connection is back, and send it after this has failed.
        if !self.nats.is_connected() {
            return Err(unavailable(NOT_CONNECTED));
        }
        let mut is_retry = false;
        loop {
            let stream = self.nats.stream(channel, retention).await?;
            let mut message = PublishMessage::build().payload(payload.clone());
            if !key.is_empty() {
                message = message.message_id(format!("{}.{}", encoded(channel), encoded(key)));
            }
            let subject = subject(stream.cached_info(), channel);
            let sent = self.nats.jetstream.send_publish(subject, message).await;
            let sent = sent.map_err(|error| match error.kind() {
                PublishErrorKind::MaxPayloadExceeded => EngineError::TooLong,
                _ => unavailable(error),
            })?;
            match sent.await {
                Ok(ack) => {
                    return Ok(Position { offset: ack.sequence, epoch: epoch(stream.cached_info()) });
                }
                // The server was restarted without its data, or the stream was deleted: nothing was published, so
                // retry.
                Err(error) if error.kind() == PublishErrorKind::StreamNotFound && !is_retry => {
                    is_retry = true;
                    self.nats.forget_streams();
                }
                Err(error) => return Err(unavailable(error)),
            }
        }
    }

    /// Publishes on a core subject for the other nodes. Without a connection to NATS it does nothing.
    async fn broadcast(&self, subject: String, payload: Vec<u8>) -> Result<(), EngineError> {
        if !self.nats.is_connected() {
            return Ok(());
        }
        self.nats.client.publish(subject, payload.into()).await.map_err(|error| match error.kind() {
            async_nats::client::PublishErrorKind::MaxPayloadExceeded => EngineError::TooLong,
            _ => unavailable(error),
        })
    }

    fn follower(&self, channel: &str) -> Option<Arc<Follower>> {
        self.channels.lock(channel).get(channel).map(|followed| followed.follower.clone())
    }

    /// Subscribes to the live messages of a channel, if this node has not done so yet.
    async fn follow(
        &self,
        channel: &str,
        follower: &Arc<Follower>,
        task: &OnceCell<AbortHandle>,
    ) -> Result<(), EngineError> {
        let start = || async {
            let subject = self.nats.names.live("*", &encoded(channel));
            let messages = self.nats.client.subscribe(subject).await.map_err(unavailable)?;
            self.nats.confirm_subscriptions().await?;
            let receiver: Arc<dyn Delivery> = self.receiver.clone();
            let following = follower.clone().run(self.nats.clone(), Arc::downgrade(&receiver), messages);
            Ok(tokio::spawn(following).abort_handle())
        };
        let task = task.get_or_try_init(start).await?;
        // The last subscriber may have left meanwhile.
        if !self.follower(channel).is_some_and(|current| Arc::ptr_eq(&current, follower)) {
            task.abort();
        }
        Ok(())
    }
}

impl Engine for NatsEngine {
    fn name(&self) -> &'static str {
        "nats"
    }

    fn start(&self, delivery: Weak<dyn Delivery>) {
        self.receiver.set_hub(delivery.clone());
        self.local.start(delivery.clone());
        if let Some(announcements) = lock(&self.announcements).take() {
            let (nats, name, peers) = (self.nats.clone(), self.name.clone(), self.peers.clone());
            tokio::spawn(announcements.follow(nats, name, peers, delivery));
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
            if let Some(retention) = retention {
                return self
                    .append(channel, retention, publication.encode_to_vec().into(), idempotency_key)
                    .await;
            }
            // Without NATS, only this node's subscribers receive it.
            let payload = publication.encode_to_vec();
            self.receiver.deliver_publication(channel, "", 0, &Arc::new(publication)).finish();
            self.broadcast(self.nats.names.live("p", &encoded(channel)), payload).await?;
            Ok(Position::default())
        })
    }

    fn is_immediate(&self, retention: Option<&Retention>) -> bool {
        retention.is_none()
    }

    fn publish_membership<'a>(&'a self, channel: &'a str, membership: Membership) -> EngineFuture<'a, ()> {
        Box::pin(async move {
            self.receiver.deliver_membership(channel, &membership);
            let push = match membership {
                Membership::Join(info) => Push { join: Some(Join { info: Some(info) }), ..Push::default() },
                Membership::Leave(info) => {
                    Push { leave: Some(Leave { info: Some(info) }), ..Push::default() }
                }
            };
            self.broadcast(self.nats.names.live("m", &encoded(channel)), push.encode_to_vec()).await
        })
    }

    fn subscribe<'a>(&'a self, channel: &'a str) -> EngineFuture<'a, ()> {
        Box::pin(async move {
            let (follower, task) = {
                let mut shard = self.channels.lock(channel);
                let followed = shard.entry(channel.into()).or_insert_with(|| Followed::new(channel));
                followed.subscribers += 1;
                (followed.follower.clone(), followed.task.clone())
            };
            let counted = Counted { engine: self, channel };
            self.follow(channel, &follower, &task).await?;
            std::mem::forget(counted);
            Ok(())
        })
    }

    fn unsubscribe(&self, channel: &str) {
        let mut shard = self.channels.lock(channel);
        let Some(followed) = shard.get_mut(channel) else { return };
        followed.subscribers = followed.subscribers.saturating_sub(1);
        if followed.subscribers == 0 {
            shard.remove(channel);
        }
    }

    fn history<'a>(
        &'a self,
        channel: &'a str,
        query: &'a HistoryQuery,
        retention: Retention,
    ) -> EngineFuture<'a, History> {
        Box::pin(history::read(&self.nats, channel, query, retention))
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
            // Before the history is read: what is missed on a later connection is not in it.
            let connection = self.nats.connection();
            let recovery = history::recover(&self.nats, channel, since, mode, retention, len_max).await?;
            if let Some(follower) = self.follower(channel) {
                follower.follow_from(&recovery.position, connection).await;
            }
            Ok(within(recovery, len_max).await)
        })
    }

    fn remove_history<'a>(&'a self, channel: &'a str) -> EngineFuture<'a, ()> {
        Box::pin(async move {
            let Some(retention) = self.receiver.retention(channel) else { return Ok(()) };
            let tombstone = self.append(channel, retention, history::TOMBSTONE.into(), "").await?;
            let stream = self.nats.stream(channel, retention).await?;
            history::purge(&stream, &subject(stream.cached_info(), channel), tombstone.offset).await
        })
    }

    fn add_presence<'a>(&'a self, channel: &'a str, info: &'a ClientInfo) -> EngineFuture<'a, ()> {
        Box::pin(async move {
            self.local.add_presence(channel, info).await?;
            if !self.nats.is_connected() {
                return Ok(());
            }
            let put = async {
                let key = presence::key(channel, &info.client);
                let bucket = self.bucket().await?;
                let put = bucket.put(key, info.encode_to_vec().into()).await;
                self.checked(&bucket, put.map_err(unavailable)).map(drop)
            };
            self.present.checked(put.await)
        })
    }

    fn remove_presence<'a>(&'a self, channel: &'a str, client: &'a str) -> EngineFuture<'a, ()> {
        Box::pin(async move {
            self.local.remove_presence(channel, client).await?;
            if !self.nats.is_connected() {
                return Ok(());
            }
            let bucket = self.bucket().await?;
            let purged = bucket.purge(presence::key(channel, client)).await;
            self.checked(&bucket, purged.map_err(unavailable))
        })
    }

    fn presence<'a>(
        &'a self,
        channel: &'a str,
        len_max: usize,
    ) -> EngineFuture<'a, Option<Vec<Arc<ClientInfo>>>> {
        Box::pin(async move {
            if !self.nats.is_connected() {
                return self.local.presence(channel, len_max).await;
            }
            let bucket = self.bucket().await?;
            self.checked(&bucket, presence::list(&self.nats, &bucket, channel, len_max).await)
        })
    }

    fn control(&self, control: Control) -> EngineFuture<'_, ()> {
        Box::pin(async move { commands::publish(self, &self.receiver, &control).await })
    }

    fn node_name(&self) -> Option<&str> {
        Some(&self.name)
    }

    fn send_to_node<'a>(&'a self, node: &'a str, message: Vec<u8>) -> EngineFuture<'a, ()> {
        Box::pin(async move {
            if !self.nats.is_connected() {
                return Err(unavailable(NOT_CONNECTED));
            }
            self.nats.client.publish(self.nats.names.inbox(node), message.into()).await.map_err(unavailable)
        })
    }

    fn peers(&self) -> Vec<String> {
        self.peers.names()
    }

    fn events(&self) -> Option<&dyn EventQueue> {
        Some(self)
    }

    fn channel_ttl(&self, retention: Retention) -> Duration {
        retention.position_ttl
    }

    fn health(&self) -> EngineHealth {
        let mut health = EngineHealth::default();
        health.failure = (!self.nats.is_connected()).then(|| format!("NATS: {NOT_CONNECTED}"));
        for status in [&self.stored, &self.present, &self.reported] {
            let EngineHealth { failure, failures, .. } = status.recent_health();
            health.failure = health.failure.or(failure);
            health.failures += failures;
        }
        health.dropped = self.nats.backlogs.dropped();
        health
    }

    fn maintain(&self) -> Maintaining<'_> {
        Box::pin(async {
            let connection = self.nats.connection();
            let reconnected = self.connection.swap(connection, Ordering::Relaxed) != connection;
            let tick = self.ticks.fetch_add(1, Ordering::Relaxed);
            if reconnected {
                self.presence.forget();
            }
            if reconnected || tick.is_multiple_of(SYNC_EVERY) {
                self.nats.forget_streams();
                let followers = self.channels.each().map(|shard| {
                    shard.values().map(|followed| followed.follower.clone()).collect::<Vec<_>>()
                });
                for followers in followers {
                    followers.iter().for_each(|follower| follower.sync.notify_one());
                    charge(followers.len() / LOOKS_PER_UNIT).await;
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_without_credentials() {
        for url in ["nats://user:secret@127.0.0.1:4222", "tls://secret@example.com", "127.0.0.1:4222"] {
            let address = without_credentials(url.parse().unwrap()).unwrap();
            assert!(
                credentials(&address).is_none() && !format!("{address:?}").contains("secret"),
                "{address:?}"
            );
        }
    }
}
