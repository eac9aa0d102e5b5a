//! The live state of `wireloom serve`: its figures, its slowest clients and its log, only for those that may see them.

#![allow(clippy::unwrap_used)]
#![cfg(unix)]

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use wireloom::client::Request;
use wireloom::{Connector, Error, WebSocket};

/// Longer than any of this takes.
const DEADLINE: Duration = Duration::from_secs(60);

struct Serving {
    child: Child,
    address: String,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn serve(args: &[&str]) -> Serving {
    let mut child = Command::new(env!("CARGO_BIN_EXE_wireloom"))
        .args(["serve", "--port", "0"])
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim_end().split_once("://").unwrap().1.trim_end_matches('/').to_owned();
    Serving { child, address }
}

impl Serving {
    async fn is_allowed(&self, connector: Connector, fields: &[(&str, &str)]) -> bool {
        let request = Request::get(format!("http://{}/live", self.address));
        let request = fields.iter().fold(request, |request, (name, value)| request.header(*name, value));
        let answer = connector.request(request).await.unwrap().body.bytes().await.unwrap();
        serde_json::from_slice::<Value>(&answer).unwrap()["allowed"].as_bool().unwrap()
    }

    async fn watch(&self, connector: Connector) -> Result<WebSocket, Error> {
        connector.connect(&format!("ws://{}/live", self.address)).await
    }
}

async fn state(socket: &mut WebSocket) -> Value {
    serde_json::from_str(socket.recv().await.unwrap().unwrap().as_text().unwrap()).unwrap()
}

/// States until one is as described.
async fn state_with(socket: &mut WebSocket, is_so: impl Fn(&Value) -> bool) -> Value {
    let begin = Instant::now();
    loop {
        let state = state(socket).await;
        if is_so(&state) {
            return state;
        }
        assert!(begin.elapsed() < DEADLINE, "{state}");
    }
}

#[tokio::test]
async fn has_the_metrics_the_slowest_clients_and_the_log() {
    let serving = serve(&["--slow-timeout", "2s", "--max-memory", "48M"]);
    let mut live = serving.watch(Connector::new()).await.unwrap();
    let first = state(&mut live).await;
    let metrics = first["metrics"].as_str().unwrap();
    assert!(metrics.contains("\nwireloom_memory_max_bytes 50331648\n"), "{metrics}");
    assert!(metrics.contains("\nwireloom_memory_bytes{use=\"send_queues\"} "), "{metrics}");
    assert_eq!(first["slowest"], Value::Array(Vec::new()));

    // It does not read.
    let source = format!("ws://{}/source?size=1000000", serving.address);
    let _slow = wireloom::connect(&source).await.unwrap();
    let state = state_with(&mut live, |state| !state["slowest"].as_array().unwrap().is_empty()).await;
    let slowest = &state["slowest"][0];
    assert_eq!((&slowest["route"], &slowest["protocol"]), (&"/source".into(), &"HTTP/1.1".into()));
    assert!(
        slowest["queued"].as_u64().unwrap() > 0
            && slowest["client"].as_str().unwrap().starts_with("127.0.0.1:")
    );
    // Until it is evicted, which is logged; each line is sent once.
    let evicted = |state: &Value| state["log"].to_string().contains("client evicted");
    state_with(&mut live, evicted).await;
    let after = state_with(&mut live, |state| state["slowest"].as_array().unwrap().is_empty()).await;
    assert!(!evicted(&after), "{after}");
}

#[tokio::test]
async fn is_for_local_clients_unless_enabled() {
    let serving = serve(&["--allow-origin", "*"]);
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

    let serving = serve(&["--live-stats", "none"]);
    assert!(!serving.is_allowed(Connector::new(), &[]).await);
    assert!(matches!(serving.watch(Connector::new()).await, Err(Error::Refused(_))));

    // Figures with an address of their own are not shown at the others.
    assert!(!serve(&["--admin", "127.0.0.1:0"]).is_allowed(Connector::new(), &[]).await);

    let serving = serve(&["--live-stats", "all"]);
    assert!(
        serving.is_allowed(Connector::new().host("example.com"), &[("X-Forwarded-For", "192.0.2.1")]).await
    );
    state(&mut serving.watch(Connector::new()).await.unwrap()).await;
}
