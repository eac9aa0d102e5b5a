//! Peers that do not read, over TCP, TLS and streams of HTTP/2: each policy applies by bytes and by time.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};
use wireloom::server::Listener;
use wireloom::{
    ClientTls, Connector, Request, Response, Server, ServerConfig, ServerHandle, ServerTls, SlowPeer,
    WebSocket, WebSocketConfig, WebSocketError,
};

use crate::pace::Pace;

/// Much longer than any step of these tests.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The time limit of slow peers in these tests: much longer than [`fill`] takes, unless the machine is busy or was suspended.
const SHORT: Duration = Duration::from_millis(500);

/// The length of a message.
const LEN: usize = 64 << 10;
/// A limit of the send queue that no test reaches.
const UNLIMITED: usize = 1 << 30;

/// Whether the WebSocket runs over TLS, and whether over HTTP/2.
const TRANSPORTS: [(bool, bool); 4] = [(false, false), (true, false), (false, true), (true, true)];

/// A server that calls `serve` with its first WebSocket, and a client of it.
async fn open<F, Fut>(
    (tls, http2): (bool, bool),
    slow_peer: SlowPeer,
    queue: usize,
    serve: F,
) -> (WebSocket, ServerHandle)
where
    F: FnOnce(WebSocket) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let mut config = ServerConfig::default();
    config.websocket.slow_peer = slow_peer;
    config.websocket.core.limits.queued_len_high = queue;
    config.websocket.core.limits.queued_len_max = UNLIMITED;
    let mut server = Server::bind("127.0.0.1:0").await.unwrap().config(config);
    let (address, handle) = (server.local_addr().unwrap(), server.handle());
    let mut connector = Connector::new().http2(http2);
    if tls {
        let (tls, certificate) = ServerTls::self_signed(&["127.0.0.1"]).unwrap();
        server = server.tls(tls);
        connector = connector.tls(ClientTls::default().with_root(certificate.der()));
    }
    let serve = Arc::new(Mutex::new(Some(serve)));
    tokio::spawn(server.serve(move |request: Request| {
        let serve = serve.lock().unwrap().take();
        async move {
            match (request.websocket(), serve) {
                (Ok(upgrade), Some(serve)) => upgrade.on_open(serve),
                (Err(refusal), _) => refusal,
                (_, None) => Response::not_found(),
            }
        }
    }));
    let scheme = if tls { "wss" } else { "ws" };
    (connector.connect(&format!("{scheme}://{address}/")).await.unwrap(), handle)
}

/// Sends until the transport is full and more is queued than it can accept while the peer does not read. Returns the number of messages;
/// `None` if the peer may have exceeded [`SHORT`] meanwhile.
async fn fill(socket: &mut WebSocket) -> Option<usize> {
    let mut count = 0;
    let begin = Instant::now();
    while socket.halves().0.queued_len() < 16 * LEN {
        // The message stays queued although the future is dropped.
        let sent = timeout(Duration::from_millis(2), socket.send(vec![1; LEN])).await;
        if begin.elapsed() >= SHORT {
            return None;
        }
        if let Ok(Err(error)) = sent {
            panic!("the connection ended before it was full: {error}");
        }
        count += 1;
    }
    Some(count)
}

/// Checks that the WebSocket of this client ends without a closing handshake.
async fn expect_disconnect(mut client: WebSocket) {
    loop {
        match timeout(TIMEOUT, client.recv()).await.expect("the connection ends") {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it was closed: {:?}", client.end()),
            Err(_) => return,
        }
    }
}

// No task sends or flushes while the time passes.
#[tokio::test]
async fn disconnects_a_peer_that_reads_nothing_while_nothing_is_sent() {
    for transport in TRANSPORTS {
        for policy in [
            SlowPeer::Wait { stall_timeout: SHORT },
            SlowPeer::DropNewest { queue_timeout: TIMEOUT, stall_timeout: SHORT },
            SlowPeer::Disconnect { queue_timeout: SHORT },
        ] {
            for attempt in 1.. {
                let (report, outcome) = oneshot::channel();
                let (client, handle) = open(transport, policy, UNLIMITED, |mut socket| async move {
                    if fill(&mut socket).await.is_none() {
                        let _ = report.send(None);
                        return;
                    }
                    let error = socket.recv().await.map(|message| message.is_some());
                    let again = socket.send("more").await;
                    let _ = report.send(Some((error, again)));
                })
                .await;
                let outcome = timeout(TIMEOUT, outcome).await.expect("the peer is disconnected").unwrap();
                let Some(outcome) = outcome else {
                    assert!(attempt < Pace::ATTEMPTS_MAX, "the machine is too slow");
                    continue;
                };
                assert_eq!(
                    outcome,
                    (Err(WebSocketError::SlowPeer), Err(WebSocketError::SlowPeer)),
                    "{transport:?} {policy:?}"
                );
                let stats = handle.stats();
                assert_eq!((stats.slow_peers_disconnected, stats.slow_messages_dropped), (1, 0));
                expect_disconnect(client).await;
                break;
            }
        }
    }
}

// The server does not poll its receiver: the sender watches the deadline.
#[tokio::test]
async fn disconnects_a_peer_that_reads_nothing_while_the_server_only_sends() {
    for transport in TRANSPORTS {
        for policy in [SlowPeer::Wait { stall_timeout: SHORT }, SlowPeer::Disconnect { queue_timeout: SHORT }]
        {
            let (report, outcome) = oneshot::channel();
            let (client, _) = open(transport, policy, UNLIMITED, |mut socket| async move {
                let error = loop {
                    // Disconnect does not wait to send, but does to flush.
                    let sent = socket.send(vec![1; LEN]).await;
                    if let Err(error) = match sent {
                        Ok(()) => socket.flush().await,
                        failed => failed,
                    } {
                        break error;
                    }
                };
                let _ = report.send(error);
            })
            .await;
            let outcome = timeout(TIMEOUT, outcome).await.expect("the peer is disconnected").unwrap();
            assert_eq!(outcome, WebSocketError::SlowPeer, "{transport:?} {policy:?}");
            expect_disconnect(client).await;
        }
    }
}

#[tokio::test]
async fn disconnects_a_peer_when_the_queue_is_full() {
    const QUEUE: usize = 256 << 10;
    for transport in TRANSPORTS {
        let (report, outcome) = oneshot::channel();
        let policy = SlowPeer::Disconnect { queue_timeout: TIMEOUT };
        let (client, _) = open(transport, policy, QUEUE, |mut socket| async move {
            let error = loop {
                if let Err(error) = socket.send(vec![1; LEN]).await {
                    break error;
                }
                assert!(socket.halves().0.queued_len() <= QUEUE + LEN + 16);
            };
            let _ = report.send(error);
        })
        .await;
        let outcome = timeout(TIMEOUT, outcome).await.expect("the peer is disconnected").unwrap();
        assert_eq!(outcome, WebSocketError::SlowPeer, "{transport:?}");
        expect_disconnect(client).await;
    }
}

/// How a server came to drop a message.
struct Dropped {
    /// Messages of [`LEN`] bytes that were queued before.
    filled: usize,
    /// Messages that were queued behind them.
    more: usize,
    /// From the first of all messages to the one that was dropped.
    after: Duration,
}

/// Queues messages until one is dropped. `None` if the machine was too slow for another to be queued before.
async fn send_until_dropped(socket: &mut WebSocket) -> Option<Dropped> {
    let begin = Instant::now();
    let filled = fill(socket).await?;
    let mut more = 0;
    loop {
        socket.send("more").await.unwrap();
        if socket.halves().0.dropped() > 0 {
            break;
        }
        more += 1;
        assert!(begin.elapsed() < TIMEOUT);
        tokio::time::sleep(SHORT / 20).await;
    }
    (more > 0).then(|| Dropped { filled, more, after: begin.elapsed() })
}

// Queued messages are kept.
#[tokio::test]
async fn drops_new_messages_while_queued_ones_are_late() {
    for transport in TRANSPORTS {
        for attempt in 1.. {
            let (report, outcome) = oneshot::channel();
            let policy = SlowPeer::DropNewest { queue_timeout: SHORT, stall_timeout: TIMEOUT };
            let (mut client, handle) = open(transport, policy, UNLIMITED, |mut socket| async move {
                let dropped = send_until_dropped(&mut socket).await;
                let is_void = dropped.is_none();
                let _ = report.send(dropped);
                if is_void {
                    return;
                }
                socket.flush().await.unwrap();
                socket.send("last").await.unwrap();
                while let Ok(Some(_)) = socket.recv().await {}
            })
            .await;
            let dropped = timeout(TIMEOUT, outcome).await.expect("a message is dropped").unwrap();
            let Some(Dropped { filled, more, after }) = dropped else {
                assert!(attempt < Pace::ATTEMPTS_MAX, "the machine is too slow");
                continue;
            };
            // The time counts from the first write that the transport did not accept.
            assert!(after >= SHORT, "{after:?}");
            assert_eq!(handle.stats().slow_messages_dropped, 1);
            for _ in 0..filled {
                assert_eq!(client.recv().await.unwrap().unwrap().as_bytes().len(), LEN);
            }
            for _ in 0..more {
                assert_eq!(client.recv().await.unwrap().unwrap().as_text(), Some("more"));
            }
            assert_eq!(client.recv().await.unwrap().unwrap().as_text(), Some("last"));
            break;
        }
    }
}

/// Receives `count` messages of [`LEN`] bytes, with a pause before each 40th.
async fn receive_slowly(client: &mut WebSocket, count: usize, pace: &mut Pace) -> Result<(), WebSocketError> {
    for at in 0..count {
        if at % 40 == 0 {
            tokio::time::sleep(SHORT / 2).await;
        }
        match client.recv().await? {
            Some(message) => assert_eq!(message.as_bytes().len(), LEN),
            None => return Err(WebSocketError::Closed),
        }
        pace.step();
    }
    Ok(())
}

#[tokio::test]
async fn waits_for_a_peer_that_reads_slowly() {
    const COUNT: usize = 400;
    for http2 in [false, true] {
        for attempt in 1.. {
            let policy = SlowPeer::Wait { stall_timeout: SHORT * 2 };
            let (mut client, handle) = open((false, http2), policy, 4 * LEN, |mut socket| async move {
                for _ in 0..COUNT {
                    if socket.send(vec![1; LEN]).await.is_err() {
                        return;
                    }
                }
                while let Ok(Some(_)) = socket.recv().await {}
            })
            .await;
            let (begin, mut pace) = (Instant::now(), Pace::start());
            let received = receive_slowly(&mut client, COUNT, &mut pace).await;
            if received.is_ok() && handle.stats().slow_peers_disconnected == 0 {
                assert!(begin.elapsed() > SHORT * 2);
                break;
            }
            let in_time = pace.met(SHORT);
            assert!(!in_time && attempt < Pace::ATTEMPTS_MAX, "{received:?} {:?}", handle.stats());
        }
    }
}

/// Accepts one pipe.
struct OnePipe(Option<DuplexStream>);

impl Listener for OnePipe {
    type Transport = DuplexStream;

    async fn accept(&mut self) -> io::Result<(DuplexStream, SocketAddr)> {
        match self.0.take() {
            Some(pipe) => Ok((pipe, (Ipv4Addr::LOCALHOST, 0).into())),
            None => std::future::pending().await,
        }
    }
}

// rustls has all bytes of the message at once, and passes them on as the peer reads.
#[tokio::test(start_paused = true)]
async fn a_peer_over_tls_that_reads_slowly_is_waited_for_over_any_transport() {
    const MESSAGE_LEN: usize = 20_000;
    const STALL_TIMEOUT: Duration = Duration::from_secs(10);
    let (near, pipe) = tokio::io::duplex(1_000);
    let (far, client) = tokio::io::duplex(1_000);
    let (tls, certificate) = ServerTls::self_signed(&["localhost"]).unwrap();
    let mut config = ServerConfig::default();
    config.websocket.slow_peer = SlowPeer::Wait { stall_timeout: STALL_TIMEOUT };
    let server = Server::new(OnePipe(Some(pipe))).config(config).tls(tls);
    let handle = server.handle();
    tokio::spawn(server.serve(|request: Request| async move {
        match request.websocket() {
            Ok(upgrade) => upgrade.on_open(|mut socket| async move {
                while let Ok(Some(_)) = socket.recv().await {
                    let _ = socket.send(vec![1; MESSAGE_LEN]).await;
                }
            }),
            Err(refusal) => refusal,
        }
    }));
    let is_slow = Arc::new(AtomicBool::new(false));
    tokio::spawn({
        let is_slow = is_slow.clone();
        async move {
            let ((mut from_server, mut to_server), (mut from_client, mut to_client)) =
                (tokio::io::split(near), tokio::io::split(far));
            tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
            let mut bytes = [0; 500];
            while let Ok(len @ 1..) = from_server.read(&mut bytes).await {
                if is_slow.load(Ordering::Relaxed) {
                    // 2 KiB in the time of the stall timeout.
                    tokio::time::sleep(STALL_TIMEOUT / 4).await;
                }
                to_client.write_all(&bytes[..len]).await.unwrap();
            }
        }
    });
    let client = Mutex::new(Some(client));
    // Without keepalive: nothing is received before a record of TLS is complete.
    let connector = Connector::new()
        .config(WebSocketConfig::default())
        .tls(ClientTls::default().with_root(certificate.der()))
        .dial_with(move |_, _| std::future::ready(Ok(client.lock().unwrap().take().unwrap())));
    let mut client = connector.connect("wss://localhost/").await.unwrap();
    is_slow.store(true, Ordering::Relaxed);
    let begin = Instant::now();
    client.send("send").await.unwrap();
    assert_eq!(client.recv().await.unwrap().unwrap().as_bytes().len(), MESSAGE_LEN);
    assert!(begin.elapsed() > STALL_TIMEOUT * 2, "{:?}", begin.elapsed());
    assert_eq!(handle.stats().slow_peers_disconnected, 0);
}
