//! What has been published and not been written yet. While that is much, publications wait that would begin a burst: the tasks which write
//! would keep all others waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::timeout;

/// The number of visits of subscribers, each with a write, above which publishers wait. It takes some 20 ms of a worker.
const VISITS_MAX: usize = 4 << 10;

/// The number of further publications of a burst that cost as much as the visit of a subscriber.
const LATER_PER_VISIT: usize = 64;

/// How long a publisher waits at most: a runtime that is not run any more writes nothing.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Of a node.
#[derive(Debug, Default)]
pub(crate) struct Undelivered {
    visits: AtomicUsize,
    changed: Notify,
}

impl Undelivered {
    /// Whether not too much is to be written.
    pub(crate) fn has_room(&self) -> bool {
        self.visits.load(Ordering::Acquire) <= VISITS_MAX
    }

    /// Waits until there is room.
    pub(crate) async fn room(&self) {
        let room = async {
            loop {
                let changed = self.changed.notified();
                if self.has_room() {
                    return;
                }
                changed.await;
            }
        };
        // Where there is no runtime there is no timer. After the timeout it is as if the rest had been written.
        if Handle::try_current().is_ok() {
            let _ = timeout(WAIT_MAX, room).await;
        }
    }
}

/// What writing a burst costs, until it has been written.
#[derive(Debug)]
pub(crate) struct Load {
    undelivered: Arc<Undelivered>,
    visits: usize,
}

impl Load {
    pub(crate) fn new(undelivered: &Arc<Undelivered>) -> Self {
        Self { undelivered: undelivered.clone(), visits: 0 }
    }

    /// Adds a publication to the burst.
    pub(crate) fn add(&mut self, subscribers: usize) {
        let visits = if self.visits == 0 { subscribers } else { subscribers / LATER_PER_VISIT };
        self.visits += visits;
        self.undelivered.visits.fetch_add(visits, Ordering::Relaxed);
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let before = self.undelivered.visits.fetch_sub(self.visits, Ordering::AcqRel);
        if before > VISITS_MAX && before - self.visits <= VISITS_MAX {
            self.undelivered.changed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn publishers_wait_while_much_is_to_be_written() {
        let undelivered = Arc::<Undelivered>::default();
        let [mut first, mut second] = [0; 2].map(|_| Load::new(&undelivered));
        first.add(VISITS_MAX);
        undelivered.room().await;
        second.add(1);
        let mut waiting = pin!(undelivered.room());
        let cx = &mut Context::from_waker(Waker::noop());
        assert_eq!(waiting.as_mut().poll(cx), Poll::Pending);
        drop(second);
        assert_eq!(waiting.poll(cx), Poll::Ready(()));
        // A publication that joins a burst costs less.
        for _ in 0..2 {
            first.add(LATER_PER_VISIT);
        }
        assert_eq!(undelivered.visits.load(Ordering::Relaxed), VISITS_MAX + 2);
        let begun = tokio::time::Instant::now();
        undelivered.room().await;
        assert_eq!(begun.elapsed(), WAIT_MAX);
        drop(first);
        assert_eq!(undelivered.visits.load(Ordering::Relaxed), 0);
    }
}
