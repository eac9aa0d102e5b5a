//! How the read buffer of a receiver is counted.

use crate::memory::{Account, Category};
use crate::transport::buffer;

/// The memory that a read buffer is counted as. Longer ones are of the threads' pools, which have a bound of their own.
const LEN: usize = buffer::LEN_SMALL;

/// The read buffer of the receiver. Most buffers are returned within the poll that takes them, and are not counted as memory of the
/// connection. A buffer is counted if the receiver still holds it at the end of a poll of the handler, or, where another task polls
/// the receiver, at the next [`release_if_idle`](super::state::Shared::release_if_idle).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ReadBuffer {
    #[default]
    None,
    Held,
    Counted,
}

impl ReadBuffer {
    /// The receiver has taken a buffer.
    #[inline]
    pub(super) fn take(&mut self) {
        if *self == Self::None {
            *self = Self::Held;
        }
    }

    /// The receiver has returned its buffer.
    #[inline]
    pub(super) fn give_back(&mut self, account: &Account) {
        if std::mem::take(self) == Self::Counted {
            account.subtract(Category::ReadBuffer, LEN);
        }
    }

    /// Counts the buffer if the receiver holds it.
    pub(super) fn count(&mut self, account: &Account) {
        // At the limit, this lets the server close connections that hold more.
        if *self == Self::Held && account.try_add(Category::ReadBuffer, LEN).is_ok() {
            *self = Self::Counted;
        }
    }
}
