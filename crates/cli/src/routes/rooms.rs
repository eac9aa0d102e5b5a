//! `/rooms/NAME`: what one member says, all hear, itself too. A member that falls too many messages behind is sent away; when
//! too many bytes wait for those that are behind, whoever speaks waits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast};
use wireloom::{CloseCode, Error, OwnedMessage, Sender, WebSocket};

/// The longest name of a room, in bytes.
const NAME_MAX: usize = 128;

/// Bytes that are gathered for one write.
const WRITE_LEN: usize = 64 << 10;

/// The rooms that have members.
pub(super) struct Rooms {
    open: Mutex<HashMap<String, Room>>,
    /// Messages that a member may lag behind.
    lag_max: usize,
    /// Bytes that may wait for the members of a room.
    held_max: usize,
}

#[derive(Clone)]
struct Room {
    said: broadcast::Sender<Arc<Said>>,
    /// Bytes that may still be said before all have heard what was.
    room: Arc<Semaphore>,
}

/// A message, for as long as somebody has not heard it.
struct Said {
    message: OwnedMessage,
    _held: OwnedSemaphorePermit,
}

impl Rooms {
    pub(super) fn new(lag_max: usize, held_max: usize) -> Arc<Self> {
        Arc::new(Self { open: Mutex::default(), lag_max, held_max: held_max.min(Semaphore::MAX_PERMITS) })
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.open().len()
    }

    /// Who would enter; `None` for a name that is none.
    pub(super) fn member(self: &Arc<Self>, name: &str) -> Option<Member> {
        let valid = (1..=NAME_MAX).contains(&name.len());
        valid.then(|| Member { rooms: self.clone(), name: name.into() })
    }

    fn open(&self) -> MutexGuard<'_, HashMap<String, Room>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, name: &str) -> (Room, broadcast::Receiver<Arc<Said>>) {
        let mut open = self.open();
        let room = open.entry(name.into()).or_insert_with(|| Room {
            said: broadcast::Sender::new(self.lag_max),
            room: Arc::new(Semaphore::new(self.held_max)),
        });
        (room.clone(), room.said.subscribe())
    }

    /// Waits until there is room for this message.
    async fn hold(&self, room: Room, message: OwnedMessage) -> Option<Arc<Said>> {
        // One that is larger than all there is has it alone.
        let len = message.as_bytes().len().min(self.held_max);
        let held = room.room.acquire_many_owned(u32::try_from(len).unwrap_or(u32::MAX)).await.ok()?;
        Some(Arc::new(Said { message, _held: held }))
    }

    /// Closes a room when its last member has left.
    fn leave(&self, name: &str) {
        let mut open = self.open();
        if open.get(name).is_some_and(|room| room.said.receiver_count() == 0) {
            open.remove(name);
        }
    }
}

/// Somebody at the door of a room.
pub(super) struct Member {
    rooms: Arc<Rooms>,
    name: String,
}

impl Member {
    pub(super) async fn run(self, socket: &mut WebSocket) {
        let (room, heard) = self.rooms.enter(&self.name);
        let rooms = self.rooms.clone();
        let mut inside = Inside { member: self, heard: Some(heard) };
        let Some(heard) = &mut inside.heard else { return };
        let (sender, receiver) = socket.halves();
        // Hearing goes on while saying waits: what is heard makes room.
        let mut saying = None;
        loop {
            tokio::select! {
                message = receiver.recv_owned(), if saying.is_none() => match message {
                    Ok(Some(message)) => saying = Some(Box::pin(rooms.hold(room.clone(), message))),
                    _ => return,
                },
                said = wait(&mut saying) => {
                    saying = None;
                    // There is at least this member to hear it.
                    let _ = said.map(|said| room.said.send(said));
                }
                message = heard.recv() => match message {
                    Ok(message) => if tell(sender, heard, message).await.is_err() {
                        return;
                    },
                    Err(broadcast::error::RecvError::Lagged(_)) => {
                        let _ = sender.close(CloseCode::TRY_AGAIN_LATER, "too far behind the room").await;
                        while let Ok(Some(_)) = receiver.recv().await {}
                        return;
                    }
                    Err(broadcast::error::RecvError::Closed) => return,
                },
            }
        }
    }
}

/// Somebody in a room, who leaves it however the connection ends.
struct Inside {
    member: Member,
    heard: Option<broadcast::Receiver<Arc<Said>>>,
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.heard = None;
        self.member.rooms.leave(&self.member.name);
    }
}

/// What is being said, if anything is.
async fn wait<F: Future + Unpin>(saying: &mut Option<F>) -> F::Output {
    match saying {
        Some(saying) => saying.await,
        None => std::future::pending().await,
    }
}

/// Sends a message, and all that have come in the meantime, in one write.
async fn tell(
    sender: &mut Sender,
    heard: &mut broadcast::Receiver<Arc<Said>>,
    said: Arc<Said>,
) -> Result<(), Error> {
    sender.feed(said.message.clone()).await?;
    while sender.queued_len() < WRITE_LEN
        && let Ok(said) = heard.try_recv()
    {
        sender.feed(said.message.clone()).await?;
    }
    sender.flush().await
}
