//! The monotonic clock that deadlines are measured by.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Time since the first call.
pub(crate) fn now() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}
