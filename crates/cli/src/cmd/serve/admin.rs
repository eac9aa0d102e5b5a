//! The servers of `--admin`: one for all requests, and one that answers probes and metrics while the first has no room.
//!
//! ```text
//! accept -> a place, memory and descriptors are free -> every request
//!       '-> otherwise                                -> /livez, /healthz, /metrics, and then the connection ends
//! ```

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use wireloom::server::Listener;
use wireloom::{Request, Server, ServerConfig, ServerHandle};

use super::reserve::{AdminConnection, AdminListener};
use crate::routes::Routes;

/// The most connections for all requests at once: each takes a descriptor that is none of those for clients.
const CONNECTIONS_MAX: usize = 256;

/// The most connections at once that are answered while the others have no room.
const PROBES_MAX: usize = 64;

/// How long a client may take for each part of a request then.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

type Accepted = (AdminConnection, SocketAddr);

pub(super) struct Admin {
    all: Server<SortingListener>,
    probes: Server<Probes>,
}

impl Admin {
    /// `memory_max` is for both, in bytes.
    pub(super) fn new(listener: AdminListener, memory_max: usize) -> Self {
        let handle = ServerHandle::new();
        let (probes, receiver) = mpsc::channel(1);
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let sorting = SortingListener { listener, places, all: handle.clone(), probes };
        // The listener limits the connections.
        let connections_max = usize::MAX;
        let share = memory_max / 8;
        let memory_max = memory_max - share;
        let config = ServerConfig { connections_max, memory_max, ..ServerConfig::default() };
        Self {
            all: Server::new(sorting).sharing(&handle).config(config),
            probes: Server::new(Probes(receiver)).config(probes_config(share)),
        }
    }

    /// Serves until [`RunningAdmin::stop`].
    pub(super) fn start(self, routes: &Arc<Routes>) -> RunningAdmin {
        let handles = [self.all.handle(), self.probes.handle()];
        let mut tasks = JoinSet::new();
        let (all, probes) = (routes.clone(), routes.clone());
        tasks.spawn(self.all.serve(move |request: Request| {
            let routes = all.clone();
            async move { routes.handle_admin(request).await }
        }));
        tasks.spawn(self.probes.serve(move |request: Request| {
            let response = probes.handle_probe(&request);
            async move { response }
        }));
        RunningAdmin { handles, tasks }
    }
}

fn probes_config(memory_max: usize) -> ServerConfig {
    let mut config = ServerConfig {
        connections_max: PROBES_MAX,
        memory_max,
        handshake_timeout: PROBE_TIMEOUT,
        keep_alive_timeout: PROBE_TIMEOUT,
        body_timeout: PROBE_TIMEOUT,
        http1_stall_timeout: PROBE_TIMEOUT,
        ..ServerConfig::default()
    };
    config.http2.limits.stall_timeout = PROBE_TIMEOUT;
    config
}

pub(super) struct RunningAdmin {
    handles: [ServerHandle; 2],
    tasks: JoinSet<io::Result<()>>,
}

impl RunningAdmin {
    pub(super) async fn stop(mut self) {
        self.handles.iter().for_each(ServerHandle::abort);
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Accepts for the server of all requests, and passes to the other one what that has no room for.
struct SortingListener {
    listener: AdminListener,
    places: Arc<Semaphore>,
    all: ServerHandle,
    probes: mpsc::Sender<Accepted>,
}

impl SortingListener {
    /// A place for a connection, if its requests are not refused and it keeps none from being accepted.
    fn place(&self, connection: &AdminConnection) -> Option<OwnedSemaphorePermit> {
        let memory = self.all.stats().memory;
        let has_room = memory.total < memory.max - memory.max / 8 && !connection.has_last_descriptor();
        self.places.clone().try_acquire_owned().ok().filter(|_| has_room)
    }
}

impl Listener for SortingListener {
    type Transport = AdminConnection;

    async fn accept(&mut self) -> io::Result<Accepted> {
        loop {
            let (connection, peer) = self.listener.accept().await?;
            match self.place(&connection) {
                Some(place) => return Ok((connection.with_place(place), peer)),
                // Fails only when the process ends.
                None => drop(self.probes.send((connection, peer)).await),
            }
        }
    }

    #[cfg(unix)]
    fn socket(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.listener.socket()
    }
}

/// The connections that are passed to the server of probes.
struct Probes(mpsc::Receiver<Accepted>);

impl Listener for Probes {
    type Transport = AdminConnection;

    async fn accept(&mut self) -> io::Result<Accepted> {
        match self.0.recv().await {
            Some(accepted) => Ok(accepted),
            None => std::future::pending().await,
        }
    }
}
