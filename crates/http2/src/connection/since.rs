//! Since when something lasts that may not last for ever.
//!
//! Commands are told no time, and the connection may have been idle for hours when one comes. So what they begin lasts
//! from the time that the caller tells next, which it is asked for at once.

use core::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Since {
    /// It does not last.
    Never,
    /// Since the time that is told next.
    Next,
    At(Duration),
}

impl Since {
    #[inline]
    pub(super) fn tell(&mut self, now: Duration) {
        if *self == Self::Next {
            *self = Self::At(now);
        }
    }

    /// When it has lasted too long, if that is known.
    pub(super) fn deadline(self, timeout: Duration) -> Option<Duration> {
        match self {
            Self::At(since) => Some(since.saturating_add(timeout)),
            Self::Never | Self::Next => None,
        }
    }
}
