//! The send queue: headers and short payloads are copied into one buffer, long payloads are kept by reference between them.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use bytes::{Buf, Bytes};

use crate::frame::HEADER_LEN_MAX;
use crate::mask::{self, MaskKey};

/// The longest payload whose header takes two bytes, unmasked.
const SHORT_LEN_MAX: usize = 125;

/// The longest frame that [`SendQueue::append`] queues: with a length of two bytes.
pub(crate) const APPENDED_LEN_MAX: usize = 4 + u16::MAX as usize;

/// The longest slice that [`copy`] moves without a call.
const INLINE_COPY_MAX: usize = 64;

/// A buffer of at most this capacity is kept when the queue becomes empty, in bytes.
const RETAINED_CAPACITY_MAX: usize = 96 << 10;

/// A larger buffer is freed once the queue has become empty this many times in a row with less than a quarter of it in use.
const UNDERUSED_MAX: u8 = 8;

/// ```text
/// inline: [ sent | frame | header | frame | header | frame | end: initialized memory ]
///                                ^ at             ^ at
/// shared:                        payload          payload
/// ```
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    /// Frames, and headers of shared payloads, up to `end`. The bytes behind `end` are initialized memory for the next frames.
    inline: Vec<u8>,
    /// Bytes of `inline` that were written to the transport; `sent <= end <= inline.len()`. All shared payloads are behind it.
    sent: usize,
    end: usize,
    /// Allocated for the first shared payload, or the first large buffer.
    large: Option<Box<Large>>,
}

/// The state of a queue that has held large messages.
#[derive(Debug, Default)]
struct Large {
    /// Payloads passed by reference, in order of `at`.
    shared: VecDeque<Shared>,
    /// Bytes in `shared`; 0 if and only if it has no payload.
    shared_len: usize,
    /// Bytes of its first payload that were written, which its memory still holds.
    shared_sent: usize,
    /// How many times in a row the queue became empty with less than a quarter of a large buffer in use.
    underused: u8,
}

#[derive(Debug)]
struct Shared {
    /// The payload is sent before the byte of `inline` at this offset; `sent <= at <= end`.
    at: usize,
    bytes: Bytes,
}

impl SendQueue {
    /// Bytes in the queue.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.end - self.sent + self.shared_len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.sent == self.end && self.shared_len() == 0
    }

    #[inline]
    fn shared_len(&self) -> usize {
        self.large.as_ref().map_or(0, |large| large.shared_len)
    }

    /// Memory that it holds, in bytes: also for bytes that were written before others of their buffer or payload.
    pub(crate) fn memory_len(&self) -> usize {
        let shared = self.large.as_ref().map_or(0, |large| large.shared_len + large.shared_sent);
        self.inline.capacity() + shared
    }

    /// Whether it has no buffer.
    #[inline]
    pub(crate) fn is_unallocated(&self) -> bool {
        self.inline.capacity() == 0
    }

    /// Queues a header of `header_len` bytes and its payload.
    #[inline]
    pub(crate) fn push_frame(&mut self, header: &[u8; HEADER_LEN_MAX], header_len: usize, payload: &[u8]) {
        let room = self.push_header(header, header_len, payload.len());
        if payload.len() > INLINE_COPY_MAX { room.copy_from_slice(payload) } else { copy(room, payload) }
    }

    /// Queues a header of `header_len` bytes and its payload, masked.
    #[inline]
    pub(crate) fn push_masked_frame(
        &mut self,
        header: &[u8; HEADER_LEN_MAX],
        header_len: usize,
        payload: &[u8],
        key: MaskKey,
    ) {
        mask::copy(self.push_header(header, header_len, payload.len()), payload, key);
    }

    /// Queues a header of `header_len` bytes; returns the room for its payload.
    #[inline(always)]
    fn push_header(
        &mut self,
        header: &[u8; HEADER_LEN_MAX],
        header_len: usize,
        payload_len: usize,
    ) -> &mut [u8] {
        let end = self.end + HEADER_LEN_MAX + payload_len;
        if end > self.inline.len() {
            self.grow(end);
        }
        let room = &mut self.inline[self.end..end];
        // Copies all 14 bytes, because a constant length needs no call; the payload overwrites those behind the header.
        room[..HEADER_LEN_MAX].copy_from_slice(header);
        self.end += header_len + payload_len;
        &mut room[header_len..header_len + payload_len]
    }

    /// Initializes memory for at least `len` bytes.
    #[cold]
    #[inline(never)]
    fn grow(&mut self, len: usize) {
        self.inline.reserve(len - self.inline.len());
        self.inline.resize(self.inline.capacity(), 0);
    }

    /// Queues bytes.
    #[inline]
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        match self.inline.get_mut(self.end..self.end + bytes.len()) {
            Some(room) => {
                copy(room, bytes);
                self.end += bytes.len();
            }
            None => self.append_with(|out| out.extend_from_slice(bytes)),
        }
    }

    /// Queues the bytes that `append` appends to the vector.
    #[inline]
    pub(crate) fn append_with(&mut self, append: impl FnOnce(&mut Vec<u8>)) {
        self.inline.truncate(self.end);
        append(&mut self.inline);
        self.end = self.inline.len();
    }

    /// Queues an unmasked frame if fewer than `len_max` bytes are queued and the buffer has room for it.
    #[inline(always)]
    pub(crate) fn append(&mut self, first: u8, payload: &[u8], len_max: usize) -> bool {
        if payload.len() > SHORT_LEN_MAX || self.end >= len_max {
            return self.append_long(first, payload, len_max);
        }
        let end = self.end + 2 + payload.len();
        let Some([header, len, room @ ..]) = self.inline.get_mut(self.end..end) else { return false };
        *header = first;
        *len = payload.len() as u8;
        copy(room, payload);
        self.end = end;
        true
    }

    #[inline(never)]
    fn append_long(&mut self, first: u8, payload: &[u8], len_max: usize) -> bool {
        // Pooled buffers are hardly longer.
        let Ok(len) = u16::try_from(payload.len()) else { return false };
        let end = self.end + 4 + payload.len();
        if self.end >= len_max {
            return false;
        }
        let Some([header, marker, high, low, room @ ..]) = self.inline.get_mut(self.end..end) else {
            return false;
        };
        *header = first;
        *marker = 126;
        [*high, *low] = len.to_be_bytes();
        room.copy_from_slice(payload);
        self.end = end;
        true
    }

    /// Queues a payload without copying it.
    pub(crate) fn push_shared(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            let large = self.large.get_or_insert_default();
            large.shared_len += bytes.len();
            large.shared.push_back(Shared { at: self.end, bytes });
        }
    }

    /// Fills `out` with the next slices to write, in order, and returns how many.
    #[inline]
    pub(crate) fn transmit<'a>(&'a self, out: &mut [&'a [u8]]) -> usize {
        if self.shared_len() > 0 {
            return self.transmit_shared(out);
        }
        match out.first_mut() {
            Some(slice) if self.sent < self.end => {
                *slice = &self.inline[self.sent..self.end];
                1
            }
            _ => 0,
        }
    }

    fn transmit_shared<'a>(&'a self, out: &mut [&'a [u8]]) -> usize {
        let mut count = 0;
        let mut from = self.sent;
        for shared in self.large.iter().flat_map(|large| &large.shared) {
            for slice in [&self.inline[from..shared.at], &shared.bytes] {
                if count == out.len() {
                    return count;
                }
                if !slice.is_empty() {
                    out[count] = slice;
                    count += 1;
                }
            }
            from = shared.at;
        }
        if count < out.len() && from < self.end {
            out[count] = &self.inline[from..self.end];
            count += 1;
        }
        count
    }

    /// `len` bytes of the slices from [`SendQueue::transmit`] were written. Shared payloads that were written are passed to `release`.
    #[inline]
    pub(crate) fn transmitted(&mut self, len: usize, release: impl FnMut(Bytes)) {
        let is_empty = if self.shared_len() == 0 {
            assert!(len <= self.end - self.sent, "transmitted more than was queued");
            self.sent += len;
            self.sent == self.end
        } else {
            self.transmitted_shared(len, release);
            self.is_empty()
        };
        if is_empty {
            self.reset();
        } else {
            self.compact();
        }
    }

    /// Moves the queue to the front of the buffer once at least half of the buffered bytes were sent. The copy is never longer
    /// than the bytes sent since the last one.
    #[inline(never)]
    fn compact(&mut self) {
        if self.sent >= RETAINED_CAPACITY_MAX && self.sent * 2 >= self.end {
            let sent = core::mem::take(&mut self.sent);
            self.inline.copy_within(sent..self.end, 0);
            self.end -= sent;
            self.shift_shared(sent);
        }
    }

    /// Adapts the offsets of shared payloads after the first `by` bytes of `inline` were removed.
    fn shift_shared(&mut self, by: usize) {
        for shared in self.large.iter_mut().flat_map(|large| &mut large.shared) {
            shared.at -= by;
        }
    }

    fn transmitted_shared(&mut self, mut len: usize, mut release: impl FnMut(Bytes)) {
        let mut large = self.large.as_deref_mut();
        while let Some(large) = &mut large
            && let Some(shared) = large.shared.front_mut()
        {
            let inline = len.min(shared.at - self.sent);
            self.sent += inline;
            len -= inline;
            // 0 unless all bytes before `at` were sent.
            let bytes = len.min(shared.bytes.len());
            shared.bytes.advance(bytes);
            large.shared_len -= bytes;
            large.shared_sent += bytes;
            len -= bytes;
            if !shared.bytes.is_empty() {
                return;
            }
            large.shared_sent = 0;
            large.shared.pop_front().into_iter().for_each(|shared| release(shared.bytes));
        }
        assert!(len <= self.end - self.sent, "transmitted more than was queued");
        self.sent += len;
    }

    /// The queue is empty. The buffer is kept for the next messages, unless they no longer need a large one.
    #[inline]
    fn reset(&mut self) {
        let capacity = self.inline.capacity();
        if capacity > RETAINED_CAPACITY_MAX {
            let large = self.large.get_or_insert_default();
            large.underused = if self.sent < capacity / 4 { large.underused + 1 } else { 0 };
            if large.underused >= UNDERUSED_MAX {
                self.inline = Vec::new();
                large.underused = 0;
            }
        }
        self.sent = 0;
        self.end = 0;
    }

    /// Uses this buffer if there is none. Its content is overwritten.
    #[inline]
    pub(crate) fn set_buffer(&mut self, buffer: Box<[u8]>) {
        if self.inline.capacity() == 0 {
            self.inline = buffer.into_vec();
        }
    }

    /// Returns the buffer if its capacity is more than twice the queued bytes, which are copied into a buffer of their length.
    #[inline]
    pub(crate) fn take_buffer(&mut self) -> Vec<u8> {
        if self.end == 0 { core::mem::take(&mut self.inline) } else { self.take_used_buffer() }
    }

    fn take_used_buffer(&mut self) -> Vec<u8> {
        let queued = &self.inline[self.sent..self.end];
        if self.inline.capacity() <= 2 * queued.len() {
            return Vec::new();
        }
        let queued = queued.to_vec();
        self.shift_shared(self.sent);
        self.sent = 0;
        self.end = queued.len();
        core::mem::replace(&mut self.inline, queued)
    }

    /// Drops all queued bytes, and the buffer. Shared payloads are passed to `release`.
    pub(crate) fn clear(&mut self, mut release: impl FnMut(Bytes)) {
        let Self { large, .. } = core::mem::take(self);
        large.into_iter().flat_map(|large| large.shared).for_each(|shared| release(shared.bytes));
    }

    /// Frees the buffer if nothing is queued.
    pub(crate) fn release(&mut self) {
        if self.is_empty() {
            *self = Self::default();
        }
    }
}

/// Copies between slices of equal length; up to 64 bytes as two overlapping words, without a call.
#[inline(always)]
fn copy(to: &mut [u8], from: &[u8]) {
    #[inline(always)]
    fn ends<const N: usize>(to: &mut [u8], from: &[u8]) -> Option<()> {
        let (first, last) = (*from.first_chunk::<N>()?, *from.last_chunk::<N>()?);
        *to.first_chunk_mut()? = first;
        *to.last_chunk_mut()? = last;
        Some(())
    }
    let copied = match from.len() {
        8..16 => ends::<8>(to, from),
        16..=32 => ends::<16>(to, from),
        33..=64 => ends::<32>(to, from),
        _ => None,
    };
    if copied.is_none() {
        to.copy_from_slice(from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn drain(queue: &mut SendQueue, step: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while !queue.is_empty() {
            let mut slices: [&[u8]; 3] = [&[]; 3];
            let count = queue.transmit(&mut slices);
            let joined = slices[..count].concat();
            assert!(!joined.is_empty() && slices[..count].iter().all(|slice| !slice.is_empty()));
            let len = joined.len().min(step);
            all.extend_from_slice(&joined[..len]);
            queue.transmitted(len, drop);
        }
        all
    }

    #[test]
    fn keeps_the_order_of_inline_and_shared_bytes() {
        for step in [1, 2, 3, 7, 100] {
            let mut queue = SendQueue::default();
            queue.push(b"one ");
            queue.push_shared(Bytes::from_static(b"two "));
            queue.push_shared(Bytes::from_static(b"three "));
            queue.push_shared(Bytes::new());
            queue.push(b"four ");
            queue.push_shared(Bytes::from_static(b"five"));
            assert_eq!(queue.len(), 23);
            assert_eq!(drain(&mut queue, step), b"one two three four five");
            assert_eq!(queue.len(), 0);
        }
    }

    #[test]
    fn appends_frames_of_every_length_within_its_memory() {
        let mut queue = SendQueue::default();
        assert!(!queue.append(0x82, b"no memory", 1 << 16));
        for len in (0..300).chain([65_535, 65_536]) {
            let payload: Vec<u8> = (0..len).map(|i| i as u8).collect();
            queue.set_buffer(vec![0xAA; 70_000].into());
            let fits = len < 65_536;
            assert_eq!(queue.append(0x82, &payload, 1 << 16), fits);
            let header = match len {
                0..=125 => vec![0x82, len as u8],
                _ => vec![0x82, 126, (len >> 8) as u8, len as u8],
            };
            let expected = if fits { [header, payload].concat() } else { Vec::new() };
            assert_eq!(drain(&mut queue, usize::MAX), expected, "{len}");
            queue.release();
        }
        queue.set_buffer(vec![0xAA; 70_000].into());
        while queue.append(0x82, &[1; 100], 1000) {}
        assert_eq!(queue.len(), 1020);
    }

    #[test]
    fn returns_its_buffer_and_keeps_the_queued_bytes() {
        let mut queue = SendQueue::default();
        queue.set_buffer(vec![7; 1 << 16].into());
        queue.push(b"sent one ");
        queue.push_shared(Bytes::from_static(b"two "));
        queue.push(b"three");
        queue.transmitted(5, drop);
        assert_eq!(queue.take_buffer().capacity(), 1 << 16);
        assert_eq!(queue.take_buffer().capacity(), 0, "too small to be returned");
        assert_eq!(drain(&mut queue, 3), b"one two three");
        queue.set_buffer(vec![7; 1 << 16].into());
        assert!(queue.inline.capacity() < 1 << 16, "the queue had a buffer");
    }

    #[test]
    fn keeps_the_order_when_a_long_queue_is_compacted() {
        let mut queue = SendQueue::default();
        let bytes: Vec<u8> = (0..300_000u32).map(|i| i as u8).collect();
        queue.push(&bytes);
        queue.push_shared(Bytes::from_static(b"shared"));
        queue.push(b"end");
        let all = drain(&mut queue, 10_000);
        assert_eq!(all, [&bytes[..], b"sharedend"].concat());
    }

    #[test]
    fn frees_a_large_buffer_when_messages_become_small() {
        let mut queue = SendQueue::default();
        queue.push(&vec![0; 1 << 20]);
        drain(&mut queue, usize::MAX);
        for _ in 0..UNDERUSED_MAX {
            assert!(queue.inline.capacity() >= 1 << 20);
            queue.push(b"small");
            drain(&mut queue, usize::MAX);
        }
        assert!(queue.inline.capacity() < 1 << 20);
    }

    fn filled(capacity: usize) -> SendQueue {
        let mut queue = SendQueue::default();
        queue.set_buffer(vec![0; capacity].into());
        queue
    }

    #[test]
    fn appends_to_a_batch_below_its_limit() {
        for (payload, header_len) in [(&[1; 100][..], 2), (&[1; 200], 4)] {
            for (queued, fits) in [(999, true), (1000, false), (1001, false)] {
                let mut queue = filled(1 << 16);
                queue.push(&vec![0; queued]);
                assert_eq!(queue.append(0x82, payload, 1000), fits, "{queued} queued");
                assert_eq!(queue.len(), queued + if fits { header_len + payload.len() } else { 0 });
            }
        }
    }

    #[test]
    fn appends_into_the_last_byte_of_its_memory() {
        for (payload, header_len) in [(&[1; 100][..], 2), (&[1; 200], 4)] {
            for (capacity, fits) in [(0, true), (1, false)] {
                let mut queue = filled(header_len + payload.len() - capacity);
                assert_eq!(queue.append(0x82, payload, 1000), fits);
                assert_eq!(queue.len(), if fits { header_len + payload.len() } else { 0 });
            }
        }
    }

    // Masked and unmasked, with headers of several lengths.
    #[test]
    fn queues_frames_behind_each_other() {
        let key = MaskKey::new([1, 2, 3, 4]);
        for len in [0, 1, 7, 8, 15, 16, 32, 33, 64, 65, 300] {
            let (mut queue, payload) = (SendQueue::default(), vec![0xF0; len]);
            let header = core::array::from_fn(|i| i as u8);
            queue.push_frame(&header, 2, &payload);
            queue.push_masked_frame(&header, 6, &payload, key);
            queue.push_frame(&header, HEADER_LEN_MAX, &payload);
            let mut masked = payload.clone();
            mask::apply(&mut masked, key);
            let expected = [&header[..2], &payload, &header[..6], &masked, &header, &payload].concat();
            assert_eq!(queue.len(), expected.len());
            assert_eq!(drain(&mut queue, usize::MAX), expected, "{len}");
        }
    }

    // `Vec` grows to twice its capacity, or to the required length.
    #[test]
    fn grows_no_further_than_a_vector_does() {
        for masked in [false, true] {
            let mut queue = filled(1000);
            let payload = [7; 5000];
            if masked {
                queue.push_masked_frame(&[0; HEADER_LEN_MAX], 8, &payload, MaskKey::new([1; 4]));
            } else {
                queue.push_frame(&[0; HEADER_LEN_MAX], 4, &payload);
            }
            assert_eq!(queue.inline.capacity(), 5000 + HEADER_LEN_MAX);
            // It does not grow if the longest header fits.
            let mut queue = filled(5000 + HEADER_LEN_MAX);
            let before = queue.inline.as_ptr();
            queue.push_frame(&[0; HEADER_LEN_MAX], 4, &payload);
            assert_eq!(queue.inline.as_ptr(), before);
        }
    }

    #[test]
    fn transmits_into_as_many_slices_as_there_are() {
        let mut queue = SendQueue::default();
        assert_eq!(queue.transmit(&mut [&[]]), 0, "nothing is queued");
        queue.push(b"one");
        assert_eq!(queue.transmit(&mut []), 0);
        queue.push_shared(Bytes::from_static(b"two"));
        queue.push(b"three");
        let all: [&[u8]; 3] = [b"one", b"two", b"three"];
        for len in 0..=4 {
            let mut slices: Vec<&[u8]> = vec![&[]; len];
            let count = queue.transmit(&mut slices);
            assert_eq!(slices[..count], all[..len.min(3)]);
        }
    }

    #[test]
    #[should_panic(expected = "more than was queued")]
    fn refuses_more_than_is_queued() {
        let mut queue = SendQueue::default();
        queue.push(b"one two");
        queue.transmitted(4, drop);
        queue.transmitted(4, drop);
    }

    #[test]
    #[should_panic(expected = "more than was queued")]
    fn refuses_more_than_is_queued_behind_a_shared_payload() {
        let mut queue = SendQueue::default();
        queue.push(b"one ");
        queue.push_shared(Bytes::from_static(b"two "));
        queue.push(b"three");
        queue.transmitted(14, drop);
    }

    #[test]
    fn compacts_when_at_least_half_of_a_long_queue_was_sent() {
        for (len, bound) in [
            (2 * RETAINED_CAPACITY_MAX, RETAINED_CAPACITY_MAX),
            (2 * RETAINED_CAPACITY_MAX + 20, RETAINED_CAPACITY_MAX + 10),
            (RETAINED_CAPACITY_MAX + 5, RETAINED_CAPACITY_MAX),
        ] {
            let mut queue = SendQueue::default();
            let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
            queue.push(&bytes);
            queue.push_shared(Bytes::from_static(b"shared"));
            queue.transmitted(bound - 1, drop);
            assert_eq!(queue.sent, bound - 1, "{len}");
            queue.transmitted(1, drop);
            assert_eq!(queue.sent, 0, "{len}");
            assert_eq!(drain(&mut queue, 20_000), [&bytes[bound..], b"shared"].concat());
        }
    }

    // A queue that never becomes empty does not keep the bytes that were sent.
    #[test]
    fn memory_is_bounded_by_the_queued_bytes() {
        let mut queue = SendQueue::default();
        queue.push(&[0; 1000]);
        for _ in 0..2000 {
            queue.push_frame(&[0; HEADER_LEN_MAX], 4, &[0; 996]);
            queue.transmitted(1000, drop);
        }
        assert_eq!(queue.len(), 1000);
        assert!(queue.inline.capacity() < 3 * RETAINED_CAPACITY_MAX, "{}", queue.inline.capacity());
    }

    #[test]
    fn frees_a_buffer_after_messages_below_a_quarter_of_it() {
        let transmit = |queue: &mut SendQueue, len: usize| {
            queue.push(&vec![0; len]);
            drain(queue, usize::MAX);
        };
        let mut queue = filled(1 << 20);
        for len in [1 << 18, (1 << 18) + 1] {
            for _ in 1..UNDERUSED_MAX {
                transmit(&mut queue, (1 << 18) - 1);
            }
            transmit(&mut queue, len);
            assert_eq!(queue.inline.capacity(), 1 << 20, "kept for {len} bytes");
        }
        for _ in 0..UNDERUSED_MAX {
            assert_eq!(queue.inline.capacity(), 1 << 20);
            transmit(&mut queue, (1 << 18) - 1);
        }
        assert_eq!(queue.inline.capacity(), 0);
        // A buffer of the usual length stays.
        for (capacity, kept) in [
            (RETAINED_CAPACITY_MAX - 1, true),
            (RETAINED_CAPACITY_MAX, true),
            (RETAINED_CAPACITY_MAX + 1, false),
        ] {
            let mut queue = filled(capacity);
            (0..=UNDERUSED_MAX).for_each(|_| transmit(&mut queue, 1));
            assert_eq!(queue.inline.capacity() == capacity, kept, "{capacity}");
        }
    }

    #[test]
    fn returns_a_buffer_of_more_than_twice_the_queued_bytes() {
        for (capacity, given_up) in [(199, false), (200, false), (201, true)] {
            let mut queue = filled(capacity);
            queue.push(b"sent");
            queue.push(&[7; 100]);
            queue.transmitted(4, drop);
            assert_eq!(queue.take_buffer().capacity(), if given_up { capacity } else { 0 });
            assert_eq!(drain(&mut queue, usize::MAX), [7; 100]);
        }
    }

    #[test]
    fn frees_its_buffer_when_nothing_is_queued() {
        let mut queue = filled(100);
        assert!(!queue.is_unallocated());
        queue.push(b"a");
        queue.release();
        assert_eq!(drain(&mut queue, usize::MAX), b"a");
        queue.push_shared(Bytes::from_static(b"b"));
        queue.release();
        assert_eq!(queue.len(), 1);
        queue.clear(drop);
        assert_eq!((queue.len(), queue.is_unallocated()), (0, true));
    }
}
