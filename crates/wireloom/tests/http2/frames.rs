//! Random frames, most of them valid: whatever a client sends, the server frees all that the connection held, and serves others.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use wireloom::ServerConfig;
use wireloom_testing::Rng;
use wireloom_testing::http2::{Frame, PREFACE, flag, join, kind};

use super::peer::Peer;
use super::serve;

const CONNECTIONS: u64 = 60;

const PATHS: [&str; 10] = [
    "/hello",
    "/whole",
    "/echo",
    "/slow",
    "/never",
    "/endless",
    "/trailers",
    "/panic-later",
    "/broken",
    "/flood",
];

fn request(rng: &mut Rng, stream: u32) -> Frame {
    let path = *rng.pick(&PATHS);
    let base = [(":scheme", "http"), (":authority", "a"), (":path", path)];
    let method = *rng.pick(&["GET", "POST", "HEAD", "CONNECT"]);
    let mut fields = vec![(":method", method)];
    fields.extend(base);
    if method == "CONNECT" {
        fields.extend([(":protocol", "websocket"), ("sec-websocket-version", "13")]);
    }
    match rng.u8(..8) {
        0 => fields.push(("content-length", "10")),
        1 => fields.push(("expect", "100-continue")),
        2 => fields.push(("priority", "u=1, i")),
        _ => {}
    }
    let frame = Frame::headers(stream, &fields);
    if rng.u8(..3) == 0 { frame.end_stream() } else { frame }
}

/// The streams of a client.
struct Streams {
    next: u32,
    /// Those that it has neither ended nor reset.
    open: Vec<u32>,
}

/// The next frame on a connection.
fn frame(rng: &mut Rng, streams: &mut Streams) -> Frame {
    let choice = rng.u8(..40);
    if choice < 12 || streams.open.is_empty() {
        let frame = request(rng, streams.next);
        streams.next += 2;
        if !frame.has(flag::END_STREAM) {
            streams.open.push(frame.stream);
        }
        return frame;
    }
    // Rarely one that has ended.
    let rare = rng.u8(..100) == 0;
    let stream = if rare { 1 + 2 * rng.u32(..streams.next / 2) } else { *rng.pick(&streams.open) };
    let frame = match choice {
        12..24 => {
            let len = if rng.u8(..4) == 0 { rng.usize(..16_000) } else { rng.usize(..100) };
            let frame = Frame::data(stream, rng.bytes(len));
            let frame = if rng.u8(..5) == 0 { frame.padded(3, 3) } else { frame };
            if rng.u8(..4) == 0 { frame.end_stream() } else { frame }
        }
        24..28 => Frame::rst_stream(stream, rng.u32(..14)),
        28..32 => {
            let stream = if rng.bool() { stream } else { 0 };
            let increment = if rng.u8(..100) == 0 { (1 << 31) - 1 } else { 1 + rng.u32(..100_000) };
            Frame::window_update(stream, increment)
        }
        32 => {
            let id = *rng.pick(&[1, 3, 5, 6]);
            Frame::settings(&[(id, 16_384 + rng.u32(..1 << 20)), (4, rng.u32(..200_000))])
        }
        33 => Frame::headers(stream, &[("x-trailer", "1")]).end_stream(),
        34 => Frame::ping("01234567"),
        35 => Frame::priority_update(stream + 2 * rng.u32(..4), "u=5"),
        36 if rng.u8(..20) == 0 => Frame::new(rng.u8(..), stream, rng.bytes(8)),
        36 => Frame::priority(stream, 0, 7),
        37 => Frame::settings_ack(),
        38 => Frame::goaway(0, 0, ""),
        _ => Frame::ping("wl drain").flag(flag::ACK),
    };
    if frame.kind == kind::RST_STREAM || (frame.kind <= kind::HEADERS && frame.has(flag::END_STREAM)) {
        streams.open.retain(|&stream| stream != frame.stream);
    }
    frame
}

async fn attack(address: std::net::SocketAddr, mut rng: Rng) {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut read, mut write) = stream.into_split();
    let reads = rng.u8(..4) > 0;
    let reading = tokio::spawn(async move {
        let mut bytes = vec![0; 64 << 10];
        while reads && matches!(read.read(&mut bytes).await, Ok(1..)) {}
        read
    });
    let mut bytes = [PREFACE, &join(&[Frame::settings(&[]), Frame::settings_ack()])].concat();
    let mut streams = Streams { next: 1, open: Vec::new() };
    for _ in 0..rng.usize(10..300) {
        frame(&mut rng, &mut streams).write(&mut bytes);
        if rng.u8(..3) == 0 {
            let len = rng.usize(..=bytes.len());
            let sent = tokio::time::timeout(Duration::from_millis(300), write.write_all(&bytes[..len])).await;
            if !matches!(sent, Ok(Ok(()))) {
                break;
            }
            bytes.drain(..len);
            match rng.u8(..20) {
                0 => tokio::time::sleep(Duration::from_millis(rng.u64(1..20))).await,
                1..10 => tokio::task::yield_now().await,
                _ => {}
            }
        }
    }
    reading.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_connection_leaves_nothing_behind() {
    let server = serve(ServerConfig::default()).await;
    let mut rng = wireloom_testing::generator();
    let seed = rng.u64(..);
    let attacks = (0..CONNECTIONS).map(|n| tokio::spawn(attack(server.address, Rng::with_seed(seed ^ n))));
    for attack in attacks.collect::<Vec<_>>() {
        attack.await.unwrap();
    }
    let began = Instant::now();
    loop {
        let stats = server.handle.stats();
        if (stats.connections_open, stats.websockets_open, stats.memory.total) == (0, 0, 0) {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{stats:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut peer = Peer::connect(server.address).await;
    let key = peer.request("GET", "/hello", &[], true).await;
    assert_eq!(peer.response(key).await.0, 200);
}
