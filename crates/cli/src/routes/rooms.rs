//! `/rooms/NAME`: each message is sent to all members, the publisher included. A member that falls too many messages behind is closed
//! with 1013. While too many bytes are queued for the members of a room, publishers wait.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast};
use wireloom::{CloseCode, Error, OwnedMessage, Sender};

use super::figures::{Eviction, Tally};
use super::websocket::Client;

/// The longest name of a room, in bytes.
const NAME_LEN_MAX: usize = 128;

/// Bytes that are gathered for one write.
const WRITE_LEN: usize = 64 << 10;

/// The rooms that have members.
pub(super) struct Rooms {
    open: Mutex<HashMap<String, Room>>,
    /// Messages that a member may fall behind.
    lag_max: usize,
    /// Bytes that may be queued for the members of a room.
    queued_len_max: usize,
}

#[derive(Clone)]
struct Room {
    published: broadcast::Sender<Arc<Published>>,
    /// Bytes that may still be queued.
    space: Arc<Semaphore>,
}

/// A message, until all members have received it.
struct Published {
    message: OwnedMessage,
    _space: OwnedSemaphorePermit,
}

impl Rooms {
    pub(super) fn new(lag_max: usize, queued_len_max: usize) -> Arc<Self> {
        let queued_len_max = queued_len_max.min(Semaphore::MAX_PERMITS);
        Arc::new(Self { open: Mutex::default(), lag_max, queued_len_max })
    }

    /// The number of rooms.
    pub(super) fn len(&self) -> usize {
        self.open().len()
    }

    /// A member that has not joined yet; `None` for an invalid name.
    pub(super) fn member(self: &Arc<Self>, name: &str) -> Option<Member> {
        let is_valid = (1..=NAME_LEN_MAX).contains(&name.len());
        is_valid.then(|| Member { rooms: self.clone(), name: name.into() })
    }

    fn open(&self) -> MutexGuard<'_, HashMap<String, Room>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn join(&self, name: &str) -> (Room, broadcast::Receiver<Arc<Published>>) {
        let mut open = self.open();
        let room = open.entry(name.into()).or_insert_with(|| Room {
            published: broadcast::Sender::new(self.lag_max),
            space: Arc::new(Semaphore::new(self.queued_len_max)),
        });
        (room.clone(), room.published.subscribe())
    }

    /// Publishes a message once there is space for it.
    async fn publish(&self, room: Room, message: OwnedMessage) {
        // A message larger than the limit takes all of it.
        let len = message.as_bytes().len().min(self.queued_len_max);
        let space = room.space.acquire_many_owned(u32::try_from(len).unwrap_or(u32::MAX)).await;
        if let Ok(space) = space {
            // The publisher itself is a receiver.
            let _ = room.published.send(Arc::new(Published { message, _space: space }));
        }
    }

    /// Removes a room when its last member has left.
    fn leave(&self, name: &str) {
        let mut open = self.open();
        if open.get(name).is_some_and(|room| room.published.receiver_count() == 0) {
            open.remove(name);
        }
    }
}

/// A connection that has been accepted for a room but has not joined yet.
pub(super) struct Member {
    rooms: Arc<Rooms>,
    name: String,
}

impl Member {
    /// Serves until the WebSocket is closed.
    ///
    /// # Errors
    /// The error that ended it.
    pub(super) async fn run(self, client: Client<'_>) -> Result<(), Error> {
        let Client { socket, peer, version, figures } = client;
        let (room, published) = self.rooms.join(&self.name);
        let rooms = self.rooms.clone();
        let mut membership = Membership { member: self, published: Some(published) };
        let Some(published) = &mut membership.published else { return Ok(()) };
        let (sender, receiver) = socket.halves();
        let mut tally = Tally::new(figures, version);
        let mut publishing = None;
        loop {
            tally.flush();
            // In this order everything that was published before is sent before the next message is received, and so before a
            // Close frame is answered. While a publisher waits for space, what is published goes on being sent: that makes space.
            tokio::select! {
                biased;
                message = published.recv() => match message {
                    Ok(message) => send_all(sender, published, &message, &mut tally).await?,
                    Err(broadcast::error::RecvError::Lagged(_)) => {
                        figures.evict(Eviction::RoomLag, peer);
                        sender.close(CloseCode::TRY_AGAIN_LATER, "too far behind the room").await?;
                        while receiver.recv().await?.is_some() {}
                        return Ok(());
                    }
                    Err(broadcast::error::RecvError::Closed) => return Ok(()),
                },
                () = wait(&mut publishing) => publishing = None,
                message = receiver.recv_owned(), if publishing.is_none() => match message? {
                    Some(message) => {
                        tally.received(message.as_bytes().len());
                        publishing = Some(Box::pin(rooms.publish(room.clone(), message)));
                    }
                    None => return Ok(()),
                },
            }
        }
    }
}

/// A member of a room, which leaves it however the connection ends.
struct Membership {
    member: Member,
    published: Option<broadcast::Receiver<Arc<Published>>>,
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.published = None;
        self.member.rooms.leave(&self.member.name);
    }
}

/// Waits for what is being published, if anything is.
async fn wait<F: Future<Output = ()> + Unpin>(publishing: &mut Option<F>) {
    match publishing {
        Some(publishing) => publishing.await,
        None => std::future::pending().await,
    }
}

/// Sends a message, and all that have been published in the meantime, in one write.
async fn send_all(
    sender: &mut Sender,
    published: &mut broadcast::Receiver<Arc<Published>>,
    first: &Published,
    tally: &mut Tally<'_>,
) -> Result<(), Error> {
    sender.feed(first.message.clone()).await?;
    tally.sent(1, first.message.as_bytes().len());
    while sender.queued_len() < WRITE_LEN
        && let Ok(next) = published.try_recv()
    {
        sender.feed(next.message.clone()).await?;
        tally.sent(1, next.message.as_bytes().len());
    }
    sender.flush().await
}
