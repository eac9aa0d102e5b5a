//! A buffer that the connections of a thread share, so that an idle one holds none. Input is copied into it, because payloads
//! are unmasked in place and the String that Ruby passes is the application's.

use std::cell::RefCell;

use magnus::{Error, Ruby};

use crate::memory::{no_memory, try_extend};

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

/// The buffer with a copy of `bytes`.
///
/// # Errors
/// There is no memory for it.
#[inline]
pub(crate) fn take_copy(ruby: &Ruby, bytes: &[u8]) -> Result<Vec<u8>, Error> {
    let mut buffer = take();
    try_extend(&mut buffer, bytes).map_err(|_| no_memory(ruby))?;
    Ok(buffer)
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
