//! Payloads too short for run-time detection of the processor: safe code over overlapping words, SSE2 where it is guaranteed.
//!
//! Both functions cover a payload by two words that overlap: 8 to 15 bytes are one word at each end, 4 to 7 bytes one
//! half-word at each end. Everything is loaded before anything is stored.

use super::repeated;
#[cfg(target_arch = "x86_64")]
use super::x86;

pub(super) const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

/// Masks `data` in place, of any length, and returns whether all of it is ASCII afterwards.
#[inline]
pub(crate) fn apply_short(data: &mut [u8], key: u32) -> bool {
    let len = data.len();
    if len >= 16 {
        #[cfg(target_arch = "x86_64")]
        return x86::apply_sse2(data, key);
        #[cfg(not(target_arch = "x86_64"))]
        return apply_words(data, key);
    }
    if let (Some(first), Some(last)) = (data.first_chunk::<8>(), data.last_chunk::<8>()) {
        let first = u64::from_le_bytes(*first) ^ repeated(key);
        let last = u64::from_le_bytes(*last) ^ repeated(super::rotated(key, len));
        set_ends(data, first.to_le_bytes(), last.to_le_bytes());
        return (first | last) & HIGH_BITS == 0;
    }
    if let (Some(first), Some(last)) = (data.first_chunk::<4>(), data.last_chunk::<4>()) {
        let first = u32::from_le_bytes(*first) ^ key;
        let last = u32::from_le_bytes(*last) ^ super::rotated(key, len);
        set_ends(data, first.to_le_bytes(), last.to_le_bytes());
        return (first | last) & HIGH_BITS as u32 == 0;
    }
    let mut any = 0;
    for (byte, key) in data.iter_mut().zip(key.to_le_bytes()) {
        *byte ^= key;
        any |= *byte;
    }
    any < 0x80
}

/// Whether `data`, of any length, is ASCII.
#[inline]
pub(crate) fn is_ascii_short(data: &[u8]) -> bool {
    if data.len() >= 16 {
        #[cfg(target_arch = "x86_64")]
        return x86::is_ascii_sse2(data);
        #[cfg(not(target_arch = "x86_64"))]
        return data.is_ascii();
    }
    if let (Some(first), Some(last)) = (data.first_chunk::<8>(), data.last_chunk::<8>()) {
        return (u64::from_le_bytes(*first) | u64::from_le_bytes(*last)) & HIGH_BITS == 0;
    }
    if let (Some(first), Some(last)) = (data.first_chunk::<4>(), data.last_chunk::<4>()) {
        return (u32::from_le_bytes(*first) | u32::from_le_bytes(*last)) & HIGH_BITS as u32 == 0;
    }
    data.iter().fold(0, |any, byte| any | byte) < 0x80
}

#[inline]
fn set_ends<const N: usize>(data: &mut [u8], first: [u8; N], last: [u8; N]) {
    if let Some(chunk) = data.first_chunk_mut() {
        *chunk = first;
    }
    if let Some(chunk) = data.last_chunk_mut() {
        *chunk = last;
    }
}

/// Masks at least eight bytes in place, a word at a time, in a loop that compilers vectorize;
/// returns whether all of it is ASCII afterwards. The safe equivalent of the kernels in `x86`.
#[cfg(any(test, not(target_arch = "x86_64")))]
pub(crate) fn apply_words(data: &mut [u8], key: u32) -> bool {
    let len = data.len();
    let Some(last) = data.last_chunk::<8>() else { return apply_short(data, key) };
    let last = u64::from_le_bytes(*last) ^ repeated(super::rotated(key, len));
    let mut any = last;
    for chunk in data.as_chunks_mut::<8>().0 {
        let word = u64::from_le_bytes(*chunk) ^ repeated(key);
        any |= word;
        *chunk = word.to_le_bytes();
    }
    if let Some(chunk) = data.last_chunk_mut() {
        *chunk = last.to_le_bytes();
    }
    any & HIGH_BITS == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mask::MaskKey;
    use alloc::vec::Vec;

    #[test]
    fn words_and_ends_agree_with_bytes_and_see_every_high_bit() {
        let key = [0x11, 0x92, 0x53, 0xe4];
        let word = u32::from_le_bytes(key);
        for len in 0..if cfg!(miri) { 40 } else { 300 } {
            let ascii: Vec<u8> = (0..len).map(|i| (i * 7 % 128) as u8).collect();
            for high in (0..=len).rev().step_by(if cfg!(miri) { 7 } else { 1 }) {
                let mut text = ascii.clone();
                if let Some(byte) = text.get_mut(high) {
                    *byte |= 0x80;
                }
                let mut masked: Vec<u8> =
                    text.iter().enumerate().map(|(i, byte)| byte ^ key[i % 4]).collect();
                let mut twin = masked.clone();
                let (mut appended, is_short) = (Vec::new(), len < crate::mask::SHORT);
                let is_ascii = crate::mask::extend_ascii(&mut appended, &masked, MaskKey::new(key));
                assert_eq!((is_ascii, &appended), (is_short && high == len, &text), "{len} {high}");
                assert_eq!(is_ascii_short(&text), high == len, "{len} {high}");
                assert_eq!(apply_short(&mut masked, word), high == len, "{len} {high}");
                assert_eq!(masked, text, "{len} {high}");
                assert_eq!(apply_words(&mut twin, word), high == len, "{len} {high}");
                assert_eq!(twin, text, "{len} {high}");
            }
        }
    }
}
