//! PING: measures the round trip, or checks that the peer is alive (RFC 9113 §6.7).

use alloc::vec::Vec;

use super::{Flags, FrameHeader, Kind, StreamId};
use crate::error::Violation;

/// A PING frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ping {
    /// Whether this is an acknowledgement.
    pub ack: bool,
    /// Opaque data, which the acknowledgement repeats.
    pub payload: [u8; 8],
}

impl Ping {
    /// Parses a frame.
    ///
    /// # Errors
    /// A rule of RFC 9113 §6.7 that the frame violates.
    pub fn parse(header: &FrameHeader, payload: &[u8]) -> Result<Self, Violation> {
        // RFC 9113 §6.7: PING on a stream is a connection error, PROTOCOL_ERROR.
        header.require_connection()?;
        // RFC 9113 §6.7: any length other than 8 is a connection error, FRAME_SIZE_ERROR.
        let payload = payload.try_into().map_err(|_| Violation::PingSize)?;
        Ok(Self { ack: header.flags.contains(Flags::ACK), payload })
    }

    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let flags = Flags::NONE.with(Flags::ACK, self.ack);
        FrameHeader { len: 8, kind: Kind::PING, flags, stream_id: StreamId::CONNECTION }.encode(out);
        out.extend_from_slice(&self.payload);
    }
}
