//! The content of requests and responses.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use wireloom::client::{Http2, Request};
use wireloom::wireloom_http2::error::{Error as CoreError, ErrorCode, Exceeded, Scope, Violation};
use wireloom::wireloom_http2::field::{Field, Token};
use wireloom::wireloom_http2::frame::StreamId;
use wireloom::wireloom_http2::{Config, Connection, Role};
use wireloom::{Body, Connector, Error, Headers, HttpError, Response, Server, Version};

use super::super::scripted::{self, ScriptEvent};
use super::{answer, connect, raw_server, serve, status, text};

#[tokio::test]
async fn streams_content_in_both_directions() {
    let http2 = connect(serve().await).await;
    let (mut sender, body) = Body::channel();
    let mut response = http2.request(Request::post("/echo", body)).await.unwrap();
    for round in 0..20u8 {
        sender.send(vec![round; 100_000]).await.unwrap();
        let mut left = 100_000;
        while left > 0 {
            let chunk = response.body.chunk().await.unwrap().unwrap();
            assert!(chunk.iter().all(|&byte| byte == round));
            left -= chunk.len();
        }
    }
    drop(sender);
    assert_eq!(response.body.chunk().await, Ok(None));
    // More than all windows together, at once.
    let much: Vec<u8> = (0..20_000_000u32).map(|byte| byte as u8).collect();
    let mut response = http2.request(Request::post("/echo", much.clone())).await.unwrap();
    assert!(response.body.bytes().await.unwrap() == much);
}

// RFC 9113 §8.1: a server may answer before it has read the request. Nothing but a reset ends the content.
#[tokio::test]
async fn content_is_sent_after_a_response_of_success() {
    let (lens, mut received) = mpsc::unbounded_channel();
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let (handle, address) = (server.handle(), server.local_addr().unwrap());
    tokio::spawn(server.serve(move |mut request: wireloom::Request| {
        let lens = lens.clone();
        async move {
            tokio::spawn(async move { lens.send(request.bytes().await.map(|bytes| bytes.len())) });
            Response::new(204)
        }
    }));
    let url = format!("http://{address}/");
    for shuts_down in [false, true] {
        for is_dropped in [true, false] {
            let (mut sender, body) = Body::channel();
            let request = Request::post(&url, body);
            let response = Connector::new().http2(true).request(request).await.unwrap();
            assert_eq!((response.version, response.status), (Version::Http2, 204));
            let closing = tokio::spawn(async move {
                if is_dropped { drop(response) } else { response.close().await.unwrap() }
            });
            if shuts_down {
                handle.shut_down();
            }
            for _ in 0..10 {
                sender.send(vec![7; 100_000]).await.unwrap();
            }
            drop(sender);
            assert_eq!(received.recv().await, Some(Ok(1_000_000)), "{shuts_down} {is_dropped}");
            closing.await.unwrap();
            if shuts_down {
                break;
            }
        }
    }
}

// RFC 9113 §8.1.1, §8.2.2.
#[tokio::test]
async fn a_malformed_response_fails_with_that_reason() {
    let script = |core: &mut Connection, event: ScriptEvent<'_>| {
        let ScriptEvent::Request(request) = event else { return };
        let fields = [Field::known(Token::Status, b"200"), Field::new(b"connection", b"close")];
        core.send_response(request.stream, fields, true).unwrap();
    };
    let http2 = connect(scripted::serve(Config::new(Role::Server), script).await).await;
    let failed = http2.request(Request::get("/")).await.unwrap_err();
    let (violation, scope) = (Violation::ConnectionField, Scope::Stream(StreamId::FIRST_CLIENT));
    assert_eq!(failed, Error::Http(HttpError::Http2(CoreError::Peer { violation, scope })));
    assert!(http2.is_open());
}

// The response is complete. RFC 9113 §8.1: with NO_ERROR the server asks for no more of the request.
#[tokio::test]
async fn close_reports_content_that_was_not_sent_to_its_end() {
    let mut config = Config::new(Role::Server);
    // The window is never opened again.
    config.settings.initial_window_size = 1_000;
    config.auto_release = false;
    let script = |core: &mut Connection, event: ScriptEvent<'_>| {
        let ScriptEvent::Request(request) = event else { return };
        let refused = request.path.starts_with("/refused");
        core.send_response(request.stream, status(if refused { b"403" } else { b"204" }), true).unwrap();
        match request.path.trim_start_matches("/refused") {
            "/enough" => core.reset(request.stream, ErrorCode::NO_ERROR).unwrap(),
            "/reset" => core.reset(request.stream, ErrorCode::INTERNAL_ERROR).unwrap(),
            _ => {}
        }
    };
    let address = scripted::serve(config, script).await;
    let mut client = Config::new(Role::Client);
    client.limits.stall_timeout = Duration::from_millis(300);
    let connector = Connector::new().http2(true).http2_config(client);
    let lost = Err(Error::Http(HttpError::ConnectionLost));
    let reset = |code| Err(Error::Http(HttpError::StreamReset(code)));
    let (exceeded, scope) = (Exceeded::Stalled, Scope::Stream(StreamId::FIRST_CLIENT));
    let stalled = Err(Error::Http(HttpError::Http2(CoreError::Limit { exceeded, scope })));
    for (path, len, expected) in [
        ("/abort", 50, lost),
        ("/enough", 2_000, Ok(())),
        ("/reset", 2_000, reset(ErrorCode::INTERNAL_ERROR)),
        ("/stall", 2_000, stalled),
        ("/all", 1_000, Ok(())),
        ("/refused/abort", 50, Ok(())),
        ("/refused/reset", 2_000, Ok(())),
    ] {
        for is_stream in [false, true] {
            let (mut body, mut sender) = (Body::from(vec![7; len]), None);
            if is_stream {
                let (producer, content) = Body::channel();
                (body, sender) = (content, Some(producer));
            } else if path.ends_with("/abort") {
                continue;
            }
            let request = Request::post(format!("http://{address}{path}"), body);
            let response = connector.request(request).await.unwrap();
            if let Some(mut sender) = sender {
                // Fails once the stream is reset.
                let _ = sender.send(vec![7; len]).await;
                if path.ends_with("/abort") {
                    sender.abort();
                }
            }
            let closed = tokio::time::timeout(Duration::from_secs(20), response.close()).await.unwrap();
            assert_eq!(closed, expected, "{path} {is_stream}");
        }
    }
    let (mut sender, body) = Body::channel();
    let request = Request::post(format!("http://{address}/"), body).header("content-length", "100");
    let response = connector.request(request).await.unwrap();
    sender.send(vec![7; 50]).await.unwrap();
    drop(sender);
    let closed = response.close().await;
    assert!(matches!(closed, Err(Error::Http(HttpError::Http2(_)))), "{closed:?}");
}

// The last stream ends the connection with its response.
#[tokio::test]
async fn content_that_was_sent_stays_so_when_the_connection_ends() {
    let script = |core: &mut Connection, event: ScriptEvent<'_>| {
        let ScriptEvent::Data(stream, _, true) = event else { return };
        core.send_response(stream, status(b"204"), true).unwrap();
    };
    let address = scripted::serve(Config::new(Role::Server), script).await;
    for _ in 0..20 {
        let http2 = connect(address).await;
        let exchange = http2.send(Request::post(format!("http://{address}/"), vec![7; 50])).unwrap();
        http2.shut_down();
        let response = exchange.response().await.unwrap();
        assert_eq!(response.status, 204);
        assert_eq!(response.close().await, Ok(()));
    }
}

// The server has answered early, and grants no more window.
#[tokio::test]
async fn content_that_was_queued_is_lost_with_the_connection() {
    let mut config = Config::new(Role::Server);
    config.settings.initial_window_size = 1_000;
    config.auto_release = false;
    let script = |core: &mut Connection, event: ScriptEvent<'_>| match event {
        ScriptEvent::Request(request) if request.path == "/end" => core.handle_disconnect(),
        ScriptEvent::Request(request) => core.send_response(request.stream, status(b"204"), true).unwrap(),
        _ => {}
    };
    let http2 = connect(scripted::serve(config, script).await).await;
    let exchange = http2.send(Request::post("/", vec![7; 2_000])).unwrap();
    let response = exchange.response().await.unwrap();
    http2.send(Request::get("/end")).unwrap().response().await.unwrap_err();
    assert_eq!(response.close().await, Err(Error::Http(HttpError::ConnectionLost)));
}

#[tokio::test]
async fn sends_and_receives_trailers() {
    let http2 = connect(serve().await).await;
    let (mut sender, body) = Body::channel();
    let exchange = http2.send(Request::post("/trailers", body)).unwrap();
    sender.send("content").await.unwrap();
    let mut trailers = Headers::new();
    trailers.push("X-Sum", "7").unwrap();
    sender.finish(trailers).await.unwrap();
    let mut response = exchange.response().await.unwrap();
    assert_eq!(response.body.bytes().await.unwrap(), "");
    assert_eq!(response.body.trailers().unwrap().get("x-sum"), Some(&b"7"[..]));
}

// The limit of the client, whatever the server sends.
#[tokio::test]
async fn bounds_the_size_of_a_response() {
    let http2 = connect(serve().await).await;
    let mut response = http2.request(Request::get("/endless")).await.unwrap();
    assert!(response.body.chunk().await.unwrap().is_some());
    let mut limited = http2.request(Request::get("/endless")).await.unwrap();
    limited.body = limited.body.with_len_max(100_000);
    assert_eq!(limited.body.bytes().await, Err(HttpError::TooLarge));
    drop(limited);
    // Neither blocks other requests.
    assert!(text(&http2, Request::get("/request")).await.starts_with("GET /request"));
}

// As a reverse proxy does.
#[tokio::test]
async fn a_response_can_be_forwarded() {
    let behind = connect(serve().await).await;
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    tokio::spawn(server.serve(move |request: wireloom::Request| {
        let behind = behind.clone();
        async move {
            let asked = Request::new(request.method(), request.target()).with_body(request.into_body());
            behind.request(asked).await.map(Response::from)
        }
    }));
    let http2 = connect(address).await;
    let much = vec![7; 3_000_000];
    let mut response = http2.request(Request::post("/echo", much.clone())).await.unwrap();
    assert_eq!(response.headers.get("content-type"), Some(&b"application/octet-stream"[..]));
    assert!(response.body.bytes().await.unwrap() == much);
    assert_eq!(http2.request(Request::get("/nothing")).await.unwrap().status, 404);
}

// RFC 9110 §8.6, §9.3.2: the length of content that is not sent, however long it would be.
#[tokio::test]
async fn a_response_to_head_can_be_forwarded() {
    const LEN: u64 = 1 << 40;
    let script = |core: &mut Connection, event: ScriptEvent<'_>| {
        if let ScriptEvent::Request(request) = event {
            let len = LEN.to_string();
            let fields =
                status(b"200").into_iter().chain([Field::known(Token::ContentLength, len.as_bytes())]);
            core.send_response(request.stream, fields, true).unwrap();
        }
    };
    let by_http2 = scripted::serve(Config::new(Role::Server), script).await;
    let (by_http1, _) = raw_server(b"HTTP/1.1 200 OK\r\nContent-Length: 1099511627776\r\n\r\n").await;
    for (behind, is_http1) in [(by_http2, false), (by_http1, true)] {
        let server = Server::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        tokio::spawn(server.serve(move |_: wireloom::Request| async move {
            let request = Request::new("HEAD", format!("http://{behind}/"));
            Connector::new().http1_only(is_http1).http2(!is_http1).request(request).await.map(Response::from)
        }));
        let mut response = connect(address).await.request(Request::new("HEAD", "/")).await.unwrap();
        assert_eq!(response.headers.get("content-length"), Some(LEN.to_string().as_bytes()), "{is_http1}");
        assert_eq!(response.body.len_hint(), Some(LEN));
        assert_eq!(response.body.bytes().await.unwrap(), "");
    }
}

// RFC 9110 §7.6.1, RFC 9113 §8.2.2: fields of a connection of HTTP/1.1 are not forwarded.
#[tokio::test]
async fn a_response_of_http1_can_be_forwarded() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nX-End: 2\r\n\
        Keep-Alive: timeout=5\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nKeep-Alive: 1\r\nX-Sum: 3\r\n\r\n";
    let (behind, _) = raw_server(RESPONSE).await;
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    tokio::spawn(server.serve(move |_: wireloom::Request| async move {
        let request = Request::get(format!("http://{behind}/"));
        Connector::new().http1_only(true).request(request).await.map(Response::from)
    }));
    let mut response = connect(address).await.request(Request::get("/")).await.unwrap();
    assert_eq!(response.headers.get("x-end"), Some(&b"2"[..]));
    assert_eq!(response.headers.get("x-hop"), None);
    assert_eq!(response.body.bytes().await.unwrap(), "hi");
    let trailers = response.body.trailers().unwrap();
    assert_eq!(trailers.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["x-sum"]);
    // Over HTTP/1.1 the server writes its own.
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    assert_eq!(response.to_lowercase().matches("transfer-encoding").count(), 1, "{response}");
    assert!(!response.to_lowercase().contains("keep-alive"), "{response}");
}

// RFC 9110 §10.1.1.
#[tokio::test]
async fn content_waits_for_100_continue() {
    let came = Arc::new(AtomicUsize::new(0));
    let counted = came.clone();
    let script = move |core: &mut Connection, event: ScriptEvent<'_>| match event {
        ScriptEvent::Request(request) => match &*request.path {
            "/continue" => core.send_informational(request.stream, status(b"100")).unwrap(),
            "/refuse" => core.send_response(request.stream, status(b"417"), true).unwrap(),
            "/explain" => {
                core.send_response(request.stream, status(b"413"), false).unwrap();
                core.send_data(request.stream, vec![b'x'; 40_000_000], true).unwrap();
            }
            _ => {}
        },
        ScriptEvent::Data(stream, data, end) => {
            counted.fetch_add(data.len(), Ordering::SeqCst);
            if end {
                answer(core, stream);
            }
        }
        ScriptEvent::Reset(_) => {}
    };
    let http2 = connect(scripted::serve(Config::new(Role::Server), script).await).await;
    let upload = |path| Request::post(path, "12345").header("Expect", "100-continue");
    assert_eq!(http2.request(upload("/continue")).await.unwrap().status, 200);
    assert_eq!(came.swap(0, Ordering::SeqCst), 5);
    let mut refused = http2.request(upload("/refuse")).await.unwrap();
    assert_eq!((refused.status, refused.body.bytes().await.unwrap().len()), (417, 0));
    assert_eq!(came.load(Ordering::SeqCst), 0);
    // The body alone keeps the stream open.
    let mut body = http2.request(upload("/explain")).await.unwrap().body;
    assert_eq!(body.bytes().await.unwrap().len(), 40_000_000);
    assert_eq!(came.load(Ordering::SeqCst), 0);
    // A server that sends nothing receives it after a while.
    assert_eq!(http2.request(upload("/silent")).await.unwrap().status, 200);
    assert_eq!(came.swap(0, Ordering::SeqCst), 5);
    // So it is when the future is dropped again and again meanwhile.
    let mut silent = http2.send(upload("/silent")).unwrap();
    for _ in 0..15 {
        let _ = tokio::time::timeout(Duration::from_millis(100), silent.informational()).await;
    }
    assert_eq!(came.load(Ordering::SeqCst), 5);
}

#[tokio::test]
async fn content_that_ended_while_its_request_waited_to_open_is_sent() {
    let mut config = Config::new(Role::Server);
    config.settings.max_concurrent_streams = 1;
    let script = |core: &mut Connection, event: ScriptEvent<'_>| match event {
        ScriptEvent::Request(request) if request.path == "/waits" => answer(core, request.stream),
        ScriptEvent::Data(stream, _, true) => answer(core, stream),
        _ => {}
    };
    for has_trailers in [false, true] {
        let http2 = connect(scripted::serve(config, script).await).await;
        let (first_sender, first) = Body::channel();
        let first = http2.send(Request::post("/first", first)).unwrap();
        let (sender, body) = Body::channel();
        let waiting = http2.send(Request::post("/waits", body)).unwrap();
        if has_trailers {
            let mut trailers = Headers::new();
            trailers.push("a", "b").unwrap();
            sender.finish(trailers).await.unwrap();
        } else {
            drop(sender);
        }
        // Its end is queued.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        drop(first_sender);
        assert_eq!(first.response().await.unwrap().status, 200);
        let response = waiting.response().await.unwrap();
        let closed = tokio::time::timeout(Duration::from_secs(20), response.close()).await;
        assert_eq!(closed, Ok(Ok(())), "{has_trailers}");
    }
}

#[tokio::test]
async fn a_content_length_that_the_body_breaks_is_the_callers_error() {
    use wireloom::wireloom_http2::error::{Error as CoreError, Misuse};
    let http2 = connect(serve().await).await;
    let (mut sender, streamed) = Body::channel();
    tokio::spawn(async move {
        let _ = sender.send("hello").await;
        sender.finish(Headers::new()).await
    });
    // In one piece and streamed, too short and too long: not a reset by the server.
    for (len, body) in [("10", Body::from("hello")), ("3", Body::from("hello")), ("10", streamed)] {
        let request = Request::post("/echo", body).header("content-length", len);
        let answer = match http2.request(request).await {
            Ok(mut response) => response.body.bytes().await.map(drop).map_err(Error::from),
            Err(error) => Err(error),
        };
        let is_misuse = matches!(
            answer,
            Err(Error::Http(HttpError::Http2(CoreError::Misuse(Misuse::ContentLengthMismatch))))
        );
        assert!(is_misuse, "{len}: {answer:?}");
    }
}

/// Content whose destructor uses the connection that sends it.
struct Asking {
    http2: Http2,
    content: Vec<u8>,
    dropped: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for Asking {
    fn as_ref(&self) -> &[u8] {
        &self.content
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.http2.is_open();
        self.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn content_may_use_its_connection_when_it_is_dropped() {
    let http2 = connect(serve().await).await;
    let dropped = Arc::new(AtomicUsize::new(0));
    let mut sent = 0;
    // Copied to the output, sent by reference, and more than the windows.
    for len in [10, 10_000, 1 << 20] {
        let content = || {
            let content = vec![7; len];
            bytes::Bytes::from_owner(Asking { http2: http2.clone(), content, dropped: dropped.clone() })
        };
        let mut response = http2.request(Request::post("/echo", content())).await.unwrap();
        assert_eq!(response.body.bytes().await.unwrap().len(), len);
        // Cancelled, and sent to a handler that does not read it.
        drop(http2.send(Request::post("/echo", content())).unwrap());
        let stream = futures_util::stream::iter([Ok::<_, HttpError>(content()), Ok(content())]);
        let response = http2.request(Request::post("/none", Body::from_stream(stream))).await.unwrap();
        assert_eq!(response.status, 404);
        sent += 4;
    }
    while dropped.load(Ordering::SeqCst) < sent {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(http2.is_open());
}
