//! Reassembles one direction of a TCP connection (RFC 9293 §3.4). Written here, because no maintained crate reassembles
//! captured streams with bounded memory and marks missing bytes.
//!
//! ```text
//! sequence numbers   | delivered      | missing   | pending   |  | pending |
//!                                     ^ next
//! ```
//! A segment at `next` is delivered without a copy. Segments after a gap are pending. The gap counts as lost when the
//! receiver has acknowledged bytes after it, when too many bytes are pending, or when the capture ends.

use std::collections::BTreeMap;

use crate::limits::{Budget, PENDING_LEN_MAX, PENDING_SEGMENTS_MAX, REORDER_PACKETS_MAX, Reservation};

/// A part of a stream, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Run<'a> {
    /// Bytes that begin at the start of a segment.
    Bytes(&'a [u8]),
    /// This many bytes are missing in the capture.
    Gap(u64),
    /// The sender has closed its direction.
    End,
}

#[derive(Debug)]
struct Pending {
    bytes: Vec<u8>,
    _reservation: Reservation,
}

/// One direction of a connection.
#[derive(Debug, Default)]
pub(crate) struct HalfStream {
    /// The offset in the stream of the next byte to deliver, and its sequence number; `None` before the first segment.
    next: Option<(u64, u32)>,
    pending: BTreeMap<u64, Pending>,
    pending_len: usize,
    /// The offset of the end, once a FIN has arrived.
    end: Option<u64>,
    ended: bool,
    /// The highest offset that the receiver has acknowledged.
    acknowledged: u64,
    /// The number of packets since an acknowledgement covered the gap.
    waited: u32,
}

impl HalfStream {
    /// Whether a SYN with this sequence number belongs to another connection.
    pub(crate) fn is_reused_by(&self, sequence: u32) -> bool {
        self.next.is_some_and(|(offset, next)| {
            // The sequence number of a retransmitted SYN is before the first byte.
            u64::from(next.wrapping_sub(sequence.wrapping_add(1))) != offset
        })
    }

    /// Handles a SYN: the first byte of the stream has the number `sequence` + 1.
    pub(crate) fn handle_syn(&mut self, sequence: u32) {
        if self.next.is_none() {
            self.next = Some((0, sequence.wrapping_add(1)));
        }
    }

    /// The offset of a sequence number, which is within 2^31 of the next byte; `None` if it is before the beginning of
    /// the stream.
    fn offset(&self, sequence: u32) -> Option<u64> {
        let (offset, next) = self.next?;
        let distance = i64::from(sequence.wrapping_sub(next) as i32);
        offset.checked_add_signed(distance)
    }

    pub(crate) fn handle_segment(
        &mut self,
        sequence: u32,
        payload: &[u8],
        fin: bool,
        budget: &Budget,
        deliver: &mut dyn FnMut(Run<'_>),
    ) {
        if self.next.is_none() {
            // The capture began after the connection.
            self.next = Some((0, sequence));
        }
        let Some((next, _)) = self.next else { return };
        if self.ended {
            return;
        }
        // Bytes before the first captured one.
        let Some(at) = self.offset(sequence) else {
            return;
        };
        if fin {
            self.end = Some(at + payload.len() as u64);
        }
        let known = usize::try_from(next.saturating_sub(at)).unwrap_or(usize::MAX).min(payload.len());
        let fresh = &payload[known..];
        let at = at + known as u64;
        if !fresh.is_empty() {
            if at == next {
                self.deliver(fresh, deliver);
                self.drain(deliver);
            } else {
                self.keep(at, fresh, budget, deliver);
            }
        }
        self.check_end(deliver);
    }

    /// Handles an acknowledgment: the receiver has received everything before it.
    pub(crate) fn handle_acknowledgment(&mut self, acknowledgment: u32, deliver: &mut dyn FnMut(Run<'_>)) {
        let Some(at) = self.offset(acknowledgment) else { return };
        self.acknowledged = self.acknowledged.max(at);
        let Some(first) = self.pending.keys().next().copied() else { return };
        if self.acknowledged >= first {
            self.waited += 1;
            if self.waited > REORDER_PACKETS_MAX {
                self.give_up(deliver);
            }
        }
    }

    /// Handles the end of the connection or the capture: delivers all pending segments and the gaps between them.
    pub(crate) fn finish(&mut self, deliver: &mut dyn FnMut(Run<'_>)) {
        while !self.pending.is_empty() {
            self.give_up(deliver);
        }
        if let (Some(end), Some((next, _))) = (self.end, self.next)
            && end > next
            && !self.ended
        {
            self.gap(end - next, deliver);
        }
        self.check_end(deliver);
    }

    fn deliver(&mut self, bytes: &[u8], deliver: &mut dyn FnMut(Run<'_>)) {
        deliver(Run::Bytes(bytes));
        self.advance(bytes.len() as u64);
        self.waited = 0;
    }

    fn advance(&mut self, len: u64) {
        if let Some((offset, sequence)) = &mut self.next {
            *offset += len;
            *sequence = sequence.wrapping_add(len as u32);
        }
    }

    fn keep(&mut self, at: u64, bytes: &[u8], budget: &Budget, deliver: &mut dyn FnMut(Run<'_>)) {
        if self.pending.get(&at).is_some_and(|pending| pending.bytes.len() >= bytes.len()) {
            return;
        }
        let reservation = loop {
            let has_room = self.pending_len + bytes.len() <= PENDING_LEN_MAX
                && self.pending.len() < PENDING_SEGMENTS_MAX;
            if let Some(reservation) = budget.reserve(bytes.len()).filter(|_| has_room) {
                break reservation;
            }
            // No more can be held: the first gap counts as lost.
            if self.pending.keys().next().is_some_and(|&first| first <= at) {
                self.give_up(deliver);
            }
            let Some((next, _)) = self.next else { return };
            let is_first = self.pending.keys().next().is_none_or(|&first| first > at);
            if at <= next || is_first {
                if at > next {
                    self.gap(at - next, deliver);
                }
                // The abandoned range may extend into this segment.
                let known = usize::try_from(next.saturating_sub(at)).unwrap_or(usize::MAX).min(bytes.len());
                self.deliver(&bytes[known..], deliver);
                self.drain(deliver);
                return;
            }
        };
        self.pending_len += bytes.len();
        let pending = Pending { bytes: bytes.to_vec(), _reservation: reservation };
        if let Some(old) = self.pending.insert(at, pending) {
            self.pending_len -= old.bytes.len();
        }
    }

    /// Declares the first gap lost.
    fn give_up(&mut self, deliver: &mut dyn FnMut(Run<'_>)) {
        let (Some(&first), Some((next, _))) = (self.pending.keys().next(), self.next) else { return };
        if first > next {
            self.gap(first - next, deliver);
        }
        self.drain(deliver);
    }

    fn gap(&mut self, len: u64, deliver: &mut dyn FnMut(Run<'_>)) {
        deliver(Run::Gap(len));
        self.advance(len);
        self.waited = 0;
    }

    /// Delivers the pending segments that begin at the next byte.
    fn drain(&mut self, deliver: &mut dyn FnMut(Run<'_>)) {
        while let Some((next, _)) = self.next
            && let Some(first) = self.pending.first_entry()
            && *first.key() <= next
        {
            let at = *first.key();
            let pending = first.remove();
            self.pending_len -= pending.bytes.len();
            let known = usize::try_from(next - at).unwrap_or(usize::MAX).min(pending.bytes.len());
            if known < pending.bytes.len() {
                self.deliver(&pending.bytes[known..], deliver);
            }
        }
    }

    fn check_end(&mut self, deliver: &mut dyn FnMut(Run<'_>)) {
        if let (Some(end), Some((next, _))) = (self.end, self.next)
            && end <= next
            && !self.ended
        {
            self.ended = true;
            deliver(Run::End);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wireloom_testing::Rng;

    /// The delivered stream: its bytes, `.` for each missing one, `$` for the end.
    #[derive(Default)]
    struct Delivered(Vec<u8>);

    impl Delivered {
        fn take(&mut self, run: Run<'_>) {
            match run {
                Run::Bytes(bytes) => self.0.extend_from_slice(bytes),
                Run::Gap(len) => self.0.extend(std::iter::repeat_n(b'.', len as usize)),
                Run::End => self.0.push(b'$'),
            }
        }
    }

    fn run(segments: &[(u32, &[u8], bool)]) -> String {
        let (mut half, mut out, budget) = (HalfStream::default(), Delivered::default(), Budget::default());
        half.handle_syn(u32::MAX - 2);
        for &(at, payload, fin) in segments {
            let sequence = (u32::MAX - 1).wrapping_add(at);
            half.handle_segment(sequence, payload, fin, &budget, &mut |run| out.take(run));
        }
        half.finish(&mut |run| out.take(run));
        String::from_utf8(out.0).unwrap()
    }

    #[test]
    fn orders_segments_across_the_wrap_of_sequence_numbers() {
        assert_eq!(run(&[(0, b"ab", false), (2, b"cd", false), (4, b"", true)]), "abcd$");
        assert_eq!(run(&[(2, b"cd", true), (0, b"ab", false)]), "abcd$");
        assert_eq!(run(&[(4, b"ef", false), (2, b"cd", false), (0, b"ab", false)]), "abcdef");
    }

    #[test]
    fn drops_retransmissions_and_overlaps() {
        assert_eq!(run(&[(0, b"abc", false), (0, b"abc", false), (1, b"bcde", false)]), "abcde");
        assert_eq!(run(&[(2, b"cdef", false), (0, b"abcd", false)]), "abcdef");
        assert_eq!(run(&[(0, b"ab", true), (0, b"ab", true)]), "ab$");
    }

    #[test]
    fn marks_missing_bytes() {
        assert_eq!(run(&[(0, b"ab", false), (5, b"fg", false)]), "ab...fg");
        assert_eq!(run(&[(0, b"ab", false), (5, b"", true)]), "ab...$");
    }

    #[test]
    fn missing_bytes_that_were_acknowledged_are_given_up_after_some_packets() {
        let (mut half, mut out, budget) = (HalfStream::default(), Delivered::default(), Budget::default());
        half.handle_syn(0);
        half.handle_segment(1, b"ab", false, &budget, &mut |run| out.take(run));
        half.handle_segment(6, b"f", false, &budget, &mut |run| out.take(run));
        for _ in 0..=REORDER_PACKETS_MAX {
            assert_eq!(out.0, b"ab");
            half.handle_acknowledgment(7, &mut |run| out.take(run));
        }
        assert_eq!(out.0, b"ab...f");
    }

    #[test]
    fn holds_a_bounded_number_of_bytes() {
        let (mut half, budget) = (HalfStream::default(), Budget::default());
        half.handle_syn(0);
        let mut delivered = 0;
        for i in 1..100u32 {
            half.handle_segment(i * 70_000, &[0; 65_000], false, &budget, &mut |run| {
                if let Run::Bytes(bytes) = run {
                    delivered += bytes.len();
                }
            });
            assert!(half.pending_len <= PENDING_LEN_MAX);
        }
        half.finish(&mut |run| {
            if let Run::Bytes(bytes) = run {
                delivered += bytes.len();
            }
        });
        assert_eq!(delivered, 99 * 65_000);
    }

    // Every captured segment is delivered, even if the gaps before it are abandoned for it.
    #[test]
    fn segments_that_cannot_be_held_are_delivered() {
        for (segments, expected) in [
            // The last one begins within, or before, one that is held.
            ([(5, &b"fghij"[..]), (8, b"ijkl")], ".....fghijkl"),
            ([(5, b"fghij"), (3, b"def")], "...defghij"),
            ([(5, b"fg"), (9, b"j")], ".....fg..j"),
        ] {
            let (mut half, mut out, budget) =
                (HalfStream::default(), Delivered::default(), Budget::default());
            half.handle_syn(0);
            let [(first, held), (last, refused)] = segments;
            half.handle_segment(1 + first, held, false, &budget, &mut |run| out.take(run));
            let mut all = Vec::new();
            while let Some(reservation) = budget.reserve(1 << 20).or_else(|| budget.reserve(1)) {
                all.push(reservation);
            }
            half.handle_segment(1 + last, refused, false, &budget, &mut |run| out.take(run));
            half.finish(&mut |run| out.take(run));
            assert_eq!(String::from_utf8(out.0).unwrap(), expected);
        }
    }

    #[test]
    fn a_segment_before_many_that_are_held_is_delivered() {
        let (mut half, mut out, budget) = (HalfStream::default(), Delivered::default(), Budget::default());
        half.handle_syn(0);
        let held = vec![b'x'; PENDING_LEN_MAX];
        half.handle_segment(11, &held, false, &budget, &mut |run| out.take(run));
        half.handle_segment(4, b"abc", false, &budget, &mut |run| out.take(run));
        assert_eq!(out.0, b"...abc");
        half.finish(&mut |run| out.take(run));
        assert!(out.0.starts_with(b"...abc....x") && out.0.len() == 10 + PENDING_LEN_MAX);
    }

    #[test]
    fn random_orders_give_the_same_stream() {
        for seed in 0..200 {
            let mut rng = Rng::with_seed(seed);
            let text: Vec<u8> = (0..200).map(|_| rng.u8(b'a'..=b'z')).collect();
            let mut segments = Vec::new();
            let mut at = 0;
            while at < text.len() {
                let len = rng.usize(1..20).min(text.len() - at);
                segments.push((at, len));
                if rng.bool() {
                    segments.push((at.saturating_sub(rng.usize(0..5)), len));
                }
                at += len;
            }
            rng.shuffle(&mut segments);
            let table: Vec<(u32, &[u8], bool)> =
                segments.iter().map(|&(at, len)| (at as u32, &text[at..at + len], false)).collect();
            assert_eq!(run(&table).as_bytes(), text, "seed {seed}");
        }
    }
}
