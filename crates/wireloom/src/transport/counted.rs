//! Counts the bytes that have left through the transport under TLS, which buffers some itself.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Io;

/// A transport that counts the bytes it has accepted.
pub(crate) struct Counted {
    io: Io,
    /// Bytes that were read from the transport before TLS began.
    read_ahead: BytesMut,
    accepted: u64,
}

impl Counted {
    pub(crate) fn new(io: Io) -> Self {
        Self { io, read_ahead: BytesMut::new(), accepted: 0 }
    }

    /// These bytes were read from the transport.
    #[cfg(feature = "server")]
    pub(crate) fn with_read_ahead(self, read_ahead: BytesMut) -> Self {
        Self { read_ahead, ..self }
    }

    pub(super) fn io(&self) -> &Io {
        &self.io
    }

    /// `len` bytes were written to the transport past this one.
    pub(super) fn count(&mut self, len: usize) {
        self.accepted += len as u64;
    }

    /// The number of bytes that have left, of a TLS connection within another one too.
    pub(super) fn left_len(&self) -> u64 {
        self.io.left_len().unwrap_or(self.accepted)
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.read_ahead.is_empty() {
            let len = self.read_ahead.len().min(into.remaining());
            into.put_slice(&self.read_ahead.split_to(len));
            if self.read_ahead.is_empty() {
                // It still holds the allocation.
                self.read_ahead = BytesMut::new();
            }
            return Poll::Ready(Ok(()));
        }
        let len = ready!(self.io.poll_read(cx, into.initialize_unfilled()))?;
        into.advance(len);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Counted {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let len = ready!(self.io.poll_write(cx, slices))?;
        self.count(len);
        Poll::Ready(Ok(len))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_shutdown(cx)
    }
}

#[cfg(all(test, feature = "server"))]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[tokio::test]
    async fn bytes_that_were_read_ahead_need_no_memory_afterwards() {
        let mut bytes = BytesMut::with_capacity(16 << 10);
        bytes.extend_from_slice(b"hello");
        let mut counted = Counted::new(Io::of(tokio::io::empty())).with_read_ahead(bytes);
        let mut read = [0; 5];
        counted.read_exact(&mut read).await.unwrap();
        assert_eq!((&read, counted.read_ahead.capacity()), (b"hello", 0));
    }
}
