//! Events for the application's backend: connections and subscriptions that have ended. Each is delivered at least once.
//!
//! ```text
//! open: stored in the engine --> end: kept here --flush--> queue of the engine --deliver--> POST --> acknowledged
//!                             '-- the node is lost: another node, or the next process --^
//! ```
//! At the end of the node, [`Events::finish`] stores what has ended, and releases what was taken and not acknowledged.
//!
//! One task, [`Events::flush`], both stores again what the engine has lost and ends it: nothing that has ended is stored again.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, sleep, sleep_until, timeout, timeout_at};
use tracing::{info, warn};

use crate::clock::{Clock, WarningLimit};
use crate::concurrently::concurrently;
use crate::endpoint::CallKind;
use crate::engine::{
    Engine, EngineError, EventQueue, Lease, QUEUE_MAX, QueuedEvent, TAKEN_TIMEOUT, reported_at,
};
use crate::opened::Opened;
use crate::random::token;
use crate::settings::Settings;
use crate::shards::lock;

/// The interval at which a node renews its lease, and looks at those of others.
const RENEWAL: Duration = Duration::from_secs(2);

/// A node is lost if its lease did not change in this number of looks. Looks are counted, not time: a node that was suspended itself
/// has not looked meanwhile.
const UNCHANGED_MAX: u32 = 5;

/// The maximum number of events that are queued at the same time.
const CONCURRENT_MAX: usize = 64;

/// The delays before a failed delivery is repeated.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// How long the end may take beyond its deadline: to store what has ended, and to release what was not delivered.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);

/// The owner of the connections.
pub(crate) trait Host: Send + Sync {
    fn settings(&self) -> Arc<Settings>;
    /// Everything that is open and reported.
    fn opened(&self) -> Vec<Opened>;
    /// Ends every connection that is reported, or may have a subscription that is: the end of each has been reported already.
    fn end_opened(&self);
}

#[derive(Serialize)]
struct Batch<'a> {
    events: Vec<&'a RawValue>,
}

/// Something that has ended.
#[derive(Clone)]
struct End {
    lease: Arc<str>,
    key: String,
    event: Bytes,
}

/// Events on their way into the engine's queue. When this is dropped, also because the runtime ends, the rest waits again.
struct Moving<'a> {
    events: &'a Events,
    ends: Vec<End>,
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        let mut ended = lock(&self.events.ended);
        self.ends.drain(..).rev().for_each(|end| ended.push_front(end));
        self.events.queueing.store(0, Ordering::SeqCst);
    }
}

/// The events of a node.
pub(crate) struct Events {
    engine: Arc<dyn Engine>,
    clock: Clock,
    lease: Mutex<Arc<str>>,
    /// Ends that are not in the engine's queue yet.
    ended: Mutex<VecDeque<End>>,
    /// The number of those that are being queued.
    queueing: AtomicUsize,
    /// The number of those that were dropped, until it is logged.
    dropped: AtomicU64,
    /// Whether the engine has lost what is open.
    is_open_lost: AtomicBool,
    /// Something has ended, or is to be stored again.
    has_ended: Notify,
    /// How many were queued by this node, and how many of them had been when the queue was found empty.
    queued: AtomicU64,
    delivered: AtomicU64,
    has_queued: Notify,
    /// A permit is held while events are taken, until they are delivered or released. Closed when none is taken any more.
    takes: Semaphore,
    /// When what was taken is released.
    released_at: watch::Sender<Option<Instant>>,
    /// Whether anything was ever opened: without, no lease is needed.
    is_used: AtomicBool,
    warnings: WarningLimit,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Events")
    }
}

impl Events {
    pub(crate) fn new(engine: Arc<dyn Engine>, clock: Clock) -> Self {
        Self {
            engine,
            clock,
            lease: Mutex::new(token().into()),
            ended: Mutex::default(),
            queueing: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
            is_open_lost: AtomicBool::new(false),
            has_ended: Notify::new(),
            queued: AtomicU64::new(0),
            delivered: AtomicU64::new(0),
            has_queued: Notify::new(),
            takes: Semaphore::new(1),
            released_at: watch::Sender::new(None),
            is_used: AtomicBool::new(false),
            warnings: WarningLimit::default(),
        }
    }

    /// Nothing ends while this is held.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> impl Sized + '_ {
        lock(&self.ended)
    }

    fn queue(&self) -> Result<&dyn EventQueue, EngineError> {
        self.engine
            .events()
            .ok_or_else(|| EngineError::Unavailable("the engine has no queue of events".into()))
    }

    /// The record of a connection or subscription that is about to open. Its end must be reported by [`end`](Self::end), even if storing it
    /// fails.
    pub(crate) fn prepare(&self, client: &str, user: &str, channel: Option<&str>) -> Opened {
        self.is_used.store(true, Ordering::Relaxed);
        let lease = lock(&self.lease).clone();
        Opened::new(lease, client, user, channel)
    }

    /// Stores that something is open. Done before the client knows it.
    pub(crate) async fn open(&self, opened: &Opened) -> Result<(), EngineError> {
        let event = opened.event_of_loss();
        self.queue()?.open(&opened.lease, &opened.id, &event).await
    }

    /// Reports an end. It is stored as soon as the engine can.
    pub(crate) fn end(&self, opened: Opened, code: u32, reason: &str) {
        let event = opened.event(code, reason, self.clock.now()).into();
        let mut ended = lock(&self.ended);
        ended.push_back(End { lease: opened.lease, key: opened.id, event });
        // Callers may hold locks, so that this is not where it is logged.
        let dropped = (ended.len() > QUEUE_MAX).then(|| ended.pop_front());
        self.dropped.fetch_add(u64::from(dropped.is_some()), Ordering::Relaxed);
        drop(ended);
        self.has_ended.notify_one();
    }

    /// Whether everything that has ended is in the engine's queue.
    fn is_queued(&self) -> bool {
        lock(&self.ended).is_empty() && self.queueing.load(Ordering::SeqCst) == 0
    }

    /// Whether everything that has ended was delivered.
    fn is_done(&self) -> bool {
        self.is_queued() && self.queued.load(Ordering::SeqCst) == self.delivered.load(Ordering::SeqCst)
    }

    /// Whether another process delivers what is in the queue.
    fn outlives_process(&self) -> bool {
        self.queue().is_ok_and(EventQueue::outlives_process)
    }

    /// Returns once everything that has ended was delivered, or at `until`, and then has it stored, and what was taken released. If
    /// another process delivers what is in the queue, a delivery that fails is the last. If `is_last`, nothing ends or is taken after this.
    pub(crate) async fn finish(&self, until: Instant, is_last: bool) {
        let until_is = async |is: &(dyn Fn(&Self) -> bool + Sync)| {
            while !is(self) {
                sleep(Duration::from_millis(10)).await;
            }
        };
        self.released_at.send_replace(Some(until));
        // Once it was called before, nothing is delivered any more.
        let is_delivered = |events: &Self| events.is_done() || events.takes.is_closed();
        let is_over = |events: &Self| {
            let is_released = events.released_at.borrow().is_some_and(|at| at <= Instant::now());
            is_delivered(events) || (is_released && events.is_queued())
        };
        let _ = timeout_at(until, until_is(&is_over)).await;
        let is_delivered = is_delivered(self);
        self.released_at.send_replace(Some(Instant::now()));
        let stored = timeout(FINISH_TIMEOUT, async {
            until_is(&Self::is_queued).await;
            if let (Ok(_last), true) = (self.takes.acquire().await, is_last) {
                self.takes.close();
            }
        });
        match stored.await {
            Ok(()) if is_delivered => {}
            Ok(()) if self.outlives_process() => {
                info!("not all events were delivered before the end; another process delivers them")
            }
            Ok(()) => warn!("not all events were delivered before the end; those in memory are lost"),
            Err(_) => warn!("not all events were stored before the end"),
        }
        self.released_at.send_replace(None);
    }

    /// Resolves when what was taken is to be released.
    async fn is_releasing(&self) {
        let mut released_at = self.released_at.subscribe();
        loop {
            let at = *released_at.borrow_and_update();
            let changed = released_at.changed();
            match at {
                None => drop(changed.await),
                Some(at) => {
                    tokio::select! {
                        () = sleep_until(at) => return,
                        _ = changed => {}
                    }
                }
            }
        }
    }

    /// Starts the tasks, which end with the host, or their runtime.
    pub(crate) fn start(self: &Arc<Self>, host: &Weak<dyn Host>) {
        // The tasks before these may have ended before it was stored.
        self.is_open_lost.store(true, Ordering::SeqCst);
        tokio::spawn(self.clone().flush(host.clone()));
        tokio::spawn(self.clone().keep_lease(host.clone()));
        tokio::spawn(self.clone().deliver(host.clone()));
    }

    fn warn(&self, what: &str, error: &EngineError) {
        if self.warnings.may_warn(self.clock.now()) {
            warn!(%error, "{what}; trying again");
        }
    }

    /// Stores again what is open and was lost, and moves what has ended into the engine's queue, in turns: neither waits for all of the
    /// other.
    async fn flush(self: Arc<Self>, host: Weak<dyn Host>) {
        let mut lost = VecDeque::new();
        // When what was not stored is tried again. What has ended does not wait for that.
        let (mut store_at, mut until) = (Instant::now(), None);
        loop {
            match host.upgrade() {
                Some(host) if self.is_open_lost.swap(false, Ordering::SeqCst) => lost = host.opened().into(),
                Some(_) => {}
                None => lost.clear(),
            }
            if store_at <= Instant::now() && self.store_again(&mut lost).await.is_err() {
                store_at = Instant::now() + RETRY_MIN;
            }
            let batch: Vec<_> = {
                let mut ended = lock(&self.ended);
                let len = ended.len().min(4 * CONCURRENT_MAX);
                self.queueing.store(len, Ordering::SeqCst);
                ended.drain(..len).collect()
            };
            if self.dropped.load(Ordering::Relaxed) > 0 && self.warnings.may_warn(self.clock.now()) {
                let dropped = self.dropped.swap(0, Ordering::Relaxed);
                warn!(dropped, "the engine stores no events; the oldest are dropped");
            }
            if !batch.is_empty() {
                if self.move_ends(batch, &mut lost).await.is_err() {
                    // Without a hub, events that are not stored in this time are reported by another node, as losses.
                    if host.strong_count() == 0
                        && *until.get_or_insert(Instant::now() + FINISH_TIMEOUT) <= Instant::now()
                    {
                        return;
                    }
                    sleep(RETRY_MIN).await;
                }
            } else if host.strong_count() == 0 {
                return;
            } else {
                let until = if lost.is_empty() { Instant::now() + RENEWAL } else { store_at };
                let _ = timeout_at(until, self.has_ended.notified()).await;
            }
        }
    }

    /// Queues the events of what has ended, which is not stored again after this. What is not queued has to be moved once more.
    async fn move_ends(
        self: &Arc<Self>,
        ends: Vec<End>,
        lost: &mut VecDeque<Opened>,
    ) -> Result<(), EngineError> {
        let mut moving = Moving { events: self, ends };
        if !lost.is_empty() {
            let ended: HashSet<&str> = moving.ends.iter().map(|end| &*end.key).collect();
            lost.retain(|one| !ended.contains(&*one.id));
        }
        let failed = self.queue_ends(moving.ends.clone()).await;
        self.queued.fetch_add((moving.ends.len() - failed.len()) as u64, Ordering::SeqCst);
        self.has_queued.notify_one();
        let error = failed.first().map(|(error, _)| error.clone());
        moving.ends = failed.into_iter().map(|(_, end)| end).collect();
        drop(moving);
        error.map_or(Ok(()), |error| {
            self.warn("an event was not stored", &error);
            Err(error)
        })
    }

    /// Queues the events of what has ended. Returns those that were not queued.
    async fn queue_ends(self: &Arc<Self>, ends: Vec<End>) -> Vec<(EngineError, End)> {
        let queueing = ends.into_iter().map(|end| {
            let events = self.clone();
            async move {
                let queued = match events.queue() {
                    Ok(queue) => queue.end(&end.lease, &end.key, &end.event).await,
                    Err(error) => Err(error),
                };
                queued.err().map(|error| (error, end))
            }
        });
        concurrently(CONCURRENT_MAX, queueing).await.into_iter().flatten().collect()
    }

    /// Stores some of what was lost. What is not stored is tried again after the others.
    async fn store_again(self: &Arc<Self>, lost: &mut VecDeque<Opened>) -> Result<(), EngineError> {
        let part: Vec<_> = lost.drain(..lost.len().min(CONCURRENT_MAX)).collect();
        let storing = part.into_iter().map(|one| {
            let events = self.clone();
            async move {
                let stored = events.open(&one).await;
                stored.map_err(|error| (error, one))
            }
        });
        let mut failure = None;
        for (error, one) in concurrently(CONCURRENT_MAX, storing).await.into_iter().filter_map(Result::err) {
            lost.push_back(one);
            failure = Some(error);
        }
        failure.map_or(Ok(()), |error| {
            self.warn("what is open was not stored again", &error);
            Err(error)
        })
    }

    /// Renews the lease of this node, and reports what was open on nodes that are lost. Nothing else is waited for between two renewals.
    async fn keep_lease(self: Arc<Self>, host: Weak<dyn Host>) {
        let mut ticks = tokio::time::interval(RENEWAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut seen = SeenLeases::default();
        let mut own_number = None;
        // The report of a lost node, one at a time.
        let mut reporting = JoinSet::new();
        loop {
            ticks.tick().await;
            let Some(host) = host.upgrade() else { return };
            if host.settings().proxies.events.is_none() && !self.is_used.load(Ordering::Relaxed) {
                continue;
            }
            let Ok(queue) = self.queue() else { continue };
            let lease = lock(&self.lease).clone();
            let (number, others) = match queue.renew(&lease).await {
                Ok(Lease::Renewed { number, others }) => (number, others),
                Ok(Lease::Lost) => {
                    warn!("this node was considered lost; its clients connect again");
                    *lock(&self.lease) = token().into();
                    (own_number, seen) = Default::default();
                    self.is_open_lost.store(false, Ordering::SeqCst);
                    host.end_opened();
                    continue;
                }
                Err(error) => {
                    self.warn("the lease of this node was not renewed", &error);
                    continue;
                }
            };
            while reporting.try_join_next().is_some() {}
            // The engine may have lost what is open.
            if own_number.replace(number).is_some_and(|before| number <= before) {
                self.is_open_lost.store(true, Ordering::SeqCst);
                self.has_ended.notify_one();
            }
            if let Some(others) = others {
                seen.look(others);
            }
            if reporting.is_empty()
                && let Some(name) = seen.take_lost()
            {
                let events = self.clone();
                reporting.spawn(async move {
                    if let Err(error) = events.report_lost(&name).await {
                        events.warn("the clients of a lost node were not reported", &error);
                    }
                });
            }
        }
    }

    /// Queues the events of everything that was open on a node that is lost.
    async fn report_lost(self: &Arc<Self>, node: &str) -> Result<(), EngineError> {
        let queue = self.queue()?;
        queue.lose(node).await?;
        let (lease, mut count) = (Arc::<str>::from(node), 0);
        loop {
            let open = queue.open_on(node, 4 * CONCURRENT_MAX).await?;
            if open.is_empty() {
                break;
            }
            count += open.len();
            let now = self.clock.now();
            let ends = open.into_iter().map(|(key, event)| {
                let event = reported_at(&event, now);
                End { lease: lease.clone(), key, event }
            });
            let failed = self.queue_ends(ends.collect()).await;
            self.has_queued.notify_one();
            if let Some((error, _)) = failed.into_iter().next() {
                return Err(error);
            }
        }
        if count > 0 {
            info!(node, count, "a node is lost; the end of what was open there is reported");
        }
        queue.forget(node).await
    }

    /// Delivers events to the backend.
    async fn deliver(self: Arc<Self>, host: Weak<dyn Host>) {
        let mut released_at = self.released_at.subscribe();
        loop {
            let Some(settings) = host.upgrade().map(|host| host.settings()) else { return };
            let is_released = released_at.borrow_and_update().is_some_and(|at| at <= Instant::now());
            if is_released && !self.takes.is_closed() {
                drop(settings);
                let _ = timeout(RENEWAL, released_at.changed()).await;
                continue;
            }
            if settings.proxies.events.is_none() {
                drop(settings);
                sleep(RENEWAL).await;
                continue;
            }
            let Ok(take) = self.takes.acquire().await else { return };
            let queued = self.queued.load(Ordering::SeqCst);
            let taken = match self.queue() {
                Ok(queue) => queue.take(settings.config.events.batch_max).await,
                Err(error) => Err(error),
            };
            let taken = match taken {
                Ok(taken) => taken,
                Err(error) => {
                    drop(take);
                    self.warn("events were not read", &error);
                    sleep(RETRY_MAX / 10).await;
                    continue;
                }
            };
            if taken.is_empty() {
                self.delivered.store(queued, Ordering::SeqCst);
                drop((settings, take));
                let _ = timeout(RENEWAL / 2, self.has_queued.notified()).await;
                continue;
            }
            self.deliver_batch(&host, &settings, &taken).await;
        }
    }

    /// Delivers a batch, or releases it.
    async fn deliver_batch(&self, host: &Weak<dyn Host>, settings: &Arc<Settings>, taken: &[QueuedEvent]) {
        let ids: Vec<_> = taken.iter().map(|one| one.id.clone()).collect();
        let is_delivered = tokio::select! {
            is_delivered = self.post(host, settings, taken) => is_delivered,
            () = self.is_releasing() => false,
        };
        if !is_delivered && self.outlives_process() {
            let end = |at: &mut Option<Instant>| at.as_mut().map(|at| *at = Instant::now()).is_some();
            self.released_at.send_if_modified(end);
        }
        let handled = match self.queue() {
            Ok(queue) if is_delivered => queue.acknowledge(&ids).await,
            Ok(queue) => queue.release(&ids).await,
            Err(error) => Err(error),
        };
        match handled {
            Ok(()) => {}
            // They are delivered once more.
            Err(error) if is_delivered => {
                self.warn("delivered events were not removed from the queue", &error)
            }
            Err(error) => self.warn("events that were not delivered are not in the queue yet", &error),
        }
    }

    /// Posts a batch until the backend has received it. Returns false if others may take it, or the configuration has changed, or if
    /// another process delivers it after the end.
    async fn post(&self, host: &Weak<dyn Host>, settings: &Arc<Settings>, taken: &[QueuedEvent]) -> bool {
        let (until, mut delay) = (Instant::now() + TAKEN_TIMEOUT / 2, RETRY_MIN);
        let mut released_at = self.released_at.subscribe();
        let body = body(taken);
        loop {
            let is_current = host.upgrade().is_some_and(|host| Arc::ptr_eq(&host.settings(), settings));
            let Some(endpoint) =
                settings.proxies.events.as_ref().filter(|_| is_current && Instant::now() < until)
            else {
                return false;
            };
            if endpoint.call::<IgnoredAny>(CallKind::Events, None, &[], body.clone()).await.is_ok() {
                return true;
            }
            tokio::select! {
                () = sleep(delay) => {}
                () = async { drop(released_at.wait_for(Option::is_some).await) }, if self.outlives_process() => return false,
            }
            delay = (2 * delay).min(RETRY_MAX);
        }
    }
}

/// The leases of other nodes: the number of each, and in how many looks that was the same.
#[derive(Default)]
struct SeenLeases(HashMap<String, (u64, u32)>);

impl SeenLeases {
    /// `others`: the numbers now.
    fn look(&mut self, others: Vec<(String, u64)>) {
        let before = std::mem::take(&mut self.0);
        self.0 = others
            .into_iter()
            .map(|(name, number)| {
                let same = before.get(&name).filter(|(last, _)| *last == number);
                let unchanged = same.map_or(0, |(_, unchanged)| unchanged + 1);
                (name, (number, unchanged))
            })
            .collect();
    }

    /// A node that does not renew its lease. It is taken again if it still does not after as many looks.
    fn take_lost(&mut self) -> Option<String> {
        let (name, (_, unchanged)) =
            self.0.iter_mut().find(|(_, (_, unchanged))| *unchanged >= UNCHANGED_MAX)?;
        *unchanged = 0;
        Some(name.clone())
    }
}

/// The request with these events.
fn body(taken: &[QueuedEvent]) -> Vec<u8> {
    let events = taken.iter().filter_map(|one| serde_json::from_slice(&one.event).ok()).collect();
    serde_json::to_vec(&Batch { events }).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::AtomicUsize;
    use std::task::{Context, Waker};

    use super::*;
    use crate::config::{HubConfig, RecoveryMode};
    use crate::engine::{Control, Delivery, EngineFuture, Maintaining, Membership, MemoryEngine};
    use crate::history::{History, HistoryQuery, Position, Recovery, Retention};
    use crate::protocol::{ClientInfo, Publication};

    /// An engine that never stores what one user has opened, and reads the leases of other nodes every second time.
    #[derive(Debug)]
    struct Refusing {
        memory: MemoryEngine,
        opens: AtomicUsize,
        /// How many there were when something ended last.
        opens_at_end: AtomicUsize,
        renewals: AtomicUsize,
        takes: AtomicUsize,
        /// Whether another process delivers what is queued.
        outlives: AtomicBool,
        /// The nodes whose leases were taken.
        lost: Mutex<Vec<String>>,
    }

    const REFUSED: &str = "refused";

    impl Refusing {
        fn new() -> Arc<Self> {
            let (opens, opens_at_end, renewals, takes, outlives, lost) = Default::default();
            Arc::new(Self {
                memory: MemoryEngine::new(1),
                opens,
                opens_at_end,
                renewals,
                takes,
                outlives,
                lost,
            })
        }

        fn queue(&self) -> &dyn EventQueue {
            self.memory.events().unwrap()
        }
    }

    impl EventQueue for Refusing {
        fn open<'a>(&'a self, node: &'a str, key: &'a str, event: &'a [u8]) -> EngineFuture<'a, ()> {
            self.opens.fetch_add(1, Ordering::Relaxed);
            if event.windows(REFUSED.len()).any(|part| part == REFUSED.as_bytes()) {
                return Box::pin(std::future::ready(Err(EngineError::Unavailable(REFUSED.into()))));
            }
            self.queue().open(node, key, event)
        }

        fn end<'a>(&'a self, node: &'a str, key: &'a str, event: &'a [u8]) -> EngineFuture<'a, ()> {
            self.opens_at_end.store(self.opens.load(Ordering::Relaxed), Ordering::Relaxed);
            self.queue().end(node, key, event)
        }

        fn renew<'a>(&'a self, _: &'a str) -> EngineFuture<'a, Lease> {
            let number = self.renewals.fetch_add(1, Ordering::Relaxed) as u64;
            let others = [("silent".to_owned(), 1), ("renewing".to_owned(), number)].into();
            let others = number.is_multiple_of(2).then_some(others);
            Box::pin(std::future::ready(Ok(Lease::Renewed { number: number + 1, others })))
        }

        fn lose<'a>(&'a self, node: &'a str) -> EngineFuture<'a, ()> {
            lock(&self.lost).push(node.to_owned());
            self.queue().lose(node)
        }

        fn open_on<'a>(&'a self, node: &'a str, max: usize) -> EngineFuture<'a, Vec<(String, Bytes)>> {
            self.queue().open_on(node, max)
        }

        fn forget<'a>(&'a self, node: &'a str) -> EngineFuture<'a, ()> {
            self.queue().forget(node)
        }

        fn outlives_process(&self) -> bool {
            self.outlives.load(Ordering::Relaxed)
        }

        fn take(&self, max: usize) -> EngineFuture<'_, Vec<QueuedEvent>> {
            self.takes.fetch_add(1, Ordering::Relaxed);
            self.queue().take(max)
        }

        fn acknowledge<'a>(&'a self, ids: &'a [String]) -> EngineFuture<'a, ()> {
            self.queue().acknowledge(ids)
        }

        fn release<'a>(&'a self, ids: &'a [String]) -> EngineFuture<'a, ()> {
            self.queue().release(ids)
        }
    }

    impl Engine for Refusing {
        fn name(&self) -> &'static str {
            "refusing"
        }

        fn start(&self, delivery: Weak<dyn Delivery>) {
            self.memory.start(delivery);
        }

        fn publish<'a>(
            &'a self,
            channel: &'a str,
            publication: Publication,
            retention: Option<Retention>,
            key: &'a str,
        ) -> EngineFuture<'a, Position> {
            self.memory.publish(channel, publication, retention, key)
        }

        fn publish_membership<'a>(&'a self, channel: &'a str, one: Membership) -> EngineFuture<'a, ()> {
            self.memory.publish_membership(channel, one)
        }

        fn subscribe<'a>(&'a self, channel: &'a str) -> EngineFuture<'a, ()> {
            self.memory.subscribe(channel)
        }

        fn unsubscribe(&self, channel: &str) {
            self.memory.unsubscribe(channel);
        }

        fn history<'a>(
            &'a self,
            channel: &'a str,
            query: &'a HistoryQuery,
            retention: Retention,
        ) -> EngineFuture<'a, History> {
            self.memory.history(channel, query, retention)
        }

        fn recover<'a>(
            &'a self,
            channel: &'a str,
            since: Option<&'a Position>,
            mode: RecoveryMode,
            retention: Retention,
            len_max: usize,
        ) -> EngineFuture<'a, Recovery> {
            self.memory.recover(channel, since, mode, retention, len_max)
        }

        fn remove_history<'a>(&'a self, channel: &'a str) -> EngineFuture<'a, ()> {
            self.memory.remove_history(channel)
        }

        fn add_presence<'a>(&'a self, channel: &'a str, info: &'a ClientInfo) -> EngineFuture<'a, ()> {
            self.memory.add_presence(channel, info)
        }

        fn remove_presence<'a>(&'a self, channel: &'a str, client: &'a str) -> EngineFuture<'a, ()> {
            self.memory.remove_presence(channel, client)
        }

        fn presence<'a>(
            &'a self,
            channel: &'a str,
            len_max: usize,
        ) -> EngineFuture<'a, Option<Vec<Arc<ClientInfo>>>> {
            self.memory.presence(channel, len_max)
        }

        fn control(&self, control: Control) -> EngineFuture<'_, ()> {
            self.memory.control(control)
        }

        fn events(&self) -> Option<&dyn EventQueue> {
            Some(self)
        }

        fn maintain(&self) -> Maintaining<'_> {
            Box::pin(std::future::ready(()))
        }
    }

    /// A node without connections that delivers to a backend.
    struct Delivering(Arc<Settings>);

    impl Host for Delivering {
        fn settings(&self) -> Arc<Settings> {
            self.0.clone()
        }

        fn opened(&self) -> Vec<Opened> {
            Vec::new()
        }

        fn end_opened(&self) {}
    }

    /// The end was cancelled, and another follows.
    #[tokio::test(start_paused = true)]
    async fn what_was_released_is_not_taken_until_the_next_end() {
        const GRACE: Duration = Duration::from_secs(10);
        // It does not answer.
        let backend = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let config = format!("events.url = \"http://{}/\"", backend.local_addr().unwrap());
        let settings = Settings::new(HubConfig::from_toml(&config).unwrap(), None).unwrap();
        let host: Arc<dyn Host> = Arc::new(Delivering(settings.into()));
        let engine = Refusing::new();
        let events = Arc::new(Events::new(engine.clone(), Clock::new()));
        let tasks = [
            tokio::spawn(events.clone().flush(Arc::downgrade(&host))),
            tokio::spawn(events.clone().deliver(Arc::downgrade(&host))),
        ];
        events.end(events.prepare("client", "", None), 3001, "");
        let until = Instant::now() + GRACE;
        timeout(GRACE / 5, events.finish(until, true)).await.unwrap_err();
        sleep_until(until + GRACE / 5).await;
        let takes = engine.takes.load(Ordering::Relaxed);
        assert!((1..=3).contains(&takes), "{takes}");
        // A connection may still end after this one.
        events.finish(Instant::now(), false).await;
        sleep(GRACE).await;
        assert!(engine.takes.load(Ordering::Relaxed) > takes);
        events.finish(Instant::now(), true).await;
        let [flush, deliver] = tasks;
        deliver.await.unwrap();
        flush.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_waits_for_a_backend_that_is_down_only_if_nobody_else_delivers() {
        const GRACE: Duration = Duration::from_secs(600);
        // It is not there.
        let (_taken, address) = wireloom_testing::refusing();
        let config = format!("events.url = \"http://{address}/\"");
        let settings = Arc::new(Settings::new(HubConfig::from_toml(&config).unwrap(), None).unwrap());
        for outlives in [false, true] {
            let host: Arc<dyn Host> = Arc::new(Delivering(settings.clone()));
            let engine = Refusing::new();
            engine.outlives.store(outlives, Ordering::Relaxed);
            let events = Arc::new(Events::new(engine.clone(), Clock::new()));
            let flush = tokio::spawn(events.clone().flush(Arc::downgrade(&host)));
            let deliver = tokio::spawn(events.clone().deliver(Arc::downgrade(&host)));
            events.end(events.prepare("before", "", None), 3001, "");
            // Its next attempt comes later.
            sleep(Duration::from_secs(20)).await;
            events.end(events.prepare("at the end", "", None), 3001, "");
            let begun = Instant::now();
            events.finish(begun + GRACE, true).await;
            let took = begun.elapsed();
            assert_eq!(took < GRACE / 10, outlives, "{took:?}");
            assert_eq!(took >= GRACE, !outlives, "{took:?}");
            assert_eq!(engine.queue().take(10).await.unwrap().len(), 2);
            deliver.await.unwrap();
            flush.abort();
        }
    }

    /// A node whose connections are these.
    struct Opening(Vec<Opened>);

    impl Host for Opening {
        fn settings(&self) -> Arc<Settings> {
            Settings::new(HubConfig::default(), None).unwrap().into()
        }

        fn opened(&self) -> Vec<Opened> {
            self.0.clone()
        }

        fn end_opened(&self) {}
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_node_is_noticed_although_the_leases_cannot_always_be_read() {
        let engine = Refusing::new();
        let events = Arc::new(Events::new(engine.clone(), Clock::new()));
        events.prepare("client", "", None);
        let host: Arc<dyn Host> = Arc::new(Opening(Vec::new()));
        let keeping = tokio::spawn(events.keep_lease(Arc::downgrade(&host)));
        // The first look has nothing to compare with.
        tokio::time::sleep(RENEWAL * (2 * UNCHANGED_MAX + 1)).await;
        assert_eq!(*lock(&engine.lost), ["silent"]);
        drop(host);
        keeping.await.unwrap();
    }

    /// The runtime of the task may end.
    #[tokio::test]
    async fn what_is_being_queued_when_the_task_is_dropped_is_queued_by_the_next_one() {
        let engine = Refusing::new();
        let events = Arc::new(Events::new(engine.clone(), Clock::new()));
        let host: Arc<dyn Host> = Arc::new(Opening(Vec::new()));
        events.end(events.prepare("client", "", None), 3000, "");
        {
            let mut flushing = pin!(events.clone().flush(Arc::downgrade(&host)));
            assert!(flushing.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            assert_eq!(events.queueing.load(Ordering::SeqCst), 1);
        }
        assert_eq!(engine.queue().take(1).await.unwrap(), []);
        assert_eq!(lock(&events.ended).len(), 1);
        assert!(!events.is_done());
        let flushing = tokio::spawn(events.clone().flush(Arc::downgrade(&host)));
        while engine.queue().take(1).await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        flushing.abort();
    }

    #[test]
    fn a_node_that_has_left_is_not_lost() {
        let mut seen = SeenLeases::default();
        for _ in 0..2 * UNCHANGED_MAX {
            seen.look(vec![("leaving".to_owned(), 1)]);
            seen.look(Vec::new());
            assert_eq!(seen.take_lost(), None);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn ends_do_not_wait_for_what_cannot_be_stored_again() {
        const OPEN: usize = 1_000;
        const ENDED: usize = 600;
        let engine = Refusing::new();
        let events = Arc::new(Events::new(engine.clone(), Clock::new()));
        let user = |number: usize| if number == 0 { REFUSED.to_owned() } else { number.to_string() };
        let open: Vec<_> = (0..OPEN).map(|number| events.prepare("client", &user(number), None)).collect();
        let lease = open[0].lease.clone();
        // These were never stored as open, so they were not lost.
        (0..ENDED).for_each(|_| events.end(events.prepare("other", "", None), 3000, ""));
        // A lost record whose end is queued is not stored again either.
        events.end(open[OPEN - 1].clone(), 3000, "");
        let host: Arc<dyn Host> = Arc::new(Opening(open));
        events.is_open_lost.store(true, Ordering::SeqCst);
        let flushing = tokio::spawn(events.clone().flush(Arc::downgrade(&host)));
        let queue = engine.queue();
        let until = async |queued: usize, open: usize| {
            while queue.take(usize::MAX).await.unwrap().len() < queued
                || queue.open_on(&lease, usize::MAX).await.unwrap().len() < open
            {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        until(ENDED + 1, OPEN - 2).await;
        let opens = engine.opens_at_end.load(Ordering::Relaxed);
        assert!(opens < OPEN / 2, "{opens}");
        tokio::time::sleep(2 * RENEWAL).await;
        assert_eq!(queue.open_on(&lease, usize::MAX).await.unwrap().len(), OPEN - 2);
        // The one that is refused is tried again, and no other.
        let opens = engine.opens.load(Ordering::Relaxed);
        assert!((OPEN..OPEN + 200).contains(&opens), "{opens}");
        // Many ends do not wait for its attempts.
        let begun = Instant::now();
        (0..5_000).for_each(|_| events.end(events.prepare("other", "", None), 3000, ""));
        while !lock(&events.ended).is_empty() || events.queueing.load(Ordering::SeqCst) > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        drop(host);
        flushing.await.unwrap();
    }
}
