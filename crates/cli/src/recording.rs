//! `--record`: writes the bytes of connections to a file, in the format of `wireloom_inspect::recording`.
//!
//! ```text
//! a connection: mask, encode --.
//! a connection: mask, encode ---+--> lines, at most QUEUED_LEN_MAX --> a thread --> the file
//! ```

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tracing::error;
use wireloom::TapEvent;
use wireloom_inspect::Direction;
use wireloom_inspect::recording::{Encoder, first_line};

use crate::args::Record;
use crate::throttle::Throttle;
use crate::{file, terminal};

/// Lines that the file has not taken, in bytes.
const QUEUED_LEN_MAX: usize = 4 << 20;

/// Room beyond that for the ends of connections and what they have lost, so that no loss goes unmarked.
const ENDS_LEN_MAX: usize = 1 << 20;

/// How long the end of the command waits for the file, which may be a pipe without a reader.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// The role of this process in the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    /// It never waits for the file: what that does not take in time is lost, and marked as such.
    Server,
}

/// A recording, which is complete once this is dropped.
pub(crate) struct Recording {
    queue: Arc<Queue>,
    masks_secrets: bool,
    started: Instant,
}

/// Records an event of the connection with this number.
pub(crate) type Observer = Box<dyn Fn(u64, TapEvent<'_>) + Send + Sync>;

/// Starts a recording if the arguments ask for one. Its first bytes replace what the file holds.
///
/// # Errors
/// The file cannot be written; the text names it.
pub(crate) fn start(args: &Record, side: Side) -> Result<Option<Recording>, String> {
    let Some(path) = &args.record else { return Ok(None) };
    let named = |error: io::Error| format!("--record {}: {error}", path.display());
    let file = file::open_private(path).map_err(named)?;
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let masks_secrets = !args.record_secrets;
    let queue = Arc::new(Queue {
        name: path.display().to_string(),
        side,
        lines: Mutex::default(),
        changed: Condvar::new(),
        losses: Throttle::default(),
    });
    let writer = queue.clone();
    std::thread::spawn(move || writer.write(file, &first_line(since_epoch, masks_secrets)));
    Ok(Some(Recording { queue, masks_secrets, started: Instant::now() }))
}

impl Recording {
    /// An observer of the connections of this process.
    pub(crate) fn observer(&self) -> Observer {
        let Self { queue, masks_secrets, started } = self;
        let (queue, masks_secrets, started) = (queue.clone(), *masks_secrets, *started);
        let connections = Mutex::new(HashMap::<u64, Arc<Mutex<Encoder>>>::new());
        let (received, sent) = match queue.side {
            Side::Client => (Direction::ToClient, Direction::ToServer),
            Side::Server => (Direction::ToServer, Direction::ToClient),
        };
        Box::new(move |number, event| {
            let (direction, bytes) = match event {
                TapEvent::Received(bytes) => (received, Some(bytes)),
                TapEvent::Sent(bytes) => (sent, Some(bytes)),
                TapEvent::ReceiveEnded => (received, None),
                TapEvent::SendEnded => (sent, None),
                _ => return,
            };
            let new = || Arc::new(Mutex::new(Encoder::new(number, masks_secrets)));
            let connection = lock(&connections).entry(number).or_insert_with(new).clone();
            let mut encoder = lock(&connection);
            let offset = started.elapsed();
            let lines = match bytes {
                Some(bytes) => encoder.bytes(offset, direction, bytes),
                None => encoder.end(offset, direction),
            };
            let len_max = if bytes.is_some() { QUEUED_LEN_MAX } else { QUEUED_LEN_MAX + ENDS_LEN_MAX };
            let is_queued = queue.push(&lines.text, len_max);
            if !is_queued {
                encoder.lose(&lines);
            }
            if encoder.has_ended() {
                lock(&connections).remove(&number);
            }
            drop(encoder);
            if !is_queued && queue.losses.next(Instant::now()).is_some() {
                queue.report("the file does not take what is recorded as fast as it comes; some is left out");
            }
        })
    }
}

impl Recording {
    /// Whether all of it has been written.
    pub(crate) fn finish(self) -> bool {
        let queue = self.queue.clone();
        drop(self);
        let lines = lock(&queue.lines);
        !lines.has_failed && lines.len() == 0
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let lines = lock(&self.queue.lines);
        let is_writing = |lines: &mut Lines| lines.len() > 0;
        let (lines, ended) = self
            .queue
            .changed
            .wait_timeout_while(lines, END_TIMEOUT, is_writing)
            .unwrap_or_else(PoisonError::into_inner);
        drop(lines);
        if ended.timed_out() {
            self.queue.report("the file does not take the end of what was recorded; it is left out");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lines on their way from the connections to the file.
struct Queue {
    /// Of the file.
    name: String,
    side: Side,
    lines: Mutex<Lines>,
    /// There are lines to write, or room for more.
    changed: Condvar,
    losses: Throttle,
}

#[derive(Default)]
struct Lines {
    queued: String,
    /// Bytes that are being written.
    writing: usize,
    /// A write has failed: nothing more is recorded.
    has_failed: bool,
}

impl Lines {
    fn len(&self) -> usize {
        self.queued.len() + self.writing
    }

    /// Whether the queue takes this many bytes: any number while it is empty.
    fn has_room(&self, len: usize, len_max: usize) -> bool {
        self.len() == 0 || self.len() + len <= len_max
    }
}

impl Queue {
    /// Queues lines, for at most `len_max` bytes together; false if there is no room for them.
    fn push(&self, text: &str, len_max: usize) -> bool {
        if text.is_empty() {
            return true;
        }
        let mut lines = lock(&self.lines);
        if self.side == Side::Client {
            let is_full = |lines: &mut Lines| !lines.has_failed && !lines.has_room(text.len(), len_max);
            lines = self.changed.wait_while(lines, is_full).unwrap_or_else(PoisonError::into_inner);
        }
        if lines.has_failed {
            return true;
        }
        if !lines.has_room(text.len(), len_max) {
            return false;
        }
        lines.queued.push_str(text);
        drop(lines);
        self.changed.notify_all();
        true
    }

    /// Writes lines as they come, until that fails.
    fn write(&self, mut file: File, first_line: &str) {
        let mut text = self.next();
        // Until there is something to record, the file keeps what it holds.
        file::empty(&file);
        let mut written = file.write_all(first_line.as_bytes());
        let error = loop {
            if let Err(error) = written.and_then(|()| file.write_all(text.as_bytes())) {
                break error;
            }
            written = Ok(());
            text = self.next();
        };
        // First, because the command may end afterwards.
        self.report(&format!("{error}; recording has stopped"));
        *lock(&self.lines) = Lines { has_failed: true, ..Lines::default() };
        self.changed.notify_all();
    }

    /// Waits for the next lines, when those before have been written.
    fn next(&self) -> String {
        let mut lines = lock(&self.lines);
        lines.writing = 0;
        self.changed.notify_all();
        let is_empty = |lines: &mut Lines| lines.queued.is_empty();
        let mut lines = self.changed.wait_while(lines, is_empty).unwrap_or_else(PoisonError::into_inner);
        lines.writing = lines.queued.len();
        std::mem::take(&mut lines.queued)
    }

    fn report(&self, what: &str) {
        let text = format!("--record {}: {what}", self.name);
        match self.side {
            Side::Client => terminal::print_error(text),
            // The terminal of a server may be unread, and printing would wait for it.
            Side::Server => error!("{text}"),
        }
    }
}
