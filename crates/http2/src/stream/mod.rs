//! Streams: their keys, records and phases, the store that holds them, and the queues of what they send (RFC 9113 §5).
//!
//! [`Streams`] owns all of it and never writes a frame: each method returns what follows from it, and the connection
//! writes frames and reports events in that order. Layers, lowest first: `state`, `record`, `slab`; `recent`,
//! `idle_priorities`, `send_queue`, `scheduler`; `streams` with `receive`, `send` and `stall`.

mod idle_priorities;
mod receive;
mod recent;
mod record;
mod scheduler;
mod send;
mod send_queue;
mod slab;
mod stall;
mod state;
mod streams;

pub(crate) use receive::DataCheck;
pub(crate) use recent::Closure;
pub(crate) use record::Stream;
pub(crate) use send::{NextFrame, PROGRESS_MIN, check_content};
pub(crate) use stall::millis;
pub(crate) use state::{RecvPhase, SendPhase};
pub(crate) use streams::{Closed, Streams};

use crate::frame::StreamId;
use idle_priorities::IdlePriorities;
use recent::Recent;
use record::{List, StallClock};
use scheduler::Scheduler;
use send_queue::{ChunkPool, Parked};
use slab::{NONE, Slab};

/// Names one stream of one connection; safe to keep after the stream is closed, and never names another.
///
/// Commands take the key and find the stream by its slot, so nothing is hashed. The slot is dense and used again: a
/// caller with state of its own for each stream can index an array by it. The identifier distinguishes generations,
/// because a connection never uses one twice (RFC 9113 §5.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamKey {
    slot: u32,
    id: StreamId,
}

impl StreamKey {
    #[inline]
    pub(crate) const fn new(slot: u32, id: StreamId) -> Self {
        Self { slot, id }
    }

    /// The stream identifier on the wire (RFC 9113 §5.1.1), as a number.
    #[inline]
    pub const fn id(self) -> u32 {
        self.id.get()
    }

    /// The stream identifier on the wire (RFC 9113 §5.1.1).
    #[inline]
    pub const fn stream_id(self) -> StreamId {
        self.id
    }

    /// The place in the connection's store: below the largest number of streams that were ever open at once.
    #[inline]
    pub const fn slot(self) -> usize {
        self.slot as usize
    }

    #[inline]
    pub(crate) const fn slot_u32(self) -> u32 {
        self.slot
    }
}

impl core::fmt::Debug for StreamKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "StreamKey({}@{})", self.id, self.slot)
    }
}
