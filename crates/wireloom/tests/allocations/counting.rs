//! An allocator that counts the bytes that each thread holds.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicIsize, Ordering};

struct Counting;

thread_local! {
    /// Bytes that this thread has allocated and not freed.
    pub(crate) static HELD: Cell<isize> = const { Cell::new(0) };

    /// The most that `HELD` was.
    pub(crate) static MOST: Cell<isize> = const { Cell::new(0) };

    /// Counts instead of `HELD`, also while the thread ends.
    static HELD_ELSEWHERE: Cell<Option<&'static AtomicIsize>> = const { Cell::new(None) };

    /// Destructors run in the reverse order of their registration.
    static LAST: CountFrom = const { CountFrom(Cell::new(None)) };
    static FIRST: CountFrom = const { CountFrom(Cell::new(None)) };
}

/// Sets `HELD_ELSEWHERE` when the thread ends.
struct CountFrom(Cell<Option<&'static AtomicIsize>>);

impl Drop for CountFrom {
    fn drop(&mut self) {
        HELD_ELSEWHERE.set(self.0.get());
    }
}

fn count(len: isize) {
    match HELD_ELSEWHERE.get() {
        Some(held) => {
            held.fetch_add(len, Ordering::Relaxed);
        }
        None => {
            HELD.set(HELD.get() + len);
            MOST.set(MOST.get().max(HELD.get()));
        }
    }
}

/// The bytes that only `dropped` holds.
pub(crate) fn held_by<T: Send + 'static>(dropped: T) -> usize {
    // The end of a thread frees the memory that it keeps for further messages.
    let held_after_drop = |dropped: Option<T>| {
        let held: &'static AtomicIsize = Box::leak(Box::default());
        let thread = std::thread::spawn(move || {
            LAST.with(|_| {});
            HELD_ELSEWHERE.set(Some(held));
            drop(dropped);
            // Before the destructors, the standard library removes the thread from its table of all threads, and sometimes frees a
            // part of that, or adds one.
            HELD_ELSEWHERE.set(None);
            FIRST.with(|first| first.0.set(Some(held)));
        });
        thread.join().unwrap();
        held.load(Ordering::Relaxed)
    };
    (held_after_drop(None) - held_after_drop(Some(dropped))) as usize
}

// SAFETY: everything is passed on to the system's allocator.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the contract is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the contract is passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
