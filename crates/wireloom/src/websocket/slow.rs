//! A peer that takes what is sent more slowly than it is sent: since when something waits for it, and when that is too long.
//! What then becomes of messages is the sender's business, the end of the connection the state's.
//!
//! ```text
//! transport full -> mark: all that waits now, or 1 KiB of it, is to leave until then
//!                     |-> it has left, more waits     -> a new mark
//!                     |-> nothing waits any more      -> no mark
//!                     '-> too late                    -> late: messages are dropped, or the peer is cut
//! ```
//!
//! A mark knows nothing of single messages. One that comes behind it is under the next, so that it has waited once to twice
//! as long as is allowed when that is noticed.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use super::config::SlowPeer;

/// A peer that takes less than this while the policy waits for it takes nothing: crumbs are how one is held on purpose. In
/// bytes; as much as for a stream in [`wireloom_http2`].
const PROGRESS_LEN_MIN: usize = 1 << 10;

/// What a transport may hold back itself, in bytes: rustls's default. So much more it takes only when that has left.
const HELD_BACK_LEN_MAX: usize = 64 << 10;

/// What slow peers came to, in numbers, for many WebSockets together.
#[derive(Debug, Default)]
pub(crate) struct SlowTally {
    pub(crate) dropped: AtomicU64,
    pub(crate) cut: AtomicU64,
}

/// What is known of the peer of one WebSocket.
pub(super) struct Slow {
    policy: SlowPeer,
    /// There is something that waits.
    waits: Option<Box<Waits>>,
    tally: Option<Arc<SlowTally>>,
}

struct Waits {
    /// All is to leave by then, or it is late.
    late: Mark,
    /// Something is to leave by then, or the peer takes nothing.
    stuck: Mark,
    sleep: Option<Pin<Box<Sleep>>>,
}

/// So many bytes are to leave by then.
#[derive(Clone, Copy)]
struct Mark {
    due: Duration,
    left: usize,
}

impl Slow {
    pub(super) fn new(policy: SlowPeer) -> Self {
        Self { policy, waits: None, tally: None }
    }

    pub(super) fn policy(&self) -> SlowPeer {
        self.policy
    }

    /// Counts there too from now on.
    pub(super) fn count_in(&mut self, tally: Arc<SlowTally>) {
        self.tally = Some(tally);
    }

    pub(super) fn count_dropped(&self) {
        if let Some(tally) = &self.tally {
            tally.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn count_cut(&self) {
        if let Some(tally) = &self.tally {
            tally.cut.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether something waits.
    #[inline]
    pub(super) fn waits(&self) -> bool {
        self.waits.is_some()
    }

    /// The transport has taken so many bytes.
    #[inline]
    pub(super) fn taken(&mut self, len: usize) {
        if let Some(waits) = &mut self.waits {
            waits.late.left = waits.late.left.saturating_sub(len);
            waits.stuck.left = waits.stuck.left.saturating_sub(len);
        }
    }

    /// Nothing waits.
    #[inline]
    pub(super) fn clear(&mut self) {
        if self.waits.is_some() {
            self.waits = None;
        }
    }

    /// The transport takes no more just now: so many bytes wait for it, or some are held back in it. True when that is news.
    pub(super) fn wait(&mut self, now: Duration, queued: usize) -> bool {
        let (late_after, cut_after) = self.policy.bounds();
        let all = if queued > 0 { queued } else { HELD_BACK_LEN_MAX };
        let some = if queued > 0 { queued.min(PROGRESS_LEN_MIN) } else { HELD_BACK_LEN_MAX };
        let mark = |after, left| Mark { due: now.saturating_add(after), left };
        match &mut self.waits {
            Some(waits) => {
                if waits.late.left == 0 {
                    waits.late = mark(late_after, all);
                }
                if waits.stuck.left == 0 {
                    waits.stuck = mark(cut_after, some);
                }
                false
            }
            none => {
                let waits = Waits { late: mark(late_after, all), stuck: mark(cut_after, some), sleep: None };
                *none = Some(Box::new(waits));
                true
            }
        }
    }

    /// Whether something that waits has waited for too long already.
    pub(super) fn is_late(&self, now: impl FnOnce() -> Duration) -> bool {
        self.waits.as_ref().is_some_and(|waits| waits.late.left > 0 && waits.late.due <= now())
    }

    /// Ready when the peer is to be cut; `cx` is woken for it, if there is one.
    pub(super) fn poll_cut(&mut self, cx: Option<&mut Context<'_>>, epoch: Instant) -> Poll<()> {
        let disconnects = matches!(self.policy, SlowPeer::Disconnect { .. });
        let Some(waits) = &mut self.waits else { return Poll::Pending };
        let due = if disconnects { waits.late.due.min(waits.stuck.due) } else { waits.stuck.due };
        if due <= epoch.elapsed() {
            return Poll::Ready(());
        }
        // Who waits for ever needs no timer.
        let (Some(cx), Some(due)) = (cx, epoch.checked_add(due)) else { return Poll::Pending };
        let sleep = waits.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
        // A mark moves on mostly; the timer follows when it goes off.
        if sleep.deadline() > due || sleep.is_elapsed() {
            sleep.as_mut().reset(due);
        }
        sleep.as_mut().poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u32) -> Duration {
        SECOND * seconds
    }

    #[test]
    fn what_has_left_in_time_is_not_late() {
        let mut slow = Slow::new(SlowPeer::Disconnect { late_after: at(10) });
        assert!(slow.wait(at(0), 5000));
        slow.taken(4999);
        assert!(!slow.wait(at(9), 100_000));
        assert!(!slow.is_late(|| at(9)));
        assert!(slow.is_late(|| at(10)));
        // Its last byte leaves: what came meanwhile counts from now.
        slow.taken(1);
        assert!(!slow.is_late(|| at(10)));
        assert!(!slow.wait(at(10), 99_999));
        assert!(!slow.is_late(|| at(19)));
        assert!(slow.is_late(|| at(20)));
        slow.clear();
        assert!(!slow.is_late(|| at(20)));
    }

    #[tokio::test(start_paused = true)]
    async fn crumbs_are_nothing() {
        for (taken, is_cut) in [(PROGRESS_LEN_MIN - 1, true), (PROGRESS_LEN_MIN, false)] {
            let epoch = Instant::now();
            let mut slow = Slow::new(SlowPeer::Wait { cut_after: at(10) });
            slow.wait(at(0), 5000);
            slow.taken(taken);
            tokio::time::advance(at(10)).await;
            slow.wait(at(10), 5000 - taken);
            assert_eq!(slow.poll_cut(None, epoch).is_ready(), is_cut, "{taken}");
        }
    }

    // What TLS takes while the socket is full has gone nowhere.
    #[tokio::test(start_paused = true)]
    async fn what_is_held_back_waits_too() {
        let epoch = Instant::now();
        let mut slow = Slow::new(SlowPeer::DropNewest { late_after: at(5), cut_after: at(10) });
        slow.wait(at(0), 0);
        slow.taken(HELD_BACK_LEN_MAX - 1);
        slow.wait(at(5), 0);
        assert!(slow.is_late(|| at(5)));
        assert!(slow.poll_cut(None, epoch).is_pending());
        tokio::time::advance(at(10)).await;
        assert!(slow.poll_cut(None, epoch).is_ready());
    }

    #[test]
    fn who_has_no_bound_is_never_late() {
        let mut slow = Slow::new(SlowPeer::Wait { cut_after: Duration::MAX });
        slow.wait(at(1), 5000);
        assert!(!slow.is_late(|| at(u32::MAX)));
        assert!(slow.poll_cut(None, Instant::now()).is_pending());
    }
}
