//! What has arrived on a stream and was not taken: small pieces copied together, large ones lent from the read buffer.

use std::collections::VecDeque;

use bytes::{Buf as _, Bytes, BytesMut};

/// Pieces from this length on are lent: copying less costs less than keeping a buffer from its next read.
const LENT_LEN_MIN: usize = 8 << 10;

/// A stream that holds so much already is read slowly: nothing more is lent to it, so that it keeps no further buffers.
const LENT_HELD_MAX: usize = 1 << 20;

#[derive(Default)]
pub(super) struct Content {
    pieces: VecDeque<Bytes>,
    /// Behind the pieces.
    copied: BytesMut,
    /// Of both together, in bytes.
    len: usize,
}

impl Content {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends `data`, which lies in `lender` if there is one.
    #[inline]
    pub(super) fn push(&mut self, data: &[u8], lender: Option<&Bytes>) {
        match lender {
            Some(lender) if data.len() >= LENT_LEN_MIN && self.len < LENT_HELD_MAX => {
                if !self.copied.is_empty() {
                    self.pieces.push_back(self.copied.split().freeze());
                }
                self.pieces.push_back(lender.slice_ref(data));
            }
            _ => self.copied.extend_from_slice(data),
        }
        self.len += data.len();
    }

    /// The next piece, which is not empty unless all is.
    pub(super) fn take(&mut self) -> Bytes {
        let piece = self.pieces.pop_front().unwrap_or_else(|| self.copied.split().freeze());
        self.len -= piece.len();
        self.rest();
        piece
    }

    /// Copies what there is to `into`; says how much.
    pub(super) fn read(&mut self, into: &mut [u8]) -> usize {
        let mut read = 0;
        while read < into.len() {
            let room = &mut into[read..];
            let len = match self.pieces.front_mut() {
                Some(piece) => {
                    let len = room.len().min(piece.len());
                    piece.copy_to_slice(&mut room[..len]);
                    if piece.is_empty() {
                        self.pieces.pop_front();
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
        self.rest();
        read
    }

    /// A stream at rest holds no buffer.
    fn rest(&mut self) {
        if self.len == 0 {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_back_what_came_in_order() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut content, mut expected) = (Content::default(), VecDeque::new());
        for _ in 0..2000 {
            let len = if random.bool() { random.usize(1..100) } else { random.usize(1..40_000) };
            let whole = Bytes::from(std::iter::repeat_with(|| random.u8(..)).take(len).collect::<Vec<_>>());
            let lender = Some(&whole).filter(|_| len % 2 == 0);
            content.push(&whole, lender);
            expected.extend(whole.iter().copied());
            assert_eq!(content.len(), expected.len());
            for _ in 0..random.u8(0..3) {
                let taken = if random.bool() {
                    content.take().to_vec()
                } else {
                    let mut into = vec![0; random.usize(0..50_000)];
                    let read = content.read(&mut into);
                    assert!(read == into.len() || content.is_empty());
                    into[..read].to_vec()
                };
                assert!(expected.drain(..taken.len()).eq(taken));
            }
        }
    }
}
