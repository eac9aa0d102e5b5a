//! The end of a run, as its idle connections wait for it.

use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

/// The end of the run, for idle connections: one timer for all of them takes less memory than one for each.
#[derive(Default)]
pub(super) struct End {
    waiting: Mutex<Waiting>,
}

enum Waiting {
    /// The tasks to be woken, by connection.
    For(Vec<Option<Waker>>),
    Over,
}

impl Default for Waiting {
    fn default() -> Self {
        Self::For(Vec::new())
    }
}

impl End {
    /// Signals the end: wakes all connections, and is ready at once for later ones.
    pub(super) fn signal(&self) {
        let waiting = std::mem::replace(&mut *self.lock(), Waiting::Over);
        if let Waiting::For(wakers) = waiting {
            wakers.into_iter().flatten().for_each(Waker::wake);
        }
    }

    pub(super) fn poll(&self, cx: &Context<'_>, index: usize) -> Poll<()> {
        let mut waiting = self.lock();
        let Waiting::For(wakers) = &mut *waiting else { return Poll::Ready(()) };
        if index >= wakers.len() {
            wakers.resize(index + 1, None);
        }
        if !wakers[index].as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            wakers[index] = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
