//! The buffer in which one message grows: aligned where the next read goes, trusting no announced length too far, kept
//! for the next message while messages stay large, let go when they do not.

use alloc::vec::Vec;
use bytes::Bytes;

/// Where reads should land: vector stores and the kernel's copy are fastest on cache-line boundaries.
const ALIGN: usize = 64;

/// An announced length is believed up to here; beyond it the buffer doubles as bytes really arrive.
const RESERVE_MAX: usize = 1 << 20;

/// The most that one read is offered, so that what it brings is unmasked and validated while it is in cache.
const SLOT_MAX: usize = 256 << 10;

/// A capacity up to this is not worth letting go between messages.
const KEEP_MAX: usize = 64 << 10;

/// So many messages in a row that use less than a quarter of the buffer let it go.
const LEAN_MAX: u8 = 8;

/// ```text
/// bytes: [ padding | the message so far | zeroed, unused | spare capacity ]
///                  ^ start              ^ start + len    ^ bytes.len()
/// ```
#[derive(Debug, Default)]
pub(crate) struct Assembly {
    /// `start + len <= bytes.len()`.
    bytes: Vec<u8>,
    start: usize,
    len: usize,
    lean: u8,
}

impl Assembly {
    #[inline]
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    #[inline]
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Empties the buffer for the next message.
    pub(crate) fn clear(&mut self) {
        let capacity = self.bytes.capacity();
        if capacity > KEEP_MAX {
            self.lean = if self.len < capacity / 4 { self.lean + 1 } else { 0 };
            if self.lean >= LEAN_MAX {
                self.release();
            }
        }
        self.start = 0;
        self.len = 0;
    }

    /// Gives the memory back.
    pub(crate) fn release(&mut self) {
        *self = Self::default();
    }

    /// Whether there is no memory in it.
    #[inline]
    pub(crate) fn is_unused(&self) -> bool {
        self.bytes.capacity() == 0
    }

    /// The memory, without what it held.
    pub(crate) fn take_memory(&mut self) -> Vec<u8> {
        core::mem::take(self).bytes
    }

    /// Memory to grow in; what it holds is overwritten.
    pub(crate) fn give_memory(&mut self, memory: Vec<u8>) {
        *self = Self { bytes: memory, ..Self::default() };
    }

    /// The message, moved out.
    pub(crate) fn take(&mut self) -> Bytes {
        let Self { mut bytes, start, len, .. } = core::mem::take(self);
        bytes.truncate(start + len);
        Bytes::from(bytes).slice(start..)
    }

    /// Appends a piece; `more` bytes are announced to follow it.
    pub(crate) fn push(&mut self, piece: &[u8], more: u64) {
        let more = usize::try_from(more).unwrap_or(usize::MAX).min(RESERVE_MAX);
        if self.len == 0 {
            self.reserve(ALIGN + piece.len() + more);
            // The next read, behind this piece, begins on a cache line.
            self.start = (self.bytes.as_ptr() as usize + piece.len()).wrapping_neg() % ALIGN;
        }
        let end = self.start + self.len;
        if self.bytes.len() >= end + piece.len() {
            self.bytes[end..end + piece.len()].copy_from_slice(piece);
        } else {
            self.bytes.resize(end, 0);
            self.bytes.extend_from_slice(piece);
        }
        self.len += piece.len();
    }

    /// Room for `total` bytes from the front, by doubling.
    fn reserve(&mut self, total: usize) {
        if self.bytes.capacity() < total {
            self.bytes.reserve(total - self.bytes.len());
        }
    }

    /// Where the next bytes of the message may be read to: at most `max` of them.
    pub(crate) fn slot(&mut self, max: u64) -> &mut [u8] {
        let want = usize::try_from(max).unwrap_or(usize::MAX).min(SLOT_MAX);
        let end = self.start + self.len;
        if self.bytes.len() < end + want {
            self.reserve(end + want);
            self.bytes.resize(end + want, 0);
        }
        &mut self.bytes[end..end + want]
    }

    /// `len` bytes of the slot have become the message's.
    #[inline]
    pub(crate) fn filled(&mut self, len: usize) {
        debug_assert!(self.start + self.len + len <= self.bytes.len());
        self.len += len;
    }

    /// Lets `append` write behind the message, and returns its result and what it wrote.
    pub(crate) fn append_with<R>(&mut self, append: impl FnOnce(&mut Vec<u8>) -> R) -> (R, &mut [u8]) {
        let end = self.start + self.len;
        self.bytes.truncate(end);
        let result = append(&mut self.bytes);
        self.len = self.bytes.len() - self.start;
        (result, &mut self.bytes[end..])
    }

    /// Drops the message's bytes that have been handed out, keeping the memory.
    pub(crate) fn restart(&mut self) {
        self.start = 0;
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn grows_by_pieces_and_slots() {
        let mut assembly = Assembly::default();
        assembly.push(b"abc", 10);
        let slot = assembly.slot(10);
        assert_eq!(slot.len(), 10);
        assert_eq!(slot.as_ptr() as usize % ALIGN, 0);
        slot[..4].copy_from_slice(b"defg");
        assembly.filled(4);
        assembly.push(b"hi", 0);
        assert_eq!(assembly.as_slice(), b"abcdefghi");
        let kept = assembly.take();
        assert_eq!(&kept[..], b"abcdefghi");
        assert_eq!(assembly.len(), 0);
    }

    #[test]
    fn does_not_believe_announcements() {
        let mut assembly = Assembly::default();
        assembly.push(b"x", u64::MAX);
        assert!(assembly.bytes.capacity() <= RESERVE_MAX + 2 * ALIGN);
        assert_eq!(assembly.slot(u64::MAX).len(), SLOT_MAX);
    }

    #[test]
    fn lets_go_of_a_large_buffer_when_messages_turn_small() {
        let mut assembly = Assembly::default();
        assembly.push(&vec![7; 1 << 20], 0);
        for _ in 0..=LEAN_MAX {
            assert!(assembly.bytes.capacity() >= 1 << 20);
            assembly.clear();
            assembly.push(b"small", 0);
        }
        assembly.clear();
        assembly.push(b"small", 0);
        assert!(assembly.bytes.capacity() < 1 << 20);
    }
}
