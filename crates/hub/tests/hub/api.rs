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

// A reply waits for its reader in the memory of the address, where probes and metrics answer, too.
#[tokio::test]
async fn a_history_is_read_in_parts() {
    let served = Served::start(&format!("{CONFIG}{API}"), |hub| hub).await;
    let data = "x".repeat(300 << 10);
    for _ in 0..7 {
        call(&served, "publish", json!({ "channel": "log:a", "data": data })).await;
    }
    let offsets = |result: &Value| -> Vec<u64> {
        let publications = result["publications"].as_array().unwrap().iter();
        publications.map(|publication| publication["offset"].as_u64().unwrap()).collect()
    };
    let mut request = json!({ "channel": "log:a", "limit": -1 });
    for part in [&[1, 2, 3][..], &[4, 5, 6], &[7], &[]] {
        let result = &call(&served, "history", request.clone()).await["result"];
        assert_eq!((offsets(result), &result["offset"]), (part.to_vec(), &json!(7)));
        if let Some(last) = part.last() {
            request["since"] = json!({ "offset": last, "epoch": result["epoch"] });
        }
    }
    request.as_object_mut().unwrap().remove("since");
    // The commands of a batch share it, but each returns one publication.
    for (commands, count) in [(1, 3), (2, 1), (9, 1)] {
        let batch = json!({ "commands": vec![json!({ "history": request }); commands] });
        let result = &call(&served, "batch", batch).await["result"];
        let replies = result["replies"].as_array().unwrap();
        assert!(replies.iter().all(|reply| offsets(&reply["history"]).len() == count), "{commands}");
    }
}

#[tokio::test]
async fn wrong_keys_are_counted() {
    let served = Served::start(&format!("{CONFIG}{API}"), |hub| hub).await;
    let url = served.url.replace("ws://", "http://").replace("/connection/websocket", "/api/info");
    for (name, given, status) in [
        ("x-api-key", "key", 200),
        ("authorization", "apikey key", 200),
        ("x-api-key", "ke", 401),
        ("x-api-key", "", 401),
        ("authorization", "apikey Key", 401),
        ("authorization", "key", 401),
        ("x-other", "key", 401),
    ] {
        let request = Request::post(&url, "{}".to_owned()).header(name, given);
        assert_eq!(Connector::new().request(request).await.unwrap().status, status, "{name}: {given}");
    }
    assert_eq!(served.hub.stats().wrong_keys, 5);
}

/// The body of an answer, as it was sent.
async fn text(served: &Served, method: &str, request: &str) -> String {
    let url =
        served.url.replace("ws://", "http://").replace("/connection/websocket", &format!("/api/{method}"));
    let request = Request::post(&url, request.to_owned()).header("x-api-key", "key");
    let mut response = Connector::new().request(request).await.unwrap();
    assert_eq!(response.status, 200);
    String::from_utf8(response.body.bytes().await.unwrap().to_vec()).unwrap()
}

#[tokio::test]
async fn payloads_of_a_history_are_those_that_were_published() {
    let served = Served::start(&format!("{CONFIG}{API}"), |hub| hub).await;
    let nested = format!("{}{}", "[".repeat(200), "]".repeat(200));
    let payloads = [
        "0.1000000000000000055511151231257827",
        "123456789012345678901234567890",
        "1e400",
        r#"{"b":1,"a":2,"b":3}"#,
        r#""\u00e9\/""#,
        "{\n\t\"a\": 1\r\n}",
        &nested,
    ];
    for payload in payloads {
        let request = format!(r#"{{"channel":"log:raw","data":{payload}}}"#);
        let answer = text(&served, "publish", &request).await;
        assert!(answer.contains("\"offset\":"), "{answer}");
    }
    for (method, request) in [
        ("history", r#"{"channel":"log:raw","limit":-1}"#.to_owned()),
        (
            "batch",
            r#"{"parallel":true,"commands":[{"history":{"channel":"log:raw","limit":-1}}]}"#.to_owned(),
        ),
    ] {
        let answer = text(&served, method, &request).await;
        for payload in payloads {
            assert!(answer.contains(&format!("\"data\":{payload},")), "{payload} in {answer}");
        }
    }
    // Other requests answer as before.
    let answer = text(&served, "batch", r#"{"commands":[{"info":{}},{"nothing":{}},{"publish":{}}]}"#).await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let replies = answer["result"]["replies"].as_array().unwrap();
    assert_eq!(replies[0]["info"]["nodes"].as_array().unwrap().len(), 1, "{answer}");
    assert_eq!([&replies[1]["error"]["code"], &replies[2]["error"]["code"]], [104, 107], "{answer}");
}
