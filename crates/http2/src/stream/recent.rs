//! The bounded memory of streams that are gone: late frames are told from errors by it.
//!
//! Owns two rings of identifiers. A frame for a stream that is neither open nor idle may be late (this side reset the
//! stream, RFC 9113 §5.4.2), wrong (the peer had ended or reset it, §5.1 "closed"), or for a stream that was skipped and
//! closed thereby (§5.1.1). Which it is depends on how the stream went, and that is forgotten after a while.

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

pub(crate) struct Recent {
    /// Identifiers that ended well, the oldest overwritten; 0 is none.
    finished: [u32; FINISHED_MAX],
    finished_at: usize,
    /// Identifiers that were reset, `BY_PEER` or not: `resets.len() <= resets_max`, allocated with the first.
    resets: Vec<u32>,
    resets_at: usize,
    resets_max: usize,
}

impl Recent {
    /// Remembers so many resets.
    pub(crate) const fn new(resets_max: usize) -> Self {
        Self { finished: [0; FINISHED_MAX], finished_at: 0, resets: Vec::new(), resets_at: 0, resets_max }
    }

    #[inline]
    pub(crate) fn remember(&mut self, id: u32, ended: Ended) {
        match ended {
            Ended::Finished => {
                self.finished[self.finished_at % FINISHED_MAX] = id;
                self.finished_at = (self.finished_at + 1) % FINISHED_MAX;
            }
            Ended::ResetHere => self.remember_reset(id),
            Ended::ResetByPeer => self.remember_reset(id | BY_PEER),
        }
    }

    #[inline]
    fn remember_reset(&mut self, entry: u32) {
        if self.resets.len() < self.resets_max {
            self.resets.push(entry);
        } else if let Some(oldest) = self.resets.get_mut(self.resets_at) {
            *oldest = entry;
            self.resets_at = (self.resets_at + 1) % self.resets_max;
        }
    }

    /// How a stream ended, if that is not long ago. O(entries), which is a constant.
    pub(crate) fn find(&self, id: u32) -> Option<Ended> {
        if let Some(entry) = self.resets.iter().find(|&&entry| entry & !BY_PEER == id) {
            return Some(if entry & BY_PEER != 0 { Ended::ResetByPeer } else { Ended::ResetHere });
        }
        self.finished.contains(&id).then_some(Ended::Finished)
    }

    /// RST_STREAM came for a stream that is gone: whether this side had reset it, which is asked once a stream.
    pub(crate) fn crossed_reset(&mut self, id: u32) -> bool {
        match self.resets.iter_mut().find(|entry| **entry == id) {
            Some(entry) => {
                *entry |= BY_PEER;
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
        recent.remember(1, Ended::Finished);
        recent.remember(3, Ended::ResetHere);
        recent.remember(5, Ended::ResetByPeer);
        assert_eq!(recent.find(1), Some(Ended::Finished));
        assert_eq!(recent.find(3), Some(Ended::ResetHere));
        assert_eq!(recent.find(5), Some(Ended::ResetByPeer));
        assert!(recent.crossed_reset(3) && !recent.crossed_reset(3) && !recent.crossed_reset(5));
        assert_eq!(recent.find(3), Some(Ended::ResetByPeer));
        for n in 0..RESETS_MAX as u32 - 2 {
            recent.remember(101 + 2 * n, Ended::ResetHere);
        }
        assert_eq!((recent.find(3), recent.resets.len()), (Some(Ended::ResetByPeer), RESETS_MAX));
        recent.remember(1001, Ended::ResetHere);
        assert_eq!((recent.find(3), recent.resets.len()), (None, RESETS_MAX));
        assert_eq!(recent.find(5), Some(Ended::ResetByPeer));
        for n in 0..FINISHED_MAX as u32 {
            assert_eq!(recent.find(1), Some(Ended::Finished));
            recent.remember(2001 + 2 * n, Ended::Finished);
        }
        assert_eq!(recent.find(1), None);
    }
}
