//! Deadlines for a peer that reads more slowly than this end sends. The sender applies the policy to messages, the state ends the
//! connection.
//!
//! ```text
//! transport full -> deadlines: for all bytes that are queued now (queue), and for 1 KiB of them (stall)
//!                     |-> accepted in time, more are queued -> a new deadline
//!                     |-> the queue is empty                -> no deadline
//!                     '-> the deadline has passed           -> messages are dropped, or the peer is disconnected
//! ```
//!
//! A deadline covers the bytes that are queued when it is set. A message that is queued later is covered by the next deadline: it has
//! waited for one to two times the timeout when that expires. Time in which this end does not run does not count.

use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::clock;
use super::config::SlowPeer;
use crate::deadline;
use crate::deadline::Timer;
use crate::transport::{BUFFERED_LEN_MAX, PROGRESS_LEN_MIN};

/// The state of one WebSocket.
#[derive(Default)]
pub(super) struct Slow {
    /// Set while bytes wait for the transport.
    deadlines: Option<Box<Deadlines>>,
}

struct Deadlines {
    /// All bytes must leave by then.
    queue: DrainDeadline,
    /// Some bytes must leave by then, or the peer has stalled.
    stall: DrainDeadline,
    /// When the transport was last offered bytes.
    looked_at: Duration,
    /// Bytes that had left the transport then, if it counts them.
    left: u64,
    timer: Timer,
}

/// The transport must accept `left` more bytes before `due`.
#[derive(Clone, Copy)]
struct DrainDeadline {
    due: Duration,
    left: usize,
}

impl Slow {
    /// Whether bytes wait for the transport.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        self.deadlines.is_some()
    }

    /// The transport has accepted `len` bytes.
    #[inline]
    pub(super) fn accepted(&mut self, len: usize) {
        if let Some(deadlines) = &mut self.deadlines {
            deadlines.accepted(len);
        }
    }

    /// No bytes wait.
    pub(super) fn clear(&mut self) {
        self.deadlines = None;
    }

    /// The transport is full: `queued` bytes wait for it, or it buffers some itself. `left` is the number of bytes that have left a
    /// transport that buffers, if it counts them; then they replace those that it has [accepted](Self::accepted). True when no bytes waited
    /// before.
    pub(super) fn wait(
        &mut self,
        policy: &SlowPeer,
        now: Duration,
        queued: usize,
        left: Option<u64>,
    ) -> bool {
        let (queue_timeout, stall_timeout) = policy.timeouts();
        let all = if queued > 0 { queued } else { BUFFERED_LEN_MAX };
        let some = match (queued, left) {
            (0, None) => BUFFERED_LEN_MAX,
            (0, Some(_)) => PROGRESS_LEN_MIN,
            (queued, _) => queued.min(PROGRESS_LEN_MIN),
        };
        let deadline = |timeout, left| DrainDeadline { due: now.saturating_add(timeout), left };
        match &mut self.deadlines {
            Some(deadlines) => {
                deadlines.look(now, look_step(policy));
                if let Some(left) = left {
                    let len = left.saturating_sub(std::mem::replace(&mut deadlines.left, left));
                    deadlines.accepted(usize::try_from(len).unwrap_or(usize::MAX));
                }
                if deadlines.queue.left == 0 {
                    deadlines.queue = deadline(queue_timeout, all);
                }
                if deadlines.stall.left == 0 {
                    deadlines.stall = deadline(stall_timeout, some);
                }
                false
            }
            none => {
                let deadlines = Deadlines {
                    queue: deadline(queue_timeout, all),
                    stall: deadline(stall_timeout, some),
                    looked_at: now,
                    left: left.unwrap_or(0),
                    timer: Timer::Unset,
                };
                *none = Some(Box::new(deadlines));
                true
            }
        }
    }

    /// Whether bytes have waited for too long.
    pub(super) fn is_overdue(&self, now: impl FnOnce() -> Duration) -> bool {
        self.deadlines
            .as_ref()
            .is_some_and(|deadlines| deadlines.queue.left > 0 && deadlines.queue.due <= now())
    }

    /// Ready when the peer is to be disconnected; `cx` is woken for that, if there is one.
    pub(super) fn poll_disconnect(
        &mut self,
        policy: &SlowPeer,
        mut cx: Option<&mut Context<'_>>,
    ) -> Poll<()> {
        let disconnects = matches!(policy, SlowPeer::Disconnect { .. });
        let Some(deadlines) = &mut self.deadlines else { return Poll::Pending };
        let due =
            if disconnects { deadlines.queue.due.min(deadlines.stall.due) } else { deadlines.stall.due };
        let step = look_step(policy);
        loop {
            let now = clock::now();
            if due <= now {
                return Poll::Ready(());
            }
            // A deadline that never comes needs no timer. Before the deadline the timer wakes the task, which looks again.
            let next = clock::instant_at(due).and(clock::instant_at(due.min(now.saturating_add(step))));
            let (Some(cx), Some(next)) = (cx.as_deref_mut(), next) else { return Poll::Pending };
            ready!(deadlines.timer.poll(next, cx));
        }
    }
}

fn look_step(policy: &SlowPeer) -> Duration {
    let (queue_timeout, stall_timeout) = policy.timeouts();
    deadline::look_step(queue_timeout.min(stall_timeout))
}

impl Deadlines {
    fn accepted(&mut self, len: usize) {
        for deadline in [&mut self.queue, &mut self.stall] {
            deadline.left = deadline.left.saturating_sub(len);
        }
    }

    fn look(&mut self, now: Duration, step: Duration) {
        // Without a timer the last look may be any time ago.
        if self.timer.is_set() {
            let absence = deadline::absence(now.saturating_sub(self.looked_at), step);
            for deadline in [&mut self.queue, &mut self.stall] {
                deadline.due = deadline.due.saturating_add(absence);
            }
        }
        self.looked_at = now;
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
    fn bytes_that_left_in_time_are_not_late() {
        let (policy, mut slow) = (SlowPeer::Disconnect { queue_timeout: at(10) }, Slow::default());
        assert!(slow.wait(&policy, at(0), 5000, None));
        slow.accepted(4999);
        assert!(!slow.wait(&policy, at(9), 100_000, None));
        assert!(!slow.is_overdue(|| at(9)));
        assert!(slow.is_overdue(|| at(10)));
        // Its last byte leaves: later bytes count from now.
        slow.accepted(1);
        assert!(!slow.is_overdue(|| at(10)));
        assert!(!slow.wait(&policy, at(10), 99_999, None));
        assert!(!slow.is_overdue(|| at(19)));
        assert!(slow.is_overdue(|| at(20)));
        slow.clear();
        assert!(!slow.is_overdue(|| at(20)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_trickle_is_no_progress() {
        for (taken, is_cut) in [(PROGRESS_LEN_MIN - 1, true), (PROGRESS_LEN_MIN, false)] {
            let (policy, mut slow) = (SlowPeer::Wait { stall_timeout: at(10) }, Slow::default());
            slow.wait(&policy, clock::now(), 5000, None);
            slow.accepted(taken);
            tokio::time::advance(at(10)).await;
            slow.wait(&policy, clock::now(), 5000 - taken, None);
            assert_eq!(slow.poll_disconnect(&policy, None).is_ready(), is_cut, "{taken}");
        }
    }

    // In which the peer may have read what the kernel had.
    #[tokio::test(start_paused = true)]
    async fn time_in_which_this_end_is_stopped_does_not_count() {
        let policy = SlowPeer::Disconnect { queue_timeout: at(10) };
        for stopped in [0, 11, 3600] {
            let (mut slow, cx) = (Slow::default(), &mut Context::from_waker(std::task::Waker::noop()));
            slow.wait(&policy, clock::now(), 5000, None);
            assert!(slow.poll_disconnect(&policy, Some(&mut *cx)).is_pending());
            tokio::time::advance(at(stopped)).await;
            slow.accepted(1000);
            let mut seconds = 0;
            loop {
                slow.wait(&policy, clock::now(), 4000, None);
                let is_overdue = slow.is_overdue(clock::now);
                assert_eq!(slow.poll_disconnect(&policy, Some(&mut *cx)).is_ready(), is_overdue);
                if is_overdue {
                    break;
                }
                tokio::time::advance(SECOND).await;
                seconds += 1;
            }
            // A look is due each 2.5 s.
            assert_eq!(seconds, if stopped > 0 { 8 } else { 10 }, "{stopped}");
        }
    }

    // Bytes that TLS buffers while the socket is full have not left.
    #[tokio::test(start_paused = true)]
    async fn bytes_buffered_by_the_transport_wait_too() {
        let start = clock::now();
        let (policy, mut slow) =
            (SlowPeer::DropNewest { queue_timeout: at(5), stall_timeout: at(10) }, Slow::default());
        slow.wait(&policy, start, 0, None);
        slow.accepted(BUFFERED_LEN_MAX - 1);
        slow.wait(&policy, start + at(5), 0, None);
        assert!(slow.is_overdue(|| start + at(5)));
        assert!(slow.poll_disconnect(&policy, None).is_pending());
        tokio::time::advance(at(10)).await;
        assert!(slow.poll_disconnect(&policy, None).is_ready());
    }

    // A client at 1,000 B/s over TLS, of which rustls has the last 64 KiB.
    #[tokio::test(start_paused = true)]
    async fn bytes_that_leave_the_buffer_of_the_transport_are_progress() {
        for (taken, is_cut) in [(PROGRESS_LEN_MIN as u64 - 1, true), (PROGRESS_LEN_MIN as u64, false)] {
            let (policy, mut slow) = (SlowPeer::Wait { stall_timeout: at(10) }, Slow::default());
            let before = 100_000;
            slow.wait(&policy, clock::now(), 0, Some(before));
            // Accepted into the buffer.
            tokio::time::advance(at(10)).await;
            slow.wait(&policy, clock::now(), 0, Some(before + taken));
            assert_eq!(slow.poll_disconnect(&policy, None).is_ready(), is_cut, "{taken}");
        }
    }

    #[test]
    fn without_a_timeout_no_deadline_expires() {
        let (policy, mut slow) = (SlowPeer::Wait { stall_timeout: Duration::MAX }, Slow::default());
        slow.wait(&policy, at(1), 5000, None);
        assert!(!slow.is_overdue(|| at(u32::MAX)));
        assert!(slow.poll_disconnect(&policy, None).is_pending());
    }
}
