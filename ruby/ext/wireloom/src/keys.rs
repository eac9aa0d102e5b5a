//! Masking keys from the operating system's randomness (RFC 6455 §10.3).

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use magnus::{Error, Ruby};
use wireloom_ws::mask::MaskKey;

/// Keys that are fetched at a time: fetching costs more than masking a small frame.
const KEYS: usize = 16;

/// Counts the forks that led to this process: what was random before one is shared with the parent.
static FORKS: AtomicUsize = AtomicUsize::new(0);

#[cfg(unix)]
unsafe extern "C" {
    fn pthread_atfork(
        prepare: Option<unsafe extern "C" fn()>,
        parent: Option<unsafe extern "C" fn()>,
        child: Option<unsafe extern "C" fn()>,
    ) -> std::ffi::c_int;
}

#[cfg(unix)]
unsafe extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Called once, while the library loads.
pub(crate) fn init() {
    // SAFETY: the handler does no more than add to an atomic, and the library is never unloaded.
    #[cfg(unix)]
    unsafe {
        pthread_atfork(None, None, Some(forked));
    }
}

/// How many forks led to this process.
#[inline]
pub(crate) fn forks() -> usize {
    FORKS.load(Ordering::Relaxed)
}

/// The system has no randomness to give.
pub(crate) struct NoRandomness(getrandom::Error);

impl NoRandomness {
    #[cold]
    pub(crate) fn raised(self, ruby: &Ruby) -> Error {
        Error::new(ruby.exception_runtime_error(), self.to_string())
    }
}

impl fmt::Display for NoRandomness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no randomness: {}", self.0)
    }
}

pub(crate) fn random<const N: usize>() -> Result<[u8; N], NoRandomness> {
    let mut bytes = [0; N];
    getrandom::getrandom(&mut bytes).map_err(NoRandomness)?;
    Ok(bytes)
}

/// Masking keys of one connection.
#[derive(Default)]
pub(crate) struct Keys {
    keys: [[u8; 4]; KEYS],
    /// `0 <= left <= KEYS`
    left: usize,
    /// [`forks`] when they were fetched.
    forks: usize,
}

impl Keys {
    pub(crate) fn next(&mut self) -> Result<MaskKey, NoRandomness> {
        if self.left == 0 || self.forks != forks() {
            let bytes: [u8; 4 * KEYS] = random()?;
            self.keys.copy_from_slice(bytes.as_chunks().0);
            self.left = KEYS;
            self.forks = forks();
        }
        self.left -= 1;
        Ok(MaskKey::new(self.keys[self.left]))
    }
}
