//! The presence of a node's clients in the engine.

use std::sync::{Arc, Weak};

use super::Node;
use crate::client::Client;
use crate::concurrently::concurrently;
use crate::engine::{EngineError, PRESENCE_REFRESH};

/// The maximum number of concurrent refreshes of presence.
const REFRESHES_MAX: usize = 64;

impl Node {
    /// Makes presence agree with a client's subscription. Several tasks may do so at the same time, without a lock: each looks again
    /// after its change, so that the one that makes the last change has seen the last state.
    pub(crate) async fn update_presence(&self, channel: &str, client: &Client) -> Result<(), EngineError> {
        let mut listed = client.presence_in(channel);
        loop {
            match &listed {
                Some(info) => self.engine.add_presence(channel, info).await?,
                None => self.engine.remove_presence(channel, &client.id.text()).await?,
            }
            let before = std::mem::replace(&mut listed, client.presence_in(channel));
            if listed == before {
                return Ok(());
            }
        }
    }
}

/// Refreshes the presence of this node's clients.
pub(super) async fn refresh_presence(node: Weak<Node>) {
    let mut ticks =
        tokio::time::interval_at(tokio::time::Instant::now() + PRESENCE_REFRESH, PRESENCE_REFRESH);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(node) = node.upgrade() else { return };
        let refreshes = node.all_clients().into_iter().flat_map(|client| {
            let refresh = |channel: Arc<str>| {
                let (node, client) = (node.clone(), client.clone());
                async move {
                    if let Err(error) = node.update_presence(&channel, &client).await {
                        node.note_engine_failure(&channel, &error, "presence was not refreshed");
                    }
                }
            };
            client.listed_in().into_iter().map(refresh).collect::<Vec<_>>()
        });
        concurrently(REFRESHES_MAX, refreshes).await;
    }
}
