//! A transport in memory that is always ready: reads return the same bytes repeatedly, at most 64 KiB at a time, and
//! writes always succeed. A read costs one copy, as the kernel's would; a write costs nothing unless it is checked. So
//! only a library's own copies are measured.

use crate::checksum::consume;
use bytes::Bytes;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The most bytes that one read returns.
pub(crate) const READ_LEN_MAX: usize = 64 * 1024;

/// The read buffer of contestants whose buffer the application chooses and that are faster with a small one, which
/// stays in the L1 cache. (tokio-websockets and fastwebsockets begin with 8 KiB, nago-wss takes 16 KiB.)
pub(crate) const READ_BUFFER_LEN: usize = 16 * 1024;

/// The bytes that the peer sends, repeatedly.
#[derive(Clone)]
pub(crate) struct Feed {
    bytes: Bytes,
    /// 0 <= at < bytes.len()
    at: usize,
}

impl Feed {
    pub(crate) fn new(bytes: Bytes) -> Self {
        assert!(!bytes.is_empty(), "a feed needs bytes to repeat");
        Self { bytes, at: 0 }
    }

    /// The bytes of one read of at most `len` bytes; never empty unless `len` is 0.
    #[inline]
    pub(crate) fn next(&mut self, len: usize) -> &[u8] {
        let start = self.at;
        let end = self.bytes.len().min(start + len.min(READ_LEN_MAX));
        self.at = if end == self.bytes.len() { 0 } else { end };
        &self.bytes[start..end]
    }

    /// Simulates `recv`: copies into `buf` and returns the length.
    #[inline]
    pub(crate) fn recv(&mut self, buf: &mut [u8]) -> usize {
        let next = self.next(buf.len());
        buf[..next.len()].copy_from_slice(next);
        next.len()
    }
}

/// The destination of written bytes: discarded, or appended to a buffer while capturing.
#[derive(Clone, Default)]
pub(crate) struct Outbox(Arc<OutboxState>);

#[derive(Default)]
struct OutboxState {
    capturing: AtomicBool,
    captured: Mutex<Vec<u8>>,
}

impl Outbox {
    /// Runs `work` and returns everything that it writes.
    pub(crate) fn capture(&self, work: impl FnOnce()) -> Vec<u8> {
        self.0.capturing.store(true, Relaxed);
        work();
        self.0.capturing.store(false, Relaxed);
        std::mem::take(&mut self.0.captured.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Simulates `send`.
    #[inline]
    pub(crate) fn send(&self, bytes: &[u8]) -> usize {
        let len = consume(bytes);
        if self.0.capturing.load(Relaxed) {
            self.0.captured.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        }
        len
    }
}

/// Both directions of the transport, with every trait that a rival requires.
pub(crate) struct Wire {
    feed: Option<Feed>,
    outbox: Outbox,
}

impl Wire {
    pub(crate) fn reading(bytes: Bytes) -> Self {
        Self { feed: Some(Feed::new(bytes)), outbox: Outbox::default() }
    }

    pub(crate) fn writing(outbox: Outbox) -> Self {
        Self { feed: None, outbox }
    }

    #[inline]
    fn next(&mut self, len: usize) -> &[u8] {
        self.feed.as_mut().map_or(&[], |feed| feed.next(len))
    }
}

impl io::Read for Wire {
    #[inline]
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(self.feed.as_mut().map_or(0, |feed| feed.recv(buf)))
    }
}

impl io::Write for Wire {
    #[inline]
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        Ok(self.outbox.send(buf))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsyncRead for Wire {
    #[inline]
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let len = buf.remaining();
        buf.put_slice(self.get_mut().next(len));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    #[inline]
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(self.outbox.send(buf)))
    }

    #[inline]
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(slices.iter().map(|slice| self.outbox.send(slice)).sum()))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    #[inline]
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl nagoya::io::Stream for Wire {
    #[inline]
    async fn read(&mut self, buf: &mut [u8]) -> Result<usize, nagoya::io::StreamError> {
        Ok(self.feed.as_mut().map_or(0, |feed| feed.recv(buf)))
    }

    #[inline]
    async fn write_all(&mut self, buf: &[u8]) -> Result<(), nagoya::io::StreamError> {
        self.outbox.send(buf);
        Ok(())
    }
}

impl nago_wss::stream::StreamExt for Wire {
    #[inline]
    async fn read_buf(&mut self, buf: &mut bytes::BytesMut) -> nago_wss::stream::Result<usize> {
        let next = self.next(buf.capacity() - buf.len());
        buf.extend_from_slice(next);
        Ok(next.len())
    }

    #[inline]
    async fn write_all_vectored(&mut self, header: &[u8], payload: &[u8]) -> nago_wss::stream::Result<()> {
        self.outbox.send(header);
        self.outbox.send(payload);
        Ok(())
    }
}

/// Runs a future to its end. The transport is always ready, so no runtime or waker is needed.
#[inline]
pub(crate) fn run<F: Future>(future: F) -> F::Output {
    poll(&mut pin!(future), |future, cx| future.as_mut().poll(cx))
}

/// Calls a poll function until it is ready.
#[inline]
pub(crate) fn poll<S, T>(state: &mut S, mut step: impl FnMut(&mut S, &mut Context<'_>) -> Poll<T>) -> T {
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(value) = step(state, &mut cx) {
            return value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feed_repeats_in_reads_of_limited_length() {
        let bytes: Bytes = (0..READ_LEN_MAX + 10).map(|i| i as u8).collect();
        let mut feed = Feed::new(bytes.clone());
        assert_eq!(feed.next(3), &bytes[..3]);
        assert_eq!(feed.next(usize::MAX >> 1).len(), READ_LEN_MAX);
        assert_eq!(feed.next(usize::MAX >> 1), &bytes[READ_LEN_MAX + 3..]);
        assert_eq!(feed.next(1), &bytes[..1]);
    }

    #[test]
    fn an_outbox_keeps_bytes_only_while_capturing() {
        let outbox = Outbox::default();
        outbox.send(b"lost");
        let captured = outbox.capture(|| {
            outbox.send(b"kept");
        });
        assert_eq!(captured, b"kept");
        assert_eq!(outbox.capture(|| ()), b"");
    }
}
