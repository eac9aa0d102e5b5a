//! Encodes and decodes the frame header of RFC 6455 §5.2. `decoder` checks the order of frames.
//!
//! ```text
//!  byte 0            byte 1             then
//! +-+-+-+-+-------+ +-+-------------+  +-----------------------+  +---------------+
//! |F|R|R|R|       | |M|             |  | 0 bytes  if len < 126 |  | masking key,  |
//! |I|S|S|S| op-   | |A| len (7)     |  | 2 bytes  if len = 126 |  | 4 bytes if    |  payload
//! |N|V|V|V| code  | |S|             |  | 8 bytes  if len = 127 |  | MASK is set   |
//! | |1|2|3|       | |K|             |  | (big-endian)          |  |               |
//! +-+-+-+-+-------+ +-+-------------+  +-----------------------+  +---------------+
//! ```

use crate::error::PeerMisbehaved;
use crate::mask::MaskKey;
use crate::opcode::Opcode;
use crate::role::Role;
use alloc::vec::Vec;

/// The longest header: 2 bytes, 8 of length, 4 of masking key.
pub const HEADER_LEN_MAX: usize = 14;

/// The longest payload of a control frame (RFC 6455 §5.5).
pub const CONTROL_LEN_MAX: usize = 125;

/// The highest bit of a frame's first byte.
pub(crate) const FIN: u8 = 0x80;
/// The highest bit of a frame's second byte.
pub(crate) const MASK: u8 = 0x80;

/// A frame header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The last frame of its message.
    pub fin: bool,
    /// RSV1, RSV2 and RSV3 as 4, 2 and 1.
    pub rsv: u8,
    /// The opcode.
    pub opcode: Opcode,
    /// The masking key, if the payload is masked.
    pub mask: Option<MaskKey>,
    /// Bytes of payload, below 2^63.
    pub payload_len: u64,
}

impl Header {
    /// The encoded length, 2 to 14 bytes.
    #[inline]
    pub const fn encoded_len(&self) -> usize {
        let extended = match self.payload_len {
            0..=125 => 0,
            126..=0xFFFF => 2,
            _ => 8,
        };
        2 + extended + if self.mask.is_some() { 4 } else { 0 }
    }

    /// Writes the header into the front of `out` and returns its length, 2 to 14. The bytes behind it are overwritten too.
    #[inline]
    pub fn encode(&self, out: &mut [u8; HEADER_LEN_MAX]) -> usize {
        let first = (self.fin as u8) << 7 | (self.rsv & 7) << 4 | self.opcode as u8;
        // The first eight bytes as one number, its first byte the least significant one. Bytes that are stored one by one and loaded as a
        // word would wait until the processor has written its earlier stores.
        let (mut word, mut len) = match self.payload_len {
            len @ 0..=125 => (len << 8, 2),
            // RFC 6455 §5.2: the minimal number of bytes MUST be used.
            len @ 126..=0xFFFF => (u64::from((len as u16).swap_bytes()) << 16 | 126 << 8, 4),
            len => {
                out[8..10].copy_from_slice(&(len as u16).to_be_bytes());
                (len.swap_bytes() << 16 | 127 << 8, 10)
            }
        };
        if let Some(key) = self.mask {
            word |= u64::from(MASK) << 8;
            match len {
                10 => out[10..].copy_from_slice(&key.bytes()),
                _ => word |= u64::from(key.word()) << (8 * len),
            }
            len += 4;
        }
        out[..8].copy_from_slice(&(word | u64::from(first)).to_le_bytes());
        len
    }

    /// Reads a header from the front of `bytes`; `None` until it is complete. Each rule is checked as soon as the bytes that it needs have
    /// arrived.
    ///
    /// `rsv_allowed`: the reserved bits (4, 2, 1) that an extension uses on data frames.
    ///
    /// # Errors
    /// The rule of RFC 6455 §5 that the header breaks.
    #[inline]
    pub fn decode(
        bytes: &[u8],
        sender: Role,
        rsv_allowed: u8,
    ) -> Result<Option<(Self, usize)>, PeerMisbehaved> {
        let Some(&first) = bytes.first() else { return Ok(None) };
        let rsv = first >> 4 & 7;
        let Some(opcode) = Opcode::from_bits(first & 0xF) else {
            // RFC 6455 §5.2: an unknown opcode MUST fail the connection.
            return Err(PeerMisbehaved::ReservedOpcode(first & 0xF));
        };
        let fin = first & FIN != 0;
        // RFC 6455 §5.2: reserved bits MUST be 0 unless an extension defines them; RFC 7692 §6.1: RSV1 marks the first
        // frame of a message and no control frame.
        let allowed = if matches!(opcode, Opcode::Text | Opcode::Binary) { rsv_allowed } else { 0 };
        if rsv & !allowed != 0 {
            return Err(PeerMisbehaved::ReservedBits(rsv & !allowed));
        }
        // RFC 6455 §5.5: control frames MUST NOT be fragmented.
        if opcode.is_control() && !fin {
            return Err(PeerMisbehaved::FragmentedControl);
        }
        let Some(&second) = bytes.get(1) else { return Ok(None) };
        let masked = second & MASK != 0;
        match sender {
            // RFC 6455 §5.1: a server MUST close on an unmasked frame, a client on a masked one.
            Role::Client if !masked => return Err(PeerMisbehaved::UnmaskedFrame),
            Role::Server if masked => return Err(PeerMisbehaved::MaskedFrame),
            _ => {}
        }
        let len7 = second & 0x7F;
        // RFC 6455 §5.5: control frames MUST have a payload of 125 bytes or less.
        if opcode.is_control() && len7 > 125 {
            return Err(PeerMisbehaved::ControlTooLong);
        }
        let (payload_len, mut len) = match len7 {
            0..=125 => (u64::from(len7), 2),
            126 => {
                let Some(field) = bytes.get(2..4) else { return Ok(None) };
                let payload_len = u16::from_be_bytes([field[0], field[1]]);
                // RFC 6455 §5.2: the minimal number of bytes MUST be used.
                if payload_len < 126 {
                    return Err(PeerMisbehaved::NonMinimalLength);
                }
                (u64::from(payload_len), 4)
            }
            _ => {
                let Some(field) = bytes.get(2..10) else { return Ok(None) };
                let mut be = [0; 8];
                be.copy_from_slice(field);
                let payload_len = u64::from_be_bytes(be);
                // RFC 6455 §5.2: the most significant bit MUST be 0.
                if payload_len >> 63 != 0 {
                    return Err(PeerMisbehaved::LengthOutOfRange);
                }
                if payload_len <= 0xFFFF {
                    return Err(PeerMisbehaved::NonMinimalLength);
                }
                (payload_len, 10)
            }
        };
        let mask = if masked {
            let Some(&[a, b, c, d]) = bytes.get(len..len + 4) else { return Ok(None) };
            len += 4;
            Some(MaskKey::new([a, b, c, d]))
        } else {
            None
        };
        Ok(Some((Self { fin, rsv, opcode, mask, payload_len }, len)))
    }
}

/// Headers of frames, logged for an observer.
#[derive(Debug, Default)]
pub(crate) struct HeaderLog {
    pub(crate) headers: Vec<Header>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(bytes: &[u8]) -> Result<Option<(Header, usize)>, PeerMisbehaved> {
        let sender = if bytes.get(1).is_some_and(|b| b & MASK != 0) { Role::Client } else { Role::Server };
        Header::decode(bytes, sender, 7)
    }

    #[test]
    fn decodes_what_it_encodes_at_every_split() {
        let lens = [0, 1, 125, 126, 127, 0xFFFF, 0x1_0000, u32::MAX as u64, (1 << 63) - 1];
        for payload_len in lens {
            for mask in [None, Some(MaskKey::new([1, 2, 3, 4]))] {
                for (fin, rsv, opcode) in
                    [(true, 0, Opcode::Text), (false, 4, Opcode::Binary), (true, 0, Opcode::Continuation)]
                {
                    let header = Header { fin, rsv, opcode, mask, payload_len };
                    let mut out = [0; HEADER_LEN_MAX];
                    let len = header.encode(&mut out);
                    assert_eq!(len, header.encoded_len());
                    for short in 0..len {
                        assert_eq!(decode(&out[..short]), Ok(None), "{header:?} cut at {short}");
                    }
                    assert_eq!(decode(&out), Ok(Some((header, len))));
                }
            }
        }
    }

    // RFC 6455 §5.2: minimal encoding, 63 bits.
    #[test]
    fn rejects_non_minimal_lengths() {
        assert_eq!(decode(&[0x82, 126, 0, 125]), Err(PeerMisbehaved::NonMinimalLength));
        assert!(decode(&[0x82, 126, 0, 126]).is_ok());
        let long = |len: u64| {
            let mut bytes = [0x82, 127, 0, 0, 0, 0, 0, 0, 0, 0];
            bytes[2..].copy_from_slice(&len.to_be_bytes());
            decode(&bytes)
        };
        assert_eq!(long(0xFFFF), Err(PeerMisbehaved::NonMinimalLength));
        assert!(long(0x1_0000).is_ok());
        assert!(long((1 << 63) - 1).is_ok());
        assert_eq!(long(1 << 63), Err(PeerMisbehaved::LengthOutOfRange));
    }

    // RFC 6455 §5.1.
    #[test]
    fn requires_masks_from_clients_only() {
        assert_eq!(Header::decode(&[0x81, 0x01], Role::Client, 0), Err(PeerMisbehaved::UnmaskedFrame));
        assert_eq!(Header::decode(&[0x81, 0x81], Role::Server, 0), Err(PeerMisbehaved::MaskedFrame));
    }

    // RFC 6455 §5.2, RFC 7692 §6.1.
    #[test]
    fn allows_reserved_bits_on_first_frames_only() {
        for rsv in 1..8u8 {
            let first = FIN | rsv << 4;
            assert!(Header::decode(&[first | 1, 0], Role::Server, rsv).is_ok());
            for opcode in [0x0, 0x8, 0x9, 0xA] {
                let refused = Header::decode(&[first | opcode, 0], Role::Server, 7);
                assert_eq!(refused, Err(PeerMisbehaved::ReservedBits(rsv)), "opcode {opcode}");
            }
        }
        assert_eq!(Header::decode(&[0x81 | 0x60], Role::Server, 4), Err(PeerMisbehaved::ReservedBits(2)));
    }
}
