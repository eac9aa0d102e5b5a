//! A connection that has much buffered leaves the worker to other tasks after a share that depends on what its messages cost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use wireloom::wireloom_ws::Role;
use wireloom::wireloom_ws::deflate::{DeflateConfig, DeflateParams};
use wireloom::wireloom_ws::handshake::Negotiated;
use wireloom::{WebSocket, WebSocketConfig};

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
