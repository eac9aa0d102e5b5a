//! Requests and their bodies.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use wireloom::{Request, Response, ServerConfig};
use wireloom_http2::error::ErrorCode;
use wireloom_http2::field::Field;
use wireloom_http2::{Config, Role};
use wireloom_testing::http2::{Frame, PREFACE, join};

use super::peer::{Peer, Received};
use super::{serve, value};

#[tokio::test]
async fn answers_many_requests_at_once() {
    let server = serve(ServerConfig::default()).await;
    let mut peer = Peer::connect(server.address).await;
    let mut keys = Vec::new();
    for _ in 0..100 {
        keys.push(peer.request("GET", "/hello", &[], true).await);
    }
    for key in keys {
        let (status, headers, content) = peer.response(key).await;
        assert_eq!((status, &*content), (200, &b"hello\n"[..]));
        assert_eq!(value(&headers, "content-length"), Some(&b"6"[..]));
        assert_eq!(value(&headers, "x-mixed-case"), Some(&b"1"[..]));
        assert_eq!(value(&headers, "date").map(<[u8]>::len), Some(29));
    }
    assert_eq!(server.handle.stats().requests, 100);
    assert_eq!(server.handle.stats().http2_connections, 1);
}

/// While too much output is buffered nothing is read; reading resumes once the output has been written.
#[tokio::test]
async fn resumes_reading_once_output_is_written() {
    let mut config = ServerConfig::default();
    config.http2.output_max = 1024;
    config.body_len_max = 16 << 20;
    let server = serve(config).await;
    // More than the sockets hold, and no window holds it back.
    let body = vec![7; 16 << 20];
    let mut config = Config::new(Role::Client);
    config.settings.initial_window_size = 1 << 30;
    config.connection_window = 1 << 30;
    let mut peer = Peer::with(server.address, config).await;
    // Without a request that comes while the server waits for the socket, and with one.
    let mut took = [Duration::ZERO; 2];
    for (interrupted, took) in [false, true].into_iter().zip(&mut took) {
        let began = Instant::now();
        for _ in 0..5 {
            let key = peer.request("POST", "/whole", &[], false).await;
            peer.send(key, &body, true).await;
            assert!(matches!(peer.next(key.id()).await, Received::Head(200, _)));
            if interrupted {
                let other = peer.request("GET", "/hello", &[], true).await;
                assert_eq!(peer.content(key, body.len()).await, body);
                assert_eq!(peer.response(other).await.2, b"hello\n");
            } else {
                assert_eq!(peer.content(key, body.len()).await, body);
            }
        }
        *took = began.elapsed();
    }
    // A timer would wake it too, after 5 s each time.
    assert!(took[1] < 3 * took[0] + Duration::from_secs(12), "{took:?}");
}

#[tokio::test]
async fn requests_look_the_same_as_over_http1() {
    let server = serve(ServerConfig::default()).await;
    let mut peer = Peer::connect(server.address).await;
    let key = peer.request("GET", "/host", &[], true).await;
    assert_eq!(peer.response(key).await.2, b"a");
    // RFC 9113 §8.2.3: several cookie fields are joined.
    let key = peer.request("GET", "/cookie", &[("cookie", "a=1"), ("cookie", "b=2")], true).await;
    assert_eq!(peer.response(key).await.2, b"a=1; b=2");
    let key = peer.request("GET", "/version", &[], true).await;
    assert_eq!(peer.response(key).await.2, b"Http2");
    let key = peer.request("HEAD", "/hello", &[], true).await;
    let (_, headers, content) = peer.response(key).await;
    assert_eq!((value(&headers, "content-length"), content.len()), (Some(&b"6"[..]), 0));
}

#[tokio::test]
async fn streams_bodies_both_ways_at_once() {
    let server = serve(ServerConfig::default()).await;
    let mut peer = Peer::connect(server.address).await;
    let key = peer.request("POST", "/echo", &[], false).await;
    assert!(matches!(peer.next(key.id()).await, Received::Head(200, _)));
    for round in 0..50_usize {
        let chunk = vec![round as u8; 1 + round * 997];
        peer.send(key, &chunk, false).await;
        assert_eq!(peer.content(key, chunk.len()).await, chunk);
    }
    peer.send(key, b"", true).await;
    assert_eq!(peer.next(key.id()).await, Received::End);
}

// Content in the same packet as the request head belongs to the request.
#[tokio::test]
async fn keeps_content_that_came_with_the_request() {
    let server = serve(ServerConfig::default()).await;
    let mut peer = Peer::connect(server.address).await;
    let fields = [(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", "/whole")];
    let fields = fields.map(|(name, value)| Field::new(name.as_bytes(), value.as_bytes()));
    let key = peer.core.send_request(fields, false).unwrap();
    peer.core.send_data(key, &b"hel"[..], false).unwrap();
    peer.core.send_data(key, &b"lo"[..], true).unwrap();
    peer.flush().await;
    assert_eq!(peer.response(key).await.2, b"hello");
}

#[tokio::test]
async fn sends_and_receives_trailers() {
    let server = serve(ServerConfig::default()).await;
    let mut peer = Peer::connect(server.address).await;
    let key = peer.request("POST", "/trailers", &[], false).await;
    peer.send(key, &[0; 1000], false).await;
    peer.core.send_trailers(key, [Field::new(b"x-sum", b"42")]).unwrap();
    peer.flush().await;
    assert!(matches!(peer.next(key.id()).await, Received::Head(200, _)));
    assert_eq!(peer.next(key.id()).await, Received::Data(b"done".to_vec()));
    let Received::Trailers(trailers) = peer.next(key.id()).await else { panic!("no trailers") };
    assert_eq!(value(&trailers, "x-sum"), Some(&b"42"[..]));
    assert_eq!(value(&trailers, "x-length"), Some(&b"1000"[..]));
}

// RFC 9110 §10.1.1.
#[tokio::test]
async fn sends_100_continue_for_a_body_that_waits() {
    let server = serve(ServerConfig::default()).await;
    let mut peer = Peer::connect(server.address).await;
    let key = peer.request("POST", "/whole", &[("expect", "100-continue")], false).await;
    assert!(matches!(peer.next(key.id()).await, Received::Head(100, _)));
    peer.send(key, b"ok", true).await;
    assert_eq!(peer.response(key).await.2, b"ok");
}

#[tokio::test]
async fn bounds_a_collected_body() {
    let mut config = ServerConfig::default();
    config.body_len_max = 1000;
    let server = serve(config).await;
    let mut peer = Peer::connect(server.address).await;
    for len in [1000, 1001] {
        let status = if len > 1000 { 413 } else { 200 };
        let key = peer.request("POST", "/whole", &[], false).await;
        peer.send(key, &vec![0; len], true).await;
        assert_eq!(peer.response(key).await.0, status, "{len}");
    }
    let key = peer.request("POST", "/whole", &[("content-length", "1001")], false).await;
    assert_eq!(peer.response(key).await.0, 413);
    let mut config = ServerConfig::default();
    config.body_timeout = Duration::from_millis(200);
    let server = serve(config).await;
    let mut peer = Peer::connect(server.address).await;
    let key = peer.request("POST", "/whole", &[], false).await;
    assert_eq!(peer.response(key).await.0, 408);
}

// A client that takes nothing makes the server hold no more than its queue.
#[tokio::test]
async fn waits_for_a_client_that_does_not_read() {
    let server = serve(ServerConfig::default()).await;
    let mut config = Config::new(Role::Client);
    config.auto_release = false;
    let mut peer = Peer::with(server.address, config).await;
    let key = peer.request("GET", "/endless", &[], true).await;
    assert!(matches!(peer.next(key.id()).await, Received::Head(200, _)));
    let window = config.settings.initial_window_size as usize;
    assert_eq!(peer.content(key, window).await.len(), window);
    // Other streams continue meanwhile.
    let other = peer.request("GET", "/hello", &[], true).await;
    assert_eq!(peer.response(other).await.2, b"hello\n");
    peer.core.release_capacity(key, window).unwrap();
    assert_eq!(peer.content(key, window).await.len(), window);
    peer.reset(key).await;
    let other = peer.request("GET", "/hello", &[], true).await;
    assert_eq!(peer.response(other).await.2, b"hello\n");
}

#[tokio::test]
async fn reports_an_incomplete_response() {
    let server = serve(ServerConfig::default()).await;
    let mut peer = Peer::connect(server.address).await;
    for path in ["/broken", "/panic-in-body"] {
        let key = peer.request("GET", path, &[], true).await;
        let mut seen = peer.next(key.id()).await;
        while matches!(seen, Received::Head(..) | Received::Data(_)) {
            seen = peer.next(key.id()).await;
        }
        assert_eq!(seen, Received::Reset(ErrorCode::INTERNAL_ERROR), "{path}");
    }
    let key = peer.request("GET", "/hello", &[], true).await;
    assert_eq!(peer.response(key).await.0, 200);
}

#[tokio::test]
async fn an_aborted_response_does_not_wait_for_the_window() {
    let server = serve(ServerConfig::default()).await;
    let mut config = Config::new(Role::Client);
    config.auto_release = false;
    let mut peer = Peer::with(server.address, config).await;
    let key = peer.request("GET", "/aborted", &[], true).await;
    let ended = async {
        loop {
            match peer.next(key.id()).await {
                Received::Head(..) | Received::Data(_) => {}
                end => return end,
            }
        }
    };
    let end = tokio::time::timeout(Duration::from_secs(20), ended).await;
    assert_eq!(end.expect("the stream is still open"), Received::Reset(ErrorCode::INTERNAL_ERROR));
}

#[tokio::test]
async fn responds_500_when_a_handler_panics() {
    let server = serve(ServerConfig::default()).await;
    let mut peer = Peer::connect(server.address).await;
    for (count, path) in ["/panic", "/panic-later"].iter().enumerate() {
        let key = peer.request("POST", path, &[], false).await;
        assert_eq!(peer.response(key).await.0, 500, "{path}");
        assert_eq!(server.handle.stats().handlers_panicked, count as u64 + 1);
    }
    // RFC 6455 §7.4.1.
    let key = peer.tunnel("/panic-open").await;
    assert!(matches!(peer.next(key.id()).await, Received::Head(200, _)));
    assert_eq!(peer.content(key, 4).await, [0x88, 2, 0x03, 0xF3]);
    assert_eq!(server.handle.stats().handlers_panicked, 3);
    let key = peer.request("GET", "/hello", &[], true).await;
    assert_eq!(peer.response(key).await.0, 200);
}

// RFC 9113 §8.1: a response may precede the end of the request, whose remaining content is not read.
#[tokio::test]
async fn resets_a_request_without_a_reader() {
    let server = serve(ServerConfig::default()).await;
    let mut peer = Peer::connect(server.address).await;
    let start = Instant::now();
    let key = peer.request("POST", "/nothing", &[], false).await;
    assert_eq!(peer.response(key).await.0, 404);
    loop {
        if peer.core.send_data(key, vec![0; 30_000], false).is_err() {
            break;
        }
        let other = peer.request("GET", "/hello", &[], true).await;
        peer.response(other).await;
    }
    assert_eq!(peer.next(key.id()).await, Received::Reset(ErrorCode::NO_ERROR));
    // A client that sends, such as curl, has had time to read the response before.
    assert!(start.elapsed() >= Duration::from_millis(250), "{:?}", start.elapsed());
}

#[tokio::test]
async fn drops_a_handler_whose_client_has_gone() {
    let mut config = ServerConfig::default();
    config.http2.settings.max_concurrent_streams = 3;
    let server = serve(config).await;
    let mut peer = Peer::connect(server.address).await;
    for _ in 0..20 {
        let keys = [
            peer.request("GET", "/never", &[], true).await,
            peer.request("POST", "/never", &[], false).await,
            peer.request("POST", "/whole", &[], false).await,
        ];
        for key in keys {
            peer.reset(key).await;
        }
    }
    let key = peer.request("GET", "/hello", &[], true).await;
    assert_eq!(peer.response(key).await.0, 200);
}

#[tokio::test]
async fn connect_is_refused() {
    let server = serve(ServerConfig::default()).await;
    let mut peer = Peer::connect(server.address).await;
    let fields = [(":method", "CONNECT"), (":authority", "example.org:443")];
    let fields = fields.map(|(name, value)| Field::new(name.as_bytes(), value.as_bytes()));
    let key = peer.core.send_request(fields, false).unwrap();
    assert_eq!(peer.response(key).await.0, 501);
    let key = peer.request("CONNECT", "/echo", &[], false).await;
    // It is malformed (RFC 9113 §8.5): a plain CONNECT has no :path.
    assert!(matches!(peer.next(key.id()).await, Received::Reset(ErrorCode::PROTOCOL_ERROR)));
}

#[tokio::test]
async fn a_handler_resets_its_stream_or_ends_the_connection() {
    let server = serve(ServerConfig::default()).await;
    let mut peer = Peer::connect(server.address).await;
    let key = peer.request("GET", "/reset-stream", &[], true).await;
    assert_eq!(peer.next(key.id()).await, Received::Reset(ErrorCode::HTTP_1_1_REQUIRED));
    let slow = peer.request("GET", "/slow", &[], true).await;
    let last = peer.request("GET", "/last", &[], true).await;
    assert_eq!(peer.response(last).await.2, b"last\n");
    assert_eq!(peer.next(0).await, Received::GoAway(ErrorCode::NO_ERROR));
    // Requests that were sent before are answered.
    assert_eq!(peer.response(slow).await.2, b"at last\n");
    while peer.next(0).await != Received::Closed {}
}

// RFC 9110 §10.1.1: the response streams the body back.
#[tokio::test]
async fn sends_100_continue_before_a_response_that_waits_for_the_body() {
    let server = serve(ServerConfig::default()).await;
    let mut peer = Peer::connect(server.address).await;
    let key = peer.request("POST", "/echo", &[("expect", "100-continue")], false).await;
    assert_eq!(peer.next(key.id()).await, Received::Head(100, Vec::new()));
    assert!(matches!(peer.next(key.id()).await, Received::Head(200, _)));
    peer.send(key, b"hi", true).await;
    assert_eq!(peer.rest_of_content(key).await, 2);
    // The handler does not read this one.
    let key = peer.request("POST", "/hello", &[("expect", "100-continue")], false).await;
    assert!(matches!(peer.next(key.id()).await, Received::Head(200, _)));
}

// RFC 7540 §3.2: the request becomes stream 1.
#[tokio::test]
async fn upgrades_from_http1() {
    let mut config = ServerConfig::default();
    config.http2_upgrade = true;
    let server = serve(config).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let request =
        b"POST /whole HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\
        HTTP2-Settings: AAMAAABkAAQAAP__\r\nContent-Length: 2\r\n\r\nhi";
    stream.write_all(request).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut answer = Vec::new();
    let mut bytes = [0; 4096];
    let data = b"\0\0\x02\0\x01\0\0\0\x01hi";
    while !answer.windows(data.len()).any(|window| window == data) {
        let len = stream.read(&mut bytes).await.unwrap();
        assert!(len > 0, "{}", answer.escape_ascii());
        answer.extend_from_slice(&bytes[..len]);
    }
    assert!(answer.starts_with(b"HTTP/1.1 101 Switching Protocols\r\n"), "{}", answer.escape_ascii());
    // A WebSocket, if the client offers both (RFC 9110 §7.8): HTTP/2 has none on an upgraded request.
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let request =
        b"GET /echo HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: websocket, h2c\r\n\
        HTTP2-Settings: AAMAAABkAAQAAP__\r\nSec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let len = stream.read(&mut bytes).await.unwrap();
    let answer = String::from_utf8_lossy(&bytes[..len]).to_lowercase();
    assert!(answer.contains("upgrade: websocket\r\n"), "{answer}");
    // Invalid settings: the request is answered over HTTP/1.1.
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let request =
        b"GET /version HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\n\
        HTTP2-Settings: !\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nHttp11"), "{answer}");
}

#[tokio::test]
async fn does_not_upgrade_from_http1_by_default() {
    let server = serve(ServerConfig::default()).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let request =
        b"GET /version HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\n\
        HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nHttp11"), "{answer}");
    // Prior knowledge is something else.
    let mut peer = Peer::connect(server.address).await;
    let key = peer.request("GET", "/hello", &[], true).await;
    assert_eq!(peer.response(key).await.0, 200);
}

// Such a path used to reach handlers as an empty target.
#[tokio::test]
async fn bytes_above_ascii_in_a_path_are_malformed() {
    let server = serve(ServerConfig::default()).await;
    let mut peer = Peer::connect(server.address).await;
    for path in ["/\u{e4}", "/hello\u{7f}"] {
        let key = peer.request("GET", path, &[], true).await;
        assert!(matches!(peer.next(key.id()).await, Received::Reset(ErrorCode::PROTOCOL_ERROR)), "{path}");
    }
    let key = peer.request("GET", "/hello", &[], true).await;
    assert_eq!(peer.response(key).await.0, 200);
}

// RFC 9110 §15.3.6.
#[tokio::test]
async fn a_response_with_205_has_no_content() {
    let server = serve(ServerConfig::default()).await;
    let mut peer = Peer::connect(server.address).await;
    let key = peer.request("GET", "/reset", &[], true).await;
    let (status, headers, content) = peer.response(key).await;
    assert_eq!((status, value(&headers, "content-length"), &*content), (205, Some(&b"0"[..]), &b""[..]));
}

#[tokio::test]
async fn sends_goaway_with_the_reason_and_closes() {
    let server = serve(ServerConfig::default()).await;
    let mut peer = Peer::connect(server.address).await;
    // RFC 9113 §6.7: a PING of seven bytes.
    peer.send_raw(b"\0\0\x07\x06\0\0\0\0\0seven__").await;
    assert_eq!(peer.next(0).await, Received::GoAway(ErrorCode::FRAME_SIZE_ERROR));
    assert_eq!(peer.next(0).await, Received::Closed);
}

// CVE-2019-9517: the windows are wide open, and the socket is not read.
#[tokio::test]
async fn drops_a_connection_that_reads_nothing() {
    let mut config = ServerConfig::default();
    config.http2.limits.stall_timeout = Duration::from_millis(300);
    let server = serve(config).await;
    let mut wide = Config::new(Role::Client);
    wide.settings.initial_window_size = i32::MAX as u32;
    wide.connection_window = i32::MAX as u32;
    let mut peer = Peer::with(server.address, wide).await;
    for _ in 0..10 {
        peer.request("GET", "/endless", &[], true).await;
    }
    // A task that spins would not let this one run.
    let gone = async {
        while server.handle.stats().connections_open > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), gone).await.expect("it is cut");
}

// curl sends all of a request that was accepted, and waits for the window that it needs for that.
#[tokio::test]
async fn reads_the_rest_of_an_accepted_request() {
    let server = serve(ServerConfig::default()).await;
    let mut peer = Peer::connect(server.address).await;
    let key = peer.request("POST", "/hello", &[], false).await;
    peer.core.send_data(key, vec![7; 5 << 20], true).unwrap();
    assert_eq!(peer.response(key).await.2, b"hello\n");
    while peer.core.contains(key) {
        let other = peer.request("GET", "/hello", &[], true).await;
        assert_eq!(peer.response(other).await.0, 200);
    }
    assert!(!peer.has_received(key), "the stream was not reset");
}

// A client that ends its side of the connection reads what is ready, and GOAWAY.
#[tokio::test]
async fn answers_a_client_that_sends_no_more() {
    let server = serve(ServerConfig::default()).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let get = |stream, path| {
        Frame::headers(
            stream,
            &[(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", path)],
        )
        .end_stream()
    };
    let frames = join(&[Frame::settings(&[]), get(1, "/hello"), get(3, "/never")]);
    stream.write_all(&[PREFACE, &frames].concat()).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let contains = |bytes: &[u8]| answer.windows(bytes.len()).any(|window| window == bytes);
    assert!(contains(b"hello\n"), "{}", answer.escape_ascii());
    // GOAWAY, NO_ERROR.
    assert!(contains(b"\0\0\x08\x07\0\0\0\0\0\0\0\0\x03\0\0\0\0"), "{}", answer.escape_ascii());
}

#[tokio::test]
async fn closes_idle_connections() {
    let mut config = ServerConfig::default();
    config.keep_alive_timeout = Duration::from_millis(100);
    let server = serve(config).await;
    let mut peer = Peer::connect(server.address).await;
    let key = peer.request("GET", "/slow", &[], true).await;
    assert_eq!(peer.response(key).await.2, b"at last\n");
    assert_eq!(peer.next(0).await, Received::GoAway(ErrorCode::NO_ERROR));
    assert_eq!(peer.next(0).await, Received::GoAway(ErrorCode::NO_ERROR));
    assert_eq!(peer.next(0).await, Received::Closed);
}

#[tokio::test]
async fn shuts_down_gracefully() {
    let server = serve(ServerConfig::default()).await;
    let mut peer = Peer::connect(server.address).await;
    let mut idle = Peer::connect(server.address).await;
    let slow = peer.request("GET", "/slow", &[], true).await;
    let hello = peer.request("GET", "/hello", &[], true).await;
    assert_eq!(peer.response(hello).await.0, 200);
    server.handle.shut_down();
    assert_eq!(idle.next(0).await, Received::GoAway(ErrorCode::NO_ERROR));
    assert_eq!(peer.response(slow).await.2, b"at last\n");
    assert_eq!(peer.next(0).await, Received::GoAway(ErrorCode::NO_ERROR));
    drop(idle);
    while peer.next(0).await != Received::Closed {}
    tokio::time::timeout(Duration::from_secs(60), server.task).await.unwrap().unwrap().unwrap();
}

// RFC 9113 §6.8: the client opens further streams on another connection.
#[tokio::test]
async fn a_server_that_no_longer_accepts_sends_goaway() {
    let server = serve(ServerConfig::default()).await;
    let mut peer = Peer::connect(server.address).await;
    let mut idle = Peer::connect(server.address).await;
    let slow = peer.request("GET", "/slow", &[], true).await;
    server.handle.stop_accepting();
    assert_eq!(idle.next(0).await, Received::GoAway(ErrorCode::NO_ERROR));
    assert_eq!(peer.response(slow).await.2, b"at last\n");
}

#[tokio::test]
async fn drops_connections_that_do_not_end_in_time() {
    let mut config = ServerConfig::default();
    config.shutdown_grace = Duration::from_millis(100);
    let server = serve(config).await;
    let mut peer = Peer::connect(server.address).await;
    peer.request("GET", "/never", &[], true).await;
    peer.request("GET", "/endless", &[], true).await;
    server.handle.shut_down();
    tokio::time::timeout(Duration::from_secs(60), server.task).await.unwrap().unwrap().unwrap();
}

/// A transport whose reads fail behind the input, as those of TLS do without `close_notify`. It can still be written.
struct FailsAtEof(tokio::io::DuplexStream);

impl tokio::io::AsyncRead for FailsAtEof {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.0).poll_read(cx, buffer))?;
        let is_eof = buffer.filled().len() == before;
        Poll::Ready(if is_eof { Err(std::io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) })
    }
}

impl tokio::io::AsyncWrite for FailsAtEof {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[tokio::test]
async fn responses_leave_although_reads_fail_behind_the_requests() {
    let (mut client, io) = tokio::io::duplex(1 << 16);
    // The preface, SETTINGS, and a GET of "/" from "a" (RFC 7541 appendix A: indexed fields).
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    client.write_all(b"\0\0\x06\x01\x05\0\0\0\x01\x82\x86\x84\x41\x01a").await.unwrap();
    client.shutdown().await.unwrap();
    wireloom::server::serve_connection(FailsAtEof(io), |_: Request| async {
        Response::text(200, "answered")
    })
    .await;
    let mut received = Vec::new();
    client.read_to_end(&mut received).await.unwrap();
    assert!(received.windows(8).any(|bytes| bytes == b"answered"), "{received:?}");
}
