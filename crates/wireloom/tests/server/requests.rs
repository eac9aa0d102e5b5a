//! The server over real sockets: HTTP/1.1, the way to a WebSocket, limits, shutdown. And the client against it.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use wireloom::server::ServerStats;
use wireloom::wireloom_http2::error::ErrorCode;
use wireloom::{CloseCode, Connector, DeflateConfig, Error, Request, Response, ServerConfig};
use wireloom_testing::frame::upgrade_request;

use crate::ask;
use crate::pace::Pace;
use crate::running::Running;

async fn handle(mut request: Request) -> Response {
    match request.path() {
        "/echo" if !request.is_websocket() => match request.bytes().await {
            Ok(body) => Response::new(200).with_body("application/octet-stream", body),
            Err(error) => error.into(),
        },
        "/echo" => match request.websocket() {
            Ok(upgrade) => upgrade.subprotocols(&["chat"]).on_open(|socket| async move {
                let (mut sender, mut receiver) = socket.split();
                while let Ok(Some(message)) = receiver.recv().await {
                    if sender.send(message).await.is_err() {
                        break;
                    }
                }
            }),
            Err(refusal) => refusal,
        },
        "/last" => Response::text(200, "last\n").close_connection(),
        "/reset" => Response::reset(ErrorCode::ENHANCE_YOUR_CALM),
        "/forbidden" => Response::text(403, "no\n"),
        "/moved" => Response::new(302).with_header("Location", "/echo").unwrap(),
        "/loop" => Response::new(302).with_header("Location", "/loop").unwrap(),
        "/slow" => {
            tokio::time::sleep(Duration::from_millis(200)).await;
            Response::text(200, "at last\n")
        }
        _ => Response::not_found(),
    }
}

async fn serve(config: ServerConfig) -> Running {
    Running::start(config, handle).await
}

impl Running {
    fn url(&self, path: &str) -> String {
        format!("ws://{}{path}", self.address)
    }

    /// Waits until the counters of the server satisfy `condition`.
    async fn until(&self, condition: impl Fn(&ServerStats) -> bool) {
        let begin = std::time::Instant::now();
        while !condition(&self.handle.stats()) {
            assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", self.handle.stats());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The answer to these bytes, until the server closes.
    async fn ask(&self, bytes: &[u8]) -> String {
        ask(self.address, bytes).await
    }
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or(answer)
}

#[tokio::test]
async fn serves_requests_one_after_the_other() {
    let server = serve(ServerConfig::default()).await;
    let answer = server
        .ask(
            b"\r\nGET /nothing HTTP/1.1\r\nHost: a\r\n\r\n\
              POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello\
              POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n\
              HEAD /slow HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        )
        .await;
    let answers: Vec<_> = answer.split("HTTP/1.1 ").skip(1).collect();
    assert_eq!(answers.len(), 4, "{answer}");
    assert!(answers[0].starts_with("404 Not Found\r\n"));
    assert!(answers[1].ends_with("\r\n\r\nhello"));
    assert!(answers[2].ends_with("\r\n\r\nabc"));
    assert!(answers[3].contains("Content-Length: 8\r\n") && answers[3].ends_with("\r\n\r\n"));
    assert!(answers[3].contains("Connection: close\r\n"));
}

#[tokio::test]
async fn a_handler_ends_the_connection() {
    let server = serve(ServerConfig::default()).await;
    let request = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
    let answer = server.ask([request("/last"), request("/last")].concat().as_bytes()).await;
    assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
    assert!(answer.contains("Connection: close\r\n") && answer.ends_with("\r\n\r\nlast\n"), "{answer}");
    let (answer, ended) = crate::exchange(server.address, request("/reset")).await;
    assert_eq!((&*answer, ended), ("", false));
}

// RFC 9110 §10.1.1.
#[tokio::test]
async fn sends_100_continue_for_a_body_that_waits() {
    let server = serve(ServerConfig::default()).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n";
    stream.write_all(head).await.unwrap();
    let mut interim = [0; 25];
    stream.read_exact(&mut interim).await.unwrap();
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"ok").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
}

#[tokio::test]
async fn refuses_malformed_requests() {
    let config = {
        let mut config = ServerConfig::default();
        config.body_len_max = 10;
        config
    };
    let server = serve(config).await;
    let long = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(17_000));
    for (request, expected) in [
        ("nonsense\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400"),
        ("GET / HTTP/9.1\r\nHost: a\r\n\r\n", "505"),
        ("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n", "413"),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n", "400"),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "400"),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "400"),
        // RFC 9112 §6.3.
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", "400"),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "400"),
        ("\x16\x03\x01\x02\0", "400"),
        (&long, "431"),
        ("CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n", "501"),
        ("GET /echo HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: close\r\n\r\n", "400"),
    ] {
        let answer = server.ask(request.as_bytes()).await;
        assert_eq!(status(&answer), expected, "{request:?}: {answer}");
    }
    let old = server.ask(
        b"GET /echo HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade, close\r\n\
          Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 8\r\n\r\n",
    );
    let old = old.await;
    assert_eq!(status(&old), "426");
    assert!(old.contains("Sec-WebSocket-Version: 13\r\n"), "{old}");
}

#[tokio::test]
async fn does_not_wait_for_a_slow_head_forever() {
    let mut config = ServerConfig::default();
    config.handshake_timeout = Duration::from_millis(100);
    config.keep_alive_timeout = Duration::from_millis(50);
    let timeout = config.handshake_timeout;
    let server = serve(config).await;
    // A connection without a request gets no answer.
    assert_eq!(server.ask(b"").await, "");
    for (bytes, expected) in
        [(&b"GET / HT"[..], "408"), (b"GET /forbidden HTTP/1.1\r\nHost: a\r\n\r\n", "403")]
    {
        for attempt in 1.. {
            let mut pace = Pace::start();
            let mut stream = TcpStream::connect(server.address).await.unwrap();
            stream.write_all(bytes).await.unwrap();
            let in_time = pace.met(timeout);
            let mut answer = String::new();
            // A request that is late is answered with a reset.
            let _ = stream.read_to_string(&mut answer).await;
            if status(&answer) == expected {
                break;
            }
            assert!(!in_time && attempt < Pace::ATTEMPTS_MAX, "{expected}: {answer}");
        }
    }
}

#[tokio::test]
async fn ends_with_its_future() {
    let server = serve(ServerConfig::default()).await;
    let mut socket = wireloom::connect(&server.url("/echo")).await.unwrap();
    let mut idle = TcpStream::connect(server.address).await.unwrap();
    server.task.abort();
    assert!(server.task.await.unwrap_err().is_cancelled());
    assert!(socket.recv().await.is_ok_and(|message| message.is_none()));
    assert_eq!(socket.end().unwrap().code(), CloseCode::GOING_AWAY);
    assert!(!idle.read(&mut [0; 1]).await.is_ok_and(|len| len > 0));
    assert_eq!(server.handle.stats().connections_open, 0);
}

// A client may send frames in the same packet as its handshake (many libraries lose them).
#[tokio::test]
async fn keeps_frames_that_came_with_the_handshake() {
    let server = serve(ServerConfig::default()).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let mut bytes = upgrade_request("/echo").into_bytes();
    bytes.extend_from_slice(b"\x81\x82\0\0\0\0hi\x88\x80\0\0\0\0");
    stream.write_all(&bytes).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
    assert!(answer.contains("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"));
    assert!(answer.ends_with("\r\n\r\n\u{FFFD}\x02hi\u{FFFD}\0"), "{answer:?}");
}

#[tokio::test]
async fn client_and_server_agree_on_everything() {
    let mut config = ServerConfig::default();
    config.deflate = Some(DeflateConfig::default());
    let server = serve(config).await;
    let connector =
        Connector::new().subprotocol("other").subprotocol("chat").deflate(DeflateConfig::default());
    let mut socket = connector.connect(&server.url("/echo")).await.unwrap();
    assert_eq!(socket.subprotocol(), Some("chat"));
    assert!(socket.is_compressed());
    let text = "the same again, ".repeat(10_000);
    for _ in 0..3 {
        socket.send(&text).await.unwrap();
        assert_eq!(socket.recv().await.unwrap().unwrap().as_text(), Some(&*text));
    }
    assert_eq!(server.handle.stats().websockets_open, 1);
    socket.close(CloseCode::NORMAL, "").await.unwrap();
    assert_eq!(socket.end().unwrap().code(), CloseCode::NORMAL);
}

#[tokio::test]
async fn client_returns_refusals_and_limits_redirects() {
    let server = serve(ServerConfig::default()).await;
    let refused = |error: Error| match error {
        Error::Refused(response) => response.status(),
        error => panic!("{error}"),
    };
    assert_eq!(refused(wireloom::connect(&server.url("/forbidden")).await.unwrap_err()), 403);
    assert_eq!(refused(wireloom::connect(&server.url("/moved")).await.unwrap_err()), 302);
    let follower = Connector::new().redirects_max(3);
    assert!(follower.connect(&server.url("/moved")).await.is_ok());
    assert_eq!(follower.connect(&server.url("/loop")).await.unwrap_err(), Error::Redirect);
    assert!(matches!(wireloom::connect("http://a/").await.unwrap_err(), Error::InvalidUrl(_)));
}

#[tokio::test]
async fn shuts_down_gracefully() {
    let release = Arc::new(Notify::new());
    let released = release.clone();
    let handler = move |request: Request| {
        let released = released.clone();
        async move {
            if request.path() == "/echo" {
                return handle(request).await;
            }
            released.notified().await;
            Response::text(200, "at last\n")
        }
    };
    let server = Running::start(ServerConfig::default(), handler).await;
    let mut socket = wireloom::connect(&server.url("/echo")).await.unwrap();
    let mut idle = TcpStream::connect(server.address).await.unwrap();
    let mut busy = TcpStream::connect(server.address).await.unwrap();
    busy.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    server.until(|stats| stats.requests == 2 && stats.connections_open == 3).await;
    server.handle.shut_down();
    assert!(socket.recv().await.unwrap().is_none());
    assert_eq!(socket.end().unwrap().code(), CloseCode::GOING_AWAY);
    assert!(
        TcpStream::connect(server.address).await.is_err(),
        "a server that shuts down accepts no connection"
    );
    release.notify_one();
    let mut answer = String::new();
    busy.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains("Connection: close\r\n") && answer.ends_with("at last\n"), "{answer}");
    assert_eq!(idle.read(&mut [0; 1]).await.unwrap(), 0);
    tokio::time::timeout(Duration::from_secs(60), server.task).await.unwrap().unwrap().unwrap();
    assert!(TcpStream::connect(server.address).await.is_err());
}

#[tokio::test]
async fn aborts_connections_that_do_not_close() {
    let mut config = ServerConfig::default();
    config.shutdown_grace = Duration::from_millis(100);
    let server = serve(config).await;
    // It answers no Close frame.
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    silent.write_all(upgrade_request("/echo").as_bytes()).await.unwrap();
    assert!(silent.read(&mut [0; 500]).await.unwrap() > 0);
    server.handle.shut_down();
    tokio::time::timeout(Duration::from_secs(60), server.task).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn bounds_the_connections_of_one_address() {
    let mut config = ServerConfig::default();
    config.connections_per_address_max = Some(2);
    let server = serve(config).await;
    let one = wireloom::connect(&server.url("/echo")).await.unwrap();
    let _two = wireloom::connect(&server.url("/echo")).await.unwrap();
    assert!(wireloom::connect(&server.url("/echo")).await.is_err());
    assert_eq!(server.handle.stats().connections_refused, 1);
    drop(one);
    server.until(|stats| stats.connections_open == 1).await;
    assert!(wireloom::connect(&server.url("/echo")).await.is_ok());
}

// Unfinished heads delay other clients at most for the handshake timeout; silent connections delay none.
#[tokio::test]
async fn bounds_handshakes_in_flight() {
    let mut config = ServerConfig::default();
    config.handshakes_max = 2;
    config.handshake_timeout = Duration::from_secs(2);
    let server = serve(config).await;
    let request = b"GET /forbidden HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let mut slow = Vec::new();
    for _ in 0..4 {
        slow.push(TcpStream::connect(server.address).await.unwrap());
    }
    assert_eq!(status(&server.ask(request).await), "403");
    for stream in &mut slow[..2] {
        stream.write_all(b"GET").await.unwrap();
    }
    let began = std::time::Instant::now();
    // The two are given up with 408, and then it is answered, unless it has waited for too long itself.
    while status(&server.ask(request).await) != "403" {
        assert!(began.elapsed() < Duration::from_secs(60));
    }
    // Open connections do not count.
    let _open = wireloom::connect(&server.url("/echo")).await.unwrap();
    let _other = wireloom::connect(&server.url("/echo")).await.unwrap();
    assert!(wireloom::connect(&server.url("/echo")).await.is_ok());
}

#[tokio::test]
async fn limits_heads_at_their_bound() {
    let mut config = ServerConfig::default();
    config.head_len_max = 200;
    let server = serve(config).await;
    for (len, expected) in [(199, "403"), (200, "403"), (201, "431")] {
        let base = "GET /forbidden HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX: \r\n\r\n".len();
        let filler = "x".repeat(len - base);
        let request =
            format!("GET /forbidden HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX: {filler}\r\n\r\n");
        assert_eq!(request.len(), len);
        assert_eq!(status(&server.ask(request.as_bytes()).await), expected, "{len}");
    }
}
