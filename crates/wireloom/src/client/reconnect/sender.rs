//! Sending over the current connection, from any task.

use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::time::Instant;

use super::lock;
use super::sent_messages::SentMessages;
use crate::error::WebSocketError;
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
        *lock(&self.0) = link;
    }

    fn get(&self) -> Option<Arc<Link>> {
        lock(&self.0).clone()
    }
}

/// One connection, and the messages that were sent over it.
#[derive(Debug)]
pub(super) struct Link {
    /// Held while a message is recorded and queued: a ping confirms the messages that were recorded before it.
    sender: tokio::sync::Mutex<Sender>,
    confirm_after: Duration,
    sent: Mutex<Sent>,
}

#[derive(Debug)]
struct Sent {
    sent_messages: SentMessages,
    /// The task that waits for the next confirmation.
    waker: Option<Waker>,
}

impl Link {
    pub(super) fn new(sender: Sender, sent_messages: SentMessages, confirm_after: Duration) -> Arc<Self> {
        Arc::new(Self {
            sender: tokio::sync::Mutex::new(sender),
            confirm_after,
            sent: Mutex::new(Sent { sent_messages, waker: None }),
        })
    }

    /// The messages that were sent.
    pub(super) fn sent_messages(&self) -> impl DerefMut<Target = SentMessages> {
        SentGuard(lock(&self.sent))
    }

    /// As [`sent_messages`](Self::sent_messages); `waker` is woken when another message is sent.
    pub(super) fn sent_messages_with_waker(&self, waker: &Waker) -> impl Deref<Target = SentMessages> {
        let mut sent = lock(&self.sent);
        match &mut sent.waker {
            Some(own) => own.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        SentGuard(sent)
    }

    /// Sends a message, after those that are being sent.
    pub(super) async fn send(&self, message: Payload<'_>) -> Result<(), WebSocketError> {
        let mut sender = self.sender.lock().await;
        self.sent_messages().record(&message);
        let sent = sender.send(message).await;
        match &sent {
            Ok(()) => {
                self.confirm(&sender);
                let is_ping_due = {
                    let sent_messages = self.sent_messages();
                    sent_messages.needs_ping() && sent_messages.pinged_at.elapsed() >= self.confirm_after
                };
                if is_ping_due {
                    self.ping(&mut sender);
                }
            }
            // It was not queued.
            Err(WebSocketError::Closed | WebSocketError::Protocol(_)) => self.sent_messages().remove_last(),
            Err(_) => {}
        }
        drop(sender);
        if let Some(waker) = lock(&self.sent).waker.take() {
            waker.wake();
        }
        sent
    }

    /// Sends a ping, whose pong confirms the messages sent before it. False while a message is being sent: then its sender sends
    /// the ping, or wakes the task of [`sent_messages_with_waker`](Self::sent_messages_with_waker).
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
            self.sent_messages().record_ping(number, now);
        }
    }

    /// Records the pongs of the peer.
    pub(super) fn confirm(&self, sender: &Sender) {
        self.sent_messages().handle_pong(sender.pings_answered());
    }
}

struct SentGuard<'a>(MutexGuard<'a, Sent>);

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
    use tokio::io::AsyncReadExt as _;
    use wireloom_ws::Role;
    use wireloom_ws::handshake::Negotiated;

    use super::*;
    use crate::websocket::{WebSocket, WebSocketConfig};

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
        assert!(link.sent_messages().needs_ping() && !link.sent_messages().awaits_pong());
        // The queue has room again.
        let mut read = vec![0; 208];
        let flush = async { link.sender.lock().await.flush().await.unwrap() };
        let (read, ()) = tokio::join!(peer.read_exact(&mut read), flush);
        read.unwrap();
        assert!(link.try_ping());
        assert!(link.sent_messages().awaits_pong());
    }
}
