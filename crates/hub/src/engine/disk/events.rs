//! The queue of events in a file of redb, beside that of histories. One thread reads and changes it.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use redb::{Database, ReadableTable, ReadableTableMetadata as _, TableDefinition, WriteTransaction};
use tokio::sync::oneshot;

use super::file;
use crate::engine::event_queue::{EventQueue, Lease, QUEUE_MAX, QueuedEvent};
use crate::engine::{EngineError, EngineFuture};

/// By node and key: the event that reports that it was lost.
const OPEN: TableDefinition<'_, (&str, &str), &[u8]> = TableDefinition::new("open");
/// In the order in which they were queued.
const QUEUE: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("queue");

/// The maximum number of calls that one commit carries out.
const BATCH_MAX: usize = 1_024;

/// The name of the file in its directory.
const FILE: &str = "events.redb";

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
#[derive(Debug)]
pub(super) struct DiskQueue {
    path: PathBuf,
    jobs: Mutex<Option<SyncSender<Job>>>,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Job")
    }
}

fn unavailable(reason: impl std::fmt::Display) -> EngineError {
    EngineError::Unavailable(format!("the file of events: {reason}"))
}

/// Opens the file. What was open when the process before ended is queued as lost: there is one process at a time.
fn open(path: &Path) -> Result<Database, EngineError> {
    let database = file::open(path).map_err(unavailable)?;
    let lost = file::guarded(|| -> Result<(), redb::Error> {
        let write = database.begin_write()?;
        {
            let (mut open, mut queue) = (write.open_table(OPEN)?, write.open_table(QUEUE)?);
            let lost: Result<Vec<_>, _> =
                open.iter()?.map(|row| row.map(|(_, event)| event.value().to_vec())).collect();
            for event in lost? {
                push(&mut queue, &event)?;
            }
            open.retain(|_, _| false)?;
        }
        Ok(write.commit()?)
    });
    lost.map_err(unavailable)?;
    Ok(database)
}

fn push(queue: &mut redb::Table<'_, u64, &[u8]>, event: &[u8]) -> Result<(), redb::Error> {
    let next = queue.last()?.map_or(0, |(id, _)| id.value()) + 1;
    queue.insert(next, event)?;
    if queue.len()? > QUEUE_MAX as u64 {
        queue.pop_first()?;
    }
    Ok(())
}

impl DiskQueue {
    pub(super) fn new(directory: &Path) -> Self {
        Self { path: directory.join(FILE), jobs: Mutex::default() }
    }

    fn submit(&self, job: Job) -> Result<(), EngineError> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if jobs.is_none() {
            let (sender, received) = sync_channel::<Job>(64 * BATCH_MAX);
            let path = self.path.clone();
            let run = move || {
                let mut database = None;
                while let Ok(first) = received.recv() {
                    let batch =
                        std::iter::once(first).chain(received.try_iter().take(BATCH_MAX - 1)).collect();
                    run_batch(&path, &mut database, batch);
                }
            };
            let spawned = std::thread::Builder::new().name("wireloom-events".into()).spawn(run);
            spawned.map_err(unavailable)?;
            *jobs = Some(sender);
        }
        let sender = jobs.as_ref().ok_or_else(|| unavailable("not started"))?;
        sender.try_send(job).map_err(|_| unavailable("the disk is too slow"))
    }

    fn call<'a, T: Send + 'static>(
        &'a self,
        call: impl FnOnce(&WriteTransaction) -> Result<T, redb::Error> + Send + 'static,
    ) -> EngineFuture<'a, T> {
        Box::pin(async move {
            let (done, answered) = oneshot::channel();
            let done = std::sync::Arc::new(Mutex::new(Some(done)));
            let answer = move |result: Result<T, EngineError>| {
                let done = done.lock().unwrap_or_else(PoisonError::into_inner).take();
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
fn run_batch(path: &Path, database: &mut Option<Database>, batch: Vec<Job>) {
    let (calls, failures): (Vec<_>, Vec<_>) = batch.into_iter().map(|job| (job.call, job.failed)).unzip();
    let committed = (|| {
        let database = match database {
            Some(database) => database,
            None => database.insert(open(path)?),
        };
        let run = || -> Result<Vec<Answer>, redb::Error> {
            let write = database.begin_write()?;
            let answers: Result<Vec<_>, _> = calls.into_iter().map(|call| call(&write)).collect();
            let answers = answers?;
            write.commit()?;
            Ok(answers)
        };
        file::guarded(run).map_err(unavailable)
    })();
    match committed {
        Ok(answers) => answers.into_iter().for_each(|answer| answer(Ok(()))),
        Err(error) => {
            *database = None;
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
        self.call(move |_| Ok(Lease::Renewed(vec![(node, 0)])))
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
}
