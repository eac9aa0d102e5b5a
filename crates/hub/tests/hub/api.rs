//! The server API over HTTP.

use serde_json::{Value, json};
use wireloom::Connector;
use wireloom::client::Request;

use super::{CONFIG, Served};

const API: &str = r#"
[api]
key = "key"

[[namespace]]
name = "log"
subscribe = "anyone"
history_size = 10
history_ttl = "1h"
"#;

async fn call(served: &Served, method: &str, request: Value) -> Value {
    let url =
        served.url.replace("ws://", "http://").replace("/connection/websocket", &format!("/api/{method}"));
    let request = Request::post(&url, request.to_string()).header("x-api-key", "key");
    let mut response = Connector::new().request(request).await.unwrap();
    assert_eq!(response.status, 200);
    serde_json::from_slice(&response.body.bytes().await.unwrap()).unwrap()
}

#[tokio::test]
async fn a_request_with_a_known_key_publishes_nothing() {
    let served = Served::start(&format!("{CONFIG}{API}"), |hub| hub).await;
    let publish = |channel: &str, key: &str, data: u64| json!({ "channel": channel, "data": data, "idempotency_key": key });
    let first = call(&served, "publish", publish("log:a", "k1", 1)).await;
    assert_eq!(first["result"]["offset"], 1, "{first}");
    assert_eq!(call(&served, "publish", publish("log:a", "k1", 2)).await, first);
    for (channel, key, offset) in [("log:a", "k2", 2), ("log:b", "k1", 1), ("log:a", "", 3), ("log:a", "", 4)]
    {
        let answer = call(&served, "publish", publish(channel, key, 3)).await;
        assert_eq!(answer["result"]["offset"], offset, "{channel} {key}");
    }
    let (one, two) = tokio::join!(
        call(&served, "publish", publish("log:c", "k", 1)),
        call(&served, "publish", publish("log:c", "k", 2))
    );
    assert_eq!(one, two);
    let broadcast = json!({ "channels": ["log:a", "log:d"], "data": 5, "idempotency_key": "k2" });
    let answer = call(&served, "broadcast", broadcast).await;
    assert_eq!(answer["result"]["responses"][0]["result"]["offset"], 2, "{answer}");
    assert_eq!(answer["result"]["responses"][1]["result"]["offset"], 1, "{answer}");
    assert_eq!(served.hub.stats().publications, 7);

    // A key is no longer than 128 bytes, and a failure may be repeated.
    for (len, code) in [(128, None), (129, Some(106))] {
        let answer = call(&served, "publish", publish("log:a", &"k".repeat(len), 1)).await;
        assert_eq!(answer["error"]["code"].as_u64(), code, "{answer}");
    }
    let refused = call(&served, "publish", publish("nowhere:a", "k", 1)).await;
    assert_eq!(refused["error"]["code"], 102, "{refused}");
}
