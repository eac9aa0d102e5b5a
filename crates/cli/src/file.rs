//! Files that the command writes. What they held before is kept until there is something to write.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

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

/// Writes the content of a file that was opened by this path. A regular file is replaced as a whole: if the disk is full, it keeps what it
/// held. It is written in place where that cannot be: a link, a folder that this user may not change, a mount of one file.
///
/// # Errors
/// It cannot be written.
pub(crate) fn replace(mut file: File, path: &Path, content: &[u8]) -> io::Result<()> {
    if let Some((new, new_path)) = beside(path) {
        let written = write_new(new, content);
        if written.is_ok() && std::fs::rename(&new_path, path).is_ok() {
            return Ok(());
        }
        let _ = std::fs::remove_file(&new_path);
        written?;
    }
    empty(&file);
    file.write_all(content)
}

/// An empty file beside a regular one, with its permissions, and its path.
fn beside(path: &Path) -> Option<(File, PathBuf)> {
    let old = path.symlink_metadata().ok().filter(std::fs::Metadata::is_file)?;
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name()?);
    name.push(format!(".{}", std::process::id()));
    let new_path = path.with_file_name(name);
    let new = File::options().write(true).create_new(true).open(&new_path).ok()?;
    if new.set_permissions(old.permissions()).is_err() {
        let _ = std::fs::remove_file(&new_path);
        return None;
    }
    Some((new, new_path))
}

fn write_new(mut file: File, content: &[u8]) -> io::Result<()> {
    file.write_all(content)?;
    // Some file systems find only now that they are full.
    file.sync_all()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_where_that_can_be() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report");
        let write = |path: &Path, content: &str| replace(open(path).unwrap(), path, content.as_bytes());
        let content = |path: &Path| std::fs::read_to_string(path).unwrap();
        std::fs::write(&path, "a longer text").unwrap();
        let mut before = File::open(&path).unwrap();
        write(&path, "new").unwrap();
        assert_eq!(content(&path), "new");
        // A reader of the old file is not disturbed.
        assert_eq!(io::read_to_string(&mut before).unwrap(), "a longer text");
        write(&folder.path().join("other"), "new").unwrap();
        assert_eq!(content(&folder.path().join("other")), "new");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "something is left");
    }

    #[cfg(unix)]
    #[test]
    fn a_file_keeps_its_links_and_permissions() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};

        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("report"), folder.path().join("link"));
        std::fs::write(&path, "a longer text").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        symlink(&path, &link).unwrap();
        replace(open(&link).unwrap(), &link, b"linked").unwrap();
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert_eq!(std::fs::read(&path).unwrap(), b"linked");
        replace(open(&path).unwrap(), &path, b"new").unwrap();
        assert_eq!(std::fs::read(&link).unwrap(), b"new");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
}
