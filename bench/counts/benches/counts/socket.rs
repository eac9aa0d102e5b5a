//! The tokio crate over a transport in memory: batches of 64 messages that arrive in one read, and messages that are sent one by one.

use crate::capped;
use crate::websocket::{MESSAGES, ascii, masked_frames};
use gungraun::{library_benchmark, library_benchmark_group};
use std::hint::black_box;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::Runtime;
use wireloom::wireloom_ws::Role;
use wireloom::wireloom_ws::handshake::Negotiated;
use wireloom::{WebSocket, WebSocketConfig};

/// A peer that has sent everything at once, or sends a message once the last one was read, and reads all that is written.
struct Peer {
    input: Vec<u8>,
    at: usize,
    /// The length of each read.
    read_len: usize,
    /// Nothing has arrived since the last read.
    is_read: bool,
}

impl AsyncRead for Peer {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let rest = &self.input[self.at..];
        let len = rest.len().min(into.remaining()).min(self.read_len);
        if len == 0 || self.is_read {
            self.is_read = false;
            return Poll::Pending;
        }
        into.put_slice(&rest[..len]);
        self.at += len;
        self.is_read = self.read_len < usize::MAX;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Peer {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(black_box(from).len()))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        from: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(black_box(from).iter().map(|slice| slice.len()).sum()))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

type Driven = (Runtime, Pin<Box<dyn Future<Output = Result<(), wireloom::WebSocketError>>>>);

/// A server's WebSocket whose peer has sent `count` messages, driven by `run`.
fn driven<F>(len: usize, count: usize, run: impl FnOnce(WebSocket) -> F + 'static) -> Driven
where
    F: Future<Output = Result<(), wireloom::WebSocketError>> + 'static,
{
    driven_by(masked_frames(&ascii(len), count), usize::MAX, run)
}

/// A server's WebSocket whose peer has sent `input`, of which it reads `read_len` bytes at once.
fn driven_by<F>(input: Vec<u8>, read_len: usize, run: impl FnOnce(WebSocket) -> F + 'static) -> Driven
where
    F: Future<Output = Result<(), wireloom::WebSocketError>> + 'static,
{
    capped(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let guard = runtime.enter();
        let peer = Peer { input, at: 0, read_len, is_read: false };
        let config = WebSocketConfig::default();
        let socket = WebSocket::from_transport(peer, Role::Server, Negotiated::default(), None, config, &[]);
        let future: Pin<Box<dyn Future<Output = _>>> = Box::pin(socket.drive(run));
        drop(guard);
        (runtime, future)
    })
}

async fn borrowed(socket: WebSocket) -> Result<(), wireloom::WebSocketError> {
    let (mut sender, mut receiver) = socket.split();
    while let Some(message) = receiver.recv().await? {
        sender.send(message).await?;
    }
    Ok(())
}

async fn owned(mut socket: WebSocket) -> Result<(), wireloom::WebSocketError> {
    while let Some(message) = socket.recv_owned().await? {
        socket.send(message).await?;
    }
    Ok(())
}

/// Polls once: all messages are echoed before the read that would block.
fn poll((runtime, mut future): Driven) -> Driven {
    let guard = runtime.enter();
    assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(guard);
    (runtime, future)
}

#[library_benchmark]
#[bench::borrowed_13(driven(13, MESSAGES, borrowed))]
#[bench::borrowed_200(driven(200, MESSAGES, borrowed))]
#[bench::borrowed_1024(driven(1024, MESSAGES, borrowed))]
#[bench::owned_13(driven(13, MESSAGES, owned))]
#[bench::owned_1024(driven(1024, MESSAGES, owned))]
#[bench::borrowed_70000(driven(70_000, 4, borrowed))]
fn echo(driven: Driven) -> Driven {
    poll(driven)
}

/// A server's WebSocket that is idle after each message.
fn quiet(len: usize) -> Driven {
    let input = masked_frames(&ascii(len), MESSAGES);
    let read_len = input.len() / MESSAGES;
    driven_by(input, read_len, borrowed)
}

#[library_benchmark]
#[bench::borrowed_13(quiet(13))]
fn wake((runtime, mut future): Driven) -> Driven {
    let guard = runtime.enter();
    for _ in 0..MESSAGES {
        assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    drop(guard);
    (runtime, future)
}

type Client = (Runtime, WebSocket, String);

/// A client that sends messages of `len` bytes.
fn client(len: usize) -> Client {
    capped(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let guard = runtime.enter();
        let peer = Peer { input: Vec::new(), at: 0, read_len: 0, is_read: true };
        let config = WebSocketConfig::default();
        let mut socket =
            WebSocket::from_transport(peer, Role::Client, Negotiated::default(), None, config, &[]);
        let text = ascii(len);
        // The first message allocates the generator of the keys and the buffer of the thread.
        send(&mut socket, &text);
        drop(guard);
        (runtime, socket, text)
    })
}

/// Sends one message, which the transport accepts at once.
fn send(socket: &mut WebSocket, text: &str) {
    let sent = pin!(socket.send(text)).poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(sent, Poll::Ready(Ok(()))));
}

#[library_benchmark]
#[bench::masked_13(client(13))]
#[bench::masked_1024(client(1024))]
fn write((runtime, mut socket, text): Client) -> Client {
    let guard = runtime.enter();
    for _ in 0..MESSAGES {
        send(&mut socket, black_box(&text));
    }
    drop(guard);
    (runtime, socket, text)
}

library_benchmark_group!(name = socket_group, benchmarks = [echo, wake, write]);
