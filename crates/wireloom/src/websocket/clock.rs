//! The time that the protocol core is given. One epoch for the process, so that no WebSocket has to keep its own.

use std::sync::LazyLock;
use std::time::Duration;

use tokio::time::Instant;

/// The epoch is this long before its first use, because the clock of a runtime that was paused earlier is behind.
const EPOCH_AGE: Duration = Duration::from_secs(86_400);

static EPOCH: LazyLock<Instant> = LazyLock::new(|| {
    let now = std::time::Instant::now();
    Instant::from_std(now.checked_sub(EPOCH_AGE).unwrap_or(now))
});

/// The time since the epoch.
pub(super) fn now() -> Duration {
    EPOCH.elapsed()
}

/// The instant at this time after the epoch; `None` if the clock cannot represent it.
pub(super) fn instant_at(time: Duration) -> Option<Instant> {
    EPOCH.checked_add(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn follows_the_clock_of_the_runtime() {
        let before = now();
        assert!(before >= EPOCH_AGE / 2, "{before:?}");
        tokio::time::advance(Duration::from_secs(7)).await;
        assert_eq!(now() - before, Duration::from_secs(7));
        assert_eq!(instant_at(now()), Some(Instant::now()));
        assert_eq!(instant_at(Duration::MAX), None);
    }
}
