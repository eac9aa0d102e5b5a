//! The right to read near the limit of a group, which one account has at a time.
//!
//! ```text
//!          an account that holds memory reads             its message is complete
//!  Free ----------------------------------------> Reading(key) -----------> Draining(key)
//!   ^                                                  |                         |
//!   +------------------- it holds nothing -------------+-------------------------+ or the group has room again
//! ```

use std::sync::atomic::{AtomicUsize, Ordering};

/// The state of the turn. Accounts are named by their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// No account has the turn.
    Free,
    /// This account reads until its message is complete.
    Reading(usize),
    /// This account has read its message, which must be freed before another account reads.
    Draining(usize),
}

impl Turn {
    /// The account that has the turn.
    pub(super) fn key(self) -> Option<usize> {
        match self {
            Self::Free => None,
            Self::Reading(key) | Self::Draining(key) => Some(key),
        }
    }

    /// 0 is free; then each key has an odd number for reading, and the even one after it for draining.
    fn encode(self) -> usize {
        match self {
            Self::Free => 0,
            Self::Reading(key) => 2 * key + 1,
            Self::Draining(key) => 2 * key + 2,
        }
    }

    fn decode(encoded: usize) -> Self {
        match encoded.checked_sub(1) {
            None => Self::Free,
            Some(rest) if rest % 2 == 0 => Self::Reading(rest / 2),
            Some(rest) => Self::Draining(rest / 2),
        }
    }
}

/// A [`Turn`] that several threads change.
#[derive(Debug)]
pub(super) struct AtomicTurn(AtomicUsize);

impl AtomicTurn {
    pub(super) fn new() -> Self {
        Self(AtomicUsize::new(Turn::Free.encode()))
    }

    #[inline]
    pub(super) fn get(&self) -> Turn {
        Turn::decode(self.0.load(Ordering::SeqCst))
    }

    /// Goes from one state to another.
    ///
    /// # Errors
    /// Another thread was faster: its state. Nothing has changed.
    pub(super) fn change(&self, from: Turn, to: Turn) -> Result<(), Turn> {
        self.0
            .compare_exchange(from.encode(), to.encode(), Ordering::SeqCst, Ordering::SeqCst)
            .map(drop)
            .map_err(Turn::decode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_has_a_number_of_its_own() {
        let keys = [0, 1, 2, 1000, usize::MAX / 2 - 1];
        let states = keys.iter().flat_map(|&key| [Turn::Reading(key), Turn::Draining(key)]);
        let mut encoded = Vec::new();
        for turn in states.chain([Turn::Free]) {
            assert_eq!(Turn::decode(turn.encode()), turn);
            encoded.push(turn.encode());
        }
        encoded.sort_unstable();
        encoded.dedup();
        assert_eq!(encoded.len(), 2 * keys.len() + 1);
    }

    #[test]
    fn only_the_expected_state_is_changed() {
        let turn = AtomicTurn::new();
        assert_eq!(turn.change(Turn::Free, Turn::Reading(3)), Ok(()));
        assert_eq!(turn.change(Turn::Free, Turn::Reading(4)), Err(Turn::Reading(3)));
        assert_eq!(turn.change(Turn::Reading(3), Turn::Draining(3)), Ok(()));
        assert_eq!(turn.change(Turn::Reading(3), Turn::Free), Err(Turn::Draining(3)));
        assert_eq!((turn.get(), turn.get().key()), (Turn::Draining(3), Some(3)));
    }
}
