//! Streams without a record: why they have none, and what a frame on them means (RFC 9113 §5.1, §5.1.1, §5.4.2, §6.8).
//!
//! [`Closed::answer`] is the only rule for frames on such streams. Frames that may have been in flight when this side reset the stream
//! are ignored. How many of them there can be follows from what the peer was granted, not from a time: DATA may fill the window that
//! the stream had left, however late it is read. Fields are counted by their size, because they are decoded.
//!
//! | frame | idle | reset by this side | ignored | reset by the peer | ended | skipped |
//! |---|---|---|---|---|---|---|
//! | DATA | error | ignored within its window, then counted | counted by size | stream error | error | stream error |
//! | HEADERS | error | counted by size | counted by size | stream error | error | error |
//! | RST_STREAM | error | ignored once, then counted | counted | counted | counted | counted |
//! | WINDOW_UPDATE | error | counted as tiny | counted as tiny | counted | counted | counted |
//! | PUSH_PROMISE | error | ignored | ignored | error | error | error |

use alloc::collections::{BTreeMap, VecDeque};

use crate::error::Violation;
use crate::frame::StreamId;
use crate::limits::Limits;
use crate::rate_limit::Charge;

/// Why a stream has no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    /// Neither side has used it.
    Idle,
    /// This side sent RST_STREAM or an answer of the connection itself.
    LocalReset(LocalReset),
    /// A stream of this side whose end is forgotten, or one of the peer above the last one of this side's GOAWAY, or any up to one whose reset
    /// is forgotten. RFC 9113 §5.1 (closed): any frame may have been in flight.
    Ignored,
    /// The peer sent RST_STREAM.
    PeerReset,
    /// Both sides sent END_STREAM.
    Ended,
    /// The peer, which opens it, passed it over (RFC 9113 §5.1.1), or its end is forgotten.
    Skipped,
}

/// A stream that this side has reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocalReset {
    /// The receive window that the stream had left, in bytes: as much DATA may still arrive.
    pub(crate) window: u32,
    /// Tunnels may have small DATA frames.
    pub(crate) is_tunnel: bool,
}

/// A frame on a stream without a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LateFrame {
    /// DATA with its flow-controlled length in bytes.
    Data {
        len: u32,
        end_stream: bool,
    },
    /// HEADERS with the size of its fields in bytes.
    Headers {
        list_size: usize,
    },
    RstStream,
    WindowUpdate,
    /// PUSH_PROMISE with this stream as its parent.
    PushPromise,
}

/// The reaction to a frame on a stream without a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Ignore,
    /// The frame is ignored and counts towards a rate limit.
    Charge(Charge),
    /// The frame is ignored and counts as DATA of this length in tiny frames.
    ChargeLen(usize),
    /// A stream error or a connection error: see [`Violation::answer`].
    Error(Violation),
}

impl Closed {
    /// The table at the top of this file.
    pub(crate) fn answer(self, frame: LateFrame) -> Answer {
        use LateFrame as F;
        match (self, frame) {
            // RFC 9113 §5.1 (idle), §6.4, §6.6, §6.9: a connection error, PROTOCOL_ERROR.
            (Self::Idle, _) => Answer::Error(Violation::FrameOnIdleStream),
            // RFC 9113 §5.1, §5.4.2: frames that were in flight when RST_STREAM was sent.
            (Self::LocalReset(reset), F::Data { len, end_stream }) => reset.answer_data(len, end_stream),
            // CVE-2025-8671: their fields are decoded, as those of a stream that has to be reset are.
            (Self::LocalReset(_) | Self::Ignored, F::Headers { list_size }) => Answer::ChargeLen(list_size),
            (Self::Ignored, F::Data { len, .. }) => Answer::ChargeLen(len as usize),
            // CVE-2019-9511: it costs work, however many of them are in flight.
            (Self::LocalReset(_) | Self::Ignored, F::WindowUpdate) => Answer::Charge(Charge::TinyData),
            // Both sides reset the stream at the same time.
            (Self::LocalReset(_), F::RstStream) => Answer::Ignore,
            // RFC 9113 §6.6: it reserves the promised stream nevertheless.
            (Self::LocalReset(_) | Self::Ignored, F::PushPromise) => Answer::Ignore,
            // RFC 9113 §5.1 (closed): after RST_STREAM a stream error, STREAM_CLOSED.
            (Self::PeerReset, F::Data { .. } | F::Headers { .. }) => {
                Answer::Error(Violation::FrameAfterReset)
            }
            // RFC 9113 §5.1 (closed): after END_STREAM a connection error, STREAM_CLOSED.
            (Self::Ended, F::Data { .. } | F::Headers { .. }) => {
                Answer::Error(Violation::FrameOnClosedStream)
            }
            // RFC 9113 §5.1.1: a new stream below one that has been used.
            (Self::Skipped, F::Headers { .. }) => Answer::Error(Violation::StreamIdNotIncreasing),
            // If its end is forgotten, the frame may still have been in flight, so this is only a stream error.
            (Self::Skipped, F::Data { .. }) => Answer::Error(Violation::FrameAfterReset),
            // RFC 9113 §5.1 (closed): they may have been in flight. Some clients reset a stream that has ended.
            (_, F::RstStream) => Answer::Charge(Charge::LateReset),
            (_, F::WindowUpdate) => Answer::Charge(Charge::WindowUpdate),
            // RFC 9113 §6.6: only on streams that the client opened and the server has not ended.
            (_, F::PushPromise) => Answer::Error(Violation::PushOnClosedStream),
        }
    }
}

impl LocalReset {
    fn answer_data(self, len: u32, end_stream: bool) -> Answer {
        if len == 0 {
            // CVE-2019-9518. END_STREAM, which ends nothing here, may be repeated.
            return Answer::Charge(if end_stream { Charge::TinyData } else { Charge::EmptyFrame });
        }
        if len > self.window {
            // RFC 9113 §6.9.1: the peer has exceeded the window.
            return Answer::Charge(Charge::UnknownFrame);
        }
        // CVE-2019-9511: as on open streams.
        let is_counted = len < Limits::TINY_DATA_LEN as u32 && !self.is_tunnel;
        if is_counted { Answer::Charge(Charge::TinyData) } else { Answer::Ignore }
    }
}

const FINISHED_MAX: usize = 32;

/// How a stream was reset.
#[derive(Clone, Copy)]
enum Reset {
    Local(LocalReset),
    ByPeer,
}

/// Remembers how the last closed streams were closed.
pub(crate) struct ClosedStreams {
    /// A ring of streams that both sides ended; [`StreamId::CONNECTION`] marks an empty entry.
    finished: [StreamId; FINISHED_MAX],
    /// The number of streams that both sides ended (wrapping), which is the position in the ring.
    finished_at: usize,
    /// The streams that were reset: `resets.len() <= resets_max`.
    resets: BTreeMap<StreamId, Reset>,
    /// The keys of `resets`, the oldest first.
    reset_order: VecDeque<StreamId>,
    resets_max: usize,
    /// The highest stream that this side has reset and that is not in `resets` any more.
    forgotten: StreamId,
}

impl ClosedStreams {
    /// Remembers at most `resets_max` resets.
    pub(crate) const fn new(resets_max: usize) -> Self {
        Self {
            finished: [StreamId::CONNECTION; FINISHED_MAX],
            finished_at: 0,
            resets: BTreeMap::new(),
            reset_order: VecDeque::new(),
            resets_max,
            forgotten: StreamId::CONNECTION,
        }
    }

    /// Both sides sent END_STREAM.
    pub(crate) fn add_finished(&mut self, id: StreamId) {
        self.finished[self.finished_at % FINISHED_MAX] = id;
        self.finished_at = self.finished_at.wrapping_add(1);
    }

    /// This side reset the stream. A later reset of the same stream replaces an earlier one.
    pub(crate) fn add_local_reset(&mut self, id: StreamId, reset: LocalReset) {
        self.add(id, Reset::Local(reset));
    }

    /// The peer reset the stream.
    pub(crate) fn add_peer_reset(&mut self, id: StreamId) {
        self.add(id, Reset::ByPeer);
    }

    fn add(&mut self, id: StreamId, reset: Reset) {
        if self.resets.insert(id, reset).is_some() {
            return;
        }
        self.reset_order.push_back(id);
        if self.reset_order.len() > self.resets_max
            && let Some(oldest) = self.reset_order.pop_front()
            && let Some(Reset::Local(_)) = self.resets.remove(&oldest)
        {
            self.forgotten = self.forgotten.max(oldest);
        }
    }

    /// Why a stream was closed. If that is not remembered, [`Closed::Ignored`] where it may be a reset of this side, else
    /// [`Closed::Skipped`].
    pub(crate) fn find(&self, id: StreamId) -> Closed {
        match self.resets.get(&id) {
            Some(Reset::ByPeer) => Closed::PeerReset,
            Some(&Reset::Local(reset)) => Closed::LocalReset(reset),
            None if self.finished.contains(&id) => Closed::Ended,
            None if id <= self.forgotten => Closed::Ignored,
            None => Closed::Skipped,
        }
    }

    /// A frame on a closed stream was ignored: it uses up what may be in flight.
    pub(crate) fn ignored(&mut self, id: StreamId, frame: LateFrame) {
        let Some(reset) = self.resets.get_mut(&id) else { return };
        match (&mut *reset, frame) {
            // RFC 9113 §5.1: nothing follows RST_STREAM of the peer.
            (Reset::Local(_), LateFrame::RstStream) => *reset = Reset::ByPeer,
            (Reset::Local(local), LateFrame::Data { len, .. }) => {
                local.window = local.window.saturating_sub(len)
            }
            _ => {}
        }
    }

    /// Frees unused memory. Nothing is forgotten: a frame on a stream whose reset is forgotten would be an error of the peer.
    pub(crate) fn shrink(&mut self) {
        self.reset_order.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(id: u32) -> StreamId {
        StreamId::new(id).unwrap()
    }

    const RESETS_MAX: usize = 256;
    const LOCAL: LocalReset = LocalReset { window: 1_000, is_tunnel: false };

    #[test]
    fn every_frame_has_its_answer() {
        use Answer::{Charge as Counted, ChargeLen, Error, Ignore};
        use Charge::{EmptyFrame, LateReset, TinyData, UnknownFrame, WindowUpdate};
        use Violation::{
            FrameAfterReset, FrameOnClosedStream, FrameOnIdleStream, PushOnClosedStream,
            StreamIdNotIncreasing,
        };
        let frames = [
            LateFrame::Data { len: 64, end_stream: false },
            LateFrame::Headers { list_size: 500 },
            LateFrame::RstStream,
            LateFrame::WindowUpdate,
            LateFrame::PushPromise,
        ];
        let [counted, push] = [[Counted(LateReset), Counted(WindowUpdate)], [Error(PushOnClosedStream); 2]];
        let table = [
            (Closed::Idle, [Error(FrameOnIdleStream); 5]),
            (Closed::LocalReset(LOCAL), [Ignore, ChargeLen(500), Ignore, Counted(TinyData), Ignore]),
            (Closed::Ignored, [ChargeLen(64), ChargeLen(500), counted[0], Counted(TinyData), Ignore]),
            (
                Closed::PeerReset,
                [Error(FrameAfterReset), Error(FrameAfterReset), counted[0], counted[1], push[0]],
            ),
            (
                Closed::Ended,
                [Error(FrameOnClosedStream), Error(FrameOnClosedStream), counted[0], counted[1], push[0]],
            ),
            (
                Closed::Skipped,
                [Error(FrameAfterReset), Error(StreamIdNotIncreasing), counted[0], counted[1], push[0]],
            ),
        ];
        for (closed, answers) in table {
            for (frame, answer) in frames.into_iter().zip(answers) {
                assert_eq!(closed.answer(frame), answer, "{frame:?} on {closed:?}");
            }
        }
        // DATA on a stream that this side has reset: length, END_STREAM, on a tunnel.
        for (len, end_stream, is_tunnel, answer) in [
            (0, false, false, Counted(EmptyFrame)),
            (0, true, true, Counted(TinyData)),
            (63, false, false, Counted(TinyData)),
            (63, false, true, Ignore),
            (64, true, false, Ignore),
            (1_000, false, false, Ignore),
            (1_001, false, false, Counted(UnknownFrame)),
        ] {
            let closed = Closed::LocalReset(LocalReset { is_tunnel, ..LOCAL });
            assert_eq!(closed.answer(LateFrame::Data { len, end_stream }), answer, "{len} {end_stream}");
        }
    }

    #[test]
    fn late_frames_use_up_what_may_be_in_flight() {
        let mut closed = ClosedStreams::new(RESETS_MAX);
        closed.add_local_reset(id(3), LOCAL);
        let frame = LateFrame::Data { len: 400, end_stream: false };
        for left in [1_000, 600, 200, 0] {
            assert_eq!(closed.find(id(3)), Closed::LocalReset(LocalReset { window: left, ..LOCAL }));
            closed.ignored(id(3), frame);
        }
        closed.ignored(id(5), frame);
        assert_eq!(closed.find(id(5)), Closed::Skipped);
    }

    #[test]
    fn remembers_why_a_stream_was_closed_and_forgets_the_oldest_first() {
        let mut closed = ClosedStreams::new(RESETS_MAX);
        assert_eq!(closed.find(id(1)), Closed::Skipped);
        closed.add_finished(id(1));
        closed.add_local_reset(id(3), LOCAL);
        closed.add_peer_reset(id(5));
        assert_eq!(closed.find(id(1)), Closed::Ended);
        assert_eq!(closed.find(id(3)), Closed::LocalReset(LOCAL));
        assert_eq!(closed.find(id(5)), Closed::PeerReset);
        closed.ignored(id(3), LateFrame::RstStream);
        assert_eq!(closed.find(id(3)), Closed::PeerReset);
        for n in 0..RESETS_MAX as u32 - 2 {
            closed.add_local_reset(id(101 + 2 * n), LOCAL);
        }
        assert_eq!((closed.find(id(3)), closed.resets.len()), (Closed::PeerReset, RESETS_MAX));
        closed.add_local_reset(id(1001), LOCAL);
        assert_eq!((closed.find(id(3)), closed.resets.len()), (Closed::Skipped, RESETS_MAX));
        assert_eq!(closed.find(id(5)), Closed::PeerReset);
        for n in 0..FINISHED_MAX as u32 {
            assert_eq!(closed.find(id(1)), Closed::Ended);
            closed.add_finished(id(2001 + 2 * n));
        }
        assert_eq!(closed.find(id(1)), Closed::Skipped);
    }

    #[test]
    fn shrinking_forgets_nothing() {
        let mut closed = ClosedStreams::new(3);
        for n in 0..5 {
            closed.add_local_reset(id(2 * n + 1), LOCAL);
        }
        closed.add_finished(id(11));
        let capacity = closed.reset_order.capacity();
        closed.shrink();
        assert!(closed.reset_order.capacity() < capacity, "the queue had grown to {capacity}");
        assert_eq!(closed.find(id(3)), Closed::Ignored);
        for n in 2..5 {
            assert_eq!(closed.find(id(2 * n + 1)), Closed::LocalReset(LOCAL));
        }
        assert_eq!(closed.find(id(11)), Closed::Ended);
    }

    #[test]
    fn streams_up_to_one_whose_reset_is_forgotten_are_ignored() {
        let find = |resets_max: usize, resets: &[u32]| {
            let mut closed = ClosedStreams::new(resets_max);
            resets.iter().for_each(|&stream| closed.add_local_reset(id(stream), LOCAL));
            [1, 3, 5, 7, 9].map(|stream| closed.find(id(stream)))
        };
        let (known, ignored, skipped) = (Closed::LocalReset(LOCAL), Closed::Ignored, Closed::Skipped);
        assert_eq!(find(0, &[5]), [ignored, ignored, ignored, skipped, skipped]);
        assert_eq!(find(2, &[5, 7]), [skipped, skipped, known, known, skipped]);
        assert_eq!(find(2, &[5, 3, 9]), [ignored, known, ignored, skipped, known]);
        assert_eq!(find(2, &[5, 3, 9, 7]), [ignored, ignored, ignored, known, known]);
        // The peer resets what it does not use any more.
        let mut closed = ClosedStreams::new(0);
        closed.add_peer_reset(id(5));
        assert_eq!([3, 5].map(|stream| closed.find(id(stream))), [skipped; 2]);
    }

    #[test]
    fn the_last_reset_of_a_stream_counts() {
        let mut closed = ClosedStreams::new(2);
        closed.add_peer_reset(id(1));
        closed.add_peer_reset(id(3));
        // This side answers a frame that came after RST_STREAM.
        closed.add_local_reset(id(1), LOCAL);
        assert_eq!(closed.find(id(1)), Closed::LocalReset(LOCAL));
        // It takes the place of the first one.
        closed.add_local_reset(id(5), LOCAL);
        let expected = [Closed::Ignored, Closed::PeerReset, Closed::LocalReset(LOCAL)];
        assert_eq!([1, 3, 5].map(|n| closed.find(id(n))), expected);
    }

    #[test]
    fn resets_are_forgotten_in_their_order() {
        let mut closed = ClosedStreams::new(3);
        for n in 0..20 {
            closed.add_local_reset(id(2 * n + 1), LOCAL);
            for back in 0..5.min(n + 1) {
                let known = closed.find(id(2 * (n - back) + 1)) != Closed::Ignored;
                assert_eq!(known, back < 3, "{back} before {n}");
            }
        }
    }
}
