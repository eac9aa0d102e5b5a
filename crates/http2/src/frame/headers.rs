//! HEADERS: the fields of a message (RFC 9113 §6.2).

use alloc::vec::Vec;

use super::{Dependency, Flags, FrameHeader, Kind, StreamId, padding};
use crate::error::Violation;

/// A HEADERS frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers<'a> {
    /// The stream, not 0.
    pub stream_id: StreamId,
    /// Whether the message ends here, or with the CONTINUATION frames that follow.
    pub end_stream: bool,
    /// Whether the field block is complete; otherwise CONTINUATION follows.
    pub end_headers: bool,
    /// The deprecated priority. Not checked: see [`Dependency::check`].
    pub dependency: Option<Dependency>,
    /// The length of the padding. An unpadded frame, `None`, is one byte shorter than `Some(0)`.
    pub padding: Option<u8>,
    /// The beginning of the field block.
    pub fragment: &'a [u8],
}

impl<'a> Headers<'a> {
    /// Parses a frame.
    ///
    /// # Errors
    /// A rule of RFC 9113 §6.2 that the frame violates.
    #[inline]
    pub fn parse(header: &FrameHeader, payload: &'a [u8]) -> Result<Self, Violation> {
        // RFC 9113 §6.2: HEADERS on stream 0 are a connection error, PROTOCOL_ERROR.
        header.require_stream()?;
        let (padding, mut fragment) = padding::strip(header, payload, Violation::HeadersSize)?;
        let mut dependency = None;
        if header.flags.contains(Flags::PRIORITY) {
            let Some((bytes, rest)) = fragment.split_first_chunk() else {
                // RFC 9113 §6.2: the padding leaves no room for the priority.
                let fits = payload.len() >= padding::len(padding.and(Some(0))) + Dependency::LEN;
                return Err(if fits { Violation::PaddingTooLong } else { Violation::HeadersSize });
            };
            dependency = Some(Dependency::decode(*bytes));
            fragment = rest;
        }
        Ok(Self {
            stream_id: header.stream_id,
            end_stream: header.flags.contains(Flags::END_STREAM),
            end_headers: header.flags.contains(Flags::END_HEADERS),
            dependency,
            padding,
            fragment,
        })
    }

    /// Appends the frame. [`super::BlockWriter`] frames fields that are encoded directly into the output.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let dependency_len = if self.dependency.is_some() { Dependency::LEN } else { 0 };
        FrameHeader {
            len: (padding::len(self.padding) + dependency_len + self.fragment.len()) as u32,
            kind: Kind::HEADERS,
            flags: Flags::NONE
                .with(Flags::END_STREAM, self.end_stream)
                .with(Flags::END_HEADERS, self.end_headers)
                .with(Flags::PADDED, self.padding.is_some())
                .with(Flags::PRIORITY, self.dependency.is_some()),
            stream_id: self.stream_id,
        }
        .encode(out);
        padding::encode_len(self.padding, out);
        if let Some(dependency) = self.dependency {
            dependency.encode(out);
        }
        out.extend_from_slice(self.fragment);
        padding::encode(self.padding, out);
    }
}
