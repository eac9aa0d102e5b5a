//! Streams: their keys, records, states, and the store that holds them.
//!
//! Owns [`StreamKey`], the record of a stream, the slab that finds one by key or by identifier in O(1), the memory of
//! streams that are gone, the priorities of those that are to come, and the pieces of DATA that wait to be sent. Refuses to own frames and windows of the
//! connection. RFC 9113 §5.

mod idle_priorities;
mod recent;
mod record;
mod send_queue;
mod slab;
mod state;

pub(crate) use idle_priorities::IdlePriorities;
pub(crate) use recent::{Ended, Recent};
pub(crate) use record::{Priority, Stream, flag};
pub(crate) use send_queue::{ChunkPool, Parked};
pub(crate) use slab::{NONE, Slab};
pub(crate) use state::{State, Step};

/// Names one stream of one connection; safe to keep after the stream is gone, and never names another.
///
/// Commands take the key and find the stream by its slot, so nothing is hashed. The slot is dense and used again: a
/// caller with state of its own for each stream can index an array by it. The identifier tells generations apart,
/// because a connection never uses one twice (RFC 9113 §5.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamKey {
    slot: u32,
    id: u32,
}

impl StreamKey {
    #[inline]
    pub(crate) const fn new(slot: u32, id: u32) -> Self {
        Self { slot, id }
    }

    /// The stream identifier on the wire (RFC 9113 §5.1.1).
    #[inline]
    pub const fn id(self) -> u32 {
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
