//! Lines that peers cause: at most one a second, with the number of those that were left out before it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_secs(1);

/// Decides for one kind of line.
#[derive(Default)]
pub(crate) struct Throttle(Mutex<State>);

#[derive(Default)]
struct State {
    printed: Option<Instant>,
    left_out: u64,
}

impl Throttle {
    /// The number of lines that were left out since the last one, if another may be printed `now`.
    pub(crate) fn next(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.printed.is_some_and(|printed| now.saturating_duration_since(printed) < INTERVAL) {
            state.left_out += 1;
            return None;
        }
        state.printed = Some(now);
        Some(std::mem::take(&mut state.left_out))
    }

    /// The number of lines that were left out since the last one, which none will follow.
    pub(crate) fn rest(&self) -> u64 {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner).left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_printed_once_a_second_with_a_count() {
        let (throttle, begin) = (Throttle::default(), Instant::now());
        let mut next = |millis| throttle.next(begin + Duration::from_millis(millis));
        assert_eq!(
            [0, 0, 999, 1_000, 1_001, 2_500].map(&mut next),
            [Some(0), None, None, Some(2), None, Some(1)]
        );
        assert_eq!(throttle.rest(), 0);
        assert_eq!([2_501, 2_502].map(&mut next), [None; 2]);
        assert_eq!([throttle.rest(), throttle.rest()], [2, 0]);
    }
}
