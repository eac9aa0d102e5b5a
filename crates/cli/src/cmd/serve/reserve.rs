//! A file descriptor in reserve, with which the listener of `--admin` accepts when the process has no other: the operator looks at its
//! metrics then.

use std::any::Any;
use std::fs::File;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::OwnedSemaphorePermit;
use wireloom::server::Listener;

use crate::cmd::bind::PollAccept;
use crate::descriptors;

/// Shared by all listeners of the process, of which one accepts at a time. A descriptor that becomes free is the reserve's before it is a
/// connection's, so that the reserve comes back whatever has used its descriptor.
#[derive(Clone)]
pub(super) struct Reserve(Arc<Mutex<Kept>>);

/// An open file or socket, unless its descriptor is in use.
#[derive(Default)]
struct Kept(Option<Box<dyn Any + Send>>);

impl Kept {
    fn fill(&mut self) -> io::Result<()> {
        if self.0.is_none() {
            self.0 = Some(Box::new(File::open(if cfg!(windows) { "NUL" } else { "/dev/null" })?));
        }
        Ok(())
    }

    /// Keeps the socket of a connection that ends. Were it closed, an outgoing connection could take its descriptor.
    fn fill_with(&mut self, stream: TcpStream) {
        if self.0.is_none()
            && let Ok(stream) = stream.into_std()
        {
            let _ = stream.shutdown(Shutdown::Both);
            self.0 = Some(Box::new(stream));
        }
    }
}

impl Reserve {
    /// It is kept from now on.
    pub(super) fn new() -> Self {
        let mut kept = Kept::default();
        // Otherwise from the first time that a listener waits.
        let _ = kept.fill();
        Self(Arc::new(Mutex::new(kept)))
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts while the reserve is kept.
    pub(super) fn spare<L>(&self, listener: L) -> SharingListener<L> {
        SharingListener { listener, reserve: self.clone(), may_use: false }
    }

    /// Accepts with the reserve when there is no other descriptor.
    pub(super) fn spend(&self, listener: TcpListener) -> AdminListener {
        AdminListener(SharingListener { listener, reserve: self.clone(), may_use: true })
    }
}

/// A listener that shares the reserve with others.
pub(super) struct SharingListener<L> {
    listener: L,
    reserve: Reserve,
    may_use: bool,
}

impl<L: PollAccept> SharingListener<L> {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(L::Transport, SocketAddr)>> {
        let mut kept = self.reserve.lock();
        let filled = kept.fill();
        if !self.may_use {
            return match filled {
                Err(error) if descriptors::is_out_of(&error) => Poll::Ready(Err(error)),
                // A container may have no such file.
                _ => self.listener.poll_accept(cx),
            };
        }
        let accepted = self.listener.poll_accept(cx);
        if !matches!(accepted, Poll::Ready(Err(_))) || kept.0.take().is_none() {
            return accepted;
        }
        let accepted = self.listener.poll_accept(cx);
        // Linux looks for a free descriptor before it looks for a connection.
        let _ = kept.fill();
        accepted
    }
}

impl<L: PollAccept> Listener for SharingListener<L> {
    type Transport = L::Transport;

    async fn accept(&mut self) -> io::Result<(L::Transport, SocketAddr)> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    #[cfg(unix)]
    fn socket(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.listener.socket()
    }
}

/// The listener of `--admin`.
pub(super) struct AdminListener(SharingListener<TcpListener>);

impl Listener for AdminListener {
    type Transport = AdminConnection;

    async fn accept(&mut self) -> io::Result<(AdminConnection, SocketAddr)> {
        let (stream, peer) = self.0.accept().await?;
        // Without it, answers are only later.
        let _ = stream.set_nodelay(true);
        Ok((AdminConnection { stream: Some(stream), reserve: self.0.reserve.clone(), place: None }, peer))
    }

    #[cfg(unix)]
    fn socket(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.0.socket()
    }
}

/// Its descriptor becomes the reserve if there is none when it ends.
pub(super) struct AdminConnection {
    /// `Some` until it is dropped.
    stream: Option<TcpStream>,
    reserve: Reserve,
    place: Option<OwnedSemaphorePermit>,
}

impl AdminConnection {
    /// Whether no other connection can be accepted while this one is open.
    pub(super) fn has_last_descriptor(&self) -> bool {
        self.reserve.lock().0.is_none()
    }

    /// Keeps `place` until it ends.
    pub(super) fn with_place(mut self, place: OwnedSemaphorePermit) -> Self {
        self.place = Some(place);
        self
    }

    fn stream(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        self.stream.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Drop for AdminConnection {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take() {
            self.reserve.lock().fill_with(stream);
        }
    }
}

impl AsyncRead for AdminConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream()?.poll_read(cx, into)
    }
}

impl AsyncWrite for AdminConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[tokio::test]
    async fn a_connection_that_ends_gives_its_descriptor_to_the_reserve() {
        let reserve = Reserve::new();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (connection, _) = reserve.spend(listener).accept().await.unwrap();
        // Another part of the process has taken it.
        reserve.lock().0 = None;
        drop(connection);
        assert!(reserve.lock().0.is_some());
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0, "the client sees the end");
    }
}
