//! Events that an [`Observer`](super::Observer) has not received yet. They are queued while the state is locked and delivered after
//! that, so that an observer may use the WebSocket that it observes.

use std::collections::VecDeque;
use std::time::Duration;

use wireloom_ws::frame::Header;
use wireloom_ws::{End, Initiator, Kind};

use super::observer::{Observer, ObserverEvent, notify};
use crate::error::WebSocketError;

/// An owned [`ObserverEvent`].
#[derive(Debug)]
pub(super) enum Notification {
    FrameRead(Header),
    FrameWritten(Header),
    PingRead(Vec<u8>),
    PongRead { payload: Vec<u8>, round_trip: Option<Duration> },
    MessageRead { kind: Kind, len: u64 },
    MessageWritten { kind: Kind, len: u64 },
    Error(WebSocketError),
    CloseBegun(End),
    CloseDone(End),
}

impl Notification {
    fn deliver(&self, observer: Option<&Observer>) {
        let event = match self {
            Self::FrameRead(header) => ObserverEvent::FrameRead(*header),
            Self::FrameWritten(header) => ObserverEvent::FrameWritten(*header),
            Self::PingRead(payload) => ObserverEvent::PingRead(payload),
            Self::PongRead { payload, round_trip } => {
                ObserverEvent::PongRead { payload, round_trip: *round_trip }
            }
            Self::MessageRead { kind, len } => ObserverEvent::MessageRead { kind: *kind, len: *len },
            Self::MessageWritten { kind, len } => ObserverEvent::MessageWritten { kind: *kind, len: *len },
            Self::Error(error) => ObserverEvent::Error(error),
            Self::CloseBegun(end) => ObserverEvent::CloseBegun(end),
            Self::CloseDone(end) => ObserverEvent::CloseDone(end),
        };
        notify(observer, &event);
    }
}

/// Events in order. One thread at a time delivers them.
#[derive(Debug, Default)]
pub(super) struct NotificationQueue {
    /// Dropped with the last event: an observer may hold a sender of the WebSocket, which would keep both alive.
    observer: Option<Observer>,
    notifications: VecDeque<Notification>,
    delivery: QueueState,
    /// [`Notification::CloseBegun`] has been noted.
    close_begun: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum QueueState {
    #[default]
    None,
    /// A thread delivers the queue until it is empty.
    Busy,
}

impl NotificationQueue {
    pub(super) fn new(observer: Observer) -> Self {
        Self { observer: Some(observer), ..Self::default() }
    }

    pub(super) fn push(&mut self, notifications: Notification) {
        self.notifications.push_back(notifications);
    }

    /// Frames that were written, and the end of the connection if it has just begun.
    pub(super) fn push_written(&mut self, frames: Vec<Header>, end: Option<End>) {
        let frames = frames.into_iter().map(Notification::FrameWritten);
        match end {
            // The peer's Close frame was the first.
            Some(end) if end.by == Initiator::Peer => {
                self.push(Notification::CloseBegun(end));
                self.notifications.extend(frames);
            }
            end => {
                self.notifications.extend(frames);
                self.notifications.extend(end.map(Notification::CloseBegun));
            }
        }
    }

    /// Whether the end of the connection has not been queued yet.
    pub(super) fn begin_close(&mut self) -> bool {
        !std::mem::replace(&mut self.close_begun, true)
    }

    /// Whether events wait and no thread delivers them.
    pub(super) fn is_waiting(&self) -> bool {
        !self.notifications.is_empty() && self.delivery == QueueState::None
    }
}

/// Delivers all events, unless another thread does, or this one in an outer call. `with_queue` locks the state for a moment.
pub(super) fn deliver_all(with_queue: impl Fn(&mut dyn FnMut(&mut NotificationQueue))) {
    let mut started = None;
    with_queue(&mut |queue| {
        if queue.is_waiting() {
            queue.delivery = QueueState::Busy;
            started = Some(queue.observer.clone());
        }
    });
    let Some(observer) = started else { return };
    let mut delivering = Delivering { with_queue: &with_queue, is_done: false };
    loop {
        let mut next = None;
        // Dropped while the state is not locked, which an observer that holds a sender locks.
        let mut last = None;
        with_queue(&mut |queue| {
            next = queue.notifications.pop_front();
            match next {
                Some(Notification::CloseDone(_)) => last = queue.observer.take(),
                Some(_) => {}
                None => queue.delivery = QueueState::None,
            }
        });
        match next {
            Some(notifications) => notifications.deliver(observer.as_ref()),
            None => {
                delivering.is_done = true;
                return;
            }
        }
        drop(last);
    }
}

/// When an observer panics, the events behind that one are delivered by the next call.
struct Delivering<'a, F: Fn(&mut dyn FnMut(&mut NotificationQueue))> {
    with_queue: &'a F,
    is_done: bool,
}

impl<F: Fn(&mut dyn FnMut(&mut NotificationQueue))> Drop for Delivering<'_, F> {
    fn drop(&mut self) {
        if !self.is_done {
            (self.with_queue)(&mut |queue| queue.delivery = QueueState::None);
        }
    }
}
