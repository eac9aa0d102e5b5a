//! A file that grows: at its end the reader waits for more, until SIGINT or SIGTERM.

use std::fs::File;
use std::io::{self, Read, Seek as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::signals;

/// How often the file is checked for more.
const INTERVAL: Duration = Duration::from_millis(100);

/// Reads a file. The end of the file is reported only after a signal, so that everything that was read is printed.
pub(super) struct Follow {
    file: File,
    is_interrupted: Arc<AtomicBool>,
}

impl Follow {
    /// # Errors
    /// The signals cannot be received.
    pub(super) fn new(file: File) -> io::Result<Self> {
        Ok(Self { file, is_interrupted: signals::flag()? })
    }
}

impl Read for Follow {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.is_interrupted.load(Ordering::Relaxed) {
                return Ok(0);
            }
            if !is_readable(&self.file)? {
                continue;
            }
            match self.file.read(buffer)? {
                0 if !buffer.is_empty() => {
                    self.check_len()?;
                    thread::sleep(INTERVAL);
                }
                len => return Ok(len),
            }
        }
    }
}

impl Follow {
    /// # Errors
    /// The bytes that were read are no longer in the file, so the position of the next ones is unknown.
    fn check_len(&mut self) -> io::Result<()> {
        let metadata = self.file.metadata()?;
        if metadata.is_file() && metadata.len() < self.file.stream_position()? {
            let text = "the file was truncated while it was followed; run the command again to read it from its beginning";
            return Err(io::Error::other(text));
        }
        Ok(())
    }
}

/// Waits up to [`INTERVAL`] for bytes or the end: a signal does not interrupt the reading of a pipe that a program has open.
#[cfg(unix)]
fn is_readable(file: &File) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let interval = Timespec { tv_sec: 0, tv_nsec: INTERVAL.subsec_nanos().into() };
    match poll(&mut [PollFd::new(file, PollFlags::IN)], Some(&interval)) {
        Err(rustix::io::Errno::INTR) => Ok(false),
        ready => Ok(ready? > 0),
    }
}

#[cfg(not(unix))]
fn is_readable(_: &File) -> io::Result<bool> {
    Ok(true)
}
