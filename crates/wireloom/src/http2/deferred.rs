//! Work that must wait until the connection's mutex is released: wakers, and values whose destructors run foreign code.

use std::task::{Context, Waker};

use super::slots::Slot;

/// Collected while the mutex is held, run after it. A waker may poll its task in place, and dropping the last waker of a
/// task drops its future: both may lock the mutex again.
#[derive(Default)]
pub(super) struct Deferred {
    /// The driver, which a command almost always wakes alone.
    driver: Option<Waker>,
    wakers: Vec<Waker>,
    dropped: Vec<Dropped>,
    /// The peer's SETTINGS have arrived, or the connection has ended.
    pub(super) notify_ready: bool,
}

/// Only held to be dropped.
#[expect(dead_code, reason = "the fields exist for their destructors")]
enum Dropped {
    Waker(Waker),
    Slot(Box<Slot>),
}

impl Deferred {
    pub(super) fn wake(&mut self, waker: Option<Waker>) {
        self.wakers.extend(waker);
    }

    pub(super) fn wake_driver(&mut self, waker: Option<Waker>) {
        self.driver = waker;
    }

    pub(super) fn drop_slot(&mut self, slot: Box<Slot>) {
        self.dropped.push(Dropped::Slot(slot));
    }

    /// Stores the task's waker in `place`; the waker that it replaces is dropped later.
    pub(super) fn register(&mut self, place: &mut Option<Waker>, cx: &Context<'_>) {
        if !place.as_ref().is_some_and(|old| old.will_wake(cx.waker())) {
            let old = place.replace(cx.waker().clone());
            self.dropped.extend(old.map(Dropped::Waker));
        }
    }

    /// How many tasks will be woken.
    pub(super) fn wakers_len(&self) -> usize {
        self.wakers.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.driver.is_none() && self.wakers.is_empty() && self.dropped.is_empty() && !self.notify_ready
    }

    /// Wakes and drops. The mutex must not be held.
    pub(super) fn run(&mut self) {
        if let Some(driver) = self.driver.take() {
            driver.wake();
        }
        self.wakers.drain(..).for_each(Waker::wake);
        self.dropped.clear();
    }
}
