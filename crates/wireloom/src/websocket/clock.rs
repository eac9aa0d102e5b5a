//! The time that the protocol core is given, and timers for it. One epoch for the process, so that no WebSocket has to keep its own.

use std::cell::Cell;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// The epoch is this long before its first use, because the clock of a runtime that was paused earlier is behind.
const EPOCH_AGE: Duration = Duration::from_secs(86_400);

static EPOCH: LazyLock<Instant> = LazyLock::new(|| {
    let now = std::time::Instant::now();
    Instant::from_std(now.checked_sub(EPOCH_AGE).unwrap_or(now))
});

/// The time since the epoch.
pub(super) fn now() -> Duration {
    EPOCH.elapsed()
}

/// The instant at this time after the epoch; `None` if the clock cannot represent it.
pub(super) fn instant_at(time: Duration) -> Option<Instant> {
    EPOCH.checked_add(time)
}

/// A timer for one deadline at a time. Without tokio's timers, a deadline is noticed when the timer is polled for another reason.
#[derive(Debug, Default)]
pub(super) enum Timer {
    #[default]
    Unset,
    Set(Pin<Box<Sleep>>),
    /// There is no runtime, or one without timers.
    Unavailable,
}

impl Timer {
    /// Ready at `deadline`. Most deadlines are postponed: the timer is moved when it fires.
    pub(super) fn poll(&mut self, deadline: Instant, cx: &mut Context<'_>) -> Poll<()> {
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

    pub(super) fn is_set(&self) -> bool {
        matches!(self, Self::Set(_))
    }
}

thread_local! {
    /// The runtime that was asked last, and whether it has timers.
    static ASKED: Cell<Option<(Id, bool)>> = const { Cell::new(None) };
}

/// Whether a runtime has timers. tokio cannot be asked: in one without timers it panics, once for each thread, and the message is printed.
pub(super) fn has_timers(runtime: &Handle) -> bool {
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

    #[tokio::test(start_paused = true)]
    async fn follows_the_clock_of_the_runtime() {
        let before = now();
        assert!(before >= EPOCH_AGE / 2, "{before:?}");
        tokio::time::advance(Duration::from_secs(7)).await;
        assert_eq!(now() - before, Duration::from_secs(7));
        assert_eq!(instant_at(now()), Some(Instant::now()));
        assert_eq!(instant_at(Duration::MAX), None);
    }
}
