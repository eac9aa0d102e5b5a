//! The events that an observer of a WebSocket receives.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use wireloom::wireloom_ws::handshake::Negotiated;
use wireloom::wireloom_ws::{Delivery, Opcode, Role};
use wireloom::{
    CloseCode, Observer, ObserverEvent, Receiver, Request, Sender, Server, SlowPeer, WebSocket,
    WebSocketConfig, WebSocketError,
};
use wireloom_testing::frame::upgrade_request;

type Events = Arc<Mutex<Vec<String>>>;

fn watched(delivery: Delivery) -> (WebSocketConfig, Events) {
    let events = Events::default();
    let mut config = WebSocketConfig::default();
    config.core.delivery = delivery;
    let recorded = events.clone();
    config.observer = Some(Observer::new(move |event| {
        recorded.lock().unwrap().push(match event {
            ObserverEvent::FrameRead(frame) => {
                let fin = if frame.fin { "" } else { "+" };
                format!("< {:?}{fin} {}", frame.opcode, frame.payload_len)
            }
            ObserverEvent::FrameWritten(frame) => format!("> {:?} {}", frame.opcode, frame.payload_len),
            ObserverEvent::MessageRead { kind, len } => format!("<< {kind:?} {len}"),
            ObserverEvent::MessageWritten { kind, len } => format!(">> {kind:?} {len}"),
            ObserverEvent::PingRead(payload) => format!("<ping {}", payload.escape_ascii()),
            ObserverEvent::PongRead { payload, round_trip } => {
                format!("<pong {} {}", payload.escape_ascii(), round_trip.is_some())
            }
            ObserverEvent::CloseBegun(end) => format!("closing {} by {:?}", end.code().value(), end.by),
            ObserverEvent::CloseDone(end) => format!("closed {} by {:?}", end.code().value(), end.by),
            other => format!("{other:?}"),
        });
    }));
    (config, events)
}

fn open(transport: impl wireloom::Transport, role: Role, config: WebSocketConfig) -> WebSocket {
    WebSocket::from_transport(transport, role, Negotiated::default(), None, config, &[])
}

#[tokio::test]
async fn is_notified_of_frames_messages_and_the_end() {
    for delivery in [Delivery::Messages, Delivery::Chunks] {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        let (config, events) = watched(delivery);
        assert_eq!(config, config.clone());
        let (mut sender, mut receiver) = open(server, Role::Server, config).split();
        client
            .write_all(b"\x81\x85\0\0\0\0Hello\x89\x82\0\0\0\0hi\x02\x83\0\0\0\0abc\x80\x82\0\0\0\0de")
            .await
            .unwrap();
        client.write_all(b"\x88\x82\0\0\0\0\x03\xe9").await.unwrap();
        while let Some(message) = receiver.recv().await.unwrap() {
            if message.is_text() {
                sender.send(message).await.unwrap();
            }
        }
        let expected = [
            "< Text 5",
            "<< Text 5",
            ">> Text 5",
            "> Text 5",
            "< Ping 2",
            "<ping hi",
            "> Pong 2",
            "< Binary+ 3",
            "< Continuation 2",
            "<< Binary 5",
            "< Close 2",
            "closing 1001 by Peer",
            "> Close 2",
            "closed 1001 by Peer",
        ];
        // Before the end, only the order within each direction is guaranteed.
        let events = events.lock().unwrap();
        for mark in ["<", ">", "clos"] {
            let of = |all: &mut dyn Iterator<Item = &str>| -> Vec<String> {
                all.filter(|event| event.starts_with(mark)).map(String::from).collect()
            };
            assert_eq!(
                of(&mut events.iter().map(String::as_str)),
                of(&mut expected.into_iter()),
                "{delivery:?}"
            );
        }
        assert_eq!(events.len(), expected.len());
        assert_eq!(events[events.len() - 4..], expected[expected.len() - 4..]);
    }
}

#[tokio::test]
async fn is_notified_of_failures() {
    let (mut client, server) = tokio::io::duplex(1 << 20);
    let (config, events) = watched(Delivery::Messages);
    let mut server = open(server, Role::Server, config);
    client.write_all(b"\x81\x01x").await.unwrap();
    client.shutdown().await.unwrap();
    assert!(server.recv().await.is_err());
    let events = events.lock().unwrap();
    assert!(events.iter().any(|event| event.starts_with("Error(")), "{events:?}");
    assert!(events.iter().any(|event| event == "closing 1002 by Local"), "{events:?}");
    assert!(events.iter().any(|event| event == "closed 1002 by Local"), "{events:?}");
}

#[tokio::test]
async fn watches_the_client_too() {
    let (client, server) = tokio::io::duplex(1 << 20);
    let (config, events) = watched(Delivery::Messages);
    let mut client = open(client, Role::Client, config);
    let mut server = open(server, Role::Server, WebSocketConfig::default());
    let peer = tokio::spawn(async move { while let Some(_message) = server.recv().await.unwrap() {} });
    client.send(&vec![7; 70_000]).await.unwrap();
    client.close(CloseCode::NORMAL, "").await.unwrap();
    peer.await.unwrap();
    let events = events.lock().unwrap();
    let frames: Vec<_> = events.iter().filter(|event| event.starts_with("> ")).collect();
    assert_eq!(frames, [&format!("> {:?} 70000", Opcode::Binary), &format!("> {:?} 2", Opcode::Close)]);
    let end = ["> Close 2", "closing 1000 by Local", "< Close 2", "closed 1000 by Local"];
    assert_eq!(events[events.len() - 4..], end);
}

#[tokio::test]
async fn pongs_are_observed_with_their_round_trip() {
    let (mut server, client) = tokio::io::duplex(1 << 20);
    let (config, events) = watched(Delivery::Messages);
    let mut client = open(client, Role::Client, config);
    client.ping(b"one").await.unwrap();
    server.write_all(b"\x8a\x03one\x8a\x05alone\x88\x05\x03\xe8bye").await.unwrap();
    server.shutdown().await.unwrap();
    assert!(client.recv().await.unwrap().is_none());
    let events = events.lock().unwrap();
    let pongs: Vec<_> = events.iter().filter(|event| event.starts_with("<pong")).collect();
    assert_eq!(pongs, ["<pong one true", "<pong alone false"]);
    // The peer's Close frame.
    let end = client.end().unwrap();
    assert_eq!((end.code(), end.reason()), (CloseCode::NORMAL, "bye"));
}

#[tokio::test]
async fn may_use_the_websocket_that_it_observes() {
    let (mut client, server) = tokio::io::duplex(1 << 20);
    let sender: Arc<Mutex<Option<wireloom::Sender>>> = Arc::default();
    let own = sender.clone();
    let mut config = WebSocketConfig::default();
    config.observer = Some(Observer::new(move |event| {
        if let ObserverEvent::MessageRead { len, .. } = event
            && let Some(sender) = &mut *own.lock().unwrap()
        {
            assert!(sender.try_send(&*format!("{len} bytes, {} queued", sender.queued_len())).unwrap());
        }
    }));
    let mut socket = open(server, Role::Server, config);
    *sender.lock().unwrap() = Some(socket.halves().0.clone());
    client.write_all(b"\x81\x85\0\0\0\0Hello").await.unwrap();
    assert_eq!(socket.recv().await.unwrap().unwrap().as_text(), Some("Hello"));
    let mut answer = [0; 19];
    tokio::io::AsyncReadExt::read_exact(&mut client, &mut answer).await.unwrap();
    assert_eq!(&answer[2..], b"5 bytes, 0 queued");
    // The observer ends with the connection, and so does the sender that it holds.
    client.write_all(b"\x88\x80\0\0\0\0").await.unwrap();
    client.shutdown().await.unwrap();
    assert!(socket.recv().await.unwrap().is_none());
    assert_eq!(Arc::strong_count(&sender), 1);
}

// The transport lingers until the peer has closed it.
#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_that_is_dropped_with_a_full_queue_has_not_failed() {
    const LEN: usize = 16 << 20;
    let (config, events) = watched(Delivery::Messages);
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    tokio::spawn(server.serve(move |request: Request| {
        let config = config.clone();
        async move {
            match request.websocket() {
                Ok(upgrade) => upgrade.config(config).on_open(async move |mut socket| {
                    socket.feed(vec![7; LEN]).await.unwrap();
                }),
                Err(refusal) => refusal,
            }
        }
    }));
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(upgrade_request("/").as_bytes()).await.unwrap();
    let mut read = Vec::new();
    stream.read_to_end(&mut read).await.unwrap();
    assert!(read.ends_with(b"\x88\x02\x03\xe9") && read.len() > LEN);
    drop(stream);
    let expected = [
        ">> Binary 16777216",
        "> Binary 16777216",
        "> Close 2",
        "closing 1001 by Local",
        "closed 1006 by Local",
    ];
    let reported = async {
        while events.lock().unwrap().len() < expected.len() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let is_reported = tokio::time::timeout(Duration::from_secs(60), reported).await.is_ok();
    assert!(is_reported, "{:?}", events.lock().unwrap());
    assert_eq!(*events.lock().unwrap(), expected);
}

/// The ways to drop a WebSocket.
const DROPS: [fn(WebSocket); 4] = [
    |socket| drop(socket),
    |socket| {
        let (sender, receiver) = socket.split();
        drop(receiver);
        drop(sender);
    },
    |socket| {
        let (sender, receiver) = socket.split();
        drop(sender);
        drop(receiver);
    },
    |socket| std::thread::spawn(move || drop(socket)).join().unwrap(),
];

#[tokio::test]
async fn the_end_of_a_websocket_that_is_dropped_while_open_is_reported_once() {
    for (role, drop_it) in
        [Role::Client, Role::Server].into_iter().flat_map(|role| DROPS.map(|way| (role, way)))
    {
        for driven in [false, true] {
            let (mut peer, transport) = tokio::io::duplex(1 << 10);
            let (config, events) = watched(Delivery::Messages);
            let socket = open(transport, role, config);
            if driven {
                socket.drive(async |socket| drop_it(socket)).await;
            } else {
                drop_it(socket);
            }
            let mut close = [0; 4];
            peer.read_exact(&mut close).await.unwrap();
            drop(peer);
            tokio::time::sleep(Duration::from_millis(1)).await;
            let expected = ["> Close 2", "closing 1001 by Local", "closed 1006 by Local"];
            assert_eq!(*events.lock().unwrap(), expected, "{role:?} {driven}");
        }
    }
}

// A sender delivers the events, and the peer sends more than the observer handles meanwhile.
#[tokio::test]
async fn an_observer_that_is_slow_stops_reads() {
    const PINGS: usize = 1_000_000;
    let (pings, is_done) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let receivers: Arc<[Mutex<Option<Receiver>>; 2]> = Arc::default();
    let (counted, done, receiving) = (pings.clone(), is_done.clone(), receivers.clone());
    let mut config = WebSocketConfig::default();
    config.observer = Some(Observer::new(move |event| {
        match event {
            ObserverEvent::PingRead(_) => drop(counted.fetch_add(1, Ordering::Relaxed)),
            ObserverEvent::CloseDone(_) => done.notify_one(),
            _ => {}
        }
        let Some(mut receiver) = receiving[0].lock().unwrap().take() else { return };
        // As another thread would: until it reads no more.
        let mut before = None;
        while before != Some(receiver.traffic()) {
            before = Some(receiver.traffic());
            for _ in 0..100 {
                let receiving = pin!(tokio::task::unconstrained(receiver.recv()));
                let polled = receiving.poll(&mut Context::from_waker(Waker::noop()));
                assert!(matches!(polled, Poll::Pending | Poll::Ready(Err(_))), "{polled:?}");
            }
        }
        *receiving[1].lock().unwrap() = Some(receiver);
    }));
    let peer = std::io::Cursor::new([0x89, 0].repeat(PINGS));
    let transport = tokio::io::join(peer, tokio::io::sink());
    let (mut sender, receiver) = open(transport, Role::Client, config).split();
    *receivers[0].lock().unwrap() = Some(receiver);
    assert!(sender.try_send("hello").unwrap());
    let mut receiver = receivers[1].lock().unwrap().take().unwrap();
    assert!(receiver.traffic().bytes_received < PINGS as u64, "{:?}", receiver.traffic());
    // Not all of them at the cost of the sender.
    assert!(pings.load(Ordering::Relaxed) < 5_000);
    receiver.recv().await.unwrap_err();
    tokio::time::timeout(Duration::from_secs(60), is_done.notified()).await.unwrap();
    assert_eq!(pings.load(Ordering::Relaxed), PINGS);
}

/// Ways to send over a WebSocket that is observed. Each is true once it has to wait.
const SENDS: [fn(&mut Sender) -> bool; 6] = [
    |sender| !sender.try_send("x").unwrap(),
    |sender| sender.try_send_all(["x"]).unwrap() == 0,
    |sender| is_pending(sender.send("x")),
    |sender| is_pending(sender.send_chunk("x", true)),
    |sender| is_pending(sender.ping(b"x")),
    |sender| is_pending(async { sender.reserve().await.unwrap().send("x") }),
];

fn is_pending<F: Future>(future: F) -> bool {
    let polled = pin!(tokio::task::unconstrained(future)).poll(&mut Context::from_waker(Waker::noop()));
    polled.is_pending()
}

#[tokio::test]
async fn an_observer_that_is_slow_stops_senders() {
    const EVENTS_MAX: usize = 50_000;
    let policies = [
        SlowPeer::default(),
        SlowPeer::DropNewest { queue_timeout: Duration::MAX, stall_timeout: Duration::MAX },
        SlowPeer::Disconnect { queue_timeout: Duration::MAX },
    ];
    for (way, policy) in SENDS.iter().flat_map(|way| policies.map(|policy| (way, policy))) {
        let own: Arc<Mutex<Option<Sender>>> = Arc::default();
        let taken = own.clone();
        let mut config = WebSocketConfig { slow_peer: policy, ..WebSocketConfig::default() };
        config.observer = Some(Observer::new(move |_| {
            // As another task would, until it has to wait.
            let Some(mut sender) = taken.lock().unwrap().take() else { return };
            assert!((0..EVENTS_MAX).any(|_| way(&mut sender)));
            assert!(SENDS.iter().all(|other| other(&mut sender)));
        }));
        let transport = tokio::io::join(tokio::io::empty(), tokio::io::sink());
        let (mut sender, _receiver) = open(transport, Role::Server, config).split();
        *own.lock().unwrap() = Some(sender.clone());
        // All events are delivered then, and there is room.
        sender.send("first").await.unwrap();
        tokio::time::timeout(Duration::from_secs(60), sender.send("last")).await.unwrap().unwrap();
        assert_eq!(sender.dropped(), 0);
    }
}

// The events of the end wait behind the one that hangs.
#[tokio::test(flavor = "multi_thread")]
async fn senders_that_wait_for_an_observer_are_told_that_the_connection_is_lost() {
    let (peer, transport) = tokio::io::duplex(1 << 24);
    let (has_begun, begun) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let hang = Mutex::new(Some((has_begun, released)));
    let config = WebSocketConfig {
        observer: Some(Observer::new(move |_| {
            if let Some((has_begun, released)) = hang.lock().unwrap().take() {
                has_begun.send(()).unwrap();
                let _ = released.recv();
            }
        })),
        ..WebSocketConfig::default()
    };
    let (mut sender, _receiver) = open(transport, Role::Server, config).split();
    let (mut first, mut sending, mut pinging) = (sender.clone(), sender.clone(), sender.clone());
    let delivering = std::thread::spawn(move || first.try_send("first"));
    begun.recv().unwrap();
    while sender.try_send("x").unwrap() {}
    let sending = tokio::spawn(async move { sending.send("x").await });
    let pinging = tokio::spawn(async move { pinging.ping(b"x").await });
    drop(peer);
    sender.close(CloseCode::NORMAL, "").await.unwrap_err();
    for waiting in [sending, pinging] {
        let sent = tokio::time::timeout(Duration::from_secs(60), waiting).await;
        sent.expect("it waits for the observer").unwrap().unwrap_err();
    }
    assert_eq!(sender.send("x").await, Err(WebSocketError::ConnectionLost));
    drop(release);
    assert_eq!(delivering.join().unwrap(), Ok(true));
}

// A task of the runtime delivers what is left of many events.
#[test]
fn all_events_are_delivered_although_the_runtime_ends() {
    for panics in [false, true] {
        let events = events_of_a_runtime_that_ends(panics);
        assert!(matches!(events.last(), Some(ObserverEvent::CloseDone(_))), "{panics} {:?}", events.last());
    }
}

fn events_of_a_runtime_that_ends(panics: bool) -> Vec<ObserverEvent> {
    const PINGS: usize = 2_000;
    let (events, receivers): (_, Arc<Mutex<Option<Receiver>>>) =
        (Arc::new(Mutex::new(Vec::new())), Arc::default());
    let (recorded, receiving) = (events.clone(), receivers.clone());
    let mut config = WebSocketConfig::default();
    config.observer = Some(Observer::new(move |event| {
        recorded.lock().unwrap().push(event.clone());
        let Some(mut receiver) = receiving.lock().unwrap().take() else { return };
        // As another thread would, until the end.
        assert!((0..PINGS).any(|_| !is_pending(receiver.recv())));
    }));
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let peer = std::io::Cursor::new([0x89, 0].repeat(PINGS));
            let transport = tokio::io::join(peer, tokio::io::sink());
            let (mut sender, receiver) = open(transport, Role::Client, config).split();
            *receivers.lock().unwrap() = Some(receiver);
            assert!(sender.try_send("hello").unwrap());
        });
        assert!(!panics, "the runtime is dropped by this panic");
    };
    let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
    assert_eq!(ran.is_err(), panics);
    let events = std::mem::take(&mut *events.lock().unwrap());
    assert!(events.len() > 3 * PINGS, "{panics} {}", events.len());
    events
}
