//! ALTSVC: alternative services of an origin (RFC 7838 §4).

use alloc::vec::Vec;

use super::{Flags, FrameHeader, Kind, StreamId};
use crate::error::Violation;

/// An ALTSVC frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AltSvc<'a> {
    /// Stream 0, or a stream whose origin has the alternative services.
    pub stream_id: StreamId,
    /// The origin, on stream 0; empty on another stream.
    pub origin: &'a [u8],
    /// The value, as in the `Alt-Svc` field.
    pub value: &'a [u8],
}

impl<'a> AltSvc<'a> {
    /// Parses a frame.
    ///
    /// # Errors
    /// [`Violation::AltSvcSize`] if the frame is shorter than the origin.
    pub fn parse(header: &FrameHeader, payload: &'a [u8]) -> Result<Self, Violation> {
        let (len, rest) = payload.split_first_chunk().ok_or(Violation::AltSvcSize)?;
        let (origin, value) =
            rest.split_at_checked(usize::from(u16::from_be_bytes(*len))).ok_or(Violation::AltSvcSize)?;
        Ok(Self { stream_id: header.stream_id, origin, value })
    }

    /// Whether the frame has an origin exactly if it is on stream 0; otherwise a client ignores it. A server ignores all of them
    /// (RFC 7838 §4).
    pub const fn is_valid(&self) -> bool {
        // RFC 7838 §4: an empty origin on stream 0, and an origin on another stream, MUST be ignored.
        self.stream_id.is_connection() != self.origin.is_empty()
    }

    /// Appends the frame. The origin is truncated to 64 KiB.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let origin = &self.origin[..self.origin.len().min(usize::from(u16::MAX))];
        let len = (2 + origin.len() + self.value.len()) as u32;
        FrameHeader { len, kind: Kind::ALTSVC, flags: Flags::NONE, stream_id: self.stream_id }.encode(out);
        out.extend_from_slice(&(origin.len() as u16).to_be_bytes());
        out.extend_from_slice(origin);
        out.extend_from_slice(self.value);
    }
}
