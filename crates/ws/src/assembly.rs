//! The buffer in which one message grows. Its memory grows with the bytes that arrive, not with the length that is announced,
//! and stays for the next message while messages stay large.

use alloc::vec::Vec;
use bytes::Bytes;

/// Reads land on cache-line boundaries, where vector stores and the kernel's copy are fastest.
const ALIGN: usize = 64;

/// From this many bytes of a message on, further bytes may be read directly behind them.
pub(crate) const DIRECT_LEN_MIN: usize = 4 << 10;

/// The most that one read is offered, so that its bytes are unmasked and validated while they are in cache.
const SLOT_MAX: usize = 256 << 10;

/// A message that the application keeps holds at most this many bytes beyond twice its length.
pub(crate) const OWNED_EXTRA_LEN: usize = 64;

/// What [`Bytes`] allocates to share a buffer.
const SHARED_LEN: usize = 32;

/// A buffer up to this capacity is kept between messages of any length.
const KEEP_MAX: usize = 64 << 10;

/// A larger buffer is dropped after this many messages in a row that use less than a quarter of it.
const LEAN_MAX: u8 = 8;

/// ```text
/// bytes: [ padding | the message so far | zeroed, unused | spare capacity ]
///                  ^ start              ^ start + len    ^ bytes.len()
/// ```
#[derive(Debug, Default)]
pub(crate) struct Assembly {
    /// `start + len <= bytes.len()`.
    bytes: Vec<u8>,
    /// `start < ALIGN`.
    start: usize,
    len: usize,
    lean: u8,
    /// The length of the last message that left with its memory, at most [`SLOT_MAX`].
    left_len: u32,
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

    /// Empties the buffer for the next message, and drops its memory when messages have become small.
    pub(crate) fn clear(&mut self) {
        let capacity = self.bytes.capacity();
        if capacity > KEEP_MAX {
            self.lean = if self.len < capacity / 4 { self.lean + 1 } else { 0 };
            if self.lean >= LEAN_MAX {
                self.release();
            }
        }
        self.restart();
    }

    /// Empties the buffer, and returns room for the next `len` bytes.
    pub(crate) fn overwrite(&mut self, len: usize) -> &mut [u8] {
        self.restart();
        if self.bytes.len() < len {
            self.bytes.resize(len, 0);
        }
        &mut self.bytes[..len]
    }

    /// Bytes of memory held.
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Empties the buffer.
    fn restart(&mut self) {
        self.start = 0;
        self.len = 0;
    }

    /// Drops content and memory.
    pub(crate) fn release(&mut self) {
        *self = Self::default();
    }

    /// Whether there is memory.
    #[inline]
    pub(crate) fn has_memory(&self) -> bool {
        self.bytes.capacity() > 0
    }

    /// The memory, without its content.
    pub(crate) fn take_memory(&mut self) -> Vec<u8> {
        let left_len = self.left_len;
        core::mem::replace(self, Self { left_len, ..Self::default() }).bytes
    }

    /// The memory, with its content moved to memory of its own length; `None` when the content is too long to be worth that.
    pub(crate) fn swap_memory(&mut self) -> Option<Vec<u8>> {
        if self.len >= DIRECT_LEN_MIN || self.fits() {
            return None;
        }
        let content = self.as_slice().to_vec();
        let len = content.len();
        Some(core::mem::replace(self, Self { bytes: content, len, ..Self::default() }).bytes)
    }

    /// Memory to grow in, where there is none; its content is overwritten.
    pub(crate) fn give_memory(&mut self, memory: Vec<u8>) {
        if !self.has_memory() {
            *self = Self { bytes: memory, left_len: self.left_len, ..Self::default() };
        }
    }

    /// Whether the content may leave with the memory: it holds at most twice its length and [`OWNED_EXTRA_LEN`] bytes then.
    fn fits(&self) -> bool {
        self.bytes.capacity() + SHARED_LEN <= 2 * self.len + OWNED_EXTRA_LEN
    }

    /// The message, in memory that it does not exceed twice: moved out, or copied out of a buffer that is much larger.
    pub(crate) fn take(&mut self) -> Bytes {
        if !self.fits() {
            let message = Bytes::copy_from_slice(self.as_slice());
            self.clear();
            return message;
        }
        let Self { mut bytes, start, len, .. } = core::mem::take(self);
        self.left_len = len.min(SLOT_MAX) as u32;
        bytes.truncate(start + len);
        Bytes::from(bytes).slice(start..)
    }

    /// Appends a piece; `more` bytes of its frame follow.
    pub(crate) fn push(&mut self, piece: &[u8], more: u64) {
        let more = usize::try_from(more).unwrap_or(usize::MAX);
        if self.len == 0 {
            let padding = if more >= DIRECT_LEN_MIN { ALIGN } else { 0 };
            // A message as long as the last one that left is likely: growing to its length again would copy it several times.
            let ahead = piece.len().max(self.left_len as usize);
            let room = padding + piece.len() + more.min(ahead);
            if self.bytes.capacity() < room {
                self.bytes = Vec::with_capacity(room);
            }
            // The next read, behind this piece, begins on a cache line.
            self.start = if padding > 0 {
                (self.bytes.as_ptr().addr() + piece.len()).wrapping_neg() % ALIGN
            } else {
                0
            };
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

    /// Room for the next bytes of the message, of which `more` follow: as much as there is memory for, or else as much again
    /// as has arrived.
    pub(crate) fn slot(&mut self, more: u64) -> &mut [u8] {
        let end = self.start + self.len;
        let room = self.room(more);
        if self.bytes.len() < end + room {
            if self.bytes.capacity() < end + room {
                // A message of the same length that starts at another place fits as well.
                self.bytes.reserve_exact(end + room + ALIGN - self.bytes.len());
            }
            self.bytes.resize(end + room, 0);
        }
        &mut self.bytes[end..end + room]
    }

    fn room(&self, more: u64) -> usize {
        let room = (self.bytes.capacity() - self.start - self.len).max(self.len);
        usize::try_from(more).unwrap_or(usize::MAX).min(SLOT_MAX).min(room)
    }

    /// [`Assembly::slot`] after it was offered.
    pub(crate) fn slot_bytes(&self, more: u64) -> &[u8] {
        let end = self.start + self.len;
        self.bytes.get(end..end + self.room(more)).unwrap_or_default()
    }

    /// `len` bytes of the slot have become the message's.
    ///
    /// # Panics
    /// When the slot is shorter.
    #[inline]
    pub(crate) fn filled(&mut self, len: usize) {
        assert!(self.start + self.len + len <= self.bytes.len(), "more bytes than the slot holds");
        self.len += len;
    }

    /// Calls `append` to write behind the message; returns its result and the bytes it wrote.
    pub(crate) fn append_with<R>(&mut self, append: impl FnOnce(&mut Vec<u8>) -> R) -> (R, &mut [u8]) {
        let end = self.start + self.len;
        self.bytes.truncate(end);
        let result = append(&mut self.bytes);
        self.len = self.bytes.len() - self.start;
        (result, &mut self.bytes[end..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn grows_by_pieces_and_slots() {
        let mut assembly = Assembly::default();
        assembly.push(&[b'a'; 5_000], 10_000);
        let slot = assembly.slot(10_000);
        assert!((5_000..=5_000 + ALIGN).contains(&slot.len()));
        assert_eq!(slot.as_ptr().addr() % ALIGN, 0);
        slot[..4].copy_from_slice(b"defg");
        assembly.filled(4);
        assembly.push(b"hi", 0);
        assert_eq!(assembly.as_slice()[5_000..], *b"defghi");
        let kept = assembly.take();
        assert_eq!((kept.len(), &kept[5_000..]), (5_006, &b"defghi"[..]));
        assert_eq!(assembly.len(), 0);
    }

    #[test]
    fn grows_with_what_arrives_and_not_with_what_is_announced() {
        let mut assembly = Assembly::default();
        assembly.push(b"x", u64::MAX);
        assert!(assembly.bytes.capacity() <= 2 + ALIGN, "{}", assembly.bytes.capacity());
        let mut assembly = Assembly::default();
        assembly.push(&[7; DIRECT_LEN_MIN], u64::MAX);
        while assembly.len() < if cfg!(miri) { 32 << 10 } else { 4 << 20 } {
            let slot = assembly.slot(u64::MAX).len();
            assert!((1..=SLOT_MAX).contains(&slot));
            assembly.filled(slot);
            assert!(assembly.bytes.capacity() <= 2 * assembly.len() + ALIGN);
        }
    }

    #[test]
    fn begins_with_room_for_a_message_like_the_last_that_left() {
        let mut assembly = Assembly::default();
        for round in 0..if cfg!(miri) { 2 } else { 3 } {
            assembly.push(&[7; 8_000], 62_000);
            let capacity = assembly.bytes.capacity();
            assert_eq!(capacity >= 70_000, round > 0, "{capacity} bytes in round {round}");
            while assembly.len() < 70_000 {
                let slot = assembly.slot(70_000 - assembly.len() as u64).len();
                assembly.filled(slot);
            }
            assert!(round == 0 || assembly.bytes.capacity() == capacity, "grown in round {round}");
            assert_eq!(assembly.take().len(), 70_000);
        }
        // No more than that is reserved ahead, whatever is announced.
        assembly.push(b"x", u64::MAX);
        assert!(assembly.bytes.capacity() <= 71_000, "{}", assembly.bytes.capacity());
        assembly.push(&vec![7; 4 << 20], 0);
        assembly.take();
        assembly.push(b"x", u64::MAX);
        assert!(assembly.bytes.capacity() <= SLOT_MAX + 2 * ALIGN, "{}", assembly.bytes.capacity());
    }

    #[test]
    fn does_not_send_a_large_buffer_along_with_a_small_message() {
        let mut assembly = Assembly::default();
        assembly.give_memory(vec![0; 1 << 20]);
        assembly.push(b"ab", 0);
        let message = assembly.take();
        assert_eq!(&message[..], b"ab");
        assert!(assembly.has_memory(), "the buffer stays");
        assembly.push(&[7; 600 << 10], 0);
        assert_eq!(assembly.take().len(), 600 << 10);
        assert!(!assembly.has_memory(), "the buffer left with a message that fills half of it");
    }

    #[test]
    fn keeps_the_beginning_of_a_message_without_a_large_buffer() {
        let mut assembly = Assembly::default();
        assembly.give_memory(vec![0; 1 << 20]);
        assembly.push(b"beginning", 1 << 20);
        let memory = assembly.swap_memory().unwrap();
        assert_eq!(memory.capacity(), 1 << 20);
        assert!(assembly.bytes.capacity() < 100);
        assembly.push(b" and rest", 0);
        assert_eq!(assembly.as_slice(), b"beginning and rest");
        assert!(assembly.swap_memory().is_none());
    }

    #[test]
    fn drops_a_large_buffer_when_messages_become_small() {
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

    #[test]
    #[should_panic(expected = "more bytes than the slot holds")]
    fn refuses_more_than_the_slot() {
        let mut assembly = Assembly::default();
        assembly.push(&[7; 5_000], 10_000);
        assembly.slot(10);
        assembly.filled(6_000);
    }

    fn with_memory(len: usize) -> Assembly {
        let mut assembly = Assembly::default();
        assembly.give_memory(vec![0; len]);
        assembly
    }

    #[test]
    fn drops_a_buffer_after_messages_below_a_quarter_of_it() {
        let receive = |assembly: &mut Assembly, len: usize| {
            assembly.push(&vec![7; len], 0);
            assembly.clear();
        };
        let mut assembly = with_memory(1 << 20);
        for len in [1 << 18, (1 << 18) + 1] {
            (1..LEAN_MAX).for_each(|_| receive(&mut assembly, (1 << 18) - 1));
            receive(&mut assembly, len);
            assert_eq!(assembly.capacity(), 1 << 20, "kept for {len} bytes");
        }
        for _ in 0..LEAN_MAX {
            assert_eq!(assembly.capacity(), 1 << 20);
            receive(&mut assembly, (1 << 18) - 1);
        }
        assert_eq!(assembly.capacity(), 0);
        // A buffer of the usual length stays.
        for (capacity, kept) in [(KEEP_MAX - 1, true), (KEEP_MAX, true), (KEEP_MAX + 1, false)] {
            let mut assembly = with_memory(capacity);
            (0..=LEAN_MAX).for_each(|_| receive(&mut assembly, 1));
            assert_eq!(assembly.capacity() == capacity, kept, "{capacity}");
        }
    }

    #[test]
    fn moves_a_message_out_of_memory_of_at_most_twice_its_length() {
        for (extra, is_moved) in [(0, true), (1, false)] {
            let mut assembly = with_memory(2 * 1000 + OWNED_EXTRA_LEN - SHARED_LEN + extra);
            assembly.push(&[7; 1000], 0);
            let at = assembly.as_slice().as_ptr();
            let message = assembly.take();
            assert_eq!(message, [7; 1000][..]);
            assert_eq!((message.as_ptr() == at, assembly.has_memory()), (is_moved, !is_moved));
        }
    }

    #[test]
    fn copies_a_beginning_that_is_shorter_than_a_direct_read() {
        for (len, swapped) in [(DIRECT_LEN_MIN - 1, true), (DIRECT_LEN_MIN, false)] {
            let mut assembly = with_memory(1 << 20);
            assembly.push(&vec![7; len], 1 << 20);
            assert_eq!(assembly.swap_memory().is_some(), swapped, "{len}");
            assert_eq!(assembly.as_slice(), vec![7; len]);
        }
    }

    #[test]
    fn aligns_the_end_of_the_first_piece_where_reads_may_follow_directly() {
        for (more, is_aligned) in [(DIRECT_LEN_MIN as u64 - 1, false), (DIRECT_LEN_MIN as u64, true)] {
            let mut assembly = with_memory(1 << 16);
            // A length that does not end on a cache line by itself.
            let len = 101 + (assembly.bytes.as_ptr().addr() + 101).is_multiple_of(ALIGN) as usize;
            assembly.push(&vec![7; len], more);
            assert_eq!(assembly.start > 0, is_aligned, "{more} more");
            assert_eq!(assembly.as_slice(), vec![7; len]);
            assert!(!is_aligned || assembly.slot(more).as_ptr().addr().is_multiple_of(ALIGN));
        }
    }

    #[test]
    fn does_not_allocate_where_the_memory_has_the_length() {
        let mut assembly = with_memory(1000);
        let memory = assembly.bytes.as_ptr();
        assembly.push(&[7; 1000], 0);
        assert_eq!(assembly.as_slice().as_ptr(), memory);

        let mut assembly = with_memory(10_000);
        let memory = assembly.bytes.as_ptr();
        assembly.push(&[7; 5000], 4000);
        let more = assembly.capacity() - assembly.start - 5000;
        assert_eq!(assembly.slot(more as u64).len(), more);
        assert_eq!(assembly.bytes.as_ptr(), memory);
    }

    #[test]
    fn offers_all_of_its_memory_or_as_much_as_has_arrived() {
        let mut assembly = with_memory(100_000);
        assembly.push(&[7; 5000], 1 << 20);
        let spare = assembly.capacity() - assembly.start - 5000;
        assert_eq!((assembly.slot(1 << 20).len(), assembly.capacity()), (spare, 100_000));
        assert_eq!(assembly.slot(10).len(), 10);

        let mut assembly = Assembly::default();
        assembly.push(&[7; 5000], 1 << 20);
        assembly.filled(assembly.bytes.len() - assembly.start - 5000);
        let len = assembly.slot(1 << 20).len();
        assembly.filled(len);
        let (start, len) = (assembly.start, assembly.len());
        let room = assembly.slot(1 << 20).len();
        assert_eq!(room, len);
        assert_eq!(assembly.capacity(), start + len + room + ALIGN, "no more than is offered");
    }

    #[test]
    fn appends_behind_a_message_that_does_not_begin_at_the_front() {
        let mut assembly = with_memory(1 << 16);
        let len = 101 + (assembly.bytes.as_ptr().addr() + 101).is_multiple_of(ALIGN) as usize;
        assembly.push(&vec![b'a'; len], 1 << 16);
        assert!(assembly.start > 0);
        let ((), appended) = assembly.append_with(|out| out.extend_from_slice(b"bc"));
        assert_eq!(appended, b"bc");
        assert_eq!((assembly.len(), &assembly.as_slice()[len..]), (len + 2, &b"bc"[..]));
        assembly.as_mut_slice()[len] = b'x';
        assert_eq!(&assembly.as_slice()[len - 1..], b"axc");
    }
}
