//! Client and server over links that delay, split, stall, cut and reset: messages that arrive are those that were sent, in order, and
//! nothing hangs.

#![allow(clippy::unwrap_used)]

mod link;

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::timeout;
use wireloom::{
    ClientTls, CloseCode, Connector, DeflateConfig, Error, HttpError, Keepalive, Request, Response, Server,
    ServerConfig, ServerHandle, ServerTls, SlowPeer, WebSocketConfig, WebSocketError,
};
use wireloom_testing::{Rng, rounds};

use link::{End, Fault, Link};

/// Much longer than any step of these tests.
const TIMEOUT: Duration = Duration::from_secs(60);

async fn echo(request: Request) -> Response {
    match request.websocket() {
        Ok(upgrade) => upgrade.on_open(|socket| async move {
            let (mut sender, mut receiver) = socket.split();
            while let Ok(Some(message)) = receiver.recv().await {
                if sender.send(message).await.is_err() {
                    break;
                }
            }
        }),
        Err(refusal) => refusal,
    }
}

fn short_of_time() -> ServerConfig {
    let mut config = ServerConfig::default();
    config.deflate = Some(DeflateConfig::default());
    config.handshake_timeout = Duration::from_millis(500);
    config.websocket.core.close_timeout = Duration::from_millis(500);
    config
}

/// A server that runs as long as the runtime.
async fn begin(config: ServerConfig) -> (SocketAddr, ServerHandle) {
    let server = Server::bind("127.0.0.1:0").await.unwrap().config(config);
    let (address, handle) = (server.local_addr().unwrap(), server.handle());
    tokio::spawn(server.serve(echo));
    (address, handle)
}

/// Waits until the server has no connections.
async fn has_no_connections(server: &ServerHandle) {
    let gone = async {
        while server.stats().connections_open > 0 || server.stats().websockets_open > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(TIMEOUT, gone).await.expect("the server closes every connection");
}

/// Sends messages, receives the echo of each, and closes.
async fn exchange(connector: &Connector, url: &str, messages: &[String]) {
    let whole = async {
        let mut socket = connector.connect(url).await.unwrap();
        for message in messages {
            socket.send(&**message).await.unwrap();
            assert_eq!(socket.recv().await.unwrap().unwrap().as_text(), Some(&**message));
            socket.send(message.as_bytes()).await.unwrap();
            assert_eq!(socket.recv().await.unwrap().unwrap().as_bytes(), message.as_bytes());
        }
        socket.close(CloseCode::NORMAL, "").await.unwrap();
        assert_eq!(socket.end().unwrap().code(), CloseCode::NORMAL);
    };
    timeout(TIMEOUT, whole).await.expect("the exchange ends");
}

fn messages() -> Vec<String> {
    vec![String::new(), "a".into(), "häßlich 😀".repeat(20), "x".repeat(5_000)]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn echoes_byte_by_byte() {
    let (address, server) = begin(short_of_time()).await;
    let link = Link::to(address, Fault::chunks(1), Fault::chunks(1)).await;
    let url = format!("ws://{}/", link.address);
    exchange(&Connector::new(), &url, &messages()).await;
    exchange(&Connector::new().deflate(DeflateConfig::default()), &url, &messages()).await;
    exchange(&Connector::new().http2(true), &url, &messages()).await;
    has_no_connections(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn echoes_byte_by_byte_over_tls() {
    let (tls, certificate) = ServerTls::self_signed(&["127.0.0.1"]).unwrap();
    let server = Server::bind("127.0.0.1:0").await.unwrap().tls(tls);
    let address = server.local_addr().unwrap();
    tokio::spawn(server.serve(echo));
    let link = Link::to(address, Fault::chunks(1), Fault::chunks(1)).await;
    let connector = Connector::new().tls(ClientTls::default().with_root(certificate.der()));
    exchange(&connector, &format!("wss://{}/", link.address), &messages()).await;
}

#[test]
fn delays_and_splits_lose_nothing() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    rounds(4, |rng| {
        let mut fault = || Fault {
            chunk_max: Some(1 << rng.u32(4..14)),
            delay_max: Duration::from_micros(rng.u64(0..2_000)),
            seed: Some(rng.u64(..)),
            ..Fault::NONE
        };
        let (up, down) = (fault(), fault());
        let messages: Vec<String> = (0..10).map(|_| random_text(rng)).collect();
        runtime.block_on(async {
            let (address, server) = begin(ServerConfig::default()).await;
            let link = Link::to(address, up, down).await;
            let url = format!("ws://{}/", link.address);
            exchange(&Connector::new(), &url, &messages).await;
            exchange(&Connector::new().http2(true), &url, &messages).await;
            has_no_connections(&server).await;
        });
    });
}

fn random_text(rng: &mut Rng) -> String {
    let chars = rng.len(4_000);
    rng.text(chars)
}

/// The number of whole messages that a client receives over a link that fails, until the end or an error.
async fn receive_until_the_end(url: String, is_http2: bool) -> usize {
    // Some arrive in more than one read.
    const SENT: [usize; 4] = [3, 0, 200, 70];
    let connector = Connector::new().http2(is_http2).handshake_timeout(Duration::from_secs(30));
    let Ok(socket) = connector.connect(&url).await else { return 0 };
    let (mut sender, mut receiver) = socket.split();
    let sending = async {
        for len in SENT {
            if sender.send(vec![len as u8; len]).await.is_err() {
                return;
            }
        }
        let _ = sender.close(CloseCode::NORMAL, "").await;
    };
    let receiving = async {
        let mut received = 0;
        while let Ok(Some(message)) = receiver.recv().await {
            let len = SENT[received];
            assert_eq!(message.as_bytes(), vec![len as u8; len], "message {received}");
            received += 1;
        }
        received
    };
    let ((), received) = tokio::join!(sending, receiving);
    let Some(end) = receiver.end() else { return received };
    // After a close with 1000 all messages have arrived.
    assert!(end.code() != CloseCode::NORMAL || received == SENT.len(), "{end:?} after {received}");
    received
}

/// More bytes than an exchange has in either direction.
const BYTES: usize = 768;

async fn fails_at_every_byte(end: End, is_up: bool, is_http2: bool) {
    let mut config = ServerConfig::default();
    config.deflate = Some(DeflateConfig::default());
    let (address, server) = begin(config).await;
    let mut received = Vec::new();
    for begin in (0..BYTES).step_by(64) {
        let mut links = Vec::new();
        let mut talks = Vec::new();
        for after in begin..begin + 64 {
            let fault = Fault::ends(after, end);
            let (up, down) = if is_up { (fault, Fault::NONE) } else { (Fault::NONE, fault) };
            let link = Link::to(address, up, down).await;
            let url = format!("ws://{}/", link.address);
            talks.push(tokio::spawn(receive_until_the_end(url, is_http2)));
            links.push(link);
        }
        for talk in talks {
            received.push(timeout(TIMEOUT, talk).await.expect("nothing hangs").unwrap());
        }
    }
    // The first connection never opened; the last did not fail.
    assert_eq!((received[0], received[BYTES - 1]), (0, 4));
    has_no_connections(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn survives_a_cut_after_every_byte_sent() {
    fails_at_every_byte(End::Cut, true, false).await;
    fails_at_every_byte(End::Cut, true, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn survives_a_cut_after_every_byte_received() {
    fails_at_every_byte(End::Cut, false, false).await;
    fails_at_every_byte(End::Cut, false, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn survives_a_reset_after_every_byte_sent() {
    fails_at_every_byte(End::Reset, true, false).await;
    fails_at_every_byte(End::Reset, true, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn survives_a_reset_after_every_byte_received() {
    fails_at_every_byte(End::Reset, false, false).await;
    fails_at_every_byte(End::Reset, false, true).await;
}

#[tokio::test]
async fn a_stalled_handshake_times_out_at_both_ends() {
    let (address, server) = begin(short_of_time()).await;
    let stalls = |after| Fault::ends(after, End::Stall);
    for (up, down) in [(stalls(0), Fault::NONE), (stalls(40), Fault::NONE), (Fault::NONE, stalls(20))] {
        let link = Link::to(address, up, down).await;
        let connector = Connector::new().handshake_timeout(Duration::from_millis(300));
        let refused = timeout(TIMEOUT, connector.connect(&format!("ws://{}/", link.address))).await;
        assert_eq!(refused.unwrap().unwrap_err(), Error::HandshakeTimeout);
        drop(link);
    }
    has_no_connections(&server).await;
}

#[tokio::test]
async fn a_server_answers_a_stalled_head_with_a_timeout() {
    let (address, server) = begin(short_of_time()).await;
    let link = Link::to(address, Fault::ends(40, End::Stall), Fault::NONE).await;
    let connector = Connector::new().handshake_timeout(TIMEOUT);
    // The client waits longer, and receives the response of the server.
    let refused = timeout(TIMEOUT, connector.connect(&format!("ws://{}/", link.address))).await.unwrap();
    let error = refused.unwrap_err();
    assert!(matches!(error, Error::Http(HttpError::ConnectionLost) | Error::Refused(_)), "{error:?}");
    has_no_connections(&server).await;
}

#[tokio::test]
async fn a_silent_peer_is_detected() {
    let (address, _) = begin(ServerConfig::default()).await;
    let link = Link::to(address, Fault::NONE, Fault::ends(300, End::Stall)).await;
    let mut config = WebSocketConfig::default();
    config.core.keepalive =
        Some(Keepalive { ping_after: Duration::from_millis(100), dead_after: Duration::from_millis(400) });
    for is_http2 in [false, true] {
        let connector = Connector::new().config(config.clone()).http2(is_http2);
        let mut socket = connector.connect(&format!("ws://{}/", link.address)).await.unwrap();
        // Pongs arrive until the link has passed 300 bytes.
        let received = timeout(TIMEOUT, socket.recv()).await.unwrap();
        assert_eq!(received.unwrap_err(), WebSocketError::KeepaliveTimeout);
    }
}

#[tokio::test]
async fn closing_over_a_stalled_link_ends() {
    let (address, _) = begin(ServerConfig::default()).await;
    let link = Link::to(address, Fault::ends(1_000, End::Stall), Fault::NONE).await;
    let mut config = WebSocketConfig::default();
    config.core.close_timeout = Duration::from_millis(300);
    for is_http2 in [false, true] {
        let connector = Connector::new().config(config.clone()).http2(is_http2);
        let mut socket = connector.connect(&format!("ws://{}/", link.address)).await.unwrap();
        socket.send(&[0; 1_000]).await.unwrap();
        let _ = timeout(TIMEOUT, socket.close(CloseCode::NORMAL, "")).await.expect("it ended");
    }
}

#[tokio::test]
async fn a_peer_that_does_not_read_is_disconnected_and_costs_little_memory() {
    const QUEUE: usize = 256 << 10;
    let (address, _) = begin(ServerConfig::default()).await;
    // Sends stall.
    let link = Link::to(address, Fault::ends(1_000, End::Stall), Fault::NONE).await;
    let mut config = WebSocketConfig::default();
    config.core.limits.queued_len_high = QUEUE;
    config.slow_peer = SlowPeer::Wait { stall_timeout: Duration::from_millis(300) };
    for is_http2 in [false, true] {
        let connector = Connector::new().config(config.clone()).http2(is_http2);
        let socket = connector.connect(&format!("ws://{}/", link.address)).await.unwrap();
        let (mut sender, mut receiver) = socket.split();
        let message = vec![0; 64 << 10];
        let sending = async {
            loop {
                if let Err(error) = sender.send(&message).await {
                    return error;
                }
                assert!(sender.queued_len() <= QUEUE + message.len() + 16);
            }
        };
        let error = timeout(TIMEOUT, sending).await.expect("the peer is disconnected");
        assert_eq!(error, WebSocketError::SlowPeer);
        let received = timeout(TIMEOUT, receiver.recv()).await.expect("the receiver ends too");
        assert!(!matches!(received, Ok(Some(_))), "{received:?}");
    }
}

// A receiver never waits for a sender that waits.
#[tokio::test]
async fn receives_while_sending_is_stalled() {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    tokio::spawn(server.serve(|request: Request| async move {
        request.websocket().map_or_else(
            |refusal| refusal,
            |upgrade| {
                upgrade.on_open(|mut socket| async move {
                    for number in 0..100u32 {
                        if socket.send(number.to_string()).await.is_err() {
                            return;
                        }
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                })
            },
        )
    }));
    let link = Link::to(address, Fault::ends(1_000, End::Stall), Fault::NONE).await;
    for is_http2 in [false, true] {
        let connector = Connector::new().http2(is_http2);
        let socket = connector.connect(&format!("ws://{}/", link.address)).await.unwrap();
        let (mut sender, mut receiver) = socket.split();
        let stuck = tokio::spawn(async move {
            let message = vec![0; 1 << 20];
            while sender.send(&message).await.is_ok() {}
        });
        let receiving = async {
            for number in 0..100u32 {
                let message = receiver.recv().await.unwrap().unwrap();
                assert_eq!(message.as_text(), Some(&*number.to_string()));
            }
        };
        timeout(TIMEOUT, receiving).await.expect("all messages arrive");
        assert!(!stuck.is_finished(), "sending is stuck");
        stuck.abort();
    }
}
