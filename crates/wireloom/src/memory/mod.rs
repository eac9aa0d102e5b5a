//! The memory that the peers of a server make it hold, counted in one place: one [`Memory`] for a server, one [`Account`] for
//! each connection, one [`Reservation`] for each buffer that a peer can grow.
//!
//! ```text
//! Memory (max) <-- Account of a connection <-- Reservation: an assembly
//!     |                                   '-- Reservation: a send queue
//!     '-- watch(): at the limit the connections that hold the most are evicted
//!
//! 0 ......................... 3/4 ................ max
//!   normal                        near: connections that hold memory stop reading, no window is granted
//!                                 for a second: the largest holder is evicted
//!                                                  full: nothing new is reserved, the largest holders are evicted
//! ```
//!
//! Amounts are rounded up to [`GRANULE`](reservation::GRANULE), and up to [`FREE_LEN`] bytes of a reservation are not counted, so that a connection
//! with small messages does no atomic operation for them.

mod account;
mod eviction;
mod group;
mod machine;
mod reservation;
mod stats;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{RwLock, Weak};
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio::sync::Notify;

use account::Inner;
pub(crate) use account::{Account, CONNECTION_KIB, WEBSOCKET_KIB};
#[cfg(feature = "tls")]
pub(crate) use account::{TLS_HANDSHAKE_KIB, TLS_KIB};
pub(crate) use eviction::Evict;
pub(crate) use group::Group;
pub(crate) use machine::default_max;
pub(crate) use reservation::{FREE_LEN, Reservation};
pub use stats::MemoryStats;
pub(crate) use stats::SlowPeers;

use crate::guard::{Deferred, Guardable, Guarded, WakerSlot};
use crate::scheduler::Scheduler;
use crate::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The use of reserved memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Category {
    /// The memory of each connection while it is idle.
    Connection,
    /// Buffers with bytes that were read and not consumed.
    ReadBuffer,
    /// Messages that are still arriving.
    Assembly,
    /// Inflated messages, and deflate windows of both directions.
    Inflated,
    /// Bytes accepted for sending that the transport has not taken.
    SendQueue,
    /// Heads of HTTP messages.
    Head,
    /// Bodies of HTTP messages.
    Body,
    /// Received bytes of HTTP/2 streams that the application has not read.
    Http2Window,
}

/// Categories.
const CATEGORIES: usize = 8;

/// How close a server is to its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pressure {
    Normal,
    /// Connections that hold memory stop reading, and no HTTP/2 window is granted.
    Near,
    /// New work is refused.
    Full,
}

/// The limit would be exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted;

/// The memory of a server.
pub(crate) struct Memory {
    max: AtomicUsize,
    total: AtomicUsize,
    categories: [AtomicUsize; CATEGORIES],
    /// Reservations that were refused.
    refused: AtomicU64,
    evicted: AtomicU64,
    accounts: Mutex<Accounts>,
    waiting: Guarded<Waiting>,
    has_waiting: AtomicBool,
    /// Notified when memory comes near the limit or is exhausted.
    pressed: Notify,
    /// That of the server, once it runs.
    runtime: RwLock<Option<Handle>>,
    scheduler: Scheduler,
    /// Of the peers whose send queues are counted here.
    pub(crate) slow_peers: SlowPeers,
}

/// The accounts of connections, by their keys. A slab would take twice the memory: a vacant place here is a reference to nothing.
#[derive(Default)]
struct Accounts {
    all: Vec<Weak<Inner>>,
    vacant: Vec<u32>,
}

impl Accounts {
    fn add(&mut self, account: impl FnOnce(usize) -> Inner) -> Arc<Inner> {
        let key = self.vacant.pop().map_or(self.all.len(), |key| key as usize);
        let account = Arc::new(account(key));
        let place = Arc::downgrade(&account);
        match self.all.get_mut(key) {
            Some(vacant) => *vacant = place,
            None => self.all.push(place),
        }
        account
    }

    fn remove(&mut self, key: usize) {
        self.all[key] = Weak::new();
        self.vacant.push(key as u32);
        // Many connections leave no memory behind.
        if self.len() == 0 {
            *self = Self::default();
        }
    }

    fn len(&self) -> usize {
        self.all.len() - self.vacant.len()
    }

    /// Vacant places included.
    fn iter(&self) -> impl Iterator<Item = &Weak<Inner>> {
        self.all.iter()
    }
}

/// Tasks that wait until memory is no longer near the limit, by the key of their account.
#[derive(Default)]
struct Waiting {
    tasks: HashMap<usize, Vec<WakerSlot>>,
    deferred: Deferred,
}

impl Guardable for Waiting {
    fn deferred(&mut self) -> &mut Deferred {
        &mut self.deferred
    }
}

impl Memory {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            max: AtomicUsize::new(max),
            total: AtomicUsize::new(0),
            categories: Default::default(),
            refused: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            accounts: Mutex::default(),
            waiting: Guarded::new(Waiting::default()),
            has_waiting: AtomicBool::new(false),
            pressed: Notify::new(),
            runtime: RwLock::default(),
            scheduler: Scheduler::default(),
            slow_peers: SlowPeers::default(),
        })
    }

    /// The account of a new connection.
    pub(crate) fn account(self: &Arc<Self>) -> Account {
        self.account_in(None)
    }

    /// The account of a WebSocket over a stream of a connection, whose group bounds all of them together.
    pub(crate) fn account_in(self: &Arc<Self>, group: Option<Arc<Group>>) -> Account {
        Account::new(lock(&self.accounts).add(|key| Inner::new(self.clone(), key, group)))
    }

    /// A limit for the WebSockets over the streams of one connection, which have one share of the processor.
    pub(crate) fn group(self: &Arc<Self>, max: usize) -> Arc<Group> {
        Group::new(max, self.clone())
    }

    /// The runtime of the server; without one, that of this thread. A connection may be used on a thread whose runtime ends earlier.
    pub(crate) fn runtime(&self) -> Option<Handle> {
        let runtime = self.runtime.read().unwrap_or_else(PoisonError::into_inner).clone();
        runtime.or_else(|| Handle::try_current().ok())
    }

    /// Gives the connections their shares of the processor.
    pub(crate) fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    pub(crate) fn pressure(&self) -> Pressure {
        self.pressure_at(self.total.load(Ordering::Relaxed))
    }

    fn pressure_at(&self, total: usize) -> Pressure {
        if total >= self.max() {
            Pressure::Full
        } else if total >= self.near() {
            Pressure::Near
        } else {
            Pressure::Normal
        }
    }

    fn max(&self) -> usize {
        self.max.load(Ordering::Relaxed)
    }

    /// Before connections are accepted.
    pub(crate) fn set_max(&self, max: usize) {
        self.max.store(max, Ordering::Relaxed);
    }

    fn near(&self) -> usize {
        self.max() - self.max() / 4
    }

    /// Ready when memory is not near the limit. `key` is that of the account that waits.
    fn poll_normal(&self, key: usize, cx: &mut Context<'_>) -> Poll<()> {
        if self.pressure() == Pressure::Normal {
            return Poll::Ready(());
        }
        let mut waiting = self.waiting.lock();
        let Waiting { tasks, deferred } = &mut *waiting;
        let slots = tasks.entry(key).or_default();
        if !slots.iter().any(|slot| slot.will_wake(cx)) {
            let mut slot = WakerSlot::default();
            deferred.register(&mut slot, cx);
            slots.push(slot);
        }
        self.has_waiting.store(true, Ordering::Release);
        drop(waiting);
        // Memory may have been freed before the waker was there. A read-modify-write orders this against `subtract`: either this thread sees
        // the smaller total, or the other one sees the waker.
        let total = self.total.fetch_add(0, Ordering::AcqRel);
        if self.pressure_at(total) == Pressure::Normal { Poll::Ready(()) } else { Poll::Pending }
    }

    fn add(&self, category: Category, len: usize) {
        let before = self.total.fetch_add(len, Ordering::AcqRel);
        self.added(category, before, len);
    }

    /// As [`add`](Self::add), within the limit; heads within half of it, and so do idle connections.
    fn try_add(&self, category: Category, len: usize) -> Result<(), Exhausted> {
        let max = self.max();
        let within = |total: usize| total.checked_add(len).filter(|&total| total <= max);
        // Heads that do not end, and silent connections, cannot be evicted: they must not bring others near the limit.
        let is_refused = matches!(category, Category::Head | Category::Connection) && {
            let len_of = |category: Category| self.categories[category as usize].load(Ordering::Relaxed);
            len_of(category) + len > max / 2
                || len_of(Category::Head) + len_of(Category::Connection) + len > self.near()
        };
        let added = self
            .total
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |total| within(total).filter(|_| !is_refused));
        match added {
            Ok(before) => {
                self.added(category, before, len);
                Ok(())
            }
            Err(_) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                // A message that is refused frees what it holds: no other has to end for it at once.
                if !matches!(category, Category::Assembly | Category::Inflated) {
                    self.pressed.notify_one();
                }
                Err(Exhausted)
            }
        }
    }

    fn added(&self, category: Category, before: usize, len: usize) {
        self.categories[category as usize].fetch_add(len, Ordering::Relaxed);
        if self.pressure_at(before + len) > self.pressure_at(before) {
            self.pressed.notify_one();
        }
    }

    fn subtract(&self, category: Category, len: usize) {
        self.categories[category as usize].fetch_sub(len, Ordering::Relaxed);
        let before = self.total.fetch_sub(len, Ordering::AcqRel);
        if self.pressure_at(before) > Pressure::Normal && self.pressure_at(before - len) == Pressure::Normal {
            self.wake_waiting();
        }
    }

    /// The account has ended: none of its tasks waits.
    fn remove_waiting(&self, key: usize) {
        if self.has_waiting.load(Ordering::Acquire) {
            let mut waiting = self.waiting.lock();
            let Waiting { tasks, deferred } = &mut *waiting;
            let slots = tasks.remove(&key).unwrap_or_default();
            slots.into_iter().for_each(|mut slot| deferred.unregister(&mut slot));
        }
    }

    fn wake_waiting(&self) {
        if self.has_waiting.swap(false, Ordering::AcqRel) {
            let mut waiting = self.waiting.lock();
            let Waiting { tasks, deferred } = &mut *waiting;
            tasks.drain().flat_map(|(_, slots)| slots).for_each(|mut slot| deferred.wake(&mut slot));
        }
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
