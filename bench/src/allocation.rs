//! A global allocator that counts allocations during the passes that are checked. During timed passes it does not
//! count, which costs every contestant in Rust the same two branches.
//!
//! It forwards to the system's allocator, or to mimalloc if [`VARIABLE`] is `mimalloc`: some libraries recommend
//! mimalloc in their documentation.
#![allow(unsafe_code)] // `GlobalAlloc` is an unsafe trait; every call is forwarded unchanged to one allocator.

use mimalloc::MiMalloc;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering::Relaxed};

/// The variable that chooses the allocator of a process.
pub(crate) const VARIABLE: &str = "WIRELOOM_BENCH_ALLOCATOR";

const UNKNOWN: u8 = 0;
const SYSTEM: u8 = 1;
const MIMALLOC: u8 = 2;
static CHOICE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// The name of this process's allocator.
pub(crate) fn name() -> &'static str {
    if is_mimalloc() { "mimalloc" } else { "the system's" }
}

/// Whether this process uses mimalloc. The choice is made at its first allocation and never changes.
#[inline]
fn is_mimalloc() -> bool {
    match CHOICE.load(Relaxed) {
        UNKNOWN => choose(),
        choice => choice == MIMALLOC,
    }
}

/// Reads the environment variable without allocating.
#[cold]
fn choose() -> bool {
    // SAFETY: the name ends with a NUL. Nothing changes the environment: this crate never calls `set_var`, and the first
    // allocation comes before `main`.
    let value = unsafe { libc::getenv(c"WIRELOOM_BENCH_ALLOCATOR".as_ptr()) };
    // SAFETY: a value of the environment ends with a NUL.
    let is_mimalloc = !value.is_null() && unsafe { std::ffi::CStr::from_ptr(value) } == c"mimalloc";
    CHOICE.store(if is_mimalloc { MIMALLOC } else { SYSTEM }, Relaxed);
    is_mimalloc
}

static COUNTING: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicI64 = AtomicI64::new(0);

/// Counts, and forwards to the chosen allocator.
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

// SAFETY: every method passes its arguments to one allocator, which upholds the contract, and returns what that returned. The
// choice never changes, so that each block goes back to the allocator that it came from.
unsafe impl GlobalAlloc for CountingAllocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::note(1, layout.size() as i64);
        // SAFETY: the caller upholds the contract of `layout`, which is the same for both allocators.
        unsafe { if is_mimalloc() { MiMalloc.alloc(layout) } else { System.alloc(layout) } }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        Self::note(0, -(layout.size() as i64));
        // SAFETY: `block` came from the chosen allocator with this `layout`, as every block of this allocator does.
        unsafe { if is_mimalloc() { MiMalloc.dealloc(block, layout) } else { System.dealloc(block, layout) } }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::note(1, layout.size() as i64);
        // SAFETY: as for `alloc`.
        unsafe { if is_mimalloc() { MiMalloc.alloc_zeroed(layout) } else { System.alloc_zeroed(layout) } }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::note(1, size as i64 - layout.size() as i64);
        // SAFETY: as for `dealloc`; the caller upholds the contract of `size`, which is the same for both allocators.
        unsafe {
            if is_mimalloc() {
                MiMalloc.realloc(block, layout, size)
            } else {
                System.realloc(block, layout, size)
            }
        }
    }
}

/// Whether allocations are being counted. If so, nghttp2 is given this allocator instead of its own.
pub(crate) fn is_counting() -> bool {
    COUNTING.load(Relaxed)
}

/// Runs `work` while counting is on. nghttp2 objects that it creates use this allocator for their whole life.
pub(crate) fn counted<T>(work: impl FnOnce() -> T) -> T {
    growth(work).0
}

/// The number of allocations and reallocations during `work`. The benchmark has one thread, so that counts do not
/// overlap.
pub(crate) fn count(work: impl FnOnce()) -> u64 {
    let before = COUNT.load(Relaxed);
    COUNTING.store(true, Relaxed);
    work();
    COUNTING.store(false, Relaxed);
    COUNT.load(Relaxed) - before
}

/// The result of `work`, and by how many bytes the allocated memory grew.
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
    fn counts_allocations_and_reallocations() {
        drop(std::hint::black_box(Vec::<u8>::with_capacity(64)));
        let counted = count(|| {
            let mut bytes = std::hint::black_box(Vec::<u8>::with_capacity(64));
            bytes.reserve(128);
        });
        // At least these two: other tests of this process may allocate at the same time.
        assert!(counted >= 2, "{counted}");
    }
}
