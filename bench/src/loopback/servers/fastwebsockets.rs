//! fastwebsockets, upgraded by hyper as in its example: over the plain transport, and over one that batches writes.

use super::Transport;
use fastwebsockets::{FragmentCollector, OpCode, Role, WebSocket, WebSocketError, upgrade};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use upgrade::UpgradeFut;

type Outcome = Result<(), WebSocketError>;

pub(super) async fn echo(stream: impl Transport) {
    serve(stream, |upgrade| async move { run(upgrade.await?).await }).await;
}

/// Frames are written before the next read.
pub(super) async fn echo_batched(stream: impl Transport) {
    serve(stream, |upgrade| async move {
        let stream = upgrade.await?.into_inner();
        run(WebSocket::after_handshake(Held::new(stream), Role::Server)).await
    })
    .await;
}

async fn serve<F>(stream: impl Transport, run: fn(UpgradeFut) -> F)
where
    F: Future<Output = Outcome> + Send + 'static,
{
    let service = service_fn(|mut request| async move {
        let (response, upgrade) = upgrade::upgrade(&mut request)?;
        tokio::spawn(tokio::task::unconstrained(run(upgrade)));
        Ok::<_, WebSocketError>(response)
    });
    // The client may end the connection in any way.
    _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).with_upgrades().await;
}

async fn run<S: AsyncRead + AsyncWrite + Unpin>(socket: WebSocket<S>) -> Outcome {
    let mut socket = FragmentCollector::new(socket);
    loop {
        let frame = socket.read_frame().await?;
        match frame.opcode {
            OpCode::Close => return Ok(()),
            OpCode::Text | OpCode::Binary => socket.write_frame(frame).await?,
            _ => {}
        }
    }
}

/// The most bytes that are buffered before they are written.
const HELD_MAX: usize = 64 << 10;

/// A transport that buffers writes until the next read, or up to [`HELD_MAX`] bytes.
struct Held<S> {
    stream: S,
    held: Vec<u8>,
    /// `written <= held.len()`.
    written: usize,
}

impl<S: AsyncWrite + Unpin> Held<S> {
    fn new(stream: S) -> Self {
        Self { stream, held: Vec::new(), written: 0 }
    }

    /// Writes the buffered bytes.
    fn poll_release(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.held.is_empty() {
            return Poll::Ready(Ok(()));
        }
        while self.written < self.held.len() {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, &self.held[self.written..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                len => self.written += len,
            }
        }
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.held.clear();
        self.written = 0;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Held<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // Do not read from a peer that does not read.
        ready!(self.poll_release(cx))?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Held<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.held.is_empty() && buf.len() >= HELD_MAX {
            return Pin::new(&mut self.stream).poll_write(cx, buf);
        }
        if self.held.len() + buf.len() > HELD_MAX {
            ready!(self.poll_release(cx))?;
        }
        self.held.extend_from_slice(buf);
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The next read writes it.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_release(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
