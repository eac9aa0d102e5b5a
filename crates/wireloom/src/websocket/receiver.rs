//! The half that receives. It drives the connection: reading, pongs, deadlines, the closing handshake.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use wireloom_ws::{Cause, End, Event, Step};

use super::active_receiver::{
    ActiveReceiver, CONTROLS_PER_PAYMENT, DIRECT_LEN_MIN, DeliveryMode, MESSAGE_COST, MESSAGES_PER_PAYMENT,
    ReceiverSlot,
};
use super::clock;
use super::link::{self, Traffic};
use super::message::{Message, OwnedMessage};
use super::observer::ObserverEvent;
use super::session::{Session, with_codecs};
use super::state::{Shared, State};
use super::waiters::Waiter;
use crate::deadline::Timer;
use crate::error::WebSocketError;
use crate::guard::Guard;
use crate::sync;
use crate::transport::{Io, buffer};

/// After a longer message another one of its length is expected. The read for its header is short then, and the rest of the message
/// is read directly to its place.
const IN_PLACE_LEN_MAX: usize = (256 << 10) - 1;

/// As [`IN_PLACE_LEN_MAX`], for an owned message, which would be copied out of the read buffer.
const OWNED_IN_PLACE_LEN_MAX: usize = (32 << 10) - 1;

/// After the close timeout, up to this many bytes are read before the connection is given up: what a socket has received may be as
/// long, and the peer's Close frame at its end.
const READ_AFTER_TIMEOUT_LEN: u64 = 4 << 20;

/// The half of a [`WebSocket`](super::WebSocket) that receives.
///
/// It also answers pings, watches deadlines and finishes the closing handshake: keep calling [`recv`](Self::recv).
///
/// A connection that is only sent to needs no receiver: when it is dropped while a [`Sender`](super::Sender) lives, a task of the runtime
/// takes its place. It drops the messages that arrive, and ends with the connection or with the last sender. (Outside of a tokio runtime, a
/// client receives nothing then, and only a failing write shows that the peer has left.)
pub struct Receiver {
    pub(super) shared: Arc<Shared>,
    /// The state, while it is [taken](ReceiverSlot). Boxed, so that futures that hold a receiver are small and cheap to move.
    active: Option<Box<ActiveReceiver>>,
}

/// The result of a locked read; the bytes are in the reader, and are decoded after the unlock.
enum Read {
    /// Bytes in the buffer.
    Buffered,
    /// Nothing more has arrived, and the buffer holds a part of a message.
    Incomplete,
    /// This number of bytes at the end of a large message.
    Direct(usize),
    /// There is no memory for the bytes of a large message.
    Overloaded,
}

type PolledRead = Poll<io::Result<Option<Read>>>;

/// Whether a message was found, or the end; the error is that of the connection.
type Found = Result<bool, Box<WebSocketError>>;

impl Receiver {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, active: None }
    }

    /// The next message, borrowed until the next call; `None` when the connection has been closed.
    ///
    /// All messages of a read are returned before the next read, and messages that were sent in the meantime leave in one write
    /// before this waits. Pings are answered meanwhile.
    ///
    /// With [`Delivery::Chunks`](wireloom_ws::Delivery::Chunks) a message that did not arrive at once comes in chunks, as they
    /// arrive; see [`Message::is_last`].
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// The peer broke a rule or a limit, and was sent a Close frame for it; the transport failed or ended without a closing handshake.
    /// After an error there is `None`.
    #[inline]
    pub fn recv(&mut self) -> Receiving<'_> {
        Receiving { receiver: Some(self) }
    }

    /// The next message, owned; complete also with [`Delivery::Chunks`](wireloom_ws::Delivery::Chunks). A message that was
    /// assembled from several frames or reads is moved out without a copy. It holds at most twice its length and 64 bytes.
    ///
    /// When [`recv`](Self::recv) has returned chunks of a message, this returns its rest: as text where that is UTF-8, and as
    /// binary where a code point was split.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing, whichever method is called next.
    ///
    /// # Errors
    /// As for [`recv`](Self::recv).
    pub async fn recv_owned(&mut self) -> Result<Option<OwnedMessage>, WebSocketError> {
        poll_fn(|cx| self.poll_recv_owned(cx)).await
    }

    /// Polls for the next owned message; see [`recv_owned`](Self::recv_owned).
    ///
    /// # Errors
    /// As for [`recv`](Self::recv).
    pub fn poll_recv_owned(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<OwnedMessage>, WebSocketError>> {
        if let Some(message) = self.next_owned() {
            return Poll::Ready(Ok(Some(message)));
        }
        if let Err(error) = ready!(poll_found(&self.shared, &mut self.active, cx, DeliveryMode::Whole)) {
            return Poll::Ready(Err(*error));
        }
        let active = self.active.as_mut();
        Poll::Ready(Ok(active.map(|active| active.reader.take_message_with(buffer::recycle_memory))))
    }

    /// Whether the next message has arrived whole, in one frame: [`recv`](Self::recv) returns it, or an error, before it handles what
    /// follows, such as a Close frame, which it answers.
    pub fn has_next_message(&self) -> bool {
        self.active.as_ref().is_some_and(|active| active.reader.has_next_message())
    }

    /// Why the connection ended, and who began it; `None` while it is open.
    pub fn end(&self) -> Option<End> {
        self.shared.lock().session.core.end().cloned()
    }

    /// Bytes transferred so far in each direction.
    pub fn traffic(&self) -> Traffic {
        self.shared.lock().link.traffic
    }

    /// The fast path: finds the next message if it is buffered whole, as most are.
    #[inline(always)]
    fn next_buffered(&mut self) -> bool {
        let Some(active) = &mut self.active else { return false };
        if active.messages_left == 0 || !active.reader.next_message() {
            return false;
        }
        active.messages_left -= 1;
        self.shared.set_more_buffered(active.reader.has_input());
        true
    }

    /// [`Receiver::next_buffered`] for a message that is kept.
    #[inline(always)]
    fn next_owned(&mut self) -> Option<OwnedMessage> {
        let active = self.active.as_mut().filter(|active| active.messages_left > 0)?;
        let message = active.reader.next_owned()?;
        active.messages_left -= 1;
        self.shared.set_more_buffered(active.reader.has_input());
        Some(message)
    }

    /// Takes the input that has not been decoded.
    pub(super) fn take_input(&mut self) -> Vec<u8> {
        let active = self.active.take().or_else(|| self.shared.lock().slot.replace(ReceiverSlot::Ended));
        active.map(|mut active| active.reader.take_input()).unwrap_or_default()
    }
}

/// Ready when a message has been found, and at the end: then nothing is `held`.
#[inline(never)]
fn poll_found(
    shared: &Arc<Shared>,
    held: &mut Option<Box<ActiveReceiver>>,
    cx: &mut Context<'_>,
    mode: DeliveryMode,
) -> Poll<Found> {
    if held.is_none() {
        *held = shared.take_receiver();
    }
    let Some(active) = held else { return Poll::Ready(Ok(false)) };
    if active.messages_left < MESSAGES_PER_PAYMENT {
        // Those that the fast path has returned.
        active.spend(false);
    }
    if shared.is_compressed() {
        if active.reader.has_input() {
            // It was returned while the receiver waited.
            with_codecs(|pool| active.reader.take_codec(pool));
        }
        // Of the answers to the messages before. It is paid here, because no task may wait while it holds the lock.
        active.budget.spend(shared.take_compression_cost());
    }
    loop {
        let has_turn = active.poll_turn(shared, cx).is_ready();
        if !has_turn || shared.is_observed() && shared.lock().poll_observer(Waiter::RECEIVER, cx).is_pending()
        {
            // Many streams of a connection wait at the same time, each of which would have memory of its own.
            if has_turn || active.budget.is_waiting() {
                active.release_memory();
                active.count_memory();
            }
            wait(shared.lock(), held.take());
            return Poll::Pending;
        }
        let found = if active.has_more(mode) && !active.should_read_on(mode) {
            active.decode(shared, mode)
        } else {
            let mut state = shared.lock();
            let Poll::Ready(read) = active.poll_link(&mut state, cx, mode) else {
                wait(state, held.take());
                return Poll::Pending;
            };
            let Some(read) = read else {
                // Taken before the unlock, in which an observer may panic: it observes the end once.
                let mut ended = held.take();
                let failed = ended.as_mut().and_then(|active| active.failed.take());
                drop(state);
                ended.into_iter().filter(|active| active.is_idle()).for_each(ActiveReceiver::recycle);
                return Poll::Ready(failed.map_or(Ok(false), Err));
            };
            // From here on nothing is locked: what a read costs to decode is the peer's choice.
            drop(state);
            match read {
                Read::Buffered if active.should_read_on(mode) => continue,
                // If the rest of the message has not arrived, decoding the bytes that have empties the buffer.
                Read::Buffered | Read::Incomplete => active.decode(shared, mode),
                Read::Direct(len) => active.fill(shared, len) || active.decode(shared, mode),
                Read::Overloaded => {
                    active.overload(shared);
                    false
                }
            }
        };
        active.spend(found);
        if found && !shared.is_discarding() {
            return Poll::Ready(Ok(true));
        }
        // A message behind the Close frame of a server that shuts down, or a part of one, which is counted before others run.
        if !found && !active.count_memory() {
            active.overload(shared);
        }
    }
}

/// The receiver waits. What it frees and sends takes effect after the unlock.
fn wait(mut state: Guard<'_, State>, active: Option<Box<ActiveReceiver>>) {
    let unused = active.and_then(|active| state.slot.put(active));
    state.count_read_buffer();
    drop(state);
    unused.into_iter().for_each(ActiveReceiver::recycle);
}

impl ActiveReceiver {
    /// Ready when the connection has a share of the processor left. One connection must not keep a worker from the others, however much
    /// it has buffered.
    #[inline]
    fn poll_turn(&mut self, shared: &Shared, cx: &mut Context<'_>) -> Poll<()> {
        let has_waited = self.budget.is_waiting();
        ready!(self.budget.poll_paid(&self.account, cx));
        // RFC 8441 §5: the reset of a stream is that of a TCP connection, which loses what was not received.
        if has_waited && shared.lock().link.io.is_disconnected() {
            self.free();
        }
        Poll::Ready(())
    }

    /// Writes the queue, watches the end and the deadlines, and reads once. None: the connection has ended.
    fn poll_link(
        &mut self,
        state: &mut State,
        cx: &mut Context<'_>,
        mode: DeliveryMode,
    ) -> Poll<Option<Read>> {
        state.deferred.register(&mut state.link.receiver, cx);
        loop {
            // All that was read before has been answered.
            state.go_away();
            // An error is kept, and is returned after the messages that have arrived.
            let _ = state.poll_flush(Some((Waiter::RECEIVER, &*cx)));
            if state.poll_end(cx) {
                self.finish(state);
                return Poll::Ready(None);
            }
            // The timer is polled only when there is nothing to read, and a peer that sends without a pause must not delay the end.
            // Deadlines of keepalive do not matter here: a peer that sends is alive.
            if state.session.must_begin_close()
                || state.session.must_end_close() && self.has_read_enough(state)
            {
                self.read_before_timeout = None;
                state.session.handle_timeout();
                continue;
            }
            match self.poll_read(cx, state, mode) {
                Poll::Ready(Ok(Some(read))) => return Poll::Ready(Some(read)),
                // The transport has ended.
                Poll::Ready(Ok(None)) => {}
                Poll::Ready(Err(error)) => state.fail(link::failure(&error)),
                Poll::Pending if self.reader.has_input() => return Poll::Ready(Some(Read::Incomplete)),
                Poll::Pending => {
                    // Buffers and codecs return to the pools of the thread.
                    self.read_before_timeout = None;
                    self.release_memory();
                    if !self.count_memory() {
                        state.overload();
                        self.fail_overloaded();
                        continue;
                    }
                    ready!(self.poll_deadline(cx, state));
                }
            }
        }
    }

    /// Whether much has been read since the close timeout expired. The peer's Close frame may have arrived before that, while this
    /// end was not polled.
    fn has_read_enough(&mut self, state: &State) -> bool {
        let received = state.link.traffic.bytes_received;
        received - *self.read_before_timeout.get_or_insert(received) >= READ_AFTER_TIMEOUT_LEN
    }

    /// Finds the next message, and applies control frames and errors to the state on the way.
    fn decode(&mut self, shared: &Shared, mode: DeliveryMode) -> bool {
        self.take_memory();
        if !self.count_growth() {
            self.overload(shared);
            return false;
        }
        let inflated_before = self.reader.inbound().inflated_len();
        let mut controls = 0;
        let found = loop {
            if controls == CONTROLS_PER_PAYMENT {
                break false;
            }
            let step = self.reader.decode_as(self.delivery(mode));
            match step {
                Ok(Step::Message) => break true,
                Ok(Step::Control(mut event)) => {
                    controls += 1;
                    let mut state = shared.lock_plain();
                    state.session.handle_control(&mut event);
                    let is_close = matches!(event, Event::Close(_));
                    if shared.is_observed() {
                        let notification = control_notification(&event);
                        self.queue_frames(&mut state.session);
                        notification.into_iter().for_each(|event| state.session.queue_notification(|| event));
                    }
                    if is_close {
                        state.session.core.handle_trailing(self.reader.take_input().len());
                    }
                }
                // A step of a long message is counted and paid for before the next one.
                Ok(Step::NeedsInput | Step::Inflating) => break false,
                Err(error) => {
                    self.fail(shared, error);
                    break false;
                }
            }
        };
        let inflated = self.reader.inbound().inflated_len() - inflated_before;
        if inflated > 0 || controls > 0 {
            self.budget.spend(inflated as usize + controls * MESSAGE_COST);
        }
        let found = found && self.handle_message(shared);
        if !found && shared.is_observed() {
            self.report_read(shared, false);
        }
        let has_more = self.has_more(mode);
        if controls > 0 && (found || has_more) {
            // Answers to control frames need a flusher. The next read flushes them, unless it comes after a message.
            drop(shared.lock());
        }
        shared.set_more_buffered(found && has_more);
        found
    }

    /// A message or a chunk was found: counts and reports it. False if there is no memory for it.
    fn handle_message(&mut self, shared: &Shared) -> bool {
        let is_counted = self.count_memory();
        if !is_counted {
            self.overload(shared);
        }
        if self.memory.is_some() {
            self.account.message_read();
        }
        if shared.is_observed() {
            self.report_read(shared, is_counted);
        }
        if is_counted {
            self.last_len = self.reader.message().payload().len().try_into().unwrap_or(u32::MAX);
        }
        is_counted
    }

    /// `len` bytes were read to the end of a large message. True if they have completed it.
    fn fill(&mut self, shared: &Shared, len: usize) -> bool {
        let filled = self.reader.space().filled(len);
        if !self.count_memory() {
            self.overload(shared);
            return false;
        }
        match filled {
            Ok(is_complete) => is_complete && self.handle_message(shared),
            Err(error) => {
                self.fail(shared, error);
                false
            }
        }
    }

    /// The server is out of memory: closes with 1013, and frees messages.
    #[cold]
    fn overload(&mut self, shared: &Shared) {
        shared.lock().overload();
        self.fail_overloaded();
    }

    /// The peer broke a rule or a limit.
    fn fail(&mut self, shared: &Shared, error: wireloom_ws::Error) {
        let mut state = shared.lock();
        self.queue_frames(&mut state.session);
        state.session.core.handle_error(clock::now(), error);
        self.failed = Some(Box::new(error.into()));
    }

    /// Queues events for frames that were read.
    fn queue_frames(&mut self, session: &mut Session) {
        for frame in self.reader.take_headers() {
            session.queue_notification(|| ObserverEvent::FrameRead(frame));
        }
    }

    /// Notifies the observer of the frames that have arrived, and of the message that was found.
    fn report_read(&mut self, shared: &Shared, found: bool) {
        let mut state = shared.lock();
        self.queue_frames(&mut state.session);
        if !found {
            return;
        }
        let message = self.reader.message();
        self.unreported_len += message.payload().len() as u64;
        if message.is_last() {
            let len = std::mem::take(&mut self.unreported_len);
            let kind = message.kind();
            state.session.queue_notification(|| ObserverEvent::MessageRead { kind, len });
        }
    }

    /// Ready when a read is done; with `None` at the end of the transport.
    fn poll_read(&mut self, cx: &mut Context<'_>, state: &mut State, mode: DeliveryMode) -> PolledRead {
        if state.session.core.has_read_end() {
            // The queue is written first. Reading would find the end again, without a pause.
            return Poll::Pending;
        }
        if self.memory.is_some() && self.account.poll_read_allowed(cx).is_pending() {
            // The memory of the last message may be all that it holds; a smaller reservation is not refused.
            self.release_memory();
            self.count_memory();
            state.count_read_buffer();
            ready!(self.account.poll_read_allowed(cx));
        }
        let is_large = self.reader.payload_remaining() >= DIRECT_LEN_MIN;
        if !is_large || !self.reader.has_slot() {
            if !self.reader.has_buffer() {
                self.reader.set_buffer(buffer::take_bytes());
            }
            if self.pace.is_behind() {
                self.lengthen_buffer(state);
            }
            return self.poll_read_buffer(cx, state, mode);
        }
        if !self.count_growth() {
            return Poll::Ready(Ok(Some(Read::Overloaded)));
        }
        let mut space = self.reader.space();
        let len = ready!(state.link.poll_read(cx, space.bytes()))?;
        self.budget.spend(len);
        if self.memory.is_some() {
            self.account.bytes_read(len);
        }
        Poll::Ready(Ok(state.session.handle_read(len).then_some(Read::Direct(len))))
    }

    /// The next reads are longer, where each is a system call. A server's connection has turns, in which it reads no more.
    #[cold]
    fn lengthen_buffer(&mut self, state: &State) {
        let is_due =
            !self.account.has_turns() && !matches!(state.link.io, Io::Tunnel(_)) && !self.reader.has_input();
        if is_due && let Some(bytes) = buffer::take_longer(self.reader.buffer_len()) {
            self.reader.take_buffer().into_iter().for_each(buffer::give_bytes);
            self.reader.set_buffer(bytes);
        }
    }

    fn poll_read_buffer(
        &mut self,
        cx: &mut Context<'_>,
        state: &mut State,
        mode: DeliveryMode,
    ) -> PolledRead {
        let in_place_max =
            if mode == DeliveryMode::Whole { OWNED_IN_PLACE_LEN_MAX } else { IN_PLACE_LEN_MAX };
        let mut space = self.reader.buffer_space();
        let bytes = space.bytes_for(self.last_len as usize, in_place_max);
        let len = ready!(state.link.poll_read(cx, bytes))?;
        self.pace.record(len);
        self.budget.spend(len);
        if self.memory.is_some() {
            self.account.bytes_read(len);
        }
        if !state.session.handle_read(len) {
            return Poll::Ready(Ok(None));
        }
        // Bytes in the buffer are decoded later.
        let _ = space.filled(len);
        if self.reader.inbound().is_compressed() {
            with_codecs(|pool| self.reader.take_codec(pool));
        }
        Poll::Ready(Ok(Some(Read::Buffered)))
    }

    /// Ready when a deadline of the core has passed.
    fn poll_deadline(&mut self, cx: &mut Context<'_>, state: &mut State) -> Poll<()> {
        let Some(deadline) = state.session.poll_timeout() else {
            self.timer = Timer::Unset;
            return Poll::Pending;
        };
        ready!(self.timer.poll(deadline, cx));
        state.session.handle_timeout();
        Poll::Ready(())
    }

    /// The transport is no longer used: determines the error, and reports the end.
    fn finish(&mut self, state: &mut State) {
        self.release_memory();
        if self.reader.idle().is_none() {
            self.free();
        }
        self.timer = Timer::Unset;
        self.read_before_timeout = None;
        state.slot = ReceiverSlot::Ended;
        state.deferred.unregister(&mut state.link.receiver);
        // Otherwise both halves were dropped, and the transport lingers: nothing has failed.
        let was_used = state.link.write_error() != Some(&WebSocketError::Closed);
        if was_used && self.failed.is_none() {
            self.failed = match state.session.core.end().map(|end| &end.cause) {
                Some(Cause::Close { .. } | Cause::CloseTimeout) => None,
                Some(Cause::Error(error)) => Some((*error).into()),
                Some(Cause::Silence) => Some(WebSocketError::KeepaliveTimeout),
                _ => Some(state.link.write_error().cloned().unwrap_or(WebSocketError::ConnectionLost)),
            }
            .map(Box::new);
        }
        if let Some(error) = &self.failed {
            state.session.queue_traced(ObserverEvent::Error((**error).clone()));
        }
        state.session.queue_end();
        if state.link.is_closed() {
            // The queue was dropped then, and senders were woken.
            return;
        }
        // After the close timeout, what the peer has not read is lost: senders that wait for it get an error.
        let is_written = !state.session.core.wants_write() && !state.slow.is_waiting();
        state.close_link(if is_written { WebSocketError::Closed } else { WebSocketError::ConnectionLost });
        state.wake();
    }
}

/// The observation of a ping or pong.
#[cold]
fn control_notification(event: &Event<'_>) -> Option<ObserverEvent> {
    match event {
        Event::Ping(payload) => Some(ObserverEvent::PingRead(payload.to_vec())),
        Event::Pong(pong) => {
            Some(ObserverEvent::PongRead { payload: pong.payload.to_vec(), round_trip: pong.round_trip })
        }
        _ => None,
    }
}

/// The future of [`Receiver::recv`]. Dropping it loses nothing.
#[must_use = "nothing is received before this is awaited"]
pub struct Receiving<'a> {
    /// `None` once it was ready.
    receiver: Option<&'a mut Receiver>,
}

impl<'a> Future for Receiving<'a> {
    type Output = Result<Option<Message<'a>>, WebSocketError>;

    // Inlined, so that a buffered message stays in registers on its way to the caller.
    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(receiver) = self.receiver.take() else { return Poll::Ready(Ok(None)) };
        if !receiver.next_buffered() {
            match poll_found(&receiver.shared, &mut receiver.active, cx, DeliveryMode::Configured) {
                // At the end nothing is active.
                Poll::Ready(Ok(_)) => {}
                // Errors are large: a boxed one keeps messages from being moved through memory.
                Poll::Ready(Err(error)) => return Poll::Ready(Err(*error)),
                Poll::Pending => {
                    self.receiver = Some(receiver);
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(Ok(receiver.active.as_deref().map(|active| Message::new(&active.reader))))
    }
}

impl Drop for Receiver {
    /// No message is returned any more: those that are sent from now on are written at once. Senders keep the connection.
    fn drop(&mut self) {
        self.shared.set_more_buffered(false);
        let mut state = self.shared.lock();
        // Dropped after the unlock.
        let _unused = state.slot.put_dropped(self.active.take());
        state.count_read_buffer();
        self.shared.drop_half(&mut state);
        receive_in_task(&self.shared, state);
    }
}

/// Spawns a task that takes the place of a receiver that was dropped, if no task has it: it drops messages, answers pings, watches deadlines,
/// and keeps the transport while that lingers. Without a runtime nothing receives.
pub(super) fn receive_in_task(shared: &Arc<Shared>, mut state: Guard<'_, State>) {
    // A future that is driven calls this at the end of its poll: the connection may have no half any more.
    if !state.slot.is_dropped() || state.is_driven() {
        return;
    }
    if state.link.is_closed() && !state.link.is_lingering() {
        let unused = state.slot.replace(ReceiverSlot::Ended);
        state.session.queue_end();
        state.drop_io(WebSocketError::Closed);
        drop(state);
        drop(unused);
    } else if let Some(runtime) = state.runtime() {
        state.slot.hand_over();
        drop(state);
        sync::spawn(&runtime, discard_all(shared.clone()));
    }
}

/// Receives until the connection has ended, and its transport is not needed any more.
async fn discard_all(shared: Arc<Shared>) {
    let mut active = None;
    poll_fn(|cx| {
        if !shared.has_halves() {
            // Ends it once all is written.
            let _ = shared.poll_ended(Waiter::RECEIVER, cx);
        }
        // The messages that one poll drops are paid for as those that are received.
        while let Ok(true) = ready!(poll_found(&shared, &mut active, cx, DeliveryMode::Discarded)) {}
        Poll::Ready(())
    })
    .await;
    poll_fn(|cx| shared.poll_ended(Waiter::RECEIVER, cx)).await;
    shared.lock().drop_io(WebSocketError::Closed);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests;
