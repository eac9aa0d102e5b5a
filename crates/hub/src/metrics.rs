//! Counters of a hub.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of a hub since it started.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) connected: Counter,
    pub(crate) publications: Counter,
    pub(crate) dropped: Counter,
    pub(crate) evicted_slow: Counter,
    pub(crate) recovered: Counter,
    pub(crate) unrecovered: Counter,
    pub(crate) refused: Counter,
    pub(crate) bad_requests: Counter,
    pub(crate) rate_limited: Counter,
}

/// A counter that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn increment(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a hub has done and holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HubStats {
    /// Connections now.
    pub clients: usize,
    /// Channels with subscribers now.
    pub channels: usize,
    /// Connections so far.
    pub connected: u64,
    /// Publications so far, on this node.
    pub publications: u64,
    /// Publications that were dropped for slow clients.
    pub dropped: u64,
    /// Clients that were disconnected because they were slow.
    pub evicted_slow: u64,
    /// Clients that returned and recovered everything.
    pub recovered: u64,
    /// Clients that returned and could not recover.
    pub unrecovered: u64,
    /// Commands that were refused.
    pub refused: u64,
    /// Connections that were ended because they broke the protocol.
    pub bad_requests: u64,
    /// Connections that were ended because they sent too many commands.
    pub rate_limited: u64,
}
