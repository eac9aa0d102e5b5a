//! The time since 1970 by the runtime's clock, which tests may pause.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// The time since 1970. Unlike the system's clock, it never goes back. Its clones are the same clock.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    started: Instant,
    /// The same, by the clock of the machine: tests do not pause it.
    started_really: std::time::Instant,
    started_at: Duration,
    /// For how long the machine had been suspended since it was started.
    suspended_before: Duration,
    /// The suspensions since then, in nanoseconds: the runtime's clock does not advance in them.
    missed: Arc<AtomicU64>,
}

/// By how much the system's clock differs from a [`Clock`]: it was set.
#[derive(Clone, Copy, Debug)]
struct Steps {
    ahead: Duration,
    behind: Duration,
    /// The suspensions that the clock is still to be set forward by.
    uncounted: Duration,
}

/// The clock is set forward by this or more, and smaller differences to the system's are none.
const STEP_MIN: Duration = Duration::from_secs(1);

impl Clock {
    pub(crate) fn new() -> Self {
        let started_at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            started: Instant::now(),
            started_really: std::time::Instant::now(),
            started_at,
            suspended_before: suspended(),
            missed: Arc::default(),
        }
    }

    /// Since 1970.
    pub(crate) fn now(&self) -> Duration {
        self.started_at + self.missed() + self.started.elapsed()
    }

    /// The time since the clock was made.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// The instant of a time since 1970; the start of the clock for earlier ones.
    pub(crate) fn instant(&self, at: Duration) -> Instant {
        self.started + at.saturating_sub(self.started_at + self.missed()).min(FAR)
    }

    /// The time since 1970 by the system's clock, with which times that others have set are compared, such as those of tokens: it may have
    /// been set since this clock was made, where the virtual machine was stopped or the right time was not known yet.
    pub(crate) fn system_now(&self) -> Duration {
        let Steps { ahead, behind, uncounted } = self.steps();
        (self.now() + uncounted + ahead).saturating_sub(behind)
    }

    /// An expiry by the system's clock, which others have set, as a time of this clock.
    pub(crate) fn expiry(&self, at: Option<Duration>) -> Option<Duration> {
        let Steps { ahead, behind, .. } = self.steps();
        at.map(|at| at.saturating_add(behind).saturating_sub(ahead))
    }

    fn steps(&self) -> Steps {
        let missed = self.missed();
        let uncounted = suspended().saturating_sub(self.suspended_before).saturating_sub(missed);
        let uncounted = if uncounted < STEP_MIN { Duration::ZERO } else { uncounted };
        let own = self.started_at + missed + uncounted + self.started_really.elapsed();
        let system = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let step = |from: Duration, to: Duration| to.checked_sub(from).filter(|step| *step >= STEP_MIN);
        let (ahead, behind) = (step(own, system), step(system, own));
        Steps { ahead: ahead.unwrap_or_default(), behind: behind.unwrap_or_default(), uncounted }
    }

    fn missed(&self) -> Duration {
        Duration::from_nanos(self.missed.load(Ordering::Relaxed))
    }

    /// Sets the clock forward if the machine was suspended, and returns by how much. The system's clock is not followed: what expires by
    /// one that is wrong for a moment is lost forever.
    pub(crate) fn correct(&self) -> Option<Duration> {
        self.follow(suspended())
    }

    fn follow(&self, suspended: Duration) -> Option<Duration> {
        let missed = suspended.saturating_sub(self.suspended_before);
        let step = missed.saturating_sub(self.missed());
        (step >= STEP_MIN).then(|| {
            self.missed.fetch_max(u64::try_from(missed.as_nanos()).unwrap_or_default(), Ordering::Relaxed);
            step
        })
    }
}

/// For how long the machine was suspended since it was started.
#[cfg(not(test))]
fn suspended() -> Duration {
    really_suspended()
}

/// The same, and what a test pretends.
#[cfg(test)]
fn suspended() -> Duration {
    really_suspended() + PRETENDED.get()
}

#[cfg(test)]
thread_local! {
    /// How much longer a test pretends that the machine was suspended.
    pub(crate) static PRETENDED: std::cell::Cell<Duration> = const { std::cell::Cell::new(Duration::ZERO) };
}

#[cfg(target_os = "linux")]
fn really_suspended() -> Duration {
    use rustix::time::{ClockId, clock_gettime};

    let time = |clock| Duration::try_from(clock_gettime(clock)).unwrap_or_default();
    loop {
        let before = time(ClockId::Monotonic);
        let with_suspensions = time(ClockId::Boottime);
        // All are of the same moment, unless this thread was interrupted.
        if time(ClockId::Monotonic) < before + STEP_MIN / 10 {
            return with_suspensions.saturating_sub(before);
        }
    }
}

/// Other systems have no such clock, or none that safe code can read.
#[cfg(not(target_os = "linux"))]
const fn really_suspended() -> Duration {
    Duration::ZERO
}

/// A time since 1970, until the year 2554: half of a `Duration`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Nanos(u64);

impl Nanos {
    pub(crate) fn get(self) -> Duration {
        Duration::from_nanos(self.0)
    }
}

impl From<Duration> for Nanos {
    fn from(time: Duration) -> Self {
        Self(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// A deadline for a client, waited for in two parts, of which a pause of this process takes one: the client has the other. Every session
/// has one, so that the timeout is an argument, and the number of parts that have passed is in the last bits of the time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(u64);

impl Deadline {
    const PARTS: u64 = 2;
    const PASSED: u64 = 0b11;

    pub(crate) fn new(now: Duration, timeout: Duration) -> Self {
        Self::after(0, now, timeout)
    }

    /// The next part, after this number of them.
    fn after(passed: u64, now: Duration, timeout: Duration) -> Self {
        let end = Nanos::from(now.saturating_add(timeout / 2));
        Self(end.0 & !Self::PASSED | passed)
    }

    /// The end of the part that has begun.
    pub(crate) fn at(&self) -> Duration {
        Duration::from_nanos(self.0 & !Self::PASSED)
    }

    fn passed(&self) -> u64 {
        self.0 & Self::PASSED
    }

    /// Begins the next part if one has passed. Returns whether it was the last one.
    pub(crate) fn is_over(&mut self, now: Duration, timeout: Duration) -> bool {
        if self.at() <= now && self.passed() < Self::PARTS {
            *self = Self::after(self.passed() + 1, now, timeout);
        }
        self.passed() == Self::PARTS
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
        let nanos = at.map_or(Self::NONE, |at| Nanos::from(at).0.min(Self::NONE - 1));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_has_two_parts() {
        let (second, mut now) = (Duration::from_secs(1), Duration::from_secs(1_764_000_000));
        let mut deadline = Deadline::new(now, second);
        assert!(deadline.at().abs_diff(now + second / 2) < Duration::from_nanos(4));
        assert!(!deadline.is_over(now, second) && !deadline.is_over(now + second / 3, second));
        // A pause takes one.
        now += 10 * second;
        assert!(!deadline.is_over(now, second) && !deadline.is_over(now, second));
        assert!(deadline.is_over(now + second / 2, second) && deadline.is_over(now + second / 2, second));
        let never = Deadline::new(Duration::MAX, Duration::MAX);
        assert!(never.at() > now && never.passed() == 0);
    }

    #[tokio::test(start_paused = true)]
    async fn suspensions_set_it_forward() {
        let clock = Clock { suspended_before: Duration::from_secs(3_600), ..Clock::new() };
        let (other, begun, hour) = (clock.clone(), clock.now(), Duration::from_secs(3_600));
        let second = Duration::from_secs(1);
        assert_eq!([clock.follow(Duration::ZERO), clock.follow(hour + second / 2)], [None; 2]);
        assert_eq!(clock.now(), begun);
        assert_eq!(clock.follow(2 * hour), Some(hour));
        assert_eq!(other.now(), begun + hour);
        assert_eq!(clock.instant(clock.now() + second), Instant::now() + second);
        // Once, and never back.
        assert_eq!([clock.follow(2 * hour), clock.follow(hour)], [None; 2]);
        assert_eq!(clock.now(), begun + hour);
        assert_eq!(clock.follow(3 * hour), Some(hour));
    }

    /// Of a day, such as one of a server of time that is wrong for a moment.
    #[tokio::test(start_paused = true)]
    async fn a_step_of_the_systems_clock_does_not() {
        let mut clock = Clock::new();
        clock.started_at -= Duration::from_secs(24 * 3_600);
        let begun = clock.now();
        assert_eq!(clock.correct(), None);
        assert_eq!(clock.now(), begun);
    }

    #[tokio::test(start_paused = true)]
    async fn times_that_others_set_are_by_the_systems_clock() {
        let (hour, begun) = (Duration::from_secs(3_600), Clock::new().started_at);
        for (behind, ahead) in [(0, 0), (24, 0), (0, 24)] {
            let mut clock = Clock::new();
            clock.started_at = clock.started_at + hour * ahead - hour * behind;
            tokio::time::advance(hour).await;
            // The system's clock has gone on by a few milliseconds, but for the pause of the test.
            let about = |time: Duration, expected| time.abs_diff(expected) < Duration::from_secs(30);
            assert!(about(clock.system_now(), begun + hour), "{behind} {ahead}");
            let expiry = clock.expiry(Some(clock.system_now() + hour)).unwrap();
            assert!(about(expiry, clock.now() + hour), "{behind} {ahead}");
            assert_eq!(clock.expiry(None), None);
        }
    }
}
