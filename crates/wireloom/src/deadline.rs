//! Deadlines. Those that the clock cannot represent never expire. Those for a peer count time in which this end runs: such a deadline is
//! looked at a few times before it is due; what passes between two looks beyond that was spent elsewhere: the process was stopped, the
//! machine was suspended, or the runtime was busy.

use std::cell::Cell;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

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
