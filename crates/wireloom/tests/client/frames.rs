//! Random frames from a server, most of them valid: every request ends, and the connection notices its end.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use wireloom::client::{Http2, Request};
use wireloom::{Body, Connector};
use wireloom_testing::Rng;
use wireloom_testing::http2::{Frame, flag, kind};

const CONNECTIONS: u64 = 40;
const REQUESTS: usize = 30;

/// The next frame on a connection with streams 1, 3, ..., up to `last`.
fn frame(rng: &mut Rng, ended: &mut Vec<u32>, last: u32) -> Frame {
    let mut stream = 1 + 2 * rng.u32(..=last / 2);
    if ended.contains(&stream) && rng.u8(..50) > 0 {
        stream = 0;
    }
    let end = rng.u8(..5) == 0;
    let status = *rng.pick(&["200", "200", "204", "100", "103", "404", "304", "101"]);
    let frame = match rng.u8(..40) {
        0..14 if stream > 0 => {
            let mut fields = vec![(":status", status)];
            if rng.u8(..6) == 0 {
                fields.push(("content-length", "20"));
            }
            Frame::headers(stream, &fields)
        }
        14..26 if stream > 0 => {
            let len = rng.usize(..2_000);
            let frame = Frame::data(stream, rng.bytes(len));
            if rng.u8(..5) == 0 { frame.padded(3, 3) } else { frame }
        }
        26..29 if stream > 0 => Frame::rst_stream(stream, rng.u32(..14)),
        29 if stream > 0 => Frame::headers(stream, &[("x-trailer", "1")]).end_stream(),
        30 => Frame::settings(&[(3, rng.u32(..40)), (4, rng.u32(..200_000))]),
        31 => Frame::ping("01234567"),
        32 => Frame::ping("wl drain").flag(flag::ACK),
        33 if rng.u8(..10) == 0 => Frame::goaway(rng.u32(..=last), rng.u32(..14), "bye"),
        34 => Frame::priority(1, 0, 7),
        35 => Frame::new(0xb0, stream, rng.bytes(8)),
        _ => Frame::window_update(stream, 1 + rng.u32(..100_000)),
    };
    let ends = frame.kind <= kind::HEADERS && (end || frame.has(flag::END_STREAM));
    if ends || frame.kind == kind::RST_STREAM {
        ended.push(frame.stream);
    }
    if ends { frame.end_stream() } else { frame }
}

async fn hostile_server(listener: TcpListener, mut rng: Rng) {
    let (stream, _) = listener.accept().await.unwrap();
    let (mut read, mut write) = stream.into_split();
    let reading = tokio::spawn(async move {
        let mut bytes = vec![0; 64 << 10];
        while matches!(read.read(&mut bytes).await, Ok(1..)) {}
    });
    let mut bytes =
        [Frame::settings(&[(3, 20), (8, 1)]).to_bytes(), Frame::settings_ack().to_bytes()].concat();
    write.write_all(&bytes).await.unwrap();
    // The requests are on their way.
    tokio::time::sleep(Duration::from_millis(30)).await;
    bytes.clear();
    let mut ended = Vec::new();
    for _ in 0..rng.usize(10..400) {
        frame(&mut rng, &mut ended, 39).write(&mut bytes);
        if rng.u8(..4) == 0 {
            let len = rng.usize(..=bytes.len());
            if write.write_all(&bytes[..len]).await.is_err() {
                break;
            }
            bytes.drain(..len);
            tokio::task::yield_now().await;
        }
    }
    drop(write);
    reading.abort();
}

/// Makes a request of a random kind, and reads its response to the end or to the error.
async fn exchange(http2: Http2, mut rng: Rng) -> bool {
    if rng.u8(..5) == 0 {
        let Ok(mut socket) = http2.websocket("/").await else { return false };
        while let Ok(Some(_)) = socket.recv_owned().await {}
        return false;
    }
    let request = match rng.u8(..4) {
        0 => Request::post("/", rng.bytes(100_000)),
        1 => Request::post(
            "/",
            Body::from_stream(futures_util::stream::pending::<Result<bytes::Bytes, wireloom::HttpError>>()),
        ),
        2 => Request::post("/", "12345").header("Expect", "100-continue"),
        _ => Request::get("/"),
    };
    let Ok(mut response) = http2.request(request).await else { return false };
    response.body.bytes().await.is_ok()
}

#[tokio::test]
async fn every_request_ends() {
    let mut succeeded = 0;
    for rng in wireloom_testing::generators(CONNECTIONS) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seed = rng.seed();
        let server = tokio::spawn(hostile_server(listener, rng));
        let http2 = Connector::new().connect_http2(&url).await.unwrap();
        let exchanges: Vec<_> = (0..REQUESTS as u64)
            .map(|n| tokio::spawn(exchange(http2.clone(), Rng::with_seed(seed ^ n))))
            .collect();
        for exchange in exchanges {
            let ended = tokio::time::timeout(Duration::from_secs(10), exchange).await;
            succeeded +=
                usize::from(ended.unwrap_or_else(|_| panic!("seed {seed}: a request hangs")).unwrap());
        }
        server.await.unwrap();
        tokio::time::timeout(Duration::from_secs(10), http2.close()).await.unwrap();
    }
    assert!(succeeded > 0);
}
