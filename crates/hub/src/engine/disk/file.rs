//! The file of histories: its tables, and how it is opened, read, written and checked.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prost::Message as _;
use redb::backends::FileBackend;
use redb::{
    Database, DatabaseError, ReadableDatabase, ReadableTable, ReadableTableMetadata as _, StorageBackend,
    StorageError, TableDefinition,
};

use tracing::warn;

use super::DiskError;
use super::damaged::{FLAGS_AT, RECOVERY_REQUIRED};
use crate::engine::logs::Decision;
use crate::history::{Log, Position};
use crate::protocol::Publication;

/// By channel: the epoch and the offset of the last publication.
pub(super) const POSITIONS: TableDefinition<'_, &str, (&str, u64)> = TableDefinition::new("positions");
/// By channel and offset: when it expires, in milliseconds since 1970, and the publication as Protobuf.
pub(super) const PUBLICATIONS: TableDefinition<'_, (&str, u64), (u64, &[u8])> =
    TableDefinition::new("publications");
/// By channel and idempotency key: the epoch and the offset of the publication, and when the key expires, in milliseconds
/// since 1970.
pub(super) const KEYS: TableDefinition<'_, (&str, &str), (&str, u64, u64)> = TableDefinition::new("keys");

/// An idempotency key of a channel.
pub(super) type Key = (Arc<str>, Arc<str>);

/// A remembered idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Remembered {
    /// The position of its publication.
    pub(super) position: Position,
    pub(super) expires_at: Duration,
}

/// A change of the file. All changes of a commit are stored, or none.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// A publication, whose offset is that of the position, is added; those before `keep_from` are dropped.
    Append {
        channel: Arc<str>,
        position: Position,
        publication: Box<Publication>,
        expires_at: Duration,
        keep_from: u64,
    },
    /// A key is remembered.
    Remember(Key, Remembered),
    /// A key has expired.
    Forget(Key),
    Drop {
        channel: Arc<str>,
        decision: Decision,
    },
    /// Everything about a channel is replaced.
    Replace {
        channel: Arc<str>,
        log: Option<Replacement>,
        keys: Vec<(Key, Remembered)>,
    },
}

/// The content of a history.
#[derive(Clone, Debug)]
pub(super) struct Replacement {
    pub(super) position: Position,
    pub(super) publications: Vec<(Arc<Publication>, Duration)>,
}

/// The content of a file.
#[derive(Default)]
pub(super) struct Content {
    pub(super) logs: Vec<(String, Log)>,
    pub(super) keys: HashMap<Key, Remembered>,
    /// Publications that cannot be decoded, or whose successor is missing.
    pub(super) unreadable: usize,
}

/// The result of [`DiskEngine::check`](super::DiskEngine::check).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileReport {
    /// The file.
    pub path: PathBuf,
    /// Its length in bytes.
    pub len: u64,
    /// The number of channels with a history.
    pub channels: usize,
    /// The number of publications.
    pub publications: usize,
    /// Publications that cannot be recovered: they are damaged, or follow one that is missing.
    pub unreadable: usize,
    /// It was left behind by a crash, and has been repaired.
    pub is_repaired: bool,
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

thread_local! {
    /// Whether this thread calls redb, and handles its panics.
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Keeps panics that become errors from being printed as well; others go to the hook that was there before.
fn silence_guarded_panics() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !IS_GUARDED.get() {
                before(panic);
            }
        }));
    });
}

/// Calls redb, which panics on some damage.
pub(super) fn guarded<T, E: Display>(act: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    silence_guarded_panics();
    let was_guarded = IS_GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(act));
    IS_GUARDED.set(was_guarded);
    match result {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("unknown");
            Err(format!("its content is inconsistent ({})", text.lines().next().unwrap_or_default()))
        }
    }
}

/// An open file. All calls of redb are guarded, and so is its `drop`, which commits; then there is none.
pub(super) struct Store(Option<Database>);

impl Store {
    pub(super) fn call<T, E: Display>(
        &self,
        act: impl FnOnce(&Database) -> Result<T, E>,
    ) -> Result<T, String> {
        let database = self.0.as_ref().ok_or("it is closed")?;
        guarded(|| act(database))
    }

    fn call_mut<T, E: Display>(
        &mut self,
        act: impl FnOnce(&mut Database) -> Result<T, E>,
    ) -> Result<T, String> {
        let database = self.0.as_mut().ok_or("it is closed")?;
        guarded(|| act(database))
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let database = self.0.take();
        // If it fails, the file is repaired when it is opened.
        let _ = guarded(|| {
            drop(database);
            Ok::<_, String>(())
        });
    }
}

/// Opens a file, or creates it.
pub(super) fn open(path: &Path) -> Result<Store, DiskError> {
    check_len(path)?;
    let mut failure = None;
    let opening = || -> Result<Store, DatabaseError> {
        let mut options = std::fs::OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(path)?;
        open_backend(FileBackend::new(file)?)
    };
    let opened = guarded(|| opening().inspect_err(|error| failure = Some(kind(path, error))));
    let database =
        opened.map_err(|reason| failure.unwrap_or(DiskError::Damaged { path: path.into(), reason }))?;
    // A new file survives a power failure once the entry in its directory does. It may be one of a process that was killed before that.
    sync_names(path).map_err(|error| io_error(path, &error))?;
    Ok(database)
}

/// Opens a file. One that was not closed is written again first, as it is read, because a sync of it may have failed.
pub(super) fn open_backend(backend: impl StorageBackend) -> Result<Store, DatabaseError> {
    let backend = Flagged(backend);
    if backend.flags()?.is_some_and(|flags| flags & RECOVERY_REQUIRED != 0) {
        backend.write_again()?;
    }
    Database::builder().create_with_backend(backend).map(|database| Store(Some(database)))
}

/// A file whose head says that it was not closed, once a sync of it has failed. What was written before can be read then, also by the next
/// process, but may be missing on the disk, and no later sync reports that.
#[derive(Debug)]
struct Flagged<B>(B);

impl<B: StorageBackend> Flagged<B> {
    /// The flags of the head; `None` if there is no head.
    fn flags(&self) -> std::io::Result<Option<u8>> {
        let mut flags = [0];
        if self.0.len()? <= FLAGS_AT {
            return Ok(None);
        }
        self.0.read(FLAGS_AT, &mut flags)?;
        Ok(Some(flags[0]))
    }

    fn flag(&self) -> std::io::Result<()> {
        match self.flags()? {
            Some(flags) => self.0.write(FLAGS_AT, &[flags | RECOVERY_REQUIRED]),
            None => Ok(()),
        }
    }

    fn write_again(&self) -> std::io::Result<()> {
        let len = self.0.len()?;
        let mut part = vec![0; WRITE_AGAIN_LEN];
        let mut unreadable = Vec::new();
        for begin in (0..len).step_by(WRITE_AGAIN_LEN) {
            let part = &mut part[..WRITE_AGAIN_LEN.min((len - begin) as usize)];
            self.write_part_again(begin, part, &mut unreadable)?;
        }
        if let Some(offset) = unreadable.first() {
            warn!(offset, pages = unreadable.len(), "pages of a file of histories or events cannot be read");
        }
        self.sync_data()
    }

    /// A page that cannot be read stays as it is, and its offset is added to `unreadable`: what has not reached the disk could be read.
    /// redb reports it if it is needed. An error after some pages: the disk answers nothing.
    fn write_part_again(
        &self,
        begin: u64,
        part: &mut [u8],
        unreadable: &mut Vec<u64>,
    ) -> std::io::Result<()> {
        let Err(error) = self.0.read(begin, part) else { return self.0.write(begin, part) };
        if part.len() <= PAGE_LEN {
            unreadable.push(begin);
            return if unreadable.len() < UNREADABLE_MAX { Ok(()) } else { Err(error) };
        }
        for (page, begin) in part.chunks_mut(PAGE_LEN).zip((begin..).step_by(PAGE_LEN)) {
            self.write_part_again(begin, page, unreadable)?;
        }
        Ok(())
    }
}

impl<B: StorageBackend> StorageBackend for Flagged<B> {
    fn len(&self) -> std::io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> std::io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> std::io::Result<()> {
        self.0.sync_data().inspect_err(|_| {
            // Otherwise the flag is as it was while the file was open.
            let _ = self.flag();
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.0.write(offset, data)
    }

    fn close(&self) -> std::io::Result<()> {
        self.0.close()
    }
}

fn kind(path: &Path, error: &DatabaseError) -> DiskError {
    let (path, reason) = (path.to_owned(), error.to_string());
    match error {
        DatabaseError::DatabaseAlreadyOpen => DiskError::InUse { path },
        DatabaseError::Storage(StorageError::Io(error))
            if error.kind() == std::io::ErrorKind::InvalidData =>
        {
            DiskError::Damaged { path, reason: "it is not a file of histories".into() }
        }
        DatabaseError::Storage(StorageError::Io(_) | StorageError::PreviousIo) => {
            DiskError::Io { path, reason }
        }
        _ => DiskError::Damaged { path, reason },
    }
}

/// Checks that the file has the length that its head announces, because redb panics otherwise. The layout is that of
/// redb's file format 3: a page with the head, then regions.
fn check_len(path: &Path) -> Result<(), DiskError> {
    let io = |error: std::io::Error| DiskError::Io { path: path.into(), reason: error.to_string() };
    let mut head = Vec::new();
    let len = match std::fs::File::open(path) {
        Ok(file) => {
            use std::io::Read as _;
            let len = file.metadata().map_err(io)?.len();
            file.take(32).read_to_end(&mut head).map_err(io)?;
            len
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io(error)),
    };
    let damaged = |reason: String| Err(DiskError::Damaged { path: path.into(), reason });
    // A file that was created, but never written, is one without histories.
    if len == 0 {
        return Ok(());
    }
    if !head.starts_with(b"redb") && discard_unfinished(path)? {
        return Ok(());
    }
    let number = |at: usize| -> Option<u64> {
        Some(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?).into())
    };
    let numbers = (number(12), number(16), number(20), number(24), number(28));
    let (Some(page), Some(heading), Some(region), Some(regions), Some(last)) = numbers else {
        return damaged(format!("it was cut to {len} bytes"));
    };
    if !head.starts_with(b"redb") {
        return damaged("it is not a file of histories".into());
    }
    let last_pages = if last > 0 { heading + last } else { 0 };
    let pages = regions.saturating_mul(heading + region).saturating_add(last_pages).saturating_add(1);
    let expected = pages.saturating_mul(page);
    if len < expected {
        return damaged(format!("it was cut to {len} bytes of {expected}"));
    }
    Ok(())
}

/// How much of a file is written again at once.
const WRITE_AGAIN_LEN: usize = 1 << 20;

/// The number of pages that cannot be read after which a file is not written again.
const UNREADABLE_MAX: usize = 16;

/// The length of what every file begins with.
const MAGIC_LEN: usize = 9;

/// The length of a page, the first of which is the head.
const PAGE_LEN: usize = 4096;

/// No file is longer before it has its head.
const UNFINISHED_LEN_MAX: u64 = 4 << 20;

/// Empties a file whose creation was cut off, which has no histories: zeros are where the head begins, which is written last, and
/// everywhere after it. Returns whether it was one.
fn discard_unfinished(path: &Path) -> Result<bool, DiskError> {
    use std::io::Read as _;
    let io = |error: std::io::Error| io_error(path, &error);
    let mut file = std::fs::OpenOptions::new().read(true).write(true).open(path).map_err(io)?;
    // Another process may create it now. The lock is that of redb.
    file.try_lock().map_err(|error| io(error.into()))?;
    let mut bytes = Vec::new();
    (&mut file).take(UNFINISHED_LEN_MAX + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.starts_with(b"redb") {
        return Ok(true);
    }
    let is_zero = |bytes: Option<&[u8]>| bytes.is_none_or(|bytes| bytes.iter().all(|byte| *byte == 0));
    let is_unfinished = bytes.len() as u64 <= UNFINISHED_LEN_MAX
        && is_zero(bytes.get(..bytes.len().min(MAGIC_LEN)))
        && is_zero(bytes.get(PAGE_LEN..));
    if is_unfinished {
        file.set_len(0).map_err(io)?;
    }
    Ok(is_unfinished)
}

/// The publications of a channel in the order of their offsets, with the time at which each expires; `None` for one that
/// cannot be decoded. No offset is greater than [`Position::OFFSET_MAX`].
pub(super) type Rows = Vec<(u64, Duration, Option<Publication>)>;

pub(super) fn decode(offset: u64, expires_at: u64, bytes: &[u8]) -> (u64, Duration, Option<Publication>) {
    let publication = Publication::decode(bytes).ok().filter(|publication| publication.offset == offset);
    (offset, Duration::from_millis(expires_at), publication)
}

/// The log of a channel. Offsets are consecutive up to the last one: what precedes a gap cannot be recovered. Adds the
/// publications that are left out to `unreadable`.
pub(super) fn log_of(position: Position, rows: Rows, now: Duration, unreadable: &mut usize) -> Log {
    let mut kept = Vec::<(Arc<Publication>, Duration)>::new();
    let rows_len = rows.len();
    for (offset, expires_at, publication) in rows {
        if kept.last().is_some_and(|(last, _)| last.offset + 1 != offset) {
            kept.clear();
        }
        match publication {
            Some(publication) => kept.push((publication.into(), expires_at)),
            None => kept.clear(),
        }
    }
    if kept.last().is_some_and(|(last, _)| last.offset != position.offset) {
        kept.clear();
    }
    *unreadable += rows_len - kept.len();
    // Expired publications are dropped by the next maintenance, from the file too.
    Log::restore(position, kept, now)
}

/// Reads everything. Tables that are missing are created.
pub(super) fn load(database: &Database, now: Duration) -> Result<Content, redb::Error> {
    let write = database.begin_write()?;
    write.open_table(POSITIONS)?;
    write.open_table(PUBLICATIONS)?;
    write.open_table(KEYS)?;
    write.commit()?;
    let read = database.begin_read()?;
    let (positions, publications) = (read.open_table(POSITIONS)?, read.open_table(PUBLICATIONS)?);
    let mut content = Content::default();
    for row in positions.iter()? {
        let (channel, position) = row?;
        let (channel, (epoch, top)) = (channel.value(), position.value());
        if top > Position::OFFSET_MAX {
            return Err(redb::Error::Corrupted(format!("the offset of the channel {channel:?} is {top}")));
        }
        let mut rows = Rows::new();
        for row in publications.range((channel, 0)..=(channel, top))? {
            let (key, value) = row?;
            let (offset, (expires_at, bytes)) = (key.value().1, value.value());
            rows.push(decode(offset, expires_at, bytes));
        }
        let position = Position { offset: top, epoch: epoch.into() };
        let log = log_of(position, rows, now, &mut content.unreadable);
        content.logs.push((channel.to_owned(), log));
    }
    for row in read.open_table(KEYS)?.iter()? {
        let (key, value) = row?;
        let (key, remembered) = remembered(key.value(), value.value());
        content.keys.insert(key, remembered);
    }
    Ok(content)
}

pub(super) fn remembered(
    (channel, key): (&str, &str),
    (epoch, offset, expires_at): (&str, u64, u64),
) -> (Key, Remembered) {
    let position = Position { offset, epoch: epoch.into() };
    ((channel.into(), key.into()), Remembered { position, expires_at: Duration::from_millis(expires_at) })
}

/// Whether a file has no histories, as after it was removed and created again.
pub(super) fn is_empty(database: &Database) -> Result<bool, redb::Error> {
    let write = database.begin_write()?;
    let is_empty = write.open_table(POSITIONS)?.is_empty()?;
    write.abort()?;
    Ok(is_empty)
}

/// Stores changes, all or none. Returns when they survive a power failure.
pub(super) fn write(database: &Database, changes: &[Change]) -> Result<(), redb::Error> {
    let write = database.begin_write()?;
    {
        let mut positions = write.open_table(POSITIONS)?;
        let mut publications = write.open_table(PUBLICATIONS)?;
        let mut keys = write.open_table(KEYS)?;
        for change in changes {
            match change {
                Change::Append { channel, position, publication, expires_at, keep_from } => {
                    let value = (milliseconds(*expires_at), &publication.encode_to_vec()[..]);
                    publications.insert((&**channel, position.offset), value)?;
                    positions.insert(&**channel, (&*position.epoch, position.offset))?;
                    if *keep_from > 1 {
                        // The configured size may have become smaller: remove older ones as well.
                        publications.retain_in((&**channel, 0)..(&**channel, *keep_from), |_, _| false)?;
                    }
                }
                Change::Remember((channel, key), Remembered { position, expires_at }) => {
                    let value = (&*position.epoch, position.offset, milliseconds(*expires_at));
                    keys.insert((&**channel, &**key), value)?;
                }
                Change::Forget((channel, key)) => drop(keys.remove((&**channel, &**key))?),
                Change::Drop { channel, decision: Decision::Expire { first, .. } } => {
                    publications.retain_in((&**channel, 0)..(&**channel, *first), |_, _| false)?;
                }
                Change::Drop { channel, .. } => {
                    publications.retain_in((&**channel, 0)..=(&**channel, u64::MAX), |_, _| false)?;
                    positions.remove(&**channel)?;
                }
                Change::Replace { channel, log, keys: own } => {
                    publications.retain_in((&**channel, 0)..=(&**channel, u64::MAX), |_, _| false)?;
                    // No channel is between this one and the next in order.
                    let next = format!("{channel}\0");
                    keys.retain_in((&**channel, "")..(&*next, ""), |_, _| false)?;
                    for ((_, key), Remembered { position, expires_at }) in own {
                        let value = (&*position.epoch, position.offset, milliseconds(*expires_at));
                        keys.insert((&**channel, &**key), value)?;
                    }
                    let Some(Replacement { position, publications: kept }) = log else {
                        positions.remove(&**channel)?;
                        continue;
                    };
                    positions.insert(&**channel, (&*position.epoch, position.offset))?;
                    for (publication, expires_at) in kept {
                        let value = (milliseconds(*expires_at), &publication.encode_to_vec()[..]);
                        publications.insert((&**channel, publication.offset), value)?;
                    }
                }
            }
        }
    }
    write.commit()?;
    Ok(())
}

/// Whether the head of a file says that it was not closed.
fn was_open(path: &Path) -> std::io::Result<bool> {
    use std::io::{Read as _, Seek as _, SeekFrom};
    let mut file = std::fs::File::open(path)?;
    file.seek(SeekFrom::Start(FLAGS_AT))?;
    let mut flags = [0];
    Ok(file.read(&mut flags)? > 0 && flags[0] & RECOVERY_REQUIRED != 0)
}

/// See [`DiskEngine::check`](super::DiskEngine::check).
pub(super) fn check(path: &Path) -> Result<FileReport, DiskError> {
    let missing = |error: std::io::Error| DiskError::Io { path: path.into(), reason: error.to_string() };
    std::fs::metadata(path).map_err(missing)?;
    let was_open = was_open(path).map_err(missing)?;
    let mut database = open(path)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let found = database.call_mut(|database| {
        // Its result is not whether the file was closed: pages that the last commit has freed are a difference, too.
        database.check_integrity().map_err(redb::Error::from)?;
        load(database, now)
    });
    let content = found.map_err(|reason| DiskError::Damaged { path: path.into(), reason })?;
    // Closing truncates the file to what it needs.
    drop(database);
    Ok(FileReport {
        path: path.into(),
        len: std::fs::metadata(path).map_err(missing)?.len(),
        channels: content.logs.len(),
        publications: content.logs.iter().map(|(_, log)| log.kept_from(0).count()).sum(),
        unreadable: content.unreadable,
        is_repaired: was_open,
    })
}

/// The name that a file has once it is set aside.
fn aside(path: &Path) -> Result<PathBuf, DiskError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let aside = path.with_extension(format!("redb.{}", now.as_secs()));
    if aside.exists() {
        return Err(DiskError::Io { path: aside, reason: "it exists already".into() });
    }
    Ok(aside)
}

/// An error of the system about a file. A lock that another process holds is one.
pub(super) fn io_error(path: &Path, error: &std::io::Error) -> DiskError {
    match error.kind() {
        std::io::ErrorKind::WouldBlock => DiskError::InUse { path: path.into() },
        _ => DiskError::Io { path: path.into(), reason: error.to_string() },
    }
}

/// Returns when the names in the directory of a file survive a power failure.
fn sync_names(path: &Path) -> std::io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    super::sync_directory(directory.unwrap_or(Path::new(".")))
}

/// See [`DiskEngine::set_aside`](super::DiskEngine::set_aside).
pub(super) fn set_aside(path: &Path) -> Result<PathBuf, DiskError> {
    let io = |error: std::io::Error| io_error(path, &error);
    let file = std::fs::File::open(path).map_err(io)?;
    // A server may have opened it since it was found damaged. The lock is that of redb.
    file.try_lock().map_err(|error| io(error.into()))?;
    let aside = aside(path)?;
    std::fs::rename(path, &aside).and_then(|()| sync_names(path)).map_err(io)?;
    Ok(aside)
}

/// Replaces a file by `new`, and keeps it under another name, which is returned. There is a file at `path` at any time, also after a
/// power failure.
pub(super) fn replace(path: &Path, new: &Path) -> Result<PathBuf, DiskError> {
    let io = |error: std::io::Error| io_error(path, &error);
    let aside = aside(path)?;
    // Some file systems have no hard links.
    std::fs::hard_link(path, &aside)
        .or_else(|_| std::fs::copy(path, &aside).and_then(|_| std::fs::File::open(&aside)?.sync_all()))
        .map_err(io)?;
    if let Err(error) = std::fs::rename(new, path) {
        let _ = std::fs::remove_file(&aside);
        return Err(io(error));
    }
    sync_names(path).map_err(io)?;
    Ok(aside)
}
