//! `--record`: writes the bytes of connections to a file, in the format of `wireloom_inspect::recording`.

use std::fs::File;
use std::io::{self, BufWriter};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tracing::error;
use wireloom::{Tap, TapEvent};
use wireloom_inspect::Direction;
use wireloom_inspect::recording::Recorder;

use crate::args::Record;
use crate::{file, terminal};

/// The role of this process in the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

/// A recording.
enum Recording {
    /// Nothing has been recorded. The file keeps what it holds.
    Ready(File),
    Started(Recorder<BufWriter<File>>),
    /// A write failed.
    Failed,
}

impl Recording {
    /// The recorder, which empties the file at first; `None` after a failure.
    ///
    /// # Errors
    /// The file cannot be written.
    fn recorder(
        &mut self,
        since_epoch: Duration,
        masks_secrets: bool,
    ) -> io::Result<Option<&mut Recorder<BufWriter<File>>>> {
        if let Self::Ready(_) = self
            && let Self::Ready(file) = std::mem::replace(self, Self::Failed)
        {
            file::empty(&file);
            *self = Self::Started(Recorder::new(BufWriter::new(file), since_epoch, masks_secrets)?);
        }
        Ok(match self {
            Self::Started(recorder) => Some(recorder),
            Self::Ready(_) | Self::Failed => None,
        })
    }
}

/// Writes an event of the connection with this number.
pub(crate) type Observer = Box<dyn Fn(u64, TapEvent<'_>) + Send + Sync>;

/// Starts a recording if the arguments ask for one. Its first bytes replace what the file holds.
///
/// # Errors
/// The file cannot be written; the text names it.
pub(crate) fn start(args: &Record, side: Side) -> Result<Option<Tap>, String> {
    Ok(observer(args, side)?.map(Tap::new))
}

/// As [`start`], without the tap. The observer writes each event to the file before the next one.
///
/// # Errors
/// The file cannot be written; the text names it.
pub(crate) fn observer(args: &Record, side: Side) -> Result<Option<Observer>, String> {
    let Some(path) = &args.record else { return Ok(None) };
    let named = |error: io::Error| format!("--record {}: {error}", path.display());
    let recording = Mutex::new(Recording::Ready(file::open_private(path).map_err(named)?));
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let masks_secrets = !args.record_secrets;
    let started = Instant::now();
    let name = path.display().to_string();
    let (received, sent) = match side {
        Side::Client => (Direction::ToClient, Direction::ToServer),
        Side::Server => (Direction::ToServer, Direction::ToClient),
    };
    Ok(Some(Box::new(move |connection, event| {
        let mut recording = recording.lock().unwrap_or_else(PoisonError::into_inner);
        let offset = started.elapsed();
        let written = recording.recorder(since_epoch, masks_secrets).and_then(|recorder| {
            let Some(recorder) = recorder else { return Ok(()) };
            match event {
                TapEvent::Received(bytes) => recorder.bytes(offset, connection, received, bytes)?,
                TapEvent::Sent(bytes) => recorder.bytes(offset, connection, sent, bytes)?,
                TapEvent::ReceiveEnded => recorder.end(offset, connection, received)?,
                TapEvent::SendEnded => recorder.end(offset, connection, sent)?,
                _ => {}
            }
            recorder.flush()
        });
        if let Err(error) = written {
            let stopped = format!("--record {name}: {error}; recording has stopped");
            match side {
                Side::Client => terminal::print_error(stopped),
                // The output of a server may be unread, so the error is logged.
                Side::Server => error!("{stopped}"),
            }
            *recording = Recording::Failed;
        }
    })))
}
