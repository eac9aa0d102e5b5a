//! Events on their way to the application, and those that wait for room in the queue of their receiver.

use std::collections::VecDeque;

use crate::sdk::ClientEvent;
use crate::sdk::queue::{BYTES_MAX, Len as _, Sender};
use crate::sdk::subscription::SubscriptionEvent;

/// An event, and the queue of its receiver.
pub(super) enum Event {
    Client(Sender<ClientEvent>, ClientEvent),
    Subscription(Sender<SubscriptionEvent>, SubscriptionEvent),
}

impl Event {
    fn len(&self) -> usize {
        match self {
            Self::Client(_, event) => event.len(),
            Self::Subscription(_, event) => event.len(),
        }
    }
}

/// Events that have found no room, in their order. While there are any, the connection is not read, and no other one is made.
#[derive(Default)]
pub(super) struct Deliveries {
    stalled: VecDeque<Event>,
    /// The bytes of the events.
    stalled_len: usize,
}

impl Deliveries {
    pub(super) fn are_stalled(&self) -> bool {
        !self.stalled.is_empty()
    }

    /// Whether more of the same reply may wait.
    pub(super) fn have_room(&self) -> bool {
        self.stalled_len < BYTES_MAX as usize
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.stalled.len()
    }

    /// Delivers an event, after those that wait. One whose receiver is gone is dropped.
    pub(super) fn deliver(&mut self, event: Event) {
        let refused = match event {
            event if self.are_stalled() => Some(event),
            Event::Client(to, event) => to.try_send(event).map(|event| Event::Client(to, event)),
            Event::Subscription(to, event) => to.try_send(event).map(|event| Event::Subscription(to, event)),
        };
        if let Some(event) = refused {
            self.stalled_len += event.len();
            self.stalled.push_back(event);
        }
    }

    /// Delivers the first of the events that wait, when its receiver has room.
    ///
    /// # Cancel safety
    /// The event stays if the future is dropped.
    pub(super) async fn make_room(&mut self) {
        match self.stalled.front() {
            Some(Event::Client(to, event)) => to.send(event).await,
            Some(Event::Subscription(to, event)) => to.send(event).await,
            None => return,
        }
        self.stalled_len -= self.stalled.pop_front().map_or(0, |event| event.len());
    }

    /// Delivers the stalled events in a task of its own.
    pub(super) fn finish(mut self) {
        if self.are_stalled() {
            tokio::spawn(async move {
                while self.are_stalled() {
                    self.make_room().await;
                }
            });
        }
    }
}
