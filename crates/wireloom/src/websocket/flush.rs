//! Flushing the write batch. The batch is the core's queue of outgoing frames; frames are queued nowhere else.
//!
//! ```text
//!               a frame is queued                           all is written
//!  Flushed ------------------------> AtPollEnd, InTask(..) ------------------> Flushed
//!   |    ^                              |           ^
//!   |    '-- flushed by any use --+     +-----------+  the transport is full: the flusher's waker is registered
//!   |                             |
//!   +-- the transport buffers, or there is no runtime --> Unflushed
//! ```
//!
//! Every lock of the state ends with `before_unlock`, which finds a flusher for the queue. So
//! after a poll that has queued a frame, either all is written, or a flush is due:
//!
//! - [`Flush::AtPollEnd`]: the future that uses the WebSocket is polled by [`Driven`](super::Driven). It flushes at the end of that poll, and is
//!   woken when the transport accepts more. This costs no task.
//! - [`Flush::InTask`]: elsewhere, a spawned task flushes at the next turn of the runtime, and waits for the transport.
//!
//! `model` checks this under shuttle.

use std::cell::Cell;

use super::waiters::Waiter;
use crate::sync::AbortHandle;
#[cfg(test)]
use crate::sync::Model;

/// Whether the batch will be flushed, and by what.
#[derive(Debug)]
pub(super) enum Flush {
    /// All is written, and the transport has nothing buffered; or nothing can be written.
    Flushed,
    /// The transport may have bytes buffered, or some are queued, and there is no flusher.
    Unflushed,
    /// By [`Driven`](super::Driven), at the end of its current poll, or when the transport wakes it.
    AtPollEnd,
    /// By a spawned task. One that was found before ends when it is polled.
    InTask(Waiter, AbortHandle),
}

impl Flush {
    /// Whether queued bytes will be written. A task that was dropped with its runtime writes nothing.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        match self {
            Self::Flushed | Self::Unflushed => false,
            Self::AtPollEnd => true,
            Self::InTask(_, task) => !task.is_finished(),
        }
    }

    /// Whether a flusher was found, which may have been dropped since.
    pub(super) fn has_flusher(&self) -> bool {
        matches!(self, Self::AtPollEnd | Self::InTask(..))
    }

    /// Whether this task is the flusher. Others have flushed since it was found, if it is not.
    pub(super) fn is_by(&self, task: Waiter) -> bool {
        matches!(self, Self::InTask(flusher, _) if *flusher == task)
    }
}

thread_local! {
    /// The connection whose future this thread polls, by address; 0 for none.
    static DRIVEN: Cell<usize> = const { Cell::new(0) };

    /// Memory for write batches. A connection borrows it from its first frame until all is written.
    /// Boxes, because they are passed in registers. The first is the one that was used last.
    static BUFFERS: [Cell<Option<Box<[u8]>>>; BUFFERS_MAX] = const { [const { Cell::new(None) }; BUFFERS_MAX] };
}

#[cfg(test)]
shuttle::thread_local! {
    /// `DRIVEN` of a thread of the model.
    static MODEL_DRIVEN: Cell<usize> = Cell::new(0);
}

/// Replaces the connection whose future this thread polls.
pub(super) fn replace_driven(id: usize) -> usize {
    #[cfg(test)]
    if Model::is_entered() {
        return MODEL_DRIVEN.with(|driven| driven.replace(id));
    }
    DRIVEN.replace(id)
}

/// Whether this thread polls the future of this connection. While the thread ends it polls none.
pub(super) fn is_driven(id: usize) -> bool {
    #[cfg(test)]
    if Model::is_entered() {
        return MODEL_DRIVEN.with(|driven| driven.get() == id);
    }
    DRIVEN.try_with(Cell::get) == Ok(id)
}

/// The capacity of pooled memory: a full batch and the longest message that is copied behind it.
pub(super) const BUFFER_LEN: usize = BATCH_LEN_MAX + COPIED_LEN_MAX + wireloom_ws::frame::HEADER_LEN_MAX;

/// From this length on, in bytes, a batch is written although more may come.
pub(super) const BATCH_LEN_MAX: usize = 64 << 10;

/// A longer message is written directly from the caller's memory, in a separate system call, instead of being copied into the batch.
pub(super) const COPIED_LEN_MAX: usize = 16 << 10;

/// Buffers that a thread keeps.
const BUFFERS_MAX: usize = 4;

/// Memory for a batch, of this thread's pool or new.
#[inline]
pub(super) fn take_buffer() -> Box<[u8]> {
    // There is no pool while the thread ends.
    let pooled = BUFFERS.try_with(|buffers| buffers.iter().find_map(Cell::take)).ok().flatten();
    pooled.unwrap_or_else(|| vec![0; BUFFER_LEN].into())
}

/// Keeps memory for the next batch of any connection.
#[inline]
pub(super) fn put_buffer(mut buffer: Vec<u8>) {
    if buffer.capacity() != BUFFER_LEN {
        return;
    }
    buffer.resize(BUFFER_LEN, 0);
    let _ = BUFFERS.try_with(|buffers| {
        let mut kept = Some(buffer.into_boxed_slice());
        for place in buffers {
            kept = place.replace(kept);
            if kept.is_none() {
                return;
            }
        }
    });
}
