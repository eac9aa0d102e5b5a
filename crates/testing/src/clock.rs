//! A clock that only the test advances. Like the cores' `now`, it is a duration since an arbitrary epoch.

use std::time::Duration;

/// The current time of a test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Clock {
    now: Duration,
}

impl Clock {
    /// A clock that does not begin at zero, so that tests find code that relies on zero.
    pub fn new() -> Self {
        Self { now: Duration::from_secs(1_000_003) }
    }

    /// The current time, for the parameter `now` of the cores.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Advances the clock by this duration.
    pub fn advance(&mut self, by: Duration) {
        self.now += by;
    }

    /// Advances the clock to this time; does nothing if it has passed.
    pub fn advance_to(&mut self, moment: Duration) {
        self.now = self.now.max(moment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_goes_back() {
        let mut clock = Clock::new();
        let start = clock.now();
        clock.advance(Duration::from_millis(5));
        clock.advance_to(start);
        assert_eq!(clock.now(), start + Duration::from_millis(5));
        clock.advance_to(start + Duration::from_secs(1));
        assert_eq!(clock.now(), start + Duration::from_secs(1));
    }
}
