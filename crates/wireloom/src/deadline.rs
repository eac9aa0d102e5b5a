//! Deadlines. Those that the clock cannot represent never expire. Those for a peer count time in which this end runs: such a deadline is
//! looked at a few times before it is due; what passes between two looks beyond that was spent elsewhere: the process was stopped, the
//! machine was suspended, or the runtime was busy.

use std::time::Duration;

use tokio::time::Instant;

/// Thirty years.
const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);

/// A deadline that the clock cannot represent never expires.
pub(crate) fn after(start: Instant, timeout: Duration) -> Instant {
    start.checked_add(timeout).unwrap_or(start + FAR)
}

/// The longest time between two looks at a deadline with this timeout. Timers count milliseconds.
pub(crate) fn look_step(timeout: Duration) -> Duration {
    (timeout / 4).max(Duration::from_millis(1))
}

/// The part of the time since the last look that does not count.
pub(crate) fn absence(since_last: Duration, step: Duration) -> Duration {
    since_last.saturating_sub(step)
}
