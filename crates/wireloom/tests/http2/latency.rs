//! A small response behind a large one on a slow link.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket};
use wireloom::ServerConfig;
use wireloom_http2::{Config, Role};

use super::peer::{Peer, Received};
use super::serve;

/// Bytes a second of the link towards the client.
const RATE: usize = 2_000_000;

/// The bytes that a link transmits while a small response waits, at most: in 100 ms, and in a round trip. Its queue
/// alone holds some 16 KiB, which take 8 ms.
const WAIT_LEN_MAX: usize = RATE / 1_000 * 110;

/// Forwards connections to `server`, and passes what it sends at [`RATE`]. The queue of the link is its receive buffer. Counts the
/// bytes in `passed`.
async fn slow_link(server: SocketAddr, passed: Arc<AtomicUsize>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (client, _) = listener.accept().await.unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(8 << 10).unwrap();
        let server = socket.connect(server).await.unwrap();
        client.set_nodelay(true).unwrap();
        server.set_nodelay(true).unwrap();
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
        let mut bytes = vec![0; 4 << 10];
        let mut due = Instant::now();
        while let Ok(len @ 1..) = from_server.read(&mut bytes).await {
            if to_client.write_all(&bytes[..len]).await.is_err() {
                break;
            }
            passed.fetch_add(len, Ordering::Relaxed);
            // The link transmits these bytes; time in which it had none does not count.
            due = due.max(Instant::now() - Duration::from_millis(5))
                + Duration::from_secs(1) * len as u32 / RATE as u32;
            tokio::time::sleep_until(due.into()).await;
        }
    });
    address
}

// On one thread, so that a busy machine slows down the link as well: bytes are counted, no time is measured.
#[tokio::test]
async fn a_small_response_soon_overtakes_a_large_one() {
    let server = serve(ServerConfig::default()).await;
    let passed = Arc::new(AtomicUsize::new(0));
    let link = slow_link(server.address, passed.clone()).await;
    let mut config = Config::new(Role::Client);
    config.settings.initial_window_size = 64 << 20;
    config.connection_window = 64 << 20;
    let mut peer = Peer::with(link, config).await;
    // 30 MiB take 15 s: it is under way all the time.
    let large = peer.request("GET", "/large", &[], true).await;
    while passed.load(Ordering::Relaxed) < RATE / 2 {
        assert!(matches!(peer.next(large.id()).await, Received::Head(200, _) | Received::Data(_)));
    }
    let mut waits = Vec::new();
    for _ in 0..5 {
        let before = passed.load(Ordering::Relaxed);
        let small = peer.request("GET", "/small", &[], true).await;
        assert!(matches!(peer.next(small.id()).await, Received::Head(200, _)));
        waits.push(passed.load(Ordering::Relaxed) - before);
        assert_eq!(peer.rest_of_content(small).await, 20_000);
    }
    println!("first bytes behind {waits:?} bytes");
    assert!(waits.iter().max().unwrap() <= &WAIT_LEN_MAX, "{waits:?}");
}
