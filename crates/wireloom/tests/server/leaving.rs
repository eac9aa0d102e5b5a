//! Clients that close the connection before the response: their handlers and bodies are dropped, over HTTP/1.1 and TLS.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use wireloom::{Body, Request, Response, Server, ServerTls};
use wireloom_testing::frame::upgrade_request;

/// Much longer than any step of these tests.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Reports that it was dropped.
struct Dropped(mpsc::UnboundedSender<&'static str>);

impl Drop for Dropped {
    fn drop(&mut self) {
        let _ = self.0.send("dropped");
    }
}

/// A server whose handlers report their start and their end.
async fn serve(tls: Option<ServerTls>) -> (SocketAddr, mpsc::UnboundedReceiver<&'static str>) {
    let mut server = Server::bind("127.0.0.1:0").await.unwrap();
    if let Some(tls) = tls {
        server = server.tls(tls);
    }
    let address = server.local_addr().unwrap();
    let (report, reports) = mpsc::unbounded_channel();
    tokio::spawn(server.serve(move |mut request: Request| {
        let report = report.clone();
        async move {
            match request.path() {
                "/never" => {
                    let _dropped = Dropped(report.clone());
                    let _ = request.bytes().await;
                    let _ = report.send("begun");
                    std::future::pending().await
                }
                "/unread" => {
                    let _dropped = Dropped(report.clone());
                    let _ = report.send("begun");
                    std::future::pending().await
                }
                "/body" => {
                    let (mut sender, body) = Body::channel();
                    tokio::spawn(async move {
                        let _ = sender.send("first").await;
                        let _ = report.send("begun");
                        sender.closed().await;
                        let _ = report.send("dropped");
                    });
                    Response::new(200).with_body("text/plain", body)
                }
                "/socket" => {
                    let _ = report.send("begun");
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
    (address, reports)
}

async fn next(reports: &mut mpsc::UnboundedReceiver<&'static str>) -> &'static str {
    tokio::time::timeout(TIMEOUT, reports.recv()).await.expect("the handler reports").unwrap()
}

/// Sends a request, and closes the connection once its handler runs.
async fn send_and_leave(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    reports: &mut mpsc::UnboundedReceiver<&'static str>,
    request: &str,
) {
    stream.write_all(request.as_bytes()).await.unwrap();
    assert_eq!(next(reports).await, "begun", "{request}");
    drop(stream);
    assert_eq!(next(reports).await, "dropped", "{request}");
}

const REQUESTS: [&str; 3] = [
    "GET /never HTTP/1.1\r\nHost: a\r\n\r\n",
    "POST /never HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "GET /body HTTP/1.1\r\nHost: a\r\n\r\n",
];

#[tokio::test]
async fn a_handler_and_a_body_are_dropped_when_the_client_leaves() {
    let (address, mut reports) = serve(None).await;
    for request in REQUESTS {
        send_and_leave(TcpStream::connect(address).await.unwrap(), &mut reports, request).await;
    }
}

#[tokio::test]
async fn a_handler_and_a_body_are_dropped_when_the_client_leaves_over_tls() {
    let (tls, certificate) = ServerTls::self_signed(&["localhost"]).unwrap();
    let (address, mut reports) = serve(Some(tls)).await;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.der().to_vec().into()).unwrap();
    let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    for request in REQUESTS {
        let tcp = TcpStream::connect(address).await.unwrap();
        let stream = connector.connect("localhost".try_into().unwrap(), tcp).await.unwrap();
        send_and_leave(stream, &mut reports, request).await;
    }
}

// The server does not read then: only the socket's error reports the reset.
#[tokio::test]
async fn a_reset_is_noticed_where_the_server_does_not_read() {
    let (address, mut reports) = serve(None).await;
    for request in [
        "GET /never HTTP/1.1\r\nHost: a\r\n\r\nG",
        "GET /body HTTP/1.1\r\nHost: a\r\n\r\nG",
        "POST /unread HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        assert_eq!(next(&mut reports).await, "begun", "{request}");
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
        drop(stream);
        assert_eq!(next(&mut reports).await, "dropped", "{request}");
    }
}

// A client that only ends its writing side still reads.
#[tokio::test]
async fn pipelined_requests_are_answered_after_the_end_of_input() {
    let (address, _reports) = serve(None).await;
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

// The client is read while the handler runs, to notice when it leaves.
#[tokio::test]
async fn frames_that_arrive_during_the_handler_reach_the_websocket() {
    let (address, mut reports) = serve(None).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(upgrade_request("/socket").as_bytes()).await.unwrap();
    assert_eq!(next(&mut reports).await, "begun");
    stream.write_all(b"\x81\x82\0\0\0\0hi\x88\x80\0\0\0\0").await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert!(
        answer.starts_with(b"HTTP/1.1 101 ") && answer.ends_with(b"\r\n\r\n\x81\x02hi\x88\0"),
        "{}",
        answer.escape_ascii()
    );
}
