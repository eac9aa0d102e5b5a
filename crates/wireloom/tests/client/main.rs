//! The client against servers and proxies over real sockets.

#![allow(clippy::unwrap_used)]

mod dial;
mod frames;
mod hostile;
mod http1;
mod http2;
mod pool;
mod proxy;
mod reconnect;
mod redirect;
mod scripted;
#[cfg(feature = "tls")]
mod tls;
#[cfg(unix)]
mod unix;
mod user_agent;

use std::net::SocketAddr;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use wireloom::wireloom_ws::handshake::accept_key;
use wireloom::{Request, Response, Server, WebSocket};

/// Sends the target and the headers of the request as the first message, and echoes after that.
async fn handle(request: Request) -> Response {
    if let Some(location) = request.query_param("to") {
        return Response::new(307).with_header("Location", location).unwrap();
    }
    let headers: Vec<String> = request
        .headers()
        .filter(|(name, _)| {
            let name = name.to_ascii_lowercase();
            !name.starts_with("sec-") && !["host", "upgrade", "connection", "user-agent"].contains(&&*name)
        })
        .map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value)))
        .collect();
    let request_text = format!("{} {}", request.target(), headers.join(", "));
    match request.websocket() {
        Ok(upgrade) => upgrade.on_open(|socket| async move {
            let (mut sender, mut receiver) = socket.split();
            let _ = sender.send(request_text).await;
            while let Ok(Some(message)) = receiver.recv().await {
                if sender.send(message).await.is_err() {
                    break;
                }
            }
        }),
        Err(refusal) => refusal,
    }
}

/// A server at this address, until the test ends.
async fn serve_at(address: &str) -> SocketAddr {
    let server = Server::bind(address).await.unwrap();
    let address = server.local_addr().unwrap();
    tokio::spawn(server.serve(handle));
    address
}

async fn serve() -> SocketAddr {
    serve_at("127.0.0.1:0").await
}

/// The first message: the request as the server received it.
async fn received_request(socket: &mut WebSocket) -> String {
    socket.recv().await.unwrap().unwrap().as_text().unwrap().to_owned()
}

/// Polls a future at most this number of times, and drops it.
async fn polled<F: Future>(future: F, mut times: usize) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|cx| {
        if times == 0 {
            return std::task::Poll::Ready(None);
        }
        times -= 1;
        future.as_mut().poll(cx).map(Some)
    })
    .await
}

// RFC 6455 §4.1 and §10.3: neither the key of a handshake nor the masks of a connection are those of another one.
#[tokio::test]
async fn each_connection_has_a_nonce_and_masks_of_its_own() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/", listener.local_addr().unwrap());
    let mut seen = Vec::new();
    for _ in 0..2 {
        let accepted = async {
            let mut stream = BufReader::new(listener.accept().await.unwrap().0);
            let (mut line, mut key) = (String::new(), String::new());
            while line != "\r\n" {
                line.clear();
                stream.read_line(&mut line).await.unwrap();
                if let Some(value) = line.strip_prefix("Sec-WebSocket-Key: ") {
                    key = value.trim().to_owned();
                }
            }
            let accept = accept_key(key.as_bytes());
            let head =
                b"HTTP/1.1 101 S\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ";
            stream.write_all(&[head, &accept[..], b"\r\n\r\n"].concat()).await.unwrap();
            let mut frame = [0; 11];
            stream.read_exact(&mut frame).await.unwrap();
            (key, frame[2..6].to_owned())
        };
        let connected = async {
            let mut socket = wireloom::connect(&url).await.unwrap();
            socket.send("hello").await.unwrap();
            socket
        };
        seen.push(tokio::join!(accepted, connected).0);
    }
    assert!(seen[0].0.len() == 24 && seen[0].0 != seen[1].0, "{seen:?}");
    assert_ne!(seen[0].1, seen[1].1, "{seen:?}");
}
