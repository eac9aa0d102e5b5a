//! Requests to servers without HTTP/2.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use wireloom::client::{Pool, Request};
use wireloom::wireloom_ws::handshake::HandshakeLimits;
use wireloom::{Body, Connector, Error, Headers, HttpError, Server, Version};

/// The first line of the HTTP/2 preface.
const PREFACE: &[u8] = b"PRI ";

/// A server that refuses the HTTP/2 preface as HTTP/1.1 servers do, and passes other connections to `then`.
async fn refuse_http2<F, T>(then: F) -> String
where
    F: Fn(TcpStream) -> T + Send + 'static,
    T: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut first = [0; 4];
            // The four bytes arrive together.
            let _ = stream.peek(&mut first).await;
            if first == PREFACE {
                stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await.unwrap();
                let _ = stream.read(&mut [0; 1024]).await;
            } else {
                tokio::spawn(then(stream));
            }
        }
    });
    format!("http://{address}")
}

/// A server of this crate, for HTTP/1.1 only.
async fn serve() -> String {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = server.local_addr().unwrap();
    tokio::spawn(server.serve(super::http2::handle));
    refuse_http2(move |mut stream| async move {
        let mut behind = TcpStream::connect(address).await.unwrap();
        let _ = copy_bidirectional(&mut stream, &mut behind).await;
    })
    .await
}

/// A server that reads a head and sends `answer` in writes of `step` bytes.
async fn answer(answer: &[u8], step: usize) -> String {
    let answer: Arc<[u8]> = answer.into();
    refuse_http2(move |mut stream| {
        let answer = answer.clone();
        async move {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            for piece in answer.chunks(step) {
                stream.write_all(piece).await.unwrap();
                stream.flush().await.unwrap();
                tokio::task::yield_now().await;
            }
            stream.shutdown().await.unwrap();
            while let Ok(1..) = stream.read(&mut [0; 1024]).await {}
        }
    })
    .await
}

#[tokio::test]
async fn falls_back_to_http1() {
    let url = serve().await;
    let connector = Connector::new().http2(true).header("X-One", "1").header("X-Two", "2");
    let request = Request::get(format!("{url}/request?a=b")).header("x-two", "3");
    let exchange = connector.send(request).await.unwrap();
    assert!(exchange.peer().is_some() && exchange.tls().is_none());
    let mut response = exchange.response().await.unwrap();
    assert_eq!((response.version, response.status), (Version::Http11, 200));
    assert!(response.headers.get("content-length").is_some());
    let received = String::from_utf8(response.body.bytes().await.unwrap().to_vec()).unwrap();
    let host = url.strip_prefix("http://").unwrap();
    let expected = format!(
        "GET /request?a=b Host: {host}, X-One: 1, User-Agent: wireloom/0.1.0, x-two: 3, Connection: close"
    );
    assert_eq!(received, expected);
    // RFC 9110 §10.1.4: a sender of TE names it in Connection.
    let request = Request::get(format!("{url}/request")).header("TE", "trailers");
    let mut response = connector.request(request).await.unwrap();
    let received = String::from_utf8(response.body.bytes().await.unwrap().to_vec()).unwrap();
    assert!(received.ends_with("TE: trailers, Connection: close, TE"), "{received}");
    // Framing headers are not the caller's.
    for name in ["Transfer-Encoding", "Host", "Connection"] {
        let request = Request::get(&url).header(name, "x");
        assert_eq!(
            connector.send(request).await.unwrap_err(),
            Error::Http(HttpError::InvalidHeader),
            "{name}"
        );
    }
    for method in ["", "A B", "G\r\nX: y", "CONNECT"] {
        assert_eq!(
            connector.send(Request::new(method, &url)).await.unwrap_err(),
            Error::Http(HttpError::InvalidHeader),
            "{method}"
        );
    }
}

// A server of HTTP/1.1 would see `PRI * HTTP/2.0` before each request.
#[tokio::test]
async fn plain_http_begins_with_http1() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let request = tokio::spawn(async move { Connector::new().request(Request::get(url)).await });
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut first = [0; 6];
    stream.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"GET / ");
    stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
    assert_eq!(request.await.unwrap().unwrap().status, 204);
}

#[tokio::test]
async fn content_streams_in_both_directions_at_once() {
    let url = serve().await;
    let (mut sender, body) = Body::channel();
    let request = Request::post(format!("{url}/echo"), body);
    let mut response = Connector::new().request(request).await.unwrap();
    // Each chunk is echoed before the next is sent.
    for number in 0..50_u8 {
        let piece = vec![number; 1 + usize::from(number) * 500];
        sender.send(piece.clone()).await.unwrap();
        let mut back = Vec::new();
        while back.len() < piece.len() {
            back.extend_from_slice(&response.body.chunk().await.unwrap().unwrap());
        }
        assert_eq!(back, piece);
    }
    drop(sender);
    assert_eq!(response.body.chunk().await.unwrap(), None);

    let mut response =
        Connector::new().request(Request::post(format!("{url}/echo"), vec![7; 3 << 20])).await.unwrap();
    assert_eq!(response.body.bytes().await.unwrap(), vec![7; 3 << 20]);
}

/// A server that answers each request at its head, and then reads `len` bytes of content.
async fn answer_early(head: &'static str, len: usize) -> (String, mpsc::UnboundedReceiver<usize>) {
    let (lens, received) = mpsc::unbounded_channel();
    let url = refuse_http2(move |mut stream| {
        let lens = lens.clone();
        async move {
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.unwrap());
            }
            stream.write_all(format!("HTTP/1.1 {head}\r\n\r\n").as_bytes()).await.unwrap();
            let (mut total, mut buffer) = (0, vec![0; 64 << 10]);
            while total < len
                && let Ok(read @ 1..) = stream.read(&mut buffer).await
            {
                total += read;
            }
            let _ = lens.send(total);
        }
    });
    (url.await, received)
}

// RFC 9110 §7.5: a client goes on unless the server refuses the content.
#[tokio::test]
async fn content_is_sent_after_a_response_of_success() {
    const LEN: usize = 8 << 20;
    let (pool, connector) = (Pool::new(Connector::new()), Connector::new());
    for head in [
        "204 No Content",
        "202 Accepted\r\nContent-Length: 0",
        "200 OK\r\nConnection: close\r\nContent-Length: 0",
    ] {
        for (is_pooled, is_stream) in [(false, false), (true, false), (true, true), (false, true)] {
            let (url, mut received) = answer_early(head, LEN).await;
            let (mut sender, mut body) = (None, Body::from(vec![7; LEN]));
            if is_stream {
                let (producer, content) = Body::channel();
                (sender, body) = (Some(producer), content);
            }
            let request = Request::post(&url, body).header("content-length", LEN.to_string());
            let sending = async {
                if is_pooled { pool.request(request).await } else { connector.request(request).await }
            };
            // The caller produces its content after the response.
            let response = sending.await.unwrap();
            assert_eq!(response.status / 100, 2);
            if let Some(mut sender) = sender.take() {
                for _ in 0..8 {
                    sender.send(vec![7; LEN / 8]).await.unwrap();
                }
            }
            response.close().await.unwrap();
            assert_eq!(received.recv().await, Some(LEN), "{head} {is_pooled} {is_stream}");
        }
    }
    // A refusal ends it.
    let (url, mut received) = answer_early("403 Forbidden\r\nContent-Length: 0", usize::MAX).await;
    let (mut sender, body) = Body::channel();
    let request = Request::post(&url, body).header("content-length", "2");
    assert_eq!(connector.request(request).await.unwrap().status, 403);
    assert_eq!(received.recv().await, Some(0));
    assert!(sender.send("ok").await.is_err());
}

#[tokio::test]
async fn close_reports_content_that_was_not_sent_to_its_end() {
    let pool = Pool::new(Connector::new());
    let short = HttpError::Malformed("the content is not as long as Content-Length says");
    for (head, is_pooled, is_accepted) in [
        ("204 No Content", false, true),
        ("204 No Content", true, true),
        ("200 OK\r\nContent-Length: 2\r\n\r\nok", false, true),
        ("403 Forbidden\r\nContent-Length: 0", false, false),
    ] {
        for (is_aborted, error) in [(true, HttpError::ConnectionLost), (false, short.clone())] {
            let (url, _received) = answer_early(head, 100).await;
            let (mut sender, body) = Body::channel();
            let request = Request::post(&url, body).header("content-length", "100");
            let response = match is_pooled {
                true => pool.request(request).await,
                false => Connector::new().request(request).await,
            };
            let mut response = response.unwrap();
            response.body.bytes().await.unwrap();
            // Fails if the server has refused the content.
            let _ = sender.send(vec![7; 50]).await;
            if is_aborted {
                sender.abort()
            } else {
                drop(sender)
            }
            let expected = if is_accepted { Err(Error::Http(error)) } else { Ok(()) };
            assert_eq!(response.close().await, expected, "{head} {is_pooled} {is_aborted}");
        }
    }
}

#[tokio::test]
async fn close_reports_content_that_a_dropped_response_has_ended() {
    for (len, expected) in [(100, Err(Error::Http(HttpError::Closed))), (0, Ok(()))] {
        let (url, _received) = answer_early("200 OK\r\nContent-Length: 30\r\n\r\nok", 100).await;
        let (_sender, mut body) = Body::channel();
        if len == 0 {
            body = Body::empty();
        }
        let request = Request::post(&url, body).header("content-length", len.to_string());
        let response = Connector::new().request(request).await.unwrap();
        assert_eq!(response.close().await, expected, "{len}");
    }
}

// The server takes half of it.
#[tokio::test]
async fn close_reports_a_server_that_closes_before_the_end_of_the_content() {
    const LEN: usize = 16 << 20;
    let (url, _received) = answer_early("204 No Content", LEN / 2).await;
    let request = Request::post(&url, vec![7; LEN]).header("content-length", LEN.to_string());
    let response = Connector::new().request(request).await.unwrap();
    assert_eq!(response.close().await, Err(Error::Http(HttpError::ConnectionLost)));
}

/// A connector whose server answers at the head of each request. It then waits for `delay`, and reads `len` bytes of content every 30 s;
/// how many there were in the end.
fn answered_early(delay: u64, len: usize) -> (Connector, mpsc::UnboundedReceiver<usize>) {
    let (lens, received) = mpsc::unbounded_channel();
    let connector = Connector::new().dial_with(move |_, _| {
        let (near, mut server) = tokio::io::duplex(64);
        let lens = lens.clone();
        tokio::spawn(async move {
            let (mut request, mut total) = (Vec::new(), 0);
            while !request.ends_with(b"\r\n\r\n") {
                request.push(server.read_u8().await.unwrap());
            }
            server.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
            tokio::time::sleep(Duration::from_secs(delay)).await;
            while server.read_exact(&mut vec![0; len]).await.is_ok() {
                total += len;
                tokio::time::sleep(Duration::from_secs(30)).await;
            }
            let _ = lens.send(total);
        });
        async { Ok(near) }
    });
    (connector, received)
}

// Time passes only while nothing else can happen.
#[tokio::test(start_paused = true)]
async fn a_server_that_accepts_too_little_content_after_its_response_is_left() {
    const LEN: usize = 10 << 10;
    for (accepted, is_left) in [(1, true), (511, true), (512, false)] {
        let (connector, mut received) = answered_early(15, accepted);
        let request =
            Request::post("http://localhost/", vec![7; LEN]).header("content-length", LEN.to_string());
        let response = connector.request(request).await.unwrap();
        let start = tokio::time::Instant::now();
        let closed = response.close().await;
        let expected = if is_left { Err(Error::Http(HttpError::BodyTimeout)) } else { Ok(()) };
        assert_eq!(closed, expected, "{accepted}");
        assert_eq!(start.elapsed().as_secs() < 120, is_left, "{accepted}: {:?}", start.elapsed());
        assert_eq!(received.recv().await.unwrap() < LEN, is_left, "{accepted}");
    }
}

// SIGSTOP, or a suspended machine.
#[tokio::test(start_paused = true)]
async fn time_in_which_the_client_does_not_run_does_not_count_for_the_server() {
    const LEN: usize = 10 << 10;
    let (connector, mut received) = answered_early(15, 512);
    let request = Request::post("http://localhost/", vec![7; LEN]).header("content-length", LEN.to_string());
    let response = connector.request(request).await.unwrap();
    let closing = tokio::spawn(response.close());
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        tokio::time::advance(Duration::from_secs(3600)).await;
    }
    assert_eq!(closing.await.unwrap(), Ok(()));
    assert_eq!(received.recv().await, Some(LEN));
}

#[tokio::test(start_paused = true)]
async fn content_may_be_produced_long_after_the_response() {
    // A minute is over soon after the content begins.
    let (connector, mut received) = answered_early(165, 2500);
    let (mut sender, body) = Body::channel();
    let request = Request::post("http://localhost/", body).header("content-length", "5000");
    let response = connector.request(request).await.unwrap();
    tokio::time::sleep(Duration::from_secs(115)).await;
    sender.send(vec![7; 5000]).await.unwrap();
    drop(sender);
    response.close().await.unwrap();
    assert_eq!(received.recv().await, Some(5000));
}

// Nothing is written that could fail.
#[tokio::test]
async fn a_connection_that_is_lost_after_the_response_is_left() {
    let url = refuse_http2(|mut stream| async move {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(stream.read_u8().await.unwrap());
        }
        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        stream.set_zero_linger().unwrap();
    });
    let (_sender, body) = Body::channel();
    let request = Request::post(url.await, body).header("content-length", "5000");
    let response = Connector::new().request(request).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    tokio::time::pause();
    let closed = tokio::time::timeout(Duration::from_secs(100), response.close()).await.unwrap();
    assert_eq!(closed, Err(Error::Http(HttpError::ConnectionLost)));
}

#[tokio::test]
async fn sends_and_receives_trailers() {
    let url = serve().await;
    let (mut sender, body) = Body::channel();
    tokio::spawn(async move {
        sender.send("hello").await.unwrap();
        let mut trailers = Headers::new();
        trailers.push("x-sum", "5").unwrap();
        sender.finish(trailers).await
    });
    let request = Request::post(format!("{url}/trailers"), body).header("te", "trailers");
    let mut response = Connector::new().request(request).await.unwrap();
    assert_eq!(response.body.chunk().await.unwrap(), None);
    assert_eq!(response.body.trailers().unwrap().get("x-sum"), Some(&b"5"[..]));
}

#[tokio::test]
async fn an_unread_body_applies_backpressure() {
    let (client, mut server) = tokio::io::duplex(1 << 16);
    let client = Mutex::new(Some(client));
    let connector = Connector::new()
        .dial_with(move |_, _| std::future::ready(Ok(client.lock().unwrap().take().unwrap())));
    let written = Arc::new(AtomicUsize::new(0));
    let counted = written.clone();
    tokio::spawn(async move {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(server.read_u8().await.unwrap());
        }
        server.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        while let Ok(len) = server.write(&[7; 1 << 14]).await {
            counted.fetch_add(len, Ordering::Relaxed);
        }
    });
    let mut response = connector.request(Request::get("http://a/")).await.unwrap();
    for read in [0, 8 << 20] {
        let mut len = 0;
        while len < read {
            len += response.body.chunk().await.unwrap().unwrap().len();
        }
        // Nothing but these tasks is waited for.
        for _ in 0..10_000 {
            tokio::task::yield_now().await;
        }
        let held = written.load(Ordering::Relaxed) - len;
        assert!(held <= 1 << 20, "{held}");
    }
}

// RFC 9112 §6.3, at every split.
#[tokio::test]
async fn finds_the_end_of_every_kind_of_content() {
    let cases: [(&[u8], &str, Version, &str); 6] = [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "GET", Version::Http11, "hello"),
        (
            b"HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;a\r\nllo\r\n0\r\nX: y\r\n\r\n",
            "GET",
            Version::Http11,
            "hello",
        ),
        (b"HTTP/1.0 200 OK\r\nServer: old\r\n\r\nhello", "GET", Version::Http10, "hello"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "HEAD", Version::Http11, ""),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", "GET", Version::Http11, ""),
        (
            b"HTTP/1.1 103 Early\r\nLink: <a>\r\n\r\nHTTP/1.1 100 \r\n\r\nHTTP/1.1 204 \r\n\r\n",
            "GET",
            Version::Http11,
            "",
        ),
    ];
    for (bytes, method, version, content) in cases {
        for step in [1, 7, 1000] {
            let url = answer(bytes, step).await;
            let mut exchange = Connector::new().send(Request::new(method, url)).await.unwrap();
            let mut interim = Vec::new();
            while let Some(head) = exchange.informational().await.unwrap() {
                interim.push(head.status);
            }
            assert_eq!(interim, if bytes.starts_with(b"HTTP/1.1 103") { &[103, 100][..] } else { &[] });
            let mut response = exchange.response().await.unwrap();
            assert_eq!(response.version, version);
            assert_eq!(response.body.bytes().await.unwrap(), content.as_bytes());
        }
    }
}

#[tokio::test]
async fn never_hangs_whatever_a_server_sends() {
    let ask = async |bytes: &[u8]| {
        let url = answer(bytes, 1000).await;
        let mut response = Connector::new().request(Request::get(url)).await?;
        response.body.bytes().await.map_err(Error::from)
    };
    let malformed =
        |result| matches!(result, Err(Error::Http(HttpError::Malformed(_)) | Error::InvalidResponse(..)));
    for bytes in [
        &b"SSH-2.0-x\r\n\r\n"[..],
        b"HTTP/1.1 200 OK\r\nContent-Length: 5, 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nhello",
        // RFC 9112 §6.1, §6.3.
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nhello\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 099 No\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
    ] {
        let result = ask(bytes).await;
        assert!(malformed(result.clone()), "{}: {result:?}", bytes.escape_ascii());
    }
    let mut long = b"HTTP/1.1 200 OK\r\nX: ".to_vec();
    long.resize(260 << 10, b'x');
    assert!(malformed(ask(&long).await));
    for bytes in [
        &b""[..],
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    ] {
        assert_eq!(ask(bytes).await, Err(Error::Http(HttpError::ConnectionLost)), "{}", bytes.escape_ascii());
    }
}

// RFC 9110 §10.1.1.
#[tokio::test]
async fn content_waits_for_continue() {
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = sent.clone();
    let refusing = refuse_http2(move |mut stream| {
        let counted = counted.clone();
        async move {
            let mut bytes = [0; 1024];
            let mut all = Vec::new();
            while !all.ends_with(b"\r\n\r\n") {
                let len = stream.read(&mut bytes).await.unwrap();
                all.extend_from_slice(&bytes[..len]);
            }
            let answer = b"HTTP/1.1 417 Expectation Failed\r\nContent-Length: 2\r\n\r\nno";
            stream.write_all(answer).await.unwrap();
            while let Ok(len @ 1..) = stream.read(&mut bytes).await {
                counted.fetch_add(len, Ordering::Relaxed);
            }
        }
    })
    .await;
    let request = |url| Request::post(url, "content").header("Expect", "100-continue");
    let mut response = Connector::new().request(request(refusing)).await.unwrap();
    assert_eq!((response.status, &*response.body.bytes().await.unwrap()), (417, &b"no"[..]));
    assert_eq!(sent.load(Ordering::Relaxed), 0);

    let asking = refuse_http2(|mut stream| async move {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.unwrap();
        let mut content = [0; 7];
        stream.read_exact(&mut content).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        stream.write_all(&content).await.unwrap();
    })
    .await;
    let mut response = Connector::new().request(request(asking)).await.unwrap();
    assert_eq!(response.body.bytes().await.unwrap(), "content");

    // A server that does not know the field.
    let silent = refuse_http2(|mut stream| async move {
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n\r\ncontent") {
            bytes.push(stream.read_u8().await.unwrap());
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
    })
    .await;
    assert_eq!(Connector::new().request(request(silent)).await.unwrap().status, 200);
}

#[tokio::test]
async fn content_of_another_length_than_announced_fails() {
    let url = serve().await;
    for (announced, content) in [("5", "four"), ("3", "four")] {
        let request = Request::post(format!("{url}/echo"), content).header("Content-Length", announced);
        assert!(matches!(Connector::new().request(request).await, Err(Error::Http(HttpError::Malformed(_)))));
    }
    let request = Request::post(format!("{url}/echo"), "x").header("Content-Length", "+1");
    assert_eq!(Connector::new().request(request).await.unwrap_err(), Error::Http(HttpError::InvalidHeader));
    // Content that ends early.
    let (sender, body) = Body::channel();
    sender.abort();
    let request = Request::post(format!("{url}/echo"), body);
    let broken = async { Connector::new().request(request).await?.body.bytes().await.map_err(Error::from) };
    assert_eq!(broken.await, Err(Error::Http(HttpError::ConnectionLost)));
}

/// A server of this version of HTTP: its URL, and the first lines of the requests that it received, with whether they announce chunks.
async fn record(version: &'static str) -> (String, Arc<Mutex<Vec<String>>>) {
    let requests = Arc::new(Mutex::new(Vec::new()));
    let log = requests.clone();
    let url = refuse_http2(move |mut stream| {
        let log = log.clone();
        async move {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            let head = String::from_utf8(head).unwrap();
            let (line, fields) = head.split_once("\r\n").unwrap();
            let chunks = if fields.contains("Transfer-Encoding: chunked") { ", chunked" } else { "" };
            log.lock().unwrap().push(format!("{line}{chunks}"));
            assert!(!line.starts_with("OPTIONS") || !fields.contains("secret"), "{fields}");
            // RFC 9110 §9.3.7: whether the method is supported does not matter.
            let status = if line.starts_with("OPTIONS") { "405 No" } else { "200 OK" };
            let answer = format!("HTTP/{version} {status}\r\nContent-Length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
            while let Ok(1..) = stream.read(&mut [0; 1024]).await {}
        }
    })
    .await;
    (url, requests)
}

// RFC 9112 §6.1.
#[tokio::test]
async fn chunks_are_sent_to_servers_of_http11_alone() {
    let upload = |url: &str| {
        let (sender, body) = Body::channel();
        (sender, Request::post(format!("{url}/up"), body).header("X-Key", "secret"))
    };
    let (asked, chunked) = ("OPTIONS * HTTP/1.1", "POST /up HTTP/1.1, chunked");
    for connector in [Connector::new(), Connector::new().http2(true)] {
        let (url, requests) = record("1.1").await;
        let connector = connector.header("X-Other", "secret");
        for _ in 0..2 {
            let (_sender, request) = upload(&url);
            assert_eq!(connector.clone().request(request).await.unwrap().status, 200);
        }
        assert_eq!(std::mem::take(&mut *requests.lock().unwrap()), [asked, chunked, chunked]);
    }
    // Any response has the version.
    let (url, requests) = record("1.1").await;
    let connector = Connector::new();
    connector.request(Request::get(&url)).await.unwrap();
    connector.request(upload(&url).1).await.unwrap();
    assert_eq!(*requests.lock().unwrap(), ["GET / HTTP/1.1", chunked]);

    let (url, requests) = record("1.0").await;
    let connector = Connector::new();
    connector.request(Request::post(&url, "of known length")).await.unwrap();
    let length = Request::post(&url, Body::channel().1).header("Content-Length", "0");
    let _exchange = connector.send(length).await.unwrap();
    assert_eq!(connector.request(upload(&url).1).await.unwrap_err(), Error::LengthRequired);
    let heads = std::mem::take(&mut *requests.lock().unwrap());
    assert!(!heads.iter().any(|head| head.contains("chunked")), "{heads:?}");
    let (_sender, request) = upload(&url);
    assert_eq!(connector.assume_http11(true).request(request).await.unwrap().status, 200);
    assert_eq!(*requests.lock().unwrap(), [chunked]);

    // A server that does not answer the question.
    let silent =
        refuse_http2(|mut stream| async move { while let Ok(1..) = stream.read(&mut [0; 1024]).await {} });
    let connector = Connector::new().handshake_timeout(Duration::from_millis(100));
    let error = connector.request(upload(&silent.await).1).await.unwrap_err();
    assert_eq!(error, Error::HandshakeTimeout);
}

/// Dropping a request closes its connection, before the response and after its head.
#[tokio::test]
async fn a_dropped_request_closes_its_connection() {
    let (report, mut ended) = tokio::sync::mpsc::unbounded_channel();
    let url = refuse_http2(move |mut stream| {
        let report = report.clone();
        async move {
            let mut bytes = [0; 1024];
            let len = stream.read(&mut bytes).await.unwrap();
            if bytes[..len].starts_with(b"GET /head") {
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n").await.unwrap();
            }
            while let Ok(1..) = stream.read(&mut bytes).await {}
            let _ = report.send(());
        }
    })
    .await;
    let exchange = Connector::new().send(Request::get(format!("{url}/silent"))).await.unwrap();
    drop(exchange);
    let response = Connector::new().request(Request::get(format!("{url}/head"))).await.unwrap();
    drop(response);
    for _ in 0..2 {
        tokio::time::timeout(Duration::from_secs(10), ended.recv()).await.unwrap().unwrap();
    }
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn uses_the_protocol_of_alpn() {
    use tokio_rustls::rustls::pki_types::{PrivateKeyDer, pem::PemObject as _};
    use tokio_rustls::rustls::{self, crypto::ring};
    use wireloom::{ClientTls, Response, ServerTls};

    let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    for (offered, version) in [
        (&[&b"h2"[..], b"http/1.1"][..], Version::Http2),
        (&[b"http/1.1"], Version::Http11),
        (&[], Version::Http11),
    ] {
        let mut config = rustls::ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![key.cert.der().clone()],
                PrivateKeyDer::from_pem_slice(key.signing_key.serialize_pem().as_bytes()).unwrap(),
            )
            .unwrap();
        config.alpn_protocols = offered.iter().map(|name| name.to_vec()).collect();
        let server = Server::bind("127.0.0.1:0").await.unwrap().tls(ServerTls::from_rustls(config.into()));
        let port = server.local_addr().unwrap().port();
        let methods = Arc::new(Mutex::new(Vec::new()));
        let log = methods.clone();
        tokio::spawn(server.serve(move |mut request: wireloom::Request| {
            let log = log.clone();
            async move {
                log.lock().unwrap().push(request.method().to_owned());
                let content = request.body_mut().bytes().await.unwrap_or_default();
                Response::new(200).with_body("text/plain", content)
            }
        }));
        let connector = Connector::new()
            .tls(ClientTls::default().with_root(key.cert.der().to_vec()))
            .resolve("localhost", ["127.0.0.1:0".parse().unwrap()]);
        // ALPN says whether the server speaks HTTP/1.1.
        let (sender, body) = Body::channel();
        drop(sender);
        connector
            .request(Request::new("PUT", format!("https://localhost:{port}/")).with_body(body))
            .await
            .unwrap();
        let asked = std::mem::take(&mut *methods.lock().unwrap());
        assert_eq!(asked, if offered.is_empty() { &["OPTIONS", "PUT"][..] } else { &["PUT"] });
        let request = Request::post(format!("https://localhost:{port}/"), vec![7; 100_000]);
        let exchange = connector.send(request).await.unwrap();
        assert!(exchange.tls().is_some());
        let mut response = exchange.response().await.unwrap();
        assert_eq!(response.version, version);
        assert_eq!(response.body.bytes().await.unwrap(), vec![7; 100_000]);
        let wanted = connector.connect_http2(&format!("https://localhost:{port}/")).await.map(drop);
        assert_eq!(wanted.is_ok(), version == Version::Http2, "{wanted:?}");
    }
}

// RFC 9112 §2.2, §3.2, §6.2, §6.3, §7.1; RFC 9110 §5.3, §7.2, §8.6, §9.3.1.
#[tokio::test]
async fn requests_have_these_bytes() {
    let agent = concat!("User-Agent: wireloom/", env!("CARGO_PKG_VERSION"), "\r\n");
    let (mut sender, streamed) = Body::channel();
    tokio::spawn(async move { sender.send("abc").await });
    for (method, body, rest) in [
        ("GET", Body::empty(), "Connection: close\r\n\r\n"),
        ("DELETE", Body::empty(), "Connection: close\r\n\r\n"),
        ("POST", Body::empty(), "content-length: 0\r\nConnection: close\r\n\r\n"),
        ("PUT", "abc".into(), "content-length: 3\r\nConnection: close\r\n\r\nabc"),
        ("POST", streamed, "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nabc\r\n0\r\n\r\n"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let expected = format!("{method} /a?b HTTP/1.1\r\nHost: {address}\r\n{agent}X-Key: 1\r\n{rest}");
        let len = expected.len();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut received = vec![0; len];
            stream.read_exact(&mut received).await.unwrap();
            stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
            stream.read_to_end(&mut received).await.unwrap();
            String::from_utf8(received).unwrap()
        });
        let request =
            Request::new(method, format!("http://{address}/a?b#c")).header("X-Key", "1").with_body(body);
        let response = Connector::new().assume_http11(true).request(request).await.unwrap();
        assert_eq!(response.status, 204);
        drop(response);
        assert_eq!(server.await.unwrap(), expected);
    }
}

// RFC 9112 §6.3: two lengths that differ make a message ambiguous.
#[tokio::test]
async fn sends_one_content_length() {
    let url = serve().await;
    let request = || Request::post(format!("{url}/request"), "abc");
    let ambiguous = request().header("Content-Length", "3").header("content-length", "4");
    assert_eq!(Connector::new().request(ambiguous).await.unwrap_err(), Error::Http(HttpError::InvalidHeader));
    let connector = Connector::new().header("Content-Length", "4");
    assert_eq!(connector.request(request()).await.unwrap_err(), Error::Http(HttpError::InvalidHeader));
}

// RFC 9112 §5.2: a user agent replaces folded lines.
#[tokio::test]
async fn reads_folded_headers_and_long_heads() {
    let url = answer(b"HTTP/1.2 200 OK\r\nX: a\r\n b\r\nContent-Length: 0\r\n\r\n", 7).await;
    let response = Connector::new().request(Request::get(&url)).await.unwrap();
    let folded = response.headers.get("x").map(<[u8]>::to_vec).unwrap();
    assert_eq!(folded.split(|&byte| byte == b' ').filter(|word| !word.is_empty()).count(), 2, "{folded:?}");
    // Ten cookies of 4 kB, and 500 other headers.
    let cookies = format!("Set-Cookie: a={}\r\n", "x".repeat(4_000)).repeat(10);
    let head = format!("HTTP/1.1 200 OK\r\n{cookies}{}Content-Length: 0\r\n\r\n", "X: y\r\n".repeat(500));
    let url = answer(head.as_bytes(), 10_000).await;
    let response = Connector::new().request(Request::get(&url)).await.unwrap();
    assert_eq!((response.headers.get_all("set-cookie").count(), response.headers.len()), (10, 511));
    let limits = HandshakeLimits { headers_max: 510, head_len_max: 1 << 20 };
    let error = Connector::new().response_limits(limits).request(Request::get(&url)).await.unwrap_err();
    assert_eq!(error, Error::InvalidResponse(512, "too many headers"));
    let limits = HandshakeLimits { head_len_max: head.len() - 1, ..HandshakeLimits::default() };
    let error = Connector::new().response_limits(limits).request(Request::get(&url)).await.unwrap_err();
    assert!(matches!(error, Error::Http(HttpError::Malformed(_))), "{error}");
}

#[tokio::test]
async fn an_error_names_the_malformed_line_of_a_response() {
    let url = answer(b"HTTP/1.1 200 OK\r\nA: b\r\nC : d\r\n\r\n", 100).await;
    let error = Connector::new().request(Request::get(&url)).await.unwrap_err();
    assert_eq!(error.to_string(), "line 3 of the response's head: invalid header name");
}
