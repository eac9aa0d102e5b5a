//! A node that is lost: another one reports the end of what was open there.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use wireloom::{Response, Server};

use crate::node::Node;
use crate::server::Nats;

#[tokio::test(flavor = "multi_thread")]
async fn the_clients_of_a_lost_node_are_reported() {
    let Some(nats) = Nats::start() else { return };
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/events", server.local_addr().unwrap());
    let events = Arc::<Mutex<Vec<Value>>>::default();
    let received = events.clone();
    tokio::spawn(server.serve(move |mut request: wireloom::Request| {
        let received = received.clone();
        async move {
            let body: Value = serde_json::from_slice(&request.bytes().await.unwrap()).unwrap();
            received.lock().unwrap().extend(body["events"].as_array().unwrap().iter().cloned());
            Response::new(200).with_body("application/json", "{}")
        }
    }));
    let config = format!(
        "client.anonymous = true\n[channel]\nsubscribe = \"anyone\"\nunsubscribe_events = true\n[events]\nurl = \"{url}\"\n"
    );
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (port, on_lost) = (nats.port, config.clone());
    let lost = runtime.spawn(async move { Node::connect_to(port, &on_lost).await }).await.unwrap();
    let survivor = Node::connect_to(nats.port, &config).await;
    let (mut one, mut other) = (lost.connect().await, survivor.connect().await);
    for client in [&mut one, &mut other] {
        client.call("subscribe", json!({ "channel": "a" })).await;
    }
    // In the middle of anything.
    runtime.shutdown_background();
    let lost_at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    for _ in 0..6_000 {
        if events.lock().unwrap().len() >= 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let events = events.lock().unwrap().clone();
    let mut of: Vec<_> =
        events.iter().map(|event| (event["type"].to_string(), event["reason"].to_string())).collect();
    of.sort();
    let of: Vec<_> = of.iter().map(|(kind, reason)| (&**kind, &**reason)).collect();
    assert_eq!(of, [("\"disconnect\"", "\"node lost\""), ("\"unsubscribe\"", "\"node lost\"")], "{events:?}");
    let is_later = |event: &Value| u128::from(event["time_ms"].as_u64().unwrap()) > lost_at;
    assert!(events.iter().all(is_later), "the time of the report: {events:?}");
    // The clients of the survivor are not.
    assert!(events.iter().all(|event| event["client"] == events[0]["client"]), "{events:?}");
    drop(other);
}
