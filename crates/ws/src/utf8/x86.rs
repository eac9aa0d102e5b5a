//! UTF-8 by SSSE3, AVX2 and AVX-512: the choice of the kernel, and their common parts.
//!
//! # The lookup algorithm
//! After Keiser and Lemire, "Validating UTF-8 in less than one instruction per byte" (2021). A whole register
//! of bytes is validated at once:
//!
//! 1. *Pairs.* Nearly every error is visible in two adjacent bytes. Each bit of a byte represents one kind of error. Three tables
//!    list the errors that the high half of the first byte, its low half and the high half of the second byte permit. A bit
//!    that is set in all three is an error.
//! 2. *Third and fourth bytes.* A continuation byte after a continuation byte is valid exactly if a lead byte of a
//!    sequence of three or four is two bytes before it, or one of a sequence of four three bytes before it. The pair tables
//!    report such a pair in the highest bit; XOR with the expected value leaves an error wherever the two differ.
//!
//! A register of ASCII needs none of this: only that the one before it did not end within a code point.
//!
//! # Heads and tails
//! The kernels start at a code point boundary and process whole aligned registers. The bytes before the first and behind the last of them
//! are put into a register that is zero elsewhere. Zero is ASCII; the errors that it causes after an incomplete code point are masked
//! off. For unmasking, both ends are also whole registers, loaded first and stored last, as in `mask`.

#![allow(unsafe_code)]

use super::{InvalidUtf8, scalar};
use crate::mask::cpu::Level;

/// The functions of a kernel that are the same for registers of any width.
macro_rules! rows {
    ($features:literal, $register:ty, $load:ident, $store:ident) => {
        /// Unmasks the aligned registers at `place` while they are ASCII, and returns the number of their bytes. The bytes behind
        /// them are not changed. English text takes only this path.
        ///
        /// # Safety
        /// As for [`run`], except that any `len` will do; `place` is aligned to a register.
        #[target_feature(enable = $features)]
        #[inline]
        unsafe fn ascii<const MASKED: bool>(place: *mut u8, len: usize, keys: $register) -> usize {
            let mut i = 0;
            // SAFETY: `i + ROW * WIDTH <= len`, then `i + WIDTH <= len`, before each access; `i` grows by multiples of `WIDTH`.
            unsafe {
                while len - i >= ROW * WIDTH {
                    let row = load_row::<MASKED>(place.add(i), keys);
                    if !is_ascii(row) {
                        return i;
                    }
                    if MASKED {
                        store_row(place.add(i), row);
                    }
                    i += ROW * WIDTH;
                }
                while len - i >= WIDTH {
                    let bytes = unmask::<MASKED>($load(place.add(i).cast()), keys);
                    if high(bytes) != 0 {
                        return i;
                    }
                    if MASKED {
                        $store(place.add(i).cast(), bytes);
                    }
                    i += WIDTH;
                }
            }
            i
        }

        /// # Safety
        /// `place` is valid for reads of a row and aligned to a register.
        #[target_feature(enable = $features)]
        #[inline]
        unsafe fn load_row<const MASKED: bool>(place: *mut u8, keys: $register) -> [$register; ROW] {
            // SAFETY: the contract is passed on.
            unsafe {
                [
                    unmask::<MASKED>($load(place.cast()), keys),
                    unmask::<MASKED>($load(place.add(WIDTH).cast()), keys),
                    unmask::<MASKED>($load(place.add(2 * WIDTH).cast()), keys),
                    unmask::<MASKED>($load(place.add(3 * WIDTH).cast()), keys),
                ]
            }
        }

        /// # Safety
        /// `place` is valid for writes of a row and aligned to a register.
        #[target_feature(enable = $features)]
        #[inline]
        unsafe fn store_row(place: *mut u8, [a, b, c, d]: [$register; ROW]) {
            // SAFETY: the contract is passed on.
            unsafe {
                $store(place.cast(), a);
                $store(place.add(WIDTH).cast(), b);
                $store(place.add(2 * WIDTH).cast(), c);
                $store(place.add(3 * WIDTH).cast(), d);
            }
        }
    };
}

mod avx2;
mod avx512;
mod ssse3;

/// Validates `text`, which starts at a boundary; returns its incomplete code point.
pub(super) fn validate(level: Level, text: &[u8]) -> Result<u32, InvalidUtf8> {
    let (place, len) = (text.as_ptr().cast_mut(), text.len());
    // SAFETY: a `Level` is created only for detected instructions; without `MASKED` the kernels only read, within the slice.
    let ends_in_ascii = unsafe {
        if level.has_avx512() {
            avx512::run::<false>(place, len, 0)?
        } else if level.has_avx2() {
            avx2::run::<false>(place, len, 0)?
        } else if level.has_ssse3() {
            ssse3::run(text)?
        } else {
            return scalar::validate(text);
        }
    };
    if ends_in_ascii { Ok(0) } else { scalar::ending(text) }
}

/// Unmasks and validates `text`, which starts at a boundary; returns its incomplete code point.
pub(super) fn unmask_validate(level: Level, text: &mut [u8], key: u32) -> Result<u32, InvalidUtf8> {
    let (place, len) = (text.as_mut_ptr(), text.len());
    // SAFETY: a `Level` is created only for detected instructions; the slice is borrowed exclusively and has the length that the kernel
    // requires.
    let ends_in_ascii = unsafe {
        if level.has_avx512() && len >= 64 {
            avx512::run::<true>(place, len, key)?
        } else if level.has_avx2() && len >= 32 {
            avx2::run::<true>(place, len, key)?
        } else {
            return scalar::unmask_validate(text, key, |block| validate(level, block));
        }
    };
    if ends_in_ascii { Ok(0) } else { scalar::ending(text) }
}

/// The ways in which two bytes that follow each other can be wrong, one bit each, for tables of 16 entries.
mod pair {
    /// ASCII, then a continuation.
    const TOO_LONG: u8 = 0x01;
    /// A lead byte, then anything but a continuation.
    const TOO_SHORT: u8 = 0x02;
    /// `C0` or `C1`: overlong whatever follows.
    const OVERLONG_2: u8 = 0x04;
    /// `E0`, then less than `A0`.
    const OVERLONG_3: u8 = 0x08;
    /// `ED`, then `A0` or more.
    const SURROGATE: u8 = 0x10;
    /// `F4` or more, then `90` or more.
    const TOO_LARGE: u8 = 0x20;
    /// `F0` or what is above `F4`, then less than `90`: overlong, or too large already.
    const OVERLONG_4: u8 = 0x40;
    /// A continuation, then a continuation: for the check of third and fourth bytes.
    const CONTINUED: u8 = 0x80;

    /// By the high half of the first byte.
    pub(super) const FIRST_HIGH: [u8; 16] = {
        let mut table = [TOO_LONG; 16];
        let mut high = 8;
        while high < 16 {
            table[high] = match high {
                0x8..=0xb => CONTINUED,
                0xc => TOO_SHORT | OVERLONG_2,
                0xd => TOO_SHORT,
                0xe => TOO_SHORT | OVERLONG_3 | SURROGATE,
                _ => TOO_SHORT | TOO_LARGE | OVERLONG_4,
            };
            high += 1;
        }
        table
    };

    /// By the low half of the first byte.
    pub(super) const FIRST_LOW: [u8; 16] = {
        let mut table = [TOO_LONG | TOO_SHORT | CONTINUED; 16];
        let mut low = 0;
        while low < 16 {
            table[low] |= match low {
                0x0 => OVERLONG_2 | OVERLONG_3 | OVERLONG_4,
                0x1 => OVERLONG_2,
                0x4 => TOO_LARGE,
                0x5..=0xc | 0xe | 0xf => TOO_LARGE | OVERLONG_4,
                0xd => SURROGATE | TOO_LARGE | OVERLONG_4,
                _ => 0,
            };
            low += 1;
        }
        table
    };

    /// By the high half of the second byte.
    pub(super) const SECOND_HIGH: [u8; 16] = {
        let mut table = [TOO_SHORT; 16];
        let mut high = 0x8;
        while high < 0xc {
            table[high] = TOO_LONG
                | OVERLONG_2
                | CONTINUED
                | match high {
                    0x8 => OVERLONG_3 | OVERLONG_4,
                    0x9 => OVERLONG_3 | TOO_LARGE,
                    _ => SURROGATE | TOO_LARGE,
                };
            high += 1;
        }
        table
    };
}
