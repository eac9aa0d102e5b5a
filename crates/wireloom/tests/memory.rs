//! `ServerConfig::memory_max`: what peers make a server hold stays under the limit, and other clients are served meanwhile.

#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use wireloom::{
    CloseCode, Connector, DeflateConfig, Error, Request, Response, Server, ServerConfig, ServerHandle,
};

const MEMORY_MAX: usize = 8 << 20;

async fn handle(mut request: Request) -> Result<Response, Error> {
    Ok(match request.path() {
        "/socket" => match request.websocket() {
            Ok(upgrade) => upgrade.on_open(async |mut socket| {
                while let Ok(Some(message)) = socket.recv().await {
                    let len = message.as_bytes().len().to_string();
                    if socket.send(len).await.is_err() {
                        break;
                    }
                }
            }),
            Err(refusal) => refusal,
        },
        "/whole" => Response::text(200, request.bytes().await?.len().to_string()),
        _ => Response::text(200, "hello\n"),
    })
}

async fn serve(memory_max: usize) -> (SocketAddr, ServerHandle) {
    let mut config = ServerConfig::default();
    config.memory_max = memory_max;
    config.deflate = Some(DeflateConfig::default());
    config.body_len_max = 64 << 20;
    config.body_timeout = Duration::from_secs(5);
    let server = Server::bind("127.0.0.1:0").await.unwrap().config(config);
    let (address, handle_) = (server.local_addr().unwrap(), server.handle());
    tokio::spawn(server.serve(handle));
    (address, handle_)
}

/// The status of a response.
async fn status(stream: &mut TcpStream) -> u16 {
    let mut line = [0; 12];
    stream.read_exact(&mut line).await.unwrap();
    std::str::from_utf8(&line[9..]).unwrap().parse().unwrap()
}

/// Fails when the limit is exceeded; waits until `done`.
async fn watch(server: &ServerHandle, mut done: impl FnMut(&wireloom::MemoryStats) -> bool) {
    let begin = Instant::now();
    loop {
        let memory = server.stats().memory;
        assert!(memory.total <= memory.max, "{memory:?}");
        if done(&memory) {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "{memory:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

// 16 bodies of 4 MiB, of which the last byte does not come.
#[tokio::test]
async fn bodies_stay_under_the_limit() {
    const LEN: usize = 4 << 20;
    let (address, server) = serve(MEMORY_MAX).await;
    let clients: Vec<_> = (0..16)
        .map(|_| {
            tokio::spawn(async move {
                let stream = TcpStream::connect(address).await.unwrap();
                let (mut read, mut write) = stream.into_split();
                let sending = tokio::spawn(async move {
                    let head = format!("POST /whole HTTP/1.1\r\nHost: a\r\nContent-Length: {LEN}\r\n\r\n");
                    // A server that refuses does not read all of it.
                    let _ = write.write_all(head.as_bytes()).await;
                    let _ = write.write_all(&vec![b'x'; LEN - 1]).await;
                    write
                });
                let mut line = [0; 12];
                read.read_exact(&mut line).await.unwrap();
                drop(sending);
                String::from_utf8(line.to_vec()).unwrap()
            })
        })
        .collect();
    // Some are closed, so that others are served at all.
    watch(&server, |memory| memory.evicted > 0).await;
    let mut other = TcpStream::connect(address).await.unwrap();
    for _ in 0..10 {
        other.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        assert_eq!(tokio::time::timeout(Duration::from_secs(10), status(&mut other)).await.unwrap(), 200);
        let mut rest = [0; 4096];
        let _ = other.read(&mut rest).await.unwrap();
    }
    // None of the bodies comes to its end: those that fit wait for it until they are given up, or evicted for others.
    let mut refused = 0;
    for client in clients {
        let refusal = tokio::time::timeout(Duration::from_secs(60), client);
        if let Ok(answer) = refusal.await {
            let answer = answer.unwrap();
            assert!(answer == "HTTP/1.1 503" || answer == "HTTP/1.1 408", "{answer}");
            refused += usize::from(answer == "HTTP/1.1 503");
        }
    }
    assert!(refused > 0);
    watch(&server, |memory| memory.total == 0).await;
}

// 16 messages of 16 KiB that inflate to 16 MiB each, where 48 MiB are allowed.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn inflated_messages_stay_under_the_limit() {
    const LEN: usize = 16 << 20;
    let (address, server) = serve(48 << 20).await;
    let url = format!("ws://{address}/socket");
    let message = bytes::Bytes::from(vec![0; LEN]);
    let clients: Vec<_> = (0..16)
        .map(|_| {
            let (url, message) = (url.clone(), message.clone());
            tokio::spawn(async move {
                let connector = Connector::new().deflate(DeflateConfig::default());
                let mut socket = connector.connect(&url).await.unwrap();
                // A server that closes meanwhile takes no more.
                let _ = socket.send(message).await;
                let answer = socket.recv_owned().await;
                match answer {
                    Ok(Some(answer)) => {
                        assert_eq!(answer.as_text(), Some(&*LEN.to_string()));
                        None
                    }
                    _ => Some(socket.end().unwrap().code()),
                }
            })
        })
        .collect();
    let watching = tokio::spawn({
        let server = server.clone();
        async move { watch(&server, |memory| memory.inflated > 0).await }
    });
    let mut other = wireloom::connect(&url).await.unwrap();
    let mut answered = 0;
    let mut refused = 0;
    for client in clients {
        other.send("hello").await.unwrap();
        let answer = tokio::time::timeout(Duration::from_secs(30), other.recv()).await.unwrap();
        assert_eq!(answer.unwrap().unwrap().as_text(), Some("5"));
        assert!(server.stats().memory.total <= 48 << 20);
        match tokio::time::timeout(Duration::from_secs(120), client).await.unwrap().unwrap() {
            None => answered += 1,
            Some(code) => {
                assert_eq!(code, CloseCode::TRY_AGAIN_LATER);
                refused += 1;
            }
        }
    }
    println!("{answered} answered, {refused} refused with 1013");
    assert!(answered > 0);
    watching.await.unwrap();
    drop(other);
    watch(&server, |memory| memory.total == 0).await;
}

// Frame headers that announce 1 MiB, with a few bytes behind them.
#[tokio::test]
async fn announced_lengths_cost_nothing() {
    let (address, server) = serve(MEMORY_MAX).await;
    let mut clients = Vec::new();
    for _ in 0..400 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = "GET /socket HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        assert_eq!(status(&mut stream).await, 101);
        let header = [0x82, 0xff, 0, 0, 0, 0, 0, 0x10, 0, 0, 1, 2, 3, 4];
        stream.write_all(&[&header[..], &[7; 10]].concat()).await.unwrap();
        clients.push(stream);
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    let memory = server.stats().memory;
    assert_eq!((memory.total, server.stats().websockets_open), (0, 400), "{memory:?}");
}
