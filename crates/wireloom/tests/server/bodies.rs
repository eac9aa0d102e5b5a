//! Bodies over HTTP/1.1, streamed both ways, with trailers, with clients that follow the rules and clients that do not.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use wireloom::{Body, Connector, Error, Headers, HttpError, Request, Response, Server, ServerConfig, Tap};

use crate::pace::Pace;
use crate::running::{Running, answer_with_trailers};
use crate::{ask, exchange};

/// The length of the body that was read after its request was answered.
static LATER_LEN: AtomicUsize = AtomicUsize::new(0);

async fn handle(mut request: Request) -> Result<Response, Error> {
    let kind = "application/octet-stream";
    Ok(match request.path() {
        "/echo" => Response::new(200).with_body(kind, request.into_body()),
        "/whole" => Response::new(200).with_body(kind, request.bytes().await?),
        "/trailers" => answer_with_trailers(request).await?,
        "/stream" => {
            let pieces = ["one ", "two ", "three"].map(|piece| Ok::<_, HttpError>(piece.into()));
            Response::new(200).with_body(kind, Body::from_stream(futures_util::stream::iter(pieces)))
        }
        "/broken" => {
            let (mut sender, body) = Body::channel();
            tokio::spawn(async move {
                let _ = sender.send("half").await;
                sender.abort();
            });
            Response::new(200).with_body(kind, body)
        }
        "/gaps" => {
            let pieces = ["", "one ", "", "two", ""].map(|piece| Ok::<_, HttpError>(piece.into()));
            Response::new(200).with_body(kind, Body::from_stream(futures_util::stream::iter(pieces)))
        }
        "/large" => Response::new(200).with_body(kind, vec![b'x'; 100_000]),
        "/later" => {
            tokio::spawn(async move {
                let len = request.bytes().await.map(|bytes| bytes.len());
                LATER_LEN.store(len.unwrap_or(usize::MAX), Ordering::Relaxed);
            });
            Response::new(204)
        }
        "/empty" => Response::new(204),
        "/reset" => Response::new(205).with_body(kind, "content"),
        "/reset-stream" => Response::new(205).with_body(
            kind,
            Body::from_stream(futures_util::stream::iter([Ok::<_, HttpError>("content".into())])),
        ),
        // The body is left alone.
        _ => Response::not_found(),
    })
}

async fn serve(config: ServerConfig) -> SocketAddr {
    Running::start(config, handle).await.address
}

async fn read_until(stream: &mut TcpStream, end: &[u8]) -> Vec<u8> {
    let mut read = Vec::new();
    while !read.ends_with(end) {
        read.push(stream.read_u8().await.unwrap());
    }
    read
}

#[tokio::test]
async fn sends_chunks_and_trailers() {
    let address = serve(ServerConfig::default()).await;
    let answer = ask(
        address,
        b"POST /trailers HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTE: trailers\r\n\r\n\
          5\r\nhello\r\n0\r\nX-Sum: 42\r\n\r\n\
          GET /stream HTTP/1.1\r\nHost: a\r\n\r\n\
          GET /trailers HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    )
    .await;
    let answers: Vec<_> = answer.split("HTTP/1.1 200 OK\r\n").skip(1).collect();
    assert_eq!(answers.len(), 3, "{answer}");
    assert!(answers.iter().all(|answer| answer.contains("Transfer-Encoding: chunked\r\n")), "{answer}");
    assert!(answers[0].ends_with("\r\n\r\n4\r\ndone\r\n0\r\nX-Sum: 42\r\nX-Length: 5\r\n\r\n"), "{answer}");
    assert!(answers[1].ends_with("\r\n\r\n4\r\none \r\n4\r\ntwo \r\n5\r\nthree\r\n0\r\n\r\n"), "{answer}");
    // RFC 9110 §6.5.1: a client that did not ask for trailers gets none.
    assert!(answers[2].ends_with("\r\n\r\n4\r\ndone\r\n0\r\n\r\n"), "{answer}");
}

// RFC 9110 §6.5.1: a recipient that merges trailers with headers would take these for its own.
#[tokio::test]
async fn forwards_no_trailers_that_frame_or_route_a_message() {
    let address = serve(ServerConfig::default()).await;
    let answer = ask(
        address,
        b"POST /trailers HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTE: trailers\r\nConnection: close\r\n\r\n\
          0\r\nX-Sum: 42\r\nContent-Length: 9\r\ntransfer-encoding: gzip\r\nHOST: b\r\nConnection: X-Hop\r\nX-Hop: 1\r\n\r\n",
    )
    .await;
    assert!(answer.ends_with("\r\n4\r\ndone\r\n0\r\nX-Sum: 42\r\nX-Length: 0\r\n\r\n"), "{answer}");
}

// RFC 9112 §6.1: HTTP/1.0 has no chunks, RFC 9110 §9.3.2: HEAD no content, §15.3.5: nor has 204.
#[tokio::test]
async fn delimits_bodies() {
    let address = serve(ServerConfig::default()).await;
    let old = ask(address, b"GET /stream HTTP/1.0\r\n\r\n").await;
    assert!(old.contains("Connection: close\r\n") && !old.contains("chunked"), "{old}");
    assert!(old.ends_with("\r\n\r\none two three"), "{old}");
    let head = ask(address, b"HEAD /stream HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    assert!(head.contains("Transfer-Encoding: chunked\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    let empty = ask(address, b"GET /empty HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    assert!(empty.starts_with("HTTP/1.1 204 No Content\r\n") && !empty.contains("Content-Length"), "{empty}");
    assert!(!empty.contains("Transfer-Encoding"), "{empty}");
    // RFC 9110 §15.3.6: a server does not generate content in a response with 205.
    for path in ["/reset", "/reset-stream"] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let reset = ask(address, request).await;
        assert!(reset.starts_with("HTTP/1.1 205 Reset Content\r\n"), "{reset}");
        assert!(reset.contains("Content-Length: 0\r\n") && reset.ends_with("\r\n\r\n"), "{reset}");
    }
    // A body that breaks off has no end.
    let broken = ask(address, b"GET /broken HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(broken.ends_with("4\r\nhalf\r\n"), "{broken}");
}

// RFC 9112 §7.1: a chunk of length 0 is the last one.
// RFC 9112 §8: without a length and without chunks, only a reset marks a body as incomplete.
#[tokio::test]
async fn a_body_that_ends_with_its_connection_is_reset_when_it_fails() {
    for tap in [None, Some(Tap::new(|_, _| {}))] {
        let is_observed = tap.is_some();
        let address = serve(ServerConfig { tap, ..ServerConfig::default() }).await;
        let (answer, ended) = exchange(address, b"GET /broken HTTP/1.0\r\n\r\n").await;
        assert!(!ended, "observed: {is_observed}, {answer}");
    }
}

#[tokio::test]
async fn an_empty_piece_does_not_end_a_chunked_body() {
    let address = serve(ServerConfig::default()).await;
    let answer = ask(address, b"GET /gaps HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    assert!(answer.ends_with("\r\n\r\n4\r\none \r\n3\r\ntwo\r\n0\r\n\r\n"), "{answer}");
}

// A timeout beyond what the clock can represent never expires, and a number of handshakes is not limited by it.
#[tokio::test]
async fn timeouts_may_be_unlimited() {
    let mut config = ServerConfig::default();
    config.body_timeout = Duration::MAX;
    config.handshake_timeout = Duration::MAX;
    config.http1_stall_timeout = Duration::MAX;
    config.keep_alive_timeout = Duration::MAX;
    config.shutdown_grace = Duration::MAX;
    config.handshakes_max = usize::MAX;
    let address = serve(config).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"POST /whole HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nha").await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    stream.write_all(b"lf").await.unwrap();
    let whole = read_until(&mut stream, b"\r\n\r\nhalf").await;
    assert!(whole.starts_with(b"HTTP/1.1 200 OK\r\n"), "{}", whole.escape_ascii());
    let large = ask(address, b"GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    assert!(large.ends_with(&"x".repeat(100_000)), "{} bytes", large.len());
}

/// A server that answers each connection with `answer`, and then closes it.
async fn upstream(answer: &'static [u8]) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            read_until(&mut stream, b"\r\n\r\n").await;
            stream.write_all(answer).await.unwrap();
        }
    });
    format!("http://{address}/")
}

/// A reverse proxy for `upstream`.
async fn forward(upstream: String) -> SocketAddr {
    let handler = move |request: Request| {
        let url = upstream.clone();
        async move {
            let request = wireloom::client::Request::new(request.method(), url);
            Ok::<Response, Error>(Connector::new().http1_only(true).request(request).await?.into())
        }
    };
    Running::start(ServerConfig::default(), handler).await.address
}

// RFC 9110 §9.3.2: but for `Date`, and without content.
#[tokio::test]
async fn head_is_answered_with_the_fields_of_get() {
    let address = serve(ServerConfig::default()).await;
    for path in ["/large", "/stream", "/whole", "/empty", "/nothing"] {
        let http1 = async |method: &str| {
            let answer =
                ask(address, format!("{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"));
            let answer = answer.await;
            let (head, content) = answer.split_once("\r\n\r\n").unwrap();
            let fields = head.lines().filter(|line| !line.starts_with("Date: ")).map(str::to_owned);
            (fields.collect::<Vec<_>>(), content.len())
        };
        let (got, _) = http1("GET").await;
        assert_eq!(http1("HEAD").await, (got, 0), "{path}");
        let connection = Connector::new().connect_http2(&format!("http://{address}/")).await.unwrap();
        let http2 = async |method: &str| {
            let request = wireloom::client::Request::new(method, path);
            let mut response = connection.request(request).await.unwrap();
            let fields = response.headers.iter().filter(|(name, _)| *name != "date");
            let fields = fields.map(|(name, value)| (name.to_owned(), value.to_vec())).collect::<Vec<_>>();
            (response.status, fields, response.body.bytes().await.unwrap().len())
        };
        let (status, got, _) = http2("GET").await;
        assert_eq!(http2("HEAD").await, (status, got, 0), "{path}");
    }
}

// RFC 9110 §7.6.1: fields of a connection end with it. Framing is the next connection's own.
#[tokio::test]
async fn a_forwarded_response_has_no_fields_of_the_other_connection() {
    let url = upstream(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\n\
          Keep-Alive: timeout=5\r\nProxy-Connection: close\r\nUpgrade: h2c\r\nX-End: 2\r\n\r\n\
          5\r\nhello\r\n0\r\n\r\n",
    )
    .await;
    let address = forward(url).await;
    let answer = ask(address, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    let lower = answer.to_ascii_lowercase();
    assert_eq!(lower.matches("transfer-encoding").count(), 1, "{answer}");
    assert_eq!(lower.matches("connection:").count(), 1, "{answer}");
    assert!(lower.contains("\r\nx-end: 2\r\n"), "{answer}");
    for name in ["x-hop", "keep-alive", "upgrade"] {
        assert!(!lower.contains(name), "{answer}");
    }
    assert!(answer.ends_with("\r\n\r\n5\r\nhello\r\n0\r\n\r\n"), "{answer}");
    // RFC 9113 §8.2.2: over HTTP/2 they would make the response malformed.
    let connection = Connector::new().connect_http2(&format!("http://{address}/")).await.unwrap();
    let mut response = connection.request(wireloom::client::Request::get("/")).await.unwrap();
    assert_eq!(response.headers.get("x-end"), Some(&b"2"[..]));
    assert_eq!(&response.body.bytes().await.unwrap()[..], b"hello");
}

// RFC 9110 §9.3.2: the length that a response to GET would have.
#[tokio::test]
async fn a_forwarded_response_to_head_keeps_its_length() {
    let address = forward(upstream(b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n").await).await;
    let answer = ask(address, b"HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    assert!(answer.to_ascii_lowercase().contains("\r\ncontent-length: 1234\r\n"), "{answer}");
    // RFC 9110 §8.6: of a response to GET that has another length than it announced, no length is forwarded.
    let address = forward(upstream(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 1234\r\n\r\n").await).await;
    let answer = ask(
        address,
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    )
    .await;
    assert_eq!(answer.matches("HTTP/1.1 304 ").count(), 2, "{answer}");
}

#[tokio::test]
async fn streams_both_ways_at_once() {
    let address = serve(ServerConfig::default()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").await.unwrap();
    let head = read_until(&mut stream, b"\r\n\r\n").await;
    assert!(head.starts_with(b"HTTP/1.1 200 OK\r\n"), "{}", head.escape_ascii());
    for round in 0..20 {
        let chunk = format!("4\r\n{round:04}\r\n");
        stream.write_all(chunk.as_bytes()).await.unwrap();
        assert_eq!(read_until(&mut stream, chunk.as_bytes()).await, chunk.as_bytes());
    }
    // The connection stays usable after the body.
    stream.write_all(b"0\r\n\r\nGET /empty HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    assert_eq!(read_until(&mut stream, b"0\r\n\r\n").await, b"0\r\n\r\n");
    assert!(read_until(&mut stream, b"\r\n\r\n").await.starts_with(b"HTTP/1.1 204 "));
}

/// A request whose body follows its response in ten chunks, then another request.
async fn upload_after_the_response(address: SocketAddr, pause: Duration, pace: &mut Pace) -> io::Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"POST /later HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n").await?;
    assert!(read_until(&mut stream, b"\r\n\r\n").await.starts_with(b"HTTP/1.1 204 "));
    for _ in 0..10 {
        tokio::time::sleep(pause).await;
        stream.write_all(&[b'x'; 20_000]).await?;
        pace.step();
    }
    stream.write_all(b"GET /empty HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    if answer.starts_with("HTTP/1.1 204 ") { Ok(()) } else { Err(io::Error::other(answer)) }
}

// The body takes longer than the time from one chunk to the next.
#[tokio::test]
async fn a_body_is_read_after_the_response() {
    let mut config = ServerConfig::default();
    config.body_timeout = Duration::from_millis(400);
    let timeout = config.body_timeout;
    let address = serve(config).await;
    for attempt in 1.. {
        let mut pace = Pace::start();
        let uploaded = upload_after_the_response(address, timeout / 4, &mut pace).await;
        let in_time = pace.met(timeout);
        let len = loop {
            match LATER_LEN.swap(0, Ordering::Relaxed) {
                0 => tokio::time::sleep(Duration::from_millis(5)).await,
                len => break len,
            }
        };
        if uploaded.is_ok() && len == 200_000 {
            break;
        }
        assert!(!in_time && attempt < Pace::ATTEMPTS_MAX, "{uploaded:?}, {len} bytes");
    }
}

// No other request follows: the client, its version or a shutdown says so.
#[tokio::test]
async fn a_body_is_read_after_the_last_response_of_a_connection() {
    const LEN: usize = 200_000;
    for (path, head, shuts_down) in [
        ("/whole", "HTTP/1.1\r\nHost: a\r\nConnection: close", false),
        ("/whole", "HTTP/1.0", false),
        // Its response ends with the connection.
        ("/stream", "HTTP/1.0", false),
        ("/whole", "HTTP/1.1\r\nHost: a", true),
    ] {
        let (lens, mut uploaded) = mpsc::unbounded_channel();
        let handler = move |mut request: Request| {
            let lens = lens.clone();
            async move {
                let body = match request.path() {
                    "/stream" => {
                        Body::from_stream(futures_util::stream::iter([Ok::<_, HttpError>("ok".into())]))
                    }
                    _ => Body::from("ok"),
                };
                tokio::spawn(async move { lens.send(request.bytes().await.map(|bytes| bytes.len())) });
                Response::new(200).with_body("text/plain", body)
            }
        };
        let Running { handle, address, task } = Running::start(ServerConfig::default(), handler).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!("POST {path} {head}\r\nContent-Length: {LEN}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        read_until(&mut stream, b"\r\n\r\nok").await;
        if path == "/stream" {
            assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0);
        }
        if shuts_down {
            handle.shut_down();
        }
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            stream.write_all(&[b'x'; LEN / 10]).await.unwrap();
        }
        assert_eq!(uploaded.recv().await, Some(Ok(LEN)), "{head}");
        assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0);
        drop(stream);
        handle.shut_down();
        task.await.unwrap().unwrap();
    }
}

// RFC 9110 §10.1.1: 100 Continue is sent only if the body is read.
#[tokio::test]
async fn asks_for_a_body_only_when_it_is_wanted() {
    let address = serve(ServerConfig::default()).await;
    let head = "HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n";
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("POST /whole {head}").as_bytes()).await.unwrap();
    assert_eq!(read_until(&mut stream, b"\r\n\r\n").await, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"ok").await.unwrap();
    assert!(read_until(&mut stream, b"\r\n\r\nok").await.starts_with(b"HTTP/1.1 200 OK\r\n"));
    // The response streams the body back: the client would wait for 100, and the server for the body.
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("POST /echo {head}").as_bytes()).await.unwrap();
    assert_eq!(read_until(&mut stream, b"\r\n\r\n").await, b"HTTP/1.1 100 Continue\r\n\r\n");
    assert!(read_until(&mut stream, b"\r\n\r\n").await.starts_with(b"HTTP/1.1 200 OK\r\n"));
    stream.write_all(b"ok").await.unwrap();
    read_until(&mut stream, b"ok").await;
    // So would a task that reads it after the response.
    stream.write_all(format!("POST /later {head}").as_bytes()).await.unwrap();
    assert_eq!(read_until(&mut stream, b"\r\n\r\n").await, b"HTTP/1.1 100 Continue\r\n\r\n");
    let answer = ask(address, format!("POST /nothing {head}").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 404 ") && answer.contains("Connection: close\r\n"), "{answer}");
    // RFC 9110 §9.3.2: nothing of the body is sent back.
    let answer = ask(address, format!("HEAD /echo {head}").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("Connection: close\r\n"), "{answer}");
}

// RFC 9112 §9.6: such clients would get a reset instead of the response if the server closed before they have sent everything.
#[tokio::test]
async fn a_client_that_sends_all_of_its_content_first_reads_the_response() {
    let address = serve(ServerConfig::default()).await;
    let len = 32 << 20;
    for framing in
        [format!("Content-Length: {len}\r\n\r\n"), "Transfer-Encoding: chunked\r\n\r\n2000000\r\n".into()]
    {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!("POST /nothing HTTP/1.1\r\nHost: a\r\n{framing}");
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&vec![7; len]).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 404 ") && answer.contains("Connection: close\r\n"), "{answer}");
    }
}

// RFC 9110 §10.1.1, §15.2: HTTP/1.0 has neither `Expect` nor interim responses, also where the server waits for the body.
#[tokio::test]
async fn a_client_of_http10_gets_no_interim_response() {
    let address = serve(ServerConfig::default()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = b"POST /echo HTTP/1.0\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n";
    stream.write_all(head).await.unwrap();
    // The response begins before the body has arrived.
    assert!(read_until(&mut stream, b"\r\n\r\n").await.starts_with(b"HTTP/1.1 200 OK\r\n"));
    stream.write_all(b"ok").await.unwrap();
    read_until(&mut stream, b"ok").await;
}

#[tokio::test]
async fn bounds_the_length_and_the_time_of_a_body() {
    let mut config = ServerConfig::default();
    config.body_len_max = 10;
    config.body_timeout = Duration::from_millis(100);
    let address = serve(config).await;
    for (path, body, status) in [
        ("/whole", "Content-Length: 10\r\n\r\n0123456789", "200"),
        ("/whole", "Content-Length: 11\r\n\r\n", "413"),
        ("/whole", "Transfer-Encoding: chunked\r\n\r\nb\r\n0123456789a\r\n0\r\n\r\n", "413"),
        ("/whole", "Transfer-Encoding: chunked\r\n\r\n5\r\n01234\r\n6\r\n56789a\r\n0\r\n\r\n", "413"),
        ("/whole", "Content-Length: 5\r\n\r\n012", "408"),
        ("/whole", "Transfer-Encoding: chunked\r\n\r\n5\r\n01234\r\nx\r\n", "400"),
        ("/nothing", "Content-Length: 5\r\n\r\n012", "404"),
    ] {
        let request = format!("POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{body}");
        let answer = ask(address, request.as_bytes()).await;
        assert_eq!(answer.split(' ').nth(1), Some(status), "{body:?}: {answer}");
    }
}

// RFC 9110 §8.3.
#[test]
fn a_response_has_one_media_type() {
    let response = Response::text(200, "{}").with_body("application/json", "{}");
    assert_eq!(response.headers().collect::<Vec<_>>(), [("Content-Type", &b"application/json"[..])]);
}

#[test]
fn headers_that_cannot_be_sent_are_refused() {
    let mut headers = Headers::new();
    assert_eq!(headers.push("x", "a\nb"), Err(HttpError::InvalidHeader));
}

// The limit holds however the body arrives: with the head, in one read, or byte by byte.
#[tokio::test]
async fn bounds_a_body_that_arrives_with_the_head() {
    let mut config = ServerConfig::default();
    config.body_len_max = 10;
    let address = serve(config).await;
    for (len, status) in [(9, 200), (10, 200), (11, 413)] {
        let request = format!(
            "POST /whole HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {len}\r\n\r\n{}",
            "x".repeat(len)
        );
        let answer = ask(address, request.as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{len}: {answer}");
    }
}

#[tokio::test]
async fn sends_one_date_and_refuses_headers_of_the_connection() {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    tokio::spawn(server.serve(|request: Request| async move {
        match request.query() {
            None => Response::new(200).with_header("Date", "Sun, 06 Nov 1994 08:49:37 GMT"),
            Some(name) => Response::new(200).with_header(name, "1"),
        }
    }));
    let ask = async |target: &str| {
        ask(address, format!("GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").as_bytes())
            .await
    };
    let answer = ask("/").await;
    assert_eq!(answer.matches("Date: ").count(), 1, "{answer}");
    assert!(answer.contains("Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n"), "{answer}");
    assert!(ask("/?X-One").await.starts_with("HTTP/1.1 200 "));
    for name in ["Content-Length", "transfer-encoding", "Connection", "a:b"] {
        assert_eq!(Response::new(200).with_header(name, "1").err(), Some(HttpError::InvalidHeader), "{name}");
        assert!(ask(&format!("/?{name}")).await.starts_with("HTTP/1.1 500 "), "{name}");
    }
    // An error in every profile: neither a panic nor a header that is missing.
    for value in ["a\r\nb: c", "a\nb", "\0", "\x7f"] {
        assert_eq!(
            Response::new(200).with_header("X-One", value).err(),
            Some(HttpError::InvalidHeader),
            "{value:?}"
        );
    }
}

#[tokio::test]
async fn the_length_of_omitted_content_is_for_head_alone() {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    tokio::spawn(
        server.serve(|_: Request| async { Response::new(200).with_body("text/plain", Body::omitted(7)) }),
    );
    for (method, len) in [("HEAD", 7), ("GET", 0)] {
        let request = format!("{method} / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let answer = ask(address, request.as_bytes()).await;
        assert!(answer.contains(&format!("Content-Length: {len}\r\n")), "{method}: {answer}");
        assert!(answer.ends_with("\r\n\r\n"), "{method}: {answer}");
    }
}
