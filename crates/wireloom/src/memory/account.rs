//! The account of one connection.

use std::sync::Weak;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::task::{Context, Poll};

use tokio::runtime::Handle;

use super::eviction::Evict;
use super::group::Group;
use super::reservation::{GRANULE, Reservation};
use super::{Category, Exhausted, Memory, Pressure, SlowPeers, lock};
use crate::scheduler::{Share, Ticket};
use crate::sync::{Arc, AtomicBool, Mutex};

/// A connection that holds at most this many bytes may read near the limit too: two deflate windows, or a few messages.
const SMALL_LEN: usize = 4 * GRANULE;

/// Reservations are rounded up to this, or to more.
const KIB: usize = 1 << 10;

fn kib(len: usize) -> u32 {
    (len / KIB) as u32
}

/// The memory of an idle HTTP connection, in KiB: its task, the registration with the runtime, a short head. Tests count it.
pub(crate) const CONNECTION_KIB: u8 = 4;

/// As [`CONNECTION_KIB`], for a WebSocket.
pub(crate) const WEBSOCKET_KIB: u8 = 1;

/// The additional memory of a connection with TLS, in KiB.
#[cfg(feature = "tls")]
pub(crate) const TLS_KIB: u8 = 8;

/// As [`TLS_KIB`], until the handshake has ended.
#[cfg(feature = "tls")]
pub(crate) const TLS_HANDSHAKE_KIB: u8 = 12;

/// The memory account of one connection. The default is for clients: it counts nothing and has no limit.
#[derive(Clone, Debug, Default)]
pub(crate) struct Account(Option<Arc<Inner>>);

pub(super) struct Inner {
    memory: Arc<Memory>,
    /// Of what it holds while it is idle.
    idle_kib: AtomicU8,
    /// The memory of all its reservations, in KiB.
    held_kib: AtomicU32,
    group: Option<Arc<Group>>,
    /// Whether the target was evicted. It changes while that is locked.
    is_evicted: AtomicBool,
    /// Its share of the processor, unless it belongs to a group. Its id is the index of this account in [`Memory`].
    share: Share,
    target: Mutex<Option<Weak<dyn Evict>>>,
}

impl Account {
    pub(super) fn new(inner: Arc<Inner>) -> Self {
        Self(Some(inner))
    }

    /// The runtime of the server; without one, that of this thread.
    pub(crate) fn runtime(&self) -> Option<Handle> {
        match &self.0 {
            None => Handle::try_current().ok(),
            Some(inner) => inner.memory.runtime(),
        }
    }

    /// The counters of slow peers of the server.
    pub(crate) fn slow_peers(&self) -> Option<&SlowPeers> {
        self.0.as_ref().map(|inner| &inner.memory.slow_peers)
    }

    /// A new reservation of this connection, with 0 bytes.
    pub(crate) fn reservation(&self, category: Category) -> Reservation {
        Reservation::new(self.clone(), category)
    }

    /// Sets what is closed when the server is out of memory and this account holds the most: the connection, or one message of HTTP/1.1,
    /// after whose eviction the connection may go on.
    pub(crate) fn on_evict(&self, target: Weak<dyn Evict>) {
        if let Some(inner) = &self.0 {
            let mut current = lock(&inner.target);
            *current = Some(target);
            inner.is_evicted.store(false, Ordering::Release);
        }
    }

    /// Whether the server accepts another connection, request or stream.
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

    /// Ready when the connection may read: memory is not near the limit, or the connection holds at most [`SMALL_LEN`] bytes, so
    /// that clients with small messages are always served; or it was evicted and must notice.
    pub(crate) fn poll_read_allowed(&self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(inner) = &self.0 else { return Poll::Ready(()) };
        if let Some(group) = &inner.group
            && group.poll_turn(inner, cx).is_pending()
            && !inner.is_evicted()
        {
            return Poll::Pending;
        }
        if inner.memory.pressure() == Pressure::Normal || inner.held() <= SMALL_LEN || inner.is_evicted() {
            return Poll::Ready(());
        }
        let normal = inner.memory.poll_normal(inner.key(), cx);
        // It may have been evicted before the waker was registered.
        if inner.is_evicted() { Poll::Ready(()) } else { normal }
    }

    /// Reports bytes that were read into a message for which memory is reserved.
    #[inline]
    pub(crate) fn bytes_read(&self, len: usize) {
        if let Some(inner) = self.0.as_deref()
            && let Some(group) = &inner.group
        {
            group.bytes_read(inner.key(), len);
        }
    }

    /// Reports a complete message: others of the group may read.
    #[inline]
    pub(crate) fn message_read(&self) {
        if let Some(inner) = self.0.as_deref()
            && let Some(group) = &inner.group
        {
            group.message_read(inner.key());
        }
    }

    /// Whether [`poll_turn`](Self::poll_turn) may wait.
    #[inline]
    pub(crate) fn has_turns(&self) -> bool {
        self.0.as_ref().is_some_and(|inner| inner.memory.scheduler().is_running())
    }

    /// Counts bytes that the connection has produced.
    pub(crate) fn charge(&self, len: usize) {
        if let Some(inner) = &self.0 {
            inner.memory.scheduler().charge(inner.share(), len);
        }
    }

    /// Ready when the connection has credit of its current turn, or a new one.
    #[inline]
    pub(crate) fn poll_turn(&self, ticket: &mut Option<Ticket>, cx: &Context<'_>) -> Poll<()> {
        let Some(inner) = &self.0 else { return Poll::Ready(()) };
        inner.memory.scheduler().poll_turn(inner.share(), ticket, cx)
    }

    /// A task does not wait for a turn any more.
    pub(crate) fn cancel_turn(&self, ticket: Ticket) {
        if let Some(inner) = &self.0 {
            inner.memory.scheduler().cancel(inner.share(), ticket);
        }
    }

    /// Counts what the connection holds while it is idle, until the account ends.
    ///
    /// # Errors
    /// Idle connections hold too much; nothing has changed.
    pub(crate) fn try_add_idle(&self, kib: u8) -> Result<(), Exhausted> {
        let Some(inner) = &self.0 else { return Ok(()) };
        inner.memory.try_add(Category::Connection, usize::from(kib) << 10)?;
        inner.idle_kib.fetch_add(kib, Ordering::Relaxed);
        Ok(())
    }

    /// The connection holds less while it is idle.
    pub(crate) fn subtract_idle(&self, kib: u8) {
        let Some(inner) = &self.0 else { return };
        inner.idle_kib.fetch_sub(kib, Ordering::Relaxed);
        inner.memory.subtract(Category::Connection, usize::from(kib) << 10);
    }

    /// Counts `len` bytes that are held already.
    pub(super) fn add(&self, category: Category, len: usize) {
        let Some(inner) = &self.0 else { return };
        inner.held_kib.fetch_add(kib(len), Ordering::Relaxed);
        inner.group.iter().for_each(|group| group.add(len));
        inner.memory.add(category, len);
    }

    /// As [`add`](Self::add), within the limits of the group and the server.
    pub(crate) fn try_add(&self, category: Category, len: usize) -> Result<(), Exhausted> {
        let Some(inner) = &self.0 else { return Ok(()) };
        if let Some(group) = &inner.group {
            group.try_add(len).inspect_err(|_| {
                inner.memory.refused.fetch_add(1, Ordering::Relaxed);
            })?;
        }
        inner.memory.try_add(category, len).inspect_err(|_| {
            inner.group.iter().for_each(|group| group.subtract(len));
        })?;
        inner.held_kib.fetch_add(kib(len), Ordering::Relaxed);
        Ok(())
    }

    /// Frees `len` bytes that were counted.
    pub(crate) fn subtract(&self, category: Category, len: usize) {
        let Some(inner) = &self.0 else { return };
        let held_kib = inner.held_kib.fetch_sub(kib(len), Ordering::Relaxed) - kib(len);
        if let Some(group) = &inner.group {
            group.subtract(len);
            if held_kib == 0 {
                group.freed(inner.key());
            }
        }
        inner.memory.subtract(category, len);
    }
}

impl Inner {
    pub(super) fn new(memory: Arc<Memory>, key: usize, group: Option<Arc<Group>>) -> Self {
        Self {
            share: Share::of_account(key),
            memory,
            idle_kib: AtomicU8::new(0),
            held_kib: AtomicU32::new(0),
            group,
            is_evicted: AtomicBool::new(false),
            target: Mutex::new(None),
        }
    }

    pub(super) fn key(&self) -> usize {
        self.share.id() as usize
    }

    /// The share of its group, or its own.
    fn share(&self) -> &Share {
        self.group.as_ref().map_or(&self.share, |group| group.share())
    }

    pub(super) fn held(&self) -> usize {
        self.held_kib.load(Ordering::Relaxed) as usize * KIB
    }

    pub(super) fn is_in(&self, group: &Arc<Group>) -> bool {
        self.group.as_ref().is_some_and(|of| Arc::ptr_eq(of, group))
    }

    pub(super) fn is_evicted(&self) -> bool {
        self.is_evicted.load(Ordering::Acquire)
    }

    /// Evicts the connection: returns what was evicted, and false if it is in use. `None` if it has set no target.
    pub(super) fn evict(&self) -> Option<(Weak<dyn Evict>, bool)> {
        let (chosen, target) = {
            let current = lock(&self.target);
            let chosen = current.as_ref()?;
            let target = chosen.upgrade()?;
            self.is_evicted.store(true, Ordering::Release);
            (chosen.clone(), target)
        };
        let is_done = self.evict_target(&*target);
        self.memory.wake_waiting();
        if let Some(group) = &self.group {
            group.wake();
        }
        Some((chosen, is_done))
    }

    /// Evicts what was chosen; false if it is in use.
    pub(super) fn evict_target(&self, target: &dyn Evict) -> bool {
        let is_done = target.evict();
        self.memory.evicted.fetch_add(u64::from(is_done), Ordering::Relaxed);
        is_done
    }

    /// The target was in use for too long.
    pub(super) fn cancel_eviction(&self) {
        let _target = lock(&self.target);
        self.is_evicted.store(false, Ordering::Release);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(group) = &self.group {
            group.remove(self.key());
        }
        self.memory.remove_waiting(self.key());
        self.memory.scheduler().remove(&self.share);
        self.memory.subtract(Category::Connection, usize::from(*self.idle_kib.get_mut()) << 10);
        lock(&self.memory.accounts).remove(self.key());
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Account").field("held", &self.held()).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Waker;
    use std::time::Duration;

    use super::*;

    const MAX: usize = 64 * GRANULE;

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
        assert!(other.poll_read_allowed(cx).is_ready());
        held.set(0);
        assert!(holder.poll_read_allowed(cx).is_ready());
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
    /// Counts how often it wakes.
    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl std::task::Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_task_whose_account_has_ended_does_not_wait() {
        let memory = Memory::new(MAX);
        let (holder, other) = (memory.account(), memory.account());
        let mut held = [holder, other.clone()].map(|account| account.reservation(Category::Body));
        held.iter_mut().for_each(|held| held.set(MAX));
        let task = Arc::new(Wakes::default());
        let waker = Waker::from(task.clone());
        assert!(other.poll_read_allowed(&mut Context::from_waker(&waker)).is_pending());
        let [_held, of_other] = held;
        drop((waker, other, of_other));
        assert_eq!(Arc::strong_count(&task), 1);
    }

    // A search among all waiting tasks for each of them would take minutes.
    #[test]
    fn every_waiting_task_is_woken_once() {
        const COUNT: usize = 100_000;
        let memory = Memory::new(MAX);
        let accounts: Vec<_> = (0..COUNT).map(|_| memory.account()).collect();
        let mut held = accounts[0].reservation(Category::Body);
        held.set(MAX);
        // Two tasks may wait for one account, and a task may be polled again.
        let tasks: Vec<[Arc<Wakes>; 2]> = (0..COUNT).map(|_| Default::default()).collect();
        for (account, tasks) in accounts.iter().zip(&tasks) {
            let key = account.0.as_ref().unwrap().key();
            for task in [&tasks[0], &tasks[1], &tasks[0]] {
                let waker = Waker::from(task.clone());
                assert!(memory.poll_normal(key, &mut Context::from_waker(&waker)).is_pending());
            }
        }
        held.set(0);
        for task in tasks.iter().flatten() {
            assert_eq!(task.0.load(Ordering::Relaxed), 1);
        }
    }
}
