//! Events of an open WebSocket, for an [`Observer`] and for `tracing`. Without an observer nothing is recorded. Events are queued while the
//! state is locked and delivered after that, so that an observer may use the WebSocket that it observes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use wireloom_ws::frame::Header;
use wireloom_ws::{End, Initiator, Kind};

use crate::error::WebSocketError;
use crate::event_queue::EventQueue;

/// An event of a WebSocket. Payloads of messages are not shown.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ObserverEvent {
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
    PingRead(Vec<u8>),
    /// A pong arrived.
    PongRead {
        /// Its payload.
        payload: Vec<u8>,
        /// The time from the ping that it answers; `None` for an unsolicited pong.
        round_trip: Option<Duration>,
    },
    /// The peer broke a rule or a limit, or the transport failed.
    Error(WebSocketError),
    /// The closing handshake has begun, or there will be none; with the code and reason of the peer's Close frame if that was first.
    CloseBegun(End),
    /// The connection has ended. The last event, also of a WebSocket that is dropped while open.
    CloseDone(End),
}

/// Receives the events of WebSockets. Set it as [`WebSocketConfig::observer`](super::WebSocketConfig::observer).
///
/// The function is called by one task at a time, mostly by the one that causes the event, so it should be quick: while about a MiB of events
/// waits for it, nothing is received, and sending waits as for a full send queue, whatever the policy for a [`SlowPeer`](super::SlowPeer). It
/// holds no lock, and may use the WebSocket: one that holds a [`Sender`](super::Sender) keeps the connection open until it has ended. A
/// WebSocket drops its observer after [`ObserverEvent::CloseDone`].
///
/// It must not block on the WebSocket that it observes, nor on something that a task provides which sends over it, such as room in a channel:
/// both wait for the observer. Use [`try_send`](super::Sender::try_send) or a task.
///
/// ```
/// use wireloom::{Observer, ObserverEvent, WebSocketConfig};
///
/// let mut config = WebSocketConfig::default();
/// config.observer = Some(Observer::new(|event| {
///     if let ObserverEvent::FrameRead(frame) = event {
///         eprintln!("< {:?} of {} bytes", frame.opcode, frame.payload_len);
///     }
/// }));
/// ```
#[derive(Clone)]
pub struct Observer(Arc<dyn Fn(&ObserverEvent) + Send + Sync>);

impl Observer {
    /// Calls `observe` for each event.
    pub fn new(observe: impl Fn(&ObserverEvent) + Send + Sync + 'static) -> Self {
        Self(Arc::new(observe))
    }
}

/// Events in order, until the last one.
#[derive(Debug, Default)]
pub(super) struct NotificationQueue {
    /// Dropped with the last event: an observer may hold a sender of the WebSocket, which would keep both alive.
    observer: Option<Observer>,
    pub(super) events: EventQueue<ObserverEvent>,
    close: CloseEvents,
}

/// The events of the end that were queued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd)]
enum CloseEvents {
    #[default]
    None,
    /// [`ObserverEvent::CloseBegun`].
    Begun,
    /// [`ObserverEvent::CloseDone`] too.
    Done,
}

impl NotificationQueue {
    pub(super) fn new(observer: Observer) -> Self {
        Self { observer: Some(observer), ..Self::default() }
    }

    /// An event, unless the connection has ended: nothing follows [`ObserverEvent::CloseDone`].
    pub(super) fn push(&mut self, event: ObserverEvent) {
        if self.close < CloseEvents::Done {
            let len = event.len();
            self.events.push(event, len);
        }
    }

    /// Frames that were written, and the end of the connection if it has just begun.
    pub(super) fn push_written(&mut self, frames: Vec<Header>, end: Option<End>) {
        let begun = end.map(|end| (end.by, ObserverEvent::CloseBegun(end)));
        let (before, after) = match begun {
            // The peer's Close frame was the first.
            Some((Initiator::Peer, begun)) => (Some(begun), None),
            begun => (None, begun.map(|(_, begun)| begun)),
        };
        let frames = frames.into_iter().map(ObserverEvent::FrameWritten);
        before.into_iter().chain(frames).chain(after).for_each(|event| self.push(event));
    }

    /// Whether the event of the closing handshake has not been queued yet.
    pub(super) fn begin_close(&mut self) -> bool {
        let is_first = self.close == CloseEvents::None;
        if is_first {
            self.close = CloseEvents::Begun;
        }
        is_first
    }

    /// The connection has ended.
    pub(super) fn push_end(&mut self, end: End) {
        self.push(ObserverEvent::CloseDone(end));
        self.close = CloseEvents::Done;
    }

    /// The next event to deliver, the observer, which is to be dropped after that of the end, and whether there is room again.
    pub(super) fn next_delivery(&mut self) -> Option<(ObserverEvent, Option<Observer>, bool)> {
        let (event, has_room_again) = self.events.next_delivery()?;
        let observer = match event {
            ObserverEvent::CloseDone(_) => self.observer.take(),
            _ => self.observer.clone(),
        };
        Some((event, observer, has_room_again))
    }
}

impl ObserverEvent {
    /// Its memory in the queue, in bytes.
    fn len(&self) -> usize {
        let payload = match self {
            Self::PingRead(payload) | Self::PongRead { payload, .. } => payload.len(),
            _ => 0,
        };
        size_of::<Self>() + payload
    }
}

/// Whether the events of ends and errors may be traced. Few servers do so, and each connection has several. No subscriber is asked, because
/// the state is locked.
pub(super) fn is_traced() -> bool {
    #[cfg(feature = "tracing")]
    return tracing::Level::DEBUG <= tracing::level_filters::STATIC_MAX_LEVEL
        && tracing::Level::DEBUG <= tracing::level_filters::LevelFilter::current();
    #[cfg(not(feature = "tracing"))]
    false
}

/// Traces an event, and passes it to the observer if there is one.
pub(super) fn notify(observer: Option<&Observer>, event: &ObserverEvent) {
    #[cfg(feature = "tracing")]
    trace(event);
    if let Some(observer) = observer {
        (observer.0)(event);
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").finish_non_exhaustive()
    }
}

/// The same function.
impl PartialEq for Observer {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Observer {}

/// Emits the events of `tracing`. Reasons and payloads are left out: they may be secret.
#[cfg(feature = "tracing")]
fn trace(event: &ObserverEvent) {
    match event {
        ObserverEvent::Error(error) => tracing::debug!(%error, "the WebSocket failed"),
        ObserverEvent::CloseBegun(end) => {
            tracing::debug!(by = ?end.by, code = end.code().value(), "the WebSocket is closing");
        }
        ObserverEvent::CloseDone(end) => {
            tracing::debug!(by = ?end.by, code = end.code().value(), "the WebSocket is closed");
        }
        ObserverEvent::FrameRead(frame) => {
            tracing::trace!(opcode = ?frame.opcode, fin = frame.fin, len = frame.payload_len, "frame read");
        }
        ObserverEvent::FrameWritten(frame) => {
            tracing::trace!(opcode = ?frame.opcode, fin = frame.fin, len = frame.payload_len, "frame written");
        }
        ObserverEvent::PingRead(_)
        | ObserverEvent::PongRead { .. }
        | ObserverEvent::MessageRead { .. }
        | ObserverEvent::MessageWritten { .. } => {}
    }
}

#[cfg(test)]
mod tests {
    use wireloom_ws::Cause;

    use super::*;

    // A task that takes the place of a receiver finds the end again, while the transport lingers.
    #[test]
    fn nothing_is_reported_behind_the_end() {
        let mut queue = NotificationQueue::default();
        let end = End { by: Initiator::Transport, cause: Cause::TransportClosed };
        queue.push_end(end.clone());
        queue.push(ObserverEvent::Error(WebSocketError::ConnectionLost));
        queue.push_end(end);
        assert!(matches!(queue.next_delivery(), Some((ObserverEvent::CloseDone(_), ..))));
        assert!(queue.next_delivery().is_none());
    }
}
