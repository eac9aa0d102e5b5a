//! The state that the connections of a run share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::task::JoinError;

use super::end::End;
use super::pacer::{Alarm, Pacer, Schedule, Timetable};
use super::plan::Plan;
use super::recorder::Recorder;
use super::room::Room;
use super::target::Opener;
use super::work::Work;

/// The result of a task; `None` if it was aborted. A panic goes on here: what the other tasks measure must not look like the result.
pub(super) fn joined<T>(ended: Result<T, JoinError>) -> Option<T> {
    match ended {
        Ok(result) => Some(result),
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => None,
    }
}

/// State shared by the connections of a run.
pub(super) struct Run {
    pub(super) plan: Plan,
    pub(super) work: Arc<Work>,
    pub(super) opener: Arc<Opener>,
    pub(super) room: Room,
    /// For idle connections.
    pub(super) end: End,
    pub(super) recorder: Arc<Mutex<Recorder>>,
    /// Messages that may still be sent; `None` without `--count`.
    pub(super) tickets: Option<AtomicU64>,
    pub(super) timetable: Option<Arc<Timetable>>,
    pub(super) pacer: Option<Arc<Pacer>>,
}

impl Run {
    pub(super) fn recorder(&self) -> MutexGuard<'_, Recorder> {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a ticket, the right to send a message; returns whether there was one. Messages of the warm-up need none.
    pub(super) fn take_ticket(&self, is_measured: bool) -> bool {
        let take = |tickets: u64| tickets.checked_sub(1);
        match &self.tickets {
            Some(tickets) if is_measured => {
                tickets.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
            }
            _ => true,
        }
    }

    /// Returns the ticket of a message that was not sent.
    pub(super) fn return_ticket(&self, is_measured: bool) {
        if let Some(tickets) = self.tickets.as_ref().filter(|_| is_measured) {
            tickets.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether more messages may be sent.
    pub(super) fn has_tickets(&self) -> bool {
        self.tickets.as_ref().is_none_or(|tickets| tickets.load(Ordering::Relaxed) > 0)
    }

    /// The part of the open loop that the connection with this index sends.
    pub(super) fn schedule(&self, index: usize, from: Instant) -> Option<(Schedule, Alarm)> {
        let timetable = self.timetable.clone()?;
        let step = self.work.publishers as u64;
        Some((Schedule::new(timetable, index as u64, step, from), self.alarm()?))
    }

    /// An alarm; `None` in the closed loop.
    pub(super) fn alarm(&self) -> Option<Alarm> {
        self.pacer.as_ref().map(Pacer::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    #[should_panic(expected = "a defect")]
    async fn a_task_that_panics_ends_the_command() {
        let aborted = tokio::spawn(std::future::pending::<()>());
        aborted.abort();
        assert_eq!(joined(aborted.await), None);
        assert_eq!(joined(tokio::spawn(async { 7 }).await), Some(7));
        joined(tokio::spawn(async { panic!("a defect") }).await);
    }
}
