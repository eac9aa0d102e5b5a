//! Counters of the messages that the publishers of a room have sent.

use std::sync::atomic::{AtomicU64, AtomicUsize};

/// The messages that publishers have sent.
pub(super) struct Room {
    pub(super) published: Vec<AtomicU64>,
    pub(super) publishing: AtomicUsize,
    /// Subscribers that have received everything. Their connections are closed by this end and still count as connections.
    pub(super) finished: AtomicUsize,
}

impl Room {
    pub(super) fn new(publishers: usize) -> Self {
        Self {
            published: (0..publishers).map(|_| AtomicU64::new(0)).collect(),
            publishing: AtomicUsize::new(publishers),
            finished: AtomicUsize::new(0),
        }
    }
}
