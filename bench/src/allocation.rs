//! A global allocator that counts the requests of checked passes. Timed passes run with counting off: they pay for two branches,
//! as every contestant in Rust does.
//!
//! It is the system's, or mimalloc where the environment asks for it: for libraries whose documentation recommends that.
#![allow(unsafe_code)] // `GlobalAlloc` is an unsafe trait; every call is handed to one allocator unchanged.

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

/// Reads the environment without an allocation.
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

/// The chosen allocator with a counter in front.
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
        // SAFETY: the caller's promise about `layout` is the one that both ask for.
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
        // SAFETY: as for `dealloc`, and `size` is the caller's promise to both.
        unsafe {
            if is_mimalloc() {
                MiMalloc.realloc(block, layout, size)
            } else {
                System.realloc(block, layout, size)
            }
        }
    }
}

/// Whether allocations are being counted: code in C then has to go through here.
pub(crate) fn is_counting() -> bool {
    COUNTING.load(Relaxed)
}

/// The result of `work`, whose allocations go through this allocator also where C makes them. C goes on doing so later.
pub(crate) fn counted<T>(work: impl FnOnce() -> T) -> T {
    growth(work).0
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
