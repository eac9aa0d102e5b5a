//! Eviction: the connections that hold the most are closed when memory runs out.

use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::runtime::Handle;

use super::account::Inner;
use super::group::Group;
use super::{Memory, Pressure, lock};
use crate::sync::{Arc, PoisonError};

/// How long memory may stay near the limit before the largest holder is evicted. Connections that stopped reading wait until
/// others free memory, which may never happen.
const NEAR_TIME_MAX: Duration = Duration::from_secs(1);

/// How long an evicted connection may take to free its memory before it is aborted.
const EVICTION_TIME_MAX: Duration = Duration::from_secs(1);

/// A connection, or a WebSocket over a stream of one, that can be closed to free memory.
pub(crate) trait Evict: Send + Sync {
    /// Frees its buffers and closes: a WebSocket with 1013, HTTP/1.1 with 503, HTTP/2 with ENHANCE_YOUR_CALM. False if it is in use for a
    /// while, as a WebSocket that compresses a long message: nothing has changed. Must not block, and must not call
    /// [`Account::on_evict`](super::Account::on_evict).
    fn evict(&self) -> bool;

    /// The connection did not free its memory in time: ends it at once.
    fn abort(&self) {}
}

/// A connection that is evicted.
struct Evicted {
    account: Arc<Inner>,
    /// The target that was chosen. The account may have another one since.
    target: Weak<dyn Evict>,
    /// It was in use.
    is_busy: bool,
}

impl Evicted {
    /// Whether the connection is closed and has freed its memory. Evicts it if it is no longer in use.
    fn poll_freed(&mut self) -> bool {
        let Self { account, target, is_busy } = self;
        *is_busy = *is_busy && target.upgrade().is_some_and(|target| !account.evict_target(&*target));
        !self.is_busy && self.account.held() == 0
    }

    /// It did not free its memory in time. False if it is still in use: it may be chosen again.
    fn abort(&mut self) -> bool {
        if self.is_busy {
            self.account.cancel_eviction();
        } else if self.account.held() > 0
            && let Some(target) = self.target.upgrade()
        {
            target.abort();
        }
        !self.is_busy
    }
}

impl Memory {
    /// Evicts connections while memory is exhausted, or has been near the limit for too long. Runs as long as its server.
    pub(crate) fn watch(self: Arc<Self>) -> impl Future<Output = ()> {
        *self.runtime.write().unwrap_or_else(PoisonError::into_inner) = Some(Handle::current());
        self.watch_pressure()
    }

    async fn watch_pressure(self: Arc<Self>) {
        loop {
            self.pressed.notified().await;
            while self.pressure() > Pressure::Normal {
                if self.pressure() == Pressure::Near {
                    // Handlers that read their messages free memory.
                    let _ = tokio::time::timeout(NEAR_TIME_MAX, self.pressed.notified()).await;
                    if self.pressure() == Pressure::Normal {
                        break;
                    }
                }
                let excess = self.total.load(Ordering::Relaxed).saturating_sub(self.near()).max(1);
                let evicted = self.evict_largest(excess, |_| true);
                if evicted.is_empty() {
                    tokio::time::sleep(NEAR_TIME_MAX).await;
                }
                Self::free(evicted).await;
            }
        }
    }

    /// Evicts the largest holders of a group that together hold at least `excess` bytes.
    pub(super) async fn evict_from(&self, group: &Arc<Group>, excess: usize) {
        Self::free(self.evict_largest(excess, |account| account.is_in(group))).await;
    }

    /// Aborts those of the evicted connections that do not free their memory in time.
    async fn free(mut evicted: Vec<Evicted>) {
        if !Self::wait_until_freed(&mut evicted).await {
            evicted.retain_mut(Evicted::abort);
            Self::wait_until_freed(&mut evicted).await;
        }
    }

    /// Evicts the largest holders, of those that `is_candidate` names, that together hold at least `excess` bytes.
    fn evict_largest(&self, excess: usize, is_candidate: impl Fn(&Inner) -> bool) -> Vec<Evicted> {
        // Each may be the last reference to an account of a connection that has ended, which locks the accounts when it is dropped.
        let accounts: Vec<Weak<Inner>> = lock(&self.accounts).iter().cloned().collect();
        let mut holders: Vec<(usize, Arc<Inner>)> = accounts
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|account| !account.is_evicted() && is_candidate(account))
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
            if let Some((target, is_done)) = account.evict() {
                freed += held;
                evicted.push(Evicted { account, target, is_busy: !is_done });
            }
        }
        evicted
    }

    /// Waits for evicted connections; false when they took too long.
    async fn wait_until_freed(evicted: &mut [Evicted]) -> bool {
        const STEP: Duration = Duration::from_millis(10);
        let steps = EVICTION_TIME_MAX.as_millis() / STEP.as_millis();
        for _ in 0..steps {
            let mut are_freed = true;
            // All of them, because each may still have to be evicted.
            evicted.iter_mut().for_each(|evicted| are_freed &= evicted.poll_freed());
            if are_freed {
                return true;
            }
            tokio::time::sleep(STEP).await;
        }
        false
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(super) mod tests {
    use super::super::reservation::GRANULE;
    use super::super::{Account, Category, Reservation};
    use super::*;
    use crate::sync::{AtomicBool, Model, Mutex};

    const MAX: usize = 64 * GRANULE;

    /// Frees its reservation when it is evicted, or aborted.
    pub(in super::super) struct Holder {
        reservation: Mutex<Option<Reservation>>,
        frees_on_evict: bool,
        is_busy: AtomicBool,
    }

    impl Holder {
        pub(in super::super) fn new(account: &Account, len: usize, frees_on_evict: bool) -> Arc<Self> {
            let mut reservation = account.reservation(Category::Assembly);
            reservation.try_set(len).unwrap();
            let (reservation, is_busy) = (Mutex::new(Some(reservation)), AtomicBool::new(false));
            let holder = Arc::new(Self { reservation, frees_on_evict, is_busy });
            let weak = Arc::downgrade(&holder);
            account.on_evict(weak);
            holder
        }

        fn holds(&self) -> bool {
            lock(&self.reservation).is_some()
        }
    }

    impl Evict for Holder {
        fn evict(&self) -> bool {
            let is_free = !self.is_busy.load(Ordering::Relaxed);
            if is_free && self.frees_on_evict {
                lock(&self.reservation).take();
            }
            is_free
        }

        fn abort(&self) {
            lock(&self.reservation).take();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_in_use_is_evicted_afterwards() {
        for busy_time in [EVICTION_TIME_MAX / 2, EVICTION_TIME_MAX * 4] {
            let memory = Memory::new(MAX);
            let watching = tokio::spawn(memory.clone().watch());
            let (account, other) = (memory.account(), memory.account());
            let small = Holder::new(&other, GRANULE, true);
            let busy = Holder::new(&account, MAX / 2, true);
            busy.is_busy.store(true, Ordering::Relaxed);
            lock(&busy.reservation).as_mut().unwrap().set(MAX - GRANULE);
            tokio::time::sleep(EVICTION_TIME_MAX / 4).await;
            tokio::time::sleep(busy_time).await;
            assert_eq!((memory.stats().evicted, busy.holds()), (0, true), "{busy_time:?}");
            busy.is_busy.store(false, Ordering::Relaxed);
            tokio::time::sleep(EVICTION_TIME_MAX / 10).await;
            assert_eq!((memory.stats().evicted, busy.holds(), small.holds()), (1, false, true));
            watching.abort();
        }
    }

    // HTTP/1.1: the body of a request was evicted when it was complete.
    #[test]
    fn a_connection_that_goes_on_is_evicted_again() {
        let memory = Memory::new(MAX);
        let account = memory.account();
        for _ in 0..2 {
            let holder = Holder::new(&account, MAX / 2, true);
            assert_eq!(memory.evict_largest(1, |_| true).len(), 1);
            assert!(!holder.holds());
        }
    }

    // An account that ends while the largest holder is searched is dropped by the search.
    #[test]
    fn accounts_open_and_close_while_others_are_evicted() {
        Model::explore(1_000, || {
            let memory = Memory::new(MAX);
            let connections = [0, 1].map(|_| {
                let memory = memory.clone();
                shuttle::thread::spawn(move || {
                    for _ in 0..2 {
                        let account = memory.account();
                        let holder = Holder::new(&account, GRANULE, true);
                        drop(account);
                        drop(holder);
                    }
                })
            });
            let evicting = shuttle::thread::spawn({
                let memory = memory.clone();
                move || memory.evict_largest(MAX, |_| true).len()
            });
            connections.into_iter().for_each(|connection| connection.join().unwrap());
            assert!(evicting.join().unwrap() <= 4);
            assert_eq!((memory.stats().total, lock(&memory.accounts).len()), (0, 0));
        });
    }

    // Two tasks wait for memory that others free, and their wakers use the memory.
    #[test]
    fn tasks_that_wait_for_memory_are_woken() {
        struct Waiter(Account, shuttle::sync::mpsc::Sender<()>);

        impl std::task::Wake for Waiter {
            fn wake(self: Arc<Self>) {
                // It reserves and frees in place, as an executor that polls its task at once.
                self.0.reservation(Category::Body).set(GRANULE);
                let _ = self.1.send(());
            }
        }

        Model::explore(1_000, || {
            let memory = Memory::new(MAX);
            let group = memory.group(4 * GRANULE);
            let holder = memory.account_in(Some(group.clone()));
            let mut held = holder.reservation(Category::Assembly);
            held.set(MAX / 2);
            let mut other = memory.account().reservation(Category::Body);
            other.set(MAX / 2);
            let cx = &mut std::task::Context::from_waker(std::task::Waker::noop());
            assert!(holder.poll_read_allowed(cx).is_pending());
            let (woken, is_woken) = shuttle::sync::mpsc::channel();
            let waiting = shuttle::thread::spawn({
                let (memory, group) = (memory.clone(), group.clone());
                move || {
                    let account = memory.account_in(Some(group));
                    let mut own = account.reservation(Category::Assembly);
                    own.set(5 * GRANULE);
                    let waker = Arc::new(Waiter(account.clone(), woken)).into();
                    let cx = &mut std::task::Context::from_waker(&waker);
                    while account.poll_read_allowed(cx).is_pending() {
                        is_woken.recv().unwrap();
                    }
                }
            });
            let freeing = shuttle::thread::spawn(move || drop(other));
            holder.message_read();
            drop(held);
            freeing.join().unwrap();
            waiting.join().unwrap();
            assert_eq!((memory.stats().total, group.held()), (0, 0));
        });
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
