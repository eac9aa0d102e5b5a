//! [`Output`]: a buffer of frames, with references to large chunks of DATA, which are not copied.
//!
//! ```text
//! bytes  |................|HEADERS|DATA header|DATA header|small DATA|PING|
//!        ^ start          ^ sent              ^ at        ^ at              ^ end()
//! refs                                  [16 KiB]    [16 KiB]     payloads to send before `at`
//! ```
//!
//! A [`Position`] stays what it is when the bytes move to the front.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use bytes::Bytes;

use super::answers::Answers;
use super::unsent::UnsentRequests;
use crate::frame::StreamId;

/// Smaller chunks are copied, in bytes: this costs less than another slice in a vectored write.
const BY_REFERENCE: usize = 512;
/// The capacity that an empty buffer keeps, in bytes. Larger buffers are freed when they were not needed for a while.
const KEPT: usize = 64 * 1024;

/// A place between the bytes that were ever written to the output, without those of chunks by reference: their number before it.
pub(super) type Position = u64;

struct Reference {
    /// The chunk is sent before what follows this position: `sent <= at <= end()`.
    at: Position,
    data: Bytes,
}

pub(super) struct Output {
    bytes: Vec<u8>,
    /// Where `bytes` begins.
    start: Position,
    /// The end of the bytes that were sent, with the chunks by reference: `start <= sent <= end()`.
    sent: Position,
    refs: VecDeque<Reference>,
    refs_len: usize,
    /// A decaying maximum of `bytes.len()`, which decides whether the buffer shrinks.
    peak: usize,
    answers: Answers,
    unsent: UnsentRequests,
    /// Chunks that were sent or copied, until [`Output::take_spent`].
    spent: Vec<Bytes>,
}

impl Output {
    pub(super) const fn new() -> Self {
        Self {
            bytes: Vec::new(),
            start: 0,
            sent: 0,
            refs: VecDeque::new(),
            refs_len: 0,
            peak: 0,
            answers: Answers::new(),
            unsent: UnsentRequests::new(),
            spent: Vec::new(),
        }
    }

    /// The length of the buffered output, in bytes.
    #[inline]
    pub(super) fn len(&self) -> usize {
        (self.end() - self.sent) as usize + self.refs_len
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The end of what was sent.
    #[inline]
    pub(super) const fn sent(&self) -> Position {
        self.sent
    }

    /// Where the output ends.
    #[inline]
    pub(super) const fn end(&self) -> Position {
        self.start + self.bytes.len() as u64
    }

    /// The index in `bytes` of a position from `start` on.
    #[inline]
    const fn index(&self, at: Position) -> usize {
        (at - self.start) as usize
    }

    /// The end of the output, to write frames to.
    #[inline]
    pub(super) const fn frames(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Writes frames that answer a frame of the peer.
    #[inline]
    pub(super) fn answer(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        let start = self.end();
        encode(&mut self.bytes);
        self.answers.push(start, self.end());
    }

    /// The end of the output, to write HEADERS of a request to.
    #[inline]
    pub(super) fn request(&mut self, id: StreamId) -> &mut Vec<u8> {
        self.unsent.push(self.end(), id);
        &mut self.bytes
    }

    /// Removes the output from the first request on of which no byte was sent, because the connection ends. Returns the streams of these
    /// requests, in order.
    #[cold]
    pub(super) fn retract_requests(&mut self) -> Vec<StreamId> {
        if let Some(start) = self.unsent.start() {
            self.bytes.truncate(self.index(start));
            let kept = self.refs.partition_point(|reference| reference.at <= start);
            for Reference { data, .. } in self.refs.drain(kept..) {
                self.refs_len -= data.len();
                self.spent.push(data);
            }
            self.answers = Answers::new();
        }
        self.unsent.take()
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// The length of the buffered answers to frames of the peer, in bytes.
    #[inline]
    pub(super) const fn answers_len(&self) -> usize {
        self.answers.len()
    }

    /// Appends the payload of a DATA frame, whose header is in `bytes`.
    #[inline(always)]
    pub(super) fn push(&mut self, data: Bytes) {
        if data.len() < BY_REFERENCE {
            self.bytes.extend_from_slice(&data);
            self.spent.push(data);
        } else {
            self.refs_len += data.len();
            self.refs.push_back(Reference { at: self.end(), data });
        }
    }

    /// Fills `slices` with the buffered output, in order, and returns their number.
    pub(super) fn slices<'a>(&'a self, slices: &mut [&'a [u8]]) -> usize {
        let mut filled = 0;
        let mut put = |slice: &'a [u8]| match slices.get_mut(filled) {
            Some(place) if !slice.is_empty() => {
                *place = slice;
                filled += 1;
                true
            }
            Some(_) => true,
            None => false,
        };
        let mut from = self.index(self.sent);
        if !self.refs.is_empty() {
            for reference in &self.refs {
                let at = self.index(reference.at);
                if !put(&self.bytes[from..at]) || !put(&reference.data) {
                    return filled;
                }
                from = at;
            }
        }
        put(&self.bytes[from..]);
        filled
    }

    /// Removes `written` bytes, or all bytes if there are fewer.
    pub(super) fn advance(&mut self, mut written: usize) {
        while written > 0 {
            let end = self.refs.front().map_or(self.end(), |reference| reference.at);
            if self.sent < end {
                let step = written.min((end - self.sent) as usize);
                self.sent += step as Position;
                written -= step;
                continue;
            }
            let Some(reference) = self.refs.front_mut() else { break };
            let step = written.min(reference.data.len());
            written -= step;
            self.refs_len -= step;
            if step < reference.data.len() {
                let _ = reference.data.split_to(step);
            } else if let Some(Reference { data, .. }) = self.refs.pop_front() {
                self.spent.push(data);
            }
        }
        self.answers.advance(self.sent);
        self.unsent.advance(self.sent);
        let head = self.index(self.sent);
        if head == self.bytes.len() && self.refs.is_empty() {
            self.reset_empty();
        } else if head >= KEPT && head * 2 >= self.bytes.len() {
            // At least half is sent, so moving the remaining bytes costs no more than writing them did.
            self.peak = self.peak.max(self.bytes.len());
            self.bytes.drain(..head);
            self.start = self.sent;
        }
    }

    /// Clears the buffer after all output was sent. Shrinks it if it was mostly unused for a while.
    #[inline]
    fn reset_empty(&mut self) {
        self.peak = self.peak.max(self.bytes.len());
        self.bytes.clear();
        self.start = self.sent;
        if self.bytes.capacity() > KEPT && self.peak < self.bytes.capacity() / 4 {
            self.bytes.shrink_to(self.peak.max(KEPT));
        }
        self.peak -= self.peak / 8;
    }

    /// Discards all output, because the transport has failed.
    #[cold]
    pub(super) fn clear(&mut self) {
        self.spent.extend(self.refs.drain(..).map(|reference| reference.data));
        self.free();
    }

    /// Frees all but what positions and spent chunks need.
    fn free(&mut self) {
        let end = self.end();
        *self = Self { start: end, sent: end, spent: core::mem::take(&mut self.spent), ..Self::new() };
    }

    /// Discards a chunk that is not sent.
    #[cold]
    pub(super) fn discard(&mut self, data: Bytes) {
        self.spent.push(data);
    }

    /// Moves the spent chunks to `to`.
    pub(super) fn take_spent(&mut self, to: &mut Vec<Bytes>) {
        to.append(&mut self.spent);
    }

    /// Drops the spent chunks.
    #[inline]
    pub(super) fn drop_spent(&mut self) {
        if !self.spent.is_empty() {
            self.spent.clear();
        }
    }

    /// Frees memory if no output is buffered.
    pub(super) fn shrink(&mut self) {
        if self.is_empty() {
            self.free();
            self.spent.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use wireloom_testing::{Rng, rounds};

    #[test]
    fn output_leaves_in_order_in_writes_of_any_size() {
        rounds(4, random_writes);
    }

    fn random_writes(random: &mut Rng) {
        let mut out = Output::new();
        let (mut expected, mut sent) = (Vec::new(), Vec::new());
        let mut next = 0_u8;
        for _ in 0..1500 {
            let len = if random.bool() { random.usize(..20) } else { random.usize(..3000) };
            let piece: Vec<u8> = (0..len)
                .map(|_| {
                    next = next.wrapping_add(1);
                    next
                })
                .collect();
            expected.extend_from_slice(&piece);
            if random.bool() {
                out.bytes.extend_from_slice(&piece);
            } else {
                out.push(piece.into());
            }
            let mut slices = [&[][..]; 3];
            let slices_max = random.usize(1..=3);
            let filled = out.slices(&mut slices[..slices_max]);
            let offered = slices[..filled].concat();
            assert_eq!(filled == 0, out.is_empty());
            let written = if random.u32(..5) == 0 { offered.len() } else { random.usize(..=offered.len()) };
            sent.extend_from_slice(&offered[..written]);
            out.advance(written);
            assert_eq!(out.len(), expected.len() - sent.len());
        }
        while !out.is_empty() {
            let mut slices = [&[][..]; 3];
            let filled = out.slices(&mut slices);
            let offered = slices[..filled].concat();
            sent.extend_from_slice(&offered);
            out.advance(offered.len());
        }
        assert_eq!(sent, expected);
        assert_eq!(out.answers_len(), 0);
    }

    #[test]
    fn large_chunks_are_not_copied() {
        let mut out = Output::new();
        let chunks = [BY_REFERENCE - 1, BY_REFERENCE, BY_REFERENCE + 1].map(|len| Bytes::from(vec![7; len]));
        for chunk in &chunks {
            out.push(chunk.clone());
        }
        let mut slices = [&[][..]; 5];
        assert_eq!(out.slices(&mut slices), 3);
        let is_copied = |at: usize| slices[at].as_ptr() != chunks[at].as_ptr();
        assert_eq!([0, 1, 2].map(is_copied), [true, false, false]);
    }

    #[test]
    fn bytes_move_to_the_front_when_at_least_half_of_them_are_sent() {
        for (buffered, sent, left) in [
            (2 * KEPT, KEPT, KEPT),
            (2 * KEPT + 1, KEPT, 2 * KEPT + 1),
            (2 * KEPT - 2, KEPT - 1, 2 * KEPT - 2),
            (4 * KEPT, 2 * KEPT, 2 * KEPT),
        ] {
            let mut out = Output::new();
            out.bytes.resize(buffered, 7);
            out.advance(sent);
            assert_eq!((out.bytes.len(), out.len()), (left, buffered - sent), "{sent} of {buffered}");
        }
    }

    #[test]
    fn chunks_stay_in_their_place_when_bytes_move_to_the_front() {
        let mut out = Output::new();
        out.bytes.resize(KEPT + 10, 1);
        let chunks = [2, 3].map(|byte| Bytes::from(vec![byte; BY_REFERENCE]));
        out.push(chunks[0].clone());
        out.bytes.extend_from_slice(&[4; 5]);
        out.push(chunks[1].clone());
        out.advance(KEPT);
        assert!(out.bytes.len() == 15 && out.start == out.sent, "moved");
        let mut slices = [&[][..]; 5];
        assert_eq!(out.slices(&mut slices), 4);
        assert_eq!(slices.concat(), [&[1; 10], &chunks[0][..], &[4; 5], &chunks[1]].concat());
    }

    #[test]
    fn requests_are_taken_back_from_where_they_begin() {
        for sent in [0, 29, 30, 40, 30 + BY_REFERENCE, 35 + BY_REFERENCE] {
            let mut out = Output::new();
            let chunk = Bytes::from(vec![2; BY_REFERENCE]);
            out.bytes.extend_from_slice(&[1; 30]);
            out.push(chunk.clone());
            out.bytes.extend_from_slice(&[3; 10]);
            out.advance(sent);
            out.request(StreamId::FIRST_CLIENT).extend_from_slice(&[4; 20]);
            out.push(chunk.clone());
            assert_eq!(out.retract_requests(), [StreamId::FIRST_CLIENT]);
            let mut slices = [&[][..]; 4];
            let count = out.slices(&mut slices);
            let expected = [&[1; 30], &chunk[..], &[3; 10]].concat();
            assert_eq!(slices[..count].concat(), expected[sent..], "{sent}");
        }
    }

    #[test]
    fn positions_stay_what_they_are_when_bytes_move_to_the_front() {
        let mut out = Output::new();
        out.bytes.resize(KEPT, 1);
        out.answer(|bytes| bytes.extend_from_slice(&[2; 10]));
        out.request(StreamId::FIRST_CLIENT).extend_from_slice(&[3; 20]);
        let end = out.end();
        out.advance(KEPT + 5);
        assert_eq!((out.bytes.len(), out.sent(), out.end()), (25, end - 25, end));
        assert_eq!((out.answers_len(), out.unsent.start()), (5, Some(end - 20)));
        out.advance(5);
        assert_eq!((out.answers_len(), out.unsent.start()), (0, Some(end - 20)));
        out.advance(20);
        assert_eq!((out.sent(), out.end(), out.unsent.start()), (end, end, None));
    }

    #[test]
    fn a_buffer_that_was_a_quarter_full_is_kept() {
        for (peak, capacity) in [(2 * KEPT, 8 * KEPT), (2 * KEPT - 1, 2 * KEPT - 1)] {
            let mut out = Output::new();
            out.bytes = Vec::with_capacity(8 * KEPT);
            out.bytes.resize(peak, 7);
            out.advance(peak);
            assert_eq!(out.bytes.capacity(), capacity, "{peak}");
        }
    }

    #[test]
    fn a_buffer_that_is_never_empty_does_not_grow() {
        let mut out = Output::new();
        out.bytes.resize(2 * KEPT, 7);
        for _ in 0..20 {
            out.advance(KEPT);
            out.bytes.resize(out.bytes.len() + KEPT, 7);
        }
        assert!(out.bytes.len() <= 3 * KEPT, "{}", out.bytes.len());
    }

    #[test]
    fn memory_is_freed_once_it_was_not_needed_for_a_while() {
        let fill = |out: &mut Output, len: usize| {
            out.bytes.resize(len, 7);
            out.advance(len);
        };
        let mut out = Output::new();
        fill(&mut out, 64 * KEPT);
        let large = out.bytes.capacity();
        // Half of it in use from time to time: it stays.
        for _ in 0..5 {
            (0..4).for_each(|_| fill(&mut out, 100));
            fill(&mut out, 32 * KEPT);
            assert_eq!(out.bytes.capacity(), large);
        }
        // At first it is kept for the next burst.
        fill(&mut out, 100);
        assert_eq!(out.bytes.capacity(), large);
        (0..100).for_each(|_| fill(&mut out, 100));
        assert_eq!(out.bytes.capacity(), KEPT);
    }
}
