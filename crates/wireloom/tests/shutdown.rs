//! A server that shuts down while its WebSockets are busy: they get a Close frame and no reset, and every answer before it.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use wireloom::Server;

const REQUEST: &str = "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

/// Sends without a pause, until its peer has closed; the bytes that it has read.
async fn busy_client(address: std::net::SocketAddr) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(REQUEST.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let (mut from, mut to) = stream.into_split();
    let (closed, mut is_closed) = tokio::sync::oneshot::channel::<()>();
    let send = tokio::spawn(async move {
        let mut sent = 0_u32;
        while is_closed.try_recv() == Err(tokio::sync::oneshot::error::TryRecvError::Empty) {
            for _ in 0..20 {
                let frame = [&[0x82, 0x84, 0, 0, 0, 0][..], &sent.to_be_bytes()].concat();
                to.write_all(&frame).await.expect("no reset");
                sent += 1;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        to.write_all(b"\x88\x82\0\0\0\0\x03\xe9").await.expect("no reset");
        to
    });
    let (mut read, mut closed) = (Vec::<u8>::new(), Some(closed));
    loop {
        let mut bytes = [0; 4096];
        let len = from.read(&mut bytes).await.expect("no reset");
        if len == 0 {
            drop(send.await.unwrap());
            return read;
        }
        read.extend_from_slice(&bytes[..len]);
        if read.iter().step_by(6).any(|&first| first == 0x88)
            && let Some(closed) = closed.take()
        {
            // Messages cross the Close frame on the way.
            tokio::time::sleep(Duration::from_millis(50)).await;
            let _ = closed.send(());
        }
    }
}

#[tokio::test]
async fn busy_clients_get_every_answer_then_a_close_frame_and_no_reset() {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let (address, handle) = (server.local_addr().unwrap(), server.handle());
    let serving = tokio::spawn(server.serve(|request: wireloom::Request| async move {
        match request.websocket() {
            Ok(upgrade) => upgrade.on_open(|socket| async move {
                let (mut sender, mut receiver) = socket.split();
                while let Ok(Some(message)) = receiver.recv().await {
                    if sender.send(message).await.is_err() {
                        return;
                    }
                }
            }),
            Err(refusal) => refusal,
        }
    }));
    let clients: Vec<_> = (0..8).map(|_| tokio::spawn(busy_client(address))).collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    handle.shut_down();
    for client in clients {
        let read = client.await.unwrap();
        let (answers, close) =
            read.split_at(read.iter().step_by(6).take_while(|&&first| first == 0x82).count() * 6);
        for (number, answer) in answers.chunks(6).enumerate() {
            assert_eq!(answer, [&[0x82, 4][..], &(number as u32).to_be_bytes()].concat());
        }
        assert!(answers.len() > 60, "{}", answers.len());
        assert_eq!(close[0], 0x88);
        assert_eq!(close[2..4], 1001_u16.to_be_bytes());
        assert_eq!(close.len(), 2 + usize::from(close[1]));
    }
    serving.await.unwrap().unwrap();
}

/// A handler that returns without reading what has arrived.
#[tokio::test]
async fn a_handler_that_drops_its_socket_with_unread_bytes_resets_nobody() {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let (address, handle) = (server.local_addr().unwrap(), server.handle());
    let serving = tokio::spawn(server.serve(|request: wireloom::Request| async move {
        match request.websocket() {
            Ok(upgrade) => upgrade.on_open(|mut socket| async move {
                socket.recv().await.unwrap();
                socket.send("bye").await.unwrap();
                tokio::time::sleep(Duration::from_millis(100)).await;
            }),
            Err(refusal) => refusal,
        }
    }));
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(REQUEST.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    for _ in 0..20 {
        stream.write_all(&[&[0x82, 0xFE, 0x40, 0, 0, 0, 0, 0][..], &[0; 1 << 14]].concat()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut read = Vec::new();
    stream.read_to_end(&mut read).await.expect("no reset");
    assert_eq!(read, b"\x81\x03bye\x88\x02\x03\xe9");
    // The connection is the server's until the peer has closed it.
    stream.write_all(b"still dropped").await.expect("no reset");
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(handle.stats().connections_open, 1);
    drop(stream);
    handle.shut_down();
    tokio::time::timeout(Duration::from_secs(3), serving).await.expect("it ends").unwrap().unwrap();
}
