//! Files of proc(5), which stay open: they can be read although the process has no free file descriptor.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::OnceLock;

/// A file with one short line.
pub(crate) struct ProcFile {
    path: &'static str,
    file: OnceLock<File>,
}

impl ProcFile {
    pub(crate) const fn new(path: &'static str) -> Self {
        Self { path, file: OnceLock::new() }
    }

    /// What it says now.
    pub(crate) fn read(&self) -> Option<String> {
        if self.file.get().is_none() {
            let _ = self.file.set(File::open(self.path).ok()?);
        }
        let mut line = [0; 1 << 10];
        let len = self.file.get()?.read_at(&mut line, 0).ok()?;
        Some(String::from_utf8_lossy(&line[..len]).into_owned())
    }
}
