//! [`Timer`]: the start of a timeout.

use core::time::Duration;

use crate::Limits;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// The timer does not run.
    Stopped,
    /// The timer started at this time.
    Since(Duration),
}

impl Timer {
    /// The time at which `timeout` expires.
    pub(super) fn deadline(self, timeout: Duration) -> Option<Duration> {
        match self {
            Self::Since(since) => Some(since.saturating_add(timeout)),
            Self::Stopped => None,
        }
    }

    /// Starts the timer if it is stopped.
    #[inline]
    pub(super) fn begin(&mut self, now: Duration) {
        if *self == Self::Stopped {
            *self = Self::Since(now);
        }
    }

    /// Starts the timer again if it runs.
    pub(super) fn restart(&mut self, now: Duration) {
        if *self != Self::Stopped {
            *self = Self::Since(now);
        }
    }

    /// The peer has accepted `len` bytes: see [`Limits::progress`].
    pub(super) fn postpone(&mut self, len: usize, timeout: Duration, now: Duration) {
        if let Self::Since(since) = self {
            *since = since.saturating_add(Limits::progress(timeout, len)).min(now);
        }
    }
}
