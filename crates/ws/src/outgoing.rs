//! The queue of bytes on their way out: small ones copied into one buffer, large ones by reference between them.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use bytes::{Buf, Bytes};

/// A capacity up to this is kept when the queue runs empty.
const KEEP_MAX: usize = 64 << 10;

/// So many transmissions in a row of less than a quarter of the buffer let it go.
const LEAN_MAX: u8 = 8;

/// ```text
/// inline: [ sent | frame | header | frame | header | frame ]
///                                ^ at             ^ at
/// shared:                        payload          payload
/// ```
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    /// Frames, and headers of shared payloads.
    inline: Vec<u8>,
    /// Bytes of `inline` that have left; `sent <= inline.len()`, and no shared payload lies before it.
    sent: usize,
    /// In order of `at`.
    shared: VecDeque<Shared>,
    /// Bytes in `shared`.
    shared_len: usize,
    lean: u8,
}

/// A payload passed by reference.
#[derive(Debug)]
struct Shared {
    /// It goes before this offset of `inline`; `sent <= at <= inline.len()`.
    at: usize,
    bytes: Bytes,
}

impl Outgoing {
    /// Bytes that wait.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.inline.len() - self.sent + self.shared_len
    }

    /// Where frames are appended.
    #[inline]
    pub(crate) fn inline(&mut self) -> &mut Vec<u8> {
        &mut self.inline
    }

    /// Queues a payload without copying it.
    pub(crate) fn push_shared(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.shared_len += bytes.len();
            self.shared.push_back(Shared { at: self.inline.len(), bytes });
        }
    }

    /// Fills `out` with the next slices to write, in order, and returns how many.
    #[inline]
    pub(crate) fn transmit<'a>(&'a self, out: &mut [&'a [u8]]) -> usize {
        if !self.shared.is_empty() {
            return self.transmit_shared(out);
        }
        match out.first_mut() {
            Some(slice) if self.sent < self.inline.len() => {
                *slice = &self.inline[self.sent..];
                1
            }
            _ => 0,
        }
    }

    fn transmit_shared<'a>(&'a self, out: &mut [&'a [u8]]) -> usize {
        let mut count = 0;
        let mut from = self.sent;
        for shared in &self.shared {
            for slice in [&self.inline[from..shared.at], &shared.bytes] {
                if count == out.len() {
                    return count;
                }
                if !slice.is_empty() {
                    out[count] = slice;
                    count += 1;
                }
            }
            from = shared.at;
        }
        if count < out.len() && from < self.inline.len() {
            out[count] = &self.inline[from..];
            count += 1;
        }
        count
    }

    /// `len` bytes of what [`Outgoing::transmit`] showed have left.
    #[inline]
    pub(crate) fn transmitted(&mut self, len: usize) {
        if self.shared.is_empty() {
            assert!(len <= self.inline.len() - self.sent, "transmitted more than was queued");
            self.sent += len;
            if self.sent == self.inline.len() {
                return self.restart();
            }
        } else {
            self.transmitted_shared(len);
        }
        if self.sent == self.inline.len() && self.shared.is_empty() {
            self.restart();
        } else if self.sent >= KEEP_MAX && self.sent * 2 >= self.inline.len() {
            // Costs a copy of at most what has left since the last time.
            let sent = core::mem::take(&mut self.sent);
            self.inline.drain(..sent);
            for shared in &mut self.shared {
                shared.at -= sent;
            }
        }
    }

    fn transmitted_shared(&mut self, mut len: usize) {
        while let Some(shared) = self.shared.front_mut() {
            let inline = len.min(shared.at - self.sent);
            self.sent += inline;
            len -= inline;
            if self.sent < shared.at {
                return;
            }
            let bytes = len.min(shared.bytes.len());
            shared.bytes.advance(bytes);
            self.shared_len -= bytes;
            len -= bytes;
            if !shared.bytes.is_empty() {
                return;
            }
            self.shared.pop_front();
        }
        assert!(len <= self.inline.len() - self.sent, "transmitted more than was queued");
        self.sent += len;
    }

    /// Everything has left: the memory is kept for the next messages while they stay large.
    #[inline]
    fn restart(&mut self) {
        let capacity = self.inline.capacity();
        if capacity > KEEP_MAX {
            self.lean = if self.sent < capacity / 4 { self.lean + 1 } else { 0 };
            if self.lean >= LEAN_MAX {
                self.inline = Vec::new();
                self.lean = 0;
            }
        }
        self.inline.clear();
        self.sent = 0;
    }

    /// Drops what waits.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Gives the memory back if nothing waits.
    pub(crate) fn release(&mut self) {
        if self.len() == 0 {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn drain(queue: &mut Outgoing, step: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while queue.len() > 0 {
            let mut slices: [&[u8]; 3] = [&[]; 3];
            let count = queue.transmit(&mut slices);
            let joined = slices[..count].concat();
            assert!(!joined.is_empty() && slices[..count].iter().all(|slice| !slice.is_empty()));
            let len = joined.len().min(step);
            all.extend_from_slice(&joined[..len]);
            queue.transmitted(len);
        }
        all
    }

    #[test]
    fn keeps_the_order_of_inline_and_shared_bytes() {
        for step in [1, 2, 3, 7, 100] {
            let mut queue = Outgoing::default();
            queue.inline().extend_from_slice(b"one ");
            queue.push_shared(Bytes::from_static(b"two "));
            queue.push_shared(Bytes::from_static(b"three "));
            queue.push_shared(Bytes::new());
            queue.inline().extend_from_slice(b"four ");
            queue.push_shared(Bytes::from_static(b"five"));
            assert_eq!(queue.len(), 23);
            assert_eq!(drain(&mut queue, step), b"one two three four five");
            assert_eq!(queue.len(), 0);
        }
    }

    #[test]
    fn moves_a_long_queue_up_as_it_leaves() {
        let mut queue = Outgoing::default();
        let bytes: Vec<u8> = (0..300_000u32).map(|i| i as u8).collect();
        queue.inline().extend_from_slice(&bytes);
        queue.push_shared(Bytes::from_static(b"shared"));
        queue.inline().extend_from_slice(b"end");
        let all = drain(&mut queue, 10_000);
        assert_eq!(all, [&bytes[..], b"sharedend"].concat());
    }

    #[test]
    fn lets_go_of_a_large_buffer_when_messages_turn_small() {
        let mut queue = Outgoing::default();
        queue.inline().extend_from_slice(&vec![0; 1 << 20]);
        drain(&mut queue, usize::MAX);
        for _ in 0..LEAN_MAX {
            assert!(queue.inline.capacity() >= 1 << 20);
            queue.inline().extend_from_slice(b"small");
            drain(&mut queue, usize::MAX);
        }
        assert!(queue.inline.capacity() < 1 << 20);
    }
}
