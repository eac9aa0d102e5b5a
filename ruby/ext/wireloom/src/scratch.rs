//! A buffer that the connections of a thread share, so that an idle one holds none. Input is copied into it, because payloads
//! are unmasked in place and the String that Ruby passes is the application's.

use std::cell::RefCell;

/// A buffer up to this many bytes is kept.
const LEN_MAX: usize = 256 << 10;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The buffer, empty; a new one while another connection of the thread uses it.
#[inline]
pub(crate) fn take() -> Vec<u8> {
    let mut buffer = SCRATCH.with(|scratch| std::mem::take(&mut *scratch.borrow_mut()));
    buffer.clear();
    buffer
}

/// Returns the buffer.
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
