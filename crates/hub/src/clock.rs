//! The time since 1970 by the runtime's clock, which tests may pause.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// The time since 1970. Unlike the system's clock, it never goes back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    started: Instant,
    started_at: Duration,
}

impl Clock {
    pub(crate) fn new() -> Self {
        let started_at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { started: Instant::now(), started_at }
    }

    /// Since 1970.
    pub(crate) fn now(&self) -> Duration {
        self.started_at + self.started.elapsed()
    }

    /// The time since the clock was made.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// The instant of a time since 1970; the start of the clock for earlier ones.
    pub(crate) fn instant(&self, at: Duration) -> Instant {
        self.started + at.saturating_sub(self.started_at).min(FAR)
    }
}

/// Lets a warning pass once per second, so that clients cannot fill the log.
#[derive(Debug, Default)]
pub(crate) struct WarningLimit {
    next: Mutex<Duration>,
}

impl WarningLimit {
    pub(crate) fn may_warn(&self, now: Duration) -> bool {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let may = *next <= now;
        if may {
            *next = now + Duration::from_secs(1);
        }
        may
    }
}

/// Far in the future, for a timer that need not fire.
const FAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Whole seconds, rounded up, so that a client does not refresh too early.
pub(crate) fn seconds(time: Duration) -> u32 {
    time.as_millis().div_ceil(1000).try_into().unwrap_or(u32::MAX)
}
