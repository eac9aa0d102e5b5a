//! The half that sends: queueing, batching, back-pressure.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};
use wireloom_ws::{CloseCode, Misuse, Outbound, Role};

use super::config::SlowPeer;
use super::message::Payload;
use super::observer::Observed;
use super::stage;
use super::state::{Half, Locked, Shared, State, Traffic};
use crate::error::Error;

/// From so many bytes on a batch is written although more may come.
const BATCH_LEN_MAX: usize = 64 << 10;

/// A message of more bytes goes from where it lies to the transport; below, copying it beside others is cheaper than a write
/// of its own.
const COPIED_LEN_MAX: usize = stage::PAYLOAD_LEN_MAX;

/// From so many bytes on the core sends `Bytes` by reference, where it can.
const SHARED_LEN_MIN: usize = 4 << 10;

/// So late answers leave that gathered outside of a task, while whoever sent them turned to something else.
const GATHER_TIME_MAX: Duration = Duration::from_millis(2);

type Waiting<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + Send + 'a>>;

/// The half of a [`WebSocket`](super::WebSocket) that sends. The [`Receiver`](super::Receiver) need not be asked: it never
/// waits while this could go on.
pub struct Sender {
    pub(super) shared: Arc<Shared>,
    /// Frames go as they are: neither masked nor compressed.
    plain: bool,
    /// How often the stage had been unloaded when this last put a message there.
    staged: Option<u32>,
}

impl Sender {
    pub(super) fn new(shared: Arc<Shared>, role: Role) -> Self {
        let plain = role == Role::Server && !shared.compressed && !shared.is_watched();
        Self { shared, plain, staged: None }
    }

    /// Sends a message, and waits until it has been written, with all that was queued before it.
    ///
    /// While the receiver has further messages at hand that arrived together, the answers to them gather and leave in one
    /// write: with the last of them, when 64 KiB have gathered, or when the task turns to something else. (In the future that
    /// `block_on` or `#[tokio::main]` runs beside the workers of a runtime, and there alone, that may take 2 ms; not within
    /// [`WebSocket::drive`](super::WebSocket::drive).)
    ///
    /// # Cancel safety
    /// When the future is dropped the message has been queued as a whole or not at all. What has been queued leaves with the
    /// next thing that is sent or received.
    ///
    /// # Errors
    /// The connection is closed or has failed, or the peer is too slow and the policy is to cut it.
    #[inline]
    pub fn send<'a, M: Into<Payload<'a>>>(&'a mut self, message: M) -> Sending<'a, M> {
        Sending(Step::Untried(self, message))
    }

    /// Puts a message beside those that this wake-up has sent, if that is possible.
    #[inline(always)]
    fn stage(&mut self, message: &Payload<'_>) -> bool {
        let (kind, payload) = message.parts();
        let staged = self.plain && self.shared.is_clear() && stage::push(self.shared.id(), kind, payload);
        if staged {
            self.staged = Some(self.shared.unloads());
        }
        staged
    }

    /// Writes what has been sent; what there is to wait for, if anything. The message is on the stage already, or not.
    #[inline(never)]
    fn send_now<'a>(
        &'a mut self,
        message: Payload<'a>,
        staged: bool,
    ) -> Result<Option<Waiting<'a>>, Box<Error>> {
        let tried = if staged {
            self.staged = None;
            written(&mut self.shared.lock_written())
        } else {
            self.try_send_payload(&message)
        };
        Ok(match tried.map_err(Box::new)? {
            Tried::Done => None,
            Tried::Queued => Some(Box::pin(self.flush())),
            Tried::Full => Some(Box::pin(async move {
                self.feed(message).await?;
                self.flush().await
            })),
        })
    }

    /// Sends as far as that needs no waiting.
    fn try_send_payload(&mut self, message: &Payload<'_>) -> Result<Tried, Error> {
        let Self { shared, staged, .. } = self;
        let Some(mut state) = lock(shared, staged) else { return Ok(Tried::Full) };
        let state = &mut *state;
        let (kind, payload) = message.parts();
        if payload.len() > COPIED_LEN_MAX && !matches!(message, Payload::Shared(_) | Payload::Prepared(_)) {
            // It goes from where it lies, if nothing waits before it.
            if state.poll_flush(None).is_ready() && state.broken().is_none() {
                state.send_through(kind, payload)?;
                tell_written(shared, message);
                return written(state);
            }
        }
        let Poll::Ready(queued) = queue(state, true, |core| put(core, message)) else {
            return Ok(Tried::Full);
        };
        if queued? {
            tell_written(shared, message);
        }
        if shared.is_at_hand() && state.core.queued_len() < BATCH_LEN_MAX && is_watched(shared, state) {
            return Ok(Tried::Done);
        }
        written(state)
    }

    /// Sends a message if that needs no waiting: for those who send one message to many WebSockets, and must wait for none.
    /// `false` when there is no room, as long as the policy is to wait; then nothing was queued.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub fn try_send<'a>(&mut self, message: impl Into<Payload<'a>>) -> Result<bool, Error> {
        Ok(!matches!(self.try_send_payload(&message.into())?, Tried::Full))
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
        if self.queue_when_possible(true, |core| put(core, &message)).await? {
            tell_written(&self.shared, &message);
        }
        Ok(())
    }

    /// Sends a piece of a message that is too large to hold, in a frame of its own (RFC 6455 §5.4): the first begins the
    /// message, `last` ends it. All pieces are text or all are binary; until the last, no other message can be sent. This
    /// waits as [`send`](Self::send) does.
    ///
    /// # Cancel safety
    /// As for [`send`](Self::send).
    ///
    /// # Errors
    /// As for [`send`](Self::send), and when the message under way is of the other kind.
    pub async fn send_piece(&mut self, piece: impl Into<Payload<'_>>, last: bool) -> Result<(), Error> {
        let piece = piece.into();
        self.queue_when_possible(false, |core| put_piece(core, &piece, last)).await?;
        if last {
            tell_written(&self.shared, &piece);
        }
        self.flush().await
    }

    async fn queue_when_possible(
        &mut self,
        is_whole: bool,
        put: impl Fn(&mut Outbound) -> Result<(), wireloom_ws::Error>,
    ) -> Result<bool, Error> {
        let Self { shared, staged, .. } = self;
        poll_fn(|cx| {
            let Some(mut state) = lock(shared, staged) else { return come_back(cx) };
            match queue(&mut state, is_whole, &put) {
                Poll::Ready(queued) => Poll::Ready(queued),
                Poll::Pending => match state.poll_flush(Some((Half::Sender, &*cx))) {
                    Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                    // All of it may have left, or a part, and made room.
                    _ => queue(&mut state, is_whole, &put),
                },
            }
        })
        .await
    }

    /// Writes everything that was queued.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub async fn flush(&mut self) -> Result<(), Error> {
        let Self { shared, staged, .. } = self;
        poll_fn(|cx| match lock(shared, staged) {
            Some(mut state) => state.poll_flush(Some((Half::Sender, &*cx))),
            None => come_back(cx),
        })
        .await
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
        // What was sent before is to go first.
        let Self { shared, staged, .. } = self;
        poll_fn(|cx| match lock(shared, staged) {
            Some(mut state) => Poll::Ready(begin_closing(&mut state, code, reason)),
            None => come_back(cx),
        })
        .await?;
        match self.flush().await {
            Err(Error::Closed) => Ok(()),
            flushed => flushed,
        }
    }

    /// The close code that the peer is told when both halves are dropped while the connection is open: 1001 by default. That
    /// is how a task that is cancelled says why. One that panics says 1011.
    pub fn close_on_drop(&mut self, code: CloseCode) {
        if code.is_sendable() {
            self.shared.lock().on_drop = code;
        }
    }

    /// Begins the closing handshake with this code when so much time has passed, unless it has begun by then; `None` takes that
    /// back. Whoever receives sees to it.
    ///
    /// # Errors
    /// A code that may not be sent.
    pub fn close_after(&mut self, deadline: impl Into<Option<(Duration, CloseCode)>>) -> Result<(), Error> {
        let deadline = deadline.into();
        if let Some((_, code)) = deadline
            && !code.is_sendable()
        {
            return Err(wireloom_ws::Error::Misuse(Misuse::UnsendableCloseCode(code)).into());
        }
        let mut state = self.shared.lock();
        let now = state.now();
        state.close_at = deadline.map(|(after, code)| Box::new((now.saturating_add(after), code)));
        // There is another deadline now.
        state.wake();
        Ok(())
    }

    /// Bytes that wait to be written.
    pub fn queued_len(&self) -> usize {
        self.shared.lock().core.queued_len()
    }

    /// What has moved so far, both ways.
    pub fn traffic(&self) -> Traffic {
        self.shared.lock().traffic
    }

    /// Messages that were not sent, as [`SlowPeer::DropNewest`] wants it.
    pub fn dropped(&self) -> u64 {
        self.shared.lock().dropped
    }

    /// [`feed`](Self::feed) for those who poll: ready when a message can be queued.
    pub(super) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let Self { shared, staged, .. } = self;
        let Some(mut state) = lock(shared, staged) else { return come_back(cx) };
        if let Some(error) = state.broken() {
            return Poll::Ready(Err(error.clone()));
        }
        // The other policies wait for nothing.
        if !matches!(state.slow.policy(), SlowPeer::Wait { .. }) || !state.core.is_congested() {
            return Poll::Ready(Ok(()));
        }
        match state.poll_flush(Some((Half::Sender, &*cx))) {
            Poll::Pending if !state.core.is_congested() => Poll::Ready(Ok(())),
            flushed => flushed,
        }
    }

    pub(super) fn start_send(&mut self, message: &Payload<'_>) -> Result<(), Error> {
        let mut state = self.shared.lock();
        let queued = match queue(&mut state, true, |core| put(core, message)) {
            Poll::Ready(queued) => queued?,
            // It was not asked whether there is room.
            Poll::Pending => put(&mut state.core, message).map(|()| true)?,
        };
        drop(state);
        if queued {
            tell_written(&self.shared, message);
        }
        Ok(())
    }

    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let Self { shared, staged, .. } = self;
        let Some(mut state) = lock(shared, staged) else { return come_back(cx) };
        state.poll_flush(Some((Half::Sender, &*cx)))
    }

    pub(super) fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let Self { shared, staged, .. } = self;
        let Some(mut state) = lock(shared, staged) else { return come_back(cx) };
        begin_closing(&mut state, CloseCode::NORMAL, "")?;
        match state.poll_flush(Some((Half::Sender, &*cx))) {
            Poll::Ready(Err(Error::Closed)) => Poll::Ready(Ok(())),
            flushed => flushed,
        }
    }
}

/// The future of [`Sender::send`].
///
/// Most messages need no waiting; what does is put in a box, so that it weighs nothing on the tasks of those that do not.
#[must_use = "nothing is sent before this is awaited"]
pub struct Sending<'a, M>(Step<'a, M>);

enum Step<'a, M> {
    Untried(&'a mut Sender, M),
    Waiting(Waiting<'a>),
    Done,
}

/// Nothing in it is pinned.
impl<M> Unpin for Sending<'_, M> {}

impl<'a, M: Into<Payload<'a>>> Future for Sending<'a, M> {
    type Output = Result<(), Error>;

    // What is sent is to stay in registers on its way to where it gathers.
    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (sender, message) = match std::mem::replace(&mut self.0, Step::Done) {
            Step::Untried(sender, message) => (sender, message.into()),
            step => {
                self.0 = step;
                return self.poll_waiting(cx).map(|failed| failed.map_or(Ok(()), |error| Err(*error)));
            }
        };
        let staged = sender.stage(&message);
        if staged && sender.shared.is_at_hand() {
            return Poll::Ready(Ok(()));
        }
        match sender.send_now(message, staged) {
            Ok(None) => Poll::Ready(Ok(())),
            Ok(Some(waiting)) => {
                self.0 = Step::Waiting(waiting);
                self.poll_waiting(cx).map(|failed| failed.map_or(Ok(()), |error| Err(*error)))
            }
            Err(error) => Poll::Ready(Err(*error)),
        }
    }
}

impl<M> Sending<'_, M> {
    /// Errors are large: one in a box keeps others from being moved through memory where nothing waits.
    #[cold]
    #[inline(never)]
    fn poll_waiting(&mut self, cx: &mut Context<'_>) -> Poll<Option<Box<Error>>> {
        match &mut self.0 {
            Step::Waiting(waiting) => waiting.as_mut().poll(cx).map(|sent| sent.err().map(Box::new)),
            _ => Poll::Ready(None),
        }
    }
}

impl Drop for Sender {
    /// What was sent leaves, whoever is asked next.
    fn drop(&mut self) {
        if self.staged.is_some_and(|staged| staged == self.shared.unloads()) {
            drop(self.shared.lock_written());
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

/// The state, with what was sent before in its queue; `None` while that lies on the stage of another thread, since its sender
/// was moved here from a task that is still at it.
fn lock<'a>(shared: &'a Arc<Shared>, staged: &mut Option<u32>) -> Option<Locked<'a>> {
    let locked = shared.lock();
    if staged.is_some_and(|staged| staged == shared.unloads()) {
        return None;
    }
    *staged = None;
    Some(locked)
}

/// A message has been queued.
fn tell_written(shared: &Shared, message: &Payload<'_>) {
    if shared.is_watched() {
        let (kind, payload) = message.parts();
        shared.tell(&Observed::MessageWritten { kind, len: payload.len() as u64 });
    }
}

/// To be polled again, after others have been.
fn come_back<T>(cx: &Context<'_>) -> Poll<T> {
    cx.waker().wake_by_ref();
    Poll::Pending
}

/// Sees to it that what gathers in the queue leaves although nothing more should be sent or received.
fn is_watched(shared: &Arc<Shared>, state: &mut State) -> bool {
    if stage::is_owned_by(shared.id()) {
        stage::note_queued();
        return true;
    }
    state.deferred += 1;
    if !state.watched
        && let Ok(runtime) = Handle::try_current()
    {
        state.watched = true;
        // Another task of this worker runs when this one pauses. Outside of a task it would have to wake a worker, which costs
        // more than the write that is saved, and take turns with it.
        let is_beside = tokio::task::try_id().is_none()
            && !matches!(runtime.runtime_flavor(), RuntimeFlavor::CurrentThread);
        let after = is_beside.then_some(GATHER_TIME_MAX);
        runtime.spawn(Shared::flush_deferred(Arc::downgrade(shared), after));
    }
    state.watched
}

/// Writes what is queued, as far as that needs no waiting.
fn written(state: &mut State) -> Result<Tried, Error> {
    if let Poll::Ready(written) = state.poll_flush(None) {
        return written.map(|()| Tried::Done);
    }
    Ok(match state.slow.policy() {
        SlowPeer::Wait { .. } => Tried::Queued,
        _ => Tried::Done,
    })
}

/// Ready with whether it was queued; pending when there is no room. What is not whole waits, unless the policy is to
/// disconnect: a message without its middle is another.
fn queue(
    state: &mut State,
    is_whole: bool,
    put: impl Fn(&mut Outbound) -> Result<(), wireloom_ws::Error>,
) -> Poll<Result<bool, Error>> {
    let policy = state.slow.policy();
    let waits = match policy {
        SlowPeer::Wait { .. } => true,
        SlowPeer::DropNewest { .. } => !is_whole,
        SlowPeer::Disconnect { .. } => false,
    };
    if !waits && state.is_slow() {
        // What the transport takes at once is not waited for.
        let _ = state.poll_flush(None);
    }
    if let Some(error) = state.broken() {
        return Poll::Ready(Err(error.clone()));
    }
    let is_slow = if waits { state.core.is_congested() } else { state.is_slow() };
    if !is_slow {
        match put(&mut state.core) {
            Err(wireloom_ws::Error::Misuse(Misuse::QueueFull { .. })) => {}
            Err(error) => return Poll::Ready(Err(error.into())),
            Ok(()) => return Poll::Ready(Ok(true)),
        }
    }
    if waits {
        return Poll::Pending;
    }
    if let SlowPeer::DropNewest { .. } = policy {
        state.dropped += 1;
        state.slow.count_dropped();
        return Poll::Ready(Ok(false));
    }
    state.cut_slow();
    Poll::Ready(Err(Error::SlowPeer))
}

fn put(core: &mut Outbound, message: &Payload<'_>) -> Result<(), wireloom_ws::Error> {
    match message {
        Payload::Text(text) => core.send_text(text),
        Payload::Binary(data) => core.send_binary(data),
        // It would be copied all the same, and counting references costs more.
        Payload::Shared(data) if data.len() < SHARED_LEN_MIN => core.send_binary(data),
        Payload::Shared(data) => core.send_bytes(data.clone()),
        Payload::SharedText(text) => core.send_text(text),
        Payload::Prepared(message) => message.queue(core),
    }
}

fn put_piece(core: &mut Outbound, piece: &Payload<'_>, last: bool) -> Result<(), wireloom_ws::Error> {
    match piece {
        Payload::Text(text) => core.send_text_chunk(text, last),
        Payload::SharedText(text) => core.send_text_chunk(text, last),
        Payload::Binary(data) => core.send_binary_chunk(data, last),
        Payload::Shared(data) => core.send_binary_chunk(data, last),
        Payload::Prepared(message) => match message.as_text() {
            Some(text) => core.send_text_chunk(text, last),
            None => core.send_binary_chunk(message.as_bytes(), last),
        },
    }
}

fn begin_closing(state: &mut State, code: CloseCode, reason: &str) -> Result<(), Error> {
    let now = state.now();
    state.core.close(now, code, reason)?;
    if let Some(receiver) = state.receiver.take() {
        // There is a deadline now.
        receiver.wake();
    }
    Ok(())
}
