//! The listener of `--admin`, which answers also when the process has no free file descriptor: the operator looks at its metrics then.

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
use wireloom::server::Listener;

/// Gives up the reserve for a connection that could not be accepted.
pub(super) struct AdminListener {
    listener: TcpListener,
    reserve: Arc<Reserve>,
}

impl AdminListener {
    pub(super) fn new(listener: TcpListener) -> Self {
        let reserve = Arc::new(Reserve::default());
        reserve.fill();
        Self { listener, reserve }
    }
}

impl Listener for AdminListener {
    type Transport = AdminConnection;

    async fn accept(&mut self) -> io::Result<(AdminConnection, SocketAddr)> {
        let accepting = poll_fn(|cx| {
            self.reserve.fill();
            let accepted = self.listener.poll_accept(cx);
            if !matches!(accepted, Poll::Ready(Err(_))) || !self.reserve.give_up() {
                return accepted;
            }
            let accepted = self.listener.poll_accept(cx);
            if accepted.is_pending() {
                // Linux looks for a free descriptor before it looks for a connection.
                self.reserve.fill();
            }
            accepted
        });
        let (stream, peer) = accepting.await?;
        // Without it, answers are only later.
        let _ = stream.set_nodelay(true);
        Ok((AdminConnection { stream: Some(stream), reserve: self.reserve.clone() }, peer))
    }
}

/// An open file or socket, whose descriptor nobody else can use.
#[derive(Default)]
struct Reserve(Mutex<Option<Box<dyn Any + Send>>>);

impl Reserve {
    fn lock(&self) -> MutexGuard<'_, Option<Box<dyn Any + Send>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fill(&self) {
        let mut kept = self.lock();
        if kept.is_none() {
            // This file always exists.
            let file = File::open(if cfg!(windows) { "NUL" } else { "/dev/null" });
            *kept = file.ok().map(|file| Box::new(file) as _);
        }
    }

    /// Keeps the socket of a connection that ends. Were it closed, a connection of another listener would take its descriptor.
    fn fill_with(&self, stream: TcpStream) {
        let mut kept = self.lock();
        if kept.is_none()
            && let Ok(stream) = stream.into_std()
        {
            let _ = stream.shutdown(Shutdown::Both);
            *kept = Some(Box::new(stream));
        }
    }

    /// Closes it; false if there is none.
    fn give_up(&self) -> bool {
        self.lock().take().is_some()
    }
}

/// Its descriptor becomes the reserve if there is none when it ends.
pub(super) struct AdminConnection {
    /// `Some` until it is dropped.
    stream: Option<TcpStream>,
    reserve: Arc<Reserve>,
}

impl AdminConnection {
    fn stream(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        self.stream.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Drop for AdminConnection {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take() {
            self.reserve.fill_with(stream);
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
