//! Sinks for the messages of a contestant: a count while it is timed, a checksum while it is checked.

use std::hint::black_box;

/// Prevents the compiler from removing the work that produced `bytes`; returns their number.
///
/// `black_box` takes the pointer alone: a slice would be stored as two words and loaded as one, which stalls the processor.
#[inline(always)]
pub(crate) fn consume(bytes: &[u8]) -> usize {
    black_box(bytes.as_ptr());
    bytes.len()
}

/// Receives the messages of a contestant, whole or in chunks.
pub(crate) trait Sink {
    /// The next chunk of the current message.
    fn chunk(&mut self, data: &[u8]);
    /// The current message is complete.
    fn end(&mut self);
    /// A whole message.
    #[inline(always)]
    fn message(&mut self, data: &[u8]) {
        self.chunk(data);
        self.end();
    }
}

/// The sink of timed passes: it counts, and does not read the payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    /// Complete messages.
    pub(crate) messages: u64,
    /// The sum of their lengths.
    pub(crate) bytes: u64,
}

impl Sink for Count {
    #[inline(always)]
    fn chunk(&mut self, data: &[u8]) {
        self.bytes += consume(data) as u64;
    }

    #[inline(always)]
    fn end(&mut self) {
        self.messages += 1;
    }
}

/// The sink of the checks: the count, the length, and a checksum over every byte and every message boundary, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Checksum {
    count: Count,
    checksum: u64,
    /// The bytes of an incomplete word. They make the checksum independent of how a message is split into chunks.
    word: u64,
    filled: u32,
}

impl Default for Checksum {
    fn default() -> Self {
        Self { count: Count::default(), checksum: 0x9E37_79B9_7F4A_7C15, word: 0, filled: 0 }
    }
}

impl Checksum {
    /// The checksum of these messages, one after another.
    pub(crate) fn of<'a>(messages: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut checksum = Self::default();
        for message in messages {
            checksum.message(message);
        }
        checksum
    }

    /// Messages and bytes.
    pub(crate) fn count(&self) -> Count {
        self.count
    }

    fn stir(&mut self, word: u64) {
        self.checksum = (self.checksum.rotate_left(23) ^ word).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    }

    fn byte(&mut self, byte: u8) {
        self.word |= u64::from(byte) << (8 * self.filled);
        self.filled += 1;
        if self.filled == 8 {
            let word = std::mem::take(&mut self.word);
            self.filled = 0;
            self.stir(word);
        }
    }
}

impl Sink for Checksum {
    fn chunk(&mut self, mut data: &[u8]) {
        self.count.bytes += data.len() as u64;
        while self.filled != 0 {
            let Some((&first, rest)) = data.split_first() else { return };
            self.byte(first);
            data = rest;
        }
        let (words, tail) = data.as_chunks::<8>();
        for word in words {
            self.stir(u64::from_le_bytes(*word));
        }
        for &byte in tail {
            self.byte(byte);
        }
    }

    fn end(&mut self) {
        self.count.messages += 1;
        let (word, filled) = (std::mem::take(&mut self.word), std::mem::take(&mut self.filled));
        self.stir(word);
        self.stir(u64::from(filled) << 32 | 0xE0F);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depends_on_message_boundaries_and_not_on_chunks() {
        let whole = Checksum::of([&b"hello, worlds"[..], b"again"]);
        let mut chunks = Checksum::default();
        chunks.chunk(b"hel");
        chunks.chunk(b"");
        chunks.chunk(b"lo, worl");
        chunks.chunk(b"ds");
        chunks.end();
        chunks.message(b"again");
        assert_eq!(whole, chunks);
        assert_ne!(whole, Checksum::of([&b"hello, world"[..], b"sagain"]));
        assert_ne!(Checksum::of([&b"a"[..]]), Checksum::of([&b"a\0"[..]]));
    }
}
