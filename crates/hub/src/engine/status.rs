//! Whether a file can be written, or a server be reached, for those who ask.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

#[cfg(any(feature = "nats", feature = "redis"))]
use crate::engine::EngineError;
use crate::engine::EngineHealth;
use crate::shards::lock;

/// How long a failure counts if there is no further attempt.
#[cfg(any(feature = "nats", feature = "redis"))]
const RECENT_MAX: std::time::Duration = std::time::Duration::from_secs(30);

/// The state of a file, of a connection, or of one kind of operation.
#[derive(Debug, Default)]
pub(super) struct Status {
    failure: Mutex<Option<(String, Instant)>>,
    failures: AtomicU64,
}

impl Status {
    pub(super) fn health(&self) -> EngineHealth {
        let failure = lock(&self.failure).as_ref().map(|(reason, _)| reason.clone());
        EngineHealth { failure, failures: self.failures.load(Ordering::Relaxed), dropped: 0 }
    }

    /// The same for operations that clients cause: there may be no client any more that would try again.
    #[cfg(any(feature = "nats", feature = "redis"))]
    pub(super) fn recent_health(&self) -> EngineHealth {
        let is_recent = lock(&self.failure).as_ref().is_some_and(|(_, at)| at.elapsed() < RECENT_MAX);
        let mut health = self.health();
        health.failure = health.failure.filter(|_| is_recent);
        health
    }

    /// Notes the result of an operation, unless it was refused for a reason that lies in it: clients could make the engine look
    /// unhealthy.
    #[cfg(any(feature = "nats", feature = "redis"))]
    pub(super) fn checked<T>(&self, result: Result<T, EngineError>) -> Result<T, EngineError> {
        match &result {
            Ok(_) => drop(self.succeeded()),
            Err(EngineError::ChannelLimit | EngineError::TooLong | EngineError::Refused(_)) => {}
            Err(error) => drop(self.failed(&error.to_string())),
        }
        result
    }

    /// Returns whether this is the first failure.
    pub(super) fn failed(&self, reason: &str) -> bool {
        self.failures.fetch_add(1, Ordering::Relaxed);
        lock(&self.failure).replace((reason.to_owned(), Instant::now())).is_none()
    }

    /// Returns whether it had failed before.
    pub(super) fn succeeded(&self) -> bool {
        lock(&self.failure).take().is_some()
    }
}
