//! The end of a connection, as senders see it, also without a receiver.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::time::timeout;
use wireloom::wireloom_ws::Role;
use wireloom::wireloom_ws::handshake::Negotiated;
use wireloom::{
    CloseCode, Request, Sender, Server, ServerHandle, WebSocket, WebSocketConfig, WebSocketError, accept,
    connect, connect_over,
};
use wireloom_testing::frame::Frame;

const DEADLINE: Duration = Duration::from_secs(60);

/// A server whose handler passes the sender on and drops the receiver.
async fn senders_only() -> (ServerHandle, String, mpsc::UnboundedReceiver<Sender>) {
    let (passed, senders) = mpsc::unbounded_channel();
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let (handle, address) = (server.handle(), server.local_addr().unwrap());
    tokio::spawn(server.serve(move |request: Request| {
        let passed = passed.clone();
        async move {
            match request.websocket() {
                Ok(upgrade) => upgrade.on_open(|socket| async move {
                    let (sender, receiver) = socket.split();
                    drop(receiver);
                    let _ = passed.send(sender);
                }),
                Err(refusal) => refusal,
            }
        }
    }));
    (handle, format!("ws://{address}/"), senders)
}

async fn until(what: impl Fn() -> bool) {
    let waiting = async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(DEADLINE, waiting).await.expect("it happens");
}

#[tokio::test]
async fn clients_that_left_are_gone_although_nobody_receives() {
    const CLIENTS: usize = 20;
    let (handle, url, mut passed) = senders_only().await;
    let (mut clients, mut senders) = (Vec::new(), Vec::new());
    for _ in 0..CLIENTS {
        clients.push(connect(&url).await.unwrap());
        senders.push(passed.recv().await.unwrap());
    }
    assert_eq!(handle.stats().websockets_open, CLIENTS);
    assert!(senders.iter().all(Sender::is_open));
    // Messages of the clients are dropped, and their pings are answered.
    for client in &mut clients {
        client.send("unheard").await.unwrap();
        client.ping(b"").await.unwrap();
    }
    let answered = async {
        while clients[0].latency().is_none() {
            senders[0].send("hello").await.unwrap();
            assert_eq!(clients[0].recv().await.unwrap().unwrap().as_text(), Some("hello"));
        }
    };
    timeout(DEADLINE, answered).await.expect("the ping is answered");
    // Half of them close, half of them vanish.
    let vanished = clients.split_off(CLIENTS / 2);
    drop(vanished);
    for mut client in clients {
        timeout(DEADLINE, client.close(CloseCode::NORMAL, "bye")).await.unwrap().unwrap();
    }
    for sender in &senders {
        timeout(DEADLINE, sender.closed()).await.expect("the end is seen");
        assert!(!sender.is_open());
        assert!(sender.end().is_some());
    }
    let mut last = senders.pop().unwrap();
    assert_ne!(last.send("late").await, Ok(()));
    until(|| handle.stats().websockets_open == 0 && handle.stats().connections_open == 0).await;
    drop(senders);
}

#[tokio::test]
async fn the_last_sender_closes_a_connection_without_receiver() {
    let (_, url, mut passed) = senders_only().await;
    let mut client = connect(&url).await.unwrap();
    drop(passed.recv().await.unwrap());
    assert!(timeout(DEADLINE, client.recv()).await.unwrap().unwrap().is_none());
    assert_eq!(client.end().unwrap().code(), CloseCode::GOING_AWAY);
}

#[tokio::test]
async fn a_shutdown_closes_connections_without_receiver() {
    let (handle, url, mut passed) = senders_only().await;
    let mut client = connect(&url).await.unwrap();
    let sender = passed.recv().await.unwrap();
    handle.shut_down();
    assert!(timeout(DEADLINE, client.recv()).await.unwrap().unwrap().is_none());
    timeout(DEADLINE, sender.closed()).await.unwrap();
    until(|| handle.stats().connections_open == 0).await;
}

#[tokio::test]
async fn several_futures_wait_for_the_end() {
    let (here, there) = tokio::io::duplex(1 << 10);
    let (client, server) = tokio::join!(connect_over(here, "ws://localhost/"), accept(there));
    let (sender, receiver) = client.unwrap().split();
    let (first, second) = (sender.clone(), sender.clone());
    let waiting = tokio::spawn(async move {
        tokio::join!(first.closed(), first.closed(), second.closed());
        first.end()
    });
    tokio::task::yield_now().await;
    assert!(sender.is_open() && sender.end().is_none());
    // The receiver of this end drives the connection when the peer vanishes.
    drop(receiver);
    drop(server);
    let end = timeout(DEADLINE, waiting).await.unwrap().unwrap();
    assert!(end.is_some());
    let mut sender = sender;
    assert!(matches!(
        sender.send("late").await,
        Err(WebSocketError::Closed | WebSocketError::ConnectionLost)
    ));
}

/// Sends a message that a transport of 1 KiB does not accept at once, and drops both halves.
async fn send_and_drop(socket: WebSocket, message: &[u8], is_receiver_first: bool) {
    let (mut sender, receiver) = socket.split();
    let receiver = if is_receiver_first {
        drop(receiver);
        None
    } else {
        Some(receiver)
    };
    sender.feed(message).await.unwrap();
    // A task that receives in the place of the receiver has begun.
    tokio::task::yield_now().await;
    drop(sender);
    drop(receiver);
}

#[tokio::test(start_paused = true)]
async fn what_was_sent_is_written_although_both_halves_are_dropped() {
    const LEN: usize = 60_000;
    for role in [Role::Server, Role::Client] {
        for (is_receiver_first, is_driven) in [(false, false), (false, true), (true, false), (true, true)] {
            let (mut peer, io) = tokio::io::duplex(1 << 10);
            let (negotiated, config) = (Negotiated::default(), WebSocketConfig::default());
            let socket = WebSocket::from_transport(io, role, negotiated, None, config, &[]);
            let handler = |socket| send_and_drop(socket, &[7; LEN], is_receiver_first);
            if is_driven {
                socket.drive(handler).await
            } else {
                handler(socket).await
            }
            // It reads after it has written more than the transport holds.
            let (key, mask_len) = if role == Role::Server { (Some([1; 4]), 0) } else { (None, 4) };
            let message = Frame::binary([8; LEN]).mask(key).bytes();
            timeout(DEADLINE, peer.write_all(&message)).await.expect("it is read").unwrap();
            let mut received = Vec::new();
            peer.read_to_end(&mut received).await.unwrap();
            // With the Close frame.
            let expected_len = 4 + mask_len + LEN + 2 + mask_len + 2;
            assert_eq!(received.len(), expected_len, "{role:?} {is_receiver_first} {is_driven}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_reads_nothing_does_not_keep_a_connection_whose_halves_are_dropped() {
    for is_receiver_first in [false, true] {
        let (mut peer, io) = tokio::io::duplex(1 << 10);
        let (negotiated, config) = (Negotiated::default(), WebSocketConfig::default());
        let close_timeout = config.core.close_timeout;
        let socket = WebSocket::from_transport(io, Role::Server, negotiated, None, config, &[]);
        send_and_drop(socket, &[7; 60_000], is_receiver_first).await;
        tokio::time::sleep(close_timeout - Duration::from_secs(1)).await;
        peer.write_all(b"\x89\x80\0\0\0\0").await.unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(peer.write_all(b"\x89\x80\0\0\0\0").await.is_err());
        let mut received = Vec::new();
        peer.read_to_end(&mut received).await.unwrap();
        assert_eq!(received.len(), 1 << 10);
        assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
    }
}
