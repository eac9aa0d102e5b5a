//! The limit on the time in which a client accepts nothing.

use std::time::Duration;

/// A client that accepts less than this number of bytes in the time of the limit accepts nothing. The same as for the peer of a
/// WebSocket in `wireloom`.
const PROGRESS_LEN_MIN: u64 = 1 << 10;

/// The limit is waited for in parts, of which a pause of this process takes one: the client has the others to accept bytes.
const PARTS: u32 = 2;

/// Waits for a write while the client accepts bytes, which `accepted` counts. `None` if it has accepted nothing for `timeout`.
pub(super) async fn while_accepted<F: Future + Unpin>(
    mut writing: F,
    timeout: Duration,
    accepted: impl Fn() -> u64,
) -> Option<F::Output> {
    let (mut before, mut parts) = (accepted(), 0);
    while parts < PARTS {
        if let Ok(written) = tokio::time::timeout(timeout / PARTS, &mut writing).await {
            return Some(written);
        }
        let now = accepted();
        if now.saturating_sub(before) < PROGRESS_LEN_MIN {
            parts += 1;
        } else {
            (before, parts) = (now, 0);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::sync::atomic::{AtomicU64, Ordering};

    use tokio::time::{Instant, advance, sleep};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);

    /// The time until a client is slow that accepts this number of bytes per second, of 100,000.
    async fn slow_after(per_s: u64) -> Option<Duration> {
        let begun = Instant::now();
        let accepted = || begun.elapsed().as_secs() * per_s;
        let writing = Box::pin(async {
            match 100_000_u64.checked_div(per_s) {
                Some(seconds) => sleep(Duration::from_secs(seconds)).await,
                None => pending().await,
            }
        });
        let written = while_accepted(writing, TIMEOUT, accepted).await;
        written.is_none().then(|| begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_is_slow_that_accepts_nothing() {
        assert_eq!(while_accepted(ready(7), TIMEOUT, || 0).await, Some(7));
        assert_eq!([slow_after(0).await, slow_after(34).await], [Some(TIMEOUT); 2]);
        // 1,024 bytes in 30 s.
        assert_eq!([slow_after(35).await, slow_after(1_000).await], [None; 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_of_this_process_makes_no_client_slow() {
        let accepted = AtomicU64::new(0);
        let client = async {
            for _ in 0..10 {
                // Nothing runs for a time, and the client has accepted everything since, which is seen a moment later.
                advance(10 * TIMEOUT).await;
                sleep(Duration::from_millis(100)).await;
                accepted.fetch_add(10_000, Ordering::Relaxed);
                sleep(TIMEOUT / 10).await;
            }
        };
        let writing = while_accepted(Box::pin(client), TIMEOUT, || accepted.load(Ordering::Relaxed));
        assert_eq!(writing.await, Some(()));
    }
}
