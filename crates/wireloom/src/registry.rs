//! The connections of a server, or of several that share their limits: their number, their addresses, and the shutdown of all of them.

use std::collections::HashMap;
use std::future::poll_fn;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::pin;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use slab::Slab;
use tokio::sync::futures::OwnedNotified;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::memory::{Account, CONNECTION_KIB, Group, Memory, WEBSOCKET_KIB, default_max};
use crate::transport::buffer;
use crate::websocket::Shared;

/// A connection that transfers no bytes in this interval releases memory.
pub(crate) const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// The time between the start of a shutdown and its Close frames, in which handlers answer messages that were read.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// The interval between attempts to lock a WebSocket that is in use, as one that compresses a long message.
const VISIT_INTERVAL: Duration = Duration::from_millis(10);

/// Held by a connection until its protocol is known.
pub(crate) type Handshaking = OwnedSemaphorePermit;

/// The phase of a server. It only advances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Phase {
    Serving,
    /// No connection is accepted; those that are open are served.
    NotAccepting,
    Draining,
    Aborted,
}

/// The counters of a server.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) accepted: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) accept_failed: AtomicU64,
    pub(crate) open: AtomicUsize,
    pub(crate) tls_failed: AtomicU64,
    pub(crate) http2: AtomicU64,
    pub(crate) requests: AtomicU64,
    pub(crate) opened: AtomicU64,
    pub(crate) panicked: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Registry {
    pub(crate) counters: Counters,
    pub(crate) memory: Arc<Memory>,
    phase: AtomicU8,
    /// Notified when the phase has changed.
    phase_changed: Arc<Notify>,
    /// Notified when a member has ended.
    member_ended: Notify,
    members: Mutex<Members>,
    /// Permits for open connections that a listener has accepted.
    places: OnceLock<Arc<Semaphore>>,
    /// Permits for connections whose protocol is not known yet.
    handshakes: OnceLock<Arc<Semaphore>>,
    servers: Mutex<Servers>,
    /// The limit of the buffers that threads keep for reuse, outside the connections' memory.
    buffers: Mutex<Option<buffer::MemoryLimit>>,
}

/// The servers that run, and the tasks that serve all their connections.
#[derive(Debug, Default)]
struct Servers {
    running: usize,
    tasks: Vec<AbortHandle>,
}

/// A server that runs. When the last one ends or is dropped, all connections are aborted.
pub(crate) struct Serving(Arc<Registry>);

impl Drop for Serving {
    fn drop(&mut self) {
        let mut servers = lock(&self.0.servers);
        servers.running -= 1;
        if servers.running == 0 {
            let tasks = std::mem::take(&mut servers.tasks);
            drop(servers);
            tasks.iter().for_each(AbortHandle::abort);
            self.0.abort();
        }
    }
}

#[derive(Default)]
struct Members {
    all: Slab<Member>,
    /// The number of those with a WebSocket.
    sockets: usize,
    /// The clients, where the number of connections per address is limited.
    clients: Clients,
}

/// The addresses of clients, where the number of connections of each is limited.
#[derive(Default)]
struct Clients {
    /// By the key of the connection.
    addresses: HashMap<usize, IpAddr>,
    /// Connections per address.
    connections: HashMap<IpAddr, usize>,
}

impl Clients {
    /// Counts a connection; false if `address` has `max` of them.
    fn add(&mut self, key: usize, address: IpAddr, max: usize) -> bool {
        if self.connections.get(&address).copied().unwrap_or(0) >= max {
            return false;
        }
        *self.connections.entry(address).or_default() += 1;
        self.addresses.insert(key, address);
        true
    }

    fn remove(&mut self, key: usize) {
        if let Some(address) = self.addresses.remove(&key)
            && let Some(count) = self.connections.get_mut(&address)
        {
            *count -= 1;
            if *count == 0 {
                self.connections.remove(&address);
            }
        }
    }
}

/// A connection, or a WebSocket over a stream of one.
struct Member {
    /// Whether it is a connection whose transport is open.
    is_open: bool,
    /// The task of the connection, once it is spawned.
    task: Option<AbortHandle>,
    socket: Option<Weak<Shared>>,
}

impl std::fmt::Debug for Members {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Members").field("all", &self.all.len()).field("sockets", &self.sockets).finish()
    }
}

impl Registry {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            counters: Counters::default(),
            memory: Memory::new(default_max()),
            phase: AtomicU8::new(Phase::Serving as u8),
            phase_changed: Arc::default(),
            member_ended: Notify::new(),
            members: Mutex::default(),
            places: OnceLock::new(),
            handshakes: OnceLock::new(),
            servers: Mutex::default(),
            buffers: Mutex::default(),
        })
    }

    /// Counts a server that runs. The first one starts the tasks that serve all connections.
    pub(crate) fn serve(self: &Arc<Self>) -> Serving {
        let mut servers = lock(&self.servers);
        if servers.running == 0 {
            let memory = self.memory.clone();
            let scheduling = async move { memory.scheduler().run().await };
            let watching = self.memory.clone().watch();
            let tasks =
                [tokio::spawn(sweep(Arc::downgrade(self))), tokio::spawn(watching), tokio::spawn(scheduling)];
            servers.tasks = tasks.iter().map(JoinHandle::abort_handle).collect();
        }
        servers.running += 1;
        Serving(self.clone())
    }

    /// The permits for handshakes, at most `max` at once. The first server chooses.
    pub(crate) fn handshakes(&self, max: usize) -> Arc<Semaphore> {
        self.handshakes.get_or_init(|| Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS)))).clone()
    }

    /// The permits for connections, at most `max` at once. The first server chooses.
    pub(crate) fn places(&self, max: usize) -> Arc<Semaphore> {
        self.places.get_or_init(|| Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS)))).clone()
    }

    /// Limits the memory of all connections together, before any is accepted, and what threads keep beside them.
    pub(crate) fn limit_memory(&self, max: usize) {
        self.memory.set_max(max);
        let mut buffers = lock(&self.buffers);
        // The limits before this one no longer count.
        buffers.take();
        *buffers = Some(buffer::MemoryLimit::new(max));
    }

    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Serving,
            1 => Phase::NotAccepting,
            2 => Phase::Draining,
            _ => Phase::Aborted,
        }
    }

    /// Completes when the phase changes.
    pub(crate) fn phase_change(&self) -> OwnedNotified {
        self.phase_changed.clone().notified_owned()
    }

    /// Waits for this phase, or a later one.
    pub(crate) async fn wait_for(&self, phase: Phase) {
        loop {
            // Registered before the check, so that no change is missed.
            let changed = self.phase_changed.notified();
            if self.phase() >= phase {
                return;
            }
            changed.await;
        }
    }

    /// Advances to `phase`; does nothing if that phase has passed.
    pub(crate) fn enter(self: &Arc<Self>, phase: Phase) {
        if self.phase.fetch_max(phase as u8, Ordering::AcqRel) < phase as u8 {
            self.phase_changed.notify_waiters();
        }
        match phase {
            Phase::Serving | Phase::NotAccepting => return,
            Phase::Draining => {}
            // One that is in use ends with its registration.
            Phase::Aborted => return drop(visit(self.sockets(), Shared::try_go_away)),
        }
        let busy = visit(self.sockets(), Shared::try_request_close);
        // There is one before there are WebSockets.
        let Some(runtime) = self.memory.runtime() else { return };
        let registry = self.clone();
        runtime.spawn(async move {
            let answered = Instant::now() + ANSWER_TIMEOUT;
            let _ = timeout_at(answered, visit_all(busy, Shared::try_request_close)).await;
            sleep_until(answered).await;
            visit_all(registry.sockets(), Shared::try_go_away).await;
        });
    }

    /// Counts a panic. Its message may contain secrets, so only the panic hook receives it.
    pub(crate) fn count_panic(&self) {
        self.counters.panicked.fetch_add(1, Ordering::Relaxed);
        #[cfg(feature = "tracing")]
        tracing::error!("a handler panicked");
    }

    /// Registers a connection from an address; `None` if that address has `max` connections, or there is no memory for another one.
    pub(crate) fn admit(self: &Arc<Self>, address: IpAddr, max: Option<usize>) -> Option<Registration> {
        let account = self.memory.account();
        let is_counted = account.try_add_idle(CONNECTION_KIB).is_ok();
        let mut members = lock(&self.members);
        let Members { all, clients, .. } = &mut *members;
        let entry = all.vacant_entry();
        let key = entry.key();
        if !is_counted || max.is_some_and(|max| !clients.add(key, client_of(address), max)) {
            self.counters.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        entry.insert(Member { is_open: true, task: None, socket: None });
        self.counters.open.fetch_add(1, Ordering::Relaxed);
        Some(Registration { registry: self.clone(), key, account })
    }

    /// Accepts one connection, for which it returns its place. A listener takes a place only while it accepts: one without clients keeps none
    /// from another. Those that wait for a place have their turn in order.
    pub(crate) async fn accept<T>(
        places: &Arc<Semaphore>,
        accepting: impl Future<Output = T>,
    ) -> (T, OwnedSemaphorePermit) {
        let mut accepting = pin!(accepting);
        loop {
            let mut first = places.clone().acquire_owned().await.ok();
            let accepted = poll_fn(|cx| {
                let place = first.take().or_else(|| places.clone().try_acquire_owned().ok());
                // Another server has taken the last one.
                let Some(place) = place else { return Poll::Ready(None) };
                accepting.as_mut().poll(cx).map(|accepted| Some((accepted, place)))
            });
            if let Some(accepted) = accepted.await {
                return accepted;
            }
        }
    }

    /// Waits until no connection is open.
    #[cfg(feature = "hyper")]
    pub(crate) async fn wait_closed(&self) {
        self.wait_until(|| self.counters.open.load(Ordering::Relaxed) == 0).await;
    }

    /// Waits until no connection is open and the handlers of all have returned.
    pub(crate) async fn wait_empty(&self) {
        self.wait_until(|| lock(&self.members).all.is_empty()).await;
    }

    /// Waits until enough members have ended.
    async fn wait_until(&self, is_enough: impl Fn() -> bool) {
        loop {
            // Before the check, so that no end is missed.
            let ended = self.member_ended.notified();
            if is_enough() {
                return;
            }
            ended.await;
        }
    }

    /// A member has ended, which was an open connection or not.
    fn count_end(&self, was_open: bool) {
        if was_open {
            self.counters.open.fetch_sub(1, Ordering::Relaxed);
            if let Some(places) = self.places.get() {
                places.add_permits(1);
            }
        }
        self.member_ended.notify_waiters();
    }

    /// Sets the task of a registered connection; does nothing if the connection has ended.
    pub(crate) fn set_task(&self, key: usize, task: AbortHandle) {
        if let Some(member) = lock(&self.members).all.get_mut(key) {
            member.task = Some(task);
        }
    }

    /// Aborts the tasks of all connections.
    pub(crate) fn abort(&self) {
        let tasks: Vec<_> =
            lock(&self.members).all.iter().filter_map(|(_, member)| member.task.clone()).collect();
        tasks.iter().for_each(AbortHandle::abort);
    }

    /// Registers a WebSocket over a stream of a connection, whose WebSockets share the memory limit of `group`; `None` if there is no memory
    /// for another one.
    pub(crate) fn admit_tunnel(self: &Arc<Self>, group: Arc<Group>) -> Option<Registration> {
        let account = self.memory.account_in(Some(group));
        account.try_add_idle(CONNECTION_KIB).ok()?;
        let member = Member { is_open: false, task: None, socket: None };
        let key = lock(&self.members).all.insert(member);
        Some(Registration { registry: self.clone(), key, account })
    }

    pub(crate) fn websockets_open(&self) -> usize {
        lock(&self.members).sockets
    }

    fn sockets(&self) -> Vec<Arc<Shared>> {
        let members = lock(&self.members);
        members.all.iter().filter_map(|(_, member)| member.socket.as_ref()?.upgrade()).collect()
    }

    /// Lets idle connections release memory.
    pub(crate) fn sweep(&self) {
        self.sockets().iter().for_each(|socket| socket.release_if_idle());
    }
}

/// Releases memory of idle connections, for as long as there is a registry.
pub(crate) async fn sweep(registry: Weak<Registry>) {
    loop {
        sleep(SWEEP_INTERVAL).await;
        let Some(registry) = registry.upgrade() else { return };
        registry.sweep();
    }
}

/// Calls `run` for each of these WebSockets, and returns those that are in use for a while: no other waits for them.
fn visit(mut sockets: Vec<Arc<Shared>>, run: fn(&Shared) -> bool) -> Vec<Arc<Shared>> {
    sockets.retain(|socket| !run(socket));
    sockets
}

/// Calls `run` for each of these WebSockets, once it is not in use.
async fn visit_all(mut sockets: Vec<Arc<Shared>>, run: fn(&Shared) -> bool) {
    loop {
        sockets = visit(sockets, run);
        if sockets.is_empty() {
            return;
        }
        sleep(VISIT_INTERVAL).await;
    }
}

/// The registration of a connection, or of a WebSocket over a stream of one, with its server. Dropping it removes the connection.
pub(crate) struct Registration {
    registry: Arc<Registry>,
    key: usize,
    account: Account,
}

impl Registration {
    pub(crate) fn key(&self) -> usize {
        self.key
    }

    /// The memory of the connection.
    pub(crate) fn account(&self) -> &Account {
        &self.account
    }

    /// Counts the connection as one from this address, for which a proxy has opened it; false if that address has `max` connections.
    pub(crate) fn count_for(&self, address: IpAddr, max: usize) -> bool {
        let is_added = lock(&self.registry.members).clients.add(self.key, client_of(address), max);
        if !is_added {
            self.registry.counters.refused.fetch_add(1, Ordering::Relaxed);
        }
        is_added
    }

    /// The transport of the connection is closed, so that the connection no longer counts as open. Handlers of its WebSockets may
    /// still run: a shutdown waits until the registration is dropped.
    #[cfg(feature = "http2")]
    pub(crate) fn disconnect(&self) {
        let mut members = lock(&self.registry.members);
        let Some(member) = members.all.get_mut(self.key) else { return };
        let was_open = std::mem::take(&mut member.is_open);
        members.clients.remove(self.key);
        drop(members);
        self.registry.count_end(was_open);
    }

    /// Marks the connection as an open WebSocket, whose memory is counted in its account.
    pub(crate) fn open(&self, socket: &Arc<Shared>) {
        self.registry.counters.opened.fetch_add(1, Ordering::Relaxed);
        {
            let mut members = lock(&self.registry.members);
            members.sockets += 1;
            if let Some(member) = members.all.get_mut(self.key) {
                member.socket = Some(Arc::downgrade(socket));
            }
        }
        self.account.subtract_idle(CONNECTION_KIB - WEBSOCKET_KIB);
        if self.registry.phase() >= Phase::Draining {
            socket.go_away();
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut members = lock(&self.registry.members);
        let Some(member) = members.all.try_remove(self.key) else { return };
        members.sockets -= usize::from(member.socket.is_some());
        members.clients.remove(self.key);
        drop(members);
        // The task of the WebSocket holds the registration.
        if member.socket.is_some() && std::thread::panicking() {
            self.registry.count_panic();
        }
        self.registry.count_end(member.is_open);
        // The task of the WebSocket was aborted after its handler had passed the WebSocket on, where it may be in use.
        let socket = member.socket.and_then(|socket| socket.upgrade());
        let busy = visit(socket.into_iter().collect(), Shared::try_abort);
        if !busy.is_empty()
            && let Some(runtime) = self.account.runtime()
        {
            runtime.spawn(visit_all(busy, Shared::try_abort));
        }
    }
}

/// The address range of one client: an IPv4 address, or the 64 bits of an IPv6 address that its network was given (RFC 6177).
fn client_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_a_network_of_ipv6() {
        let client = |address: &str| client_of(address.parse().unwrap());
        assert_eq!(client("2001:db8::1"), client("2001:db8::ffff:0:0:2"));
        assert_ne!(client("2001:db8::1"), client("2001:db8:0:1::1"));
        assert_eq!(client("::ffff:192.0.2.1"), client("192.0.2.1"));
        assert_ne!(client("192.0.2.1"), client("192.0.2.2"));
    }

    #[cfg(feature = "http2")]
    #[test]
    fn a_connection_whose_transport_is_closed_frees_its_place_once() {
        let registry = Registry::new();
        let address = IpAddr::from([192, 0, 2, 1]);
        let open = || registry.counters.open.load(Ordering::Relaxed);
        let first = registry.admit(address, Some(1)).unwrap();
        assert!(registry.admit(address, Some(1)).is_none());
        first.disconnect();
        first.disconnect();
        assert_eq!(open(), 0);
        let _second = registry.admit(address, Some(1)).unwrap();
        drop(first);
        assert_eq!((open(), lock(&registry.members).all.len()), (1, 1));
        assert!(registry.admit(address, Some(1)).is_none(), "the second one is still open");
    }

    #[test]
    fn refused_clients_leave_nothing_behind() {
        let mut clients = Clients::default();
        let [one, two] = [1, 2].map(|last| IpAddr::from([192, 0, 2, last]));
        assert!(!clients.add(0, one, 0));
        assert!(clients.connections.is_empty());
        assert!(clients.add(0, one, 1) && !clients.add(1, one, 1) && clients.add(2, two, 1));
        clients.remove(0);
        clients.remove(1);
        assert_eq!(clients.connections.keys().collect::<Vec<_>>(), [&two]);
        clients.remove(2);
        assert!(clients.connections.is_empty() && clients.addresses.is_empty());
    }
}
