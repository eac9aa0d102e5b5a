//! [`Timer`]: the start of a timeout, and the clock of those that stop while nothing is read.

use core::time::Duration;

use crate::Limits;

/// A clock that stops while the caller does not read: the window that the peer grants is not seen then.
pub(super) struct InputClock {
    /// `None` while it runs.
    stopped_at: Option<Duration>,
    /// For how long it was stopped before.
    stopped_for: Duration,
}

impl InputClock {
    pub(super) const fn new() -> Self {
        Self { stopped_at: None, stopped_for: Duration::ZERO }
    }

    pub(super) const fn is_running(&self) -> bool {
        self.stopped_at.is_none()
    }

    pub(super) fn set_running(&mut self, now: Duration, is_running: bool) {
        match self.stopped_at {
            None if !is_running => self.stopped_at = Some(now),
            Some(stopped_at) if is_running => {
                self.stopped_at = None;
                self.stopped_for += now.saturating_sub(stopped_at);
            }
            _ => {}
        }
    }

    /// The time on this clock.
    #[inline]
    pub(super) fn time(&self, now: Duration) -> Duration {
        self.stopped_at.unwrap_or(now).saturating_sub(self.stopped_for)
    }

    /// When this clock shows `time`, if it does not stop again.
    pub(super) const fn instant(&self, time: Duration) -> Duration {
        time.saturating_add(self.stopped_for)
    }
}

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
