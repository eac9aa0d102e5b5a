//! The transport of a WebSocket: taken out of it, and dropped with it.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::net::TcpStream;
use wireloom::wireloom_ws::handshake::Negotiated;
use wireloom::{CloseCode, Error, Request, Server, WebSocket, WebSocketConfig, wireloom_ws::Role};

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
    assert_eq!(clone.send("late").await, Err(Error::Closed));
    let mut transport = (transport as Box<dyn Any>).downcast::<DuplexStream>().unwrap();
    transport.write_all(b"plain").await.unwrap();
    drop(transport);
    let mut bytes = Vec::new();
    peer.read_to_end(&mut bytes).await.unwrap();
    // No Close frame: nothing is sent for this.
    assert_eq!(bytes, b"plain");
}

// The peer has sent what the server does not read: closing the socket at once would reset it.
#[tokio::test]
async fn a_websocket_dropped_outside_of_its_handler_is_not_reset() {
    let (passed, mut sockets) = tokio::sync::mpsc::unbounded_channel();
    let server = Server::bind("127.0.0.1:0").await.unwrap();
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
async fn a_panic_while_the_state_is_locked_blocks_no_later_call() {
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
