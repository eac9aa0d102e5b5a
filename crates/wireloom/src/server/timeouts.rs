//! Waiting with a deadline, or until the server reaches a phase of its shutdown. A timer is made by the first wait that is pending. Time in
//! which the server does not run does not count: after a pause all deadlines would be due before the sockets are read.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tokio::sync::futures::OwnedNotified;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::deadline::PeerDeadline;
use crate::registry::{Phase, Registry};

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
        deadline: &'a mut PeerDeadline,
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
            if !std::mem::replace(&mut is_armed, true) && self.has_passed(deadline) {
                return Poll::Ready(Err(Stopped::TimedOut));
            }
            self.poll_stopped(cx, deadline, end).map(Err)
        })
    }

    /// Whether the server drains, or has drained.
    pub(super) fn is_drained(&self) -> bool {
        self.registry.phase() >= Phase::Draining
    }

    /// As [`within`](Self::within), until the server drains, and then once more when the runtime has looked for events: what has arrived
    /// before may not have been reported. A socket that is closed with unread bytes is reset (RFC 9112 §9.6).
    pub(super) async fn until_drained<T>(
        &mut self,
        deadline: &mut PeerDeadline,
        mut work: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Result<T, Stopped> {
        let done = self.within(deadline, Phase::Draining, &mut work).await;
        if !matches!(done, Err(Stopped::Phase)) {
            return done;
        }
        tokio::task::yield_now().await;
        if self.registry.phase() >= Phase::Aborted {
            return done;
        }
        match poll_fn(|cx| Poll::Ready(work(cx))).await {
            Poll::Ready(arrived) => Ok(arrived),
            Poll::Pending => done,
        }
    }

    /// Looks at the deadline, and sets the timer for the next look.
    fn has_passed(&mut self, deadline: &mut PeerDeadline) -> bool {
        let Some(next) = deadline.look(Instant::now()) else { return true };
        match &mut self.armed {
            Some(armed) => armed.as_mut().project().sleep.reset(next),
            None => {
                let (sleep, turned) = (sleep_until(next), self.registry.phase_change());
                self.armed = Some(Box::pin(Armed { sleep, turned }));
            }
        }
        false
    }

    fn poll_stopped(
        &mut self,
        cx: &mut Context<'_>,
        deadline: &mut PeerDeadline,
        end: Phase,
    ) -> Poll<Stopped> {
        while self.armed.as_mut().is_some_and(|armed| armed.as_mut().project().sleep.poll(cx).is_ready()) {
            if self.has_passed(deadline) {
                return Poll::Ready(Stopped::TimedOut);
            }
        }
        let Some(armed) = &mut self.armed else { return Poll::Pending };
        let mut armed = armed.as_mut().project();
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
    use std::time::Duration;

    use super::*;

    // Time is paused: a wait that is too long ends at once, and a missed wake-up never does.
    #[tokio::test(start_paused = true)]
    async fn waits_until_deadline_or_phase() {
        let registry = Registry::new();
        let mut timeouts = Timeouts::new(registry.clone());
        let mut deadline = PeerDeadline::after(Duration::from_secs(10));
        let at_once = timeouts.within(&mut deadline, Phase::Aborted, |_| Poll::Ready(7)).await;
        assert!(at_once == Ok(7) && timeouts.armed.is_none());
        let start = Instant::now();
        for _ in 0..2 {
            // In the second round the deadline has already passed.
            let late = timeouts.within(&mut deadline, Phase::Aborted, |_| Poll::<()>::Pending).await;
            assert_eq!((late, start.elapsed().as_secs()), (Err(Stopped::TimedOut), 10));
        }
        let mut deadline = PeerDeadline::after(Duration::MAX);
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

    // Timers are due before the bytes that arrived meanwhile are read.
    #[tokio::test(start_paused = true)]
    async fn a_pause_of_the_server_does_not_count() {
        let mut timeouts = Timeouts::new(Registry::new());
        let mut deadline = PeerDeadline::after(Duration::from_secs(10));
        {
            let mut waiting =
                std::pin::pin!(timeouts.within(&mut deadline, Phase::Aborted, |_| Poll::<()>::Pending));
            for _ in 0..3 {
                let ended = poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx))).await;
                assert!(ended.is_pending(), "{ended:?}");
                tokio::time::advance(Duration::from_secs(60)).await;
            }
            let ended = poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx))).await;
            assert!(ended.is_pending(), "{ended:?}");
        }
        // Each pause took a look. The next wait has the rest.
        let start = Instant::now();
        let late = timeouts.within(&mut deadline, Phase::Aborted, |_| Poll::<()>::Pending).await;
        assert_eq!((late, start.elapsed().as_millis() / 100), (Err(Stopped::TimedOut), 25));
    }
}
