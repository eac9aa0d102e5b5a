//! The limit on open files, which limits connections. Shells start programs with a low soft limit, for compatibility with `select`.

/// Raises the soft limit to the hard limit, as the runtimes of Go and Java do.
#[cfg(unix)]
pub(crate) fn raise_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        // If this is not permitted, the old limit stays.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    }
}

#[cfg(not(unix))]
pub(crate) fn raise_limit() {}

/// Descriptors that are not those of clients: listeners, the log, the runtime, files of histories, connections to brokers.
const OTHERS: u64 = 64;

/// The most files of `--dir` that are open at once.
const FILES_MAX: usize = 1024;

/// The number of files of `--dir` that may be open at once: an eighth of what the limit on open files leaves for clients.
pub(crate) fn files_allowed() -> usize {
    allowed().map_or(FILES_MAX, |allowed| (allowed / 8).clamp(1, FILES_MAX))
}

/// The number of connections that the limit on open files allows, beside the files of `--dir`; `None` without a limit.
pub(crate) fn connections_allowed(has_dir: bool) -> Option<usize> {
    let files = if has_dir { files_allowed() } else { 0 };
    Some(allowed()?.saturating_sub(files).max(1))
}

/// The number of descriptors for clients; `None` without a limit.
#[cfg(unix)]
fn allowed() -> Option<usize> {
    use rustix::process::{Resource, getrlimit};
    usize::try_from(getrlimit(Resource::Nofile).current?.saturating_sub(OTHERS)).ok()
}

#[cfg(not(unix))]
fn allowed() -> Option<usize> {
    None
}

/// Whether the process, or the system, has no free descriptor.
#[cfg(unix)]
pub(crate) fn is_out_of(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

#[cfg(not(unix))]
pub(crate) fn is_out_of(_: &std::io::Error) -> bool {
    false
}
