//! PUSH_PROMISE: a request that the server generates for the client (RFC 9113 §6.6).

use alloc::vec::Vec;

use super::{Flags, FrameHeader, Kind, StreamId, padding};
use crate::error::Violation;

/// A PUSH_PROMISE frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushPromise<'a> {
    /// The stream of the associated request, not 0.
    pub stream_id: StreamId,
    /// The stream of the promised response, not 0.
    pub promised_id: StreamId,
    /// Whether the field block is complete; otherwise CONTINUATION follows.
    pub end_headers: bool,
    /// The length of the padding. An unpadded frame, `None`, is one byte shorter than `Some(0)`.
    pub padding: Option<u8>,
    /// The beginning of the field block.
    pub fragment: &'a [u8],
}

impl<'a> PushPromise<'a> {
    /// Parses a frame.
    ///
    /// # Errors
    /// A rule of RFC 9113 §6.6 that the frame violates.
    pub fn parse(header: &FrameHeader, payload: &'a [u8]) -> Result<Self, Violation> {
        // RFC 9113 §6.6: PUSH_PROMISE on stream 0 is a connection error, PROTOCOL_ERROR.
        header.require_stream()?;
        let (padding, rest) = padding::strip(header, payload, Violation::PushPromiseSize)?;
        let Some((id, fragment)) = rest.split_first_chunk() else {
            let fits = payload.len() >= padding::len(padding.and(Some(0))) + 4;
            return Err(if fits { Violation::PaddingTooLong } else { Violation::PushPromiseSize });
        };
        let promised_id = StreamId::from_wire(u32::from_be_bytes(*id));
        // RFC 9113 §5.1.1: stream 0 cannot be opened; §6.6: an illegal identifier is a connection error.
        if promised_id.is_connection() {
            return Err(Violation::PromisedIdInvalid);
        }
        let end_headers = header.flags.contains(Flags::END_HEADERS);
        Ok(Self { stream_id: header.stream_id, promised_id, end_headers, padding, fragment })
    }

    /// Appends the frame. [`super::BlockWriter`] frames fields that are encoded directly into the output.
    pub fn encode(&self, out: &mut Vec<u8>) {
        FrameHeader {
            len: (padding::len(self.padding) + 4 + self.fragment.len()) as u32,
            kind: Kind::PUSH_PROMISE,
            flags: Flags::NONE
                .with(Flags::END_HEADERS, self.end_headers)
                .with(Flags::PADDED, self.padding.is_some()),
            stream_id: self.stream_id,
        }
        .encode(out);
        padding::encode_len(self.padding, out);
        out.extend_from_slice(&self.promised_id.get().to_be_bytes());
        out.extend_from_slice(self.fragment);
        padding::encode(self.padding, out);
    }
}
