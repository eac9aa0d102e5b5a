//! WebSocket and HTTP over TLS, with certificates made for the test.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use wireloom::{ClientTls, CloseCode, Connector, Error, Request, Response, Server, ServerConfig, ServerTls};

async fn handle(request: Request) -> Response {
    let tls = request.tls().cloned().unwrap_or_default();
    match request.websocket() {
        Ok(upgrade) => upgrade.on_open(|mut socket| async move {
            let name = tls.server_name.unwrap_or_default();
            let alpn = String::from_utf8(tls.alpn.unwrap_or_default()).unwrap_or_default();
            let _ = socket.send(format!("{name} {} {alpn}", tls.version)).await;
            let (mut sender, mut receiver) = socket.split();
            while let Ok(Some(message)) = receiver.recv().await {
                if sender.send(message).await.is_err() {
                    break;
                }
            }
        }),
        Err(refusal) => refusal,
    }
}

#[tokio::test]
async fn echoes_over_tls() {
    let (tls, certificate) = ServerTls::self_signed(&["localhost", "127.0.0.1"]).unwrap();
    let server = Server::bind("127.0.0.1:0").await.unwrap().tls(tls);
    let port = server.local_addr().unwrap().port();
    tokio::spawn(server.serve(handle));

    let trusting = Connector::new().tls(ClientTls::default().with_root(certificate.der()));
    let mut socket = trusting.connect(&format!("wss://localhost:{port}/")).await.unwrap();
    assert_eq!(socket.recv().await.unwrap().unwrap().as_text(), Some("localhost TLSv1_3 http/1.1"));
    for len in [1, 20_000, 3_000_000] {
        let data = vec![7; len];
        let (sender, receiver) = socket.halves();
        let (sent, received) = tokio::join!(sender.send(&data), receiver.recv());
        sent.unwrap();
        assert_eq!(received.unwrap().unwrap().as_bytes(), data);
    }
    socket.close(CloseCode::NORMAL, "").await.unwrap();

    assert!(trusting.connect(&format!("wss://127.0.0.1:{port}/")).await.is_ok());
    let insecure = Connector::new().tls(ClientTls::default().insecure());
    assert!(insecure.connect(&format!("wss://localhost:{port}/")).await.is_ok());
    let wary = wireloom::connect(&format!("wss://localhost:{port}/")).await;
    assert!(matches!(wary, Err(Error::Tls(_))), "{wary:?}");
}

#[tokio::test]
async fn takes_a_new_certificate_while_it_serves() {
    let folder = std::env::temp_dir().join(format!("wireloom-tls-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (certificate, key) = (folder.join("certificate.pem"), folder.join("key.pem"));
    let write = || {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        std::fs::write(&certificate, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        made.cert.der().to_vec()
    };
    let old = write();
    let tls = ServerTls::from_pem_files(&certificate, &key).unwrap();
    let server = Server::bind("127.0.0.1:0").await.unwrap().tls(tls.clone());
    let url = Arc::new(format!("wss://localhost:{}/", server.local_addr().unwrap().port()));
    tokio::spawn(server.serve(handle));
    let trusts = |root: Vec<u8>| {
        let url = url.clone();
        async move { Connector::new().tls(ClientTls::default().with_root(root)).connect(&url).await.is_ok() }
    };
    assert!(trusts(old.clone()).await);
    assert!(!tls.reload_if_changed().unwrap());
    let new = write();
    assert!(tls.reload_if_changed().unwrap());
    assert!(trusts(new).await);
    assert!(!trusts(old).await);
    // The file was read before the rest of its chain was written, within one tick of that clock.
    let written_at = certificate.metadata().unwrap().modified().unwrap();
    let chain = [std::fs::read(&certificate).unwrap(), std::fs::read(&certificate).unwrap()].concat();
    std::fs::write(&certificate, chain).unwrap();
    let certificate_file = std::fs::File::options().write(true).open(&certificate).unwrap();
    certificate_file.set_modified(written_at).unwrap();
    assert!(tls.reload_if_changed().unwrap());
    // A key that cannot be loaded leaves the old certificate in use.
    std::fs::write(&key, "nothing").unwrap();
    assert!(tls.reload_if_changed().is_err());
    std::fs::remove_dir_all(folder).unwrap();
}

// A client without TLS gets an error or a timeout.
#[tokio::test]
async fn reports_clients_without_tls() {
    let (tls, certificate) = ServerTls::self_signed(&["localhost"]).unwrap();
    let serve = async |handshake_timeout| {
        let mut config = ServerConfig::default();
        config.handshake_timeout = handshake_timeout;
        let server = Server::bind("127.0.0.1:0").await.unwrap().config(config).tls(tls.clone());
        let (address, stats) = (server.local_addr().unwrap(), server.handle());
        tokio::spawn(server.serve(handle));
        (address, stats)
    };
    let ask = async |address: SocketAddr, bytes: &[u8]| {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut answer)).await;
        // A reset after the answer does not take it back.
        let _ = read.expect("it is closed");
        answer
    };
    let (address, stats) = serve(Duration::MAX).await;
    for plain in ["GET / HTTP/1.1\r\nHost: a\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let answer = String::from_utf8(ask(address, plain.as_bytes()).await).unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n") && answer.contains("https"), "{answer}");
    }
    // An invalid record is answered with an alert or not at all.
    for record in [&b"\x16\x03\x01\0\x05hello"[..], b"\x16\x09\x09\xff\xff"] {
        let answer = ask(address, record).await;
        assert!(answer.is_empty() || answer[0] == 0x15, "{answer:?}");
    }
    assert_eq!(stats.stats().tls_failed, 4);
    let trusting = Connector::new().tls(ClientTls::default().with_root(certificate.der()));
    assert!(trusting.connect(&format!("wss://localhost:{}/", address.port())).await.is_ok());
    // An incomplete one is not answered.
    let (address, stats) = serve(Duration::from_millis(300)).await;
    for record in [&b"\x16\x03\x01\x02\0\x01"[..], b"\x16"] {
        assert_eq!(ask(address, record).await, b"");
    }
    assert_eq!(stats.stats().tls_failed, 2);
}

// RFC 7301 §3.2: after `http/1.1` was selected, the preface of HTTP/2 is a malformed request. Without ALPN it is prior knowledge.
#[tokio::test]
async fn alpn_decides_what_is_spoken() {
    let (tls, certificate) = ServerTls::self_signed(&["localhost"]).unwrap();
    let server = Server::bind("127.0.0.1:0").await.unwrap().tls(tls);
    let address = server.local_addr().unwrap();
    tokio::spawn(server.serve(handle));
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.der().to_vec().into()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = builder.unwrap().with_root_certificates(roots).with_no_client_auth();
    for (alpn, speaks_http2) in [(&[][..], true), (&[&b"h2"[..]], true), (&[&b"http/1.1"[..]], false)] {
        let mut config = config.clone();
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let stream = TcpStream::connect(address).await.unwrap();
        let mut stream = connector.connect("localhost".try_into().unwrap(), stream).await.unwrap();
        // The preface and empty SETTINGS.
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        let mut answer = [0; 9];
        tokio::time::timeout(Duration::from_secs(20), stream.read_exact(&mut answer)).await.unwrap().unwrap();
        // RFC 9113 §3.4: the server begins with SETTINGS.
        assert_eq!(answer[3..5] == [4, 0], speaks_http2, "{alpn:?}: {answer:?}");
        assert_eq!(answer.starts_with(b"HTTP/1.1 "), !speaks_http2, "{alpn:?}: {answer:?}");
    }
}

// A verifier of the application's own must not be replaced unnoticed.
#[tokio::test]
async fn a_configuration_of_rustls_is_not_mixed_with_other_choices() {
    let (tls, certificate) = ServerTls::self_signed(&["localhost"]).unwrap();
    let server = Server::bind("127.0.0.1:0").await.unwrap().tls(tls);
    let url = format!("wss://localhost:{}/", server.local_addr().unwrap().port());
    tokio::spawn(server.serve(handle));
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.der().to_vec().into()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = Arc::new(builder.unwrap().with_root_certificates(roots).with_no_client_auth());
    let own = ClientTls::from_rustls(config);
    assert!(Connector::new().tls(own.clone()).connect(&url).await.is_ok());
    for mixed in [own.clone().with_root(certificate.der()), own.clone().with_platform_roots(), own.insecure()]
    {
        let refused = Connector::new().tls(mixed).connect(&url).await;
        let is_general =
            matches!(&refused, Err(Error::Tls(error)) if matches!(**error, rustls::Error::General(_)));
        assert!(is_general, "{refused:?}");
    }
}

// RFC 9112 §9.8: the server closes with `close_notify`, without which rustls reports `UnexpectedEof`; clients may end without one.
#[tokio::test]
async fn closes_with_close_notify_and_takes_clients_that_do_not() {
    let (tls, certificate) = ServerTls::self_signed(&["localhost"]).unwrap();
    let server = Server::bind("127.0.0.1:0").await.unwrap().tls(tls);
    let (address, handle_) = (server.local_addr().unwrap(), server.handle());
    tokio::spawn(server.serve(handle));
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.der().to_vec().into()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.unwrap().with_root_certificates(roots).with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let connect = async || {
        let stream = TcpStream::connect(address).await.unwrap();
        connector.connect("localhost".try_into().unwrap(), stream).await.unwrap()
    };
    for _ in 0..3 {
        let mut stream = connect().await;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"missing\n") {
            stream.read_buf(&mut answer).await.unwrap();
        }
        // TCP ends, and TLS does not.
        drop(stream.into_inner().0);

        let mut stream = connect().await;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
        stream.read_to_end(&mut answer).await.unwrap();
        assert!(answer.ends_with(b"missing\n"), "{}", answer.escape_ascii());
    }
    while handle_.stats().connections_open > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

// RFC 8446 §6.1: without `close_notify`, rustls reports `UnexpectedEof`.
#[tokio::test]
async fn an_idle_connection_ends_with_close_notify() {
    let (tls, certificate) = ServerTls::self_signed(&["localhost"]).unwrap();
    let mut config = ServerConfig::default();
    config.keep_alive_timeout = Duration::from_millis(50);
    let server = Server::bind("127.0.0.1:0").await.unwrap().tls(tls).config(config);
    let address = server.local_addr().unwrap();
    tokio::spawn(server.serve(|_: Request| async { Response::text(200, "hi") }));
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.der().to_vec().into()).unwrap();
    let client = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(client));
    let tcp = TcpStream::connect(address).await.unwrap();
    let mut stream = connector.connect("localhost".try_into().unwrap(), tcp).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("\r\n\r\nhi"), "{answer}");
}
