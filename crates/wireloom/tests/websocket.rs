//! The WebSocket over transports in memory and over real sockets, both ends made by hand.

#![allow(clippy::unwrap_used)]

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use wireloom::wireloom_ws::handshake::Negotiated;
use wireloom::wireloom_ws::{Cause, Initiator, Role};
use wireloom::{CloseCode, Error, OwnedMessage, SlowPeer, Transport, WebSocket, WebSocketConfig};

fn open(transport: impl Transport, role: Role, config: WebSocketConfig) -> WebSocket {
    WebSocket::from_transport(transport, role, Negotiated::default(), None, config, &[])
}

fn pair(buffer_len: usize) -> (WebSocket, WebSocket) {
    let (client, server) = tokio::io::duplex(buffer_len);
    let config = WebSocketConfig::default;
    (open(client, Role::Client, config()), open(server, Role::Server, config()))
}

async fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap());
    let (client, server) = tokio::join!(client, listener.accept());
    (client.unwrap(), server.unwrap().0)
}

async fn echo(socket: WebSocket) -> Result<(), Error> {
    let (mut sender, mut receiver) = socket.split();
    while let Some(message) = receiver.recv().await? {
        sender.send(message).await?;
    }
    Ok(())
}

/// Counts the writes and reads that reach the transport.
struct Counted<T> {
    inner: T,
    writes: Arc<AtomicUsize>,
}

impl<T: AsyncRead + Unpin> AsyncRead for Counted<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Counted<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[tokio::test]
async fn echoes_messages_of_every_size() {
    for buffer_len in [1, 7, 4096, 1 << 20] {
        let (mut client, server) = pair(buffer_len);
        let server = tokio::spawn(echo(server));
        for len in [0, 1, 125, 126, 65_535, 65_536, 1_000_000] {
            if buffer_len < 100 && len > 1000 {
                continue;
            }
            let data: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let (sender, receiver) = client.halves();
            let (sent, received) = tokio::join!(sender.send(&data), receiver.recv());
            sent.unwrap();
            assert_eq!(received.unwrap().unwrap().as_bytes(), data, "{len} bytes");
        }
        client.send("häßlich").await.unwrap();
        assert_eq!(client.recv().await.unwrap().unwrap().as_text(), Some("häßlich"));
        client.close(CloseCode::NORMAL, "bye").await.unwrap();
        server.await.unwrap().unwrap();
        let end = client.end().unwrap();
        assert_eq!((end.by, end.code()), (Initiator::Local, CloseCode::NORMAL));
        assert_eq!(client.send("late").await, Err(Error::Closed));
        assert!(client.recv().await.unwrap().is_none());
    }
}

#[tokio::test]
async fn echoes_over_real_sockets() {
    let (client, server) = sockets().await;
    let server = tokio::spawn(echo(open(server, Role::Server, WebSocketConfig::default())));
    let mut client = open(client, Role::Client, WebSocketConfig::default());
    for len in [5, 70_000, 3_000_000] {
        let text = "x".repeat(len);
        let (sender, receiver) = client.halves();
        let (sent, received) = tokio::join!(sender.send(&text), receiver.recv_owned());
        sent.unwrap();
        assert_eq!(received.unwrap().unwrap(), OwnedMessage::from(text));
    }
    client.close(CloseCode::GOING_AWAY, "").await.unwrap();
    server.await.unwrap().unwrap();
}

#[tokio::test]
async fn answers_to_messages_that_came_together_leave_together() {
    let (client, server) = tokio::io::duplex(1 << 20);
    let writes = Arc::new(AtomicUsize::new(0));
    let server =
        open(Counted { inner: server, writes: writes.clone() }, Role::Server, WebSocketConfig::default());
    let mut client = open(client, Role::Client, WebSocketConfig::default());
    for _ in 0..40 {
        client.feed("thirty-two bytes, or nearly so..").await.unwrap();
    }
    client.flush().await.unwrap();
    let server = tokio::spawn(echo(server));
    for _ in 0..40 {
        assert!(client.recv().await.unwrap().is_some());
    }
    let written = writes.load(Ordering::Relaxed);
    assert!(written <= 4, "{written} writes for 40 answers");
    client.send("alone").await.unwrap();
    assert!(client.recv().await.unwrap().is_some());
    assert_eq!(writes.load(Ordering::Relaxed), written + 1);
    client.close(CloseCode::NORMAL, "").await.unwrap();
    server.await.unwrap().unwrap();
}

#[tokio::test]
async fn an_answer_leaves_although_its_handler_is_busy_elsewhere() {
    let (mut client, server) = pair(1 << 20);
    for _ in 0..10 {
        client.feed("at once").await.unwrap();
    }
    client.flush().await.unwrap();
    let (mut sender, mut receiver) = server.split();
    let server = tokio::spawn(async move {
        let message = receiver.recv().await.unwrap().unwrap();
        sender.send(message).await.unwrap();
        std::future::pending::<()>().await;
        drop((sender, receiver));
    });
    let answer = tokio::time::timeout(Duration::from_secs(10), client.recv()).await;
    assert_eq!(answer.unwrap().unwrap().unwrap().as_text(), Some("at once"));
    server.abort();
}

#[tokio::test]
async fn messages_before_a_fault_can_be_answered() {
    let (mut client, server) = tokio::io::duplex(1024);
    let server = tokio::spawn(echo(open(server, Role::Server, WebSocketConfig::default())));
    client.write_all(b"\x82\x81\0\0\0\0a\x82\x81\0\0\0\0b\x81\x82\0\0\0\0cd\x83\x80\0\0\0\0").await.unwrap();
    let mut heard = Vec::new();
    let mut some = [0; 100];
    while !heard.windows(2).any(|two| two == [0x03, 0xEA]) {
        let len = tokio::io::AsyncReadExt::read(&mut client, &mut some).await.unwrap();
        assert!(len > 0, "{heard:?}");
        heard.extend_from_slice(&some[..len]);
    }
    assert!(heard.starts_with(b"\x82\x01a\x82\x01b\x81\x02cd\x88"), "{heard:?}");
    drop(client);
    assert!(server.await.unwrap().is_err());
}

/// A direction that the peer has closed.
struct Deaf;

impl AsyncWrite for Deaf {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<std::io::Result<usize>> {
        Poll::Ready(Err(std::io::ErrorKind::BrokenPipe.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn hears_the_close_of_a_peer_that_takes_nothing_any_more() {
    let (mut client, server) = tokio::io::duplex(1024);
    client.write_all(b"\x82\x81\0\0\0\0a\x82\x81\0\0\0\0b\x88\x82\0\0\0\0\x03\xe9").await.unwrap();
    let server = tokio::io::join(server, Deaf);
    let (mut sender, mut receiver) = open(server, Role::Server, WebSocketConfig::default()).split();
    assert_eq!(receiver.recv().await.unwrap().unwrap().as_bytes(), b"a");
    assert_eq!(sender.feed("never").await, Ok(()));
    assert_eq!(sender.flush().await, Err(Error::Cut));
    assert_eq!(sender.send("never").await, Err(Error::Cut));
    assert_eq!(receiver.recv().await.unwrap().unwrap().as_bytes(), b"b");
    assert!(receiver.recv().await.unwrap().is_none());
    assert_eq!(receiver.end().unwrap().code(), CloseCode::GOING_AWAY);
    drop(client);
}

#[tokio::test]
async fn nothing_is_lost_when_futures_are_dropped() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut client, server) = pair(64);
    let server = tokio::spawn(echo(server));
    let total = 300u32;
    let (mut sent, mut received) = (0u32, 0u32);
    let (sender, receiver) = client.halves();
    while received < total {
        // Each future is polled a random number of times and dropped.
        let polls = random.u32(0..4);
        if sent < total && random.bool() {
            let queued = sender.queued_len();
            let payload = [&sent.to_be_bytes()[..], &vec![7; random.usize(0..200)]].concat();
            // What was queued as a whole counts; a dropped `feed` queued nothing.
            if give_up(sender.feed(&payload), polls).await.is_some_and(|fed| fed.is_ok()) {
                assert!(sender.queued_len() > queued);
                sent += 1;
            }
            give_up(sender.flush(), random.u32(0..4)).await;
        } else if let Some(message) = give_up(receiver.recv(), polls).await {
            let message = message.unwrap().unwrap();
            assert_eq!(message.as_bytes()[..4], received.to_be_bytes());
            received += 1;
        }
        tokio::task::yield_now().await;
    }
    client.close(CloseCode::NORMAL, "").await.unwrap();
    server.await.unwrap().unwrap();
}

/// Polls a future so many times and drops it.
async fn give_up<T>(future: impl Future<Output = T>, polls: u32) -> Option<T> {
    let mut future = std::pin::pin!(future);
    for _ in 0..polls {
        if let Poll::Ready(value) = futures_util::poll!(&mut future) {
            return Some(value);
        }
        tokio::task::yield_now().await;
    }
    None
}

#[tokio::test]
async fn a_reader_that_waits_does_not_block_a_writer() {
    let (client, server) = pair(1024);
    let (mut sender, mut receiver) = client.split();
    let reader = tokio::spawn(async move {
        let message = receiver.recv_owned().await.unwrap().unwrap();
        (message, receiver)
    });
    tokio::task::yield_now().await;
    let server = tokio::spawn(echo(server));
    sender.send("through").await.unwrap();
    let (message, mut receiver) = reader.await.unwrap();
    assert_eq!(message.as_text(), Some("through"));
    sender.close(CloseCode::NORMAL, "").await.unwrap();
    assert!(receiver.recv().await.unwrap().is_none());
    server.await.unwrap().unwrap();
}

#[tokio::test]
async fn says_why_when_it_is_dropped() {
    let (mut client, mut server) = pair(1024);
    server.close_on_drop(CloseCode::SERVICE_RESTART);
    drop(server);
    assert!(client.recv().await.unwrap().is_none());
    assert_eq!(client.end().unwrap().code(), CloseCode::SERVICE_RESTART);
}

#[tokio::test]
async fn tells_a_cut_from_a_close() {
    let (client, server) = tokio::io::duplex(1024);
    let mut server = open(server, Role::Server, WebSocketConfig::default());
    drop(client);
    assert_eq!(server.recv().await.unwrap_err(), Error::Cut);
    assert!(server.recv().await.unwrap().is_none());
    assert_eq!(server.end().unwrap().cause, Cause::TransportClosed);
}

// RFC 6455 §7.1.7: the peer is told why, and the messages before the fault are handed out.
#[tokio::test]
async fn fails_the_connection_when_the_peer_misbehaves() {
    let (mut client, server) = tokio::io::duplex(1024);
    let mut server = open(server, Role::Server, WebSocketConfig::default());
    client.write_all(b"\x82\x81\0\0\0\0a\x81\x01b").await.unwrap();
    let peer = tokio::spawn(async move {
        let mut heard = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut client, &mut heard).await.unwrap();
        heard
    });
    assert_eq!(server.recv().await.unwrap().unwrap().as_bytes(), b"a");
    assert!(matches!(server.recv().await, Err(Error::WebSocket(wireloom::wireloom_ws::Error::Peer(_)))));
    assert!(server.recv().await.unwrap().is_none());
    drop(server);
    assert_eq!(peer.await.unwrap()[..4], [0x88, 30, 0x03, 0xEA]);
}

#[tokio::test(start_paused = true)]
async fn gives_up_a_closing_handshake_that_is_not_answered() {
    let (_client, server) = tokio::io::duplex(1024);
    let mut server = open(server, Role::Server, WebSocketConfig::default());
    let begin = tokio::time::Instant::now();
    server.close(CloseCode::NORMAL, "").await.unwrap();
    assert!(begin.elapsed() >= Duration::from_secs(9), "{:?}", begin.elapsed());
}

fn slow(slow_peer: SlowPeer) -> WebSocketConfig {
    let mut config = WebSocketConfig::default();
    config.core.limits.queued_len_high = 10_000;
    config.slow_peer = slow_peer;
    config
}

#[tokio::test(start_paused = true)]
async fn cuts_a_peer_that_takes_nothing_for_too_long() {
    let (_client, server) = tokio::io::duplex(1024);
    let cut_after = Duration::from_secs(5);
    let mut server = open(server, Role::Server, slow(SlowPeer::Wait { cut_after }));
    assert_eq!(server.send(&[0; 5000]).await, Err(Error::SlowPeer));
    assert_eq!(server.send(&[0; 5000]).await, Err(Error::SlowPeer));
}

#[tokio::test]
async fn drops_the_newest_or_disconnects_when_told_to() {
    let (_client, server) = tokio::io::duplex(1024);
    let mut server = open(server, Role::Server, slow(SlowPeer::DropNewest));
    for _ in 0..10 {
        server.send(&[0; 5000]).await.unwrap();
    }
    let (sender, _) = server.halves();
    assert_eq!(sender.dropped(), 7);

    let (_client, server) = tokio::io::duplex(1024);
    let mut server = open(server, Role::Server, slow(SlowPeer::Disconnect));
    for _ in 0..3 {
        server.send(&[0; 5000]).await.unwrap();
    }
    assert_eq!(server.send(&[0; 5000]).await, Err(Error::SlowPeer));
}

#[tokio::test]
async fn is_a_stream_and_a_sink() {
    let (client, server) = pair(1024);
    let server = tokio::spawn(async move {
        let (sink, stream) = server.split();
        stream.forward(sink).await
    });
    let mut client = client;
    SinkExt::send(&mut client, OwnedMessage::from("one")).await.unwrap();
    assert_eq!(client.next().await.unwrap().unwrap(), OwnedMessage::from("one"));
    SinkExt::close(&mut client).await.unwrap();
    assert!(client.next().await.is_none());
    server.await.unwrap().unwrap();
}
