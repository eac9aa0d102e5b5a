//! Several nodes through NATS: core subjects for fan-out, JetStream for histories, its key-value store for presence.
//!
//! ```text
//! publish --> stream of the retention: wlh.KEY.CHANNEL --republished by the server, with its sequence--> wl.live.KEY.CHANNEL
//! publish without history, join, leave ----------------------------------------------------------> wl.live.{p,m}.CHANNEL
//! every node follows wl.live.*.CHANNEL for each channel with local subscribers
//! ```
//!
//! An offset is a sequence of the stream. The server sends the sequence of the channel's previous publication along, so that a
//! node notices a gap and reads what is missing before it goes on. The epoch is when the stream was made.

mod history;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use async_nats::jetstream::{self, kv, stream};
use async_nats::{Client, Event, connection};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use prost::Message as _;
use tokio::sync::{Notify, OnceCell};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_stream::StreamExt as _;
use tracing::{info, warn};

use super::{
    Control, Delivery, Engine, EngineError, EngineFuture, Membership, MemoryEngine, PRESENCE_REFRESH,
};
use crate::config::RecoveryMode;
use crate::history::{History, HistoryQuery, Position, Recovery, Retention};
use crate::protocol::{ClientInfo, Join, Leave, Publication, Push};
use crate::random::token;
use crate::shards::{Shards, lock};

/// The subject on which nodes say that they are alive.
const NODES: &str = "wl.node";
/// The subject of commands of the server API.
const CONTROL: &str = "wl.control";
/// The bucket of presence.
const PRESENCE: &str = "WL_PRESENCE";

/// How often a node says that it is alive; one that did not three times is gone.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// How often a followed history is compared with its stream, in calls of [`Engine::maintain`].
const SYNC_EVERY: u64 = 10;

/// Histories and presence in NATS, shared by every node that is connected to it.
pub struct NatsEngine {
    nats: Arc<Nats>,
    name: String,
    channels: Shards<Followed>,
    presence: OnceCell<kv::Store>,
    /// The clients of this node, for as long as NATS cannot be asked.
    local: MemoryEngine,
    peers: Arc<Mutex<HashMap<String, Instant>>>,
    delivery: Arc<OnceLock<Weak<dyn Delivery>>>,
    ticks: AtomicU64,
    lost: Arc<Notify>,
}

impl std::fmt::Debug for NatsEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NatsEngine").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The connection and the streams of it.
pub(super) struct Nats {
    pub(super) client: Client,
    pub(super) jetstream: jetstream::Context,
    streams: Mutex<Streams>,
}

/// The streams that this node has used, by the number of publications and the seconds that they keep.
type Streams = HashMap<(usize, u64), Arc<OnceCell<stream::Stream>>>;

/// A channel with subscribers on this node.
struct Followed {
    subscribers: usize,
    follower: Arc<Follower>,
}

/// What follows the live publications of a channel.
#[derive(Default)]
struct Follower {
    task: OnceCell<AbortHandle>,
    /// The last publication that was delivered, and the stream that it is in.
    last: tokio::sync::Mutex<Option<(u64, Retention)>>,
    /// Compares the history with the stream.
    sync: Notify,
}

impl Drop for Follower {
    fn drop(&mut self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

/// The name of a channel as a part of a subject.
fn encoded(channel: &str) -> String {
    URL_SAFE_NO_PAD.encode(channel)
}

fn unavailable(error: impl std::fmt::Display) -> EngineError {
    EngineError::Unavailable(format!("NATS: {error}"))
}

/// The part of a subject that names how long publications are kept.
fn key(retention: Retention) -> String {
    format!("{}_{}", retention.size, retention.ttl.as_secs().max(1))
}

fn retention_of(key: &str) -> Option<Retention> {
    let (size, ttl) = key.split_once('_')?;
    Some(Retention { size: size.parse().ok()?, ttl: Duration::from_secs(ttl.parse().ok()?) })
}

impl Nats {
    pub(super) fn is_connected(&self) -> bool {
        self.client.connection_state() == connection::State::Connected
    }

    pub(super) fn subject(channel: &str, retention: Retention) -> String {
        format!("wlh.{}.{}", key(retention), encoded(channel))
    }

    /// The stream of a retention, which is made if it is not there.
    pub(super) async fn stream(&self, retention: Retention) -> Result<stream::Stream, EngineError> {
        let ttl = Duration::from_secs(retention.ttl.as_secs().max(1));
        let cell = lock(&self.streams).entry((retention.size, ttl.as_secs())).or_default().clone();
        let make = async {
            let key = key(retention);
            let config = stream::Config {
                name: format!("WL_{key}"),
                subjects: vec![format!("wlh.{key}.*")],
                max_age: ttl,
                // One more than is promised: a full history from the oldest position on is then known to be whole.
                max_messages_per_subject: i64::try_from(retention.size).unwrap_or(i64::MAX - 1) + 1,
                duplicate_window: ttl.min(Duration::from_secs(120)),
                allow_direct: true,
                republish: Some(stream::Republish {
                    source: format!("wlh.{key}.*"),
                    destination: format!("wl.live.{key}.{{{{wildcard(1)}}}}"),
                    headers_only: false,
                }),
                ..stream::Config::default()
            };
            self.jetstream.get_or_create_stream(config).await.map_err(unavailable)
        };
        cell.get_or_try_init(|| make).await.cloned()
    }
}

impl NatsEngine {
    /// Connects to a server, or to several of a cluster, named by URLs with commas between them.
    ///
    /// # Errors
    /// No server can be reached, or it runs without JetStream.
    pub async fn connect(urls: &str) -> Result<Self, EngineError> {
        let name = token();
        let lost = Arc::new(Notify::new());
        let reconnected = lost.clone();
        let options = async_nats::ConnectOptions::new()
            .name(format!("wireloom-{name}"))
            // What this node publishes without history it delivers itself.
            .no_echo()
            .request_timeout(Some(Duration::from_secs(5)))
            .event_callback(move |event| {
                match event {
                    Event::Connected => reconnected.notify_one(),
                    Event::Disconnected => {
                        warn!("the connection to NATS is lost; subscribers of this node go on")
                    }
                    other => info!(%other, "NATS"),
                }
                std::future::ready(())
            });
        let urls: Vec<_> = urls.split(',').map(str::trim).collect();
        let client = options.connect(urls).await.map_err(unavailable)?;
        let jetstream = jetstream::new(client.clone());
        jetstream.query_account().await.map_err(unavailable)?;
        Ok(Self {
            nats: Arc::new(Nats { client, jetstream, streams: Mutex::default() }),
            name,
            channels: Shards::new(),
            presence: OnceCell::new(),
            local: MemoryEngine::new(0),
            peers: Arc::default(),
            delivery: Arc::default(),
            ticks: AtomicU64::new(0),
            lost,
        })
    }

    fn delivery(&self) -> Option<Arc<dyn Delivery>> {
        self.delivery.get()?.upgrade()
    }

    async fn bucket(&self) -> Result<&kv::Store, EngineError> {
        self.presence
            .get_or_try_init(|| async {
                let config = kv::Config {
                    bucket: PRESENCE.into(),
                    history: 1,
                    max_age: 3 * PRESENCE_REFRESH,
                    storage: stream::StorageType::Memory,
                    ..kv::Config::default()
                };
                self.nats.jetstream.create_or_update_key_value(config).await.map_err(unavailable)
            })
            .await
    }

    /// Publishes on a core subject, for the other nodes. Without NATS there is nothing to wait for.
    async fn broadcast(&self, subject: String, payload: Vec<u8>) -> Result<(), EngineError> {
        if !self.nats.is_connected() {
            return Ok(());
        }
        self.nats.client.publish(subject, payload.into()).await.map_err(unavailable)
    }

    fn follower(&self, channel: &str) -> Option<Arc<Follower>> {
        self.channels.lock(channel).get(channel).map(|followed| followed.follower.clone())
    }

    async fn follow(&self, channel: &str, follower: &Arc<Follower>) -> Result<(), EngineError> {
        let start = || async {
            let subject = format!("wl.live.*.{}", encoded(channel));
            let mut messages = self.nats.client.subscribe(subject).await.map_err(unavailable)?;
            let (nats, delivery, channel) = (self.nats.clone(), self.delivery.clone(), channel.to_owned());
            let weak = Arc::downgrade(follower);
            let task = tokio::spawn(async move {
                loop {
                    let Some(follower) = weak.upgrade() else { return };
                    let message = tokio::select! {
                        message = messages.next() => message,
                        () = follower.sync.notified() => {
                            let Some(delivery) = delivery.get().and_then(Weak::upgrade) else { return };
                            catch_up(&nats, &*delivery, &channel, &follower, None).await;
                            continue;
                        }
                    };
                    let (Some(message), Some(delivery)) = (message, delivery.get().and_then(Weak::upgrade))
                    else {
                        return;
                    };
                    handle_message(&nats, &*delivery, &channel, &follower, &message).await;
                }
            });
            Ok(task.abort_handle())
        };
        follower.task.get_or_try_init(start).await.map(drop)
    }
}

/// A live message of a channel.
async fn handle_message(
    nats: &Nats,
    delivery: &dyn Delivery,
    channel: &str,
    follower: &Follower,
    message: &async_nats::Message,
) {
    match message.subject.split('.').nth(2) {
        Some("p") => {
            if let Ok(publication) = Publication::decode(&*message.payload) {
                delivery.deliver_publication(channel, "", 0, &Arc::new(publication));
            }
        }
        Some("m") => {
            if let Ok(push) = Push::decode(&*message.payload) {
                let join = push.join.and_then(|join| join.info).map(Membership::Join);
                let leave = push.leave.and_then(|leave| leave.info).map(Membership::Leave);
                if let Some(membership) = join.or(leave) {
                    delivery.deliver_membership(channel, &membership);
                }
            }
        }
        Some(key) => {
            let number = |name: &str| message.headers.as_ref()?.get(name)?.as_str().parse::<u64>().ok();
            let (Some(sequence), Some(previous), Some(retention)) = (
                number(async_nats::header::NATS_SEQUENCE.as_ref()),
                number(async_nats::header::NATS_LAST_SEQUENCE.as_ref()),
                retention_of(key),
            ) else {
                return;
            };
            let live = Live { sequence, previous, retention, payload: &message.payload };
            catch_up(nats, delivery, channel, follower, Some(live)).await;
        }
        None => {}
    }
}

/// A publication that the stream's server has sent on.
struct Live<'a> {
    sequence: u64,
    /// The sequence of the channel's publication before it; 0 when that is not kept.
    previous: u64,
    retention: Retention,
    payload: &'a [u8],
}

/// Delivers what the node has not delivered yet, in order: `live`, and whatever is missing before it.
async fn catch_up(
    nats: &Nats,
    delivery: &dyn Delivery,
    channel: &str,
    follower: &Follower,
    live: Option<Live<'_>>,
) {
    let mut last = follower.last.lock().await;
    let retention = match (&live, &*last) {
        (Some(live), _) => live.retention,
        (None, Some((_, retention))) => *retention,
        (None, None) => return,
    };
    let Ok(stream) = nats.stream(retention).await else { return };
    let epoch = history::epoch(&stream);
    let deliver = |last: &mut Option<(u64, Retention)>, sequence: u64, previous: u64, payload: &[u8]| {
        if history::is_tombstone(payload) {
            delivery.deliver_history_lost(channel);
        } else if let Ok(mut publication) = Publication::decode(payload) {
            publication.offset = sequence;
            delivery.deliver_publication(channel, &epoch, previous, &Arc::new(publication));
        }
        *last = Some((sequence, retention));
    };
    let missing = match (&live, *last) {
        (Some(live), Some((last, _))) if live.sequence <= last => return,
        (Some(live), Some((last, _))) => live.previous > last,
        (Some(_), None) => false,
        (None, _) => true,
    };
    if missing && let Some((mut at, _)) = *last {
        let subject = Nats::subject(channel, retention);
        let until = live.as_ref().map_or(u64::MAX, |live| live.sequence);
        loop {
            match history::next(&stream, &subject, at + 1).await {
                Ok(Some(message)) if message.sequence < until => {
                    deliver(&mut last, message.sequence, at, &message.payload);
                    at = message.sequence;
                }
                Ok(_) => break,
                Err(error) => {
                    warn!(channel, %error, "a gap in a history was not closed");
                    break;
                }
            }
        }
    }
    if let Some(live) = live {
        let previous = if missing {
            last.map_or(live.previous, |(last, _)| last.max(live.previous))
        } else {
            live.previous
        };
        deliver(&mut last, live.sequence, previous, live.payload);
    }
}

impl Engine for NatsEngine {
    fn name(&self) -> &'static str {
        "nats"
    }

    fn start(&self, delivery: Weak<dyn Delivery>) {
        let _ = self.delivery.set(delivery.clone());
        self.local.start(delivery.clone());
        tokio::spawn(follow_nodes(self.nats.clone(), self.name.clone(), self.peers.clone(), delivery));
    }

    fn publish<'a>(
        &'a self,
        channel: &'a str,
        publication: Publication,
        retention: Option<Retention>,
    ) -> EngineFuture<'a, Position> {
        Box::pin(async move {
            let Some(retention) = retention.filter(|_| self.nats.is_connected()) else {
                // Without NATS no offset can be given: the node's own subscribers receive it, and it cannot be recovered.
                let payload = publication.encode_to_vec();
                if let Some(delivery) = self.delivery() {
                    delivery.deliver_publication(channel, "", 0, &Arc::new(publication));
                }
                self.broadcast(format!("wl.live.p.{}", encoded(channel)), payload).await?;
                return Ok(Position::default());
            };
            let stream = self.nats.stream(retention).await?;
            let subject = Nats::subject(channel, retention);
            let payload = publication.encode_to_vec().into();
            let sent = self.nats.jetstream.publish(subject, payload).await.map_err(unavailable)?;
            let ack = sent.await.map_err(unavailable)?;
            Ok(Position { offset: ack.sequence, epoch: history::epoch(&stream) })
        })
    }

    fn publish_membership<'a>(&'a self, channel: &'a str, membership: Membership) -> EngineFuture<'a, ()> {
        Box::pin(async move {
            if let Some(delivery) = self.delivery() {
                delivery.deliver_membership(channel, &membership);
            }
            let push = match membership {
                Membership::Join(info) => Push { join: Some(Join { info: Some(info) }), ..Push::default() },
                Membership::Leave(info) => {
                    Push { leave: Some(Leave { info: Some(info) }), ..Push::default() }
                }
            };
            self.broadcast(format!("wl.live.m.{}", encoded(channel)), push.encode_to_vec()).await
        })
    }

    fn subscribe<'a>(&'a self, channel: &'a str) -> EngineFuture<'a, ()> {
        Box::pin(async move {
            let follower = {
                let mut shard = self.channels.lock(channel);
                let followed = shard
                    .entry(channel.into())
                    .or_insert_with(|| Followed { subscribers: 0, follower: Arc::default() });
                followed.subscribers += 1;
                followed.follower.clone()
            };
            let followed = self.follow(channel, &follower).await;
            if followed.is_err() {
                self.unsubscribe(channel);
            }
            followed
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
    ) -> EngineFuture<'a, Recovery> {
        Box::pin(async move {
            let recovery = history::recover(&self.nats, channel, since, mode, retention).await?;
            if let Some(follower) = self.follower(channel) {
                // From here on the node knows what it must not miss.
                follower.last.lock().await.get_or_insert((recovery.position.offset, retention));
            }
            Ok(recovery)
        })
    }

    fn remove_history<'a>(&'a self, channel: &'a str) -> EngineFuture<'a, ()> {
        Box::pin(async move {
            let Some(retention) = self.delivery().and_then(|delivery| delivery.retention(channel)) else {
                return Ok(());
            };
            let subject = Nats::subject(channel, retention);
            let sent =
                self.nats.jetstream.publish(subject, history::TOMBSTONE.into()).await.map_err(unavailable)?;
            sent.await.map_err(unavailable).map(drop)
        })
    }

    fn add_presence<'a>(&'a self, channel: &'a str, info: &'a ClientInfo) -> EngineFuture<'a, ()> {
        Box::pin(async move {
            self.local.add_presence(channel, info).await?;
            if !self.nats.is_connected() {
                return Ok(());
            }
            let key = format!("{}.{}", encoded(channel), info.client);
            self.bucket().await?.put(key, info.encode_to_vec().into()).await.map_err(unavailable).map(drop)
        })
    }

    fn remove_presence<'a>(&'a self, channel: &'a str, client: &'a str) -> EngineFuture<'a, ()> {
        Box::pin(async move {
            self.local.remove_presence(channel, client).await?;
            if !self.nats.is_connected() {
                return Ok(());
            }
            let key = format!("{}.{client}", encoded(channel));
            self.bucket().await?.purge(key).await.map_err(unavailable)
        })
    }

    fn presence<'a>(&'a self, channel: &'a str) -> EngineFuture<'a, Vec<ClientInfo>> {
        Box::pin(async move {
            if !self.nats.is_connected() {
                return self.local.presence(channel).await;
            }
            let bucket = self.bucket().await?;
            let prefix = format!("$KV.{PRESENCE}.");
            let filter = format!("{prefix}{}.*", encoded(channel));
            let mut subjects = bucket.stream.info_with_subjects(filter).await.map_err(unavailable)?;
            let mut clients = Vec::new();
            while let Some(subject) = subjects.next().await {
                let (subject, _) = subject.map_err(unavailable)?;
                let Some(key) = subject.strip_prefix(&prefix) else { continue };
                if let Some(value) = bucket.get(key).await.map_err(unavailable)?
                    && let Ok(info) = ClientInfo::decode(value)
                {
                    clients.push(info);
                }
            }
            Ok(clients)
        })
    }

    fn control(&self, control: Control) -> EngineFuture<'_, ()> {
        Box::pin(async move {
            if let Some(delivery) = self.delivery() {
                delivery.deliver_control(&control);
            }
            self.broadcast(CONTROL.into(), serde_json::to_vec(&control).unwrap_or_default()).await
        })
    }

    fn peers(&self) -> Vec<String> {
        let alive =
            |(name, seen): (&String, &Instant)| (seen.elapsed() < 3 * HEARTBEAT).then(|| name.clone());
        lock(&self.peers).iter().filter_map(alive).collect()
    }

    fn maintain(&self) {
        let reconnected = {
            let mut notified = std::pin::pin!(self.lost.notified());
            notified.as_mut().enable()
        };
        let tick = self.ticks.fetch_add(1, Ordering::Relaxed);
        if reconnected || tick.is_multiple_of(SYNC_EVERY) {
            for shard in self.channels.each() {
                shard.values().for_each(|followed| followed.follower.sync.notify_one());
            }
        }
    }
}

/// Says that this node is alive, and learns of the others and of commands of the server API.
async fn follow_nodes(
    nats: Arc<Nats>,
    name: String,
    peers: Arc<Mutex<HashMap<String, Instant>>>,
    delivery: Weak<dyn Delivery>,
) {
    let (Ok(mut nodes), Ok(mut control)) =
        (nats.client.subscribe(format!("{NODES}.*")).await, nats.client.subscribe(CONTROL).await)
    else {
        warn!("the other nodes cannot be followed");
        return;
    };
    let mut heartbeat = tokio::time::interval(HEARTBEAT);
    loop {
        tokio::select! {
            _ = heartbeat.tick() => {
                if delivery.strong_count() == 0 {
                    return;
                }
                if nats.is_connected() {
                    let _ = nats.client.publish(format!("{NODES}.{name}"), Vec::new().into()).await;
                }
                lock(&peers).retain(|_, seen| seen.elapsed() < 3 * HEARTBEAT);
            }
            Some(message) = nodes.next() => {
                if let Some(name) = message.subject.strip_prefix(NODES).and_then(|name| name.strip_prefix('.')) {
                    lock(&peers).insert(name.to_owned(), Instant::now());
                }
            }
            Some(message) = control.next() => {
                if let (Some(delivery), Ok(control)) = (delivery.upgrade(), serde_json::from_slice(&message.payload)) {
                    delivery.deliver_control(&control);
                }
            }
            else => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_channels_and_retentions_in_subjects() {
        for channel in ["a", "chat:lobby", "a.b*c>d", "grüße"] {
            assert!(encoded(channel).chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_'));
        }
        let retention = Retention { size: 10, ttl: Duration::from_secs(60) };
        assert_eq!(retention_of(&key(retention)), Some(retention));
    }
}
