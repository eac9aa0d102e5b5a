//! [`Timer`]: the start of a timeout.
//!
//! Commands have no argument for the time, and the connection may have been idle for hours before one. The timers that they start
//! run from the next time that the caller passes. `poll_timeout` returns a time in the past while one is pending.

use core::time::Duration;

use crate::Limits;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// The timer does not run.
    Stopped,
    /// The timer starts at the next time that the caller passes.
    Pending,
    /// The timer started at this time.
    Since(Duration),
}

impl Timer {
    #[inline]
    pub(super) fn start(&mut self, now: Duration) {
        if *self == Self::Pending {
            *self = Self::Since(now);
        }
    }

    /// The time at which `timeout` expires.
    pub(super) fn deadline(self, timeout: Duration) -> Option<Duration> {
        match self {
            Self::Since(since) => Some(since.saturating_add(timeout)),
            Self::Stopped | Self::Pending => None,
        }
    }

    /// Starts a stopped timer at the next time that the caller passes. Returns whether it was stopped.
    #[inline]
    pub(super) fn begin(&mut self) -> bool {
        let was_stopped = *self == Self::Stopped;
        if was_stopped {
            *self = Self::Pending;
        }
        was_stopped
    }

    /// The peer has accepted `len` bytes: see [`Limits::progress`].
    pub(super) fn postpone(&mut self, len: usize, timeout: Duration, now: Duration) {
        if let Self::Since(since) = self {
            *since = since.saturating_add(Limits::progress(timeout, len)).min(now);
        }
    }
}
