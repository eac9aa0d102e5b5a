//! The end of a connection, whatever ends it.

use std::sync::Arc;

use crate::client::Client;
use crate::node::Node;
use crate::protocol::Disconnect;

/// Undoes what a connection did, also when its task is dropped.
pub(super) struct Leaving {
    node: Arc<Node>,
    client: Option<Arc<Client>>,
    reason: Disconnect,
    is_counted: bool,
}

impl Leaving {
    pub(super) fn new(node: &Arc<Node>, client: &Arc<Client>) -> Self {
        let reason = Disconnect::ConnectionClosed;
        Self { node: node.clone(), client: Some(client.clone()), reason, is_counted: false }
    }

    /// Ends the subscriptions, for this reason. The closing handshake with a client that does not read takes long: others need not
    /// wait for it to see the client leave.
    pub(super) async fn leave(&mut self, reason: Disconnect) {
        self.reason = reason;
        self.count();
        if let Some(client) = &self.client {
            self.node.leave_all(client, &self.reason).await;
        }
    }

    pub(super) async fn forget(mut self) {
        self.count();
        if let Some(client) = &self.client {
            self.node.forget(client, self.reason.clone()).await;
        }
        self.client = None;
    }

    fn count(&mut self) {
        if !std::mem::replace(&mut self.is_counted, true) {
            self.node.metrics.ended.increment(self.reason.code().into());
        }
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if self.client.is_some() {
            self.count();
        }
        let (Some(client), Ok(runtime)) = (self.client.take(), tokio::runtime::Handle::try_current()) else {
            return;
        };
        let (node, reason) = (self.node.clone(), self.reason.clone());
        runtime.spawn(async move { node.forget(&client, reason).await });
    }
}
