//! The other nodes that are alive, by their announcements.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::shards::lock;

/// The interval of a node's announcements of itself. A node that misses three is considered lost.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(2);

/// Nodes that have announced themselves. The owner calls [`tick`](Self::tick) at each heartbeat of its own.
#[derive(Debug)]
pub(super) struct Peers(Mutex<Silences>);

#[derive(Debug)]
struct Silences {
    /// For how long each node has been silent, at the last tick.
    nodes: HashMap<String, Duration>,
    ticked_at: Instant,
}

impl Default for Peers {
    fn default() -> Self {
        Self(Mutex::new(Silences { nodes: HashMap::new(), ticked_at: Instant::now() }))
    }
}

impl Peers {
    pub(super) fn names(&self) -> Vec<String> {
        lock(&self.0).nodes.keys().cloned().collect()
    }

    /// A node has announced itself.
    pub(super) fn insert(&self, name: &str) {
        lock(&self.0).nodes.insert(name.to_owned(), Duration::ZERO);
    }

    /// Removes the nodes that are silent for too long. Of a pause of this node one heartbeat counts: their announcements wait to be read.
    pub(super) fn tick(&self) {
        let now = Instant::now();
        let Silences { nodes, ticked_at } = &mut *lock(&self.0);
        let passed = now.saturating_duration_since(std::mem::replace(ticked_at, now)).min(HEARTBEAT);
        nodes.retain(|_, silence| {
            *silence += passed;
            *silence <= 3 * HEARTBEAT
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_pause_of_this_node_is_no_silence_of_others() {
        let peers = Peers::default();
        peers.insert("a");
        tokio::time::advance(20 * HEARTBEAT).await;
        assert_eq!(peers.names(), ["a"]);
        peers.tick();
        assert_eq!(peers.names(), ["a"]);
        for _ in 0..3 {
            assert_eq!(peers.names(), ["a"]);
            tokio::time::advance(HEARTBEAT).await;
            peers.tick();
        }
        assert!(peers.names().is_empty());
    }
}
