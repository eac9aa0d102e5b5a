//! The processor is shared between connections, however many streams they have and whatever their messages inflate to. Measured in
//! messages that handlers have received, not in time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use wireloom::{
    Connector, DeflateConfig, PreparedMessage, Request, ServerConfig, WebSocket, WebSocketConfig,
};

use super::Running;

/// A message of a kilobyte that inflates to this length uses up the turn of its connection.
const LEN: usize = 1 << 20;

/// Bytes that the handlers have received.
#[derive(Default)]
struct Received {
    /// Over HTTP/2.
    tunnels: AtomicUsize,
    /// Over HTTP/1.1.
    sockets: AtomicUsize,
}

impl Received {
    fn total(&self) -> usize {
        self.tunnels.load(Ordering::Relaxed) + self.sockets.load(Ordering::Relaxed)
    }
}

/// A server whose handlers begin to receive when the gate is opened; `/echo` begins at once.
struct Gated {
    server: Running,
    received: Arc<Received>,
    gate: watch::Sender<bool>,
}

impl Gated {
    async fn start(config: ServerConfig) -> Self {
        let (gate, opened) = watch::channel(false);
        let received = Arc::<Received>::default();
        let counters = received.clone();
        let handler = move |request: Request| {
            let (counters, mut opened) = (counters.clone(), opened.clone());
            async move {
                let path = request.path().to_owned();
                let upgrade = match request.websocket() {
                    Ok(upgrade) => upgrade,
                    Err(refusal) => return refusal,
                };
                upgrade.on_open(move |mut socket| async move {
                    if path == "/echo" {
                        while let Ok(Some(message)) = socket.recv_owned().await {
                            let _ = socket.send(message).await;
                        }
                        return;
                    }
                    opened.wait_for(|opened| *opened).await.unwrap();
                    let received = if path == "/tunnel" { &counters.tunnels } else { &counters.sockets };
                    while let Ok(Some(_)) = socket.recv().await {
                        received.fetch_add(1, Ordering::Relaxed);
                    }
                })
            }
        };
        Self { server: Running::start(config, handler).await, received, gate }
    }

    /// WebSockets over one connection of HTTP/2, each with `backlog` messages on the way.
    async fn tunnels(&self, count: usize, backlog: usize) -> Vec<WebSocket> {
        let http2 = connector().connect_http2(&self.url("")).await.unwrap();
        let mut sockets = Vec::new();
        for _ in 0..count {
            let mut socket = http2.websocket("/tunnel").await.unwrap();
            send(&mut socket, backlog).await;
            sockets.push(socket);
        }
        sockets
    }

    /// A WebSocket over a connection of its own, with `backlog` messages on the way.
    async fn socket(&self, backlog: usize) -> WebSocket {
        let mut socket = connector().connect(&self.url("/socket")).await.unwrap();
        send(&mut socket, backlog).await;
        socket
    }

    fn url(&self, path: &str) -> String {
        format!("ws://{}{path}", self.server.address)
    }

    fn tunnels_received(&self) -> usize {
        self.received.tunnels.load(Ordering::Relaxed)
    }

    fn sockets_received(&self) -> usize {
        self.received.sockets.load(Ordering::Relaxed)
    }

    /// Waits until the kernel has passed everything on to the server, and opens the gate.
    async fn open(&self) {
        tokio::time::sleep(Duration::from_millis(200)).await;
        self.gate.send_replace(true);
    }
}

fn connector() -> Connector {
    Connector::new().config(WebSocketConfig::default()).deflate(DeflateConfig::default())
}

fn config() -> ServerConfig {
    let mut config = ServerConfig::default();
    config.deflate = Some(DeflateConfig::default());
    config
}

async fn send(socket: &mut WebSocket, count: usize) {
    let message = PreparedMessage::binary(&vec![0; LEN]).with_deflate(&DeflateConfig::default());
    for _ in 0..count {
        socket.send(&message).await.unwrap();
    }
}

#[tokio::test]
async fn all_streams_of_a_connection_have_one_share() {
    const BACKLOG: usize = 30;
    let gated = Gated::start(config()).await;
    let tunnels = gated.tunnels(20, BACKLOG).await;
    let socket = gated.socket(BACKLOG).await;
    gated.open().await;
    while gated.sockets_received() < BACKLOG {
        tokio::task::yield_now().await;
    }
    // One share for the tunnels and one for what reads the connection; without shares it would be 20 times as much.
    let received = gated.tunnels_received();
    assert!((BACKLOG / 2..=2 * BACKLOG + 22).contains(&received), "{received} and {BACKLOG}");
    drop((tunnels, socket));
}

#[tokio::test]
async fn a_short_message_waits_for_few_turns_of_others() {
    const BACKLOG: usize = 30;
    let gated = Gated::start(config()).await;
    let mut honest = wireloom::connect(&gated.url("/echo")).await.unwrap();
    let mut greedy = Vec::new();
    for _ in 0..4 {
        greedy.extend(gated.tunnels(10, BACKLOG).await);
        greedy.push(gated.socket(BACKLOG).await);
    }
    gated.open().await;
    let received = || gated.received.total();
    while received() < 50 {
        tokio::task::yield_now().await;
    }
    let mut waited = Vec::new();
    for _ in 0..40 {
        let before = received();
        honest.send("hello").await.unwrap();
        assert_eq!(honest.recv().await.unwrap().unwrap().as_text(), Some("hello"));
        waited.push(received() - before);
    }
    // To the server, to its handler and back, with one message of others each; 44 handlers are ready all the time.
    let most = waited.iter().max().unwrap();
    assert!(*most <= 12, "{waited:?}");
    assert!(received() < 44 * BACKLOG, "nothing was left to wait for");
    drop(greedy);
}

#[tokio::test]
async fn nothing_is_done_for_clients_that_have_left() {
    const BACKLOG: usize = 30;
    let gated = Gated::start(config()).await;
    // A client that is killed: it closes neither its WebSockets nor its streams.
    let killed = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let tunnels = {
        let _client = killed.enter();
        gated.tunnels(20, BACKLOG).await
    };
    gated.open().await;
    while gated.tunnels_received() < 10 {
        tokio::task::yield_now().await;
    }
    let before = gated.tunnels_received();
    // Nothing is received before it is gone: this thread waits.
    std::thread::spawn(move || drop(killed)).join().unwrap();
    while gated.server.handle.stats().websockets_open > 0 {
        tokio::task::yield_now().await;
    }
    let received = gated.tunnels_received() - before;
    assert!(received <= 3 * 20, "{received} of {}", 20 * BACKLOG);
    drop(tunnels);
}

// The end of the grace period, at once.
#[tokio::test]
async fn the_grace_period_ends_with_a_backlog() {
    const BACKLOG: usize = 30;
    let gated = Gated::start(config()).await;
    let mut sockets = Vec::new();
    for _ in 0..3 {
        sockets.extend(gated.tunnels(20, BACKLOG).await);
        sockets.push(gated.socket(BACKLOG).await);
    }
    gated.open().await;
    while gated.tunnels_received() < 10 {
        tokio::task::yield_now().await;
    }
    let before = gated.received.total();
    gated.server.handle.abort();
    gated.server.task.await.unwrap().unwrap();
    let received = gated.received.total() - before;
    assert!(received <= 8, "{received} messages after the end");
    drop(sockets);
}
