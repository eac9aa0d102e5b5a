//! Histories that survive a restart, in one file of redb.
//!
//! A publication is delivered and acknowledged only after it was committed, so that no client knows a position that a
//! crash could undo. One thread writes; everything that arrives during a commit goes into the next one. Histories are
//! read from memory, which has the same content.

use std::fmt;
use std::path::Path;
use std::sync::Weak;
use std::time::Duration;

use prost::Message as _;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use tokio::sync::oneshot;
use tracing::error;

use super::{Control, Delivery, Engine, EngineError, EngineFuture, Membership, MemoryEngine};
use crate::config::RecoveryMode;
use crate::history::{History, HistoryQuery, Log, Position, Recovery, Retention};
use crate::protocol::{ClientInfo, Publication};

/// By channel: the epoch and the offset of the last publication.
const POSITIONS: TableDefinition<'_, &str, (&str, u64)> = TableDefinition::new("positions");
/// By channel and offset: when it expires, in milliseconds since 1970, and the publication as Protobuf.
const PUBLICATIONS: TableDefinition<'_, (&str, u64), (u64, &[u8])> = TableDefinition::new("publications");

/// The maximum number of publications in a commit.
const BATCH_MAX: usize = 1_024;

/// Histories in a file, and presence in memory; there are no other nodes.
pub struct DiskEngine {
    memory: std::sync::Arc<MemoryEngine>,
    /// `None` while the engine is being dropped: the writer ends when its sender is dropped.
    jobs: Option<std::sync::mpsc::SyncSender<Job>>,
    writer: Option<std::thread::JoinHandle<()>>,
}

/// Why the file cannot be used, as a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskError(String);

impl fmt::Display for DiskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for DiskError {}

enum Job {
    Publish {
        channel: String,
        publication: Box<Publication>,
        retention: Retention,
        done: oneshot::Sender<Result<Position, EngineError>>,
    },
    /// Everything before this offset has expired.
    Expire { channel: String, first: u64 },
    /// The history was removed, or has not been used for a long time.
    Remove { channel: String, done: Option<oneshot::Sender<Result<Position, EngineError>>> },
}

impl fmt::Debug for DiskEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DiskEngine")
    }
}

impl DiskEngine {
    /// Opens the histories in a directory, or creates them. While they are open, other processes cannot open them. All
    /// kept publications are in `memory` too, whose limits apply.
    ///
    /// # Errors
    /// The directory cannot be created, or the file cannot be opened or is damaged.
    pub fn open(directory: &Path, memory: MemoryEngine) -> Result<Self, DiskError> {
        let failed = |error: &dyn fmt::Display| DiskError(format!("{}: {error}", directory.display()));
        std::fs::create_dir_all(directory).map_err(|error| failed(&error))?;
        let database = Database::create(directory.join("history.redb")).map_err(|error| failed(&error))?;
        let memory = std::sync::Arc::new(memory);
        load(&database, &memory).map_err(|error| failed(&error))?;
        let (jobs, received) = std::sync::mpsc::sync_channel(64 * BATCH_MAX);
        let store = Store { database, memory: memory.clone() };
        let writer = std::thread::Builder::new()
            .name("wireloom-history".into())
            .spawn(move || store.run(&received))
            .map_err(|error| failed(&error))?;
        Ok(Self { memory, jobs: Some(jobs), writer: Some(writer) })
    }

    fn submit(&self, job: Job) -> Result<(), EngineError> {
        let jobs = self.jobs.as_ref().ok_or_else(stopped)?;
        jobs.try_send(job).map_err(|error| match error {
            std::sync::mpsc::TrySendError::Full(_) => EngineError::Unavailable("the disk is too slow".into()),
            std::sync::mpsc::TrySendError::Disconnected(_) => stopped(),
        })
    }
}

fn stopped() -> EngineError {
    EngineError::Unavailable("the history's writer has stopped".into())
}

impl Drop for DiskEngine {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(writer) = self.writer.take() {
            // It commits all submitted jobs first.
            let _ = writer.join();
        }
    }
}

/// Loads all histories into memory.
fn load(database: &Database, memory: &MemoryEngine) -> Result<(), redb::Error> {
    let write = database.begin_write()?;
    write.open_table(POSITIONS)?;
    write.open_table(PUBLICATIONS)?;
    write.commit()?;
    let read = database.begin_read()?;
    let (positions, publications) = (read.open_table(POSITIONS)?, read.open_table(PUBLICATIONS)?);
    let now = memory.clock().now();
    for row in positions.iter()? {
        let (channel, position) = row?;
        let (channel, (epoch, offset)) = (channel.value(), position.value());
        let mut kept = Vec::new();
        for row in publications.range((channel, 0)..=(channel, u64::MAX))? {
            let (key, value) = row?;
            let (expires_at, bytes) = value.value();
            // Offsets must stay consecutive up to the last one: everything before a gap is dropped.
            let follows = kept
                .last()
                .is_none_or(|(last, _): &(std::sync::Arc<Publication>, _)| last.offset + 1 == key.value().1);
            if !follows {
                kept.clear();
            }
            match Publication::decode(bytes) {
                Ok(publication) => kept.push((publication.into(), Duration::from_millis(expires_at))),
                Err(_) => kept.clear(),
            }
        }
        if kept.last().is_some_and(|(last, _)| last.offset != offset) {
            kept.clear();
        }
        let mut log = Log::restore(Position { offset, epoch: epoch.into() }, kept, now);
        log.expire(now);
        memory.restore(channel, log);
    }
    Ok(())
}

/// The state of the writer.
struct Store {
    database: Database,
    memory: std::sync::Arc<MemoryEngine>,
}

impl Store {
    fn run(self, jobs: &std::sync::mpsc::Receiver<Job>) {
        while let Ok(first) = jobs.recv() {
            let mut batch = vec![first];
            // Offsets are computed from the state of memory, so a removal must be the last job of its batch.
            while batch.len() < BATCH_MAX && !matches!(batch.last(), Some(Job::Remove { .. })) {
                match jobs.try_recv() {
                    Ok(job) => batch.push(job),
                    Err(_) => break,
                }
            }
            match self.commit(&batch) {
                Ok(()) => batch.into_iter().for_each(|job| self.apply(job)),
                Err(failure) => {
                    error!(%failure, "the history was not written");
                    let reason = EngineError::Unavailable(failure.to_string());
                    for job in batch {
                        if let Job::Publish { done, .. } | Job::Remove { done: Some(done), .. } = job {
                            let _ = done.send(Err(reason.clone()));
                        }
                    }
                }
            }
        }
    }

    /// Writes a batch to disk before it is applied to memory: offsets continue from those in memory.
    fn commit(&self, batch: &[Job]) -> Result<(), redb::Error> {
        let now = self.memory.clock().now();
        let write = self.database.begin_write()?;
        {
            let mut positions = write.open_table(POSITIONS)?;
            let mut publications = write.open_table(PUBLICATIONS)?;
            let mut tops = std::collections::HashMap::<&str, Position>::new();
            for job in batch {
                match job {
                    Job::Publish { channel, publication, retention, .. } => {
                        let position = match tops.entry(channel) {
                            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
                            std::collections::hash_map::Entry::Vacant(entry) => {
                                // If there are too many channels, the error is reported when the batch is applied.
                                let Ok(position) = self.memory.position(channel) else { continue };
                                entry.insert(position)
                            }
                        };
                        position.offset += 1;
                        let mut publication = Publication::clone(publication);
                        publication.offset = position.offset;
                        let expires_at = now.saturating_add(retention.ttl).as_millis();
                        let expires_at = u64::try_from(expires_at).unwrap_or(u64::MAX);
                        let value = (expires_at, &publication.encode_to_vec()[..]);
                        publications.insert((&**channel, position.offset), value)?;
                        positions.insert(&**channel, (&*position.epoch, position.offset))?;
                        if let Some(last) = position.offset.checked_sub(retention.size as u64) {
                            // The configured size may have become smaller: remove older ones as well.
                            publications.retain_in((&**channel, 0)..=(&**channel, last), |_, _| false)?;
                        }
                    }
                    Job::Expire { channel, first } => {
                        publications.retain_in((&**channel, 0)..(&**channel, *first), |_, _| false)?;
                    }
                    Job::Remove { channel, .. } => {
                        publications.retain_in((&**channel, 0)..=(&**channel, u64::MAX), |_, _| false)?;
                        positions.remove(&**channel)?;
                    }
                }
            }
        }
        write.commit()?;
        Ok(())
    }

    fn apply(&self, job: Job) {
        match job {
            Job::Publish { channel, publication, retention, done } => {
                // The publisher may have been cancelled.
                let _ = done.send(self.memory.append(&channel, *publication, retention));
            }
            Job::Expire { .. } => {}
            Job::Remove { channel, done } => {
                let Some(done) = done else { return };
                self.memory.forget(&channel);
                let _ = done.send(Ok(Position::default()));
            }
        }
    }
}

impl Engine for DiskEngine {
    fn name(&self) -> &'static str {
        "disk"
    }

    fn start(&self, delivery: Weak<dyn Delivery>) {
        self.memory.start(delivery);
    }

    fn publish<'a>(
        &'a self,
        channel: &'a str,
        publication: Publication,
        retention: Option<Retention>,
    ) -> EngineFuture<'a, Position> {
        let Some(retention) = retention else { return self.memory.publish(channel, publication, None) };
        Box::pin(async move {
            let (done, written) = oneshot::channel();
            let publication = Box::new(publication);
            self.submit(Job::Publish { channel: channel.into(), publication, retention, done })?;
            written.await.map_err(|_| stopped())?
        })
    }

    fn publish_membership<'a>(&'a self, channel: &'a str, membership: Membership) -> EngineFuture<'a, ()> {
        self.memory.publish_membership(channel, membership)
    }

    fn subscribe<'a>(&'a self, channel: &'a str) -> EngineFuture<'a, ()> {
        self.memory.subscribe(channel)
    }

    fn unsubscribe(&self, channel: &str) {
        self.memory.unsubscribe(channel);
    }

    fn history<'a>(
        &'a self,
        channel: &'a str,
        query: &'a HistoryQuery,
        retention: Retention,
    ) -> EngineFuture<'a, History> {
        self.memory.history(channel, query, retention)
    }

    fn recover<'a>(
        &'a self,
        channel: &'a str,
        since: Option<&'a Position>,
        mode: RecoveryMode,
        retention: Retention,
    ) -> EngineFuture<'a, Recovery> {
        self.memory.recover(channel, since, mode, retention)
    }

    fn remove_history<'a>(&'a self, channel: &'a str) -> EngineFuture<'a, ()> {
        Box::pin(async move {
            let (done, written) = oneshot::channel();
            self.submit(Job::Remove { channel: channel.into(), done: Some(done) })?;
            written.await.map_err(|_| stopped())?.map(drop)
        })
    }

    fn add_presence<'a>(&'a self, channel: &'a str, info: &'a ClientInfo) -> EngineFuture<'a, ()> {
        self.memory.add_presence(channel, info)
    }

    fn remove_presence<'a>(&'a self, channel: &'a str, client: &'a str) -> EngineFuture<'a, ()> {
        self.memory.remove_presence(channel, client)
    }

    fn presence<'a>(&'a self, channel: &'a str) -> EngineFuture<'a, Vec<ClientInfo>> {
        self.memory.presence(channel)
    }

    fn control(&self, control: Control) -> EngineFuture<'_, ()> {
        self.memory.control(control)
    }

    fn maintain(&self) {
        let (mut expired, mut forgotten) = (Vec::new(), Vec::new());
        self.memory.sweep(
            |channel, first| expired.push((channel.to_owned(), first)),
            |channel| forgotten.push(channel.to_owned()),
        );
        // If the queue has no room for a job, its work is done when the file is loaded.
        let expired = expired.into_iter().map(|(channel, first)| Job::Expire { channel, first });
        let forgotten = forgotten.into_iter().map(|channel| Job::Remove { channel, done: None });
        expired.chain(forgotten).for_each(|job| drop(self.submit(job)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: Retention = Retention { size: 3, ttl: Duration::from_secs(3600) };

    async fn publish(engine: &DiskEngine, channel: &str, data: &'static str) -> Position {
        let publication = Publication { data: data.into(), ..Publication::default() };
        engine.publish(channel, publication, Some(KEEP)).await.unwrap()
    }

    async fn read(engine: &DiskEngine, channel: &str) -> (Vec<(u64, String)>, Position) {
        let history = engine.history(channel, &HistoryQuery::default(), KEEP).await.unwrap();
        let data =
            |one: &std::sync::Arc<Publication>| (one.offset, String::from_utf8(one.data.to_vec()).unwrap());
        (history.publications.iter().map(data).collect(), history.position)
    }

    #[tokio::test]
    async fn histories_and_positions_survive_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let engine = DiskEngine::open(directory.path(), MemoryEngine::new(10)).unwrap();
        for data in ["1", "2", "3", "4"] {
            publish(&engine, "a", data).await;
        }
        let before = read(&engine, "a").await;
        let epoch = before.1.epoch.clone();
        assert_eq!(before.0, [(2, "2".into()), (3, "3".into()), (4, "4".into())]);
        drop(engine);
        let engine = DiskEngine::open(directory.path(), MemoryEngine::new(10)).unwrap();
        assert_eq!(read(&engine, "a").await, before);
        assert_eq!(publish(&engine, "a", "5").await, Position { offset: 5, epoch });
    }

    #[tokio::test]
    async fn a_removed_history_starts_a_new_epoch() {
        let directory = tempfile::tempdir().unwrap();
        let engine = DiskEngine::open(directory.path(), MemoryEngine::new(10)).unwrap();
        let first = publish(&engine, "a", "1").await;
        engine.remove_history("a").await.unwrap();
        let second = publish(&engine, "a", "1").await;
        assert_eq!((first.offset, second.offset), (1, 1));
        assert_ne!(first.epoch, second.epoch);
        drop(engine);
        let engine = DiskEngine::open(directory.path(), MemoryEngine::new(10)).unwrap();
        assert_eq!(read(&engine, "a").await.1, second);
    }

    #[tokio::test]
    async fn a_publication_right_after_a_removal_is_in_the_new_history() {
        let directory = tempfile::tempdir().unwrap();
        let engine = DiskEngine::open(directory.path(), MemoryEngine::new(10)).unwrap();
        let before = publish(&engine, "a", "1").await;
        // The writer is busy with the first, so that the others are written together.
        let ((), _, (), last) = tokio::join!(
            async { drop(publish(&engine, "b", "1").await) },
            publish(&engine, "a", "2"),
            async { engine.remove_history("a").await.unwrap() },
            publish(&engine, "a", "3"),
        );
        assert_ne!(last.epoch, before.epoch);
        let expected = read(&engine, "a").await;
        assert_eq!(expected, (vec![(1, "3".into())], last));
        drop(engine);
        let engine = DiskEngine::open(directory.path(), MemoryEngine::new(10)).unwrap();
        assert_eq!(read(&engine, "a").await, expected);
    }

    #[tokio::test]
    async fn refuses_a_directory_that_is_in_use() {
        let directory = tempfile::tempdir().unwrap();
        let _engine = DiskEngine::open(directory.path(), MemoryEngine::new(10)).unwrap();
        let error = DiskEngine::open(directory.path(), MemoryEngine::new(10)).unwrap_err().to_string();
        assert!(error.contains(&directory.path().display().to_string()), "{error}");
    }
}
