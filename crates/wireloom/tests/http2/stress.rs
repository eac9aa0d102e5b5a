//! Many clients on several threads send and cancel at random: nothing is lost, mixed up or stalls.

use wireloom::ServerConfig;
use wireloom_http2::error::ErrorCode;

use super::peer::{Peer, Received};
use super::serve;

const PEERS: u64 = 8;
const ROUNDS: usize = 60;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_clients_request_and_cancel_at_random() {
    let rng = wireloom_testing::generator();
    let seed = rng.seed();
    let mut config = ServerConfig::default();
    // Idle connections end the test; on a busy machine a client may take seconds between two requests.
    config.keep_alive_timeout = std::time::Duration::from_secs(10);
    let server = serve(config).await;
    let peers = (0..PEERS).map(|number| {
        let address = server.address;
        tokio::spawn(async move { run(Peer::connect(address).await, seed ^ number).await })
    });
    for peer in peers.collect::<Vec<_>>() {
        peer.await.unwrap();
    }
    while server.handle.stats().websockets_open > 0 {
        tokio::task::yield_now().await;
    }
}

async fn run(mut peer: Peer, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..ROUNDS {
        match random.u8(0..5) {
            // Several at once, answered at once and later.
            0 => {
                let mut keys = Vec::new();
                for _ in 0..random.usize(1..20) {
                    let path = if random.bool() { "/hello" } else { "/version" };
                    keys.push((peer.request("GET", path, &[], true).await, path));
                }
                for (key, path) in keys {
                    let expected = if path == "/hello" { &b"hello\n"[..] } else { b"Http2" };
                    assert_eq!(peer.response(key).await.2, expected);
                }
            }
            // Streamed back.
            1 => {
                let key = peer.request("POST", "/echo", &[], false).await;
                let mut sent = Vec::new();
                for _ in 0..random.usize(1..6) {
                    let chunk = vec![random.u8(..); random.usize(1..60_000)];
                    peer.send(key, &chunk, false).await;
                    sent.extend(chunk);
                }
                peer.send(key, b"", true).await;
                let (status, _, content) = peer.response(key).await;
                same(status, &content, &sent);
            }
            // Through a tunnel.
            2 => {
                let key = peer.tunnel("/echo").await;
                assert!(matches!(peer.next(key.id()).await, Received::Head(200, _)));
                for _ in 0..random.u8(1..30) {
                    let payload = [random.u8(..); 100];
                    let mut frame = vec![0x82, 0x80 | 100, 0, 0, 0, 0];
                    frame.extend_from_slice(&payload);
                    peer.send(key, &frame, false).await;
                    assert_eq!(peer.content(key, 102).await[2..], payload);
                }
                if random.bool() {
                    peer.send(key, &[0x88, 0x80, 0, 0, 0, 0], false).await;
                    assert_eq!(peer.content(key, 2).await, [0x88, 0]);
                } else {
                    peer.reset(key).await;
                }
            }
            // Begun and cancelled.
            3 => {
                let path = ["/endless", "/never", "/slow", "/echo", "/whole"][random.usize(0..5)];
                let key = peer.request("POST", path, &[], false).await;
                peer.send(key, &vec![0; random.usize(1..20_000)], false).await;
                peer.reset(key).await;
            }
            _ => {
                let key = peer.request("POST", "/whole", &[], false).await;
                let body = vec![random.u8(..); random.usize(1..200_000)];
                peer.send(key, &body, true).await;
                let (status, _, content) = peer.response(key).await;
                same(status, &content, &body);
            }
        }
    }
    // Nothing is left behind: the server sees that the connection is idle.
    assert_eq!(peer.next(0).await, Received::GoAway(ErrorCode::NO_ERROR));
}

fn same(status: u16, content: &[u8], expected: &[u8]) {
    let differs = content.iter().zip(expected).position(|(a, b)| a != b);
    assert!(
        content == expected,
        "{status}: {} of {} bytes, first at {differs:?}",
        content.len(),
        expected.len()
    );
}
