//! The tasks that wait for one transport. A transport keeps a single waker for each direction, so they share one.

use std::collections::BTreeMap;
use std::task::{Context, Wake, Waker};

use crate::guard::{Deferred, Guardable, Guarded, WakerSlot};
use crate::sync::Arc;

/// A future that waits for the transport. Each has at most one waker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiter {
    /// [`Receiver`](super::Receiver).
    Receiver,
    /// [`Sender`](super::Sender), or a clone of one, by number.
    Sender(u32),
    /// The future that [`Driven`](super::Driven) polls.
    Driver,
    /// The task that is spawned where no future is driven.
    FlushTask,
}

/// The wakers of all waiting tasks. The transport gets [`Wakers::waker`], which wakes every one of them.
pub(super) struct Wakers {
    waiting: Guarded<Waiting>,
}

#[derive(Default)]
struct Waiting {
    receiver: WakerSlot,
    driver: WakerSlot,
    flush_task: WakerSlot,
    /// By the number of the sender.
    senders: BTreeMap<u32, WakerSlot>,
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
            Waiter::Receiver => &mut waiting.receiver,
            Waiter::Driver => &mut waiting.driver,
            Waiter::FlushTask => &mut waiting.flush_task,
            Waiter::Sender(number) => waiting.senders.entry(number).or_default(),
        };
        waiting.deferred.register(slot, cx);
    }

    /// A sender was dropped.
    pub(super) fn remove_sender(&self, number: u32) {
        let mut waiting = self.waiting.lock();
        if let Some(mut slot) = waiting.senders.remove(&number) {
            waiting.deferred.unregister(&mut slot);
        }
    }

    /// A waker that wakes all.
    pub(super) fn waker(self: &Arc<Self>) -> Waker {
        Waker::from(self.clone())
    }

    pub(super) fn wake_all(&self) {
        let mut waiting = self.waiting.lock();
        let Waiting { receiver, driver, flush_task, senders, deferred } = &mut *waiting;
        [receiver, driver, flush_task].into_iter().for_each(|slot| deferred.wake(slot));
        std::mem::take(senders).values_mut().for_each(|slot| deferred.wake(slot));
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
