//! Memory outside of Ruby's heap that an object uses: the collector runs more often when there is much of it, and a call that finds
//! none raises NoMemoryError.

use std::collections::TryReserveError;
use std::sync::atomic::{AtomicUsize, Ordering};

use magnus::{Error, Ruby};

/// Smaller changes are not reported, in bytes.
const STEP: usize = 64 << 10;

/// The allocator has no memory, or the core reported that.
#[cold]
pub(crate) fn no_memory(ruby: &Ruby) -> Error {
    Error::new(ruby.exception_no_mem_error(), "failed to allocate memory")
}

/// Appends `bytes`, if there is memory for them.
#[inline]
pub(crate) fn try_extend(to: &mut Vec<u8>, bytes: &[u8]) -> Result<(), TryReserveError> {
    to.try_reserve(bytes.len())?;
    to.extend_from_slice(bytes);
    Ok(())
}

/// Appends `slices`, up to the first for which there is no memory. Returns how many bytes that was.
#[inline]
pub(crate) fn try_extend_all(to: &mut Vec<u8>, slices: &[&[u8]]) -> (usize, Result<(), TryReserveError>) {
    let before = to.len();
    let done = slices.iter().try_for_each(|slice| try_extend(to, slice));
    (to.len() - before, done)
}

/// Adds zeros up to a length of `len`, if there is memory for them.
#[inline]
pub(crate) fn try_grow(to: &mut Vec<u8>, len: usize) -> Result<(), TryReserveError> {
    if to.len() < len {
        to.try_reserve(len - to.len())?;
        to.resize(len, 0);
    }
    Ok(())
}

/// How much memory was reported for one object; given back when the object is freed.
#[derive(Default)]
pub(crate) struct Accounted(AtomicUsize);

impl Accounted {
    /// The object uses `len` bytes now.
    #[inline]
    pub(crate) fn set(&self, len: usize) {
        if len.abs_diff(self.0.load(Ordering::Relaxed)) >= STEP {
            self.report(len);
        }
    }

    #[cold]
    fn report(&self, len: usize) {
        let before = self.0.swap(len, Ordering::Relaxed);
        // SAFETY: the GVL is held; nothing is borrowed while the collector may run.
        unsafe { rb_sys::rb_gc_adjust_memory_usage((len as isize - before as isize) as _) };
    }
}

impl Drop for Accounted {
    fn drop(&mut self) {
        let reported = *self.0.get_mut();
        if reported > 0 {
            // SAFETY: less memory never starts the collector, which may be running here.
            unsafe { rb_sys::rb_gc_adjust_memory_usage(-(reported as isize) as _) };
        }
    }
}
