//! The pace of a peer that a test lets meet short timeouts.

use std::time::{Duration, Instant};

/// Measures how long a peer takes from one step to the next. A busy or suspended machine may delay a peer until it exceeds a timeout which
/// it should meet. The outcome of such an attempt shows nothing, and the test makes another one.
pub(crate) struct Pace {
    last: Instant,
    longest: Duration,
}

impl Pace {
    /// The maximum number of attempts. A machine that delays each of them cannot run the test.
    pub(crate) const ATTEMPTS_MAX: usize = 50;

    pub(crate) fn start() -> Self {
        Self { last: Instant::now(), longest: Duration::ZERO }
    }

    /// The peer has taken a step.
    pub(crate) fn step(&mut self) {
        let now = Instant::now();
        self.longest = self.longest.max(now - self.last);
        self.last = now;
    }

    /// Whether the peer met `timeout` with every step, and with the one that it is about to take.
    pub(crate) fn met(&mut self, timeout: Duration) -> bool {
        self.step();
        self.longest < timeout
    }
}
