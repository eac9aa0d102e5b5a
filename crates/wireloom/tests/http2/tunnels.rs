//! WebSocket over HTTP/2 (RFC 8441).

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use wireloom::server::Listener;
use wireloom::{Request, Server, ServerConfig, SlowPeer};
use wireloom_http2::error::ErrorCode;
use wireloom_http2::field::Field;
use wireloom_http2::{Config, Role, StreamKey};
use wireloom_testing::frame::masked;

use super::peer::{Peer, Received};
use super::{Running, handle, serve, value};

async fn opened(peer: &mut Peer, path: &str) -> StreamKey {
    let key = peer.tunnel(path).await;
    assert!(matches!(peer.next(key.id()).await, Received::Head(200, _)));
    key
}

#[tokio::test]
async fn echoes_on_many_streams_of_one_connection() {
    let server = serve(ServerConfig::default()).await;
    let mut peer = Peer::connect(server.address).await;
    assert!(peer.core.peer_settings().enable_connect_protocol);
    let mut streams = Vec::new();
    for _ in 0..64 {
        streams.push(opened(&mut peer, "/echo").await);
    }
    assert_eq!(server.handle.stats().websockets_open, 64);
    for round in 0..10 {
        for (number, key) in streams.iter().enumerate() {
            peer.send(*key, &masked(0x82, [round, number as u8]), false).await;
        }
        for (number, key) in streams.iter().enumerate() {
            assert_eq!(peer.content(*key, 4).await, [0x82, 2, round, number as u8]);
        }
    }
    for key in &streams {
        peer.send(*key, &masked(0x88, 1000_u16.to_be_bytes()), false).await;
    }
    for key in &streams {
        assert_eq!(peer.content(*key, 4).await, [0x88, 2, 3, 232]);
        assert_eq!(peer.next(key.id()).await, Received::End);
    }
}

// RFC 6455 §5.5.1 forbids to send more behind a Close frame. It is discarded, and costs nothing that was sent before.
#[tokio::test]
async fn replies_before_a_close_frame_with_bytes_behind_it() {
    const REPLIES: usize = 60;
    let server = serve(ServerConfig::default()).await;
    let mut peer = Peer::connect(server.address).await;
    let key = opened(&mut peer, "/echo").await;
    let mut bytes = masked(0x82, [7; 4096]).repeat(REPLIES);
    bytes.extend(masked(0x88, 1000_u16.to_be_bytes()));
    bytes.extend([0x82; 256 << 10]);
    for part in bytes.chunks(16 << 10) {
        peer.send(key, part, false).await;
    }
    let content = peer.content(key, REPLIES * (4 + 4096) + 4).await;
    assert!(content.ends_with(&[0x88, 2, 3, 232]));
    assert_eq!(peer.next(key.id()).await, Received::End);
    // The connection goes on.
    let other = opened(&mut peer, "/echo").await;
    peer.send(other, &masked(0x88, 1000_u16.to_be_bytes()), false).await;
    assert_eq!(peer.content(other, 4).await, [0x88, 2, 3, 232]);
}

/// A transport that counts its writes.
struct CountedWrites(TcpStream, Arc<AtomicUsize>);

impl AsyncRead for CountedWrites {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for CountedWrites {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.0).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

struct CountingListener(TcpListener, Arc<AtomicUsize>);

impl Listener for CountingListener {
    type Transport = CountedWrites;

    async fn accept(&mut self) -> io::Result<(CountedWrites, SocketAddr)> {
        let (stream, peer) = self.0.accept().await?;
        Ok((CountedWrites(stream, self.1.clone()), peer))
    }
}

// Together they use up the share of their connection, and take turns.
#[tokio::test]
async fn answers_of_many_streams_leave_in_few_writes() {
    const STREAMS: usize = 64;
    const ROUNDS: usize = 10;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let writes = Arc::new(AtomicUsize::new(0));
    let server = Server::new(CountingListener(listener, writes.clone()));
    tokio::spawn(server.serve(handle));
    let mut peer = Peer::connect(address).await;
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        streams.push(opened(&mut peer, "/echo").await);
    }
    let messages = masked(0x82, [7; 32]).repeat(64);
    let before = writes.load(Ordering::Relaxed);
    for _ in 0..ROUNDS {
        for key in &streams {
            peer.core.send_data(*key, messages.clone(), false).unwrap();
        }
        peer.flush().await;
        for key in &streams {
            peer.content(*key, 64 * 34).await;
        }
    }
    // One for each stream and round if the streams take turns one by one.
    let writes = writes.load(Ordering::Relaxed) - before;
    assert!(writes <= STREAMS * ROUNDS / 8, "{writes}");
}

// A frame in the same packet as the handshake is not lost, and large messages pass the windows.
#[tokio::test]
async fn delivers_early_and_large_messages() {
    let server = serve(ServerConfig::default()).await;
    let mut peer = Peer::connect(server.address).await;
    let fields = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "http"),
        (":path", "/echo"),
        (":authority", "a"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-protocol", "other, chat"),
    ];
    let fields = fields.map(|(name, value)| Field::new(name.as_bytes(), value.as_bytes()));
    let key = peer.core.send_request(fields, false).unwrap();
    peer.core.send_data(key, masked(0x81, b"hi"), false).unwrap();
    peer.flush().await;
    let Received::Head(200, headers) = peer.next(key.id()).await else { panic!("refused") };
    assert_eq!(value(&headers, "sec-websocket-protocol"), Some(&b"chat"[..]));
    assert_eq!(peer.content(key, 4).await, b"\x81\x02hi");
    let large: Vec<u8> = (0..3_000_000_u32).map(|number| (number / 7) as u8).collect();
    peer.send(key, &masked(0x82, &large), false).await;
    let echoed = peer.content(key, large.len() + 10).await;
    assert_eq!(echoed[10..], large);
}

#[tokio::test]
async fn refuses_with_the_right_status() {
    let server = serve(ServerConfig::default()).await;
    let mut peer = Peer::connect(server.address).await;
    let base = [(":method", "CONNECT"), (":scheme", "http"), (":path", "/echo"), (":authority", "a")];
    for (more, status) in [
        (&[(":protocol", "websocket")][..], 400),
        (&[(":protocol", "websocket"), ("sec-websocket-version", "8")], 400),
        (&[(":protocol", "connect-udp"), ("sec-websocket-version", "13")], 501),
    ] {
        let fields = base.iter().chain(more);
        let fields = fields.map(|(name, value)| Field::new(name.as_bytes(), value.as_bytes()));
        let key = peer.core.send_request(fields, false).unwrap();
        assert_eq!(peer.response(key).await.0, status, "{more:?}");
    }
    let key = peer.tunnel("/nothing").await;
    assert_eq!(peer.response(key).await.0, 404);
    let key = peer.request("GET", "/flood", &[], true).await;
    assert_eq!(peer.response(key).await.0, 400);
}

// RFC 9110 §9.3.6, RFC 8441 §5: any 2xx would open the tunnel.
#[tokio::test]
async fn a_successful_response_without_a_websocket_opens_no_tunnel() {
    let server = serve(ServerConfig::default()).await;
    let mut peer = Peer::connect(server.address).await;
    for path in ["/hello", "/endless", "/whole"] {
        let key = peer.tunnel(path).await;
        if path == "/whole" {
            peer.send(key, b"content", true).await;
        }
        assert_eq!(peer.response(key).await.0, 400, "{path}");
    }
}

// RFC 8441 §5: END_STREAM is the end of TCP, RST_STREAM its reset.
#[tokio::test]
async fn ends_like_a_tcp_connection() {
    let server = serve(ServerConfig::default()).await;
    let mut peer = Peer::connect(server.address).await;
    let ended = opened(&mut peer, "/echo").await;
    peer.send(ended, b"", true).await;
    // No Close frame was received: the tunnel ends without a closing handshake.
    loop {
        match peer.next(ended.id()).await {
            Received::Data(_) => {}
            seen => {
                break assert!(
                    matches!(seen, Received::Reset(ErrorCode::CANCEL) | Received::End),
                    "{seen:?}"
                );
            }
        }
    }
    let reset = opened(&mut peer, "/echo").await;
    peer.reset(reset).await;
    let other = opened(&mut peer, "/echo").await;
    peer.send(other, &masked(0x81, b"hi"), false).await;
    assert_eq!(peer.content(other, 4).await, b"\x81\x02hi");
    while server.handle.stats().websockets_open > 1 {
        tokio::task::yield_now().await;
    }
    // A broken frame is answered within the tunnel.
    peer.send(other, b"\xFF\x00", false).await;
    let close = peer.content(other, 4).await;
    assert_eq!(close[0], 0x88);
    assert_eq!(close[2..4], 1002_u16.to_be_bytes());
    let key = peer.request("GET", "/hello", &[], true).await;
    assert_eq!(peer.response(key).await.0, 200);
}

// hyper #4049: a tunnel does not escape flow control. An unread one holds back its sender alone, and is reset.
#[tokio::test]
async fn bounds_a_slow_peer_inside_a_tunnel() {
    let mut config = ServerConfig::default();
    config.websocket.slow_peer = SlowPeer::Wait { stall_timeout: Duration::from_millis(300) };
    let server = serve(config).await;
    let mut slow = Config::new(Role::Client);
    slow.auto_release = false;
    let mut peer = Peer::with(server.address, slow).await;
    let flood = opened(&mut peer, "/flood").await;
    let window = slow.settings.initial_window_size as usize;
    assert_eq!(peer.content(flood, window).await.len(), window);
    let echo = opened(&mut peer, "/echo").await;
    peer.send(echo, &masked(0x81, b"hi"), false).await;
    assert_eq!(peer.content(echo, 4).await, b"\x81\x02hi");
    assert_eq!(peer.next(flood.id()).await, Received::Reset(ErrorCode::CANCEL));
    while server.handle.stats().websockets_open > 1 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn sends_going_away_in_every_tunnel() {
    let server = serve(ServerConfig::default()).await;
    let mut peer = Peer::connect(server.address).await;
    let keys = [opened(&mut peer, "/echo").await, opened(&mut peer, "/echo").await];
    server.handle.shut_down();
    for key in keys {
        let close = peer.content(key, 4).await;
        assert_eq!((close[0], &close[2..4]), (0x88, &1001_u16.to_be_bytes()[..]));
        peer.send(key, &masked(0x88, 1001_u16.to_be_bytes()), true).await;
    }
    tokio::time::timeout(Duration::from_secs(5), async { while peer.next(0).await != Received::Closed {} })
        .await
        .unwrap();
    tokio::time::timeout(Duration::from_secs(5), server.task).await.unwrap().unwrap().unwrap();
}

// A handler may have work to do after the connection of its WebSocket has ended.
#[tokio::test]
async fn a_connection_without_a_transport_is_not_open_although_a_handler_runs() {
    let released = Arc::new(Notify::new());
    let release = released.clone();
    let mut config = ServerConfig::default();
    config.shutdown_grace = Duration::from_secs(600);
    let server = Running::start(config, move |request: Request| {
        let released = released.clone();
        async move {
            match request.websocket() {
                Ok(upgrade) => upgrade.on_open(move |mut socket| async move {
                    while let Ok(Some(_)) = socket.recv().await {}
                    released.notified().await;
                }),
                Err(refusal) => refusal,
            }
        }
    })
    .await;
    let mut peer = Peer::connect(server.address).await;
    opened(&mut peer, "/").await;
    assert_eq!(server.handle.stats().connections_open, 1);
    drop(peer);
    let closed = async {
        while server.handle.stats().connections_open > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), closed).await.expect("the transport is closed");
    // A shutdown waits for the handler all the same.
    server.handle.shut_down();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!server.task.is_finished() && server.handle.stats().websockets_open == 1);
    release.notify_one();
    tokio::time::timeout(Duration::from_secs(60), server.task).await.unwrap().unwrap().unwrap();
}

// A client may announce that it accepts no fields at all.
#[tokio::test]
async fn a_refusal_that_cannot_be_sent_resets_the_stream() {
    let server = serve(ServerConfig::default()).await;
    let mut config = Config::new(Role::Client);
    config.settings.max_header_list_size = 0;
    let mut peer = Peer::with(server.address, config).await;
    let fields = [(":method", "CONNECT"), (":authority", "a:80")];
    let fields = fields.map(|(name, value)| Field::new(name.as_bytes(), value.as_bytes()));
    let key = peer.core.send_request(fields, false).unwrap();
    peer.flush().await;
    assert_eq!(peer.next(key.id()).await, Received::Reset(ErrorCode::INTERNAL_ERROR));
}

// The stream of a WebSocket ends with its closing handshake, so that the core no longer counts it.
#[tokio::test]
async fn handlers_that_outlive_their_streams_are_bounded() {
    let mut config = ServerConfig::default();
    config.http2.settings.max_concurrent_streams = 4;
    let server = Running::start(config, |request: Request| async move {
        match request.websocket() {
            Ok(upgrade) => upgrade.on_open(|mut socket| async move {
                while let Ok(Some(_)) = socket.recv().await {}
                std::future::pending().await
            }),
            Err(refusal) => refusal,
        }
    })
    .await;
    let mut peer = Peer::connect(server.address).await;
    for _ in 0..8 {
        let key = opened(&mut peer, "/").await;
        peer.send(key, &masked(0x88, 1000_u16.to_be_bytes()), false).await;
        assert_eq!(peer.content(key, 4).await, [0x88, 2, 3, 232]);
        assert_eq!(peer.next(key.id()).await, Received::End);
        peer.send(key, b"", true).await;
    }
    let key = peer.tunnel("/").await;
    assert_eq!(peer.next(key.id()).await, Received::Reset(ErrorCode::REFUSED_STREAM));
}
