//! Hostile and broken clients of HTTP/1.1, over raw sockets: each is answered with the right status and a short reason, no request
//! can be smuggled, and nothing hangs.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use wireloom::{Request, Response, Server, ServerConfig, ServerHandle};
use wireloom_testing::{Rng, rounds};

use crate::pace::Pace;

/// Much longer than any step of these tests.
const TIMEOUT: Duration = Duration::from_secs(60);

struct Serving {
    address: SocketAddr,
    handle: ServerHandle,
    /// The requests that reached the handler: method, path, host and body.
    requests: Arc<Mutex<Vec<String>>>,
}

/// A server that answers a request with its method, path, host and body.
async fn serve(config: ServerConfig) -> Serving {
    let server = Server::bind("127.0.0.1:0").await.unwrap().config(config);
    let (address, handle) = (server.local_addr().unwrap(), server.handle());
    let requests = Arc::new(Mutex::new(Vec::new()));
    let log = requests.clone();
    tokio::spawn(server.serve(move |mut request: Request| {
        let log = log.clone();
        async move {
            if request.path() == "/socket" && request.is_websocket() {
                return match request.websocket() {
                    Ok(upgrade) => upgrade
                        .on_open(|mut socket| async move { while let Ok(Some(_)) = socket.recv().await {} }),
                    Err(refusal) => refusal,
                };
            }
            if request.path() == "/unread" {
                return Response::text(200, "unread\n");
            }
            let body = match request.bytes().await {
                Ok(body) => String::from_utf8_lossy(&body).into_owned(),
                Err(error) => return error.into(),
            };
            let host = String::from_utf8_lossy(request.header("host").unwrap_or(b"-")).into_owned();
            let summary = format!("{} {} {host} {body}", request.method(), request.path());
            log.lock().unwrap().push(summary.clone());
            Response::text(200, summary)
        }
    }));
    Serving { address, handle, requests }
}

impl Serving {
    /// The requests that have reached the handler since the last call.
    fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.requests.lock().unwrap())
    }

    /// Sends these bytes in chunks, and returns all that the server answers until it closes.
    async fn send(&self, bytes: &[u8], mut piece_len: impl FnMut() -> usize) -> String {
        let (mut reader, mut writer) = TcpStream::connect(self.address).await.unwrap().into_split();
        let write = async {
            let mut left = bytes;
            while !left.is_empty() {
                let (piece, rest) = left.split_at(piece_len().clamp(1, left.len()));
                // The server may have refused and closed.
                if writer.write_all(piece).await.is_err() {
                    break;
                }
                tokio::task::yield_now().await;
                left = rest;
            }
            let _ = writer.shutdown().await;
        };
        let mut answer = Vec::new();
        // A reset may follow the answer.
        let read = async { while let Ok(1..) = reader.read_buf(&mut answer).await {} };
        timeout(TIMEOUT, async { tokio::join!(write, read) }).await.expect("the server answers or closes");
        String::from_utf8_lossy(&answer).into_owned()
    }

    async fn send_at_once(&self, request: &str) -> String {
        self.send(request.as_bytes(), || usize::MAX).await
    }
}

fn statuses(answer: &str) -> Vec<&str> {
    answer.match_indices("HTTP/1.1 ").map(|(at, _)| &answer[at + 9..at + 12]).collect()
}

/// Requests that are refused, without their last lines.
const REFUSED: &[(&str, &str)] = &[
    // Lines (RFC 9112 §2, §3).
    ("nonsense\r\n", "400"),
    // §2.2: a CR alone is neither an empty line nor a part of one.
    ("\rGET / HTTP/1.1\r\nHost: a\r\n", "400"),
    ("\r\n\r\r\nGET / HTTP/1.1\r\nHost: a\r\n", "400"),
    ("GET /\r\n", "400"),
    ("GET / HTTP/1.1 \r\nHost: a\r\n", "400"),
    ("GET  / HTTP/1.1\r\nHost: a\r\n", "400"),
    ("GET / HTTP/2.0\r\nHost: a\r\n", "505"),
    ("GET / HTTP/0.9\r\nHost: a\r\n", "505"),
    ("GET / ICAP/1.0\r\nHost: a\r\n", "400"),
    ("get\x01 / HTTP/1.1\r\nHost: a\r\n", "400"),
    ("(GET / HTTP/1.1\r\nHost: a\r\n", "400"),
    ("GET a HTTP/1.1\r\nHost: a\r\n", "400"),
    ("GET /#b HTTP/1.1\r\nHost: a\r\n", "400"),
    ("GET http://u:p@a/ HTTP/1.1\r\nHost: a\r\n", "400"),
    ("CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n", "501"),
    // Host (§3.2).
    ("GET / HTTP/1.1\r\n", "400"),
    ("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n", "400"),
    ("GET / HTTP/1.1\r\nHost: a b\r\n", "400"),
    ("GET / HTTP/1.1\r\nHost: a/b\r\n", "400"),
    ("GET / HTTP/1.1\r\nHost: u@a\r\n", "400"),
    ("GET / HTTP/1.1\r\nHost: h:abc\r\n", "400"),
    ("GET / HTTP/1.1\r\nHost: h:99999\r\n", "400"),
    ("GET / HTTP/1.1\r\nHost: [::1\r\n", "400"),
    ("GET http://h:abc/ HTTP/1.1\r\nHost: a\r\n", "400"),
    ("GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n", "400"),
    // Header lines (§5.1, §5.2).
    ("GET / HTTP/1.1\r\nHost: a\r\nX : b\r\n", "400"),
    ("GET / HTTP/1.1\r\n Host: a\r\n", "400"),
    ("GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n c\r\n", "400"),
    ("GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n\tc\r\n", "400"),
    ("GET / HTTP/1.1\r\nHost: a\r\nX\r\n", "400"),
    ("GET / HTTP/1.1\r\nHost: a\r\n: b\r\n", "400"),
    ("GET / HTTP/1.1\r\nHost: a\r\nX: b\0\r\n", "400"),
    ("GET / HTTP/1.1\r\nHost: a\r\nX: b\rY: c\r\n", "400"),
    // Where a body ends (§6).
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 2\r\n", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1,\r\n", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1\r\nContent-Length: 2\r\n", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x1\r\n", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551616\r\n", "400"),
    ("POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n", "501"),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", "501"),
    // §6.3: the last coding is not chunked, so that the body has no end.
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: ,\r\n", "400"),
    // §6.1: a body is put into chunks once.
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked,, chunked\r\n", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, gzip, chunked\r\n", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: ,chunked\r\nContent-Length: 1\r\n", "400"),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \x0bchunked\r\n", "400"),
];

/// A request that follows another one. It must not be served after one that is refused.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

#[tokio::test]
async fn refuses_with_a_status_and_a_reason_and_serves_nothing_after_it() {
    let server = serve(ServerConfig::default()).await;
    // The second time with content that ends at once in chunks, and has a byte to spare for a length: what is taken for a request with
    // content is served.
    for (&(head, status), content) in
        REFUSED.iter().flat_map(|refused| [(refused, ""), (refused, "0\r\n\r\n")])
    {
        let answer = server.send_at_once(&format!("{head}\r\n{content}{SMUGGLED}")).await;
        assert_eq!(statuses(&answer), [status], "{head:?}: {answer}");
        let (head_, reason) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head_.contains("\r\nConnection: close"), "{head:?}: {answer}");
        assert!((5..80).contains(&reason.len()) && reason.ends_with('\n'), "{head:?}: {answer}");
        assert_eq!(server.take_requests(), [""; 0], "{head:?}");
    }
}

#[tokio::test]
async fn refuses_a_head_that_is_too_long() {
    let server = serve(ServerConfig::default()).await;
    let long = "x".repeat(1 << 20);
    for (request, status) in [
        (format!("GET /{long}"), "414"),
        (format!("{long} / HTTP/1.1\r\n"), "414"),
        (format!("GET / HTTP/1.1\r\nHost: a\r\nX: {long}"), "431"),
        (format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "a: b\r\n".repeat(101)), "431"),
        (format!("GET / HTTP/1.1\r\nHost: a\r\n{}", "a: b\r\n".repeat(100_000)), "431"),
    ] {
        let answer = server.send_at_once(&request).await;
        assert_eq!(statuses(&answer), [status], "{}: {answer}", &request[..20]);
    }
}

// RFC 9112 §7.1.
#[tokio::test]
async fn validates_chunked_bodies() {
    let server = serve(ServerConfig::default()).await;
    let chunked = "POST /in HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (body, content) in [
        ("0\r\n\r\n", ""),
        ("3\r\nabc\r\n0\r\n\r\n", "abc"),
        ("0003\r\nabc\r\n000\r\n\r\n", "abc"),
        ("3;a=b;c=\"d\"\r\nabc\r\n0;e\r\n\r\n", "abc"),
        ("1\r\na\r\n1\r\nb\r\n0\r\nX: y\r\nContent-Length: 5\r\n\r\n", "ab"),
        ("A\r\n0123456789\r\n0\r\n\r\n", "0123456789"),
    ] {
        let answer = server.send_at_once(&format!("{chunked}{body}{SMUGGLED}")).await;
        assert_eq!(statuses(&answer), ["200", "200"], "{body:?}: {answer}");
        assert_eq!(
            server.take_requests(),
            [format!("POST /in a {content}"), "GET /smuggled a ".into()],
            "{body:?}"
        );
    }
    for body in [
        "3\nabc\n0\n\n",
        "3\r\nabcd\r\n0\r\n\r\n",
        "3\r\nabc0\r\n\r\n",
        "3\r\nab\r\n0\r\n\r\n",
        "-3\r\nabc\r\n0\r\n\r\n",
        "0x3\r\nabc\r\n0\r\n\r\n",
        " 3\r\nabc\r\n0\r\n\r\n",
        "3 3\r\nabc\r\n0\r\n\r\n",
        "\r\n3\r\nabc\r\n0\r\n\r\n",
        "10000000000000003\r\nabc\r\n0\r\n\r\n",
        "3;\rx\r\nabc\r\n0\r\n\r\n",
        "3\r\r\nabc\r\n0\r\n\r\n",
        "0\r\nno colon\r\n\r\n",
        "0\r\nX : y\r\n\r\n",
        "0\r\nX: y\r\n z\r\n\r\n",
        "0\r\nX: \0\r\n\r\n",
    ] {
        let answer = server.send_at_once(&format!("{chunked}{body}{SMUGGLED}")).await;
        assert_eq!(statuses(&answer), ["400"], "{body:?}: {answer}");
        assert_eq!(server.take_requests(), [""; 0], "{body:?}");
    }
    // The largest length: no memory is reserved for it.
    let answer = server.send_at_once(&format!("{chunked}ffffffffffffffff\r\n{}", "x".repeat(2 << 20))).await;
    assert_eq!(statuses(&answer), ["413"], "{answer}");
    let overlong = format!("{chunked}3;{}\r\nabc\r\n0\r\n\r\n", "x".repeat(5_000));
    assert_eq!(statuses(&server.send_at_once(&overlong).await), ["400"]);
    let trailers = format!("{chunked}0\r\n{}\r\n", "x: y\r\n".repeat(101));
    assert_eq!(statuses(&server.send_at_once(&trailers).await), ["400"]);
}

#[tokio::test]
async fn an_unread_body_is_not_taken_for_a_request() {
    let server = serve(ServerConfig::default()).await;
    let len = SMUGGLED.len();
    // A complete body is skipped. After an incomplete one nothing is served.
    for (announced, expected) in
        [(len, vec!["200", "200"]), (len + 5, vec!["200", "200"]), (1 << 30, vec!["200"])]
    {
        let rest = "GET /next HTTP/1.1\r\nHost: a\r\n\r\n";
        let filler = "x".repeat(announced.min(len + 5) - len);
        let request = format!(
            "POST /unread HTTP/1.1\r\nHost: a\r\nContent-Length: {announced}\r\n\r\n{SMUGGLED}{filler}{rest}"
        );
        let answer = server.send_at_once(&request).await;
        assert_eq!(statuses(&answer), expected, "{answer}");
        let requests = server.take_requests();
        assert!(!requests.iter().any(|request| request.contains("smuggled")), "{requests:?}");
    }
}

#[tokio::test]
async fn answers_unusual_valid_requests() {
    let server = serve(ServerConfig::default()).await;
    let long = "x".repeat(8_000 - "GET / HTTP/1.1\r\n".len());
    let (long_line, long_summary) =
        (format!("GET /{long} HTTP/1.1\r\nHost: a\r\n\r\n"), format!("GET /{long} a "));
    for (request, expected, summary) in [
        // RFC 9112 §2.2: a LF alone may end a line of a head; empty lines before it are ignored.
        ("\r\n\n\r\nGET / HTTP/1.1\nHost: a\n\n", vec!["200"], "GET / a "),
        // RFC 9112 §3.2.2, §3.2.4.
        ("GET http://b:81/c?d HTTP/1.1\r\nHost: a\r\n\r\n", vec!["200"], "GET /c b:81 "),
        ("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", vec!["200"], "OPTIONS * a "),
        ("GET / HTTP/1.1\r\nHost:\r\n\r\n", vec!["200"], "GET /  "),
        ("PROPFIND / HTTP/1.1\r\nHost: a\r\n\r\n", vec!["200"], "PROPFIND / a "),
        // RFC 9112 §6.3: the same length twice is one.
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nb",
            vec!["200"],
            "POST / a b",
        ),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1\r\n\r\nb", vec!["200"], "POST / a b"),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0001\r\n\r\nb", vec!["200"], "POST / a b"),
        // RFC 9110 §6.2: a later HTTP/1.
        ("GET / HTTP/1.9\r\nHost: a\r\n\r\n", vec!["200"], "GET / a "),
        // RFC 9110 §5.6.1.2: empty elements of a list are ignored.
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: , chunked ,\r\nTransfer-Encoding:\r\n\r\n1\r\nb\r\n0\r\n\r\n",
            vec!["200"],
            "POST / a b",
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: CHUNKED\r\n\r\n1\r\nb\r\n0\r\n\r\n",
            vec!["200"],
            "POST / a b",
        ),
        // RFC 9112 §9.3: an HTTP/1.0 connection ends with its first response.
        ("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET / HTTP/1.0\r\n\r\n", vec!["200"], "GET / - "),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: Close\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            vec!["200"],
            "GET / a ",
        ),
        // RFC 9110 §7.8: unknown protocols are ignored.
        (
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: TLS/1.0, foo\r\n\r\n",
            vec!["200"],
            "GET / a ",
        ),
        // RFC 9110 §7.8: HTTP/1.0 has no Upgrade.
        (
            "GET /socket HTTP/1.0\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
            vec!["200"],
            "GET /socket a ",
        ),
        // RFC 9112 §3: lines of 8,000 bytes.
        (&long_line, vec!["200"], &long_summary),
        // RFC 9110 §10.1.1: HTTP/1.0 has no interim responses, and a body that has arrived needs none.
        ("POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nb", vec!["200"], "POST / - b"),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nb",
            vec!["200"],
            "POST / a b",
        ),
    ] {
        let answer = server.send_at_once(request).await;
        assert_eq!(statuses(&answer), expected, "{request:?}: {answer}");
        assert_eq!(server.take_requests(), [summary], "{request:?}");
    }
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order_and_head_without_a_body() {
    let server = serve(ServerConfig::default()).await;
    let mut request = String::new();
    for number in 0..200 {
        let method = if number % 3 == 0 { "HEAD" } else { "GET" };
        request += &format!("{method} /{number} HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    let mut random = Rng::with_seed(1);
    let answer = server.send(request.as_bytes(), || 1 + random.len(300)).await;
    let mut left = &*answer;
    for number in 0..200 {
        let method = if number % 3 == 0 { "HEAD" } else { "GET" };
        let summary = format!("{method} /{number} a ");
        let (head, rest) = left.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains(&format!("Content-Length: {}", summary.len())), "{head}");
        left = if method == "HEAD" { rest } else { rest.strip_prefix(&*summary).unwrap() };
    }
    assert_eq!(left, "");
}

// RFC 6455 §4.2.1: frames begin after the head.
#[tokio::test]
async fn refuses_a_websocket_handshake_with_a_body() {
    let server = serve(ServerConfig::default()).await;
    let handshake = |more: &str| {
        format!(
            "GET /socket HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{more}"
        )
    };
    for (more, status) in [
        ("\r\n\u{88}\u{80}", "101"),
        ("Content-Length: 0\r\n\r\n", "101"),
        ("Content-Length: 2\r\n\r\nhi", "400"),
        ("Content-Length: 2\r\n\r\n", "400"),
        ("Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"),
    ] {
        let answer = server.send_at_once(&handshake(more)).await;
        assert_eq!(statuses(&answer)[0], status, "{more:?}: {answer}");
    }
}

/// The timeouts of servers whose clients exceed them.
const SHORT: Duration = Duration::from_millis(400);

/// Sends the first bytes at once and the others one by one. Returns the answer, and whether the client met the timeouts.
async fn trickle(server: SocketAddr, at_once: &str, drip: &str) -> (String, bool) {
    let mut pace = Pace::start();
    let (mut reader, mut writer) = TcpStream::connect(server).await.unwrap().into_split();
    let begin = Instant::now();
    writer.write_all(at_once.as_bytes()).await.unwrap();
    pace.step();
    let write = async {
        for byte in drip.bytes().cycle() {
            tokio::time::sleep(SHORT / 10).await;
            if writer.write_all(&[byte]).await.is_err() || begin.elapsed() > TIMEOUT / 2 {
                break;
            }
            pace.step();
        }
    };
    let mut answer = Vec::new();
    let read = async { while let Ok(1..) = reader.read_buf(&mut answer).await {} };
    tokio::select! {
        () = write => {}
        () = read => {}
    }
    let answer = String::from_utf8_lossy(&answer).into_owned();
    assert!(begin.elapsed() < TIMEOUT / 2, "{drip:?}: {answer}");
    (answer, pace.met(SHORT))
}

// Each phase has a deadline, which single bytes do not postpone.
#[tokio::test]
async fn disconnects_clients_that_send_a_trickle() {
    let mut config = ServerConfig::default();
    config.handshake_timeout = SHORT;
    config.keep_alive_timeout = SHORT;
    config.body_timeout = SHORT;
    let server = serve(config).await;
    let head = "POST /in HTTP/1.1\r\nHost: a\r\n";
    for (at_once, drip, expected) in [
        ("", "GET / HTTP/1.1\r\nX-Long-Header-Name: and-its-value", vec!["408"]),
        // Empty lines do not begin a request.
        ("", "\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n", vec![]),
        (
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n",
            vec!["200"],
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nX-Long-Header: and-its-value",
            vec!["200", "408"],
        ),
        (&*format!("{head}Content-Length: 99\r\n\r\n"), "abcdefghijklmnopqrstuvwxyzabcdefghij", vec!["408"]),
        (
            &*format!("{head}Transfer-Encoding: chunked\r\n\r\n"),
            "1\r\na\r\n1\r\na\r\n1\r\na\r\n1\r\na\r\n1\r\na\r\n",
            vec!["408"],
        ),
        (
            &*format!("{head}Transfer-Encoding: chunked\r\n\r\n5;"),
            "an-extension-that-comes-to-no-end-at-all",
            vec!["408"],
        ),
    ] {
        for attempt in 1.. {
            let (answer, in_time) = trickle(server.address, at_once, drip).await;
            if statuses(&answer) == expected {
                break;
            }
            assert!(!in_time && attempt < Pace::ATTEMPTS_MAX, "{drip:?}: {answer}");
        }
    }
}

// The deadline does not count the time that the connection was idle before.
#[tokio::test]
async fn the_deadline_of_a_head_counts_from_its_first_byte() {
    let mut config = ServerConfig::default();
    config.handshake_timeout = SHORT;
    let server = serve(config).await;
    for attempt in 1.. {
        let mut pace = Pace::start();
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        let in_time = pace.met(SHORT);
        let mut answer = [0; 512];
        let first_len = stream.read(&mut answer).await.unwrap();
        tokio::time::sleep(SHORT * 5 / 4).await;
        let mut pace = Pace::start();
        stream.write_all(b"GET /later HTTP/1.1\r\n").await.unwrap();
        tokio::time::sleep(SHORT / 8).await;
        // The connection may have ended.
        let _ = stream.write_all(b"Host: a\r\n\r\n").await;
        let in_time = pace.met(SHORT) && in_time;
        let len = stream.read(&mut answer).await.unwrap_or(0);
        if first_len > 0 && answer[..len].starts_with(b"HTTP/1.1 200 ") {
            break;
        }
        let answer = String::from_utf8_lossy(&answer[..len]);
        assert!(!in_time && attempt < Pace::ATTEMPTS_MAX, "{answer}");
    }
}

/// Bytes that are inserted into requests at random.
const INSERTIONS: [&[u8]; 14] = [
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b" ",
    b"\t",
    b":",
    b"0\r\n\r\n",
    b"Content-Length: 3\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Host: b\r\n",
    b"Expect: 100-continue\r\n",
    b"\xff\xfe",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
];

// The size of the chunks changes no answer, and the server continues to serve.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_bytes_have_the_same_answer_in_chunks_of_any_size() {
    let mut config = ServerConfig::default();
    config.handshake_timeout = Duration::from_secs(5);
    let server = serve(config).await;
    let mut cases = Vec::new();
    rounds(150, |rng| {
        let mut bytes = Vec::new();
        for _ in 0..=rng.len(3) {
            let (head, _) = REFUSED[rng.len(REFUSED.len() - 1)];
            match rng.len(3) {
                0 => bytes.extend_from_slice(format!("{head}\r\nabc\r\n").as_bytes()),
                1 => bytes.extend_from_slice(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"),
                2 => bytes.extend_from_slice(
                    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
                ),
                _ => bytes.extend_from_slice(SMUGGLED.as_bytes()),
            }
        }
        for _ in 0..rng.len(3) {
            let at = rng.len(bytes.len());
            let insertion = INSERTIONS[rng.len(INSERTIONS.len() - 1)];
            bytes.splice(at..at, insertion.iter().copied());
        }
        cases.push((bytes, rng.u64(..)));
    });
    for (bytes, seed) in cases {
        let whole = server.send(&bytes, || usize::MAX).await;
        let requests = server.take_requests();
        let mut random = Rng::with_seed(seed);
        let cut = server.send(&bytes, || 1 + random.len(9)).await;
        let context = format!("{}: {whole}", bytes.escape_ascii());
        // Whether there is an interim response depends on the bytes that have arrived.
        let final_ = |answer: &str| -> Vec<String> {
            statuses(answer).into_iter().filter(|status| *status != "100").map(String::from).collect()
        };
        assert_eq!(final_(&cut), final_(&whole), "{context}");
        assert_eq!(server.take_requests(), requests, "{context}");
    }
    assert!(server.send_at_once(SMUGGLED).await.starts_with("HTTP/1.1 200 OK\r\n"));
    assert_eq!(server.handle.stats().handlers_panicked, 0);
}
