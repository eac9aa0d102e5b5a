//! Requests and WebSockets over HTTP/2.

mod connection;
mod content;
mod websockets;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use wireloom::client::{Http2, Request};
use wireloom::wireloom_http2::error::ErrorCode;
use wireloom::wireloom_http2::field::{Field, Token};
use wireloom::wireloom_http2::{Config, Connection, Role, StreamKey};
use wireloom::{Body, Connector, Error, HttpError, Response, Server};

use super::polled;
use super::scripted::{self, ScriptEvent};

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

fn status(code: &'static [u8]) -> [Field<'static>; 1] {
    [Field::known(Token::Status, code)]
}

fn answer(core: &mut Connection, stream: StreamKey) {
    core.send_response(stream, status(b"200"), true).unwrap();
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
