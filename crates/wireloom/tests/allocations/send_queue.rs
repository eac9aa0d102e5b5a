//! Messages that wait for a peer that does not read.

use crate::counting::{HELD, MOST};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use wireloom::{Request, Server, ServerConfig, WebSocketError};
use wireloom_testing::frame::upgrade_request;

/// More than a socket takes.
const LEN: usize = 64 << 20;

static PAYLOAD: [u8; LEN] = [0; LEN];

#[tokio::test]
async fn a_message_that_the_limit_does_not_allow_is_not_copied() {
    const MAX: usize = 4 << 20;
    let mut config = ServerConfig::default();
    config.memory_max = MAX;
    let server = Server::bind("127.0.0.1:0").await.unwrap().config(config);
    let address = server.local_addr().unwrap();
    let (report, mut reported) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(server.serve(move |request: Request| {
        let report = report.clone();
        async move {
            match request.websocket() {
                Ok(upgrade) => upgrade.on_open(async move |mut socket| {
                    let held_before = HELD.get();
                    MOST.set(held_before);
                    let sent = socket.send(&PAYLOAD[..]).await;
                    report.send((sent, MOST.get() - held_before)).unwrap();
                }),
                Err(refusal) => refusal,
            }
        }
    }));
    let mut client = tokio::net::TcpStream::connect(address).await.unwrap();
    client.write_all(upgrade_request("/").as_bytes()).await.unwrap();
    client.read_u8().await.unwrap();
    let (sent, most) = reported.recv().await.unwrap();
    assert_eq!(sent, Err(WebSocketError::Overloaded));
    assert!(most <= MAX as isize, "{most} bytes");
}
