//! Clients over HTTP/1.1 that accept a response slowly, or not at all. Time is paused, and a pipe takes 1 KiB.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::time::{advance, sleep};
use wireloom::{Body, HttpError, Request, Response, Server, ServerConfig, ServerHandle};

use crate::listeners::Pipes;

const KIB: usize = 1 << 10;
const LEN: usize = 16 * KIB;

async fn handle(request: Request) -> Response {
    let kind = "application/octet-stream";
    match request.path() {
        "/whole" => Response::new(200).with_body(kind, vec![b'x'; LEN]),
        _ => {
            let chunks = [(); 2].map(|()| Ok::<_, HttpError>(vec![b'x'; LEN / 2].into()));
            Response::new(200).with_body(kind, Body::from_stream(futures_util::stream::iter(chunks)))
        }
    }
}

/// A client that has sent its request, and the server.
async fn ask(path: &str) -> (DuplexStream, ServerHandle) {
    let (mut client, pipe) = tokio::io::duplex(KIB);
    let server = Server::new(Pipes::one(pipe)).config(ServerConfig::default());
    let handle_ = server.handle();
    tokio::spawn(server.serve(handle));
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    client.write_all(request.as_bytes()).await.unwrap();
    // The pipe is full.
    sleep(Duration::from_secs(1)).await;
    (client, handle_)
}

fn timeout() -> Duration {
    ServerConfig::default().http1_stall_timeout
}

#[tokio::test(start_paused = true)]
async fn a_client_that_accepts_a_kibibyte_in_time_receives_the_response() {
    for path in ["/whole", "/stream"] {
        let (mut client, _server) = ask(path).await;
        let mut response = vec![0; LEN];
        for chunk in response.chunks_mut(KIB) {
            sleep(timeout() - Duration::from_secs(1)).await;
            client.read_exact(chunk).await.unwrap();
        }
        client.read_to_end(&mut response).await.unwrap();
        assert_eq!(response.iter().filter(|&&byte| byte == b'x').count(), LEN, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_accepts_less_is_disconnected() {
    for path in ["/whole", "/stream"] {
        let (mut client, server) = ask(path).await;
        client.read_exact(&mut [0; KIB - 1]).await.unwrap();
        sleep(timeout() - Duration::from_secs(2)).await;
        assert_eq!(server.stats().connections_open, 1, "{path}");
        sleep(Duration::from_secs(2)).await;
        assert_eq!(server.stats().connections_open, 0, "{path}");
    }
}

// The server was stopped for two minutes, in which the client has accepted what it could.
#[tokio::test(start_paused = true)]
async fn a_client_is_not_slow_while_the_server_is_stopped() {
    let (mut client, _server) = ask("/whole").await;
    let mut response = vec![0; KIB];
    client.read_exact(&mut response).await.unwrap();
    advance(2 * timeout()).await;
    client.read_to_end(&mut response).await.unwrap();
    assert_eq!(response.iter().filter(|&&byte| byte == b'x').count(), LEN);
}
