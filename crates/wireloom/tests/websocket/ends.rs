//! The end of a connection, as senders see it, also without a receiver.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;
use wireloom::{
    CloseCode, Request, Sender, Server, ServerHandle, WebSocketError, accept, connect, connect_over,
};

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
