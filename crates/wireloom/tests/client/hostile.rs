//! HTTP/2 servers that send arbitrary frames: the client ends with an error or a response, and never hangs.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use wireloom::client::{Http2, Request};
use wireloom::{Connector, Error};

/// SETTINGS with ENABLE_CONNECT_PROTOCOL, and the acknowledgement of the client's.
const SETTINGS: &[u8] = b"\0\0\x06\x04\0\0\0\0\0\0\x08\0\0\0\x01\0\0\0\x04\x01\0\0\0\0";

/// The frames of a correct server for two requests and a WebSocket.
const FRAMES: &[&[u8]] = &[
    // 103 and 200 on stream 1, then content.
    b"\0\0\x05\x01\x04\0\0\0\x01\x08\x03103",
    b"\0\0\x01\x01\x04\0\0\0\x01\x88",
    b"\0\0\x05\0\x01\0\0\0\x01hello",
    // 200 on stream 3 with a field for the table, content, trailers with that field.
    b"\0\0\x08\x01\x04\0\0\0\x03\x88\x40\x01a\x03bcd",
    b"\0\0\x02\0\0\0\0\0\x03hi",
    b"\0\0\x01\x01\x05\0\0\0\x03\xbe",
    // 200 on stream 5, a message and a Close frame in the tunnel.
    b"\0\0\x01\x01\x04\0\0\0\x05\x88",
    b"\0\0\x04\0\0\0\0\0\x05\x81\x02hi",
    b"\0\0\x02\0\x01\0\0\0\x05\x88\0",
    // A round trip, window, GOAWAY.
    b"\0\0\x08\x06\0\0\0\0\x0012345678",
    b"\0\0\x04\x08\0\0\0\0\0\0\0\x10\0",
    b"\0\0\x08\x07\0\0\0\0\0\0\0\0\x05\0\0\0\0",
];

/// A server for one connection, which sends SETTINGS, and `then` after the requests.
async fn serve(settings: Vec<u8>, then: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.write_all(&settings).await;
        let mut bytes = [0; 4096];
        // Until the client has sent nothing for a while.
        while let Ok(Ok(1..)) = tokio::time::timeout(Duration::from_millis(50), stream.read(&mut bytes)).await
        {
        }
        let _ = stream.write_all(&then).await;
        let _ = stream.shutdown().await;
        while let Ok(1..) = stream.read(&mut bytes).await {}
    });
    url
}

/// Sends two requests and opens a WebSocket; returns their results.
async fn use_all(http2: &Http2) -> [Result<(), Error>; 3] {
    let ask = async |path| {
        let mut exchange = http2.send(Request::get(path))?;
        while exchange.informational().await?.is_some() {}
        let mut response = exchange.response().await?;
        while response.body.chunk().await?.is_some() {}
        Ok(())
    };
    let talk = async {
        let mut socket = http2.websocket("/").await?;
        while socket.recv().await?.is_some() {}
        Ok(())
    };
    tokio::join!(ask("/1"), ask("/2"), talk).into()
}

async fn run(settings: Vec<u8>, then: Vec<u8>) -> Result<[Result<(), Error>; 3], Error> {
    let url = serve(settings, then).await;
    let all = async {
        let http2 = Connector::new().handshake_timeout(Duration::from_secs(10)).connect_http2(&url).await?;
        Ok(use_all(&http2).await)
    };
    tokio::time::timeout(Duration::from_secs(60), all).await.expect("it comes to an end")
}

#[tokio::test]
async fn accepts_a_correct_server() {
    assert_eq!(run(SETTINGS.to_vec(), FRAMES.concat()).await, Ok([Ok(()), Ok(()), Ok(())]));
}

#[tokio::test]
async fn never_hangs_whatever_a_server_sends() {
    let mut rng = wireloom_testing::generator();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..300 {
        let mut settings = SETTINGS.to_vec();
        let mut frames: Vec<Vec<u8>> = FRAMES.iter().map(|frame| frame.to_vec()).collect();
        for _ in 0..rng.usize(1..4) {
            let (at, other) = (rng.usize(..frames.len()), rng.usize(..frames.len()));
            match rng.u8(..6) {
                0 => drop(frames.remove(at)),
                1 => frames.insert(at, frames[other].clone()),
                2 => frames.swap(at, other),
                3 => {
                    let len = rng.usize(..frames[at].len());
                    frames[at].truncate(len);
                }
                4 => settings[rng.usize(..24)] = rng.u8(..),
                _ => {
                    let byte = rng.usize(..frames[at].len());
                    frames[at][byte] = rng.u8(..);
                }
            }
            if frames.iter().any(Vec::is_empty) || frames.len() < 2 {
                break;
            }
        }
        tasks.spawn(run(settings, frames.concat()));
    }
    let (mut whole, mut failed) = (0, 0);
    while let Some(met) = tasks.join_next().await {
        match met.unwrap() {
            Ok(all) if all.iter().all(Result::is_ok) => whole += 1,
            _ => failed += 1,
        }
    }
    // Some changes are harmless; most are errors.
    assert!(whole > 0 && failed > 0, "{whole} {failed}");
}

// Floods are limited, and so is their memory.
#[tokio::test]
async fn limits_floods_of_a_server() {
    let early = b"\0\0\x05\x01\x04\0\0\0\x01\x08\x03103".repeat(100_000);
    let pings = b"\0\0\x08\x06\0\0\0\0\x0012345678".repeat(100_000);
    let settings = b"\0\0\0\x04\0\0\0\0\0".repeat(100_000);
    let resets = b"\0\0\x04\x03\0\0\0\0\x01\0\0\0\x08".repeat(100_000);
    let empty = b"\0\0\0\0\0\0\0\0\x01".repeat(100_000);
    let continued =
        [&b"\0\0\x01\x01\0\0\0\0\x01\x88"[..], &b"\0\0\x05\x09\0\0\0\0\x01\0\x01a\x01b".repeat(100_000)]
            .concat();
    for (what, flood) in [
        ("interim responses", early),
        ("pings", pings),
        ("settings", settings),
        ("resets", resets),
        ("empty DATA", [&b"\0\0\x01\x01\x04\0\0\0\x01\x88"[..], &empty].concat()),
        ("CONTINUATION", continued),
    ] {
        let met = run(SETTINGS.to_vec(), flood).await.unwrap();
        assert!(met.iter().all(Result::is_err), "{what}: {met:?}");
    }
}
