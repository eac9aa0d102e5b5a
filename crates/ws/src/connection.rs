//! One end of an open WebSocket: the halves [`Inbound`] and [`Outbound`], and the events between them. [`crate::handshake`] has the
//! opening handshake.
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
//!
//! A server whose peer sends more behind its Close frame discards that until EOF, and closes then (RFC 6455 §7.1.1).

use crate::config::Config;
use crate::deflate::{Decompressor, DeflateConfig, DeflateParams};
use crate::error::Error;
use crate::event::{Event, Payload};
use crate::inbound::{self, Arrival, Inbound};
use crate::keys::MaskKeys;
use crate::outbound::Outbound;
use crate::role::Role;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::time::Duration;

/// How to treat the transport once everything is transmitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Keep it: read, write, wait for [`Outbound::poll_timeout`].
    Open,
    /// Shut down the writing side, and read until the end or the deadline, so that the peer receives the Close frame instead of a reset.
    ShutdownWrite,
    /// Close it. A server whose socket may hold unread bytes first reads once, without waiting, and passes them to
    /// [`Connection::handle_input`] or [`Outbound::handle_trailing`]: if the peer has sent any behind its Close frame, this becomes
    /// [`ShutdownWrite`](Self::ShutdownWrite), because a socket that is closed with unread bytes is reset, and the peer loses what it has
    /// not received. The same happens if it sends some later: while the socket has bytes that were not sent (`SIOCOUTQNSD` on Linux), a
    /// byte counts as read.
    Close,
}

/// One end of an open WebSocket, without I/O.
///
/// Four families of methods:
/// - getters;
/// - `handle_*`, for input: [`handle_input`](Self::handle_input) (or [`recv_slot`](Self::recv_slot)),
///   [`handle_timeout`](Outbound::handle_timeout), [`handle_eof`](Outbound::handle_eof);
/// - commands: `send_*`, [`close`](Outbound::close);
/// - `poll_*`, for output: [`poll_transmit`](Outbound::poll_transmit) and [`transmitted`](Outbound::transmitted),
///   [`poll_timeout`](Outbound::poll_timeout).
///
/// A driver reads, calls `handle_input` until it returns no event, writes the slices of `poll_transmit`, and sleeps until bytes
/// arrive or the deadline of `poll_timeout` passes, until [`transport`](Outbound::transport) requires it to stop. Times are durations
/// since any epoch that does not change.
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
/// An event borrows from the connection and the input, so it must be used before the next call:
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
///
/// Getters, commands and output are the methods of [`Outbound`], to which a connection dereferences. Pass bytes to the connection itself:
/// it passes control frames and errors on. A driver that reads and writes in different tasks [splits](Self::split) it.
pub struct Connection {
    inbound: Inbound,
    outbound: Outbound,
    /// The round-trip time of the last pong, if it answered a ping.
    round_trip: Option<Duration>,
}

impl Connection {
    /// The server's end of a WebSocket after the handshake. `deflate`: the negotiated parameters, and the configuration that they were
    /// negotiated with.
    pub fn server(config: Config, deflate: Option<(DeflateParams, &DeflateConfig)>, now: Duration) -> Self {
        Self::new(Role::Server, config, deflate, None, now)
    }

    /// The client's end of a WebSocket after the handshake. Masking keys are generated from `seed`, which must be new for each connection
    /// and come from the operating system's source of randomness (RFC 6455 §10.3).
    pub fn client(
        config: Config,
        deflate: Option<(DeflateParams, &DeflateConfig)>,
        seed: [u8; 32],
        now: Duration,
    ) -> Self {
        Self::new(Role::Client, config, deflate, Some(MaskKeys::new(seed)), now)
    }

    fn new(
        role: Role,
        config: Config,
        deflate: Option<(DeflateParams, &DeflateConfig)>,
        keys: Option<MaskKeys>,
        now: Duration,
    ) -> Self {
        let outbound = Outbound::new(role, &config, deflate, keys, now);
        let decompressor = deflate.map(|(params, _)| Decompressor::new(role, &params));
        Self { inbound: Inbound::new(role, &config, decompressor), outbound, round_trip: None }
    }

    /// Both halves. The driver then passes the control frames and errors of [`Inbound`] to [`Outbound`].
    pub fn split(self) -> (Inbound, Outbound) {
        (self.inbound, self.outbound)
    }

    /// Consumes bytes from the front of `input` up to the end of the next event; returns their number and the event. Call again with the
    /// remaining bytes until there is no event: then all of `input` was consumed. Payloads are unmasked in place. A message that arrived
    /// in one piece is borrowed from `input`.
    ///
    /// A call inflates all compressed bytes of a message that it is given: 65 kB may become 64 MiB, the default of
    /// [`message_len_max`](crate::Limits::message_len_max). With [`Delivery::Chunks`](crate::Delivery::Chunks) a call inflates one chunk of
    /// at most 32 KiB, and a [`Reader`](crate::Reader) inflates whole messages in steps.
    ///
    /// Once the peer has sent a Close frame or broken a rule, all further input is dropped (RFC 6455 §1.4).
    ///
    /// # Errors
    /// The rule or limit that the peer broke. It is returned once; [`end`](Outbound::end) keeps it. The Close frame that answers it
    /// is queued: continue to transmit, and treat the transport according to [`transport`](Outbound::transport).
    #[inline]
    pub fn handle_input<'a>(
        &'a mut self,
        now: Duration,
        input: &'a mut [u8],
    ) -> Result<(usize, Option<Event<'a>>), Error> {
        if !self.outbound.accepts_input() {
            self.outbound.handle_trailing(input.len());
            return Ok((input.len(), None));
        }
        if let Some((whole, at, len)) = self.inbound.decoder.whole_message(input) {
            self.outbound.handle_activity(now);
            let payload = Payload::Input(&mut input[at..at + len]);
            return Ok((at + len, Some(inbound::message(whole, payload))));
        }
        let (used, arrival) = self.advance(now, input)?;
        Ok((used, self.inbound.event(arrival, input, self.round_trip)))
    }

    /// [`handle_input`](Self::handle_input) for a message that is one frame and is at the front of the input completely, without compression.
    /// `None`: there is none, nothing has happened, and `handle_input` finds out what there is.
    ///
    /// For loops over batches of small messages, in which the rest of `handle_input` costs registers.
    #[inline]
    pub fn handle_whole<'a>(&mut self, now: Duration, input: &'a mut [u8]) -> Option<(usize, Event<'a>)> {
        if !self.outbound.accepts_input() {
            return None;
        }
        let (whole, at, len) = self.inbound.decoder.whole_message(input)?;
        self.outbound.handle_activity(now);
        Some((at + len, inbound::message(whole, Payload::Input(&mut input[at..at + len]))))
    }

    /// Space for the next bytes of a large message, in the buffer in which it is assembled. `None` outside of one: then read into a buffer
    /// of your own and pass it to [`handle_input`](Self::handle_input).
    ///
    /// The space is at most 256 KiB, and not longer than the part of the message that has arrived; a read may be shorter. From memory,
    /// reads of 16 KiB are fastest, because their bytes are still in the first-level cache when they are unmasked; from a socket, longer
    /// reads save system calls.
    ///
    /// ```
    /// # use std::{io::Read, time::Duration};
    /// # use wireloom_ws::{Connection, Event};
    /// fn read_large(connection: &mut Connection, now: Duration, mut socket: impl Read) -> std::io::Result<()> {
    ///     while let Some(mut slot) = connection.recv_slot() {
    ///         let len = socket.read(&mut slot)?;
    ///         match slot.filled(now, len) {
    ///             Ok(Some(Event::Binary(message))) => println!("{} bytes", message.len()),
    ///             Ok(_) => {}
    ///             Err(error) => println!("{error}"),
    ///         }
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub fn recv_slot(&mut self) -> Option<RecvSlot<'_>> {
        if !self.outbound.accepts_input() || self.inbound.slot().is_none() {
            return None;
        }
        Some(RecvSlot { connection: self })
    }

    /// Frees the memory that an idle connection does not need: empty buffers, and compression state that no later message refers to.
    pub fn release_buffers(&mut self) {
        self.inbound.release_buffers();
        self.outbound.release_buffers();
    }

    /// Memory in use, in bytes: messages that are being assembled, and the state of compression. The send queue is
    /// [`queued_len`](Outbound::queued_len).
    pub fn memory_len(&self) -> usize {
        self.inbound.memory_len() + self.outbound.memory_len()
    }

    /// The general path. It returns the position of an event instead of the event, which would be passed through memory on the fast path
    /// too.
    #[inline(never)]
    fn advance(&mut self, now: Duration, input: &mut [u8]) -> Result<(usize, Arrival), Error> {
        if !input.is_empty() {
            self.outbound.handle_activity(now);
        }
        match self.inbound.advance(input, self.inbound.delivery(), usize::MAX) {
            Ok((used, arrival)) => {
                if let Arrival::Control { .. } = arrival
                    && let Some(mut event) = self.inbound.event(arrival, input, None)
                {
                    self.outbound.handle_event(now, &mut event);
                    if let Event::Pong(pong) = event {
                        self.round_trip = pong.round_trip;
                    }
                }
                Ok((used, arrival))
            }
            Err(error) => {
                self.outbound.handle_error(now, error);
                Err(error)
            }
        }
    }
}

/// Space at the end of a large message; see [`Connection::recv_slot`].
///
/// Read into it through `DerefMut`, then pass the number of bytes to [`filled`](Self::filled). Other bytes are not part of the
/// message.
pub struct RecvSlot<'a> {
    connection: &'a mut Connection,
}

impl<'a> RecvSlot<'a> {
    /// `len` bytes were read into the front of the slot.
    ///
    /// # Errors
    /// As for [`Connection::handle_input`].
    ///
    /// # Panics
    /// When `len` is more than the slot holds.
    pub fn filled(self, now: Duration, len: usize) -> Result<Option<Event<'a>>, Error> {
        let Connection { inbound, outbound, .. } = self.connection;
        outbound.handle_activity(now);
        match inbound.slot_filled(len) {
            Ok(arrival) => Ok(inbound.event(arrival, &mut [], None)),
            Err(error) => {
                outbound.handle_error(now, error);
                Err(error)
            }
        }
    }
}

impl Deref for RecvSlot<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.connection.inbound.slot_bytes()
    }
}

impl DerefMut for RecvSlot<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.connection.inbound.slot().unwrap_or_default()
    }
}

impl Deref for Connection {
    type Target = Outbound;

    #[inline]
    fn deref(&self) -> &Outbound {
        &self.outbound
    }
}

impl DerefMut for Connection {
    #[inline]
    fn deref_mut(&mut self) -> &mut Outbound {
        &mut self.outbound
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.outbound.fmt(f)
    }
}
