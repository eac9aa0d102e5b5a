//! Tasks that wait for the transport of a WebSocket.

use std::collections::BTreeMap;
use std::task::{Context, Wake, Waker};

use crate::guard::{Deferred, Guardable, Guarded, WakerSlot};
use crate::sync::Arc;

/// A future that waits for the transport, by number: a sender, a future that is driven, or a task that flushes. Each has at most one waker,
/// and none takes the place of another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Waiter(usize);

impl Waiter {
    /// [`Receiver`](super::Receiver), and the task that takes its place when it is dropped.
    pub(super) const RECEIVER: Self = Self(0);

    /// The waiter with the next number.
    pub(super) fn after(number: usize) -> Self {
        Self(number + 1)
    }
}

/// The wakers of all waiting tasks. A transport keeps a single waker for each direction: it gets [`Wakers::waker`], which wakes every one of
/// them.
pub(super) struct Wakers {
    waiting: Guarded<Waiting>,
}

#[derive(Default)]
struct Waiting {
    /// Beside the others, because idle connections have it.
    receiver: WakerSlot,
    others: BTreeMap<Waiter, WakerSlot>,
    deferred: Deferred,
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
        let waiting = &mut *waiting;
        let slot = match waiter {
            Waiter::RECEIVER => &mut waiting.receiver,
            other => waiting.others.entry(other).or_default(),
        };
        waiting.deferred.register(slot, cx);
    }

    pub(super) fn remove(&self, waiter: Waiter) {
        let mut waiting = self.waiting.lock();
        if let Some(mut slot) = waiting.others.remove(&waiter) {
            waiting.deferred.unregister(&mut slot);
        }
    }

    /// A waker that wakes all.
    pub(super) fn waker(self: &Arc<Self>) -> Waker {
        Waker::from(self.clone())
    }

    pub(super) fn wake_all(&self) {
        let mut waiting = self.waiting.lock();
        let Waiting { receiver, others, deferred } = &mut *waiting;
        deferred.wake(receiver);
        std::mem::take(others).values_mut().for_each(|slot| deferred.wake(slot));
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
