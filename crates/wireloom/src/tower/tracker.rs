//! WebSockets that another server hands over, so that a graceful shutdown reaches them.

use std::sync::Arc;

use crate::registry::{Phase, Registry};

/// Tracks the WebSockets on a server of another crate, whose own graceful shutdown does not know of them. Wireloom's
/// [`Server`](crate::Server) tracks its own.
///
/// Add it to the extensions of requests, with `axum::Extension` or another layer:
///
/// ```no_run
/// # #[cfg(feature = "axum")] mod example {
/// # use axum::{Extension, Router, routing::any};
/// use wireloom::axum::WebSocketUpgrade;
/// use wireloom::tower::WebSocketTracker;
///
/// # async fn serve(listener: tokio::net::TcpListener) -> std::io::Result<()> {
/// let sockets = WebSocketTracker::new();
/// let router = Router::new()
///     .route("/", any(|upgrade: WebSocketUpgrade| async { upgrade.on_open(async |_socket| {}) }))
///     .layer(Extension(sockets.clone()));
/// let ending = sockets.clone();
/// let signal = async move {
///     // ... wait for the signal to end, then:
///     ending.shut_down();
/// };
/// axum::serve(listener, router).with_graceful_shutdown(signal).await?;
/// sockets.closed().await;
/// # Ok(())
/// # }
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct WebSocketTracker {
    pub(super) registry: Arc<Registry>,
}

impl Default for WebSocketTracker {
    fn default() -> Self {
        Self::new()
    }
}

impl WebSocketTracker {
    /// Creates an empty tracker.
    pub fn new() -> Self {
        let registry = Registry::new();
        // Nothing would close connections to free memory, as `Server` does: those that wait for it would wait forever.
        registry.memory.set_max(usize::MAX);
        Self { registry }
    }

    /// Closes every tracked WebSocket, and those that follow, with 1001.
    pub fn shut_down(&self) {
        self.registry.enter(Phase::Draining);
    }

    /// Waits until no WebSocket is left.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn closed(&self) {
        self.registry.wait_below(1).await;
    }

    /// The number of tracked WebSockets and upgrades in progress.
    pub fn len(&self) -> usize {
        self.registry.counters.open.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Whether nothing is tracked.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;
    use crate::memory::{Category, default_max};

    #[test]
    fn memory_is_not_limited() {
        let tracker = WebSocketTracker::new();
        let account = tracker.registry.memory.account();
        let mut held = account.reservation(Category::Assembly);
        assert!(held.try_set(default_max() + 1).is_ok());
        assert!(account.poll_read_allowed(&mut Context::from_waker(Waker::noop())).is_ready());
    }
}
