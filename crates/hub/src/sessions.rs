//! The sessions of clients whose connection cannot carry commands, which arrive in requests of their own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::random::Uuid;
use crate::shards::lock;

/// The cost of a message in addition to its bytes, so that the number of empty messages is bounded too.
const MESSAGE_COST: usize = 64;

/// The sessions of a node, by their id. The id is a secret: who knows it sends commands as the client.
#[derive(Debug, Default)]
pub(crate) struct Sessions(Mutex<HashMap<Arc<str>, Queue>>);

/// The messages that a session has not handled.
#[derive(Clone, Debug)]
struct Queue {
    sender: UnboundedSender<Waiting>,
    /// A permit for each byte that may wait.
    space: Arc<Semaphore>,
}

/// A message that waits, and its share of the queue.
#[derive(Debug)]
struct Waiting {
    message: Bytes,
    space: OwnedSemaphorePermit,
}

/// An open session. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Inbox {
    sessions: Arc<Sessions>,
    id: Arc<str>,
    receiver: UnboundedReceiver<Waiting>,
    /// The share of the message that is being handled.
    handled: Option<OwnedSemaphorePermit>,
}

/// The outcome of a message to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Delivered {
    /// The session will handle it.
    Queued,
    /// Too much waits already.
    Full,
    /// There is no such session.
    Unknown,
}

impl Sessions {
    /// Opens a session, for which messages of at most `len_max` bytes may wait.
    pub(crate) fn open(self: &Arc<Self>, len_max: usize) -> Inbox {
        let (sender, receiver) = unbounded_channel();
        let space = Arc::new(Semaphore::new(len_max.min(Semaphore::MAX_PERMITS)));
        let id: Arc<str> = (*Uuid::new().text()).into();
        lock(&self.0).insert(id.clone(), Queue { sender, space });
        Inbox { sessions: self.clone(), id, receiver, handled: None }
    }

    /// The queue has a copy: a slice would keep a whole body, which is not counted.
    pub(crate) fn send(&self, id: &str, message: &[u8]) -> Delivered {
        let Some(queue) = lock(&self.0).get(id).cloned() else { return Delivered::Unknown };
        let cost = u32::try_from(message.len() + MESSAGE_COST).unwrap_or(u32::MAX);
        let Ok(space) = queue.space.try_acquire_many_owned(cost) else { return Delivered::Full };
        match queue.sender.send(Waiting { message: Bytes::copy_from_slice(message), space }) {
            Ok(()) => Delivered::Queued,
            Err(_) => Delivered::Unknown,
        }
    }
}

impl Inbox {
    pub(crate) fn id(&self) -> Arc<str> {
        self.id.clone()
    }

    /// The next message. The one before has been handled.
    ///
    /// # Cancel safety
    /// No message is lost when the future is dropped.
    pub(crate) async fn recv(&mut self) -> Bytes {
        self.handled = None;
        match self.receiver.recv().await {
            Some(Waiting { message, space }) => {
                self.handled = Some(space);
                message
            }
            // The sender is in the list of sessions as long as this exists.
            None => std::future::pending().await,
        }
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        let ended = lock(&self.sessions.0).remove(&self.id);
        drop(ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_bytes_that_wait_are_bounded() {
        let sessions = Arc::new(Sessions::default());
        let mut inbox = sessions.open(3 * (MESSAGE_COST + 10));
        let id = inbox.id();
        let send = |len| sessions.send(&id, &vec![0; len]);
        assert_eq!(
            send(3 * (MESSAGE_COST + 10) - MESSAGE_COST + 1),
            Delivered::Full,
            "longer than the queue"
        );
        assert_eq!([10, 10, 10].map(send), [Delivered::Queued; 3]);
        assert_eq!(send(0), Delivered::Full);
        // A message that is being handled still counts.
        assert_eq!(inbox.recv().await.len(), 10);
        assert_eq!(send(0), Delivered::Full);
        assert_eq!(inbox.recv().await.len(), 10);
        assert_eq!([10, 0].map(send), [Delivered::Queued, Delivered::Full]);
    }

    #[tokio::test]
    async fn a_session_ends_with_its_connection() {
        let sessions = Arc::new(Sessions::default());
        let [inbox, other] = [sessions.open(1_000), sessions.open(1_000)];
        let id = inbox.id();
        assert_ne!(id, other.id());
        assert_eq!(sessions.send(&id, b""), Delivered::Queued);
        drop(inbox);
        assert_eq!(sessions.send(&id, b""), Delivered::Unknown);
        assert_eq!(sessions.send("", b""), Delivered::Unknown);
        assert_eq!(lock(&sessions.0).len(), 1);
    }
}
