//! The end of a block: integers and strings (RFC 7541 §5), written into room that is initialized ahead of them.

use std::collections::TryReserveError;

use wireloom_http2::hpack::{huffman, integer};

use super::encode::Huffman;

/// Strings up to this length, in bytes, are coded in one pass: none needs more than four times its length.
const SHORT: usize = 256;

/// The longest code whose length takes one byte.
const LEN_IN_PREFIX_MAX: usize = 0x7e;

/// How much longer than its fields a block may become, and the room that a string is coded in: [`SHORT`] for each of its codes.
const SPARE: usize = 4 * SHORT + 256;

/// The greatest length of a field of `len` bytes. A code has at most 30 bits (RFC 7541 appendix B).
pub(super) fn field_len_max(policy: Huffman, len: usize) -> usize {
    3 * integer::LEN_MAX + if policy == Huffman::Always { 4 * len } else { len }
}

/// The end of a buffer. What is initialized beyond the end is cut off in the end.
pub(super) struct Output<'a> {
    buf: &'a mut Vec<u8>,
    /// `pos <= buf.len()`
    pos: usize,
}

impl<'a> Output<'a> {
    /// For fields of at most `len_max` bytes in all.
    pub(super) fn new(buf: &'a mut Vec<u8>, len_max: usize) -> Result<Self, TryReserveError> {
        buf.try_reserve(len_max + SPARE)?;
        let pos = buf.len();
        Ok(Self { buf, pos })
    }

    #[inline]
    fn reserve(&mut self, len: usize) {
        if self.buf.len() - self.pos < len {
            self.grow(len);
        }
    }

    #[cold]
    fn grow(&mut self, len: usize) {
        let wanted = self.pos + len.max(self.buf.len()).max(256);
        self.buf.resize(wanted.min(self.buf.capacity()).max(self.pos + len), 0);
    }

    #[inline]
    pub(super) fn number(&mut self, flags: u8, prefix: u8, value: u32) {
        self.reserve(integer::LEN_MAX);
        if let Some(room) = self.buf[self.pos..].first_chunk_mut() {
            self.pos += integer::encode(flags, prefix, value, room);
        }
    }

    pub(super) fn string(&mut self, policy: Huffman, bytes: &[u8]) {
        if policy != Huffman::Never && self.coded(policy, bytes) {
            return;
        }
        self.number(0, 0x7f, bytes.len() as u32);
        self.reserve(bytes.len());
        self.buf[self.pos..self.pos + bytes.len()].copy_from_slice(bytes);
        self.pos += bytes.len();
    }

    /// The Huffman code, unless the policy asks for the shorter form and that is no shorter.
    #[inline]
    fn coded(&mut self, policy: Huffman, bytes: &[u8]) -> bool {
        let wanted = |len: usize| len < bytes.len() || policy == Huffman::Always;
        if bytes.len() <= SHORT {
            self.reserve(1 + 4 * bytes.len() + huffman::ENCODE_SLACK);
            let len = huffman::encode(bytes, &mut self.buf[self.pos + 1..]);
            if len <= LEN_IN_PREFIX_MAX {
                if wanted(len) {
                    self.buf[self.pos] = 0x80 | len as u8;
                    self.pos += 1 + len;
                }
                return wanted(len);
            }
        }
        let len = huffman::encoded_len(bytes);
        if wanted(len) {
            self.number(0x80, 0x7f, len as u32);
            self.reserve(len + huffman::ENCODE_SLACK);
            huffman::encode(bytes, &mut self.buf[self.pos..]);
            self.pos += len;
        }
        wanted(len)
    }
}

impl Drop for Output<'_> {
    fn drop(&mut self) {
        self.buf.truncate(self.pos);
    }
}
