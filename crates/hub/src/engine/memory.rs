//! Histories and presence in the memory of one process.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use super::{Control, Delivery, Engine, EngineError, EngineFuture, Membership};
use crate::clock::Clock;
use crate::config::{HistoryConfig, RecoveryMode};
use crate::history::{History, HistoryQuery, Log, Position, Recovery, Retention};
use crate::protocol::{ClientInfo, Publication};
use crate::random::token;
use crate::shards::Shards;

/// The most publications that one recovery returns.
const RECOVER_MAX: usize = 10_000;

/// The fraction (one in this many) of channels and of bytes that is kept free.
const SPARE: usize = 8;

/// How long the position of a channel without subscribers is kept after its last publication. A client that reconnects
/// later cannot recover.
const POSITION_TTL: Duration = Duration::from_secs(24 * 3600);

/// Histories and presence in the memory of one process; there are no other nodes.
#[derive(Debug)]
pub struct MemoryEngine {
    clock: Clock,
    logs: Shards<Entry>,
    count: AtomicUsize,
    channels_max: usize,
    /// The number of bytes of all histories. `len <= len_max`.
    len: AtomicUsize,
    len_max: usize,
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
    /// Makes an engine that keeps at most `channels_max` channels with history. Near the limit, channels without
    /// subscribers that were not used for the longest time are dropped: clients that return to them cannot recover.
    #[must_use]
    pub fn new(channels_max: usize) -> Self {
        Self {
            clock: Clock::new(),
            logs: Shards::new(),
            count: AtomicUsize::new(0),
            channels_max,
            len: AtomicUsize::new(0),
            len_max: HistoryConfig::default().len_max,
            presence: Shards::new(),
            delivery: OnceLock::new(),
        }
    }

    /// Sets the maximum number of bytes of publications of all channels together: see [`HistoryConfig::len_max`].
    #[must_use]
    pub fn history_len_max(mut self, len_max: usize) -> Self {
        self.len_max = len_max;
        self
    }

    pub(super) fn clock(&self) -> Clock {
        self.clock
    }

    fn delivery(&self) -> Option<Arc<dyn Delivery>> {
        self.delivery.get()?.upgrade()
    }

    /// Restores a history that was stored elsewhere; called before the first publication.
    pub(super) fn restore(&self, channel: &str, mut log: Log) {
        self.account(0, &mut log);
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
            // Deliver while the history is locked, so that publications arrive in the order of their offsets.
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
        if let Some(log) = entry.log.take() {
            self.count.fetch_sub(1, Ordering::Relaxed);
            self.len.fetch_sub(log.len(), Ordering::Relaxed);
        }
        if entry.subscribers == 0 {
            shard.remove(channel);
        } else if let Some(delivery) = self.delivery() {
            delivery.deliver_history_lost(channel);
        }
    }

    /// Drops expired publications; `on_expired` is called with the oldest offset that is still kept, `on_forgotten` with the
    /// channels that are not kept any more.
    pub(super) fn sweep(&self, mut on_expired: impl FnMut(&str, u64), mut on_forgotten: impl FnMut(&str)) {
        let now = self.clock.now();
        let eviction = self.eviction();
        for mut shard in self.logs.each() {
            shard.retain(|channel, entry| {
                let Some(log) = &mut entry.log else { return entry.subscribers > 0 };
                let (first, len) = (log.first(), log.len());
                log.expire(now);
                log.shorten(log.len().saturating_sub(eviction.len_max));
                self.len.fetch_sub(len - log.len(), Ordering::Relaxed);
                if log.first() != first {
                    on_expired(channel, log.first());
                }
                // A history without publications can be made again when it is needed.
                let ttl = if log.position().offset == 0 { Duration::ZERO } else { POSITION_TTL };
                let is_forgotten = log.used_at() + ttl <= now
                    || eviction.forgotten_until.is_some_and(|until| log.used_at() <= until);
                if entry.subscribers == 0 && is_forgotten {
                    self.count.fetch_sub(1, Ordering::Relaxed);
                    self.len.fetch_sub(log.len(), Ordering::Relaxed);
                    on_forgotten(channel);
                    return false;
                }
                true
            });
        }
    }

    /// Accounts for the change of a history that had `len` bytes before. Over the limit, the history loses its oldest
    /// publications.
    fn account(&self, len: usize, log: &mut Log) {
        let Some(grown) = log.len().checked_sub(len) else {
            self.len.fetch_sub(len - log.len(), Ordering::Relaxed);
            return;
        };
        // A history that did not grow must not lose publications because others grew.
        if grown > 0 {
            let (len, all) = (log.len(), self.len.fetch_add(grown, Ordering::Relaxed) + grown);
            log.shorten(all.saturating_sub(self.len_max));
            self.len.fetch_sub(len - log.len(), Ordering::Relaxed);
        }
    }

    /// Chooses the histories to evict so that a part of both limits is free.
    fn eviction(&self) -> Eviction {
        let excess =
            |used: &AtomicUsize, max: usize| used.load(Ordering::Relaxed).saturating_sub(max - max / SPARE);
        let (len, count) = (excess(&self.len, self.len_max), excess(&self.count, self.channels_max));
        let mut eviction = Eviction { len_max: usize::MAX, forgotten_until: None };
        if len == 0 && count == 0 {
            return eviction;
        }
        let (mut lens, mut unused) = (Vec::new(), Vec::new());
        for shard in self.logs.each() {
            for entry in shard.values() {
                let Some(log) = &entry.log else { continue };
                lens.push(log.len());
                if entry.subscribers == 0 {
                    unused.push(log.used_at());
                }
            }
        }
        if len > 0 {
            eviction.len_max = level(lens, len);
        }
        unused.sort_unstable();
        eviction.forgotten_until =
            count.checked_sub(1).and_then(|last| unused.get(last).or(unused.last())).copied();
        tracing::warn!(bytes = len, channels = count, "histories are evicted");
        eviction
    }

    /// Calls `act` with the history of a channel, which is created if it does not exist.
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
            Some(log) => {
                let len = log.len();
                let result = act(log, now);
                self.account(len, log);
                Ok(result)
            }
            None => Err(EngineError::ChannelLimit),
        }
    }
}

/// The histories to evict.
#[derive(Clone, Copy, Debug)]
struct Eviction {
    /// Longer ones are cut to this many bytes.
    len_max: usize,
    /// Histories without subscribers that were last used at or before this time are dropped.
    forgotten_until: Option<Duration>,
}

/// The length to which the longest must be shortened so that together they lose `excess`.
fn level(mut lens: Vec<usize>, excess: usize) -> usize {
    lens.sort_unstable_by(|a, b| b.cmp(a));
    let mut sum = 0;
    for (count, len) in (1..).zip(&lens) {
        sum += len;
        let level = sum.saturating_sub(excess) / count;
        if level >= lens.get(count).copied().unwrap_or(0) {
            return level;
        }
    }
    0
}

/// A future that is ready with this result.
fn ready<'a, T: Send + 'a>(result: Result<T, EngineError>) -> EngineFuture<'a, T> {
    Box::pin(std::future::ready(result))
}

impl Engine for MemoryEngine {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn start(&self, delivery: Weak<dyn Delivery>) {
        // An engine belongs to the hub that starts it first.
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

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    const KEEP: Retention = Retention { size: 1_000, ttl: Duration::from_secs(3600) };

    fn publish(engine: &MemoryEngine, channel: &str, len: usize) -> Result<Position, EngineError> {
        let data = Bytes::from(vec![b'1'; len]);
        engine.append(channel, Publication { data, ..Publication::default() }, KEEP)
    }

    /// The publications that a channel keeps, which all are to be counted.
    fn kept(engine: &MemoryEngine, channel: &str) -> usize {
        let all: usize = engine
            .logs
            .each()
            .flat_map(|shard| {
                shard.values().filter_map(|entry| entry.log.as_ref().map(Log::len)).collect::<Vec<_>>()
            })
            .sum();
        assert_eq!(engine.len.load(Ordering::Relaxed), all);
        let read = |log: &mut Log, now| log.read(&HistoryQuery::default(), now).publications.len();
        engine.with_log(channel, read).unwrap()
    }

    #[test]
    fn histories_stay_within_their_memory() {
        let engine = MemoryEngine::new(1_000).history_len_max(1 << 20);
        for _ in 0..10 {
            publish(&engine, "small", 100).unwrap();
        }
        for number in 1..=100 {
            assert_eq!(publish(&engine, "large", 50_000).unwrap().offset, number);
            assert!(engine.len.load(Ordering::Relaxed) <= 1 << 20);
        }
        // The channel that fills the memory loses its own publications, and the largest makes room for others.
        assert_eq!((kept(&engine, "small"), kept(&engine, "large")), (10, 20));
        engine.maintain();
        assert_eq!((kept(&engine, "small"), kept(&engine, "large")), (10, 18));
        // One that is larger than all of the memory is delivered, but not kept.
        assert_eq!(publish(&engine, "huge", 1 << 20).unwrap().offset, 1);
        assert_eq!((kept(&engine, "huge"), kept(&engine, "small")), (0, 10));
        engine.forget("large");
        assert_eq!(kept(&engine, "small"), 10);
        for shard in 0..100 {
            let _ = publish(&engine, &shard.to_string(), 50_000);
        }
        engine.maintain();
        assert!(engine.len.load(Ordering::Relaxed) <= (1 << 20) / 8 * 7);
        assert_eq!(kept(&engine, "small"), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn channels_that_are_not_used_make_room_for_others() {
        let engine = MemoryEngine::new(16);
        engine.subscribe("0").await.unwrap();
        for channel in 0..16 {
            publish(&engine, &channel.to_string(), 1).unwrap();
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(publish(&engine, "new", 1), Err(EngineError::ChannelLimit));
        engine.maintain();
        publish(&engine, "new", 1).unwrap();
        // The oldest ones without a subscriber were dropped.
        let count = |channel: &str| engine.logs.lock(channel).contains_key(channel);
        assert_eq!(["0", "1", "2", "3", "15"].map(count), [true, false, false, true, true]);
    }

    #[test]
    fn the_longest_are_cut_to_one_level() {
        for (lens, excess, expected) in [
            (vec![10, 4, 2], 1, 9),
            (vec![10, 4, 2], 6, 4),
            (vec![10, 4, 2], 8, 3),
            (vec![10, 4, 2], 16, 0),
            (vec![5, 5, 5], 3, 4),
            (vec![], 1, 0),
        ] {
            assert_eq!(level(lens.clone(), excess), expected, "{lens:?} {excess}");
        }
    }
}
