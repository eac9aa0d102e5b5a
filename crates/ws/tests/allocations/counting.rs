//! An allocator that counts the allocations and the allocated bytes of each thread, and refuses long ones where a test wants that.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    pub(crate) static HELD: Cell<isize> = const { Cell::new(0) };
    static LEN_MAX: Cell<usize> = const { Cell::new(usize::MAX) };
}

fn count(by: isize) {
    // A thread that is ending may have destroyed its counters.
    let _ = HELD.try_with(|held| held.set(held.get() + by));
    if by > 0 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
    }
}

/// Whether an allocation of `len` bytes fails.
fn is_refused(len: usize) -> bool {
    LEN_MAX.try_with(|max| len > max.get()).unwrap_or(false)
}

// SAFETY: every call fails, or is passed to the system's allocator with its arguments; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_refused(layout.size()) {
            return std::ptr::null_mut();
        }
        count(layout.size() as isize);
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_refused(layout.size()) {
            return std::ptr::null_mut();
        }
        count(layout.size() as isize);
        // SAFETY: the caller upholds the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        if is_refused(len) {
            return std::ptr::null_mut();
        }
        count(-(layout.size() as isize));
        count(len as isize);
        // SAFETY: the caller upholds the contract of `realloc`.
        unsafe { System.realloc(ptr, layout, len) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The number of allocations of `of`.
pub(crate) fn allocations(of: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    of();
    ALLOCATIONS.get() - before
}

/// The bytes that `of` allocates and does not free.
pub(crate) fn held(of: impl FnOnce()) -> isize {
    let before = HELD.get();
    of();
    HELD.get() - before
}

/// The result of `of`, during which allocations of more than `len` bytes fail.
pub(crate) fn with_allocations_up_to<R>(len: usize, of: impl FnOnce() -> R) -> R {
    LEN_MAX.set(len);
    let result = of();
    LEN_MAX.set(usize::MAX);
    result
}
