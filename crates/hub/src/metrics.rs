//! Counters of a hub.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::client::Client;
use crate::outbox::Backlog;
use crate::shards::lock;

/// Counters of a hub since it started.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) connected: Counter,
    pub(crate) publications: Counter,
    pub(crate) dropped: Counter,
    pub(crate) evicted_slow: Counter,
    pub(crate) recovered: Counter,
    pub(crate) unrecovered: Counter,
    /// Refused commands, by error code.
    pub(crate) refused: Counters,
    /// Ended connections, by code.
    pub(crate) ended: Counters,
    pub(crate) wrong_keys: Counter,
    pub(crate) engine_failures: Counter,
}

/// A counter that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn increment(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters by code.
#[derive(Debug, Default)]
pub(crate) struct Counters(Mutex<BTreeMap<u32, u64>>);

impl Counters {
    pub(crate) fn increment(&self, code: u32) {
        *lock(&self.0).entry(code).or_default() += 1;
    }

    pub(crate) fn get(&self) -> BTreeMap<u32, u64> {
        lock(&self.0).clone()
    }
}

/// A client whose send queue is not empty; see [`Hub::slowest`](crate::Hub::slowest).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlowClient {
    /// The identifier of the connection, as other clients see it.
    pub client: String,
    /// Empty for an anonymous client.
    pub user: String,
    /// The address of the other end of the connection; `None` if the server that accepted the connection does not
    /// report it.
    pub peer: Option<SocketAddr>,
    /// The path of the hub, such as `/connection/websocket` or `/connection/sse`; `/rooms` for all rooms.
    pub path: &'static str,
    /// Bytes of messages that have not been written yet.
    pub queued_len: usize,
    /// Bytes of messages that have been written.
    pub written_len: u64,
}

impl SlowClient {
    pub(crate) fn new(client: &Client, backlog: Backlog) -> Self {
        Self {
            client: client.id.to_string(),
            user: client.user().to_owned(),
            peer: client.peer(),
            path: client.transport.path(),
            queued_len: backlog.queued,
            written_len: backlog.written,
        }
    }
}

/// The counters of a hub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HubStats {
    /// The current number of connections.
    pub clients: usize,
    /// The current number of channels with subscribers.
    pub channels: usize,
    /// The number of connections so far.
    pub connected: u64,
    /// The number of publications on this node so far.
    pub publications: u64,
    /// Publications that were dropped for slow clients.
    pub dropped: u64,
    /// Clients that were disconnected because they were slow.
    pub evicted_slow: u64,
    /// Clients that returned and recovered everything.
    pub recovered: u64,
    /// Clients that returned and could not recover.
    pub unrecovered: u64,
    /// Commands that were refused, by the code of the error ([`ErrorCode::code`](crate::protocol::ErrorCode::code), or one of the
    /// application's own).
    pub refused: BTreeMap<u32, u64>,
    /// Connections that have ended, by code ([`Disconnect::code`](crate::protocol::Disconnect::code)). Those that broke the WebSocket
    /// protocol have its close code.
    pub ended: BTreeMap<u32, u64>,
    /// Requests for the server API, and logins of the admin page, that were refused for their key.
    pub wrong_keys: u64,
    /// Operations of clients that failed in the engine: subscriptions, recoveries, publications, histories, presence, joins and leaves.
    pub engine_failures: u64,
}
