//! Connections that hyper hands over after a response (RFC 9110 §7.8), as transports.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::rt::{Read as _, Write as _};
use hyper::upgrade::{OnUpgrade, Upgraded};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Io;
use crate::error::HttpError;

/// A connection that will be handed over.
#[derive(Clone)]
pub(crate) struct PendingUpgrade(OnUpgrade);

impl PendingUpgrade {
    /// The pending upgrade of a request; `None` if its server cannot upgrade.
    pub(crate) fn of<B>(request: &mut http::Request<B>) -> Option<Self> {
        request.extensions_mut().remove::<OnUpgrade>().map(Self)
    }

    /// Waits until the response has been sent.
    pub(crate) async fn wait(self) -> Result<Io, HttpError> {
        let upgraded = self.0.await.map_err(|_| HttpError::ConnectionLost)?;
        Ok(Io::Other(Box::new(Transport(upgraded))))
    }
}

impl std::fmt::Debug for PendingUpgrade {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PendingUpgrade")
    }
}

struct Transport(Upgraded);

impl AsyncRead for Transport {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut read = hyper::rt::ReadBuf::new(into.initialize_unfilled());
        ready!(Pin::new(&mut self.0).poll_read(cx, read.unfilled()))?;
        let len = read.filled().len();
        into.advance(len);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Transport {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
