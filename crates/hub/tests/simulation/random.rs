//! The randomness of the operating system, replaced: hash maps and everything else that asks libc draw from the seed.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

static STATE: AtomicU64 = AtomicU64::new(1);

/// Begins with this seed.
pub(crate) fn start(seed: u64) {
    STATE.store(seed, Ordering::Relaxed);
}

/// SplitMix64.
fn next() -> u64 {
    let mut word = STATE.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
    word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

/// Takes the place of libc's function of this name: getrandom(2).
///
/// # Safety
/// `buf` is null or valid for writes of `len` bytes, as the system call demands.
// SAFETY: the name belongs to libc, whose function has this signature; nothing else in the program defines it.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buf: *mut u8, len: usize, _flags: u32) -> isize {
    if buf.is_null() {
        return if len == 0 { 0 } else { -1 };
    }
    for at in 0..len {
        // SAFETY: the caller's buffer has `len` bytes.
        unsafe { buf.add(at).write(next() as u8) };
    }
    isize::try_from(len).unwrap_or(isize::MAX)
}
