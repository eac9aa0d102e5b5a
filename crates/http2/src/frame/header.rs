//! [`FrameHeader`]: the first nine bytes of a frame (RFC 9113 §4.1).
//!
//! ```text
//!  0                   1                   2                   3
//! +-----------------------------------------------+
//! |                 Length (24)                   |
//! +---------------+---------------+---------------+
//! |   Type (8)    |   Flags (8)   |
//! +-+-------------+---------------+-------------------------------+
//! |R|                 Stream Identifier (31)                      |
//! +=+=============================================================+
//! ```

use alloc::vec::Vec;

use super::StreamId;
use crate::error::Violation;

/// The type of a frame. Most values are unknown.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Kind(pub u8);

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $value:literal,)*) => {
        impl Kind {
            $($(#[$doc])* pub const $name: Self = Self($value);)*

            /// The name of the type; `None` when it is unknown.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    /// Content of a message (RFC 9113 §6.1).
    DATA = 0x0,
    /// Fields that open a stream, answer or end a message (RFC 9113 §6.2).
    HEADERS = 0x1,
    /// The deprecated priority (RFC 9113 §6.3).
    PRIORITY = 0x2,
    /// The end of a stream at once (RFC 9113 §6.4).
    RST_STREAM = 0x3,
    /// Settings of the sender (RFC 9113 §6.5).
    SETTINGS = 0x4,
    /// A request that the server makes in the client's place (RFC 9113 §6.6).
    PUSH_PROMISE = 0x5,
    /// A question whether the peer is there, and the answer (RFC 9113 §6.7).
    PING = 0x6,
    /// The end of the connection (RFC 9113 §6.8).
    GOAWAY = 0x7,
    /// Leave to send more (RFC 9113 §6.9).
    WINDOW_UPDATE = 0x8,
    /// The rest of a field block (RFC 9113 §6.10).
    CONTINUATION = 0x9,
    /// Where else the origin is served (RFC 7838 §4).
    ALTSVC = 0xa,
    /// Which origins the connection serves (RFC 8336 §2).
    ORIGIN = 0xc,
    /// The priority of a response (RFC 9218 §7.1).
    PRIORITY_UPDATE = 0x10,
}

impl core::fmt::Debug for Kind {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "{:#04x}", self.0),
        }
    }
}

/// The flags of a frame: what a bit means depends on the type, and bits without a meaning are ignored (RFC 9113 §4.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u8);

impl Flags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// Of SETTINGS and PING: this is the answer.
    pub const ACK: Self = Self(0x1);
    /// Of DATA and HEADERS: nothing follows on this stream.
    pub const END_STREAM: Self = Self(0x1);
    /// Of HEADERS, PUSH_PROMISE and CONTINUATION: the field block is complete.
    pub const END_HEADERS: Self = Self(0x4);
    /// Of DATA, HEADERS and PUSH_PROMISE: there is padding.
    pub const PADDED: Self = Self(0x8);
    /// Of HEADERS: the deprecated priority is there.
    pub const PRIORITY: Self = Self(0x20);

    /// Whether all of these flags are set.
    #[inline]
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Adds these flags if `set`.
    #[inline]
    #[must_use]
    pub const fn with(self, flags: Self, set: bool) -> Self {
        if set { Self(self.0 | flags.0) } else { self }
    }
}

/// The header of a frame.
///
/// Invariant: `len < 2^24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// The length of the payload, in bytes.
    pub len: u32,
    /// The type of the frame.
    pub kind: Kind,
    /// The flags.
    pub flags: Flags,
    /// The stream of the frame.
    pub stream_id: StreamId,
}

impl FrameHeader {
    /// The length of a header, in bytes.
    pub const LEN: usize = 9;
    /// The maximum length of a payload.
    pub const LEN_MAX: u32 = (1 << 24) - 1;

    /// Decodes a header. Every sequence of nine bytes is valid.
    #[inline]
    pub const fn decode(bytes: &[u8; Self::LEN]) -> Self {
        let [l0, l1, l2, kind, flags, s0, s1, s2, s3] = *bytes;
        Self {
            len: u32::from_be_bytes([0, l0, l1, l2]),
            kind: Kind(kind),
            flags: Flags(flags),
            stream_id: StreamId::from_wire(u32::from_be_bytes([s0, s1, s2, s3])),
        }
    }

    /// Encodes a header.
    #[inline]
    pub const fn to_bytes(self) -> [u8; Self::LEN] {
        let [_, l0, l1, l2] = self.len.to_be_bytes();
        let [s0, s1, s2, s3] = self.stream_id.get().to_be_bytes();
        [l0, l1, l2, self.kind.0, self.flags.0, s0, s1, s2, s3]
    }

    /// Appends a header.
    #[inline]
    pub fn encode(self, out: &mut Vec<u8>) {
        debug_assert!(self.len <= Self::LEN_MAX);
        out.extend_from_slice(&self.to_bytes());
    }

    /// Checks the length before the payload has arrived.
    ///
    /// # Errors
    /// [`Violation::FrameTooLarge`] above `frame_len_max` bytes, which is the SETTINGS_MAX_FRAME_SIZE of this side.
    #[inline]
    pub const fn check_len(&self, frame_len_max: u32) -> Result<(), Violation> {
        // RFC 9113 §4.2: FRAME_SIZE_ERROR above SETTINGS_MAX_FRAME_SIZE.
        if self.len > frame_len_max { Err(Violation::FrameTooLarge) } else { Ok(()) }
    }

    #[inline]
    pub(super) const fn require_stream(&self) -> Result<(), Violation> {
        if self.stream_id.is_connection() { Err(Violation::StreamIdZero) } else { Ok(()) }
    }

    #[inline]
    pub(super) const fn require_connection(&self) -> Result<(), Violation> {
        if self.stream_id.is_connection() { Ok(()) } else { Err(Violation::StreamIdNotZero) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use wireloom_testing::rounds;

    #[test]
    fn decodes_what_it_encodes() {
        rounds(500, |rng| {
            let header = FrameHeader {
                len: rng.u32(..=FrameHeader::LEN_MAX),
                kind: Kind(rng.u8(..)),
                flags: Flags(rng.u8(..)),
                stream_id: StreamId::from_wire(rng.u32(..)),
            };
            let mut out = Vec::new();
            header.encode(&mut out);
            assert_eq!(FrameHeader::decode(out.first_chunk().unwrap()), header);
        });
    }

    #[test]
    fn decodes_each_field() {
        // RFC 9113 §4.1
        let header = FrameHeader::decode(&[0x01, 0x02, 0x03, 0x00, 0x09, 0x80, 0x00, 0x00, 0x07]);
        assert_eq!(header.len, 0x01_0203);
        assert_eq!(header.kind, Kind::DATA);
        assert!(header.flags.contains(Flags::END_STREAM) && header.flags.contains(Flags::PADDED));
        assert_eq!(header.stream_id.get(), 7);
    }

    #[test]
    fn refuses_frames_above_the_announced_size() {
        // RFC 9113 §4.2
        let header = |len| FrameHeader { len, ..FrameHeader::decode(&[0; 9]) };
        assert_eq!(header(16_383).check_len(16_384), Ok(()));
        assert_eq!(header(16_384).check_len(16_384), Ok(()));
        assert_eq!(header(16_385).check_len(16_384), Err(Violation::FrameTooLarge));
    }

    #[test]
    fn a_flag_that_is_set_twice_stays_set() {
        let flags = Flags::NONE.with(Flags::PADDED, true).with(Flags::PADDED, true);
        assert!(flags.contains(Flags::PADDED) && !flags.contains(Flags::END_STREAM));
        assert!(flags.with(Flags::END_STREAM, false) == flags);
    }

    #[test]
    fn names_types() {
        assert_eq!(format!("{:?} {:?}", Kind::PRIORITY_UPDATE, Kind(0xbb)), "PRIORITY_UPDATE 0xbb");
    }
}
