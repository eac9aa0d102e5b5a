//! Streams: their keys, records and phases, the store that contains them, and their send queues (RFC 9113 §5).
//!
//! [`Streams`] owns all of them. Its methods return the frames to write and the events to report, and the connection writes and
//! reports them. Layers, lowest first: `state`, `record`, `slab`; `closed_streams`,
//! `idle_priorities`, `opening`, `send_queue`, `scheduler`; `streams` with `receive`, `send` and `stall`.

mod closed_streams;
mod idle_priorities;
mod opening;
mod receive;
mod record;
mod scheduler;
mod send;
mod send_queue;
mod slab;
mod stall;
mod state;
mod streams;

pub(crate) use closed_streams::{Answer, Closed, LateFrame};
pub(crate) use receive::DataCheck;
pub(crate) use record::Stream;
pub(crate) use send::{NextFrame, check_content};
pub(crate) use state::{RecvPhase, SendPhase};
pub(crate) use streams::{CloseEffects, OpenedRequest, Streams};

use crate::frame::StreamId;
use closed_streams::{ClosedStreams, LocalReset};
use idle_priorities::IdlePriorities;
use opening::Opening;
use record::List;
use scheduler::Scheduler;
use send_queue::{ChunkPool, TrailerPool};
use slab::{NONE, Slab};

/// The key of a stream of a connection. It stays valid after the stream is closed, and never refers to another stream.
///
/// Commands find the stream by the slot of its key, without hashing. Slots are small numbers that are reused: a caller with its
/// own state for each stream can index an array by them. The identifier distinguishes the streams of a slot, because a
/// connection never uses an identifier twice (RFC 9113 §5.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamKey {
    slot: u32,
    id: StreamId,
}

impl StreamKey {
    pub(crate) const fn new(slot: u32, id: StreamId) -> Self {
        Self { slot, id }
    }

    /// The stream identifier on the wire (RFC 9113 §5.1.1), as a number.
    pub const fn id(self) -> u32 {
        self.id.get()
    }

    /// The stream identifier on the wire (RFC 9113 §5.1.1).
    pub const fn stream_id(self) -> StreamId {
        self.id
    }

    /// The index of the stream in the connection's store. It is less than the maximum number of streams that were open at once.
    pub const fn slot(self) -> usize {
        self.slot as usize
    }

    pub(crate) const fn slot_u32(self) -> u32 {
        self.slot
    }
}

impl core::fmt::Debug for StreamKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "StreamKey({}@{})", self.id, self.slot)
    }
}
