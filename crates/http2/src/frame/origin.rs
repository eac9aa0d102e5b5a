//! ORIGIN: the origins that the connection serves (RFC 8336 §2).

use alloc::vec::Vec;

use super::{Flags, FrameHeader, Kind, StreamId};
use crate::error::Violation;

/// An ORIGIN frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin<'a> {
    /// Stream 0; otherwise the frame is ignored.
    pub stream_id: StreamId,
    /// The reserved flags that are set.
    flags: Flags,
    /// Complete entries, each preceded by its length.
    entries: &'a [u8],
}

impl<'a> Origin<'a> {
    /// The flags 0x1 to 0x8, with which the frame is ignored (RFC 8336 §2.1).
    const FLAGS_RESERVED: u8 = 0x0f;

    /// Parses a frame.
    ///
    /// # Errors
    /// [`Violation::OriginSize`] if an entry is incomplete.
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

    /// Whether the frame is on stream 0 and has no reserved flag; otherwise a client ignores it.
    pub const fn is_valid(&self) -> bool {
        // RFC 8336 §2.1: on another stream, or with one of the flags 0x1 to 0x8, it MUST be ignored.
        self.stream_id.is_connection() && self.flags.0 == 0
    }

    /// The origins in ASCII (RFC 6454 §6.2). They are not checked.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        Self::split(self.entries)
    }

    /// The origins as they were received.
    pub(crate) const fn entries(&self) -> &'a [u8] {
        self.entries
    }

    /// The origins of [`Origin::entries`].
    pub(crate) fn split(mut entries: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        core::iter::from_fn(move || {
            let (origin, after) = Self::split_entry(entries)?;
            entries = after;
            Some(origin)
        })
    }

    /// Appends a frame of these origins. Origins are truncated to 64 KiB.
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
