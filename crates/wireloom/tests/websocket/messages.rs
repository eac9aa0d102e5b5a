//! The WebSocket over transports in memory and over real sockets, both ends made by hand.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use wireloom::wireloom_ws::handshake::Negotiated;
use wireloom::wireloom_ws::{Cause, End, Initiator, Keepalive, Role};
use wireloom::{
    CloseCode, Message, OwnedMessage, Sender, Session, SlowPeer, Transport, WebSocket, WebSocketConfig,
    WebSocketError,
};
use wireloom_testing::frame::masked;

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

async fn echo(socket: WebSocket) -> Result<(), WebSocketError> {
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
        assert_eq!(client.send("late").await, Err(WebSocketError::Closed));
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
async fn messages_before_a_violation_can_be_answered() {
    let (mut client, server) = tokio::io::duplex(1024);
    let server = tokio::spawn(echo(open(server, Role::Server, WebSocketConfig::default())));
    client.write_all(b"\x82\x81\0\0\0\0a\x82\x81\0\0\0\0b\x81\x82\0\0\0\0cd\x83\x80\0\0\0\0").await.unwrap();
    let mut received = Vec::new();
    let mut some = [0; 100];
    while !received.windows(2).any(|two| two == [0x03, 0xEA]) {
        let len = tokio::io::AsyncReadExt::read(&mut client, &mut some).await.unwrap();
        assert!(len > 0, "{received:?}");
        received.extend_from_slice(&some[..len]);
    }
    assert!(received.starts_with(b"\x82\x01a\x82\x01b\x81\x02cd\x88"), "{received:?}");
    drop(client);
    assert!(server.await.unwrap().is_err());
}

/// The writing side of a transport whose peer has closed its reading side.
struct ClosedWriter;

impl AsyncWrite for ClosedWriter {
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
async fn receives_the_close_of_a_peer_that_no_longer_reads() {
    let (mut client, server) = tokio::io::duplex(1024);
    client.write_all(b"\x82\x81\0\0\0\0a\x82\x81\0\0\0\0b\x88\x82\0\0\0\0\x03\xe9").await.unwrap();
    let server = tokio::io::join(server, ClosedWriter);
    let (mut sender, mut receiver) = open(server, Role::Server, WebSocketConfig::default()).split();
    assert_eq!(receiver.recv().await.unwrap().unwrap().as_bytes(), b"a");
    assert_eq!(sender.feed("never").await, Ok(()));
    assert_eq!(sender.flush().await, Err(WebSocketError::ConnectionLost));
    assert_eq!(sender.send("never").await, Err(WebSocketError::ConnectionLost));
    assert_eq!(receiver.recv().await.unwrap().unwrap().as_bytes(), b"b");
    assert!(receiver.recv().await.unwrap().is_none());
    assert_eq!(receiver.end().unwrap().code(), CloseCode::GOING_AWAY);
    drop(client);
}

#[tokio::test]
async fn nothing_is_lost_when_futures_are_dropped() {
    let mut random = wireloom_testing::generator();
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
            // A message counts only if all of it was queued; a dropped `feed` has queued nothing.
            if poll_and_drop(sender.feed(&payload), polls).await.is_some_and(|fed| fed.is_ok()) {
                assert!(sender.queued_len() > queued);
                sent += 1;
            }
            poll_and_drop(sender.flush(), random.u32(0..4)).await;
        } else if let Some(message) = poll_and_drop(receiver.recv(), polls).await {
            let message = message.unwrap().unwrap();
            assert_eq!(message.as_bytes()[..4], received.to_be_bytes());
            received += 1;
        }
        tokio::task::yield_now().await;
    }
    client.close(CloseCode::NORMAL, "").await.unwrap();
    server.await.unwrap().unwrap();
}

// Wherever futures are dropped, messages arrive whole, in order and once, and every message whose `send` completed
// arrives.
#[tokio::test]
async fn every_future_may_be_dropped_at_any_point() {
    let mut random = wireloom_testing::generator();
    for _ in 0..20 {
        let (client, server) = tokio::io::duplex(random.usize(1..300));
        let mut config = WebSocketConfig::default();
        config.core.limits.queued_len_high = random.usize(1..2000);
        let mut client = open(client, Role::Client, config);
        let server = tokio::spawn(echo(open(server, Role::Server, WebSocketConfig::default())));
        let (mut next, mut received) = (0u32, Vec::new());
        let mut done = Vec::new();
        while next < 60 {
            let polls = random.u32(0..5);
            let (sender, receiver) = client.halves();
            match random.u32(0..6) {
                0 | 1 => {
                    let payload = [&next.to_be_bytes()[..], &vec![next as u8; random.usize(0..400)]].concat();
                    let sent = match random.bool() {
                        true => poll_and_drop(sender.send(&payload), polls).await,
                        false => poll_and_drop(sender.feed(&payload), polls).await,
                    };
                    if sent.is_some_and(|sent| sent.is_ok()) {
                        done.push(next);
                    }
                    next += 1;
                }
                2 => drop(poll_and_drop(sender.ping(b"?"), polls).await),
                3 => drop(poll_and_drop(sender.flush(), polls).await),
                _ => received.extend(poll_and_drop(receive_id(receiver), polls).await),
            }
            tokio::task::yield_now().await;
        }
        let (sender, receiver) = client.halves();
        let last = async {
            sender.send(&u32::MAX.to_be_bytes()).await.unwrap();
        };
        let rest = async {
            while received.last() != Some(&u32::MAX) {
                received.push(receive_id(receiver).await);
            }
        };
        tokio::join!(last, rest);
        assert!(received.is_sorted_by(|one, two| one < two), "{received:?}");
        assert!(done.iter().all(|id| received.contains(id)), "{done:?} {received:?}");
        client.close(CloseCode::NORMAL, "").await.unwrap();
        server.await.unwrap().unwrap();
    }
}

/// The number at the beginning of the next message, which must be complete.
async fn receive_id(receiver: &mut wireloom::Receiver) -> u32 {
    let message = receiver.recv().await.unwrap().unwrap();
    let (id, rest) = message.as_bytes().split_first_chunk().unwrap();
    let id = u32::from_be_bytes(*id);
    assert!(rest.iter().all(|&byte| byte == id as u8));
    id
}

#[tokio::test(start_paused = true)]
async fn closes_at_a_deadline_with_its_code() {
    let (mut client, mut server) = pair(1024);
    let minute = Duration::from_secs(60);
    assert!(server.close_after((minute, CloseCode::ABNORMAL)).is_err());
    server.close_after((minute, CloseCode::TRY_AGAIN_LATER)).unwrap();
    server.close_after(None).unwrap();
    server.close_after((2 * minute, CloseCode::POLICY_VIOLATION)).unwrap();
    let begin = tokio::time::Instant::now();
    let (server_received, client_received) = tokio::join!(server.recv(), client.recv());
    assert!(server_received.unwrap().is_none() && client_received.unwrap().is_none());
    assert!(begin.elapsed() >= 2 * minute && begin.elapsed() < 3 * minute);
    assert_eq!(client.end().unwrap().code(), CloseCode::POLICY_VIOLATION);
}

// A deadline beyond what the clock can represent never comes.
#[tokio::test]
async fn deadlines_may_be_unlimited() {
    let mut config = WebSocketConfig::default();
    config.core.close_timeout = Duration::MAX;
    config.core.keepalive = Some(Keepalive { ping_after: Duration::MAX, dead_after: Duration::MAX });
    let (client, server) = tokio::io::duplex(1024);
    let (mut client, mut server) =
        (open(client, Role::Client, config.clone()), open(server, Role::Server, config));
    server.close_after((Duration::MAX, CloseCode::GOING_AWAY)).unwrap();
    let late = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        client.send("hi").await
    };
    let (received, sent) = tokio::join!(server.recv_owned(), late);
    sent.unwrap();
    assert_eq!(received.unwrap().unwrap().as_text(), Some("hi"));
    let (closed, end) = tokio::join!(server.close(CloseCode::NORMAL, ""), client.recv());
    assert!(closed.is_ok() && end.unwrap().is_none());
}

// A peer is only given up if it did not answer a ping.
#[tokio::test(start_paused = true)]
async fn a_peer_is_pinged_before_it_is_given_up() {
    let (client, server) = tokio::io::duplex(1024);
    let mut client = open(client, Role::Client, WebSocketConfig::client());
    let mut server = open(server, Role::Server, WebSocketConfig::default());
    let server = tokio::spawn(async move {
        let later = tokio::time::sleep(Duration::from_secs(200));
        tokio::pin!(later);
        let early = tokio::select! {
            received = server.recv() => Some(received.map(|message| message.is_some())),
            () = &mut later => None,
        };
        assert_eq!(early, None);
        server.send("still here").await.unwrap();
        server.recv().await.map(|message| message.is_some())
    });
    // The application works on something else for longer than the peer may be silent.
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(client.recv().await.unwrap().unwrap().as_text(), Some("still here"));
    client.close(CloseCode::NORMAL, "").await.unwrap();
    assert_eq!(server.await.unwrap(), Ok(false));
}

/// A peer that sends empty messages without a pause until `until`, and then ends.
struct Flood {
    until: std::time::Instant,
}

impl AsyncRead for Flood {
    fn poll_read(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        if std::time::Instant::now() < self.until {
            let len = into.remaining() / 6 * 6;
            into.put_slice(&[0x82, 0x80, 1, 2, 3, 4].repeat(len / 6));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Flood {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, data: &[u8]) -> Poll<std::io::Result<usize>> {
        Poll::Ready(Ok(data.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

// RFC 6455 §7.1.1: a peer that keeps sending does not keep a connection open that this end closes.
#[tokio::test]
async fn a_peer_that_never_stops_sending_cannot_delay_the_end() {
    let (begin, most) = (std::time::Instant::now(), Duration::from_secs(10));
    let mut config = WebSocketConfig::default();
    config.core.close_timeout = Duration::from_millis(100);
    let flood = || open(Flood { until: begin + most }, Role::Server, config.clone());
    flood().close(CloseCode::NORMAL, "").await.unwrap();
    assert!(begin.elapsed() < most, "the closing handshake");
    let mut socket = flood();
    socket.close_after((Duration::from_millis(100), CloseCode::NORMAL)).unwrap();
    while let Ok(Some(_)) = socket.recv().await {}
    assert!(begin.elapsed() < most, "the deadline");
}

/// Records and echoes text messages; fails on a binary message.
struct EchoSession<'a>(&'a mut Vec<String>);

impl Session for EchoSession<'_> {
    async fn on_open(&mut self, sender: &mut Sender) -> Result<(), WebSocketError> {
        sender.send("welcome").await
    }

    async fn on_message(&mut self, sender: &mut Sender, message: Message<'_>) -> Result<(), WebSocketError> {
        self.0.push(message.as_text().unwrap_or("binary").to_owned());
        if message.is_binary() {
            return Err(WebSocketError::Io(std::io::ErrorKind::InvalidData.into()));
        }
        sender.send(message).await
    }

    async fn on_close(&mut self, end: Option<&End>) {
        self.0.push(format!("closed {}", end.unwrap().code().value()));
    }
}

#[tokio::test]
async fn pumps_messages_into_a_session() {
    let (mut client, server) = pair(1024);
    let server = tokio::spawn(async move {
        let mut received = Vec::new();
        let end = server.pump(EchoSession(&mut received)).await;
        (received, end)
    });
    assert_eq!(client.recv().await.unwrap().unwrap().as_text(), Some("welcome"));
    for text in ["one", "two"] {
        client.send(text).await.unwrap();
        assert_eq!(client.recv().await.unwrap().unwrap().as_text(), Some(text));
    }
    client.close(CloseCode::NORMAL, "").await.unwrap();
    let (received, end) = server.await.unwrap();
    assert_eq!(received, ["one", "two", "closed 1000"]);
    assert_eq!(end.unwrap().unwrap().by, Initiator::Peer);
}

#[tokio::test]
async fn closes_with_1011_when_a_session_fails() {
    let (mut client, server) = pair(1024);
    let server = tokio::spawn(async move {
        let mut received = Vec::new();
        let end = server.pump(EchoSession(&mut received)).await;
        (received, end)
    });
    client.send(b"?").await.unwrap();
    assert_eq!(client.recv().await.unwrap().unwrap().as_text(), Some("welcome"));
    assert!(client.recv().await.unwrap().is_none());
    assert_eq!(client.end().unwrap().code(), CloseCode::INTERNAL_ERROR);
    let (received, end) = server.await.unwrap();
    assert_eq!(received, ["binary", "closed 1011"]);
    assert_eq!(end.unwrap_err(), WebSocketError::Io(std::io::ErrorKind::InvalidData.into()));
}

// Dropping a chunk would change the message.
#[tokio::test]
async fn keeps_every_chunk_of_a_message() {
    let (client, server) = tokio::io::duplex(1024);
    let mut server = open(server, Role::Server, slow(DROP));
    let mut client = open(client, Role::Client, WebSocketConfig::default());
    let receiving = tokio::spawn(async move { client.recv_owned().await.unwrap().unwrap() });
    for i in 0..20u8 {
        server.send_chunk(&[i; 5000], i == 19).await.unwrap();
    }
    assert_eq!(receiving.await.unwrap().as_bytes().len(), 20 * 5000);
    let (sender, _) = server.halves();
    assert_eq!(sender.dropped(), 0);
}

/// Polls a future this number of times and drops it.
async fn poll_and_drop<T>(future: impl Future<Output = T>, polls: u32) -> Option<T> {
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
async fn sends_a_close_code_when_it_is_dropped() {
    let (mut client, mut server) = pair(1024);
    server.close_on_drop(CloseCode::SERVICE_RESTART);
    drop(server);
    assert!(client.recv().await.unwrap().is_none());
    assert_eq!(client.end().unwrap().code(), CloseCode::SERVICE_RESTART);
}

#[tokio::test]
async fn distinguishes_a_lost_connection_from_a_close() {
    let (client, server) = tokio::io::duplex(1024);
    let mut server = open(server, Role::Server, WebSocketConfig::default());
    drop(client);
    assert_eq!(server.recv().await.unwrap_err(), WebSocketError::ConnectionLost);
    assert!(server.recv().await.unwrap().is_none());
    assert_eq!(server.end().unwrap().cause, Cause::TransportClosed);
}

// RFC 6455 §7.1.7: the peer receives the reason, and the messages before the error are returned.
#[tokio::test]
async fn fails_the_connection_when_the_peer_misbehaves() {
    let (mut client, server) = tokio::io::duplex(1024);
    let mut server = open(server, Role::Server, WebSocketConfig::default());
    client.write_all(b"\x82\x81\0\0\0\0a\x81\x01b").await.unwrap();
    let peer = tokio::spawn(async move {
        let mut received = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut client, &mut received).await.unwrap();
        received
    });
    assert_eq!(server.recv().await.unwrap().unwrap().as_bytes(), b"a");
    assert!(matches!(
        server.recv().await,
        Err(WebSocketError::Protocol(wireloom::wireloom_ws::Error::Peer(_)))
    ));
    assert!(server.recv().await.unwrap().is_none());
    drop(server);
    assert_eq!(peer.await.unwrap()[..4], [0x88, 30, 0x03, 0xEA]);
}

#[tokio::test(start_paused = true)]
async fn times_out_a_closing_handshake_without_an_answer() {
    let (_client, server) = tokio::io::duplex(1024);
    let mut server = open(server, Role::Server, WebSocketConfig::default());
    let begin = tokio::time::Instant::now();
    server.close(CloseCode::NORMAL, "").await.unwrap();
    assert!(begin.elapsed() >= Duration::from_secs(9), "{:?}", begin.elapsed());
}

const LONG: Duration = Duration::from_secs(600);

const DROP: SlowPeer = SlowPeer::DropNewest { queue_timeout: LONG, stall_timeout: LONG };

// A receiving task that is woken although nothing has arrived becomes pending again and does not wake itself.
#[tokio::test]
async fn receiver_polled_without_input_does_not_wake_itself() {
    struct Wakes(std::sync::atomic::AtomicU32);
    impl std::task::Wake for Wakes {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }
    let (_client, mut server) = pair(1024);
    let wakes = std::sync::Arc::new(Wakes(0.into()));
    let waker = std::task::Waker::from(wakes.clone());
    let mut cx = std::task::Context::from_waker(&waker);
    for _ in 0..3 {
        assert!(std::pin::pin!(server.recv()).poll(&mut cx).is_pending());
    }
    assert_eq!(wakes.0.load(std::sync::atomic::Ordering::Relaxed), 0);
}

// The Close frame is sent after queued messages. A peer that keeps accepting those has not timed out.
#[tokio::test(start_paused = true)]
async fn closing_waits_for_what_was_sent_before() {
    const LEN: usize = 1_000_000;
    let (mut client, server) = tokio::io::duplex(64 << 10);
    let mut config = WebSocketConfig::default();
    config.core.close_timeout = Duration::from_secs(1);
    let mut server = open(server, Role::Server, config);
    let peer = tokio::spawn(async move {
        let mut received = Vec::new();
        loop {
            let mut piece = vec![0; 64 << 10];
            match tokio::io::AsyncReadExt::read(&mut client, &mut piece).await.unwrap() {
                0 => break received,
                len => received.extend_from_slice(&piece[..len]),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    server.feed(&vec![7; LEN]).await.unwrap();
    let begin = tokio::time::Instant::now();
    server.close(CloseCode::NORMAL, "").await.unwrap();
    assert!(begin.elapsed() > Duration::from_millis(1_400), "{:?}", begin.elapsed());
    drop(server);
    let received = peer.await.unwrap();
    assert_eq!((received.len(), &received[received.len() - 4..]), (10 + LEN + 4, &[0x88, 2, 0x03, 0xE8][..]));
}

#[tokio::test]
async fn sends_although_no_byte_may_be_queued() {
    let mut config = WebSocketConfig::default();
    config.core.limits.queued_len_high = 0;
    let (client, server) = tokio::io::duplex(1024);
    let (mut client, mut server) =
        (open(client, Role::Client, WebSocketConfig::default()), open(server, Role::Server, config));
    let sent = tokio::time::timeout(Duration::from_secs(10), server.send("hi")).await;
    assert_eq!(sent, Ok(Ok(())));
    assert_eq!(client.recv().await.unwrap().unwrap().as_text(), Some("hi"));
}

fn slow(slow_peer: SlowPeer) -> WebSocketConfig {
    let mut config = WebSocketConfig::default();
    config.core.limits.queued_len_high = 10_000;
    config.slow_peer = slow_peer;
    config
}

#[tokio::test(start_paused = true)]
async fn disconnects_a_peer_that_reads_nothing_until_the_deadline() {
    let (_client, server) = tokio::io::duplex(1024);
    let stall_timeout = Duration::from_secs(5);
    let mut server = open(server, Role::Server, slow(SlowPeer::Wait { stall_timeout }));
    assert_eq!(server.send(&[0; 5000]).await, Err(WebSocketError::SlowPeer));
    assert_eq!(server.send(&[0; 5000]).await, Err(WebSocketError::SlowPeer));
}

#[tokio::test]
async fn drops_new_messages_or_disconnects_by_policy() {
    let (_client, server) = tokio::io::duplex(1024);
    let mut server = open(server, Role::Server, slow(DROP));
    for _ in 0..10 {
        server.send(&[0; 5000]).await.unwrap();
    }
    let (sender, _) = server.halves();
    assert_eq!(sender.dropped(), 7);

    let (_client, server) = tokio::io::duplex(1024);
    let mut server = open(server, Role::Server, slow(SlowPeer::Disconnect { queue_timeout: LONG }));
    for _ in 0..3 {
        server.send(&[0; 5000]).await.unwrap();
    }
    assert_eq!(server.send(&[0; 5000]).await, Err(WebSocketError::SlowPeer));
}

// The policies also apply to sinks: waiting for a peer that accepts nothing fails, and messages are dropped.
#[tokio::test(start_paused = true)]
async fn a_sink_applies_the_policy() {
    let message = || OwnedMessage::from(vec![0; 5000]);
    let (_client, server) = tokio::io::duplex(1024);
    let stall_timeout = Duration::from_secs(5);
    let mut server = open(server, Role::Server, slow(SlowPeer::Wait { stall_timeout }));
    assert_eq!(SinkExt::send(&mut server, message()).await, Err(WebSocketError::SlowPeer));

    let (_client, server) = tokio::io::duplex(1024);
    let mut server = open(server, Role::Server, slow(DROP));
    for _ in 0..10 {
        SinkExt::feed(&mut server, message()).await.unwrap();
    }
    assert_eq!(server.halves().0.dropped(), 7);

    let (_client, server) = tokio::io::duplex(1024);
    let mut server = open(server, Role::Server, slow(SlowPeer::Disconnect { queue_timeout: LONG }));
    for _ in 0..3 {
        SinkExt::feed(&mut server, message()).await.unwrap();
    }
    assert_eq!(SinkExt::feed(&mut server, message()).await, Err(WebSocketError::SlowPeer));
}

// A message that is larger than the queue is treated like any other that does not fit.
#[tokio::test]
async fn the_policy_holds_for_a_message_larger_than_the_queue() {
    let (_client, server) = tokio::io::duplex(1024);
    let mut config = slow(DROP);
    config.core.limits.queued_len_max = 20_000;
    let mut server = open(server, Role::Server, config);
    server.send(&[0; 5000]).await.unwrap();
    server.send(&[0; 30_000]).await.unwrap();
    assert_eq!(server.halves().0.dropped(), 1);
}

// A message whose last byte is the last of the transport has arrived, whatever its length.
#[tokio::test]
async fn receives_a_message_that_is_followed_by_the_end_of_the_transport() {
    for len in [1, 16 << 10, 20_000, 100_000] {
        for owned in [false, true] {
            let (mut client, server) = tokio::io::duplex(1 << 20);
            client.write_all(&masked(0x82, vec![7; len])).await.unwrap();
            drop(client);
            let mut server = open(server, Role::Server, WebSocketConfig::default());
            let received = if owned {
                server.recv_owned().await.unwrap().map(|message| message.as_bytes().len())
            } else {
                server.recv().await.unwrap().map(|message| message.as_bytes().len())
            };
            assert_eq!(received, Some(len));
            assert_eq!(server.recv().await.map(drop), Err(WebSocketError::ConnectionLost));
        }
    }
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

// Neither end can write before the other one reads.
#[tokio::test(start_paused = true)]
async fn both_ends_may_close_while_their_queues_are_full() {
    let (mut client, mut server) = pair(1024);
    client.feed(&vec![7; 100_000]).await.unwrap();
    server.feed(&vec![7; 100_000]).await.unwrap();
    let closed = tokio::join!(client.close(CloseCode::NORMAL, ""), server.close(CloseCode::NORMAL, ""));
    assert_eq!(closed, (Ok(()), Ok(())));
    assert_eq!(client.end().unwrap().code(), CloseCode::NORMAL);
}

/// Queues a long message and fails.
struct Failing;

impl Session for Failing {
    async fn on_open(&mut self, sender: &mut Sender) -> Result<(), WebSocketError> {
        sender.feed(&vec![7; 100_000]).await?;
        Err(WebSocketError::Io(std::io::ErrorKind::InvalidData.into()))
    }

    async fn on_message(&mut self, _: &mut Sender, _: Message<'_>) -> Result<(), WebSocketError> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_may_fail_while_both_queues_are_full() {
    let (mut client, server) = pair(1024);
    client.feed(&vec![7; 100_000]).await.unwrap();
    let begin = tokio::time::Instant::now();
    let (failed, closed) = tokio::join!(server.pump(Failing), client.close(CloseCode::NORMAL, ""));
    assert_eq!(failed.unwrap_err(), WebSocketError::Io(std::io::ErrorKind::InvalidData.into()));
    assert_eq!((closed, begin.elapsed()), (Ok(()), Duration::ZERO));
}

// This end was not polled for longer than the close timeout, in which the answer has arrived.
#[tokio::test(start_paused = true)]
async fn a_close_frame_that_waits_in_the_transport_is_read_after_the_close_timeout() {
    for message_len in [0, 1_000_000] {
        let (mut client, server) = tokio::io::duplex(2 << 20);
        let mut server = open(server, Role::Server, WebSocketConfig::default());
        assert!(poll_and_drop(server.close(CloseCode::NORMAL, ""), 1).await.is_none());
        let message = wireloom_testing::frame::masked(0x82, vec![7; message_len]);
        let close = wireloom_testing::frame::masked(0x88, b"\x03\xe8");
        client.write_all(&[message, close].concat()).await.unwrap();
        tokio::time::advance(Duration::from_secs(3600)).await;
        server.close(CloseCode::NORMAL, "").await.unwrap();
        let end = server.end().unwrap();
        assert!(matches!(end.cause, Cause::Close { .. }), "{end:?} behind {message_len} bytes");
    }
}

// TLS accepts a frame before the socket does.
#[tokio::test(start_paused = true)]
async fn closing_waits_for_bytes_that_the_transport_buffers() {
    let (mut client, server) = tokio::io::duplex(16);
    let server = tokio::io::BufStream::new(server);
    let mut server = open(server, Role::Server, WebSocketConfig::default());
    server.feed(&[7; 100]).await.unwrap();
    client.write_all(b"\x88\x82\0\0\0\0\x03\xe8").await.unwrap();
    let peer = tokio::spawn(async move {
        tokio::task::yield_now().await;
        let mut received = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut client, &mut received).await.unwrap();
        received
    });
    assert!(server.recv().await.unwrap().is_none());
    drop(server);
    let received = peer.await.unwrap();
    assert_eq!((received.len(), &received[102..]), (106, &b"\x88\x02\x03\xe8"[..]));
}

// Another sender keeps the queue from becoming empty.
#[tokio::test]
async fn a_send_is_done_when_its_message_is_written() {
    let (mut peer, transport) = tokio::io::duplex(1024);
    let socket = open(transport, Role::Server, slow(SlowPeer::Wait { stall_timeout: LONG }));
    let (mut sender, _receiver) = socket.split();
    let mut other = sender.clone();
    sender.feed(&[7; 3000]).await.unwrap();
    let sending = tokio::spawn(async move { sender.send("hello").await });
    tokio::task::yield_now().await;
    let feeding = tokio::spawn(async move { while other.feed(&[7; 500]).await.is_ok() {} });
    let mut bytes = [0; 512];
    for _ in 0..1000 {
        tokio::io::AsyncReadExt::read(&mut peer, &mut bytes).await.unwrap();
        tokio::task::yield_now().await;
    }
    assert!(sending.is_finished() && !feeding.is_finished());
    sending.await.unwrap().unwrap();
}
