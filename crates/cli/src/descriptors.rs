//! The limit on open files, which is the limit on connections. Shells hand down a low one for the sake of programs that
//! use `select`; there is none here.

/// Raises it as far as this user may, as Go's and Java's runtimes do.
#[cfg(unix)]
pub(crate) fn raise_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        // Where it is not granted the old one holds.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    }
}

#[cfg(not(unix))]
pub(crate) fn raise_limit() {}
