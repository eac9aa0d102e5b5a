//! Deadlines. Those that the clock cannot represent never expire. Those for a peer count time in which this end runs: such a deadline is
//! looked at a few times before it is due; what passes between two looks beyond that was spent elsewhere: the process was stopped, the
//! machine was suspended, or the runtime was busy.
//!
//! ```text
//! new, restart -> Paused -- look --> Running -- look: due --> None
//!                   ^                 |
//!                   '----- pause -----'
//! ```

use std::cell::Cell;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// A deadline for a peer, which counts time in which this end runs and expects something from the peer. Small: an idle connection has some.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerDeadline {
    timeout_ns: u64,
    left_ns: u64,
    /// `None` while it is paused: time does not count until the next look.
    looked_at: Option<Instant>,
}

impl PeerDeadline {
    /// Begins at the first look.
    pub(crate) fn after(timeout: Duration) -> Self {
        let timeout_ns = nanoseconds(timeout);
        Self { timeout_ns, left_ns: timeout_ns, looked_at: None }
    }

    /// The peer has made progress: it has all of the time again, from the next look on.
    pub(crate) fn restart(&mut self) {
        (self.left_ns, self.looked_at) = (self.timeout_ns, None);
    }

    /// Allows for another `time`.
    pub(crate) fn extend(&mut self, time: Duration) {
        self.left_ns = self.left_ns.saturating_add(nanoseconds(time));
    }

    /// Nothing is expected from the peer until the next look.
    pub(crate) fn pause(&mut self, now: Instant) {
        self.look(now);
        self.looked_at = None;
    }

    /// The time of the next look; `None` when the deadline has passed.
    pub(crate) fn look(&mut self, now: Instant) -> Option<Instant> {
        let step = look_step(Duration::from_nanos(self.timeout_ns));
        if let Some(looked_at) = self.looked_at.replace(now) {
            let counted = now.saturating_duration_since(looked_at).min(step);
            self.left_ns = self.left_ns.saturating_sub(nanoseconds(counted));
        }
        (self.left_ns > 0).then(|| after(now, step.min(Duration::from_nanos(self.left_ns))))
    }

    /// Ready when the deadline has passed. `timer` is for this deadline alone.
    pub(crate) fn poll(&mut self, timer: &mut Timer, cx: &mut Context<'_>) -> Poll<()> {
        while let Some(next) = self.look(Instant::now()) {
            ready!(timer.poll(next, cx));
        }
        Poll::Ready(())
    }
}

/// 584 years at most.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

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

/// A timer for one deadline at a time. Without tokio's timers, a deadline is noticed when the timer is polled for another reason.
#[derive(Debug, Default)]
pub(crate) enum Timer {
    #[default]
    Unset,
    Set(Pin<Box<Sleep>>),
    /// There is no runtime, or one without timers.
    Unavailable,
}

impl Timer {
    /// Ready at `deadline`. Most deadlines are postponed: the timer is moved when it fires.
    pub(crate) fn poll(&mut self, deadline: Instant, cx: &mut Context<'_>) -> Poll<()> {
        if let Self::Unset = self {
            *self = match Handle::try_current() {
                Ok(runtime) if has_timers(&runtime) => Self::Set(Box::pin(sleep_until(deadline))),
                _ => Self::Unavailable,
            };
        }
        match self {
            Self::Set(sleep) => {
                if sleep.deadline() > deadline || sleep.is_elapsed() {
                    sleep.as_mut().reset(deadline);
                }
                sleep.as_mut().poll(cx)
            }
            Self::Unset | Self::Unavailable if deadline <= Instant::now() => Poll::Ready(()),
            Self::Unset | Self::Unavailable => Poll::Pending,
        }
    }

    pub(crate) fn is_set(&self) -> bool {
        matches!(self, Self::Set(_))
    }
}

thread_local! {
    /// The runtime that was asked last, and whether it has timers.
    static ASKED: Cell<Option<(Id, bool)>> = const { Cell::new(None) };
}

/// Whether a runtime has timers. tokio cannot be asked: in one without timers it panics, once for each thread, and the message is printed.
pub(crate) fn has_timers(runtime: &Handle) -> bool {
    let id = runtime.id();
    if let Ok(Some((asked, has_timers))) = ASKED.try_with(Cell::get)
        && asked == id
    {
        return has_timers;
    }
    // A thread that ends may have dropped what tokio needs to enter one.
    let asked = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let _entered = runtime.enter();
        drop(sleep(Duration::ZERO));
    }));
    let has_timers = asked.is_ok();
    let _ = ASKED.try_with(|kept| kept.set(Some((id, has_timers))));
    has_timers
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Looks each second, and returns after how many the deadline has passed.
    fn seconds_left(deadline: &mut PeerDeadline, now: &mut Instant) -> u32 {
        let mut seconds = 0;
        while deadline.look(*now).is_some() {
            *now += SECOND;
            seconds += 1;
        }
        seconds
    }

    #[test]
    fn time_counts_while_this_end_looks() {
        let mut now = Instant::now();
        let mut deadline = PeerDeadline::after(10 * SECOND);
        // It has not begun.
        now += 100 * SECOND;
        assert_eq!(deadline.look(now), Some(now + 10 * SECOND / 4));
        assert_eq!(seconds_left(&mut deadline, &mut now), 10);
        assert_eq!(deadline.look(now), None, "it stays so");
        deadline.restart();
        deadline.extend(2 * SECOND);
        deadline.look(now);
        deadline.extend(3 * SECOND);
        assert_eq!(seconds_left(&mut deadline, &mut now), 15);
        // The process is stopped: each time counts as a step of 2.5 s.
        deadline.restart();
        for _ in 0..3 {
            assert!(deadline.look(now).is_some());
            now += 3600 * SECOND;
        }
        assert_eq!(seconds_left(&mut deadline, &mut now), 3);
        // Nothing is expected.
        deadline.restart();
        deadline.look(now);
        for _ in 0..10 {
            now += SECOND;
            deadline.pause(now);
            now += 2 * SECOND;
        }
        assert_eq!(seconds_left(&mut deadline, &mut now), 9);
    }

    #[test]
    fn a_deadline_that_the_clock_cannot_represent_never_passes() {
        let mut now = Instant::now();
        let mut deadline = PeerDeadline::after(Duration::MAX);
        deadline.extend(Duration::MAX);
        for _ in 0..10 {
            assert!(deadline.look(now).is_some());
            deadline.pause(now);
            now += 365 * 86_400 * SECOND;
        }
    }
}
