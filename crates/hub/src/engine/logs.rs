//! The histories of all channels in memory, and the limits that they share. No clock: times are arguments.
//!
//! A history has one writer, which alone adds to it and drops from it. What should be dropped is decided elsewhere, and
//! a [`Decision`] names the history that it was made on: a decision about an earlier one changes nothing.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Delivery, EngineError, PendingDelivery};
use crate::budget::{LOOKS_PER_UNIT, charge};
use crate::history::{Log, Position, Retention};
use crate::protocol::Publication;
use crate::random::token;
use crate::shards::{Shards, lock};

/// The fraction (one in this many) of channels and of bytes that is kept free.
const SPARE: usize = 8;

/// The fraction (one in this many) of channels that is kept free also if histories are lost for it whose publications have not expired:
/// less than what clients leave to the server API, so that histories of clients alone evict none.
const SPARE_OF_KEPT: usize = 20;

/// The histories of all channels.
#[derive(Debug)]
pub(super) struct Logs {
    entries: Shards<Entry>,
    count: AtomicUsize,
    channels_max: usize,
    /// The number of bytes of all histories. `len <= len_max`.
    len: AtomicUsize,
    len_max: usize,
    /// The epoch of those that begin next: another one after something that was published is dropped or removed. So a position that was read before a
    /// history began is its beginning, unless there was another one in between.
    next_epoch: Mutex<String>,
}

/// The history of a channel, and how many clients follow it.
#[derive(Debug)]
struct Entry {
    log: Option<Log>,
    subscribers: usize,
}

/// The part of a history to drop, and the version of the history on which that was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// The publications before the offset `first`: they have expired, or make room for others.
    Expire {
        /// The history.
        epoch: String,
        /// The oldest offset to keep.
        first: u64,
    },
    /// A history without subscribers that nothing was published into since `top`.
    Forget {
        /// The history.
        epoch: String,
        /// The offset of its last publication.
        top: u64,
    },
    /// A history that the application removes.
    Remove {
        /// The history.
        epoch: String,
    },
}

impl Logs {
    pub(super) fn new(channels_max: usize) -> Self {
        Self {
            entries: Shards::new(),
            count: AtomicUsize::new(0),
            channels_max,
            len: AtomicUsize::new(0),
            len_max: crate::config::HistoryConfig::default().len_max,
            next_epoch: Mutex::new(token()),
        }
    }

    pub(super) fn set_len_max(&mut self, len_max: usize) {
        self.len_max = len_max;
    }

    /// Counts a subscriber of a channel.
    pub(super) fn subscribe(&self, channel: &str) {
        let mut shard = self.entries.lock(channel);
        match shard.get_mut(channel) {
            Some(entry) => entry.subscribers += 1,
            None => drop(shard.insert(channel.into(), Entry { log: None, subscribers: 1 })),
        }
    }

    /// Uncounts a subscriber of a channel. Near the limit, a history that nothing was ever published into is dropped at once: a client
    /// that subscribes to one name after the other would take the place of others.
    pub(super) fn unsubscribe(&self, channel: &str) {
        let mut shard = self.entries.lock(channel);
        if let Some(entry) = shard.get_mut(channel) {
            entry.subscribers = entry.subscribers.saturating_sub(1);
            let is_empty = entry.log.as_ref().is_some_and(|log| log.position().offset == 0);
            if entry.subscribers == 0 && is_empty && self.excess_channels() > 0 {
                entry.log = None;
                self.count.fetch_sub(1, Ordering::Relaxed);
            }
            if entry.subscribers == 0 && entry.log.is_none() {
                shard.remove(channel);
            }
        }
    }

    /// Adds a history that was stored elsewhere.
    pub(super) fn restore(&self, channel: &str, mut log: Log) {
        self.account(0, &mut log);
        let entry = Entry { log: Some(log), subscribers: 0 };
        if self.entries.lock(channel).insert(channel.into(), entry).is_none() {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sets how long the positions of restored histories are kept.
    pub(super) fn set_position_ttls(&self, ttl_of: impl Fn(&str) -> Option<Duration>) {
        for channel in self.channels() {
            let Some(ttl) = ttl_of(&channel) else { continue };
            if let Some(log) =
                self.entries.lock(&channel).get_mut(&channel).and_then(|entry| entry.log.as_mut())
            {
                log.set_position_ttl(ttl);
            }
        }
    }

    /// Reads the history of a channel. It begins now, without publications, if there is none.
    ///
    /// # Errors
    /// There are too many channels.
    pub(super) fn read<T>(
        &self,
        channel: &str,
        now: Duration,
        read: impl FnOnce(&Log) -> T,
    ) -> Result<T, EngineError> {
        self.begun(&mut self.entries.lock(channel), channel, now).map(|log| read(log))
    }

    /// The history of a channel in its shard, which begins now if there is none.
    fn begun<'a>(
        &self,
        shard: &'a mut HashMap<Arc<str>, Entry>,
        channel: &str,
        now: Duration,
    ) -> Result<&'a mut Log, EngineError> {
        if shard.get(channel).is_none_or(|entry| entry.log.is_none()) {
            if self.count.fetch_add(1, Ordering::Relaxed) >= self.channels_max {
                self.count.fetch_sub(1, Ordering::Relaxed);
                return Err(EngineError::ChannelLimit);
            }
            let entry = match shard.get_mut(channel) {
                Some(entry) => entry,
                None => shard.entry(channel.into()).or_insert(Entry { log: None, subscribers: 0 }),
            };
            entry.log = Some(self.new_log(now));
        }
        shard.get_mut(channel).and_then(|entry| entry.log.as_mut()).ok_or(EngineError::ChannelLimit)
    }

    fn new_log(&self, now: Duration) -> Log {
        Log::new(lock(&self.next_epoch).clone(), now)
    }

    /// Reads the history of a channel, or the one that would begin now.
    pub(super) fn preview<T>(&self, channel: &str, now: Duration, read: impl FnOnce(&Log) -> T) -> T {
        let shard = self.entries.lock(channel);
        match shard.get(channel).and_then(|entry| entry.log.as_ref()) {
            Some(log) => read(log),
            None => read(&self.new_log(now)),
        }
    }

    /// Reads the history of a channel, if there is one.
    pub(super) fn peek<T>(&self, channel: &str, read: impl FnOnce(&Log) -> T) -> Option<T> {
        self.entries.lock(channel).get(channel).and_then(|entry| entry.log.as_ref()).map(read)
    }

    /// The channels with a history.
    pub(super) fn channels(&self) -> Vec<Arc<str>> {
        let mut channels = Vec::new();
        for shard in self.entries.each() {
            channels
                .extend(shard.iter().filter(|(_, entry)| entry.log.is_some()).map(|(name, _)| name.clone()));
        }
        channels
    }

    /// Adds a publication with the next offset, and delivers it.
    ///
    /// # Errors
    /// There are too many channels.
    pub(super) fn append(
        &self,
        channel: &str,
        publication: Publication,
        retention: Retention,
        now: Duration,
        delivery: Option<&dyn Delivery>,
    ) -> Result<Position, EngineError> {
        let mut shard = self.entries.lock(channel);
        let log = self.begun(&mut shard, channel, now)?;
        let pending = self.append_to(log, channel, publication, retention, now, delivery);
        let position = log.position();
        drop(shard);
        pending.finish();
        Ok(position)
    }

    /// Adds a publication at `position`, where the writer has stored it, and delivers it. A history that does not end
    /// just before is replaced.
    pub(super) fn append_written(
        &self,
        channel: &str,
        position: &Position,
        publication: Publication,
        retention: Retention,
        now: Duration,
        delivery: Option<&dyn Delivery>,
    ) {
        let mut shard = self.entries.lock(channel);
        let entry = match shard.get_mut(channel) {
            Some(entry) => entry,
            None => shard.entry(channel.into()).or_insert(Entry { log: None, subscribers: 0 }),
        };
        let before = Position { offset: position.offset.saturating_sub(1), epoch: position.epoch.clone() };
        let log = match &mut entry.log {
            Some(log) if log.position() == before => log,
            other => {
                match other {
                    Some(log) => self.len.fetch_sub(log.len(), Ordering::Relaxed),
                    None => self.count.fetch_add(1, Ordering::Relaxed),
                };
                other.insert(Log::restore(before, [], now))
            }
        };
        let pending = self.append_to(log, channel, publication, retention, now, delivery);
        drop(shard);
        pending.finish();
    }

    /// Queues the publication for delivery while the history is locked, so that publications arrive in the order of their offsets.
    fn append_to(
        &self,
        log: &mut Log,
        channel: &str,
        publication: Publication,
        retention: Retention,
        now: Duration,
        delivery: Option<&dyn Delivery>,
    ) -> PendingDelivery {
        let len = log.len();
        let publication = log.append(publication, retention, now);
        self.account(len, log);
        delivery.map_or_else(PendingDelivery::default, |delivery| {
            delivery.deliver_publication(channel, log.epoch(), publication.offset - 1, &publication)
        })
    }

    /// Whether a decision is about the history as it is now.
    pub(super) fn holds(&self, channel: &str, decision: &Decision) -> bool {
        self.entries.lock(channel).get(channel).is_some_and(|entry| entry.permits(decision))
    }

    /// Drops what was decided, unless the history has changed since. Returns whether subscribers have lost it.
    pub(super) fn drop_if(&self, channel: &str, decision: &Decision) -> bool {
        let mut shard = self.entries.lock(channel);
        let Some(entry) = shard.get_mut(channel).filter(|entry| entry.permits(decision)) else {
            return false;
        };
        let is_followed = entry.subscribers > 0;
        let is_lost = self.drop_from(entry, decision);
        if is_lost && !is_followed {
            shard.remove(channel);
        }
        is_lost && is_followed
    }

    /// Drops what the writer has dropped where it stores it. Returns whether subscribers have lost it: one may have come
    /// since the writer checked.
    pub(super) fn drop_written(&self, channel: &str, decision: &Decision) -> bool {
        let mut shard = self.entries.lock(channel);
        let Some(entry) = shard.get_mut(channel).filter(|entry| entry.has_epoch(decision.epoch())) else {
            return false;
        };
        let is_followed = entry.subscribers > 0;
        let is_lost = self.drop_from(entry, decision);
        if is_lost && !is_followed {
            shard.remove(channel);
        }
        is_lost && is_followed
    }

    /// Returns whether no history is left.
    fn drop_from(&self, entry: &mut Entry, decision: &Decision) -> bool {
        let Some(log) = &mut entry.log else { return false };
        let len = log.len();
        if let Decision::Expire { first, .. } = decision {
            log.drop_before(*first);
            self.len.fetch_sub(len - log.len(), Ordering::Relaxed);
            return false;
        }
        if log.position().offset > 0 || matches!(decision, Decision::Remove { .. }) {
            *lock(&self.next_epoch) = token();
        }
        entry.log = None;
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.len.fetch_sub(len, Ordering::Relaxed);
        true
    }

    /// Decides what to drop: expired publications, histories that have not been used for a long time, and what exceeds
    /// the limits. Changes nothing.
    pub(super) async fn overdue(&self, now: Duration) -> Vec<(Arc<str>, Decision)> {
        let eviction = self.eviction(now).await;
        let mut overdue = Vec::new();
        self.visit(|shard| {
            for (channel, Entry { log, subscribers }) in shard {
                let Some(log) = log else { continue };
                let is_unused = log.position_expires_at() <= now
                    || eviction.forgotten_until.is_some_and(|until| worth(log, now) <= until);
                if *subscribers == 0 && is_unused {
                    let Position { offset: top, epoch } = log.position();
                    overdue.push((channel.clone(), Decision::Forget { epoch, top }));
                    continue;
                }
                let first = log.first_unexpired(now).max(log.first_within(eviction.len_max));
                if first > log.first() {
                    let epoch = log.epoch().to_owned();
                    overdue.push((channel.clone(), Decision::Expire { epoch, first }));
                }
            }
        })
        .await;
        overdue
    }

    /// Visits all histories, one shard after the other, in turns.
    async fn visit(&self, mut visit: impl FnMut(&HashMap<Arc<str>, Entry>)) {
        let visited = self.entries.each().map(|shard| {
            visit(&shard);
            shard.len()
        });
        for len in visited {
            charge(len / LOOKS_PER_UNIT).await;
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

    /// The channels that take the part of the limit which is kept free.
    fn excess_channels(&self) -> usize {
        excess(&self.count, self.channels_max, self.channels_max / SPARE)
    }

    /// Chooses the histories to evict so that a part of both limits is free.
    async fn eviction(&self, now: Duration) -> Eviction {
        let (len, count) = (excess(&self.len, self.len_max, self.len_max / SPARE), self.excess_channels());
        let mut eviction = Eviction { len_max: usize::MAX, forgotten_until: None };
        if len == 0 && count == 0 {
            return eviction;
        }
        let (mut lens, mut unused) = (Vec::new(), Vec::new());
        self.visit(|shard| {
            for entry in shard.values() {
                let Some(log) = &entry.log else { continue };
                lens.push(log.len());
                if entry.subscribers == 0 {
                    unused.push(worth(log, now));
                }
            }
        })
        .await;
        if len > 0 {
            eviction.len_max = level(lens, len);
        }
        let expired = unused.iter().filter(|(has_unexpired, _)| !has_unexpired).count();
        let spare_of_kept = self.channels_max.div_ceil(SPARE_OF_KEPT);
        let evicted = count.min(expired.max(excess(&self.count, self.channels_max, spare_of_kept)));
        if let Some(last) = evicted.min(unused.len()).checked_sub(1) {
            eviction.forgotten_until = Some(*unused.select_nth_unstable(last).1);
        }
        if len > 0 || eviction.forgotten_until.is_some() {
            tracing::warn!(bytes = len, channels = evicted, "histories are evicted");
        }
        eviction
    }
}

impl Decision {
    pub(super) fn epoch(&self) -> &str {
        match self {
            Self::Expire { epoch, .. } | Self::Forget { epoch, .. } | Self::Remove { epoch } => epoch,
        }
    }

    /// Whether it ends the history.
    pub(super) fn ends_history(&self) -> bool {
        !matches!(self, Self::Expire { .. })
    }
}

impl Entry {
    fn has_epoch(&self, epoch: &str) -> bool {
        self.log.as_ref().is_some_and(|log| log.epoch() == epoch)
    }

    fn permits(&self, decision: &Decision) -> bool {
        self.has_epoch(decision.epoch())
            && match decision {
                Decision::Forget { top, .. } => {
                    self.subscribers == 0
                        && self.log.as_ref().is_some_and(|log| log.position().offset == *top)
                }
                Decision::Expire { .. } | Decision::Remove { .. } => true,
            }
    }
}

/// The order of histories for eviction, lowest first: whether it has unexpired publications, then when it was last used.
type Worth = (bool, Duration);

fn worth(log: &Log, now: Duration) -> Worth {
    (log.has_unexpired(now), log.used_at())
}

/// The histories to evict.
#[derive(Clone, Copy, Debug)]
struct Eviction {
    /// Longer ones are cut to this many bytes.
    len_max: usize,
    /// Histories without subscribers that are worth this or less are dropped.
    forgotten_until: Option<Worth>,
}

/// By how much a limit is used more than it should be.
fn excess(used: &AtomicUsize, max: usize, spare: usize) -> usize {
    used.load(Ordering::Relaxed).saturating_sub(max - spare)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::POSITION_TTL;
    use crate::history::HistoryQuery;
    use bytes::Bytes;

    const KEEP: Retention =
        Retention { size: 1_000, ttl: Duration::from_secs(3600), position_ttl: POSITION_TTL };
    const NOW: Duration = Duration::from_secs(1_000_000);

    fn publish_at(logs: &Logs, channel: &str, len: usize, now: Duration) -> Result<Position, EngineError> {
        let publication = Publication { data: Bytes::from(vec![b'1'; len]), ..Publication::default() };
        logs.append(channel, publication, KEEP, now, None)
    }

    fn publish(logs: &Logs, channel: &str, len: usize) -> Result<Position, EngineError> {
        publish_at(logs, channel, len, NOW)
    }

    /// Without a runtime, a task has no turns.
    fn at_once<T>(future: impl Future<Output = T>) -> T {
        let cx = &mut std::task::Context::from_waker(std::task::Waker::noop());
        let std::task::Poll::Ready(output) = std::pin::pin!(future).poll(cx) else { panic!("it waits") };
        output
    }

    fn overdue(logs: &Logs, now: Duration) -> Vec<(Arc<str>, Decision)> {
        at_once(logs.overdue(now))
    }

    fn sweep(logs: &Logs, now: Duration) {
        for (channel, decision) in overdue(logs, now) {
            logs.drop_if(&channel, &decision);
        }
    }

    /// The publications that a channel keeps, which all are to be counted.
    fn kept(logs: &Logs, channel: &str) -> usize {
        let all: usize = logs.channels().iter().filter_map(|channel| logs.peek(channel, Log::len)).sum();
        assert_eq!(logs.len.load(Ordering::Relaxed), all);
        logs.read(channel, NOW, |log| log.read(&HistoryQuery::default(), NOW).publications.len()).unwrap()
    }

    fn limited(channels_max: usize, len_max: usize) -> Logs {
        let mut logs = Logs::new(channels_max);
        logs.set_len_max(len_max);
        logs
    }

    #[tokio::test]
    async fn a_look_at_many_histories_takes_turns() {
        let logs = limited(200_000, usize::MAX);
        for number in 0..100_000 {
            publish(&logs, &number.to_string(), 1).unwrap();
        }
        let mut looking = std::pin::pin!(logs.overdue(NOW));
        let mut turns = 0;
        let overdue = std::future::poll_fn(|cx| {
            turns += 1;
            looking.as_mut().poll(cx)
        });
        assert_eq!(overdue.await.len(), 0);
        assert!(turns > 5, "{turns}");
    }

    #[test]
    fn histories_stay_within_their_memory() {
        let logs = limited(1_000, 1 << 20);
        for _ in 0..10 {
            publish(&logs, "small", 100).unwrap();
        }
        for number in 1..=100 {
            assert_eq!(publish(&logs, "large", 50_000).unwrap().offset, number);
            assert!(logs.len.load(Ordering::Relaxed) <= 1 << 20);
        }
        // The channel that fills the memory loses its own publications, and the largest makes room for others.
        assert_eq!((kept(&logs, "small"), kept(&logs, "large")), (10, 20));
        sweep(&logs, NOW);
        assert_eq!((kept(&logs, "small"), kept(&logs, "large")), (10, 18));
        // One that is larger than all of the memory is delivered, but not kept.
        assert_eq!(publish(&logs, "huge", 1 << 20).unwrap().offset, 1);
        assert_eq!((kept(&logs, "huge"), kept(&logs, "small")), (0, 10));
        let epoch = logs.peek("large", |log| log.position().epoch).unwrap();
        logs.drop_if("large", &Decision::Remove { epoch });
        assert_eq!(kept(&logs, "small"), 10);
        for shard in 0..100 {
            let _ = publish(&logs, &shard.to_string(), 50_000);
        }
        sweep(&logs, NOW);
        assert!(logs.len.load(Ordering::Relaxed) <= (1 << 20) / 8 * 7);
        assert_eq!(kept(&logs, "small"), 10);
    }

    #[test]
    fn names_that_nothing_is_published_into_take_no_place() {
        let logs = Logs::new(16);
        logs.subscribe("kept");
        logs.read("kept", NOW, |_| ()).unwrap();
        for number in 0..100 {
            let name = number.to_string();
            logs.subscribe(&name);
            logs.read(&name, NOW, |_| ()).unwrap();
            logs.unsubscribe(&name);
        }
        assert_eq!(
            (logs.count.load(Ordering::Relaxed), at_once(logs.eviction(NOW)).forgotten_until),
            (14, None)
        );
        // The ones that are left are kept for a client that returns.
        assert!(["kept", "0", "12"].iter().all(|name| logs.peek(name, |_| ()).is_some()));
        publish(&logs, "13", 1).unwrap();
        logs.subscribe("13");
        logs.unsubscribe("13");
        assert_eq!(kept(&logs, "13"), 1);
    }

    #[test]
    fn channels_that_are_not_used_make_room_for_others() {
        let logs = Logs::new(16);
        logs.subscribe("0");
        let mut now = NOW;
        for channel in 0..16 {
            publish_at(&logs, &channel.to_string(), 1, now).unwrap();
            now += Duration::from_secs(1);
        }
        assert_eq!(publish_at(&logs, "new", 1, now), Err(EngineError::ChannelLimit));
        sweep(&logs, now);
        publish_at(&logs, "new", 1, now).unwrap();
        // The oldest ones without a subscriber were dropped.
        let is_kept = |channel: &str| logs.peek(channel, |_| ()).is_some();
        assert_eq!(["0", "1", "2", "15"].map(is_kept), [true, false, true, true]);
    }

    #[test]
    fn histories_that_have_expired_make_room_first() {
        let logs = Logs::new(20);
        publish(&logs, "old", 1).unwrap();
        let short = Retention { ttl: Duration::from_secs(60), ..KEEP };
        for number in 0..19 {
            let now = NOW + Duration::from_secs(1 + number);
            logs.append(&number.to_string(), Publication::default(), short, now, None).unwrap();
        }
        sweep(&logs, NOW + Duration::from_secs(100));
        let is_kept = |channel: &str| logs.peek(channel, |_| ()).is_some();
        assert_eq!(["old", "0", "1", "2", "18"].map(is_kept), [true, false, false, true, true]);
    }

    /// Clients leave a tenth of the channels.
    #[test]
    fn as_many_histories_as_clients_may_open_are_kept() {
        for channels_max in [1, 10, 80, 1_000] {
            let logs = Logs::new(channels_max);
            for number in 0..channels_max - channels_max.div_ceil(10) {
                publish(&logs, &number.to_string(), 1).unwrap();
            }
            assert_eq!(overdue(&logs, NOW).len(), 0, "{channels_max}");
        }
    }

    /// Whatever happens between a decision and its effect: the effect is on the history that was decided on, or on none.
    #[test]
    fn a_stale_decision_changes_nothing() {
        let logs = Logs::new(16);
        let empty = logs.read("a", NOW, Log::position).unwrap();
        let later = NOW + POSITION_TTL;
        let [(_, forget)] = &overdue(&logs, NOW)[..] else { panic!("an empty history is forgotten") };
        assert_eq!(*forget, Decision::Forget { epoch: empty.epoch.clone(), top: 0 });
        publish(&logs, "a", 1).unwrap();
        assert!(!logs.holds("a", forget), "something was published since");
        logs.drop_if("a", forget);
        assert_eq!(kept(&logs, "a"), 1);
        let [(_, forget)] = &overdue(&logs, later)[..] else { panic!("an old history is forgotten") };
        logs.subscribe("a");
        assert!(!logs.holds("a", forget), "a client has subscribed since");
        logs.unsubscribe("a");
        let remove = Decision::Remove { epoch: empty.epoch.clone() };
        let expire = Decision::Expire { epoch: empty.epoch, first: 2 };
        assert!(logs.holds("a", forget) && logs.holds("a", &remove) && logs.holds("a", &expire));
        logs.drop_if("a", &remove);
        publish(&logs, "a", 1).unwrap();
        for stale in [forget, &remove, &expire] {
            assert!(!logs.holds("a", stale), "{stale:?} is about the removed history");
            logs.drop_if("a", stale);
            logs.drop_written("a", stale);
            assert_eq!(kept(&logs, "a"), 1, "{stale:?}");
        }
    }

    #[test]
    fn positions_are_kept_as_long_as_each_retention_says() {
        let logs = Logs::new(16);
        let hours = |hours: u32| Duration::from_secs(3600) * hours;
        for (channel, keep) in [("a", 2), ("b", 4)] {
            let retention = Retention { position_ttl: hours(keep), ..KEEP };
            logs.append(channel, Publication::default(), retention, NOW, None).unwrap();
        }
        // A restored one has the default until the engine knows its namespace.
        logs.restore("c", Log::restore(Position { offset: 7, epoch: "e".into() }, [], NOW));
        let is_kept = |channel: &str| logs.peek(channel, |_| ()).is_some();
        sweep(&logs, NOW + hours(3));
        assert_eq!(["a", "b", "c"].map(is_kept), [false, true, true]);
        logs.set_position_ttls(|channel| (channel == "c").then_some(hours(720)));
        sweep(&logs, NOW + POSITION_TTL);
        assert_eq!(["a", "b", "c"].map(is_kept), [false, false, true]);
        sweep(&logs, NOW + hours(720));
        assert!(!is_kept("c"));
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
