//! Masking (RFC 6455 §5.3): XOR with a four-byte key, in place or while copying, resumable at any offset.
//!
//! Keys are chosen by the caller.
//!
//! # How it is fast
//! XOR with a key of four bytes is XOR with that key repeated over a register of any width, if the key is rotated for the offset of the
//! register. Only payloads of less than four bytes are masked byte by byte. The first and the last register of the payload are loaded before anything
//! is stored, then the whole registers between them are masked, and the two ends are stored last. Where they overlap the middle they
//! write the same bytes again.
//!
//! ```text
//! payload   |---------------------------------------------|
//! first     |=======|                                          loaded at its start, key as given
//! middle        |=======|=======|=======|=======|=======|      stores aligned, key rotated by the gap
//! last                                          |=======|      loaded at its end, key rotated by len mod 4
//! ```
//!
//! Below `SHORT` bytes the code is small, inlined into the caller, and needs no run-time detection. Longer payloads use the widest
//! registers of the processor (see `cpu`).

use alloc::vec::Vec;

#[cfg(target_arch = "x86_64")]
pub(crate) mod cpu;
#[doc(hidden)]
pub mod isa;
mod short;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(crate) use short::{apply_short, is_ascii_short};

/// Payloads below this many bytes take the inlined path.
pub(crate) const SHORT: usize = 256;

/// A masking key, rotated so that its first byte is for the next byte of the payload. The default changes no byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MaskKey(
    /// The first byte is the least significant one, on every machine.
    u32,
);

impl MaskKey {
    /// The key in the frame header, for the first byte of the payload.
    #[inline]
    pub const fn new(key: [u8; 4]) -> Self {
        Self(u32::from_le_bytes(key))
    }

    /// The four bytes, the one for the next payload byte first.
    #[inline]
    pub const fn bytes(self) -> [u8; 4] {
        self.0.to_le_bytes()
    }

    /// The key for the byte `len` bytes further on.
    #[inline]
    pub const fn advanced(self, len: usize) -> Self {
        Self(rotated(self.0, len))
    }

    #[inline]
    pub(crate) const fn word(self) -> u32 {
        self.0
    }
}

/// The key word for the byte `len` bytes further on.
#[inline]
pub(crate) const fn rotated(key: u32, len: usize) -> u32 {
    key.rotate_right(8 * (len & 3) as u32)
}

/// The key repeated over eight bytes.
#[inline]
const fn repeated(key: u32) -> u64 {
    (key as u64) << 32 | key as u64
}

/// Masks or unmasks `data` in place and returns the key for the byte after it.
#[inline(always)]
pub fn apply(data: &mut [u8], key: MaskKey) -> MaskKey {
    if data.len() < SHORT {
        apply_short(data, key.0);
    } else {
        apply_long(data, key.0);
    }
    key.advanced(data.len())
}

/// Copies `src`, masked, over `dst` and returns the key for the byte after it.
///
/// # Panics
/// When the two differ in length.
#[inline]
pub fn copy(dst: &mut [u8], src: &[u8], key: MaskKey) -> MaskKey {
    assert_eq!(dst.len(), src.len(), "a masked copy is as long as its source");
    #[cfg(target_arch = "x86_64")]
    x86::copy(dst, src, key.0);
    #[cfg(not(target_arch = "x86_64"))]
    {
        dst.copy_from_slice(src);
        apply(dst, key);
    }
    key.advanced(src.len())
}

/// Appends `src`, masked, to `out` and returns the key for the byte after it.
#[inline]
pub fn extend(out: &mut Vec<u8>, src: &[u8], key: MaskKey) -> MaskKey {
    extend_ascii(out, src, key);
    key.advanced(src.len())
}

/// Appends `src`, masked, to `out`. True if it is known to be ASCII afterwards: if it is, and shorter than [`SHORT`].
#[inline]
pub(crate) fn extend_ascii(out: &mut Vec<u8>, src: &[u8], key: MaskKey) -> bool {
    #[cfg(target_arch = "x86_64")]
    return x86::extend(out, src, key.0);
    #[cfg(not(target_arch = "x86_64"))]
    {
        let start = out.len();
        out.extend_from_slice(src);
        if src.len() < SHORT {
            apply_short(&mut out[start..], key.0)
        } else {
            apply_long(&mut out[start..], key.0);
            false
        }
    }
}

/// Masks at least eight bytes in place with the widest registers.
#[inline(never)]
pub(crate) fn apply_long(data: &mut [u8], key: u32) {
    #[cfg(target_arch = "x86_64")]
    x86::apply(cpu::Level::best(), data, key);
    #[cfg(not(target_arch = "x86_64"))]
    short::apply_words(data, key);
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: MaskKey = MaskKey::new([0x37, 0xfa, 0x21, 0x3d]);

    /// RFC 6455 §5.3, as it is written: transformed-octet-i = original-octet-i XOR masking-key-octet-(i MOD 4).
    fn naive(data: &[u8], key: MaskKey) -> Vec<u8> {
        data.iter().enumerate().map(|(i, byte)| byte ^ key.bytes()[i % 4]).collect()
    }

    fn noise(len: usize, seed: u64) -> Vec<u8> {
        let mut rng = fastrand::Rng::with_seed(seed);
        (0..len).map(|_| rng.u8(..)).collect()
    }

    fn lengths() -> impl Iterator<Item = usize> {
        if cfg!(miri) {
            [0, 1, 2, 3, 4, 7, 8, 13, 15, 16, 17, 31, 33, 64, 200, 255, 256, 257, 300].to_vec().into_iter()
        } else {
            (0..=700).chain([4095, 4096, 4097, 65_549]).collect::<Vec<_>>().into_iter()
        }
    }

    #[test]
    fn unmasks_the_hello_of_the_rfc() {
        // RFC 6455 §5.7: a single-frame masked text message, "Hello".
        let mut data = [0x7f, 0x9f, 0x4d, 0x51, 0x58];
        apply(&mut data, KEY);
        assert_eq!(&data, b"Hello");
    }

    #[test]
    fn a_key_rotates_by_the_masked_bytes() {
        assert_eq!(KEY.bytes(), [0x37, 0xfa, 0x21, 0x3d]);
        assert_eq!(KEY.advanced(1).bytes(), [0xfa, 0x21, 0x3d, 0x37]);
        assert_eq!(KEY.advanced(6).bytes(), [0x21, 0x3d, 0x37, 0xfa]);
        assert_eq!(KEY.advanced(usize::MAX).bytes(), [0x3d, 0x37, 0xfa, 0x21]);
    }

    #[test]
    fn masks_in_place_like_the_rfc_at_every_length_and_alignment() {
        let alignments =
            if cfg!(miri) { [0, 1, 31, 63].as_slice() } else { &[0, 1, 2, 3, 5, 16, 31, 33, 63] };
        for len in lengths() {
            for &align in alignments {
                let mut buffer = noise(len + align + 80, 1);
                let before = buffer.clone();
                let next = apply(&mut buffer[align..align + len], KEY);
                assert_eq!(next, KEY.advanced(len));
                assert_eq!(
                    buffer[align..align + len],
                    naive(&before[align..align + len], KEY),
                    "{len} at {align}"
                );
                assert_eq!(buffer[..align], before[..align], "{len} at {align} reached back");
                assert_eq!(buffer[align + len..], before[align + len..], "{len} at {align} ran on");
            }
        }
    }

    #[test]
    fn copies_and_appends_like_the_rfc_at_every_length() {
        for len in lengths() {
            let src = noise(len, 2);
            let expected = naive(&src, KEY);
            for prefix in if cfg!(miri) { 6..8 } else { 0..15 } {
                let mut out = noise(prefix, 3);
                assert_eq!(extend(&mut out, &src, KEY), KEY.advanced(len));
                assert_eq!(out[..prefix], noise(prefix, 3));
                assert_eq!(out[prefix..], expected, "{len} after {prefix}");

                let mut out = noise(prefix + len + 70, 4);
                assert_eq!(copy(&mut out[prefix..prefix + len], &src, KEY), KEY.advanced(len));
                assert_eq!(out[prefix..prefix + len], expected, "{len} at {prefix}");
                assert_eq!(out[..prefix], noise(prefix, 4));
                assert_eq!(out[prefix + len..], noise(prefix + len + 70, 4)[prefix + len..]);
            }
        }
    }

    #[test]
    #[should_panic(expected = "as long as its source")]
    fn refuses_to_copy_into_another_length() {
        copy(&mut [0; 3], &[0; 4], KEY);
    }

    #[test]
    fn resumes_at_any_split() {
        wireloom_testing::rounds(if cfg!(miri) { 5 } else { 2_000 }, |rng| {
            let mut data = noise(rng.usize(..1500), rng.seed());
            let expected = naive(&data, KEY);
            let (mut appended, mut at, mut key) = (Vec::new(), 0, KEY);
            let original = data.clone();
            while at < data.len() {
                let len = rng.usize(1..=(data.len() - at).min(600));
                assert_eq!(extend(&mut appended, &original[at..at + len], key), key.advanced(len));
                key = apply(&mut data[at..at + len], key);
                at += len;
            }
            assert_eq!(data, expected);
            assert_eq!(appended, expected);
        });
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn every_level_masks_alike() {
        for level in cpu::Level::offered() {
            for len in lengths().filter(|&len| len >= 64) {
                for align in if cfg!(miri) { 1..2 } else { 0..9 } {
                    let mut buffer = noise(len + align, 5);
                    let expected = naive(&buffer[align..], KEY);
                    x86::apply(level, &mut buffer[align..], KEY.word());
                    assert_eq!(buffer[align..], expected, "{level:?}, {len} at {align}");
                }
            }
        }
    }
}
