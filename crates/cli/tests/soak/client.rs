//! The clients of the soak test: most follow the protocol, some disappear, some send invalid bytes.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use wireloom::client::Request;
use wireloom::{ClientTls, CloseCode, Connector, DeflateConfig, Error, WebSocket};
use wireloom_testing::Rng;

/// The kinds of clients, in the order of the counts.
pub(crate) const KINDS: [&str; 11] = [
    "echo",
    "room",
    "source",
    "vanish",
    "requests",
    "nonsense",
    "bad frames",
    "hang",
    "HTTP/2 requests",
    "HTTP/2 tunnels",
    "HTTP/2 nonsense",
];

/// Limit for one client; the expected time is far below.
const DEADLINE: Duration = Duration::from_secs(30);

/// Runs one client of a random kind, and returns the kind.
pub(crate) async fn act(rng: &mut Rng, addresses: &[String; 2]) -> usize {
    let kind = rng.usize(0..KINDS.len());
    let (plain, secure) = (&addresses[0], &addresses[1]);
    let acting = async {
        match kind {
            0 => echo(rng, plain, secure).await.expect("the echo answers"),
            1 => room(rng, plain, secure).await.expect("a member receives what it publishes"),
            2 => source(rng, plain).await.expect("the source sends"),
            3 => vanish(rng, plain).await,
            4 => requests(rng, plain).await,
            5 => nonsense(rng, plain).await,
            6 => bad_frames(rng, plain).await,
            7 => hang(rng, plain).await,
            8 => http2_requests(rng, plain, secure).await.expect("requests are answered"),
            9 => http2_tunnels(rng, plain).await.expect("tunnels are served"),
            _ => http2_nonsense(rng, plain).await,
        }
    };
    tokio::time::timeout(DEADLINE, acting).await.unwrap_or_else(|_| panic!("{} hangs", KINDS[kind]));
    kind
}

async fn open(rng: &mut Rng, plain: &str, secure: &str, path: &str) -> Result<WebSocket, Error> {
    let mut connector = Connector::new().tls(ClientTls::default().insecure());
    if rng.bool() {
        connector = connector.deflate(DeflateConfig::default());
    }
    connector = connector.http2(rng.bool());
    let is_secure = rng.u8(0..4) == 0;
    let url = if is_secure { format!("wss://{secure}{path}") } else { format!("ws://{plain}{path}") };
    connector.connect(&url).await
}

async fn echo(rng: &mut Rng, plain: &str, secure: &str) -> Result<(), Error> {
    let mut socket = open(rng, plain, secure, "/echo").await?;
    for _ in 0..rng.usize(1..20) {
        let len = rng.len(300_000);
        let message = rng.bytes(len);
        socket.send(&message).await?;
        assert_eq!(socket.recv().await?.expect("it is open").as_bytes(), message);
    }
    Ok(socket.close(CloseCode::NORMAL, "").await?)
}

async fn room(rng: &mut Rng, plain: &str, secure: &str) -> Result<(), Error> {
    let room = format!("/rooms/{}", rng.u8(0..50));
    let mut socket = open(rng, plain, secure, &room).await?;
    let word = rng.u64(..).to_string();
    socket.send(&*word).await?;
    while socket.recv().await?.expect("it is open").as_text() != Some(&word) {}
    Ok(socket.close(CloseCode::NORMAL, "").await?)
}

async fn source(rng: &mut Rng, plain: &str) -> Result<(), Error> {
    let (size, count) = (rng.len(20_000), rng.usize(1..2_000));
    let url = format!("ws://{plain}/source?size={size}&count={count}");
    let mut socket = wireloom::connect(&url).await?;
    let wanted = rng.usize(0..2 * count);
    let mut received = 0;
    while received < wanted
        && let Some(message) = socket.recv().await?
    {
        assert_eq!(message.as_bytes().len(), size);
        received += 1;
    }
    assert_eq!(received, wanted.min(count));
    // The other messages are left unread.
    Ok(())
}

/// Sends without reading, and disconnects without a Close frame.
async fn vanish(rng: &mut Rng, plain: &str) {
    let path = *rng.pick(&["/echo", "/sink", "/rooms/crowd", "/source"]);
    let Ok(mut socket) = wireloom::connect(&format!("ws://{plain}{path}")).await else { return };
    let message = rng.bytes(60_000);
    for _ in 0..rng.usize(0..10) {
        // The server may have stopped reading, because this client does not read.
        if tokio::time::timeout(Duration::from_millis(20), socket.send(&message)).await.is_err() {
            return;
        }
    }
}

async fn requests(rng: &mut Rng, plain: &str) {
    let mut stream = TcpStream::connect(plain).await.unwrap();
    let len = rng.len(50_000);
    let body = rng.bytes(len);
    let post = format!("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(post.as_bytes()).await.unwrap();
    stream.write_all(&body).await.unwrap();
    stream.write_all(b"GET /nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200 "));
    assert!(
        answer.windows(body.len() + 13).any(|at| at.starts_with(&body) && at.ends_with(b"HTTP/1.1 404 "))
    );
}

/// Sends bytes and reads until the server closes.
async fn answered(plain: &str, bytes: &[u8]) {
    let Ok(mut stream) = TcpStream::connect(plain).await else { return };
    if stream.write_all(bytes).await.is_ok() {
        let _ = stream.shutdown().await;
        let mut answer = [0; 4096];
        while let Ok(1..) = stream.read(&mut answer).await {}
    }
}

async fn nonsense(rng: &mut Rng, plain: &str) {
    let len = rng.len(40_000);
    let random = rng.bytes(len);
    let bytes = match rng.u8(0..5) {
        0 => random,
        1 => [b"GET / HTTP/1.1\r\nHost: x\r\nX: ".to_vec(), random].concat(),
        2 => [b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec(), random]
            .concat(),
        3 => [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), random].concat(),
        _ => [HANDSHAKE, &random].concat(),
    };
    answered(plain, &bytes).await;
}

const HANDSHAKE: &[u8] = b"GET /echo HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n";

async fn bad_frames(rng: &mut Rng, plain: &str) {
    let frame: &[u8] = rng.pick::<&[u8]>(&[
        // Unmasked; a reserved opcode; a reserved bit; a ping over 125 bytes; invalid UTF-8; a length with the highest bit set; a
        // message over the limit; a continuation without a message; a reserved close code; a Close of one byte.
        b"\x81\x01a",
        b"\x83\x80\0\0\0\0",
        b"\xC1\x80\0\0\0\0",
        b"\x89\xFE\x00\x80\0\0\0\0",
        b"\x81\x82\0\0\0\0\xFF\xFF",
        b"\x82\xFF\x80\0\0\0\0\0\0\0\0\0\0\0",
        b"\x82\xFF\0\0\0\x10\0\0\0\0\0\0\0\0",
        b"\x80\x80\0\0\0\0",
        b"\x88\x82\0\0\0\0\x03\xED",
        b"\x88\x81\0\0\0\0\x03",
    ]);
    answered(plain, &[HANDSHAKE, frame].concat()).await;
}

/// Sends an incomplete request and waits until the server closes.
async fn hang(rng: &mut Rng, plain: &str) {
    let whole: &[u8] = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12345";
    let part = &whole[..rng.usize(0..=whole.len())];
    let mut stream = TcpStream::connect(plain).await.unwrap();
    stream.write_all(part).await.unwrap();
    let mut answer = [0; 1024];
    while let Ok(1..) = stream.read(&mut answer).await {}
}

/// Many requests at once on one connection; some are cancelled, some responses are left unread.
async fn http2_requests(rng: &mut Rng, plain: &str, secure: &str) -> Result<(), Error> {
    let connector = Connector::new().tls(ClientTls::default().insecure());
    let is_secure = rng.u8(0..4) == 0;
    let base = if is_secure { format!("https://{secure}") } else { format!("http://{plain}") };
    let http2 = connector.connect_http2(&base).await?;
    let mut exchanges = Vec::new();
    for _ in 0..rng.usize(1..40) {
        let len = rng.len(200_000);
        let body = rng.bytes(len);
        exchanges.push((http2.send(Request::post("/echo", body.clone()))?, body));
    }
    for (exchange, body) in exchanges {
        match rng.u8(0..8) {
            0 => drop(exchange),
            1 => drop(exchange.response().await?),
            _ => assert_eq!(exchange.response().await?.body.bytes().await?, body),
        }
    }
    let mut source = http2.request(Request::get("/source?size=5000")).await?;
    for _ in 0..rng.usize(0..50) {
        assert!(source.body.chunk().await?.is_some());
    }
    Ok(())
}

/// Many WebSockets on one connection; some disappear.
async fn http2_tunnels(rng: &mut Rng, plain: &str) -> Result<(), Error> {
    let http2 = Connector::new().connect_http2(&format!("http://{plain}")).await?;
    let mut sockets = Vec::new();
    for _ in 0..rng.usize(1..10) {
        sockets.push(http2.websocket("/echo").await?);
    }
    for mut socket in sockets {
        let len = rng.len(200_000);
        let message = rng.bytes(len);
        socket.send(&message).await?;
        if rng.u8(0..4) > 0 {
            assert_eq!(socket.recv().await?.expect("it is open").as_bytes(), message);
            socket.close(CloseCode::NORMAL, "").await?;
        }
    }
    Ok(())
}

/// Random frames on random streams.
async fn http2_nonsense(rng: &mut Rng, plain: &str) {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    for _ in 0..rng.usize(1..200) {
        let len = rng.len(300);
        let (kind, flags, stream) = (rng.u8(0..12), rng.u8(..), rng.u32(0..8));
        bytes.extend_from_slice(&(len as u32).to_be_bytes()[1..]);
        bytes.extend_from_slice(&[kind, flags]);
        bytes.extend_from_slice(&stream.to_be_bytes());
        bytes.extend(rng.bytes(len));
    }
    answered(plain, &bytes).await;
}
