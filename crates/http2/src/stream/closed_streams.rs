//! [`ClosedStreams`] remembers how the last closed streams were closed.
//!
//! A frame on a closed stream is legal if this side reset the stream and the frame was in flight (RFC 9113 §5.4.2). It is an
//! error if the peer ended or reset the stream (§5.1, "closed"), or closed it by skipping its identifier (§5.1.1). The time of a
//! reset is kept as well, because a frame can be in flight only for a while.

use alloc::collections::{BTreeMap, VecDeque};

use crate::frame::StreamId;

/// Why a stream was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseCause {
    /// Both sides sent END_STREAM.
    EndStream,
    /// This side sent RST_STREAM: frames that were in flight are ignored.
    LocalReset,
    /// The peer sent RST_STREAM.
    PeerReset,
}

const FINISHED_MAX: usize = 32;

/// How a stream was reset.
#[derive(Clone, Copy)]
struct Reset {
    by_peer: bool,
    /// The time of the reset, in milliseconds of the connection's clock (wrapping).
    at_ms: u32,
}

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
        }
    }

    /// Both sides sent END_STREAM.
    #[inline]
    pub(crate) fn add_finished(&mut self, id: StreamId) {
        self.finished[self.finished_at % FINISHED_MAX] = id;
        self.finished_at = self.finished_at.wrapping_add(1);
    }

    /// One side reset the stream. A later reset of the same stream replaces an earlier one.
    pub(crate) fn add_reset(&mut self, id: StreamId, by_peer: bool, now_ms: u32) {
        if self.resets_max == 0 {
            return;
        }
        if self.resets.insert(id, Reset { by_peer, at_ms: now_ms }).is_some() {
            return;
        }
        if self.reset_order.len() == self.resets_max
            && let Some(oldest) = self.reset_order.pop_front()
        {
            self.resets.remove(&oldest);
        }
        self.reset_order.push_back(id);
    }

    /// Why a stream was closed, if it is remembered.
    pub(crate) fn find(&self, id: StreamId) -> Option<CloseCause> {
        match self.resets.get(&id) {
            Some(Reset { by_peer: true, .. }) => Some(CloseCause::PeerReset),
            Some(_) => Some(CloseCause::LocalReset),
            None => self.finished.contains(&id).then_some(CloseCause::EndStream),
        }
    }

    /// Whether this side reset the stream at most `grace_ms` ago, so that a frame of the peer may have been in flight.
    pub(crate) fn was_just_reset(&self, id: StreamId, now_ms: u32, grace_ms: u32) -> bool {
        let reset = self.resets.get(&id).filter(|reset| !reset.by_peer);
        reset.is_some_and(|reset| now_ms.wrapping_sub(reset.at_ms) <= grace_ms)
    }

    /// Handles RST_STREAM on a closed stream. Returns whether this side had reset it; `true` at most once for each stream.
    pub(crate) fn crossed_reset(&mut self, id: StreamId) -> bool {
        match self.resets.get_mut(&id) {
            Some(reset) => !core::mem::replace(&mut reset.by_peer, true),
            None => false,
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

    #[test]
    fn remembers_why_a_stream_was_closed_and_forgets_the_oldest_first() {
        let mut closed = ClosedStreams::new(RESETS_MAX);
        assert_eq!(closed.find(id(1)), None);
        closed.add_finished(id(1));
        closed.add_reset(id(3), false, 7);
        closed.add_reset(id(5), true, 7);
        assert_eq!(closed.find(id(1)), Some(CloseCause::EndStream));
        assert_eq!(closed.find(id(3)), Some(CloseCause::LocalReset));
        assert_eq!(closed.find(id(5)), Some(CloseCause::PeerReset));
        assert!(closed.crossed_reset(id(3)) && !closed.crossed_reset(id(3)) && !closed.crossed_reset(id(5)));
        assert_eq!(closed.find(id(3)), Some(CloseCause::PeerReset));
        for n in 0..RESETS_MAX as u32 - 2 {
            closed.add_reset(id(101 + 2 * n), false, 7);
        }
        assert_eq!((closed.find(id(3)), closed.resets.len()), (Some(CloseCause::PeerReset), RESETS_MAX));
        closed.add_reset(id(1001), false, 7);
        assert_eq!((closed.find(id(3)), closed.resets.len()), (None, RESETS_MAX));
        assert_eq!(closed.find(id(5)), Some(CloseCause::PeerReset));
        for n in 0..FINISHED_MAX as u32 {
            assert_eq!(closed.find(id(1)), Some(CloseCause::EndStream));
            closed.add_finished(id(2001 + 2 * n));
        }
        assert_eq!(closed.find(id(1)), None);
    }

    #[test]
    fn a_local_reset_is_recent_for_the_grace_time() {
        let mut closed = ClosedStreams::new(RESETS_MAX);
        let at_ms = u32::MAX - 10;
        closed.add_reset(id(3), false, at_ms);
        closed.add_reset(id(5), true, at_ms);
        closed.add_finished(id(7));
        for (later, fresh) in [(0, true), (99, true), (100, true), (101, false)] {
            assert_eq!(
                closed.was_just_reset(id(3), at_ms.wrapping_add(later), 100),
                fresh,
                "{later} ms later"
            );
        }
        assert!(!closed.was_just_reset(id(5), at_ms, 100) && !closed.was_just_reset(id(7), at_ms, 100));
        assert!(closed.crossed_reset(id(3)));
        assert!(!closed.was_just_reset(id(3), at_ms, 100), "the peer knows");
    }

    #[test]
    fn shrinking_forgets_nothing() {
        let mut closed = ClosedStreams::new(3);
        for n in 0..5 {
            closed.add_reset(id(2 * n + 1), false, 7);
        }
        closed.add_finished(id(11));
        closed.shrink();
        assert_eq!(closed.find(id(3)), None);
        for n in 2..5 {
            assert_eq!(closed.find(id(2 * n + 1)), Some(CloseCause::LocalReset));
        }
        assert_eq!(closed.find(id(11)), Some(CloseCause::EndStream));
        ClosedStreams::new(0).add_reset(id(1), false, 7);
    }

    #[test]
    fn the_last_reset_of_a_stream_counts() {
        let mut closed = ClosedStreams::new(2);
        closed.add_reset(id(1), true, 7);
        closed.add_reset(id(3), true, 7);
        assert!(!closed.was_just_reset(id(1), 9, 100));
        // This side answers a frame that came after RST_STREAM.
        closed.add_reset(id(1), false, 9);
        assert_eq!(closed.find(id(1)), Some(CloseCause::LocalReset));
        assert!(closed.was_just_reset(id(1), 9, 100));
        // It takes the place of the first one.
        closed.add_reset(id(5), false, 9);
        assert_eq!([1, 3, 5].map(|n| closed.find(id(n)).is_some()), [false, true, true]);
    }

    #[test]
    fn resets_are_forgotten_in_their_order() {
        let mut closed = ClosedStreams::new(3);
        for n in 0..20 {
            closed.add_reset(id(2 * n + 1), false, 7);
            for back in 0..5.min(n + 1) {
                let known = closed.find(id(2 * (n - back) + 1)).is_some();
                assert_eq!(known, back < 3, "{back} before {n}");
            }
        }
    }
}
