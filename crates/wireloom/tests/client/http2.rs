//! Requests and WebSockets over HTTP/2.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use wireloom::client::{Http2, Request};
use wireloom::wireloom_http2::error::ErrorCode;
use wireloom::wireloom_http2::field::{Field, Token};
use wireloom::wireloom_http2::{Config, Connection, Role, StreamKey};
use wireloom::{
    Body, CloseCode, Connector, DeflateConfig, Error, Headers, HttpError, Keepalive, Response, Server,
    Version, WebSocket, WebSocketError,
};

use super::scripted::{self, ScriptEvent};
use super::{polled, received_request};

/// A server that also answers requests.
async fn serve() -> SocketAddr {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    tokio::spawn(server.serve(handle));
    address
}

pub(super) async fn handle(mut request: wireloom::Request) -> Result<Response, Error> {
    if request.is_websocket() {
        return Ok(super::handle(request).await);
    }
    Ok(match request.path() {
        // The request and its fields.
        "/request" => {
            let headers: Vec<String> = request
                .headers()
                .map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value)))
                .collect();
            Response::text(200, format!("{} {} {}", request.method(), request.target(), headers.join(", ")))
        }
        "/echo" => Response::new(200).with_body("application/octet-stream", request.into_body()),
        "/trailers" => {
            while request.body_mut().chunk().await?.is_some() {}
            let trailers = request.body_mut().trailers().unwrap_or_default();
            let (sender, body) = Body::channel();
            tokio::spawn(sender.finish(trailers));
            Response::new(200).with_body("text/plain", body)
        }
        "/endless" => {
            let (mut sender, body) = Body::channel();
            tokio::spawn(async move { while sender.send(vec![7; 10_000]).await.is_ok() {} });
            Response::new(200).with_body("text/plain", body)
        }
        _ => Response::not_found(),
    })
}

async fn connect(address: SocketAddr) -> Http2 {
    Connector::new().connect_http2(&format!("http://{address}")).await.unwrap()
}

async fn text(http2: &Http2, request: Request) -> String {
    let mut response = http2.request(request).await.unwrap();
    String::from_utf8(response.body.bytes().await.unwrap().to_vec()).unwrap()
}

// RFC 9113 §8.3.1, as the server receives it: `:authority` instead of Host, and a path that is never empty.
#[tokio::test]
async fn requests_have_the_pseudo_fields_and_no_host() {
    let (sender, mut received) = mpsc::unbounded_channel();
    let script = move |core: &mut Connection, event: ScriptEvent<'_>| {
        if let ScriptEvent::Request(request) = event {
            sender.send(request.fields.clone()).unwrap();
            core.send_response(request.stream, status(b"204"), true).unwrap();
        }
    };
    let address = scripted::serve(Config::new(Role::Server), script).await;
    let http2 = connect(address).await;
    for (method, resource, path) in [
        ("GET", "/a?b", "/a?b"),
        ("GET", "", "/"),
        ("GET", "?a=b#c", "/?a=b"),
        ("OPTIONS", "", "*"),
        ("OPTIONS", "#a", "*"),
        ("OPTIONS", "/", "/"),
        ("OPTIONS", "?a", "/?a"),
    ] {
        let url = format!("http://anna:x@{address}{resource}");
        assert_eq!(http2.request(Request::new(method, url)).await.unwrap().status, 204);
        let fields = received.recv().await.unwrap();
        let authority = address.to_string();
        let pseudo = [(":method", method), (":scheme", "http"), (":authority", &authority), (":path", path)];
        let seen: Vec<_> = fields.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(seen[..4], pseudo, "{method} {resource}");
        assert!(seen[4..].iter().all(|(name, _)| !name.starts_with(':') && *name != "host"), "{seen:?}");
    }
}

#[tokio::test]
async fn sends_the_target_and_the_fields() {
    let address = serve().await;
    let connector = Connector::new().header("X-All", "1").header("X-Both", "all");
    let http2 = connector.connect_http2(&format!("http://anna:x@{address}/ignored")).await.unwrap();
    let asked = text(&http2, Request::get("/request?a#b").header("X-Both", "one")).await;
    for part in ["GET /request?a ", "x-all: 1", "authorization: Basic YW5uYTp4", "x-both: one"] {
        assert!(asked.contains(part), "{part}: {asked}");
    }
    assert!(asked.contains(&format!("host: {address}")) && !asked.contains("x-both: all"), "{asked}");
    let post = text(&http2, Request::post(format!("http://{address}/request"), "hello")).await;
    assert!(post.starts_with("POST /request ") && post.contains("content-length: 5"), "{post}");
    // Each URL with its own credentials.
    let others = text(&http2, Request::get(format!("http://ben:y@{address}/request"))).await;
    assert!(others.contains("authorization: Basic YmVuOnk=") && others.contains("x-all: 1"), "{others}");
    assert!(!others.contains("YW5uYTp4"), "{others}");
    assert_eq!(http2.request(Request::get("/nothing")).await.unwrap().status, 404);
    let head = http2.request(Request::new("HEAD", "/request")).await.unwrap();
    assert!(head.headers.get("content-length").is_some());
    assert_eq!(http2.peer(), Some(address));
    let other = http2.request(Request::get("http://other.example/")).await.unwrap_err();
    assert!(matches!(other, Error::InvalidUrl(_)), "{other:?}");
    // RFC 9113 §8.2.1, §8.2.2, §8.3.1.
    for (name, value) in
        [("a b", ""), ("a", "b\r\nc: d"), ("Connection", "close"), ("TE", "gzip"), ("Host", "a")]
    {
        let bad = http2.request(Request::get("/").header(name, value)).await.unwrap_err();
        assert_eq!(bad, Error::Http(HttpError::InvalidHeader), "{name}");
    }
    // RFC 9110 §9.1, RFC 9113 §8.5.
    for method in ["", "A B", "G\r\nX: y", "CONNECT"] {
        assert_eq!(
            http2.send(Request::new(method, "/")).unwrap_err(),
            Error::Http(HttpError::InvalidHeader),
            "{method}"
        );
    }
    let all =
        Connector::new().header("Upgrade", "h2c").connect_http2(&format!("http://{address}")).await.unwrap();
    assert_eq!(all.request(Request::get("/")).await.unwrap_err(), Error::Http(HttpError::InvalidHeader));
    // On a connection that is opened for it.
    let request = Request::get(format!("http://{address}/nothing"));
    assert_eq!(Connector::new().request(request).await.unwrap().status, 404);
}

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
    for (path, len, expected) in [
        ("/abort", 50, lost),
        ("/enough", 2_000, Ok(())),
        ("/reset", 2_000, reset(ErrorCode::INTERNAL_ERROR)),
        ("/stall", 2_000, reset(ErrorCode::ENHANCE_YOUR_CALM)),
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

#[tokio::test]
async fn sends_many_requests_at_once() {
    let http2 = connect(serve().await).await;
    let mut tasks = tokio::task::JoinSet::new();
    // More than the server allows at a time.
    for count in 0..1000usize {
        let http2 = http2.clone();
        tasks.spawn(async move {
            let body = vec![count as u8; count * 10];
            let mut response = http2.request(Request::post("/echo", body.clone())).await.unwrap();
            assert!(response.body.bytes().await.unwrap() == body);
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
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

#[tokio::test]
async fn opens_many_websockets_over_one_connection() {
    let address = serve().await;
    let connector = Connector::new().deflate(DeflateConfig::default()).header("X-Key", "y");
    let http2 = connector.connect_http2(&format!("ws://{address}")).await.unwrap();
    assert!(http2.takes_websockets());
    let mut sockets = Vec::new();
    for count in 0..50 {
        let mut socket = http2.websocket(&format!("/{count}")).await.unwrap();
        assert!(received_request(&mut socket).await.starts_with(&format!("/{count} ")));
        sockets.push(socket);
    }
    drop(http2);
    for (count, socket) in sockets.iter_mut().enumerate() {
        let message = format!("{count} ").repeat(10_000);
        socket.send(&message).await.unwrap();
        assert_eq!(socket.recv().await.unwrap().unwrap().as_text(), Some(&*message));
    }
    for mut socket in sockets {
        socket.close(wireloom::CloseCode::NORMAL, "").await.unwrap();
        assert_eq!(socket.end().unwrap().code(), wireloom::CloseCode::NORMAL);
    }
}

// RFC 9113 §5.2: an unread tunnel stalls its own sender only.
#[tokio::test]
async fn an_unread_websocket_does_not_stall_others() {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    tokio::spawn(server.serve(|request: wireloom::Request| async move {
        let floods = request.path() == "/flood";
        match request.websocket() {
            Ok(upgrade) => upgrade.on_open(move |mut socket| async move {
                while floods && socket.send(vec![1; 10_000]).await.is_ok() {}
                while let Ok(Some(message)) = socket.recv_owned().await {
                    let _ = socket.send(message).await;
                }
            }),
            Err(refusal) => refusal,
        }
    }));
    let http2 = connect(address).await;
    let mut floods = Vec::new();
    for _ in 0..5 {
        floods.push(http2.websocket("/flood").await.unwrap());
    }
    let mut socket = http2.websocket("/echo").await.unwrap();
    for len in [1, 1000, 1_000_000] {
        let message = vec![2; len];
        socket.send(&message).await.unwrap();
        assert!(socket.recv().await.unwrap().unwrap().as_bytes() == message);
    }
    for flood in &mut floods {
        for _ in 0..100 {
            assert_eq!(flood.recv().await.unwrap().unwrap().as_bytes().len(), 10_000);
        }
    }
}

// A reset of the stream would drop both frames before they are written.
#[tokio::test]
async fn a_dropped_websocket_sends_its_messages_and_its_close_code() {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let (report, mut reports) = mpsc::unbounded_channel();
    tokio::spawn(server.serve(move |request: wireloom::Request| {
        let report = report.clone();
        async move {
            match request.websocket() {
                Ok(upgrade) => upgrade.on_open(move |mut socket| async move {
                    let len = socket.recv().await.map(|message| message.unwrap().as_bytes().len());
                    let next = socket.recv_owned().await;
                    report.send((len, next, socket.end().unwrap().code())).unwrap();
                }),
                Err(refusal) => refusal,
            }
        }
    }));
    let http2 = connect(address).await;
    for driven in [false, true] {
        let mut socket = http2.websocket("/").await.unwrap();
        socket.close_on_drop(CloseCode::new(4000));
        let send = async |mut socket: WebSocket| socket.send("x".repeat(50_000)).await;
        let sent = if driven { socket.drive(send).await } else { send(socket).await };
        sent.unwrap();
        assert_eq!(reports.recv().await, Some((Ok(50_000), Ok(None), CloseCode::new(4000))));
    }
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

#[tokio::test]
async fn negotiates_as_over_http1() {
    let mut config = wireloom::ServerConfig::default();
    config.deflate = Some(DeflateConfig::default());
    let server = Server::bind("127.0.0.1:0").await.unwrap().config(config);
    let address = server.local_addr().unwrap();
    tokio::spawn(server.serve(|request: wireloom::Request| async move {
        match request.websocket() {
            Ok(upgrade) => upgrade.subprotocols(&["chat"]).on_open(|mut socket| async move {
                while let Ok(Some(message)) = socket.recv_owned().await {
                    let _ = socket.send(message).await;
                }
            }),
            Err(refusal) => refusal,
        }
    }));
    let connector =
        Connector::new().subprotocol("other").subprotocol("chat").deflate(DeflateConfig::default());
    let http2 = connector.connect_http2(&format!("ws://{address}")).await.unwrap();
    let mut socket = http2.websocket("/").await.unwrap();
    assert_eq!((socket.subprotocol(), socket.is_compressed()), (Some("chat"), true));
    let text = "the same again, ".repeat(10_000);
    for _ in 0..3 {
        socket.send(&text).await.unwrap();
        assert_eq!(socket.recv().await.unwrap().unwrap().as_text(), Some(&*text));
    }
    // Another connector negotiates for itself.
    let plain = http2.with_connector(&Connector::new()).unwrap().websocket("/").await.unwrap();
    assert_eq!((plain.subprotocol(), plain.is_compressed()), (None, false));
}

#[tokio::test]
async fn open_follows_redirects_over_http2() {
    let address = serve().await;
    let connector = Connector::new().http2(true).redirects_max(1).header("Authorization", "x");
    let opened = connector.open(&format!("ws://{address}/?to=/z")).await.unwrap();
    assert_eq!((opened.version, opened.status), (Version::Http2, 200));
    let mut socket = opened.socket;
    assert!(received_request(&mut socket).await.starts_with("/z authorization: x"));
    socket.send("hello").await.unwrap();
    assert_eq!(socket.recv().await.unwrap().unwrap().as_text(), Some("hello"));
    let refused = connector.clone().redirects_max(0).connect(&format!("ws://{address}/?to=/z")).await;
    assert!(matches!(refused, Err(Error::Refused(response)) if response.status() == 307));
}

// RFC 9113 §6.7.
#[tokio::test]
async fn detects_a_dead_server() {
    let keepalive =
        Keepalive { ping_after: Duration::from_millis(100), dead_after: Duration::from_millis(1500) };
    let connector = Connector::new().http2_keepalive(keepalive);

    // A live server is pinged, with a pending request and without one.
    let address = serve().await;
    let http2 = connector.connect_http2(&format!("http://{address}")).await.unwrap();
    let (sender, body) = Body::channel();
    let waiting = http2.send(Request::post("/echo", body)).unwrap();
    let mut response = waiting.response().await.unwrap();
    let waited = tokio::time::timeout(keepalive.dead_after * 2, response.body.chunk()).await;
    assert!(waited.is_err());
    drop(sender);
    assert_eq!(response.body.chunk().await.unwrap(), None);
    assert!(http2.is_open());
    assert!(text(&http2, Request::get("/request")).await.starts_with("GET /request"));

    // A server that sends SETTINGS and nothing else.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = tokio::spawn(async move {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"\0\0\0\x04\0\0\0\0\0\0\0\0\x04\x01\0\0\0\0").await.unwrap();
        let mut bytes = Vec::new();
        // The connection is closed.
        let _ = stream.read_to_end(&mut bytes).await;
        bytes.windows(9).filter(|header| header == b"\0\0\x08\x06\0\0\0\0\0").count()
    });
    let http2 = connector.connect_http2(&format!("http://{address}")).await.unwrap();
    let waiting = http2.send(Request::get("/")).unwrap();
    let answer = tokio::time::timeout(Duration::from_secs(20), waiting.response()).await.unwrap();
    assert_eq!(answer.unwrap_err(), Error::Http(HttpError::KeepaliveTimeout));
    assert!(!http2.is_open());
    assert_eq!(asked.await.unwrap(), 1);
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn negotiates_http2_by_alpn() {
    use wireloom::{ClientTls, ServerTls};

    let (tls, certificate) = ServerTls::self_signed(&["localhost"]).unwrap();
    let server = Server::bind("127.0.0.1:0").await.unwrap().tls(tls);
    let port = server.local_addr().unwrap().port();
    tokio::spawn(server.serve(handle));
    let connector = Connector::new()
        .tls(ClientTls::default().with_root(certificate.der()))
        .resolve("localhost", ["127.0.0.1:0".parse().unwrap()]);
    let http2 = connector.connect_http2(&format!("https://localhost:{port}")).await.unwrap();
    assert_eq!(http2.tls().unwrap().alpn.as_deref(), Some(&b"h2"[..]));
    assert!(text(&http2, Request::get("/request")).await.starts_with("GET /request"));
    assert!(http2.websocket("/").await.is_ok());
    // The same client over HTTP/1.1.
    let opened = connector.open(&format!("wss://localhost:{port}/")).await.unwrap();
    assert_eq!(
        (opened.version, opened.tls.unwrap().alpn.as_deref()),
        (Version::Http11, Some(&b"http/1.1"[..]))
    );
    assert!(connector.http2(true).connect(&format!("wss://localhost:{port}/")).await.is_ok());
}

#[tokio::test]
async fn reports_a_server_without_http2() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        use tokio::io::AsyncWriteExt as _;
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
    });
    let failed = Connector::new().connect_http2(&format!("http://{address}")).await;
    let error = failed.unwrap_err();
    assert!(matches!(error, Error::NoHttp2(Some(_))), "{error:?}");
    assert!(std::error::Error::source(&error).is_some());
}

/// Accepts connections, sends `bytes` on each, and counts the connections.
async fn raw_server(bytes: &'static [u8]) -> (SocketAddr, Arc<AtomicUsize>) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let accepted = Arc::new(AtomicUsize::new(0));
    let count = accepted.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            stream.write_all(bytes).await.unwrap();
            stream.shutdown().await.unwrap();
            let _ = stream.read_to_end(&mut Vec::new()).await;
        }
    });
    (address, accepted)
}

const SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0";

#[tokio::test]
async fn falls_back_to_http1_only_when_the_first_bytes_are_not_http2() {
    for (bytes, is_http2) in [
        // SETTINGS, and a PING of seven bytes.
        (&b"\0\0\0\x04\0\0\0\0\0\0\0\x07\x06\0\0\0\0\0seven__"[..], true),
        // SETTINGS of five bytes.
        (b"\0\0\x05\x04\0\0\0\0\0\0\0\0\0\0", true),
        // SETTINGS, and the end.
        (SETTINGS, true),
        // Half of SETTINGS.
        (b"\0\0\x06\x04\0\0", true),
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", false),
        (b"SSH-2.0-OpenSSH_9.2\r\n", false),
        (b"", false),
    ] {
        let (address, accepted) = raw_server(bytes).await;
        let request = Request::get(format!("http://{address}/"));
        let outcome = match Connector::new().http2(true).send(request).await {
            Ok(exchange) => exchange.response().await.map(|response| response.status),
            Err(error) => Err(error),
        };
        let connections = if is_http2 { 1 } else { 2 };
        let sent = bytes.escape_ascii();
        assert_eq!(accepted.load(Ordering::SeqCst), connections, "{sent}: {outcome:?}");
        if is_http2 {
            let expected = match &outcome {
                // The end may arrive before the request is sent, or after it.
                Err(Error::Http(HttpError::NotProcessed)) => true,
                Err(Error::Http(HttpError::ConnectionLost)) => {
                    bytes == SETTINGS || bytes.len() < SETTINGS.len()
                }
                Err(Error::Http(HttpError::Http2(_))) => bytes.len() > SETTINGS.len(),
                _ => false,
            };
            assert!(expected, "{sent}: {outcome:?}");
        } else {
            assert_eq!(outcome.is_ok(), bytes.starts_with(b"HTTP"), "{sent}: {outcome:?}");
        }
    }
}

/// Reads frames until the end of the stream: their types, flags and payloads.
async fn frames(stream: &mut (impl tokio::io::AsyncRead + Unpin), until: u8) -> Vec<(u8, u8, Vec<u8>)> {
    use tokio::io::AsyncReadExt as _;
    let mut frames = Vec::new();
    let mut header = [0; 9];
    while stream.read_exact(&mut header).await.is_ok() {
        let mut payload = vec![0; usize::from(header[2]) + usize::from(header[1]) * 256];
        stream.read_exact(&mut payload).await.unwrap();
        frames.push((header[3], header[4], payload));
        if header[3] == until {
            break;
        }
    }
    frames
}

const PING: u8 = 6;
const GOAWAY: u8 = 7;
const END: u8 = 255;

// RFC 9113 §6.8.
#[tokio::test]
async fn a_client_that_closes_sends_goaway_and_waits_for_the_answer() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    for answers in [true, false] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(SETTINGS).await.unwrap();
            stream.read_exact(&mut [0; 24]).await.unwrap();
            let before = frames(&mut stream, PING).await;
            assert!(before.iter().any(|frame| frame.0 == GOAWAY), "{before:?}");
            if answers {
                let mut pong = vec![0, 0, 8, PING, 1, 0, 0, 0, 0];
                pong.extend_from_slice(&before.last().unwrap().2);
                stream.write_all(&pong).await.unwrap();
            }
            let after = frames(&mut stream, END).await;
            // The last stream is 0, the code NO_ERROR.
            assert!(after.iter().any(|frame| frame.0 == GOAWAY && frame.2.starts_with(&[0; 8])), "{after:?}");
        });
        let http2 = connect(address).await;
        let began = std::time::Instant::now();
        tokio::time::timeout(Duration::from_secs(20), http2.close()).await.unwrap();
        assert!(answers || began.elapsed() > Duration::from_millis(900));
        server.await.unwrap();
    }
}

// RFC 9113 §6.8.
#[tokio::test]
async fn a_client_answers_goaway_with_its_own() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(SETTINGS).await.unwrap();
        stream.read_exact(&mut [0; 24]).await.unwrap();
        stream.write_all(b"\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\0").await.unwrap();
        frames(&mut stream, END).await
    });
    let http2 = connect(address).await;
    let seen = server.await.unwrap();
    assert!(seen.iter().any(|frame| frame.0 == GOAWAY), "{seen:?}");
    assert!(!http2.is_open());
}

fn status(code: &'static [u8]) -> [Field<'static>; 1] {
    [Field::known(Token::Status, code)]
}

fn answer(core: &mut Connection, stream: StreamKey) {
    core.send_response(stream, status(b"200"), true).unwrap();
}

// RFC 9113 §6.8.
#[tokio::test]
async fn an_open_request_fails_with_the_code_of_goaway() {
    for (code, expected) in [
        (ErrorCode::ENHANCE_YOUR_CALM, Error::Http(HttpError::GoAway(ErrorCode::ENHANCE_YOUR_CALM))),
        (ErrorCode::NO_ERROR, Error::Http(HttpError::ConnectionLost)),
    ] {
        let script = move |core: &mut Connection, event: ScriptEvent<'_>| {
            if let ScriptEvent::Request(_) = event {
                core.abort(code, b"");
            }
        };
        let http2 = connect(scripted::serve(Config::new(Role::Server), script).await).await;
        assert_eq!(http2.request(Request::get("/")).await.unwrap_err(), expected);
        // Nothing of the next one is sent.
        assert_eq!(http2.request(Request::get("/")).await.unwrap_err(), Error::Http(HttpError::NotProcessed));
    }
}

#[tokio::test]
async fn an_open_websocket_fails_with_the_code_of_goaway() {
    let mut config = Config::new(Role::Server);
    config.settings.enable_connect_protocol = true;
    let script = |core: &mut Connection, event: ScriptEvent<'_>| match event {
        ScriptEvent::Request(request) => core.send_response(request.stream, status(b"200"), false).unwrap(),
        ScriptEvent::Data(..) => core.abort(ErrorCode::ENHANCE_YOUR_CALM, b""),
        ScriptEvent::Reset(_) => {}
    };
    let http2 = connect(scripted::serve(config, script).await).await;
    let mut socket = http2.websocket("/").await.unwrap();
    socket.send("hello").await.unwrap();
    assert_eq!(socket.recv().await.unwrap_err(), WebSocketError::GoAway(ErrorCode::ENHANCE_YOUR_CALM));
}

// RFC 8441 §3.
#[tokio::test]
async fn reports_a_server_without_extended_connect() {
    let address = scripted::serve(Config::new(Role::Server), |_, _| ()).await;
    let http2 = connect(address).await;
    assert_eq!(http2.websocket("/").await.unwrap_err(), Error::NoExtendedConnect);
    let easy = Connector::new().http2(true).connect(&format!("ws://{address}/")).await;
    assert_eq!(easy.unwrap_err(), Error::NoExtendedConnect);
}

// RFC 9110 §15.2.
#[tokio::test]
async fn returns_interim_responses() {
    let script = |core: &mut Connection, event: ScriptEvent<'_>| {
        if let ScriptEvent::Request(request) = event {
            let early = [Field::known(Token::Status, b"103"), Field::new(b"link", b"</style.css>")];
            core.send_informational(request.stream, early).unwrap();
            core.send_informational(request.stream, status(b"102")).unwrap();
            answer(core, request.stream);
        }
    };
    let http2 = connect(scripted::serve(Config::new(Role::Server), script).await).await;
    let mut exchange = http2.send(Request::get("/")).unwrap();
    let early = exchange.informational().await.unwrap().unwrap();
    assert_eq!((early.status, early.headers.get("link")), (103, Some(&b"</style.css>"[..])));
    assert_eq!(exchange.informational().await.unwrap().unwrap().status, 102);
    assert_eq!(exchange.informational().await, Ok(None));
    assert_eq!(exchange.informational().await, Ok(None));
    assert_eq!(exchange.response().await.unwrap().status, 200);
    assert_eq!(http2.request(Request::get("/")).await.unwrap().status, 200);
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

// RFC 9113 §8.7.
#[tokio::test]
async fn reports_which_requests_are_safe_to_retry() {
    let script = |core: &mut Connection, event: ScriptEvent<'_>| {
        let ScriptEvent::Request(request) = event else { return };
        match &*request.path {
            "/refused" => core.reset(request.stream, ErrorCode::REFUSED_STREAM).unwrap(),
            "/failed" => core.reset(request.stream, ErrorCode::INTERNAL_ERROR).unwrap(),
            "/leave" => core.shutdown(),
            "/abort" => core.abort(ErrorCode::ENHANCE_YOUR_CALM, b""),
            _ => answer(core, request.stream),
        }
    };
    let mut config = Config::new(Role::Server);
    config.settings.max_concurrent_streams = 1;
    let address = scripted::serve(config, script).await;
    let http2 = connect(address).await;
    let why = async |path| http2.request(Request::get(path)).await.unwrap_err();
    assert_eq!(why("/refused").await, Error::Http(HttpError::NotProcessed));
    assert_eq!(why("/failed").await, Error::Http(HttpError::StreamReset(ErrorCode::INTERNAL_ERROR)));
    assert!(http2.is_open());
    // GOAWAY: a request that was not sent is safe to retry; for one in flight that is unknown.
    let leaving = http2.send(Request::get("/leave")).unwrap();
    let waiting = http2.send(Request::get("/")).unwrap();
    assert_eq!(waiting.response().await.unwrap_err(), Error::Http(HttpError::NotProcessed));
    assert!(!http2.is_open());
    assert_eq!(http2.send(Request::get("/")).unwrap_err(), Error::Http(HttpError::NotProcessed));
    drop(leaving);

    let http2 = connect(address).await;
    let aborted = http2.request(Request::get("/abort")).await.unwrap_err();
    assert!(!matches!(aborted, Error::Http(HttpError::NotProcessed)), "{aborted:?}");
    assert!(!http2.is_open());
    // This one was never sent.
    assert_eq!(http2.request(Request::get("/")).await.unwrap_err(), Error::Http(HttpError::NotProcessed));
}

// RFC 9113 §8.7.
#[tokio::test]
async fn a_request_that_waited_to_open_is_safe_to_retry_after_the_connection_is_lost() {
    use tokio::io::AsyncWriteExt as _;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        // SETTINGS_MAX_CONCURRENT_STREAMS is 1. HEADERS is awaited before the connection is lost.
        stream.write_all(b"\0\0\x06\x04\0\0\0\0\0\0\x03\0\0\0\x01").await.unwrap();
        tokio::io::AsyncReadExt::read_exact(&mut stream, &mut [0; 24]).await.unwrap();
        frames(&mut stream, 1).await;
    });
    let http2 = connect(address).await;
    let sent = http2.send(Request::get("/")).unwrap();
    let waiting = http2.send(Request::get("/")).unwrap();
    assert_ne!(sent.response().await.unwrap_err(), Error::Http(HttpError::NotProcessed));
    assert_eq!(waiting.response().await.unwrap_err(), Error::Http(HttpError::NotProcessed));
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
async fn a_dropped_request_is_reset() {
    let (resets, mut reset) = mpsc::unbounded_channel();
    let script = move |_: &mut Connection, event: ScriptEvent<'_>| {
        if let ScriptEvent::Reset(stream) = event {
            resets.send(stream.id()).unwrap();
        }
    };
    let http2 = connect(scripted::serve(Config::new(Role::Server), script).await).await;
    drop(http2.send(Request::get("/")).unwrap());
    assert_eq!(reset.recv().await, Some(1));
    let waited = tokio::time::timeout(Duration::from_millis(50), http2.request(Request::get("/")));
    assert!(waited.await.is_err());
    assert_eq!(reset.recv().await, Some(3));
    // Without waiting for content that does not arrive.
    let (alive, mut dead) = mpsc::channel::<()>(1);
    let never = futures_util::stream::poll_fn(move |_| {
        let _ = &alive;
        std::task::Poll::<Option<Result<bytes::Bytes, HttpError>>>::Pending
    });
    let waited = tokio::time::timeout(
        Duration::from_millis(50),
        http2.request(Request::post("/", Body::from_stream(never))),
    );
    assert!(waited.await.is_err());
    assert_eq!((reset.recv().await, dead.recv().await), (Some(5), None));
    // An incomplete body is an error.
    let (sender, body) = Body::channel();
    let exchange = http2.send(Request::post("/", body)).unwrap();
    sender.abort();
    assert_eq!(reset.recv().await, Some(7));
    assert!(exchange.response().await.is_err());
}

#[tokio::test]
async fn closes_with_its_last_handle() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let (address, serving) = (server.local_addr().unwrap(), server.handle());
    tokio::spawn(server.serve(handle));
    let http2 = connect(address).await;
    let mut response = http2.request(Request::post("/echo", vec![7; 1_000_000])).await.unwrap();
    drop(http2);
    // A response keeps the connection open.
    assert_eq!(response.body.bytes().await.unwrap().len(), 1_000_000);
    drop(response);
    let closed = async {
        while serving.stats().connections_open > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), closed).await.unwrap();

    // RFC 9113 §9.1: GOAWAY precedes the end.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(SETTINGS).await.unwrap();
        stream.read_exact(&mut [0; 24]).await.unwrap();
        frames(&mut stream, END).await
    });
    drop(connect(address).await);
    let received = tokio::time::timeout(Duration::from_secs(60), server).await.unwrap().unwrap();
    assert!(received.iter().any(|frame| frame.0 == GOAWAY && frame.2.starts_with(&[0; 8])), "{received:?}");
}

// Wherever a future is dropped, the connection and the other streams continue.
#[tokio::test]
async fn futures_are_cancel_safe_at_every_poll() {
    let mut rng = wireloom_testing::generator();
    let http2 = connect(serve().await).await;
    let mut whole = http2.request(Request::post("/echo", vec![7; 5_000_000])).await.unwrap();
    let mut collected = 0;
    for _ in 0..300 {
        let times = rng.usize(..6);
        match rng.u8(..4) {
            0 => drop(polled(http2.websocket("/"), times).await),
            1 => drop(
                polled(http2.request(Request::post("/echo", vec![1; rng.usize(..100_000)])), times).await,
            ),
            2 => {
                let (mut sender, body) = Body::channel();
                let exchange = http2.send(Request::post("/echo", body)).unwrap();
                let _ = sender.send(vec![1; rng.usize(..50_000)]).await;
                if let Some(Ok(mut response)) = polled(exchange.response(), times).await {
                    let _ = polled(response.body.chunk(), times).await;
                }
            }
            _ => {
                if let Some(chunk) = polled(whole.body.chunk(), times).await {
                    collected += chunk.unwrap().map_or(0, |chunk| chunk.len());
                }
            }
        }
    }
    collected += whole.body.bytes().await.unwrap().len();
    assert_eq!(collected, 5_000_000);
    assert!(http2.is_open());
    assert!(text(&http2, Request::get("/request")).await.starts_with("GET /request"));
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
