//! The transport of a WebSocket: taken out of it, and dropped with it.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf};
use tokio::net::TcpStream;
use wireloom::wireloom_ws::handshake::Negotiated;
use wireloom::{
    CloseCode, Receiver, Request, Sender, Server, ServerConfig, WebSocket, WebSocketConfig, WebSocketError,
    wireloom_ws::Role,
};
use wireloom_testing::frame::masked;

fn open(transport: impl wireloom::Transport, role: Role, arrived: &[u8]) -> WebSocket {
    let config = WebSocketConfig::default();
    WebSocket::from_transport(transport, role, Negotiated::default(), None, config, arrived)
}

#[tokio::test]
async fn a_transport_is_taken_out_with_the_bytes_read_ahead() {
    let (mut peer, transport) = tokio::io::duplex(1 << 10);
    let mut socket = open(transport, Role::Server, b"\x81\x82\0\0\0\0hi\x81\x82\0");
    let mut clone = socket.halves().0.clone();
    assert_eq!(socket.recv().await.unwrap().unwrap().as_text(), Some("hi"));
    let (transport, read_ahead) = socket.into_inner();
    assert_eq!(read_ahead, b"\x81\x82\0");
    assert_eq!(clone.send("late").await, Err(WebSocketError::Closed));
    let mut transport = (transport as Box<dyn Any>).downcast::<DuplexStream>().unwrap();
    transport.write_all(b"plain").await.unwrap();
    drop(transport);
    let mut bytes = Vec::new();
    peer.read_to_end(&mut bytes).await.unwrap();
    // Taking out the transport sends no Close frame.
    assert_eq!(bytes, b"plain");
}

/// A transport that counts reads.
struct Counted(DuplexStream, Arc<AtomicUsize>);

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.0).poll_read(cx, into)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// A server that has sent 100,000 bytes to a peer that reads nothing, closes and ends its side.
async fn closed_unread(peer: &mut DuplexStream, transport: impl wireloom::Transport) -> (Sender, Receiver) {
    let (mut sender, receiver) = open(transport, Role::Server, b"").split();
    let sending = tokio::time::timeout(Duration::from_millis(10), async {
        sender.send(vec![7; 100_000]).await.unwrap();
        sender.flush().await
    });
    assert!(sending.await.is_err(), "the peer reads nothing");
    peer.write_all(&masked(0x88, b"\x03\xe8")).await.unwrap();
    peer.shutdown().await.unwrap();
    (sender, receiver)
}

// The receiver waits until the rest of the queue can be written.
#[tokio::test]
async fn the_end_of_a_transport_is_read_once_while_the_queue_is_stuck() {
    let (mut peer, transport) = tokio::io::duplex(1 << 10);
    let reads = Arc::new(AtomicUsize::new(0));
    let (_sender, mut receiver) = closed_unread(&mut peer, Counted(transport, reads.clone())).await;
    assert!(tokio::time::timeout(Duration::from_millis(100), receiver.recv()).await.is_err());
    let count = reads.load(Ordering::Relaxed);
    assert!(count < 10, "{count} reads");
    let receive = tokio::spawn(async move { receiver.recv().await.map(|message| message.is_none()) });
    let mut received = Vec::new();
    peer.read_to_end(&mut received).await.unwrap();
    assert_eq!(received.len(), 10 + 100_000 + 4);
    assert!(received.ends_with(b"\x88\x02\x03\xe8"));
    assert_eq!(receive.await.unwrap(), Ok(true));
}

// The peer closes, ends its side and never reads.
#[tokio::test(start_paused = true)]
async fn a_peer_that_ends_and_never_reads_is_dropped_after_the_close_timeout() {
    let (mut peer, transport) = tokio::io::duplex(1 << 10);
    let (_sender, mut receiver) = closed_unread(&mut peer, transport).await;
    let close_timeout = WebSocketConfig::default().core.close_timeout;
    let ended = tokio::time::timeout(2 * close_timeout, receiver.recv()).await;
    assert!(ended.is_ok(), "the receiver waits beyond the close timeout");
}

// The peer has sent what the server does not read: closing the socket at once would reset it.
#[tokio::test]
async fn a_websocket_dropped_outside_of_its_handler_is_not_reset() {
    // `Duration::MAX` never passes.
    for close_timeout in [WebSocketConfig::default().core.close_timeout, Duration::MAX] {
        drop_with_unread_bytes(close_timeout).await;
    }
}

async fn drop_with_unread_bytes(close_timeout: Duration) {
    let (passed, mut sockets) = tokio::sync::mpsc::unbounded_channel();
    let mut config = ServerConfig::default();
    config.websocket.core.close_timeout = close_timeout;
    let server = Server::bind("127.0.0.1:0").await.unwrap().config(config);
    let address = server.local_addr().unwrap();
    tokio::spawn(server.serve(move |request: Request| {
        let passed = passed.clone();
        async move {
            match request.websocket() {
                Ok(upgrade) => upgrade.on_open(async move |socket| {
                    let _ = passed.send(socket);
                    std::future::pending::<()>().await;
                }),
                Err(refusal) => refusal,
            }
        }
    }));
    let client = wireloom::connect(&format!("ws://{address}/")).await.unwrap();
    let socket = sockets.recv().await.unwrap();
    let mut client = (client.into_inner().0 as Box<dyn Any>).downcast::<TcpStream>().unwrap();
    client.write_all(&[0; 100_000]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    drop(socket);
    // More arrives after the Close frame.
    tokio::time::sleep(Duration::from_millis(20)).await;
    client.write_all(&[0; 100_000]).await.unwrap();
    let mut bytes = Vec::new();
    client.read_to_end(&mut bytes).await.unwrap();
    assert_eq!(bytes, [0x88, 2, 0x03, 0xe9]);
}

// The handler continues with another WebSocket, as a proxy does.
#[tokio::test]
async fn a_dropped_websocket_is_closed_although_its_handler_drives_another_one() {
    let mut config = ServerConfig::default();
    config.websocket.core.close_timeout = Duration::from_millis(50);
    let server = Server::bind("127.0.0.1:0").await.unwrap().config(config);
    let address = server.local_addr().unwrap();
    tokio::spawn(server.serve(|request: Request| async move {
        match request.websocket() {
            Ok(upgrade) => upgrade.on_open(|socket| async move {
                let other = open(tokio::io::empty(), Role::Client, &[]);
                drop(socket);
                other.drive(|_other| std::future::pending::<()>()).await;
            }),
            Err(refusal) => refusal,
        }
    }));
    let client = wireloom::connect(&format!("ws://{address}/")).await.unwrap();
    let (client, mut bytes) = client.into_inner();
    let mut client = (client as Box<dyn Any>).downcast::<TcpStream>().unwrap();
    client.read_to_end(&mut bytes).await.unwrap();
    assert_eq!(bytes, [0x88, 2, 0x03, 0xe9]);
    // After the timeout the connection is reset.
    let sending = async {
        while client.write_all(&[0; 1_000]).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), sending).await.expect("the socket is closed");
}

// The runtime has no timers.
#[test]
fn a_websocket_that_is_dropped_while_it_is_driven_needs_no_timers() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (mut peer, transport) = tokio::io::duplex(1 << 10);
    let (ended, is_ended) = tokio::sync::oneshot::channel();
    let driven = open(transport, Role::Server, &[]).drive(|socket| async move {
        drop(socket);
        is_ended.await.unwrap();
    });
    runtime.block_on(async {
        let driven = tokio::spawn(driven);
        let mut bytes = Vec::new();
        peer.read_to_end(&mut bytes).await.unwrap();
        assert_eq!(bytes, [0x88, 2, 0x03, 0xe9]);
        ended.send(()).unwrap();
        driven.await.unwrap();
    });
}

/// A waker that panics the first time.
#[derive(Default)]
struct Panics(AtomicBool);

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        assert!(self.0.swap(true, Ordering::Relaxed), "woken");
    }
}

// The state is locked while the receiver is woken.
#[tokio::test]
async fn a_panic_while_the_state_is_locked_does_not_block_later_calls() {
    let (mut peer, transport) = tokio::io::duplex(1 << 10);
    let (mut sender, mut receiver) = open(transport, Role::Server, &[]).split();
    let waker = Waker::from(Arc::new(Panics::default()));
    assert!(pin!(receiver.recv()).poll(&mut Context::from_waker(&waker)).is_pending());
    let closing = AssertUnwindSafe(async { sender.close(CloseCode::NORMAL, "").await });
    let panic = std::panic::catch_unwind(move || {
        let mut closing = pin!({ closing }.0);
        let _ = closing.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    });
    assert!(panic.is_err());
    peer.write_all(b"\x88\x80\0\0\0\0").await.unwrap();
    let received = tokio::time::timeout(Duration::from_secs(20), receiver.recv()).await;
    assert!(received.expect("the lock is free").unwrap().is_none());
    let mut close = [0; 4];
    peer.read_exact(&mut close).await.unwrap();
    assert_eq!(close, [0x88, 2, 0x03, 0xe8]);
}
