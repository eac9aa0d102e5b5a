//! The server: one listener for HTTP/1.1, HTTP/2 and WebSocket over both, over TCP or TLS. It accepts connections within limits,
//! calls a handler for each request, and shuts down gracefully.
//!
//! ```text
//! accept -> (TLS) -> first bytes -> HTTP/1.1 request -> handler -> response
//!              |        |               |                 '-> Upgrade::on_open -> 101 -> WebSocket
//!              |        |               '-> Upgrade: h2c, where it is allowed -> 101 -> HTTP/2, the request as stream 1
//!              |        '-> preface -> HTTP/2 -> requests -> handler -> responses
//!              '-> ALPN: h2 -> HTTP/2                          '-> Upgrade::on_open -> 200 -> tunnel -> WebSocket
//! ```

mod accept;
mod config;
mod connection;
#[cfg(feature = "http2")]
mod http2;
mod listener;
mod panic;
mod proxy_protocol;
mod timeouts;
mod unsent;

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, ToSocketAddrs};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
#[cfg(feature = "tracing")]
use tracing::Instrument as _;

pub use config::ServerConfig;
#[cfg(unix)]
pub use listener::bind_unix;
pub use listener::{Listener, bind};

use crate::http::{IntoResponse, Origin, Request, Response, Running};
use crate::memory::MemoryStats;
use crate::registry::{Phase, Registry};
#[cfg(feature = "tls")]
use crate::transport::tls::ServerTls;
use crate::transport::{Io, Transport};
use crate::websocket::IoUring;
use connection::{Connection, Next};
use listener::{NO_ADDRESS, has_no_connection};
use timeouts::until;

/// Answers requests: any `Fn(Request) -> impl Future<Output = Response>`, or another [`IntoResponse`].
///
/// When the client disconnects, the handler is dropped at its current `.await`, and so is a body that it has returned: spawn a
/// task for work that must finish. Over HTTP/1.1 a client that ends its side of the connection counts as disconnected, as for
/// most servers, unless more of the request's body or another request is to be read before that: then only a reset tells, or TCP keepalive
/// ([`ServerConfig::tcp_keepalive`]).
///
/// When a handler panics, only its request fails: the client receives 500, over HTTP/1.1 as the last response on its connection;
/// a body is aborted, and a WebSocket is closed with 1011. [`ServerStats::handlers_panicked`] counts them.
pub trait Handler: Send + Sync + 'static {
    /// Answers one request. [`Request::websocket`] accepts a WebSocket.
    fn handle(&self, request: Request) -> impl Future<Output = Response> + Send;
}

impl<F, Fut> Handler for F
where
    F: Fn(Request) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoResponse> + Send,
{
    fn handle(&self, request: Request) -> impl Future<Output = Response> + Send {
        let answering = self(request);
        async move { answering.await.into_response() }
    }
}

/// A listener that serves HTTP and WebSocket connections.
///
/// It is designed for one runtime with a thread for each core: connections move to any free thread, and one set of limits and
/// statistics covers all of them. A runtime and a listener for each core, sharing the port by SO_REUSEPORT,
/// cost 1.13 of the CPU time for a message at depth 1, 1.05 at depth 64 and 1.03 for a handshake (`wireloom-bench workers`, two
/// cores of an Intel processor; only at depth 64 a difference is shown), and leave connections on the core that the kernel's hash chose
/// for them, however busy it is. To do so, give each runtime a [`Server::new`] over a listener of `tokio::net::TcpSocket` with `set_reuseport`.
///
/// ```no_run
/// use wireloom::{Request, Response, Server};
///
/// async fn handle(request: Request) -> Response {
///     match request.path() {
///         "/echo" => match request.websocket() {
///             Ok(upgrade) => upgrade.on_open(|socket| async move {
///                 let (mut sender, mut receiver) = socket.split();
///                 while let Ok(Some(message)) = receiver.recv().await {
///                     if sender.send(message).await.is_err() {
///                         break;
///                     }
///                 }
///             }),
///             Err(refusal) => refusal,
///         },
///         _ => Response::not_found(),
///     }
/// }
///
/// # async fn example() -> std::io::Result<()> {
/// Server::bind("127.0.0.1:8080").await?.serve(handle).await
/// # }
/// ```
pub struct Server<L = TcpListener> {
    listener: L,
    config: Arc<ServerConfig>,
    registry: Arc<Registry>,
    #[cfg(feature = "tls")]
    tls: Option<ServerTls>,
}

impl Server {
    /// Listens on an address, with the default configuration.
    ///
    /// # Errors
    /// The address is in use or does not belong to this machine.
    pub async fn bind(address: impl ToSocketAddrs) -> io::Result<Self> {
        Ok(Self::new(listener::bind(address).await?))
    }

    /// The address that it listens on.
    ///
    /// # Errors
    /// The operating system reports none.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl<L: Listener> Server<L> {
    /// Serves the connections that this listener accepts.
    pub fn new(listener: L) -> Self {
        Self {
            listener,
            config: Arc::default(),
            registry: Registry::new(),
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// Sets the configuration.
    #[must_use]
    pub fn config(mut self, config: ServerConfig) -> Self {
        self.config = Arc::new(config);
        self
    }

    /// Shares everything that a handle names, as if they were one server with several listeners: limits, memory, statistics and the
    /// shutdown. Dropping the future of [`serve`](Self::serve) aborts the connections only if it is the last of them. All of them run in one
    /// runtime. Where their configurations differ, `memory_max` is that of the last one that began to serve, `connections_max` and
    /// `handshakes_max` are those of the first.
    ///
    /// ```no_run
    /// use wireloom::{Request, Response, Server, ServerHandle};
    ///
    /// # async fn example() -> std::io::Result<()> {
    /// let handle = ServerHandle::new();
    /// let public = Server::bind("[::]:80").await?.sharing(&handle);
    /// let local = Server::bind("127.0.0.1:8080").await?.sharing(&handle);
    /// let answer = |_: Request| async { Response::text(200, "hello\n") };
    /// let served = tokio::try_join!(public.serve(answer), local.serve(answer));
    /// # served.map(drop)
    /// # }
    /// ```
    #[must_use]
    pub fn sharing(mut self, handle: &ServerHandle) -> Self {
        self.registry = handle.registry.clone();
        self
    }

    /// Accepts only TLS on this listener.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: ServerTls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// A handle to shut it down, and to read its statistics.
    pub fn handle(&self) -> ServerHandle {
        ServerHandle { registry: self.registry.clone() }
    }

    /// Accepts and serves until [`ServerHandle::shut_down`] or [`ServerHandle::stop_accepting`] is called and all connections have ended,
    /// or [`ServerConfig::shutdown_grace`] after the first.
    ///
    /// # Errors
    /// The listener failed permanently; a setting of [`ServerConfig::http2`] is out of range;
    /// [`io_uring`](crate::WebSocketConfig::io_uring) is [`On`](IoUring::On), and the system does not allow it.
    pub async fn serve(self, handler: impl Handler) -> io::Result<()> {
        let Self { mut listener, config, registry, .. } = self;
        if config.websocket.io_uring == IoUring::On {
            IoUring::check()
                .map_err(|error| io::Error::new(error.kind(), format!("io_uring cannot be used: {error}")))?;
        }
        #[cfg(feature = "http2")]
        if wireloom_http2::Connection::new(wireloom_http2::Role::Server, config.http2).is_err() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a setting of HTTP/2 is out of range"));
        }
        #[cfg(feature = "tls")]
        let tls = self.tls;
        registry.limit_memory(config.memory_max);
        let _serving = registry.serve();
        #[cfg(feature = "tls")]
        let _reloading = tls.clone().map(|tls| AbortOnDrop(tokio::spawn(reload(tls))));
        let state = Arc::new(ServerState {
            handler: Arc::new(handler),
            handshakes: registry.handshakes(config.handshakes_max),
            #[cfg(feature = "tls")]
            tls,
        });
        let places = registry.places(config.connections_max);
        let mut options = Options::new(&listener, &config);
        let for_requests = Arc::new(config.for_requests());
        let mut failures = AcceptFailures::default();
        let mut left_in_row = 0;
        loop {
            // Beyond the limit, connections wait in the kernel's queue.
            let accepting = Registry::accept(&places, listener.accept());
            let Some((accepted, place)) = until(&registry, Phase::NotAccepting, accepting).await else {
                break;
            };
            let (transport, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) if is_of_client(&error) && left_in_row < LEFT_IN_ROW_MAX => {
                    left_in_row += 1;
                    drop(place);
                    tokio::task::yield_now().await;
                    continue;
                }
                Err(error) if is_temporary(&error) => {
                    drop(place);
                    if !has_no_connection(&listener, &error) {
                        failures.count(&registry, &error);
                    }
                    left_in_row = 0;
                    tokio::time::sleep(RETRY_AFTER).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            (failures.is_failing, left_in_row) = (false, 0);
            registry.counters.accepted.fetch_add(1, Ordering::Relaxed);
            let Some(registration) = registry.admit(peer.ip(), config.connections_max_of(peer.ip())) else {
                continue;
            };
            // Given back when the connection ends.
            place.forget();
            let io = Io::of(transport);
            if let Io::Tcp(stream) = &io {
                options.apply(SockRef::from(stream), &config);
            }
            let key = registration.key();
            let origin = Arc::new(Origin {
                peer,
                tls: None,
                config: for_requests.clone(),
                account: registration.account().clone(),
            });
            let connection = Connection::new(io, origin, config.clone(), registry.clone(), registration);
            let task = Task::Http(Box::pin(state.clone().serve(connection)));
            registry.set_task(key, spawn(task, peer).abort_handle());
        }
        // New connections are refused at once.
        drop(listener);
        let _ = until(&registry, Phase::Draining, registry.wait_empty()).await;
        let drained = tokio::time::timeout(config.shutdown_grace, registry.wait_empty());
        let _ = until(&registry, Phase::Aborted, drained).await;
        registry.abort();
        registry.wait_empty().await;
        Ok(())
    }
}

/// Serves one connection over any transport, with the default configuration, until it has ended: such as a pipe in memory, or a stream
/// that another program has accepted.
///
/// ```
/// use wireloom::{Request, Response, server};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// let (mut client, io) = tokio::io::duplex(1024);
/// tokio::spawn(server::serve_connection(io, |_: Request| async { Response::text(200, "hello\n") }));
/// client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await?;
/// let mut response = String::new();
/// client.read_to_string(&mut response).await?;
/// assert!(response.ends_with("\r\n\r\nhello\n"));
/// # Ok(())
/// # }
/// ```
///
/// Connections that share limits, statistics and a shutdown are served by a [`Server`] with a [`Listener`].
pub async fn serve_connection(transport: impl Transport, handler: impl Handler) {
    let (config, registry) = (Arc::new(ServerConfig::default()), Registry::new());
    let Some(registration) = registry.admit(NO_ADDRESS.ip(), None) else { return };
    let _serving = registry.serve();
    let origin = Arc::new(Origin {
        peer: NO_ADDRESS,
        tls: None,
        config: Arc::new(config.for_requests()),
        account: registration.account().clone(),
    });
    let state = Arc::new(ServerState {
        handler: Arc::new(handler),
        handshakes: Arc::new(Semaphore::new(1)),
        #[cfg(feature = "tls")]
        tls: None,
    });
    let connection = Connection::new(Io::of(transport), origin, config, registry.clone(), registration);
    if let Some(websocket) = Box::pin(state.serve(connection)).await {
        websocket.await;
    }
}

/// State shared by all connections of a server.
struct ServerState<H> {
    handler: Arc<H>,
    handshakes: Arc<Semaphore>,
    #[cfg(feature = "tls")]
    tls: Option<ServerTls>,
}

impl<H: Handler> ServerState<H> {
    /// Serves a connection until it ends or is a WebSocket.
    #[expect(
        clippy::manual_async_fn,
        reason = "the arguments of one are in its future twice, what is captured once"
    )]
    fn serve(self: Arc<Self>, mut connection: Connection) -> impl Future<Output = Option<Running>> {
        async move {
            #[cfg(feature = "tls")]
            let secured = self.tls.is_some();
            #[cfg(not(feature = "tls"))]
            let secured = false;
            if !connection.config.proxy_protocol_from.is_empty() {
                // Boxed: few servers are behind such a proxy.
                Box::pin(connection.read_proxy_header()).await?;
            }
            #[allow(unused_mut, reason = "without TLS")]
            let mut handshaking = connection.begin(secured, &self.handshakes).await?;
            #[cfg(feature = "tls")]
            if let Some(tls) = &self.tls {
                (connection, handshaking) = Box::pin(connection.secure(tls, handshaking)).await?;
            }
            connection.observe();
            match connection.run(&*self.handler, handshaking).await {
                Next::End => None,
                Next::WebSocket(opening) => Some(connection.open(opening)),
                #[cfg(feature = "http2")]
                Next::Http2(upgraded) => {
                    // Boxed: the future for HTTP/1.1 is smaller without it.
                    Box::pin(connection.serve_http2(upgraded, &self.handler)).await;
                    None
                }
            }
        }
    }
}

/// The task of a connection: the future for HTTP is dropped before the one for a WebSocket starts.
enum Task<F> {
    Http(Pin<Box<F>>),
    WebSocket(Running),
}

impl<F: Future<Output = Option<Running>>> Future for Task<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if let Self::Http(state) = &mut *self {
            match ready!(state.as_mut().poll(cx)) {
                Some(running) => *self = Self::WebSocket(running),
                None => return Poll::Ready(()),
            }
        }
        match &mut *self {
            Self::Http(_) => Poll::Ready(()),
            Self::WebSocket(running) => running.as_mut().poll(cx),
        }
    }
}

/// Spawns the task of a connection, in a span if one is recorded: the span would double the size of an idle connection's task.
fn spawn(
    task: impl Future<Output = ()> + Send + 'static,
    #[cfg_attr(not(feature = "tracing"), expect(unused_variables, reason = "a field of the span"))]
    peer: SocketAddr,
) -> JoinHandle<()> {
    #[cfg(feature = "tracing")]
    {
        let span = tracing::debug_span!("connection", %peer);
        if !span.is_disabled() {
            return tokio::spawn(task.instrument(span));
        }
    }
    tokio::spawn(task)
}

/// Aborts a task.
#[cfg(feature = "tls")]
struct AbortOnDrop(JoinHandle<()>);

#[cfg(feature = "tls")]
impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Reloads certificates that have changed.
#[cfg(feature = "tls")]
async fn reload(tls: ServerTls) {
    loop {
        tokio::time::sleep(RELOAD_INTERVAL).await;
        tls.reload_and_log();
    }
}

/// Where the options of accepted connections are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Options {
    /// For each connection.
    OfConnections,
    /// On the listener, from which connections inherit them: that saves system calls. Those that were established before the listener
    /// had them are still in the kernel's queue, ahead of all others.
    OfListener,
    /// On the listener, and a connection that has inherited them was accepted.
    Inherited,
}

impl Options {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn new(listener: &impl Listener, config: &ServerConfig) -> Self {
        // Fails unless it is one of TCP.
        match listener.socket() {
            Some(socket) if tune(SockRef::from(&socket), config).is_ok() => Self::OfListener,
            _ => Self::OfConnections,
        }
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    fn new(_: &impl Listener, _: &ServerConfig) -> Self {
        Self::OfConnections
    }

    fn apply(&mut self, connection: SockRef<'_>, config: &ServerConfig) {
        if *self == Self::OfListener && is_tuned(&connection, config) {
            *self = Self::Inherited;
        }
        if *self != Self::Inherited {
            // A connection that has already closed fails at the first read.
            let _ = tune(connection, config);
        }
    }
}

/// How often certificates are checked for changes.
#[cfg(feature = "tls")]
const RELOAD_INTERVAL: Duration = Duration::from_secs(5);

/// How long a listener that has failed is left alone.
const RETRY_AFTER: Duration = Duration::from_millis(20);

/// How many clients that have left before they were accepted may follow one another before the listener is left alone too: one that fails
/// like that forever must not keep a thread busy.
const LEFT_IN_ROW_MAX: usize = 100;

/// Counts connections that could not be accepted, and logs them at most once a second.
#[derive(Default)]
struct AcceptFailures {
    /// No connection has been accepted since the last failure: it is probably the same one that waits.
    is_failing: bool,
    #[cfg(feature = "tracing")]
    logged_at: Option<tokio::time::Instant>,
}

impl AcceptFailures {
    #[cfg_attr(not(feature = "tracing"), expect(unused_variables, reason = "for the log"))]
    fn count(&mut self, registry: &Registry, error: &io::Error) {
        if !std::mem::replace(&mut self.is_failing, true) {
            registry.counters.accept_failed.fetch_add(1, Ordering::Relaxed);
        }
        #[cfg(feature = "tracing")]
        {
            let now = tokio::time::Instant::now();
            if self.logged_at.is_none_or(|at| now - at >= Duration::from_secs(1)) {
                self.logged_at = Some(now);
                tracing::warn!(%error, "a connection cannot be accepted");
            }
        }
    }
}

/// Sets TCP_NODELAY, since writes are batched already, and TCP keepalive.
fn tune(socket: SockRef<'_>, config: &ServerConfig) -> io::Result<()> {
    if let Some(time) = config.tcp_keepalive {
        // Kernels accept whole seconds, Linux at most 15 bits of them.
        let time = time.clamp(Duration::from_secs(1), Duration::from_secs(i16::MAX as u64));
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(time))?;
    }
    socket.set_tcp_nodelay(true)
}

fn is_tuned(socket: &SockRef<'_>, config: &ServerConfig) -> bool {
    let is_kept_alive = || config.tcp_keepalive.is_none() || socket.keepalive().unwrap_or(false);
    socket.tcp_nodelay().unwrap_or(false) && is_kept_alive()
}

/// Whether a client has disconnected before it was accepted: the others do not wait for it.
fn is_of_client(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset)
}

/// Whether accepting can continue: no descriptor is free, for example.
fn is_temporary(error: &io::Error) -> bool {
    !matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::NotConnected)
}

/// Shuts a server down, and reports its statistics: those of all servers that [share](Server::sharing) it.
#[derive(Clone, Debug)]
pub struct ServerHandle {
    registry: Arc<Registry>,
}

impl Default for ServerHandle {
    fn default() -> Self {
        Self::new()
    }
}

impl ServerHandle {
    /// A handle for servers that [share](Server::sharing) it.
    pub fn new() -> Self {
        Self { registry: Registry::new() }
    }

    /// Stops accepting, as the first step of a shutdown. Open connections are served: over HTTP/1.1 up to their next response, over HTTP/2
    /// up to the last open stream, with GOAWAY. [`Server::serve`] returns when all have ended.
    pub fn stop_accepting(&self) {
        self.registry.enter(Phase::NotAccepting);
    }

    /// Stops accepting, closes WebSockets with 1001, finishes requests, and aborts the remaining connections after
    /// [`ServerConfig::shutdown_grace`].
    pub fn shut_down(&self) {
        self.registry.enter(Phase::Draining);
    }

    /// Aborts all connections immediately.
    pub fn abort(&self) {
        self.registry.enter(Phase::Aborted);
    }

    /// The current statistics.
    pub fn stats(&self) -> ServerStats {
        let counters = &self.registry.counters;
        let slow = &self.registry.memory.slow_peers;
        ServerStats {
            connections_accepted: counters.accepted.load(Ordering::Relaxed),
            connections_refused: counters.refused.load(Ordering::Relaxed),
            accept_failed: counters.accept_failed.load(Ordering::Relaxed),
            connections_open: counters.open.load(Ordering::Relaxed),
            tls_failed: counters.tls_failed.load(Ordering::Relaxed),
            http2_connections: counters.http2.load(Ordering::Relaxed),
            requests: counters.requests.load(Ordering::Relaxed),
            websockets_opened: counters.opened.load(Ordering::Relaxed),
            websockets_open: self.registry.websockets_open(),
            handlers_panicked: counters.panicked.load(Ordering::Relaxed),
            slow_messages_dropped: slow.dropped.load(Ordering::Relaxed),
            slow_peers_disconnected: slow.disconnected.load(Ordering::Relaxed),
            memory: self.registry.memory.stats(),
        }
    }
}

/// The statistics of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerStats {
    /// Connections accepted since the server started.
    pub connections_accepted: u64,
    /// Connections closed because their address had too many, on acceptance or after the PROXY header that named the address, or because
    /// [`handshakes_max`](ServerConfig::handshakes_max) others were in their handshakes for all of `handshake_timeout`.
    pub connections_refused: u64,
    /// How often connections could not be accepted, mostly because no file descriptor was free, since the server started: once until
    /// the next one is accepted.
    pub accept_failed: u64,
    /// Connections that are open.
    pub connections_open: usize,
    /// TLS handshakes that failed or took too long since the server started.
    pub tls_failed: u64,
    /// Connections that spoke HTTP/2 since the server started.
    pub http2_connections: u64,
    /// Requests passed to the handler since the server started.
    pub requests: u64,
    /// WebSockets opened since the server started.
    pub websockets_opened: u64,
    /// WebSockets that are open.
    pub websockets_open: usize,
    /// Panics since the server started: of handlers, WebSocket functions and body producers.
    pub handlers_panicked: u64,
    /// Messages that were not sent because their peer is slow, since the server started ([`SlowPeer::DropNewest`](crate::SlowPeer)).
    pub slow_messages_dropped: u64,
    /// WebSockets disconnected because their peer is slow, since the server started.
    pub slow_peers_disconnected: u64,
    /// Memory that the server holds for its connections.
    pub memory: MemoryStats,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::net::TcpStream;

    use super::*;

    // The size of a silent connection, or one for HTTP/1.1, with its task.
    #[tokio::test]
    async fn stays_small() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let peer = stream.local_addr().unwrap();
        let registry = Registry::new();
        let registration = registry.admit(peer.ip(), None).unwrap();
        let origin = Arc::new(Origin {
            peer,
            tls: None,
            config: Arc::default(),
            account: registration.account().clone(),
        });
        let state = Arc::new(ServerState {
            handler: Arc::new(|_: Request| async { Response::new(204) }),
            handshakes: Arc::new(Semaphore::new(1)),
            #[cfg(feature = "tls")]
            tls: None,
        });
        let http =
            state.serve(Connection::new(Io::Tcp(stream), origin, Arc::default(), registry, registration));
        println!("a connection of HTTP/1.1 {}, its task {}", size_of_val(&http), size_of::<Task<()>>());
        assert!(size_of_val(&http) <= 1032, "{}", size_of_val(&http));
        assert!(size_of::<Task<()>>() <= 24);
    }

    #[tokio::test]
    async fn connections_have_keepalive_and_nodelay() {
        for keepalive in
            [None, Some(Duration::from_millis(1)), Some(Duration::from_secs(300)), Some(Duration::MAX)]
        {
            let config = ServerConfig { tcp_keepalive: keepalive, ..ServerConfig::default() };
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let connect = || TcpStream::connect(listener.local_addr().unwrap());
            let _early = [connect().await.unwrap(), connect().await.unwrap()];
            let mut options = Options::new(&listener, &config);
            let _late = connect().await.unwrap();
            for _ in 0..3 {
                let (stream, _) = listener.accept().await.unwrap();
                let socket = SockRef::from(&stream);
                options.apply(SockRef::from(&stream), &config);
                assert_eq!(socket.keepalive().unwrap(), keepalive.is_some());
                assert!(socket.tcp_nodelay().unwrap());
            }
            let inherit = cfg!(any(target_os = "linux", target_os = "android"));
            assert_eq!(options, if inherit { Options::Inherited } else { Options::OfConnections });
        }
    }
}
