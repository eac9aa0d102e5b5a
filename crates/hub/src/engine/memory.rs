//! Histories and presence in the memory of one process.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use super::{Control, Delivery, Engine, EngineError, EngineFuture, Membership};
use crate::clock::Clock;
use crate::config::RecoveryMode;
use crate::history::{History, HistoryQuery, Log, Position, Recovery, Retention};
use crate::protocol::{ClientInfo, Publication};
use crate::random::token;
use crate::shards::Shards;

/// The most publications that one recovery returns.
const RECOVER_MAX: usize = 10_000;

/// How long the position of a channel without subscribers outlives its last publication. A client that returns later
/// cannot recover.
const POSITION_TTL: Duration = Duration::from_secs(24 * 3600);

/// Histories and presence in the memory of one process; there are no other nodes.
#[derive(Debug)]
pub struct MemoryEngine {
    clock: Clock,
    logs: Shards<Entry>,
    count: AtomicUsize,
    channels_max: usize,
    presence: Shards<BTreeMap<String, ClientInfo>>,
    delivery: OnceLock<Weak<dyn Delivery>>,
}

/// The history of a channel, and how many clients follow it.
#[derive(Debug)]
struct Entry {
    log: Option<Log>,
    subscribers: usize,
}

impl MemoryEngine {
    /// An engine that keeps at most this many channels with history.
    #[must_use]
    pub fn new(channels_max: usize) -> Self {
        Self {
            clock: Clock::new(),
            logs: Shards::new(),
            count: AtomicUsize::new(0),
            channels_max,
            presence: Shards::new(),
            delivery: OnceLock::new(),
        }
    }

    pub(super) fn clock(&self) -> Clock {
        self.clock
    }

    fn delivery(&self) -> Option<Arc<dyn Delivery>> {
        self.delivery.get()?.upgrade()
    }

    /// The histories that were kept elsewhere, before the first publication.
    pub(super) fn restore(&self, channel: &str, log: Log) {
        let entry = Entry { log: Some(log), subscribers: 0 };
        if self.logs.lock(channel).insert(channel.into(), entry).is_none() {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The position of a channel.
    pub(super) fn position(&self, channel: &str) -> Result<Position, EngineError> {
        self.with_log(channel, |log, _| log.position())
    }

    /// Adds a publication to a history and delivers it.
    pub(super) fn append(
        &self,
        channel: &str,
        publication: Publication,
        retention: Retention,
    ) -> Result<Position, EngineError> {
        let delivery = self.delivery();
        self.with_log(channel, |log, now| {
            let publication = log.append(publication, retention, now);
            let position = log.position();
            // The lock of the history is held, so that publications are delivered in the order of their offsets.
            if let Some(delivery) = delivery {
                delivery.deliver_publication(channel, &position.epoch, position.offset - 1, &publication);
            }
            position
        })
    }

    /// Drops a history. Its subscribers start again from a new epoch.
    pub(super) fn forget(&self, channel: &str) {
        let mut shard = self.logs.lock(channel);
        let Some(entry) = shard.get_mut(channel) else { return };
        if entry.log.take().is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
        if entry.subscribers == 0 {
            shard.remove(channel);
        } else if let Some(delivery) = self.delivery() {
            delivery.deliver_history_lost(channel);
        }
    }

    /// Drops what has expired; `on_expired` is called with the oldest offset that is still kept, `on_forgotten` with the
    /// channels that are not kept any more.
    pub(super) fn sweep(&self, mut on_expired: impl FnMut(&str, u64), mut on_forgotten: impl FnMut(&str)) {
        let now = self.clock.now();
        for mut shard in self.logs.each() {
            shard.retain(|channel, entry| {
                let Some(log) = &mut entry.log else { return entry.subscribers > 0 };
                let first = log.first();
                log.expire(now);
                if log.first() != first {
                    on_expired(channel, log.first());
                }
                // A history that nothing was published into is made again when it is asked for.
                let ttl = if log.position().offset == 0 { Duration::ZERO } else { POSITION_TTL };
                if entry.subscribers == 0 && log.used_at() + ttl <= now {
                    self.count.fetch_sub(1, Ordering::Relaxed);
                    on_forgotten(channel);
                    return false;
                }
                true
            });
        }
    }

    /// Runs `act` on the history of a channel, which is made if it is not there.
    fn with_log<T>(
        &self,
        channel: &str,
        act: impl FnOnce(&mut Log, Duration) -> T,
    ) -> Result<T, EngineError> {
        let now = self.clock.now();
        let mut shard = self.logs.lock(channel);
        let entry = match shard.get_mut(channel) {
            Some(entry) => entry,
            None => shard.entry(channel.into()).or_insert(Entry { log: None, subscribers: 0 }),
        };
        if entry.log.is_none() {
            if self.count.fetch_add(1, Ordering::Relaxed) >= self.channels_max {
                self.count.fetch_sub(1, Ordering::Relaxed);
                if entry.subscribers == 0 {
                    shard.remove(channel);
                }
                return Err(EngineError::ChannelLimit);
            }
            entry.log = Some(Log::new(token(), now));
        }
        match &mut entry.log {
            Some(log) => Ok(act(log, now)),
            None => Err(EngineError::ChannelLimit),
        }
    }
}

/// A result that needs no waiting.
fn ready<'a, T: Send + 'a>(result: Result<T, EngineError>) -> EngineFuture<'a, T> {
    Box::pin(std::future::ready(result))
}

impl Engine for MemoryEngine {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn start(&self, delivery: Weak<dyn Delivery>) {
        // A second start would be a second hub on one engine; the first keeps it.
        let _ = self.delivery.set(delivery);
    }

    fn publish<'a>(
        &'a self,
        channel: &'a str,
        publication: Publication,
        retention: Option<Retention>,
    ) -> EngineFuture<'a, Position> {
        let Some(retention) = retention else {
            if let Some(delivery) = self.delivery() {
                delivery.deliver_publication(channel, "", 0, &Arc::new(publication));
            }
            return ready(Ok(Position::default()));
        };
        ready(self.append(channel, publication, retention))
    }

    fn publish_membership<'a>(&'a self, channel: &'a str, membership: Membership) -> EngineFuture<'a, ()> {
        if let Some(delivery) = self.delivery() {
            delivery.deliver_membership(channel, &membership);
        }
        ready(Ok(()))
    }

    fn subscribe<'a>(&'a self, channel: &'a str) -> EngineFuture<'a, ()> {
        let mut shard = self.logs.lock(channel);
        match shard.get_mut(channel) {
            Some(entry) => entry.subscribers += 1,
            None => drop(shard.insert(channel.into(), Entry { log: None, subscribers: 1 })),
        }
        ready(Ok(()))
    }

    fn unsubscribe(&self, channel: &str) {
        let mut shard = self.logs.lock(channel);
        if let Some(entry) = shard.get_mut(channel) {
            entry.subscribers = entry.subscribers.saturating_sub(1);
            if entry.subscribers == 0 && entry.log.is_none() {
                shard.remove(channel);
            }
        }
    }

    fn history<'a>(
        &'a self,
        channel: &'a str,
        query: &'a HistoryQuery,
        _retention: Retention,
    ) -> EngineFuture<'a, History> {
        ready(self.with_log(channel, |log, now| log.read(query, now)))
    }

    fn recover<'a>(
        &'a self,
        channel: &'a str,
        since: Option<&'a Position>,
        mode: RecoveryMode,
        _retention: Retention,
    ) -> EngineFuture<'a, Recovery> {
        ready(self.with_log(channel, |log, now| match since {
            Some(since) => log.recover(since, mode, RECOVER_MAX, now),
            None => Recovery { publications: Vec::new(), recovered: false, position: log.position() },
        }))
    }

    fn remove_history<'a>(&'a self, channel: &'a str) -> EngineFuture<'a, ()> {
        self.forget(channel);
        ready(Ok(()))
    }

    fn add_presence<'a>(&'a self, channel: &'a str, info: &'a ClientInfo) -> EngineFuture<'a, ()> {
        let mut shard = self.presence.lock(channel);
        let clients = match shard.get_mut(channel) {
            Some(clients) => clients,
            None => shard.entry(channel.into()).or_default(),
        };
        clients.insert(info.client.clone(), info.clone());
        ready(Ok(()))
    }

    fn remove_presence<'a>(&'a self, channel: &'a str, client: &'a str) -> EngineFuture<'a, ()> {
        let mut shard = self.presence.lock(channel);
        if let Some(clients) = shard.get_mut(channel) {
            clients.remove(client);
            if clients.is_empty() {
                shard.remove(channel);
            }
        }
        ready(Ok(()))
    }

    fn presence<'a>(&'a self, channel: &'a str) -> EngineFuture<'a, Vec<ClientInfo>> {
        let clients =
            self.presence.lock(channel).get(channel).map(|clients| clients.values().cloned().collect());
        ready(Ok(clients.unwrap_or_default()))
    }

    fn control(&self, control: Control) -> EngineFuture<'_, ()> {
        if let Some(delivery) = self.delivery() {
            delivery.deliver_control(&control);
        }
        ready(Ok(()))
    }

    fn maintain(&self) {
        self.sweep(|_, _| {}, |_| {});
    }
}
