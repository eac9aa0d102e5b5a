//! Peers that do not read, over TCP, TLS and streams of HTTP/2: each policy applies by bytes and by time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};
use wireloom::{
    ClientTls, Connector, Error, Request, Response, Server, ServerConfig, ServerHandle, ServerTls, SlowPeer,
    WebSocket,
};

/// Much longer than any step of these tests.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The time limit of slow peers in these tests: much longer than [`fill`] takes.
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

/// Sends until the transport is full and more is queued than it can accept while the peer does not read. Returns the number of messages.
async fn fill(socket: &mut WebSocket) -> usize {
    let mut count = 0;
    while socket.halves().0.queued_len() < 16 * LEN {
        // The message stays queued although the future is dropped.
        if let Ok(Err(error)) = timeout(Duration::from_millis(2), socket.send(vec![1; LEN])).await {
            panic!("the connection ended before it was full: {error}");
        }
        count += 1;
    }
    count
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
            let (report, outcome) = oneshot::channel();
            let (client, handle) = open(transport, policy, UNLIMITED, |mut socket| async move {
                fill(&mut socket).await;
                let error = socket.recv().await.map(|message| message.is_some());
                let again = socket.send("more").await;
                let _ = report.send((error, again));
            })
            .await;
            let outcome = timeout(TIMEOUT, outcome).await.expect("the peer is disconnected").unwrap();
            assert_eq!(outcome, (Err(Error::SlowPeer), Err(Error::SlowPeer)), "{transport:?} {policy:?}");
            let stats = handle.stats();
            assert_eq!((stats.slow_peers_cut, stats.slow_messages_dropped), (1, 0));
            expect_disconnect(client).await;
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
            assert_eq!(outcome, Error::SlowPeer, "{transport:?} {policy:?}");
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
        assert_eq!(outcome, Error::SlowPeer, "{transport:?}");
        expect_disconnect(client).await;
    }
}

// Queued messages are kept.
#[tokio::test]
async fn drops_new_messages_while_queued_ones_are_late() {
    for transport in TRANSPORTS {
        let (report, outcome) = oneshot::channel();
        let policy = SlowPeer::DropNewest { queue_timeout: SHORT, stall_timeout: TIMEOUT };
        let (mut client, handle) = open(transport, policy, UNLIMITED, |mut socket| async move {
            let count = fill(&mut socket).await;
            let full = Instant::now();
            let mut more = 0;
            loop {
                socket.send("more").await.unwrap();
                if socket.halves().0.dropped() > 0 {
                    break;
                }
                more += 1;
                assert!(full.elapsed() < TIMEOUT);
                tokio::time::sleep(SHORT / 20).await;
            }
            let late = full.elapsed();
            let _ = report.send((count, more, late));
            socket.flush().await.unwrap();
            socket.send("last").await.unwrap();
            while let Ok(Some(_)) = socket.recv().await {}
        })
        .await;
        let (count, more, late) = timeout(TIMEOUT, outcome).await.expect("a message is dropped").unwrap();
        // The time counts from the first write that the transport did not accept, in `fill`.
        assert!(late >= SHORT * 8 / 10, "{late:?}");
        assert!(more > 0, "{transport:?}");
        assert_eq!(handle.stats().slow_messages_dropped, 1);
        for _ in 0..count {
            assert_eq!(client.recv().await.unwrap().unwrap().as_bytes().len(), LEN);
        }
        for _ in 0..more {
            assert_eq!(client.recv().await.unwrap().unwrap().as_text(), Some("more"));
        }
        assert_eq!(client.recv().await.unwrap().unwrap().as_text(), Some("last"));
    }
}

#[tokio::test]
async fn waits_for_a_peer_that_reads_slowly() {
    for http2 in [false, true] {
        let policy = SlowPeer::Wait { stall_timeout: SHORT * 2 };
        let (mut client, handle) = open((false, http2), policy, 4 * LEN, |mut socket| async move {
            for _ in 0..400 {
                if socket.send(vec![1; LEN]).await.is_err() {
                    return;
                }
            }
            while let Ok(Some(_)) = socket.recv().await {}
        })
        .await;
        let begin = Instant::now();
        for at in 0..400 {
            if at % 40 == 0 {
                tokio::time::sleep(SHORT / 2).await;
            }
            assert_eq!(client.recv().await.unwrap().unwrap().as_bytes().len(), LEN);
        }
        assert!(begin.elapsed() > SHORT * 2);
        assert_eq!(handle.stats().slow_peers_cut, 0);
    }
}
