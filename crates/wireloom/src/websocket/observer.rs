//! What can be watched of an open WebSocket, by an application's own eyes or as events of `tracing`. Nothing is noted while
//! nobody watches.

use std::fmt;
use std::sync::Arc;

use wireloom_ws::frame::Header;
use wireloom_ws::{End, Kind};

use crate::error::Error;

/// Something that happened on a WebSocket. Payloads are not shown.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Observed<'a> {
    /// The header of a frame arrived; of a frame of a message, whatever became of its payload.
    FrameRead(Header),
    /// A frame was put into the queue that is written next.
    FrameWritten(Header),
    /// A message was found whole, or its last piece.
    MessageRead {
        /// Text or binary.
        kind: Kind,
        /// Its length, inflated if it came compressed, in bytes.
        len: u64,
    },
    /// A message was put into the queue that is written next, or the last piece of one.
    MessageWritten {
        /// Text or binary.
        kind: Kind,
        /// Its length, or its last piece's, before it is compressed, in bytes.
        len: u64,
    },
    /// The peer broke a rule or a limit, or the transport failed.
    Error(&'a Error),
    /// The first Close frame went either way, or there will be none: why, and who began.
    CloseBegun(&'a End),
    /// All is over.
    CloseDone(&'a End),
}

/// Watches WebSockets: any `Fn(&Observed<'_>)`. Set it as [`WebSocketConfig::observer`](super::WebSocketConfig::observer).
///
/// It is called where things happen, so it should be quick, and must not use the WebSocket that it watches.
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
    /// This has happened.
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
    /// Nobody watches.
    pub fn none() -> Self {
        Self(None)
    }

    /// This watches.
    pub fn with(observer: impl Observer) -> Self {
        Self(Some(Arc::new(observer)))
    }

    pub(super) fn tell(&self, event: &Observed<'_>) {
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

/// The same observer, or none both.
impl PartialEq for Watch {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(own), Some(other)) => Arc::ptr_eq(own, other),
            (own, other) => own.is_none() && other.is_none(),
        }
    }
}

impl Eq for Watch {}

/// The events of `tracing`: what ends a connection, and why. The peer's words and payloads are left out: they may be secret.
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
        Observed::MessageRead { .. } | Observed::MessageWritten { .. } => {}
    }
}
