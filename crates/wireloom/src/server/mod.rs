//! The server: one listener for HTTP/1.1, HTTP/2 and WebSocket over both, over TCP or TLS. It accepts, bounds, hands
//! requests to a handler, and ends gracefully. WebSockets themselves are [`crate::websocket`]'s.
//!
//! ```text
//! accept -> (TLS) -> first bytes -> HTTP/1.1 request -> handler -> response
//!              |        |               |                 '-> Upgrade::on_open -> 101 -> WebSocket
//!              |        |               '-> Upgrade: h2c -> 101 -> HTTP/2, the request as stream 1
//!              |        '-> preface -> HTTP/2 -> requests -> handler -> responses
//!              '-> ALPN: h2 -> HTTP/2                          '-> Upgrade::on_open -> 200 -> tunnel -> WebSocket
//! ```

mod body;
mod config;
mod connection;
mod date;
mod head;
mod http2;
mod intake;
mod panic;
mod pipe;
mod registry;
mod write;

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

#[cfg(feature = "tls")]
use tokio::net::TcpStream;
use tokio::net::{TcpListener, ToSocketAddrs};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
#[cfg(feature = "tracing")]
use tracing::Instrument as _;

pub use config::ServerConfig;

use crate::http::{IntoResponse, Origin, Request, Response};
use crate::io::Io;
#[cfg(feature = "tls")]
use crate::tls::ServerTls;
use connection::Connection;
pub(crate) use connection::{read, write};
pub(crate) use pipe::PipeReader;
use registry::{Phase, Registry};

/// What answers requests: any `Fn(Request) -> impl Future<Output = Response>`, or another [`IntoResponse`].
///
/// A handler whose client goes away is dropped where it waits, and so is a body that it has returned: what must be done all the
/// same belongs into a task of its own. Over HTTP/1.1 a client that ends its side of the connection has gone, as for most
/// servers, unless there is more of the request's body or another request to be read before that.
///
/// When a handler panics its request alone is lost: the client is answered 500, over HTTP/1.1 as the last on its connection; a
/// body breaks off, and a WebSocket is closed with 1011. [`ServerStats::handlers_panicked`] counts them.
pub trait Handler: Send + Sync + 'static {
    /// Answers one request. [`Request::websocket`] makes a WebSocket of it.
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

/// A listener that serves.
///
/// One runtime with a thread for each core is how it is meant to run: connections move to whichever thread is free. A
/// listener and a runtime for each core, sharing the port by SO_REUSEPORT, were no clear gain in trials on two cores, and leave
/// connections on the core that the kernel's hash chose for them, however busy it is. Who wants that
/// all the same gives each runtime a [`Server::new`] over a listener of `tokio::net::TcpSocket` with `set_reuseport`.
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
pub struct Server {
    listener: TcpListener,
    config: Arc<ServerConfig>,
    registry: Arc<Registry>,
    #[cfg(feature = "tls")]
    tls: Option<ServerTls>,
}

impl Server {
    /// Listens here, with the default configuration.
    ///
    /// # Errors
    /// The address is taken or not this machine's.
    pub async fn bind(address: impl ToSocketAddrs) -> io::Result<Self> {
        Ok(Self::new(TcpListener::bind(address).await?))
    }

    /// Serves what this listener accepts.
    pub fn new(listener: TcpListener) -> Self {
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

    /// Speaks TLS on this listener, and nothing else.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: ServerTls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The operating system does not say.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// A handle to end it with, and to look at its numbers.
    pub fn handle(&self) -> ServerHandle {
        ServerHandle { registry: self.registry.clone() }
    }

    /// Accepts and serves until [`ServerHandle::shut_down`] is called and all connections have ended, or
    /// [`ServerConfig::shutdown_grace`] after that.
    ///
    /// # Errors
    /// The listener failed for good; a setting of [`ServerConfig::http2`] is out of range.
    pub async fn serve(self, handler: impl Handler) -> io::Result<()> {
        let Self { listener, config, registry, .. } = &self;
        let handler = Arc::new(handler);
        if wireloom_http2::Connection::new(wireloom_http2::Role::Server, config.http2).is_err() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a setting of HTTP/2 is out of range"));
        }
        let permits = Arc::new(Semaphore::new(config.connections_max));
        let handshakes = Arc::new(Semaphore::new(config.handshakes_max));
        let mut phase = registry.watch();
        let mut tasks = JoinSet::new();
        let sweeper = {
            let registry = Arc::downgrade(registry);
            #[cfg(feature = "tls")]
            let tls = self.tls.clone();
            tasks.spawn(async move {
                loop {
                    tokio::time::sleep(registry::QUIET).await;
                    let Some(registry) = registry.upgrade() else { return };
                    registry.sweep();
                    #[cfg(feature = "tls")]
                    if let Some(tls) = &tls {
                        // The certificate in use stays when the new one cannot be read.
                        let _ = tls.reload_if_changed();
                    }
                }
            })
        };
        loop {
            // Beyond the limit, connections wait in the kernel's queue.
            let permit = until(&mut phase, Phase::Draining, permits.clone().acquire_owned()).await;
            let Some(Ok(permit)) = permit else { break };
            let Some(accepted) = until(&mut phase, Phase::Draining, listener.accept()).await else { break };
            while tasks.try_join_next().is_some() {}
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) if is_passing(&error) => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            registry.counters.accepted.fetch_add(1, Ordering::Relaxed);
            let Some(admitted) = registry.admit(peer.ip(), config.connections_per_address_max) else {
                continue;
            };
            // What is written is meant to leave; nothing is gained by waiting for more.
            let _ = stream.set_nodelay(true);
            let (handler, config, registry) = (handler.clone(), config.clone(), registry.clone());
            let handshakes = handshakes.clone();
            #[cfg(feature = "tls")]
            let tls = self.tls.clone();
            // What HTTP needs is let go before a WebSocket begins, and is no part of the task that serves it.
            let http = Box::pin(async move {
                let mut stopping = registry.watch();
                // A client that says nothing costs nothing. Beyond the limit, handshakes wait for their turn.
                let begun = async {
                    // That a socket is readable is no more than a guess at first.
                    stream.peek(&mut [0]).await.ok().filter(|&len| len > 0)?;
                    handshakes.acquire_owned().await.ok()
                };
                let begun = tokio::time::timeout(config.handshake_timeout, begun);
                let handshaking = until(&mut stopping, Phase::Draining, begun).await?.ok()??;
                #[cfg(feature = "tls")]
                let (io, tls) = accept(stream, tls.as_ref(), &config, &registry).await?;
                #[cfg(not(feature = "tls"))]
                let (io, tls) = (Io::Tcp(stream), None);
                let origin = Origin { peer, tls, config };
                Connection::new(io, origin, registry, stopping).run(&handler, handshaking).await
            });
            let held = (permit, admitted);
            let serving = async move {
                if let Some((running, _registered)) = http.await {
                    running.await;
                }
                drop(held);
            };
            #[cfg(feature = "tracing")]
            let serving = serving.instrument(tracing::debug_span!("connection", %peer));
            tasks.spawn(serving);
        }
        sweeper.abort();
        let drained = async { while tasks.join_next().await.is_some() {} };
        let limited = tokio::time::timeout(config.shutdown_grace, drained);
        let _ = until(&mut phase, Phase::Cut, limited).await;
        tasks.shutdown().await;
        Ok(())
    }
}

/// TLS, if it is spoken here.
#[cfg(feature = "tls")]
async fn accept(
    stream: TcpStream,
    tls: Option<&ServerTls>,
    config: &ServerConfig,
    registry: &Registry,
) -> Option<(Io, Option<Arc<crate::http::TlsInfo>>)> {
    let Some(tls) = tls else { return Some((Io::Tcp(stream), None)) };
    let accepting = tls.accept(stream);
    let Ok(Ok(stream)) = tokio::time::timeout(config.handshake_timeout, accepting).await else {
        registry.counters.tls_failed.fetch_add(1, Ordering::Relaxed);
        return None;
    };
    let info = crate::tls::info(stream.get_ref().1);
    Some((Io::Tls(Box::new(tokio_rustls::TlsStream::Server(stream))), Some(Arc::new(info))))
}

/// Whether accepting can go on: a client that went away, or no descriptors just now.
fn is_passing(error: &io::Error) -> bool {
    !matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::NotConnected)
}

/// The result of `work`, unless the server enters this phase first.
async fn until<T>(
    phase: &mut watch::Receiver<Phase>,
    end: Phase,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut ended = pin!(phase.wait_for(|phase| *phase >= end));
    let mut work = pin!(work);
    poll_fn(|cx| {
        if ended.as_mut().poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        work.as_mut().poll(cx).map(Some)
    })
    .await
}

/// Ends a server, and tells how it does.
#[derive(Clone, Debug)]
pub struct ServerHandle {
    registry: Arc<Registry>,
}

impl ServerHandle {
    /// Stops accepting, tells every WebSocket 1001, lets requests under way be answered, and cuts what is left after
    /// [`ServerConfig::shutdown_grace`].
    pub fn shut_down(&self) {
        self.registry.enter(Phase::Draining);
    }

    /// Cuts everything now.
    pub fn cut(&self) {
        self.registry.enter(Phase::Cut);
    }

    /// Its numbers at this moment.
    pub fn stats(&self) -> ServerStats {
        let counters = &self.registry.counters;
        ServerStats {
            connections_accepted: counters.accepted.load(Ordering::Relaxed),
            connections_refused: counters.refused.load(Ordering::Relaxed),
            connections_open: counters.open.load(Ordering::Relaxed),
            tls_failed: counters.tls_failed.load(Ordering::Relaxed),
            http2_connections: counters.http2.load(Ordering::Relaxed),
            requests: counters.requests.load(Ordering::Relaxed),
            websockets_opened: counters.opened.load(Ordering::Relaxed),
            websockets_open: self.registry.open_len(),
            handlers_panicked: counters.panicked.load(Ordering::Relaxed),
            slow_messages_dropped: counters.slow.dropped.load(Ordering::Relaxed),
            slow_peers_cut: counters.slow.cut.load(Ordering::Relaxed),
        }
    }
}

/// The numbers of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerStats {
    /// Connections accepted since it began.
    pub connections_accepted: u64,
    /// Of these, closed at once because their address had too many.
    pub connections_refused: u64,
    /// Connections that are open.
    pub connections_open: usize,
    /// TLS handshakes that failed or took too long since it began.
    pub tls_failed: u64,
    /// Connections that spoke HTTP/2 since it began.
    pub http2_connections: u64,
    /// Requests handed to the handler since it began.
    pub requests: u64,
    /// WebSockets opened since it began.
    pub websockets_opened: u64,
    /// WebSockets that are open.
    pub websockets_open: usize,
    /// Handlers, and what served WebSockets or made bodies, that panicked since it began.
    pub handlers_panicked: u64,
    /// Messages that were not sent because their peer is slow, since it began ([`SlowPeer::DropNewest`](crate::SlowPeer)).
    pub slow_messages_dropped: u64,
    /// WebSockets cut because their peer is slow, since it began.
    pub slow_peers_cut: u64,
}
