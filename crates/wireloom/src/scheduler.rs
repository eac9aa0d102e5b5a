//! The share of the processor that each connection of a server has.
//!
//! ```text
//!            produces bytes            its turn is used up            its tasks wait, in order
//! Share ----------------------> credit ------------------> used_up: [ a | b | c ] --> run(): one turn for each worker, then
//!   ^                                                                                  |     everything else that is ready
//!   +------------------------------ others have their turns: credit -------------------+
//! ```
//!
//! A connection may produce [`TURN`] bytes in its turn, and up to [`FREE`] bytes at any time without waiting. What it has used of these comes
//! back while others have their turns, at the rate at which each of those that wait gets its share: a turn in as many turns as there are
//! connections that wait. So a connection that produces less than its share never waits, however many others produce as much as they can
//! and however long their turns take; and of those, only one for each worker has its turn at a time, so that tasks which become ready
//! meanwhile wait for no more than that. The tasks of a connection are woken together, so that the output of many streams leaves in one
//! write; one that finds the turn used up by others keeps its place. The rest of a turn expires when the next one begins: many
//! connections could collect it and use it at once.

use std::collections::VecDeque;
use std::collections::hash_map::{Entry as MapEntry, HashMap};
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll};

use crate::guard::{Deferred, Guardable, Guarded, WakerSlot};

/// Bytes that a connection may produce in its turn: about a millisecond of inflating or of copying.
pub(crate) const TURN: usize = 1 << 20;

/// Bytes that a connection may produce at once before it waits for its turn. Hundreds of connections that begin at once delay others by
/// hundreds of these.
const FREE: usize = TURN / 8;

/// The tasks of one connection that are woken together. Each of them may find that those before it have used up the turn.
const BATCH_MAX: usize = 64;

/// The turns that a connection pays at most for one piece of work.
const DEBT_TURNS_MAX: i64 = 64;

/// The connections of a server that produce more than a turn.
#[derive(Default)]
pub(crate) struct Scheduler {
    queue: Guarded<Queue>,
    /// While it does not run, no task waits.
    is_running: AtomicBool,
    groups: AtomicU32,
}

/// The share of one connection, or of all WebSockets over the streams of one.
#[derive(Debug)]
pub(crate) struct Share {
    id: u32,
    /// Whether the scheduler knows it: it has produced something.
    is_known: AtomicBool,
    /// Whether its turn is used up, or tasks wait for it.
    must_wait: AtomicBool,
}

impl Share {
    /// Of the id of a group. Accounts, which may use an id again that has been [removed](Scheduler::remove), have others.
    const GROUP: u32 = 1 << 31;

    fn new(id: u32) -> Self {
        Self { id, is_known: AtomicBool::new(false), must_wait: AtomicBool::new(false) }
    }

    /// The share of the connection with this account, by its key.
    pub(crate) fn of_account(key: usize) -> Self {
        Self::new(key as u32)
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }
}

/// The place of a waiting task in the queue of its share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

#[derive(Default)]
struct Queue {
    /// The number of turns that have begun.
    turns: u64,
    entries: HashMap<u32, Entry>,
    /// Shares whose credit is used up, in the order of their next turns, each once.
    used_up: VecDeque<u32>,
    /// Shares whose turns came last.
    in_turn: Vec<u32>,
    /// Waits for a task that waits.
    runner: WakerSlot,
    deferred: Deferred,
}

/// A share that has produced something.
struct Entry {
    /// The value of [`Queue::turns`] up to which its share of them is in its credit.
    turns: u64,
    /// Bytes that it may still produce; negative when more was produced.
    credit: i64,
    turn: Turn,
    /// Tasks that wait for a turn, in order of their tickets; None where nothing waits any more. A task keeps its place until it has
    /// used the turn for which it was woken: only such tasks are left when the turn is [`Turn::Free`].
    tasks: VecDeque<Option<WakerSlot>>,
    /// The ticket of the first of them.
    first: u64,
    /// The number of tasks at the front whose turn has come.
    called: usize,
}

/// ```text
///        the credit is used up            its turn comes            no task waits
///  Free -----------------------> UsedUp ----------------> Running ---------------> Free
///                                  ^                         |
///                                  +-------------------------+ the credit is used up
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// It has credit, and no task waits that was not woken.
    Free,
    /// It is in [`Queue::used_up`].
    UsedUp,
    /// It is at the front of [`Queue::used_up`], and its tasks are woken.
    Running,
}

impl Guardable for Queue {
    fn deferred(&mut self) -> &mut Deferred {
        &mut self.deferred
    }
}

impl Scheduler {
    /// The share of all WebSockets over the streams of another connection.
    pub(crate) fn share_of_group(&self) -> Share {
        Share::new(self.groups.fetch_add(1, Ordering::Relaxed) | Share::GROUP)
    }

    /// Whether tasks may wait for turns.
    #[inline]
    pub(crate) fn is_running(&self) -> bool {
        self.is_running.load(Ordering::Acquire)
    }

    /// Counts `len` bytes that were produced.
    pub(crate) fn charge(&self, share: &Share, len: usize) {
        let mut queue = self.queue.lock();
        let Queue { turns, entries, used_up, .. } = &mut *queue;
        let entry = match entries.entry(share.id) {
            MapEntry::Occupied(entry) => entry.into_mut(),
            MapEntry::Vacant(entry) => {
                share.is_known.store(true, Ordering::Relaxed);
                entry.insert(Entry::new(*turns))
            }
        };
        if entry.turn == Turn::Free {
            entry.give_share(*turns, used_up.len());
        }
        let debt_max = DEBT_TURNS_MAX * TURN as i64;
        entry.credit = entry.credit.saturating_sub_unsigned(len as u64).max(-debt_max);
        if entry.credit <= 0 && entry.turn == Turn::Free {
            entry.turn = Turn::UsedUp;
            used_up.push_back(share.id);
            share.must_wait.store(true, Ordering::Release);
        }
    }

    /// Ready when the share has credit. Otherwise the task waits in the order of `ticket`, which is its own.
    #[inline]
    pub(crate) fn poll_turn(&self, share: &Share, ticket: &mut Option<Ticket>, cx: &Context<'_>) -> Poll<()> {
        if ticket.is_none() && !share.must_wait.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        self.poll_next_turn(share, ticket, cx)
    }

    #[cold]
    fn poll_next_turn(&self, share: &Share, ticket: &mut Option<Ticket>, cx: &Context<'_>) -> Poll<()> {
        let mut queue = self.queue.lock();
        let Queue { entries, runner, deferred, .. } = &mut *queue;
        let entry = entries.get_mut(&share.id).filter(|_| self.is_running());
        let Some(entry) = entry else {
            *ticket = None;
            return Poll::Ready(());
        };
        if let Some(Ticket(number)) = *ticket {
            match entry.slot(Ticket(number)) {
                Some((slot, false)) => {
                    if !slot.is_registered() {
                        // The turn for which it was woken is used up, and nothing else may wait for the next one.
                        deferred.wake(runner);
                    }
                    deferred.register(slot, cx);
                    return Poll::Pending;
                }
                Some((_, true)) | None => {
                    entry.leave(Ticket(number));
                    *ticket = None;
                    return Poll::Ready(());
                }
            }
        }
        if entry.turn == Turn::Free {
            share.must_wait.store(false, Ordering::Release);
            return Poll::Ready(());
        }
        let mut slot = WakerSlot::default();
        deferred.register(&mut slot, cx);
        *ticket = Some(Ticket(entry.first + entry.tasks.len() as u64));
        entry.tasks.push_back(Some(slot));
        deferred.wake(runner);
        Poll::Pending
    }

    /// Nothing waits with this ticket any more. Its task is woken: it may wait for the ticket alone.
    pub(crate) fn cancel(&self, share: &Share, ticket: Ticket) {
        let mut queue = self.queue.lock();
        let Queue { entries, deferred, .. } = &mut *queue;
        let Some(entry) = entries.get_mut(&share.id) else { return };
        if let Some((slot, _)) = entry.slot(ticket) {
            deferred.wake(slot);
            entry.leave(ticket);
        }
    }

    /// The connection has ended.
    pub(crate) fn remove(&self, share: &Share) {
        if !share.is_known.load(Ordering::Relaxed) {
            return;
        }
        let mut queue = self.queue.lock();
        let Queue { entries, used_up, deferred, .. } = &mut *queue;
        if let Some(entry) = entries.remove(&share.id) {
            if entry.turn != Turn::Free {
                // The next account with this id would have this place beside its own.
                used_up.retain(|id| *id != share.id);
            }
            entry.tasks.into_iter().flatten().for_each(|mut slot| deferred.wake(&mut slot));
        }
    }

    /// Gives connections their turns, for as long as their server runs.
    pub(crate) async fn run(&self) {
        let _running = Running::new(self);
        let turns_max = tokio::runtime::Handle::current().metrics().num_workers();
        loop {
            poll_fn(|cx| self.poll_wake_next(turns_max, cx)).await;
            // The tasks that were woken, and all others that are ready.
            tokio::task::yield_now().await;
        }
    }

    /// Ready when tasks were woken.
    fn poll_wake_next(&self, turns_max: usize, cx: &Context<'_>) -> Poll<()> {
        let mut queue = self.queue.lock();
        if queue.wake_next(turns_max) {
            return Poll::Ready(());
        }
        let Queue { runner, deferred, .. } = &mut *queue;
        deferred.register(runner, cx);
        Poll::Pending
    }
}

impl Queue {
    /// Wakes the next tasks of at most `turns_max` connections. False if none waits.
    fn wake_next(&mut self, turns_max: usize) -> bool {
        let Self { turns: begun, entries, used_up, in_turn, deferred, .. } = self;
        if used_up.is_empty() {
            return false;
        }
        for id in in_turn.drain(..) {
            if let Some(entry) = entries.get_mut(&id) {
                entry.credit = entry.credit.min(FREE as i64);
            }
        }
        let mut turns = 0;
        while turns < turns_max
            && let Some(&id) = used_up.front()
        {
            let Some(entry) = entries.get_mut(&id) else {
                used_up.pop_front();
                continue;
            };
            if entry.turn == Turn::UsedUp {
                *begun += 1;
                entry.begin_turn(*begun);
            }
            if entry.credit > 0 {
                turns += usize::from(entry.wake_batch(deferred));
                if entry.called < entry.tasks.len() {
                    break;
                }
            }
            used_up.pop_front();
            entry.turn = Turn::Free;
            if entry.credit <= 0 {
                entry.turn = Turn::UsedUp;
                used_up.push_back(id);
            } else {
                in_turn.push(id);
            }
        }
        turns > 0
    }
}

impl Entry {
    fn new(turns: u64) -> Self {
        Self { turns, credit: FREE as i64, turn: Turn::Free, tasks: VecDeque::new(), first: 0, called: 0 }
    }

    /// Adds its share of the turns of others since the last call, up to [`FREE`], while `waiting` connections wait for theirs.
    fn give_share(&mut self, turns: u64, waiting: usize) {
        let others = turns.saturating_sub(std::mem::replace(&mut self.turns, turns));
        let share = (others as usize).saturating_mul(TURN) / waiting.max(1);
        self.credit = self.credit.max((self.credit.saturating_add_unsigned(share as u64)).min(FREE as i64));
    }

    fn begin_turn(&mut self, turns: u64) {
        self.turn = Turn::Running;
        self.turns = turns;
        self.credit += TURN as i64;
        self.called = 0;
    }

    /// The slot of a task that waits, and whether its turn has come and is not used up.
    fn slot(&mut self, ticket: Ticket) -> Option<(&mut WakerSlot, bool)> {
        let at = ticket.0.checked_sub(self.first)? as usize;
        let has_turn = at < self.called && self.credit > 0;
        self.tasks.get_mut(at)?.as_mut().map(|slot| (slot, has_turn))
    }

    /// The task with this ticket does not wait any more.
    fn leave(&mut self, ticket: Ticket) {
        if let Some(at) = ticket.0.checked_sub(self.first)
            && let Some(slot) = self.tasks.get_mut(at as usize)
        {
            *slot = None;
        }
        self.pop_left();
    }

    fn pop_left(&mut self) {
        while let Some(None) = self.tasks.front() {
            self.tasks.pop_front();
            self.first += 1;
            self.called = self.called.saturating_sub(1);
        }
    }

    /// Calls the next tasks. False if none of them waits any more.
    fn wake_batch(&mut self, deferred: &mut Deferred) -> bool {
        let mut woken = 0;
        while woken < BATCH_MAX
            && let Some(task) = self.tasks.get_mut(self.called)
        {
            self.called += 1;
            match task {
                Some(slot) if slot.is_registered() => {
                    deferred.wake(slot);
                    woken += 1;
                }
                // It was woken for an earlier turn and not polled since: it stops no other.
                task => *task = None,
            }
        }
        self.pop_left();
        woken > 0
    }
}

/// Lets no task wait any more when it is dropped.
struct Running<'a>(&'a Scheduler);

impl<'a> Running<'a> {
    fn new(scheduler: &'a Scheduler) -> Self {
        scheduler.is_running.store(true, Ordering::Release);
        Self(scheduler)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.is_running.store(false, Ordering::Release);
        let mut queue = self.0.queue.lock();
        let Queue { entries, used_up, deferred, .. } = &mut *queue;
        used_up.clear();
        let tasks = entries.drain().flat_map(|(_, entry)| entry.tasks);
        tasks.flatten().for_each(|mut slot| deferred.wake(&mut slot));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::{Wake, Waker};

    use super::*;
    use crate::sync::{Arc, Model};

    /// A scheduler that runs in the background.
    fn running() -> Arc<Scheduler> {
        let scheduler = Arc::new(Scheduler::default());
        tokio::spawn({
            let scheduler = scheduler.clone();
            async move { scheduler.run().await }
        });
        scheduler
    }

    async fn turn(scheduler: &Scheduler, share: &Share) {
        let mut ticket = None;
        poll_fn(|cx| scheduler.poll_turn(share, &mut ticket, cx)).await;
    }

    /// A task that produces `len` bytes at a time for as long as it may, and counts them.
    fn produce(scheduler: &Arc<Scheduler>, share: &Arc<Share>, len: usize) -> Arc<AtomicUsize> {
        let produced = Arc::new(AtomicUsize::new(0));
        let (scheduler, share, counter) = (scheduler.clone(), share.clone(), produced.clone());
        tokio::spawn(async move {
            loop {
                turn(&scheduler, &share).await;
                counter.fetch_add(len, Ordering::Relaxed);
                scheduler.charge(&share, len);
            }
        });
        produced
    }

    fn total(counters: &[Arc<AtomicUsize>]) -> usize {
        counters.iter().map(|counter| counter.load(Ordering::Relaxed)).sum()
    }

    #[tokio::test]
    async fn connections_have_equal_shares_whatever_their_number_of_tasks_and_the_length_of_their_messages() {
        let scheduler = running();
        tokio::task::yield_now().await;
        let connection = |tasks: usize, len: usize| {
            let share = Arc::new(scheduler.share_of_group());
            (0..tasks).map(|_| produce(&scheduler, &share, len)).collect::<Vec<_>>()
        };
        let connections = [
            connection(1, 16 << 10),
            connection(1, TURN),
            connection(1, 16 * TURN),
            connection(50, TURN),
            connection(50, 16 << 10),
        ];
        while total(&connections[0]) < 400 * TURN {
            tokio::task::yield_now().await;
        }
        for connection in &connections {
            // In turns, but for the last message of each task.
            let turns = total(connection) / TURN;
            assert!((380..=450).contains(&turns), "{turns}");
        }
        // The tasks of a connection too.
        for task in &connections[3] {
            assert!((5..=11).contains(&(task.load(Ordering::Relaxed) / TURN)));
        }
    }

    #[tokio::test]
    async fn a_connection_that_produces_little_does_not_wait() {
        let scheduler = running();
        tokio::task::yield_now().await;
        let greedy: Vec<_> =
            (0..200).map(|_| produce(&scheduler, &Arc::new(scheduler.share_of_group()), TURN)).collect();
        while total(&greedy) < 200 * TURN {
            tokio::task::yield_now().await;
        }
        let share = scheduler.share_of_group();
        let cx = &mut Context::from_waker(Waker::noop());
        for _ in 0..2_000 {
            let before = total(&greedy);
            assert!(scheduler.poll_turn(&share, &mut None, cx).is_ready());
            scheduler.charge(&share, TURN / 10_000);
            tokio::task::yield_now().await;
            let meanwhile = (total(&greedy) - before) / TURN;
            assert!(meanwhile <= 2, "{meanwhile}");
        }
        assert!(total(&greedy) > 1_000 * TURN);
    }

    // It would wait for the turns of all others otherwise.
    #[test]
    fn a_connection_that_produces_less_than_its_share_does_not_wait_within_a_round() {
        const COUNT: usize = 200;
        let scheduler = Scheduler::default();
        scheduler.is_running.store(true, Ordering::Release);
        let cx = &mut Context::from_waker(Waker::noop());
        let greedy = [(); COUNT].map(|()| scheduler.share_of_group());
        let mut tickets = [None; COUNT];
        for (share, ticket) in greedy.iter().zip(&mut tickets) {
            scheduler.charge(share, FREE);
            assert!(scheduler.poll_turn(share, ticket, cx).is_pending());
        }
        let modest = scheduler.share_of_group();
        for turn in 0..3 * COUNT {
            assert!(scheduler.queue.lock().wake_next(1));
            let (share, ticket) = (&greedy[turn % COUNT], &mut tickets[turn % COUNT]);
            assert!(scheduler.poll_turn(share, ticket, cx).is_ready(), "{turn}");
            scheduler.charge(share, TURN);
            assert!(scheduler.poll_turn(share, ticket, cx).is_pending());
            assert!(scheduler.poll_turn(&modest, &mut None, cx).is_ready(), "{turn}");
            scheduler.charge(&modest, TURN / COUNT * 9 / 10);
        }
        // More than its share.
        for _ in 0..=FREE / (TURN / COUNT) {
            scheduler.charge(&modest, TURN / COUNT);
        }
        assert!(scheduler.poll_turn(&modest, &mut None, cx).is_pending());
    }

    // Otherwise many connections would produce a turn each before anything else that is ready.
    #[tokio::test]
    async fn a_connection_waits_after_little_when_it_begins_and_after_a_turn_of_which_much_is_left() {
        let scheduler = running();
        tokio::task::yield_now().await;
        let shares = [(); 3].map(|()| scheduler.share_of_group());
        let cx = &mut Context::from_waker(Waker::noop());
        let produces_freely = |share: &Share, cx: &mut Context<'_>| {
            let (mut ticket, mut len) = (None, 0);
            while scheduler.poll_turn(share, &mut ticket, cx).is_ready() {
                scheduler.charge(share, FREE / 4);
                len += FREE / 4;
            }
            scheduler.cancel(share, ticket.unwrap());
            len
        };
        for share in &shares {
            assert_eq!(produces_freely(share, cx), FREE);
        }
        for share in &shares {
            turn(&scheduler, share).await;
            scheduler.charge(share, 1);
        }
        // Another turn has begun since.
        for share in &shares[..2] {
            assert_eq!(produces_freely(share, cx), FREE);
        }
    }

    // The output of each would leave in a write of its own otherwise.
    #[test]
    fn tasks_of_a_connection_have_their_turn_together_until_it_is_used_up() {
        let turns = |len: usize| {
            let scheduler = Scheduler::default();
            scheduler.is_running.store(true, Ordering::Release);
            let share = scheduler.share_of_group();
            scheduler.charge(&share, FREE);
            let cx = &mut Context::from_waker(Waker::noop());
            let mut tickets = [None; 100];
            for ticket in &mut tickets {
                assert!(scheduler.poll_turn(&share, ticket, cx).is_pending());
            }
            let mut turns = Vec::new();
            while scheduler.queue.lock().wake_next(1) {
                let mut ready = Vec::new();
                for (number, ticket) in tickets.iter_mut().enumerate() {
                    if ticket.is_some() && scheduler.poll_turn(&share, ticket, cx).is_ready() {
                        scheduler.charge(&share, len);
                        ready.push(number);
                    }
                }
                turns.push(ready);
            }
            assert!(scheduler.queue.lock().entries[&share.id].tasks.is_empty());
            turns
        };
        let all: Vec<_> = (0..100).collect();
        assert_eq!(turns(TURN / 100), [&all[..BATCH_MAX], &all[BATCH_MAX..]]);
        // Those that find the turn used up keep their places.
        assert_eq!(turns(TURN / 4), all.chunks(4).collect::<Vec<_>>());
        assert_eq!(turns(2 * TURN), all.chunks(1).collect::<Vec<_>>());
    }

    #[test]
    fn a_connection_does_not_take_over_the_places_of_those_that_had_its_key() {
        let scheduler = Scheduler::default();
        scheduler.is_running.store(true, Ordering::Release);
        for _ in 0..3 {
            let share = Share::of_account(5);
            scheduler.charge(&share, FREE);
            assert_eq!(scheduler.queue.lock().used_up, [5]);
            scheduler.remove(&share);
        }
        assert!(scheduler.queue.lock().used_up.is_empty());
    }

    #[tokio::test]
    async fn a_task_that_is_gone_stops_no_other() {
        let scheduler = running();
        tokio::task::yield_now().await;
        let share = Arc::new(scheduler.share_of_group());
        scheduler.charge(&share, 3 * TURN);
        let cx = &mut Context::from_waker(Waker::noop());
        let mut tickets = [None; 3];
        for ticket in &mut tickets {
            assert!(scheduler.poll_turn(&share, ticket, cx).is_pending());
        }
        // One is cancelled, one is woken and not polled, one waits for another task.
        scheduler.cancel(&share, tickets[0].unwrap());
        turn(&scheduler, &share).await;
        // The turn has come, also for a future that was dropped and is made again.
        assert!(scheduler.poll_turn(&share, &mut tickets[1], cx).is_ready());
        assert_eq!(tickets[1], None);
    }

    #[tokio::test]
    async fn no_task_waits_for_a_connection_or_a_server_that_has_ended() {
        let scheduler = running();
        tokio::task::yield_now().await;
        for ends in [
            |scheduler: &Scheduler, share: &Share| scheduler.remove(share),
            |scheduler: &Scheduler, _: &Share| {
                drop(Running(scheduler));
            },
        ] {
            let share = Arc::new(scheduler.share_of_group());
            scheduler.charge(&share, TURN);
            let mut ticket = None;
            let waits = poll_fn(|cx| {
                let polled = scheduler.poll_turn(&share, &mut ticket, cx);
                if polled.is_pending() {
                    ends(&scheduler, &share);
                }
                polled
            });
            waits.await;
            assert!(scheduler.queue.lock().entries.is_empty());
        }
        assert!(!scheduler.is_running());
    }

    // A lost wake-up is a deadlock, and so is a waker that uses the scheduler under its lock.
    #[test]
    fn every_task_has_its_turn_in_any_order() {
        struct Task {
            scheduler: Arc<Scheduler>,
            share: Arc<Share>,
            woken: shuttle::sync::mpsc::Sender<()>,
        }

        impl Wake for Task {
            fn wake(self: Arc<Self>) {
                self.scheduler.charge(&self.share, 1);
                let _ = self.woken.send(());
            }
        }

        Model::explore(500, || {
            let scheduler = Arc::new(Scheduler::default());
            scheduler.is_running.store(true, Ordering::Release);
            let share = Arc::new(scheduler.share_of_group());
            let tasks = [0, 1].map(|_| {
                let (scheduler, share) = (scheduler.clone(), share.clone());
                shuttle::thread::spawn(move || {
                    let (woken, is_woken) = shuttle::sync::mpsc::channel();
                    let task = Task { scheduler: scheduler.clone(), share: share.clone(), woken };
                    let waker = Waker::from(std::sync::Arc::new(task));
                    let mut ticket = None;
                    for _ in 0..3 {
                        let cx = &Context::from_waker(&waker);
                        while scheduler.poll_turn(&share, &mut ticket, cx).is_pending() {
                            is_woken.recv().unwrap();
                        }
                        scheduler.charge(&share, TURN);
                    }
                })
            });
            let runner = shuttle::future::spawn({
                let scheduler = scheduler.clone();
                async move {
                    while scheduler.is_running() {
                        poll_fn(|cx| scheduler.poll_wake_next(1, cx)).await;
                    }
                }
            });
            tasks.into_iter().for_each(|task| task.join().unwrap());
            scheduler.is_running.store(false, Ordering::Release);
            // The runner waits for another task.
            let mut queue = scheduler.queue.lock();
            let Queue { runner: slot, deferred, used_up, .. } = &mut *queue;
            used_up.clear();
            deferred.wake(slot);
            drop(queue);
            runner.abort();
        });
    }
}
