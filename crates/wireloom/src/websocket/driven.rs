//! A future that uses a WebSocket, and flushes it at the end of each poll.

use std::pin::Pin;
use std::sync::Arc;
#[cfg(feature = "server")]
use std::task::ready;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use super::flush::replace_driven;
use super::receiver::receive_in_task;
use super::state::Shared;
use super::waiters::Waiter;

pin_project! {
    /// A future that uses a WebSocket. Messages that a poll of it sends are written at the end of that poll, or when the transport
    /// accepts them.
    pub(crate) struct Driven<F> {
        shared: Arc<Shared>,
        waiter: Waiter,
        // `None` once it has returned.
        #[pin]
        future: Option<F>,
    }

    impl<F> PinnedDrop for Driven<F> {
        fn drop(this: Pin<&mut Self>) {
            // Halves that were moved out of the future continue without it.
            let mut state = this.shared.lock();
            state.link.remove(this.waiter);
            state.handle_driver_end();
            // After a poll that has panicked.
            receive_in_task(&this.shared, state);
        }
    }
}

impl<F> Driven<F> {
    pub(crate) fn new(shared: &Arc<Shared>, future: F) -> Self {
        Self { shared: shared.clone(), waiter: shared.next_waiter(), future: Some(future) }
    }
}

impl<F: Future> Driven<F> {
    /// Ready when the future has returned, and the transport is not needed any more: the future may have passed the WebSocket on.
    #[cfg(feature = "server")]
    pub(crate) fn poll_ended(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.future.is_some() {
            ready!(self.as_mut().poll_future(true, cx));
        }
        self.shared.poll_ended(self.waiter, cx)
    }

    /// Polls the future, and flushes. A transport that lingers needs no other task if the caller `waits_for_end`.
    fn poll_future(self: Pin<&mut Self>, waits_for_end: bool, cx: &mut Context<'_>) -> Poll<F::Output> {
        let mut this = self.project();
        let Some(future) = this.future.as_mut().as_pin_mut() else { return Poll::Pending };
        let polled = {
            let _driving = DrivenScope::new(Arc::as_ptr(this.shared).addr());
            let polled = future.poll(cx);
            if polled.is_ready() {
                this.future.set(None);
            }
            polled
        };
        let mut state = this.shared.lock();
        state.flush_driven(*this.waiter, cx);
        if polled.is_ready() {
            state.handle_driver_end();
        }
        if waits_for_end && state.link.is_lingering() {
            drop(state);
            let _ = this.shared.poll_ended(*this.waiter, cx);
        } else if state.slot.is_dropped() {
            receive_in_task(this.shared, state);
        }
        polled
    }
}

impl<F: Future> Future for Driven<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.poll_future(false, cx)
    }
}

/// While this lives, this thread polls the future of a connection.
struct DrivenScope {
    /// The connection whose future polls this one, if any.
    outer: usize,
}

impl DrivenScope {
    fn new(id: usize) -> Self {
        Self { outer: replace_driven(id) }
    }
}

impl Drop for DrivenScope {
    fn drop(&mut self) {
        replace_driven(self.outer);
    }
}
