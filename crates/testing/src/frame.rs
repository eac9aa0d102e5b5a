//! A WebSocket frame with any content, valid or not (RFC 6455 §5.2).
//!
//! A second implementation of the layout. It shares no code with the tested one, and can write invalid frames.
//!
//! ```text
//! fin:1 rsv:3 opcode:4 | mask:1 length:7 | length: 0, 2 or 8 bytes | key: 0 or 4 bytes | payload, masked if so
//! ```

/// A frame to write, or one that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    fin: bool,
    rsv: u8,
    opcode: u8,
    mask: Option<[u8; 4]>,
    length: Length,
    payload: Vec<u8>,
}

/// The length field of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// The length of the payload, in the shortest form.
    Minimal,
    /// This value in the 7-bit field, without an extended length: after 126 and 127 the reader takes payload for the length.
    Short(u8),
    /// This value in the 16-bit form, correct or not.
    Bits16(u16),
    /// This value in the 64-bit form, correct or not.
    Bits64(u64),
}

impl Length {
    /// The shortest form for `len`.
    fn shortest(len: usize) -> Self {
        match len {
            0..=125 => Self::Short(len as u8),
            126..=0xFFFF => Self::Bits16(len as u16),
            _ => Self::Bits64(len as u64),
        }
    }
}

/// A frame of a client with an all-zero masking key. `first` is its first byte: FIN, the reserved bits and the opcode.
pub fn masked(first: u8, payload: impl AsRef<[u8]>) -> Vec<u8> {
    Frame::new(first, payload).fin(first & 0x80 != 0).rsv(first >> 4).mask([0; 4]).bytes()
}

/// The request of a client's opening handshake (RFC 6455 §1.2).
pub fn upgrade_request(path: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
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

    /// A final, unmasked frame without reserved bits, with the correct length. `opcode` has 4 bits.
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

    /// Sets or removes the masking key.
    pub fn mask(mut self, key: impl Into<Option<[u8; 4]>>) -> Self {
        self.mask = key.into();
        self
    }

    /// Sets the length field of the header; the payload does not change.
    pub fn length(mut self, length: Length) -> Self {
        self.length = length;
        self
    }

    /// Whether FIN is set.
    pub fn is_final(&self) -> bool {
        self.fin
    }

    /// The reserved bits: RSV1 is 4, RSV2 is 2, RSV3 is 1.
    pub fn reserved(&self) -> u8 {
        self.rsv
    }

    /// The opcode.
    pub fn opcode(&self) -> u8 {
        self.opcode
    }

    /// The masking key, if there is one.
    pub fn key(&self) -> Option<[u8; 4]> {
        self.mask
    }

    /// The length field of the header; `Minimal` if it is correct and in the shortest form.
    pub fn length_field(&self) -> Length {
        self.length
    }

    /// The payload, unmasked.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// The code in a close frame's payload, if it has one.
    pub fn close_code(&self) -> Option<u16> {
        let &[high, low, ..] = &self.payload[..] else { return None };
        (self.opcode == Self::CLOSE).then(|| u16::from_be_bytes([high, low]))
    }

    /// Decodes the first frame of `bytes` without validating it; `None` if it is incomplete. Also returns its encoded length.
    pub fn read(bytes: &[u8]) -> Option<(Self, usize)> {
        let (&first, &second) = (bytes.first()?, bytes.get(1)?);
        let (length, len, mut at) = match second & 0x7F {
            126 => {
                let len = u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?);
                (Length::Bits16(len), usize::from(len), 4)
            }
            127 => {
                let len = u64::from_be_bytes(bytes.get(2..10)?.try_into().ok()?);
                (Length::Bits64(len), usize::try_from(len).ok()?, 10)
            }
            len => (Length::Short(len), usize::from(len), 2),
        };
        let mask = if second & 0x80 != 0 {
            at += 4;
            Some(bytes.get(at - 4..at)?.try_into().ok()?)
        } else {
            None
        };
        let end = at.checked_add(len)?;
        let mut payload = bytes.get(at..end)?.to_vec();
        if let Some(key) = mask {
            apply(key, &mut payload);
        }
        let length = if length == Length::shortest(len) { Length::Minimal } else { length };
        Some((
            Self { fin: first & 0x80 != 0, rsv: first >> 4 & 7, opcode: first & 0xF, mask, length, payload },
            end,
        ))
    }

    /// Decodes all frames in `bytes`.
    ///
    /// # Panics
    /// If the last one is incomplete.
    pub fn read_all(mut bytes: &[u8]) -> Vec<Self> {
        let mut frames = Vec::new();
        while !bytes.is_empty() {
            let (frame, len) = Self::read(bytes).expect("only whole frames");
            frames.push(frame);
            bytes = &bytes[len..];
        }
        frames
    }

    /// Appends the frame to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.fin) << 7 | self.rsv << 4 | self.opcode);
        let masked = if self.mask.is_some() { 0x80 } else { 0 };
        let length = match self.length {
            Length::Minimal => Length::shortest(self.payload.len()),
            sent => sent,
        };
        match length {
            Length::Minimal => {}
            Length::Short(len) => out.push(masked | len & 0x7F),
            Length::Bits16(len) => {
                out.push(masked | 126);
                out.extend(len.to_be_bytes());
            }
            Length::Bits64(len) => {
                out.push(masked | 127);
                out.extend(len.to_be_bytes());
            }
        }
        if let Some(key) = self.mask {
            out.extend(key);
        }
        let start = out.len();
        out.extend(&self.payload);
        if let Some(key) = self.mask {
            apply(key, &mut out[start..]);
        }
    }

    /// The encoded frame.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(14 + self.payload.len());
        self.write(&mut out);
        out
    }
}

/// Masks or unmasks as RFC 6455 §5.3 describes it: octet i is XORed with octet i mod 4 of the key.
fn apply(key: [u8; 4], payload: &mut [u8]) {
    for (i, byte) in payload.iter_mut().enumerate() {
        *byte ^= key[i % 4];
    }
}

/// Encodes frames, one after the other.
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

    // All examples of RFC 6455 §5.7.
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
    fn reads_what_it_writes() {
        crate::rng::rounds(300, |rng| {
            let len = rng.len(70_000);
            let mut frame = Frame::new(rng.u8(..), rng.bytes(len)).fin(rng.bool()).rsv(rng.u8(..));
            if rng.bool() {
                frame = frame.mask(rng.u32(..).to_be_bytes());
            }
            let bytes = frame.bytes();
            assert_eq!(Frame::read(&bytes[..bytes.len() - 1]), None);
            assert_eq!(Frame::read(&bytes), Some((frame, bytes.len())));
        });
        let long = Frame::binary("x").length(Length::Bits16(1));
        assert_eq!(Frame::read(&long.bytes()), Some((long, 5)));
    }

    #[test]
    fn writes_wrong_lengths() {
        assert_eq!(Frame::binary("x").length(Length::Short(127)).bytes(), [0x82, 127, b'x']);
        assert_eq!(Frame::binary("x").length(Length::Bits16(1)).bytes(), [0x82, 126, 0, 1, b'x']);
        let far = Frame::binary("").length(Length::Bits64(1 << 63)).bytes();
        assert_eq!(far, [0x82, 127, 0x80, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Frame::new(0xB, "").fin(false).rsv(7).bytes(), [0x7B, 0]);
    }
}
