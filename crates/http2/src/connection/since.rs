//! The start of something that has a deadline.
//!
//! Commands are passed no time, and the connection may have been idle for hours before one. What they begin starts at the
//! next time that the caller passes, which `poll_timeout` asks for at once.

use core::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Since {
    /// It has not started.
    Never,
    /// It starts at the next time that is passed.
    Next,
    At(Duration),
}

impl Since {
    #[inline]
    pub(super) fn start(&mut self, now: Duration) {
        if *self == Self::Next {
            *self = Self::At(now);
        }
    }

    /// When it has lasted for `timeout`.
    pub(super) fn deadline(self, timeout: Duration) -> Option<Duration> {
        match self {
            Self::At(since) => Some(since.saturating_add(timeout)),
            Self::Never | Self::Next => None,
        }
    }
}
