//! Whether a file can be written, for those who ask.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::EngineHealth;
use crate::shards::lock;

/// The state of a file.
#[derive(Debug, Default)]
pub(super) struct Status {
    failure: Mutex<Option<String>>,
    failures: AtomicU64,
}

impl Status {
    pub(super) fn health(&self) -> EngineHealth {
        EngineHealth { failure: lock(&self.failure).clone(), failures: self.failures.load(Ordering::Relaxed) }
    }

    /// Returns whether the file could be written before.
    pub(super) fn failed(&self, reason: &str) -> bool {
        self.failures.fetch_add(1, Ordering::Relaxed);
        lock(&self.failure).replace(reason.to_owned()).is_none()
    }

    /// Returns whether the file could not be written before.
    pub(super) fn succeeded(&self) -> bool {
        lock(&self.failure).take().is_some()
    }
}
