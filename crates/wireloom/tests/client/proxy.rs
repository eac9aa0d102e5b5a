//! Proxies: HTTP CONNECT, SOCKS 5, TLS to the proxy, and their errors.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use wireloom::{CloseCode, Connector, Error, Proxy, ProxyError};

use super::{received_request, serve};

/// The bytes that a proxy expects to receive, and its answer to them, in order.
type Exchanges = Vec<(Vec<u8>, Vec<u8>)>;

fn exchanges(turns: &[(&[u8], &[u8])]) -> Exchanges {
    turns.iter().map(|(expected, answer)| (expected.to_vec(), answer.to_vec())).collect()
}

async fn follow(
    mut client: impl AsyncRead + AsyncWrite + Unpin,
    exchanges: Exchanges,
    to: Option<SocketAddr>,
) {
    for (expected, answer) in exchanges {
        let mut received = vec![0; expected.len()];
        client.read_exact(&mut received).await.unwrap();
        assert_eq!(received.escape_ascii().to_string(), expected.escape_ascii().to_string());
        // A byte at a time.
        for byte in answer {
            client.write_all(&[byte]).await.unwrap();
            client.flush().await.unwrap();
        }
    }
    if let Some(to) = to {
        let mut server = TcpStream::connect(to).await.unwrap();
        let _ = copy_bidirectional(&mut client, &mut server).await;
    }
}

/// A proxy for one connection, which forwards to `to` after the exchange.
async fn proxy(exchanges: Exchanges, to: Option<SocketAddr>) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        let (client, _) = listener.accept().await.unwrap();
        client.set_nodelay(true).unwrap();
        follow(client, exchanges, to).await;
    });
    (address, task)
}

async fn echoes(connector: &Connector, url: &str) {
    let mut socket = connector.connect(url).await.unwrap();
    assert!(received_request(&mut socket).await.starts_with('/'));
    socket.send("hello").await.unwrap();
    assert_eq!(socket.recv().await.unwrap().unwrap().as_text(), Some("hello"));
    socket.close(CloseCode::NORMAL, "").await.unwrap();
}

// RFC 9110 §9.3.6, RFC 7617.
#[tokio::test]
async fn connects_through_an_http_proxy() {
    let server = serve().await;
    let asked = b"CONNECT far.example:80 HTTP/1.1\r\nHost: far.example:80\r\n\
                  Proxy-Authorization: Basic YW5uYTpvcGVuIHNlc2FtZQ==\r\n\r\n";
    let answer =
        b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 Connection established\r\nContent-Length: 5\r\n\r\n";
    let (at, task) = proxy(exchanges(&[(asked, answer)]), Some(server)).await;
    let proxied = Connector::new().proxy(Proxy::new(&format!("http://anna:open%20sesame@{at}")).unwrap());
    // The proxy resolves the name.
    echoes(&proxied, "ws://far.example/").await;
    task.await.unwrap();

    let asked = b"CONNECT [::1]:81 HTTP/1.1\r\nHost: [::1]:81\r\n\r\n";
    // A length in a successful answer to CONNECT means nothing, nor do chunks.
    let answer = b"HTTP/1.0 299 \nTransfer-Encoding: chunked\n\n";
    let (at, task) = proxy(exchanges(&[(asked, answer)]), Some(server)).await;
    echoes(&Connector::new().proxy(Proxy::new(&at.to_string()).unwrap()), "ws://[::1]:81/").await;
    task.await.unwrap();
}

/// The error of a connection through an HTTP proxy that sends this and closes.
async fn answered(answer: &[u8]) -> Error {
    let asked = b"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n";
    let (at, _task) = proxy(exchanges(&[(asked, answer)]), None).await;
    let proxied = Connector::new().proxy(Proxy::new(&format!("http://{at}")).unwrap());
    proxied.connect("ws://a/").await.unwrap_err()
}

#[tokio::test]
async fn errors_name_the_refusal_of_an_http_proxy() {
    let head = |len: usize| format!("HTTP/1.1 503 No\r\nX: {}\r\n\r\n", "x".repeat(len - 24)).into_bytes();
    for (answer, error) in [
        (&b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"[..], ProxyError::Refused(407)),
        (b"HTTP/1.1 302 Found\r\nLocation: http://evil.example/\r\n\r\n", ProxyError::Refused(302)),
        (b"220 ready\r\n\r\n", ProxyError::Malformed),
        (b"HTTP/1.1 2000 OK\r\n\r\n", ProxyError::Malformed),
        (b"HTTP/1.1 200 OK\r\nX", ProxyError::ConnectionLost),
        (b"", ProxyError::ConnectionLost),
        (&head(16 << 10), ProxyError::Refused(503)),
        (&head((16 << 10) + 1), ProxyError::HeadTooLong),
    ] {
        assert_eq!(
            answered(answer).await,
            Error::Proxy(error),
            "{}",
            answer[..answer.len().min(50)].escape_ascii()
        );
    }
    let (_taken, closed) = wireloom_testing::refusing();
    let proxied = Connector::new().proxy(Proxy::new(&format!("http://{closed}")).unwrap());
    assert_eq!(
        proxied.connect("ws://a/").await.unwrap_err(),
        Error::Io(std::io::ErrorKind::ConnectionRefused.into())
    );
}

#[tokio::test]
async fn a_silent_proxy_times_out() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    for scheme in ["http", "https", "socks5h"] {
        let proxy = Proxy::new(&format!("{scheme}://{}", silent.local_addr().unwrap())).unwrap();
        let proxied = Connector::new().proxy(proxy).connect_timeout(Duration::from_millis(100));
        assert_eq!(proxied.connect("ws://a/").await.unwrap_err(), Error::ConnectTimeout, "{scheme}");
    }
}

// RFC 1928, RFC 1929.
#[tokio::test]
async fn connects_through_a_socks_proxy() {
    let server = serve().await;
    let login = [
        (&b"\x05\x02\x00\x02"[..], &b"\x05\x02"[..]),
        (b"\x01\x04anna\x06secret", b"\x01\x00"),
        (b"\x05\x01\x00\x03\x0bfar.example\x00\x50", b"\x05\x00\x00\x03\x04host\x12\x34"),
    ];
    let (at, task) = proxy(exchanges(&login), Some(server)).await;
    let socks = Proxy::new(&format!("socks5h://{at}")).unwrap().credentials("anna", "secret");
    echoes(&Connector::new().proxy(socks), "ws://far.example/").await;
    task.await.unwrap();

    // The client resolves the name and prefers IPv4; the proxy asks for no credentials.
    let open = [
        (&b"\x05\x02\x00\x02"[..], &b"\x05\x00"[..]),
        (b"\x05\x01\x00\x01\x0a\x00\x00\x07\x00\x50", b"\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00"),
    ];
    let (at, task) = proxy(exchanges(&open), Some(server)).await;
    let proxied = Connector::new()
        .proxy(Proxy::new(&format!("socks5://anna:x@{at}")).unwrap())
        .resolve("far.example", ["[fd00::7]:0".parse().unwrap(), "10.0.0.7:0".parse().unwrap()]);
    echoes(&proxied, "ws://far.example/").await;
    task.await.unwrap();

    let address = [
        (&b"\x05\x01\x00"[..], &b"\x05\x00"[..]),
        (
            b"\x05\x01\x00\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x00\x51",
            b"\x05\x00\x00\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        ),
    ];
    let (at, task) = proxy(exchanges(&address), Some(server)).await;
    echoes(&Connector::new().proxy(Proxy::new(&format!("socks5h://{at}")).unwrap()), "ws://[::1]:81/").await;
    task.await.unwrap();
}

#[tokio::test]
async fn errors_name_the_refusal_of_a_socks_proxy() {
    let hello = &b"\x05\x02\x00\x02"[..];
    let login = &b"\x01\x01a\x01b"[..];
    let ask = &b"\x05\x01\x00\x03\x01h\x00\x50"[..];
    for (turns, error) in [
        (&[(hello, &b"\x05\xff"[..])][..], ProxyError::Method),
        (&[(hello, b"\x05\x01")], ProxyError::Method),
        (&[(hello, b"\x04\x00")], ProxyError::Malformed),
        (&[(hello, b"\x05")], ProxyError::ConnectionLost),
        (&[(hello, b"\x05\x02"), (login, b"\x01\x01")], ProxyError::Credentials),
        (&[(hello, b"\x05\x02"), (login, b"\x05\x00")], ProxyError::Malformed),
        (&[(hello, b"\x05\x00"), (ask, b"\x05\x05\x00\x01\0\0\0\0\0\0")], ProxyError::Socks(5)),
        (&[(hello, b"\x05\x00"), (ask, b"\x05\x00\x00\x02\0\0\0\0\0\0")], ProxyError::Malformed),
        (&[(hello, b"\x05\x00"), (ask, b"\x05\x00\x00\x01\0\0\0")], ProxyError::ConnectionLost),
    ] {
        let (at, _task) = proxy(exchanges(turns), None).await;
        let socks = Proxy::new(&format!("socks5h://a:b@{at}")).unwrap();
        let failed = Connector::new().proxy(socks).connect("ws://h/").await;
        assert_eq!(failed.unwrap_err(), Error::Proxy(error), "{turns:?}");
    }
    let server = serve().await;
    let socks = Proxy::new(&format!("socks5h://{server}")).unwrap();
    // RFC 1929 §2: 1 to 255 bytes.
    for (user, password) in [("", "x"), ("x", ""), (&*"x".repeat(256), "x")] {
        let failed =
            Connector::new().proxy(socks.clone().credentials(user, password)).connect("ws://h/").await;
        assert_eq!(failed.unwrap_err(), Error::Proxy(ProxyError::Unsendable));
    }
    let long = format!("ws://{}/", "h".repeat(256));
    let failed = Connector::new().proxy(socks).connect(&long).await;
    assert_eq!(failed.unwrap_err(), Error::Proxy(ProxyError::HostTooLong));
}

// Bytes behind the proxy's answer in the same packet belong to the tunnel: an HTTP/2 server may send first.
#[tokio::test]
async fn keeps_bytes_behind_the_answer_of_a_proxy() {
    let settings = b"\0\0\0\x04\0\0\0\0\0";
    for (scheme, turns) in [
        ("http", vec![(&b"\r\n\r\n"[..], &b"HTTP/1.1 200 OK\r\n\r\n"[..])]),
        // RFC 9112 §2.2: a line may end with LF alone.
        ("http", vec![(b"\r\n\r\n", b"HTTP/1.1 200 OK\n\r\n")]),
        ("http", vec![(b"\r\n\r\n", b"HTTP/1.1 200 OK\r\n\n")]),
        ("socks5h", vec![(b"\x05\x01\x00", b"\x05\x00"), (b"\x50", b"\x05\x00\x00\x01\0\0\0\0\0\0")]),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut bytes = Vec::new();
            let last = turns.len() - 1;
            for (count, (end, answer)) in turns.into_iter().enumerate() {
                while !bytes.ends_with(end) {
                    bytes.push(client.read_u8().await.unwrap());
                }
                let behind: &[u8] = if count == last { settings } else { b"" };
                client.write_all(&[answer, behind].concat()).await.unwrap();
            }
            let _ = tokio::io::copy(&mut client, &mut tokio::io::sink()).await;
        });
        let proxied = Connector::new().proxy(Proxy::new(&format!("{scheme}://{at}")).unwrap());
        let http2 = proxied.connect_http2("http://a").await.unwrap();
        assert!(!http2.takes_websockets());
    }
}

/// TLS to the proxy, and through it to the server.
#[cfg(feature = "tls")]
#[tokio::test]
async fn connects_by_tls_to_a_proxy_and_through_it() {
    use std::sync::Arc;

    use wireloom::{ClientTls, Server, ServerTls};

    let (tls, trusted) = ServerTls::self_signed(&["far.example"]).unwrap();
    let server = Server::bind("127.0.0.1:0").await.unwrap().tls(tls);
    let to = server.local_addr().unwrap();
    tokio::spawn(server.serve(super::handle));

    let made = rcgen::generate_simple_self_signed(vec!["proxy.example".into()]).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![made.cert.der().clone()],
            rustls::pki_types::PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into()),
        )
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (client, _) = listener.accept().await.unwrap();
        let client = acceptor.accept(client).await.unwrap();
        let asked = b"CONNECT far.example:443 HTTP/1.1\r\nHost: far.example:443\r\n\r\n";
        follow(client, exchanges(&[(asked, b"HTTP/1.1 200 OK\r\n\r\n")]), Some(to)).await;
    });
    let proxied = Connector::new()
        .proxy(Proxy::new(&format!("https://proxy.example:{}", at.port())).unwrap())
        .resolve("proxy.example", [at])
        .tls(ClientTls::default().with_root(made.cert.der().to_vec()).with_root(trusted.der()));
    echoes(&proxied, "wss://far.example/").await;
}
