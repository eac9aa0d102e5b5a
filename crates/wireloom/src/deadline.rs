//! Deadlines that the clock cannot represent.

use std::time::Duration;

use tokio::time::Instant;

/// Thirty years.
const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);

/// A deadline that the clock cannot represent never expires.
pub(crate) fn after(start: Instant, timeout: Duration) -> Instant {
    start.checked_add(timeout).unwrap_or(start + FAR)
}
