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
use crate::transport::buffer;

/// The state of a receiver, or where that is.
pub(super) enum ReceiverSlot {
    /// Nothing but the length of the last message, because the connection is idle: the state is created again.
    Idle(u32),
    /// A task has it.
    Taken,
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
                *self = Self::Taken;
                Some(active)
            }
            _ => self.take_waiting(),
        }
    }

    /// Takes the state of a receiver that waits.
    pub(super) fn take_waiting(&mut self) -> Option<Box<ActiveReceiver>> {
        match std::mem::replace(self, Self::Taken) {
            Self::Waiting(active) => Some(active),
            other => {
                *self = other;
                None
            }
        }
    }

    /// The receiver waits. Returns the state if it is not needed meanwhile; it is dropped after the unlock.
    pub(super) fn put(&mut self, active: Box<ActiveReceiver>) -> Option<Box<ActiveReceiver>> {
        if active.is_idle() {
            *self = Self::Idle(active.last_len);
            return Some(active);
        }
        *self = Self::Waiting(active);
        None
    }

    /// The length of the read buffer of the receiver. A task that has the state, and does something else between two messages, mostly has a
    /// short one.
    pub(super) fn read_buffer_len(&self) -> usize {
        match self {
            Self::Taken => buffer::LEN_SMALL,
            Self::Waiting(active) => active.reader.buffer_len(),
            Self::Idle(_) | Self::Ended => 0,
        }
    }
}
