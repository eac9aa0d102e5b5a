//! The outbound half of a connection: the protocol core's outbound half, and the state of closing. No I/O: [`Link`](super::link::Link)
//! writes its queue.

use std::cell::RefCell;
use std::time::Duration;

use tokio::time::Instant;
use wireloom_ws::deflate::DeflatePool;
use wireloom_ws::{CloseCode, Error, Event, Kind, Misuse, Outbound, Pong, PreparedFrame};

use super::clock;
use super::flush;
use super::message::Payload;
use super::observer::{self, NotificationQueue, Observer, ObserverEvent};
use crate::guard::Deferred;
use crate::memory::{Account, Category, FREE_LEN, Reservation};
use crate::scheduler::TURN;

/// From this length on, in bytes, the core sends `Bytes` by reference, where it can.
pub(super) const SHARED_LEN_MIN: usize = 4 << 10;

/// The cost of compressing a byte, in bytes that are copied or inflated: 8 ms for a MiB.
const COMPRESSION_COST: usize = 8;

/// The most that a connection pays for what it has compressed since it received last: one that is mostly sent to owes no more.
const COMPRESSION_COST_MAX: usize = 16 * TURN;

/// The sending half of a connection.
pub(super) struct Session {
    pub(super) core: Outbound,
    /// The server shuts down: the Close frame is sent when the messages that have been read are answered.
    pub(super) close_requested: bool,
    /// The round-trip time of the last ping that was answered, in microseconds; 0 before.
    latency_us: u32,
    /// Bytes have been transferred since the last [`release_if_idle`](Self::release_if_idle).
    is_active: bool,
    /// The length of the receiver's read buffer as it is [counted](super::state::State::count_read_buffer). Here it takes no memory.
    pub(super) read_buffer_kib: u16,
    rare: Option<Box<Rare>>,
}

/// State that few connections have, allocated when it is first needed.
#[derive(Default)]
struct Rare {
    /// Created only if the connection is observed.
    notifications: Option<NotificationQueue>,
    /// The time at which the closing handshake begins by itself, and its code.
    close_at: Option<(Duration, CloseCode)>,
    /// The close code for when the WebSocket is dropped while open.
    on_drop: Option<CloseCode>,
    /// Messages that the policy for a slow peer has dropped.
    dropped: u64,
    /// The memory of the compressor between two messages, once it is worth counting.
    window: Option<Reservation>,
}

impl Rare {
    #[cold]
    #[inline(never)]
    fn is_observer_behind(&self) -> bool {
        self.notifications.as_ref().is_some_and(|queue| !queue.events.has_room())
    }
}

impl Session {
    pub(super) fn new(core: Outbound, observer: Option<Observer>) -> Self {
        let rare = observer.map(|observer| {
            Box::new(Rare { notifications: Some(NotificationQueue::new(observer)), ..Rare::default() })
        });
        Self { core, close_requested: false, latency_us: 0, is_active: false, read_buffer_kib: 0, rare }
    }

    // Sending.

    /// Queues a message.
    #[inline]
    pub(super) fn put(&mut self, message: &Payload<'_>) -> Result<(), Error> {
        self.take_codec();
        match message {
            // The core copies a shorter payload into the batch, without a count of references.
            Payload::Shared(data) if data.len() >= SHARED_LEN_MIN => self.core.send_bytes(data.clone()),
            Payload::SharedText(text) if text.len() >= SHARED_LEN_MIN => {
                self.core.send_utf8_bytes(text.clone())
            }
            Payload::Prepared(message) => {
                if message.len() < SHARED_LEN_MIN {
                    self.core.give_buffer(flush::take_buffer);
                }
                self.core.send_prepared(message.frame(&self.core))
            }
            _ => {
                self.core.give_buffer(flush::take_buffer);
                let (kind, payload) = message.parts();
                self.core.send_message(kind, payload)
            }
        }
    }

    /// Queues a fragment of a message.
    pub(super) fn put_fragment(&mut self, fragment: &Payload<'_>, last: bool) -> Result<(), Error> {
        self.take_codec();
        match fragment {
            Payload::Text(text) => self.core.send_text_chunk(text, last),
            Payload::SharedText(text) => self.core.send_text_chunk(text, last),
            Payload::Binary(data) => self.core.send_binary_chunk(data, last),
            Payload::Shared(data) => self.core.send_binary_chunk(data, last),
            Payload::Prepared(message) => match message.as_text() {
                Some(text) => self.core.send_text_chunk(text, last),
                None => self.core.send_binary_chunk(message.as_bytes(), last),
            },
        }
    }

    /// Sends a message whose payload `write` writes from where it is; see [`Outbound::send_borrowed`].
    pub(super) fn send_borrowed(
        &mut self,
        kind: Kind,
        payload: &[u8],
        write: impl FnMut(&[&[u8]]) -> Option<usize>,
        keep: impl FnMut(usize) -> bool,
        deferred: &mut Deferred,
    ) -> Result<(), Error> {
        self.take_codec();
        self.core.send_borrowed(kind, payload, write, keep, |payload| deferred.drop_later(payload))
    }

    /// The transport has accepted the first `written` bytes of these frames: queues the rest. Returns the number of frames that are sent.
    pub(super) fn queue_rest(
        &mut self,
        frames: &[&PreparedFrame],
        mut written: usize,
    ) -> Result<usize, Error> {
        for (sent, frame) in frames.iter().enumerate() {
            let of_frame = written.min(frame.as_bytes().len());
            written -= of_frame;
            if of_frame < frame.as_bytes().len() {
                self.core.give_buffer(flush::take_buffer);
            }
            match self.core.send_rest_of_prepared(frame, of_frame) {
                Ok(()) => {}
                Err(Error::Misuse(Misuse::QueueFull { .. })) => return Ok(sent),
                Err(error) => return Err(error),
            }
        }
        Ok(frames.len())
    }

    /// The cost of compression since the last call, in bytes of the task's budget.
    pub(super) fn take_compression_cost(&mut self) -> usize {
        self.core.take_compressed_len().saturating_mul(COMPRESSION_COST).min(COMPRESSION_COST_MAX)
    }

    /// Takes a codec of this thread, if messages are compressed.
    #[inline]
    fn take_codec(&mut self) {
        if self.core.is_compressed() {
            with_codecs(|pool| self.core.take_codec(pool));
        }
    }

    /// Returns the codec to the pool of this thread, and counts what is left.
    #[inline]
    pub(super) fn return_codec(&mut self, account: &Account) {
        if self.core.is_compressed() {
            self.return_used_codec(account);
        }
    }

    /// Not inlined: every unlock passes here, and most connections do not compress.
    #[inline(never)]
    fn return_used_codec(&mut self, account: &Account) {
        with_codecs(|pool| self.core.return_codec(pool));
        self.count_window(account);
    }

    fn count_window(&mut self, account: &Account) {
        let len = self.core.memory_len();
        if len <= FREE_LEN && self.rare.as_ref().is_none_or(|rare| rare.window.is_none()) {
            return;
        }
        let window = &mut self.rare.get_or_insert_default().window;
        window.get_or_insert_with(|| account.reservation(Category::Inflated)).set(len);
    }

    /// Frees memory if nothing has been transferred since the last call; then the receiver may free its memory, too.
    pub(super) fn release_if_idle(&mut self) -> bool {
        let is_idle = !std::mem::take(&mut self.is_active);
        if is_idle {
            self.core.release_buffers();
        }
        is_idle
    }

    /// The policy for a slow peer has dropped a message.
    pub(super) fn count_dropped(&mut self) {
        self.rare.get_or_insert_default().dropped += 1;
    }

    pub(super) fn dropped(&self) -> u64 {
        self.rare.as_ref().map_or(0, |rare| rare.dropped)
    }

    // Transferred bytes.

    /// The transport has accepted bytes, after it `was_full` or not.
    pub(super) fn handle_written(&mut self, was_full: bool) {
        self.is_active = true;
        if was_full {
            self.core.handle_activity(clock::now());
        }
    }

    /// A read has brought `len` bytes. False if that was the end of the transport.
    pub(super) fn handle_read(&mut self, len: usize) -> bool {
        if len == 0 {
            self.core.handle_eof();
            return false;
        }
        self.is_active = true;
        if self.core.keeps_alive() {
            self.core.handle_activity(clock::now());
        }
        if !self.core.accepts_input() {
            self.core.handle_trailing(len);
        }
        true
    }

    /// A control frame has arrived.
    pub(super) fn handle_control(&mut self, event: &mut Event<'_>) {
        self.core.handle_event(clock::now(), event);
        if let Event::Pong(Pong { round_trip: Some(round_trip), .. }) = event {
            self.latency_us = u32::try_from(round_trip.as_micros()).unwrap_or(u32::MAX).max(1);
        }
    }

    /// The round-trip time of the last ping that was answered.
    pub(super) fn latency(&self) -> Option<Duration> {
        (self.latency_us > 0).then(|| Duration::from_micros(self.latency_us.into()))
    }

    // Closing, and deadlines.

    /// Queues the Close frame, unless one was queued before.
    pub(super) fn close(&mut self, code: CloseCode, reason: &str) -> Result<(), Error> {
        self.core.close(clock::now(), code, reason)
    }

    /// The WebSocket is dropped.
    pub(super) fn close_dropped(&mut self) {
        let on_drop = self.rare.as_ref().and_then(|rare| rare.on_drop);
        // RFC 6455 §7.4.1: an unexpected condition.
        let code = if std::thread::panicking() {
            CloseCode::INTERNAL_ERROR
        } else {
            on_drop.unwrap_or(CloseCode::GOING_AWAY)
        };
        let _ = self.close(code, "");
    }

    pub(super) fn set_on_drop(&mut self, code: CloseCode) {
        self.rare.get_or_insert_default().on_drop = Some(code);
    }

    /// Queues the Close frame if that was requested; false if not.
    #[inline]
    pub(super) fn go_away(&mut self) -> bool {
        if !std::mem::take(&mut self.close_requested) {
            return false;
        }
        // The code and reason are this crate's own.
        let _ = self.close(CloseCode::GOING_AWAY, "the server is shutting down");
        true
    }

    /// The time at which the closing handshake begins by itself, and its code, unless it has begun.
    fn close_at(&self) -> Option<(Duration, CloseCode)> {
        self.rare.as_ref()?.close_at.filter(|_| self.core.is_open())
    }

    pub(super) fn set_close_at(&mut self, close_at: Option<(Duration, CloseCode)>) {
        if self.rare.is_some() || close_at.is_some() {
            self.rare.get_or_insert_default().close_at = close_at;
        }
    }

    /// The next time to call [`handle_timeout`](Self::handle_timeout).
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let close_at = self.close_at().map(|(at, _)| at);
        let next = self.core.poll_timeout().into_iter().chain(close_at).min()?;
        // A deadline that the clock cannot represent never expires.
        clock::instant_at(next)
    }

    /// Whether the closing handshake has to begin by now ([`Sender::close_after`](super::Sender::close_after)).
    #[inline]
    pub(super) fn must_begin_close(&self) -> bool {
        self.close_at().is_some_and(|(at, _)| at <= clock::now())
    }

    /// Whether the closing handshake has to end by now.
    #[inline]
    pub(super) fn must_end_close(&self) -> bool {
        !self.core.is_open() && self.core.poll_timeout().is_some_and(|deadline| deadline <= clock::now())
    }

    pub(super) fn handle_timeout(&mut self) {
        let now = clock::now();
        if let Some((at, code)) = self.close_at()
            && at <= now
        {
            // The code was checked when it was chosen.
            let _ = self.close(code, "");
        }
        self.core.handle_timeout(now);
    }

    // Events for an observer.

    #[inline]
    pub(super) fn is_observed(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.notifications.is_some())
    }

    /// Whether the observer has no room for the events of what is received or sent.
    #[inline]
    pub(super) fn is_observer_behind(&self) -> bool {
        self.rare.as_deref().is_some_and(Rare::is_observer_behind)
    }

    pub(super) fn notifications(&mut self) -> Option<&mut NotificationQueue> {
        self.rare.as_mut()?.notifications.as_mut()
    }

    /// As [`notifications`](Self::notifications); created for tracing, also without an observer.
    fn traced(&mut self) -> Option<&mut NotificationQueue> {
        if observer::is_traced() {
            self.rare.get_or_insert_default().notifications.get_or_insert_default();
        }
        self.notifications()
    }

    /// Queues an event.
    #[inline]
    pub(super) fn queue_notification(&mut self, notification: impl FnOnce() -> ObserverEvent) {
        if let Some(queue) = self.notifications() {
            queue.push(notification());
        }
    }

    /// Queues an event that is traced too.
    pub(super) fn queue_traced(&mut self, notification: ObserverEvent) {
        if let Some(queue) = self.traced() {
            queue.push(notification);
        }
    }

    /// Queues the event of a connection that has ended.
    pub(super) fn queue_end(&mut self) {
        self.queue_notifications();
        if self.traced().is_some()
            && let Some(end) = self.core.end().cloned()
            && let Some(queue) = self.notifications()
        {
            queue.push_end(end);
        }
    }

    /// Queues events for the frames that were queued, and for the closing handshake once it has begun.
    pub(super) fn queue_notifications(&mut self) {
        let has_end = self.core.end().is_some();
        let queue = if has_end { self.traced() } else { self.notifications() };
        let Some(queue) = queue else { return };
        let begins = has_end && queue.begin_close();
        let end = self.core.end().filter(|_| begins).cloned();
        let headers = self.core.take_headers();
        if let Some(queue) = self.notifications() {
            queue.push_written(headers, end);
        }
    }
}

/// Inflating codecs that a thread keeps, of 48 KB each.
const INFLATERS_MAX: usize = 32;

/// Deflating codecs that a thread keeps, of 280 KB each by default.
const DEFLATERS_MAX: usize = 8;

thread_local! {
    /// The DEFLATE codecs of a thread, shared by its connections, for both directions.
    static CODECS: RefCell<DeflatePool> = const { RefCell::new(DeflatePool::new(INFLATERS_MAX, DEFLATERS_MAX)) };
}

/// Calls `run` with this thread's pool. While the thread ends there is none, and a codec stays with its connection.
pub(super) fn with_codecs(run: impl FnOnce(&mut DeflatePool)) {
    let _ = CODECS.try_with(|pool| run(&mut pool.borrow_mut()));
}

#[cfg(test)]
mod tests {
    use wireloom_ws::{Config, Connection};

    use super::*;

    #[test]
    fn an_end_that_is_neither_observed_nor_traced_takes_no_memory() {
        let (_, outbound) = Connection::server(Config::default(), None, Duration::ZERO).split();
        let mut session = Session::new(outbound, None);
        session.core.handle_eof();
        session.queue_traced(ObserverEvent::Error(crate::error::WebSocketError::ConnectionLost));
        session.queue_end();
        session.queue_notifications();
        assert!(session.rare.is_none());
    }

    #[test]
    fn memory_is_released_after_two_checks_without_a_transfer() {
        let (_, outbound) = Connection::server(Config::default(), None, Duration::ZERO).split();
        let mut session = Session::new(outbound, None);
        session.handle_written(false);
        assert_eq!([0; 3].map(|_| session.release_if_idle()), [false, true, true]);
    }
}
