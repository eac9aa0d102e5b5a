//! A node of a cluster in this process, and a client of it.

use std::time::Duration;

use serde_json::{Value, json};
use wireloom::client::Request;
use wireloom::{Connector, Server, WebSocket};
use wireloom_hub::engine::NatsEngine;
use wireloom_hub::{Hub, HubConfig};

use crate::payloads;

pub(crate) struct Node {
    pub(crate) hub: Hub,
    pub(crate) url: String,
    pub(crate) serving: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Node {
    /// A node that reaches NATS at a port of this machine.
    pub(crate) async fn connect_to(port: u16, config: &str) -> Self {
        let url = format!("nats://127.0.0.1:{port}");
        let mut tries = 0;
        let engine = loop {
            match NatsEngine::connect(&url).await {
                Ok(engine) => break engine,
                Err(error) if tries == 100 => panic!("{error}"),
                Err(_) => tries += 1,
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        let config = HubConfig::from_toml(config).unwrap();
        Self::start(Hub::builder().config(config).engine(engine).build().unwrap()).await
    }

    pub(crate) async fn start(hub: Hub) -> Self {
        let server = Server::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}/connection/websocket", server.local_addr().unwrap());
        let answering = hub.clone();
        let serving = tokio::spawn(server.serve(move |request| {
            let hub = answering.clone();
            async move { hub.answer(request).await }
        }));
        Self { hub, url, serving }
    }

    pub(crate) async fn connect(&self) -> Client {
        self.connect_with(json!({})).await
    }

    /// A client that sends this connect command.
    pub(crate) async fn connect_with(&self, request: Value) -> Client {
        let socket = wireloom::connect(&self.url).await.unwrap();
        let mut client = Client { socket, id: 0, publications: Vec::new(), ended: false };
        client.call("connect", request).await;
        client
    }

    /// The result of a method of the server API.
    pub(crate) async fn api(&self, method: &str, request: Value) -> Value {
        let answer = self.try_api(method, request).await;
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// The answer to a method of the server API.
    pub(crate) async fn try_api(&self, method: &str, request: Value) -> Value {
        let url =
            self.url.replace("ws://", "http://").replace("/connection/websocket", &format!("/api/{method}"));
        let request = Request::post(&url, request.to_string()).header("x-api-key", "key");
        let mut response = Connector::new().request(request).await.unwrap();
        serde_json::from_slice(&response.body.bytes().await.unwrap()).unwrap()
    }
}

/// A client that speaks JSON.
pub(crate) struct Client {
    pub(crate) socket: WebSocket,
    id: u32,
    pub(crate) publications: Vec<Value>,
    /// The server has ended a subscription.
    pub(crate) ended: bool,
}

impl Client {
    /// The result of a command.
    pub(crate) async fn call(&mut self, method: &str, request: Value) -> Value {
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

    pub(crate) async fn receive(&mut self) -> Value {
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

    /// The payloads of publications, once there are at least `count`.
    pub(crate) async fn payloads(&mut self, count: usize) -> Vec<u64> {
        while self.publications.len() < count {
            self.receive().await;
        }
        payloads(&self.publications)
    }
}
