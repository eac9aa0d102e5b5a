//! A memory limit shared by the WebSockets over the streams of one HTTP/2 connection.
//!
//! ```text
//! 0 .............. 1/2 .............. 3/4 .............. max
//!   normal           near: of the WebSockets that hold memory one reads at a time, until its message is complete
//!                                       and until that is freed
//!                    without a change for two seconds: the largest holders are evicted, down to 1/4
//!                                                          full: nothing new is reserved
//! ```
//!
//! Messages that arrive at the same time would otherwise fill the memory together, and none could be completed.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::account::Inner;
use super::turn::{AtomicTurn, Turn};
use super::{Memory, lock};

/// How long a group may stay near its limit without a change, with WebSockets that wait to read, before the largest holders
/// are evicted. It happens when the peer spent the window of the connection on streams that may not be read.
const STALL_TIME_MAX: Duration = Duration::from_secs(2);

/// Accounts that share a limit.
#[derive(Debug)]
pub(crate) struct Group {
    held: AtomicUsize,
    max: usize,
    /// The account that may read near the limit.
    turn: AtomicTurn,
    /// The number of changes of `held`.
    changes: AtomicU64,
    waiting: Mutex<Waiting>,
    has_waiting: AtomicBool,
}

#[derive(Debug, Default)]
struct Waiting {
    wakers: Vec<Waker>,
    is_watched: bool,
}

impl Group {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            held: AtomicUsize::new(0),
            max,
            turn: AtomicTurn::new(),
            changes: AtomicU64::new(0),
            waiting: Mutex::default(),
            has_waiting: AtomicBool::new(false),
        })
    }

    /// Bytes of all its accounts, in granules.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::SeqCst)
    }

    fn is_near(&self) -> bool {
        self.held() >= self.max / 2
    }

    pub(super) fn has_room_for(&self, len: usize) -> bool {
        self.held().saturating_add(len) <= self.max
    }

    pub(super) fn add(&self, len: usize) {
        self.held.fetch_add(len, Ordering::SeqCst);
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn subtract(&self, len: usize) {
        let before = self.held.fetch_sub(len, Ordering::SeqCst);
        self.changes.fetch_add(1, Ordering::Relaxed);
        let (near, crowded) = (self.max / 2, self.crowded());
        if before >= crowded
            && before - len < crowded
            && let turn @ Turn::Draining(_) = self.turn.get()
        {
            self.end_turn(turn);
        } else if before >= near && before - len < near {
            self.wake();
        }
    }

    /// From this many bytes on, a message that was read must be freed before another account reads.
    fn crowded(&self) -> usize {
        self.max - self.max / 4
    }

    /// Ready when this account may read: the group is not near its limit, or the account holds nothing, or it is its turn.
    pub(super) fn poll_turn(self: &Arc<Self>, account: &Inner, cx: &mut Context<'_>) -> Poll<()> {
        if self.may_read(account) {
            return Poll::Ready(());
        }
        let mut waiting = lock(&self.waiting);
        if !waiting.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            waiting.wakers.push(cx.waker().clone());
        }
        self.has_waiting.store(true, Ordering::SeqCst);
        if !std::mem::replace(&mut waiting.is_watched, true) {
            tokio::spawn(watch(Arc::downgrade(self), account.memory().clone()));
        }
        drop(waiting);
        // The turn may have ended before the waker was registered.
        if self.may_read(account) { Poll::Ready(()) } else { Poll::Pending }
    }

    fn may_read(&self, account: &Inner) -> bool {
        if !self.is_near() || account.held() == 0 {
            return true;
        }
        let reading = Turn::Reading(account.key());
        match self.turn.change(Turn::Free, reading) {
            Ok(()) => true,
            Err(turn) => turn == reading,
        }
    }

    /// The account has read a message.
    #[inline]
    pub(super) fn message_read(&self, key: usize) {
        if self.turn.get() == Turn::Reading(key) {
            self.drain(key);
        }
    }

    #[cold]
    fn drain(&self, key: usize) {
        let draining = Turn::Draining(key);
        // After this, a thread that frees memory ends the turn, unless that happened before the next line.
        if self.turn.change(Turn::Reading(key), draining).is_ok() && self.held() < self.crowded() {
            self.end_turn(draining);
        }
    }

    /// Reports that the account holds no memory any more.
    pub(super) fn freed(&self, key: usize) {
        let mut turn = self.turn.get();
        // Another thread may begin to drain it meanwhile.
        while turn.key() == Some(key) {
            match self.turn.change(turn, Turn::Free) {
                Ok(()) => return self.wake(),
                Err(changed) => turn = changed,
            }
        }
    }

    /// Lets another account read, unless another thread did so.
    fn end_turn(&self, turn: Turn) {
        if self.turn.change(turn, Turn::Free).is_ok() {
            self.wake();
        }
    }

    pub(super) fn wake(&self) {
        if self.has_waiting.swap(false, Ordering::SeqCst) {
            let wakers = std::mem::take(&mut lock(&self.waiting).wakers);
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}

/// Evicts the largest holders when nothing has changed for too long. Ends when no WebSocket waits.
async fn watch(group: std::sync::Weak<Group>, memory: Arc<Memory>) {
    let mut changes = None;
    loop {
        tokio::time::sleep(STALL_TIME_MAX).await;
        let Some(group) = group.upgrade() else { return };
        {
            let mut waiting = lock(&group.waiting);
            if waiting.wakers.is_empty() {
                waiting.is_watched = false;
                return;
            }
        }
        let before = changes.replace(group.changes.load(Ordering::Relaxed));
        if before == changes {
            memory.evict_from(&group, group.held().saturating_sub(group.max / 4)).await;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::reservation::GRANULE;
    use super::super::{Account, Category, Evict, Reservation};
    use super::*;

    const MAX: usize = 16 * GRANULE;

    fn members(count: usize) -> (Arc<Memory>, Arc<Group>, Vec<(Account, Reservation)>) {
        let (memory, group) = (Memory::new(1 << 30), Group::new(MAX));
        let member = |_| {
            let account = memory.account_in(Some(group.clone()));
            let reservation = account.reservation(Category::Assembly);
            (account, reservation)
        };
        let members = (0..count).map(member).collect();
        (memory, group, members)
    }

    fn may_read(account: &Account) -> bool {
        account.poll_read_allowed(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[tokio::test(start_paused = true)]
    async fn near_the_limit_one_reads_at_a_time() {
        let (_memory, _group, mut members) = members(4);
        for (account, held) in &mut members[..3] {
            held.set(2 * GRANULE);
            assert!(may_read(account));
        }
        members[0].1.set(4 * GRANULE);
        let allowed = |members: &[(Account, Reservation)]| -> Vec<bool> {
            members.iter().map(|(account, _)| may_read(account)).collect()
        };
        // The last holds nothing.
        assert_eq!(allowed(&members), [true, false, false, true]);
        assert_eq!(allowed(&members), [true, false, false, true]);
        members[1].0.message_read();
        assert_eq!(allowed(&members), [true, false, false, true], "it was not its turn");
        members[0].0.message_read();
        assert!(may_read(&members[1].0));
        assert_eq!(allowed(&members), [false, true, false, true]);
        // Where less is free, the next one reads when the message is freed.
        members[1].1.set(6 * GRANULE);
        members[1].0.message_read();
        assert_eq!(allowed(&members), [false, false, false, true]);
        members[1].1.set(5 * GRANULE);
        assert_eq!(allowed(&members), [true, false, false, true]);
        members[0].0.message_read();
        assert!(may_read(&members[1].0));
        // One that holds nothing any more has no turn.
        members[0].1.set(5 * GRANULE);
        members[1].1.set(0);
        assert!(may_read(&members[2].0));
        // Nor has one that is gone.
        members[1].1.set(GRANULE);
        drop(members.remove(2));
        members[1].1.set(3 * GRANULE);
        assert_eq!(allowed(&members), [true, false, true]);
        members[0].1.set(GRANULE);
        assert_eq!(allowed(&members), [true, true, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_waits_is_woken_by_the_end_of_a_turn() {
        let (_memory, _group, mut members) = members(2);
        let (first, mut first_held) = members.pop().unwrap();
        let (second, mut second_held) = members.pop().unwrap();
        first_held.set(4 * GRANULE);
        second_held.set(4 * GRANULE);
        assert!(may_read(&first));
        let waiting =
            tokio::spawn(async move { std::future::poll_fn(|cx| second.poll_read_allowed(cx)).await });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        first.message_read();
        tokio::time::timeout(STALL_TIME_MAX / 2, waiting).await.unwrap().unwrap();
    }

    /// Frees its memory when it is evicted.
    struct Holder(Mutex<Reservation>);

    impl Evict for Holder {
        fn evict(&self) {
            lock(&self.0).set(0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_group_that_does_not_change_loses_its_largest_holders() {
        let (memory, group, mut members) = members(4);
        let mut holders = Vec::new();
        for len in [5, 4, 3] {
            let (account, mut reservation) = members.pop().unwrap();
            reservation.set(len * GRANULE);
            let holder = Arc::new(Holder(Mutex::new(reservation)));
            let weak = Arc::downgrade(&holder);
            account.on_evict(weak);
            holders.push((account, holder));
        }
        assert!(may_read(&holders[0].0) && !may_read(&holders[1].0));
        // Progress.
        let (_other, mut other_held) = members.pop().unwrap();
        for _ in 0..4 {
            other_held.set(2 * GRANULE);
            tokio::time::sleep(STALL_TIME_MAX / 2).await;
            other_held.set(GRANULE);
        }
        assert_eq!((memory.stats().evicted, group.held()), (0, 13 * GRANULE));
        tokio::time::sleep(STALL_TIME_MAX * 5 / 2).await;
        assert_eq!((memory.stats().evicted, group.held()), (2, 4 * GRANULE));
        assert!(may_read(&holders[2].0));
    }
}
