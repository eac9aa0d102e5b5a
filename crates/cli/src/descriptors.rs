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

/// The number of connections that the limit on open files allows; `None` without a limit.
#[cfg(unix)]
pub(crate) fn connections_allowed() -> Option<usize> {
    use rustix::process::{Resource, getrlimit};
    let allowed = getrlimit(Resource::Nofile).current?.saturating_sub(OTHERS).max(1);
    usize::try_from(allowed).ok()
}

#[cfg(not(unix))]
pub(crate) fn connections_allowed() -> Option<usize> {
    None
}
