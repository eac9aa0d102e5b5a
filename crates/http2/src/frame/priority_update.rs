//! PRIORITY_UPDATE: changes the priority of a response (RFC 9218 §7.1).

use alloc::vec::Vec;

use super::{Flags, FrameHeader, Kind, StreamId};
use crate::error::Violation;

/// A PRIORITY_UPDATE frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorityUpdate<'a> {
    /// The stream of the response, not 0.
    pub prioritized_id: StreamId,
    /// The value, as in the `priority` field: see [`crate::priority::Priority::parse`].
    pub value: &'a [u8],
}

impl<'a> PriorityUpdate<'a> {
    /// Parses a frame.
    ///
    /// # Errors
    /// A rule of RFC 9218 §7.1 that the frame violates.
    pub fn parse(header: &FrameHeader, payload: &'a [u8]) -> Result<Self, Violation> {
        // RFC 9218 §7.1: on a stream it is a connection error, PROTOCOL_ERROR.
        header.require_connection()?;
        let (id, value) = payload.split_first_chunk().ok_or(Violation::PriorityUpdateSize)?;
        let prioritized_id = StreamId::from_wire(u32::from_be_bytes(*id));
        // RFC 9218 §7.1: a prioritized stream 0 is a connection error, PROTOCOL_ERROR.
        if prioritized_id.is_connection() {
            return Err(Violation::PriorityUpdateStreamZero);
        }
        Ok(Self { prioritized_id, value })
    }

    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let len = (4 + self.value.len()) as u32;
        let stream_id = StreamId::CONNECTION;
        FrameHeader { len, kind: Kind::PRIORITY_UPDATE, flags: Flags::NONE, stream_id }.encode(out);
        out.extend_from_slice(&self.prioritized_id.get().to_be_bytes());
        out.extend_from_slice(self.value);
    }
}
