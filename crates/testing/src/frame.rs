//! A WebSocket frame, byte for byte as the test wants it (RFC 6455 §5.2), lawful or not.
//!
//! This is a second implementation of the layout, on purpose: it shares nothing with the one it tests, and it can write
//! what that one refuses to.
//!
//! ```text
//! fin:1 rsv:3 opcode:4 | mask:1 length:7 | length: 0, 2 or 8 bytes | key: 0 or 4 bytes | payload, masked if so
//! ```

/// A frame to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    fin: bool,
    rsv: u8,
    opcode: u8,
    mask: Option<[u8; 4]>,
    length: Length,
    payload: Vec<u8>,
}

/// What the header says of the payload's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// The truth, in the shortest form.
    Minimal,
    /// This, in the 7-bit field alone: 126 and 127 leave the reader waiting for bytes that are payload.
    Short(u8),
    /// This, in the 16-bit form, true or not.
    Bits16(u16),
    /// This, in the 64-bit form, true or not.
    Bits64(u64),
}

impl Frame {
    /// The continuation opcode.
    pub const CONTINUATION: u8 = 0x0;
    /// The text opcode.
    pub const TEXT: u8 = 0x1;
    /// The binary opcode.
    pub const BINARY: u8 = 0x2;
    /// The close opcode.
    pub const CLOSE: u8 = 0x8;
    /// The ping opcode.
    pub const PING: u8 = 0x9;
    /// The pong opcode.
    pub const PONG: u8 = 0xA;

    /// A final, unmasked frame with no reserved bit and an honest length. `opcode` is any nibble.
    pub fn new(opcode: u8, payload: impl AsRef<[u8]>) -> Self {
        Self {
            fin: true,
            rsv: 0,
            opcode: opcode & 0xF,
            mask: None,
            length: Length::Minimal,
            payload: payload.as_ref().to_vec(),
        }
    }

    /// A text frame.
    pub fn text(payload: impl AsRef<[u8]>) -> Self {
        Self::new(Self::TEXT, payload)
    }

    /// A binary frame.
    pub fn binary(payload: impl AsRef<[u8]>) -> Self {
        Self::new(Self::BINARY, payload)
    }

    /// A continuation frame.
    pub fn continuation(payload: impl AsRef<[u8]>) -> Self {
        Self::new(Self::CONTINUATION, payload)
    }

    /// A ping.
    pub fn ping(payload: impl AsRef<[u8]>) -> Self {
        Self::new(Self::PING, payload)
    }

    /// A pong.
    pub fn pong(payload: impl AsRef<[u8]>) -> Self {
        Self::new(Self::PONG, payload)
    }

    /// A close frame with a code and a reason.
    pub fn close(code: u16, reason: impl AsRef<[u8]>) -> Self {
        Self::new(Self::CLOSE, [&code.to_be_bytes(), reason.as_ref()].concat())
    }

    /// Sets or clears FIN.
    pub fn fin(mut self, fin: bool) -> Self {
        self.fin = fin;
        self
    }

    /// Sets the reserved bits: RSV1 is 4, RSV2 is 2, RSV3 is 1.
    pub fn rsv(mut self, bits: u8) -> Self {
        self.rsv = bits & 7;
        self
    }

    /// Masks the payload with this key, or leaves it plain.
    pub fn mask(mut self, key: impl Into<Option<[u8; 4]>>) -> Self {
        self.mask = key.into();
        self
    }

    /// Makes the header claim this length; the payload stays what it is.
    pub fn length(mut self, length: Length) -> Self {
        self.length = length;
        self
    }

    /// Whether the payload is masked.
    pub fn is_masked(&self) -> bool {
        self.mask.is_some()
    }

    /// Appends the frame to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.fin) << 7 | self.rsv << 4 | self.opcode);
        let masked = if self.mask.is_some() { 0x80 } else { 0 };
        let length = match (self.length, self.payload.len()) {
            (Length::Minimal, len @ 0..=125) => Length::Short(len as u8),
            (Length::Minimal, len @ 126..=0xFFFF) => Length::Bits16(len as u16),
            (Length::Minimal, len) => Length::Bits64(len as u64),
            (said, _) => said,
        };
        match length {
            Length::Bits16(len) => {
                out.push(masked | 126);
                out.extend(len.to_be_bytes());
            }
            Length::Bits64(len) => {
                out.push(masked | 127);
                out.extend(len.to_be_bytes());
            }
            Length::Short(len) => out.push(masked | len & 0x7F),
            Length::Minimal => unreachable!("resolved above"),
        }
        if let Some(key) = self.mask {
            out.extend(key);
        }
        let start = out.len();
        out.extend(&self.payload);
        if let Some(key) = self.mask {
            for (byte, key) in out[start..].iter_mut().zip(key.iter().cycle()) {
                *byte ^= key;
            }
        }
    }

    /// The frame's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(14 + self.payload.len());
        self.write(&mut out);
        out
    }
}

/// The bytes of these frames, one after another.
pub fn concat(frames: &[Frame]) -> Vec<u8> {
    let mut out = Vec::new();
    for frame in frames {
        frame.write(&mut out);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    // RFC 6455 §5.7, every example.
    #[test]
    fn writes_the_published_frames() {
        assert_eq!(Frame::text("Hello").bytes(), [0x81, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f]);
        let masked = [0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
        assert_eq!(Frame::text("Hello").mask([0x37, 0xfa, 0x21, 0x3d]).bytes(), masked);
        let fragmented = concat(&[Frame::text("Hel").fin(false), Frame::continuation("lo")]);
        assert_eq!(fragmented, [0x01, 0x03, 0x48, 0x65, 0x6c, 0x80, 0x02, 0x6c, 0x6f]);
        assert_eq!(Frame::ping("Hello").bytes(), [0x89, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f]);
        let pong = [0x8a, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
        assert_eq!(Frame::pong("Hello").mask([0x37, 0xfa, 0x21, 0x3d]).bytes(), pong);
        assert_eq!(Frame::binary([0; 256]).bytes()[..4], [0x82, 0x7E, 0x01, 0x00]);
        assert_eq!(Frame::binary(vec![0; 65_536]).bytes()[..10], [0x82, 0x7F, 0, 0, 0, 0, 0, 1, 0, 0]);
    }

    #[test]
    fn lies_when_told_to() {
        assert_eq!(Frame::binary("x").length(Length::Short(127)).bytes(), [0x82, 127, b'x']);
        assert_eq!(Frame::binary("x").length(Length::Bits16(1)).bytes(), [0x82, 126, 0, 1, b'x']);
        let far = Frame::binary("").length(Length::Bits64(1 << 63)).bytes();
        assert_eq!(far, [0x82, 127, 0x80, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Frame::new(0xB, "").fin(false).rsv(7).bytes(), [0x7B, 0]);
    }
}
