//! A writer of DEFLATE streams (RFC 1951), valid or not.

/// A stream of bits, the lowest of each byte first (RFC 1951 §3.1.1).
#[derive(Default)]
pub(crate) struct Bits {
    bytes: Vec<u8>,
    used: u32,
}

impl Bits {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Appends the lowest `count` bits of `value`, lowest first, as in headers and extra bits.
    pub(crate) fn bits(mut self, value: u64, count: u32) -> Self {
        for i in 0..count {
            if self.used.is_multiple_of(8) {
                self.bytes.push(0);
            }
            let bit = (value >> i & 1) as u8;
            if let Some(last) = self.bytes.last_mut() {
                *last |= bit << (self.used % 8);
            }
            self.used += 1;
        }
        self
    }

    /// A Huffman code of `count` bits, highest first.
    pub(crate) fn code(self, code: u64, count: u32) -> Self {
        (0..count).rev().fold(self, |bits, i| bits.bits(code >> i & 1, 1))
    }

    /// The header of a block with the fixed codes.
    pub(crate) fn fixed(self) -> Self {
        self.bits(0b010, 3)
    }

    /// The header of a block with its own codes: HLIT, HDIST, HCLEN (RFC 1951 §3.2.7).
    pub(crate) fn dynamic(self, hlit: u64, hdist: u64, hclen: u64) -> Self {
        self.bits(0b100, 3).bits(hlit, 5).bits(hdist, 5).bits(hclen, 4)
    }

    /// A literal or length symbol in the fixed code (RFC 1951 §3.2.6).
    pub(crate) fn symbol(self, symbol: u64) -> Self {
        match symbol {
            0..=143 => self.code(0x30 + symbol, 8),
            144..=255 => self.code(0x190 + symbol - 144, 9),
            256..=279 => self.code(symbol - 256, 7),
            _ => self.code(0xC0 + symbol - 280, 8),
        }
    }

    pub(crate) fn literal(self, byte: u8) -> Self {
        self.symbol(u64::from(byte))
    }

    /// A match of length 3 or 258 and distance 1, 2 or 32,768.
    pub(crate) fn matched(self, len: u64, distance: u64) -> Self {
        let bits = self.symbol(if len == 258 { 285 } else { 257 });
        match distance {
            1 | 2 => bits.code(distance - 1, 5),
            _ => bits.code(29, 5).bits((1 << 13) - 1, 13),
        }
    }

    /// The end of a block.
    pub(crate) fn end(self) -> Self {
        self.symbol(256)
    }

    /// The bytes with the header of the empty stored block of a flush, without its 00 00 FF FF (RFC 7692 §7.2.1).
    pub(crate) fn flush(self) -> Vec<u8> {
        self.bits(0, 3).bytes
    }

    /// `text` in a stored block.
    pub(crate) fn stored(text: &[u8]) -> Vec<u8> {
        let len = text.len() as u16;
        [&[0x00][..], &len.to_le_bytes(), &(!len).to_le_bytes(), text, &[0x00]].concat()
    }

    /// `len` letters `a`, as matches with the fixed codes.
    pub(crate) fn run(len: usize) -> Vec<u8> {
        let mut bits = Self::new().fixed().literal(b'a');
        let mut left = len - 1;
        while left >= 258 {
            bits = bits.matched(258, 1);
            left -= 258;
        }
        for _ in 0..left {
            bits = bits.literal(b'a');
        }
        bits.end().flush()
    }
}
