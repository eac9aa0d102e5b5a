//! The half that receives. It drives the connection: reading, pongs, deadlines, the closing handshake.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};

use wireloom_ws::{Cause, End, Event, Step};

use super::active_receiver::{
    ActiveReceiver, CONTROLS_PER_PAYMENT, DeliveryMode, MESSAGE_COST, MESSAGES_PER_PAYMENT, ReceiverSlot,
};
use super::clock::Timer;
use super::link::{self, Traffic, Waiter};
use super::message::{Message, OwnedMessage};
use super::observer::ObserverEvent;
use super::session::{Session, with_codecs};
use super::state::{Shared, State};
use crate::error::WebSocketError;
use crate::transport::buffer;

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
/// takes its place. It drops the messages that arrive, and ends with the connection or with the last sender. (Outside of a tokio runtime
/// nothing receives then, and only a failing write shows that the peer has left.)
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

    /// Why the connection ended, and who began it; `None` while it is open.
    pub fn end(&self) -> Option<End> {
        self.shared.lock().session.core().end().cloned()
    }

    /// Bytes transferred so far in each direction.
    pub fn traffic(&self) -> Traffic {
        self.shared.lock().link.traffic()
    }

    /// The fast path: finds the next message if it is buffered whole, as most are.
    #[inline(always)]
    fn next_buffered(&mut self) -> bool {
        let Some(active) = &mut self.active else { return false };
        if active.messages_left == 0 || !active.reader.next_message() {
            return false;
        }
        active.messages_left -= 1;
        active.report_more(&self.shared);
        true
    }

    /// [`Receiver::next_buffered`] for a message that is kept.
    #[inline(always)]
    fn next_owned(&mut self) -> Option<OwnedMessage> {
        let active = self.active.as_mut().filter(|active| active.messages_left > 0)?;
        let message = active.reader.next_owned()?;
        active.messages_left -= 1;
        active.report_more(&self.shared);
        Some(message)
    }

    /// Takes the input that has not been decoded.
    pub(super) fn take_input(&mut self) -> Vec<u8> {
        let active = self.active.take().or_else(|| self.shared.lock().slot.take_waiting());
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
    loop {
        if active.poll_turn(shared, cx).is_pending() {
            // Many streams of a connection wait at the same time, each of which would have a buffer of its own.
            if active.budget.is_waiting() && !active.has_more(mode) {
                active.reader.take_buffer().into_iter().for_each(buffer::give_bytes);
            }
            held.take().into_iter().for_each(|active| shared.put_receiver(active));
            return Poll::Pending;
        }
        let found = if active.has_more(mode) && !active.should_read_on(mode) {
            active.decode(shared, mode)
        } else {
            let mut state = shared.lock();
            let Poll::Ready(read) = active.poll_link(&mut state, cx, mode) else {
                let unused = held.take().and_then(|active| state.put_receiver(active));
                drop(state);
                unused.into_iter().for_each(ActiveReceiver::recycle);
                return Poll::Pending;
            };
            let Some(read) = read else {
                // Taken before the unlock, in which an observer may panic: it is told of the end once.
                let failed = held.take().and_then(|mut active| active.failed.take());
                drop(state);
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

impl ActiveReceiver {
    /// Reports whether further messages are buffered.
    #[inline(always)]
    fn report_more(&mut self, shared: &Shared) {
        let has_more = self.reader.has_input();
        if has_more != self.more_buffered {
            self.more_buffered = has_more;
            shared.set_more_buffered(has_more);
        }
    }

    /// Ready when the connection has a share of the processor left. One connection must not keep a worker from the others, however much
    /// it has buffered.
    #[inline]
    fn poll_turn(&mut self, shared: &Shared, cx: &mut Context<'_>) -> Poll<()> {
        let has_waited = self.budget.is_waiting();
        ready!(self.budget.poll_paid(&self.account, cx));
        // RFC 8441 §5: the reset of a stream is that of a TCP connection, which loses what was not received.
        if has_waited && shared.lock().link.is_reset() {
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
        state.link.register_receiver(cx, &mut state.deferred);
        loop {
            // All that was read before has been answered.
            state.go_away();
            // An error is kept, and is returned after the messages that have arrived.
            let _ = state.poll_flush(Some((Waiter::Receiver, &*cx)));
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
                    self.read_before_timeout = None;
                    self.release(state);
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
        let received = state.link.traffic().bytes_received;
        received - *self.read_before_timeout.get_or_insert(received) >= READ_AFTER_TIMEOUT_LEN
    }

    /// Nothing has arrived: returns buffers and codecs to the pools of the thread.
    fn release(&mut self, state: &mut State) {
        self.release_memory();
        if self.reader.inbound().is_compressed() && state.session.take_release() {
            self.reader.release_buffers();
        }
    }

    /// Finds the next message, and applies control frames and errors to the state on the way.
    fn decode(&mut self, shared: &Shared, mode: DeliveryMode) -> bool {
        if !self.count_growth() {
            self.overload(shared);
            return false;
        }
        let inflated_before = self.reader.inbound().inflated_len();
        let (mut has_applied, mut controls) = (false, 0);
        let found = loop {
            if controls == CONTROLS_PER_PAYMENT {
                break false;
            }
            let step = self.reader.decode_as(self.delivery(mode));
            match step {
                Ok(Step::Message) => break true,
                Ok(Step::Control(mut event)) => {
                    controls += 1;
                    if shared.is_observed() {
                        let mut state = shared.lock();
                        state.session.handle_control(&mut event);
                        let notification = control_notification(&event);
                        self.queue_frames(&mut state.session);
                        notification.into_iter().for_each(|event| state.session.queue_notification(|| event));
                    } else {
                        has_applied = true;
                        shared.apply(|state| state.session.handle_control(&mut event));
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
        if has_applied && (found || has_more) {
            // Answers to control frames need a flusher. The next read flushes them, unless it comes after a message.
            drop(shared.lock());
        }
        let has_more = found && has_more;
        self.more_buffered = has_more;
        shared.set_more_buffered(has_more);
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
        state.session.handle_error(error);
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
        if state.session.core().has_read_end() {
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
        let is_large = self.reader.payload_remaining() >= mode.direct_len_min();
        if !is_large || !self.reader.has_slot() {
            if !self.reader.has_buffer() {
                self.reader.set_buffer(buffer::take_bytes());
            }
            return self.poll_read_buffer(cx, state, mode);
        }
        if !self.count_growth() {
            return Poll::Ready(Ok(Some(Read::Overloaded)));
        }
        let mut space = self.reader.space();
        let len = ready!(state.link.poll_read(cx, space.bytes()))?;
        self.budget.spend(len);
        Poll::Ready(Ok(state.session.handle_read(len).then_some(Read::Direct(len))))
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
        self.budget.spend(len);
        if !state.session.handle_read(len) {
            return Poll::Ready(Ok(None));
        }
        // Bytes in the buffer are decoded later.
        let _ = space.filled(len);
        if !self.reader.has_memory() {
            let memory = buffer::take_memory(self.memory_len_max());
            memory.into_iter().for_each(|memory| self.reader.set_memory(memory));
        }
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
        self.free();
        state.slot = ReceiverSlot::Ended;
        state.link.unregister_receiver(&mut state.deferred);
        self.timer = Timer::Unset;
        if self.failed.is_none() {
            self.failed = match state.session.core().end().map(|end| &end.cause) {
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
        state.queue_notifications();
        if let Some(end) = state.session.core().end().cloned() {
            state.session.queue_traced(ObserverEvent::CloseDone(end));
        }
        state.close_link(WebSocketError::Closed);
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
        let mut unused = self.active.take();
        let spawns = {
            let mut state = self.shared.lock();
            let is_needed = !state.link.is_closed() && Arc::strong_count(&self.shared) > 1;
            if !is_needed {
                // It would be held as long as there is a sender. It is dropped after the state is unlocked.
                unused = unused.or(state.slot.take_waiting());
            } else if let Some(active) = unused.take() {
                unused = state.put_receiver(active);
            }
            let is_driven = state.is_driven();
            // Until the end of the poll.
            self.shared.is_detached.store(is_needed && is_driven, Ordering::Relaxed);
            is_needed && !is_driven
        };
        drop(unused);
        if spawns {
            discard_in_task(&self.shared);
        }
    }
}

/// Spawns a task that receives in the place of a receiver that was dropped while senders live: messages are dropped, pings answered,
/// deadlines watched, and the connection ends when the peer leaves. Outside of a runtime nothing receives.
pub(super) fn discard_in_task(shared: &Arc<Shared>) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(discard_all(Arc::downgrade(shared)));
    }
}

/// Ready when the connection has ended, or all senders are dropped, whose end wakes this.
async fn discard_all(shared: Weak<Shared>) {
    let mut active = None;
    poll_fn(|cx| {
        let Some(shared) = shared.upgrade() else { return Poll::Ready(()) };
        // The messages that one poll drops are paid for as those that are received.
        while let Ok(true) = ready!(poll_found(&shared, &mut active, cx, DeliveryMode::Discarded)) {}
        Poll::Ready(())
    })
    .await;
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use std::pin::pin;
    use std::task::Waker;

    use tokio::io::{AsyncWriteExt as _, DuplexStream, duplex};
    use wireloom_testing::frame::masked;
    use wireloom_ws::Role;
    use wireloom_ws::deflate::{DeflateConfig, DeflateParams};
    use wireloom_ws::handshake::Negotiated;

    use super::*;
    use crate::memory::{Evict as _, Memory};
    use crate::transport::Transport;
    use crate::websocket::{Sender, WebSocket, WebSocketConfig};

    fn connect(transport: impl Transport, role: Role, negotiated: Negotiated) -> WebSocket {
        let deflate = DeflateConfig::default();
        WebSocket::from_transport(
            transport,
            role,
            negotiated,
            Some(&deflate),
            WebSocketConfig::default(),
            &[],
        )
    }

    /// Both halves of a server's WebSocket whose memory is counted.
    fn open(memory: &Arc<Memory>, transport: impl Transport) -> (Sender, Receiver) {
        let socket = connect(transport, Role::Server, Negotiated::default());
        socket.shared().set_account(&memory.account());
        socket.split()
    }

    /// The same over a pipe of this length, and its other end.
    fn serve(memory: &Arc<Memory>, len: usize) -> (DuplexStream, Sender, Receiver) {
        let (peer, transport) = duplex(len);
        let (sender, receiver) = open(memory, transport);
        (peer, sender, receiver)
    }

    fn is_pending<F: Future>(future: F) -> bool {
        pin!(future).poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    /// A message of half a million bytes, of which all but the last 100,000 have arrived. Returns the rest of its frame.
    async fn receive_most(peer: &mut DuplexStream, receiver: &mut Receiver) -> Vec<u8> {
        let mut frame = masked(0x82, vec![7; 500_000]);
        let rest = frame.split_off(frame.len() - 100_000);
        peer.write_all(&frame).await.unwrap();
        assert!(is_pending(receiver.recv()));
        rest
    }

    #[tokio::test]
    async fn an_eviction_frees_a_message_of_which_a_part_has_arrived() {
        let memory = Memory::new(1 << 30);
        let (mut peer, _sender, mut receiver) = serve(&memory, 1 << 20);
        receive_most(&mut peer, &mut receiver).await;
        assert!(memory.stats().assemblies >= 400_000);
        receiver.shared.evict();
        assert_eq!(memory.stats().assemblies, 0);
        let parked = receiver.shared.lock().slot.take_waiting().unwrap();
        assert_eq!(parked.reader.inbound().memory_len(), 0);
    }

    #[tokio::test]
    async fn the_end_of_a_connection_frees_a_message_of_which_a_part_has_arrived() {
        let memory = Memory::new(1 << 30);
        let (mut peer, _sender, mut receiver) = serve(&memory, 1 << 20);
        receive_most(&mut peer, &mut receiver).await;
        drop(peer);
        assert_eq!(receiver.recv().await.unwrap_err(), WebSocketError::ConnectionLost);
        assert_eq!(memory.stats().assemblies, 0);
        assert!(receiver.active.is_none());
    }

    // The peer no longer reads, and still sends.
    #[tokio::test]
    async fn a_message_that_arrives_after_a_failed_write_is_counted() {
        let memory = Memory::new(1 << 30);
        let (mut peer, reader) = duplex(1 << 20);
        let (_, writer) = duplex(1);
        let (mut sender, mut receiver) = open(&memory, tokio::io::join(reader, writer));
        assert_eq!(sender.send("hello").await, Err(WebSocketError::ConnectionLost));
        let rest = receive_most(&mut peer, &mut receiver).await;
        assert!(memory.stats().assemblies >= 400_000);
        peer.write_all(&rest).await.unwrap();
        assert_eq!(receiver.recv().await.unwrap().unwrap().as_bytes(), [7; 500_000]);
    }

    // The last read completes it: the receiver does not wait.
    #[tokio::test]
    async fn a_message_that_arrives_at_once_is_counted() {
        const LEN: usize = 2 << 20;
        for max in [1 << 30, LEN / 4] {
            let memory = Memory::new(max);
            let (mut peer, _sender, mut receiver) = serve(&memory, 2 * LEN);
            peer.write_all(&masked(0x82, vec![7; LEN])).await.unwrap();
            if max > LEN {
                assert_eq!(receiver.recv().await.unwrap().unwrap().as_bytes().len(), LEN);
                assert!(memory.stats().assemblies >= LEN);
            } else {
                assert_eq!(receiver.recv().await.unwrap_err(), WebSocketError::Overloaded);
                assert_eq!(memory.stats().assemblies, 0);
            }
        }
    }

    // A copy to a larger place would hold both. The message is refused before.
    #[tokio::test]
    async fn a_long_message_is_counted_before_it_grows() {
        // Its place doubles from about 2 to about 4 MiB, whichever read buffer it begins in: that takes 6 MiB.
        const MAX: usize = 5 << 20;
        for (len, received_max) in [(2 << 20, None), (8 << 20, Some((2 << 20) + (512 << 10)))] {
            let memory = Memory::new(MAX);
            let (mut peer, _sender, mut receiver) = serve(&memory, 16 << 20);
            peer.write_all(&masked(0x82, vec![7; len])).await.unwrap();
            let received = receiver.recv().await.map(|message| message.unwrap().as_bytes().len());
            match received_max {
                None => assert_eq!(received, Ok(len)),
                Some(max) => {
                    assert_eq!(received, Err(WebSocketError::Overloaded));
                    let received = receiver.traffic().bytes_received as usize;
                    assert!((1 << 20..max).contains(&received), "{received}");
                    assert_eq!(memory.stats().assemblies, 0);
                }
            }
        }
    }

    // The second overwrites the first.
    #[tokio::test]
    async fn a_message_that_was_delivered_does_not_grow() {
        const LEN: usize = 4 << 20;
        let memory = Memory::new(LEN * 3 / 2);
        let (mut peer, _sender, mut receiver) = serve(&memory, 16 << 20);
        for _ in 0..3 {
            peer.write_all(&masked(0x82, vec![7; LEN])).await.unwrap();
        }
        for _ in 0..3 {
            assert_eq!(receiver.recv().await.unwrap().unwrap().as_bytes().len(), LEN);
        }
    }

    // The message takes several steps, and the application does not touch the socket afterwards.
    #[tokio::test]
    async fn a_ping_before_a_message_that_is_inflated_in_steps_is_answered() {
        let (mut client, _sender, mut receiver) = open_compressed(&Memory::new(64 << 20));
        client.ping(b"x").await.unwrap();
        client.send(vec![7; 2 << 20]).await.unwrap();
        assert!(receiver.recv().await.unwrap().is_some());
        let pong = async {
            while client.latency().is_none() {
                let _ = tokio::time::timeout(std::time::Duration::from_millis(1), client.recv()).await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(10), pong).await.unwrap();
    }

    #[tokio::test]
    async fn an_inflated_message_is_counted_before_it_grows() {
        for (len, fits) in [(3 << 20, true), (11 << 19, false)] {
            let memory = Memory::new(6 << 20);
            let (mut client, _sender, mut receiver) = open_compressed(&memory);
            client.send(vec![7; len]).await.unwrap();
            let received = receiver.recv().await.map(|message| message.unwrap().as_bytes().len());
            assert_eq!(received, if fits { Ok(len) } else { Err(WebSocketError::Overloaded) });
            // Nothing was allocated that the limit does not allow.
            assert_eq!(memory.stats().inflated > 0, fits);
        }
    }

    /// A client, and both halves of its server, whose memory is counted.
    fn open_compressed(memory: &Arc<Memory>) -> (WebSocket, Sender, Receiver) {
        let (client, transport) = duplex(4 << 20);
        let negotiated = Negotiated { deflate: Some(DeflateParams::default()), ..Negotiated::default() };
        let client = connect(client, Role::Client, negotiated.clone());
        let server = connect(transport, Role::Server, negotiated);
        server.shared().set_account(&memory.account());
        let (sender, receiver) = server.split();
        (client, sender, receiver)
    }

    // The connection has used up its turn, and waits before it reads on.
    #[tokio::test]
    async fn a_part_of_a_message_that_was_inflated_is_counted_at_once() {
        let memory = scheduled().await;
        let (mut client, _sender, mut receiver) = open_compressed(&memory);
        // A sixteenth of it does not compress.
        let random =
            |at: u32| if at.is_multiple_of(16) { (at.wrapping_mul(0x9E37_79B1) >> 24) as u8 } else { 0 };
        let fragment: Vec<u8> = (0..4 << 20).map(random).collect();
        client.halves().0.send_chunk(fragment, false).await.unwrap();
        inflate_a_part(&memory, &mut receiver).await;
        let parked = receiver.shared.lock().slot.take_waiting().unwrap();
        assert!(parked.budget.is_waiting());
        assert!(memory.stats().inflated >= parked.reader.inbound().memory_len());
    }

    // No poll of a handler ends.
    #[tokio::test]
    async fn the_read_buffer_of_a_receiver_in_another_task_is_counted() {
        let memory = Memory::new(1 << 30);
        let (mut peer, _sender, mut receiver) = serve(&memory, 1 << 20);
        peer.write_all(&masked(0x81, b"hello")).await.unwrap();
        assert_eq!(receiver.recv().await.unwrap().unwrap().as_text(), Some("hello"));
        receiver.shared.release_if_idle();
        assert_eq!(memory.stats().read_buffers, buffer::LEN_SMALL);
        assert!(is_pending(receiver.recv()));
        assert_eq!(memory.stats().read_buffers, 0);
        receiver.shared.release_if_idle();
        assert_eq!(memory.stats().read_buffers, 0);
    }

    // The application keeps a sender, and does not receive any more.
    #[tokio::test]
    async fn the_read_buffer_of_a_connection_that_was_closed_is_not_counted() {
        let memory = Memory::new(1 << 30);
        let (mut peer, _sender, mut receiver) = serve(&memory, 1 << 20);
        peer.write_all(&masked(0x81, b"hello")).await.unwrap();
        assert!(receiver.recv().await.unwrap().is_some());
        receiver.shared.release_if_idle();
        assert_eq!(memory.stats().read_buffers, buffer::LEN_SMALL);
        receiver.shared.lock().disconnect_slow();
        drop(receiver);
        assert_eq!(memory.stats().read_buffers, 0);
    }

    // Its connection has used up its turn.
    #[tokio::test]
    async fn the_read_buffer_of_a_receiver_that_waits_with_input_is_counted_as_it_is() {
        let memory = scheduled().await;
        let (mut peer, _sender, mut receiver) = serve(&memory, 1 << 20);
        peer.write_all(&masked(0x81, b"hello").repeat(3)).await.unwrap();
        assert!(receiver.recv().await.unwrap().is_some());
        receiver.active.as_mut().unwrap().budget.spend(2 << 20);
        receiver.active.as_mut().unwrap().messages_left = 0;
        assert!(is_pending(receiver.recv()));
        let parked = receiver.shared.lock().slot.read_buffer_len();
        assert_eq!(memory.stats().read_buffers, parked >> 10 << 10);
        assert!(parked > buffer::LEN_SMALL);
        for _ in 0..2 {
            assert!(receiver.recv().await.unwrap().is_some());
        }
        assert!(is_pending(receiver.recv()));
        assert_eq!(memory.stats().read_buffers, 0);
    }

    // They fit into one read, and take milliseconds.
    #[tokio::test]
    async fn pings_are_paid_for() {
        let memory = scheduled().await;
        let (mut peer, _sender, mut receiver) = serve(&memory, 1 << 20);
        peer.write_all(&masked(0x89, b"").repeat(20_000)).await.unwrap();
        assert!(is_pending(receiver.recv()));
        let parked = receiver.shared.lock().slot.take_waiting().unwrap();
        assert!(parked.budget.is_waiting());
    }

    // The next message may refer to it.
    #[tokio::test]
    async fn the_window_of_compressed_messages_is_counted_until_the_end() {
        let memory = Memory::new(1 << 30);
        let (mut client, mut sender, receiver) = open_compressed(&memory);
        sender.send(wireloom_testing::Rng::with_seed(7).bytes(64 << 10)).await.unwrap();
        assert!(client.recv().await.unwrap().is_some());
        assert!(memory.stats().inflated >= 32 << 10, "{:?}", memory.stats());
        receiver.shared.evict();
        assert_eq!(memory.stats().inflated, 0);
    }

    #[tokio::test]
    async fn a_queue_that_is_not_written_any_more_is_not_counted() {
        let memory = Memory::new(1 << 30);
        let (peer, transport) = duplex(1 << 10);
        let (mut sender, _receiver) = open(&memory, transport);
        assert!(is_pending(sender.send(&[7; 100_000])));
        assert!(memory.stats().send_queues >= 98_000);
        drop(peer);
        assert_eq!(sender.flush().await, Err(WebSocketError::ConnectionLost));
        assert_eq!((sender.queued_len(), memory.stats().send_queues), (0, 0));
    }

    // The handler keeps the WebSocket.
    #[tokio::test(start_paused = true)]
    async fn the_queue_of_a_slow_peer_is_freed_when_it_is_disconnected() {
        let memory = Memory::new(1 << 30);
        let (mut peer, mut sender, _receiver) = serve(&memory, 1 << 10);
        assert_eq!(sender.send(&[7; 100_000]).await, Err(WebSocketError::SlowPeer));
        assert_eq!((sender.queued_len(), memory.stats().send_queues), (0, 0));
        let mut received = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut peer, &mut received).await.unwrap();
        assert_eq!(received.len(), 1 << 10);
    }

    // Streams of one connection wait together: a large buffer for each would be allocated, cleared and freed for each.
    #[tokio::test]
    async fn a_receiver_that_waits_for_its_turn_holds_no_empty_read_buffer() {
        let memory = scheduled().await;
        let (mut peer, transport) = duplex(1 << 20);
        let (_sender, mut receiver) = open(&memory, transport);
        let account = memory.account();
        receiver.shared.set_account(&account);
        peer.write_all(&masked(0x81, b"hello")).await.unwrap();
        assert!(receiver.recv().await.unwrap().is_some());
        // The peer has used up its share.
        account.charge(4 << 20);
        assert!(is_pending(receiver.recv()));
        assert_eq!(memory.stats().read_buffers, 0);
        // One that has more to decode keeps it.
        let (more, last) = (masked(0x81, b"more"), masked(0x81, b"last"));
        peer.write_all(&[&more[..], &last[..3]].concat()).await.unwrap();
        assert!(receiver.recv().await.unwrap().is_some());
        account.charge(4 << 20);
        assert!(is_pending(receiver.recv()));
        assert!(memory.stats().read_buffers > 0);
        peer.write_all(&last[3..]).await.unwrap();
        assert_eq!(receiver.recv().await.unwrap().unwrap().as_text(), Some("last"));
    }

    // It waits for its turn when the last sender is dropped. Nothing else would wake it.
    #[tokio::test]
    async fn a_task_that_discards_ends_while_it_waits_for_its_turn() {
        let memory = scheduled().await;
        let (mut peer, transport) = duplex(1 << 20);
        let (sender, mut receiver) = open(&memory, transport);
        let account = memory.account();
        receiver.shared.set_account(&account);
        let weak = Arc::downgrade(&receiver.shared);
        for _ in 0..3 {
            peer.write_all(&masked(0x81, b"hello")).await.unwrap();
        }
        assert!(receiver.recv().await.unwrap().is_some());
        let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        let before = alive();
        // The peer has used up its share.
        account.charge(4 << 20);
        drop(receiver);
        tokio::spawn(async move { drop(sender) });
        tokio::task::yield_now().await;
        drop(account);
        drop(peer);
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        assert_eq!((weak.strong_count(), weak.weak_count(), alive()), (0, 0, before));
    }

    // An eviction while the state is taken: its memory is freed when it is put back, which wakes others that wait for memory.
    #[tokio::test]
    async fn wakes_those_that_wait_for_memory_after_the_unlock() {
        struct Probe(Weak<Shared>, std::sync::Mutex<Vec<bool>>);
        impl std::task::Wake for Probe {
            fn wake(self: Arc<Self>) {
                let is_locked = self.0.upgrade().unwrap().try_lock().is_none();
                self.1.lock().unwrap().push(is_locked);
            }
        }
        let memory = Memory::new(600_000);
        let (mut peer, _sender, mut receiver) = serve(&memory, 1 << 20);
        receive_most(&mut peer, &mut receiver).await;
        let shared = receiver.shared.clone();
        let other = memory.account();
        let mut held = other.reservation(crate::memory::Category::Body);
        held.set(81 << 10);
        let probe = Arc::new(Probe(Arc::downgrade(&shared), std::sync::Mutex::default()));
        let waker = Waker::from(probe.clone());
        assert!(other.poll_read_allowed(&mut Context::from_waker(&waker)).is_pending());
        let active = shared.take_receiver().unwrap();
        shared.evict();
        assert!(probe.1.lock().unwrap().is_empty());
        shared.put_receiver(active);
        assert_eq!(*probe.1.lock().unwrap(), [false]);
        assert_eq!(receiver.recv().await.unwrap_err(), WebSocketError::Overloaded);
    }

    // A part of a message is inflated, and the peer is found to be too slow before the eviction.
    #[tokio::test]
    async fn an_eviction_after_another_failure_frees_the_state_that_is_taken() {
        let memory = scheduled().await;
        let (mut client, _sender, mut receiver) = open_compressed(&memory);
        client.send(vec![7; 4 << 20]).await.unwrap();
        inflate_a_part(&memory, &mut receiver).await;
        let shared = receiver.shared.clone();
        let active = shared.take_receiver().unwrap();
        shared.lock().disconnect_slow();
        shared.evict();
        shared.put_receiver(active);
        assert_eq!(memory.stats().inflated, 0);
        assert_eq!(receiver.recv().await.unwrap_err(), WebSocketError::Overloaded);
    }

    #[tokio::test]
    async fn a_ping_outside_of_a_driven_future_spawns_no_task() {
        let (_peer, transport) = duplex(1 << 20);
        let (mut sender, _receiver) = open(&Memory::new(1 << 30), transport);
        sender.ping(b"").await.unwrap();
        assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
    }

    /// Memory whose scheduler runs until the end of the test.
    async fn scheduled() -> Arc<Memory> {
        let memory = Memory::new(1 << 30);
        let scheduling = memory.clone();
        tokio::spawn(async move { scheduling.scheduler().run().await });
        tokio::task::yield_now().await;
        memory
    }

    /// A part of the message is inflated, and the connection waits for its next turn.
    async fn inflate_a_part(memory: &Memory, receiver: &mut Receiver) {
        while memory.stats().inflated == 0 {
            assert!(is_pending(receiver.recv()));
            tokio::task::yield_now().await;
        }
    }

    // The connection has used up its turn, and waits for the next one when its peer is too slow.
    #[tokio::test]
    async fn messages_that_arrived_before_a_disconnection_are_returned() {
        for is_server in [false, true] {
            let memory = scheduled().await;
            let (mut peer, transport) = duplex(1 << 20);
            let (role, frame) = if is_server {
                (Role::Server, masked(0x81, b"hi"))
            } else {
                (Role::Client, vec![0x81, 2, b'h', b'i'])
            };
            let socket = connect(transport, role, Negotiated::default());
            if is_server {
                socket.shared().set_account(&memory.account());
            }
            let (_sender, mut receiver) = socket.split();
            for _ in 0..80 {
                peer.write_all(&frame).await.unwrap();
            }
            let mut count = 0;
            while receiver.active.as_ref().is_none_or(|active| active.messages_left > 0) {
                assert!(receiver.recv().await.unwrap().is_some());
                count += 1;
            }
            receiver.active.as_mut().unwrap().budget.spend(2 << 20);
            while !is_pending(receiver.recv()) {
                count += 1;
            }
            receiver.shared.lock().disconnect_slow();
            let error = loop {
                match receiver.recv().await {
                    Ok(message) => count += usize::from(message.is_some()),
                    Err(error) => break error,
                }
            };
            assert_eq!((count, error), (80, WebSocketError::SlowPeer), "{is_server}");
        }
    }

    // A part of it is inflated when the other half of the connection finds that the peer is too slow.
    #[tokio::test]
    async fn a_message_that_is_inflated_in_steps_is_returned_after_a_disconnection() {
        const LEN: usize = 4 << 20;
        let memory = scheduled().await;
        let (mut client, _sender, mut receiver) = open_compressed(&memory);
        client.send(vec![7; LEN]).await.unwrap();
        inflate_a_part(&memory, &mut receiver).await;
        let shared = receiver.shared.clone();
        let active = shared.take_receiver().unwrap();
        shared.lock().disconnect_slow();
        shared.put_receiver(active);
        assert_eq!(receiver.recv().await.unwrap().unwrap().as_bytes().len(), LEN);
        assert_eq!(receiver.recv().await.unwrap_err(), WebSocketError::SlowPeer);
    }
}
