//! The deadlines of a connection, on one timer.

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::time::{Instant, Sleep};

/// The purpose of a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// The core, or an unread request.
    Core,
    /// The peer must have sent something.
    Keepalive,
    /// A connection without streams goes away.
    Idle,
    /// The peer must have acknowledged, or read, the last GOAWAY.
    Drain,
    /// A quiet connection frees memory.
    Shrink,
}

const TIMERS: [Timer; 5] = [Timer::Core, Timer::Keepalive, Timer::Idle, Timer::Drain, Timer::Shrink];

/// One row per [`Timer`]: the driver sets all of them, waits for the earliest, and acts on those that have expired.
#[derive(Default)]
pub(super) struct Deadlines {
    table: [Option<Instant>; TIMERS.len()],
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Deadlines {
    pub(super) fn set(&mut self, timer: Timer, deadline: Option<Instant>) {
        self.table[timer as usize] = deadline;
    }

    /// Arms the timer for the earliest deadline; ready with the time once that has expired.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, now: Instant) -> Poll<Instant> {
        let Some(deadline) = self.table.iter().flatten().min().copied() else {
            self.sleep = None;
            return Poll::Pending;
        };
        if deadline <= now {
            // The timer does not fire while reads use up the budget of the task (`tokio::task::coop`).
            return Poll::Ready(now);
        }
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if sleep.deadline() > deadline {
            sleep.as_mut().reset(deadline);
        }
        // Activity postpones most deadlines: the timer is moved when it goes off, not each time.
        loop {
            ready!(sleep.as_mut().poll(cx));
            let now = Instant::now();
            if now >= deadline {
                return Poll::Ready(now);
            }
            sleep.as_mut().reset(deadline);
        }
    }

    /// When the timer goes off.
    pub(super) fn armed(&self) -> Option<Instant> {
        self.sleep.as_ref().map(|sleep| sleep.deadline())
    }

    /// Removes a deadline that has expired.
    pub(super) fn take_expired(&mut self, now: Instant) -> Option<Timer> {
        let expired = |timer: &Timer| self.table[*timer as usize].is_some_and(|deadline| deadline <= now);
        let timer = TIMERS.into_iter().find(expired)?;
        self.table[timer as usize] = None;
        Some(timer)
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn deadlines_expire_in_time_and_once() {
        let start = Instant::now();
        let mut deadlines = Deadlines::default();
        for (at, timer) in TIMERS.into_iter().enumerate() {
            deadlines.set(timer, Some(start + Duration::from_secs(10 - at as u64)));
        }
        deadlines.set(Timer::Idle, None);
        let mut expired = Vec::new();
        while deadlines.table.iter().any(Option::is_some) {
            let now = poll_fn(|cx| deadlines.poll(cx, Instant::now())).await;
            while let Some(timer) = deadlines.take_expired(now) {
                expired.push((timer, (now - start).as_secs()));
            }
        }
        assert_eq!(
            expired,
            [(Timer::Shrink, 6), (Timer::Drain, 7), (Timer::Keepalive, 9), (Timer::Core, 10)]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_postponed_deadline_does_not_expire_early() {
        let start = Instant::now();
        let mut deadlines = Deadlines::default();
        deadlines.set(Timer::Idle, Some(start + Duration::from_secs(1)));
        assert!(poll_fn(|cx| Poll::Ready(deadlines.poll(cx, start))).await.is_pending());
        deadlines.set(Timer::Idle, Some(start + Duration::from_secs(5)));
        let now = poll_fn(|cx| deadlines.poll(cx, Instant::now())).await;
        assert_eq!(((now - start).as_secs(), deadlines.take_expired(now)), (5, Some(Timer::Idle)));
    }
}
