//! Events that an [`Observer`](super::Observer) has not received yet. They are queued while the state is locked and delivered after
//! that, so that an observer may use the WebSocket that it observes.

use std::collections::VecDeque;

use wireloom_ws::frame::Header;
use wireloom_ws::{End, Initiator};

use super::observer::{Observer, ObserverEvent, notify};

/// Events in order. One thread at a time delivers them.
#[derive(Debug, Default)]
pub(super) struct NotificationQueue {
    /// Dropped with the last event: an observer may hold a sender of the WebSocket, which would keep both alive.
    observer: Option<Observer>,
    events: VecDeque<ObserverEvent>,
    /// A thread delivers the events until there is none.
    is_delivering: bool,
    /// [`ObserverEvent::CloseBegun`] was queued.
    close_begun: bool,
}

impl NotificationQueue {
    pub(super) fn new(observer: Observer) -> Self {
        Self { observer: Some(observer), ..Self::default() }
    }

    pub(super) fn push(&mut self, event: ObserverEvent) {
        self.events.push_back(event);
    }

    /// Frames that were written, and the end of the connection if it has just begun.
    pub(super) fn push_written(&mut self, frames: Vec<Header>, end: Option<End>) {
        let frames = frames.into_iter().map(ObserverEvent::FrameWritten);
        match end {
            // The peer's Close frame was the first.
            Some(end) if end.by == Initiator::Peer => {
                self.push(ObserverEvent::CloseBegun(end));
                self.events.extend(frames);
            }
            end => {
                self.events.extend(frames);
                self.events.extend(end.map(ObserverEvent::CloseBegun));
            }
        }
    }

    /// Whether the end of the connection has not been queued yet.
    pub(super) fn begin_close(&mut self) -> bool {
        !std::mem::replace(&mut self.close_begun, true)
    }

    /// Whether events wait and no thread delivers them.
    pub(super) fn is_waiting(&self) -> bool {
        !self.events.is_empty() && !self.is_delivering
    }
}

/// Delivers all events, unless another thread does, or this one in an outer call. `with_queue` locks the state for a moment.
pub(super) fn deliver_all(with_queue: impl Fn(&mut dyn FnMut(&mut NotificationQueue))) {
    let mut started = None;
    with_queue(&mut |queue| {
        if queue.is_waiting() {
            queue.is_delivering = true;
            started = Some(queue.observer.clone());
        }
    });
    let Some(observer) = started else { return };
    let delivering = Delivering(&with_queue);
    loop {
        let mut next = None;
        // Dropped while the state is not locked, which an observer that holds a sender locks.
        let mut last = None;
        with_queue(&mut |queue| {
            next = queue.events.pop_front();
            match next {
                Some(ObserverEvent::CloseDone(_)) => last = queue.observer.take(),
                Some(_) => {}
                None => queue.is_delivering = false,
            }
        });
        let Some(event) = next else { break };
        notify(observer.as_ref(), &event);
        drop(last);
    }
    std::mem::forget(delivering);
}

/// When an observer panics, the events behind that one are delivered by the next call.
struct Delivering<'a, F: Fn(&mut dyn FnMut(&mut NotificationQueue))>(&'a F);

impl<F: Fn(&mut dyn FnMut(&mut NotificationQueue))> Drop for Delivering<'_, F> {
    fn drop(&mut self) {
        (self.0)(&mut |queue| queue.is_delivering = false);
    }
}
