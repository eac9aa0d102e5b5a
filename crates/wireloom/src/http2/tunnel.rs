//! A stream of HTTP/2 as a transport: bytes written leave as DATA, and bytes of DATA are read (RFC 9113 §8.5, RFC 8441 §4).
//!
//! ```text
//! shutdown             END_STREAM           like FIN of TCP
//! drop before that     RST_STREAM, CANCEL   like RST of TCP
//! flow control         window is given back as bytes are read, and writes wait for room in the stream's send queue
//! ```

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use wireloom_http2::error::ErrorCode;

use super::{RecvStream, Requests, SendStream};
use crate::error::Error;

/// A tunnel, open in both directions.
pub(crate) struct Tunnel {
    send: SendStream,
    recv: RecvStream,
    /// END_STREAM was sent.
    is_shut_down: bool,
    /// Keeps a client's connection open.
    _requests: Option<Requests>,
}

impl Tunnel {
    pub(crate) fn new(send: SendStream, recv: RecvStream) -> Self {
        Self { send, recv, is_shut_down: false, _requests: None }
    }

    /// The same tunnel, which keeps a client's connection open.
    pub(crate) fn with_requests(mut self, requests: Requests) -> Self {
        self._requests = Some(requests);
        self
    }
}

impl crate::transport::Tunnel for Tunnel {
    fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.recv.poll_readable(cx).map(Ok)
    }
}

impl AsyncRead for Tunnel {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let len =
            ready!(self.get_mut().recv.poll_read(cx, into.initialize_unfilled())).map_err(transport_error)?;
        into.advance(len);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(data)])
    }

    /// Copies as much as the stream's send queue has room for.
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let tunnel = self.get_mut();
        if tunnel.is_shut_down {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = ready!(tunnel.send.poll_capacity(cx)).map_err(transport_error)?;
        let total: usize = slices.iter().map(|slice| slice.len()).sum();
        let len = room.min(total);
        let data = match slices {
            [one] => Bytes::copy_from_slice(&one[..len]),
            _ => {
                let mut data = BytesMut::with_capacity(len);
                for slice in slices {
                    data.extend_from_slice(&slice[..slice.len().min(len - data.len())]);
                }
                data.freeze()
            }
        };
        tunnel.send.send(data, false).map_err(transport_error)?;
        Poll::Ready(Ok(len))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// The connection's driver writes by itself.
    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let tunnel = self.get_mut();
        if !std::mem::replace(&mut tunnel.is_shut_down, true) {
            // Fails when the stream has ended.
            let _ = tunnel.send.send(Bytes::new(), true);
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        if !self.is_shut_down {
            // RFC 9113 §8.5: like RST of TCP.
            self.send.reset(ErrorCode::CANCEL);
        }
    }
}

fn transport_error(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error.kind().into(),
        _ => io::ErrorKind::ConnectionReset.into(),
    }
}
