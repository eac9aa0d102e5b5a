//! ALTSVC: where else an origin is served (RFC 7838 §4).

use alloc::vec::Vec;

use super::{Flags, FrameHeader, Kind, StreamId};
use crate::error::Violation;

/// An ALTSVC frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AltSvc<'a> {
    /// Stream 0, or the stream whose origin is meant.
    pub stream_id: StreamId,
    /// The origin, on stream 0; empty on another stream.
    pub origin: &'a [u8],
    /// The value that the `Alt-Svc` field would have.
    pub value: &'a [u8],
}

impl<'a> AltSvc<'a> {
    /// Reads a frame.
    ///
    /// # Errors
    /// [`Violation::AltSvcSize`] when the frame is shorter than what it announces.
    pub fn parse(header: &FrameHeader, payload: &'a [u8]) -> Result<Self, Violation> {
        let (len, rest) = payload.split_first_chunk().ok_or(Violation::AltSvcSize)?;
        let (origin, value) =
            rest.split_at_checked(usize::from(u16::from_be_bytes(*len))).ok_or(Violation::AltSvcSize)?;
        Ok(Self { stream_id: header.stream_id, origin, value })
    }

    /// Whether it names its origin as the stream requires; a client ignores it otherwise (and a
    /// server always: RFC 7838 §4).
    pub const fn is_valid(&self) -> bool {
        // RFC 7838 §4: an empty origin on stream 0, and an origin on another stream, MUST be ignored.
        self.stream_id.is_connection() != self.origin.is_empty()
    }

    /// Appends the frame; an origin of more than 64 KiB is cut off, and no origin is that long.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let origin = &self.origin[..self.origin.len().min(usize::from(u16::MAX))];
        let len = (2 + origin.len() + self.value.len()) as u32;
        FrameHeader { len, kind: Kind::ALTSVC, flags: Flags::NONE, stream_id: self.stream_id }.encode(out);
        out.extend_from_slice(&(origin.len() as u16).to_be_bytes());
        out.extend_from_slice(origin);
        out.extend_from_slice(self.value);
    }
}
