//! A connection that has much buffered leaves the worker to other tasks after a share that depends on what its messages cost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use wireloom::wireloom_ws::Role;
use wireloom::wireloom_ws::deflate::{DeflateConfig, DeflateParams};
use wireloom::wireloom_ws::handshake::Negotiated;
use wireloom::{Connector, Error, Request, Response, Server, ServerConfig, WebSocket, WebSocketConfig};

/// The most messages that were received between two turns of another task, when `count` messages of `len` bytes are buffered.
async fn messages_in_a_turn(deflate: Option<DeflateParams>, len: usize, count: usize) -> usize {
    let (one, two) = tokio::io::duplex(4 << 20);
    let config = DeflateConfig::default();
    let open = |io, role| {
        let negotiated = Negotiated { deflate, ..Negotiated::default() };
        WebSocket::from_transport(io, role, negotiated, Some(&config), WebSocketConfig::default(), &[])
    };
    let (mut sender, mut receiver) = (open(one, Role::Client), open(two, Role::Server));
    for _ in 0..count {
        sender.send(vec![0; len]).await.unwrap();
    }
    let received = Arc::new(AtomicUsize::new(0));
    let counter = received.clone();
    tokio::spawn(async move {
        while let Ok(Some(_)) = receiver.recv().await {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    });
    let (mut last, mut most) = (0, 0);
    while last < count {
        tokio::task::yield_now().await;
        let now = received.load(Ordering::Relaxed);
        most = most.max(now - last);
        last = now;
    }
    most
}

#[tokio::test]
async fn inflated_messages_are_paid_by_what_they_produce() {
    let deflate = Some(DeflateParams::default());
    // A megabyte from a kilobyte.
    assert!((1..=2).contains(&messages_in_a_turn(deflate, 1 << 20, 200).await));
    let most = messages_in_a_turn(deflate, 64 << 10, 1_000).await;
    assert!((10..=17).contains(&most), "{most}");
}

#[tokio::test]
async fn short_messages_are_paid_by_their_number() {
    let most = messages_in_a_turn(None, 13, 100_000).await;
    assert!((1_000..=8_192 + 128).contains(&most), "{most}");
}

// One worker. 65 kB inflate to 63 MiB, in 63 turns; the other client is served between two of them.
#[tokio::test]
async fn a_message_that_inflates_to_much_leaves_turns_to_others() {
    const LEN: usize = 63 << 20;
    let config = ServerConfig { deflate: Some(DeflateConfig::default()), ..ServerConfig::default() };
    let server = Server::bind("127.0.0.1:0").await.unwrap().config(config);
    let url = format!("ws://{}", server.local_addr().unwrap());
    tokio::spawn(server.serve(async |request: Request| -> Result<Response, Error> {
        Ok(match request.websocket() {
            Ok(upgrade) => upgrade.on_open(async |mut socket| {
                while let Ok(Some(message)) = socket.recv().await {
                    let len = message.as_bytes().len().to_string();
                    if socket.send(len).await.is_err() {
                        break;
                    }
                }
            }),
            Err(refusal) => refusal,
        })
    }));
    let echoes = Arc::new(AtomicUsize::new(0));
    let mut neighbour = wireloom::connect(&url).await.unwrap();
    let counter = echoes.clone();
    tokio::spawn(async move {
        loop {
            neighbour.send("ping").await.unwrap();
            assert_eq!(neighbour.recv().await.unwrap().unwrap().as_text(), Some("4"));
            counter.fetch_add(1, Ordering::Relaxed);
        }
    });
    let connector = Connector::new().deflate(DeflateConfig::default());
    let mut client = connector.connect(&url).await.unwrap();
    client.send(vec![0; LEN]).await.unwrap();
    let before = echoes.load(Ordering::Relaxed);
    assert_eq!(client.recv().await.unwrap().unwrap().as_text(), Some(&*LEN.to_string()));
    let meanwhile = echoes.load(Ordering::Relaxed) - before;
    assert!(meanwhile >= 10, "{meanwhile} echoes");
}
