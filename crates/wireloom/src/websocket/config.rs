//! What an endpoint chooses for an open WebSocket, beyond what the core chooses.

use std::time::Duration;

use wireloom_ws::Keepalive;

use super::observer::Watch;

/// Choices for one WebSocket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WebSocketConfig {
    /// The core's choices: limits, keepalive, how long the closing handshake may take, whether messages come whole or in
    /// pieces.
    pub core: wireloom_ws::Config,
    /// What to do when the peer reads more slowly than this end sends.
    pub slow_peer: SlowPeer,
    /// Who watches; nobody by default.
    pub observer: Watch,
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

/// What happens to a message that is sent while the peer is slow: while
/// [`queued_len_high`](wireloom_ws::Limits::queued_len_high) bytes wait for it already, or something has waited for too long.
///
/// A message has left when the transport has taken it: the kernel, or the window of a stream over HTTP/2. What has been
/// queued is never taken back. Its first bytes may have left, and with compression the messages behind it refer to it; so it
/// is always the newest that is dropped, and a peer that comes back gets what it had missed before what is new.
///
/// Whoever receives or sends sees to the times; without either, nothing happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SlowPeer {
    /// Sending waits; a peer that takes nothing is cut.
    Wait {
        /// How long it may take nothing (less than 1 KiB of what waits), although something waits. Longer than any pause of
        /// an honest peer: 60 s by default.
        cut_after: Duration,
    },
    /// The message is not sent; [`Sender::dropped`](super::Sender::dropped) counts it. A peer that takes nothing at all is cut
    /// all the same: what it holds here is no use to it.
    DropNewest {
        /// Nothing new is queued behind what has waited for so long.
        late_after: Duration,
        /// As for [`Wait`](Self::Wait).
        cut_after: Duration,
    },
    /// The connection is cut, also when something has waited for too long and nothing is sent.
    Disconnect {
        /// How long what was sent may wait.
        late_after: Duration,
    },
}

impl SlowPeer {
    /// After what time something that waits is late, and a peer that takes nothing is cut.
    pub(super) fn bounds(self) -> (Duration, Duration) {
        match self {
            Self::Wait { cut_after } => (Duration::MAX, cut_after),
            Self::DropNewest { late_after, cut_after } => (late_after, cut_after),
            Self::Disconnect { late_after } => (late_after, late_after),
        }
    }
}

impl Default for SlowPeer {
    fn default() -> Self {
        Self::Wait { cut_after: Duration::from_secs(60) }
    }
}
