//! Sending over the current connection, from any task.

use std::fmt;
use std::future::poll_fn;
use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::Instant;

use super::lock;
use super::sent_messages::{SentMessages, Taken, owned};
use crate::error::WebSocketError;
use crate::guard::{Deferred, Guard, Guardable, Guarded, WakerSlot};
use crate::websocket::{Payload, Sender};

/// Sends over the current connection of a [`Reconnecting`](super::Reconnecting) WebSocket, from any task. Clones send one message
/// after the other.
///
/// ```no_run
/// # async fn example(socket: wireloom::client::Reconnecting) -> Result<(), wireloom::Error> {
/// let (mut sender, mut socket) = socket.split();
/// tokio::spawn(async move {
///     // `WebSocketError::Closed` while there is no connection.
///     while sender.send("tick").await.is_ok() {
///         tokio::time::sleep(std::time::Duration::from_secs(1)).await;
///     }
/// });
/// while let Some(step) = socket.next().await? {
///     println!("{step:?}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ReconnectingSender {
    links: Links,
}

impl ReconnectingSender {
    pub(super) fn new(links: Links) -> Self {
        Self { links }
    }

    /// Sends a message over the current connection; see [`Reconnecting::send`](super::Reconnecting::send).
    ///
    /// # Cancel safety
    /// As for [`Reconnecting::send`](super::Reconnecting::send).
    ///
    /// # Errors
    /// As for [`Reconnecting::send`](super::Reconnecting::send).
    pub async fn send(&mut self, message: impl Into<Payload<'_>>) -> Result<(), WebSocketError> {
        let link = self.links.get().ok_or(WebSocketError::Closed)?;
        link.send(message.into()).await
    }

    /// Whether there is a connection.
    pub fn is_connected(&self) -> bool {
        self.links.get().is_some()
    }
}

/// The current connection, for all senders.
#[derive(Clone, Debug, Default)]
pub(super) struct Links(Arc<Mutex<Option<Arc<Link>>>>);

impl Links {
    pub(super) fn set(&self, link: Option<Arc<Link>>) {
        // The old one is dropped after the unlock.
        let _old = std::mem::replace(&mut *lock(&self.0), link);
    }

    fn get(&self) -> Option<Arc<Link>> {
        lock(&self.0).clone()
    }
}

/// One connection, and the messages that were sent over it.
pub(super) struct Link {
    /// Held while a message is recorded and queued: a ping confirms the messages that were recorded before it.
    sender: tokio::sync::Mutex<Sender>,
    confirm_after: Duration,
    sent: Guarded<Sent>,
}

struct Sent {
    sent_messages: SentMessages,
    /// The task that waits for the next confirmation.
    waker: WakerSlot,
    deferred: Deferred,
}

impl Guardable for Sent {
    fn deferred(&mut self) -> &mut Deferred {
        &mut self.deferred
    }

    fn before_unlock(&mut self) {
        let forgotten = self.sent_messages.take_forgotten();
        if !forgotten.is_empty() {
            self.deferred.drop_later(Box::new(forgotten));
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("confirm_after", &self.confirm_after).finish_non_exhaustive()
    }
}

impl Link {
    pub(super) fn new(sender: Sender, sent_messages: SentMessages, confirm_after: Duration) -> Arc<Self> {
        Arc::new(Self {
            sender: tokio::sync::Mutex::new(sender),
            confirm_after,
            sent: Guarded::new(Sent {
                sent_messages,
                waker: WakerSlot::default(),
                deferred: Deferred::default(),
            }),
        })
    }

    /// The messages that were sent.
    pub(super) fn sent_messages(&self) -> impl DerefMut<Target = SentMessages> {
        SentGuard(self.sent.lock())
    }

    /// As [`sent_messages`](Self::sent_messages); the task is woken when another message is sent.
    pub(super) fn poll_sent_messages(&self, cx: &Context<'_>) -> impl Deref<Target = SentMessages> {
        let mut guard = self.sent.lock();
        let Sent { waker, deferred, .. } = &mut *guard;
        deferred.register(waker, cx);
        SentGuard(guard)
    }

    /// Sends a message, after those that are being sent.
    pub(super) async fn send(&self, message: Payload<'_>) -> Result<(), WebSocketError> {
        // Also when this future is dropped, after its lock: no one else would ping.
        let _woken = WakeOnDrop(self);
        let mut sender = self.sender.lock().await;
        let is_kept = self.sent_messages().keeps(&message);
        let mut copy = is_kept.then(|| owned(&message));
        let queued = poll_fn(|cx| {
            // In one poll, so that a message counts only if it was queued, and counts when the connection is lost meanwhile.
            self.sent_messages().begin(copy.take());
            let queued = sender.poll_queue_message(cx, &message);
            match &queued {
                Poll::Ready(Ok(true)) => self.sent_messages().commit(),
                // It may have waited for room.
                _ => match self.sent_messages().cancel() {
                    Ok(cancelled) => copy = cancelled,
                    Err(taken) => return Poll::Ready(Err(taken)),
                },
            }
            queued.map(Ok)
        });
        match queued.await {
            Ok(Ok(true)) => {}
            // Dropped, as the policy for slow peers says.
            Ok(Ok(false)) => return Ok(()),
            Err(Taken) => return Err(WebSocketError::ConnectionLost),
            Ok(Err(_)) if !sender.is_open() => return Err(WebSocketError::Closed),
            Ok(Err(error)) => return Err(error),
        }
        // From here on the message counts: it may have arrived.
        sender.write_queued().await.map_err(|error| match error {
            WebSocketError::Closed => WebSocketError::ConnectionLost,
            error => error,
        })?;
        self.confirm(&sender);
        let is_ping_due = {
            let sent_messages = self.sent_messages();
            sent_messages.needs_ping() && sent_messages.pinged_at.elapsed() >= self.confirm_after
        };
        if is_ping_due {
            self.ping(&mut sender);
        }
        Ok(())
    }

    /// Sends a ping, whose pong confirms the messages sent before it. False while a message is being sent: then its sender sends
    /// the ping, or wakes the task of [`poll_sent_messages`](Self::poll_sent_messages).
    pub(super) fn try_ping(&self) -> bool {
        self.sender.try_lock().map(|mut sender| self.ping(&mut sender)).is_ok()
    }

    fn ping(&self, sender: &mut Sender) {
        // Keepalive may send a ping in between: then the pong of this one has a higher number, which confirms as well.
        let before = sender.pings_sent();
        let number = before.wrapping_add(1);
        {
            let payload = number.to_be_bytes();
            // The first poll queues the ping; the receiver writes it.
            let mut pinging = pin!(sender.ping(&payload));
            let _ = pinging.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
        let now = Instant::now();
        if sender.pings_sent() == before {
            // The send queue is full, or the connection is closing. There will be no pong; the next ping is due later.
            self.sent_messages().pinged_at = now;
        } else {
            self.sent_messages().record_ping(number, sender.queued_end(), now);
        }
    }

    /// Records the pongs of the peer.
    pub(super) fn confirm(&self, sender: &Sender) {
        self.sent_messages().handle_pong(sender.pings_answered());
    }
}

/// Wakes the task of [`Link::poll_sent_messages`] when it is dropped.
struct WakeOnDrop<'a>(&'a Link);

impl Drop for WakeOnDrop<'_> {
    fn drop(&mut self) {
        let mut guard = self.0.sent.lock();
        let Sent { waker, deferred, .. } = &mut *guard;
        deferred.wake(waker);
    }
}

struct SentGuard<'a>(Guard<'a, Sent>);

impl Deref for SentGuard<'_> {
    type Target = SentMessages;

    fn deref(&self) -> &SentMessages {
        &self.0.sent_messages
    }
}

impl DerefMut for SentGuard<'_> {
    fn deref_mut(&mut self) -> &mut SentMessages {
        &mut self.0.sent_messages
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use bytes::Bytes;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use wireloom_ws::Role;
    use wireloom_ws::handshake::Negotiated;

    use super::*;
    use crate::websocket::{WebSocket, WebSocketConfig};

    // A message that the application shares, and a task that is woken in place.
    #[tokio::test]
    async fn code_of_the_application_may_use_the_connection() {
        struct CallBack(Arc<Link>, Arc<AtomicUsize>);

        impl CallBack {
            fn call(&self) {
                assert!(self.0.sent_messages().sent() > 0);
                self.1.fetch_add(1, Ordering::Relaxed);
            }
        }

        impl AsRef<[u8]> for CallBack {
            fn as_ref(&self) -> &[u8] {
                b"message"
            }
        }

        impl Drop for CallBack {
            fn drop(&mut self) {
                self.call();
            }
        }

        impl Wake for CallBack {
            fn wake(self: Arc<Self>) {
                self.call();
            }
        }

        let (_peer, transport) = tokio::io::duplex(1 << 10);
        let config = WebSocketConfig::default();
        let (sender, _receiver) =
            WebSocket::from_transport(transport, Role::Client, Negotiated::default(), None, config, &[])
                .split();
        let link = Link::new(sender, SentMessages::new(100, Instant::now()), Duration::ZERO);
        let calls = Arc::new(AtomicUsize::new(0));
        let call_back = || CallBack(link.clone(), calls.clone());
        link.sent_messages().record(&Payload::Shared(Bytes::from_owner(call_back())));
        link.sent_messages().record_ping(1, 0, Instant::now());
        for _ in 0..2 {
            // The second one replaces the first, whose last reference this is.
            let waker = Waker::from(Arc::new(call_back()));
            drop(link.poll_sent_messages(&Context::from_waker(&waker)));
        }
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        // The message has arrived, and is dropped.
        link.sent_messages().handle_pong(1);
        assert_eq!(calls.load(Ordering::Relaxed), 2);
        // Wakes the task, whose last reference is dropped too.
        link.send("text".into()).await.unwrap();
        assert_eq!(calls.load(Ordering::Relaxed), 4);
    }

    // A message that waits for room, or is refused, is not on its way.
    #[tokio::test]
    async fn a_message_that_was_not_queued_does_not_count() {
        for room in [10, 1 << 10] {
            let (_peer, transport) = tokio::io::duplex(room);
            let mut config = WebSocketConfig::default();
            config.core.limits.queued_len_high = 100;
            let (mut sender, _receiver) =
                WebSocket::from_transport(transport, Role::Client, Negotiated::default(), None, config, &[])
                    .split();
            let is_congested = room < 200;
            sender.feed(&[7; 200]).await.unwrap();
            if !is_congested {
                sender.close(wireloom_ws::CloseCode::NORMAL, "").await.unwrap();
            }
            let only_one = size_of::<crate::OwnedMessage>();
            let link = Link::new(sender, SentMessages::new(only_one, Instant::now()), Duration::ZERO);
            link.sent_messages().record(&"kept".into());
            {
                let mut sending = pin!(link.send("new".into()));
                let sent = sending.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                assert!(
                    if is_congested { sent.is_pending() } else { matches!(sent, Poll::Ready(Err(_))) },
                    "{sent:?}"
                );
            }
            let mut sent_messages = link.sent_messages();
            assert_eq!((sent_messages.sent(), sent_messages.unconfirmed()), (1, 1), "{room}");
            assert_eq!(sent_messages.take_kept().len(), 1, "{room}");
        }
    }

    // The peer closes while the transport accepts nothing: `Closed` would say that the message was not sent.
    #[tokio::test(start_paused = true)]
    async fn a_message_that_was_queued_when_the_peer_closed_may_have_arrived() {
        let (mut peer, transport) = tokio::io::duplex(10);
        let config = WebSocketConfig::default();
        let (sender, mut receiver) =
            WebSocket::from_transport(transport, Role::Client, Negotiated::default(), None, config, &[])
                .split();
        let link = Link::new(sender, SentMessages::new(200, Instant::now()), Duration::ZERO);
        let payload = [7; 200];
        let mut sending = pin!(link.send((&payload).into()));
        assert!(sending.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        peer.write_all(&[0x88, 0]).await.unwrap();
        peer.shutdown().await.unwrap();
        assert!(receiver.recv().await.unwrap().is_none());
        assert_eq!(sending.await, Err(WebSocketError::ConnectionLost));
        assert_eq!(link.sent_messages().take_kept().len(), 1);
    }

    // The message may have been queued. A ping has to confirm it, and to find a peer that is gone.
    #[tokio::test]
    async fn a_send_that_is_cancelled_wakes_the_task_that_pings() {
        struct Woken(AtomicUsize);

        impl Wake for Woken {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }

        let (_peer, transport) = tokio::io::duplex(10);
        let config = WebSocketConfig::default();
        let (sender, _receiver) =
            WebSocket::from_transport(transport, Role::Client, Negotiated::default(), None, config, &[])
                .split();
        let link = Link::new(sender, SentMessages::new(0, Instant::now()), Duration::ZERO);
        let woken = Arc::new(Woken(AtomicUsize::new(0)));
        {
            let payload = [7; 200];
            let mut sending = pin!(link.send((&payload).into()));
            assert!(sending.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            assert!(!link.try_ping());
            drop(link.poll_sent_messages(&Context::from_waker(&Waker::from(woken.clone()))));
        }
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert!(link.try_ping() && link.sent_messages().awaited_end().is_some());
    }

    // Waiting for its pong would end in a loss of a connection that works.
    #[tokio::test]
    async fn a_ping_that_was_refused_is_not_awaited() {
        let (mut peer, transport) = tokio::io::duplex(10);
        let mut config = WebSocketConfig::default();
        config.core.limits.queued_len_max = 100;
        let (mut sender, _receiver) =
            WebSocket::from_transport(transport, Role::Client, Negotiated::default(), None, config, &[])
                .split();
        sender.feed(&[7; 200]).await.unwrap();
        let link = Link::new(sender, SentMessages::new(0, Instant::now()), Duration::ZERO);
        link.sent_messages().record(&"a".into());
        assert!(link.try_ping());
        assert!(link.sent_messages().needs_ping() && link.sent_messages().awaited_end().is_none());
        // The queue has room again.
        let mut read = vec![0; 208];
        let flush = async { link.sender.lock().await.flush().await.unwrap() };
        let (read, ()) = tokio::join!(peer.read_exact(&mut read), flush);
        read.unwrap();
        assert!(link.try_ping());
        assert!(link.sent_messages().awaited_end().is_some());
    }
}
