//! One subscription of a client: when it is to be made, and what it has received.

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::fossil;
use crate::history::Position;
use crate::protocol::Publication;
use crate::sdk::ClientError;
use crate::sdk::queue::Sender;
use crate::sdk::subscription::{SubscribeOptions, SubscriptionEvent};

/// A subscription, whether the server knows of it or not.
pub(super) struct Entry {
    /// Distinguishes it from an earlier subscription to the same channel.
    pub(super) key: u64,
    pub(super) options: SubscribeOptions,
    pub(super) events: Sender<SubscriptionEvent>,
    /// The caller of `subscribe`, until the first result.
    pub(super) done: Option<oneshot::Sender<Result<(), ClientError>>>,
    pub(super) token: String,
    /// The token that is being made, by its key.
    pub(super) making: Option<u64>,
    pub(super) state: State,
    /// Whether the server may still have a subscription, which must end before another one.
    pub(super) is_known: bool,
    /// Where to recover from.
    pub(super) position: Option<Position>,
    /// The last payload, where publications arrive as deltas.
    pub(super) base: Option<Bytes>,
    /// When a new token is due.
    pub(super) renew_at: Option<Instant>,
    pub(super) failures: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The command is to be sent at this time.
    DueAt(Instant),
    /// The token that the command needs is being made.
    MakingToken,
    /// The command was sent.
    Subscribing,
    Subscribed,
}

impl Entry {
    /// When there is something to do.
    pub(super) fn due_at(&self) -> Option<Instant> {
        match self.state {
            State::DueAt(at) => Some(at),
            State::Subscribed => self.renew_at,
            State::MakingToken | State::Subscribing => None,
        }
    }

    /// Subscribes again at this time, from the position that has been reached.
    pub(super) fn subscribe_at(&mut self, at: Instant) {
        self.state = State::DueAt(at);
        self.base = None;
        self.renew_at = None;
    }

    /// Replaces the data of a publication that is a delta, and advances the position. If the delta cannot be applied, nothing changes.
    pub(super) fn receive(&mut self, publication: &mut Publication) -> Result<(), WrongBase> {
        if let Some(base) = &self.base {
            // With deltas every payload is a string: the text of a value, or a delta between two such texts.
            let text: String = serde_json::from_slice(&publication.data).map_err(|_| WrongBase)?;
            let whole = match publication.delta {
                true => fossil::apply(base, text.as_bytes()).ok_or(WrongBase)?,
                false => text.into_bytes(),
            };
            publication.data = whole.into();
            publication.delta = false;
            self.base = Some(publication.data.clone());
        } else if publication.delta {
            return Err(WrongBase);
        }
        if let (Some(position), 1..) = (&mut self.position, publication.offset) {
            position.offset = publication.offset;
        }
        Ok(())
    }
}

/// A delta refers to another payload than the last one.
pub(super) struct WrongBase;
