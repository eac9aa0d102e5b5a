//! Crash-consistency simulation: the writer over a disk that fails, and that loses and tears what was not synced when the
//! power fails.
//!
//! After each restart every acknowledged publication is in the history of its channel, at its offset, or the history has
//! another epoch for a reason: then clients learn that they cannot recover.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use redb::StorageBackend;
use tokio::sync::oneshot;
use wireloom_testing::rng::{Rng, generators};

use super::events::DiskQueue;
use super::file::{self, Store};
use super::writer::{Job, Writer};
use crate::engine::logs::Decision;
use crate::engine::{Engine as _, EngineError, EventQueue as _, Lease, MemoryEngine};
use crate::history::{HistoryQuery, Log, Position, Retention};
use crate::protocol::Publication;
use crate::shards::lock;

const CHANNELS: [&str; 4] = ["a", "b", "b0", "c"];
const KEEP: Retention =
    Retention { size: 5, ttl: Duration::from_secs(60), position_ttl: Duration::from_secs(24 * 3600) };
/// The unit that a disk writes whole.
const SECTOR: usize = 512;

/// A disk, whose content outlives the databases on it.
#[derive(Clone, Debug)]
struct Disk(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// The content after a power failure.
    durable: Vec<u8>,
    /// The content as reads return it.
    visible: Vec<u8>,
    /// Since the last sync, in order.
    unsynced: Vec<Change>,
    /// The power fails after this many further writes and syncs.
    changes_left: Option<usize>,
    changes: usize,
    /// The share of writes and syncs that fail, in percent.
    failure: u32,
    /// The bytes that cannot be read.
    unreadable: Range<usize>,
    /// The number of attempts to read some of them.
    unread: usize,
    rng: fastrand::Rng,
}

#[derive(Clone, Debug)]
enum Change {
    Write { offset: usize, data: Vec<u8> },
    SetLen(usize),
}

/// `Vec::resize` writes one byte after another without optimization.
fn set_len(bytes: &mut Vec<u8>, len: usize) {
    bytes.truncate(len);
    bytes.extend_from_slice(&vec![0; len - bytes.len()]);
}

impl Change {
    fn apply(&self, to: &mut Vec<u8>) {
        match self {
            Self::Write { offset, data } => {
                // The write of a length may have been lost.
                if to.len() < offset + data.len() {
                    set_len(to, offset + data.len());
                }
                to[*offset..offset + data.len()].copy_from_slice(data);
            }
            Self::SetLen(len) => set_len(to, *len),
        }
    }
}

impl State {
    /// Counts a change; an error if the power is off or the disk fails.
    fn begin_change(&mut self) -> io::Result<()> {
        self.changes += 1;
        match &mut self.changes_left {
            Some(0) => return Err(io::Error::other("the power is off")),
            Some(left) => *left -= 1,
            None => {}
        }
        if self.rng.u32(..100) < self.failure {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn change(&mut self, change: Change) -> io::Result<()> {
        let begun = self.begin_change();
        if begun.is_ok() || self.rng.bool() {
            change.apply(&mut self.visible);
            self.unsynced.push(change);
        }
        begun
    }
}

impl Disk {
    fn new(rng: fastrand::Rng) -> Self {
        let (durable, visible, unsynced) = Default::default();
        let (changes_left, unreadable) = Default::default();
        let (changes, failure, unread) = Default::default();
        let state =
            State { durable, visible, unsynced, changes_left, changes, failure, unreadable, unread, rng };
        Self(Arc::new(Mutex::new(state)))
    }

    fn open(&self) -> Result<Store, String> {
        self.evict();
        file::guarded(|| file::open_backend(self.clone()))
    }

    fn is_off(&self) -> bool {
        lock(&self.0).changes_left == Some(0)
    }

    fn changes(&self) -> usize {
        lock(&self.0).changes
    }

    fn fail_after(&self, changes: usize) {
        lock(&self.0).changes_left = Some(changes);
    }

    fn set_failure(&self, percent: u32) {
        lock(&self.0).failure = percent;
    }

    fn remove_file(&self) {
        let state = &mut *lock(&self.0);
        (state.durable, state.visible, state.unsynced) = Default::default();
    }

    /// The process begins anew, and the system goes on.
    fn restart(&self) {
        let state = &mut *lock(&self.0);
        (state.changes_left, state.failure) = (None, 0);
    }

    /// The power returns.
    fn power_on(&self) {
        let state = &mut *lock(&self.0);
        state.lose_unsynced();
        state.visible.clone_from(&state.durable);
        (state.changes_left, state.failure) = (None, 0);
    }

    /// Sectors that were taken for synced are read from the disk again.
    fn evict(&self) {
        let State { durable, visible, unsynced, rng, .. } = &mut *lock(&self.0);
        if !unsynced.is_empty() || rng.bool() {
            return;
        }
        for (index, sector) in visible.chunks_mut(SECTOR).enumerate() {
            if rng.bool() {
                let stored = durable.get(index * SECTOR..).unwrap_or_default();
                let stored = &stored[..stored.len().min(sector.len())];
                sector[..stored.len()].copy_from_slice(stored);
                sector[stored.len()..].fill(0);
            }
        }
    }
}

impl State {
    /// Of what was not synced, any sectors of any writes reach the disk, and no others will.
    fn lose_unsynced(&mut self) {
        let state = self;
        let unsynced = std::mem::take(&mut state.unsynced);
        let lost = state.rng.u32(..4);
        for change in unsynced {
            // All of it, none, or any part.
            let arrives = |rng: &mut fastrand::Rng| match lost {
                0 => true,
                1 => false,
                _ => rng.bool(),
            };
            match change {
                Change::Write { offset, data } => {
                    for (index, sector) in data.chunks(SECTOR).enumerate() {
                        if arrives(&mut state.rng) {
                            let offset = offset + index * SECTOR;
                            Change::Write { offset, data: sector.to_vec() }.apply(&mut state.durable);
                        }
                    }
                }
                // A file system does not bring back what was cut, and a file that lost its growth is as long as its
                // last written byte.
                Change::SetLen(len) if len > state.durable.len() || arrives(&mut state.rng) => {
                    set_len(&mut state.durable, len);
                }
                Change::SetLen(_) => {}
            }
        }
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(lock(&self.0).visible.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut state = lock(&self.0);
        let range = offset as usize..offset as usize + out.len();
        if range.start < state.unreadable.end && state.unreadable.start < range.end {
            state.unread += 1;
            return Err(io::Error::other("a sector cannot be read"));
        }
        let from = state.visible.get(range);
        out.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        lock(&self.0).change(Change::SetLen(len as usize))
    }

    fn sync_data(&self) -> io::Result<()> {
        let state = &mut *lock(&self.0);
        match state.begin_change() {
            Ok(()) => {
                for change in std::mem::take(&mut state.unsynced) {
                    change.apply(&mut state.durable);
                }
                Ok(())
            }
            Err(error) => {
                // It can still be read, and no later sync reports it.
                if state.changes_left != Some(0) {
                    state.lose_unsynced();
                }
                Err(error)
            }
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        lock(&self.0).change(Change::Write { offset: offset as usize, data: data.to_vec() })
    }
}

/// The state of a channel as its publishers know it.
#[derive(Debug, Default)]
struct Known {
    epoch: String,
    /// The payloads that were acknowledged, or were read after a restart, and when they were published.
    acknowledged: BTreeMap<u64, (String, Duration)>,
    /// Not answered, or answered with an error, since the last restart.
    unanswered: Vec<String>,
    /// The keys of publications that were not answered, or answered with an error.
    unanswered_keys: HashSet<String>,
    /// The history may have been removed: an attempt has failed.
    may_be_removed: bool,
    /// The epochs of histories whose removal was acknowledged.
    removed: Vec<String>,
}

/// An answered or unanswered publication.
struct Pending {
    channel: &'static str,
    payload: String,
    key: Option<String>,
    answer: oneshot::Receiver<Result<Position, EngineError>>,
}

struct Simulation {
    disk: Disk,
    rng: Rng,
    known: HashMap<&'static str, Known>,
    /// Positions by channel and key.
    keys: HashMap<(&'static str, String), Position>,
    number: usize,
    started: tokio::time::Instant,
    summary: Summary,
}

#[derive(Debug, Default)]
struct Summary {
    acknowledged: usize,
    refused: usize,
    restarts: usize,
    unanswered_kept: usize,
    removals: usize,
    repeated: usize,
}

impl Simulation {
    fn new(mut rng: Rng) -> Self {
        Self {
            disk: Disk::new(rng.fork()),
            rng,
            known: CHANNELS.into_iter().map(|channel| (channel, Known::default())).collect(),
            keys: HashMap::new(),
            number: 0,
            started: tokio::time::Instant::now(),
            summary: Summary::default(),
        }
    }

    fn start(&mut self) -> (Arc<MemoryEngine>, Writer) {
        let memory = Arc::new(MemoryEngine::new(100));
        let disk = self.disk.clone();
        let database = self.disk.open().expect("a file that was written correctly can be opened");
        let writer = Writer::load(memory.clone(), database, Box::new(move || disk.open()));
        (memory, writer.expect("a file that was written correctly can be read"))
    }

    /// A batch of jobs, and the checks of their answers.
    fn step(&mut self, memory: &MemoryEngine, writer: &mut Writer, stale: &mut Vec<(Arc<str>, Decision)>) {
        let (mut batch, mut pending, mut removals) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..self.rng.usize(1..6) {
            let channel = CHANNELS[self.rng.usize(..CHANNELS.len())];
            match self.rng.u32(..20) {
                0 => {
                    let overdue = pin!(memory.logs().overdue(memory.now()));
                    // Without a runtime, a task has no turns.
                    let Poll::Ready(overdue) = overdue.poll(&mut Context::from_waker(Waker::noop())) else {
                        panic!("it waits");
                    };
                    stale.extend(overdue);
                    batch.push(Job::ExpireKeys);
                }
                1..=3 if !stale.is_empty() => {
                    let (channel, decision) = stale.swap_remove(self.rng.usize(..stale.len()));
                    batch.push(Job::Drop { channel, decision, done: None });
                }
                4 => {
                    let Some(decision) = memory.removal(channel) else { continue };
                    let epoch = decision.epoch().to_owned();
                    let (done, answer) = oneshot::channel();
                    removals.push((channel, epoch, answer));
                    batch.push(Job::Drop { channel: channel.into(), decision, done: Some(done) });
                }
                _ => {
                    self.number += 1;
                    let payload = self.number.to_string();
                    let key = (self.rng.u32(..3) == 0).then(|| self.rng.u32(..8).to_string());
                    let (done, answer) = oneshot::channel();
                    let data = payload.clone().into_bytes().into();
                    batch.push(Job::Publish {
                        channel: channel.into(),
                        publication: Box::new(Publication { data, ..Publication::default() }),
                        retention: KEEP,
                        key: key.clone().unwrap_or_default().into(),
                        done,
                    });
                    pending.push(Pending { channel, payload, key, answer });
                }
            }
        }
        writer.handle(batch);
        for (channel, epoch, mut answer) in removals {
            let known = self.known.get_mut(channel).unwrap();
            match answer.try_recv().expect("every job is answered") {
                Ok(_) if known.epoch == epoch || known.epoch.is_empty() => {
                    self.summary.removals += 1;
                    known.removed.push(epoch);
                    known.acknowledged.clear();
                    known.epoch.clear();
                }
                // It removed a history that publications of this batch have followed.
                Ok(_) => known.removed.push(epoch),
                Err(_) => known.may_be_removed = true,
            }
        }
        for one in pending {
            self.check_answer(memory, one);
        }
    }

    fn check_answer(
        &mut self,
        memory: &MemoryEngine,
        Pending { channel, payload, key, mut answer }: Pending,
    ) {
        let known = self.known.get_mut(channel).unwrap();
        let Ok(position) = answer.try_recv().expect("every job is answered") else {
            self.summary.refused += 1;
            known.unanswered.push(payload);
            known.unanswered_keys.extend(key);
            return;
        };
        self.summary.acknowledged += 1;
        if let Some(key) = key {
            if let Some(first) = self.keys.get(&(channel, key.clone())) {
                assert_eq!(position, *first, "{channel}: a repeated key");
                self.summary.repeated += 1;
                return;
            }
            // It may have been published by an attempt that was not answered, and its history may have been removed.
            let is_new = memory.logs().peek(channel, |log| {
                let at =
                    log.kept_from(position.offset).next().filter(|(one, _)| one.offset == position.offset);
                log.epoch() == position.epoch && at.is_some_and(|(one, _)| one.data == payload)
            });
            let was_attempted = known.unanswered_keys.contains(&key);
            self.keys.insert((channel, key), position.clone());
            if was_attempted && is_new != Some(true) {
                return;
            }
        }
        if known.removed.contains(&position.epoch) {
            // Published before the removal, in one batch.
            return;
        }
        if known.epoch != position.epoch {
            assert!(known.epoch.is_empty(), "{channel}: epoch {} after {}", position.epoch, known.epoch);
            known.epoch.clone_from(&position.epoch);
        }
        let last = known.acknowledged.last_key_value().map_or(0, |(offset, _)| *offset);
        assert_eq!(position.offset, last + 1, "{channel}: offsets follow each other");
        known.acknowledged.insert(position.offset, (payload, self.started.elapsed()));
    }

    /// Compares what was loaded with what the publishers know.
    fn check_loaded(&mut self, memory: &MemoryEngine) {
        let now = self.started.elapsed();
        for channel in CHANNELS {
            let known = self.known.get_mut(channel).unwrap();
            let loaded = memory.logs().peek(channel, |log| {
                (log.position(), log.read(&HistoryQuery::default(), Duration::ZERO).publications)
            });
            let (position, publications) = loaded.unwrap_or_default();
            let text = |one: &Publication| String::from_utf8(one.data.to_vec()).unwrap();
            let publications: BTreeMap<u64, String> =
                publications.iter().map(|one| (one.offset, text(one))).collect();
            assert!(!known.removed.contains(&position.epoch), "{channel}: a removed history is back");
            let last = known.acknowledged.last_key_value().map_or(0, |(offset, _)| *offset);
            if !known.epoch.is_empty() && position.epoch != known.epoch {
                assert!(known.may_be_removed, "{channel}: {} acknowledged publications are lost", last);
                known.acknowledged.clear();
            } else if !known.epoch.is_empty() {
                assert!(position.offset >= last, "{channel}: {last} was acknowledged, {position:?} loaded");
                for (offset, (payload, at)) in &known.acknowledged {
                    if *offset + KEEP.size as u64 > position.offset && *at + KEEP.ttl > now {
                        assert_eq!(publications.get(offset), Some(payload), "{channel} at {offset}");
                    }
                }
            }
            known.epoch = if position.offset == 0 { String::new() } else { position.epoch.clone() };
            // An unanswered publication may have been stored. If it was, it stays.
            for (offset, payload) in publications {
                if !known.acknowledged.contains_key(&offset) {
                    assert!(known.unanswered.contains(&payload), "{channel}: {payload} was not published");
                    known.acknowledged.insert(offset, (payload, now));
                    self.summary.unanswered_kept += 1;
                }
            }
            if position.offset > 0 && !known.acknowledged.contains_key(&position.offset) {
                // It has expired; its offset counts.
                known.acknowledged.insert(position.offset, (String::new(), Duration::ZERO));
            }
            known.unanswered.clear();
            known.may_be_removed = false;
        }
    }

    async fn run(mut self, lives: usize, changes_max: Option<usize>) -> Summary {
        for life in 0..=lives {
            let (memory, mut writer) = self.start();
            if life > 0 {
                self.check_loaded(&memory);
                self.summary.restarts += 1;
            }
            let mut stale = Vec::new();
            match changes_max {
                Some(changes) => self.disk.fail_after(changes),
                None if life < lives => self.disk.fail_after(self.rng.usize(..200)),
                None => {}
            }
            for _ in 0..self.rng.usize(1..25) {
                if self.rng.u32(..8) == 0 {
                    self.disk.set_failure([0, 0, 5, 50][self.rng.usize(..4)]);
                }
                if self.rng.u32(..4) == 0 {
                    tokio::time::advance(Duration::from_millis(self.rng.u64(..20_000))).await;
                }
                self.step(&memory, &mut writer, &mut stale);
                if self.disk.is_off() {
                    break;
                }
            }
            if !self.disk.is_off() {
                // Once the cause is gone, the file is used again.
                self.disk.set_failure(0);
                tokio::time::advance(Duration::from_secs(10)).await;
                writer.handle(Vec::new());
                if !self.disk.is_off() {
                    assert_eq!(writer.status().health().failure, None);
                }
            }
            // An orderly end, the end of the process, or a power failure.
            let is_killed = self.rng.bool();
            if is_killed {
                self.disk.fail_after(0);
            }
            drop(writer);
            if is_killed && self.rng.bool() {
                self.disk.restart();
            } else {
                self.disk.power_on();
            }
        }
        self.summary
    }
}

impl std::ops::AddAssign for Summary {
    fn add_assign(&mut self, other: Self) {
        self.acknowledged += other.acknowledged;
        self.refused += other.refused;
        self.restarts += other.restarts;
        self.unanswered_kept += other.unanswered_kept;
        self.removals += other.removals;
        self.repeated += other.repeated;
    }
}

#[tokio::test(start_paused = true)]
async fn acknowledged_publications_survive_crashes_and_failures() {
    const ROUNDS: u64 = 1_000;
    let (mut all, mut rounds) = (Summary::default(), 0);
    for rng in generators(ROUNDS) {
        all += Simulation::new(rng).run(3, None).await;
        rounds += 1;
    }
    println!("{all:?}");
    if rounds >= ROUNDS {
        let least =
            [all.acknowledged, all.refused, all.restarts, all.unanswered_kept, all.removals, all.repeated];
        assert!(least.iter().all(|count| *count > 50), "{all:?}");
    }
}

/// The same run, with a power failure at every write and every sync in turn.
#[tokio::test(start_paused = true)]
async fn acknowledged_publications_survive_a_crash_at_every_write() {
    let seed = generators(1).next().unwrap().seed();
    let whole = Simulation::new(Rng::with_seed(seed));
    let disk = whole.disk.clone();
    whole.run(0, Some(usize::MAX)).await;
    for changes in 0..disk.changes() {
        Simulation::new(Rng::with_seed(seed)).run(1, Some(changes)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn positions_of_loaded_histories_continue() {
    let disk = Disk::new(fastrand::Rng::with_seed(1));
    let memory = Arc::new(MemoryEngine::new(10));
    let reopened = disk.clone();
    let mut writer =
        Writer::load(memory.clone(), disk.open().unwrap(), Box::new(move || reopened.open())).unwrap();
    let publish = |writer: &mut Writer| {
        let (done, mut answer) = oneshot::channel();
        let publication = Box::new(Publication { data: "1".into(), ..Publication::default() });
        writer.handle(vec![Job::Publish {
            channel: "a".into(),
            publication,
            retention: KEEP,
            key: "".into(),
            done,
        }]);
        answer.try_recv().unwrap()
    };
    let first = publish(&mut writer).unwrap();
    // The disk is full; then it is not.
    disk.set_failure(100);
    assert!(matches!(publish(&mut writer), Err(EngineError::Unavailable(_))));
    assert!(writer.status().health().failure.is_some());
    disk.set_failure(0);
    tokio::time::advance(Duration::from_secs(5)).await;
    let second = publish(&mut writer).unwrap();
    assert_eq!(second, Position { offset: 2, epoch: first.epoch });
    assert_eq!(writer.status().health().failure, None);
    assert_eq!(memory.logs().peek("a", Log::position), Some(second));
    assert_eq!(memory.health().failure, None);
}

/// Of a file that was not closed.
#[tokio::test(start_paused = true)]
async fn a_sector_that_cannot_be_read_matters_only_where_it_is_needed() {
    let disk = Disk::new(fastrand::Rng::with_seed(1));
    let load = || {
        let (memory, reopened) = (Arc::new(MemoryEngine::new(10)), disk.clone());
        let database = disk.open()?;
        let writer = Writer::load(memory.clone(), database, Box::new(move || reopened.open()))?;
        Ok::<_, String>((memory, writer))
    };
    let (_, mut writer) = load().unwrap();
    let (done, mut answer) = oneshot::channel();
    let publication = Box::new(Publication { data: "1".into(), ..Publication::default() });
    writer.handle(vec![Job::Publish {
        channel: "a".into(),
        publication,
        retention: KEEP,
        key: "".into(),
        done,
    }]);
    let at = answer.try_recv().unwrap().unwrap();
    disk.fail_after(0);
    drop(writer);
    disk.restart();
    let killed = lock(&disk.0).visible.clone();
    let (mut opened, mut refused) = (0, 0);
    for sector in (0..killed.len()).step_by(4_096) {
        {
            let state = &mut *lock(&disk.0);
            (state.visible, state.durable) = (killed.clone(), killed.clone());
            state.unsynced.clear();
            state.unreadable = sector..sector + SECTOR;
        }
        match load() {
            Ok((memory, writer)) => {
                opened += 1;
                assert_eq!(memory.logs().peek("a", Log::position), Some(at.clone()), "{sector}");
                disk.fail_after(0);
                drop(writer);
                disk.restart();
            }
            Err(_) => refused += 1,
        }
    }
    assert!(opened > refused && refused > 0, "{opened} opened, {refused} refused");
    // A disk that answers nothing is not asked for each page.
    {
        let state = &mut *lock(&disk.0);
        (state.visible, state.durable) = (killed.clone(), killed.clone());
        (state.unreadable, state.unread) = (SECTOR..killed.len(), 0);
    }
    assert!(load().is_err());
    let unread = lock(&disk.0).unread;
    assert!((16..20).contains(&unread) && killed.len() > 100 * SECTOR, "{unread} of {}", killed.len());
}

#[tokio::test]
async fn events_go_on_after_a_failed_commit() {
    let disk = Disk::new(fastrand::Rng::with_seed(1));
    let queue = || {
        let disk = disk.clone();
        DiskQueue::new(Arc::new(move || disk.open()))
    };
    let before = queue();
    before.open("before", "a", b"lost").await.unwrap();
    drop(before);
    let queue = queue();
    queue.open("own", "b", b"b").await.unwrap();
    let queued =
        async || -> Vec<_> { queue.take(10).await.unwrap().into_iter().map(|event| event.event).collect() };
    assert_eq!(queued().await, ["lost"]);
    for number in 1..4 {
        let renewed = Lease::Renewed { number, others: Some(Vec::new()) };
        assert_eq!(queue.renew("own").await, Ok(renewed));
    }
    disk.set_failure(100);
    assert!(queue.acknowledge(&[]).await.is_err());
    assert!(queue.health().failure.is_some());
    disk.set_failure(0);
    // The file is written again although nothing is to be stored.
    while queue.health().failure.is_some() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(queue.open_on("own", 10).await.unwrap(), [("b".to_owned(), "b".into())]);
    assert_eq!(queued().await, ["lost"]);
    queue.end("own", "b", b"ended").await.unwrap();
    assert_eq!(queued().await, ["lost", "ended"]);
    // A file without what is open shows it.
    disk.set_failure(100);
    assert!(queue.renew("own").await.is_err());
    disk.remove_file();
    disk.set_failure(0);
    assert_eq!(queue.renew("own").await, Ok(Lease::Renewed { number: 1, others: Some(Vec::new()) }));
}
