//! The list of clients that do not read.

use std::time::Duration;

use serde_json::json;
use wireloom::Connector;

use super::{CONFIG, Client, Served};

#[tokio::test]
async fn lists_the_clients_with_the_longest_queues() {
    let served = Served::start(CONFIG, |hub| hub).await;
    let mut reader = served.connect().await;
    let http2 = Connector::new().http2(true).connect(&served.url).await.unwrap();
    let mut slow = Client::new(http2);
    let id = slow.call("connect", json!({})).await["client"].as_str().unwrap().to_owned();
    slow.call("subscribe", json!({ "channel": "chat:x" })).await;
    assert_eq!(served.hub.slowest(10), []);

    // The socket of the client takes some of it.
    let data = format!("\"{}\"", "x".repeat(50_000));
    let filled = async {
        loop {
            served.hub.publish("chat:x", data.clone()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(2)).await;
            match &served.hub.slowest(10)[..] {
                [client] if client.queued_len > 300_000 => return client.clone(),
                _ => {}
            }
        }
    };
    let client = tokio::time::timeout(Duration::from_secs(20), filled).await.expect("a queue within 20 s");
    assert_eq!((client.client, client.user), (id, String::new()));
    assert_eq!(client.path, "/connection/websocket");
    assert!(client.peer.unwrap().ip().is_loopback() && client.written_len > 0, "{}", client.written_len);
    assert_eq!(served.hub.slowest(0), []);
    reader.call("publish", json!({ "channel": "chat:y", "data": 1 })).await;

    let emptied = async {
        while !served.hub.slowest(10).is_empty() {
            slow.receive().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), emptied).await.expect("an empty queue within 20 s");
}
