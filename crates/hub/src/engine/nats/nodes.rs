//! The nodes that are connected to one NATS: which are alive, and the commands that every one carries out.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::time::Instant;
use tokio_stream::StreamExt as _;
use tracing::warn;

use super::streams::Nats;
use crate::engine::Delivery;
use crate::shards::lock;

/// The subject of announcements.
const NODES: &str = "wl.node";
/// The subject of commands of the server API.
pub(super) const CONTROL: &str = "wl.control";

/// The interval of a node's announcements; one that missed three is gone.
const HEARTBEAT: Duration = Duration::from_secs(2);

/// The other nodes that are alive.
#[derive(Debug, Default)]
pub(super) struct Peers(Mutex<HashMap<String, Instant>>);

impl Peers {
    pub(super) fn names(&self) -> Vec<String> {
        self.expire();
        lock(&self.0).keys().cloned().collect()
    }

    fn insert(&self, name: &str) {
        lock(&self.0).insert(name.to_owned(), Instant::now());
    }

    fn expire(&self) {
        lock(&self.0).retain(|_, seen| seen.elapsed() < 3 * HEARTBEAT);
    }
}

/// Announces this node, and receives the announcements of the others and the commands of the server API.
pub(super) async fn follow(nats: Arc<Nats>, name: String, peers: Arc<Peers>, delivery: Weak<dyn Delivery>) {
    let (Ok(mut nodes), Ok(mut control)) =
        (nats.client.subscribe(format!("{NODES}.*")).await, nats.client.subscribe(CONTROL).await)
    else {
        warn!("the other nodes cannot be followed");
        return;
    };
    let mut heartbeat = tokio::time::interval(HEARTBEAT);
    loop {
        tokio::select! {
            _ = heartbeat.tick() => {
                if delivery.strong_count() == 0 {
                    return;
                }
                if nats.is_connected() {
                    let _ = nats.client.publish(format!("{NODES}.{name}"), Vec::new().into()).await;
                }
                peers.expire();
            }
            Some(message) = nodes.next() => {
                if let Some(name) = message.subject.strip_prefix(NODES).and_then(|name| name.strip_prefix('.')) {
                    peers.insert(name);
                }
            }
            Some(message) = control.next() => {
                if let (Some(delivery), Ok(control)) = (delivery.upgrade(), serde_json::from_slice(&message.payload)) {
                    delivery.deliver_control(&control);
                }
            }
            else => return,
        }
    }
}
