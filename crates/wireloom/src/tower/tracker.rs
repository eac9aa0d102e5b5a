//! WebSockets that another server hands over, so that a graceful shutdown reaches them.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::task::JoinHandle;

use crate::memory::{Memory, MemoryStats};
use crate::registry::{Phase, Registry, sweep};

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
///
/// Its WebSockets share a memory limit, as those of a [`Server`](crate::Server) do, with the same default
/// ([`ServerConfig::memory_max`](crate::ServerConfig::memory_max)): at the limit those that hold the most are closed with 1013. WebSockets
/// that no tracker knows are limited one by one ([`Limits`](crate::Limits)), not together.
#[derive(Clone, Debug)]
pub struct WebSocketTracker {
    registry: Arc<Registry>,
    /// The task that frees memory and schedules.
    task: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl Default for WebSocketTracker {
    fn default() -> Self {
        Self::new()
    }
}

impl WebSocketTracker {
    /// Creates an empty tracker.
    pub fn new() -> Self {
        Self { registry: Registry::new(), task: Arc::default() }
    }

    /// As [`new`](Self::new), with this limit on the memory of all its WebSockets together, in bytes.
    pub fn with_memory_max(max: usize) -> Self {
        let tracker = Self::new();
        tracker.registry.limit_memory(max);
        tracker
    }

    /// The memory of the tracked WebSockets.
    pub fn memory(&self) -> MemoryStats {
        self.registry.memory.stats()
    }

    /// The registry. The first call, in a runtime, spawns a task that frees memory until the tracker and its WebSockets are gone, and so does
    /// the first one after the end of that runtime.
    pub(super) fn started(&self) -> &Arc<Registry> {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            let memory = &self.registry.memory;
            let watching = memory.clone().watch();
            *task = Some(tokio::spawn(free_memory(Arc::downgrade(&self.registry), memory.clone(), watching)));
        }
        &self.registry
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
        self.registry.wait_closed().await;
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

async fn free_memory(registry: Weak<Registry>, memory: Arc<Memory>, watching: impl Future<Output = ()>) {
    let (mut watching, mut sweeping) = (pin!(watching), pin!(sweep(registry)));
    let mut scheduling = pin!(memory.scheduler().run());
    poll_fn(|cx| {
        let _ = watching.as_mut().poll(cx);
        let _ = scheduling.as_mut().poll(cx);
        sweeping.as_mut().poll(cx)
    })
    .await;
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::memory::{Category, Evict, Reservation, default_max};
    use crate::registry::SWEEP_INTERVAL;

    struct Holder(Mutex<Option<Reservation>>);

    impl Evict for Holder {
        fn evict(&self) -> bool {
            self.0.lock().unwrap().take().is_some()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn memory_is_limited_and_freed() {
        assert_eq!(WebSocketTracker::new().memory().max, default_max());
        let tracker = WebSocketTracker::with_memory_max(1 << 20);
        let registry = Arc::downgrade(tracker.started());
        let account = tracker.registry.memory.account();
        let mut held = account.reservation(Category::Assembly);
        assert!(held.try_set((1 << 20) + 1).is_err());
        held.try_set(1 << 20).unwrap();
        let holder = Arc::new(Holder(Mutex::new(Some(held))));
        let weak = Arc::downgrade(&holder);
        account.on_evict(weak);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(holder.0.lock().unwrap().is_none());
        assert_eq!((tracker.memory().evicted, tracker.memory().total), (1, 0));
        // The task ends with the last reference to the tracker.
        drop((tracker, account));
        assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 1);
        tokio::time::sleep(2 * SWEEP_INTERVAL).await;
        assert!(registry.upgrade().is_none());
        assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
    }

    #[test]
    fn another_runtime_takes_over() {
        let tracker = WebSocketTracker::new();
        for _ in 0..2 {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let id = runtime.block_on(async {
                tracker.started();
                tracker.started();
                tokio::task::yield_now().await;
                tokio::runtime::Handle::current().id()
            });
            assert_eq!(runtime.metrics().num_alive_tasks(), 1);
            assert_eq!(tracker.registry.memory.runtime().map(|runtime| runtime.id()), Some(id));
        }
    }
}
