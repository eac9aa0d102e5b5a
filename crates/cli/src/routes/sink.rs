//! Counts of the messages that `/sink` has received.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of what `/sink` has received.
#[derive(Default)]
pub(super) struct SinkCounters {
    messages: AtomicU64,
    bytes: AtomicU64,
}

impl SinkCounters {
    pub(super) fn add(&self, len: usize) {
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(len as u64, Ordering::Relaxed);
    }

    pub(super) fn messages(&self) -> u64 {
        self.messages.load(Ordering::Relaxed)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}
