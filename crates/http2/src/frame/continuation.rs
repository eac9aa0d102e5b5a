//! CONTINUATION: a further fragment of a field block (RFC 9113 §6.10).

use alloc::vec::Vec;

use super::{Flags, FrameHeader, Kind, StreamId};
use crate::error::Violation;

/// A CONTINUATION frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Continuation<'a> {
    /// The stream of the HEADERS or PUSH_PROMISE that it continues, not 0.
    pub stream_id: StreamId,
    /// Whether the field block is complete.
    pub end_headers: bool,
    /// A fragment of the field block.
    pub fragment: &'a [u8],
}

impl<'a> Continuation<'a> {
    /// Parses a frame.
    ///
    /// # Errors
    /// A rule of RFC 9113 §6.10 that the frame violates.
    pub fn parse(header: &FrameHeader, payload: &'a [u8]) -> Result<Self, Violation> {
        // RFC 9113 §6.10: CONTINUATION on stream 0 is a connection error, PROTOCOL_ERROR.
        header.require_stream()?;
        let end_headers = header.flags.contains(Flags::END_HEADERS);
        Ok(Self { stream_id: header.stream_id, end_headers, fragment: payload })
    }

    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        FrameHeader {
            len: self.fragment.len() as u32,
            kind: Kind::CONTINUATION,
            flags: Flags::NONE.with(Flags::END_HEADERS, self.end_headers),
            stream_id: self.stream_id,
        }
        .encode(out);
        out.extend_from_slice(self.fragment);
    }
}
