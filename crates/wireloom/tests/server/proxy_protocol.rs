//! The PROXY protocol in front of HTTP/1.1, HTTP/2 and TLS.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use wireloom::{Request, Response, ServerConfig};

use crate::running::Running;

/// The version 2 header of a client at 192.0.2.7:4660.
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x07\xc0\0\x02\x01\x12\x34\0\x50";

async fn serve(trusted: &[&str]) -> Running {
    let config = ServerConfig {
        proxy_protocol_from: trusted.iter().map(|network| network.parse().unwrap()).collect(),
        connections_per_address_max: Some(1),
        ..ServerConfig::default()
    };
    Running::start(config, |request: Request| async move { Response::text(200, request.peer().to_string()) })
        .await
}

/// The answer of the server to these bytes, until it closes.
async fn ask(server: &Running, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    // A connection that is refused may be reset.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn a_trusted_proxy_names_the_client() {
    let server = serve(&["192.0.2.0/24", "127.0.0.1/32"]).await;
    let get = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let v1 = [&b"PROXY TCP6 2001:db8::1 2001:db8::2 4660 80\r\n"[..], get].concat();
    assert!(ask(&server, &v1).await.ends_with("\r\n\r\n[2001:db8::1]:4660"));
    assert!(ask(&server, &[V2, get].concat()).await.ends_with("\r\n\r\n192.0.2.7:4660"));
    let unknown = [&b"PROXY UNKNOWN\r\n"[..], get].concat();
    assert!(ask(&server, &unknown).await.contains("\r\n\r\n127.0.0.1:"));
    // It must send a header.
    for malformed in [&get[..], b"PROXY TCP4 1 2 3 4\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"] {
        assert_eq!(ask(&server, malformed).await, "", "{}", malformed.escape_ascii());
    }
}

#[tokio::test]
async fn the_connections_of_each_client_that_a_proxy_names_are_limited() {
    let server = serve(&["127.0.0.1/32"]).await;
    let mut streams = Vec::new();
    for (client, is_served) in [(1, true), (2, true), (1, false), (3, true), (2, false)] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let get = format!("PROXY TCP4 192.0.2.{client} 192.0.2.9 1 80\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n");
        stream.write_all(get.as_bytes()).await.unwrap();
        let mut status = [0; 12];
        let read = stream.read_exact(&mut status).await;
        assert_eq!((read.is_ok(), status == *b"HTTP/1.1 200"), (is_served, is_served), "{client}");
        streams.push(stream);
    }
    assert_eq!(server.handle.stats().connections_refused, 2);
    // A place is free again.
    drop(streams);
    let get =
        b"PROXY TCP4 192.0.2.1 192.0.2.9 1 80\r\nGET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let served = async { while ask(&server, get).await.is_empty() {} };
    tokio::time::timeout(Duration::from_secs(10), served).await.unwrap();
}

#[tokio::test]
async fn a_network_of_proxies_is_trusted() {
    let get = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    for network in ["127.0.0.0/8", "127.0.0.0/31", "127.255.255.255/8", "0.0.0.0/0"] {
        let server = serve(&[network]).await;
        assert!(ask(&server, &[V2, get].concat()).await.ends_with("\r\n\r\n192.0.2.7:4660"), "{network}");
    }
}

#[tokio::test]
async fn nobody_else_is_believed() {
    for server in [serve(&["192.0.2.1/32", "127.0.0.2/31", "::/0"]).await, serve(&[]).await] {
        let header = b"PROXY TCP4 192.0.2.9 192.0.2.2 1 80\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n";
        assert!(ask(&server, header).await.starts_with("HTTP/1.1 400 "));
    }
}
