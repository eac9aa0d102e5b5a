//! Clean-up at the end of a connection, however it ends.

use std::sync::Arc;

use crate::client::Client;
use crate::node::Node;
use crate::protocol::Disconnect;

/// Removes a connection from the node, also when its task is dropped.
pub(super) struct CleanUp {
    pub(super) node: Arc<Node>,
    pub(super) client: Arc<Client>,
    progress: Progress,
}

/// The progress of the clean-up.
enum Progress {
    /// The connection is open.
    Open,
    /// Its end has been counted, with this reason.
    Counted(Box<Disconnect>),
    /// The node has removed the connection.
    Forgotten,
}

impl CleanUp {
    pub(super) fn new(node: &Arc<Node>, client: &Arc<Client>) -> Self {
        Self { node: node.clone(), client: client.clone(), progress: Progress::Open }
    }

    /// Ends the subscriptions, for this reason. Done before the closing handshake, which takes long with a client that
    /// does not read: others should see the client leave at once.
    pub(super) async fn leave(&mut self, reason: Disconnect) {
        if let Some(reason) = self.counted(reason) {
            self.node.leave_all(&self.client, &reason).await;
        }
    }

    /// Removes the connection from the node.
    pub(super) async fn forget(&mut self) {
        if let Some(reason) = self.counted(Disconnect::ConnectionClosed) {
            self.node.forget(&self.client, reason).await;
        }
        self.progress = Progress::Forgotten;
    }

    /// Counts the end once and returns its reason, the first one that was given; `None` if nothing is left to do.
    fn counted(&mut self, reason: Disconnect) -> Option<Disconnect> {
        match &self.progress {
            Progress::Open => {
                self.node.metrics.ended.increment(reason.code().into());
                if reason == Disconnect::Slow {
                    self.node.note_eviction(&self.client);
                }
                self.progress = Progress::Counted(Box::new(reason.clone()));
                Some(reason)
            }
            Progress::Counted(first) => Some((**first).clone()),
            Progress::Forgotten => None,
        }
    }
}

impl Drop for CleanUp {
    fn drop(&mut self) {
        self.client.outbox.close_to_batches();
        let reason = self.counted(Disconnect::ConnectionClosed);
        let (Some(reason), Ok(runtime)) = (reason, tokio::runtime::Handle::try_current()) else { return };
        let (node, client) = (self.node.clone(), self.client.clone());
        runtime.spawn(async move { node.forget(&client, reason).await });
    }
}
