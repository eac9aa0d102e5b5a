//! Events of an open WebSocket, for an [`Observer`] and for `tracing`. Without an observer nothing is recorded.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use wireloom_ws::frame::Header;
use wireloom_ws::{End, Kind};

use crate::error::Error;

/// An event of a WebSocket. Payloads of messages are not shown.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Observed<'a> {
    /// The header of a frame arrived.
    FrameRead(Header),
    /// A frame was queued for writing.
    FrameWritten(Header),
    /// A message has arrived completely.
    MessageRead {
        /// Text or binary.
        kind: Kind,
        /// Its length in bytes, after decompression.
        len: u64,
    },
    /// A message was queued for writing, or the last fragment of one.
    MessageWritten {
        /// Text or binary.
        kind: Kind,
        /// Its length in bytes, or that of its last fragment, before compression.
        len: u64,
    },
    /// A ping arrived, with this payload. It is answered without the application.
    PingRead(&'a [u8]),
    /// A pong arrived.
    PongRead {
        /// Its payload.
        payload: &'a [u8],
        /// The time from the ping that it answers; `None` for an unsolicited pong.
        round_trip: Option<Duration>,
    },
    /// The peer broke a rule or a limit, or the transport failed.
    Error(&'a Error),
    /// The closing handshake has begun, or there will be none; with the code and reason of the peer's Close frame if that was first.
    CloseBegun(&'a End),
    /// The connection has ended.
    CloseDone(&'a End),
}

/// Receives the events of WebSockets: any `Fn(&Observed<'_>)`. Set it as
/// [`WebSocketConfig::observer`](super::WebSocketConfig::observer).
///
/// It is called in the task that causes the event, so it should be quick. It holds no lock, and may use the WebSocket: one that holds a
/// [`Sender`](super::Sender) keeps the connection open until it has ended. A WebSocket drops its observer after [`Observed::CloseDone`].
///
/// ```
/// use wireloom::{Observed, Watch, WebSocketConfig};
///
/// let mut config = WebSocketConfig::default();
/// config.observer = Watch::with(|event: &Observed<'_>| {
///     if let Observed::FrameRead(frame) = event {
///         eprintln!("< {:?} of {} bytes", frame.opcode, frame.payload_len);
///     }
/// });
/// ```
pub trait Observer: Send + Sync + 'static {
    /// Receives an event.
    fn observe(&self, event: &Observed<'_>);
}

impl<F: Fn(&Observed<'_>) + Send + Sync + 'static> Observer for F {
    fn observe(&self, event: &Observed<'_>) {
        self(event);
    }
}

/// An [`Observer`], or none.
#[derive(Clone, Default)]
pub struct Watch(pub(super) Option<Arc<dyn Observer>>);

impl Watch {
    /// No observer.
    pub fn none() -> Self {
        Self(None)
    }

    /// This observer.
    pub fn with(observer: impl Observer) -> Self {
        Self(Some(Arc::new(observer)))
    }

    pub(super) fn notify(&self, event: &Observed<'_>) {
        #[cfg(feature = "tracing")]
        trace(event);
        if let Some(observer) = &self.0 {
            observer.observe(event);
        }
    }
}

impl From<Arc<dyn Observer>> for Watch {
    fn from(observer: Arc<dyn Observer>) -> Self {
        Self(Some(observer))
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Watch(set)" } else { "Watch(none)" })
    }
}

/// Equal if both are the same observer, or neither has one.
impl PartialEq for Watch {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(own), Some(other)) => Arc::ptr_eq(own, other),
            (own, other) => own.is_none() && other.is_none(),
        }
    }
}

impl Eq for Watch {}

/// Emits the events of `tracing`. Reasons and payloads are left out: they may be secret.
#[cfg(feature = "tracing")]
fn trace(event: &Observed<'_>) {
    match event {
        Observed::Error(error) => tracing::debug!(%error, "the WebSocket failed"),
        Observed::CloseBegun(end) => {
            tracing::debug!(by = ?end.by, code = end.code().value(), "the WebSocket is closing");
        }
        Observed::CloseDone(end) => {
            tracing::debug!(by = ?end.by, code = end.code().value(), "the WebSocket is closed");
        }
        Observed::FrameRead(frame) => {
            tracing::trace!(opcode = ?frame.opcode, fin = frame.fin, len = frame.payload_len, "frame read");
        }
        Observed::FrameWritten(frame) => {
            tracing::trace!(opcode = ?frame.opcode, fin = frame.fin, len = frame.payload_len, "frame written");
        }
        Observed::PingRead(_)
        | Observed::PongRead { .. }
        | Observed::MessageRead { .. }
        | Observed::MessageWritten { .. } => {}
    }
}
