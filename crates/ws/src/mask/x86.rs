//! Masking with SSE2, AVX2 and AVX-512. The safe implementation that tests compare it with is `short::apply_words`.
//!
//! One kernel in three widths XORs `len` bytes in place or from one place to another: it loads the two ends,
//! then walks whole registers whose *stores* are aligned (a store that crosses a cache line costs two; loads are
//! cheaper to split), four at a time with all four loads ahead of the four stores. That order matters when the
//! destination lies a few bytes beyond the source modulo 4,096, as it does when a payload is copied to behind a header:
//! the processor takes each load for a read of bytes that have just been stored and waits; four at a time it waits a
//! quarter as often, and `memcpy`, which falls into `rep movsb` there, ten times longer.

#![allow(unsafe_code)]

use super::cpu::Level;
use super::short::HIGH_BITS;
use super::{SHORT, repeated, rotated};
use alloc::vec::Vec;
use core::arch::x86_64::*;

/// Masks at least 64 bytes in place.
pub(super) fn apply(level: Level, data: &mut [u8], key: u32) {
    assert!(data.len() >= 64);
    let place = data.as_mut_ptr();
    // SAFETY: source and destination are the one exclusively borrowed slice of at least 64 bytes.
    unsafe { xor(level, place, place, data.len(), key) }
}

/// Masks `src` into `dst`.
#[inline]
pub(super) fn copy(dst: &mut [u8], src: &[u8], key: u32) {
    assert_eq!(dst.len(), src.len());
    // SAFETY: both are slices of this length; `dst` is borrowed exclusively, so they do not overlap.
    unsafe { copy_to(dst.as_mut_ptr(), src, key) };
}

/// Appends `src`, masked, to `out`; returns whether it is ASCII afterwards, if it is shorter than `SHORT`.
#[inline]
pub(super) fn extend(out: &mut Vec<u8>, src: &[u8], key: u32) -> bool {
    out.reserve(src.len());
    // SAFETY: the spare capacity holds at least `src.len()` bytes, apart from `src`, which `out` does not own while it
    // is borrowed exclusively; `copy_to` writes each of them before `set_len`.
    unsafe {
        let is_ascii = copy_to(out.as_mut_ptr().add(out.len()), src, key);
        out.set_len(out.len() + src.len());
        is_ascii
    }
}

/// Writes all of `src`, masked, to `dst`; returns whether it is ASCII afterwards, if it is shorter than `SHORT`.
///
/// # Safety
/// `dst` is valid for writes of `src.len()` bytes, initialised or not, and does not overlap `src`.
#[inline]
unsafe fn copy_to(dst: *mut u8, src: &[u8], key: u32) -> bool {
    let (from, len) = (src.as_ptr(), src.len());
    // SAFETY: every access is at `i..i + width` with `i + width <= len`, in `src` or, by the contract, in `dst`.
    unsafe {
        if len >= SHORT {
            copy_long(dst, from, len, key);
            return false;
        }
        if len >= 16 {
            let end = len - 16;
            let last = _mm_xor_si128(load128(from.add(end)), _mm_set1_epi32(rotated(key, len) as i32));
            let keys = _mm_set1_epi32(key as i32);
            let mut any = last;
            let mut i = 0;
            while i < end {
                let bytes = _mm_xor_si128(load128(from.add(i)), keys);
                any = _mm_or_si128(any, bytes);
                _mm_storeu_si128(dst.add(i).cast(), bytes);
                i += 16;
            }
            _mm_storeu_si128(dst.add(end).cast(), last);
            return _mm_movemask_epi8(any) == 0;
        }
        if len >= 8 {
            let first = from.cast::<u64>().read_unaligned() ^ repeated(key);
            let last = from.add(len - 8).cast::<u64>().read_unaligned() ^ repeated(rotated(key, len));
            dst.cast::<u64>().write_unaligned(first);
            dst.add(len - 8).cast::<u64>().write_unaligned(last);
            return (first | last) & HIGH_BITS == 0;
        }
        if len >= 4 {
            let first = from.cast::<u32>().read_unaligned() ^ key;
            let last = from.add(len - 4).cast::<u32>().read_unaligned() ^ rotated(key, len);
            dst.cast::<u32>().write_unaligned(first);
            dst.add(len - 4).cast::<u32>().write_unaligned(last);
            return (first | last) & HIGH_BITS as u32 == 0;
        }
        let mut any = 0;
        for (i, (byte, key)) in src.iter().zip(key.to_le_bytes()).enumerate() {
            dst.add(i).write(byte ^ key);
            any |= byte ^ key;
        }
        any < 0x80
    }
}

/// # Safety
/// `from` is valid for reads and `dst` for writes of `len >= 64` bytes, and they do not overlap.
#[inline(never)]
unsafe fn copy_long(dst: *mut u8, from: *const u8, len: usize, key: u32) {
    // SAFETY: the contract is passed on.
    unsafe { xor(Level::best(), dst, from, len, key) }
}

/// # Safety
/// `from` is valid for reads and `dst` for writes of `len >= 64` bytes; they are the same place or do not overlap.
#[inline]
unsafe fn xor(level: Level, dst: *mut u8, from: *const u8, len: usize, key: u32) {
    // SAFETY: a `Level` is created only for detected instructions; the other conditions are the contract of the caller.
    unsafe {
        if level.has_wide_stores() {
            xor_avx512(dst, from, len, key);
        } else if level.has_avx2() {
            xor_avx2(dst, from, len, key);
        } else {
            xor_sse2(dst, from, len, key);
        }
    }
}

macro_rules! xor_kernel {
    ($name:ident, $features:literal, $vector:ty, $splat:ident, $load:ident, $store:ident, $store_aligned:ident, $xor:ident) => {
        /// # Safety
        /// The processor offers the features; `from` is valid for reads and `dst` for writes of `len` bytes, at
        /// least one register of them; they are the same place or do not overlap.
        #[target_feature(enable = $features)]
        unsafe fn $name(dst: *mut u8, from: *const u8, len: usize, key: u32) {
            const WIDTH: usize = size_of::<$vector>();
            debug_assert!(len >= WIDTH);
            // SAFETY: the ends are whole registers because `len >= WIDTH`; between them, `i + WIDTH <= len` before
            // each access. `dst + i` is aligned from `gap` on, since `i - gap` grows by multiples of `WIDTH`.
            unsafe {
                let first = $xor($load(from.cast()), $splat(key as i32));
                let last = $xor($load(from.add(len - WIDTH).cast()), $splat(rotated(key, len) as i32));
                let gap = dst.addr().wrapping_neg() % WIDTH;
                let keys = $splat(rotated(key, gap) as i32);
                let mut i = gap;
                while len - i >= 4 * WIDTH {
                    let a = $xor($load(from.add(i).cast()), keys);
                    let b = $xor($load(from.add(i + WIDTH).cast()), keys);
                    let c = $xor($load(from.add(i + 2 * WIDTH).cast()), keys);
                    let d = $xor($load(from.add(i + 3 * WIDTH).cast()), keys);
                    $store_aligned(dst.add(i).cast(), a);
                    $store_aligned(dst.add(i + WIDTH).cast(), b);
                    $store_aligned(dst.add(i + 2 * WIDTH).cast(), c);
                    $store_aligned(dst.add(i + 3 * WIDTH).cast(), d);
                    i += 4 * WIDTH;
                }
                while len - i >= WIDTH {
                    $store_aligned(dst.add(i).cast(), $xor($load(from.add(i).cast()), keys));
                    i += WIDTH;
                }
                $store(dst.cast(), first);
                $store(dst.add(len - WIDTH).cast(), last);
            }
        }
    };
}

xor_kernel!(
    xor_sse2,
    "sse2",
    __m128i,
    _mm_set1_epi32,
    _mm_loadu_si128,
    _mm_storeu_si128,
    _mm_store_si128,
    _mm_xor_si128
);
xor_kernel!(
    xor_avx2,
    "avx2",
    __m256i,
    _mm256_set1_epi32,
    _mm256_loadu_si256,
    _mm256_storeu_si256,
    _mm256_store_si256,
    _mm256_xor_si256
);
xor_kernel!(
    xor_avx512,
    "avx512f",
    __m512i,
    _mm512_set1_epi32,
    _mm512_loadu_si512,
    _mm512_storeu_si512,
    _mm512_store_si512,
    _mm512_xor_si512
);

/// Masks at least 16 bytes in place and returns whether all of them are ASCII afterwards.
#[inline]
pub(super) fn apply_sse2(data: &mut [u8], key: u32) -> bool {
    let len = data.len();
    assert!(len >= 16);
    let place = data.as_mut_ptr();
    // SAFETY: every access is at `i..i + 16` with `i <= len - 16`, within the exclusively borrowed slice. SSE2 is part
    // of x86-64.
    unsafe {
        let end = place.add(len - 16);
        let last = _mm_xor_si128(load128(end), _mm_set1_epi32(rotated(key, len) as i32));
        let keys = _mm_set1_epi32(key as i32);
        let mut any = last;
        let mut at = place;
        // Four registers at a time: at 200 bytes the counting of the loop costs as much as the masking.
        while end.offset_from(at) >= 64 {
            let a = _mm_xor_si128(load128(at), keys);
            let b = _mm_xor_si128(load128(at.add(16)), keys);
            let c = _mm_xor_si128(load128(at.add(32)), keys);
            let d = _mm_xor_si128(load128(at.add(48)), keys);
            any = _mm_or_si128(any, _mm_or_si128(_mm_or_si128(a, b), _mm_or_si128(c, d)));
            _mm_storeu_si128(at.cast(), a);
            _mm_storeu_si128(at.add(16).cast(), b);
            _mm_storeu_si128(at.add(32).cast(), c);
            _mm_storeu_si128(at.add(48).cast(), d);
            at = at.add(64);
        }
        while at < end {
            let bytes = _mm_xor_si128(load128(at), keys);
            any = _mm_or_si128(any, bytes);
            _mm_storeu_si128(at.cast(), bytes);
            at = at.add(16);
        }
        _mm_storeu_si128(end.cast(), last);
        _mm_movemask_epi8(any) == 0
    }
}

/// Whether these bytes, at least 16, are all ASCII.
#[inline]
pub(super) fn is_ascii_sse2(data: &[u8]) -> bool {
    let len = data.len();
    assert!(len >= 16);
    let place = data.as_ptr();
    // SAFETY: every access is at `i..i + 16` with `i <= len - 16`, within the slice. SSE2 is part of x86-64.
    unsafe {
        let end = place.add(len - 16);
        let mut any = load128(end);
        let mut at = place;
        while end.offset_from(at) >= 64 {
            let ab = _mm_or_si128(load128(at), load128(at.add(16)));
            let cd = _mm_or_si128(load128(at.add(32)), load128(at.add(48)));
            any = _mm_or_si128(any, _mm_or_si128(ab, cd));
            at = at.add(64);
        }
        while at < end {
            any = _mm_or_si128(any, load128(at));
            at = at.add(16);
        }
        _mm_movemask_epi8(any) == 0
    }
}

/// # Safety
/// `from` is valid for reads of 16 bytes.
#[inline]
unsafe fn load128(from: *const u8) -> __m128i {
    // SAFETY: the contract is passed on.
    unsafe { _mm_loadu_si128(from.cast()) }
}
