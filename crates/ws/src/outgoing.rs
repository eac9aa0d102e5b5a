//! The queue of bytes on their way out: small ones copied into one buffer, large ones by reference between them.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use bytes::{Buf, Bytes};

use crate::frame::HEADER_LEN_MAX;
use crate::mask::{self, MaskKey};

/// The longest payload whose header takes two bytes, unmasked.
const SHORT_LEN_MAX: usize = 125;

/// The longest slice that [`copy`] moves without a call.
const COPIED_IN_ENDS_MAX: usize = 64;

/// A capacity up to this is kept when the queue runs empty.
const KEEP_MAX: usize = 96 << 10;

/// The buffer is freed after this number of transmissions in a row of less than a quarter of it.
const LEAN_MAX: u8 = 8;

/// ```text
/// inline: [ sent | frame | header | frame | header | frame | end: initialized memory ]
///                                ^ at             ^ at
/// shared:                        payload          payload
/// ```
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    /// Frames, and headers of shared payloads, up to `end`. The rest is initialized memory that the next frames are
    /// written into.
    inline: Vec<u8>,
    /// Bytes of `inline` that have left; `sent <= end <= inline.len()`, and no shared payload lies before it.
    sent: usize,
    end: usize,
    /// Made for the first shared payload.
    shared: Option<Box<SharedQueue>>,
    /// Bytes in `shared`; 0 exactly if it has no payload.
    shared_len: usize,
    lean: u8,
}

/// Payloads passed by reference.
#[derive(Debug, Default)]
struct SharedQueue {
    /// In order of `at`.
    payloads: VecDeque<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// It goes before this offset of `inline`; `sent <= at <= end`.
    at: usize,
    bytes: Bytes,
}

impl Outgoing {
    /// Bytes that wait.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.end - self.sent + self.shared_len
    }

    /// Whether it has no memory.
    #[inline]
    pub(crate) fn is_unallocated(&self) -> bool {
        self.inline.capacity() == 0
    }

    /// Queues a header of `head_len` bytes and its payload.
    #[inline]
    pub(crate) fn push_frame(&mut self, head: &[u8; HEADER_LEN_MAX], head_len: usize, payload: &[u8]) {
        let end = self.end + HEADER_LEN_MAX + payload.len();
        if end > self.inline.len() {
            self.grow(end);
        }
        let place = &mut self.inline[self.end..end];
        // All 14 bytes, whose number is known here; the payload overwrites the rest of them.
        place[..HEADER_LEN_MAX].copy_from_slice(head);
        let place = &mut place[head_len..head_len + payload.len()];
        if payload.len() > COPIED_IN_ENDS_MAX {
            place.copy_from_slice(payload)
        } else {
            copy(place, payload)
        }
        self.end += head_len + payload.len();
    }

    /// Queues a header of `head_len` bytes and its payload, masked.
    #[inline]
    pub(crate) fn push_masked_frame(
        &mut self,
        head: &[u8; HEADER_LEN_MAX],
        head_len: usize,
        payload: &[u8],
        key: MaskKey,
    ) {
        let end = self.end + HEADER_LEN_MAX + payload.len();
        if end > self.inline.len() {
            self.grow(end);
        }
        let place = &mut self.inline[self.end..end];
        place[..HEADER_LEN_MAX].copy_from_slice(head);
        mask::copy(&mut place[head_len..head_len + payload.len()], payload, key);
        self.end += head_len + payload.len();
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
            Some(place) => {
                copy(place, bytes);
                self.end += bytes.len();
            }
            None => self.append_with(|out| out.extend_from_slice(bytes)),
        }
    }

    /// Queues what `append` appends.
    #[inline]
    pub(crate) fn append_with(&mut self, append: impl FnOnce(&mut Vec<u8>)) {
        self.inline.truncate(self.end);
        append(&mut self.inline);
        self.end = self.inline.len();
    }

    /// Queues a frame without a mask, if less than `len_max` bytes are queued before it and its memory is allocated.
    #[inline(always)]
    pub(crate) fn append(&mut self, first: u8, payload: &[u8], len_max: usize) -> bool {
        if payload.len() > SHORT_LEN_MAX || self.end >= len_max {
            return self.append_long(first, payload, len_max);
        }
        let end = self.end + 2 + payload.len();
        let Some([head, len, place @ ..]) = self.inline.get_mut(self.end..end) else { return false };
        *head = first;
        *len = payload.len() as u8;
        copy(place, payload);
        self.end = end;
        true
    }

    #[inline(never)]
    fn append_long(&mut self, first: u8, payload: &[u8], len_max: usize) -> bool {
        // No memory that is pooled has room for more.
        let Ok(len) = u16::try_from(payload.len()) else { return false };
        let end = self.end + 4 + payload.len();
        if self.end >= len_max {
            return false;
        }
        let Some([head, marker, high, low, place @ ..]) = self.inline.get_mut(self.end..end) else {
            return false;
        };
        *head = first;
        *marker = 126;
        [*high, *low] = len.to_be_bytes();
        place.copy_from_slice(payload);
        self.end = end;
        true
    }

    /// Queues a payload without copying it.
    pub(crate) fn push_shared(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            let shared = self.shared.get_or_insert_default();
            self.shared_len += bytes.len();
            shared.payloads.push_back(Shared { at: self.end, bytes });
        }
    }

    /// Fills `out` with the next slices to write, in order, and returns how many.
    #[inline]
    pub(crate) fn transmit<'a>(&'a self, out: &mut [&'a [u8]]) -> usize {
        if self.shared_len > 0 {
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
        for shared in self.shared.iter().flat_map(|shared| &shared.payloads) {
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

    /// `len` bytes of what [`Outgoing::transmit`] showed have left.
    #[inline]
    pub(crate) fn transmitted(&mut self, len: usize) {
        if self.shared_len == 0 {
            assert!(len <= self.end - self.sent, "transmitted more than was queued");
            self.sent += len;
        } else {
            self.transmitted_shared(len);
        }
        if self.sent == self.end && self.shared_len == 0 {
            self.restart();
        } else {
            self.move_up();
        }
    }

    /// Moves the queue to the front of its memory when at least half of that has left: a copy of at most the bytes that have
    /// left since the last time.
    #[inline(never)]
    fn move_up(&mut self) {
        if self.sent >= KEEP_MAX && self.sent * 2 >= self.end {
            let sent = core::mem::take(&mut self.sent);
            self.inline.copy_within(sent..self.end, 0);
            self.end -= sent;
            self.move_shared(sent);
        }
    }

    /// The front of `inline` has gone.
    fn move_shared(&mut self, by: usize) {
        for shared in self.shared.iter_mut().flat_map(|shared| &mut shared.payloads) {
            shared.at -= by;
        }
    }

    fn transmitted_shared(&mut self, mut len: usize) {
        let mut queue = self.shared.as_deref_mut();
        while let Some(queue) = &mut queue
            && let Some(shared) = queue.payloads.front_mut()
        {
            let inline = len.min(shared.at - self.sent);
            self.sent += inline;
            len -= inline;
            // 0 unless all bytes before `at` have left.
            let bytes = len.min(shared.bytes.len());
            shared.bytes.advance(bytes);
            self.shared_len -= bytes;
            len -= bytes;
            if !shared.bytes.is_empty() {
                return;
            }
            queue.payloads.pop_front();
        }
        assert!(len <= self.end - self.sent, "transmitted more than was queued");
        self.sent += len;
    }

    /// Everything has left: the memory is kept for the next messages while they stay large.
    #[inline]
    fn restart(&mut self) {
        let capacity = self.inline.capacity();
        if capacity > KEEP_MAX {
            self.lean = if self.sent < capacity / 4 { self.lean + 1 } else { 0 };
            if self.lean >= LEAN_MAX {
                self.inline = Vec::new();
                self.lean = 0;
            }
        }
        self.sent = 0;
        self.end = 0;
    }

    /// Uses this memory for what is queued next, if there is none: the bytes of the vector, whatever they are.
    #[inline]
    pub(crate) fn give_buffer(&mut self, buffer: Vec<u8>) {
        if self.inline.capacity() == 0 {
            self.inline = buffer;
        }
    }

    /// Gives up the memory, if it is more than twice as large as what is queued; that is copied into a buffer of its size.
    pub(crate) fn take_buffer(&mut self) -> Vec<u8> {
        let queued = &self.inline[self.sent..self.end];
        if self.inline.capacity() <= 2 * queued.len() {
            return Vec::new();
        }
        let queued = queued.to_vec();
        self.move_shared(self.sent);
        self.sent = 0;
        self.end = queued.len();
        core::mem::replace(&mut self.inline, queued)
    }

    /// Drops what waits.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Gives the memory back if nothing waits.
    pub(crate) fn release(&mut self) {
        if self.len() == 0 {
            *self = Self::default();
        }
    }
}

/// Copies between slices of one length: short ones in two moves that overlap, without a call.
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

    fn drain(queue: &mut Outgoing, step: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while queue.len() > 0 {
            let mut slices: [&[u8]; 3] = [&[]; 3];
            let count = queue.transmit(&mut slices);
            let joined = slices[..count].concat();
            assert!(!joined.is_empty() && slices[..count].iter().all(|slice| !slice.is_empty()));
            let len = joined.len().min(step);
            all.extend_from_slice(&joined[..len]);
            queue.transmitted(len);
        }
        all
    }

    #[test]
    fn keeps_the_order_of_inline_and_shared_bytes() {
        for step in [1, 2, 3, 7, 100] {
            let mut queue = Outgoing::default();
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
        let mut queue = Outgoing::default();
        assert!(!queue.append(0x82, b"no memory", 1 << 16));
        for len in (0..300).chain([65_535, 65_536]) {
            let payload: Vec<u8> = (0..len).map(|i| i as u8).collect();
            queue.give_buffer(vec![0xAA; 70_000]);
            let fits = len < 65_536;
            assert_eq!(queue.append(0x82, &payload, 1 << 16), fits);
            let head = match len {
                0..=125 => vec![0x82, len as u8],
                _ => vec![0x82, 126, (len >> 8) as u8, len as u8],
            };
            let expected = if fits { [head, payload].concat() } else { Vec::new() };
            assert_eq!(drain(&mut queue, usize::MAX), expected, "{len}");
            queue.release();
        }
        queue.give_buffer(vec![0xAA; 70_000]);
        while queue.append(0x82, &[1; 100], 1000) {}
        assert_eq!(queue.len(), 1020);
    }

    #[test]
    fn gives_its_memory_up_and_keeps_what_is_queued() {
        let mut queue = Outgoing::default();
        queue.give_buffer(vec![7; 1 << 16]);
        queue.push(b"sent one ");
        queue.push_shared(Bytes::from_static(b"two "));
        queue.push(b"three");
        queue.transmitted(5);
        assert_eq!(queue.take_buffer().capacity(), 1 << 16);
        assert_eq!(queue.take_buffer().capacity(), 0, "it fits");
        assert_eq!(drain(&mut queue, 3), b"one two three");
        queue.give_buffer(vec![7; 1 << 16]);
        assert!(queue.inline.capacity() < 1 << 16, "there was memory already");
    }

    #[test]
    fn moves_a_long_queue_up_as_it_leaves() {
        let mut queue = Outgoing::default();
        let bytes: Vec<u8> = (0..300_000u32).map(|i| i as u8).collect();
        queue.push(&bytes);
        queue.push_shared(Bytes::from_static(b"shared"));
        queue.push(b"end");
        let all = drain(&mut queue, 10_000);
        assert_eq!(all, [&bytes[..], b"sharedend"].concat());
    }

    #[test]
    fn lets_go_of_a_large_buffer_when_messages_turn_small() {
        let mut queue = Outgoing::default();
        queue.push(&vec![0; 1 << 20]);
        drain(&mut queue, usize::MAX);
        for _ in 0..LEAN_MAX {
            assert!(queue.inline.capacity() >= 1 << 20);
            queue.push(b"small");
            drain(&mut queue, usize::MAX);
        }
        assert!(queue.inline.capacity() < 1 << 20);
    }

    fn filled(capacity: usize) -> Outgoing {
        let mut queue = Outgoing::default();
        queue.give_buffer(vec![0; capacity]);
        queue
    }

    #[test]
    fn appends_to_a_batch_below_its_limit() {
        for (payload, head_len) in [(&[1; 100][..], 2), (&[1; 200], 4)] {
            for (queued, fits) in [(999, true), (1000, false), (1001, false)] {
                let mut queue = filled(1 << 16);
                queue.push(&vec![0; queued]);
                assert_eq!(queue.append(0x82, payload, 1000), fits, "{queued} queued");
                assert_eq!(queue.len(), queued + if fits { head_len + payload.len() } else { 0 });
            }
        }
    }

    #[test]
    fn appends_into_the_last_byte_of_its_memory() {
        for (payload, head_len) in [(&[1; 100][..], 2), (&[1; 200], 4)] {
            for (capacity, fits) in [(0, true), (1, false)] {
                let mut queue = filled(head_len + payload.len() - capacity);
                assert_eq!(queue.append(0x82, payload, 1000), fits);
                assert_eq!(queue.len(), if fits { head_len + payload.len() } else { 0 });
            }
        }
    }

    // Masked or not, behind another frame or first, into memory or beyond it.
    #[test]
    fn queues_frames_behind_each_other() {
        let key = MaskKey::new([1, 2, 3, 4]);
        for len in [0, 1, 7, 8, 15, 16, 32, 33, 64, 65, 300] {
            let (mut queue, payload) = (Outgoing::default(), vec![0xF0; len]);
            let head = core::array::from_fn(|i| i as u8);
            queue.push_frame(&head, 2, &payload);
            queue.push_masked_frame(&head, 6, &payload, key);
            queue.push_frame(&head, HEADER_LEN_MAX, &payload);
            let mut masked = payload.clone();
            mask::apply(&mut masked, key);
            let expected = [&head[..2], &payload, &head[..6], &masked, &head, &payload].concat();
            assert_eq!(queue.len(), expected.len());
            assert_eq!(drain(&mut queue, usize::MAX), expected, "{len}");
        }
    }

    // The bound of `Vec`'s growth: twice the capacity, or what is needed.
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
            // With room for the longest header it does not grow.
            let mut queue = filled(5000 + HEADER_LEN_MAX);
            let before = queue.inline.as_ptr();
            queue.push_frame(&[0; HEADER_LEN_MAX], 4, &payload);
            assert_eq!(queue.inline.as_ptr(), before);
        }
    }

    #[test]
    fn transmits_into_as_many_slices_as_there_are() {
        let mut queue = Outgoing::default();
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
        let mut queue = Outgoing::default();
        queue.push(b"one two");
        queue.transmitted(4);
        queue.transmitted(4);
    }

    #[test]
    #[should_panic(expected = "more than was queued")]
    fn refuses_more_than_is_queued_behind_a_shared_payload() {
        let mut queue = Outgoing::default();
        queue.push(b"one ");
        queue.push_shared(Bytes::from_static(b"two "));
        queue.push(b"three");
        queue.transmitted(14);
    }

    #[test]
    fn moves_up_when_much_and_at_least_half_has_left() {
        for (len, bound) in
            [(2 * KEEP_MAX, KEEP_MAX), (2 * KEEP_MAX + 20, KEEP_MAX + 10), (KEEP_MAX + 5, KEEP_MAX)]
        {
            let mut queue = Outgoing::default();
            let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
            queue.push(&bytes);
            queue.push_shared(Bytes::from_static(b"shared"));
            queue.transmitted(bound - 1);
            assert_eq!(queue.sent, bound - 1, "{len}");
            queue.transmitted(1);
            assert_eq!(queue.sent, 0, "{len}");
            assert_eq!(drain(&mut queue, 20_000), [&bytes[bound..], b"shared"].concat());
        }
    }

    // A queue that never runs empty does not grow with what has left.
    #[test]
    fn memory_follows_what_is_queued() {
        let mut queue = Outgoing::default();
        queue.push(&[0; 1000]);
        for _ in 0..2000 {
            queue.push_frame(&[0; HEADER_LEN_MAX], 4, &[0; 996]);
            queue.transmitted(1000);
        }
        assert_eq!(queue.len(), 1000);
        assert!(queue.inline.capacity() < 3 * KEEP_MAX, "{}", queue.inline.capacity());
    }

    #[test]
    fn frees_a_buffer_after_messages_below_a_quarter_of_it() {
        let transmit = |queue: &mut Outgoing, len: usize| {
            queue.push(&vec![0; len]);
            drain(queue, usize::MAX);
        };
        let mut queue = filled(1 << 20);
        for len in [1 << 18, (1 << 18) + 1] {
            for _ in 1..LEAN_MAX {
                transmit(&mut queue, (1 << 18) - 1);
            }
            transmit(&mut queue, len);
            assert_eq!(queue.inline.capacity(), 1 << 20, "kept for {len} bytes");
        }
        for _ in 0..LEAN_MAX {
            assert_eq!(queue.inline.capacity(), 1 << 20);
            transmit(&mut queue, (1 << 18) - 1);
        }
        assert_eq!(queue.inline.capacity(), 0);
        // A buffer of the usual length stays.
        for (capacity, kept) in [(KEEP_MAX - 1, true), (KEEP_MAX, true), (KEEP_MAX + 1, false)] {
            let mut queue = filled(capacity);
            (0..=LEAN_MAX).for_each(|_| transmit(&mut queue, 1));
            assert_eq!(queue.inline.capacity() == capacity, kept, "{capacity}");
        }
    }

    #[test]
    fn gives_up_memory_of_more_than_twice_what_is_queued() {
        for (capacity, given_up) in [(199, false), (200, false), (201, true)] {
            let mut queue = filled(capacity);
            queue.push(b"sent");
            queue.push(&[7; 100]);
            queue.transmitted(4);
            assert_eq!(queue.take_buffer().capacity(), if given_up { capacity } else { 0 });
            assert_eq!(drain(&mut queue, usize::MAX), [7; 100]);
        }
    }

    #[test]
    fn releases_its_memory_when_nothing_is_queued() {
        let mut queue = filled(100);
        assert!(!queue.is_unallocated());
        queue.push(b"a");
        queue.release();
        assert_eq!(drain(&mut queue, usize::MAX), b"a");
        queue.push_shared(Bytes::from_static(b"b"));
        queue.release();
        assert_eq!(queue.len(), 1);
        queue.clear();
        assert_eq!((queue.len(), queue.is_unallocated()), (0, true));
    }
}
