//! Wakes connections when their messages are due. The timers of the runtime have steps of a millisecond; a thread that sleeps is
//! more exact.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// When the messages of a connection are due: evenly, from `first` on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    first: Instant,
    interval_s: f64,
    sent: u64,
}

impl Schedule {
    pub(super) fn new(first: Instant, interval_s: f64) -> Self {
        Self { first, interval_s, sent: 0 }
    }

    /// When the next message is due.
    pub(super) fn next(&self) -> Instant {
        self.first + Duration::from_secs_f64(self.sent as f64 * self.interval_s)
    }

    pub(super) fn advance(&mut self) {
        self.sent += 1;
    }
}

/// A connection to wake. It has ended when the `Notify` is gone.
struct Paced {
    schedule: Schedule,
    notify: Weak<Notify>,
}

/// The thread. It ends when all clones have been dropped.
#[derive(Clone)]
pub(super) struct Pacer(Sender<Paced>);

impl Pacer {
    pub(super) fn start() -> std::io::Result<Self> {
        let (sender, receiver) = channel();
        std::thread::Builder::new().name("pacer".into()).spawn(move || run(&receiver))?;
        Ok(Self(sender))
    }

    /// Notifies at each time of the schedule, until the result is dropped.
    pub(super) fn add(&self, schedule: Schedule) -> Arc<Notify> {
        let notify = Arc::new(Notify::new());
        // The thread runs for as long as there is a `Pacer`.
        let _ = self.0.send(Paced { schedule, notify: Arc::downgrade(&notify) });
        notify
    }
}

fn run(receiver: &Receiver<Paced>) {
    let mut paced: Vec<Paced> = Vec::new();
    let mut due: BinaryHeap<Reverse<(Instant, usize)>> = BinaryHeap::new();
    loop {
        let timeout = due
            .peek()
            .map_or(Duration::from_secs(1), |Reverse((at, _))| at.saturating_duration_since(Instant::now()));
        let added = if timeout.is_zero() {
            receiver.try_recv().ok()
        } else {
            match receiver.recv_timeout(timeout) {
                Ok(added) => Some(added),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        };
        if let Some(added) = added {
            due.push(Reverse((added.schedule.next(), paced.len())));
            paced.push(added);
        }
        let now = Instant::now();
        while let Some(Reverse((_, index))) = due.peek().copied().filter(|Reverse((at, _))| *at <= now) {
            due.pop();
            let Paced { schedule, notify } = &mut paced[index];
            if let Some(notify) = notify.upgrade() {
                notify.notify_one();
                // One notification is enough for all messages that are due.
                while schedule.next() <= now {
                    schedule.advance();
                }
                due.push(Reverse((schedule.next(), index)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_do_not_drift() {
        let first = Instant::now();
        let mut schedule = Schedule::new(first, 1.0 / 3.0);
        for _ in 0..300_000 {
            schedule.advance();
        }
        let drift = (schedule.next() - first).as_secs_f64() - 100_000.0;
        assert!(drift.abs() < 1e-6, "{drift}");
    }
}
