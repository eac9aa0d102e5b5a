//! Connections for HTTP/1.1 that are kept between requests (RFC 9112 §9.3).
//!
//! ```text
//! request -> idle connection, or a new one -> response complete, nothing left to read -> idle -> idle_timeout -> closed
//! ```

use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use bytes::BytesMut;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::Connector;
use super::exchange::{Exchange, Response};
use super::http1::{Http1, Unanswered};
use super::http11::Server;
use super::request::Request;
use super::target::Target;
use crate::deadline::after;
use crate::error::Error;
use crate::transport::poll_read;

/// Sends requests over HTTP/1.1, and keeps their connections for later ones. Clones share the connections, which are closed when
/// the last clone is dropped.
///
/// A server may close a connection while a request is on its way to it. The request is then sent once more, over a new connection,
/// if no byte of the response has arrived, its content is not a stream, and it may be processed twice: its method is idempotent
/// (RFC 9110 §9.2.2), [`Request::idempotent`] says so, or nothing of it was sent.
///
/// ```no_run
/// use wireloom::Connector;
/// use wireloom::client::{Pool, Request};
///
/// # async fn example() -> Result<(), wireloom::Error> {
/// let pool = Pool::new(Connector::new());
/// for page in 1..=3 {
///     let mut response = pool.request(Request::get(format!("http://localhost:8000/{page}"))).await?;
///     println!("{}", response.status);
///     // The connection can be used again once the content has been read.
///     let content = response.body.bytes().await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    /// The same for all connections: a kept one was opened as a new one would be.
    connector: Connector,
    idle_max: usize,
    idle_timeout: Duration,
    idle: Mutex<IdleConnections>,
}

#[derive(Default)]
struct IdleConnections {
    /// At most `idle_max`, the one that was used last at the end.
    connections: Vec<Idle>,
    /// The task that closes those that expire. It ends with its runtime.
    reaper: Option<AbortHandle>,
}

/// A connection on which a response has been received completely.
struct Idle {
    server: Server,
    connection: Http1,
    expires_at: Instant,
}

/// Where a connection returns to.
pub(super) struct Home {
    shared: Weak<Shared>,
    server: Server,
}

impl Pool {
    /// A pool whose connections are opened by this connector: 32 of them are kept, for 4 s, because common servers close them after 5 s.
    #[must_use]
    pub fn new(connector: Connector) -> Self {
        Self::with_limits(connector, 32, Duration::from_secs(4))
    }

    /// A pool that keeps at most `idle_max` connections that are not used, each for `idle_timeout`, or for a second less than the
    /// server announces in `Keep-Alive: timeout`, if that is shorter.
    #[must_use]
    pub fn with_limits(connector: Connector, idle_max: usize, idle_timeout: Duration) -> Self {
        let idle = Mutex::default();
        Self { shared: Arc::new(Shared { connector, idle_max, idle_timeout, idle }) }
    }

    /// Sends a request, and waits for the response. Redirects are not followed.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the request, and closes its connection.
    ///
    /// # Errors
    /// As for [`Connector::request`].
    pub async fn request(&self, request: Request) -> Result<Response, Error> {
        let connector = &self.shared.connector;
        let target = Target::http(request.url())?.for_request(&request);
        let headers = connector.headers_for(&target)?;
        let server = Server::from(&target);
        let send = |connection: Http1, request| {
            let home = Home { shared: Arc::downgrade(&self.shared), server: server.clone() };
            connection.send(&target, connector, &headers, request, Some(home))
        };
        let pending = match self.take(&server).await {
            None => {
                let opened = connector.connect_http1(&target).await?;
                send(connector.ready_for(&request, &target, &headers, opened).await?, request)?
            }
            Some(kept) => {
                let (is_idempotent, again) = (request.is_idempotent(), request.try_clone());
                let mut pending = send(kept, request)?;
                match (pending.unanswered().await, again) {
                    (Some(Unanswered { was_sent }), Some(again)) if is_idempotent || !was_sent => {
                        send(connector.connect_http1(&target).await?, again)?
                    }
                    _ => pending,
                }
            }
        };
        Exchange::http1(pending).response().await
    }

    /// A connection to a server that is still open.
    async fn take(&self, server: &Server) -> Option<Http1> {
        loop {
            let mut connection = self.shared.take(server)?;
            // RFC 9112 §9.3: a server sends nothing between responses, but the end of the connection.
            let mut bytes = BytesMut::new();
            let is_quiet = poll_fn(|cx| {
                Poll::Ready(poll_read(cx, &mut connection.io, &mut bytes).is_pending() && bytes.is_empty())
            });
            // The budget of the task must not make a connection that has ended look quiet.
            if tokio::task::unconstrained(is_quiet).await {
                return Some(connection);
            }
        }
    }
}

impl Shared {
    fn take(&self, server: &Server) -> Option<Http1> {
        let now = Instant::now();
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let is_usable = |one: &Idle| one.server == *server && one.expires_at > now;
        let at = idle.connections.iter().rposition(is_usable)?;
        Some(idle.connections.remove(at).connection)
    }

    /// Removes what has expired; returns when the next one expires.
    fn expire(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let expired: Vec<_> = idle.connections.extract_if(.., |one| one.expires_at <= now).collect();
        let next = idle.connections.iter().map(|one| one.expires_at).min();
        if next.is_none() {
            idle.reaper = None;
        }
        drop(idle);
        drop(expired);
        next
    }
}

impl Home {
    /// Keeps a connection whose response is complete. `announced` is how long the server keeps it, if it said so.
    pub(super) fn put(self, connection: Http1, announced: Option<Duration>) {
        let Some(shared) = self.shared.upgrade() else { return };
        let announced = announced.map(|timeout| timeout.saturating_sub(Duration::from_secs(1)));
        let timeout = announced.map_or(shared.idle_timeout, |announced| announced.min(shared.idle_timeout));
        if timeout.is_zero() || shared.idle_max == 0 {
            return;
        }
        // Outside of a runtime nothing would close it.
        let Ok(runtime) = Handle::try_current() else { return };
        let expires_at = after(Instant::now(), timeout);
        let mut idle = shared.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = (idle.connections.len() >= shared.idle_max).then(|| idle.connections.remove(0));
        idle.connections.push(Idle { server: self.server, connection, expires_at });
        if idle.reaper.as_ref().is_none_or(AbortHandle::is_finished) {
            idle.reaper = Some(runtime.spawn(reap(Arc::downgrade(&shared), expires_at)).abort_handle());
        }
        drop(idle);
        drop(oldest);
    }
}

/// Closes connections when they expire, until there are none.
async fn reap(shared: Weak<Shared>, mut next: Instant) {
    loop {
        tokio::time::sleep_until(next).await;
        let Some(at) = shared.upgrade().and_then(|shared| shared.expire()) else { return };
        next = at;
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let idle = self.shared.idle.lock().unwrap_or_else(PoisonError::into_inner).connections.len();
        f.debug_struct("Pool").field("idle", &idle).finish_non_exhaustive()
    }
}
