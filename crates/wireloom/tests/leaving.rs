//! Clients that leave before they are answered: whoever works for them is stopped, over HTTP/1.1 and TLS.

#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use wireloom::{Body, Request, Response, Server, ServerTls};

/// Nothing here takes nearly as long, unless somebody waits for ever.
const PATIENCE: Duration = Duration::from_secs(60);

/// Tells when it is dropped.
struct Dropped(mpsc::UnboundedSender<&'static str>);

impl Drop for Dropped {
    fn drop(&mut self) {
        let _ = self.0.send("dropped");
    }
}

/// A server whose handler tells what becomes of it.
async fn serve(tls: Option<ServerTls>) -> (SocketAddr, mpsc::UnboundedReceiver<&'static str>) {
    let mut server = Server::bind("127.0.0.1:0").await.unwrap();
    if let Some(tls) = tls {
        server = server.tls(tls);
    }
    let address = server.local_addr().unwrap();
    let (told, tells) = mpsc::unbounded_channel();
    tokio::spawn(server.serve(move |mut request: Request| {
        let told = told.clone();
        async move {
            match request.path() {
                "/never" => {
                    let _dropped = Dropped(told.clone());
                    let _ = request.bytes().await;
                    let _ = told.send("begun");
                    std::future::pending().await
                }
                "/body" => {
                    let (mut sender, body) = Body::channel();
                    tokio::spawn(async move {
                        let _ = sender.send("first").await;
                        let _ = told.send("begun");
                        sender.closed().await;
                        let _ = told.send("dropped");
                    });
                    Response::new(200).with_body("text/plain", body)
                }
                "/socket" => {
                    let _ = told.send("begun");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    match request.websocket() {
                        Ok(upgrade) => upgrade.on_open(|socket| async move {
                            let (mut sender, mut receiver) = socket.split();
                            while let Ok(Some(message)) = receiver.recv().await {
                                let _ = sender.send(message).await;
                            }
                        }),
                        Err(refusal) => refusal,
                    }
                }
                "/soon" => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    Response::text(200, "soon\n")
                }
                _ => Response::text(200, "now\n"),
            }
        }
    }));
    (address, tells)
}

async fn next(tells: &mut mpsc::UnboundedReceiver<&'static str>) -> &'static str {
    tokio::time::timeout(PATIENCE, tells.recv()).await.expect("it is told").unwrap()
}

async fn leaves(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    tells: &mut mpsc::UnboundedReceiver<&'static str>,
    request: &str,
) {
    stream.write_all(request.as_bytes()).await.unwrap();
    assert_eq!(next(tells).await, "begun", "{request}");
    drop(stream);
    assert_eq!(next(tells).await, "dropped", "{request}");
}

const REQUESTS: [&str; 3] = [
    "GET /never HTTP/1.1\r\nHost: a\r\n\r\n",
    "POST /never HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "GET /body HTTP/1.1\r\nHost: a\r\n\r\n",
];

#[tokio::test]
async fn a_handler_or_body_whose_client_leaves_is_dropped() {
    let (address, mut tells) = serve(None).await;
    for request in REQUESTS {
        leaves(TcpStream::connect(address).await.unwrap(), &mut tells, request).await;
    }
}

#[tokio::test]
async fn over_tls_too() {
    let (tls, certificate) = ServerTls::self_signed(&["localhost"]).unwrap();
    let (address, mut tells) = serve(Some(tls)).await;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.der().to_vec().into()).unwrap();
    let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    for request in REQUESTS {
        let tcp = TcpStream::connect(address).await.unwrap();
        let stream = connector.connect("localhost".try_into().unwrap(), tcp).await.unwrap();
        leaves(stream, &mut tells, request).await;
    }
}

// What was sent before the end is answered: nobody looks past a request that waits.
#[tokio::test]
async fn requests_that_wait_in_line_are_answered() {
    let (address, _tells) = serve(None).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(b"GET /soon HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n")
        .await
        .unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer.matches("HTTP/1.1 200 OK\r\n").count(), 2, "{answer}");
    assert!(answer.contains("soon\n") && answer.ends_with("now\n"), "{answer}");
}

// What is read while a handler waits is the WebSocket's, if it becomes one.
#[tokio::test]
async fn frames_that_come_while_a_handler_waits_are_kept() {
    let (address, mut tells) = serve(None).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let handshake = b"GET /socket HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
    stream.write_all(handshake).await.unwrap();
    assert_eq!(next(&mut tells).await, "begun");
    stream.write_all(b"\x81\x82\0\0\0\0hi\x88\x80\0\0\0\0").await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert!(
        answer.starts_with(b"HTTP/1.1 101 ") && answer.ends_with(b"\r\n\r\n\x81\x02hi\x88\0"),
        "{}",
        answer.escape_ascii()
    );
}
