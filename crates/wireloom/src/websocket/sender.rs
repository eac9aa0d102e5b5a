//! The half that sends: queueing, batching, back-pressure.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use wireloom_ws::{CloseCode, End, Misuse};

use super::clock;
use super::config::SlowPeer;
use super::flush::{self, BATCH_LEN_MAX, COPIED_LEN_MAX, Flush};
use super::link::Traffic;
use super::message::Payload;
use super::observer::ObserverEvent;
use super::receiver::receive_in_task;
use super::session::SHARED_LEN_MIN;
use super::state::{Shared, State};
use super::waiters::Waiter;
use crate::error::WebSocketError;

/// Whether something was queued, or dropped by the policy; boxed errors keep the result in registers.
type Queued = Poll<Result<bool, Box<WebSocketError>>>;

type Waiting<'a> = Pin<Box<dyn Future<Output = Result<(), WebSocketError>> + Send + 'a>>;

/// The half of a [`WebSocket`](super::WebSocket) that sends. It never needs the [`Receiver`](super::Receiver) to be polled.
///
/// A clone sends over the same connection: one for each task that sends. Messages of one sender stay in order.
pub struct Sender {
    pub(super) shared: Arc<Shared>,
    pub(super) waiter: Waiter,
}

impl Sender {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let waiter = shared.add_sender();
        Self { shared, waiter }
    }

    /// Sends a message, and waits until it has been written, with all that was queued before it.
    ///
    /// While the receiver has buffered further messages that arrived together, the answers to them are batched and leave in one
    /// write: with the last of them, when the batch holds 64 KiB, or when the task waits for something else. (In the future
    /// that `block_on` or `#[tokio::main]` runs beside the workers of a runtime, a worker writes the batch once it has not grown
    /// for a moment; not within [`WebSocket::drive`](super::WebSocket::drive).)
    ///
    /// # Cancel safety
    /// When the future is dropped the message has been queued as a whole or not at all; [`reserve`](Self::reserve) makes clear which.
    /// A queued message is written even if the task never polls the sender again.
    ///
    /// # Errors
    /// The connection is closed or has failed, or the peer is too slow and is disconnected ([`SlowPeer`]).
    #[inline]
    pub fn send<'a, M: Into<Payload<'a>>>(&'a mut self, message: M) -> Sending<'a, M> {
        Sending(Step::Untried(self, message))
    }

    /// Sends a message unless that would have to wait, so that one slow peer among many delays no other. Returns `false` if the send
    /// queue has no room for it and the policy neither drops it nor disconnects the peer, which may not be slow, or if the
    /// [`Observer`](super::Observer) is slow; then nothing was queued.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub fn try_send<'a>(&mut self, message: impl Into<Payload<'a>>) -> Result<bool, WebSocketError> {
        Ok(self.send_now(&message.into()).map_err(|error| *error)? != Sent::Full)
    }

    /// Sends messages in one write until the send queue is full. Returns the number of messages that were sent. Bytes that the
    /// transport has not accepted yet are [queued](Self::queued_len).
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub fn try_send_all<'a, M: Into<Payload<'a>>>(
        &mut self,
        messages: impl IntoIterator<Item = M>,
    ) -> Result<usize, WebSocketError> {
        let mut count = 0;
        // The iterator is the caller's code, which runs while nothing is locked.
        for message in messages {
            let message = message.into();
            let mut state = self.shared.lock();
            let Poll::Ready(queued) = queue(&mut state, Outgoing::Message(&message)) else { break };
            queued.map_err(|error| *error)?;
            count += 1;
        }
        flush_now(&mut self.shared.lock())?;
        Ok(count)
    }

    /// Waits until there is room for a message: the [`Permit`] sends it without waiting. Dropping this future sends nothing, so that
    /// the caller of a cancelled `reserve` knows that its message was not sent.
    ///
    /// ```
    /// # async fn example(sender: &mut wireloom::Sender) -> Result<(), wireloom::WebSocketError> {
    /// let permit = sender.reserve().await?;
    /// permit.send("made when there is room for it")
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub async fn reserve(&mut self) -> Result<Permit<'_>, WebSocketError> {
        poll_fn(|cx| self.poll_ready(cx)).await?;
        Ok(Permit(self))
    }

    /// Sends the message unless that would have to wait. Boxes the error, so that the result fits into registers.
    #[inline(never)]
    fn send_now(&self, message: &Payload<'_>) -> Result<Sent, Box<WebSocketError>> {
        let mut state = self.shared.lock();
        let state = &mut *state;
        if !self.shared.has_more_buffered()
            && let Some(sent) = send_at_once(state, message)
        {
            return sent;
        }
        let Poll::Ready(queued) = queue(state, Outgoing::Message(message)) else { return Ok(Sent::Full) };
        queued?;
        Ok(self.write_batch(state)?)
    }

    /// Writes the queue without waiting, unless further messages that arrived together will be answered in the same write.
    fn write_batch(&self, state: &mut State) -> Result<Sent, WebSocketError> {
        if self.shared.has_more_buffered()
            && state.session.core.queued_len() < BATCH_LEN_MAX
            && state.find_flusher()
        {
            return Ok(Sent::Done);
        }
        flush_now(state)
    }

    /// The first half of [`send`](Self::send): ready with `true` when the message was queued, and with `false` when the policy has dropped
    /// it. Otherwise nothing was queued.
    pub(crate) fn poll_queue_message(
        &self,
        cx: &Context<'_>,
        message: &Payload<'_>,
    ) -> Poll<Result<bool, WebSocketError>> {
        self.poll_queue(cx, Outgoing::Message(message))
    }

    /// The second half of [`send`](Self::send).
    #[cfg(feature = "client")]
    pub(crate) async fn write_queued(&mut self) -> Result<(), WebSocketError> {
        let sent = self.write_batch(&mut self.shared.lock())?;
        if sent == Sent::Queued { self.flush().await } else { Ok(()) }
    }

    /// Queues a message without writing it; waits only while the queue is full. It is written with the next flush, or when the
    /// task waits for something.
    ///
    /// # Cancel safety
    /// As for [`send`](Self::send).
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub async fn feed(&mut self, message: impl Into<Payload<'_>>) -> Result<(), WebSocketError> {
        let message = message.into();
        poll_fn(|cx| self.poll_queue_message(cx, &message)).await.map(drop)
    }

    /// Sends a fragment of a message that is too large to hold (RFC 6455 §5.4): the first begins the message, `last` ends it. All
    /// fragments are text or all are binary; until the last, no other message can be sent. This waits as [`send`](Self::send) does.
    ///
    /// Each fragment is a frame of its own. With compression, a frame is sent once the compressor has output.
    ///
    /// # Cancel safety
    /// As for [`send`](Self::send).
    ///
    /// # Errors
    /// As for [`send`](Self::send), and when the message that is being sent is of the other kind.
    pub async fn send_chunk(
        &mut self,
        chunk: impl Into<Payload<'_>>,
        last: bool,
    ) -> Result<(), WebSocketError> {
        let chunk = chunk.into();
        poll_fn(|cx| self.poll_queue(cx, Outgoing::Fragment(&chunk, last))).await?;
        self.flush().await
    }

    /// Ready when it was queued, or with `false` when the policy has dropped it.
    fn poll_queue(&self, cx: &Context<'_>, outgoing: Outgoing<'_>) -> Poll<Result<bool, WebSocketError>> {
        let mut state = self.shared.lock();
        ready!(state.poll_observer_unless_ended(self.waiter, cx));
        if let Poll::Ready(queued) = queue(&mut state, outgoing) {
            return Poll::Ready(queued.map_err(|error| *error));
        }
        match state.poll_flush(Some((self.waiter, cx))) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            // The flush may have made room.
            _ => queue(&mut state, outgoing).map_err(|error| *error),
        }
    }

    /// Waits until everything that was queued before is written.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub async fn flush(&mut self) -> Result<(), WebSocketError> {
        let mut end = None;
        poll_fn(|cx| self.shared.lock().poll_flush_to(&mut end, Some((self.waiter, cx)))).await
    }

    /// Sends a ping of up to 125 bytes. Keepalive is the core's, by [`wireloom_ws::Config::keepalive`].
    ///
    /// # Errors
    /// As for [`send`](Self::send), and when the payload is too long.
    pub async fn ping(&mut self, payload: &[u8]) -> Result<(), WebSocketError> {
        let mut end = None;
        poll_fn(|cx| {
            let mut state = self.shared.lock();
            if end.is_none() {
                ready!(state.poll_observer_unless_ended(self.waiter, cx));
                state.session.core.send_ping(clock::now(), payload)?;
            }
            // Under the same lock: before the unlock, a queue without a flusher gets a task.
            state.poll_flush_to(&mut end, Some((self.waiter, cx)))
        })
        .await
    }

    /// The end of what was queued until now; see [`Shared::queued_end`].
    #[cfg(feature = "client")]
    pub(crate) fn queued_end(&self) -> u64 {
        self.shared.queued_end()
    }

    /// The number of pings that this end has sent, including keepalive pings.
    pub fn pings_sent(&self) -> u32 {
        self.shared.lock().session.core.pings_sent()
    }

    /// The number of the newest ping that was answered, counted from 1. Everything sent before that ping has arrived.
    pub fn pings_answered(&self) -> u32 {
        self.shared.lock().session.core.pings_answered()
    }

    /// Begins the closing handshake: the Close frame is sent after the queued messages. The receiver returns the messages that
    /// still arrive, then `None` when the peer has answered.
    ///
    /// # Errors
    /// A code that may not be sent, a reason over 123 bytes; the transport failed.
    pub async fn close(&mut self, code: CloseCode, reason: &str) -> Result<(), WebSocketError> {
        self.begin_close(code, reason)?;
        match self.flush().await {
            Err(WebSocketError::Closed) => Ok(()),
            flushed => flushed,
        }
    }

    /// Queues the Close frame.
    pub(super) fn begin_close(&mut self, code: CloseCode, reason: &str) -> Result<(), WebSocketError> {
        begin_closing(&mut self.shared.lock(), code, reason)
    }

    /// The close code for when the receiver and all senders are dropped while the connection is open: 1001 by default, so that a
    /// task that is cancelled can give a reason. A task that panics closes with 1011.
    pub fn close_on_drop(&mut self, code: CloseCode) {
        if code.is_sendable() {
            self.shared.lock().session.set_on_drop(code);
        }
    }

    /// Begins the closing handshake with this code after this time, unless it has begun before; `None` cancels that. The receiver
    /// has to be polled for it.
    ///
    /// # Errors
    /// A code that may not be sent.
    pub fn close_after(
        &mut self,
        deadline: impl Into<Option<(Duration, CloseCode)>>,
    ) -> Result<(), WebSocketError> {
        let deadline = deadline.into();
        if let Some((_, code)) = deadline
            && !code.is_sendable()
        {
            return Err(wireloom_ws::Error::Misuse(Misuse::UnsendableCloseCode(code)).into());
        }
        let mut state = self.shared.lock();
        let now = clock::now();
        state.session.set_close_at(deadline.map(|(after, code)| (now.saturating_add(after), code)));
        // The deadline has changed.
        state.wake();
        Ok(())
    }

    /// Waits until the connection has ended: after the closing handshake, or when the transport has failed. [`end`](Self::end) returns the
    /// reason.
    ///
    /// ```
    /// # async fn example(mut sender: wireloom::Sender) {
    /// let watcher = sender.clone();
    /// tokio::spawn(async move {
    ///     watcher.closed().await;
    ///     println!("{:?}", watcher.end());
    /// });
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    pub async fn closed(&self) {
        // Each future needs a waker of its own.
        let own = self.clone();
        poll_fn(|cx| {
            let mut state = own.shared.lock();
            if state.link.write_error().is_some() {
                return Poll::Ready(());
            }
            state.link.register(Some((own.waiter, cx)));
            Poll::Pending
        })
        .await;
    }

    /// Whether messages can be sent: neither end has begun the closing handshake, and the transport has not failed.
    pub fn is_open(&self) -> bool {
        self.shared.lock().is_open()
    }

    /// Why the connection ended, and who began it; `None` while it is open.
    pub fn end(&self) -> Option<End> {
        self.shared.lock().session.core.end().cloned()
    }

    /// The round-trip time that the last answered ping has measured, by [`ping`](Self::ping) or by keepalive
    /// ([`wireloom_ws::Config::keepalive`]); `None` before. It is measured in microseconds, and costs nothing for messages.
    pub fn latency(&self) -> Option<Duration> {
        self.shared.lock().session.latency()
    }

    /// Bytes that are queued for writing.
    pub fn queued_len(&self) -> usize {
        self.shared.queued_len()
    }

    /// As [`queued_len`](Self::queued_len), without waiting: `None` while another thread works on this WebSocket, such as one that
    /// compresses a message.
    pub fn try_queued_len(&self) -> Option<usize> {
        self.shared.try_lock().map(|state| state.session.core.queued_len())
    }

    /// As [`traffic`](Self::traffic), without waiting.
    pub fn try_traffic(&self) -> Option<Traffic> {
        self.shared.try_lock().map(|state| state.link.traffic)
    }

    /// Bytes transferred so far in each direction.
    pub fn traffic(&self) -> Traffic {
        self.shared.lock().link.traffic
    }

    /// Messages that were dropped by [`SlowPeer::DropNewest`].
    pub fn dropped(&self) -> u64 {
        self.shared.lock().session.dropped()
    }

    /// Ready when a message can be queued; see [`reserve`](Self::reserve).
    pub(super) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), WebSocketError>> {
        let mut state = self.shared.lock();
        if let Some(error) = state.link.write_error() {
            return Poll::Ready(Err(error.clone()));
        }
        ready!(state.poll_observer(self.waiter, cx));
        // The other policies do not wait.
        if !matches!(state.config.slow_peer, SlowPeer::Wait { .. }) || !state.session.core.is_congested() {
            return Poll::Ready(Ok(()));
        }
        match state.poll_flush(Some((self.waiter, cx))) {
            Poll::Pending if !state.session.core.is_congested() => Poll::Ready(Ok(())),
            flushed => flushed,
        }
    }

    pub(super) fn start_send(&mut self, message: &Payload<'_>) -> Result<(), WebSocketError> {
        let mut state = self.shared.lock();
        let message = Outgoing::Message(message);
        match queue(&mut state, message) {
            Poll::Ready(queued) => queued.map(drop).map_err(|error| *error),
            // Another sender has used the room since, or the caller did not wait for it.
            Poll::Pending => Ok(message.put(&mut state)?),
        }
    }
}

impl Clone for Sender {
    /// Another sender for the same connection, for use in another task.
    fn clone(&self) -> Self {
        Self::new(self.shared.clone())
    }
}

impl Drop for Sender {
    /// The transport may wake others later, and this task need not be.
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.link.remove(self.waiter);
        if self.shared.drop_half(&mut state) {
            // The receiver was dropped before, maybe outside of the runtime.
            receive_in_task(&self.shared, state);
        }
    }
}

impl std::fmt::Debug for Sender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sender").field("waiter", &self.waiter).finish_non_exhaustive()
    }
}

/// Room for one message; see [`Sender::reserve`].
#[derive(Debug)]
#[must_use = "a permit that is dropped sends nothing"]
pub struct Permit<'a>(&'a mut Sender);

impl Permit<'_> {
    /// Queues a message. It is written when the task waits for something, or by [`Sender::flush`].
    ///
    /// # Errors
    /// The connection is closed or has failed; the message would exceed [`queued_len_max`](wireloom_ws::Limits::queued_len_max) together
    /// with the bytes that are queued. Nothing was queued then.
    pub fn send<'a>(self, message: impl Into<Payload<'a>>) -> Result<(), WebSocketError> {
        self.0.start_send(&message.into())
    }
}

/// The future of [`Sender::send`].
///
/// Most messages are sent without waiting. The state of a send that waits is boxed, so that this future is small.
#[must_use = "nothing is sent before this is awaited"]
pub struct Sending<'a, M>(Step<'a, M>);

enum Step<'a, M> {
    Untried(&'a mut Sender, M),
    Waiting(Waiting<'a>),
    Done,
}

/// No field is structurally pinned.
impl<M> Unpin for Sending<'_, M> {}

impl<'a, M: Into<Payload<'a>>> Future for Sending<'a, M> {
    type Output = Result<(), WebSocketError>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (sender, message) = match std::mem::replace(&mut self.0, Step::Done) {
            Step::Untried(sender, message) => (sender, message.into()),
            step => {
                self.0 = step;
                return self.poll_waiting(cx).map(|failed| failed.map_or(Ok(()), |error| Err(*error)));
            }
        };
        let (kind, payload) = message.parts();
        if sender.shared.append(kind, payload) {
            return Poll::Ready(Ok(()));
        }
        match sender.send_now(&message) {
            Ok(Sent::Done) => return Poll::Ready(Ok(())),
            Ok(Sent::Queued) => self.0 = Step::Waiting(Box::pin(sender.flush())),
            Ok(Sent::Full) => {
                self.0 = Step::Waiting(Box::pin(async move {
                    sender.feed(message).await?;
                    sender.flush().await
                }));
            }
            Err(error) => return Poll::Ready(Err(*error)),
        }
        self.poll_waiting(cx).map(|failed| failed.map_or(Ok(()), |error| Err(*error)))
    }
}

impl<M> Sending<'_, M> {
    /// Boxes the error: errors are large, and an unboxed one would make the path that does not wait move its result through memory.
    #[cold]
    #[inline(never)]
    fn poll_waiting(&mut self, cx: &mut Context<'_>) -> Poll<Option<Box<WebSocketError>>> {
        match &mut self.0 {
            Step::Waiting(waiting) => waiting.as_mut().poll(cx).map(|sent| sent.err().map(Box::new)),
            _ => Poll::Ready(None),
        }
    }
}

/// The result of an attempt to send without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// The message was written, will be written without the sender, or was dropped by the policy.
    Done,
    /// The message was queued, and the sender waits until it is written.
    Queued,
    /// The send queue had no room for the message.
    Full,
}

/// A message or fragment, which is queued as a whole or not at all.
#[derive(Clone, Copy)]
enum Outgoing<'a> {
    Message(&'a Payload<'a>),
    /// A fragment of a message, and whether that ends with it. It is never dropped, because the rest would be another message.
    Fragment(&'a Payload<'a>, bool),
}

impl Outgoing<'_> {
    /// Queues it, and reports the message that it ends.
    #[inline]
    fn put(self, state: &mut State) -> Result<(), wireloom_ws::Error> {
        let (payload, is_last) = match self {
            Self::Message(message) => {
                put_message(state, message)?;
                (message, true)
            }
            Self::Fragment(fragment, is_last) => {
                state.session.put_fragment(fragment, is_last)?;
                (fragment, is_last)
            }
        };
        if is_last {
            state.session.queue_notification(|| {
                let (kind, payload) = payload.parts();
                ObserverEvent::MessageWritten { kind, len: payload.len() as u64 }
            });
        }
        Ok(())
    }
}

/// A long message is written from where it is if it cannot be queued by reference, as one that is compressed.
#[inline]
fn put_message(state: &mut State, message: &Payload<'_>) -> Result<(), wireloom_ws::Error> {
    let is_compressed = |state: &State| state.session.core.prepared_window_bits(message.len()).is_some();
    match message {
        _ if message.len() <= COPIED_LEN_MAX => state.session.put(message),
        Payload::Prepared(_) => state.session.put(message),
        Payload::Shared(_) | Payload::SharedText(_) if !is_compressed(state) => state.session.put(message),
        _ => {
            let (kind, payload) = message.parts();
            state.send_borrowed(kind, payload)
        }
    }
}

/// Sends a message in a write of its own, as [`queue`] and [`flush_now`] would, if nothing else has to be done for it. `None` if more has;
/// then nothing has happened.
#[inline]
fn send_at_once(state: &mut State, message: &Payload<'_>) -> Option<Result<Sent, Box<WebSocketError>>> {
    let (kind, payload) = message.parts();
    if payload.len() >= SHARED_LEN_MIN || !state.is_at_rest() {
        return None;
    }
    state.session.core.give_buffer(flush::take_buffer);
    if let Err(error) = state.session.core.send_message(kind, payload) {
        return Some(Err(Box::new(error.into())));
    }
    match state.link.try_write_queue(&mut state.session) {
        Ok((len, is_all)) => {
            state.count_written(len);
            if is_all {
                return Some(Ok(Sent::Done));
            }
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
        Err(error) => return Some(Err(Box::new(state.fail_write(&error)))),
    }
    state.flush = Flush::Unflushed;
    Some(flush_now(state).map_err(Box::new))
}

/// Writes the queue without waiting.
///
/// # Errors
/// The transport has failed, or the peer is too slow.
pub(super) fn flush_now(state: &mut State) -> Result<Sent, WebSocketError> {
    if let Poll::Ready(written) = state.poll_flush(None) {
        return written.map(|()| Sent::Done);
    }
    Ok(match state.config.slow_peer {
        SlowPeer::Wait { .. } => Sent::Queued,
        _ => Sent::Done,
    })
}

/// Ready with `true` when the message was queued, and with `false` when the policy has dropped it; pending when there is no room.
#[inline(always)]
fn queue(state: &mut State, outgoing: Outgoing<'_>) -> Queued {
    let waits = match state.config.slow_peer {
        SlowPeer::Wait { .. } => true,
        SlowPeer::DropNewest { .. } => matches!(outgoing, Outgoing::Fragment(..)),
        SlowPeer::Disconnect { .. } => false,
    };
    match try_queue(state, outgoing, waits) {
        Poll::Pending => queue_after_flush(state, outgoing, waits),
        queued => queued,
    }
}

/// Ready with `true` when something was queued, pending when there is no room.
#[inline(always)]
fn try_queue(state: &mut State, outgoing: Outgoing<'_>, waits: bool) -> Queued {
    if let Some(error) = state.link.write_error() {
        return Poll::Ready(Err(Box::new(error.clone())));
    }
    let is_slow = if waits { state.session.core.is_congested() } else { state.is_slow() };
    if is_slow || state.session.is_observer_behind() {
        return Poll::Pending;
    }
    match outgoing.put(state) {
        Ok(()) => Poll::Ready(Ok(true)),
        Err(wireloom_ws::Error::Misuse(Misuse::QueueFull { .. })) => Poll::Pending,
        Err(error) => Poll::Ready(Err(Box::new(error.into()))),
    }
}

/// [`queue`], when there was no room: only bytes that the transport has refused are a backlog.
#[cold]
#[inline(never)]
fn queue_after_flush(state: &mut State, outgoing: Outgoing<'_>, waits: bool) -> Queued {
    let _ = state.poll_flush(None);
    if let queued @ Poll::Ready(_) = try_queue(state, outgoing, waits) {
        return queued;
    }
    match state.config.slow_peer {
        _ if state.session.is_observer_behind() => Poll::Pending,
        SlowPeer::DropNewest { .. } if !waits => {
            state.count_dropped();
            Poll::Ready(Ok(false))
        }
        SlowPeer::Disconnect { .. } if state.is_slow() => {
            state.disconnect_slow();
            Poll::Ready(Err(Box::new(WebSocketError::SlowPeer)))
        }
        _ => Poll::Pending,
    }
}

pub(super) fn begin_closing(state: &mut State, code: CloseCode, reason: &str) -> Result<(), WebSocketError> {
    let was_open = state.session.core.is_open();
    state.session.close(code, reason)?;
    if was_open {
        // The deadline has changed. A sink asks again and again: it may be polled by the task of the receiver.
        state.deferred.wake_by_ref(&state.link.receiver);
    }
    Ok(())
}
