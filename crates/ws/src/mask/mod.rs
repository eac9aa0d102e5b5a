//! Masking (RFC 6455 §5.3): XOR with a four-byte key, in place or while copying, resumable at any offset.

use alloc::vec::Vec;

/// A masking key, turned so that the next byte of the payload meets its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskKey([u8; 4]);

impl MaskKey {
    /// The key as it stands in the frame header, for the first byte of the payload.
    #[inline]
    pub const fn new(key: [u8; 4]) -> Self {
        Self(key)
    }

    /// The four bytes, the one for the next payload byte first.
    #[inline]
    pub const fn bytes(self) -> [u8; 4] {
        self.0
    }

    /// The key for the byte `len` bytes further on.
    #[inline]
    pub const fn advanced(self, len: usize) -> Self {
        Self(u32::from_le_bytes(self.0).rotate_right(8 * (len & 3) as u32).to_le_bytes())
    }
}

/// Masks or unmasks `data` in place and returns the key for the byte after it.
#[inline]
pub fn apply(data: &mut [u8], key: MaskKey) -> MaskKey {
    for (i, byte) in data.iter_mut().enumerate() {
        *byte ^= key.0[i & 3];
    }
    key.advanced(data.len())
}

/// Appends `src`, masked, to `out` and returns the key for the byte after it.
#[inline]
pub fn extend(out: &mut Vec<u8>, src: &[u8], key: MaskKey) -> MaskKey {
    out.extend(src.iter().enumerate().map(|(i, byte)| byte ^ key.0[i & 3]));
    key.advanced(src.len())
}
