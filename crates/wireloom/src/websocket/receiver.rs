//! The half that receives. It drives the connection: reading, pongs, deadlines, the closing handshake.

use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, Sleep};
use wireloom_ws::{Cause, Connection, End, Event, Kind, Limits, Role};

use super::message::{Message, OwnedMessage};
use super::state::{Half, Shared, State};
use crate::buffer::Buffer;
use crate::error::{Error, Stage};

/// So many messages are found under one lock.
const BATCH: usize = 8;

/// A message that was assembled is moved out from this length on, and copied below: then its memory serves the next.
const MOVED_LEN_MIN: usize = 64 << 10;

/// The half of a [`WebSocket`](super::WebSocket) that receives.
///
/// It also answers pings, watches deadlines and finishes the closing handshake: keep calling [`recv`](Self::recv).
pub struct Receiver {
    pub(super) shared: Arc<Shared>,
    /// Held while bytes are in flight.
    buffer: Option<Buffer>,
    /// More than one only when the further ones cannot fail.
    batch: [Lent; BATCH],
    /// `next <= found <= BATCH`: those messages of the batch wait to be lent.
    next: u8,
    found: u8,
    /// A message that lies in no read buffer.
    held: Held,
    /// What ended the connection, until it is told.
    failed: Option<Error>,
    over: bool,
    /// The mask bit that frames must have, unless the limits are so small that any frame may break them.
    is_harmless: Option<u8>,
    sleep: Option<Pin<Box<Sleep>>>,
}

/// Where a message lies that has been found.
#[derive(Clone, Copy)]
struct Lent {
    kind: Kind,
    /// In the buffer; `None` when it is held.
    at: Option<u32>,
    len: u32,
}

/// A message that came in pieces or compressed.
enum Held {
    Small(Vec<u8>),
    Large(Bytes),
}

impl Receiver {
    pub(super) fn new(shared: Arc<Shared>, role: Role, limits: &Limits, arrived: &[u8]) -> Self {
        let mask_bit = if role == Role::Server { 0x80 } else { 0 };
        let is_harmless = (limits.message_len_max.min(limits.frame_len_max) >= 125).then_some(mask_bit);
        Self {
            shared,
            buffer: (!arrived.is_empty()).then(|| Buffer::holding(arrived)),
            batch: [Lent { kind: Kind::Text, at: None, len: 0 }; BATCH],
            next: 0,
            found: 0,
            held: Held::Small(Vec::new()),
            failed: None,
            over: false,
            is_harmless,
            sleep: None,
        }
    }

    /// The next message, borrowed until the one after it is asked for; `None` when the connection has been closed.
    ///
    /// All frames of a read are lent before the next read, and what was sent in the meantime leaves in one write before
    /// this waits. Pings are answered along the way.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// The peer broke a rule or a limit, which it has been told; the transport failed or ended without a closing handshake.
    /// After an error there is `None`.
    #[inline]
    pub async fn recv(&mut self) -> Result<Option<Message<'_>>, Error> {
        let lent = if self.next < self.found {
            Some(self.take())
        } else {
            poll_fn(|cx| self.poll_found(cx)).await?
        };
        Ok(lent.map(|lent| self.lend(lent)))
    }

    /// As [`recv`](Self::recv), with a message to keep. One that came in pieces is not copied.
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
        let Some(lent) = ready!(self.poll_found(cx))? else { return Poll::Ready(Ok(None)) };
        if lent.at.is_none()
            && let Held::Large(bytes) = &mut self.held
        {
            return Poll::Ready(Ok(Some(OwnedMessage::new(lent.kind, std::mem::take(bytes)))));
        }
        Poll::Ready(Ok(Some(self.lend(lent).into_owned())))
    }

    /// Why the connection ended, and who began it; `None` while it is open.
    pub fn end(&self) -> Option<End> {
        self.shared.lock().core.end().cloned()
    }

    /// The next message of the batch.
    #[inline]
    fn take(&mut self) -> Lent {
        let lent = self.batch[usize::from(self.next)];
        self.next += 1;
        if self.next == self.found && self.buffer.as_ref().is_none_or(Buffer::is_empty) {
            self.shared.at_hand.store(false, Ordering::Relaxed);
        }
        lent
    }

    #[inline]
    fn lend(&mut self, lent: Lent) -> Message<'_> {
        let data = match (lent.at, &mut self.buffer, &self.held) {
            (Some(at), Some(buffer), _) => &*buffer.at(at as usize, lent.len as usize),
            (None, _, Held::Small(bytes)) => bytes,
            (None, _, Held::Large(bytes)) => bytes,
            (Some(_), None, _) => &[],
        };
        Message::new(lent.kind, data)
    }

    fn poll_found(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Lent>, Error>> {
        if self.next == self.found && !self.over {
            ready!(self.poll_batch(cx));
        }
        if self.next < self.found {
            return Poll::Ready(Ok(Some(self.take())));
        }
        match self.failed.take() {
            Some(error) => Poll::Ready(Err(error)),
            None => Poll::Ready(Ok(None)),
        }
    }

    /// Ready with messages in the batch, or when all is over.
    fn poll_batch(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.next = 0;
        self.found = 0;
        let shared = self.shared.clone();
        let mut state = shared.lock();
        let state = &mut *state;
        loop {
            self.decode(state);
            if self.found > 0 {
                let more = self.found > 1 || self.buffer.as_ref().is_some_and(|buffer| !buffer.is_empty());
                shared.at_hand.store(more, Ordering::Relaxed);
                return Poll::Ready(());
            }
            shared.at_hand.store(false, Ordering::Relaxed);
            if state.core.wants_write() {
                let _ = state.poll_flush(Some((Half::Receiver, &*cx)));
            }
            if state.settle(cx) {
                self.finish(state);
                return Poll::Ready(());
            }
            if self.poll_read(cx, state).is_pending() {
                // Nothing is in flight: nothing is held.
                self.buffer = None;
                self.held = Held::Small(Vec::new());
                if self.poll_deadline(cx, state).is_ready() {
                    continue;
                }
                if !state.receiver.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                    state.receiver = Some(cx.waker().clone());
                }
                return Poll::Pending;
            }
        }
    }

    /// Finds messages in what has arrived.
    fn decode(&mut self, state: &mut State) {
        let Some(buffer) = &mut self.buffer else { return };
        let now = state.time(state.read_at);
        while !buffer.is_empty() && usize::from(self.found) < BATCH {
            let start = buffer.start();
            let waiting = buffer.waiting();
            // A Close frame or a fault ends sending too: the messages before it are answered first.
            if self.found > 0 && !self.is_harmless.is_some_and(|mask_bit| is_harmless(waiting, mask_bit)) {
                return;
            }
            let (base, len) = (waiting.as_ptr(), waiting.len());
            match state.core.handle_input(now, waiting) {
                Ok((used, event)) => {
                    let lent = event.and_then(|event| place(event, base, len, &mut self.held));
                    buffer.taken(used);
                    if let Some(mut lent) = lent {
                        lent.at = lent.at.map(|at| at + start as u32);
                        self.batch[usize::from(self.found)] = lent;
                        self.found += 1;
                        if lent.at.is_none() {
                            // There is one place for what lies elsewhere.
                            return;
                        }
                    }
                }
                Err(error) => {
                    self.failed = Some(error.into());
                    buffer.taken(len);
                }
            }
        }
    }

    /// Ready when something has changed.
    fn poll_read(&mut self, cx: &mut Context<'_>, state: &mut State) -> Poll<()> {
        if state.io.directions_mix() {
            let combined = state.waker_for(Some((Half::Receiver, &*cx)));
            return self.poll_read_with(&mut Context::from_waker(&combined), state);
        }
        self.poll_read_with(cx, state)
    }

    fn poll_read_with(&mut self, cx: &mut Context<'_>, state: &mut State) -> Poll<()> {
        if let Some(slot) = state.core.recv_slot() {
            return match ready!(state.io.poll_read(cx, slot)) {
                Ok(len) if len > 0 => {
                    state.read_at = Instant::now();
                    let now = state.time(state.read_at);
                    self.receive_slot(&mut state.core, now, len);
                    Poll::Ready(())
                }
                end => Self::ended(state, end.map(drop)),
            };
        }
        if let Err(error) = ready!(state.io.poll_read_ready(cx)) {
            return Self::ended(state, Err(error));
        }
        let buffer = self.buffer.get_or_insert_with(Buffer::take);
        match ready!(state.io.poll_read(cx, buffer.space())) {
            Ok(len) if len > 0 => {
                buffer.filled(len);
                state.read_at = Instant::now();
                Poll::Ready(())
            }
            end => Self::ended(state, end.map(drop)),
        }
    }

    /// `len` bytes were read to the end of a large message.
    fn receive_slot(&mut self, core: &mut Connection, now: Duration, len: usize) {
        match core.received(now, len) {
            Ok(Some(event)) => {
                if let Some(lent) = place(event, std::ptr::null(), 0, &mut self.held) {
                    self.batch[0] = lent;
                    self.found = 1;
                }
            }
            Ok(None) => {}
            Err(error) => self.failed = Some(error.into()),
        }
    }

    fn ended(state: &mut State, end: std::io::Result<()>) -> Poll<()> {
        match end {
            Ok(()) => state.core.handle_eof(),
            Err(error) => drop(state.fail(&error)),
        }
        Poll::Ready(())
    }

    /// Ready when a deadline of the core has passed.
    fn poll_deadline(&mut self, cx: &mut Context<'_>, state: &mut State) -> Poll<()> {
        let Some(deadline) = state.core.poll_timeout() else {
            self.sleep = None;
            return Poll::Pending;
        };
        let deadline = state.instant(deadline);
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
        let now = state.now();
        state.core.handle_timeout(now);
        Poll::Ready(())
    }

    /// The transport is done with: says why, once.
    fn finish(&mut self, state: &mut State) {
        self.over = true;
        self.buffer = None;
        self.sleep = None;
        if self.failed.is_some() {
            return;
        }
        self.failed = match state.core.end().map(|end| &end.cause) {
            Some(Cause::Close { .. } | Cause::CloseTimeout) => None,
            Some(Cause::Error(error)) => Some((*error).into()),
            Some(Cause::Silence) => Some(Error::Timeout(Stage::Silence)),
            _ => Some(state.broken.clone().unwrap_or(Error::Cut)),
        };
        state.broken.get_or_insert(Error::Closed);
        state.wake();
    }
}

impl Drop for Receiver {
    /// Nothing is at hand any more: what is sent from now on waits for nothing.
    fn drop(&mut self) {
        self.shared.at_hand.store(false, Ordering::Relaxed);
    }
}

/// Whether these bytes begin with a frame that is there to its last byte and cannot break a rule: a binary message in one
/// frame of up to 125 bytes. The last frame ended a message.
///
/// ```text
/// 82 | mask bit, length | key if masked | payload
/// ```
#[inline]
fn is_harmless(waiting: &[u8], mask_bit: u8) -> bool {
    let [0x82, second, ..] = *waiting else { return false };
    let len = usize::from(second ^ mask_bit);
    len <= 125 && waiting.len() >= 2 + usize::from(mask_bit >> 5) + len
}

/// Where the message of an event lies: by its offset from `base`, or put away in `held`. Everything else that happens has
/// been seen to by the core.
#[inline]
fn place(event: Event<'_>, base: *const u8, waiting_len: usize, held: &mut Held) -> Option<Lent> {
    let (kind, len, at) = match &event {
        Event::Text(text) => (Kind::Text, text.len(), Buffer::offset_of(base, waiting_len, text.as_bytes())),
        Event::Binary(data) => (Kind::Binary, data.len(), Buffer::offset_of(base, waiting_len, data)),
        _ => return None,
    };
    let Some(at) = at else {
        hold(event, len, held);
        return Some(Lent { kind, at: None, len: 0 });
    };
    Some(Lent { kind, at: Some(at as u32), len: len as u32 })
}

#[cold]
fn hold(event: Event<'_>, len: usize, held: &mut Held) {
    if len >= MOVED_LEN_MIN {
        *held = Held::Large(match event {
            Event::Text(text) => text.into_bytes(),
            Event::Binary(data) => data.into_bytes(),
            _ => Bytes::new(),
        });
        return;
    }
    let bytes: &[u8] = match &event {
        Event::Text(text) => text.as_bytes(),
        Event::Binary(data) => data,
        _ => &[],
    };
    match held {
        Held::Small(small) => {
            small.clear();
            small.extend_from_slice(bytes);
        }
        Held::Large(_) => *held = Held::Small(bytes.to_vec()),
    }
}
