//! The end of a connection, whatever ends it.

use std::sync::Arc;

use crate::client::Client;
use crate::hub::Node;
use crate::protocol::Disconnect;

/// Undoes what a connection did, also when its task is dropped.
pub(super) struct Leaving {
    node: Arc<Node>,
    client: Option<Arc<Client>>,
    pub(super) reason: Disconnect,
}

impl Leaving {
    pub(super) fn new(node: &Arc<Node>, client: &Arc<Client>) -> Self {
        Self { node: node.clone(), client: Some(client.clone()), reason: Disconnect::ConnectionClosed }
    }

    pub(super) async fn forget(mut self) {
        if let Some(client) = &self.client {
            self.node.forget(client, self.reason.clone()).await;
        }
        self.client = None;
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        let (Some(client), Ok(runtime)) = (self.client.take(), tokio::runtime::Handle::try_current()) else {
            return;
        };
        let (node, reason) = (self.node.clone(), self.reason.clone());
        runtime.spawn(async move { node.forget(&client, reason).await });
    }
}
