//! Whether a file can be written, or a server be reached, for those who ask.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::EngineHealth;
use crate::shards::lock;

/// The state of a file, or of a connection.
#[derive(Debug, Default)]
pub(super) struct Status {
    failure: Mutex<Option<String>>,
    failures: AtomicU64,
}

impl Status {
    pub(super) fn health(&self) -> EngineHealth {
        EngineHealth { failure: lock(&self.failure).clone(), failures: self.failures.load(Ordering::Relaxed) }
    }

    /// Returns whether this is the first failure.
    pub(super) fn failed(&self, reason: &str) -> bool {
        self.failures.fetch_add(1, Ordering::Relaxed);
        lock(&self.failure).replace(reason.to_owned()).is_none()
    }

    /// Returns whether it had failed before.
    pub(super) fn succeeded(&self) -> bool {
        lock(&self.failure).take().is_some()
    }
}
