//! Messages that wait for a peer that does not read.

use crate::counting::{HELD, MOST};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use wireloom::{DeflateConfig, Payload, Request, Server, ServerConfig, WebSocketError};

/// The limit on the server's memory.
const MAX: usize = 4 << 20;

/// The result of sending a message to a client that does not read, and the most bytes that were held meanwhile.
async fn send(
    payload: Payload<'static>,
    deflate: Option<DeflateConfig>,
) -> (Result<(), WebSocketError>, usize) {
    let mut config = ServerConfig::default();
    config.memory_max = MAX;
    config.deflate = deflate;
    let server = Server::bind("127.0.0.1:0").await.unwrap().config(config);
    let address = server.local_addr().unwrap();
    let (report, mut reported) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(server.serve(move |request: Request| {
        let (report, payload) = (report.clone(), payload.clone());
        async move {
            match request.websocket() {
                Ok(upgrade) => upgrade.on_open(async move |mut socket| {
                    let held_before = HELD.get();
                    MOST.set(held_before);
                    let sent = socket.send(payload).await;
                    report.send((sent, MOST.get() - held_before)).unwrap();
                }),
                Err(refusal) => refusal,
            }
        }
    }));
    let mut client = tokio::net::TcpStream::connect(address).await.unwrap();
    let extensions = "Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n";
    let request =
        wireloom_testing::frame::upgrade_request("/").replace("\r\n\r\n", &format!("\r\n{extensions}"));
    client.write_all(request.as_bytes()).await.unwrap();
    client.read_u8().await.unwrap();
    let (sent, most) = reported.recv().await.unwrap();
    (sent, most as usize)
}

#[tokio::test]
async fn a_message_that_the_limit_does_not_allow_is_not_copied() {
    // More than a socket takes.
    static PAYLOAD: [u8; 64 << 20] = [0; 64 << 20];
    let (sent, most) = send(Payload::Binary(&PAYLOAD), None).await;
    assert_eq!(sent, Err(WebSocketError::Overloaded));
    assert!(most <= MAX, "{most} bytes");
}

#[tokio::test]
async fn a_message_is_compressed_only_if_the_limit_allows_the_copy() {
    let payload = wireloom_testing::Rng::with_seed(7).bytes(32 << 20);
    for payload in [Payload::Binary(payload.clone().leak()), Payload::Shared(payload.into())] {
        let (sent, most) = send(payload, Some(DeflateConfig::default())).await;
        assert_eq!(sent, Err(WebSocketError::Overloaded));
        assert!(most <= MAX, "{most} bytes");
    }
}
