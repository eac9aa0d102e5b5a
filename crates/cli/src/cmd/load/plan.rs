//! When a run begins, is measured, and ends.

use std::time::{Duration, Instant};

/// Longer than any run.
pub(super) const FAR: Duration = Duration::from_secs(366 * 86_400);

/// When to send, and when to stop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) begin: Instant,
    /// When the measurement begins, after the warm-up.
    pub(super) measured_from: Instant,
    /// When sending ends; `None` with `--count`.
    pub(super) end: Option<Instant>,
    pub(super) timeout: Duration,
}

impl Plan {
    /// Whether a message that is due at this time is measured.
    pub(super) fn is_measured(&self, intended: Instant) -> bool {
        intended >= self.measured_from
    }

    /// Whether sending has ended at this time.
    pub(super) fn is_over(&self, intended: Instant) -> bool {
        self.end.is_some_and(|end| intended >= end)
    }

    /// The end of sending; with `--count`, the end of the warm-up.
    pub(super) fn sending_end(&self) -> Instant {
        self.end.unwrap_or(self.measured_from)
    }

    /// A time of the run, in nanoseconds since its begin.
    pub(super) fn nanos(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.begin).as_nanos()).unwrap_or(u64::MAX)
    }

    /// The inverse of [`nanos`](Self::nanos).
    pub(super) fn instant(&self, nanos: u64) -> Instant {
        self.begin + Duration::from_nanos(nanos).min(FAR)
    }
}
