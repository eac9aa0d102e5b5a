//! Several nodes over a real NATS server with JetStream. Skipped, with a line that says so, where `nats-server` is not on the PATH.

#![cfg(feature = "nats")]
#![allow(clippy::unwrap_used)]

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use wireloom::{Server, WebSocket};
use wireloom_hub::engine::NatsEngine;
use wireloom_hub::{Hub, HubConfig};

const CONFIG: &str = r#"
client.anonymous = true
channel = { subscribe = "anyone", publish = "anyone" }

[[namespace]]
name = "chat"
subscribe = "anyone"
publish = "anyone"
presence = true
presence_access = "anyone"
history_access = "anyone"
history_size = 100
history_ttl = "10m"
force_recovery = true
"#;

/// A NATS server of the test's own.
struct Nats {
    process: Child,
    port: u16,
    store: tempfile::TempDir,
}

impl Nats {
    /// `None` where there is no server to start.
    fn start() -> Option<Self> {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let store = tempfile::tempdir().unwrap();
        let Ok(process) = run(port, store.path()) else {
            println!("limited: nats-server is not on the PATH; tests of several nodes did not run");
            return None;
        };
        Some(Self { process, port, store })
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn restart(&mut self) {
        self.process = run(self.port, self.store.path()).unwrap();
    }

    async fn node(&self) -> Node {
        let url = format!("nats://127.0.0.1:{}", self.port);
        let mut tries = 0;
        let engine = loop {
            match NatsEngine::connect(&url).await {
                Ok(engine) => break engine,
                Err(error) if tries == 100 => panic!("{error}"),
                Err(_) => tries += 1,
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        Node::start(
            Hub::builder().config(HubConfig::from_toml(CONFIG).unwrap()).engine(engine).build().unwrap(),
        )
        .await
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn run(port: u16, store: &std::path::Path) -> std::io::Result<Child> {
    Command::new("nats-server")
        .args(["-a", "127.0.0.1", "-p", &port.to_string(), "-js", "-sd"])
        .arg(store)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}

struct Node {
    hub: Hub,
    url: String,
    serving: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Node {
    async fn start(hub: Hub) -> Self {
        let server = Server::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}/connection/websocket", server.local_addr().unwrap());
        let answering = hub.clone();
        let serving = tokio::spawn(server.serve(move |request| {
            let hub = answering.clone();
            async move { hub.answer(request).await }
        }));
        Self { hub, url, serving }
    }

    async fn connect(&self) -> Client {
        let socket = wireloom::connect(&self.url).await.unwrap();
        let mut client = Client { socket, id: 0, publications: Vec::new(), ended: false };
        client.call("connect", json!({})).await;
        client
    }
}

/// A client that speaks JSON.
struct Client {
    socket: WebSocket,
    id: u32,
    publications: Vec<Value>,
    /// The server has ended a subscription.
    ended: bool,
}

impl Client {
    /// The result of a command.
    async fn call(&mut self, method: &str, request: Value) -> Value {
        self.id += 1;
        self.socket.send(&json!({ "id": self.id, method: request }).to_string()).await.unwrap();
        loop {
            let reply = self.receive().await;
            if reply["id"] == self.id {
                assert!(reply["error"].is_null(), "{method}: {reply}");
                return reply[method].clone();
            }
        }
    }

    async fn receive(&mut self) -> Value {
        let message = tokio::time::timeout(Duration::from_secs(20), self.socket.recv_owned()).await;
        let message = message.expect("a message within 20 s").unwrap().unwrap();
        let reply: Value = serde_json::from_slice(message.as_bytes()).unwrap();
        let push = &reply["push"];
        if !push["pub"].is_null() {
            self.publications.push(push["pub"].clone());
        }
        self.ended |= !push["unsubscribe"].is_null();
        if reply == json!({}) {
            self.socket.send("{}").await.unwrap();
        }
        reply
    }

    /// The payloads of publications, once there are so many.
    async fn payloads(&mut self, count: usize) -> Vec<u64> {
        while self.publications.len() < count {
            self.receive().await;
        }
        payloads(&self.publications)
    }
}

/// The command of a client that was at this position.
fn recover(at: &Value) -> Value {
    let offset = at["offset"].as_u64().unwrap_or(0);
    json!({ "channel": "chat:x", "recover": true, "epoch": at["epoch"], "offset": offset })
}

fn payloads(publications: &[Value]) -> Vec<u64> {
    let payload =
        |publication: &Value| publication["data"].as_u64().unwrap_or_else(|| panic!("{publication}"));
    publications.iter().map(payload).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_reaches_the_clients_of_every_node() {
    let Some(nats) = Nats::start() else { return };
    let (one, two) = (nats.node().await, nats.node().await);
    for channel in ["plain", "chat:x"] {
        let (mut a, mut b) = (one.connect().await, two.connect().await);
        a.call("subscribe", json!({ "channel": channel })).await;
        b.call("subscribe", json!({ "channel": channel })).await;
        for n in 0..50 {
            let node = if n % 2 == 0 { &one } else { &two };
            node.hub.publish(channel, n.to_string()).await.unwrap();
            // Without a history the order of publications from two nodes is not defined.
            a.payloads(n + 1).await;
        }
        for client in [&mut a, &mut b] {
            let mut received = client.payloads(50).await;
            if channel == "plain" {
                received.sort_unstable();
            }
            assert_eq!(received, (0..50).collect::<Vec<_>>(), "{channel}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_recovers_on_another_node() {
    let Some(nats) = Nats::start() else { return };
    let (one, two) = (nats.node().await, nats.node().await);
    let mut a = one.connect().await;
    let at = a.call("subscribe", json!({ "channel": "chat:x" })).await;
    drop(a);
    for n in 0..100 {
        one.hub.publish("chat:x", n.to_string()).await.unwrap();
    }
    let recover = recover(&at);
    let mut b = two.connect().await;
    let result = b.call("subscribe", recover.clone()).await;
    assert_eq!(result["recovered"], true, "{result}");
    assert_eq!(payloads(result["publications"].as_array().unwrap()), (0..100).collect::<Vec<_>>());
    two.hub.publish("chat:x", "100").await.unwrap();
    assert_eq!(b.payloads(1).await, [100]);

    // One more than the history keeps.
    let mut c = one.connect().await;
    let result = c.call("subscribe", recover).await;
    assert_ne!(result["recovered"], true, "{result}");
    assert_eq!(result["was_recovering"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_history_cannot_be_recovered() {
    let Some(nats) = Nats::start() else { return };
    let one = nats.node().await;
    let mut a = one.connect().await;
    let at = a.call("subscribe", json!({ "channel": "chat:x" })).await;
    one.hub.publish("chat:x", "1").await.unwrap();
    a.payloads(1).await;
    one.hub.remove_history("chat:x").await.unwrap();
    while !a.ended {
        a.receive().await;
    }
    one.hub.publish("chat:x", "2").await.unwrap();
    let recover = recover(&at);
    let result = a.call("subscribe", recover).await;
    assert_ne!(result["recovered"], true, "{result}");
    let history = a.call("history", json!({ "channel": "chat:x", "limit": -1 })).await;
    assert_eq!(payloads(history["publications"].as_array().unwrap()), [2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn presence_covers_all_nodes_and_forgets_a_lost_one() {
    let Some(nats) = Nats::start() else { return };
    let (one, two) = (nats.node().await, nats.node().await);
    let (mut a, mut b) = (one.connect().await, two.connect().await);
    a.call("subscribe", json!({ "channel": "chat:x" })).await;
    b.call("subscribe", json!({ "channel": "chat:x" })).await;
    let presence = a.call("presence", json!({ "channel": "chat:x" })).await;
    assert_eq!(presence["presence"].as_object().unwrap().len(), 2, "{presence}");
    b.call("unsubscribe", json!({ "channel": "chat:x" })).await;
    let stats = a.call("presence_stats", json!({ "channel": "chat:x" })).await;
    assert_eq!(stats["num_clients"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_lose_nothing_when_nats_is_restarted() {
    let Some(mut nats) = Nats::start() else { return };
    let (one, two) = (nats.node().await, nats.node().await);
    let (mut a, mut b) = (one.connect().await, two.connect().await);
    a.call("subscribe", json!({ "channel": "chat:x" })).await;
    b.call("subscribe", json!({ "channel": "chat:x" })).await;
    one.hub.publish("chat:x", "0").await.unwrap();
    assert_eq!(a.payloads(1).await, [0]);
    assert_eq!(b.payloads(1).await, [0]);
    nats.kill();
    // The node notices within moments; until then a publication may fail, and the publisher is told.
    loop {
        match one.hub.publish("chat:x", "1").await {
            Ok(position) if position.offset == 0 => break,
            Ok(position) => panic!("{position:?} without NATS"),
            Err(error) => println!("refused while NATS went: {error}"),
        }
    }
    assert_eq!(a.payloads(2).await, [0, 1], "the node's own subscribers go on");
    nats.restart();
    let published = async {
        loop {
            match one.hub.publish("chat:x", "2").await {
                Ok(position) if position.offset > 0 => return,
                _ => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), published).await.unwrap();
    // What was published without NATS, and so without an offset, may reach the other node or not.
    let mut received = b.payloads(2).await;
    if received.last() == Some(&1) {
        received = b.payloads(3).await;
    }
    assert_eq!(received.iter().filter(|payload| **payload != 1).collect::<Vec<_>>(), [&0, &2]);
    assert!(!b.ended);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_shuts_down_sends_its_clients_away() {
    let Some(nats) = Nats::start() else { return };
    let (one, two) = (nats.node().await, nats.node().await);
    let mut a = one.connect().await;
    let at = a.call("subscribe", json!({ "channel": "chat:x" })).await;
    let hub = one.hub.clone();
    let shutting_down = tokio::spawn(async move { hub.shut_down(Duration::from_secs(10)).await });
    while a.socket.recv_owned().await.unwrap().is_some() {}
    assert_eq!(a.socket.end().unwrap().code().value(), 3001);
    shutting_down.await.unwrap();
    one.serving.abort();
    two.hub.publish("chat:x", "1").await.unwrap();
    let mut b = two.connect().await;
    let recover = recover(&at);
    let result = b.call("subscribe", recover).await;
    assert_eq!(result["recovered"], true);
    assert_eq!(payloads(result["publications"].as_array().unwrap()), [1]);
}
