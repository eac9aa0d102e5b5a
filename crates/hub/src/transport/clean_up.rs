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
        let Some(reason) = self.end(Disconnect::ConnectionClosed) else { return };
        let forgetting = Forgetting { node: self.node.clone(), client: self.client.clone(), reason };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(forgetting.run());
        }
    }
}

/// Removes a connection whose task was dropped, also if this is dropped, because its runtime ends.
struct Forgetting {
    node: Arc<Node>,
    client: Arc<Client>,
    reason: Disconnect,
}

impl Forgetting {
    async fn run(self) {
        self.node.forget(&self.client, self.reason.clone()).await;
    }
}

impl Drop for Forgetting {
    fn drop(&mut self) {
        self.node.remove(&self.client, &self.reason);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::runtime::Builder;

    use super::*;
    use crate::client::{Identity, Transport};
    use crate::config::HubConfig;
    use crate::hub::Hub;
    use crate::protocol::Encoding;
    use crate::subscribe::{Request, subscribe};

    #[test]
    fn connections_end_with_their_runtime() {
        let config = HubConfig::from_toml("channel.presence = true\n").unwrap();
        let hub = Hub::builder().config(config).build().unwrap();
        let node = &hub.0;
        let runtime = || Builder::new_current_thread().enable_time().build().unwrap();
        let first = runtime();
        first.block_on(async {
            let client = node.accept(Transport::WebSocket(Encoding::Json), None, None).unwrap();
            assert!(node.identify(&client, Identity { user: "7".into(), ..Identity::default() }));
            let subscribed = subscribe(node, &client, Request::from_server("a")).await.unwrap();
            assert!(subscribed.start(Vec::new()).await);
            let clean_up = CleanUp::new(node, &client);
            tokio::spawn(async move {
                let _clean_up = clean_up;
                std::future::pending::<()>().await;
            });
        });
        assert_eq!((node.clients_len(), node.channels.len()), (1, 1));
        drop(first);
        assert_eq!((node.clients_len(), node.channels.len()), (0, 0));
        // The next runtime does the slow part.
        runtime().block_on(async {
            node.start();
            let left = async {
                while !node.engine().presence("a", usize::MAX).await.unwrap().unwrap().is_empty() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(60), left).await.unwrap();
        });
    }
}
