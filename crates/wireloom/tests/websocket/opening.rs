//! WebSockets over streams that are open already: `accept` and `connect_over`.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
use wireloom::{CloseCode, Error, HttpError, Message, OwnedMessage, WebSocket, accept, connect_over};

/// A client and a server over a pipe.
async fn pair() -> (WebSocket, WebSocket) {
    let (here, there) = duplex(1 << 10);
    let (client, server) = tokio::join!(connect_over(here, "ws://localhost/chat"), accept(there));
    (client.unwrap(), server.unwrap())
}

#[tokio::test]
async fn a_websocket_is_opened_over_any_stream() {
    let (mut client, mut server) = pair().await;
    client.send(Message::text("hello")).await.unwrap();
    client.send(Message::binary(vec![1, 2])).await.unwrap();
    assert_eq!(server.recv_owned().await.unwrap(), Some(OwnedMessage::from("hello")));
    assert_eq!(server.recv_owned().await.unwrap(), Some(Message::binary(&[1, 2][..])));
    let (closed, received) = tokio::join!(client.close(CloseCode::NORMAL, ""), server.recv());
    closed.unwrap();
    assert!(received.unwrap().is_none());
}

#[tokio::test]
async fn what_is_no_handshake_is_refused_and_reported() {
    let (mut client, there) = duplex(1 << 10);
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let accepted = accept(there).await;
    assert!(matches!(accepted, Err(Error::Handshake(_))), "{accepted:?}");
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 426 "), "{answer}");

    let (client, there) = duplex(1 << 10);
    drop(client);
    assert!(matches!(accept(there).await, Err(Error::Http(HttpError::ConnectionLost))));
}

#[tokio::test]
async fn the_bytes_behind_the_request_belong_to_the_connection() {
    let (mut client, there) = duplex(1 << 10);
    let mut request = wireloom_testing::frame::upgrade_request("/").into_bytes();
    request.extend_from_slice(&wireloom_testing::frame::masked(0x81, b"early"));
    client.write_all(&request).await.unwrap();
    let mut server = accept(there).await.unwrap();
    assert_eq!(server.recv().await.unwrap().unwrap().as_text(), Some("early"));
}

#[tokio::test]
async fn a_ping_measures_the_latency() {
    let (mut client, server) = pair().await;
    assert_eq!((client.latency(), server.latency()), (None, None));
    client.ping(b"").await.unwrap();
    // The server answers the ping, and then the message behind it.
    client.send("behind").await.unwrap();
    let (mut sender, mut receiver) = server.split();
    let message = receiver.recv().await.unwrap().unwrap();
    sender.send(message).await.unwrap();
    assert_eq!(client.recv().await.unwrap().unwrap().as_text(), Some("behind"));
    assert!(client.latency().is_some_and(|latency| latency > std::time::Duration::ZERO));
    assert_eq!(client.latency(), client.halves().0.latency());
    assert_eq!(sender.latency(), None);
}
