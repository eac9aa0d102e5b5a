//! One message over many WebSockets, plain and compressed, to servers and clients.

use std::time::Duration;

use tokio::io::duplex;
use wireloom::wireloom_ws::Role;
use wireloom::wireloom_ws::deflate::DeflateParams;
use wireloom::wireloom_ws::handshake::Negotiated;
use wireloom::{DeflateConfig, OwnedMessage, PreparedMessage, WebSocket, WebSocketConfig};

/// Both ends of a WebSocket that negotiated this.
fn pair(deflate: Option<DeflateParams>) -> (WebSocket, WebSocket) {
    pair_with(deflate, DeflateConfig::default())
}

fn pair_with(deflate: Option<DeflateParams>, config: DeflateConfig) -> (WebSocket, WebSocket) {
    let (server, client) = duplex(1 << 20);
    let end = |transport, role| {
        let negotiated = Negotiated { deflate, ..Negotiated::default() };
        WebSocket::from_transport(transport, role, negotiated, Some(&config), WebSocketConfig::default(), &[])
    };
    (end(server, Role::Server), end(client, Role::Client))
}

fn windows() -> Vec<Option<DeflateParams>> {
    let window = |bits| Some(DeflateParams { server_max_window_bits: bits, ..DeflateParams::default() });
    vec![None, window(15), window(15), window(8), window(12)]
}

async fn next(socket: &mut WebSocket) -> OwnedMessage {
    tokio::time::timeout(Duration::from_secs(10), socket.recv_owned()).await.unwrap().unwrap().unwrap()
}

#[tokio::test]
async fn every_connection_receives_the_message_with_what_it_negotiated() {
    let long = "Ein Satz für alle, der sich lohnt. ".repeat(500);
    let messages = [
        PreparedMessage::text("short"),
        PreparedMessage::text(&long),
        PreparedMessage::binary(&vec![9; 100_000]).with_deflate(&DeflateConfig::default()),
        PreparedMessage::text(""),
    ];
    for deflate in windows() {
        let (mut server, mut client) = pair(deflate);
        for message in &messages {
            server.send("before").await.unwrap();
            server.send(message).await.unwrap();
            server.feed(&message.clone()).await.unwrap();
            server.flush().await.unwrap();
            assert_eq!(next(&mut client).await.as_text(), Some("before"));
            for _ in 0..2 {
                let received = next(&mut client).await;
                assert_eq!(received.as_bytes(), message.as_bytes());
                assert_eq!(received.as_text(), message.as_text());
            }
            client.send(message).await.unwrap();
            assert_eq!(next(&mut server).await.as_bytes(), message.as_bytes());
        }
        let sent = server.traffic().bytes_sent;
        assert_eq!(sent < 20_000, deflate.is_some(), "{sent} bytes");
    }
}

#[tokio::test]
async fn a_message_is_compressed_at_the_level_of_the_connection_or_at_its_own() {
    let text: String =
        (0..2_000_u32).map(|n| format!("{} und ", n.wrapping_mul(2_654_435_761) >> 20)).collect();
    let config = |level| DeflateConfig { level, ..DeflateConfig::default() };
    let mut sent = Vec::new();
    for (of_connection, of_message) in [(0, None), (1, None), (9, None), (1, Some(9)), (9, Some(1))] {
        let (mut server, mut client) = pair_with(Some(DeflateParams::default()), config(of_connection));
        let message = PreparedMessage::text(&text);
        let message = match of_message {
            Some(level) => message.with_deflate(&config(level)),
            None => message,
        };
        server.send(&message).await.unwrap();
        assert_eq!(next(&mut client).await.as_text(), Some(&*text));
        sent.push(server.traffic().bytes_sent);
    }
    let [stored, fastest, smallest, ..] = sent[..] else { unreachable!("five were sent") };
    assert!(stored > text.len() as u64 && stored > fastest && fastest > smallest, "{sent:?}");
    assert_eq!(sent[3..], [smallest, fastest]);
}

#[tokio::test]
async fn try_send_never_waits_and_fails_when_the_queue_is_full() {
    let (mut server, mut client) = pair(None);
    let message = PreparedMessage::binary(&vec![1; 100_000]);
    let sender = server.halves().0;
    let mut sent = 0;
    while sender.try_send(&message).unwrap() {
        sent += 1;
        assert!(sent < 100, "the queue is bounded");
    }
    assert!(sent > 10, "{sent}");
    let receive = async {
        for _ in 0..sent {
            assert_eq!(next(&mut client).await.as_bytes(), message.as_bytes());
        }
    };
    let (flushed, ()) = tokio::join!(server.flush(), receive);
    flushed.unwrap();
}
