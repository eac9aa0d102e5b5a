//! A future that uses a WebSocket, and flushes it at the end of each poll.

use std::cell::Cell;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use super::active_receiver::ReceiverSlot;
use super::flush::{LINGER, replace_driven};
use super::linger::Linger;
use super::link::Waiter;
use super::receiver::discard_in_task;
use super::state::Shared;

pin_project! {
    /// A future that uses a WebSocket. Messages that a poll of it sends are written at the end of that poll, or when the transport
    /// accepts them.
    pub(crate) struct Driven<F> {
        shared: Weak<Shared>,
        #[pin]
        future: F,
        // Closes the transport, once the future has dropped the WebSocket.
        linger: Option<Pin<Box<Linger>>>,
    }

    impl<F> PinnedDrop for Driven<F> {
        fn drop(this: Pin<&mut Self>) {
            // Halves that were moved out of the future continue without it.
            if let Some(shared) = this.project().shared.upgrade() {
                shared.lock().handle_driver_end();
                // After a poll that has panicked.
                discard_in_task(&shared);
            }
        }
    }
}

impl<F> Driven<F> {
    pub(crate) fn new(shared: &Arc<Shared>, future: F) -> Self {
        Self { shared: Arc::downgrade(shared), future, linger: None }
    }

    /// The state of the WebSocket.
    #[cfg(feature = "server")]
    pub(crate) fn shared(&self) -> &Weak<Shared> {
        &self.shared
    }

    /// The transport of a WebSocket that the future has dropped, until it is closed.
    #[cfg(feature = "server")]
    pub(crate) fn linger(self: Pin<&mut Self>) -> &mut Option<Pin<Box<Linger>>> {
        self.project().linger
    }
}

/// Ready when the transport is closed.
#[cfg(feature = "server")]
pub(crate) fn poll_linger(linger: &mut Option<Pin<Box<Linger>>>, cx: &mut Context<'_>) -> Poll<()> {
    if let Some(lingering) = linger {
        ready!(lingering.as_mut().poll(cx));
        *linger = None;
    }
    Poll::Ready(())
}

/// Ready when a WebSocket has ended, or both of its halves are dropped.
#[cfg(feature = "server")]
pub(crate) fn poll_ended(shared: &Weak<Shared>, cx: &Context<'_>) -> Poll<()> {
    let Some(shared) = shared.upgrade() else { return Poll::Ready(()) };
    let mut state = shared.lock();
    if state.link.write_error().is_some() {
        return Poll::Ready(());
    }
    // Woken by every end, and by the drop of the state. It registers again when it is woken for another reason.
    state.link.register(Some((Waiter::Driver, cx)));
    Poll::Pending
}

impl<F: Future> Future for Driven<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let polled = {
            let _driving = DrivenScope::new(this.shared.as_ptr().addr());
            let polled = this.future.poll(cx);
            if let Some(linger) = LINGER.take() {
                *this.linger = Some(linger);
            }
            polled
        };
        if let Some(shared) = this.shared.upgrade() {
            let mut state = shared.lock();
            state.flush_driven(cx);
            if polled.is_ready() {
                // It is not polled again, although its owner may keep it.
                state.handle_driver_end();
            }
            let was_dropped = matches!(state.slot, ReceiverSlot::Dropped(_));
            drop(state);
            if was_dropped {
                discard_in_task(&shared);
            }
        }
        polled
    }
}

/// While this lives, this thread polls the future of a connection.
struct DrivenScope {
    /// The connection whose future polls this one, if any.
    outer: usize,
    /// The transport that it has dropped during its poll.
    outer_linger: Option<Pin<Box<Linger>>>,
}

impl DrivenScope {
    fn new(id: usize) -> Self {
        Self { outer: replace_driven(id), outer_linger: LINGER.try_with(Cell::take).ok().flatten() }
    }
}

impl Drop for DrivenScope {
    fn drop(&mut self) {
        replace_driven(self.outer);
        // After a panic this drops the transport of the inner connection.
        let _ = LINGER.try_with(|linger| linger.set(self.outer_linger.take()));
    }
}
