//! Where the state of a receiver is.
//!
//! ```text
//!                    a poll                    it waits, and the connection is not idle
//!  Idle (its length) ------> Taken (by a task) ----------------------------------------> Waiting (here)
//!       ^                     | |   ^                                                      |
//!       +---- it waits -------+ |   +------------------------ a poll ----------------------+
//!                               +--> Ended: nothing is received any more
//! ```
//!
//! A task holds the state from the poll that takes it until it waits again, also between two messages. All that a receiver holds while
//! it waits is here, where the server can free it ([`Waiting`](ReceiverSlot::Waiting)), whether or not its task is polled.

use super::active_receiver::ActiveReceiver;
use super::read_buffer::ReadBuffer;

/// The state of a receiver, or where that is.
pub(super) enum ReceiverSlot {
    /// Nothing but the length of the last message, because the connection is idle: the state is created again.
    Idle(u32),
    /// A task has it, and its read buffer.
    Taken(ReadBuffer),
    /// The rest of a message, a deadline or a turn is awaited.
    Waiting(Box<ActiveReceiver>),
    /// The connection has ended, and the receiver was told.
    Ended,
}

impl ReceiverSlot {
    /// A task takes the state; `create` makes it from the length of the last message where the connection was idle. `None` after the end.
    #[inline]
    pub(super) fn take(
        &mut self,
        create: impl FnOnce(u32) -> Box<ActiveReceiver>,
    ) -> Option<Box<ActiveReceiver>> {
        match self {
            Self::Idle(last_len) => {
                let active = create(*last_len);
                *self = Self::Taken(ReadBuffer::None);
                Some(active)
            }
            _ => self.take_waiting(),
        }
    }

    /// Takes the state of a receiver that waits.
    pub(super) fn take_waiting(&mut self) -> Option<Box<ActiveReceiver>> {
        match std::mem::replace(self, Self::Ended) {
            Self::Waiting(active) => {
                *self = Self::Taken(active.read_buffer);
                Some(active)
            }
            other => {
                *self = other;
                None
            }
        }
    }

    /// The receiver waits. Returns the state if it is not needed meanwhile; it is dropped after the unlock.
    pub(super) fn put(&mut self, mut active: Box<ActiveReceiver>) -> Option<Box<ActiveReceiver>> {
        active.read_buffer = self.read_buffer().map_or(ReadBuffer::None, |read_buffer| *read_buffer);
        if active.is_idle() {
            *self = Self::Idle(active.last_len);
            return Some(active);
        }
        *self = Self::Waiting(active);
        None
    }

    /// The receiver has taken a read buffer.
    pub(super) fn hold_read_buffer(&mut self) {
        self.read_buffer().into_iter().for_each(ReadBuffer::take);
    }

    /// How the read buffer of the receiver is counted, if it can have one.
    pub(super) fn read_buffer(&mut self) -> Option<&mut ReadBuffer> {
        match self {
            Self::Taken(read_buffer) => Some(read_buffer),
            Self::Waiting(active) => Some(&mut active.read_buffer),
            Self::Idle(_) | Self::Ended => None,
        }
    }
}
