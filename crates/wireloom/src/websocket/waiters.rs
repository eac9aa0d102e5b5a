//! Tasks that wait for the transport of a WebSocket.

use std::collections::BTreeMap;
use std::task::{Context, Wake, Waker};

use crate::guard::{Deferred, Guardable, Guarded, WakerSlot};
use crate::sync::Arc;

/// A future that waits for the transport, by number: a sender, a future that is driven, or a task that flushes. Each has at most one waker,
/// and none takes the place of another's. No connection has 2^64 of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Waiter(u64);

impl Waiter {
    /// [`Receiver`](super::Receiver), and the task that takes its place when it is dropped.
    pub(super) const RECEIVER: Self = Self(0);

    /// Advances this to the next number, and returns that.
    pub(super) fn advance(&mut self) -> Self {
        self.0 += 1;
        *self
    }
}

/// A future that waits, and the context of its task, if any.
pub(super) type Task<'a, 'b> = Option<(Waiter, &'a Context<'b>)>;

/// The wakers of all waiting tasks. A transport keeps a single waker for each direction: it gets [`Wakers::waker`], which wakes every one of
/// them.
pub(super) struct Wakers {
    waiting: Guarded<Waiting>,
}

#[derive(Default)]
struct Waiting {
    slots: Slots,
    deferred: Deferred,
}

/// The waker of each waiter, in one place.
#[derive(Default)]
struct Slots {
    /// Inline, for idle connections: those of the receiver and of a server that waits for the end of a WebSocket that was passed on. One
    /// without a waker is free.
    few: [(Waiter, WakerSlot); 2],
    more: BTreeMap<Waiter, WakerSlot>,
}

impl Slots {
    fn get(&mut self, waiter: Waiter) -> &mut WakerSlot {
        let Self { few, more } = self;
        let own = few.iter().position(|(owner, _)| *owner == waiter);
        let free = || few.iter().position(|(_, slot)| !slot.is_registered());
        match own.or_else(|| free().filter(|_| !more.contains_key(&waiter))) {
            Some(place) => {
                few[place].0 = waiter;
                &mut few[place].1
            }
            None => more.entry(waiter).or_default(),
        }
    }

    fn take(&mut self, waiter: Waiter) -> WakerSlot {
        match self.few.iter_mut().find(|(owner, _)| *owner == waiter) {
            Some((_, slot)) => std::mem::take(slot),
            None => self.more.remove(&waiter).unwrap_or_default(),
        }
    }

    fn take_all(&mut self) -> impl Iterator<Item = WakerSlot> {
        let Self { few, more } = std::mem::take(self);
        few.into_iter().map(|(_, slot)| slot).chain(more.into_values())
    }
}

impl Guardable for Waiting {
    fn deferred(&mut self) -> &mut Deferred {
        &mut self.deferred
    }
}

impl Wakers {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { waiting: Guarded::new(Waiting::default()) })
    }

    /// Wakes this task too, once.
    pub(super) fn register(&self, waiter: Waiter, cx: &Context<'_>) {
        let mut waiting = self.waiting.lock();
        let Waiting { slots, deferred } = &mut *waiting;
        deferred.register(slots.get(waiter), cx);
    }

    pub(super) fn remove(&self, waiter: Waiter) {
        let mut waiting = self.waiting.lock();
        let Waiting { slots, deferred } = &mut *waiting;
        deferred.unregister(&mut slots.take(waiter));
    }

    /// A waker that wakes all.
    pub(super) fn waker(self: &Arc<Self>) -> Waker {
        Waker::from(self.clone())
    }

    pub(super) fn wake_all(&self) {
        let mut waiting = self.waiting.lock();
        let Waiting { slots, deferred } = &mut *waiting;
        slots.take_all().for_each(|mut slot| deferred.wake(&mut slot));
    }
}

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        self.wake_all();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// The number of its wakes.
    #[derive(Default)]
    struct Task(AtomicUsize);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    // Places become free and are used by others, in any order.
    #[test]
    fn each_waiter_is_woken_once_until_it_is_removed() {
        const WAITERS: usize = 5;
        wireloom_testing::rounds(200, |rng| {
            let wakers = Wakers::new();
            let tasks: [Arc<Task>; WAITERS] = std::array::from_fn(|_| Arc::default());
            let (mut waiting, mut woken) = ([false; WAITERS], [0; WAITERS]);
            for _ in 0..40 {
                let number = rng.usize(..WAITERS);
                let waiter = Waiter(number as u64);
                match rng.u8(..7) {
                    0..4 => {
                        let waker = Waker::from(tasks[number].clone());
                        wakers.register(waiter, &Context::from_waker(&waker));
                        waiting[number] = true;
                    }
                    4..6 => {
                        wakers.remove(waiter);
                        waiting[number] = false;
                    }
                    _ => {
                        wakers.wake_all();
                        for (woken, waiting) in woken.iter_mut().zip(&mut waiting) {
                            *woken += usize::from(std::mem::take(waiting));
                        }
                    }
                }
                // One waker of each waiting task is kept.
                let kept = tasks.each_ref().map(|task| Arc::strong_count(task) > 1);
                assert_eq!(
                    (tasks.each_ref().map(|task| task.0.load(Ordering::Relaxed)), kept),
                    (woken, waiting)
                );
            }
        });
    }
}
