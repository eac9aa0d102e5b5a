//! A hub behind a server on loopback: calls, versions of HTTP, and clients that break the rules.

#![allow(clippy::unwrap_used)]

mod api;
mod application;
mod calls;
mod catch_up;
mod compatibility;
mod deltas;
mod endpoints;
mod events;
mod gate;
mod hostile;
mod keys;
mod limits;
mod meta;
mod proxies;
mod rights;
mod slow;
mod slowest;
mod streams;
mod transports;

use std::time::Duration;

use serde_json::{Value, json};
use wireloom::{Connector, Server, ServerHandle, WebSocket};
use wireloom_hub::{Hub, HubBuilder, HubConfig};

const CONFIG: &str = r#"
[client]
anonymous = true
commands_per_s_max = 200
message_len_max = 10000
channel_name_len_max = 20
channels_max = 3

[token]
hmac_secret = "secret"

[[namespace]]
name = "chat"
subscribe = "anyone"
publish = "anyone"
join_leave = true

[[namespace]]
name = "private"
"#;

/// A hub that is served at a port of its own.
struct Served {
    hub: Hub,
    server: ServerHandle,
    url: String,
}

impl Served {
    async fn start(config: &str, build: impl FnOnce(HubBuilder) -> HubBuilder) -> Self {
        Self::serve(build(Hub::builder().config(HubConfig::from_toml(config).unwrap())).build().unwrap())
            .await
    }

    /// Not generic, or each caller of `start` would compile a server of its own.
    async fn serve(hub: Hub) -> Self {
        let server = Server::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}/connection/websocket", server.local_addr().unwrap());
        let (answering, handle) = (hub.clone(), server.handle());
        tokio::spawn(server.serve(move |request| {
            let hub = answering.clone();
            async move { hub.answer(request).await }
        }));
        Self { hub, server: handle, url }
    }

    async fn connect(&self) -> Client {
        let mut client = Client::new(wireloom::connect(&self.url).await.unwrap());
        client.call("connect", json!({})).await;
        client
    }

    /// Waits until the counter of connections that ended with this code is at least `count`.
    async fn has_ended(&self, code: u32, count: u64) {
        let counted = async {
            while self.hub.stats().ended.get(&code).copied().unwrap_or(0) < count {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(20), counted).await;
        waited.unwrap_or_else(|_| panic!("{code} is not counted: {:?}", self.hub.stats()));
    }
}

/// A client that speaks JSON.
struct Client {
    socket: WebSocket,
    id: u32,
    publications: Vec<Value>,
}

impl Client {
    fn new(socket: WebSocket) -> Self {
        Self { socket, id: 0, publications: Vec::new() }
    }

    /// The reply to a command.
    async fn reply(&mut self, method: &str, request: Value) -> Value {
        self.id += 1;
        self.socket.send(&json!({ "id": self.id, method: request }).to_string()).await.unwrap();
        loop {
            let reply = self.receive().await;
            if reply["id"] == self.id {
                return reply;
            }
        }
    }

    /// The result of a command.
    async fn call(&mut self, method: &str, request: Value) -> Value {
        let reply = self.reply(method, request).await;
        assert!(reply["error"].is_null(), "{method}: {reply}");
        reply[method].clone()
    }

    async fn receive(&mut self) -> Value {
        let message = tokio::time::timeout(Duration::from_secs(20), self.socket.recv_owned()).await;
        let message = message.expect("a message within 20 s").unwrap().unwrap();
        let reply: Value = serde_json::from_slice(message.as_bytes()).unwrap();
        let publication = &reply["push"]["pub"];
        if !publication.is_null() {
            self.publications.push(publication["data"].clone());
        }
        reply
    }

    /// The code with which the server ends the connection.
    async fn ended(mut self) -> u16 {
        let ended = async { while let Ok(Some(_)) = self.socket.recv_owned().await {} };
        tokio::time::timeout(Duration::from_secs(20), ended).await.expect("the end within 20 s");
        self.socket.end().unwrap().code().value()
    }
}

#[tokio::test]
async fn speaks_the_client_protocol_over_http2() {
    let served = Served::start(CONFIG, |hub| hub).await;
    let opened = Connector::new().http2(true).open(&served.url).await.unwrap();
    assert_eq!(opened.version, wireloom::Version::Http2);
    let mut over_http2 = Client::new(opened.socket);
    over_http2.call("connect", json!({})).await;
    let mut over_http1 = served.connect().await;
    for client in [&mut over_http2, &mut over_http1] {
        client.call("subscribe", json!({ "channel": "chat:x" })).await;
    }
    over_http2.call("publish", json!({ "channel": "chat:x", "data": { "over": 2 } })).await;
    over_http1.call("publish", json!({ "channel": "chat:x", "data": { "over": 1 } })).await;
    for client in [&mut over_http2, &mut over_http1] {
        while client.publications.len() < 2 {
            client.receive().await;
        }
        assert_eq!(client.publications, [json!({ "over": 2 }), json!({ "over": 1 })]);
    }
}
