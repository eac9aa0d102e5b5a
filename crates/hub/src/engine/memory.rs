//! Histories and presence in the memory of one process.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use super::event_queue::MemoryQueue;
use super::logs::{Decision, Logs};
use super::{
    Control, Delivery, Engine, EngineError, EngineFuture, EventQueue, Maintaining, Membership, room_after,
    within,
};
use crate::budget::charge;
use crate::clock::Clock;
#[cfg(doc)]
use crate::config::HistoryConfig;
use crate::config::RecoveryMode;
use crate::history::{History, HistoryQuery, Log, Position, Recovery, Retention, count_within};
use crate::protocol::{ClientInfo, PresenceStatsResult, Publication};
use crate::shards::Shards;

/// The most publications that one recovery returns.
const RECOVER_MAX: usize = 10_000;

/// Histories and presence in the memory of one process; there are no other nodes. Who holds the lock of a history is its
/// writer.
#[derive(Debug)]
pub struct MemoryEngine {
    clock: Clock,
    logs: Logs,
    presence: Shards<BTreeMap<String, Arc<ClientInfo>>>,
    delivery: OnceLock<Weak<dyn Delivery>>,
    events: MemoryQueue,
}

impl MemoryEngine {
    /// Makes an engine that keeps at most `channels_max` channels with history. Near the limit, channels without
    /// subscribers are dropped: those first whose publications have expired, and of these the ones that were not used for the longest
    /// time. Clients that return to them cannot recover.
    #[must_use]
    pub fn new(channels_max: usize) -> Self {
        Self {
            clock: Clock::new(),
            logs: Logs::new(channels_max),
            presence: Shards::new(),
            delivery: OnceLock::new(),
            events: MemoryQueue::default(),
        }
    }

    /// Sets the maximum number of bytes of publications of all channels together: see [`HistoryConfig::len_max`].
    #[must_use]
    pub fn history_len_max(mut self, len_max: usize) -> Self {
        self.logs.set_len_max(len_max);
        self
    }

    pub(super) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// The node, which has a clock of its own, logs it.
    pub(super) fn correct_clock(&self) {
        self.clock.correct();
    }

    pub(super) fn logs(&self) -> &Logs {
        &self.logs
    }

    pub(super) fn delivery(&self) -> Option<Arc<dyn Delivery>> {
        self.delivery.get()?.upgrade()
    }

    pub(super) fn deliver_history_lost(&self, channel: &str) {
        if let Some(delivery) = self.delivery() {
            delivery.deliver_history_lost(channel);
        }
    }

    /// The clients of a channel, which are not copied while they are locked; `None` if they have more than `len_max` bytes.
    fn present(&self, channel: &str, len_max: usize) -> Option<Vec<Arc<ClientInfo>>> {
        let shard = self.presence.lock(channel);
        let Some(clients) = shard.get(channel) else { return Some(Vec::new()) };
        let mut room = len_max;
        let within = clients.values().map(|client| {
            room = room_after(room, client)?;
            Some(client.clone())
        });
        within.collect()
    }

    /// Drops what was decided, unless the history has changed since.
    fn drop_if(&self, channel: &str, decision: &Decision) {
        if self.logs.drop_if(channel, decision) {
            self.deliver_history_lost(channel);
        }
    }

    /// The decision to remove the history of a channel as it is now.
    pub(super) fn removal(&self, channel: &str) -> Option<Decision> {
        let epoch = self.logs.peek(channel, |log| log.epoch().to_owned())?;
        Some(Decision::Remove { epoch })
    }
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
        if self.delivery.set(delivery).is_ok()
            && let Some(delivery) = self.delivery()
        {
            // The file of the disk engine has no such times.
            self.logs.set_position_ttls(|channel| Some(delivery.retention(channel)?.position_ttl));
        }
    }

    fn publish<'a>(
        &'a self,
        channel: &'a str,
        publication: Publication,
        retention: Option<Retention>,
        _idempotency_key: &'a str,
    ) -> EngineFuture<'a, Position> {
        let delivery = self.delivery();
        let Some(retention) = retention else {
            if let Some(delivery) = delivery {
                delivery.deliver_publication(channel, "", 0, &Arc::new(publication)).finish();
            }
            return ready(Ok(Position::default()));
        };
        ready(self.logs.append(channel, publication, retention, self.now(), delivery.as_deref()))
    }

    fn is_immediate(&self, _retention: Option<&Retention>) -> bool {
        true
    }

    fn publish_membership<'a>(&'a self, channel: &'a str, membership: Membership) -> EngineFuture<'a, ()> {
        if let Some(delivery) = self.delivery() {
            delivery.deliver_membership(channel, &membership);
        }
        ready(Ok(()))
    }

    fn subscribe<'a>(&'a self, channel: &'a str) -> EngineFuture<'a, ()> {
        self.logs.subscribe(channel);
        ready(Ok(()))
    }

    fn unsubscribe(&self, channel: &str) {
        self.logs.unsubscribe(channel);
    }

    fn history<'a>(
        &'a self,
        channel: &'a str,
        query: &'a HistoryQuery,
        _retention: Retention,
    ) -> EngineFuture<'a, History> {
        let now = self.now();
        // Reading begins no history: a client that may read could fill the memory with names.
        let mut history = self.logs.preview(channel, now, |log| log.read(query, now));
        if let Some(len_max) = query.len_max {
            history.publications.truncate(count_within(&history.publications, len_max));
        }
        ready(Ok(history))
    }

    fn recover<'a>(
        &'a self,
        channel: &'a str,
        since: Option<&'a Position>,
        mode: RecoveryMode,
        _retention: Retention,
        len_max: usize,
    ) -> EngineFuture<'a, Recovery> {
        let now = self.now();
        let read = self.logs.read(channel, now, |log: &Log| match since {
            Some(since) => log.recover(since, mode, RECOVER_MAX, now),
            None => Recovery { publications: Vec::new(), recovered: false, position: log.position() },
        });
        Box::pin(async move { Ok(within(read?, len_max).await) })
    }

    fn remove_history<'a>(&'a self, channel: &'a str) -> EngineFuture<'a, ()> {
        if let Some(removal) = self.removal(channel) {
            self.drop_if(channel, &removal);
        }
        ready(Ok(()))
    }

    fn add_presence<'a>(&'a self, channel: &'a str, info: &'a ClientInfo) -> EngineFuture<'a, ()> {
        let mut shard = self.presence.lock(channel);
        let clients = match shard.get_mut(channel) {
            Some(clients) => clients,
            None => shard.entry(channel.into()).or_default(),
        };
        clients.insert(info.client.clone(), Arc::new(info.clone()));
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

    fn presence<'a>(
        &'a self,
        channel: &'a str,
        len_max: usize,
    ) -> EngineFuture<'a, Option<Vec<Arc<ClientInfo>>>> {
        ready(Ok(self.present(channel, len_max)))
    }

    fn presence_stats<'a>(&'a self, channel: &'a str) -> EngineFuture<'a, PresenceStatsResult> {
        ready(Ok(super::count(&self.present(channel, usize::MAX).unwrap_or_default())))
    }

    fn control(&self, control: Control) -> EngineFuture<'_, ()> {
        if let Some(delivery) = self.delivery() {
            delivery.deliver_control(&control);
        }
        ready(Ok(()))
    }

    fn events(&self) -> Option<&dyn EventQueue> {
        Some(&self.events)
    }

    fn maintain(&self) -> Maintaining<'_> {
        Box::pin(async {
            self.correct_clock();
            for (channel, decision) in self.logs.overdue(self.now()).await {
                self.drop_if(&channel, &decision);
                charge(1).await;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::POSITION_TTL;
    use crate::engine::{DiskEngine, PendingDelivery};

    const KEEP: Retention =
        Retention { size: 10, ttl: Duration::from_secs(3600), position_ttl: POSITION_TTL };

    /// Subscribers that have all missed something, and own their engine, as a hub does.
    struct Behind<E>(Arc<E>);

    impl<E: Engine> Delivery for Behind<E> {
        fn deliver_publication(
            &self,
            channel: &str,
            _: &str,
            _: u64,
            _: &Arc<Publication>,
        ) -> PendingDelivery {
            let (engine, channel) = (self.0.clone(), channel.to_owned());
            PendingDelivery::new(move || {
                engine.unsubscribe(&channel);
                at_once(engine.maintain());
            })
        }
        fn deliver_membership(&self, _: &str, _: &Membership) {}
        fn deliver_history_lost(&self, _: &str) {}
        fn deliver_control(&self, _: &Control) {}
        fn retention(&self, _: &str) -> Option<Retention> {
            Some(KEEP)
        }
    }

    fn at_once(future: impl Future<Output = ()>) {
        let cx = &mut std::task::Context::from_waker(std::task::Waker::noop());
        assert!(std::pin::pin!(future).poll(cx).is_ready());
    }

    fn publish_to_those_behind(engine: impl Engine) {
        let engine = Arc::new(engine);
        let (published, publishing) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let delivery: Arc<dyn Delivery> = Arc::new(Behind(engine.clone()));
            engine.start(Arc::downgrade(&delivery));
            let publication = Publication { data: "1".into(), ..Publication::default() };
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                engine.subscribe("a").await.unwrap();
                published.send(engine.publish("a", publication, Some(KEEP), "").await).unwrap();
            });
        });
        let published = publishing.recv_timeout(Duration::from_secs(60));
        assert_eq!(published.expect("no lock is held").unwrap().offset, 1);
    }

    #[test]
    fn a_delivery_ends_subscriptions_while_no_history_is_locked() {
        publish_to_those_behind(MemoryEngine::new(10));
        let directory = tempfile::tempdir().unwrap();
        publish_to_those_behind(DiskEngine::open(directory.path(), MemoryEngine::new(10)).unwrap());
    }
}
