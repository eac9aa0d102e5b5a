//! A bounded memory of closed streams, which distinguishes late frames from errors.
//!
//! Two rings of identifiers. A frame for a stream that is neither open nor idle may be late (this side reset the
//! stream, RFC 9113 §5.4.2), wrong (the peer had ended or reset it, §5.1 "closed"), or for a stream that was skipped and
//! closed thereby (§5.1.1). Which it is depends on how the stream went, and that is forgotten after a while. Whether a late
//! frame is an honest one depends on when this side reset the stream, which is kept as well.

use alloc::vec::Vec;

use crate::frame::StreamId;

/// How a stream was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closure {
    /// Both sides sent END_STREAM.
    Finished,
    /// This side sent RST_STREAM: frames that were under way are ignored.
    ResetHere,
    /// The peer sent RST_STREAM.
    ResetByPeer,
}

const FINISHED_MAX: usize = 32;
const BY_PEER: u32 = 1 << 31;

/// A stream that was reset.
#[derive(Clone, Copy)]
struct Reset {
    /// Its identifier, `BY_PEER` or not.
    id: u32,
    /// When, in milliseconds of the connection's clock (wrapping).
    at_ms: u32,
}

pub(crate) struct Recent {
    /// Streams that both sides ended, the oldest overwritten; [`StreamId::CONNECTION`] is none.
    finished: [StreamId; FINISHED_MAX],
    /// How many have ended; the ring begins anew after `FINISHED_MAX`.
    finished_at: usize,
    /// `resets.len() <= resets_max`, allocated with the first.
    resets: Vec<Reset>,
    resets_at: usize,
    resets_max: usize,
}

impl Recent {
    /// Remembers at most `resets_max` resets.
    pub(crate) const fn new(resets_max: usize) -> Self {
        Self {
            finished: [StreamId::CONNECTION; FINISHED_MAX],
            finished_at: 0,
            resets: Vec::new(),
            resets_at: 0,
            resets_max,
        }
    }

    /// Both sides sent END_STREAM.
    #[inline]
    pub(crate) fn finished(&mut self, id: StreamId) {
        self.finished[self.finished_at % FINISHED_MAX] = id;
        self.finished_at = self.finished_at.wrapping_add(1);
    }

    /// One side reset the stream.
    pub(crate) fn reset(&mut self, id: StreamId, by_peer: bool, now_ms: u32) {
        let by_peer = if by_peer { BY_PEER } else { 0 };
        self.remember_reset(Reset { id: id.get() | by_peer, at_ms: now_ms });
    }

    #[inline]
    fn remember_reset(&mut self, entry: Reset) {
        if self.resets.len() < self.resets_max {
            self.resets.push(entry);
        } else if let Some(oldest) = self.resets.get_mut(self.resets_at) {
            *oldest = entry;
            self.resets_at = (self.resets_at + 1) % self.resets_max;
        }
    }

    /// How a stream ended, if that is not long ago. O(entries), which is a constant.
    pub(crate) fn find(&self, id: StreamId) -> Option<Closure> {
        if let Some(entry) = self.resets.iter().find(|entry| entry.id & !BY_PEER == id.get()) {
            return Some(if entry.id & BY_PEER != 0 { Closure::ResetByPeer } else { Closure::ResetHere });
        }
        self.finished.contains(&id).then_some(Closure::Finished)
    }

    /// Whether this side reset the stream no longer than `grace_ms` ago: the peer may not have known when it sent a frame.
    pub(crate) fn was_just_reset(&self, id: StreamId, now_ms: u32, grace_ms: u32) -> bool {
        let entry = self.resets.iter().find(|entry| entry.id == id.get());
        entry.is_some_and(|entry| now_ms.wrapping_sub(entry.at_ms) <= grace_ms)
    }

    /// RST_STREAM came for a stream that is gone: whether this side had reset it, which is asked once a stream.
    pub(crate) fn crossed_reset(&mut self, id: StreamId) -> bool {
        match self.resets.iter_mut().find(|entry| entry.id == id.get()) {
            Some(entry) => {
                entry.id |= BY_PEER;
                true
            }
            None => false,
        }
    }

    /// Gives memory back; what was reset is forgotten.
    pub(crate) fn shrink(&mut self) {
        self.resets = Vec::new();
        self.resets_at = 0;
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
    fn remembers_how_a_stream_ended_and_forgets_the_oldest_first() {
        let mut recent = Recent::new(RESETS_MAX);
        assert_eq!(recent.find(id(1)), None);
        recent.finished(id(1));
        recent.reset(id(3), false, 7);
        recent.reset(id(5), true, 7);
        assert_eq!(recent.find(id(1)), Some(Closure::Finished));
        assert_eq!(recent.find(id(3)), Some(Closure::ResetHere));
        assert_eq!(recent.find(id(5)), Some(Closure::ResetByPeer));
        assert!(recent.crossed_reset(id(3)) && !recent.crossed_reset(id(3)) && !recent.crossed_reset(id(5)));
        assert_eq!(recent.find(id(3)), Some(Closure::ResetByPeer));
        for n in 0..RESETS_MAX as u32 - 2 {
            recent.reset(id(101 + 2 * n), false, 7);
        }
        assert_eq!((recent.find(id(3)), recent.resets.len()), (Some(Closure::ResetByPeer), RESETS_MAX));
        recent.reset(id(1001), false, 7);
        assert_eq!((recent.find(id(3)), recent.resets.len()), (None, RESETS_MAX));
        assert_eq!(recent.find(id(5)), Some(Closure::ResetByPeer));
        for n in 0..FINISHED_MAX as u32 {
            assert_eq!(recent.find(id(1)), Some(Closure::Finished));
            recent.finished(id(2001 + 2 * n));
        }
        assert_eq!(recent.find(id(1)), None);
    }

    #[test]
    fn what_was_reset_here_is_fresh_for_a_while() {
        let mut recent = Recent::new(RESETS_MAX);
        let at_ms = u32::MAX - 10;
        recent.reset(id(3), false, at_ms);
        recent.reset(id(5), true, at_ms);
        recent.finished(id(7));
        for (later, fresh) in [(0, true), (99, true), (100, true), (101, false)] {
            assert_eq!(
                recent.was_just_reset(id(3), at_ms.wrapping_add(later), 100),
                fresh,
                "{later} ms later"
            );
        }
        assert!(!recent.was_just_reset(id(5), at_ms, 100) && !recent.was_just_reset(id(7), at_ms, 100));
        assert!(recent.crossed_reset(id(3)));
        assert!(!recent.was_just_reset(id(3), at_ms, 100), "the peer knows");
    }

    #[test]
    fn what_was_reset_is_forgotten_for_memory() {
        let mut recent = Recent::new(3);
        for n in 0..5 {
            recent.reset(id(2 * n + 1), false, 7);
        }
        recent.finished(id(11));
        recent.shrink();
        assert_eq!((recent.resets.capacity(), recent.find(id(9))), (0, None));
        assert_eq!(recent.find(id(11)), Some(Closure::Finished));
        recent.reset(id(13), false, 7);
        assert_eq!(recent.find(id(13)), Some(Closure::ResetHere));
    }

    #[test]
    fn resets_are_forgotten_in_their_order() {
        let mut recent = Recent::new(3);
        for n in 0..20 {
            recent.reset(id(2 * n + 1), false, 7);
            for back in 0..5.min(n + 1) {
                let known = recent.find(id(2 * (n - back) + 1)).is_some();
                assert_eq!(known, back < 3, "{back} before {n}");
            }
        }
    }
}
