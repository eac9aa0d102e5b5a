//! Events on their way to the application, and those that wait for room in the queue of their receiver.

use std::collections::VecDeque;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError::Full;

use crate::sdk::ClientEvent;
use crate::sdk::subscription::SubscriptionEvent;

/// An event, and the queue of its receiver.
pub(super) enum Event {
    Client(mpsc::Sender<ClientEvent>, ClientEvent),
    Subscription(mpsc::Sender<SubscriptionEvent>, SubscriptionEvent),
}

/// Events that have found no room, in their order. While there are any, the connection is not read.
#[derive(Default)]
pub(super) struct Deliveries {
    stalled: VecDeque<Event>,
}

impl Deliveries {
    pub(super) fn are_stalled(&self) -> bool {
        !self.stalled.is_empty()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.stalled.len()
    }

    /// Delivers an event, after those that wait. One whose receiver is gone is dropped.
    pub(super) fn deliver(&mut self, event: Event) {
        let refused = match event {
            event if self.are_stalled() => Some(event),
            Event::Client(to, event) => match to.try_send(event) {
                Err(Full(event)) => Some(Event::Client(to, event)),
                _ => None,
            },
            Event::Subscription(to, event) => match to.try_send(event) {
                Err(Full(event)) => Some(Event::Subscription(to, event)),
                _ => None,
            },
        };
        self.stalled.extend(refused);
    }

    /// Drops the last event that waits if it says that the client connects: attempts do not add up.
    pub(super) fn drop_last_attempt(&mut self) {
        if let Some(Event::Client(_, ClientEvent::Connecting { .. })) = self.stalled.back() {
            self.stalled.pop_back();
        }
    }

    /// Delivers the first of the events that wait, when its receiver has room.
    ///
    /// # Cancel safety
    /// The event stays if the future is dropped.
    pub(super) async fn make_room(&mut self) {
        async fn deliver<T: Clone>(to: &mpsc::Sender<T>, event: &T) {
            if let Ok(room) = to.reserve().await {
                room.send(event.clone());
            }
        }
        match self.stalled.front() {
            Some(Event::Client(to, event)) => deliver(to, event).await,
            Some(Event::Subscription(to, event)) => deliver(to, event).await,
            None => return,
        }
        self.stalled.pop_front();
    }

    /// What has found no room is still delivered.
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
