//! The memory that the peers of a server make it hold, counted in one place: one [`Memory`] for a server, one [`Account`] for
//! each connection, one [`Reservation`] for each buffer that a peer can grow.
//!
//! ```text
//! Memory (max) <-- Account of a connection <-- Reservation: an assembly
//!     |                                   '-- Reservation: a send queue
//!     '-- watch(): at the limit the connections that hold the most are evicted
//!
//! 0 ......................... 3/4 ................ max
//!   normal                        near: connections that hold memory stop reading, no window is granted
//!                                 for a second: the largest holder is evicted
//!                                                  full: nothing new is reserved, the largest holders are evicted
//! ```
//!
//! Amounts are rounded up to [`GRANULE`], and up to [`FREE_LEN`] bytes of a reservation are not counted, so that a connection
//! with small messages does no atomic operation for them.

mod group;
mod machine;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use slab::Slab;
use tokio::sync::Notify;

pub(crate) use group::Group;
pub(crate) use machine::default_max;

/// Reservations are rounded up to multiples of this many bytes.
pub(crate) const GRANULE: usize = 16 << 10;

/// A reservation of at most this many bytes is not counted.
pub(crate) const FREE_LEN: usize = 4 << 10;

/// A connection that holds at most this much is read from near the limit too: a deflate window, a few messages.
const SMALL_LEN: usize = 4 * GRANULE;

/// How long memory may stay near the limit before the largest holder is evicted. Connections that stopped reading need someone
/// else to free memory; nobody may.
const NEAR_TIME_MAX: Duration = Duration::from_secs(1);

/// How long an evicted connection may take to free its memory before it is aborted.
const EVICTION_TIME_MAX: Duration = Duration::from_secs(1);

/// The use of reserved memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Category {
    /// Bytes read and not yet consumed.
    ReadBuffer,
    /// Messages that are still arriving.
    Assembly,
    /// Inflated messages and deflate windows.
    Inflated,
    /// Bytes accepted for sending that the transport has not taken.
    SendQueue,
    /// Heads of HTTP messages.
    Head,
    /// Bodies of HTTP messages.
    Body,
    /// Received bytes of HTTP/2 streams that the application has not read.
    Http2Window,
}

/// Categories.
const CATEGORIES: usize = 7;

/// How close a server is to its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pressure {
    Normal,
    /// Connections that hold memory stop reading, and no HTTP/2 window is granted.
    Near,
    /// New work is refused.
    Full,
}

/// The limit would be exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted;

/// A connection, or a WebSocket over a stream of one, that can be closed to free memory.
pub(crate) trait Evict: Send + Sync {
    /// Frees its buffers and closes: a WebSocket with 1013, HTTP/1.1 with 503, HTTP/2 with ENHANCE_YOUR_CALM. Must not block,
    /// and must not call [`Account::on_evict`].
    fn evict(&self);

    /// The connection did not free its memory in time: ends it at once.
    fn abort(&self) {}
}

/// The memory of a server.
#[derive(Debug)]
pub(crate) struct Memory {
    max: AtomicUsize,
    total: AtomicUsize,
    categories: [AtomicUsize; CATEGORIES],
    /// Reservations that were refused.
    refused: AtomicU64,
    evicted: AtomicU64,
    accounts: Mutex<Slab<Weak<Inner>>>,
    /// Tasks that wait until memory is no longer near the limit.
    waiting: Mutex<Vec<Waker>>,
    has_waiting: AtomicBool,
    /// Notified when memory comes near the limit or is exhausted.
    pressed: Notify,
}

/// Memory in use, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// The limit, in bytes ([`ServerConfig::memory_max`](crate::ServerConfig::memory_max)).
    pub max: usize,
    /// Bytes in use, of all categories.
    pub total: usize,
    /// Bytes read from transports and not yet consumed.
    pub read_buffers: usize,
    /// Bytes of messages that are still arriving.
    pub assemblies: usize,
    /// Bytes of inflated messages and deflate windows.
    pub inflated: usize,
    /// Bytes accepted for sending that transports have not taken.
    pub send_queues: usize,
    /// Bytes of heads of HTTP messages.
    pub heads: usize,
    /// Bytes of bodies of HTTP messages.
    pub bodies: usize,
    /// Bytes of HTTP/2 streams that the application has not read.
    pub http2_windows: usize,
    /// Times that memory was refused because the limit was reached.
    pub refused: u64,
    /// Connections that were closed to free memory.
    pub evicted: u64,
}

impl Memory {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            max: AtomicUsize::new(max),
            total: AtomicUsize::new(0),
            categories: Default::default(),
            refused: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            accounts: Mutex::default(),
            waiting: Mutex::default(),
            has_waiting: AtomicBool::new(false),
            pressed: Notify::new(),
        })
    }

    /// The account of a new connection.
    pub(crate) fn account(self: &Arc<Self>) -> Account {
        self.account_in(None)
    }

    /// The account of a WebSocket over a stream of a connection, whose group bounds all of them together.
    pub(crate) fn account_in(self: &Arc<Self>, group: Option<Arc<Group>>) -> Account {
        let mut accounts = lock(&self.accounts);
        let entry = accounts.vacant_entry();
        let inner = Arc::new(Inner {
            memory: self.clone(),
            key: entry.key(),
            held: AtomicUsize::new(0),
            group,
            is_evicted: AtomicBool::new(false),
            target: Mutex::new(None),
        });
        entry.insert(Arc::downgrade(&inner));
        Account(Some(inner))
    }

    pub(crate) fn pressure(&self) -> Pressure {
        self.pressure_at(self.total.load(Ordering::Relaxed))
    }

    fn pressure_at(&self, total: usize) -> Pressure {
        if total >= self.max() {
            Pressure::Full
        } else if total >= self.near() {
            Pressure::Near
        } else {
            Pressure::Normal
        }
    }

    fn max(&self) -> usize {
        self.max.load(Ordering::Relaxed)
    }

    /// Before connections are accepted.
    pub(crate) fn set_max(&self, max: usize) {
        self.max.store(max, Ordering::Relaxed);
    }

    fn near(&self) -> usize {
        self.max() - self.max() / 4
    }

    pub(crate) fn stats(&self) -> MemoryStats {
        let of = |category: Category| self.categories[category as usize].load(Ordering::Relaxed);
        MemoryStats {
            max: self.max(),
            total: self.total.load(Ordering::Relaxed),
            read_buffers: of(Category::ReadBuffer),
            assemblies: of(Category::Assembly),
            inflated: of(Category::Inflated),
            send_queues: of(Category::SendQueue),
            heads: of(Category::Head),
            bodies: of(Category::Body),
            http2_windows: of(Category::Http2Window),
            refused: self.refused.load(Ordering::Relaxed),
            evicted: self.evicted.load(Ordering::Relaxed),
        }
    }

    /// Evicts connections while memory is exhausted, or has been near the limit for too long. Runs as long as its server.
    pub(crate) async fn watch(self: Arc<Self>) {
        loop {
            self.pressed.notified().await;
            while self.pressure() > Pressure::Normal {
                if self.pressure() == Pressure::Near {
                    // Handlers that take what they were sent free memory without anyone's help.
                    let _ = tokio::time::timeout(NEAR_TIME_MAX, self.pressed.notified()).await;
                    if self.pressure() == Pressure::Normal {
                        break;
                    }
                }
                let excess = self.total.load(Ordering::Relaxed).saturating_sub(self.near()).max(1);
                let evicted = self.evict_largest(excess, |_| true);
                self.free(&evicted).await;
                if evicted.is_empty() {
                    tokio::time::sleep(NEAR_TIME_MAX).await;
                }
            }
        }
    }

    /// Evicts the largest holders of a group that together hold at least `excess` bytes.
    async fn evict_from(&self, group: &Arc<Group>, excess: usize) {
        let is_member = |account: &Inner| account.group.as_ref().is_some_and(|of| Arc::ptr_eq(of, group));
        let evicted = self.evict_largest(excess, is_member);
        self.free(&evicted).await;
    }

    /// Aborts those of the evicted connections that do not free their memory in time.
    async fn free(&self, evicted: &[Arc<Inner>]) {
        if !self.wait_until_freed(evicted).await {
            evicted.iter().filter(|account| account.held() > 0).for_each(|account| account.abort());
            self.wait_until_freed(evicted).await;
        }
    }

    /// Evicts the largest holders, of those that `is_candidate` names, that together hold at least `excess` bytes.
    fn evict_largest(&self, excess: usize, is_candidate: impl Fn(&Inner) -> bool) -> Vec<Arc<Inner>> {
        let mut holders: Vec<(usize, Arc<Inner>)> = lock(&self.accounts)
            .iter()
            .filter_map(|(_, account)| account.upgrade())
            .filter(|account| !account.is_evicted.load(Ordering::Relaxed) && is_candidate(account))
            .map(|account| (account.held(), account))
            .filter(|(held, _)| *held > 0)
            .collect();
        holders.sort_unstable_by_key(|(held, _)| std::cmp::Reverse(*held));
        let mut freed = 0;
        let mut evicted = Vec::new();
        for (held, account) in holders {
            if freed >= excess {
                break;
            }
            if account.evict() {
                freed += held;
                evicted.push(account);
            }
        }
        evicted
    }

    /// Waits for evicted connections; false when they took too long.
    async fn wait_until_freed(&self, evicted: &[Arc<Inner>]) -> bool {
        const STEP: Duration = Duration::from_millis(10);
        let steps = EVICTION_TIME_MAX.as_millis() / STEP.as_millis();
        for _ in 0..steps {
            if evicted.iter().all(|account| account.held() == 0) {
                return true;
            }
            tokio::time::sleep(STEP).await;
        }
        false
    }

    fn add(&self, category: Category, len: usize) {
        let before = self.total.fetch_add(len, Ordering::AcqRel);
        self.added(category, before, len);
    }

    /// As [`add`](Self::add), within the limit.
    fn try_add(&self, category: Category, len: usize) -> Result<(), Exhausted> {
        let max = self.max();
        let within = |total: usize| total.checked_add(len).filter(|&total| total <= max);
        match self.total.fetch_update(Ordering::AcqRel, Ordering::Relaxed, within) {
            Ok(before) => {
                self.added(category, before, len);
                Ok(())
            }
            Err(_) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                self.pressed.notify_one();
                Err(Exhausted)
            }
        }
    }

    fn added(&self, category: Category, before: usize, len: usize) {
        self.categories[category as usize].fetch_add(len, Ordering::Relaxed);
        if self.pressure_at(before + len) > self.pressure_at(before) {
            self.pressed.notify_one();
        }
    }

    fn subtract(&self, category: Category, len: usize) {
        self.categories[category as usize].fetch_sub(len, Ordering::Relaxed);
        let before = self.total.fetch_sub(len, Ordering::AcqRel);
        if self.pressure_at(before) > Pressure::Normal && self.pressure_at(before - len) == Pressure::Normal {
            self.wake_waiting();
        }
    }

    fn wake_waiting(&self) {
        if self.has_waiting.swap(false, Ordering::AcqRel) {
            let waiting = std::mem::take(&mut *lock(&self.waiting));
            waiting.into_iter().for_each(Waker::wake);
        }
    }
}

/// The memory of one connection. The default is that of a client: it has no limit and counts nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Account(Option<Arc<Inner>>);

struct Inner {
    memory: Arc<Memory>,
    key: usize,
    /// Bytes of all its reservations, in granules.
    held: AtomicUsize,
    group: Option<Arc<Group>>,
    is_evicted: AtomicBool,
    target: Mutex<Option<Weak<dyn Evict>>>,
}

impl Account {
    /// Whether this is a connection of a server.
    pub(crate) fn is_of_server(&self) -> bool {
        self.0.is_some()
    }

    /// Memory of this connection for one use.
    pub(crate) fn reservation(&self, category: Category) -> Reservation {
        Reservation { account: self.clone(), granules: 0, category }
    }

    /// The connection that is to be closed when the server is out of memory and this is the largest holder.
    pub(crate) fn on_evict(&self, target: Weak<dyn Evict>) {
        if let Some(inner) = &self.0 {
            *lock(&inner.target) = Some(target);
        }
    }

    /// Whether a connection may be accepted, a request begun or a stream opened.
    pub(crate) fn takes_new_work(&self) -> bool {
        match &self.0 {
            None => true,
            Some(inner) => {
                let takes = inner.memory.pressure() < Pressure::Full;
                if !takes {
                    inner.memory.refused.fetch_add(1, Ordering::Relaxed);
                }
                takes
            }
        }
    }

    /// How close the server is to its limit: one load, so that it may be asked before every read.
    pub(crate) fn pressure(&self) -> Pressure {
        self.0.as_ref().map_or(Pressure::Normal, |inner| inner.memory.pressure())
    }

    /// Bytes that can be reserved before the limit is reached.
    pub(crate) fn available(&self) -> usize {
        let available = |inner: &Arc<Inner>| {
            inner.memory.max().saturating_sub(inner.memory.total.load(Ordering::Relaxed))
        };
        self.0.as_ref().map_or(usize::MAX, available)
    }

    /// Ready when the connection may read: memory is not near the limit, or the connection holds little of it, so that clients
    /// with small messages are served at all times; or it was evicted and is to see that.
    pub(crate) fn poll_read_allowed(&self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(inner) = &self.0 else { return Poll::Ready(()) };
        let is_evicted = || inner.is_evicted.load(Ordering::Acquire);
        if let Some(group) = &inner.group
            && group.poll_turn(inner, cx).is_pending()
            && !is_evicted()
        {
            return Poll::Pending;
        }
        if inner.memory.pressure() == Pressure::Normal || inner.held() <= SMALL_LEN || is_evicted() {
            return Poll::Ready(());
        }
        let normal = inner.memory.poll_normal(cx);
        // It may have been evicted before the waker was there.
        if is_evicted() { Poll::Ready(()) } else { normal }
    }

    /// A message is complete: others of the group may read.
    #[inline]
    pub(crate) fn message_read(&self) {
        if let Some(Inner { group: Some(group), key, .. }) = self.0.as_deref() {
            group.message_read(*key);
        }
    }

    /// Ready when memory is not near the limit: before a window is granted.
    pub(crate) fn poll_normal(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_ref().map_or(Poll::Ready(()), |inner| inner.memory.poll_normal(cx))
    }
}

impl Memory {
    fn poll_normal(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.pressure() == Pressure::Normal {
            return Poll::Ready(());
        }
        let mut waiting = lock(&self.waiting);
        if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
        self.has_waiting.store(true, Ordering::Release);
        drop(waiting);
        // Memory may have been freed before the waker was there.
        if self.pressure() == Pressure::Normal { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Inner {
    fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    fn add_held(&self, len: usize) {
        self.held.fetch_add(len, Ordering::Relaxed);
        if let Some(group) = &self.group {
            group.add(len);
        }
    }

    /// False when nothing can be closed.
    fn evict(&self) -> bool {
        let target = lock(&self.target).as_ref().and_then(Weak::upgrade);
        let Some(target) = target else { return false };
        self.is_evicted.store(true, Ordering::Release);
        self.memory.evicted.fetch_add(1, Ordering::Relaxed);
        target.evict();
        self.memory.wake_waiting();
        if let Some(group) = &self.group {
            group.wake();
        }
        true
    }

    fn abort(&self) {
        let target = lock(&self.target).as_ref().and_then(Weak::upgrade);
        if let Some(target) = target {
            target.abort();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(group) = &self.group {
            group.freed(self.key);
        }
        lock(&self.memory.accounts).try_remove(self.key);
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Account").field("held", &self.held()).finish_non_exhaustive()
    }
}

/// Memory of one connection for one use. It is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    account: Account,
    granules: u32,
    category: Category,
}

impl Reservation {
    /// The account of the connection.
    pub(crate) fn account(&self) -> &Account {
        &self.account
    }

    /// Reports that `len` bytes are held now. No atomic operation unless that changes the number of granules.
    #[inline]
    pub(crate) fn set(&mut self, len: usize) {
        let granules = granules_of(len);
        if granules != self.granules {
            self.change(granules);
        }
    }

    /// Reserves `len` bytes in all before they are allocated.
    ///
    /// # Errors
    /// The limit would be exceeded; nothing has changed.
    #[inline]
    pub(crate) fn try_set(&mut self, len: usize) -> Result<(), Exhausted> {
        let granules = granules_of(len);
        if granules > self.granules {
            self.try_grow(granules)?;
        } else if granules < self.granules {
            self.change(granules);
        }
        Ok(())
    }

    #[cold]
    fn try_grow(&mut self, granules: u32) -> Result<(), Exhausted> {
        let Some(inner) = &self.account.0 else { return Ok(()) };
        let memory = &inner.memory;
        let more = (granules - self.granules) as usize * GRANULE;
        if inner.group.as_ref().is_some_and(|group| !group.has_room_for(more)) {
            memory.refused.fetch_add(1, Ordering::Relaxed);
            return Err(Exhausted);
        }
        memory.try_add(self.category, more)?;
        inner.add_held(more);
        self.granules = granules;
        Ok(())
    }

    #[cold]
    fn change(&mut self, granules: u32) {
        let Some(inner) = &self.account.0 else { return };
        let before = std::mem::replace(&mut self.granules, granules);
        let len = before.abs_diff(granules) as usize * GRANULE;
        if granules > before {
            inner.add_held(len);
            inner.memory.add(self.category, len);
        } else {
            let held = inner.held.fetch_sub(len, Ordering::Relaxed) - len;
            if let Some(group) = &inner.group {
                group.subtract(len);
                if held == 0 {
                    group.freed(inner.key);
                }
            }
            inner.memory.subtract(self.category, len);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.granules > 0 {
            self.change(0);
        }
    }
}

fn granules_of(len: usize) -> u32 {
    if len <= FREE_LEN { 0 } else { len.div_ceil(GRANULE).try_into().unwrap_or(u32::MAX) }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const MAX: usize = 64 * GRANULE;

    /// Frees its reservation when it is evicted, or aborted.
    struct Holder {
        reservation: Mutex<Option<Reservation>>,
        obeys: bool,
    }

    impl Holder {
        fn new(account: &Account, len: usize, obeys: bool) -> Arc<Self> {
            let mut reservation = account.reservation(Category::Assembly);
            reservation.try_set(len).unwrap();
            let holder = Arc::new(Self { reservation: Mutex::new(Some(reservation)), obeys });
            let weak = Arc::downgrade(&holder);
            account.on_evict(weak);
            holder
        }

        fn holds(&self) -> bool {
            lock(&self.reservation).is_some()
        }
    }

    impl Evict for Holder {
        fn evict(&self) {
            if self.obeys {
                lock(&self.reservation).take();
            }
        }

        fn abort(&self) {
            lock(&self.reservation).take();
        }
    }

    #[test]
    fn counts_in_granules_and_small_amounts_not_at_all() {
        let memory = Memory::new(MAX);
        let account = memory.account();
        let mut queue = account.reservation(Category::SendQueue);
        for (len, expected) in [
            (0, 0),
            (FREE_LEN, 0),
            (FREE_LEN + 1, GRANULE),
            (GRANULE, GRANULE),
            (GRANULE + 1, 2 * GRANULE),
            (FREE_LEN, 0),
            (3 * GRANULE, 3 * GRANULE),
        ] {
            queue.set(len);
            assert_eq!((memory.stats().total, memory.stats().send_queues), (expected, expected), "{len}");
        }
        drop(queue);
        assert_eq!(memory.stats().total, 0);
        drop(account);
        assert!(lock(&memory.accounts).is_empty());
    }

    #[test]
    fn refuses_what_exceeds_the_limit() {
        let memory = Memory::new(MAX);
        let account = memory.account();
        let mut body = account.reservation(Category::Body);
        assert_eq!(body.try_set(MAX - 1), Ok(()));
        assert_eq!(body.try_set(MAX), Ok(()));
        assert!(!account.takes_new_work());
        assert_eq!(body.try_set(MAX + 1), Err(Exhausted));
        assert_eq!((memory.stats().bodies, memory.stats().refused), (MAX, 2));
        // A client's account has no limit.
        let mut free = Account::default().reservation(Category::Body);
        assert_eq!(free.try_set(usize::MAX), Ok(()));
        assert_eq!(memory.stats().bodies, MAX);
    }

    #[test]
    fn a_group_has_a_limit_of_its_own() {
        let memory = Memory::new(100 * GRANULE);
        let group = Group::new(2 * GRANULE);
        let mut reservations: Vec<Reservation> =
            (0..3).map(|_| memory.account_in(Some(group.clone())).reservation(Category::Assembly)).collect();
        assert_eq!(reservations[0].try_set(GRANULE), Ok(()));
        assert_eq!(reservations[1].try_set(2 * GRANULE), Err(Exhausted));
        assert_eq!(reservations[1].try_set(GRANULE), Ok(()));
        assert_eq!(reservations[2].try_set(GRANULE), Err(Exhausted));
        drop(reservations.remove(0));
        assert_eq!(reservations[1].try_set(GRANULE), Ok(()));
        drop(reservations);
        assert_eq!((group.held(), memory.stats().total, memory.stats().refused), (0, 0, 2));
    }

    #[test]
    fn near_the_limit_only_those_read_that_hold_nothing() {
        let memory = Memory::new(MAX);
        let (holder, other) = (memory.account(), memory.account());
        let mut held = holder.reservation(Category::Assembly);
        let cx = &mut Context::from_waker(Waker::noop());
        held.set(MAX / 4 * 3 - 1);
        held.set(MAX / 4 * 3 - GRANULE);
        assert!(holder.poll_read_allowed(cx).is_ready());
        held.set(MAX / 4 * 3);
        assert!(holder.poll_read_allowed(cx).is_pending());
        assert!(other.poll_read_allowed(cx).is_ready() && other.poll_normal(cx).is_pending());
        held.set(0);
        assert!(holder.poll_read_allowed(cx).is_ready() && other.poll_normal(cx).is_ready());
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_waits_is_woken_when_memory_is_freed() {
        let memory = Memory::new(MAX);
        let (a, b) = (memory.account(), memory.account());
        let (mut of_a, mut of_b) = (a.reservation(Category::Body), b.reservation(Category::Body));
        of_a.set(MAX / 2);
        of_b.set(MAX / 2);
        let waiting = tokio::spawn(async move { std::future::poll_fn(|cx| a.poll_read_allowed(cx)).await });
        tokio::task::yield_now().await;
        drop(of_b);
        tokio::time::timeout(Duration::from_secs(1), waiting).await.unwrap().unwrap();
        assert_eq!(memory.stats().total, MAX / 2);
    }

    #[tokio::test(start_paused = true)]
    async fn evicts_the_largest_holders() {
        let memory = Memory::new(MAX);
        let watching = tokio::spawn(memory.clone().watch());
        let accounts: Vec<Account> = (0..4).map(|_| memory.account()).collect();
        let small = Holder::new(&accounts[0], GRANULE, true);
        let large = Holder::new(&accounts[1], MAX / 2, true);
        let medium = Holder::new(&accounts[2], MAX / 4 - 2 * GRANULE, false);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(small.holds() && large.holds() && medium.holds(), "there is no pressure");
        // Near the limit: the largest goes, after a second.
        let last = Holder::new(&accounts[3], GRANULE, true);
        tokio::time::sleep(NEAR_TIME_MAX / 2).await;
        assert!(large.holds());
        tokio::time::sleep(NEAR_TIME_MAX).await;
        assert!(!large.holds() && small.holds() && medium.holds() && last.holds());
        // At the limit: at once. A connection that does not free its memory is aborted.
        lock(&medium.reservation).as_mut().unwrap().set(MAX - 2 * GRANULE);
        tokio::time::sleep(EVICTION_TIME_MAX / 2).await;
        assert_eq!((memory.stats().evicted, medium.holds()), (2, true));
        tokio::time::sleep(EVICTION_TIME_MAX).await;
        assert!(small.holds() && !medium.holds() && last.holds());
        watching.abort();
    }
}
