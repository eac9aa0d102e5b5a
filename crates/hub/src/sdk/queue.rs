//! The queues of events to the application, bounded in events and in bytes.

use std::sync::Arc;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// The capacity of a queue in bytes. A longer event waits for an empty queue.
pub(super) const BYTES_MAX: u32 = 16 << 20;

/// The memory of an event besides its struct, in bytes.
pub(super) trait Len {
    fn len(&self) -> usize;
}

/// Makes a queue for this number of events.
pub(super) fn queue<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let (events, received) = mpsc::channel(capacity);
    (Sender { events, bytes: Arc::new(Semaphore::new(BYTES_MAX as usize)) }, Receiver(received))
}

/// An event, and its share of the queue's bytes.
type Queued<T> = (T, OwnedSemaphorePermit);

#[derive(Debug)]
pub(super) struct Sender<T> {
    events: mpsc::Sender<Queued<T>>,
    bytes: Arc<Semaphore>,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { events: self.events.clone(), bytes: self.bytes.clone() }
    }
}

impl<T: Len> Sender<T> {
    /// Sends an event, or returns it if there is no room. It is dropped if the receiver is gone.
    pub(super) fn try_send(&self, event: T) -> Option<T> {
        let Ok(bytes) = self.bytes.clone().try_acquire_many_owned(share(&event)) else { return Some(event) };
        match self.events.try_send((event, bytes)) {
            Err(TrySendError::Full((event, _))) => Some(event),
            _ => None,
        }
    }

    /// Sends a copy of an event once there is room, unless the receiver is gone.
    ///
    /// # Cancel safety
    /// Nothing is sent if the future is dropped.
    pub(super) async fn send(&self, event: &T)
    where
        T: Clone,
    {
        let Ok(bytes) = self.bytes.clone().acquire_many_owned(share(event)).await else { return };
        if let Ok(room) = self.events.reserve().await {
            room.send((event.clone(), bytes));
        }
    }
}

impl<T> Sender<T> {
    /// Whether the receiver is gone.
    pub(super) fn is_closed(&self) -> bool {
        self.events.is_closed()
    }
}

fn share(event: &impl Len) -> u32 {
    u32::try_from(event.len()).unwrap_or(BYTES_MAX).min(BYTES_MAX)
}

#[derive(Debug)]
pub(super) struct Receiver<T>(mpsc::Receiver<Queued<T>>);

impl<T> Receiver<T> {
    /// The next event; `None` once all senders are gone.
    ///
    /// # Cancel safety
    /// No event is lost when the future is dropped.
    pub(super) async fn recv(&mut self) -> Option<T> {
        self.0.recv().await.map(|(event, _)| event)
    }

    /// The next event, if there is one now.
    #[cfg(test)]
    pub(super) fn try_recv(&mut self) -> Option<T> {
        self.0.try_recv().ok().map(|(event, _)| event)
    }

    pub(super) fn close(&mut self) {
        self.0.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Len for Vec<u8> {
        fn len(&self) -> usize {
            Vec::len(self)
        }
    }

    #[tokio::test]
    async fn a_queue_is_bounded_in_bytes() {
        let max = BYTES_MAX as usize;
        let (sender, mut receiver) = queue(10);
        assert_eq!(sender.try_send(vec![1; max / 2]), None);
        assert_eq!(sender.try_send(vec![2; max / 2]), None);
        assert_eq!(sender.try_send(vec![3]), Some(vec![3]));
        assert_eq!(receiver.recv().await, Some(vec![1; max / 2]));
        assert_eq!(sender.try_send(vec![3]), None);
        // One that is longer than the queue waits until it is empty.
        let long = vec![4; max + 1];
        assert!(sender.try_send(long.clone()).is_some());
        let (_, received) = tokio::join!(sender.send(&long), async {
            [receiver.recv().await, receiver.recv().await, receiver.recv().await]
                .map(|event| event.unwrap().len())
        });
        assert_eq!(received, [max / 2, 1, max + 1]);
    }

    #[tokio::test]
    async fn nobody_waits_for_a_receiver_that_is_gone() {
        let (sender, receiver) = queue(1);
        let long = vec![0; BYTES_MAX as usize];
        assert_eq!(sender.try_send(long.clone()), None);
        let ((), ()) = tokio::join!(sender.send(&long), async { drop(receiver) });
        assert!(sender.is_closed());
        assert_eq!(sender.try_send(long), None);
    }
}
