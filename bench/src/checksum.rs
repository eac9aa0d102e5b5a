//! Sinks for the messages of a contestant: a count while it is timed, a checksum while it is checked.

use std::hint::black_box;

/// Makes the compiler believe that every byte is read; returns their number.
///
/// `black_box` takes the pointer alone: a slice would be stored as two words and loaded as one, which stalls the processor.
#[inline(always)]
pub(crate) fn consume(bytes: &[u8]) -> usize {
    black_box(bytes.as_ptr());
    bytes.len()
}

/// Takes the messages, or the pieces of one, that a contestant hands out.
pub(crate) trait Sink {
    /// The next bytes of the message under way.
    fn piece(&mut self, data: &[u8]);
    /// The message under way is complete.
    fn end(&mut self);
    /// A whole message.
    #[inline(always)]
    fn message(&mut self, data: &[u8]) {
        self.piece(data);
        self.end();
    }
}

/// The cheap sink of the timed passes: it looks at no byte of the payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    /// Messages ended.
    pub(crate) messages: u64,
    /// Their bytes together.
    pub(crate) bytes: u64,
}

impl Sink for Count {
    #[inline(always)]
    fn piece(&mut self, data: &[u8]) {
        self.bytes += consume(data) as u64;
    }

    #[inline(always)]
    fn end(&mut self) {
        self.messages += 1;
    }
}

/// The thorough sink of the checks: count, length, and a checksum over every byte and every boundary in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Checksum {
    count: Count,
    checksum: u64,
    /// Bytes of an unfinished word, so that the checksum depends on no split.
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
    fn piece(&mut self, mut data: &[u8]) {
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
    fn pieces_do_not_matter_and_boundaries_do() {
        let whole = Checksum::of([&b"hello, worlds"[..], b"again"]);
        let mut pieces = Checksum::default();
        pieces.piece(b"hel");
        pieces.piece(b"");
        pieces.piece(b"lo, worl");
        pieces.piece(b"ds");
        pieces.end();
        pieces.message(b"again");
        assert_eq!(whole, pieces);
        assert_ne!(whole, Checksum::of([&b"hello, world"[..], b"sagain"]));
        assert_ne!(Checksum::of([&b"a"[..]]), Checksum::of([&b"a\0"[..]]));
    }
}
