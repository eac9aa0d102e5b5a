//! The configuration of a connection.

use crate::limits::Limits;
use core::time::Duration;

/// The configuration of one open connection; [`crate::handshake`] has that of the handshake. Fields may be added: use struct update.
///
/// ```
/// use std::time::Duration;
/// use wireloom_ws::{Config, Limits};
///
/// let limits = Limits { message_len_max: 1 << 20, ..Limits::default() };
/// let config = Config { limits, close_timeout: Duration::from_secs(5), ..Config::default() };
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bounds on the memory that the peer can cause.
    pub limits: Limits,
    /// Whether messages are assembled or delivered in chunks.
    pub delivery: Delivery,
    /// Keepalive pings, and the silence that ends the connection; off by default.
    pub keepalive: Option<Keepalive>,
    /// The longest closing handshake, after which the transport is closed. 10 s: longer than any round trip, shorter than a person would
    /// wait. The time starts again whenever the peer has accepted at least 64 KiB of the send queue within it. In whole milliseconds,
    /// and at most 49 days.
    pub close_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            delivery: Delivery::Messages,
            keepalive: None,
            close_timeout: Duration::from_secs(10),
        }
    }
}

/// How messages are delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delivery {
    /// Whole: [`crate::Event::Text`] and [`crate::Event::Binary`].
    #[default]
    Messages,
    /// A message that arrived in one frame and one read is delivered whole, every other one as [`crate::Event::Chunk`]s as they arrive: no
    /// message is assembled.
    Chunks,
}

/// Keeping a quiet connection alive, and noticing a dead one (RFC 6455 §5.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// A ping is sent after this time without a byte from the peer; at least a millisecond.
    pub ping_after: Duration,
    /// The connection ends after this time without a byte from the peer; longer than `ping_after`. A connection that was not driven
    /// for longer sends its ping first and leaves the peer the difference of the two times to answer.
    pub dead_after: Duration,
}
