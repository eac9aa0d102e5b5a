//! DATA: the content of a message (RFC 9113 §6.1).

use alloc::vec::Vec;

use super::{Flags, FrameHeader, Kind, StreamId, padding};
use crate::error::Violation;

/// A DATA frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data<'a> {
    /// The stream, not 0.
    pub stream_id: StreamId,
    /// Whether the message ends here.
    pub end_stream: bool,
    /// The length of the padding. An unpadded frame, `None`, is one byte shorter than `Some(0)`.
    pub padding: Option<u8>,
    /// The content.
    pub data: &'a [u8],
}

impl<'a> Data<'a> {
    /// Parses a frame.
    ///
    /// # Errors
    /// A rule of RFC 9113 §6.1 that the frame violates.
    pub fn parse(header: &FrameHeader, payload: &'a [u8]) -> Result<Self, Violation> {
        // RFC 9113 §6.1: DATA on stream 0 is a connection error, PROTOCOL_ERROR.
        header.require_stream()?;
        let (padding, data) = padding::strip(header, payload, Violation::DataSize)?;
        let end_stream = header.flags.contains(Flags::END_STREAM);
        Ok(Self { stream_id: header.stream_id, end_stream, padding, data })
    }

    /// The flow-controlled length, in bytes: the payload including its padding (RFC 9113 §6.1).
    pub const fn flow_len(&self) -> usize {
        self.data.len() + padding::len(self.padding)
    }

    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.header().encode(out);
        padding::encode_len(self.padding, out);
        out.extend_from_slice(self.data);
        padding::encode(self.padding, out);
    }

    /// The header alone, for a caller that writes the data without copying it to the output buffer.
    pub const fn header(&self) -> FrameHeader {
        FrameHeader {
            len: self.flow_len() as u32,
            kind: Kind::DATA,
            flags: Flags::NONE
                .with(Flags::END_STREAM, self.end_stream)
                .with(Flags::PADDED, self.padding.is_some()),
            stream_id: self.stream_id,
        }
    }
}
