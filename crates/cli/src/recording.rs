//! `--record`: writes the bytes of connections to a file, in the format of `wireloom_inspect::recording`.

use std::fs::File;
use std::io::BufWriter;
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use wireloom::{Tap, TapEvent};
use wireloom_inspect::Direction;
use wireloom_inspect::recording::Recorder;

use crate::args::Record;
use crate::terminal;

/// The role of this process in the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

/// A recording in progress; `None` after a write failed.
type Recording = Mutex<Option<Recorder<BufWriter<File>>>>;

/// Writes an event of the connection with this number.
pub(crate) type Observer = Box<dyn Fn(u64, TapEvent<'_>) + Send + Sync>;

/// Starts a recording if the arguments ask for one.
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
    let named = |error: std::io::Error| format!("--record {}: {error}", path.display());
    let file = File::create(path).map_err(named)?;
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let recorder = Recorder::new(BufWriter::new(file), since_epoch, !args.record_secrets).map_err(named)?;
    let recording: Recording = Mutex::new(Some(recorder));
    let started = Instant::now();
    let name = path.display().to_string();
    let (received, sent) = match side {
        Side::Client => (Direction::ToClient, Direction::ToServer),
        Side::Server => (Direction::ToServer, Direction::ToClient),
    };
    Ok(Some(Box::new(move |connection, event| {
        let mut recording = recording.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(recorder) = recording.as_mut() else { return };
        let offset = started.elapsed();
        let written = match event {
            TapEvent::Received(bytes) => recorder.bytes(offset, connection, received, bytes),
            TapEvent::Sent(bytes) => recorder.bytes(offset, connection, sent, bytes),
            TapEvent::ReceiveEnded => recorder.end(offset, connection, received),
            TapEvent::SendEnded => recorder.end(offset, connection, sent),
            _ => Ok(()),
        };
        if let Err(error) = written.and_then(|()| recorder.flush()) {
            terminal::print_error(format_args!("--record {name}: {error}; recording has stopped"));
            *recording = None;
        }
    })))
}
