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
