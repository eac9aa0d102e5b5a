//! The sending half of a connection: messages, answers to control frames, the closing handshake of RFC 6455 §7, deadlines.

use crate::close::{CloseCode, CloseFrame, REASON_LEN_MAX};
use crate::config::Config;
use crate::connection::Transport;
use crate::deflate::{Compressor, DeflateConfig, DeflateParams, DeflatePool};
use crate::end::{Cause, End, Initiator};
use crate::error::{Error, Misuse};
use crate::event::Event;
use crate::frame::{CONTROL_LEN_MAX, FIN, Header};
use crate::keys::MaskKeys;
use crate::limits::{PONGS_QUEUED_LEN_MAX, TRAILING_LEN_MAX};
use crate::opcode::{Kind, Opcode};
use crate::owned::Utf8Bytes;
use crate::prepared::PreparedFrame;
use crate::role::Role;
use crate::send::Sender;
use crate::send_queue::SendQueue;
use crate::timers::{Due, Timers};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use core::fmt::{self, Write as _};
use core::time::Duration;

/// While closing, the peer must accept at least this many bytes of the send queue per [`close_timeout`](Config::close_timeout), or
/// the connection ends: 6 KiB a second by default, so that a trickle does not keep it open.
const CLOSE_PROGRESS_LEN_MIN: usize = 64 << 10;

/// Slices of each write of [`Outbound::send_borrowed`].
const BORROWED_SLICES: usize = 4;

/// The end of a connection that is closing or closed.
struct Closing {
    phase: Phase,
    end: End,
    /// The deadline of the closing handshake.
    deadline: Option<Duration>,
    /// The length of the queue before the Close frame when the deadline was last set.
    len_before_close: usize,
}

/// The state of the closing handshake (RFC 6455 §7.1) of a connection that is no longer open.
///
/// ```text
///         close()                        their Close
///  Open ------------> CloseSent -----------------------> Exchanged --- server: at once ---> Closed
///   |                    |                                  ^   |      client: at EOF
///   | their Close; ours is queued as its answer             |   |
///   +-------------------------------------------------------+   |
///   |                    |                                      | server: bytes behind their Close
///   |                    |                                      +----> Discarding -- TRAILING_LEN_MAX --> Closed
///   |                    |                                      |          |
///   | the peer broke a rule; our Close has the reason           | EOF      | EOF
///   +--------------------+--------------> Failed ---------------+----------+--> Draining -- all written --> Closed
///   |                    |
///   | a write to the transport failed
///   +--------------------+--------------> WriteFailed
///   |                                         |
///   | EOF, silence                            | their Close, EOF
///   +-----------------------------------------+-----------------> Closed <-- close_timeout -- any but Open
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Our Close frame is queued or sent; messages still arrive until the peer's.
    CloseSent,
    /// Both Close frames were exchanged; ours may still be queued.
    Exchanged,
    /// As `Exchanged`. The peer of this server has sent bytes behind its Close frame; up to `left` more are discarded.
    Discarding { left: usize },
    /// The peer broke a rule or a limit (RFC 6455 §7.1.7). Our Close frame is queued or sent; input is dropped.
    Failed,
    /// Nothing can be written. The peer's bytes are still read: its Close frame may be among them.
    WriteFailed,
    /// The reading side of the transport has ended. The queue, which contains our Close frame, must still be written.
    Draining {
        /// Both Close frames were exchanged.
        clean: bool,
    },
    /// Nothing is read or written any more.
    Closed {
        /// Both Close frames were exchanged.
        clean: bool,
    },
}

impl Closing {
    /// Whether both Close frames were exchanged.
    fn is_clean(&self) -> bool {
        matches!(
            self.phase,
            Phase::Exchanged
                | Phase::Discarding { .. }
                | Phase::Draining { clean: true }
                | Phase::Closed { clean: true }
        )
    }

    /// See [`Outbound::accepts_input`].
    fn accepts_input(&self) -> bool {
        matches!(self.phase, Phase::CloseSent | Phase::WriteFailed)
    }

    /// The peer has not answered our Close frame, and cannot any more. RFC 6455 §7.1.5: the code is then 1006.
    fn replace_unanswered_close(&mut self, cause: Cause) {
        if let Cause::Close { .. } = self.end.cause {
            self.end = End { by: Initiator::Local, cause };
        }
    }

    /// Whether the peer makes progress in reading the bytes before the Close frame, which it cannot have answered yet; `queued_len`
    /// are left.
    fn drains_queue_before_close(&mut self, queued_len: usize) -> bool {
        let accepted = self.len_before_close.saturating_sub(queued_len);
        let progresses = accepted >= self.len_before_close.clamp(1, CLOSE_PROGRESS_LEN_MIN);
        self.len_before_close = queued_len;
        progresses
    }
}

/// The end of a connection without a closing handshake.
const TRANSPORT_CLOSED: End = End { by: Initiator::Transport, cause: Cause::TransportClosed };

/// A pong that waits for room in the queue.
#[derive(Default)]
struct PendingPong {
    payload: Vec<u8>,
}

/// The sending half of a [`Connection`](crate::Connection): it also answers control frames, closes, and keeps the deadlines.
///
/// A driver that uses it with an [`Inbound`](crate::Inbound) calls [`handle_activity`](Self::handle_activity) for every read,
/// [`handle_event`](Self::handle_event) for every control frame, [`handle_error`](Self::handle_error) for an error, and
/// [`handle_trailing`](Self::handle_trailing) for bytes behind the peer's Close frame.
pub struct Outbound {
    sender: Sender,
    timers: Timers,
    /// A number takes a quarter of the memory of a `Duration`.
    close_timeout_ms: u32,
    /// 4 GiB at most, for the same reason.
    queued_len_high: u32,
    /// The payload of the newest ping that has not been answered, while the queue is too long for a pong.
    pending_pong: Option<Box<PendingPong>>,
    /// `None` while the connection is open.
    closing: Option<Box<Closing>>,
}

impl Outbound {
    pub(crate) fn new(
        role: Role,
        config: &Config,
        deflate: Option<(DeflateParams, &DeflateConfig)>,
        keys: Option<MaskKeys>,
        now: Duration,
    ) -> Self {
        let compressor = deflate.map(|(params, config)| Compressor::new(role, &params, config));
        let limits = &config.limits;
        Self {
            sender: Sender::new(keys, compressor, limits),
            timers: Timers::new(config.keepalive, now),
            close_timeout_ms: config.close_timeout.as_millis().try_into().unwrap_or(u32::MAX),
            // An empty queue is never congested.
            queued_len_high: u32::try_from(limits.queued_len_high.max(1)).unwrap_or(u32::MAX),
            pending_pong: None,
            closing: None,
        }
    }

    // Getters.

    /// Which end this is.
    pub fn role(&self) -> Role {
        // RFC 6455 §5.1: clients mask, and servers do not.
        if self.sender.masks() { Role::Client } else { Role::Server }
    }

    /// Whether messages can be sent: no Close frame was sent or received, and nothing has failed.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.closing.is_none()
    }

    /// The state of the closing handshake; `None` while the connection is open.
    fn phase(&self) -> Option<Phase> {
        self.closing.as_ref().map(|closing| closing.phase)
    }

    /// Whether the reading side of the transport has ended ([`handle_eof`](Self::handle_eof)). Frames may still have to be written.
    #[inline]
    pub fn has_read_end(&self) -> bool {
        matches!(self.phase(), Some(Phase::Draining { .. } | Phase::Closed { .. }))
    }

    /// Why the connection ended or is ending, and which end began; `None` while it is open.
    pub fn end(&self) -> Option<&End> {
        self.closing.as_ref().map(|closing| &closing.end)
    }

    /// Whether both Close frames were exchanged (RFC 6455 §7.1.4: the WebSocket connection was closed cleanly). False while ours is
    /// queued.
    pub fn was_clean(&self) -> bool {
        // Nothing is queued behind a Close frame.
        self.sender.queue.is_empty() && self.has_exchanged_close()
    }

    /// Whether the peer's Close frame has arrived, and ours was queued.
    fn has_exchanged_close(&self) -> bool {
        self.closing.as_ref().is_some_and(|closing| closing.is_clean())
    }

    /// Number of pings sent, keepalive pings included.
    pub fn pings_sent(&self) -> u32 {
        self.timers.pings_sent()
    }

    /// The newest ping that was answered, counted from 1; 0 before the first. The peer's endpoint has received everything that was
    /// sent before that ping; its application may not have read it yet.
    pub fn pings_answered(&self) -> u32 {
        self.timers.pings_answered()
    }

    /// Whether permessage-deflate was negotiated.
    #[inline]
    pub fn is_compressed(&self) -> bool {
        self.sender.is_compressed()
    }

    /// Bytes that are queued for transmission.
    #[inline]
    pub fn queued_len(&self) -> usize {
        self.sender.queue.len()
    }

    /// Memory that the send queue holds, in bytes: at most twice the queued bytes and the payload that is being transmitted.
    pub fn queue_memory_len(&self) -> usize {
        self.sender.queue.memory_len()
    }

    /// Logs the headers of frames that are queued from now on, for [`take_headers`](Self::take_headers).
    pub fn log_headers(&mut self) {
        self.sender.log_headers();
    }

    /// Draws masking keys from a new `seed` from now on: a forked process must not repeat the keys of its parent (RFC 6455 §10.3).
    /// Does nothing for a server.
    pub fn reseed(&mut self, seed: [u8; 32]) {
        self.sender.reseed(seed);
    }

    /// The headers that were logged since the last call.
    pub fn take_headers(&mut self) -> Vec<Header> {
        self.sender.take_headers()
    }

    /// Whether there is anything to transmit.
    #[inline]
    pub fn wants_write(&self) -> bool {
        !self.sender.queue.is_empty() || self.pending_pong.is_some()
    }

    /// Whether [`queued_len_high`](crate::limits::Limits::queued_len_high) bytes or more are queued: a sender should pause.
    #[inline]
    pub fn is_congested(&self) -> bool {
        self.queued_len() >= self.queued_len_high()
    }

    /// How to treat the transport once all slices of [`poll_transmit`](Self::poll_transmit) are written.
    pub fn transport(&self) -> Transport {
        let Some(phase) = self.phase() else { return Transport::Open };
        match phase {
            Phase::Closed { .. } => Transport::Close,
            // The queue is written first.
            _ if self.wants_write() => Transport::Open,
            Phase::CloseSent | Phase::WriteFailed => Transport::Open,
            Phase::Failed | Phase::Discarding { .. } => Transport::ShutdownWrite,
            // RFC 6455 §7.1.1: the server closes TCP first, so that it holds TIME_WAIT; the client waits for it.
            Phase::Exchanged if self.role() == Role::Client => Transport::Open,
            Phase::Exchanged | Phase::Draining { .. } => Transport::Close,
        }
    }

    // Input.

    /// Whether input is processed: the peer has sent no Close frame, and nothing has failed. Other input is dropped.
    #[inline]
    pub fn accepts_input(&self) -> bool {
        self.closing.as_ref().is_none_or(|closing| closing.accepts_input())
    }

    /// Whether a [`Keepalive`](crate::Keepalive) is configured, so that [`handle_activity`](Self::handle_activity) has an effect.
    #[inline]
    pub fn keeps_alive(&self) -> bool {
        self.timers.keeps_alive()
    }

    /// The peer is alive: bytes have arrived, or the transport accepts bytes again after it was full. No keepalive ping is sent while
    /// the queue is congested.
    #[inline]
    pub fn handle_activity(&mut self, now: Duration) {
        self.timers.handle_activity(now);
    }

    /// Answers a control frame, and adds the round-trip time to a pong. Messages need no answer.
    pub fn handle_event(&mut self, now: Duration, event: &mut Event<'_>) {
        match event {
            Event::Ping(payload) => self.handle_ping(payload),
            Event::Pong(pong) => pong.round_trip = self.timers.handle_pong(pong.payload, now),
            Event::Close(close) => self.handle_close(now, *close),
            Event::Text(_) | Event::Binary(_) | Event::Chunk(_) => {}
        }
    }

    /// `len` bytes have arrived behind the peer's Close frame, and were discarded. RFC 6455 §7.1.1: a server then
    /// [shuts down writing](Transport::ShutdownWrite), and discards what follows. Closing a socket with unread bytes would reset it, and the
    /// peer would lose what it has not received. [`TRAILING_LEN_MAX`] bounds it, and so does the
    /// [`close_timeout`](Config::close_timeout). Does nothing before the peer's Close frame has arrived.
    ///
    /// [`Connection::handle_input`](crate::Connection::handle_input) calls this by itself.
    #[cold]
    pub fn handle_trailing(&mut self, len: usize) {
        let role = self.role();
        let Some(closing) = self.closing.as_deref_mut().filter(|_| len > 0) else { return };
        let left = match closing.phase {
            Phase::Exchanged if role == Role::Server => TRAILING_LEN_MAX,
            Phase::Discarding { left } => left,
            _ => return,
        };
        closing.phase = match left.checked_sub(len) {
            Some(left) => Phase::Discarding { left },
            None => Phase::Closed { clean: true },
        };
    }

    /// The peer broke this rule or limit. RFC 6455 §7.1.7: fails the connection, and sends a Close frame with the reason unless one was
    /// sent before.
    #[cold]
    pub fn handle_error(&mut self, now: Duration, error: Error) {
        let end = End { by: Initiator::Local, cause: Cause::Error(error) };
        if self.is_open() {
            let mut reason = Reason { bytes: [0; REASON_LEN_MAX], len: 0 };
            // A reason may be truncated.
            let _ = write!(reason, "{error}");
            let close = CloseFrame { code: error.close_code(), reason: reason.as_str() };
            self.send_close(now, close, Phase::Failed, end.clone());
        }
        let closing = self.closing_or(Phase::Failed, end.clone());
        if closing.accepts_input() {
            closing.phase = Phase::Failed;
        }
        // The deadline no longer depends on the progress of the queue.
        closing.len_before_close = 0;
        closing.end = end;
    }

    /// A write to the transport failed: the queue is dropped, and nothing more can be sent. Input is still processed until the end of
    /// the transport or the close timeout, because the peer may have sent a Close frame. Payloads that were queued by reference are passed
    /// to `release`.
    pub fn handle_write_failed(&mut self, now: Duration, release: impl FnMut(Bytes)) {
        let is_lost = self.queued_len() > 0;
        self.pending_pong = None;
        self.sender.drop_output(release);
        let deadline = self.close_deadline(now);
        let closing = self.closing_or(Phase::WriteFailed, TRANSPORT_CLOSED);
        closing.len_before_close = 0;
        closing.deadline.get_or_insert(deadline);
        closing.phase = match closing.phase {
            Phase::CloseSent => Phase::WriteFailed,
            // Nothing more arrives, and our Close frame was not sent.
            Phase::Exchanged | Phase::Discarding { .. } | Phase::Draining { .. } | Phase::Closed { .. }
                if is_lost =>
            {
                Phase::Closed { clean: false }
            }
            phase => phase,
        };
    }

    /// The reading side of the transport has ended. After both Close frames that is the normal end; before, [`end`](Self::end) reports
    /// [`Cause::TransportClosed`].
    pub fn handle_eof(&mut self) {
        self.pending_pong = None;
        let clean = self.has_exchanged_close();
        // RFC 6455 §7.1.7: without a Close frame that was sent or is queued, the connection is closed.
        let closing = self.closing_or(Phase::Closed { clean }, TRANSPORT_CLOSED);
        closing.phase = match closing.phase {
            Phase::Closed { .. } => return,
            Phase::WriteFailed => Phase::Closed { clean },
            _ => Phase::Draining { clean },
        };
        if !clean {
            closing.replace_unanswered_close(Cause::TransportClosed);
        }
    }

    /// The time is `now`: handles the deadline of [`poll_timeout`](Self::poll_timeout) if it has passed.
    pub fn handle_timeout(&mut self, now: Duration) {
        if let Some(Closing { deadline: Some(_), .. }) = self.closing.as_deref() {
            return self.handle_close_timeout(now);
        }
        match self.timers.due(now) {
            Due::Nothing => {}
            Due::Ping => {
                if self.is_open() && !self.is_congested() {
                    let payload = u64::from(self.timers.pings_sent().wrapping_add(1)).to_be_bytes();
                    self.timers.log_ping(&payload, now);
                    self.sender.send_control(Opcode::Ping, &payload);
                }
            }
            Due::Silence => {
                let closed = Phase::Closed { clean: self.has_exchanged_close() };
                let end = End { by: Initiator::Local, cause: Cause::Silence };
                self.closing_or(closed, end).phase = closed;
            }
        }
    }

    // Commands.

    /// Sends a text message, compressed if that was negotiated and is worth it.
    ///
    /// # Errors
    /// [`Misuse`] when the connection is not open, a message is being sent in fragments, or the queue is full; nothing was sent.
    #[inline]
    pub fn send_text(&mut self, text: &str) -> Result<(), Error> {
        self.send_message(Kind::Text, text.as_bytes())
    }

    /// Sends a binary message, compressed if that was negotiated and is worth it.
    ///
    /// # Errors
    /// As for [`send_text`](Self::send_text).
    #[inline]
    pub fn send_binary(&mut self, data: &[u8]) -> Result<(), Error> {
        self.send_message(Kind::Binary, data)
    }

    /// As [`send_text`](Self::send_text) or [`send_binary`](Self::send_binary). `payload` must be UTF-8 if it is sent as text; this is not
    /// checked.
    ///
    /// # Errors
    /// As for [`send_text`](Self::send_text).
    #[inline]
    pub fn send_message(&mut self, kind: Kind, payload: &[u8]) -> Result<(), Error> {
        self.check_open()?;
        Ok(self.sender.send_message(kind, payload, true)?)
    }

    /// The fast path of the sends, for a driver that is sure to write the queue: appends a message to a batch of less than
    /// `batch_len_max` bytes if the payload is sent unchanged, and fits into the buffer and the limits of the queue. If it returns false,
    /// nothing was queued: call one of the other sends. `payload` must be UTF-8 if it is sent as text; this is not checked.
    #[inline(always)]
    pub fn append_message(&mut self, kind: Kind, payload: &[u8], batch_len_max: usize) -> bool {
        let Sender { queue, append_len_max, processing, fragmented, .. } = &mut self.sender;
        let is_plain = processing.is_none() && fragmented.is_none();
        // Payloads queued by reference are not counted: the caller flushes them first.
        let len_max = batch_len_max.min(if is_plain { *append_len_max as usize } else { 0 });
        self.closing.is_none() && queue.append(FIN | kind.opcode() as u8, payload, len_max)
    }

    /// Sends a binary message without copying it, where the role allows: a client has to mask, and what is compressed or
    /// under 4 KiB is copied too.
    ///
    /// # Errors
    /// As for [`send_text`](Self::send_text).
    pub fn send_bytes(&mut self, data: Bytes) -> Result<(), Error> {
        self.check_open()?;
        Ok(self.sender.send_shared(Kind::Binary, data)?)
    }

    /// Sends a text message without copying it, as [`send_bytes`](Self::send_bytes) does for a binary one.
    ///
    /// # Errors
    /// As for [`send_text`](Self::send_text).
    pub fn send_utf8_bytes(&mut self, text: Utf8Bytes) -> Result<(), Error> {
        self.check_open()?;
        Ok(self.sender.send_shared(Kind::Text, text.into_bytes())?)
    }

    /// Sends a text message uncompressed, also where compression was negotiated (RFC 7692 §6): for data that is already compressed,
    /// and for secrets next to data that an attacker chooses.
    ///
    /// # Errors
    /// As for [`send_text`](Self::send_text).
    pub fn send_text_uncompressed(&mut self, text: &str) -> Result<(), Error> {
        self.check_open()?;
        Ok(self.sender.send_message(Kind::Text, text.as_bytes(), false)?)
    }

    /// Sends a binary message uncompressed; see [`send_text_uncompressed`](Self::send_text_uncompressed).
    ///
    /// # Errors
    /// As for [`send_text`](Self::send_text).
    pub fn send_binary_uncompressed(&mut self, data: &[u8]) -> Result<(), Error> {
        self.check_open()?;
        Ok(self.sender.send_message(Kind::Binary, data, false)?)
    }

    /// Sends a message that was encoded once for many connections. From 4 KiB on, it is sent by reference. A client copies and
    /// masks it.
    ///
    /// # Errors
    /// As for [`send_text`](Self::send_text), and [`Misuse::PreparedForOthers`] for a compressed frame whose window is larger
    /// than [`prepared_window_bits`](Self::prepared_window_bits).
    pub fn send_prepared(&mut self, frame: &PreparedFrame) -> Result<(), Error> {
        self.check_open()?;
        Ok(self.sender.send_prepared(frame, 0)?)
    }

    /// Whether the next bytes of the connection would be those of a prepared frame, so that a driver may write it from where it is:
    /// nothing is queued, no message is being sent in fragments, and this is an open server. Then
    /// [`send_rest_of_prepared`](Self::send_rest_of_prepared) continues.
    #[inline]
    pub fn can_write_prepared(&self) -> bool {
        self.is_open() && !self.wants_write() && !self.sender.is_under_way() && !self.sender.masks()
    }

    /// Sends a prepared frame of which the transport has accepted the first `written` bytes: queues the rest, if there is any.
    /// [`can_write_prepared`](Self::can_write_prepared) was true before the write.
    ///
    /// # Errors
    /// As for [`send_prepared`](Self::send_prepared).
    pub fn send_rest_of_prepared(&mut self, frame: &PreparedFrame, written: usize) -> Result<(), Error> {
        self.check_open()?;
        Ok(self.sender.send_prepared(frame, written)?)
    }

    /// Bytes that may be queued before the queue is [congested](Self::is_congested).
    pub fn queued_len_high(&self) -> usize {
        self.queued_len_high as usize
    }

    /// The largest window of a compressed [`PreparedFrame`] that the peer accepts, 9 to 15; `None` if a message of `len` bytes should
    /// not be compressed on this connection.
    pub fn prepared_window_bits(&self, len: usize) -> Option<u8> {
        let compressor = self.sender.compressor()?;
        compressor.is_worthwhile(len).then(|| compressor.window_bits())
    }

    /// The level and memory with which this connection compresses, for a [`PreparedFrame`] that follows it.
    pub fn prepared_config(&self) -> DeflateConfig {
        self.sender.compressor().map(Compressor::config).unwrap_or_default()
    }

    /// Sends a fragment of a text message (RFC 6455 §5.4). The first call begins the message and `fin` ends it; control frames may be
    /// sent between fragments. With compression, a frame is queued once the compressor has output: not for every call.
    ///
    /// # Errors
    /// As for [`send_text`](Self::send_text), and when the message that is being sent is binary.
    pub fn send_text_chunk(&mut self, chunk: &str, fin: bool) -> Result<(), Error> {
        self.check_open()?;
        Ok(self.sender.send_fragment(Kind::Text, chunk.as_bytes(), fin)?)
    }

    /// Sends a fragment of a binary message; see [`send_text_chunk`](Self::send_text_chunk).
    ///
    /// # Errors
    /// As for [`send_text`](Self::send_text), and when the message that is being sent is text.
    pub fn send_binary_chunk(&mut self, chunk: &[u8], fin: bool) -> Result<(), Error> {
        self.check_open()?;
        Ok(self.sender.send_fragment(Kind::Binary, chunk, fin)?)
    }

    /// Sends a ping. Its pong arrives as [`Event::Pong`] with the round-trip time.
    ///
    /// # Errors
    /// [`Misuse`] when the connection is not open, the payload is over 125 bytes, or the queue is full.
    pub fn send_ping(&mut self, now: Duration, payload: &[u8]) -> Result<(), Error> {
        self.check_control(payload)?;
        self.timers.log_ping(payload, now);
        self.sender.send_control(Opcode::Ping, payload);
        Ok(())
    }

    /// Sends an unsolicited pong (RFC 6455 §5.5.3). Pings are answered without this.
    ///
    /// # Errors
    /// As for [`send_ping`](Self::send_ping).
    pub fn send_pong(&mut self, payload: &[u8]) -> Result<(), Error> {
        self.check_control(payload)?;
        self.sender.send_control(Opcode::Pong, payload);
        Ok(())
    }

    /// Begins the closing handshake (RFC 6455 §7.1.2). The Close frame is queued behind everything else, and messages still arrive until
    /// that of the peer. Closing again has no effect.
    ///
    /// # Errors
    /// [`Misuse`] for a code that may not be sent, and for a reason over 123 bytes or without a code.
    pub fn close(
        &mut self,
        now: Duration,
        code: impl Into<Option<CloseCode>>,
        reason: &str,
    ) -> Result<(), Error> {
        let close = CloseFrame { code: code.into(), reason };
        close.check()?;
        if self.is_open() {
            let cause = Cause::Close { code: close.code, reason: String::from(reason) };
            self.send_close(now, close, Phase::CloseSent, End { by: Initiator::Local, cause });
        }
        Ok(())
    }

    /// Sends a message without copying its payload, which is written behind the queue: for large messages that the transport may
    /// accept at once. `payload` must be UTF-8 if it is sent as text; this is not checked.
    ///
    /// `write` writes slices and returns how many bytes the transport has accepted, or `None` when it accepts no more. It is called until all
    /// is written. Then the rest of the payload is copied into the queue, unless `keep` refuses a queue of that length: then the rest is
    /// lost, and the connection has to end. Other payloads, which were queued by reference and are written now, are passed to `release`.
    ///
    /// A payload that has to be masked or compressed is copied before it is written, if `keep` allows the length that the queue may
    /// need for that. Otherwise it is not compressed.
    ///
    /// # Errors
    /// As for [`send_text`](Self::send_text); [`Misuse::QueueFull`] also if `keep` refuses the masked copy.
    ///
    /// # Panics
    /// When `write` returns more than the length of the slices.
    pub fn send_borrowed(
        &mut self,
        kind: Kind,
        payload: &[u8],
        mut write: impl FnMut(&[&[u8]]) -> Option<usize>,
        mut keep: impl FnMut(usize) -> bool,
        mut release: impl FnMut(Bytes),
    ) -> Result<(), Error> {
        self.check_open()?;
        let remaining = if self.sender.begin_borrowed(kind, payload, &mut keep)? { payload } else { &[] };
        let mut send = BorrowedSend { queue: &mut self.sender.queue, remaining };
        loop {
            let mut slices: [&[u8]; BORROWED_SLICES] = [&[]; BORROWED_SLICES];
            let count = send.slices(&mut slices);
            if count == 0 {
                return Ok(());
            }
            let Some(len) = write(&slices[..count]) else {
                if !keep(send.queue.len() + send.remaining.len()) {
                    send.remaining = &[];
                }
                return Ok(());
            };
            send.transmitted(len, &mut release);
        }
    }

    /// Gives the queue a buffer if it has none. A driver that pools buffers calls this before it sends, and
    /// [`take_buffer`](Self::take_buffer) before it waits; without it the queue allocates.
    #[inline]
    pub fn give_buffer(&mut self, buffer: impl FnOnce() -> Box<[u8]>) {
        if self.sender.queue.is_unallocated() {
            self.sender.queue.set_buffer(buffer());
        }
    }

    /// Takes the buffer of the queue if it is much longer than the queued bytes.
    #[inline]
    pub fn take_buffer(&mut self) -> Vec<u8> {
        self.sender.queue.take_buffer()
    }

    /// Bytes that were compressed since the last call, before compression: for a driver whose connections share a processor.
    pub fn take_compressed_len(&mut self) -> usize {
        self.sender.take_compressed_len()
    }

    /// Takes a deflating codec from the pool for the next messages; see [`DeflatePool`].
    pub fn take_codec(&mut self, pool: &mut DeflatePool) {
        self.sender.take_codec(pool);
    }

    /// Returns the codec to the pool, unless a message is being sent in fragments.
    pub fn return_codec(&mut self, pool: &mut DeflatePool) {
        self.sender.return_codec(pool);
    }

    /// Frees memory that an idle connection does not need: empty buffers and the codec. The window that the next message may refer
    /// to is kept, 32 KiB at most.
    pub fn release_buffers(&mut self) {
        self.sender.release();
    }

    /// Memory that compression holds, in bytes: the window to which the next message may refer, and the codec while there is one. Nothing
    /// once [nothing is written any more](Self::handle_write_failed).
    pub fn memory_len(&self) -> usize {
        self.sender.compressor().map_or(0, Compressor::memory_len)
    }

    // Output.

    /// Fills `out` with the slices to write next, in order, and returns how many; after writing, call
    /// [`transmitted`](Self::transmitted). Call until it returns 0.
    #[inline]
    pub fn poll_transmit<'a>(&'a mut self, out: &mut [&'a [u8]]) -> usize {
        if self.pending_pong.is_some() {
            self.queue_pong();
        }
        self.sender.queue.transmit(out)
    }

    /// `len` bytes of the slices from [`poll_transmit`](Self::poll_transmit) were written.
    ///
    /// # Panics
    /// When that is more than was queued.
    #[inline]
    pub fn transmitted(&mut self, len: usize) {
        self.transmitted_with(len, drop);
    }

    /// As [`transmitted`](Self::transmitted). Payloads that were queued by reference and are written now are passed to `release`: their
    /// destructors may be code of the application, which must not run while the connection is locked.
    ///
    /// # Panics
    /// As `transmitted`.
    #[inline]
    pub fn transmitted_with(&mut self, len: usize, release: impl FnMut(Bytes)) {
        self.sender.queue.transmitted(len, release);
    }

    /// Takes all queued bytes as one vector, as if they had been transmitted: for tests and examples.
    pub fn take_transmit(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let mut slices: [&[u8]; 16] = [&[]; 16];
            let count = self.poll_transmit(&mut slices);
            if count == 0 {
                return all;
            }
            let begin = all.len();
            slices[..count].iter().for_each(|slice| all.extend_from_slice(slice));
            self.transmitted(all.len() - begin);
        }
    }

    /// The time at which to call [`handle_timeout`](Self::handle_timeout), if any. Every other call may change it.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Duration> {
        match self.closing.as_deref() {
            Some(Closing { phase: Phase::Closed { .. }, .. }) => None,
            Some(Closing { deadline: Some(deadline), .. }) => Some(*deadline),
            _ => self.timers.next(),
        }
    }

    // Internals.

    #[inline]
    fn check_open(&self) -> Result<(), Misuse> {
        if self.is_open() { Ok(()) } else { Err(Misuse::NotOpen) }
    }

    fn check_control(&self, payload: &[u8]) -> Result<(), Misuse> {
        self.check_open()?;
        // RFC 6455 §5.5: control frames hold 125 bytes or less.
        if payload.len() > CONTROL_LEN_MAX {
            return Err(Misuse::ControlTooLong(payload.len()));
        }
        self.sender.check_room(payload.len())
    }

    fn handle_ping(&mut self, payload: &[u8]) {
        if self.is_open() {
            if self.has_room_for_pong() {
                // At once, so that it precedes answers to the messages behind the ping.
                self.pending_pong = None;
                self.sender.send_control(Opcode::Pong, payload);
            } else {
                // RFC 6455 §5.5.3: only the newest ping needs its pong.
                let pong = self.pending_pong.get_or_insert_default();
                pong.payload.clear();
                pong.payload.extend_from_slice(payload);
            }
        }
    }

    /// The peer's Close frame has arrived.
    fn handle_close(&mut self, now: Duration, close: CloseFrame<'_>) {
        let CloseFrame { code, reason } = close;
        let cause = Cause::Close { code, reason: String::from(reason) };
        let Some(closing) = &mut self.closing else {
            // RFC 6455 §5.5.1: answer with a Close frame, typically echoing the code; browsers expect the reason too.
            let answer = CloseFrame { code, reason };
            let end = End { by: Initiator::Peer, cause };
            return self.send_close(now, answer, Phase::Exchanged, end);
        };
        match closing.phase {
            Phase::CloseSent => closing.phase = Phase::Exchanged,
            // RFC 6455 §7.1.4: not clean, because ours was not sent.
            Phase::WriteFailed => closing.phase = Phase::Closed { clean: false },
            _ => {}
        }
        match &mut closing.end {
            // RFC 6455 §7.1.5: the code of the connection is the one received.
            End { by: Initiator::Local, cause: ours @ Cause::Close { .. } } => *ours = cause,
            // The connection had ended by a write failure before this frame was read.
            end @ End { by: Initiator::Transport, .. } => *end = End { by: Initiator::Peer, cause },
            _ => {}
        }
    }

    /// Queues the Close frame of an open connection.
    fn send_close(&mut self, now: Duration, close: CloseFrame<'_>, phase: Phase, end: End) {
        // RFC 6455 §5.5.1: nothing is sent after a Close frame. A pending pong is sent before it or not at all.
        self.queue_pong();
        self.pending_pong = None;
        let len_before_close = self.queued_len();
        self.sender.send_close(close);
        let deadline = Some(self.close_deadline(now));
        self.closing = Some(Box::new(Closing { phase, end, deadline, len_before_close }));
    }

    /// The deadline of a closing handshake that begins now.
    fn close_deadline(&self, now: Duration) -> Duration {
        now.saturating_add(Duration::from_millis(self.close_timeout_ms.into()))
    }

    /// The time is `now`: handles the deadline of the closing handshake, if it has passed.
    fn handle_close_timeout(&mut self, now: Duration) {
        let (queued_len, next_deadline) = (self.queued_len(), self.close_deadline(now));
        let Some(closing) = &mut self.closing else { return };
        let has_ended = matches!(closing.phase, Phase::Closed { .. });
        if has_ended || closing.deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        if closing.drains_queue_before_close(queued_len) {
            closing.deadline = Some(next_deadline);
            return;
        }
        let clean = closing.is_clean();
        if !clean {
            closing.replace_unanswered_close(Cause::CloseTimeout);
        }
        closing.phase = Phase::Closed { clean };
    }

    /// Whether a pong may be queued. While the queue is long, because the peer does not read, only the newest pong is kept, so that
    /// pings cannot grow the queue.
    fn has_room_for_pong(&self) -> bool {
        self.queued_len() < PONGS_QUEUED_LEN_MAX.min(self.queued_len_high())
    }

    #[cold]
    fn queue_pong(&mut self) {
        if !self.has_room_for_pong() {
            return;
        }
        if let Some(pong) = self.pending_pong.take() {
            self.sender.send_control(Opcode::Pong, &pong.payload);
        }
    }

    /// The end of the connection: this one, if it was open until now.
    fn closing_or(&mut self, phase: Phase, end: End) -> &mut Closing {
        let closing = || Box::new(Closing { phase, end, deadline: None, len_before_close: 0 });
        self.closing.get_or_insert_with(closing)
    }
}

/// A message whose header is queued and whose payload is not: see [`Outbound::send_borrowed`]. When it is dropped, also by a panic of
/// the function that writes, the rest of the payload is queued.
struct BorrowedSend<'a> {
    queue: &'a mut SendQueue,
    /// The payload that has not been written yet.
    remaining: &'a [u8],
}

impl BorrowedSend<'_> {
    /// Fills `out` with the slices to write next, in order, and returns how many; 0 when all is written.
    fn slices<'a>(&'a self, out: &mut [&'a [u8]]) -> usize {
        let count = self.queue.transmit(out);
        match out.get_mut(count) {
            // With a slice left, `out` contains all of the queue.
            Some(slice) if !self.remaining.is_empty() => {
                *slice = self.remaining;
                count + 1
            }
            _ => count,
        }
    }

    /// `len` bytes of the slices were written.
    fn transmitted(&mut self, len: usize, release: impl FnMut(Bytes)) {
        let queued = len.min(self.queue.len());
        self.queue.transmitted(queued, release);
        self.remaining = &self.remaining[len - queued..];
    }
}

impl Drop for BorrowedSend<'_> {
    fn drop(&mut self) {
        self.queue.push(self.remaining);
    }
}

impl fmt::Debug for Outbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbound")
            .field("role", &self.role())
            .field("end", &self.end())
            .field("queued_len", &self.queued_len())
            .finish_non_exhaustive()
    }
}

/// The reason of a Close frame, truncated to [`REASON_LEN_MAX`] at a code point boundary.
struct Reason {
    bytes: [u8; REASON_LEN_MAX],
    len: usize,
}

impl Reason {
    fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }
}

impl fmt::Write for Reason {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        for char in part.chars() {
            let len = char.len_utf8();
            if self.len + len > REASON_LEN_MAX {
                return Err(fmt::Error);
            }
            char.encode_utf8(&mut self.bytes[self.len..self.len + len]);
            self.len += len;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
