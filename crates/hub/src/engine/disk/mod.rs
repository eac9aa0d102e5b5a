//! Histories that survive a restart, in one file of redb.
//!
//! ```text
//! publish, remove_history, maintain --jobs--> writer: plan -> commit -> memory, delivery, answer
//! history, recover <--------------------------------------- memory
//! ```
//!
//! One thread, the [`Writer`], changes the file and the histories in memory, in this order. A publication is delivered and
//! acknowledged after it was committed, so that no client knows a position that a crash could undo. Everything that
//! arrives during a commit goes into the next one.
//!
//! Layers: `committer`, `damaged` → `file` → `events`, `salvage`, `writer` → `crash`.

mod committer;
#[cfg(test)]
mod crash;
mod damaged;
mod events;
mod file;
mod salvage;
mod writer;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use tokio::sync::{Semaphore, oneshot};

use self::committer::{Committer, Refusal};
use self::writer::{Job, Overdue, Writer};
use super::status::Status;
use super::{
    Control, Delivery, Engine, EngineError, EngineFuture, EngineHealth, EventQueue, Maintaining, Membership,
    MemoryEngine,
};
use crate::config::RecoveryMode;
use crate::history::{History, HistoryQuery, Position, Recovery, Retention};
use crate::protocol::{ClientInfo, PresenceStatsResult, Publication};

pub use self::file::FileReport;
pub use self::salvage::Salvaged;

/// The name of the file in its directory.
const FILE: &str = "history.redb";

/// Histories in a file, and presence in memory; there are no other nodes.
pub struct DiskEngine {
    memory: Arc<MemoryEngine>,
    status: Arc<Status>,
    events: events::DiskQueue,
    writer: Committer<Job>,
    /// Taken while the writer has a [`Job::Maintain`].
    maintaining: Arc<Semaphore>,
}

/// Why the file of histories cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DiskError {
    /// Another process uses it.
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// Its content is damaged: it was truncated, overwritten, or is of another kind.
    Damaged {
        /// The file.
        path: PathBuf,
        /// The reason, as a text.
        reason: String,
    },
    /// It cannot be read or written.
    Io {
        /// The file or its directory.
        path: PathBuf,
        /// The error of the system, as a text.
        reason: String,
    },
}

impl fmt::Display for DiskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse { path } => write!(f, "{}: another process uses it", path.display()),
            Self::Damaged { path, reason } => write!(f, "{} is damaged: {reason}", path.display()),
            Self::Io { path, reason } => write!(f, "{}: {reason}", path.display()),
        }
    }
}

impl std::error::Error for DiskError {}

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
        let path = directory.join(FILE);
        let io = |error: std::io::Error| DiskError::Io { path: directory.into(), reason: error.to_string() };
        create_directory(directory, sync_directory).map_err(io)?;
        let database = file::open(&path)?;
        let memory = Arc::new(memory);
        let reopened = path.clone();
        let open = Box::new(move || file::open(&reopened).map_err(|error| error.to_string()));
        let writer = Writer::load(memory.clone(), database, open)
            .map_err(|reason| DiskError::Damaged { path, reason })?;
        Self::start_writer(memory, writer, directory).map_err(io)
    }

    fn start_writer(
        memory: Arc<MemoryEngine>,
        mut writer: Writer,
        directory: &Path,
    ) -> std::io::Result<Self> {
        let status = writer.status();
        let writer = Committer::start("wireloom-history", move |batch| {
            writer.handle(batch);
            writer.retry_after()
        })?;
        let path = directory.join(events::FILE);
        let open = move || file::open(&path).map_err(|error| error.to_string());
        let events = events::DiskQueue::new(Arc::new(open));
        let maintaining = Arc::new(Semaphore::new(1));
        Ok(Self { memory, status, events, writer, maintaining })
    }

    /// Checks the file of histories in a directory, and repairs what a crash left behind. The file must not be in use.
    ///
    /// # Errors
    /// There is no file, or it cannot be opened or is damaged.
    pub fn check(directory: &Path) -> Result<FileReport, DiskError> {
        file::check(&directory.join(FILE))
    }

    /// Renames the file of histories in a directory, so that the next start begins without histories. Returns the new
    /// path.
    ///
    /// # Errors
    /// There is no file, it is in use, or it cannot be renamed.
    pub fn set_aside(directory: &Path) -> Result<PathBuf, DiskError> {
        file::set_aside(&directory.join(FILE))
    }

    /// Reads what is left of a damaged file of histories, sets the file aside, and writes a new one. Of each channel, the newest
    /// publications without a gap are kept. A channel keeps its position if that can be read: clients that missed only what is kept
    /// recover. Others have a new epoch, and their clients learn that they cannot recover.
    ///
    /// # Errors
    /// There is no file, it is in use, nothing in it can be read, or the new one cannot be written.
    pub fn salvage(directory: &Path) -> Result<Salvaged, DiskError> {
        salvage::salvage(&directory.join(FILE))
    }

    fn submit(&self, job: Job) -> Result<(), EngineError> {
        self.writer.submit(job).map_err(|refusal| match refusal {
            Refusal::Full => EngineError::Unavailable("the disk is too slow".into()),
            Refusal::Stopped => {
                self.status.failed(&stopped().to_string());
                stopped()
            }
        })
    }

    async fn answer(
        &self,
        job: impl FnOnce(oneshot::Sender<Result<Position, EngineError>>) -> Job,
    ) -> Result<Position, EngineError> {
        let (done, written) = oneshot::channel();
        self.submit(job(done))?;
        written.await.map_err(|_| stopped())?
    }
}

/// Creates a directory and those above it. Returns when their names survive a power failure.
fn create_directory(directory: &Path, sync: impl Fn(&Path) -> std::io::Result<()>) -> std::io::Result<()> {
    let above = || directory.ancestors().filter(|one| !one.as_os_str().is_empty());
    let missing = above().take_while(|one| !one.exists()).count();
    std::fs::create_dir_all(directory)?;
    for (number, one) in above().enumerate() {
        let Some(parent) = one.parent() else { break };
        let synced = sync(if parent.as_os_str().is_empty() { Path::new(".") } else { parent });
        // One that was there may be that of a process that was killed before this, or not be ours to read.
        if number < missing {
            synced?;
        }
    }
    Ok(())
}

#[cfg(unix)]
fn sync_directory(directory: &Path) -> std::io::Result<()> {
    std::fs::File::open(directory)?.sync_all()
}

#[cfg(not(unix))]
fn sync_directory(_: &Path) -> std::io::Result<()> {
    Ok(())
}

fn stopped() -> EngineError {
    EngineError::Unavailable("the history's writer has stopped".into())
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
        idempotency_key: &'a str,
    ) -> EngineFuture<'a, Position> {
        let Some(retention) = retention else {
            return self.memory.publish(channel, publication, None, idempotency_key);
        };
        let (channel, publication, key) = (channel.into(), Box::new(publication), idempotency_key.into());
        Box::pin(self.answer(move |done| Job::Publish { channel, publication, retention, key, done }))
    }

    fn is_immediate(&self, retention: Option<&Retention>) -> bool {
        retention.is_none()
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
        len_max: usize,
    ) -> EngineFuture<'a, Recovery> {
        self.memory.recover(channel, since, mode, retention, len_max)
    }

    fn remove_history<'a>(&'a self, channel: &'a str) -> EngineFuture<'a, ()> {
        let Some(decision) = self.memory.removal(channel) else {
            return Box::pin(std::future::ready(Ok(())));
        };
        Box::pin(async move {
            let channel = channel.into();
            self.answer(|done| Job::Drop { channel, decision, done: Some(done) }).await.map(drop)
        })
    }

    fn add_presence<'a>(&'a self, channel: &'a str, info: &'a ClientInfo) -> EngineFuture<'a, ()> {
        self.memory.add_presence(channel, info)
    }

    fn remove_presence<'a>(&'a self, channel: &'a str, client: &'a str) -> EngineFuture<'a, ()> {
        self.memory.remove_presence(channel, client)
    }

    fn presence<'a>(
        &'a self,
        channel: &'a str,
        len_max: usize,
    ) -> EngineFuture<'a, Option<Vec<Arc<ClientInfo>>>> {
        self.memory.presence(channel, len_max)
    }

    fn presence_stats<'a>(&'a self, channel: &'a str) -> EngineFuture<'a, PresenceStatsResult> {
        self.memory.presence_stats(channel)
    }

    fn control(&self, control: Control) -> EngineFuture<'_, ()> {
        self.memory.control(control)
    }

    fn maintain(&self) -> Maintaining<'_> {
        Box::pin(async {
            self.memory.correct_clock();
            // Nothing new is decided before everything is dropped.
            let Ok(permit) = self.maintaining.clone().try_acquire_owned() else { return };
            let drops = self.memory.logs().overdue(self.memory.now()).await.into();
            // If the queue is full, the drops are decided again in a second.
            let _ = self.submit(Job::Maintain(Overdue { drops, _permit: permit }));
        })
    }

    fn events(&self) -> Option<&dyn EventQueue> {
        Some(&self.events)
    }

    fn health(&self) -> EngineHealth {
        let (histories, events) = (self.status.health(), self.events.health());
        EngineHealth {
            failure: histories.failure.or(events.failure),
            failures: histories.failures + events.failures,
            dropped: 0,
        }
    }
}
#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::committer::BATCH_MAX;
    use super::*;
    use crate::engine::PendingDelivery;
    use crate::history::Log;

    const KEEP: Retention =
        Retention { size: 3, ttl: Duration::from_secs(3600), position_ttl: Duration::from_secs(24 * 3600) };

    async fn publish(engine: &DiskEngine, channel: &str, data: &'static str) -> Position {
        let publication = Publication { data: data.into(), ..Publication::default() };
        engine.publish(channel, publication, Some(KEEP), "").await.unwrap()
    }

    async fn read(engine: &DiskEngine, channel: &str) -> (Vec<(u64, String)>, Position) {
        let history = engine.history(channel, &HistoryQuery::default(), KEEP).await.unwrap();
        let data =
            |one: &std::sync::Arc<Publication>| (one.offset, String::from_utf8(one.data.to_vec()).unwrap());
        (history.publications.iter().map(data).collect(), history.position)
    }

    #[test]
    fn the_names_of_all_new_directories_are_synced() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("a/b/c");
        let names = |paths: &[&str]| paths.iter().map(|path| root.path().join(path)).collect::<Vec<_>>();
        for fails in [None, Some("a"), None] {
            let synced = std::cell::RefCell::new(Vec::new());
            let created = create_directory(&directory, |path| {
                synced.borrow_mut().push(path.to_owned());
                // Not of a directory that was there, as that above the others.
                let fails = fails.is_some_and(|name| path.ends_with(name)) || !path.starts_with(root.path());
                if fails { Err(std::io::ErrorKind::PermissionDenied.into()) } else { sync_directory(path) }
            });
            assert!(created.is_ok());
            assert_eq!(synced.into_inner()[..3], names(&["a/b", "a", ""]));
        }
        std::fs::remove_dir_all(root.path().join("a")).unwrap();
        let failed = create_directory(&directory, |path| {
            if path.ends_with("a") { Err(std::io::ErrorKind::PermissionDenied.into()) } else { Ok(()) }
        });
        assert!(failed.is_err(), "the name of a new directory may be lost");
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

    /// The rows have the right checksums.
    #[tokio::test]
    async fn an_offset_that_no_history_reaches_is_damage() {
        for offset in [Position::OFFSET_MAX, Position::OFFSET_MAX + 1, u64::MAX] {
            let directory = tempfile::tempdir().unwrap();
            let open = || DiskEngine::open(directory.path(), MemoryEngine::new(10));
            let before = publish(&open().unwrap(), "a", "1").await;
            let store = file::open(&directory.path().join(FILE)).unwrap();
            let written = store.call(|database| -> Result<(), redb::Error> {
                let write = database.begin_write()?;
                write.open_table(file::POSITIONS)?.insert("b", ("e", offset))?;
                let publication = Publication { offset, ..Publication::default() };
                let row = (u64::MAX, &prost::Message::encode_to_vec(&publication)[..]);
                write.open_table(file::PUBLICATIONS)?.insert(("b", offset), row)?;
                // Another publication than that of its row.
                write.open_table(file::PUBLICATIONS)?.insert(("a", 2), row)?;
                write.open_table(file::POSITIONS)?.insert("a", (&*before.epoch, 2))?;
                Ok(write.commit()?)
            });
            written.unwrap();
            drop(store);
            if offset == Position::OFFSET_MAX {
                assert_eq!(read(&open().unwrap(), "b").await.1.offset, offset);
                continue;
            }
            assert!(matches!(open(), Err(DiskError::Damaged { .. })));
            let salvaged = DiskEngine::salvage(directory.path()).unwrap();
            assert_eq!((salvaged.publications, salvaged.unreadable), (0, 3));
            let engine = open().unwrap();
            assert_eq!(publish(&engine, "a", "3").await, Position { offset: 3, epoch: before.epoch });
            assert_eq!(publish(&engine, "b", "1").await.offset, 1);
        }
    }

    #[tokio::test]
    async fn a_check_reports_a_repair_after_a_crash_alone() {
        let [closed, crashed] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let engine = DiskEngine::open(closed.path(), MemoryEngine::new(10)).unwrap();
        for data in ["1", "2"] {
            publish(&engine, "a", data).await;
        }
        std::fs::copy(closed.path().join(FILE), crashed.path().join(FILE)).unwrap();
        drop(engine);
        for (directory, is_repaired) in [(&closed, false), (&crashed, true), (&crashed, false)] {
            let report = DiskEngine::check(directory.path()).unwrap();
            assert_eq!((report.publications, report.is_repaired), (2, is_repaired));
        }
    }

    /// redb panics on some damage, also where a file is closed because of it.
    #[tokio::test]
    async fn a_damaged_file_stops_no_thread() {
        let directory = tempfile::tempdir().unwrap();
        let open = || DiskEngine::open(directory.path(), MemoryEngine::new(1_000));
        let engine = open().unwrap();
        for number in (0..100).map(|number| number.to_string()) {
            publish(&engine, &number, "1").await;
            engine.events.open("node", &number, &[b'x'; 200]).await.unwrap();
        }
        drop(engine);
        let paths = [FILE, events::FILE].map(|name| directory.path().join(name));
        let whole = paths.each_ref().map(|path| std::fs::read(path).unwrap());
        let mut rng = fastrand::Rng::with_seed(7);
        let mut failures = [0; 2];
        for _ in 0..100 {
            for (path, whole) in paths.iter().zip(&whole) {
                let mut damaged = whole.clone();
                // The head is whole.
                for page in damaged.chunks_mut(4_096).skip(1) {
                    if rng.u8(..8) == 0 {
                        rng.fill(page);
                    }
                }
                std::fs::write(path, damaged).unwrap();
            }
            failures[0] += usize::from(open().is_err());
            let path = paths[1].clone();
            let opened = move || file::open(&path).map_err(|error| error.to_string());
            let queue = events::DiskQueue::new(Arc::new(opened));
            if queue.renew("node").await.is_err() {
                failures[1] += 1;
                assert!(queue.health().failure.is_some());
                std::fs::write(&paths[1], &whole[1]).unwrap();
                queue.renew("node").await.unwrap();
                assert_eq!(queue.health().failure, None);
            }
        }
        assert!(failures.iter().all(|count| *count >= 5), "{failures:?}");
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

    /// A delivery that takes as long as the test wants, and that owns its engine, as a hub does.
    struct Owner {
        engine: DiskEngine,
        entered: std::sync::mpsc::Sender<()>,
        leave: std::sync::Mutex<std::sync::mpsc::Receiver<()>>,
    }

    impl Delivery for Owner {
        fn deliver_publication(&self, _: &str, _: &str, _: u64, _: &Arc<Publication>) -> PendingDelivery {
            self.entered.send(()).unwrap();
            self.leave.lock().unwrap().recv().unwrap();
            PendingDelivery::default()
        }
        fn deliver_membership(&self, _: &str, _: &Membership) {}
        fn deliver_history_lost(&self, _: &str) {}
        fn deliver_control(&self, _: &Control) {}
        fn retention(&self, _: &str) -> Option<Retention> {
            Some(KEEP)
        }
    }

    #[tokio::test]
    async fn a_hub_that_is_dropped_during_a_delivery_stores_what_was_submitted() {
        let directory = tempfile::tempdir().unwrap();
        let open = || DiskEngine::open(directory.path(), MemoryEngine::new(10));
        let ((entered, entering), (leave, leaving)) =
            (std::sync::mpsc::channel(), std::sync::mpsc::channel());
        let owner = Arc::new(Owner { engine: open().unwrap(), entered, leave: leaving.into() });
        let delivery: Arc<dyn Delivery> = owner.clone();
        owner.engine.start(Arc::downgrade(&delivery));
        // It is submitted, and the answer is not waited for.
        let submit = async |data| {
            let publishing = publish(&owner.engine, "a", data);
            assert!(tokio::time::timeout(Duration::ZERO, publishing).await.is_err());
        };
        submit("1").await;
        entering.recv().unwrap();
        submit("2").await;
        drop((owner, delivery));
        leave.send(()).unwrap();
        let reopened = loop {
            match open() {
                Ok(engine) => break engine,
                Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        };
        assert_eq!(read(&reopened, "a").await.0, [(1, "1".into()), (2, "2".into())]);
    }

    /// Sweeping decides on what it sees; a publication that is being written must not be lost to it.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn sweeps_do_not_remove_what_is_being_written() {
        let directory = tempfile::tempdir().unwrap();
        let engine =
            std::sync::Arc::new(DiskEngine::open(directory.path(), MemoryEngine::new(10_000)).unwrap());
        let (sweeping, is_over) =
            (engine.clone(), std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false)));
        let over = is_over.clone();
        let sweeper = tokio::spawn(async move {
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                sweeping.maintain().await;
                tokio::task::yield_now().await;
            }
        });
        let mut acknowledged = Vec::new();
        for channel in (0..300).map(|n| n.to_string()) {
            acknowledged.push((channel.clone(), publish(&engine, &channel, "1").await));
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        sweeper.await.unwrap();
        drop(engine);
        let engine = DiskEngine::open(directory.path(), MemoryEngine::new(10_000)).unwrap();
        for (channel, position) in acknowledged {
            assert_eq!(read(&engine, &channel).await, (vec![(1, "1".to_owned())], position), "{channel}");
        }
    }

    #[tokio::test]
    async fn what_expired_between_two_runs_leaves_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let short = Retention { ttl: Duration::from_millis(1), ..KEEP };
        let rows = || {
            let database = file::open(&directory.path().join(FILE)).unwrap();
            let content = database.call(|database| file::load(database, Duration::ZERO)).unwrap();
            content.logs.into_iter().find(|(channel, _)| channel == "a").map(|(_, log)| log.first())
        };
        let engine = DiskEngine::open(directory.path(), MemoryEngine::new(10)).unwrap();
        engine.publish("a", Publication::default(), Some(short), "").await.unwrap();
        drop(engine);
        assert_eq!(rows(), Some(1));
        tokio::time::sleep(Duration::from_millis(5)).await;
        let engine = DiskEngine::open(directory.path(), MemoryEngine::new(10)).unwrap();
        assert_eq!(read(&engine, "a").await.0, []);
        engine.maintain().await;
        // The writer does one after the other.
        publish(&engine, "b", "1").await;
        drop(engine);
        assert_eq!(rows(), Some(2));
    }

    /// A day after a restart, all histories that were not used since are due in the same second.
    #[tokio::test]
    async fn many_drops_hold_up_no_publication() {
        let directory = tempfile::tempdir().unwrap();
        for count in [3 * BATCH_MAX, 70 * BATCH_MAX] {
            let engine = DiskEngine::open(directory.path(), MemoryEngine::new(100_000)).unwrap();
            for number in 0..count {
                let position = Position { offset: 1, epoch: "e".into() };
                engine.memory.logs().restore(&number.to_string(), Log::restore(position, [], Duration::ZERO));
            }
            engine.maintain().await;
            publish(&engine, "a", "1").await;
            // The writer drops all of the few without being asked again; the many would take a while.
            while count < 64 * BATCH_MAX && engine.memory.logs().channels().len() > 1 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }
}
