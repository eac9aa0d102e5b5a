//! A global allocator that counts what is asked of it while it is told to. Timed passes run with counting off, so that
//! no contestant pays for being watched.
#![allow(unsafe_code)] // `GlobalAlloc` is an unsafe trait; every call is handed to the system's allocator unchanged.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};

static COUNTING: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicI64 = AtomicI64::new(0);

/// The system's allocator with a counter in front.
pub(crate) struct CountingAllocator;

impl CountingAllocator {
    #[inline]
    fn note(requests: u64, bytes: i64) {
        if COUNTING.load(Relaxed) {
            COUNT.fetch_add(requests, Relaxed);
            BYTES.fetch_add(bytes, Relaxed);
        }
    }
}

// SAFETY: every method passes its arguments to `System`, which upholds the contract, and returns what that returned.
unsafe impl GlobalAlloc for CountingAllocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::note(1, layout.size() as i64);
        // SAFETY: the caller's promise about `layout` is the one that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        Self::note(0, -(layout.size() as i64));
        // SAFETY: `block` came from `System` with this `layout`, as every block of this allocator does.
        unsafe { System.dealloc(block, layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::note(1, layout.size() as i64);
        // SAFETY: as for `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::note(1, size as i64 - layout.size() as i64);
        // SAFETY: as for `dealloc`, and `size` is the caller's promise to `System`.
        unsafe { System.realloc(block, layout, size) }
    }
}

/// Whether allocations are being counted: code in C then has to go through here.
#[cfg(rival_nghttp2)]
pub(crate) fn is_counting() -> bool {
    COUNTING.load(Relaxed)
}

/// How many allocations and reallocations `work` asks for. One count at a time: the benchmark has one thread.
pub(crate) fn count(work: impl FnOnce()) -> u64 {
    let before = COUNT.load(Relaxed);
    COUNTING.store(true, Relaxed);
    work();
    COUNTING.store(false, Relaxed);
    COUNT.load(Relaxed) - before
}

/// What `work` gives, and how many bytes more than before are allocated once it is done.
pub(crate) fn growth<T>(work: impl FnOnce() -> T) -> (T, i64) {
    let before = BYTES.load(Relaxed);
    COUNTING.store(true, Relaxed);
    let made = work();
    COUNTING.store(false, Relaxed);
    (made, BYTES.load(Relaxed) - before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_while_it_is_told_to() {
        drop(std::hint::black_box(Vec::<u8>::with_capacity(64)));
        let counted = count(|| {
            let mut bytes = std::hint::black_box(Vec::<u8>::with_capacity(64));
            bytes.reserve(128);
        });
        // Other tests of this process may allocate at the same time; none may be missed.
        assert!(counted >= 2, "{counted}");
    }
}
