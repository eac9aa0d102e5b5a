//! The figures of a node, and the warnings that are counted with them.

use std::net::IpAddr;

use tracing::warn;

use super::Node;
use crate::client::Client;
use crate::engine::EngineError;
use crate::metrics::HubStats;
use crate::outbox::Pushed;
use crate::shards::lock;

impl Node {
    pub(crate) fn stats(&self) -> HubStats {
        let metrics = &self.metrics;
        HubStats {
            clients: lock(&self.clients).len(),
            channels: self.channels.len(),
            connected: metrics.connected.get(),
            publications: metrics.publications.get(),
            dropped: metrics.dropped.get(),
            evicted_slow: metrics.evicted_slow.get(),
            recovered: metrics.recovered.get(),
            unrecovered: metrics.unrecovered.get(),
            refused: metrics.refused.get(),
            ended: metrics.ended.get(),
            wrong_keys: metrics.wrong_keys.get(),
            engine_failures: metrics.engine_failures.get(),
        }
    }

    /// Counts a request with a wrong API key. The log has one a second at most.
    pub(crate) fn note_wrong_key(&self, peer: IpAddr, whose: &str) {
        self.metrics.wrong_keys.increment();
        if self.key_warnings.may_warn(self.clock.now()) {
            warn!(%peer, "a wrong key was sent to {whose}");
        }
    }

    /// Counts an operation on a channel that failed in the engine. At most one failure per second is logged.
    pub(crate) fn note_engine_failure(&self, channel: &str, error: &EngineError, what: &str) {
        self.metrics.engine_failures.increment();
        if self.engine_warnings.may_warn(self.clock.now()) {
            warn!(channel, %error, "{what}");
        }
    }

    /// Counts a client that was disconnected because it is slow. The log has one a second at most.
    pub(crate) fn note_eviction(&self, client: &Client) {
        self.metrics.evicted_slow.increment();
        if self.slow_warnings.may_warn(self.clock.now()) {
            warn!(
                reason = "slow",
                client = &*client.id.text(),
                user = client.user(),
                "client evicted: it reads too slowly"
            );
        }
    }

    /// Counts a publication that a slow client does not receive. Called while its channel is locked; a client that is evicted is logged
    /// when its connection ends.
    pub(crate) fn note_pushed(&self, pushed: Pushed) {
        if pushed == Pushed::Dropped {
            self.metrics.dropped.increment();
        }
    }
}
