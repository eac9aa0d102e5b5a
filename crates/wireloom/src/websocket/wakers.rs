//! The tasks that wait for one transport. A transport keeps a single waker for each direction, so they share one.

use std::task::{Context, Wake, Waker};

use crate::sync::{Arc, Mutex, PoisonError};

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
#[derive(Debug, Default)]
pub(super) struct Wakers {
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    receiver: Option<Waker>,
    driver: Option<Waker>,
    flush_task: Option<Waker>,
    /// Made when a sender first waits.
    senders: Option<Box<Senders>>,
}

/// The wakers of senders, at most one for each, by its number.
#[derive(Debug, Default)]
struct Senders {
    waiting: Vec<(u32, Waker)>,
}

impl Wakers {
    /// Wakes this task too, once.
    pub(super) fn register(&self, waiter: Waiter, cx: &Context<'_>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = &mut *waiting;
        let slot = match waiter {
            Waiter::Receiver => &mut waiting.receiver,
            Waiter::Driver => &mut waiting.driver,
            Waiter::FlushTask => &mut waiting.flush_task,
            Waiter::Sender(number) => {
                let senders = &mut waiting.senders.get_or_insert_default().waiting;
                match senders.iter_mut().find(|(registered, _)| *registered == number) {
                    Some((_, waker)) => waker.clone_from(cx.waker()),
                    None => senders.push((number, cx.waker().clone())),
                }
                return;
            }
        };
        match slot {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
    }

    /// A waker that wakes all.
    pub(super) fn waker(self: &Arc<Self>) -> Waker {
        Waker::from(self.clone())
    }

    pub(super) fn wake_all(&self) {
        let Waiting { receiver, driver, flush_task, senders } =
            std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        let one = [receiver, driver, flush_task].into_iter().flatten();
        let senders = senders.into_iter().flat_map(|senders| senders.waiting);
        one.chain(senders.map(|(_, waker)| waker)).for_each(Waker::wake);
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
