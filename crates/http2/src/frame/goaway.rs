//! GOAWAY: the end of the connection (RFC 9113 §6.8).

use alloc::vec::Vec;

use super::{Flags, FrameHeader, Kind, StreamId};
use crate::error::{ErrorCode, Violation};

/// A GOAWAY frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Goaway<'a> {
    /// The last stream of the receiver that was or may be processed; 0 if there is none.
    pub last_stream_id: StreamId,
    /// Why the connection ends.
    pub code: ErrorCode,
    /// Diagnostic data without a defined meaning.
    pub debug_data: &'a [u8],
}

impl<'a> Goaway<'a> {
    /// Parses a frame.
    ///
    /// # Errors
    /// A rule of RFC 9113 §6.8 that the frame violates.
    pub fn parse(header: &FrameHeader, payload: &'a [u8]) -> Result<Self, Violation> {
        // RFC 9113 §6.8: GOAWAY on a stream is a connection error, PROTOCOL_ERROR.
        header.require_connection()?;
        let Some((&[s0, s1, s2, s3, c0, c1, c2, c3], debug_data)) = payload.split_first_chunk() else {
            return Err(Violation::GoawaySize);
        };
        Ok(Self {
            last_stream_id: StreamId::from_wire(u32::from_be_bytes([s0, s1, s2, s3])),
            code: u32::from_be_bytes([c0, c1, c2, c3]).into(),
            debug_data,
        })
    }

    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let len = (8 + self.debug_data.len()) as u32;
        FrameHeader { len, kind: Kind::GOAWAY, flags: Flags::NONE, stream_id: StreamId::CONNECTION }
            .encode(out);
        out.extend_from_slice(&self.last_stream_id.get().to_be_bytes());
        out.extend_from_slice(&self.code.get().to_be_bytes());
        out.extend_from_slice(self.debug_data);
    }
}
