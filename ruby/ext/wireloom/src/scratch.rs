//! A buffer that connections of a thread share to take input into while none of them is parsing, so that an idle one holds
//! none: payloads are unmasked where they lie, and what Ruby hands in is the application's.

use std::cell::RefCell;

/// A buffer up to this many bytes is kept.
const LEN_MAX: usize = 256 << 10;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The buffer, empty. It may be missing while another connection of the thread has it: then it is a new one.
#[inline]
pub(crate) fn take() -> Vec<u8> {
    let mut buffer = SCRATCH.with(|scratch| std::mem::take(&mut *scratch.borrow_mut()));
    buffer.clear();
    buffer
}

/// Gives it back.
#[inline]
pub(crate) fn give(buffer: Vec<u8>) {
    if buffer.capacity() <= LEN_MAX {
        SCRATCH.with(|scratch| {
            let mut scratch = scratch.borrow_mut();
            if scratch.capacity() < buffer.capacity() {
                *scratch = buffer;
            }
        });
    }
}
