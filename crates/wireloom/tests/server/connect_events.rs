//! The client's events for a connection that fails to open, and the addresses and names that a caller can override.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use wireloom::client::{ConnectEvent, Request as ClientRequest};
use wireloom::{ClientTls, Connector, Error, Request, Response, Server, ServerTls};

/// A server that answers every connection with these bytes and keeps it open. Its address, and what the last client sent.
async fn answer(bytes: &'static [u8]) -> (String, Arc<Mutex<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let requests = Arc::new(Mutex::new(String::new()));
    let sent = requests.clone();
    tokio::spawn(async move {
        let mut open = Vec::new();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let len = stream.read(&mut request).await.unwrap();
            *sent.lock().unwrap() = String::from_utf8_lossy(&request[..len]).into_owned();
            stream.write_all(bytes).await.unwrap();
            open.push(stream);
        }
    });
    (address, requests)
}

fn recorder() -> (Connector, Arc<Mutex<Vec<String>>>) {
    let events = Arc::new(Mutex::new(Vec::new()));
    let recorded = events.clone();
    let connector = Connector::new().on_event(move |event| {
        let line = match event {
            ConnectEvent::Connected { peer } => format!("connected {}", peer.ip()),
            ConnectEvent::Request { version, fields } => format!("{version:?} {}", fields[0].1),
            ConnectEvent::Response { status, reason, headers, .. } => {
                let kind = headers.get("content-type").unwrap_or_default().escape_ascii();
                format!("{status} {reason} {kind}")
            }
            _ => return,
        };
        recorded.lock().unwrap().push(line);
    });
    (connector, events)
}

#[tokio::test]
async fn a_refusal_carries_its_body() {
    for (response, body) in [
        (&b"HTTP/1.1 403 No\r\nContent-Length: 9\r\n\r\nstay away"[..], "stay away"),
        (
            b"HTTP/1.1 403 No\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nstay\r\n5\r\n away\r\n0\r\n\r\n",
            "stay away",
        ),
        // Less than announced, and the connection stays open: the part that came.
        (b"HTTP/1.1 403 No\r\nContent-Length: 900\r\n\r\nstay", "stay"),
    ] {
        let (address, _) = answer(response).await;
        let (connector, events) = recorder();
        let error = connector.connect(&format!("ws://{address}/x")).await.unwrap_err();
        let Error::Refused(refused) = error else { panic!("{error:?}") };
        assert_eq!((refused.status(), refused.body()), (403, body.as_bytes()));
        let events = events.lock().unwrap();
        assert_eq!(*events, ["connected 127.0.0.1", "Http11 /x HTTP/1.1", "403 No "]);
    }
}

#[tokio::test]
async fn a_refusal_over_http2_carries_its_body() {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/x", server.local_addr().unwrap());
    tokio::spawn(server.serve(|_: Request| async { Response::text(403, "stay away") }));
    let (connector, events) = recorder();
    let error = connector.http2(true).connect(&url).await.unwrap_err();
    let Error::Refused(refused) = error else { panic!("{error:?}") };
    assert_eq!((refused.status(), refused.body()), (403, &b"stay away"[..]));
    let events = events.lock().unwrap();
    assert_eq!(events[1..], ["Http2 CONNECT".to_owned(), "403  text/plain; charset=utf-8".to_owned()]);
}

// RFC 8446 §5.1: an alert of level fatal, here unexpected_message.
#[tokio::test]
async fn names_a_port_that_speaks_tls_only() {
    let (address, _) = answer(b"\x15\x03\x01\0\x02\x02\x0A").await;
    let error = wireloom::connect(&format!("ws://{address}/")).await.unwrap_err();
    assert_eq!(error, Error::TlsRequired);
    let request = ClientRequest::get(format!("http://{address}/"));
    assert_eq!(Connector::new().http1_only(true).request(request).await.unwrap_err(), Error::TlsRequired);
}

#[tokio::test]
async fn overrides_the_host_and_speaks_http1_only() {
    let (address, sent) = answer(b"HTTP/1.1 204 No Content\r\n\r\n").await;
    let connector = Connector::new().host("other.example").http1_only(true);
    let request = ClientRequest::get(format!("http://{address}/"));
    assert_eq!(connector.request(request).await.unwrap().status, 204);
    let head = sent.lock().unwrap().clone();
    assert!(head.starts_with("GET / HTTP/1.1\r\nHost: other.example\r\n"), "{head}");
    assert!(connector.connect(&format!("ws://{address}/")).await.is_err());
    assert!(sent.lock().unwrap().contains("\r\nHost: other.example\r\n"));
}

#[tokio::test]
async fn overrides_the_tls_server_name() {
    let (tls, certificate) = ServerTls::self_signed(&["other.example"]).unwrap();
    let server = Server::bind("127.0.0.1:0").await.unwrap().tls(tls);
    let url = format!("https://{}/", server.local_addr().unwrap());
    tokio::spawn(server.serve(|request: Request| async move {
        Response::text(200, request.tls().and_then(|tls| tls.server_name.clone()).unwrap_or_default())
    }));
    let connector = Connector::new().tls(ClientTls::default().with_root(certificate.der()));
    assert!(matches!(connector.request(ClientRequest::get(&*url)).await, Err(Error::Tls(_))));
    let connector = connector.server_name("other.example");
    let mut response = connector.request(ClientRequest::get(&*url)).await.unwrap();
    assert_eq!(response.body.bytes().await.unwrap(), "other.example");
}

// `openssl req -x509` makes such certificates: self-signed, and marked as a certificate authority (RFC 5280 §4.2.1.9).
#[tokio::test]
async fn a_trusted_certificate_is_trusted_as_the_servers_own() {
    let make = |name: &str, not_after: i32| {
        let mut params = rcgen::CertificateParams::new(vec![name.into()]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.not_after = rcgen::date_time_ymd(not_after, 1, 1);
        let key = rcgen::KeyPair::generate().unwrap();
        (params.self_signed(&key).unwrap(), key)
    };
    for (name, not_after, accepted) in
        [("localhost", 4000, true), ("other.example", 4000, false), ("localhost", 2001, false)]
    {
        let (certificate, key) = make(name, not_after);
        let folder =
            std::env::temp_dir().join(format!("wireloom-own-{}-{name}-{not_after}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let files = (folder.join("cert.pem"), folder.join("key.pem"));
        std::fs::write(&files.0, certificate.pem()).unwrap();
        std::fs::write(&files.1, key.serialize_pem()).unwrap();
        let tls = ServerTls::from_pem_files(&files.0, &files.1).unwrap();
        let server = Server::bind("127.0.0.1:0").await.unwrap().tls(tls);
        let url = format!("https://localhost:{}/", server.local_addr().unwrap().port());
        tokio::spawn(server.serve(|_: Request| async { Response::text(200, "") }));
        let connector = Connector::new().resolve("localhost", ["127.0.0.1:0".parse().unwrap()]);
        let trusting = connector.clone().tls(ClientTls::default().with_root_file(&files.0).unwrap());
        let response = trusting.request(ClientRequest::get(&*url)).await;
        assert_eq!(response.is_ok(), accepted, "{name} {not_after}: {response:?}");
        // Another certificate of the same kind is not accepted for it.
        let (other, _) = make(name, not_after);
        let other = connector.tls(ClientTls::default().with_root(other.der().to_vec()));
        assert!(matches!(other.request(ClientRequest::get(&*url)).await, Err(Error::Tls(_))));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
