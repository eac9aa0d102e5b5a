//! The buffer in which a message is assembled. It grows with the bytes that arrive, not with the announced length, and is kept for the
//! next message while messages remain large.

use alloc::vec::Vec;
use bytes::Bytes;
use core::ops::Range;

/// Reads begin at a cache line, where vector stores and the kernel's copy are fastest.
const ALIGN: usize = 64;

/// Once a message has this many bytes, the next ones may be read directly behind them.
pub(crate) const DIRECT_LEN_MIN: usize = 4 << 10;

/// The longest slot for one read, so that its bytes are unmasked and validated while they are in cache.
const SLOT_MAX: usize = 256 << 10;

/// A message of at least this many bytes grows by its own length, so that it is copied a few times only. While it is copied, both places
/// together have no more bytes in use than the capacity of the new one.
pub(crate) const GROWTH_LEN_MIN: usize = 2 * SLOT_MAX;

/// An owned message uses at most twice its length and this many bytes of memory.
pub(crate) const OWNED_EXTRA_LEN: usize = 64;

/// The memory that [`Bytes`] allocates to share a buffer, with an owner of its own or without.
const SHARED_LEN: usize = 48;

/// A buffer of at most this capacity is kept between messages of any length, in bytes.
const RETAINED_CAPACITY_MAX: usize = 64 << 10;

/// A larger buffer is freed after this many messages in a row that use less than a quarter of it.
const UNDERUSED_MAX: u8 = 8;

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
    /// Messages in a row that used less than a quarter of the buffer.
    underused: u8,
    /// The length of the last message that was moved out, at most [`SLOT_MAX`].
    last_taken_len: u32,
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

    /// Empties the buffer for the next message, and frees it when messages have become small.
    pub(crate) fn clear(&mut self) {
        let capacity = self.bytes.capacity();
        if capacity > RETAINED_CAPACITY_MAX {
            self.underused = if self.len < capacity / 4 { self.underused + 1 } else { 0 };
            if self.underused >= UNDERUSED_MAX {
                self.release();
            }
        }
        self.reset();
    }

    /// Empties the buffer, and returns room for the next `len` bytes.
    pub(crate) fn reset_to(&mut self, len: usize) -> &mut [u8] {
        self.reset();
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
    fn reset(&mut self) {
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

    /// Takes the buffer; its content is lost.
    pub(crate) fn take_memory(&mut self) -> Vec<u8> {
        let last_taken_len = self.last_taken_len;
        core::mem::replace(self, Self { last_taken_len, ..Self::default() }).bytes
    }

    /// Takes the buffer and keeps a copy of its content in a buffer of its length. `None` when the content is too long for a copy.
    pub(crate) fn take_excess_memory(&mut self) -> Option<Vec<u8>> {
        if self.len >= DIRECT_LEN_MIN || self.can_move_out() {
            return None;
        }
        let content = self.as_slice().to_vec();
        let len = content.len();
        Some(core::mem::replace(self, Self { bytes: content, len, ..Self::default() }).bytes)
    }

    /// Uses this buffer if there is none. Its content is overwritten.
    pub(crate) fn set_memory(&mut self, memory: Vec<u8>) {
        if !self.has_memory() {
            *self = Self { bytes: memory, last_taken_len: self.last_taken_len, ..Self::default() };
        }
    }

    /// Whether the message may be moved out with its buffer, which is at most twice its length and [`OWNED_EXTRA_LEN`] bytes.
    fn can_move_out(&self) -> bool {
        self.bytes.capacity() + SHARED_LEN <= 2 * self.len + OWNED_EXTRA_LEN
    }

    /// Takes the message: moved out with its buffer, or copied out of a buffer that is much larger.
    pub(crate) fn take(&mut self) -> Bytes {
        self.take_with(|buffer, message| Bytes::from(buffer).slice(message))
    }

    /// Takes the message; `share` makes it from the buffer and the range that it has there.
    pub(crate) fn take_with(&mut self, share: impl FnOnce(Vec<u8>, Range<usize>) -> Bytes) -> Bytes {
        if !self.can_move_out() {
            let message = Bytes::copy_from_slice(self.as_slice());
            self.clear();
            return message;
        }
        let Self { bytes, start, len, .. } = core::mem::take(self);
        self.last_taken_len = len.min(SLOT_MAX) as u32;
        share(bytes, start..start + len)
    }

    /// Appends `piece`; `more` bytes of its frame have not arrived.
    pub(crate) fn push(&mut self, piece: &[u8], more: u64) {
        let more = usize::try_from(more).unwrap_or(usize::MAX);
        if self.len == 0 {
            let padding = if more >= DIRECT_LEN_MIN { ALIGN } else { 0 };
            // The message is probably as long as the last one. Growing to that length in steps would copy it several times.
            let ahead = piece.len().max(self.last_taken_len as usize);
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

    /// Room for the next bytes of the frame, of which `more` have not arrived: the spare capacity, or else as many bytes as the message
    /// has.
    pub(crate) fn slot(&mut self, more: u64) -> &mut [u8] {
        let end = self.start + self.len;
        let room = self.room(more);
        if self.bytes.len() < end + room {
            let capacity = self.slot_capacity(more);
            self.bytes.reserve_exact(capacity - self.bytes.len());
            self.bytes.resize(end + room, 0);
        }
        &mut self.bytes[end..end + room]
    }

    /// The capacity once [`slot`](Self::slot) has made room.
    pub(crate) fn slot_capacity(&self, more: u64) -> usize {
        let (end, room) = (self.start + self.len, self.room(more));
        if self.bytes.capacity() >= end + room {
            return self.bytes.capacity();
        }
        if self.len < GROWTH_LEN_MIN {
            // `ALIGN` more, so that the next message of this length fits at any alignment.
            return end + room + ALIGN;
        }
        // The end of the frame is the last place to grow to. Later it would be too near: see `GROWTH_LEN_MIN`.
        let total = end.saturating_add(usize::try_from(more).unwrap_or(usize::MAX)).saturating_add(ALIGN);
        let (least, most) = (2 * self.len, self.len.saturating_mul(4));
        if (least..=most).contains(&total) { total } else { least }
    }

    /// The capacity once [`push`](Self::push) or [`append_with`](Self::append_with) has appended `len` bytes to a message of at least
    /// [`GROWTH_LEN_MIN`] bytes. Shorter ones may grow by less than one read in any case.
    pub(crate) fn grown_capacity(&self, len: usize) -> usize {
        let (capacity, needed) = (self.bytes.capacity(), self.start + self.len + len);
        if self.len < GROWTH_LEN_MIN || needed <= capacity {
            return capacity;
        }
        capacity.saturating_mul(2).max(needed)
    }

    fn room(&self, more: u64) -> usize {
        let room = (self.bytes.capacity() - self.start - self.len).max(self.len);
        usize::try_from(more).unwrap_or(usize::MAX).min(SLOT_MAX).min(room)
    }

    /// The bytes of the last [`Assembly::slot`].
    pub(crate) fn slot_bytes(&self, more: u64) -> &[u8] {
        let end = self.start + self.len;
        self.bytes.get(end..end + self.room(more)).unwrap_or_default()
    }

    /// Appends the first `len` bytes of the slot to the message.
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
    fn grows_with_the_bytes_that_arrive_not_with_the_announced_length() {
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

    // A copy to a larger place has twice the message in use, and the larger place is at least as long.
    #[test]
    fn a_long_message_grows_by_its_length_and_to_the_end_of_its_frame() {
        if cfg!(miri) {
            return;
        }
        for frame in [GROWTH_LEN_MIN, 3 << 20, (4 << 20) + 1, 5_000_000, 10 << 20, 40 << 20] {
            let mut assembly = Assembly::default();
            assembly.push(&[7; DIRECT_LEN_MIN], (frame - DIRECT_LEN_MIN) as u64);
            let mut copies = 0;
            while assembly.len() < frame {
                let (len, before, more) =
                    (assembly.len(), assembly.capacity(), (frame - assembly.len()) as u64);
                let expected = assembly.slot_capacity(more);
                let slot = assembly.slot(more).len();
                assert_eq!(assembly.capacity(), expected);
                if expected > before && len >= GROWTH_LEN_MIN {
                    assert!((2 * len..=4 * len).contains(&expected), "from {len} to {expected} of {frame}");
                    copies += 1;
                }
                assembly.filled(slot);
            }
            assert!(copies <= 7, "{copies} copies of {frame}");
            assert!(assembly.capacity() <= frame + 2 * ALIGN || frame <= 2 * GROWTH_LEN_MIN);
            let at = assembly.as_slice().as_ptr();
            assert_eq!(assembly.take().as_ptr(), at, "it can be moved out");
        }
    }

    // The end of a message in fragments is not known.
    #[test]
    fn a_long_message_in_fragments_grows_by_its_length() {
        if cfg!(miri) {
            return;
        }
        for fragment in [1 << 10, 70_000, 300 << 10] {
            let (mut assembly, piece) = (Assembly::default(), vec![7; fragment]);
            let mut copies = 0;
            while assembly.len() < 20 << 20 {
                let (len, before) = (assembly.len(), assembly.capacity());
                if fragment < 100_000 {
                    let expected = assembly.grown_capacity(fragment);
                    assembly.push(&piece, 0);
                    assert!(len < GROWTH_LEN_MIN || assembly.capacity() == expected);
                } else {
                    assembly.push(&piece[..DIRECT_LEN_MIN], (fragment - DIRECT_LEN_MIN) as u64);
                    let slot = assembly.slot((fragment - DIRECT_LEN_MIN) as u64).len();
                    assembly.filled(slot);
                }
                if len >= GROWTH_LEN_MIN && assembly.capacity() > before {
                    assert!(assembly.capacity() >= 2 * len);
                    copies += 1;
                }
            }
            assert!(copies <= 7, "{copies} copies");
            let at = assembly.as_slice().as_ptr();
            assert_eq!(assembly.take().as_ptr(), at, "it can be moved out");
        }
    }

    #[test]
    fn reserves_the_length_of_the_last_message() {
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
        // Not more, whatever length is announced.
        assembly.push(b"x", u64::MAX);
        assert!(assembly.bytes.capacity() <= 71_000, "{}", assembly.bytes.capacity());
        assembly.push(&vec![7; 4 << 20], 0);
        assembly.take();
        assembly.push(b"x", u64::MAX);
        assert!(assembly.bytes.capacity() <= SLOT_MAX + 2 * ALIGN, "{}", assembly.bytes.capacity());
    }

    #[test]
    fn copies_a_small_message_out_of_a_large_buffer() {
        let mut assembly = Assembly::default();
        assembly.set_memory(vec![0; 1 << 20]);
        assembly.push(b"ab", 0);
        let message = assembly.take();
        assert_eq!(&message[..], b"ab");
        assert!(assembly.has_memory(), "the buffer was kept");
        assembly.push(&[7; 600 << 10], 0);
        assert_eq!(assembly.take().len(), 600 << 10);
        assert!(!assembly.has_memory(), "the message was moved out with the buffer");
    }

    #[test]
    fn takes_a_large_buffer_and_keeps_the_beginning_of_a_message() {
        let mut assembly = Assembly::default();
        assembly.set_memory(vec![0; 1 << 20]);
        assembly.push(b"beginning", 1 << 20);
        let memory = assembly.take_excess_memory().unwrap();
        assert_eq!(memory.capacity(), 1 << 20);
        assert!(assembly.bytes.capacity() < 100);
        assembly.push(b" and rest", 0);
        assert_eq!(assembly.as_slice(), b"beginning and rest");
        assert!(assembly.take_excess_memory().is_none());
    }

    #[test]
    fn frees_a_large_buffer_when_messages_become_small() {
        let mut assembly = Assembly::default();
        assembly.push(&vec![7; 1 << 20], 0);
        for _ in 0..=UNDERUSED_MAX {
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
    fn panics_on_more_bytes_than_the_slot_holds() {
        let mut assembly = Assembly::default();
        assembly.push(&[7; 5_000], 10_000);
        assembly.slot(10);
        assembly.filled(6_000);
    }

    fn with_memory(len: usize) -> Assembly {
        let mut assembly = Assembly::default();
        assembly.set_memory(vec![0; len]);
        assembly
    }

    #[test]
    fn frees_a_buffer_after_messages_below_a_quarter_of_it() {
        let receive = |assembly: &mut Assembly, len: usize| {
            assembly.push(&vec![7; len], 0);
            assembly.clear();
        };
        let mut assembly = with_memory(1 << 20);
        for len in [1 << 18, (1 << 18) + 1] {
            (1..UNDERUSED_MAX).for_each(|_| receive(&mut assembly, (1 << 18) - 1));
            receive(&mut assembly, len);
            assert_eq!(assembly.capacity(), 1 << 20, "kept for {len} bytes");
        }
        for _ in 0..UNDERUSED_MAX {
            assert_eq!(assembly.capacity(), 1 << 20);
            receive(&mut assembly, (1 << 18) - 1);
        }
        assert_eq!(assembly.capacity(), 0);
        // A buffer of the usual length stays.
        for (capacity, kept) in [
            (RETAINED_CAPACITY_MAX - 1, true),
            (RETAINED_CAPACITY_MAX, true),
            (RETAINED_CAPACITY_MAX + 1, false),
        ] {
            let mut assembly = with_memory(capacity);
            (0..=UNDERUSED_MAX).for_each(|_| receive(&mut assembly, 1));
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
    fn copies_a_beginning_below_the_length_of_direct_reads() {
        for (len, swapped) in [(DIRECT_LEN_MIN - 1, true), (DIRECT_LEN_MIN, false)] {
            let mut assembly = with_memory(1 << 20);
            assembly.push(&vec![7; len], 1 << 20);
            assert_eq!(assembly.take_excess_memory().is_some(), swapped, "{len}");
            assert_eq!(assembly.as_slice(), vec![7; len]);
        }
    }

    #[test]
    fn aligns_the_slot_behind_the_first_piece() {
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
    fn does_not_allocate_where_the_buffer_suffices() {
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
    fn offers_its_spare_capacity_or_the_length_of_the_message() {
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
