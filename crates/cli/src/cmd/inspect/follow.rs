//! A file that grows: at its end the reader waits for more.

use std::fs::File;
use std::io::{self, Read};
use std::thread;
use std::time::Duration;

/// How often the file is checked for more.
const INTERVAL: Duration = Duration::from_millis(100);

/// Reads a file and never reaches its end.
pub(super) struct Follow {
    file: File,
}

impl Follow {
    pub(super) fn new(file: File) -> Self {
        Self { file }
    }
}

impl Read for Follow {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.file.read(buffer)? {
                0 if !buffer.is_empty() => thread::sleep(INTERVAL),
                len => return Ok(len),
            }
        }
    }
}
