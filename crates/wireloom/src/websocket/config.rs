//! The configuration of an open WebSocket.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use wireloom_ws::Keepalive;

use super::interned::{Kept, interned};
use super::observer::Observer;
use crate::transport::ring;

/// The configuration of one WebSocket. Fields may be added: use struct update, `..WebSocketConfig::default()`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebSocketConfig {
    /// The configuration of the protocol core: limits, keepalive, close timeout, delivery in messages or chunks.
    pub core: wireloom_ws::Config,
    /// The policy for a peer that reads more slowly than this end sends.
    pub slow_peer: SlowPeer,
    /// Whether messages to many WebSockets ([`Fanout`](super::Fanout)) may be written by io_uring.
    pub io_uring: IoUring,
    /// Receives events; none by default.
    pub observer: Option<Observer>,
}

/// Whether writes to many connections use io_uring, which takes one system call for up to 32 of them. It needs Linux 6.1 or later. The
/// messages, their order and all errors are the same either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum IoUring {
    /// Where the kernel allows it and it pays. Where seccomp forbids it, as the default profiles of containers do, plain writes are used.
    #[default]
    Auto,
    /// As [`Auto`](Self::Auto), but a server does not start where the kernel does not allow it.
    On,
    /// Never.
    Off,
}

impl IoUring {
    /// Whether this process may use io_uring here.
    ///
    /// # Errors
    /// The kernel is too old, is not Linux, or forbids it.
    pub fn check() -> std::io::Result<()> {
        ring::check()
    }
}

impl WebSocketConfig {
    /// The defaults of a client: those of [`Default`], and keepalive. A ping after 20 s without a byte from the peer keeps the
    /// mappings of NATs and proxies alive; the connection has failed after 60 s.
    pub fn client() -> Self {
        let mut config = Self::default();
        config.core.keepalive =
            Some(Keepalive { ping_after: Duration::from_secs(20), dead_after: Duration::from_secs(60) });
        config
    }
}

/// A [`WebSocketConfig`] that many WebSockets share.
#[derive(Clone, Debug)]
pub(crate) struct SharedConfig {
    /// Without its observer: WebSockets drop that at their end, because it may hold senders of them.
    pub(super) config: Arc<WebSocketConfig>,
    pub(super) observer: Option<Observer>,
}

impl SharedConfig {
    pub(crate) fn io_uring(&self) -> IoUring {
        self.config.io_uring
    }
}

thread_local! {
    /// Servers choose the same configuration for each connection.
    static KEPT: Kept<WebSocketConfig> = const { RefCell::new(VecDeque::new()) };
}

/// One that is shared already, if it is equal.
fn shared(config: WebSocketConfig) -> Arc<WebSocketConfig> {
    if config == **DEFAULT { DEFAULT.clone() } else { interned(config, &KEPT) }
}

/// The default configuration, which all WebSockets that have no other share.
static DEFAULT: LazyLock<Arc<WebSocketConfig>> = LazyLock::new(Arc::default);

impl Default for SharedConfig {
    fn default() -> Self {
        Self { config: DEFAULT.clone(), observer: None }
    }
}

impl From<WebSocketConfig> for SharedConfig {
    fn from(mut config: WebSocketConfig) -> Self {
        let observer = config.observer.take();
        Self { config: shared(config), observer }
    }
}

/// The policy for messages that are sent while the peer is slow: while
/// [`queued_len_high`](wireloom_ws::Limits::queued_len_high) bytes are queued, or bytes have been queued for too long.
///
/// Bytes leave the queue when the transport accepts them: the kernel, or the window of a stream over HTTP/2. A message that is
/// queued is never removed: its first bytes may have left, and with compression later messages refer to it. So the newest message
/// is the one that is dropped.
///
/// The deadlines are watched by the futures of the sender and the receiver, and by the task that flushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SlowPeer {
    /// Sending waits; a peer that accepts no bytes is disconnected.
    Wait {
        /// The longest time in which the peer may accept less than 1 KiB of the queue. Longer than any pause of an honest peer: 60 s
        /// by default.
        stall_timeout: Duration,
    },
    /// The message is not sent; [`Sender::dropped`](super::Sender::dropped) counts it. A peer that accepts no bytes is disconnected.
    DropNewest {
        /// Nothing is queued behind bytes that have been queued for this time.
        queue_timeout: Duration,
        /// As for [`Wait`](Self::Wait).
        stall_timeout: Duration,
    },
    /// The peer is disconnected, also while nothing is sent. Messages that have arrived are still returned, and then the error.
    Disconnect {
        /// The longest time that bytes may be queued.
        queue_timeout: Duration,
    },
}

impl SlowPeer {
    /// The queue timeout and the stall timeout.
    pub(super) fn timeouts(self) -> (Duration, Duration) {
        match self {
            Self::Wait { stall_timeout } => (Duration::MAX, stall_timeout),
            Self::DropNewest { queue_timeout, stall_timeout } => (queue_timeout, stall_timeout),
            Self::Disconnect { queue_timeout } => (queue_timeout, queue_timeout),
        }
    }
}

impl Default for SlowPeer {
    fn default() -> Self {
        Self::Wait { stall_timeout: Duration::from_secs(60) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_configurations_share_memory() {
        let config = || WebSocketConfig { io_uring: IoUring::Off, ..WebSocketConfig::default() };
        let [one, other] = [config(), config()].map(|config| SharedConfig::from(config).config);
        assert!(Arc::ptr_eq(&one, &other) && *one == config());
        let default = SharedConfig::from(WebSocketConfig::default()).config;
        assert_eq!(*default, WebSocketConfig::default());
    }
}
