//! Clean-up at the end of a connection, however it ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::client::{CleanedUp, Client};
use crate::node::Node;
use crate::protocol::Disconnect;

/// Removes a connection from the node, also when its task is dropped. Every open connection has one: how far it is, the client knows.
pub(super) struct CleanUp {
    pub(super) node: Arc<Node>,
    pub(super) client: Arc<Client>,
}

impl CleanUp {
    pub(super) fn new(node: &Arc<Node>, client: &Arc<Client>) -> Self {
        Self { node: node.clone(), client: client.clone() }
    }

    /// Ends the subscriptions, for this reason. Done before the closing handshake, which takes long with a client that
    /// does not read: others should see the client leave at once.
    pub(super) async fn leave(&self, reason: Disconnect) {
        if let Some(reason) = self.end(reason) {
            self.node.leave_all(&self.client, &reason).await;
        }
    }

    /// Removes the connection from the node.
    pub(super) async fn forget(&self) {
        if let Some(reason) = self.end(Disconnect::ConnectionClosed) {
            self.node.forget(&self.client, reason).await;
        }
        self.client.cleaned_up.store(CleanedUp::All as u8, Ordering::Relaxed);
    }

    /// Ends the connection, and counts that once. Returns the reason, the first one that was given; `None` if nothing is left to do.
    fn end(&self, reason: Disconnect) -> Option<Disconnect> {
        let Self { node, client } = self;
        let before = client.cleaned_up.fetch_max(CleanedUp::Counted as u8, Ordering::Relaxed);
        if before == CleanedUp::All as u8 {
            return None;
        }
        client.outbox.end(reason);
        let reason = client.outbox.ended()?;
        if before == CleanedUp::Nothing as u8 {
            node.metrics.ended.increment(reason.code().into());
            if reason == Disconnect::Slow {
                node.note_eviction(client);
            }
        }
        Some(reason)
    }
}

impl Drop for CleanUp {
    fn drop(&mut self) {
        self.client.outbox.close_to_batches();
        let reason = self.end(Disconnect::ConnectionClosed);
        let (Some(reason), Ok(runtime)) = (reason, tokio::runtime::Handle::try_current()) else { return };
        let (node, client) = (self.node.clone(), self.client.clone());
        runtime.spawn(async move { node.forget(&client, reason).await });
    }
}
