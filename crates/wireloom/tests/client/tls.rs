//! Root certificates, client certificates, and TLS errors.

use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use wireloom::client::{Proxy, ProxyError};
use wireloom::{ClientTls, Connector, Error, HttpError, Server, ServerTls};

use super::{handle, received_request};

/// A certificate authority.
fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn signed(
    by: &CertifiedIssuer<'_, KeyPair>,
    name: &str,
    change: impl FnOnce(&mut CertificateParams),
) -> (rcgen::Certificate, KeyPair) {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    change(&mut params);
    let key = KeyPair::generate().unwrap();
    (params.signed_by(&key, by).unwrap(), key)
}

fn server_config(
    certificate: &(rcgen::Certificate, KeyPair),
    clients: Option<CertificateDer<'static>>,
) -> ServerTls {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(root) => {
            let mut roots = rustls::RootCertStore::empty();
            roots.add(root).unwrap();
            let verifier =
                rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        }
    };
    let key = PrivateKeyDer::Pkcs8(certificate.1.serialize_der().into());
    let config = builder.with_single_cert(vec![certificate.0.der().clone()], key).unwrap();
    ServerTls::from_rustls(Arc::new(config))
}

/// The URL of a server with this certificate, at the name `localhost`.
async fn serve_tls(tls: ServerTls) -> String {
    let server = Server::bind("127.0.0.1:0").await.unwrap().tls(tls);
    let port = server.local_addr().unwrap().port();
    tokio::spawn(server.serve(handle));
    format!("wss://localhost:{port}/")
}

fn local(tls: ClientTls) -> Connector {
    Connector::new().tls(tls).resolve("localhost", ["127.0.0.1:0".parse().unwrap()])
}

async fn why(tls: ClientTls, url: &str) -> String {
    match local(tls).connect(url).await.unwrap_err() {
        error @ Error::Tls(_) => error.to_string(),
        error => panic!("{error:?}"),
    }
}

#[tokio::test]
async fn errors_name_the_fault_of_a_certificate() {
    let authority = authority("ours");
    let trusting = ClientTls::default().with_root(authority.der().to_vec());
    let good = serve_tls(server_config(&signed(&authority, "localhost", |_| ()), None)).await;
    let tls = local(trusting.clone()).open(&good).await.unwrap().tls.unwrap();
    assert_eq!((tls.server_name.as_deref(), &*tls.version), (Some("localhost"), "TLSv1_3"));
    let stranger = ClientTls::default().with_root(self::authority("another").der().to_vec());
    let unknown = "TLS: the certificate is not accepted: its issuer is not trusted";
    assert_eq!(why(stranger, &good).await, unknown);
    assert_eq!(why(ClientTls::default().with_webpki_roots(), &good).await, unknown);

    let other = serve_tls(server_config(&signed(&authority, "other.example", |_| ()), None)).await;
    let name = why(trusting.clone(), &other).await;
    assert!(name.contains("it is for other.example, not for localhost"), "{name}");

    let old = signed(&authority, "localhost", |params| {
        params.not_before = rcgen::date_time_ymd(2001, 1, 1);
        params.not_after = rcgen::date_time_ymd(2002, 1, 1);
    });
    let old = serve_tls(server_config(&old, None)).await;
    assert_eq!(why(trusting.clone(), &old).await, "TLS: the certificate is not accepted: it has expired");
    let early =
        signed(&authority, "localhost", |params| params.not_before = rcgen::date_time_ymd(4000, 1, 1));
    let early = serve_tls(server_config(&early, None)).await;
    assert_eq!(
        why(trusting.clone(), &early).await,
        "TLS: the certificate is not accepted: it is not valid yet"
    );
    // A client that accepts any certificate connects.
    assert!(local(ClientTls::default().insecure()).connect(&old).await.is_ok());

    let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("wss://localhost:{}/", plain.local_addr().unwrap().port());
    tokio::spawn(async move {
        let (mut stream, _) = plain.accept().await.unwrap();
        let _ = stream.read(&mut [0; 1000]).await;
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
    });
    assert_eq!(why(trusting.clone(), &url).await, "TLS: the peer does not speak TLS here");
    let hung_up = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("wss://localhost:{}/", hung_up.local_addr().unwrap().port());
    tokio::spawn(async move { drop(hung_up.accept().await) });
    assert_eq!(local(trusting).connect(&url).await.unwrap_err(), Error::Http(HttpError::ConnectionLost));
}

#[tokio::test]
async fn sends_a_client_certificate_when_requested() {
    let authority = authority("ours");
    let server = signed(&authority, "localhost", |_| ());
    let url = serve_tls(server_config(&server, Some(authority.der().clone()))).await;
    let trusting = ClientTls::default().with_root(authority.der().to_vec());
    // In TLS 1.3 the alert arrives after the handshake of the client: with the first read.
    assert_eq!(why(trusting.clone(), &url).await, "TLS: the peer wants a client certificate");

    let folder = std::env::temp_dir().join(format!("wireloom-client-tls-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (certificate, key) = (folder.join("certificate.pem"), folder.join("key.pem"));
    let write = |by: &CertifiedIssuer<'_, KeyPair>| {
        let client = signed(by, "anna", |params| {
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        });
        std::fs::write(&certificate, client.0.pem()).unwrap();
        std::fs::write(&key, client.1.serialize_pem()).unwrap();
    };
    write(&authority);
    let known = trusting.clone().with_identity(&certificate, &key).unwrap();
    let mut socket = local(known.clone()).connect(&url).await.unwrap();
    assert_eq!(received_request(&mut socket).await, "/ ");
    // Again, with a resumed session.
    assert!(local(known).connect(&url).await.is_ok());
    write(&self::authority("another"));
    let stranger = trusting.clone().with_identity(&certificate, &key).unwrap();
    let text = why(stranger, &url).await;
    assert!(text.contains("certificate shown to"), "{text}");

    std::fs::write(&key, "nothing").unwrap();
    assert!(matches!(trusting.clone().with_identity(&certificate, &key), Err(Error::Tls(_))));
    assert!(matches!(trusting.clone().with_root_file(&key), Err(Error::Tls(_))));
    std::fs::remove_dir_all(&folder).unwrap();
    let missing = Error::Io(std::io::ErrorKind::NotFound.into());
    assert_eq!(trusting.with_root_file(&key).err(), Some(missing));
}

#[tokio::test]
async fn only_the_name_that_was_sent_is_reported() {
    // RFC 6066 §3: an IP address is not sent.
    let authority = authority("ours");
    let trusting = ClientTls::default().with_root(authority.der().to_vec());
    for (host, sent) in [("localhost", Some("localhost")), ("127.0.0.1", None), ("[::1]", None)] {
        let name = host.trim_matches(['[', ']']);
        let server = Server::bind("127.0.0.1:0").await.unwrap();
        let at = server.local_addr().unwrap();
        let server = server.tls(server_config(&signed(&authority, name, |_| ()), None));
        tokio::spawn(server.serve(handle));
        let connector = Connector::new().tls(trusting.clone()).resolve(name, [at]);
        let tls = connector.open(&format!("wss://{host}:{}/", at.port())).await.unwrap().tls.unwrap();
        assert_eq!(tls.server_name.as_deref(), sent);
    }
}

/// A server that asks for a client certificate and continues without one.
fn asking(authority: &CertifiedIssuer<'_, KeyPair>) -> tokio_rustls::TlsAcceptor {
    let certificate = signed(authority, "localhost", |_| ());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(authority.der().clone()).unwrap();
    let verifier =
        rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .allow_unauthenticated()
            .build();
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier.unwrap())
        .with_single_cert(
            vec![certificate.0.der().clone()],
            PrivateKeyDer::Pkcs8(certificate.1.serialize_der().into()),
        );
    Arc::new(config.unwrap()).into()
}

/// A client that trusts the authority, without and with a certificate signed by it. `name` is that of the test.
fn clients(authority: &CertifiedIssuer<'_, KeyPair>, name: &str) -> (ClientTls, ClientTls) {
    let folder = std::env::temp_dir().join(format!("wireloom-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let files = [folder.join("certificate.pem"), folder.join("key.pem")];
    let client = signed(authority, "anna", |params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    });
    std::fs::write(&files[0], client.0.pem()).unwrap();
    std::fs::write(&files[1], client.1.serialize_pem()).unwrap();
    let trusting = ClientTls::default().with_root(authority.der().to_vec());
    let known = trusting.clone().with_identity(&files[0], &files[1]).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    (trusting, known)
}

/// Whether the next client shows a certificate. It receives `response` to its request.
async fn shows_certificate(
    listener: &TcpListener,
    acceptor: &tokio_rustls::TlsAcceptor,
    response: &str,
) -> bool {
    let (stream, _) = listener.accept().await.unwrap();
    let mut stream = acceptor.accept(stream).await.unwrap();
    if stream.read(&mut [0; 2_000]).await.is_ok() {
        let _ = stream.write_all(response.as_bytes()).await;
    }
    let _ = stream.shutdown().await;
    stream.get_ref().1.peer_certificates().is_some()
}

#[tokio::test]
async fn a_proxy_does_not_see_the_certificate_for_the_server() {
    let authority = authority("ours");
    let acceptor = asking(&authority);
    let (trusting, known) = clients(&authority, "proxy-tls");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let proxy = Proxy::new(&format!("https://localhost:{}", at.port())).unwrap();
    let shown = async |for_servers: &ClientTls, proxy: Proxy| {
        let connector = Connector::new().tls(for_servers.clone()).proxy(proxy).resolve("localhost", [at]);
        let refusing = shows_certificate(&listener, &acceptor, "HTTP/1.1 403 Forbidden\r\n\r\n");
        let (shown, connected) = tokio::join!(refusing, connector.connect("ws://far.example/"));
        assert!(matches!(connected, Err(Error::Proxy(ProxyError::Refused(403)))), "{connected:?}");
        shown
    };
    assert!(!shown(&known, proxy.clone()).await);
    // A proxy has a certificate of its own, or none.
    assert!(!shown(&known, proxy.clone().tls(trusting.clone())).await);
    assert!(shown(&trusting, proxy.tls(known)).await);
}

#[tokio::test]
async fn another_origin_does_not_see_the_certificate_after_a_redirect() {
    let authority = authority("ours");
    let acceptor = asking(&authority);
    let (_, known) = clients(&authority, "redirect-tls");
    let listeners = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let [first, other] = listeners.map(|listener| {
        listener.set_nonblocking(true).unwrap();
        TcpListener::from_std(listener).unwrap()
    });
    let url = |listener: &TcpListener| format!("wss://localhost:{}/", listener.local_addr().unwrap().port());
    let redirect = |to: &TcpListener| {
        format!("HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: {}\r\n\r\n", url(to))
    };
    let connector = local(known).redirects_max(2);
    let serving = async {
        let at_first = shows_certificate(&first, &acceptor, &redirect(&first)).await;
        let at_same_origin = shows_certificate(&first, &acceptor, &redirect(&other)).await;
        let refusal = "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n";
        (at_first, at_same_origin, shows_certificate(&other, &acceptor, refusal).await)
    };
    let start = url(&first);
    let (shown, connected) = tokio::join!(serving, connector.connect(&start));
    assert!(matches!(connected, Err(Error::Refused(_))), "{connected:?}");
    assert_eq!(shown, (true, true, false));
}

#[tokio::test]
async fn a_root_from_a_file_is_trusted() {
    let authority = authority("ours");
    let url = serve_tls(server_config(&signed(&authority, "localhost", |_| ()), None)).await;
    let file = std::env::temp_dir().join(format!("wireloom-root-{}.pem", std::process::id()));
    std::fs::write(&file, authority.pem()).unwrap();
    let trusting = ClientTls::default().with_root_file(&file).unwrap().with_webpki_roots();
    std::fs::remove_file(file).unwrap();
    assert!(local(trusting).connect_timeout(Duration::from_secs(5)).connect(&url).await.is_ok());
}

// RFC 9112 §9.8: without `close_notify`, rustls reports `UnexpectedEof`.
#[tokio::test]
async fn closes_with_close_notify() {
    let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let private = PrivateKeyDer::Pkcs8(key.signing_key.serialize_der().into());
    let config =
        config.unwrap().with_no_client_auth().with_single_cert(vec![key.cert.der().clone()], private);
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config.unwrap()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let connector = Connector::new().tls(ClientTls::default().with_root(key.cert.der().to_vec()));
    let serving = async {
        let mut stream = acceptor.accept(listener.accept().await.unwrap().0).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.map(|_| rest)
    };
    let asking = async {
        let request = wireloom::client::Request::get(format!("https://localhost:{port}/"));
        connector.request(request).await.unwrap().body.bytes().await.unwrap()
    };
    let (rest, content) = tokio::join!(serving, asking);
    assert_eq!((rest.unwrap(), &*content), (Vec::new(), &b"ok"[..]));
}
