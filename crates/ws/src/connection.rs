//! One end of an open WebSocket: the two halves, what one must answer for the other, the closing handshake of
//! RFC 6455 §7, deadlines. The opening handshake comes before, in [`crate::handshake`].
//!
//! ```text
//!           close(), or the peer broke a rule
//!  Open ------------------------------------------> our Close is sent ----+
//!   |                                                       |             | close_timeout
//!   | their Close arrives: its echo is sent                 | theirs      v
//!   +--------------------------------------------> both are exchanged   Close
//!                                                           |             ^
//!                                    server: at once; client: at EOF -----+
//! ```

use crate::close::{CloseCode, CloseFrame, REASON_LEN_MAX};
use crate::config::Config;
use crate::decoder::Decoder;
use crate::deflate::{Compressor, Decompressor, DeflateConfig, DeflateParams};
use crate::end::{Cause, End, Initiator};
use crate::error::{Error, Misuse};
use crate::event::{Binary, Chunk, Event, Payload, Pong, Text};
use crate::frame::CONTROL_LEN_MAX;
use crate::keys::MaskKeys;
use crate::opcode::{Kind, Opcode};
use crate::receive::{Arrival, Receiver};
use crate::role::Role;
use crate::send::Sender;
use crate::timers::{Due, Timers};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use core::fmt::{self, Write as _};
use core::time::Duration;

/// What is to be done with the transport once nothing is left to transmit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Keep it: read, write, wait for [`Connection::poll_timeout`].
    Open,
    /// Shut down the writing side, and go on reading until its end or the deadline, so that the peer gets to read the
    /// Close frame instead of a reset.
    ShutdownWrite,
    /// Close it.
    Close,
}

/// One end of an open WebSocket, without I/O.
///
/// Four families of methods:
/// - getters;
/// - `handle_*`, for what comes in: [`handle_input`](Self::handle_input) (or [`recv_slot`](Self::recv_slot) and
///   [`received`](Self::received)), [`handle_timeout`](Self::handle_timeout), [`handle_eof`](Self::handle_eof);
/// - commands: `send_*`, [`close`](Self::close);
/// - `poll_*`, for what goes out: [`poll_transmit`](Self::poll_transmit) and [`transmitted`](Self::transmitted),
///   [`poll_timeout`](Self::poll_timeout).
///
/// A driver reads, calls `handle_input` until it has no event left, writes what `poll_transmit` shows, and sleeps until bytes
/// or the deadline of `poll_timeout` come, until [`transport`](Self::transport) tells it to stop. Times are durations since
/// any epoch that does not change.
///
/// ```
/// use std::time::Duration;
/// use wireloom_ws::{Config, Connection, Event};
///
/// let now = Duration::ZERO;
/// let mut client = Connection::client(Config::default(), None, [7; 32], now);
/// let mut server = Connection::server(Config::default(), None, now);
///
/// client.send_text("Hello")?;
/// let mut wire = client.take_transmit();
///
/// let (_used, event) = server.handle_input(now, &mut wire)?;
/// assert!(matches!(event, Some(Event::Text(text)) if &*text == "Hello"));
/// # Ok::<(), wireloom_ws::Error>(())
/// ```
///
/// What an event borrows must be used before the connection is touched again:
///
/// ```compile_fail,E0499
/// # use std::time::Duration;
/// # use wireloom_ws::{Config, Connection};
/// # let now = Duration::ZERO;
/// let mut server = Connection::server(Config::default(), None, now);
/// let (mut one, mut two) = ([0x81, 0], [0x81, 0]);
/// let first = server.handle_input(now, &mut one);
/// let second = server.handle_input(now, &mut two);
/// drop(first);
/// ```
pub struct Connection {
    role: Role,
    receiver: Receiver,
    sender: Sender,
    timers: Timers,
    close_timeout: Duration,
    queued_len_high: usize,
    /// The payload of the newest ping that wants a pong.
    pong: Option<Vec<u8>>,
    /// Memory of the pong before, for the next.
    pong_spare: Vec<u8>,
    /// Of the pong that arrived last, if it answered a ping.
    round_trip: Option<Duration>,
    keepalive_pings: u64,
    /// The peer is still heard: it has sent no Close, and nothing has failed.
    listening: bool,
    close_sent: bool,
    close_received: bool,
    /// The transport's reading side has ended.
    eof: bool,
    /// Nothing more is to be waited for.
    cut: bool,
    end: Option<Box<End>>,
}

impl Connection {
    /// The server's end of a WebSocket whose handshake is over. `deflate` is what the handshake negotiated, with the
    /// configuration that it was negotiated from.
    pub fn server(config: Config, deflate: Option<(DeflateParams, &DeflateConfig)>, now: Duration) -> Self {
        Self::new(Role::Server, config, deflate, None, now)
    }

    /// The client's end of a WebSocket whose handshake is over. `seed` comes fresh from the operating system's source of
    /// randomness for each connection: masking keys are drawn from it (RFC 6455 §10.3).
    pub fn client(
        config: Config,
        deflate: Option<(DeflateParams, &DeflateConfig)>,
        seed: [u8; 32],
        now: Duration,
    ) -> Self {
        Self::new(Role::Client, config, deflate, Some(Box::new(MaskKeys::new(seed))), now)
    }

    fn new(
        role: Role,
        config: Config,
        deflate: Option<(DeflateParams, &DeflateConfig)>,
        keys: Option<Box<MaskKeys>>,
        now: Duration,
    ) -> Self {
        let peer = match role {
            Role::Client => Role::Server,
            Role::Server => Role::Client,
        };
        let limits = &config.limits;
        let decoder = Decoder::new(peer, deflate.is_some(), limits);
        let decompressor = deflate.map(|(params, _)| Decompressor::new(role, &params));
        let compressor = deflate.map(|(params, config)| Box::new(Compressor::new(role, &params, config)));
        Self {
            role,
            receiver: Receiver::new(decoder, config.delivery, decompressor, limits),
            sender: Sender::new(keys, compressor, limits.queued_len_max),
            timers: Timers::new(config.keepalive, now),
            close_timeout: config.close_timeout,
            queued_len_high: limits.queued_len_high,
            pong: None,
            pong_spare: Vec::new(),
            round_trip: None,
            keepalive_pings: 0,
            listening: true,
            close_sent: false,
            close_received: false,
            eof: false,
            cut: false,
            end: None,
        }
    }

    // Getters.

    /// Which end this is.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Whether messages can be sent: no Close frame has gone either way and nothing has failed.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.end.is_none()
    }

    /// Why the connection ended, or is ending, and who began it; `None` while it is open.
    pub fn end(&self) -> Option<&End> {
        self.end.as_deref()
    }

    /// Whether both Close frames were exchanged (RFC 6455 §7.1.4: the WebSocket connection was closed cleanly).
    pub fn was_clean(&self) -> bool {
        self.close_sent && self.close_received
    }

    /// How many pings this end has sent, keepalive's among them.
    pub fn pings_sent(&self) -> u32 {
        self.timers.pings_sent
    }

    /// The newest of these that was answered, counted from 1; 0 before. All that was sent before that ping has arrived at the
    /// peer's end (which is not to say that its application has seen it).
    pub fn pings_answered(&self) -> u32 {
        self.timers.pings_answered
    }

    /// Bytes that wait to be transmitted.
    #[inline]
    pub fn queued_len(&self) -> usize {
        self.sender.outgoing.len()
    }

    /// Whether there is anything to transmit.
    #[inline]
    pub fn wants_write(&self) -> bool {
        self.queued_len() > 0 || self.pong.is_some()
    }

    /// Whether so much waits to be transmitted that a considerate sender pauses; see
    /// [`queued_len_high`](crate::limits::Limits::queued_len_high).
    #[inline]
    pub fn is_congested(&self) -> bool {
        self.queued_len() >= self.queued_len_high
    }

    /// What is to be done with the transport, once all that [`poll_transmit`](Self::poll_transmit) shows is written.
    pub fn transport(&self) -> Transport {
        if self.cut {
            Transport::Close
        } else if self.wants_write() || !self.close_sent {
            Transport::Open
        } else if self.eof {
            Transport::Close
        } else if self.close_received {
            match self.role {
                // RFC 6455 §7.1.1: the server closes TCP first, so that it holds TIME_WAIT; the client waits for it.
                Role::Server => Transport::Close,
                Role::Client => Transport::Open,
            }
        } else if self.listening {
            Transport::Open
        } else {
            Transport::ShutdownWrite
        }
    }

    // What comes in.

    /// Takes bytes from the front of `input`, up to the end of what makes the next event: how many, and the event. Call again
    /// with the rest until there is no event; all of `input` has been taken then. Payloads are unmasked where they lie, and
    /// borrowed from there when they arrived whole.
    ///
    /// Once the peer has sent a Close frame or broken a rule, all further input is dropped (RFC 6455 §1.4).
    ///
    /// # Errors
    /// The rule or limit that the peer broke. It is told once; [`end`](Self::end) keeps it. The Close frame that answers it
    /// is queued: go on transmitting, and do with the transport what [`transport`](Self::transport) says.
    #[inline]
    pub fn handle_input<'a>(
        &'a mut self,
        now: Duration,
        input: &'a mut [u8],
    ) -> Result<(usize, Option<Event<'a>>), Error> {
        if !self.listening {
            return Ok((input.len(), None));
        }
        if let Some((kind, at, len)) = self.receiver.whole_message(input) {
            self.timers.hear(now);
            return Ok((at + len, Some(message(kind, &mut input[at..at + len]))));
        }
        let (used, arrival) = self.advance(now, input)?;
        Ok((used, self.event(arrival, input)))
    }

    /// Where to read the next bytes to, while a large message is being assembled: the end of the message itself. `None`
    /// means: read into a buffer of your own, and pass it to [`handle_input`](Self::handle_input). After reading, call
    /// [`received`](Self::received).
    ///
    /// The slot is up to 256 KiB long; a read may bring less. From memory, reads of 16 KiB are fastest, since what each brings
    /// is still in the first level of cache when it is unmasked; from a socket, larger ones save system calls.
    pub fn recv_slot(&mut self) -> Option<&mut [u8]> {
        if self.listening { self.receiver.slot() } else { None }
    }

    /// The first `len` bytes of [`recv_slot`](Self::recv_slot) have been read into.
    ///
    /// # Errors
    /// As for [`handle_input`](Self::handle_input).
    ///
    /// # Panics
    /// When `len` is more than the slot held.
    pub fn received(&mut self, now: Duration, len: usize) -> Result<Option<Event<'_>>, Error> {
        if !self.listening {
            return Ok(None);
        }
        self.timers.hear(now);
        match self.receiver.slot_filled(len) {
            Ok(arrival) => Ok(self.event(arrival, &mut [])),
            Err(error) => Err(self.fail(now, error)),
        }
    }

    /// The transport's reading side has ended. After both Close frames that is the proper end; before, it is reported in
    /// [`end`](Self::end) as [`Cause::TransportClosed`].
    pub fn handle_eof(&mut self) {
        self.eof = true;
        self.listening = false;
        self.pong = None;
        if !self.close_sent {
            self.cut = true;
        }
        self.give_up_answer(Cause::TransportClosed);
        self.set_end(Initiator::Transport, Cause::TransportClosed);
    }

    /// The time is `now`: does what [`poll_timeout`](Self::poll_timeout) gave a deadline for. Early calls do nothing.
    pub fn handle_timeout(&mut self, now: Duration) {
        match self.timers.due(now) {
            Due::Nothing => {}
            Due::Ping => {
                if !self.close_sent && !self.is_congested() {
                    self.keepalive_pings += 1;
                    let payload = self.keepalive_pings.to_be_bytes();
                    self.timers.ping_sent(&payload, now);
                    self.sender.control(Opcode::Ping, &payload);
                }
            }
            Due::Silence => {
                self.set_end(Initiator::Local, Cause::Silence);
                self.cut = true;
                self.listening = false;
            }
            Due::Close => {
                self.give_up_answer(Cause::CloseTimeout);
                self.cut = true;
                self.listening = false;
            }
        }
    }

    // Commands.

    /// Sends a text message, compressed if that was negotiated and is worth it.
    ///
    /// # Errors
    /// [`Misuse`] when the connection is not open, a message is being sent in pieces, or the queue is full; nothing was sent.
    #[inline]
    pub fn send_text(&mut self, text: &str) -> Result<(), Error> {
        self.check_open()?;
        Ok(self.sender.message(Kind::Text, text.as_bytes(), true)?)
    }

    /// Sends a binary message, compressed if that was negotiated and is worth it.
    ///
    /// # Errors
    /// As for [`send_text`](Self::send_text).
    #[inline]
    pub fn send_binary(&mut self, data: &[u8]) -> Result<(), Error> {
        self.check_open()?;
        Ok(self.sender.message(Kind::Binary, data, true)?)
    }

    /// Sends a binary message without copying it, where the role allows: a client has to mask, and what is compressed or
    /// under 4 KiB is copied too.
    ///
    /// # Errors
    /// As for [`send_text`](Self::send_text).
    pub fn send_bytes(&mut self, data: Bytes) -> Result<(), Error> {
        self.check_open()?;
        Ok(self.sender.message_shared(Kind::Binary, data)?)
    }

    /// Sends a text message as it is, also where compression was negotiated (RFC 7692 §6): for what is compressed
    /// already, or secret beside what others choose.
    ///
    /// # Errors
    /// As for [`send_text`](Self::send_text).
    pub fn send_text_uncompressed(&mut self, text: &str) -> Result<(), Error> {
        self.check_open()?;
        Ok(self.sender.message(Kind::Text, text.as_bytes(), false)?)
    }

    /// Sends a binary message as it is; see [`send_text_uncompressed`](Self::send_text_uncompressed).
    ///
    /// # Errors
    /// As for [`send_text`](Self::send_text).
    pub fn send_binary_uncompressed(&mut self, data: &[u8]) -> Result<(), Error> {
        self.check_open()?;
        Ok(self.sender.message(Kind::Binary, data, false)?)
    }

    /// Sends the next piece of a text message that is too large to hold, in a frame of its own (RFC 6455 §5.4). The first
    /// call begins the message, `fin` ends it; control frames may go between.
    ///
    /// # Errors
    /// As for [`send_text`](Self::send_text), and when the message under way is binary.
    pub fn send_text_chunk(&mut self, piece: &str, fin: bool) -> Result<(), Error> {
        self.check_open()?;
        Ok(self.sender.chunk(Kind::Text, piece.as_bytes(), fin)?)
    }

    /// Sends the next piece of a binary message; see [`send_text_chunk`](Self::send_text_chunk).
    ///
    /// # Errors
    /// As for [`send_text`](Self::send_text), and when the message under way is text.
    pub fn send_binary_chunk(&mut self, piece: &[u8], fin: bool) -> Result<(), Error> {
        self.check_open()?;
        Ok(self.sender.chunk(Kind::Binary, piece, fin)?)
    }

    /// Sends a ping; its pong comes as [`Event::Pong`] with the round trip's time.
    ///
    /// # Errors
    /// [`Misuse`] when the connection is not open, the payload is over 125 bytes, or the queue is full.
    pub fn send_ping(&mut self, now: Duration, payload: &[u8]) -> Result<(), Error> {
        self.check_control(payload)?;
        self.timers.ping_sent(payload, now);
        self.sender.control(Opcode::Ping, payload);
        Ok(())
    }

    /// Sends a pong that nobody asked for (RFC 6455 §5.5.3). Pings are answered without this.
    ///
    /// # Errors
    /// As for [`send_ping`](Self::send_ping).
    pub fn send_pong(&mut self, payload: &[u8]) -> Result<(), Error> {
        self.check_control(payload)?;
        self.sender.control(Opcode::Pong, payload);
        Ok(())
    }

    /// Begins the closing handshake (RFC 6455 §7.1.2): what is queued goes first, then the Close frame. Messages still arrive
    /// until the peer's own. Closing again changes nothing.
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
            self.send_close(now, close);
            self.set_end(Initiator::Local, Cause::Close { code: close.code, reason: String::from(reason) });
        }
        Ok(())
    }

    /// Gives back the memory that an idle connection can do without: buffers that hold nothing, and the compression state
    /// where forgetting it is allowed. For a driver that sees that nothing has come for a while.
    pub fn release_buffers(&mut self) {
        self.receiver.release();
        self.sender.release();
        self.pong_spare = Vec::new();
    }

    // What goes out.

    /// Fills `out` with the slices to write next, in order, and returns how many; after writing, call
    /// [`transmitted`](Self::transmitted). Call until it returns 0.
    #[inline]
    pub fn poll_transmit<'a>(&'a mut self, out: &mut [&'a [u8]]) -> usize {
        if self.pong.is_some() {
            self.queue_pong();
        }
        self.sender.outgoing.transmit(out)
    }

    /// `len` bytes of what [`poll_transmit`](Self::poll_transmit) showed have been written.
    ///
    /// # Panics
    /// When that is more than was queued.
    #[inline]
    pub fn transmitted(&mut self, len: usize) {
        self.sender.outgoing.transmitted(len);
    }

    /// Everything that waits, copied out as if it had been transmitted: for tests and examples.
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

    /// When to call [`handle_timeout`](Self::handle_timeout) next, if at all. It changes with every other call.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Duration> {
        if self.cut { None } else { self.timers.next() }
    }

    // Within.

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
        self.sender.admit(payload.len())
    }

    /// Everything but a message that arrived whole in one frame. It returns places, not an event: one made out here would
    /// come back through memory, also for those that were not.
    #[inline(never)]
    fn advance(&mut self, now: Duration, input: &mut [u8]) -> Result<(usize, Arrival), Error> {
        if !input.is_empty() {
            self.timers.hear(now);
        }
        let found = self.receiver.advance(input).and_then(|(used, arrival)| {
            if let Arrival::Control { opcode, at, len } = arrival {
                self.handle_control(now, opcode, at.map(|at| &input[at..at + len]))?;
            }
            Ok((used, arrival))
        });
        found.map_err(|error| self.fail(now, error))
    }

    /// Does what a control frame asks for. Its payload is the decoder's when it did not arrive whole.
    fn handle_control(&mut self, now: Duration, opcode: Opcode, whole: Option<&[u8]>) -> Result<(), Error> {
        let payload = whole.unwrap_or_else(|| self.receiver.decoder.control());
        match opcode {
            Opcode::Ping => {
                if !self.close_sent {
                    // RFC 6455 §5.5.3: only the newest ping needs its pong.
                    let mut pong = self.pong.take().unwrap_or_else(|| core::mem::take(&mut self.pong_spare));
                    pong.clear();
                    pong.extend_from_slice(payload);
                    self.pong = Some(pong);
                }
            }
            Opcode::Pong => self.round_trip = self.timers.pong_arrived(payload, now),
            _ => {
                let CloseFrame { code, reason } = CloseFrame::decode(payload)?;
                let reason = String::from(reason);
                self.handle_close(now, code, reason);
            }
        }
        Ok(())
    }

    /// What has arrived, with what it borrows.
    #[inline(always)]
    fn event<'a>(&'a mut self, arrival: Arrival, input: &'a mut [u8]) -> Option<Event<'a>> {
        let assembly = &mut self.receiver.assembly;
        Some(match arrival {
            Arrival::Nothing => return None,
            Arrival::Message { kind, at, len } => message(kind, &mut input[at..at + len]),
            Arrival::Assembled { kind: Kind::Text } => Event::Text(Text::new(Payload::Assembled(assembly))),
            Arrival::Assembled { kind: Kind::Binary } => {
                Event::Binary(Binary::new(Payload::Assembled(assembly)))
            }
            Arrival::AssembledChunk { kind, first, fin } => {
                Event::Chunk(Chunk { kind, first, fin, data: assembly.as_slice() })
            }
            Arrival::Chunk { kind, first, fin, at, len } => {
                Event::Chunk(Chunk { kind, first, fin, data: &input[at..at + len] })
            }
            Arrival::Control { opcode, at, len } => {
                let payload = match at {
                    Some(at) => &input[at..at + len],
                    None => self.receiver.decoder.control(),
                };
                match opcode {
                    Opcode::Ping => Event::Ping(payload),
                    Opcode::Pong => Event::Pong(Pong { payload, round_trip: self.round_trip }),
                    // It was judged when it arrived.
                    _ => Event::Close(CloseFrame::decode(payload).ok()?),
                }
            }
        })
    }

    /// The answer to this end's Close frame will not come any more. RFC 6455 §7.1.5: the code is then 1006.
    fn give_up_answer(&mut self, why: Cause) {
        if !self.close_received && matches!(self.end(), Some(End { cause: Cause::Close { .. }, .. })) {
            self.end = None;
            self.set_end(Initiator::Local, why);
        }
    }

    /// The peer's Close frame has arrived.
    fn handle_close(&mut self, now: Duration, code: Option<CloseCode>, reason: String) {
        self.close_received = true;
        self.listening = false;
        if !self.close_sent {
            // RFC 6455 §5.5.1: answer with a Close frame, typically echoing the code.
            self.send_close(now, CloseFrame { code, reason: "" });
            self.set_end(Initiator::Peer, Cause::Close { code, reason });
        } else if let Some(End { by: Initiator::Local, cause }) = self.end.as_deref_mut()
            && matches!(cause, Cause::Close { .. })
        {
            // RFC 6455 §7.1.5: the code of the connection is the one received.
            *cause = Cause::Close { code, reason };
        }
    }

    /// RFC 6455 §7.1.7: fails the connection, with a Close frame that says why if none has been sent.
    #[cold]
    fn fail(&mut self, now: Duration, error: Error) -> Error {
        self.listening = false;
        if !self.close_sent {
            let mut reason = Reason { bytes: [0; REASON_LEN_MAX], len: 0 };
            // A reason that is cut off is still one.
            let _ = write!(reason, "{error}");
            self.send_close(now, CloseFrame { code: error.close_code(), reason: reason.as_str() });
        }
        self.end = None;
        self.set_end(Initiator::Local, Cause::Error(error));
        error
    }

    fn send_close(&mut self, now: Duration, close: CloseFrame<'_>) {
        // RFC 6455 §5.5.1: nothing is sent after a Close frame; the pong that is owed goes before it or not at all.
        self.queue_pong();
        self.pong = None;
        self.sender.close(close);
        self.close_sent = true;
        self.timers.close_by = Some(now.saturating_add(self.close_timeout));
    }

    /// While much waits for a peer that does not read, the pong waits too and only the newest is kept: pings cannot grow
    /// the queue.
    #[cold]
    fn queue_pong(&mut self) {
        if self.is_congested() {
            return;
        }
        if let Some(pong) = self.pong.take() {
            self.sender.control(Opcode::Pong, &pong);
            self.pong_spare = pong;
        }
    }

    fn set_end(&mut self, by: Initiator, cause: Cause) {
        if self.end.is_none() {
            self.end = Some(Box::new(End { by, cause }));
        }
    }
}

/// The event of a message that lies in the caller's buffer, unmasked and, if text, validated.
#[inline(always)]
fn message(kind: Kind, data: &mut [u8]) -> Event<'_> {
    match kind {
        Kind::Text => Event::Text(Text::new(Payload::Input(data))),
        Kind::Binary => Event::Binary(Binary::new(Payload::Input(data))),
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("role", &self.role)
            .field("end", &self.end)
            .field("queued_len", &self.queued_len())
            .finish_non_exhaustive()
    }
}

/// A close reason as it is written, cut at its limit on a code point's edge.
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
mod tests {
    use super::*;
    use crate::config::{Delivery, Keepalive};
    use crate::error::PeerMisbehaved;
    use alloc::format;
    use alloc::vec;

    const NOW: Duration = Duration::from_secs(1000);

    fn client() -> Connection {
        Connection::client(Config::default(), None, [9; 32], NOW)
    }

    fn server() -> Connection {
        Connection::server(Config::default(), None, NOW)
    }

    fn deflated(delivery: Delivery) -> (Connection, Connection) {
        let mut response = String::new();
        let deflate = DeflateConfig::default();
        let mut offer = String::new();
        deflate.offer(&mut offer);
        let offers = crate::handshake::extensions::parse(&offer).unwrap();
        let params = deflate.accept_offers(offers.iter(), &mut response).unwrap();
        let config = Config { delivery, ..Config::default() };
        let client = Connection::client(config.clone(), Some((params, &deflate)), [9; 32], NOW);
        (client, Connection::server(config, Some((params, &deflate)), NOW))
    }

    /// What a connection hears, in words; large messages are delivered through the slot when `slot` is set.
    fn hear(connection: &mut Connection, wire: &[u8], step: usize, slot: bool) -> Vec<String> {
        let mut heard = Vec::new();
        let mut message = Vec::new();
        let mut note = |event: &Event<'_>| match event {
            Event::Text(text) => heard.push(format!("text {}", text.len())),
            Event::Binary(data) => heard.push(format!("binary {}", data.len())),
            Event::Chunk(chunk) => {
                assert_eq!(chunk.first, message.is_empty());
                message.extend_from_slice(chunk.data);
                if chunk.fin {
                    heard.push(format!("chunks {}", message.len()));
                    message.clear();
                }
            }
            Event::Ping(payload) => heard.push(format!("ping {}", payload.len())),
            Event::Pong(pong) => heard.push(format!("pong {:?}", pong.round_trip)),
            Event::Close(close) => heard.push(format!("close {:?} {}", close.code, close.reason)),
        };
        let mut rest = wire;
        while !rest.is_empty() {
            if slot && let Some(slot) = connection.recv_slot() {
                let len = slot.len().min(step).min(rest.len());
                slot[..len].copy_from_slice(&rest[..len]);
                rest = &rest[len..];
                if let Some(event) = connection.received(NOW, len).unwrap() {
                    note(&event);
                }
                continue;
            }
            let mut piece = rest[..step.min(rest.len())].to_vec();
            rest = &rest[piece.len()..];
            let mut at = 0;
            while let (used, Some(event)) = connection.handle_input(NOW, &mut piece[at..]).unwrap() {
                note(&event);
                at += used;
            }
        }
        heard
    }

    fn say(connection: &mut Connection) -> Vec<u8> {
        connection.send_text("Hello").unwrap();
        connection.send_binary(&[1; 300]).unwrap();
        connection.send_text_chunk("one ", false).unwrap();
        connection.send_ping(NOW, b"ping").unwrap();
        connection.send_text_chunk("two", true).unwrap();
        connection.send_bytes(Bytes::from(vec![b'{'; 200_000])).unwrap();
        connection.send_text(&"häßlich ".repeat(10_000)).unwrap();
        connection.send_text("").unwrap();
        connection.close(NOW, CloseCode::NORMAL, "bye").unwrap();
        connection.take_transmit()
    }

    const SAID: [&str; 8] = [
        "text 5",
        "binary 300",
        "ping 4",
        "text 7",
        "binary 200000",
        "text 100000",
        "text 0",
        "close Some(CloseCode(1000)) bye",
    ];

    #[test]
    fn carries_messages_both_ways_at_every_step() {
        for step in [1, 7, 100, 4096, 65_536, 1 << 20] {
            for slot in [false, true] {
                for (mut from, mut to) in [(client(), server()), (server(), client())] {
                    let wire = say(&mut from);
                    assert_eq!(hear(&mut to, &wire, step, slot), SAID, "step {step}");
                }
                let (mut from, mut to) = deflated(Delivery::Messages);
                let wire = say(&mut from);
                assert!(wire.len() < 10_000);
                assert_eq!(hear(&mut to, &wire, step, slot), SAID, "step {step}, compressed");
            }
        }
    }

    #[test]
    fn lends_messages_in_chunks() {
        for step in [1, 7, 100, 4096, 65_536, 1 << 20] {
            let (mut from, mut to) = deflated(Delivery::Chunks);
            let wire = say(&mut from);
            let heard = hear(&mut to, &wire, step, true);
            let said = SAID.map(|said| said.replace("text", "chunks").replace("binary", "chunks"));
            let heard: Vec<String> =
                heard.iter().map(|said| said.replace("text", "chunks").replace("binary", "chunks")).collect();
            assert_eq!(heard, said, "step {step}");
        }
    }

    // RFC 6455 §7.1.1, §5.5.1: both exchange Close frames, and the server closes TCP first.
    #[test]
    fn closes_cleanly_from_either_end() {
        for (mut one, mut two) in [(client(), server()), (server(), client())] {
            one.close(NOW, CloseCode::GOING_AWAY, "later").unwrap();
            assert_eq!(one.send_text("no"), Err(Misuse::NotOpen.into()));
            let wire = one.take_transmit();
            hear(&mut two, &wire, 3, false);
            assert_eq!(two.end().unwrap().by, Initiator::Peer);
            assert_eq!(two.end().unwrap().code(), CloseCode::GOING_AWAY);
            let wire = two.take_transmit();
            hear(&mut one, &wire, 3, false);
            assert_eq!(one.end().unwrap().by, Initiator::Local);
            for end in [&mut one, &mut two] {
                assert!(end.was_clean());
                let expected = if end.role() == Role::Server { Transport::Close } else { Transport::Open };
                assert_eq!(end.transport(), expected);
                end.handle_eof();
                assert_eq!(end.transport(), Transport::Close);
            }
        }
    }

    // RFC 6455 §7.1.7.
    #[test]
    fn says_why_it_failed_and_stops_listening() {
        let mut server = server();
        let error = server.handle_input(NOW, &mut [0x81, 0x01, b'x']).map(drop).unwrap_err();
        assert_eq!(error, PeerMisbehaved::UnmaskedFrame.into());
        assert_eq!(server.end().unwrap().cause, Cause::Error(error));
        let wire = server.take_transmit();
        assert_eq!(&wire[..4], [0x88, wire.len() as u8 - 2, 0x03, 0xEA]);
        assert_eq!(&wire[4..], b"unmasked frame from a client");
        assert_eq!(server.transport(), Transport::ShutdownWrite);
        assert!(matches!(server.handle_input(NOW, &mut [0x81, 0x01, b'x']), Ok((3, None))));
        assert_eq!(server.poll_timeout(), Some(NOW + Duration::from_secs(10)));
        server.handle_timeout(NOW + Duration::from_secs(10));
        assert_eq!(server.transport(), Transport::Close);
        assert_eq!(server.end().unwrap().cause, Cause::Error(error));
    }

    // RFC 6455 §5.5.3: only the newest ping needs its pong.
    #[test]
    fn answers_the_newest_ping() {
        let (mut client, mut server) = (client(), server());
        client.send_ping(NOW, b"one").unwrap();
        client.send_ping(NOW, b"two").unwrap();
        let wire = client.take_transmit();
        assert_eq!(hear(&mut server, &wire, 100, false), ["ping 3", "ping 3"]);
        let mut wire = server.take_transmit();
        assert_eq!(wire, b"\x8a\x03two");
        let later = NOW + Duration::from_millis(30);
        let (_, event) = client.handle_input(later, &mut wire).unwrap();
        let Some(Event::Pong(pong)) = event else { panic!("no pong") };
        assert_eq!(pong, Pong { payload: b"two", round_trip: Some(Duration::from_millis(30)) });
    }

    #[test]
    fn bounds_the_answers_to_a_peer_that_does_not_read() {
        let mut config = Config::default();
        config.limits.queued_len_high = 1000;
        let mut server = Connection::server(config, None, NOW);
        let ping = [0x89, 0x84, 0, 0, 0, 0, 1, 2, 3, 4];
        for _ in 0..10_000 {
            server.handle_input(NOW, &mut ping.clone()).unwrap();
            let mut slices: [&[u8]; 4] = [&[]; 4];
            server.poll_transmit(&mut slices);
        }
        assert!(server.queued_len() < 1010);
    }

    // RFC 6455 §5.5.1: no frame after a Close frame.
    #[test]
    fn sends_no_pong_behind_a_close() {
        let mut config = Config::default();
        config.limits.queued_len_high = 10;
        let mut server = Connection::server(config, None, NOW);
        server.send_binary(&[0; 20]).unwrap();
        server.handle_input(NOW, &mut [0x89, 0x80, 0, 0, 0, 0]).unwrap();
        server.close(NOW, None, "").unwrap();
        assert!(server.take_transmit().ends_with(&[0x88, 0]));
        assert!(!server.wants_write());
    }

    #[test]
    fn pings_a_silent_peer_and_gives_it_up() {
        let keepalive = Keepalive { ping_after: Duration::from_secs(5), dead_after: Duration::from_secs(12) };
        let config = Config { keepalive: Some(keepalive), ..Config::default() };
        let mut server = Connection::server(config, None, NOW);
        let due = server.poll_timeout().unwrap();
        server.handle_timeout(due);
        assert_eq!(server.take_transmit(), b"\x89\x08\0\0\0\0\0\0\0\x01");
        server.handle_timeout(NOW + Duration::from_secs(12));
        assert_eq!(server.end().unwrap(), &End { by: Initiator::Local, cause: Cause::Silence });
        assert_eq!(server.transport(), Transport::Close);
    }

    #[test]
    fn refuses_what_would_pile_up() {
        let mut config = Config::default();
        config.limits.queued_len_max = 100;
        let mut server = Connection::server(config, None, NOW);
        server.send_binary(&[0; 200]).unwrap();
        assert_eq!(server.send_binary(&[0]), Err(Misuse::QueueFull { queued: 204, max: 100 }.into()));
        server.take_transmit();
        server.send_binary(&[0; 98]).unwrap();
    }
}
