//! ORIGIN: which origins the connection serves (RFC 8336 §2).

use alloc::vec::Vec;

use super::{Flags, FrameHeader, Kind, StreamId};
use crate::error::Violation;

/// An ORIGIN frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin<'a> {
    /// Stream 0, or the frame is to be ignored.
    pub stream_id: StreamId,
    /// The four flags that the frame must not have.
    flags: Flags,
    /// Entries, each with its length before it; none is cut off.
    entries: &'a [u8],
}

impl<'a> Origin<'a> {
    /// The flags that would give the frame another meaning (RFC 8336 §2.1).
    const FLAGS_RESERVED: u8 = 0x0f;

    /// Reads a frame.
    ///
    /// # Errors
    /// [`Violation::OriginSize`] when an entry is cut off.
    pub fn parse(header: &FrameHeader, payload: &'a [u8]) -> Result<Self, Violation> {
        let mut rest = payload;
        while !rest.is_empty() {
            rest = Self::split_entry(rest).ok_or(Violation::OriginSize)?.1;
        }
        let flags = Flags(header.flags.0 & Self::FLAGS_RESERVED);
        Ok(Self { stream_id: header.stream_id, flags, entries: payload })
    }

    fn split_entry(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
        let (len, rest) = bytes.split_first_chunk()?;
        rest.split_at_checked(usize::from(u16::from_be_bytes(*len)))
    }

    /// Whether a client may use it: it is on stream 0 and has none of the flags that are reserved.
    pub const fn is_valid(&self) -> bool {
        // RFC 8336 §2.1: on another stream, or with one of the flags 0x1 to 0x8, it MUST be ignored.
        self.stream_id.is_connection() && self.flags.0 == 0
    }

    /// The origins, in ASCII (RFC 6454 §6.2), not checked.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut rest = self.entries;
        core::iter::from_fn(move || {
            let (origin, after) = Self::split_entry(rest)?;
            rest = after;
            Some(origin)
        })
    }

    /// Appends a frame of these origins; one of more than 64 KiB is cut off, and no origin is that long.
    pub fn encode<'b>(origins: impl IntoIterator<Item = &'b [u8]>, out: &mut Vec<u8>) {
        let start = out.len();
        let header =
            FrameHeader { len: 0, kind: Kind::ORIGIN, flags: Flags::NONE, stream_id: StreamId::CONNECTION };
        header.encode(out);
        for origin in origins {
            let origin = &origin[..origin.len().min(usize::from(u16::MAX))];
            out.extend_from_slice(&(origin.len() as u16).to_be_bytes());
            out.extend_from_slice(origin);
        }
        let len = (out.len() - start - FrameHeader::LEN) as u32;
        out[start..start + FrameHeader::LEN].copy_from_slice(&FrameHeader { len, ..header }.to_bytes());
    }
}
