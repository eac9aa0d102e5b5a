//! The connections of a server: how many there are, from where, and how all of them are told to end.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::watch;
use wireloom_ws::CloseCode;

use crate::websocket::{Shared, SlowTally};

/// A connection on which nothing moves for so long gives back what it can.
pub(super) const QUIET: Duration = Duration::from_secs(5);

/// Held by a connection of which it is not known yet what it speaks.
pub(super) type Handshaking = tokio::sync::OwnedSemaphorePermit;

/// How far the end of a server has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    Serving,
    Draining,
    Cut,
}

/// What happens in a server, in numbers.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) accepted: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) open: AtomicUsize,
    pub(super) tls_failed: AtomicU64,
    pub(super) http2: AtomicU64,
    pub(super) requests: AtomicU64,
    pub(super) opened: AtomicU64,
    pub(super) slow: Arc<SlowTally>,
    pub(super) panicked: AtomicU64,
}

#[derive(Debug)]
pub(super) struct Registry {
    pub(super) counters: Counters,
    phase: watch::Sender<Phase>,
    sockets: Mutex<Sockets>,
    addresses: Mutex<HashMap<IpAddr, usize>>,
}

#[derive(Default)]
struct Sockets {
    next: u64,
    open: HashMap<u64, Weak<Shared>>,
}

impl std::fmt::Debug for Sockets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sockets").field("open", &self.open.len()).finish()
    }
}

impl Registry {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            counters: Counters::default(),
            phase: watch::Sender::new(Phase::Serving),
            sockets: Mutex::default(),
            addresses: Mutex::default(),
        })
    }

    pub(super) fn watch(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    pub(super) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Goes on to a later phase; never back.
    pub(super) fn enter(&self, phase: Phase) {
        self.phase.send_if_modified(|current| {
            let later = phase > *current;
            *current = phase.max(*current);
            later
        });
        let open: Vec<_> = lock(&self.sockets).open.values().cloned().collect();
        for socket in open.iter().filter_map(Weak::upgrade) {
            socket.go_away(CloseCode::GOING_AWAY, "the server is shutting down");
        }
    }

    /// Adds an open WebSocket, for as long as the guard lives.
    pub(super) fn add(self: &Arc<Self>, socket: &Arc<Shared>) -> Registered {
        self.counters.opened.fetch_add(1, Ordering::Relaxed);
        socket.count_slow_in(self.counters.slow.clone());
        let id = {
            let mut sockets = lock(&self.sockets);
            sockets.next += 1;
            let id = sockets.next;
            sockets.open.insert(id, Arc::downgrade(socket));
            id
        };
        if self.phase() > Phase::Serving {
            socket.go_away(CloseCode::GOING_AWAY, "the server is shutting down");
        }
        Registered { registry: self.clone(), id }
    }

    /// What a panic says may be a secret: it is for whoever has set the hook.
    pub(super) fn count_panic(&self) {
        self.counters.panicked.fetch_add(1, Ordering::Relaxed);
        #[cfg(feature = "tracing")]
        tracing::error!("a handler panicked");
    }

    pub(super) fn open_len(&self) -> usize {
        lock(&self.sockets).open.len()
    }

    /// Counts a connection from an address; `None` when there are `max` already.
    pub(super) fn admit(self: &Arc<Self>, address: IpAddr, max: Option<usize>) -> Option<Admitted> {
        if let Some(max) = max {
            let mut addresses = lock(&self.addresses);
            let count = addresses.entry(address).or_default();
            if *count >= max {
                self.counters.refused.fetch_add(1, Ordering::Relaxed);
                return None;
            }
            *count += 1;
        }
        self.counters.open.fetch_add(1, Ordering::Relaxed);
        Some(Admitted { registry: self.clone(), address: max.map(|_| address) })
    }

    /// Lets connections that are quiet give back what they hold.
    pub(super) fn sweep(&self) {
        let open: Vec<_> = lock(&self.sockets).open.values().cloned().collect();
        open.iter().filter_map(Weak::upgrade).for_each(|socket| socket.release_if_quiet());
    }
}

pub(super) struct Registered {
    registry: Arc<Registry>,
    id: u64,
}

impl Drop for Registered {
    fn drop(&mut self) {
        // It goes with what serves the WebSocket.
        if std::thread::panicking() {
            self.registry.count_panic();
        }
        lock(&self.registry.sockets).open.remove(&self.id);
    }
}

pub(super) struct Admitted {
    registry: Arc<Registry>,
    address: Option<IpAddr>,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.registry.counters.open.fetch_sub(1, Ordering::Relaxed);
        let Some(address) = self.address else { return };
        let mut addresses = lock(&self.registry.addresses);
        if let Some(count) = addresses.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                addresses.remove(&address);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
