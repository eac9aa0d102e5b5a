//! The memory that clients make a server hold over HTTP/2, and heads that never end.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use wireloom::http::Response;
use wireloom::{Connector, Request, ServerConfig};
use wireloom_http2::error::ErrorCode;
use wireloom_http2::{Config, Role};

use super::peer::{Peer, Received};
use super::serve;

async fn until(what: &str, check: impl Fn() -> bool) {
    let began = Instant::now();
    while !check() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn unread_content_is_reported_and_given_back() {
    let server = serve(ServerConfig::default()).await;
    let mut peer = Peer::connect(server.address).await;
    let mut streams = Vec::new();
    for _ in 0..4 {
        let key = peer.request("POST", "/never", &[], false).await;
        peer.send(key, &[7; 100_000], false).await;
        streams.push(key);
    }
    until("held", || server.handle.stats().memory.http2_windows >= 400_000).await;
    for key in streams {
        peer.reset(key).await;
    }
    until("given back", || server.handle.stats().memory.http2_windows == 0).await;
    drop(peer);
    until("closed", || server.handle.stats().memory.total == 0).await;
    assert_eq!(server.handle.stats().connections_open, 0);
}

#[tokio::test]
async fn large_heads_are_reported_while_a_handler_holds_them() {
    let server = serve(ServerConfig::default()).await;
    let mut peer = Peer::connect(server.address).await;
    let filler = "x".repeat(30_000);
    let mut streams = Vec::new();
    for _ in 0..10 {
        streams.push(peer.request("GET", "/never", &[("x-filler", &filler)], true).await);
    }
    until("held", || server.handle.stats().memory.heads >= 300_000).await;
    for key in streams {
        peer.reset(key).await;
    }
    until("given back", || server.handle.stats().memory.heads == 0).await;
}

// RFC 9113 §8.7: REFUSED_STREAM would say that the handler has not seen the request.
#[tokio::test]
async fn a_tunnel_without_memory_is_answered_although_its_handler_has_run() {
    let mut config = ServerConfig::default();
    config.memory_max = 256 << 10;
    let server = serve(config).await;
    let mut peer = Peer::connect(server.address).await;
    let mut opened = 0;
    // They may use half of the memory, 1 KiB each.
    let refusal = loop {
        let key = peer.tunnel("/echo").await;
        match peer.next(key.id()).await {
            Received::Head(200, _) => opened += 1,
            received => break received,
        }
    };
    assert!(matches!(refusal, Received::Head(503, _)), "{refusal:?}");
    assert!((64..=128).contains(&opened), "{opened}");
}

// The client that holds the most goes, the others stay.
#[tokio::test]
async fn a_client_that_takes_all_memory_is_evicted() {
    let mut config = ServerConfig::default();
    config.memory_max = 1 << 20;
    config.http2.stream_window_max = 4 << 20;
    config.http2.connection_window = 4 << 20;
    let server = serve(config).await;
    let mut modest = Peer::connect(server.address).await;
    let mut greedy = Peer::connect(server.address).await;
    let mut code = None;
    let began = Instant::now();
    // Near the limit the server stops reading from connections that hold memory; it evicts a second later.
    'sending: while began.elapsed() < Duration::from_secs(60) {
        let key = greedy.request("POST", "/never", &[], false).await;
        greedy.send(key, &[7; 200_000], false).await;
        // The response to this one shows that the server still works.
        let hello = modest.request("GET", "/hello", &[], true).await;
        assert_eq!(modest.response(hello).await.2, b"hello\n");
        while let Ok(seen) = tokio::time::timeout(Duration::from_millis(5), greedy.next(0)).await {
            match seen {
                Received::GoAway(goaway) => code = Some(goaway),
                Received::Closed => break 'sending,
                _ => {}
            }
        }
    }
    assert_eq!(code, Some(ErrorCode::ENHANCE_YOUR_CALM));
    let is_freed = || {
        let memory = server.handle.stats().memory;
        memory.total == memory.connections
    };
    until("freed", is_freed).await;
    assert_eq!(server.handle.stats().memory.evicted, 1);
    let hello = modest.request("GET", "/hello", &[], true).await;
    assert_eq!(modest.response(hello).await.2, b"hello\n");
}

// A field block that never ends, or whose end is always to come, meets the time for a head.
#[tokio::test]
async fn a_head_that_never_ends_times_out() {
    let mut config = ServerConfig::default();
    config.handshake_timeout = Duration::from_millis(400);
    let server = serve(config).await;
    for trickles in [false, true] {
        let mut peer = Peer::with(server.address, Config::new(Role::Client)).await;
        let began = Instant::now();
        // HEADERS on stream 1 without END_HEADERS, 100 bytes long, of which one comes.
        peer.send_raw(b"\0\0\x64\x01\x01\0\0\0\x01\x82").await;
        let goaway = loop {
            match tokio::time::timeout(Duration::from_millis(50), peer.next(0)).await {
                Ok(Received::GoAway(code)) => break code,
                Ok(Received::Closed) => panic!("closed without GOAWAY"),
                Ok(_) => {}
                Err(_) if trickles => peer.send_raw(b"\x82").await,
                Err(_) => {}
            }
            assert!(began.elapsed() < Duration::from_secs(60), "trickles: {trickles}");
        };
        assert_eq!(goaway, ErrorCode::ENHANCE_YOUR_CALM);
        assert!(began.elapsed() >= Duration::from_millis(390));
    }
}

// The same time for the acknowledgement of SETTINGS: a client that sends nothing after the handshake of TLS has no other deadline.
#[tokio::test]
async fn settings_without_an_acknowledgement_time_out() {
    let mut config = ServerConfig::default();
    config.handshake_timeout = Duration::from_millis(400);
    let server = serve(config).await;
    let mut client = tokio::net::TcpStream::connect(server.address).await.unwrap();
    // The preface and empty SETTINGS.
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut received = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(10), client.read_to_end(&mut received)).await;
    assert!(ended.is_ok(), "the connection stays open");
    // RFC 9113 §6.8: GOAWAY with the last stream 0 and SETTINGS_TIMEOUT (0x4).
    assert!(received.windows(8).any(|bytes| bytes == [0, 0, 0, 0, 0, 0, 0, 4]), "{received:?}");
}

// A pause of this process makes no peer late: what has arrived is read before a deadline is judged.
#[tokio::test(start_paused = true)]
async fn settings_acknowledged_while_the_server_was_paused_are_in_time() {
    let (mut client, io) = tokio::io::duplex(1 << 16);
    tokio::spawn(wireloom::server::serve_connection(io, |_: Request| async { Response::text(200, "") }));
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    tokio::time::sleep(Duration::from_millis(10)).await;
    // Nothing polls the server between the acknowledgement and the time after the deadline.
    client.write_all(b"\0\0\0\x04\x01\0\0\0\0").await.unwrap();
    tokio::time::advance(Duration::from_secs(60)).await;
    client.write_all(b"\0\0\x08\x06\0\0\0\0\0in time?").await.unwrap();
    let mut received = Vec::new();
    while !received.ends_with(b"\0\0\x08\x06\x01\0\0\0\0in time?") {
        assert!(client.read_buf(&mut received).await.unwrap() > 0, "{received:?}");
    }
}

// A time limit that the clock cannot represent never ends.
#[tokio::test]
async fn time_limits_may_be_endless() {
    let mut config = ServerConfig::default();
    config.http2.limits.stall_timeout = Duration::MAX;
    config.http2.limits.settings_timeout = Duration::MAX;
    config.handshake_timeout = Duration::MAX;
    let server = serve(config).await;
    let mut config = Config::new(Role::Client);
    config.limits.stall_timeout = Duration::MAX;
    config.limits.settings_timeout = Duration::MAX;
    let connector = Connector::new().http2_config(config);
    let http2 = connector.connect_http2(&format!("http://{}/", server.address)).await.unwrap();
    assert_eq!(http2.request(wireloom::client::Request::get("/host")).await.unwrap().status, 200);
}
