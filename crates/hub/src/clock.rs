//! The time since 1970 by the runtime's clock, which tests may pause.

use std::sync::atomic::{AtomicU64, Ordering};
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

/// A deadline for a client, waited for in parts, of which a pause of this process takes one: the client has the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    at: Duration,
    part: Duration,
    left: u32,
}

impl Deadline {
    const PARTS: u32 = 2;

    pub(crate) fn new(now: Duration, timeout: Duration) -> Self {
        let part = timeout / Self::PARTS;
        Self { at: now.saturating_add(part), part, left: Self::PARTS }
    }

    /// The end of the part that has begun.
    pub(crate) fn at(&self) -> Duration {
        self.at
    }

    /// Begins the next part if one has passed. Returns whether it was the last one.
    pub(crate) fn is_over(&mut self, now: Duration) -> bool {
        if self.at <= now && self.left > 0 {
            self.left -= 1;
            self.at = now.saturating_add(self.part);
        }
        self.left == 0
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

/// A time since 1970, until the year 2554, or none. It can be changed while others read it.
#[derive(Debug)]
pub(crate) struct Expiry(AtomicU64);

impl Expiry {
    const NONE: u64 = u64::MAX;

    pub(crate) fn get(&self) -> Option<Duration> {
        let nanos = self.0.load(Ordering::Acquire);
        (nanos != Self::NONE).then(|| Duration::from_nanos(nanos))
    }

    pub(crate) fn set(&self, at: Option<Duration>) {
        let nanos = at.map_or(Self::NONE, |at| {
            u64::try_from(at.as_nanos()).map_or(Self::NONE - 1, |nanos| nanos.min(Self::NONE - 1))
        });
        self.0.store(nanos, Ordering::Release);
    }
}

impl Default for Expiry {
    fn default() -> Self {
        Self(AtomicU64::new(Self::NONE))
    }
}

/// Far in the future, for a timer that need not fire.
const FAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Whole seconds, rounded up, so that a client does not refresh too early.
pub(crate) fn seconds(time: Duration) -> u32 {
    time.as_millis().div_ceil(1000).try_into().unwrap_or(u32::MAX)
}
