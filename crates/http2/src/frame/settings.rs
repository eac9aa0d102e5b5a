//! SETTINGS frames (RFC 9113 §6.5). Values are validated in [`crate::settings`].

use alloc::vec::Vec;

use super::{Flags, FrameHeader, Kind, StreamId};
use crate::error::Violation;

/// One entry: an identifier, which may be unknown, and a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The identifier of the setting.
    pub id: u16,
    /// The value of the setting.
    pub value: u32,
}

impl Setting {
    /// The encoded length, in bytes.
    pub const LEN: usize = 6;

    pub(crate) const fn decode(bytes: &[u8; Self::LEN]) -> Self {
        let [i0, i1, v0, v1, v2, v3] = *bytes;
        Self { id: u16::from_be_bytes([i0, i1]), value: u32::from_be_bytes([v0, v1, v2, v3]) }
    }

    pub(crate) fn encode(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id.to_be_bytes());
        out.extend_from_slice(&self.value.to_be_bytes());
    }
}

/// A SETTINGS frame: entries, or an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingsFrame<'a> {
    /// The peer's settings, to be applied in order and acknowledged.
    Values(Values<'a>),
    /// The acknowledgement of the settings that this side sent.
    Ack,
}

/// The entries of a SETTINGS frame, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Values<'a> {
    entries: &'a [[u8; Setting::LEN]],
}

impl<'a> Values<'a> {
    /// Parses entries from the payload of a frame or from `HTTP2-Settings` (RFC 7540 §3.2.1).
    ///
    /// # Errors
    /// [`Violation::SettingsSize`] if the length is not a multiple of 6.
    pub const fn from_bytes(bytes: &'a [u8]) -> Result<Self, Violation> {
        match bytes.as_chunks() {
            (entries, []) => Ok(Self { entries }),
            _ => Err(Violation::SettingsSize),
        }
    }

    /// The number of entries, including unknown and repeated ones.
    pub const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no entries.
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entries.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Setting> + use<'a> {
        self.entries.iter().map(Setting::decode)
    }
}

impl<'a> SettingsFrame<'a> {
    /// Parses a frame.
    ///
    /// # Errors
    /// A rule of RFC 9113 §6.5 that the frame violates.
    pub fn parse(header: &FrameHeader, payload: &'a [u8]) -> Result<Self, Violation> {
        // RFC 9113 §6.5: SETTINGS on a stream are a connection error, PROTOCOL_ERROR.
        header.require_connection()?;
        if header.flags.contains(Flags::ACK) {
            // RFC 9113 §6.5: an acknowledgement with a payload is a connection error, FRAME_SIZE_ERROR.
            return if payload.is_empty() { Ok(Self::Ack) } else { Err(Violation::SettingsAckSize) };
        }
        // RFC 9113 §6.5: a length that is not a multiple of 6 is a connection error, FRAME_SIZE_ERROR.
        Values::from_bytes(payload).map(Self::Values)
    }

    /// Appends the acknowledgement.
    pub fn encode_ack(out: &mut Vec<u8>) {
        let stream_id = StreamId::CONNECTION;
        FrameHeader { len: 0, kind: Kind::SETTINGS, flags: Flags::ACK, stream_id }.encode(out);
    }

    /// Appends a frame of these entries.
    pub fn encode(entries: impl IntoIterator<Item = Setting>, out: &mut Vec<u8>) {
        let start = out.len();
        let stream_id = StreamId::CONNECTION;
        let header = FrameHeader { len: 0, kind: Kind::SETTINGS, flags: Flags::NONE, stream_id };
        header.encode(out);
        entries.into_iter().for_each(|entry| entry.encode(out));
        let len = (out.len() - start - FrameHeader::LEN) as u32;
        out[start..start + FrameHeader::LEN].copy_from_slice(&FrameHeader { len, ..header }.to_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_six_bytes_each() {
        // RFC 9113 §6.5.1
        let bytes = [0, 3, 0, 0, 0, 100, 0, 4, 0, 1, 0, 0];
        for (len, entries) in [(0, Some(0)), (5, None), (6, Some(1)), (7, None), (12, Some(2))] {
            let values = Values::from_bytes(&bytes[..len]);
            assert_eq!(values.map(|values| values.len()).ok(), entries);
            assert_eq!(values.map(|values| values.is_empty()).ok(), entries.map(|entries| entries == 0));
        }
        let values = Values::from_bytes(&bytes).unwrap();
        assert!(values.iter().eq([Setting { id: 3, value: 100 }, Setting { id: 4, value: 65_536 }]));
    }
}
