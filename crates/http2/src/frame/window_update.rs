//! WINDOW_UPDATE: an increment of a flow-control window (RFC 9113 §6.9).

use alloc::vec::Vec;

use super::{Flags, FrameHeader, Kind, StreamId};
use crate::error::Violation;

/// A WINDOW_UPDATE frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowUpdate {
    /// The stream, or 0 for the connection.
    pub stream_id: StreamId,
    /// The number of bytes that may be sent in addition: `1 <= increment < 2^31`.
    pub increment: u32,
}

impl WindowUpdate {
    /// Parses a frame.
    ///
    /// # Errors
    /// A rule of RFC 9113 §6.9 that the frame violates.
    pub fn parse(header: &FrameHeader, payload: &[u8]) -> Result<Self, Violation> {
        // RFC 9113 §6.9: any length other than 4 is a connection error, FRAME_SIZE_ERROR.
        let bytes = payload.try_into().map_err(|_| Violation::WindowUpdateSize)?;
        let increment = u32::from_be_bytes(bytes) & (u32::MAX >> 1);
        // RFC 9113 §6.9: an increment of 0 is a stream error, PROTOCOL_ERROR; a connection error on stream 0.
        if increment == 0 {
            return Err(Violation::WindowIncrementZero);
        }
        Ok(Self { stream_id: header.stream_id, increment })
    }

    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let Self { stream_id, increment } = *self;
        debug_assert!(0 < increment && increment <= u32::MAX >> 1);
        FrameHeader { len: 4, kind: Kind::WINDOW_UPDATE, flags: Flags::NONE, stream_id }.encode(out);
        out.extend_from_slice(&increment.to_be_bytes());
    }
}
