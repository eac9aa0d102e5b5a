//! The half that sends: queueing, batching, back-pressure.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use wireloom_ws::{CloseCode, Misuse};

use super::config::SlowPeer;
use super::message::Payload;
use super::state::{Half, Shared, State};
use crate::error::Error;

/// From so many bytes on a batch is written although more may come.
const BATCH_LEN_MAX: usize = 64 << 10;

/// So often answers leave that gather while a handler takes its time.
const GATHER_TIME_MAX: Duration = Duration::from_millis(2);

/// The half of a [`WebSocket`](super::WebSocket) that sends. The [`Receiver`](super::Receiver) need not be asked: it never
/// waits while this could go on.
pub struct Sender {
    pub(super) shared: Arc<Shared>,
}

impl Sender {
    /// Sends a message, and waits until it has been written, with all that was queued before it.
    ///
    /// While the receiver has further messages at hand that arrived together, the answers to them gather and leave in one
    /// write: with the last of them, when 64 KiB have gathered, or after a few milliseconds at the latest.
    ///
    /// # Cancel safety
    /// When the future is dropped the message has been queued as a whole or not at all. What has been queued leaves with the
    /// next thing that is sent or received.
    ///
    /// # Errors
    /// The connection is closed or has failed, or the peer is too slow and the policy is to cut it.
    pub async fn send(&mut self, message: impl Into<Payload<'_>>) -> Result<(), Error> {
        let message = message.into();
        match self.try_send(&message)? {
            Tried::Done => Ok(()),
            // Waiting is rare; in a box it weighs nothing on the tasks of connections that do not.
            Tried::Queued => Box::pin(self.flush()).await,
            Tried::Full => {
                Box::pin(async move {
                    self.feed(message).await?;
                    self.flush().await
                })
                .await
            }
        }
    }

    #[inline]
    fn try_send(&mut self, message: &Payload<'_>) -> Result<Tried, Error> {
        let mut state = self.shared.lock();
        let state = &mut *state;
        let Poll::Ready(queued) = queue(state, message) else { return Ok(Tried::Full) };
        queued?;
        if self.shared.is_at_hand() && may_gather(state) && self.is_watched(state) {
            return Ok(Tried::Done);
        }
        if let Poll::Ready(written) = state.poll_flush(None) {
            return written.map(|()| Tried::Done);
        }
        // Whoever receives goes on writing, also when this future is dropped.
        state.wake();
        Ok(match state.slow_peer {
            SlowPeer::Wait { .. } => Tried::Queued,
            _ => Tried::Done,
        })
    }

    /// Sees to it that what gathers leaves although nothing more should be sent or received.
    #[inline]
    fn is_watched(&self, state: &mut State) -> bool {
        if !state.watched
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            state.watched = true;
            runtime.spawn(Shared::flush_soon(Arc::downgrade(&self.shared), GATHER_TIME_MAX));
        }
        state.watched
    }

    /// Queues a message without writing it; waits only while the queue is full.
    ///
    /// # Cancel safety
    /// As for [`send`](Self::send).
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub async fn feed(&mut self, message: impl Into<Payload<'_>>) -> Result<(), Error> {
        let message = message.into();
        let shared = self.shared.clone();
        let queued = poll_fn(|cx| {
            let mut state = shared.lock();
            match queue(&mut state, &message) {
                Poll::Ready(queued) => Poll::Ready(queued),
                Poll::Pending => match state.poll_flush(Some((Half::Sender, &*cx))) {
                    Poll::Ready(Ok(())) => queue(&mut state, &message),
                    Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                    // A part of it may have left, and made room.
                    Poll::Pending => queue(&mut state, &message),
                },
            }
        });
        self.within_patience(queued).await
    }

    /// Writes everything that was queued.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub async fn flush(&mut self) -> Result<(), Error> {
        let shared = self.shared.clone();
        let flushed = poll_fn(|cx| shared.lock().poll_flush(Some((Half::Sender, &*cx))));
        self.within_patience(flushed).await
    }

    /// Sends a ping of up to 125 bytes. Its pong is not handed out; keepalive is the core's, by
    /// [`wireloom_ws::Config::keepalive`].
    ///
    /// # Errors
    /// As for [`send`](Self::send), and when the payload is too long.
    pub async fn ping(&mut self, payload: &[u8]) -> Result<(), Error> {
        {
            let mut state = self.shared.lock();
            let now = state.now();
            state.core.send_ping(now, payload)?;
        }
        self.flush().await
    }

    /// How many pings this end has sent, keepalive's among them.
    pub fn pings_sent(&self) -> u32 {
        self.shared.lock().core.pings_sent()
    }

    /// The newest of these that was answered, counted from 1: all that was sent before it has arrived.
    pub fn pings_answered(&self) -> u32 {
        self.shared.lock().core.pings_answered()
    }

    /// Begins the closing handshake: what is queued goes first, then the Close frame. Whoever receives is given what still
    /// arrives, and `None` when the peer has answered.
    ///
    /// # Errors
    /// A code that may not be sent, a reason over 123 bytes; the transport failed.
    pub async fn close(&mut self, code: CloseCode, reason: &str) -> Result<(), Error> {
        {
            let mut state = self.shared.lock();
            let now = state.now();
            state.core.close(now, code, reason)?;
            if let Some(receiver) = state.receiver.take() {
                // There is a deadline now.
                receiver.wake();
            }
        }
        match self.flush().await {
            Err(Error::Closed) => Ok(()),
            flushed => flushed,
        }
    }

    /// The close code that the peer is told when both halves are dropped while the connection is open: 1001 by default. That
    /// is how a task that is cancelled says why.
    pub fn close_on_drop(&mut self, code: CloseCode) {
        if code.is_sendable() {
            self.shared.lock().on_drop = code;
        }
    }

    /// Bytes that wait to be written.
    pub fn queued_len(&self) -> usize {
        self.shared.lock().core.queued_len()
    }

    /// Messages that [`SlowPeer::DropNewest`] did not send.
    pub fn dropped(&self) -> u64 {
        self.shared.lock().dropped
    }

    /// [`feed`](Self::feed) for those who poll: ready when a message can be queued.
    pub(super) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let mut state = self.shared.lock();
        if let Some(error) = &state.broken {
            return Poll::Ready(Err(error.clone()));
        }
        if !state.core.is_congested() {
            return Poll::Ready(Ok(()));
        }
        match state.poll_flush(Some((Half::Sender, &*cx))) {
            Poll::Pending if !state.core.is_congested() => Poll::Ready(Ok(())),
            flushed => flushed,
        }
    }

    pub(super) fn start_send(&mut self, message: &Payload<'_>) -> Result<(), Error> {
        Ok(put(&mut self.shared.lock(), message)?)
    }

    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.shared.lock().poll_flush(Some((Half::Sender, &*cx)))
    }

    /// Waits as long as the policy for slow peers allows, counted from the last byte that left.
    async fn within_patience(&self, work: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
        let SlowPeer::Wait { cut_after } = self.shared.lock().slow_peer else { return work.await };
        tokio::pin!(work);
        let mut queued = self.shared.lock().core.queued_len();
        loop {
            if let Ok(done) = tokio::time::timeout(cut_after, &mut work).await {
                return done;
            }
            let mut state = self.shared.lock();
            let left = state.core.queued_len();
            if left >= queued {
                state.cut(Error::SlowPeer);
                return Err(Error::SlowPeer);
            }
            queued = left;
        }
    }
}

/// What became of a message without waiting.
enum Tried {
    /// It left, or will without further ado.
    Done,
    /// It waits to be written.
    Queued,
    /// There was no room for it.
    Full,
}

/// Pending when there is no room.
fn queue(state: &mut State, message: &Payload<'_>) -> Poll<Result<(), Error>> {
    if let Some(error) = &state.broken {
        return Poll::Ready(Err(error.clone()));
    }
    if state.core.is_congested() {
        if matches!(state.slow_peer, SlowPeer::Wait { .. }) {
            return Poll::Pending;
        }
        // What the transport takes at once is not waited for.
        let _ = state.poll_flush(None);
    }
    if state.core.is_congested() {
        match state.slow_peer {
            SlowPeer::Wait { .. } => return Poll::Pending,
            SlowPeer::DropNewest => {
                state.dropped += 1;
                return Poll::Ready(Ok(()));
            }
            SlowPeer::Disconnect => {
                state.cut(Error::SlowPeer);
                return Poll::Ready(Err(Error::SlowPeer));
            }
        }
    }
    match put(state, message) {
        Err(wireloom_ws::Error::Misuse(Misuse::QueueFull { .. })) => Poll::Pending,
        Err(error) => Poll::Ready(Err(error.into())),
        Ok(()) => Poll::Ready(Ok(())),
    }
}

#[inline]
fn put(state: &mut State, message: &Payload<'_>) -> Result<(), wireloom_ws::Error> {
    match message {
        Payload::Text(text) => state.core.send_text(text),
        Payload::Binary(data) => state.core.send_binary(data),
        Payload::Shared(data) => state.core.send_bytes(data.clone()),
        Payload::SharedText(text) => state.core.send_text(text),
    }
}

/// Whether the answer may wait for those that follow it.
#[inline]
fn may_gather(state: &mut State) -> bool {
    state.deferred += 1;
    state.core.queued_len() < BATCH_LEN_MAX
}
