//! Files that the command writes. What they held before is kept until there is something to write.

use std::fs::File;
use std::io;
use std::path::Path;

/// Opens a file for writing before the work begins, so that an error is reported early.
///
/// # Errors
/// It cannot be written.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    File::options().write(true).create(true).truncate(false).open(path)
}

/// Removes what a file held before. A pipe or a terminal has no length.
pub(crate) fn empty(file: &File) {
    let _ = file.set_len(0);
}
