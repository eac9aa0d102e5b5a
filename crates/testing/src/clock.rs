//! A clock that only a test advances, in the form that the cores take time: a duration since some epoch.

use std::time::Duration;

/// The time that a test says it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Clock {
    now: Duration,
}

impl Clock {
    /// A clock at an odd hour, so that code that takes zero for the beginning of time is caught.
    pub fn new() -> Self {
        Self { now: Duration::from_secs(1_000_003) }
    }

    /// The time, to be passed on as `now`.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Lets this much time pass.
    pub fn advance(&mut self, by: Duration) {
        self.now += by;
    }

    /// Moves to this moment; a moment that has passed changes nothing, because time does not run backwards.
    pub fn advance_to(&mut self, moment: Duration) {
        self.now = self.now.max(moment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_forward_alone() {
        let mut clock = Clock::new();
        let start = clock.now();
        clock.advance(Duration::from_millis(5));
        clock.advance_to(start);
        assert_eq!(clock.now(), start + Duration::from_millis(5));
        clock.advance_to(start + Duration::from_secs(1));
        assert_eq!(clock.now(), start + Duration::from_secs(1));
    }
}
