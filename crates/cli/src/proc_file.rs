//! Reads `/proc/self/stat`. The file stays open, so that it can be read when the process has no free file descriptor.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::OnceLock;

static STAT: OnceLock<File> = OnceLock::new();

/// The fields of `/proc/self/stat`, as proc(5) numbers them.
pub(crate) struct Stat(String);

impl Stat {
    /// The current fields.
    pub(crate) fn read() -> Option<Self> {
        if STAT.get().is_none() {
            let _ = STAT.set(File::open("/proc/self/stat").ok()?);
        }
        let mut line = [0; 1 << 10];
        let len = STAT.get()?.read_at(&mut line, 0).ok()?;
        Some(Self(String::from_utf8_lossy(&line[..len]).into_owned()))
    }

    /// A field from number 3 on.
    pub(crate) fn field(&self, number: usize) -> Option<f64> {
        // The name of the process, in parentheses, may contain anything.
        let (_, rest) = self.0.rsplit_once(')')?;
        rest.split_whitespace().nth(number - 3)?.parse().ok()
    }

    /// Resident memory, in bytes.
    pub(crate) fn resident_bytes(&self) -> Option<f64> {
        Some(self.field(24)? * rustix::param::page_size() as f64)
    }
}
