//! Commands of the server API for all nodes: the history of a channel, so that a node that was cut off executes what it has missed.

use std::sync::{Arc, OnceLock, Weak};

use tracing::warn;

use super::{Control, Delivery, Engine, EngineError, Membership, PendingDelivery};
use crate::config::POSITION_TTL;
use crate::history::Retention;
use crate::protocol::Publication;

/// The channel of the commands. No namespace can be named like this, so that no client or configuration can name the channel.
pub(super) const COMMANDS: &str = "\0:commands";

/// The commands that a node may miss while it is cut off.
pub(super) const KEPT: Retention = Retention { size: 10_000, ttl: POSITION_TTL, position_ttl: POSITION_TTL };

/// The receiving end of an engine: the hub, for which the commands are taken out of their channel. Without a hub there are no clients, and
/// deliveries are dropped.
#[derive(Default)]
pub(super) struct Receiver(OnceLock<Weak<dyn Delivery>>);

impl Receiver {
    /// Returns false if there was a hub already.
    pub(super) fn set_hub(&self, hub: Weak<dyn Delivery>) -> bool {
        self.0.set(hub).is_ok()
    }

    fn hub(&self) -> Option<Arc<dyn Delivery>> {
        self.0.get()?.upgrade()
    }
}

impl Delivery for Receiver {
    fn deliver_publication(
        &self,
        channel: &str,
        epoch: &str,
        previous: u64,
        publication: &Arc<Publication>,
    ) -> PendingDelivery {
        let Some(hub) = self.hub() else { return PendingDelivery::default() };
        if channel != COMMANDS {
            return hub.deliver_publication(channel, epoch, previous, publication);
        }
        if let Ok(control) = serde_json::from_slice(&publication.data) {
            hub.deliver_control(&control);
        }
        PendingDelivery::default()
    }

    fn deliver_membership(&self, channel: &str, membership: &Membership) {
        if let Some(hub) = self.hub() {
            hub.deliver_membership(channel, membership);
        }
    }

    fn deliver_history_lost(&self, channel: &str) {
        let Some(hub) = self.hub() else { return };
        if channel == COMMANDS {
            warn!("commands of the server API may have been missed: their history is no longer complete");
        } else {
            hub.deliver_history_lost(channel);
        }
    }

    fn deliver_from_node(&self, message: &[u8]) {
        if let Some(hub) = self.hub() {
            hub.deliver_from_node(message);
        }
    }

    fn deliver_control(&self, control: &Control) {
        if let Some(hub) = self.hub() {
            hub.deliver_control(control);
        }
    }

    fn retention(&self, channel: &str) -> Option<Retention> {
        if channel == COMMANDS { Some(KEPT) } else { self.hub()?.retention(channel) }
    }

    fn catch_up_len_max(&self, channel: &str) -> usize {
        match self.hub() {
            // None is left out.
            _ if channel == COMMANDS => usize::MAX,
            Some(hub) => hub.catch_up_len_max(channel),
            None => 0,
        }
    }

    fn has_unpositioned(&self, channel: &str) -> bool {
        channel == COMMANDS || self.hub().is_some_and(|hub| hub.has_unpositioned(channel))
    }
}

/// Follows the commands from now on.
pub(super) async fn follow(engine: &dyn Engine) -> Result<(), EngineError> {
    engine.subscribe(COMMANDS).await?;
    engine.recover(COMMANDS, None, crate::config::RecoveryMode::Stream, KEPT, usize::MAX).await.map(drop)
}

/// Stores a command, which every node executes. After an error at least this node has executed it.
pub(super) async fn publish(
    engine: &dyn Engine,
    receiver: &Receiver,
    control: &Control,
) -> Result<(), EngineError> {
    let data = serde_json::to_vec(control).unwrap_or_default().into();
    let publication = Publication { data, ..Publication::default() };
    let published = engine.publish(COMMANDS, publication, Some(KEPT), "").await;
    if published.is_err() {
        receiver.deliver_control(control);
    }
    published.map(drop)
}
