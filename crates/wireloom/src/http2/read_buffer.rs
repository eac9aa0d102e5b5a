//! Input of a connection between the transport and the core.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};

use crate::sync::Arc;
use crate::transport::Io;
use crate::transport::buffer::{Buffer, Pace};

/// A read of this length may be borrowed from: it is bulk. In bytes.
const BORROWED_READ_MIN: usize = 32 << 10;

/// Read buffers of the process that content may borrow at the same time. A chunk of 8 KiB keeps the whole buffer of 256 KiB, and a long one
/// counts as four. The last one may be long, after 15: this bounds the waste to 4.75 MiB, and leaves most of the process's large buffers to reads.
const BORROWED_MAX: usize = 16;

static BORROWED: AtomicUsize = AtomicUsize::new(0);

/// Holds memory only while it holds bytes.
#[derive(Default)]
pub(super) struct ReadBuffer {
    owned: Option<Buffer>,
    /// A read that content may borrow from; then `owned` is empty.
    shared: Bytes,
    /// Also held by the last shared read: alone once nothing borrows from that.
    lease: Arc<()>,
    pace: Pace,
}

/// A read buffer that content borrows.
struct Borrowed {
    buffer: Buffer,
    /// Its share of `count`.
    units: usize,
    /// Counts this buffer.
    count: &'static AtomicUsize,
    _lease: Arc<()>,
}

impl ReadBuffer {
    /// Bytes that were read before.
    pub(super) fn from_slice(bytes: &[u8]) -> Self {
        let owned = (!bytes.is_empty()).then(|| Buffer::from_slice(bytes));
        Self { owned, ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.shared.is_empty() && self.owned.as_ref().is_none_or(Buffer::is_empty)
    }

    /// The bytes, and the buffer that they may be borrowed from.
    pub(super) fn bytes(&mut self) -> (&[u8], Option<&Bytes>) {
        match &mut self.owned {
            _ if !self.shared.is_empty() => (&self.shared, Some(&self.shared)),
            Some(buffer) => (buffer.unread(), None),
            None => (&[], None),
        }
    }

    pub(super) fn consume(&mut self, len: usize) {
        if !self.shared.is_empty() {
            self.shared.advance(len);
            if self.shared.is_empty() {
                self.shared = Bytes::new();
            }
        } else if let Some(buffer) = &mut self.owned {
            buffer.consume(len);
        }
    }

    /// Frees the memory and drops its content.
    pub(super) fn clear(&mut self) {
        self.owned = None;
        self.shared = Bytes::new();
    }

    /// Reads once. The buffer must be empty. Of a client, longer if it is behind.
    pub(super) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        io: &mut Io,
        is_client: bool,
    ) -> Poll<std::io::Result<usize>> {
        ready!(io.poll_read_ready(cx))?;
        let buffer = self.owned.get_or_insert_with(Buffer::take);
        if self.pace.is_behind() {
            buffer.lengthen();
        }
        let len = ready!(io.poll_read(cx, buffer.space()))?;
        if is_client {
            self.pace.record(len);
        }
        buffer.filled(len);
        Poll::Ready(Ok(len))
    }

    /// Whether content still borrows from an earlier read.
    pub(super) fn is_borrowed(&self) -> bool {
        Arc::strong_count(&self.lease) > 1
    }

    /// Lets content borrow from what was just read, if it is bulk and few buffers are borrowed.
    pub(super) fn share(&mut self) {
        self.share_within(&BORROWED);
    }

    /// Shares if `count`, the number of borrowed buffers, is below its maximum.
    fn share_within(&mut self, count: &'static AtomicUsize) {
        let is_bulk = self.owned.as_mut().is_some_and(|buffer| buffer.unread().len() >= BORROWED_READ_MIN);
        if !is_bulk || self.is_borrowed() || count.load(Ordering::Relaxed) >= BORROWED_MAX {
            return;
        }
        if let Some(buffer) = self.owned.take() {
            // Threads that pass the check together exceed the bound by a buffer each at most.
            let units = buffer.large_units().max(1);
            count.fetch_add(units, Ordering::Relaxed);
            self.shared = Bytes::from_owner(Borrowed { buffer, units, count, _lease: self.lease.clone() });
        }
    }
}

impl AsRef<[u8]> for Borrowed {
    fn as_ref(&self) -> &[u8] {
        self.buffer.as_ref()
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        self.count.fetch_sub(self.units, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk() -> ReadBuffer {
        ReadBuffer::from_slice(&[7; 50_000])
    }

    // The tests count for themselves: other tests of the process borrow too.
    #[test]
    fn borrowed_buffers_are_bounded() {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let mut chunks = Vec::new();
        for _ in 0..3 * BORROWED_MAX {
            let mut buffer = bulk();
            buffer.share_within(&COUNT);
            if let (bytes, Some(shared)) = buffer.bytes() {
                chunks.push(shared.slice_ref(&bytes[..8192]));
            }
        }
        assert_eq!((chunks.len(), COUNT.load(Ordering::Relaxed)), (BORROWED_MAX, BORROWED_MAX));
        chunks.pop();
        let mut buffer = bulk();
        buffer.share_within(&COUNT);
        assert!(buffer.bytes().1.is_some());
        drop((chunks, buffer));
        assert_eq!(COUNT.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_connection_shares_one_buffer_at_a_time() {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let mut buffer = bulk();
        buffer.share_within(&COUNT);
        let chunk = buffer.bytes().1.map(|shared| shared.slice(..8192));
        buffer.consume(50_000);
        assert!(buffer.is_empty() && buffer.is_borrowed());
        buffer.owned = bulk().owned;
        buffer.share_within(&COUNT);
        assert!(buffer.bytes().1.is_none());
        drop(chunk);
        assert!(!buffer.is_borrowed());
        buffer.share_within(&COUNT);
        assert!(buffer.bytes().1.is_some());
    }
}
