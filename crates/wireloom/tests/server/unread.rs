//! Peers that send more than the server reads: they receive what was sent to them before the end. Closing a socket with unread bytes resets
//! it, and discards what the peer has not received.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Notify;
use tokio::time::timeout;
use wireloom::{Request, Response, ServerConfig, ServerTls};
use wireloom_testing::frame::{Frame, masked, upgrade_request};

use crate::running::Running;

/// Much longer than any step of these tests.
const TIMEOUT: Duration = Duration::from_secs(60);

const REPLIES: usize = 60;

const REPLY_LEN: usize = 4 << 10;

/// Echoes messages. Notifies when a WebSocket has ended.
async fn echo(request: Request, ended: Arc<Notify>) -> Response {
    match request.websocket() {
        Ok(upgrade) => upgrade.on_open(|socket| async move {
            let (mut sender, mut receiver) = socket.split();
            while let Ok(Some(message)) = receiver.recv().await {
                let _ = sender.send(message).await;
            }
            ended.notify_one();
        }),
        Err(refusal) => refusal,
    }
}

async fn handle(mut request: Request) -> Response {
    match request.path() {
        "/echo" => echo(request, Arc::default()).await,
        "/refused" => Response::text(403, "no\n"),
        _ => match request.bytes().await {
            Ok(body) => Response::text(200, format!("{} bytes\n", body.len())),
            Err(error) => error.into(),
        },
    }
}

/// A connection whose client has room for little, so that the rest waits at the server.
async fn connect(address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(32 << 10).unwrap();
    socket.connect(address).await.unwrap()
}

/// Messages, a Close frame, and `trailing` bytes.
fn messages_and_close(trailing: usize) -> Vec<u8> {
    let mut bytes = upgrade_request("/echo").into_bytes();
    for number in 0..REPLIES {
        bytes.extend(masked(0x82, [number as u8; REPLY_LEN]));
    }
    bytes.extend(masked(0x88, 1000_u16.to_be_bytes()));
    bytes.extend(vec![0x82; trailing]);
    bytes
}

/// Sends everything before it reads; returns the answer to its end, which is no reset.
async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin, bytes: &[u8]) -> Vec<u8> {
    let mut answer = Vec::new();
    let exchanging = async {
        stream.write_all(bytes).await.expect("the server reads on");
        stream.read_to_end(&mut answer).await
    };
    let ended = timeout(TIMEOUT, exchanging).await.expect("the server ends the connection");
    assert!(ended.is_ok(), "{ended:?} after {} bytes", answer.len());
    answer
}

/// The answer is the handshake, all replies, and the Close frame.
fn check_replies(answer: &[u8]) {
    let head = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("the handshake") + 4;
    let frames = Frame::read_all(&answer[head..]);
    let (close, replies) = frames.split_last().expect("frames");
    assert_eq!((replies.len(), close.close_code()), (REPLIES, Some(1000)));
    for (number, reply) in replies.iter().enumerate() {
        assert_eq!(reply.payload(), [number as u8; REPLY_LEN]);
    }
}

#[tokio::test]
async fn replies_before_a_close_frame_with_bytes_behind_it() {
    let server = Running::start(ServerConfig::default(), handle).await;
    for trailing in [0, 1, 1 << 10, 256 << 10, 2 << 20] {
        check_replies(&exchange(connect(server.address).await, &messages_and_close(trailing)).await);
    }
}

/// A server, a peer that has sent messages and a Close frame and reads nothing, and of which the handler has ended.
async fn exchanged(trailing: usize) -> (Running, TcpStream) {
    let ended = Arc::new(Notify::new());
    let notified = ended.clone();
    let server =
        Running::start(ServerConfig::default(), move |request: Request| echo(request, notified.clone()))
            .await;
    let mut peer = connect(server.address).await;
    peer.write_all(&messages_and_close(trailing)).await.unwrap();
    timeout(TIMEOUT, ended.notified()).await.expect("the WebSocket has ended");
    (server, peer)
}

// The kernel has accepted all replies, and sent as many as the peer has room for.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn replies_before_a_close_frame_with_bytes_that_come_later() {
    for trailing in [1, 256 << 10] {
        let (_server, peer) = exchanged(0).await;
        check_replies(&exchange(peer, &vec![0x82; trailing]).await);
    }
}

#[tokio::test]
async fn replies_before_a_close_frame_with_bytes_behind_it_over_tls() {
    let (tls, certificate) = ServerTls::self_signed(&["localhost"]).unwrap();
    let server = wireloom::Server::bind("127.0.0.1:0").await.unwrap().tls(tls);
    let address = server.local_addr().unwrap();
    tokio::spawn(server.serve(handle));
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.der().to_vec().into()).unwrap();
    let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    for trailing in [0, 1 << 10, 256 << 10] {
        let tcp = connect(address).await;
        let stream = connector.connect("localhost".try_into().unwrap(), tcp).await.unwrap();
        check_replies(&exchange(stream, &messages_and_close(trailing)).await);
    }
}

#[tokio::test]
async fn replies_of_a_driver_of_its_own() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // It accepts until the test program ends.
    std::thread::spawn(move || {
        smol::block_on(crate::examples::smol_example::serve(smol::net::TcpListener::try_from(listener)?))
    });
    for trailing in [0, 1 << 10, 256 << 10] {
        check_replies(&exchange(connect(address).await, &messages_and_close(trailing)).await);
    }
}

// It is discarded for a while, in which the connection keeps its place at the server.
#[tokio::test]
async fn a_peer_that_sends_on_behind_its_close_frame_is_disconnected() {
    let server = Running::start(ServerConfig { connections_max: 1, ..ServerConfig::default() }, handle).await;
    let mut first = connect(server.address).await;
    first.write_all(&messages_and_close(64 << 10)).await.unwrap();
    let sending = async { while first.write_all(&[0x82; 64 << 10]).await.is_ok() {} };
    timeout(TIMEOUT, sending).await.expect("it is disconnected");
    check_replies(&exchange(connect(server.address).await, &messages_and_close(0)).await);
    // One that sends nothing more is too.
    let mut silent = connect(server.address).await;
    silent.write_all(&messages_and_close(1)).await.unwrap();
    let mut answer = Vec::new();
    timeout(TIMEOUT, silent.read_to_end(&mut answer)).await.expect("its end is written at once").unwrap();
    check_replies(&answer);
    assert_eq!(server.handle.stats().connections_open, 1);
}

// A program may end with its server.
#[tokio::test]
async fn a_server_that_shuts_down_waits_for_peers_that_read() {
    let (server, mut peer) = exchanged(1 << 10).await;
    server.handle.shut_down();
    let mut answer = Vec::new();
    timeout(TIMEOUT, peer.read_to_end(&mut answer)).await.unwrap().unwrap();
    check_replies(&answer);
    assert!(!server.task.is_finished());
    drop(peer);
    timeout(TIMEOUT, server.task).await.expect("nobody is waited for").unwrap().unwrap();
}

const BODY_LEN: usize = 1 << 20;

/// The statuses of responses to requests of which the server reads only a part.
#[tokio::test]
async fn responses_to_clients_that_read_after_all_is_sent() {
    let server = Running::start(ServerConfig::default(), handle).await;
    let long = "x".repeat(BODY_LEN);
    let upgrade = upgrade_request("/echo").replace("\r\n\r\n", "");
    for (status, head, body) in [
        (400, "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n".to_owned(), &long),
        (400, "\0".to_owned(), &long),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nx".to_owned(), &long),
        (403, format!("POST /refused HTTP/1.1\r\nHost: a\r\nContent-Length: {BODY_LEN}\r\n\r\n"), &long),
        (403, format!("POST /refused HTTP/1.0\r\nContent-Length: {BODY_LEN}\r\n\r\n"), &long),
        (403, "POST /refused HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999999\r\n\r\n".to_owned(), &long),
        (413, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999999\r\n\r\n".to_owned(), &long),
        (414, "GET /".to_owned(), &long),
        (431, "GET / HTTP/1.1\r\nHost: a\r\nLong: ".to_owned(), &long),
        (501, "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n".to_owned(), &long),
        (400, format!("{upgrade}\r\nContent-Length: {BODY_LEN}\r\n\r\n"), &long),
        (426, upgrade_request("/echo").replace("Version: 13", "Version: 12"), &long),
    ] {
        let answer =
            exchange(connect(server.address).await, &[head.as_bytes(), body.as_bytes()].concat()).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{head:.40}: {answer:.200}");
    }
}

#[tokio::test]
async fn a_refusal_without_a_server() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        assert!(wireloom::accept(stream).await.is_err());
    });
    let request =
        format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {BODY_LEN}\r\n\r\n{}", "x".repeat(BODY_LEN));
    let answer = exchange(connect(address).await, request.as_bytes()).await;
    assert!(answer.starts_with(b"HTTP/1.1 4"), "{}", String::from_utf8_lossy(&answer));
}

/// The types of the HTTP/2 frames.
fn frame_types(mut bytes: &[u8]) -> Vec<u8> {
    let mut types = Vec::new();
    while let [high, middle, low, kind, _, _, _, _, _, rest @ ..] = bytes {
        types.push(*kind);
        bytes = &rest[u32::from_be_bytes([0, *high, *middle, *low]) as usize..];
    }
    types
}

// RFC 9113 §5.4.1, §6.8.
#[tokio::test]
async fn goaway_to_clients_that_read_after_all_is_sent() {
    const GOAWAY: u8 = 7;
    let server = Running::start(ServerConfig::default(), handle).await;
    for len in [0, BODY_LEN, 2 * BODY_LEN] {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
        // DATA on stream 0.
        bytes.extend([0; 9]);
        bytes.resize(bytes.len() + len, 0);
        let answer = exchange(connect(server.address).await, &bytes).await;
        assert_eq!(frame_types(&answer).last(), Some(&GOAWAY), "{len}");
    }
}
