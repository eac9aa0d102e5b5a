//! How a connection begins, and how it ends.

use std::sync::atomic::Ordering;
use std::time::Duration;

use wireloom::client::Request;
use wireloom::wireloom_http2::error::ErrorCode;
use wireloom::wireloom_http2::{Config, Connection, Role};
use wireloom::{Body, Connector, Error, HttpError, Keepalive, Server, Version};

use super::super::scripted::{self, ScriptEvent};
use super::{connect, frames, handle, raw_server, serve, text};

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
