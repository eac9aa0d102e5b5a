//! `/rooms/NAME`: what one member says, all hear, itself too. A member that falls too far behind is sent away.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::broadcast;
use wireloom::{CloseCode, Error, OwnedMessage, Sender, WebSocket};

/// The longest name of a room, in bytes.
const NAME_MAX: usize = 128;

/// Bytes that are gathered for one write.
const WRITE_LEN: usize = 64 << 10;

/// The rooms that have members.
pub(super) struct Rooms {
    open: Mutex<HashMap<String, broadcast::Sender<OwnedMessage>>>,
    /// Messages that a member may lag behind.
    lag_max: usize,
}

impl Rooms {
    pub(super) fn new(lag_max: usize) -> Arc<Self> {
        Arc::new(Self { open: Mutex::default(), lag_max })
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

    fn open(&self) -> MutexGuard<'_, HashMap<String, broadcast::Sender<OwnedMessage>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, name: &str) -> (broadcast::Sender<OwnedMessage>, broadcast::Receiver<OwnedMessage>) {
        let mut open = self.open();
        let room = open.entry(name.into()).or_insert_with(|| broadcast::Sender::new(self.lag_max));
        (room.clone(), room.subscribe())
    }

    /// Closes a room when its last member has left.
    fn leave(&self, name: &str) {
        let mut open = self.open();
        if open.get(name).is_some_and(|room| room.receiver_count() == 0) {
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
        let (said, heard) = self.rooms.enter(&self.name);
        let mut inside = Inside { member: self, heard: Some(heard) };
        let Some(heard) = &mut inside.heard else { return };
        let (sender, receiver) = socket.halves();
        loop {
            tokio::select! {
                message = receiver.recv_owned() => match message {
                    // There is at least this member to hear it.
                    Ok(Some(message)) => drop(said.send(message)),
                    _ => return,
                },
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
    heard: Option<broadcast::Receiver<OwnedMessage>>,
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.heard = None;
        self.member.rooms.leave(&self.member.name);
    }
}

/// Sends a message, and all that have come in the meantime, in one write.
async fn tell(
    sender: &mut Sender,
    heard: &mut broadcast::Receiver<OwnedMessage>,
    message: OwnedMessage,
) -> Result<(), Error> {
    sender.feed(message).await?;
    while sender.queued_len() < WRITE_LEN
        && let Ok(message) = heard.try_recv()
    {
        sender.feed(message).await?;
    }
    sender.flush().await
}
