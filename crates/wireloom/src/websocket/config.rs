//! What an endpoint chooses for an open WebSocket, beyond what the core chooses.

use std::time::Duration;

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

/// What happens to a message that is sent while
/// [`queued_len_high`](wireloom_ws::Limits::queued_len_high) bytes wait for the peer already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SlowPeer {
    /// Sending waits; when the peer takes nothing for so long, the connection is cut.
    Wait {
        /// Longer than any pause of an honest peer: 60 s by default.
        cut_after: Duration,
    },
    /// The message is not sent; [`Sender::dropped`](super::Sender::dropped) counts it.
    DropNewest,
    /// The connection is cut.
    Disconnect,
}

impl Default for SlowPeer {
    fn default() -> Self {
        Self::Wait { cut_after: Duration::from_secs(60) }
    }
}
