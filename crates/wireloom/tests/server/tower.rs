//! Among others: an axum application on Wireloom's server and on its own, and a handler within an axum application.

use std::net::SocketAddr;

use axum::Router;
use axum::routing::{any, get, post};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use wireloom::{Body, CloseCode, Connector, DeflateConfig, Error, Request, Response, Server, ServerConfig};

use wireloom_testing::frame::upgrade_request;

use crate::ask;

/// Much longer than any step of these tests.
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

fn application() -> Router {
    Router::new()
        .route("/hello", get(|| async { ([("x-from", "axum")], "hello\n") }))
        .route("/last", get(|| async { ([("connection", "close")], "hello\n") }))
        .route("/edges", get(|| async { ([("x-edges", " a b\t")], "hello\n") }))
        .route("/length", post(|body: bytes::Bytes| async move { body.len().to_string() }))
        .route("/stream", post(|body: axum::body::Body| async move { body }))
        .route("/sized", get(sized))
        .route("/echo", any(echo))
        .route("/other", any(other))
        .route("/refused", any(refused))
        .fallback_service(wireloom::tower::service(within, ServerConfig::default()))
}

/// A stream whose length only the handler knows.
async fn sized() -> http::Response<axum::body::Body> {
    let pieces = ["he", "", "llo"].map(Ok::<_, std::io::Error>);
    let body = axum::body::Body::from_stream(futures_util::stream::iter(pieces));
    http::Response::builder().header("Content-Length", "5").body(body).unwrap()
}

/// A handler of axum.
async fn echo(mut request: axum::extract::Request) -> http::Response<Body> {
    let answer = match wireloom::tower::upgrade(&mut request) {
        Ok(upgrade) => upgrade.deflate(Some(DeflateConfig::default())).subprotocols(&["chat"]).on_open(talk),
        Err(refusal) => refusal,
    };
    answer.into()
}

/// A handler that accepts, and a layer that does not.
async fn refused(request: axum::extract::Request) -> (http::StatusCode, http::Response<Body>) {
    (http::StatusCode::FORBIDDEN, echo(request).await)
}

/// A handler for another protocol, which asks for WebSockets first.
async fn other(mut request: axum::extract::Request) -> String {
    let is_refused = wireloom::tower::upgrade(&mut request).is_err();
    format!("{is_refused} {}", request.extensions().get::<hyper::upgrade::OnUpgrade>().is_some())
}

/// A handler of this crate.
async fn within(mut request: Request) -> Result<Response, Error> {
    Ok(match request.path() {
        "/within" if request.is_websocket() => match request.websocket() {
            Ok(upgrade) => upgrade.on_open(talk),
            Err(refusal) => refusal,
        },
        "/last-within" => Response::text(200, "hello\n").close_connection(),
        "/within" => Response::new(200).with_body("text/plain", request.bytes().await?),
        _ => Response::not_found(),
    })
}

async fn talk(mut socket: wireloom::WebSocket) {
    while let Ok(Some(message)) = socket.recv_owned().await {
        if socket.send(message).await.is_err() {
            break;
        }
    }
}

async fn servers() -> [(&'static str, SocketAddr); 2] {
    let hyper = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addresses = [("hyper", hyper.local_addr().unwrap()), ("wireloom", own.local_addr().unwrap())];
    tokio::spawn(async move { axum::serve(hyper, application()).await });
    tokio::spawn(Server::new(own).serve(wireloom::tower::handler(application())));
    addresses
}

// RFC 9113 §8.2.1.
#[tokio::test]
async fn whitespace_around_a_value_is_not_sent() {
    let [_, (_, address)] = servers().await;
    let http2 = Connector::new().connect_http2(&format!("http://{address}")).await.unwrap();
    let response = http2.request(wireloom::client::Request::get("/edges")).await.unwrap();
    assert_eq!(response.headers.get("x-edges"), Some(&b"a b"[..]));
}

// As hyper's, which does not do so over HTTP/2.
#[tokio::test]
async fn an_application_ends_connections() {
    for (server, address) in servers().await {
        for path in ["/last", "/last-within"] {
            let asked = ask(address, format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
            let last = tokio::time::timeout(TIMEOUT, asked).await.expect("the connection ends");
            let lower = last.to_ascii_lowercase();
            assert!(
                lower.contains("connection: close\r\n") && lower.ends_with("hello\n"),
                "{server}: {last}"
            );
        }
    }
    let [_, (_, address)] = servers().await;
    let http2 = Connector::new().connect_http2(&format!("http://{address}")).await.unwrap();
    // RFC 9113 §8.2.2: the header has no meaning there. A service may have it from an upstream.
    for path in ["/last", "/hello", "/hello"] {
        http2.request(wireloom::client::Request::get(path)).await.unwrap();
        assert!(http2.is_open(), "{path}");
    }
    http2.request(wireloom::client::Request::get("/last-within")).await.unwrap();
    let begin = std::time::Instant::now();
    while http2.is_open() {
        assert!(begin.elapsed() < TIMEOUT, "the connection ends");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn serves_requests_of_an_application() {
    for (server, address) in servers().await {
        let hello = ask(address, "GET /hello HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
        let lower = hello.to_ascii_lowercase();
        assert!(
            hello.starts_with("HTTP/1.1 200 OK\r\n") && lower.contains("x-from: axum\r\n"),
            "{server}: {hello}"
        );
        assert!(
            lower.contains("content-length: 6\r\n") && hello.ends_with("\r\n\r\nhello\n"),
            "{server}: {hello}"
        );
        for (path, answer) in [("/length", "5"), ("/within", "01234"), ("/stream", "01234")] {
            let request = format!(
                "POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 5\r\n\r\n01234"
            );
            let answered = ask(address, &request).await;
            let whole = answered.ends_with(&format!("\r\n\r\n{answer}"));
            assert!(
                whole || answered.ends_with(&format!("\r\n{answer}\r\n0\r\n\r\n")),
                "{server}: {answered}"
            );
        }
        // RFC 9110 §9.3.2: as long as the answer to GET is.
        let head = ask(address, "HEAD /hello HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
        let lower = head.to_ascii_lowercase();
        assert!(lower.contains("content-length: 6\r\n") && head.ends_with("\r\n\r\n"), "{server}: {head}");
        for (method, content) in [("GET", "hello"), ("HEAD", "")] {
            let request = format!("{method} /sized HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
            let sized = ask(address, request).await.to_ascii_lowercase();
            assert!(
                sized.contains("content-length: 5\r\n") && !sized.contains("chunked"),
                "{server}: {sized}"
            );
            assert!(sized.ends_with(&format!("\r\n\r\n{content}")), "{server}: {sized}");
        }
        // Only hyper's requests have what they are upgraded by.
        let other = "GET /other HTTP/1.1\r\nHost: a\r\nConnection: close, Upgrade\r\nUpgrade: other\r\n\r\n";
        let other = ask(address, other).await;
        assert!(other.ends_with(&format!("true {}", server == "hyper")), "{server}: {other}");
        let nothing = ask(address, "GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
        assert!(nothing.starts_with("HTTP/1.1 404 "), "{server}: {nothing}");
    }
}

#[tokio::test]
async fn sends_the_length_to_head_over_http2() {
    for (server, address) in servers().await {
        let connection = Connector::new().connect_http2(&format!("http://{address}/")).await.unwrap();
        let response = connection.request(wireloom::client::Request::new("HEAD", "/hello")).await.unwrap();
        assert_eq!(response.headers.get("content-length"), Some(&b"6"[..]), "{server}");
        assert_eq!(response.headers.get_all("date").count(), 1, "{server}");
    }
}

#[tokio::test]
async fn opens_websockets_within_an_application() {
    for (server, address) in servers().await {
        let connector = Connector::new().subprotocol("chat").deflate(DeflateConfig::default());
        let mut socket = connector.connect(&format!("ws://{address}/echo")).await.unwrap();
        assert_eq!((socket.subprotocol(), socket.is_compressed()), (Some("chat"), true), "{server}");
        for len in [0, 5, 70_000, 1_000_000] {
            let text = "x".repeat(len);
            socket.send(&text).await.unwrap();
            assert_eq!(socket.recv().await.unwrap().unwrap().as_text(), Some(&*text), "{server}");
        }
        socket.close(CloseCode::NORMAL, "").await.unwrap();
        let mut socket = wireloom::connect(&format!("ws://{address}/within")).await.unwrap();
        socket.send("hi").await.unwrap();
        assert_eq!(socket.recv().await.unwrap().unwrap().as_text(), Some("hi"), "{server}");
        let refused = ask(address, "GET /echo HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
        assert!(refused.starts_with("HTTP/1.1 426 "), "{server}: {refused}");
    }
}

// The client sends further requests on the connection. (hyper hands it over at its end all the same.)
#[tokio::test]
async fn a_response_whose_status_was_changed_opens_nothing() {
    let [_, (_, address)] = servers().await;
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(upgrade_request("/refused").as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 403 "), "{}", String::from_utf8_lossy(&head));
    client.write_all(b"GET /hello HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("hello\n"), "{answer}");
}

// A response that accepts would be followed by the end of the connection.
#[tokio::test]
async fn a_tracker_without_memory_for_another_websocket_refuses_it() {
    for (max, expected) in [(0, 503), (1 << 20, 101)] {
        let tracker = wireloom::tower::WebSocketTracker::with_memory_max(max);
        let router = application().layer(axum::Extension(tracker.clone()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        let status = match Connector::new().open(&format!("ws://{address}/echo")).await {
            Ok(opened) => opened.status,
            Err(Error::Refused(response)) => response.status(),
            Err(error) => panic!("{error}"),
        };
        assert_eq!(status, expected);
    }
}
