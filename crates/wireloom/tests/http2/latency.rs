//! A small response behind a large one on a slow link.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket};
use wireloom::ServerConfig;
use wireloom_http2::{Config, Role};

use super::peer::{Peer, Seen};
use super::serve;

/// Bytes a second of the link towards the client.
const RATE: usize = 2_000_000;

/// Forwards connections to `server`, and passes what it sends at [`RATE`]. The queue of the link is its receive buffer.
async fn slow_link(server: SocketAddr) -> SocketAddr {
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
            // The link transmits these bytes; time in which it had none does not count.
            due = due.max(Instant::now() - Duration::from_millis(5))
                + Duration::from_secs(1) * len as u32 / RATE as u32;
            tokio::time::sleep_until(due.into()).await;
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_response_soon_overtakes_a_large_one() {
    let server = serve(ServerConfig::default()).await;
    let link = slow_link(server.address).await;
    let mut config = Config::new(Role::Client);
    config.settings.initial_window_size = 64 << 20;
    config.connection_window = 64 << 20;
    let mut peer = Peer::with(link, config).await;
    // 30 MiB take 15 s: it is under way all the time.
    let large = peer.ask("GET", "/large", &[], true).await;
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(500) {
        assert!(matches!(peer.next(large.id()).await, Seen::Head(200, _) | Seen::Data(_)));
    }
    let mut delays = Vec::new();
    for _ in 0..5 {
        let asked = Instant::now();
        let small = peer.ask("GET", "/small", &[], true).await;
        assert!(matches!(peer.next(small.id()).await, Seen::Head(200, _)));
        delays.push(asked.elapsed());
        assert_eq!(peer.whole_content(small).await, 20_000);
    }
    println!("first bytes after {delays:?}");
    // The machine may be busy: the best of five. The round trip of the link is its queue of some 16 KiB, 8 ms.
    assert!(delays.iter().min().unwrap() <= &Duration::from_millis(110), "{delays:?}");
}
