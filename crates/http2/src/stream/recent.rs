//! The bounded memory of streams that are gone: late frames are told from errors by it.
//!
//! Owns two rings of identifiers. A frame for a stream that is neither open nor idle may be late (this side reset the
//! stream, RFC 9113 §5.4.2), wrong (the peer had ended or reset it, §5.1 "closed"), or for a stream that was skipped and
//! closed thereby (§5.1.1). Which it is depends on how the stream went, and that is forgotten after a while. Whether a late
//! frame is an honest one depends on when this side reset the stream, which is kept as well.

use alloc::vec::Vec;

/// How a stream that is gone came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
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
    /// Identifiers that ended well, the oldest overwritten; 0 is none.
    finished: [u32; FINISHED_MAX],
    finished_at: usize,
    /// `resets.len() <= resets_max`, allocated with the first.
    resets: Vec<Reset>,
    resets_at: usize,
    resets_max: usize,
}

impl Recent {
    /// Remembers so many resets.
    pub(crate) const fn new(resets_max: usize) -> Self {
        Self { finished: [0; FINISHED_MAX], finished_at: 0, resets: Vec::new(), resets_at: 0, resets_max }
    }

    #[inline]
    pub(crate) fn remember(&mut self, id: u32, ended: Ended, now_ms: u32) {
        match ended {
            Ended::Finished => {
                self.finished[self.finished_at % FINISHED_MAX] = id;
                self.finished_at = (self.finished_at + 1) % FINISHED_MAX;
            }
            Ended::ResetHere => self.remember_reset(Reset { id, at_ms: now_ms }),
            Ended::ResetByPeer => self.remember_reset(Reset { id: id | BY_PEER, at_ms: now_ms }),
        }
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
    pub(crate) fn find(&self, id: u32) -> Option<Ended> {
        if let Some(entry) = self.resets.iter().find(|entry| entry.id & !BY_PEER == id) {
            return Some(if entry.id & BY_PEER != 0 { Ended::ResetByPeer } else { Ended::ResetHere });
        }
        self.finished.contains(&id).then_some(Ended::Finished)
    }

    /// Whether this side reset the stream no longer than `grace_ms` ago: the peer may not have known when it sent a frame.
    pub(crate) fn was_just_reset(&self, id: u32, now_ms: u32, grace_ms: u32) -> bool {
        let entry = self.resets.iter().find(|entry| entry.id == id);
        entry.is_some_and(|entry| now_ms.wrapping_sub(entry.at_ms) <= grace_ms)
    }

    /// RST_STREAM came for a stream that is gone: whether this side had reset it, which is asked once a stream.
    pub(crate) fn crossed_reset(&mut self, id: u32) -> bool {
        match self.resets.iter_mut().find(|entry| entry.id == id) {
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

    const RESETS_MAX: usize = 256;

    #[test]
    fn remembers_how_a_stream_ended_and_forgets_the_oldest_first() {
        let mut recent = Recent::new(RESETS_MAX);
        assert_eq!(recent.find(1), None);
        recent.remember(1, Ended::Finished, 7);
        recent.remember(3, Ended::ResetHere, 7);
        recent.remember(5, Ended::ResetByPeer, 7);
        assert_eq!(recent.find(1), Some(Ended::Finished));
        assert_eq!(recent.find(3), Some(Ended::ResetHere));
        assert_eq!(recent.find(5), Some(Ended::ResetByPeer));
        assert!(recent.crossed_reset(3) && !recent.crossed_reset(3) && !recent.crossed_reset(5));
        assert_eq!(recent.find(3), Some(Ended::ResetByPeer));
        for n in 0..RESETS_MAX as u32 - 2 {
            recent.remember(101 + 2 * n, Ended::ResetHere, 7);
        }
        assert_eq!((recent.find(3), recent.resets.len()), (Some(Ended::ResetByPeer), RESETS_MAX));
        recent.remember(1001, Ended::ResetHere, 7);
        assert_eq!((recent.find(3), recent.resets.len()), (None, RESETS_MAX));
        assert_eq!(recent.find(5), Some(Ended::ResetByPeer));
        for n in 0..FINISHED_MAX as u32 {
            assert_eq!(recent.find(1), Some(Ended::Finished));
            recent.remember(2001 + 2 * n, Ended::Finished, 7);
        }
        assert_eq!(recent.find(1), None);
    }

    #[test]
    fn what_was_reset_here_is_fresh_for_a_while() {
        let mut recent = Recent::new(RESETS_MAX);
        let at_ms = u32::MAX - 10;
        recent.remember(3, Ended::ResetHere, at_ms);
        recent.remember(5, Ended::ResetByPeer, at_ms);
        recent.remember(7, Ended::Finished, at_ms);
        for (later, fresh) in [(0, true), (99, true), (100, true), (101, false)] {
            assert_eq!(recent.was_just_reset(3, at_ms.wrapping_add(later), 100), fresh, "{later} ms later");
        }
        assert!(!recent.was_just_reset(5, at_ms, 100) && !recent.was_just_reset(7, at_ms, 100));
        assert!(recent.crossed_reset(3));
        assert!(!recent.was_just_reset(3, at_ms, 100), "the peer knows");
    }
}
