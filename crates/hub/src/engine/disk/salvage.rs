//! Makes a new file of histories from what is left of a damaged one.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redb::{TableHandle as _, Value as _};

use super::DiskError;
use super::damaged::Damaged;
use super::file::{
    self, Change, Content, KEYS, Key, POSITIONS, PUBLICATIONS, Remembered, Replacement, Rows, decode,
    guarded, log_of, remembered,
};
use crate::history::Position;
use crate::random::token;

/// The number of channels that one commit writes.
const COMMIT_LEN: usize = 1_000;

/// The result of [`DiskEngine::salvage`](super::DiskEngine::salvage).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Salvaged {
    /// The damaged file, under its new name.
    pub set_aside: PathBuf,
    /// The number of channels of which something was left.
    pub channels: usize,
    /// The number of publications that were left.
    pub publications: usize,
    /// Publications that were left but cannot be recovered, because they precede one that is missing.
    pub unreadable: usize,
}

/// Reads what is left of a damaged file. A channel whose position is lost, because it is damaged or that of an older commit, has a new
/// epoch, so that no offset names two publications.
fn read(damaged: &Damaged, now: Duration) -> std::io::Result<Content> {
    let mut channels = BTreeMap::<String, (Option<Position>, Rows)>::new();
    damaged.rows(POSITIONS.name(), |channel, position| {
        let (epoch, offset) = <(&str, u64)>::from_bytes(position);
        let position = Position { offset, epoch: epoch.into() };
        let channel = String::from_utf8_lossy(channel).into_owned();
        let is_known = damaged.is_newest && offset <= Position::OFFSET_MAX;
        channels.entry(channel).or_default().0 = Some(position).filter(|_| is_known);
    })?;
    let mut content = Content::default();
    damaged.rows(PUBLICATIONS.name(), |key, value| {
        let ((channel, offset), (expires_at, bytes)) =
            (<(&str, u64)>::from_bytes(key), <(u64, &[u8])>::from_bytes(value));
        if offset > Position::OFFSET_MAX {
            content.unreadable += 1;
        } else {
            channels.entry(channel.to_owned()).or_default().1.push(decode(offset, expires_at, bytes));
        }
    })?;
    for (channel, (position, rows)) in channels {
        if position.is_none() && rows.is_empty() {
            continue;
        }
        let last = rows.last().map_or(0, |(offset, ..)| *offset);
        let position = position.unwrap_or_else(|| Position { offset: last, epoch: token() });
        let log = log_of(position, rows, now, &mut content.unreadable);
        content.logs.push((channel, log));
    }
    damaged.rows(KEYS.name(), |key, value| {
        let (key, remembered) =
            remembered(<(&str, &str)>::from_bytes(key), <(&str, u64, u64)>::from_bytes(value));
        content.keys.insert(key, remembered);
    })?;
    let epochs: HashMap<&str, &str> =
        content.logs.iter().map(|(channel, log)| (&**channel, log.epoch())).collect();
    content.keys.retain(|(channel, _), known| epochs.get(&**channel) == Some(&&*known.position.epoch));
    Ok(content)
}

/// See [`DiskEngine::salvage`](super::DiskEngine::salvage).
pub(super) fn salvage(path: &Path) -> Result<Salvaged, DiskError> {
    let io = |error: std::io::Error| file::io_error(path, &error);
    let damaged = |reason: String| DiskError::Damaged { path: path.into(), reason };
    let file = std::fs::File::open(path).map_err(io)?;
    let nothing = || damaged("nothing in it can be read".into());
    let old = Damaged::open(file).map_err(io)?.ok_or_else(nothing)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let read = guarded(|| read(&old, now).map_err(redb::Error::from));
    let content = read.map_err(damaged)?;
    let unfinished = path.with_extension("redb.salvaged");
    let failed = |reason: String| DiskError::Io { path: unfinished.clone(), reason };
    match std::fs::remove_file(&unfinished) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error.to_string())),
        _ => {}
    }
    let new = file::open(&unfinished)?;
    let mut keys = HashMap::<Arc<str>, Vec<(Key, Remembered)>>::new();
    for (key, remembered) in content.keys {
        keys.entry(key.0.clone()).or_default().push((key, remembered));
    }
    let mut publications = 0;
    for logs in content.logs.chunks(COMMIT_LEN) {
        let changes = logs.iter().map(|(channel, log)| {
            let kept: Vec<_> = log.kept_from(0).map(|(publication, at)| (publication.clone(), at)).collect();
            publications += kept.len();
            let log = Some(Replacement { position: log.position(), publications: kept });
            let channel = Arc::from(&**channel);
            let keys = keys.remove(&channel).unwrap_or_default();
            Change::Replace { channel, log, keys }
        });
        let changes: Vec<_> = changes.collect();
        new.call(|new| file::write(new, &changes)).map_err(failed)?;
    }
    drop(new);
    // The damaged file is locked until the new one has taken its place, so that no server opens it meanwhile.
    let set_aside = file::replace(path, &unfinished)?;
    drop(old);
    Ok(Salvaged { set_aside, channels: content.logs.len(), publications, unreadable: content.unreadable })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read as _, Seek as _, SeekFrom, Write as _};

    use super::*;
    use crate::engine::{DiskEngine, Engine as _, MemoryEngine};
    use crate::history::{HistoryQuery, Retention};
    use crate::protocol::Publication;

    const KEEP: Retention =
        Retention { size: 60, ttl: Duration::from_secs(3600), position_ttl: Duration::from_secs(24 * 3600) };
    const CHANNELS: usize = 30;

    /// The data of a publication: of different lengths, some longer than a page, and telling where they belong.
    fn data(channel: usize, offset: u64) -> String {
        let len = if (channel + offset as usize).is_multiple_of(37) { 9_000 } else { channel * 7 };
        format!("{channel}/{offset}/{}", "x".repeat(len))
    }

    async fn publish(engine: &DiskEngine, channel: usize, offset: u64) -> Position {
        let publication = Publication { data: data(channel, offset).into(), ..Publication::default() };
        let key = format!("key {offset}");
        engine.publish(&channel.to_string(), publication, Some(KEEP), &key).await.unwrap()
    }

    /// A directory with a file of histories whose trees have branches, and the position of each channel.
    async fn stored() -> (tempfile::TempDir, HashMap<String, Position>) {
        let directory = tempfile::tempdir().unwrap();
        let engine = Arc::new(DiskEngine::open(directory.path(), MemoryEngine::new(100)).unwrap());
        let mut positions = HashMap::new();
        for offset in 1..=100 {
            // Concurrent publications share a commit.
            let mut publishing = tokio::task::JoinSet::new();
            for channel in (0..CHANNELS).filter(|channel| *channel == 0 || offset <= 10 + *channel as u64) {
                let engine = engine.clone();
                publishing
                    .spawn(async move { (channel.to_string(), publish(&engine, channel, offset).await) });
            }
            positions.extend(publishing.join_all().await);
        }
        (directory, positions)
    }

    /// Checks that everything in `content` was stored; returns the numbers of publications and of kept positions.
    fn check(content: &Content, positions: &HashMap<String, Position>) -> (usize, usize) {
        let (mut publications, mut kept) = (0, 0);
        for (channel, log) in &content.logs {
            let number = channel.parse().unwrap();
            let position = log.position();
            if position.epoch == positions[channel].epoch {
                kept += 1;
                assert_eq!(position, positions[channel], "a known epoch with another offset");
            }
            for (publication, _) in log.kept_from(0) {
                publications += 1;
                assert_eq!(publication.data, data(number, publication.offset), "{channel}");
            }
            assert!(log.first() <= position.offset + 1);
        }
        for ((channel, _), known) in &content.keys {
            assert_eq!(known.position.epoch, positions[&**channel].epoch);
        }
        (publications, kept)
    }

    fn read_now(path: &Path) -> Option<Content> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        // Without `guarded`: a panic fails the test.
        let damaged = Damaged::open(File::open(path).unwrap()).unwrap()?;
        Some(read(&damaged, now).unwrap())
    }

    #[tokio::test]
    async fn what_is_left_of_a_file_of_any_length_was_stored() {
        let (directory, positions) = stored().await;
        let path = directory.path().join("history.redb");
        let len = std::fs::metadata(&path).unwrap().len();
        let whole = check(&read_now(&path).unwrap(), &positions);
        let expected = |channel| if channel == 0 { 60 } else { 10 + channel };
        assert_eq!(whole, ((0..CHANNELS).map(expected).sum(), CHANNELS));
        let file = File::options().write(true).open(&path).unwrap();
        // Not a divisor of the length of a page, so that pages are cut everywhere. Where redb has put the roots decides how much is left.
        let step = 1_499.min(len / 2_000);
        for len in (0..len).rev().step_by(step as usize) {
            file.set_len(len).unwrap();
            if let Some(content) = read_now(&path) {
                check(&content, &positions);
            }
        }
    }

    #[tokio::test]
    async fn what_is_left_around_a_hole_was_stored() {
        let (directory, positions) = stored().await;
        let path = directory.path().join("history.redb");
        let whole = std::fs::read(&path).unwrap();
        let complete = check(&read_now(&path).unwrap(), &positions).0;
        let mut counts = std::collections::BTreeSet::new();
        let page = 4096;
        for begin in (page..whole.len() - page).step_by(page * (whole.len() / page / 300).max(1)) {
            let mut damaged = whole.clone();
            damaged[begin..][..page].fill(0);
            std::fs::write(&path, damaged).unwrap();
            counts.insert(read_now(&path).map_or(0, |content| check(&content, &positions).0));
        }
        assert!(counts.range(1..complete).count() > 3, "{counts:?} of {complete}");
    }

    #[tokio::test]
    async fn what_is_left_of_an_overwritten_file_was_stored() {
        let (directory, positions) = stored().await;
        let path = directory.path().join("history.redb");
        let mut file = File::options().read(true).write(true).open(&path).unwrap();
        let len = file.metadata().unwrap().len();
        let mut rng = fastrand::Rng::with_seed(7);
        let mut parts = 0;
        for round in 0..1_000 {
            // A few bytes, in the head every fourth time; the damage is mended again.
            let begin = if round % 4 == 0 { rng.u64(..320) } else { rng.u64(..len - 64) };
            let mut before = vec![0; rng.usize(1..64)];
            file.seek(SeekFrom::Start(begin)).unwrap();
            file.read_exact(&mut before).unwrap();
            let garbage: Vec<u8> = before.iter().map(|_| rng.u8(..)).collect();
            file.seek(SeekFrom::Start(begin)).unwrap();
            file.write_all(&garbage).unwrap();
            parts += usize::from(read_now(&path).is_some_and(|content| check(&content, &positions).0 > 0));
            file.seek(SeekFrom::Start(begin)).unwrap();
            file.write_all(&before).unwrap();
        }
        assert!((500..1_000).contains(&parts), "{parts}");
    }

    /// The flag that says which commit is the newest is damaged, alone or with the newest commit.
    #[tokio::test]
    async fn positions_of_an_older_commit_are_not_kept() {
        let (directory, positions) = stored().await;
        let path = directory.path().join("history.redb");
        let whole = std::fs::read(&path).unwrap();
        assert_eq!(check(&read_now(&path).unwrap(), &positions).1, CHANNELS);
        for destroys_newest in [false, true] {
            let mut damaged = whole.clone();
            let newest = if damaged[9] & 1 == 0 { 64 } else { 192 };
            damaged[9] ^= 1;
            if destroys_newest {
                damaged[newest + 8] ^= 1;
            }
            std::fs::write(&path, damaged).unwrap();
            let kept = read_now(&path).map_or(0, |content| check(&content, &positions).1);
            assert_eq!(kept, 0, "{destroys_newest}");
        }
    }

    #[tokio::test]
    async fn a_salvaged_file_is_used_as_any_other() {
        let (directory, positions) = stored().await;
        let path = directory.path().join("history.redb");
        let whole = std::fs::read(&path).unwrap();
        let mut salvaged = 0;
        for parts in [10, 25, 50, 75, 90, 99, 100] {
            let mut damaged = whole[..whole.len() * parts / 100].to_vec();
            // The head announces more pages than there are.
            damaged[30] |= 1;
            std::fs::write(&path, damaged).unwrap();
            assert!(DiskEngine::open(directory.path(), MemoryEngine::new(100)).is_err());
            match DiskEngine::salvage(directory.path()) {
                Ok(report) => {
                    salvaged += report.publications;
                    assert_eq!(
                        DiskEngine::check(directory.path()).unwrap().publications,
                        report.publications
                    );
                    let engine = DiskEngine::open(directory.path(), MemoryEngine::new(100)).unwrap();
                    let history = engine.history("0", &HistoryQuery::default(), KEEP).await.unwrap();
                    let before = history.position;
                    let next = publish(&engine, 0, before.offset + 1).await;
                    assert_eq!(next.offset, before.offset + 1);
                    if before.epoch == positions["0"].epoch {
                        assert_eq!(next.epoch, before.epoch);
                    }
                    drop(engine);
                    std::fs::remove_file(report.set_aside).unwrap();
                }
                Err(error) => {
                    assert!(matches!(error, DiskError::Damaged { .. }), "{error}");
                    assert_eq!(std::fs::metadata(&path).unwrap().len(), (whole.len() * parts / 100) as u64);
                }
            }
        }
        assert!(salvaged > 0);
    }

    #[test]
    fn a_file_that_cannot_be_replaced_keeps_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let [path, missing] = ["history.redb", "missing"].map(|name| directory.path().join(name));
        std::fs::write(&path, "damaged").unwrap();
        assert!(matches!(file::replace(&path, &missing), Err(DiskError::Io { .. })));
        assert_eq!(std::fs::read(&path).unwrap(), b"damaged");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn there_is_a_file_at_any_time_while_it_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let [path, new] = ["history.redb", "new"].map(|name| directory.path().join(name));
        std::fs::write(&path, "damaged").unwrap();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let looking = scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    assert!(path.exists(), "there was no file");
                }
            });
            for _ in 0..300 {
                std::fs::write(&new, "salvaged").unwrap();
                let aside = file::replace(&path, &new).unwrap();
                assert_eq!(std::fs::read(&path).unwrap(), b"salvaged");
                std::fs::remove_file(aside).unwrap();
            }
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            looking.join().unwrap();
        });
    }

    #[tokio::test]
    async fn a_file_that_has_lost_its_head_is_damaged() {
        let (directory, _) = stored().await;
        let path = directory.path().join("history.redb");
        let mut damaged = std::fs::read(&path).unwrap();
        damaged[..4096].fill(0);
        std::fs::write(&path, &damaged).unwrap();
        assert!(matches!(DiskEngine::check(directory.path()), Err(DiskError::Damaged { .. })));
        let opened = DiskEngine::open(directory.path(), MemoryEngine::new(100));
        assert!(matches!(opened, Err(DiskError::Damaged { .. })));
        assert!(std::fs::read(&path).unwrap() == damaged);
    }

    #[test]
    fn a_file_whose_creation_was_cut_off_is_created_again_unless_it_is_being_created() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history.redb");
        // redb sets the length, then writes the head, then that again with its beginning.
        for (len, head) in [(1, 0), (1 << 20, 0), (1 << 20, 1)] {
            let mut unfinished = vec![0; len];
            unfinished.iter_mut().skip(9).take(300).for_each(|byte| *byte = head);
            std::fs::write(&path, &unfinished).unwrap();
            let creating = File::options().write(true).open(&path).unwrap();
            creating.try_lock().unwrap();
            let opened = DiskEngine::open(directory.path(), MemoryEngine::new(100));
            assert!(matches!(opened, Err(DiskError::InUse { .. })));
            assert!(std::fs::read(&path).unwrap() == unfinished);
            drop(creating);
            drop(DiskEngine::open(directory.path(), MemoryEngine::new(100)).unwrap());
        }
        std::fs::write(&path, "notes").unwrap();
        assert!(matches!(DiskEngine::check(directory.path()), Err(DiskError::Damaged { .. })));
        assert_eq!(std::fs::read(&path).unwrap(), b"notes");
    }

    #[tokio::test]
    async fn a_file_in_use_is_left_alone() {
        let (directory, _) = stored().await;
        let engine = DiskEngine::open(directory.path(), MemoryEngine::new(100)).unwrap();
        let errors = [
            DiskEngine::salvage(directory.path()).unwrap_err(),
            DiskEngine::set_aside(directory.path()).unwrap_err(),
        ];
        assert!(errors.iter().all(|error| matches!(error, DiskError::InUse { .. })), "{errors:?}");
        drop(engine);
        let aside = DiskEngine::set_aside(directory.path()).unwrap();
        assert!(aside.exists() && !directory.path().join("history.redb").exists());
    }
}
