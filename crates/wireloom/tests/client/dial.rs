//! Connecting: several addresses, timeouts, responses that are not HTTP.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use wireloom::server::serve_connection;
use wireloom::wireloom_ws::handshake::server::ServerHandshake;
use wireloom::wireloom_ws::handshake::{Acceptance, HandshakeError, HandshakeLimits};
use wireloom::{Connector, Error, HttpError};

use super::{polled, received_request, serve};

/// A listener whose queue is full: connection attempts hang.
async fn black_hole() -> (TcpListener, Vec<TcpStream>) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut queued = Vec::new();
    while let Ok(Ok(stream)) =
        tokio::time::timeout(Duration::from_millis(100), TcpStream::connect(address)).await
    {
        queued.push(stream);
    }
    (listener, queued)
}

// RFC 8305 §5.
#[tokio::test]
async fn tries_the_next_address_when_one_hangs() {
    let (hole, _queued) = black_hole().await;
    let server = serve().await;
    let begin = Instant::now();
    let connector = Connector::new().resolve("two.example", [hole.local_addr().unwrap(), server]);
    let mut socket = connector.connect("ws://two.example/x").await.unwrap();
    assert_eq!(received_request(&mut socket).await, "/x ");
    assert!(begin.elapsed() >= Duration::from_millis(250), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn tries_the_next_family_when_one_refuses() {
    let server = serve().await;
    // Nothing listens there, with or without IPv6.
    let refusing = std::net::SocketAddr::new(std::net::Ipv6Addr::LOCALHOST.into(), server.port());
    let connector = Connector::new().resolve("two.example", [refusing, server]);
    assert!(connector.connect("ws://two.example/").await.is_ok());
}

#[tokio::test]
async fn a_timeout_names_its_stage() {
    let (hole, _queued) = black_hole().await;
    let short = Connector::new()
        .connect_timeout(Duration::from_millis(100))
        .handshake_timeout(Duration::from_millis(100));
    let url = format!("ws://{}/", hole.local_addr().unwrap());
    assert_eq!(short.connect(&url).await.unwrap_err(), Error::ConnectTimeout);

    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = silent.local_addr().unwrap();
    for scheme in ["ws", "wss"] {
        let url = format!("{scheme}://localhost:{}/", at.port());
        let connector = short.clone().resolve("localhost", [at]);
        assert_eq!(connector.connect(&url).await.unwrap_err(), Error::HandshakeTimeout);
    }
}

#[tokio::test]
async fn errors_name_hosts_that_cannot_be_reached() {
    let nowhere = Connector::new().resolve("nowhere.example", []);
    assert_eq!(nowhere.connect("ws://nowhere.example/").await.unwrap_err(), Error::HostNotFound(None));
    let (_taken, closed) = wireloom_testing::refusing();
    let error = wireloom::connect(&format!("ws://{closed}/")).await.unwrap_err();
    assert_eq!(error, Error::Io(std::io::ErrorKind::ConnectionRefused.into()));
}

/// A server that sends this response.
async fn responding(answer: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\n") {
            asked.push(stream.read_u8().await.unwrap());
        }
        // The client may close the connection before the end.
        let _ = stream.write_all(&answer).await;
    });
    format!("ws://{address}/")
}

#[tokio::test]
async fn bounds_the_head_of_a_response() {
    let head = |len: usize| format!("HTTP/1.1 403 No\r\nX: {}\r\n\r\n", "x".repeat(len - 24)).into_bytes();
    let limits = HandshakeLimits { head_len_max: 100, ..HandshakeLimits::default() };
    let limited = Connector::new().response_limits(limits);
    for (len, refused) in [(99, true), (100, true), (101, false)] {
        let error = limited.connect(&responding(head(len)).await).await.unwrap_err();
        assert_eq!(matches!(error, Error::Refused(_)), refused, "{len}: {error:?}");
        assert_eq!(matches!(error, Error::Handshake(HandshakeError::Limit(_))), !refused, "{len}: {error:?}");
    }
}

#[tokio::test]
async fn reports_responses_that_are_not_http() {
    let error = wireloom::connect(&responding(b"SSH-2.0-OpenSSH\r\n\r\n".to_vec()).await).await.unwrap_err();
    assert!(matches!(error, Error::Handshake(_)), "{error:?}");
    let error = wireloom::connect(&responding(Vec::new()).await).await.unwrap_err();
    assert_eq!(error, Error::Http(HttpError::ConnectionLost));
}

// Frames may arrive in the packet of the response.
#[tokio::test]
async fn keeps_frames_that_arrive_with_the_response() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut handshake = ServerHandshake::new(HandshakeLimits::default());
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n\r\n") {
            bytes.push(stream.read_u8().await.unwrap());
        }
        handshake.handle_input(&bytes).unwrap();
        let mut answer = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n".to_vec();
        handshake.accept(&Acceptance::default(), &mut answer).unwrap();
        answer.extend_from_slice(b"\x81\x02hi\x82\x01\x00\x88\x02\x03\xe8");
        stream.write_all(&answer).await.unwrap();
        // RFC 6455 §7.1.1: the server closes the connection after both Close frames.
        stream.read_exact(&mut [0; 8]).await.unwrap();
    });
    let mut socket = wireloom::connect(&format!("ws://{address}/")).await.unwrap();
    assert_eq!(socket.recv().await.unwrap().unwrap().as_text(), Some("hi"));
    assert_eq!(socket.recv().await.unwrap().unwrap().as_bytes(), [0]);
    assert!(socket.recv().await.unwrap().is_none());
    assert_eq!(socket.end().unwrap().code(), wireloom::CloseCode::NORMAL);
}

// Wherever the future is dropped, the connection is closed.
#[tokio::test]
async fn connecting_is_cancel_safe_at_every_poll() {
    let server = wireloom::Server::bind("127.0.0.1:0").await.unwrap();
    let (handle, address) = (server.handle(), server.local_addr().unwrap());
    tokio::spawn(server.serve(super::handle));
    for is_http2 in [false, true] {
        let connector = Connector::new().http2(is_http2).redirects_max(1);
        let mut opened = 0;
        for times in 0..40 {
            opened += usize::from(
                polled(connector.connect(&format!("ws://{address}/?to=/x")), times).await.is_some(),
            );
        }
        assert!(opened > 0 && opened < 40, "{opened}");
    }
    while handle.stats().connections_open > 0 || handle.stats().websockets_open > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn errors_and_debug_output_hold_no_secrets() {
    let connector = Connector::new().header("Authorization", "hunter2").header("X-Key", "hunter2");
    let shown = format!("{connector:?}");
    assert!(shown.contains("Authorization") && !shown.contains("hunter2"), "{shown}");
    let error = connector.connect("ws://anna:hunter2@[::g]/").await.unwrap_err();
    assert!(!format!("{error} {error:?}").contains("hunter2"));
}

// TCP is replaced; TLS and proxies are not.
#[tokio::test]
async fn transports_are_opened_by_the_application() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = asked.clone();
    let connector = Connector::new().dial_with(move |host, port| {
        log.lock().unwrap().push(format!("{host} {port}"));
        async move {
            if host == "nowhere.example" {
                return Err(std::io::ErrorKind::HostUnreachable.into());
            }
            let (near, far) = tokio::io::duplex(1 << 10);
            tokio::spawn(serve_connection(far, super::handle));
            Ok(near)
        }
    });
    let mut socket = connector.connect("ws://far.example:81/x").await.unwrap();
    assert!(super::received_request(&mut socket).await.starts_with("/x"));
    socket.send("hello").await.unwrap();
    assert_eq!(socket.recv().await.unwrap().unwrap().as_text(), Some("hello"));
    let error = connector.connect("ws://nowhere.example/").await.unwrap_err();
    assert_eq!(error, Error::Io(std::io::ErrorKind::HostUnreachable.into()));
    assert_eq!(*asked.lock().unwrap(), ["far.example 81", "nowhere.example 80"]);
}

// The response has arrived in time.
#[tokio::test(start_paused = true)]
async fn a_refusal_whose_body_is_slower_than_the_handshake_may_be_is_returned() {
    let (client, mut server) = tokio::io::duplex(1 << 10);
    let connector = Connector::new().handshake_timeout(Duration::from_millis(100));
    let connecting = connector.connect_over(client, "ws://localhost/");
    let answering = async {
        server.write_all(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 100\r\n\r\nno token").await.unwrap();
        // The rest of the body does not follow.
        std::future::pending::<()>().await;
    };
    let refused = tokio::select! {
        connected = connecting => connected.unwrap_err(),
        () = answering => unreachable!(),
    };
    let Error::Refused(response) = refused else { panic!("{refused:?}") };
    assert_eq!((response.status(), response.body()), (401, &b"no token"[..]));
}
