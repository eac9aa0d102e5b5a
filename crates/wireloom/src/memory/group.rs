//! A memory limit shared by the WebSockets over the streams of one HTTP/2 connection.
//!
//! ```text
//! 0 .............. 1/2 .............. 3/4 .............. max
//!   normal           near: of the WebSockets that hold memory one reads at a time, until its message is complete
//!                                       and until that is freed
//!                    without progress for two seconds: the largest holders are evicted, down to 1/4
//!                                                          full: nothing new is reserved
//! ```
//!
//! Messages that arrive at the same time would otherwise fill the memory together, and none could be completed.

use std::task::{Context, Poll};
use std::time::Duration;

use super::account::Inner;
use super::{Exhausted, Memory};
use crate::guard::{Deferred, Guardable, Guarded, WakerSlot};
use crate::scheduler::Share;
use crate::sync::Arc;

/// How long a group may stay near its limit without progress, with WebSockets that wait to read, before the largest holders
/// are evicted. It happens when the peer spent the window of the connection on streams that may not be read, or does not complete a message.
const STALL_TIME_MAX: Duration = Duration::from_secs(2);

/// From this many bytes in [`STALL_TIME_MAX`] on, the message whose turn it is makes progress: 16 KiB/s, as for bodies.
const PROGRESS_LEN: usize = 32 << 10;

/// Accounts that share a limit.
pub(crate) struct Group {
    max: usize,
    memory: Arc<Memory>,
    /// The processor time of all accounts.
    share: Share,
    state: Guarded<State>,
}

#[derive(Default)]
struct State {
    /// Bytes of all accounts, in granules.
    held: usize,
    /// Counts turns that ended, and input of the account whose turn it is: both bring the WebSockets that wait nearer to their turn.
    progress: u64,
    /// Bytes that the account whose turn it is has read since that was progress.
    read_len: usize,
    turn: Turn,
    /// The tasks of accounts that wait to read, in order. The first that is polled when the turn ends has the next one.
    waiting: Vec<(usize, WakerSlot)>,
    is_watched: bool,
    deferred: Deferred,
}

/// The right to read near the limit, which one account has at a time. Accounts are named by their keys.
///
/// ```text
///          an account that holds memory reads             its message is complete
///  Free ------------------------------------> Reading(key) ---------------> Draining(key)
///   ^                                               |                            |
///   +------------------- it holds nothing ----------+----------------------------+ or the group has room again
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Turn {
    /// No account has the turn.
    #[default]
    Free,
    /// This account reads until its message is complete.
    Reading(usize),
    /// This account has read its message, which must be freed before another account reads.
    Draining(usize),
}

impl Guardable for State {
    fn deferred(&mut self) -> &mut Deferred {
        &mut self.deferred
    }
}

impl Group {
    pub(super) fn new(max: usize, memory: Arc<Memory>) -> Arc<Self> {
        let share = memory.scheduler().share_of_group();
        Arc::new(Self { max, memory, share, state: Guarded::new(State::default()) })
    }

    pub(super) fn share(&self) -> &Share {
        &self.share
    }

    /// Bytes of all its accounts, in granules.
    pub(crate) fn held(&self) -> usize {
        self.state.with(|state| state.held)
    }

    /// From this many bytes on, one account reads at a time.
    fn near(&self) -> usize {
        self.max / 2
    }

    /// From this many bytes on, a message that was read must be freed before another account reads.
    fn crowded(&self) -> usize {
        self.max - self.max / 4
    }

    /// Counts `len` bytes that are held already.
    pub(super) fn add(&self, len: usize) {
        self.state.with(|state| state.held += len);
    }

    /// As [`add`](Self::add), within the limit.
    pub(super) fn try_add(&self, len: usize) -> Result<(), Exhausted> {
        self.state.with(|state| {
            state.held = state.held.checked_add(len).filter(|&held| held <= self.max).ok_or(Exhausted)?;
            Ok(())
        })
    }

    pub(super) fn subtract(&self, len: usize) {
        let mut state = self.state.lock();
        let before = state.held;
        state.held -= len;
        let falls_below = |limit| before >= limit && before - len < limit;
        if falls_below(self.crowded()) && matches!(state.turn, Turn::Draining(_)) {
            state.end_turn();
        } else if falls_below(self.near()) {
            state.advance();
        }
    }

    /// Ready when this account may read: the group is not near its limit, or the account holds nothing, or it is its turn.
    pub(super) fn poll_turn(self: &Arc<Self>, account: &Inner, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        let (key, held) = (account.key(), account.held());
        if state.held < self.near() || held == 0 || state.take_turn(key) {
            return Poll::Ready(());
        }
        let State { waiting, deferred, .. } = &mut *state;
        let place = waiting.iter().position(|(waiter, _)| *waiter == key).unwrap_or_else(|| {
            waiting.push((key, WakerSlot::default()));
            waiting.len() - 1
        });
        deferred.register(&mut waiting[place].1, cx);
        let watching = if state.is_watched { None } else { self.memory.runtime() };
        state.is_watched |= watching.is_some();
        drop(state);
        if let Some(runtime) = watching {
            runtime.spawn(watch(Arc::downgrade(self)));
        }
        Poll::Pending
    }

    /// The account has read a message.
    pub(super) fn message_read(&self, key: usize) {
        let mut state = self.state.lock();
        if state.turn != Turn::Reading(key) {
            return;
        }
        state.turn = Turn::Draining(key);
        state.progress += 1;
        if state.held < self.crowded() {
            state.end_turn();
        }
    }

    /// The account has read `len` bytes of the transport.
    pub(super) fn bytes_read(&self, key: usize, len: usize) {
        let mut state = self.state.lock();
        if state.turn == Turn::Reading(key) {
            state.read_len += len;
            if state.read_len >= PROGRESS_LEN {
                state.read_len = 0;
                state.progress += 1;
            }
        }
    }

    /// Reports that the account holds no memory any more.
    pub(super) fn freed(&self, key: usize) {
        let mut state = self.state.lock();
        if matches!(state.turn, Turn::Reading(of) | Turn::Draining(of) if of == key) {
            state.end_turn();
        }
    }

    /// The account has ended.
    pub(super) fn remove(&self, key: usize) {
        self.freed(key);
        let mut state = self.state.lock();
        let State { waiting, deferred, .. } = &mut *state;
        if let Some(place) = waiting.iter().position(|(waiter, _)| *waiter == key) {
            deferred.unregister(&mut waiting.remove(place).1);
        }
    }

    /// Wakes all tasks that wait to read.
    pub(super) fn wake(&self) {
        self.state.lock().wake();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.memory.scheduler().remove(&self.share);
    }
}

impl State {
    /// Whether this account has the turn.
    fn take_turn(&mut self, key: usize) -> bool {
        if self.turn == Turn::Free {
            (self.turn, self.read_len) = (Turn::Reading(key), 0);
        }
        self.turn == Turn::Reading(key)
    }

    /// Lets another account read.
    fn end_turn(&mut self) {
        self.turn = Turn::Free;
        self.advance();
    }

    fn advance(&mut self) {
        self.progress += 1;
        self.wake();
    }

    fn wake(&mut self) {
        let Self { waiting, deferred, .. } = self;
        waiting.drain(..).for_each(|(_, mut slot)| deferred.wake(&mut slot));
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").field("max", &self.max).finish_non_exhaustive()
    }
}

/// Evicts the largest holders when there is no progress for too long. Ends when no WebSocket waits.
async fn watch(group: std::sync::Weak<Group>) {
    let mut progress = None;
    loop {
        tokio::time::sleep(STALL_TIME_MAX).await;
        let Some(group) = group.upgrade() else { return };
        let now = group.state.with(|state| {
            state.is_watched = !state.waiting.is_empty();
            state.is_watched.then_some(state.progress)
        });
        if now.is_none() {
            return;
        }
        if progress == now {
            group.memory.evict_from(&group, group.held().saturating_sub(group.max / 4)).await;
        }
        progress = now;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::task::Waker;

    use super::super::eviction::tests::Holder;
    use super::super::reservation::GRANULE;
    use super::super::{Account, Category, Reservation};
    use super::*;

    const MAX: usize = 16 * GRANULE;

    fn members(count: usize) -> (Arc<Memory>, Arc<Group>, Vec<(Account, Reservation)>) {
        let memory = Memory::new(1 << 30);
        let group = memory.group(MAX);
        let member = |_| {
            let account = memory.account_in(Some(group.clone()));
            let reservation = account.reservation(Category::Assembly);
            (account, reservation)
        };
        let members = (0..count).map(member).collect();
        (memory, group, members)
    }

    /// Two accounts that fill a group to half of its limit; the first has the turn.
    fn crowded_pair() -> [(Account, Reservation); 2] {
        let (_memory, _group, mut members) = members(2);
        members.iter_mut().for_each(|(_, held)| held.set(4 * GRANULE));
        let pair = [(); 2].map(|()| members.pop().unwrap());
        assert!(may_read(&pair[0].0));
        pair
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
        let [(first, _first_held), (second, _second_held)] = crowded_pair();
        let waiting =
            tokio::spawn(async move { std::future::poll_fn(|cx| second.poll_read_allowed(cx)).await });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        first.message_read();
        tokio::time::timeout(STALL_TIME_MAX / 2, waiting).await.unwrap().unwrap();
    }

    // The WebSocket was passed to a thread without a runtime.
    #[tokio::test(start_paused = true)]
    async fn a_reader_outside_of_the_runtime_waits_too() {
        let (memory, group, mut members) = members(2);
        let watching = tokio::spawn(memory.clone().watch());
        let holders = [5, 4].map(|len| {
            let (account, _) = members.pop().unwrap();
            let holder = Holder::new(&account, len * GRANULE, true);
            (account, holder)
        });
        assert!(may_read(&holders[0].0));
        let other = holders[1].0.clone();
        assert!(!std::thread::spawn(move || may_read(&other)).join().unwrap());
        tokio::time::sleep(STALL_TIME_MAX * 3).await;
        assert_eq!((memory.stats().evicted, group.held()), (1, 4 * GRANULE));
        watching.abort();
    }

    // Another one sends small messages meanwhile, or its application keeps some.
    #[tokio::test(start_paused = true)]
    async fn a_message_that_is_not_completed_loses_its_turn_whatever_others_hold() {
        let (memory, group, mut members) = members(3);
        let (_other, mut other_held) = members.pop().unwrap();
        let holders = [5, 4].map(|len| {
            let (account, _) = members.pop().unwrap();
            let holder = Holder::new(&account, len * GRANULE, true);
            (account, holder)
        });
        assert!(may_read(&holders[0].0) && !may_read(&holders[1].0));
        // A long message that arrives slowly is progress, also in memory that was reserved before.
        for _ in 1..7 {
            tokio::time::sleep(STALL_TIME_MAX / 2).await;
            holders[0].0.bytes_read(PROGRESS_LEN / 2);
            assert!(may_read(&holders[0].0));
        }
        assert_eq!((memory.stats().evicted, group.held()), (0, 9 * GRANULE));
        // Some bytes from time to time, such as pongs, are not.
        for len in (1..3).cycle().take(8) {
            other_held.set(len * GRANULE);
            holders[0].0.bytes_read(100);
            tokio::time::sleep(STALL_TIME_MAX / 2).await;
        }
        assert!(memory.stats().evicted > 0);
    }

    // A task that polls with another waker each time, as one that was cancelled and tries again.
    #[tokio::test(start_paused = true)]
    async fn an_account_that_waits_has_one_waker_until_it_ends() {
        struct Task;
        impl std::task::Wake for Task {
            fn wake(self: Arc<Self>) {}
        }
        let [(_first, _first_held), (second, second_held)] = crowded_pair();
        let tasks: [Arc<Task>; 3] = std::array::from_fn(|_| Arc::new(Task));
        for task in &tasks {
            let waker = Waker::from(task.clone());
            assert!(second.poll_read_allowed(&mut Context::from_waker(&waker)).is_pending());
        }
        assert_eq!(tasks.each_ref().map(Arc::strong_count), [1, 1, 2]);
        drop((second, second_held));
        assert_eq!(Arc::strong_count(&tasks[2]), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_group_without_progress_loses_its_largest_holders() {
        let (memory, group, mut members) = members(4);
        let (_other, mut other_held) = members.pop().unwrap();
        other_held.set(2 * GRANULE);
        let mut holders = Vec::new();
        for len in [5, 4, 2] {
            let (account, _) = members.pop().unwrap();
            let holder = Holder::new(&account, len * GRANULE, true);
            holders.push((account, holder));
        }
        assert!(may_read(&holders[0].0) && !may_read(&holders[1].0));
        // Each has its turn.
        for turn in 0..4 {
            let [reader, next] = [turn % 2, (turn + 1) % 2].map(|place| &holders[place].0);
            tokio::time::sleep(STALL_TIME_MAX / 2).await;
            reader.message_read();
            other_held.set(0);
            other_held.set(2 * GRANULE);
            assert!(may_read(next) && !may_read(reader));
        }
        assert_eq!((memory.stats().evicted, group.held()), (0, 13 * GRANULE));
        tokio::time::sleep(STALL_TIME_MAX * 5 / 2).await;
        assert_eq!((memory.stats().evicted, group.held()), (2, 4 * GRANULE));
        assert!(may_read(&holders[2].0));
    }
}
