//! The nodes that are connected to one NATS: which of them are alive, and their messages to each other.

use std::sync::{Arc, Weak};

use async_nats::Subscriber;
use tokio_stream::StreamExt as _;

use super::streams::Nats;
use super::unavailable;
use crate::engine::peers::{HEARTBEAT, Peers};
use crate::engine::{Delivery, EngineError};

/// Subscriptions to the announcements of other nodes, and to their messages to this node.
pub(super) struct Announcements {
    nodes: Subscriber,
    inbox: Subscriber,
}

impl Announcements {
    /// Subscribes. Returns after the server has processed the subscriptions: every message that is sent later arrives here.
    pub(super) async fn subscribe(nats: &Nats, name: &str) -> Result<Self, EngineError> {
        let nodes = nats.client.subscribe(nats.names.node("*")).await.map_err(unavailable)?;
        let inbox = nats.client.subscribe(nats.names.inbox(name)).await.map_err(unavailable)?;
        nats.confirm_subscriptions().await?;
        Ok(Self { nodes, inbox })
    }

    /// Announces this node, and follows the others until the hub is dropped.
    pub(super) async fn follow(
        mut self,
        nats: Arc<Nats>,
        name: String,
        peers: Arc<Peers>,
        delivery: Weak<dyn Delivery>,
    ) {
        let mut heartbeat = tokio::time::interval(HEARTBEAT);
        let (nodes, own) = (nats.names.node(""), nats.names.node(&name));
        loop {
            tokio::select! {
                _ = heartbeat.tick() => {
                    if delivery.strong_count() == 0 {
                        return;
                    }
                    if nats.is_connected() {
                        let _ = nats.client.publish(own.clone(), Vec::new().into()).await;
                    }
                    peers.tick();
                }
                Some(message) = self.nodes.next() => {
                    if let Some(name) = message.subject.strip_prefix(&*nodes) {
                        peers.insert(name);
                    }
                }
                Some(message) = self.inbox.next() => {
                    if let Some(delivery) = delivery.upgrade() {
                        delivery.deliver_from_node(&message.payload);
                    }
                }
                else => return,
            }
        }
    }
}
