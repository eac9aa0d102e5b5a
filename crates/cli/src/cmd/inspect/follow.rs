//! A file that grows: at its end the reader waits for more, until SIGINT or SIGTERM.

use std::fs::File;
use std::io::{self, Read};
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
            match self.file.read(buffer)? {
                0 if !buffer.is_empty() => thread::sleep(INTERVAL),
                len => return Ok(len),
            }
        }
    }
}
