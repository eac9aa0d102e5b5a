//! RST_STREAM: immediate termination of a stream (RFC 9113 §6.4).

use alloc::vec::Vec;

use super::{Flags, FrameHeader, Kind, StreamId};
use crate::error::{ErrorCode, Violation};

/// A RST_STREAM frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RstStream {
    /// The stream, not 0.
    pub stream_id: StreamId,
    /// The reason.
    pub code: ErrorCode,
}

impl RstStream {
    /// Parses a frame.
    ///
    /// # Errors
    /// A rule of RFC 9113 §6.4 that the frame violates.
    pub fn parse(header: &FrameHeader, payload: &[u8]) -> Result<Self, Violation> {
        // RFC 9113 §6.4: RST_STREAM on stream 0 is a connection error, PROTOCOL_ERROR.
        header.require_stream()?;
        // RFC 9113 §6.4: any length other than 4 is a connection error, FRAME_SIZE_ERROR.
        let bytes = payload.try_into().map_err(|_| Violation::RstStreamSize)?;
        Ok(Self { stream_id: header.stream_id, code: u32::from_be_bytes(bytes).into() })
    }

    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let Self { stream_id, code } = *self;
        FrameHeader { len: 4, kind: Kind::RST_STREAM, flags: Flags::NONE, stream_id }.encode(out);
        out.extend_from_slice(&code.get().to_be_bytes());
    }
}
