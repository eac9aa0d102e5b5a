//! A thread that commits what is submitted to it, all that waits at once.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// The maximum number of jobs in a commit.
pub(super) const BATCH_MAX: usize = 1_024;

/// A thread that commits jobs in their order. When this is dropped, it commits all that were submitted, and ends.
pub(super) struct Committer<J> {
    /// Both are `None` while it is being dropped: the thread ends when its sender is dropped.
    jobs: Option<SyncSender<J>>,
    thread: Option<JoinHandle<()>>,
}

/// Why a job is not committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Too many wait.
    Full,
    /// The thread has panicked.
    Stopped,
}

impl<J: Send + 'static> Committer<J> {
    /// Starts the thread. `commit` returns after how long it is to be called although there is no job; `None` if it need not.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(super) fn start(
        name: &str,
        commit: impl FnMut(Vec<J>) -> Option<Duration> + Send + 'static,
    ) -> std::io::Result<Self> {
        let (jobs, received) = sync_channel(64 * BATCH_MAX);
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || run(&received, commit))?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    pub(super) fn submit(&self, job: J) -> Result<(), Refusal> {
        let jobs = self.jobs.as_ref().ok_or(Refusal::Stopped)?;
        jobs.try_send(job).map_err(|error| match error {
            TrySendError::Full(_) => Refusal::Full,
            TrySendError::Disconnected(_) => Refusal::Stopped,
        })
    }
}

fn run<J>(jobs: &Receiver<J>, mut commit: impl FnMut(Vec<J>) -> Option<Duration>) {
    let mut again_after = None;
    loop {
        let first = match again_after {
            None => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(delay) => jobs.recv_timeout(delay),
        };
        let mut batch: Vec<J> = match first {
            Ok(first) => vec![first],
            Err(RecvTimeoutError::Timeout) => Vec::new(),
            Err(RecvTimeoutError::Disconnected) => return,
        };
        batch.extend(jobs.try_iter().take(BATCH_MAX - 1));
        again_after = commit(batch);
    }
}

impl<J> Drop for Committer<J> {
    fn drop(&mut self) {
        self.jobs = None;
        // If the thread itself drops this, with the hub after a delivery, it goes on with what was submitted.
        if let Some(thread) =
            self.thread.take_if(|thread| thread.thread().id() != std::thread::current().id())
        {
            let _ = thread.join();
        }
    }
}
