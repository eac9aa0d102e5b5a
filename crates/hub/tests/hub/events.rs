//! Events for the backend: connections and subscriptions that have ended.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use wireloom::{Connector, Response, Server};
use wireloom_hub::engine::{DiskEngine, Engine as _, MemoryEngine};

use super::{CONFIG, Client, Served};

/// A backend that refuses the first `refusals` requests.
struct Backend {
    url: String,
    /// The events of each request.
    requests: Arc<Mutex<Vec<Vec<Value>>>>,
}

impl Backend {
    async fn start(refusals: usize) -> Self {
        let server = Server::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/events", server.local_addr().unwrap());
        let requests = Arc::<Mutex<Vec<Vec<Value>>>>::default();
        let (received, left) = (requests.clone(), Arc::new(AtomicUsize::new(refusals)));
        tokio::spawn(server.serve(move |mut request: wireloom::Request| {
            let (received, left) = (received.clone(), left.clone());
            async move {
                assert_eq!(request.header("x-secret"), Some(&b"own"[..]));
                let body: Value = serde_json::from_slice(&request.bytes().await.unwrap()).unwrap();
                if left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
                    return Response::text(500, "later");
                }
                received.lock().unwrap().push(body["events"].as_array().unwrap().clone());
                Response::new(200).with_body("application/json", "{}")
            }
        }));
        Self { url, requests }
    }

    fn config(&self, batch_max: usize) -> String {
        let (url, more) = (
            &self.url,
            "[[namespace]]\nname = \"seen\"\nsubscribe = \"anyone\"\nunsubscribe_events = true\n",
        );
        format!(
            "{CONFIG}{more}[events]\nurl = \"{url}\"\nheaders = {{ X-Secret = \"own\" }}\nbatch_max = {batch_max}\n"
        )
    }

    fn events(&self) -> Vec<Value> {
        self.requests.lock().unwrap().concat()
    }

    async fn until(&self, count: usize) -> Vec<Value> {
        for _ in 0..2_000 {
            let events = self.events();
            if events.len() >= count {
                return events;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{count} events: {:?}", self.events());
    }
}

#[tokio::test]
async fn the_backend_learns_what_has_ended() {
    let backend = Backend::start(2).await;
    let served = Served::start(&backend.config(256), |hub| hub).await;
    let mut client = Client::new(wireloom::connect(&served.url).await.unwrap());
    let id = client.call("connect", json!({})).await["client"].clone();
    for channel in ["seen:a", "seen:b", "chat:x"] {
        client.call("subscribe", json!({ "channel": channel })).await;
    }
    client.call("unsubscribe", json!({ "channel": "seen:a" })).await;
    // The backend has refused it twice.
    let events = backend.until(1).await;
    let of = |event: &Value| {
        let time = event["time_ms"].as_u64().unwrap();
        assert!(event["id"].as_str().is_some_and(|id| !id.is_empty()) && time > 1_700_000_000_000, "{event}");
        json!([event["type"], event["client"], event["channel"], event["code"], event["reason"]])
    };
    assert_eq!(of(&events[0]), json!(["unsubscribe", id, "seen:a", 0, "client unsubscribed"]));
    drop(client);
    let events = backend.until(3).await;
    assert_eq!(of(&events[1]), json!(["unsubscribe", id, "seen:b", 3000, "connection closed"]));
    assert_eq!(of(&events[2]), json!(["disconnect", id, null, 3000, "connection closed"]));
    // A connection that never connected and a refused subscription cause no event.
    let stranger = wireloom::connect(&served.url).await.unwrap();
    drop(stranger);
    let mut refused = served.connect().await;
    refused.reply("subscribe", json!({ "channel": "private:x" })).await;
    drop(refused);
    let events = backend.until(4).await;
    assert_eq!(events[3]["type"], "disconnect", "{events:?}");
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(backend.events().len(), 4);
}

#[tokio::test]
async fn many_ends_are_reported_together_and_before_the_hub_ends() {
    let backend = Backend::start(0).await;
    let served = Served::start(&backend.config(10), |hub| hub).await;
    let connector = Connector::new();
    let mut clients = Vec::new();
    for _ in 0..35 {
        let mut client = Client::new(connector.connect(&served.url).await.unwrap());
        clients.push((client.call("connect", json!({})).await["client"].clone(), client));
    }
    served.hub.shut_down(Duration::from_secs(20)).await;
    let events = backend.events();
    let mut reported: Vec<_> = events.iter().map(|event| event["client"].to_string()).collect();
    let mut expected: Vec<_> = clients.iter().map(|(id, _)| id.to_string()).collect();
    reported.sort();
    expected.sort();
    assert_eq!(reported, expected);
    assert!(events.iter().all(|event| event["code"] == 3001), "{events:?}");
    let requests = backend.requests.lock().unwrap();
    assert!(requests.iter().all(|events| events.len() <= 10) && requests.len() < 35, "{}", requests.len());
}

#[tokio::test]
async fn what_the_process_before_left_open_is_reported_without_a_client() {
    let backend = Backend::start(0).await;
    let directory = tempfile::tempdir().unwrap();
    let open = || DiskEngine::open(directory.path(), MemoryEngine::new(10)).unwrap();
    let now_ms =
        || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
    let before = open();
    before.events().unwrap().open("n", "k", br#"{"type":"disconnect","reason":"node lost"}"#).await.unwrap();
    drop(before);
    let begin_ms = now_ms();
    let _served = Served::start(&backend.config(10), |hub| hub.engine(open())).await;
    let lost = backend.until(1).await.remove(0);
    assert_eq!(lost["reason"], "node lost");
    // The time is that of the report: the time at which the process ended is unknown.
    let time_ms = lost["time_ms"].as_u64().unwrap();
    assert!((begin_ms..=now_ms()).contains(&time_ms), "{lost}");
}
