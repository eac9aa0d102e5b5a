//! Interim responses, priorities, keepalive PINGs and tunnels of other protocols.

use std::io::Write as _;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy, split};
use tokio::net::TcpStream;
use tokio::time::timeout;
use wireloom::client::{Http2, Request as ClientRequest};
use wireloom::wireloom_http2::priority::Priority;
use wireloom::{Connector, Error, Headers, HttpError, Keepalive, Request, Response, ServerConfig};
use wireloom_testing::http2::{Frame, PREFACE, join};

use crate::running::Running;

const DEADLINE: Duration = Duration::from_secs(60);

async fn connect(server: &Running) -> Http2 {
    Connector::new().connect_http2(&format!("http://{}/", server.address)).await.unwrap()
}

// RFC 8297.
#[tokio::test]
async fn interim_responses_come_before_the_final_one() {
    let server = Running::start(ServerConfig::default(), |request: Request| async move {
        let mut hints = Headers::new();
        hints.push("Link", "</style.css>; rel=preload")?;
        for status in [100, 101, 200] {
            assert_eq!(request.send_informational(status, &hints), Err(HttpError::InvalidHeader));
        }
        request.send_informational(103, &hints)?;
        // It leaves although the handler goes on.
        tokio::task::yield_now().await;
        request.send_informational(199, &Headers::new())?;
        Ok::<_, HttpError>(Response::text(200, "page"))
    })
    .await;
    let mut exchange = connect(&server).await.send(ClientRequest::get("/")).unwrap();
    let first = exchange.informational().await.unwrap().unwrap();
    assert_eq!((first.status, first.headers.get("link")), (103, Some(&b"</style.css>; rel=preload"[..])));
    assert_eq!(exchange.informational().await.unwrap().unwrap().status, 199);
    let mut response = exchange.response().await.unwrap();
    assert_eq!((response.status, &response.body.bytes().await.unwrap()[..]), (200, &b"page"[..]));
    // HTTP/1.1 has the final one alone.
    let url = format!("http://{}/", server.address);
    let mut exchange = Connector::new().http1_only(true).send(ClientRequest::get(&url)).await.unwrap();
    assert_eq!(exchange.informational().await.unwrap(), None);
    assert_eq!(exchange.response().await.unwrap().status, 200);
}

// RFC 9218 §4, §7.1, §8.
#[tokio::test]
async fn priorities_are_signalled_and_set() {
    const FIRST: Priority = Priority { urgency: 1, incremental: false };
    const SECOND: Priority = Priority { urgency: 6, incremental: true };
    const OWN: Priority = Priority { urgency: 0, incremental: true };
    let server = Running::start(ServerConfig::default(), |request: Request| async move {
        assert_eq!(request.priority(), Some(FIRST));
        request.send_informational(102, &Headers::new())?;
        // Until PRIORITY_UPDATE has arrived.
        while request.priority() == Some(FIRST) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(request.priority(), Some(SECOND));
        request.set_priority(OWN)?;
        assert_eq!(request.priority(), Some(OWN));
        Ok::<_, HttpError>(Response::new(204))
    })
    .await;
    let request = ClientRequest::get("/").header("priority", "u=1");
    let mut exchange = connect(&server).await.send(request).unwrap();
    // The handler has seen the first priority.
    assert_eq!(exchange.informational().await.unwrap().unwrap().status, 102);
    exchange.set_priority(SECOND).unwrap();
    let response = timeout(DEADLINE, exchange.response()).await.unwrap().unwrap();
    assert_eq!(response.status, 204);
}

#[tokio::test]
async fn silent_clients_are_pinged_and_disconnected() {
    let keepalive =
        Keepalive { ping_after: Duration::from_millis(20), dead_after: Duration::from_millis(200) };
    let config = ServerConfig { http2_keepalive: Some(keepalive), ..ServerConfig::default() };
    let server = Running::start(config, |_: Request| async { Response::new(204) }).await;
    let mut client = TcpStream::connect(server.address).await.unwrap();
    client.write_all(&[PREFACE, &join(&[Frame::settings(&[])])].concat()).await.unwrap();
    let mut received = Vec::new();
    // The end, without a reset or with one: the client has not read everything.
    let _ = timeout(DEADLINE, client.read_to_end(&mut received)).await.expect("it is disconnected");
    let mut rest = &received[..];
    let mut kinds = Vec::new();
    while rest.len() >= 9 {
        let len = u32::from_be_bytes([0, rest[0], rest[1], rest[2]]) as usize;
        kinds.push((rest[3], rest[4]));
        rest = &rest[(9 + len).min(rest.len())..];
    }
    // RFC 9113 §6.7: type 6, without ACK.
    assert!(kinds.contains(&(6, 0)), "{kinds:?}");
}

// RFC 8441 §4, RFC 9220 §3.
#[tokio::test]
async fn other_protocols_are_tunnelled_as_bytes() {
    let config = ServerConfig { connect_protocols: vec!["connect-udp".into()], ..ServerConfig::default() };
    let server = Running::start(config, |request: Request| async move {
        assert_eq!((request.method(), request.protocol()), ("CONNECT", Some("connect-udp")));
        if request.path() == "/refused" {
            return Response::text(403, "no\n");
        }
        match request.tunnel() {
            Ok(tunnel) => tunnel.header("Capsule-Protocol", "?1").unwrap().on_open(|stream| async move {
                let (mut reader, mut writer) = split(stream);
                let _ = copy(&mut reader, &mut writer).await;
                let _ = writer.shutdown().await;
            }),
            Err(refusal) => refusal,
        }
    })
    .await;
    let http2 = connect(&server).await;
    let mut tunnel = http2.tunnel("connect-udp", "/.well-known/masque/udp/192.0.2.1/443/").await.unwrap();
    let sent: Vec<u8> = (0..200_000u32).map(|byte| byte as u8).collect();
    let (mut reader, mut writer) = split(&mut tunnel);
    let send = async {
        writer.write_all(&sent).await.unwrap();
        writer.shutdown().await.unwrap();
    };
    let mut received = Vec::new();
    let receive = reader.read_to_end(&mut received);
    let ((), read) = timeout(DEADLINE, async { tokio::join!(send, receive) }).await.unwrap();
    read.unwrap();
    assert!(received == sent, "{} bytes", received.len());
    drop(tunnel);
    assert_eq!(http2.tunnel("connect-udp", "/refused").await.err(), Some(Error::TunnelRefused(403)));
    assert_eq!(http2.tunnel("connect-ip", "/").await.err(), Some(Error::TunnelRefused(501)));
}

// As over TCP: content that was written before the end arrives, although the answer is not read.
#[tokio::test]
async fn a_tunnel_that_is_dropped_after_its_end_has_sent_everything() {
    let (received, mut arrived) = tokio::sync::mpsc::unbounded_channel();
    let config = ServerConfig { connect_protocols: vec!["connect-udp".into()], ..ServerConfig::default() };
    let server = Running::start(config, move |request: Request| {
        let received = received.clone();
        async move {
            request.tunnel().unwrap().on_open(|mut stream| async move {
                let mut bytes = Vec::new();
                let result = stream.read_to_end(&mut bytes).await;
                received.send((bytes.len(), result.is_ok())).unwrap();
                // The client reads no more.
                let _ = stream.write_all(&[7; 1_000_000]).await;
            })
        }
    })
    .await;
    for is_last in [false, true] {
        let http2 = connect(&server).await;
        let mut tunnel = http2.tunnel("connect-udp", "/").await.unwrap();
        let http2 = Some(http2).filter(|_| !is_last);
        tunnel.write_all(&[1; 60_000]).await.unwrap();
        tunnel.shutdown().await.unwrap();
        drop(tunnel);
        assert_eq!(timeout(DEADLINE, arrived.recv()).await.unwrap(), Some((60_000, true)));
        drop(http2);
    }
    while server.handle.stats().connections_open > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn not_tried(reason: &str) {
    // Not captured, as what is printed would be.
    let _ = writeln!(std::io::stderr(), "skipped: interim responses to curl: {reason}");
}

// curl is another implementation (nghttp2). Where it is missing, or was built without HTTP/2, there is nothing to ask.
#[tokio::test]
async fn curl_receives_hints_signals_priorities_and_answers_pings() {
    let keepalive = Keepalive { ping_after: Duration::from_millis(20), dead_after: Duration::from_secs(10) };
    let config = ServerConfig { http2_keepalive: Some(keepalive), ..ServerConfig::default() };
    let server = Running::start(config, |request: Request| async move {
        let mut hints = Headers::new();
        hints.push("link", "</style.css>; rel=preload")?;
        request.send_informational(103, &hints)?;
        // Long enough for some PINGs, which curl answers.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let priority = request.priority().expect("the stream is open");
        Ok::<_, HttpError>(Response::text(200, format!("{} {}", priority.urgency, priority.incremental)))
    })
    .await;
    let mut curl = tokio::process::Command::new("curl");
    curl.args(["-sS", "-v", "--http2-prior-knowledge", "-H", "priority: u=5, i"]);
    let run = curl.arg(format!("http://{}/", server.address)).kill_on_drop(true).output();
    let Ok(output) = timeout(DEADLINE, run).await.expect("curl ends") else {
        return not_tried("apt-get install curl");
    };
    let heads = String::from_utf8_lossy(&output.stderr);
    if heads.contains("does not support") || heads.contains("unsupported") {
        return not_tried("this curl has no HTTP/2");
    }
    assert_eq!(String::from_utf8_lossy(&output.stdout), "5 true", "{heads}");
    let places =
        ["< HTTP/2 103", "< link: </style.css>; rel=preload", "< HTTP/2 200"].map(|text| heads.find(text));
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{heads}");
}
