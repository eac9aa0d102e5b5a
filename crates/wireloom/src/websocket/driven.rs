//! A future that uses a WebSocket, and flushes it at the end of each poll.

use std::cell::Cell;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use super::active_receiver::ReceiverSlot;
use super::flush::{LINGER, replace_driven};
use super::linger::Linger;
use super::receiver::discard_in_task;
use super::state::Shared;

pin_project! {
    /// A future that uses a WebSocket. Messages that a poll of it sends are written at the end of that poll, or when the transport
    /// accepts them.
    pub(crate) struct Driven<F> {
        shared: Weak<Shared>,
        #[pin]
        future: F,
        // Closes the transport, once the WebSocket is dropped.
        ending: Option<Pin<Box<Ending>>>,
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
        Self { shared: Arc::downgrade(shared), future, ending: None }
    }

    /// The end of the WebSocket. The future has returned, and may have passed the WebSocket on.
    #[cfg(feature = "server")]
    pub(crate) fn take_ending(self: Pin<&mut Self>) -> Pin<Box<Ending>> {
        let this = self.project();
        this.ending.take().unwrap_or_else(|| Ending::of(this.shared.upgrade()))
    }
}

/// Ready when a WebSocket has ended, or its halves are dropped and its transport is closed.
pub(crate) struct Ending {
    /// Held, so that no other task drops the state last. `None` when the transport lingers, or is closed.
    shared: Option<Arc<Shared>>,
    linger: Option<Linger>,
}

impl Ending {
    fn of(shared: Option<Arc<Shared>>) -> Pin<Box<Self>> {
        Box::pin(Self { shared, linger: None })
    }
}

impl Future for Ending {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(shared) = &self.shared {
            self.linger = ready!(shared.poll_ended(cx));
            self.shared = None;
        }
        if let Some(linger) = &mut self.linger {
            ready!(Pin::new(linger).poll(cx));
            self.linger = None;
        }
        Poll::Ready(())
    }
}

impl<F: Future> Future for Driven<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let id = this.shared.as_ptr().addr();
        let is_nested;
        let polled = {
            let driving = DrivenScope::new(id);
            is_nested = driving.outer == id;
            let polled = this.future.poll(cx);
            if !is_nested && let Some(linger) = LINGER.take() {
                *this.ending = Some(Box::pin(Ending { shared: None, linger: Some(*linger) }));
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
            let is_dropped = matches!(state.slot, ReceiverSlot::Dropped(_)) || !shared.has_halves();
            drop(state);
            if is_dropped && !is_nested {
                handle_dropped(&shared, this.ending);
            }
        }
        if this.ending.is_some() && polled.is_pending() {
            poll_ending(this.ending, cx);
        }
        polled
    }
}

/// The receiver was dropped, or both halves.
#[cold]
#[inline(never)]
fn handle_dropped(shared: &Arc<Shared>, ending: &mut Option<Pin<Box<Ending>>>) {
    discard_in_task(shared);
    if !shared.has_halves() && shared.lock().is_of_server() {
        ending.get_or_insert_with(|| Ending::of(Some(shared.clone())));
    }
}

/// The future may do something else after it has dropped the WebSocket.
#[cold]
#[inline(never)]
fn poll_ending(ending: &mut Option<Pin<Box<Ending>>>, cx: &mut Context<'_>) {
    if let Some(ending) = ending {
        let _ = ending.as_mut().poll(cx);
    }
}

/// While this lives, this thread polls the future of a connection.
struct DrivenScope {
    /// The connection whose future polls this one, if any. Where it is the same one, as in a handler that drives the WebSocket of its server,
    /// that future closes the transport.
    outer: usize,
    /// The transport that it has dropped during its poll.
    outer_linger: Option<Box<Linger>>,
}

impl DrivenScope {
    fn new(id: usize) -> Self {
        let outer = replace_driven(id);
        let outer_linger = if outer == id { None } else { LINGER.try_with(Cell::take).ok().flatten() };
        Self { outer, outer_linger }
    }
}

impl Drop for DrivenScope {
    fn drop(&mut self) {
        let id = replace_driven(self.outer);
        if id != self.outer {
            // After a panic this drops the transport of the inner connection.
            let _ = LINGER.try_with(|linger| linger.set(self.outer_linger.take()));
        }
    }
}
