//! Clients whose server's side is the body of a response.

use serde_json::{Value, json};
use wireloom::client::Request;
use wireloom::{Body, Connector};

use super::Served;

/// A client of `/connection/http_stream`, `/connection/sse` or one of those that only receive, in JSON.
pub(crate) struct Stream {
    base: String,
    body: Body,
    text: String,
    is_sse: bool,
    node: String,
    session: String,
    id: u32,
}

pub(crate) fn http(served: &Served, path: &str) -> String {
    served.url.replace("ws://", "http://").replace("/connection/websocket", path)
}

impl Stream {
    /// Opens a stream with what a client sends first.
    pub(crate) async fn open(served: &Served, path: &str, first: &str) -> Self {
        let request = Request::post(http(served, path), first.to_owned());
        let response = Connector::new().request(request).await.unwrap();
        assert_eq!(response.status, 200, "{path}");
        let (node, session, text) = Default::default();
        let is_sse = path.ends_with("sse");
        Self { base: http(served, ""), body: response.body, text, is_sse, node, session, id: 0 }
    }

    /// Opens a stream and connects; returns the reply, or the push that ends the connection.
    pub(crate) async fn connect(served: &Served, path: &str, request: Value) -> (Self, Value) {
        let first = json!({ "id": 1, "connect": request }).to_string();
        let mut stream = Self { id: 1, ..Self::open(served, path, &first).await };
        let reply = stream.next().await;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (stream.node, stream.session) = (text(&reply["connect"]["node"]), text(&reply["connect"]["session"]));
        (stream, reply)
    }

    /// The next message; panics at the end of the stream.
    pub(crate) async fn next(&mut self) -> Value {
        self.next_or_end().await.unwrap_or_else(|| panic!("the stream has ended: {}", self.text))
    }

    pub(crate) async fn next_or_end(&mut self) -> Option<Value> {
        let end = if self.is_sse { "\n\n" } else { "\n" };
        loop {
            if let Some((message, rest)) = self.text.split_once(end) {
                let message = if self.is_sse { message.strip_prefix("data: ").unwrap() } else { message };
                let message = serde_json::from_str(message).unwrap();
                self.text = rest.to_owned();
                return Some(message);
            }
            let chunk = tokio::time::timeout(std::time::Duration::from_secs(20), self.body.chunk()).await;
            let chunk = chunk.expect("a chunk within 20 s").unwrap()?;
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    /// Sends commands through a server; returns the status.
    pub(crate) async fn send_to(&self, base: &str, commands: &str) -> u16 {
        let body = json!({ "node": self.node, "session": self.session, "data": commands }).to_string();
        let request = Request::post(format!("{base}/emulation"), body);
        Connector::new().request(request).await.unwrap().status
    }

    pub(crate) async fn send(&self, commands: &str) -> u16 {
        self.send_to(&self.base, commands).await
    }

    /// The reply to a command.
    pub(crate) async fn reply(&mut self, method: &str, request: Value) -> Value {
        self.id += 1;
        assert_eq!(self.send(&json!({ "id": self.id, method: request }).to_string()).await, 204, "{method}");
        loop {
            let reply = self.next().await;
            if reply["id"] == self.id {
                return reply;
            }
        }
    }
}
