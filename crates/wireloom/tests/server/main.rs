//! The server against raw clients and other HTTP implementations, over real sockets.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod bodies;
mod connect_events;
mod differential;
mod examples;
mod hostile;
mod leaving;
mod listeners;
#[path = "../pace/mod.rs"]
mod pace;
mod panic;
mod proxy_protocol;
mod requests;
#[path = "../running/mod.rs"]
mod running;
mod shutdown;
mod slow;
mod tls;
mod tower;
mod unread;

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Sends these bytes; returns the answer until the server closes, and whether it closed without a reset.
async fn exchange(address: SocketAddr, bytes: impl AsRef<[u8]>) -> (String, bool) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes.as_ref()).await.unwrap();
    let mut answer = Vec::new();
    let reading = stream.read_to_end(&mut answer);
    let ended =
        tokio::time::timeout(Duration::from_secs(60), reading).await.expect("the server closes").is_ok();
    (String::from_utf8_lossy(&answer).into_owned(), ended)
}

/// Sends these bytes; returns the answer until the server closes.
async fn ask(address: SocketAddr, bytes: impl AsRef<[u8]>) -> String {
    exchange(address, bytes).await.0
}
