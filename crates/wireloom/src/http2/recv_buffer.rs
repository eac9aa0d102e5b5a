//! Content of one stream that has arrived and was not read.
//!
//! Large chunks borrow from the read buffer, and the driver has them copied before its next read
//! ([`RecvBuffer::copy_borrowed`]): an unread stream keeps no read buffer. Small chunks are copied at once, one
//! behind the other.

use std::collections::VecDeque;

use bytes::{Buf as _, Bytes, BytesMut};

/// Chunks from this length on are borrowed, in bytes.
const BORROWED_LEN_MIN: usize = 8 << 10;

#[derive(Default)]
pub(super) struct RecvBuffer {
    chunks: VecDeque<Chunk>,
    /// Chunks that are borrowed.
    borrowed: usize,
    /// Copied chunks, behind all others.
    copied: BytesMut,
    /// Of both together, in bytes.
    len: usize,
}

struct Chunk {
    bytes: Bytes,
    /// It keeps a read buffer alive.
    borrowed: bool,
}

impl RecvBuffer {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends `data`, which is part of `input` if that may be borrowed.
    #[inline]
    pub(super) fn push(&mut self, data: &[u8], input: Option<&Bytes>) {
        match input {
            Some(input) if data.len() >= BORROWED_LEN_MIN => {
                if !self.copied.is_empty() {
                    self.chunks.push_back(Chunk { bytes: self.copied.split().freeze(), borrowed: false });
                }
                self.chunks.push_back(Chunk { bytes: input.slice_ref(data), borrowed: true });
                self.borrowed += 1;
            }
            _ => self.copied.extend_from_slice(data),
        }
        self.len += data.len();
    }

    /// Replaces borrowed chunks by copies.
    pub(super) fn copy_borrowed(&mut self) {
        // From the end: the chunks of earlier reads are copies already.
        for chunk in self.chunks.iter_mut().rev() {
            if self.borrowed == 0 {
                break;
            }
            if std::mem::take(&mut chunk.borrowed) {
                chunk.bytes = Bytes::copy_from_slice(&chunk.bytes);
                self.borrowed -= 1;
            }
        }
    }

    /// Removes the next chunk: empty when there is none.
    pub(super) fn pop(&mut self) -> Bytes {
        let chunk = self.pop_chunk().unwrap_or_else(|| self.copied.split().freeze());
        self.len -= chunk.len();
        self.free_if_empty();
        chunk
    }

    /// Moves content to `into`, and returns how much.
    pub(super) fn read(&mut self, into: &mut [u8]) -> usize {
        let mut read = 0;
        while read < into.len() {
            let room = &mut into[read..];
            let len = match self.chunks.front_mut() {
                Some(Chunk { bytes, .. }) => {
                    let len = room.len().min(bytes.len());
                    bytes.copy_to_slice(&mut room[..len]);
                    if bytes.is_empty() {
                        self.pop_chunk();
                    }
                    len
                }
                None => {
                    let len = room.len().min(self.copied.len());
                    self.copied.copy_to_slice(&mut room[..len]);
                    len
                }
            };
            if len == 0 {
                break;
            }
            read += len;
        }
        self.len -= read;
        self.free_if_empty();
        read
    }

    fn pop_chunk(&mut self) -> Option<Bytes> {
        let chunk = self.chunks.pop_front()?;
        self.borrowed -= usize::from(chunk.borrowed);
        Some(chunk.bytes)
    }

    /// An idle stream holds no memory.
    fn free_if_empty(&mut self) {
        if self.len == 0 {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn returns_content_in_order() {
        wireloom_testing::rounds(20, |rng| {
            let (mut buffer, mut expected) = (RecvBuffer::default(), VecDeque::new());
            for _ in 0..100 {
                let len = if rng.bool() { rng.usize(1..100) } else { rng.usize(1..40_000) };
                let whole = Bytes::from(rng.bytes(len));
                buffer.push(&whole, Some(&whole).filter(|_| len % 2 == 0));
                expected.extend(whole.iter().copied());
                assert_eq!(buffer.len(), expected.len());
                if rng.u8(0..3) == 0 {
                    buffer.copy_borrowed();
                }
                for _ in 0..rng.u8(0..3) {
                    let taken = if rng.bool() {
                        buffer.pop().to_vec()
                    } else {
                        let mut into = vec![0; rng.usize(0..50_000)];
                        let read = buffer.read(&mut into);
                        assert!(read == into.len() || buffer.is_empty());
                        into[..read].to_vec()
                    };
                    assert!(expected.drain(..taken.len()).eq(taken));
                }
            }
        });
    }

    #[test]
    fn unread_content_keeps_no_read_buffer() {
        let memory: Arc<[u8]> = vec![7; 100_000].into();
        let read_buffer = Bytes::from_owner(memory.clone());
        let mut buffer = RecvBuffer::default();
        for at in [0, 20_000, 40_000] {
            buffer.push(&read_buffer[at..at + 10_000], Some(&read_buffer));
            buffer.push(b"small", None);
        }
        drop(read_buffer);
        assert_eq!((buffer.borrowed, Arc::strong_count(&memory)), (3, 2));
        buffer.copy_borrowed();
        assert_eq!((buffer.borrowed, Arc::strong_count(&memory)), (0, 1));
        assert_eq!(buffer.len(), 30_015);
    }
}
