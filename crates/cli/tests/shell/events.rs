//! The events of the clients that the end of `serve` disconnects.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::time::{sleep, timeout};
use wireloom::{Response, WebSocket};

use crate::process::{DEADLINE, Server, folder};

/// Needs this long for each request.
const DELAY: Duration = Duration::from_millis(20);

/// A backend, with the events that it has received.
struct Backend {
    config: String,
    events: Arc<Mutex<Vec<Value>>>,
}

impl Backend {
    async fn start() -> Self {
        let server = wireloom::Server::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/events", server.local_addr().unwrap());
        let events = Arc::<Mutex<Vec<Value>>>::default();
        let received = events.clone();
        tokio::spawn(server.serve(move |mut request: wireloom::Request| {
            let received = received.clone();
            async move {
                let body: Value = serde_json::from_slice(&request.bytes().await.unwrap()).unwrap();
                sleep(DELAY).await;
                received.lock().unwrap().extend(body["events"].as_array().unwrap().iter().cloned());
                Response::new(200).with_body("application/json", "{}")
            }
        }));
        let config = format!(
            "client.anonymous = true\nchannel = {{ subscribe = \"anyone\", unsubscribe_events = true }}\nevents.url = \"{url}\"\n"
        );
        Self { config, events }
    }

    /// The configuration with another URL of the backend.
    fn config_with(&self, url: &str) -> String {
        format!("{}events.url = \"{url}\"\n", self.config.split("events.url").next().unwrap())
    }

    /// The code and the reason of each event, in any order.
    fn codes(&self) -> Vec<(u64, String)> {
        let events = self.events.lock().unwrap();
        let code =
            |event: &Value| (event["code"].as_u64().unwrap(), event["reason"].as_str().unwrap().into());
        events.iter().map(code).collect()
    }
}

async fn subscribed(server: &Server) -> WebSocket {
    let mut client = wireloom::connect(&server.url("/connection/websocket")).await.unwrap();
    for command in [r#"{"id":1,"connect":{}}"#, r#"{"id":2,"subscribe":{"channel":"a"}}"#] {
        client.send(command).await.unwrap();
        client.recv_owned().await.unwrap().unwrap();
    }
    client
}

/// With the engine in memory, what is not delivered is lost.
#[tokio::test]
async fn a_signal_reports_each_end() {
    const CLIENTS: usize = 10;
    let (backend, folder) = (Backend::start().await, folder("events"));
    let file = folder.join("hub.toml");
    std::fs::write(&file, &backend.config).unwrap();
    let mut server = Server::start(&["--hub", file.to_str().unwrap()]).await;
    for _ in 0..CLIENTS {
        let mut client = subscribed(&server).await;
        tokio::spawn(async move { while let Ok(Some(_)) = client.recv_owned().await {} });
    }
    server.signal("-TERM");
    assert_eq!(server.exit_code().await, Some(0));
    assert_eq!(backend.codes(), vec![(3001, "shutdown".to_owned()); 2 * CLIENTS]);
}

/// The same for clients that do not answer, which the second signal disconnects.
#[tokio::test]
async fn a_second_signal_reports_each_end() {
    let (backend, folder) = (Backend::start().await, folder("events-at-once"));
    let file = folder.join("hub.toml");
    std::fs::write(&file, &backend.config).unwrap();
    let mut server = Server::start(&["--hub", file.to_str().unwrap()]).await;
    let _silent = subscribed(&server).await;
    server.signal("-TERM");
    server.logged("shutting down").await;
    server.signal("-TERM");
    server.logged("disconnecting the remaining clients").await;
    assert_eq!(server.exit_code().await, Some(0));
    assert_eq!(backend.codes().len(), 2, "{:?}", backend.codes());
}

/// The same within a grace period that ends before them.
#[tokio::test]
async fn a_short_grace_reports_each_end() {
    let (backend, folder) = (Backend::start().await, folder("events-short"));
    let file = folder.join("hub.toml");
    std::fs::write(&file, &backend.config).unwrap();
    let mut server = Server::start(&["--hub", file.to_str().unwrap(), "--grace", "500ms"]).await;
    let _silent = subscribed(&server).await;
    server.signal("-TERM");
    assert_eq!(server.exit_code().await, Some(0));
    assert_eq!(backend.codes().len(), 2, "{:?}", backend.codes());
}

/// An end that could not be delivered is what the next process delivers, and not a lost node.
#[tokio::test]
async fn an_end_that_is_not_delivered_is_stored() {
    let (backend, folder) = (Backend::start().await, folder("events-stored"));
    let (file, data) = (folder.join("hub.toml"), folder.join("data"));
    // A backend that never answers.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/events", silent.local_addr().unwrap());
    std::fs::write(&file, backend.config_with(&url)).unwrap();
    let args = ["--hub", file.to_str().unwrap(), "--data", data.to_str().unwrap(), "--grace", "500ms"];
    let mut server = Server::start(&args).await;
    let mut client = subscribed(&server).await;
    tokio::spawn(async move { while let Ok(Some(_)) = client.recv_owned().await {} });
    server.signal("-TERM");
    assert_eq!(server.exit_code().await, Some(0));
    let warnings = server.log_to_end().await;
    let warnings = warnings.iter().filter(|line| line.contains("not all events were delivered")).count();
    assert_eq!(warnings, 1);
    std::fs::write(&file, &backend.config).unwrap();
    let _next = Server::start(&args).await;
    let delivered = async {
        while backend.codes().len() < 2 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(DEADLINE, delivered).await.expect("it is delivered");
    assert_eq!(backend.codes(), vec![(3001, "shutdown".to_owned()); 2]);
}

/// The next process delivers the stored events.
#[tokio::test]
async fn a_backend_that_is_down_does_not_hold_up_an_end_with_data() {
    let (backend, folder) = (Backend::start().await, folder("events-down"));
    let (file, data) = (folder.join("hub.toml"), folder.join("data"));
    // It is not there.
    let (_taken, address) = wireloom_testing::refusing();
    std::fs::write(&file, backend.config_with(&format!("http://{address}/events"))).unwrap();
    let args = ["--hub", file.to_str().unwrap(), "--data", data.to_str().unwrap(), "--grace", "1h"];
    let mut server = Server::start(&args).await;
    let mut client = subscribed(&server).await;
    tokio::spawn(async move { while let Ok(Some(_)) = client.recv_owned().await {} });
    server.signal("-TERM");
    assert_eq!(server.exit_code().await, Some(0));
}

#[tokio::test]
async fn a_backend_that_was_removed_does_not_hold_up_an_end() {
    let (backend, folder) = (Backend::start().await, folder("events-removed"));
    let file = folder.join("hub.toml");
    let (_taken, address) = wireloom_testing::refusing();
    std::fs::write(&file, backend.config_with(&format!("http://{address}/events"))).unwrap();
    let mut server = Server::start(&["--hub", file.to_str().unwrap(), "--grace", "1h"]).await;
    drop(subscribed(&server).await);
    std::fs::write(&file, "client.anonymous = true\n").unwrap();
    server.signal("-HUP");
    server.logged("was loaded again").await;
    server.signal("-TERM");
    assert_eq!(server.exit_code().await, Some(0));
}
