//! A stream of HTTP/2 as a transport: what is written leaves as DATA, what arrives as DATA is read (RFC 9113 §8.5,
//! RFC 8441 §4). What travels inside is not its business.
//!
//! ```text
//! end of writing    END_STREAM           orderly end, as FIN of TCP
//! dropped before    RST_STREAM, CANCEL   as RST of TCP
//! windows           DATA is taken from the peer as it is read, and given to it as it takes it: a tunnel escapes neither
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
    shut: bool,
    /// A client's connection goes on as long as this.
    _requests: Option<Requests>,
}

impl Tunnel {
    pub(crate) fn new(send: SendStream, recv: RecvStream) -> Self {
        Self { send, recv, shut: false, _requests: None }
    }

    /// The same tunnel, which keeps a connection from ending.
    pub(crate) fn keeping(mut self, requests: Requests) -> Self {
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
        let len = ready!(self.get_mut().recv.poll_read(cx, into.initialize_unfilled())).map_err(broken)?;
        into.advance(len);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(data)])
    }

    /// Takes as much as the queue of the stream has room for, and copies it: the caller's memory is its own again.
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let tunnel = self.get_mut();
        if tunnel.shut {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = ready!(tunnel.send.poll_capacity(cx)).map_err(broken)?;
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
        tunnel.send.send(data, false).map_err(broken)?;
        Poll::Ready(Ok(len))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// What was written is on its way: the task of the connection sees to that.
    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let tunnel = self.get_mut();
        if !std::mem::replace(&mut tunnel.shut, true) {
            // When the stream is gone there is nothing left to end.
            let _ = tunnel.send.send(Bytes::new(), true);
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        if !self.shut {
            // RFC 9113 §8.5: as a reset of TCP.
            self.send.reset(ErrorCode::CANCEL);
        }
    }
}

fn broken(error: Error) -> io::Error {
    match error {
        Error::Io(kind) => kind.into(),
        _ => io::ErrorKind::ConnectionReset.into(),
    }
}
