//! Peers that do not read, over real sockets: each policy acts by bytes and by time, over TCP, TLS and streams of HTTP/2.

#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};
use wireloom::{
    ClientTls, Connector, Error, Request, Response, Server, ServerConfig, ServerHandle, ServerTls, SlowPeer,
    WebSocket,
};

/// Nothing here takes nearly as long, unless somebody waits for ever.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a slow peer is allowed in these tests.
const SHORT: Duration = Duration::from_millis(200);

/// A message, and what no queue of a test holds.
const LEN: usize = 64 << 10;
const ENOUGH: usize = 1 << 30;

/// What a WebSocket runs over: TLS or not, HTTP/2 or not.
const TRANSPORTS: [(bool, bool); 4] = [(false, false), (true, false), (false, true), (true, true)];

/// A server that gives its first WebSocket to `serve`, and a client to it.
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
    config.websocket.core.limits.queued_len_max = ENOUGH;
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

/// Sends until the transport takes no more, and more waits than it may find room for later; says how many messages went.
async fn fill(socket: &mut WebSocket) -> usize {
    let mut count = 0;
    while socket.halves().0.queued_len() < 16 * LEN {
        // It is queued although the wait for it is given up.
        if let Ok(Err(error)) = timeout(SHORT / 100, socket.send(vec![1; LEN])).await {
            panic!("it ended before it was full: {error}");
        }
        count += 1;
    }
    count
}

/// The client's end of a WebSocket that was cut: it was not closed.
async fn is_cut(mut client: WebSocket) {
    loop {
        match timeout(PATIENCE, client.recv()).await.expect("the peer hears of it") {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it was closed: {:?}", client.end()),
            Err(_) => return,
        }
    }
}

// Nobody sends, and nobody waits for what was sent: the time alone acts.
#[tokio::test]
async fn who_takes_nothing_is_cut_although_nothing_is_sent() {
    for transport in TRANSPORTS {
        for policy in [
            SlowPeer::Wait { cut_after: SHORT },
            SlowPeer::DropNewest { late_after: PATIENCE, cut_after: SHORT },
            SlowPeer::Disconnect { late_after: SHORT },
        ] {
            let (outcome, heard) = oneshot::channel();
            let (client, handle) = open(transport, policy, ENOUGH, |mut socket| async move {
                fill(&mut socket).await;
                let error = socket.recv().await.map(|message| message.is_some());
                let again = socket.send("more").await;
                let _ = outcome.send((error, again));
            })
            .await;
            let heard = timeout(PATIENCE, heard).await.expect("it is cut").unwrap();
            assert_eq!(heard, (Err(Error::SlowPeer), Err(Error::SlowPeer)), "{transport:?} {policy:?}");
            let stats = handle.stats();
            assert_eq!((stats.slow_peers_cut, stats.slow_messages_dropped), (1, 0));
            is_cut(client).await;
        }
    }
}

// A server that only sends: whoever waits to send minds the time.
#[tokio::test]
async fn who_takes_nothing_is_cut_although_nobody_receives() {
    for transport in TRANSPORTS {
        for policy in [SlowPeer::Wait { cut_after: SHORT }, SlowPeer::Disconnect { late_after: SHORT }] {
            let (outcome, heard) = oneshot::channel();
            let (client, _) = open(transport, policy, ENOUGH, |mut socket| async move {
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
                let _ = outcome.send(error);
            })
            .await;
            let heard = timeout(PATIENCE, heard).await.expect("it is cut").unwrap();
            assert_eq!(heard, Error::SlowPeer, "{transport:?} {policy:?}");
            is_cut(client).await;
        }
    }
}

#[tokio::test]
async fn disconnects_by_bytes() {
    const QUEUE: usize = 256 << 10;
    for transport in TRANSPORTS {
        let (outcome, heard) = oneshot::channel();
        let policy = SlowPeer::Disconnect { late_after: PATIENCE };
        let (client, _) = open(transport, policy, QUEUE, |mut socket| async move {
            let error = loop {
                if let Err(error) = socket.send(vec![1; LEN]).await {
                    break error;
                }
                assert!(socket.halves().0.queued_len() <= QUEUE + LEN + 16);
            };
            let _ = outcome.send(error);
        })
        .await;
        let heard = timeout(PATIENCE, heard).await.expect("it is cut").unwrap();
        assert_eq!(heard, Error::SlowPeer, "{transport:?}");
        is_cut(client).await;
    }
}

// What is late is not taken back; what is new is dropped until that has left.
#[tokio::test]
async fn drops_what_is_new_while_what_waits_is_late() {
    for transport in TRANSPORTS {
        let (outcome, heard) = oneshot::channel();
        let policy = SlowPeer::DropNewest { late_after: SHORT, cut_after: PATIENCE };
        let (mut client, handle) = open(transport, policy, ENOUGH, |mut socket| async move {
            let count = fill(&mut socket).await;
            let full = Instant::now();
            let mut more = 0;
            loop {
                socket.send("more").await.unwrap();
                if socket.halves().0.dropped() > 0 {
                    break;
                }
                more += 1;
                assert!(full.elapsed() < PATIENCE);
                tokio::time::sleep(SHORT / 20).await;
            }
            let late = full.elapsed();
            let _ = outcome.send((count, more, late));
            socket.flush().await.unwrap();
            socket.send("last").await.unwrap();
            while let Ok(Some(_)) = socket.recv().await {}
        })
        .await;
        let (count, more, late) = timeout(PATIENCE, heard).await.expect("some are dropped").unwrap();
        // The mark is as old as the first write that was not taken, which `fill` waited for.
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

// A peer that reads slowly, but reads, is waited for.
#[tokio::test]
async fn waits_for_who_takes_something() {
    for http2 in [false, true] {
        let policy = SlowPeer::Wait { cut_after: SHORT * 2 };
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
