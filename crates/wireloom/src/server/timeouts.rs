//! Waiting with a deadline, or until the server reaches a phase of its shutdown. A timer is made by the first wait that is pending.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::sync::futures::OwnedNotified;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::deadline;
use crate::registry::{Phase, Registry};

/// A deadline that is computed at the first wait for it.
pub(super) struct Deadline {
    timeout: Duration,
    at: Option<Instant>,
}

impl Deadline {
    pub(super) fn after(timeout: Duration) -> Self {
        Self { timeout, at: None }
    }

    fn at(&mut self) -> Instant {
        *self.at.get_or_insert_with(|| deadline::after(Instant::now(), self.timeout))
    }
}

/// Why a wait ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    TimedOut,
    Phase,
}

/// The timer and the phase that a connection watches while it waits.
pub(super) struct Timeouts {
    registry: Arc<Registry>,
    /// Kept from one wait to the next.
    armed: Option<Pin<Box<Armed>>>,
}

pin_project! {
    struct Armed {
        #[pin]
        sleep: Sleep,
        #[pin]
        turned: OwnedNotified,
    }
}

impl Timeouts {
    pub(super) fn new(registry: Arc<Registry>) -> Self {
        Self { registry, armed: None }
    }

    /// The result of `work`, unless the deadline or the phase comes first.
    pub(super) fn within<'a, T>(
        &'a mut self,
        deadline: &'a mut Deadline,
        end: Phase,
        mut work: impl FnMut(&mut Context<'_>) -> Poll<T> + 'a,
    ) -> impl Future<Output = Result<T, Stopped>> + 'a {
        let mut is_armed = false;
        poll_fn(move |cx| {
            if self.registry.phase() >= end {
                return Poll::Ready(Err(Stopped::Phase));
            }
            if let Poll::Ready(done) = work(cx) {
                return Poll::Ready(Ok(done));
            }
            if !is_armed {
                is_armed = true;
                self.arm(deadline.at());
            }
            self.poll_stopped(cx, end).map(Err)
        })
    }

    fn arm(&mut self, at: Instant) {
        match &mut self.armed {
            Some(armed) => armed.as_mut().project().sleep.reset(at),
            None => {
                let armed = Armed { sleep: sleep_until(at), turned: self.registry.phase_change() };
                self.armed = Some(Box::pin(armed));
            }
        }
    }

    fn poll_stopped(&mut self, cx: &mut Context<'_>, end: Phase) -> Poll<Stopped> {
        let Some(armed) = &mut self.armed else { return Poll::Pending };
        let mut armed = armed.as_mut().project();
        if armed.sleep.poll(cx).is_ready() {
            return Poll::Ready(Stopped::TimedOut);
        }
        while armed.turned.as_mut().poll(cx).is_ready() {
            armed.turned.set(self.registry.phase_change());
        }
        // The phase may have changed before the notification was registered.
        if self.registry.phase() >= end { Poll::Ready(Stopped::Phase) } else { Poll::Pending }
    }
}

/// The result of `work`, unless the server reaches this phase first.
pub(super) async fn until<T>(registry: &Registry, end: Phase, work: impl Future<Output = T>) -> Option<T> {
    let (mut work, mut reached) = (std::pin::pin!(work), std::pin::pin!(registry.wait_for(end)));
    poll_fn(|cx| {
        if registry.phase() >= end {
            return Poll::Ready(None);
        }
        // Most work needs no waiting, and then no notification is registered.
        if let Poll::Ready(done) = work.as_mut().poll(cx) {
            return Poll::Ready(Some(done));
        }
        reached.as_mut().poll(cx).map(|()| None)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    // Time is paused: a wait that is too long ends at once, and a missed wake-up never does.
    #[tokio::test(start_paused = true)]
    async fn waits_until_deadline_or_phase() {
        let registry = Registry::new();
        let mut timeouts = Timeouts::new(registry.clone());
        let mut deadline = Deadline::after(Duration::from_secs(10));
        let at_once = timeouts.within(&mut deadline, Phase::Aborted, |_| Poll::Ready(7)).await;
        assert_eq!((at_once, deadline.at), (Ok(7), None), "nothing was armed");
        let start = Instant::now();
        for _ in 0..2 {
            // In the second round the deadline has already passed.
            let late = timeouts.within(&mut deadline, Phase::Aborted, |_| Poll::<()>::Pending).await;
            assert_eq!((late, start.elapsed().as_secs()), (Err(Stopped::TimedOut), 10));
        }
        let mut deadline = Deadline::after(Duration::MAX);
        let turning = registry.clone();
        tokio::spawn(async move {
            for (after, phase) in [(5, Phase::Draining), (5, Phase::Aborted)] {
                tokio::time::sleep(Duration::from_secs(after)).await;
                turning.enter(phase);
            }
        });
        let cut = timeouts.within(&mut deadline, Phase::Aborted, |_| Poll::<()>::Pending).await;
        assert_eq!((cut, start.elapsed().as_secs()), (Err(Stopped::Phase), 20));
        let over = timeouts.within(&mut deadline, Phase::Draining, |_| Poll::Ready(())).await;
        assert_eq!(over, Err(Stopped::Phase));
        assert_eq!(until(&registry, Phase::Aborted, async {}).await, None);
    }
}
