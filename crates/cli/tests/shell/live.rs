//! The live state of `wireloom serve` at `/live`: metrics, slowest clients and log, and the clients that may see it.

use std::time::{Duration, Instant};

use serde_json::Value;
use wireloom::client::Request;
use wireloom::{Connector, Error, WebSocket};

use crate::process::{DEADLINE, Server, folder};

impl Server {
    /// Whether a client with these header fields may see the live state.
    async fn is_allowed(&self, connector: Connector, fields: &[(&str, &str)]) -> bool {
        let request = Request::get(format!("http://{}/live", self.addresses[0]));
        let request = fields.iter().fold(request, |request, (name, value)| request.header(*name, value));
        let answer = connector.request(request).await.unwrap().body.bytes().await.unwrap();
        serde_json::from_slice::<Value>(&answer).unwrap()["allowed"].as_bool().unwrap()
    }

    async fn watch(&self, connector: Connector) -> Result<WebSocket, Error> {
        connector.connect(&self.url("/live")).await
    }
}

async fn state(socket: &mut WebSocket) -> Value {
    serde_json::from_str(socket.recv().await.unwrap().unwrap().as_text().unwrap()).unwrap()
}

/// The first state that satisfies `predicate`.
async fn state_with(socket: &mut WebSocket, predicate: impl Fn(&Value) -> bool) -> Value {
    let begin = Instant::now();
    loop {
        let state = state(socket).await;
        if predicate(&state) {
            return state;
        }
        assert!(begin.elapsed() < DEADLINE, "{state}");
    }
}

#[tokio::test]
async fn shows_metrics_slowest_clients_and_log() {
    let serving = Server::start(&["--slow-timeout", "2s", "--max-memory", "48M"]).await;
    let mut live = serving.watch(Connector::new()).await.unwrap();
    let first = state(&mut live).await;
    let metrics = first["metrics"].as_str().unwrap();
    assert!(metrics.contains("\nwireloom_memory_max_bytes 37748736\n"), "{metrics}");
    assert!(metrics.contains("\nwireloom_memory_bytes{use=\"send_queues\"} "), "{metrics}");
    assert_eq!(first["slowest"], Value::Array(Vec::new()));

    // This client does not read.
    let _slow = wireloom::connect(&serving.url("/source?size=1000000")).await.unwrap();
    let state = state_with(&mut live, |state| !state["slowest"].as_array().unwrap().is_empty()).await;
    let slowest = &state["slowest"][0];
    assert_eq!((&slowest["route"], &slowest["protocol"]), (&"/source".into(), &"HTTP/1.1".into()));
    assert!(
        slowest["queued"].as_u64().unwrap() > 0
            && slowest["client"].as_str().unwrap().starts_with("127.0.0.1:")
    );
    // It is evicted, which is logged; each line of the log is sent once.
    let evicted = |state: &Value| state["log"].to_string().contains("client evicted");
    state_with(&mut live, evicted).await;
    let after = state_with(&mut live, |state| state["slowest"].as_array().unwrap().is_empty()).await;
    assert!(!evicted(&after), "{after}");
}

#[tokio::test]
async fn lists_the_slow_clients_of_the_hub() {
    let folder = folder("live");
    let config = folder.join("hub.toml");
    // The queue must not be full before the state is read.
    let channels = "client = { anonymous = true, queue_len_max = \"1G\", message_len_max = \"1M\" }\n\
                    [[namespace]]\nname = \"rooms\"\nsubscribe = \"anyone\"\npublish = \"anyone\"\n\
                    publication_bytes_per_s_max = 0\n";
    std::fs::write(&config, channels).unwrap();
    let serving = Server::start(&["--demo", "--hub", config.to_str().unwrap()]).await;
    let mut live = serving.watch(Connector::new()).await.unwrap();
    let room = serving.url("/rooms/slow");
    let (_slow, mut sender) =
        (wireloom::connect(&room).await.unwrap(), wireloom::connect(&room).await.unwrap());
    let message = "x".repeat(100_000);
    let state = async {
        loop {
            // A room sends each message back to its sender as well.
            sender.send(&*message).await.unwrap();
            sender.recv().await.unwrap();
            let ready = tokio::time::timeout(Duration::from_millis(5), live.recv()).await;
            let Ok(message) = ready else { continue };
            let state: Value = serde_json::from_str(message.unwrap().unwrap().as_text().unwrap()).unwrap();
            let slowest = &state["slowest"][0];
            // One message may be on its way to any client.
            if slowest["queued"].as_u64() >= Some(200_000) && slowest["sent"].as_u64() > Some(0) {
                return state;
            }
        }
    };
    let state = tokio::time::timeout(DEADLINE, state).await.expect("a slow client is listed");
    let slowest = &state["slowest"][0];
    assert_eq!(slowest["route"], "/rooms", "{state}");
}

#[tokio::test]
async fn is_for_local_clients_unless_enabled() {
    let serving = Server::start(&["--allow-origin", "*"]).await;
    assert!(serving.is_allowed(Connector::new(), &[]).await);
    for field in [
        ("X-Forwarded-For", "192.0.2.1"),
        ("Forwarded", "for=192.0.2.1"),
        ("Via", "1.1 proxy"),
        ("Origin", "https://example.com"),
    ] {
        assert!(!serving.is_allowed(Connector::new(), &[field]).await, "{field:?}");
    }
    assert!(!serving.is_allowed(Connector::new().host("example.com"), &[]).await);
    let refused = serving.watch(Connector::new().origin("https://example.com")).await;
    assert!(matches!(&refused, Err(Error::Refused(response)) if response.status() == 403), "{refused:?}");

    let serving = Server::start(&["--live-stats", "none"]).await;
    assert!(!serving.is_allowed(Connector::new(), &[]).await);
    assert!(matches!(serving.watch(Connector::new()).await, Err(Error::Refused(_))));

    // With `--admin`, the state is served at that address only.
    assert!(!Server::start(&["--admin", "127.0.0.1:0"]).await.is_allowed(Connector::new(), &[]).await);

    let serving = Server::start(&["--live-stats", "all"]).await;
    assert!(
        serving.is_allowed(Connector::new().host("example.com"), &[("X-Forwarded-For", "192.0.2.1")]).await
    );
    state(&mut serving.watch(Connector::new()).await.unwrap()).await;
}
