//! `ServerConfig::memory_max`: what peers make a server hold stays under the limit, and other clients are served meanwhile.

#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use wireloom::{Error, Request, Response, Server, ServerConfig, ServerHandle};

const MEMORY_MAX: usize = 8 << 20;

async fn handle(mut request: Request) -> Result<Response, Error> {
    Ok(match request.path() {
        "/whole" => Response::text(200, request.bytes().await?.len().to_string()),
        _ => Response::text(200, "hello\n"),
    })
}

async fn serve() -> (SocketAddr, ServerHandle) {
    let mut config = ServerConfig::default();
    config.memory_max = MEMORY_MAX;
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
        assert!(memory.total <= MEMORY_MAX, "{memory:?}");
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
    let (address, server) = serve().await;
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
