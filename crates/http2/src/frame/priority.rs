//! PRIORITY: the deprecated priority of streams, which is parsed and ignored (RFC 9113 §5.3.2, §6.3).

use alloc::vec::Vec;

use super::{Flags, FrameHeader, Kind, StreamId};
use crate::error::Violation;

/// The dependency of a stream on another, in PRIORITY and HEADERS. RFC 9113 §5.3.2 deprecates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dependency {
    /// Whether the dependency is exclusive.
    pub exclusive: bool,
    /// The stream that this one depends on.
    pub stream_id: StreamId,
    /// The weight minus one.
    pub weight: u8,
}

impl Dependency {
    /// The encoded length, in bytes.
    pub const LEN: usize = 5;

    pub(super) const fn decode(bytes: [u8; Self::LEN]) -> Self {
        let [s0, s1, s2, s3, weight] = bytes;
        let word = u32::from_be_bytes([s0, s1, s2, s3]);
        Self { exclusive: word >> 31 == 1, stream_id: StreamId::from_wire(word), weight }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let word = self.stream_id.get() | u32::from(self.exclusive) << 31;
        out.extend_from_slice(&word.to_be_bytes());
        out.push(self.weight);
    }

    /// Checks that a stream does not depend on itself. The fields of such HEADERS must be decoded before the stream is reset.
    ///
    /// # Errors
    /// [`Violation::PrioritySelfDependency`]
    pub fn check(&self, of: StreamId) -> Result<(), Violation> {
        // RFC 7540 §5.3.1: a stream cannot depend on itself: a stream error, PROTOCOL_ERROR.
        if self.stream_id == of { Err(Violation::PrioritySelfDependency) } else { Ok(()) }
    }
}

/// A PRIORITY frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorityFrame {
    /// The stream, not 0.
    pub stream_id: StreamId,
    /// The stream that it depends on.
    pub dependency: Dependency,
}

impl PriorityFrame {
    /// Parses a frame.
    ///
    /// # Errors
    /// A rule of RFC 9113 §6.3 (and RFC 7540 §5.3.1, for a stream that depends on itself) that the frame violates.
    pub fn parse(header: &FrameHeader, payload: &[u8]) -> Result<Self, Violation> {
        // RFC 9113 §6.3: PRIORITY on stream 0 is a connection error, PROTOCOL_ERROR.
        header.require_stream()?;
        // RFC 9113 §6.3: any length other than 5 is a stream error, FRAME_SIZE_ERROR.
        let bytes = payload.try_into().map_err(|_| Violation::PrioritySize)?;
        let dependency = Dependency::decode(bytes);
        dependency.check(header.stream_id)?;
        Ok(Self { stream_id: header.stream_id, dependency })
    }

    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let Self { stream_id, dependency } = *self;
        FrameHeader { len: Dependency::LEN as u32, kind: Kind::PRIORITY, flags: Flags::NONE, stream_id }
            .encode(out);
        dependency.encode(out);
    }
}
