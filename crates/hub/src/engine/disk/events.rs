//! The queue of events in a file of redb, beside that of histories. One thread reads and changes it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use redb::{Database, ReadableTable, ReadableTableMetadata as _, TableDefinition, WriteTransaction};
use tokio::sync::oneshot;
use tracing::{error, info};

use super::committer::{Committer, Refusal};
use super::file::Store;
use crate::engine::event_queue::{EventQueue, Lease, QUEUE_MAX, QueuedEvent, reported_at};
use crate::engine::status::Status;
use crate::engine::{EngineError, EngineFuture, EngineHealth};
use crate::shards::lock;

/// By node and key: the event that reports that it was lost.
const OPEN: TableDefinition<'_, (&str, &str), &[u8]> = TableDefinition::new("open");
/// In the order in which they were queued.
const QUEUE: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("queue");
/// How often the node of this process has renewed its lease. A file that begins anew has a smaller number.
const RENEWALS: TableDefinition<'_, &str, u64> = TableDefinition::new("renewals");

/// The name of the file in its directory.
pub(super) const FILE: &str = "events.redb";

/// The delay before a file is opened again after a failure although there is nothing to do.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Opens the file, or creates it.
pub(super) type Open = Arc<dyn Fn() -> Result<Store, String> + Send + Sync>;

/// A call, which is carried out within a transaction. Its answer is sent after the commit.
type Call = Box<dyn FnOnce(&WriteTransaction) -> Result<Answer, redb::Error> + Send>;
/// Sends the answer, or the failure.
type Answer = Box<dyn FnOnce(Result<(), EngineError>) + Send>;

struct Job {
    call: Call,
    /// Called instead of the answer if the commit failed.
    failed: Box<dyn FnOnce(EngineError) + Send>,
}

/// The queue in a file. The file is created by the first call.
pub(super) struct DiskQueue {
    open: Open,
    status: Arc<Status>,
    committer: Mutex<Option<Committer<Job>>>,
}

/// The file as its thread has it.
///
/// ```text
///      what the process before left open is queued as lost
///  New ----------------------------------------------------> Open ---a commit fails---> Closed
///                                                             ^                            |
///                                                             '----------------------------'
/// ```
enum File {
    New,
    Open(Store),
    Closed,
}

fn unavailable(reason: impl std::fmt::Display) -> EngineError {
    EngineError::Unavailable(format!("the file of events: {reason}"))
}

impl File {
    /// The open file, or what is to be done before it is used: there is one process at a time, so that a file that this one has not
    /// used is what the process before has left.
    fn store(&mut self, open: &Open) -> Result<&Store, String> {
        let opened = match self {
            Self::Open(store) => return Ok(store),
            Self::Closed => open()?,
            Self::New => {
                let store = open()?;
                store.call(report_lost)?;
                store
            }
        };
        *self = Self::Open(opened);
        self.store(open)
    }

    /// After an error, redb does not use a file any more.
    fn close(&mut self) {
        if let Self::Open(_) = self {
            *self = Self::Closed;
        }
    }
}

/// Queues the event of everything that is open.
fn report_lost(database: &Database) -> Result<(), redb::Error> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let write = database.begin_write()?;
    {
        let (mut open, mut queue) = (write.open_table(OPEN)?, write.open_table(QUEUE)?);
        let lost: Result<Vec<_>, _> =
            open.iter()?.map(|row| row.map(|(_, event)| event.value().to_vec())).collect();
        for event in lost? {
            push(&mut queue, &reported_at(&event, now))?;
        }
        open.retain(|_, _| false)?;
        write.open_table(RENEWALS)?.retain(|_, _| false)?;
    }
    Ok(write.commit()?)
}

/// The number after one of the file; no file has the last one.
fn after(number: u64) -> Result<u64, redb::Error> {
    number.checked_add(1).ok_or_else(|| redb::Error::Corrupted(format!("there is no number after {number}")))
}

fn push(queue: &mut redb::Table<'_, u64, &[u8]>, event: &[u8]) -> Result<(), redb::Error> {
    let next = after(queue.last()?.map_or(0, |(id, _)| id.value()))?;
    queue.insert(next, event)?;
    if queue.len()? > QUEUE_MAX as u64 {
        queue.pop_first()?;
    }
    Ok(())
}

impl DiskQueue {
    pub(super) fn new(open: Open) -> Self {
        Self { open, status: Arc::default(), committer: Mutex::default() }
    }

    pub(super) fn health(&self) -> EngineHealth {
        self.status.health()
    }

    fn start(&self) -> std::io::Result<Committer<Job>> {
        let (open, status, mut file) = (self.open.clone(), self.status.clone(), File::New);
        Committer::start("wireloom-events", move |batch| {
            run_batch(&open, &mut file, &status, batch);
            status.health().failure.map(|_| RETRY_AFTER)
        })
    }

    fn submit(&self, job: Job) -> Result<(), EngineError> {
        let mut committer = lock(&self.committer);
        let committer = match &mut *committer {
            Some(committer) => committer,
            none => none.insert(self.start().map_err(unavailable)?),
        };
        committer.submit(job).map_err(|refusal| match refusal {
            Refusal::Full => unavailable("the disk is too slow"),
            Refusal::Stopped => {
                let stopped = unavailable("the thread has stopped");
                self.status.failed(&stopped.to_string());
                stopped
            }
        })
    }

    fn call<'a, T: Send + 'static>(
        &'a self,
        call: impl FnOnce(&WriteTransaction) -> Result<T, redb::Error> + Send + 'static,
    ) -> EngineFuture<'a, T> {
        Box::pin(async move {
            let (done, answered) = oneshot::channel();
            let done = Arc::new(Mutex::new(Some(done)));
            let answer = move |result: Result<T, EngineError>| {
                let done = lock(&done).take();
                // The caller may have given up.
                if let Some(done) = done {
                    let _ = done.send(result);
                }
            };
            let failed = answer.clone();
            let call: Call = Box::new(move |write| {
                let value = call(write)?;
                Ok(Box::new(move |committed: Result<(), EngineError>| answer(committed.map(|()| value))))
            });
            self.submit(Job { call, failed: Box::new(move |error| failed(Err(error))) })?;
            answered.await.map_err(|_| unavailable("the thread has stopped"))?
        })
    }
}

/// Carries out calls in one transaction. After a failure, all have failed, and the file is opened again.
fn run_batch(open: &Open, file: &mut File, status: &Status, batch: Vec<Job>) {
    let (calls, failures): (Vec<_>, Vec<_>) = batch.into_iter().map(|job| (job.call, job.failed)).unzip();
    let run = |database: &Database| -> Result<Vec<Answer>, redb::Error> {
        let write = database.begin_write()?;
        let answers: Result<Vec<_>, _> = calls.into_iter().map(|call| call(&write)).collect();
        let answers = answers?;
        write.commit()?;
        Ok(answers)
    };
    let committed = file.store(open).and_then(|store| store.call(run));
    match committed {
        Ok(answers) => {
            if status.succeeded() {
                info!("events are stored again");
            }
            answers.into_iter().for_each(|answer| answer(Ok(())));
        }
        Err(reason) => {
            let error = unavailable(reason);
            if status.failed(&error.to_string()) {
                error!(%error, "events cannot be stored; connections are refused until they can");
            }
            file.close();
            failures.into_iter().for_each(|failed| failed(error.clone()));
        }
    }
}

impl EventQueue for DiskQueue {
    fn open<'a>(&'a self, node: &'a str, key: &'a str, event: &'a [u8]) -> EngineFuture<'a, ()> {
        let (node, key, event) = (node.to_owned(), key.to_owned(), event.to_vec());
        self.call(move |write| {
            write.open_table(OPEN)?.insert((&*node, &*key), &*event)?;
            Ok(())
        })
    }

    fn end<'a>(&'a self, node: &'a str, key: &'a str, event: &'a [u8]) -> EngineFuture<'a, ()> {
        let (node, key, event) = (node.to_owned(), key.to_owned(), event.to_vec());
        self.call(move |write| {
            write.open_table(OPEN)?.remove((&*node, &*key))?;
            push(&mut write.open_table(QUEUE)?, &event)
        })
    }

    fn renew<'a>(&'a self, node: &'a str) -> EngineFuture<'a, Lease> {
        let node = node.to_owned();
        // Opens the file, so that what the process before left open is reported.
        self.call(move |write| {
            let mut renewals = write.open_table(RENEWALS)?;
            let number = after(renewals.get(&*node)?.map_or(0, |number| number.value()))?;
            renewals.insert(&*node, number)?;
            Ok(Lease::Renewed { number, others: Some(Vec::new()) })
        })
    }

    fn lose<'a>(&'a self, _: &'a str) -> EngineFuture<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn open_on<'a>(&'a self, node: &'a str, max: usize) -> EngineFuture<'a, Vec<(String, Bytes)>> {
        let node = node.to_owned();
        self.call(move |write| {
            let table = write.open_table(OPEN)?;
            let mut found = Vec::new();
            for row in table.range((&*node, "")..)?.take(max) {
                let (key, event) = row?;
                let (owner, key) = key.value();
                if owner != node {
                    break;
                }
                found.push((key.to_owned(), Bytes::copy_from_slice(event.value())));
            }
            Ok(found)
        })
    }

    fn forget<'a>(&'a self, _: &'a str) -> EngineFuture<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn outlives_process(&self) -> bool {
        true
    }

    fn take(&self, max: usize) -> EngineFuture<'_, Vec<QueuedEvent>> {
        self.call(move |write| {
            let table = write.open_table(QUEUE)?;
            let rows = table.iter()?.take(max).map(|row| {
                let (id, event) = row?;
                Ok(QueuedEvent { id: id.value().to_string(), event: Bytes::copy_from_slice(event.value()) })
            });
            rows.collect()
        })
    }

    fn acknowledge<'a>(&'a self, ids: &'a [String]) -> EngineFuture<'a, ()> {
        let ids: Vec<u64> = ids.iter().filter_map(|id| id.parse().ok()).collect();
        self.call(move |write| {
            let mut table = write.open_table(QUEUE)?;
            for id in ids {
                table.remove(id)?;
            }
            Ok(())
        })
    }

    /// Those that were taken have stayed in the queue.
    fn release<'a>(&'a self, _: &'a [String]) -> EngineFuture<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::disk::file;

    /// The rows have the right checksums.
    #[tokio::test]
    async fn the_last_number_of_all_is_damage() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        let store = file::open(&path).unwrap();
        let written = store.call(|database| -> Result<(), redb::Error> {
            let write = database.begin_write()?;
            write.open_table(QUEUE)?.insert(u64::MAX, &b"event"[..])?;
            Ok(write.commit()?)
        });
        written.unwrap();
        drop(store);
        let queue = DiskQueue::new(Arc::new(move || file::open(&path).map_err(|error| error.to_string())));
        assert!(queue.end("node", "a", b"event").await.is_err());
        let queued = queue.take(10).await.unwrap();
        assert_eq!(queued.len(), 1);
        queue.acknowledge(&[queued[0].id.clone()]).await.unwrap();
        queue.end("node", "a", b"event").await.unwrap();
    }
}
