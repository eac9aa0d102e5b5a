//! The half that receives. It drives the connection: reading, pongs, deadlines, the closing handshake.

use std::cell::RefCell;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::Pin;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use tokio::time::Sleep;
use wireloom_ws::{Cause, End, Event, IdleInbound, Inbound, Kind};

use super::message::{Message, OwnedMessage, Part};
use super::observer::Observed;
use super::state::{Half, Shared, State, Traffic};
use crate::error::{Error, Stage};
use crate::transport::buffer::{self, Buffer};

/// From this much of a frame outstanding on, a read goes to the end of the message itself. What is less is copied there from
/// a buffer that takes what follows it too: a system call costs more than that.
const SLOT_LEN_MIN: u64 = 64 << 10;

/// After a message of this length another is expected: then the read that brings its head brings little of it, and the rest
/// goes where it belongs without being copied.
const LARGE_LEN_MIN: usize = 256 << 10;

/// What that read brings.
const HEAD_READ_LEN: usize = 16 << 10;

/// The half of a [`WebSocket`](super::WebSocket) that receives.
///
/// It also answers pings, watches deadlines and finishes the closing handshake: keep calling [`recv`](Self::recv).
pub struct Receiver {
    pub(super) shared: Arc<Shared>,
    /// In a box, so that futures that hold a receiver are small, however often it moves within them. None while nothing is
    /// under way and `idle` says all that there is to know.
    reading: Option<Box<Reading>>,
    /// The message before was so large that the next is read in another way.
    expects_large: bool,
}

thread_local! {
    /// Boxes for those who need one again: moving what they hold would cost more.
    #[allow(clippy::vec_box)]
    static SPARE: RefCell<Vec<Box<Reading>>> = const { RefCell::new(Vec::new()) };
}

/// So many boxes are kept by a thread.
const SPARE_MAX: usize = 8;

/// What has arrived, and what is waited for.
pub(super) struct Reading {
    inbound: Inbound,
    /// Held while bytes are in flight.
    buffer: Option<Buffer>,
    /// What [`Shared`] knows of it.
    at_hand: bool,
    /// The message before was so large that the next is read in another way.
    expects_large: bool,
    over: bool,
    /// What was found last, for as long as a [`Message`] borrows this.
    lent: Lent,
    /// What ended the connection, until it is told.
    failed: Option<Box<Error>>,
    sleep: Option<Pin<Box<Sleep>>>,
    /// The pieces so far of a message that is to be handed out whole although pieces are lent.
    joined: Option<Box<BytesMut>>,
    /// How much of a message in pieces whoever watches has not been told yet.
    told_len: u64,
}

/// Where a message lies that has been found.
#[derive(Clone, Copy)]
pub(super) struct Lent {
    pub(super) kind: Kind,
    pub(super) part: Part,
    /// It lies where messages are assembled, not in the buffer.
    assembled: bool,
    /// Where in the buffer.
    at: usize,
    len: usize,
}

impl Lent {
    const NOTHING: Self = Self { kind: Kind::Binary, part: Part::Whole, assembled: false, at: 0, len: 0 };
}

impl Receiver {
    pub(super) fn new(shared: Arc<Shared>, inbound: Inbound, arrived: &[u8]) -> Self {
        if arrived.is_empty() && shared.idle.is_some() && shared.idle == inbound.idle() {
            // It is made when something arrives.
            return Self { shared, reading: None, expects_large: false };
        }
        let mut reading = Reading::new(inbound);
        reading.buffer = (!arrived.is_empty()).then(|| Buffer::holding(arrived));
        Self { shared, reading: Some(Box::new(reading)), expects_large: false }
    }

    /// The next message, borrowed until the one after it is asked for; `None` when the connection has been closed.
    ///
    /// All frames of a read are lent before the next read, and what was sent in the meantime leaves in one write before
    /// this waits. Pings are answered along the way.
    ///
    /// When [`Delivery::Chunks`](wireloom_ws::Delivery::Chunks) was chosen, a message that did not arrive at once comes in
    /// pieces, as they arrive; see [`Message::is_last`].
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// The peer broke a rule or a limit, which it has been told; the transport failed or ended without a closing handshake.
    /// After an error there is `None`.
    #[inline]
    pub fn recv(&mut self) -> Receiving<'_> {
        Receiving { receiver: Some(self) }
    }

    /// As [`recv`](Self::recv), with a message to keep, always whole. One that came in pieces is not copied.
    ///
    /// # Errors
    /// As for [`recv`](Self::recv).
    pub async fn recv_owned(&mut self) -> Result<Option<OwnedMessage>, Error> {
        poll_fn(|cx| self.poll_recv_owned(cx)).await
    }

    /// [`recv_owned`](Self::recv_owned) for those who poll.
    ///
    /// # Errors
    /// As for [`recv`](Self::recv).
    pub fn poll_recv_owned(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<OwnedMessage>, Error>> {
        loop {
            if !self.next_at_hand() && !ready!(self.poll_found(cx)) {
                return Poll::Ready(self.take_failure().map_or(Ok(None), |error| Err(*error)));
            }
            if let Some(message) = self.reading.as_mut().and_then(|reading| reading.keep()) {
                return Poll::Ready(Ok(Some(message)));
            }
        }
    }

    /// Why the connection ended, and who began it; `None` while it is open.
    pub fn end(&self) -> Option<End> {
        self.shared.lock().core.end().cloned()
    }

    /// What has moved so far, both ways.
    pub fn traffic(&self) -> Traffic {
        self.shared.lock().traffic
    }

    /// Finds the next message, if it lies whole in what has been read: most do.
    #[inline(always)]
    fn next_at_hand(&mut self) -> bool {
        let Some(reading) = &mut self.reading else { return false };
        let Some(buffer) = &mut reading.buffer else { return false };
        let start = buffer.start();
        let Some((kind, at, len)) = reading.inbound.whole_message(buffer.waiting()) else { return false };
        buffer.taken(at + len);
        let at_hand = !buffer.is_empty();
        if at_hand != reading.at_hand {
            reading.at_hand = at_hand;
            self.shared.set_at_hand(at_hand);
        }
        reading.lent = Lent { kind, part: Part::Whole, assembled: false, at: start + at, len };
        true
    }

    /// Ready when a message has been found, or, with `false`, when all is over: then there may be a
    /// [failure](Self::take_failure).
    #[inline(never)]
    fn poll_found(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let Self { shared, reading, expects_large } = self;
        if reading.is_none()
            && let Some(idle) = shared.idle
        {
            *reading = Some(Reading::again(idle, *expects_large));
        }
        // What cannot be made again is never put away.
        let Some(reading) = reading else { return Poll::Ready(false) };
        if !reading.over {
            match reading.poll_next(shared, cx) {
                Poll::Ready(Some(lent)) => {
                    reading.lent = lent;
                    return Poll::Ready(true);
                }
                Poll::Ready(None) => {}
                Poll::Pending => {
                    if reading.is_idle(shared.idle) {
                        *expects_large = reading.expects_large;
                        self.put_away();
                    }
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(false)
    }

    /// What ended the connection, once.
    #[cold]
    fn take_failure(&mut self) -> Option<Box<Error>> {
        self.reading.as_mut()?.failed.take()
    }

    /// Nothing is under way: the box is for others.
    fn put_away(&mut self) {
        let Some(reading) = self.reading.take() else { return };
        // A thread that ends keeps none.
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < SPARE_MAX {
                spare.push(reading);
            }
        });
    }
}

impl Reading {
    fn new(inbound: Inbound) -> Self {
        Self {
            inbound,
            buffer: None,
            at_hand: false,
            expects_large: false,
            over: false,
            lent: Lent::NOTHING,
            failed: None,
            sleep: None,
            joined: None,
            told_len: 0,
        }
    }

    /// What was put away because it was idle.
    fn again(idle: IdleInbound, expects_large: bool) -> Box<Self> {
        let spare = SPARE.try_with(|spare| spare.borrow_mut().pop()).ok().flatten();
        let mut reading = spare.unwrap_or_else(|| Box::new(Self::new(idle.into())));
        // It was put away idle, so that nothing but the limits can differ.
        if reading.inbound.idle() != Some(idle) {
            reading.inbound = idle.into();
        }
        reading.expects_large = expects_large;
        reading
    }

    /// Whether this can be made again from `idle`.
    fn is_idle(&self, idle: Option<IdleInbound>) -> bool {
        idle.is_some()
            && self.inbound.idle() == idle
            && self.buffer.is_none()
            && self.failed.is_none()
            && self.sleep.is_none()
            && self.joined.is_none()
    }

    #[inline]
    pub(super) fn lent(&self) -> &Lent {
        &self.lent
    }

    /// The bytes of what was found last.
    #[inline(always)]
    pub(super) fn lent_bytes(&self) -> &[u8] {
        let Lent { assembled, at, len, .. } = self.lent;
        match &self.buffer {
            _ if assembled => self.inbound.assembled(),
            Some(buffer) => buffer.at(at, len),
            None => &[],
        }
    }

    /// What was found last, to keep; `None` for a piece that is not its message's last.
    fn keep(&mut self) -> Option<OwnedMessage> {
        let Lent { kind, part, assembled, .. } = self.lent;
        let data = match (part, assembled) {
            (Part::Whole, true) => self.inbound.take_assembled(),
            (Part::Whole, false) => Bytes::copy_from_slice(self.lent_bytes()),
            (part, _) => {
                let mut joined = self.joined.take().unwrap_or_default();
                joined.extend_from_slice(self.lent_bytes());
                if !part.is_last() {
                    self.joined = Some(joined);
                    return None;
                }
                joined.freeze()
            }
        };
        Some(OwnedMessage::new(kind, data))
    }

    /// Ready with a message, or when all is over.
    fn poll_next(&mut self, shared: &Arc<Shared>, cx: &mut Context<'_>) -> Poll<Option<Lent>> {
        if let Some(lent) = self.decode(shared) {
            return Poll::Ready(Some(lent));
        }
        let mut state = shared.lock_written();
        let state = &mut *state;
        loop {
            // An error is kept, and is told when all that has arrived was handed out.
            let _ = state.poll_flush(Some((Half::Receiver, &*cx)));
            if state.settle(cx) {
                self.finish(shared, state);
                return Poll::Ready(None);
            }
            match self.poll_read(cx, state) {
                Poll::Ready(Some(lent)) => {
                    if shared.is_watched() {
                        self.tell_read(shared, Some(lent));
                    }
                    return Poll::Ready(Some(lent));
                }
                Poll::Ready(None) => {}
                Poll::Pending => {
                    self.rest(shared);
                    if self.poll_deadline(cx, state).is_ready() {
                        continue;
                    }
                    if !state.receiver.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                        state.receiver = Some(cx.waker().clone());
                    }
                    return Poll::Pending;
                }
            }
            if let Some(lent) = self.decode_with(shared, state) {
                return Poll::Ready(Some(lent));
            }
        }
    }

    /// Nothing is in flight: nothing is held.
    fn rest(&mut self, shared: &Shared) {
        self.buffer = None;
        buffer::keep_memory(self.inbound.take_memory());
        if shared.compressed && shared.release.swap(false, Ordering::Relaxed) {
            self.inbound.release_buffers();
        }
    }

    /// The next message in what has been read.
    fn decode(&mut self, shared: &Arc<Shared>) -> Option<Lent> {
        if !self.has_more() {
            return None;
        }
        self.decode_with(shared, &mut shared.lock())
    }

    /// Whether there is something to decode. Compressed pieces may go on without further bytes.
    fn has_more(&self) -> bool {
        self.buffer.as_ref().is_some_and(|buffer| !buffer.is_empty()) || self.inbound.has_more()
    }

    fn decode_with(&mut self, shared: &Shared, state: &mut State) -> Option<Lent> {
        let mut found = None;
        while let Some(buffer) = &mut self.buffer {
            let start = buffer.start();
            let waiting = buffer.waiting();
            let (range, len) = (waiting.as_ptr_range(), waiting.len());
            match self.inbound.handle_input(waiting) {
                Ok((used, event)) => {
                    let is_event = event.is_some();
                    found = event.and_then(|event| heed(event, state, &range, start + used));
                    buffer.taken(used);
                    if found.is_some() || !is_event {
                        break;
                    }
                }
                Err(error) => {
                    let now = state.now();
                    state.core.handle_error(now, error);
                    self.failed = Some(Box::new(error.into()));
                    buffer.taken(len);
                    break;
                }
            }
        }
        if shared.is_watched() {
            self.tell_read(shared, found);
        }
        self.expects_large &= found.is_none();
        let at_hand = found.is_some() && self.has_more();
        self.at_hand = at_hand;
        shared.set_at_hand(at_hand);
        found
    }

    /// Tells whoever watches what frames have come, and what message.
    fn tell_read(&mut self, shared: &Shared, found: Option<Lent>) {
        for frame in self.inbound.frames_seen() {
            shared.tell(&Observed::FrameRead(frame));
        }
        let Some(lent) = found else { return };
        self.told_len += if lent.assembled { self.inbound.assembled().len() } else { lent.len } as u64;
        if lent.part.is_last() {
            let len = std::mem::take(&mut self.told_len);
            shared.tell(&Observed::MessageRead { kind: lent.kind, len });
        }
    }

    /// Ready when something has changed, with a message perhaps.
    fn poll_read(&mut self, cx: &mut Context<'_>, state: &mut State) -> Poll<Option<Lent>> {
        if state.io.directions_mix() {
            let combined = state.waker_for(Some((Half::Receiver, &*cx)));
            return self.poll_read_with(&mut Context::from_waker(&combined), state);
        }
        self.poll_read_with(cx, state)
    }

    fn poll_read_with(&mut self, cx: &mut Context<'_>, state: &mut State) -> Poll<Option<Lent>> {
        if self.inbound.payload_remaining() >= SLOT_LEN_MIN
            && let Some(slot) = self.inbound.recv_slot()
        {
            return match ready!(state.io.poll_read(cx, slot)) {
                Ok(len) if len > 0 => {
                    self.heard(state, len);
                    Poll::Ready(self.receive_slot(state, len))
                }
                end => Self::ended(state, end.map(drop)),
            };
        }
        let buffer = self.buffer.get_or_insert_with(Buffer::take);
        let mut space = buffer.space();
        if self.expects_large {
            let len = space.len().min(HEAD_READ_LEN);
            space = &mut space[..len];
        }
        match ready!(state.io.poll_read(cx, space)) {
            Ok(len) if len > 0 => {
                buffer.filled(len);
                if !self.inbound.has_memory() {
                    buffer::lend_memory(|memory| self.inbound.give_memory(memory));
                }
                self.heard(state, len);
                Poll::Ready(None)
            }
            end => Self::ended(state, end.map(drop)),
        }
    }

    fn heard(&mut self, state: &mut State, len: usize) {
        state.traffic.bytes_received += len as u64;
        state.count_move();
        if state.core.keeps_alive() {
            let now = state.now();
            state.core.heard(now);
        }
    }

    /// `len` bytes were read to the end of a large message.
    fn receive_slot(&mut self, state: &mut State, len: usize) -> Option<Lent> {
        match self.inbound.received(len) {
            Ok(event) => {
                let lent = heed(event?, state, &(ptr::null()..ptr::null()), 0);
                self.expects_large = self.inbound.assembled().len() >= LARGE_LEN_MIN;
                lent
            }
            Err(error) => {
                let now = state.now();
                state.core.handle_error(now, error);
                self.failed = Some(Box::new(error.into()));
                None
            }
        }
    }

    fn ended(state: &mut State, end: std::io::Result<()>) -> Poll<Option<Lent>> {
        match end {
            Ok(()) => state.core.handle_eof(),
            Err(error) => state.fail_read(&error),
        }
        Poll::Ready(None)
    }

    /// Ready when a deadline of the core has passed.
    fn poll_deadline(&mut self, cx: &mut Context<'_>, state: &mut State) -> Poll<()> {
        let Some(deadline) = state.poll_timeout() else {
            self.sleep = None;
            return Poll::Pending;
        };
        let sleep = match &mut self.sleep {
            Some(sleep) => {
                // Activity moves most deadlines back; the timer is moved when it goes off.
                if sleep.deadline() > deadline || sleep.is_elapsed() {
                    sleep.as_mut().reset(deadline);
                }
                sleep
            }
            none => none.insert(Box::pin(tokio::time::sleep_until(deadline))),
        };
        ready!(sleep.as_mut().poll(cx));
        state.handle_timeout();
        Poll::Ready(())
    }

    /// The transport is done with: says why, once.
    fn finish(&mut self, shared: &Shared, state: &mut State) {
        self.over = true;
        self.buffer = None;
        self.sleep = None;
        self.joined = None;
        if self.failed.is_none() {
            self.failed = match state.core.end().map(|end| &end.cause) {
                Some(Cause::Close { .. } | Cause::CloseTimeout) => None,
                Some(Cause::Error(error)) => Some((*error).into()),
                Some(Cause::Silence) => Some(Error::Timeout(Stage::Silence)),
                _ => Some(state.broken().cloned().unwrap_or(Error::Cut)),
            }
            .map(Box::new);
        }
        if let Some(error) = &self.failed {
            shared.tell(&Observed::Error(error));
        }
        shared.tell_news(state);
        if let Some(end) = state.core.end() {
            shared.tell(&Observed::CloseDone(end));
        }
        state.set_broken(Error::Closed);
        state.wake();
    }
}

/// The future of [`Receiver::recv`]. Dropping it loses nothing.
#[must_use = "nothing is received before this is awaited"]
pub struct Receiving<'a> {
    /// Until it is ready.
    receiver: Option<&'a mut Receiver>,
}

impl<'a> Future for Receiving<'a> {
    type Output = Result<Option<Message<'a>>, Error>;

    // What is found at hand is to stay in registers on its way to whoever awaits it.
    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(receiver) = self.receiver.take() else { return Poll::Ready(Ok(None)) };
        if !receiver.next_at_hand() {
            match receiver.poll_found(cx) {
                Poll::Ready(true) => {}
                // Errors are large: one in a box keeps others from being moved through memory on the way above.
                Poll::Ready(false) => {
                    return Poll::Ready(receiver.take_failure().map_or(Ok(None), |error| Err(*error)));
                }
                Poll::Pending => {
                    self.receiver = Some(receiver);
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(Ok(receiver.reading.as_deref().map(Message::new)))
    }
}

impl Drop for Receiver {
    /// Nothing is at hand any more: what is sent from now on waits for nothing.
    fn drop(&mut self) {
        self.shared.set_at_hand(false);
    }
}

/// Does what an event asks for, and says where the message of one lies: when that is in `buffer`, it ends at `end` of it.
fn heed(mut event: Event<'_>, state: &mut State, buffer: &Range<*const u8>, end: usize) -> Option<Lent> {
    let (kind, part, data) = match &event {
        Event::Text(text) => (Kind::Text, Part::Whole, text.as_bytes()),
        Event::Binary(data) => (Kind::Binary, Part::Whole, &**data),
        Event::Chunk(chunk) => (chunk.kind, Part::of(chunk.first, chunk.fin), chunk.data),
        _ => {
            let now = state.now();
            state.core.handle_event(now, &mut event);
            return None;
        }
    };
    let len = data.len();
    let assembled = len > 0 && !buffer.contains(&data.as_ptr());
    let at = if assembled { 0 } else { end - len };
    Some(Lent { kind, part, assembled, at, len })
}
