//! Files that the command writes. What they held before is kept until there is something to write.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

/// Opens a file for writing before the work begins, so that an error is reported early.
///
/// # Errors
/// It cannot be written.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    options().open(path)
}

/// As [`open`]. A file that did not exist is for this user alone: it will hold what clients and servers send.
///
/// # Errors
/// It cannot be written.
pub(crate) fn open_private(path: &Path) -> io::Result<File> {
    let mut options = options();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

fn options() -> OpenOptions {
    let mut options = File::options();
    options.write(true).create(true).truncate(false);
    options
}

/// To be called before a folder is created.
///
/// # Errors
/// A file is in its place, of which the system would say that it exists.
pub(crate) fn check_folder(path: &Path) -> io::Result<()> {
    if path.exists() && !path.is_dir() {
        return Err(io::Error::other("a file has this name; name a folder, or one to create"));
    }
    Ok(())
}

/// Removes what a file held before. A pipe or a terminal has no length.
pub(crate) fn empty(file: &File) {
    let _ = file.set_len(0);
}
