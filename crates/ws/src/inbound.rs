//! The receiving half of a connection: bytes in, messages and control frames out. It shares no state with the sending half: the
//! driver passes control frames and errors to [`Outbound`](crate::Outbound).

use crate::close::CloseFrame;
use crate::config::{Config, Delivery};
use crate::decoder::Decoder;
use crate::deflate::{Decompressor, DeflatePool};
use crate::error::Error;
use crate::event::{Binary, Chunk, Event, Payload, Pong, Text, Whole};
use crate::frame::Header;
use crate::limits::Limits;
use crate::opcode::Opcode;
use crate::owned::OwnedMessage;
use crate::receive::{Arrival, Part, Place, Receiver};
use crate::role::Role;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

/// The receiving half of a [`Connection`](crate::Connection) that was [split](crate::Connection::split).
///
/// It borrows the buffer of the driver for each call. A driver that borrows a message for longer uses a [`Reader`](crate::Reader),
/// which owns the buffer.
pub struct Inbound {
    receiver: Receiver,
    delivery: Delivery,
    /// After a Close frame or an error: further input is dropped (RFC 6455 §1.4).
    is_closed: bool,
}

/// The state of an idle [`Inbound`], from which it can be restored. It is small: a driver of many connections can drop the halves that
/// receive, and their buffers, while nothing arrives.
///
/// ```
/// use wireloom_ws::{Config, IdleInbound, Inbound, Role};
///
/// let idle = IdleInbound::new(Role::Server, &Config::default());
/// let inbound = Inbound::from(idle);
/// assert_eq!(inbound.idle(), Some(idle));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleInbound {
    sender: Role,
    delivery: Delivery,
    frame_len_max: u64,
    message_len_max: u64,
    fragments_spare: u64,
}

impl IdleInbound {
    /// The state of an uncompressed connection of this role before its first byte.
    pub fn new(role: Role, config: &Config) -> Self {
        let Limits { frame_len_max, message_len_max, fragments_spare, .. } = config.limits;
        Self {
            sender: role.peer(),
            delivery: config.delivery,
            frame_len_max,
            message_len_max,
            fragments_spare,
        }
    }
}

impl From<IdleInbound> for Inbound {
    fn from(idle: IdleInbound) -> Self {
        let IdleInbound { sender, delivery, frame_len_max, message_len_max, fragments_spare } = idle;
        let limits = Limits { frame_len_max, message_len_max, fragments_spare, ..Limits::default() };
        let decoder = Decoder::new(sender, false, &limits);
        Self { receiver: Receiver::new(decoder, None, &limits), delivery, is_closed: false }
    }
}

impl Inbound {
    pub(crate) fn new(role: Role, config: &Config, decompressor: Option<Decompressor>) -> Self {
        let decoder = Decoder::new(role.peer(), decompressor.is_some(), &config.limits);
        let receiver = Receiver::new(decoder, decompressor, &config.limits);
        Self { receiver, delivery: config.delivery, is_closed: false }
    }

    /// The state from which this can be restored. `None` within a frame or message, after the end, with compression, and while
    /// headers are logged.
    pub fn idle(&self) -> Option<IdleInbound> {
        // The decoder is not idle after the end, and not with compression.
        let (sender, frame_len_max, message_len_max, fragments_spare) = self.receiver.decoder().idle()?;
        Some(IdleInbound { sender, delivery: self.delivery, frame_len_max, message_len_max, fragments_spare })
    }

    /// Logs the headers of frames that arrive from now on, for [`take_headers`](Self::take_headers).
    pub fn log_headers(&mut self) {
        self.receiver.decoder_mut().log_headers();
    }

    /// The headers that were logged since the last call.
    pub fn take_headers(&mut self) -> Vec<Header> {
        self.receiver.decoder_mut().take_headers()
    }

    /// Consumes bytes from the front of `input`, as [`Connection::handle_input`](crate::Connection::handle_input) does. Pass control
    /// frames to [`Outbound::handle_event`](crate::Outbound::handle_event), which also sets the round-trip time of a pong.
    ///
    /// # Errors
    /// The rule or limit that the peer broke; pass it to [`Outbound::handle_error`](crate::Outbound::handle_error).
    #[inline]
    pub fn handle_input<'a>(&'a mut self, input: &'a mut [u8]) -> Result<(usize, Option<Event<'a>>), Error> {
        if let Some((whole, at, len)) = self.whole_message(input) {
            return Ok((at + len, Some(message(whole, Payload::Input(&mut input[at..at + len])))));
        }
        let (used, arrival) = self.advance(input, self.delivery)?;
        Ok((used, self.event(arrival, input, None)))
    }

    /// Whether [`handle_input`](Self::handle_input) has an event without further bytes: the next chunk of a compressed
    /// message.
    pub fn has_more(&self) -> bool {
        self.has_more_as(self.delivery)
    }

    /// Frees the memory that an idle connection does not need; the next message allocates it again.
    pub fn release_buffers(&mut self) {
        self.receiver.release();
    }

    /// Memory in use, in bytes: messages that are being assembled, and the state of compression.
    pub fn memory_len(&self) -> usize {
        self.receiver.memory_len()
    }

    /// Bounds the bytes that the message which is arriving, or the next one, inflates to from now on;
    /// [`Limits::message_len_max`](crate::Limits::message_len_max) applies to the whole message as well. A driver that is short of memory
    /// lowers it before each [`handle_input`](Self::handle_input), which may inflate a whole message.
    ///
    /// Returns the bound on the length of the message: `max` of
    /// [`InflatedTooLarge`](crate::error::LimitExceeded::InflatedTooLarge), unless `message_len_max` is less.
    pub fn set_inflated_max(&mut self, max: usize) -> usize {
        self.receiver.set_inflated_max(max)
    }

    /// Whether permessage-deflate was negotiated.
    #[inline]
    pub fn is_compressed(&self) -> bool {
        self.receiver.is_compressed()
    }

    /// Takes an inflating codec from the pool, for the messages of the next read; see [`DeflatePool`].
    pub fn take_codec(&mut self, pool: &mut DeflatePool) {
        self.receiver.take_codec(pool);
    }

    /// Returns the codec to the pool, except within a compressed message.
    pub fn return_codec(&mut self, pool: &mut DeflatePool) {
        self.receiver.return_codec(pool);
    }

    /// Whether messages are delivered whole or in chunks.
    #[inline]
    pub fn delivery(&self) -> Delivery {
        self.delivery
    }

    #[inline]
    pub(crate) fn receiver(&self) -> &Receiver {
        &self.receiver
    }

    #[inline]
    pub(crate) fn receiver_mut(&mut self) -> &mut Receiver {
        &mut self.receiver
    }

    pub(crate) fn has_more_as(&self, delivery: Delivery) -> bool {
        !self.is_closed && self.receiver.has_more(delivery)
    }

    /// The fast path of [`handle_input`](Self::handle_input): an uncompressed message in one frame that is buffered to its last
    /// byte, with its offset and length.
    #[inline(always)]
    pub(crate) fn whole_message(&mut self, input: &mut [u8]) -> Option<(Whole, usize, usize)> {
        self.receiver.whole_message(input)
    }

    /// [`Inbound::whole_message`], owned, with the length of its frame.
    #[inline(always)]
    pub(crate) fn whole_owned(&mut self, input: &mut [u8]) -> Option<(OwnedMessage, usize)> {
        self.receiver.whole_owned(input)
    }

    /// [`handle_input`](Self::handle_input) without its fast path. It returns the place of the payload; Close frames are validated.
    pub(crate) fn advance(
        &mut self,
        input: &mut [u8],
        delivery: Delivery,
    ) -> Result<(usize, Arrival), Error> {
        if self.is_closed {
            return Ok((input.len(), Arrival::Nothing));
        }
        let found = self.receiver.advance(input, delivery).and_then(|(used, arrival)| {
            if let Arrival::Control { opcode: Opcode::Close, at, len } = arrival {
                CloseFrame::decode(self.control(at, len, input))?;
                self.close();
            }
            Ok((used, arrival))
        });
        if found.is_err() {
            self.close();
        }
        found
    }

    /// Room for the next bytes of a large message.
    pub(crate) fn slot(&mut self) -> Option<&mut [u8]> {
        if self.is_closed { None } else { self.receiver.slot() }
    }

    /// The bytes of the last [`slot`](Self::slot); empty without one.
    pub(crate) fn slot_bytes(&self) -> &[u8] {
        self.receiver.assembly().slot_bytes(self.receiver.decoder().payload_remaining())
    }

    /// `len` bytes were read into [`slot`](Self::slot).
    pub(crate) fn slot_filled(&mut self, len: usize) -> Result<Arrival, Error> {
        let found = self.receiver.slot_filled(len);
        if found.is_err() {
            self.close();
        }
        found
    }

    /// Drops all further input.
    fn close(&mut self) {
        self.is_closed = true;
        self.receiver.decoder_mut().disable_fast_path();
    }

    /// Drops all further input and a message of which a part has arrived, and frees all memory.
    pub(crate) fn free(&mut self) {
        self.close();
        self.receiver.free();
    }

    /// A control frame's payload.
    #[inline]
    pub(crate) fn control<'a>(&'a self, at: Option<usize>, len: usize, input: &'a [u8]) -> &'a [u8] {
        match at {
            Some(at) => &input[at..at + len],
            None => self.receiver.decoder().control(),
        }
    }

    /// The event for an arrival, with its payload.
    #[inline(always)]
    pub(crate) fn event<'a>(
        &'a mut self,
        arrival: Arrival,
        input: &'a mut [u8],
        round_trip: Option<Duration>,
    ) -> Option<Event<'a>> {
        Some(match arrival {
            Arrival::Nothing => return None,
            Arrival::Message(Part::Whole(whole), place) => message(
                whole,
                match place {
                    Place::Input { at, len } => Payload::Input(&mut input[at..at + len]),
                    Place::Assembly => Payload::Assembled(self.receiver.assembly_mut()),
                },
            ),
            Arrival::Message(Part::Chunk { kind, first, fin }, place) => {
                let data = match place {
                    Place::Input { at, len } => &input[at..at + len],
                    Place::Assembly => self.receiver.assembly().as_slice(),
                };
                Event::Chunk(Chunk { kind, first, fin, data })
            }
            Arrival::Control { opcode, at, len } => {
                let payload = self.control(at, len, input);
                match opcode {
                    Opcode::Ping => Event::Ping(payload),
                    Opcode::Pong => Event::Pong(Pong { payload, round_trip }),
                    // `advance` has validated it.
                    _ => Event::Close(CloseFrame::decode(payload).ok()?),
                }
            }
        })
    }
}

/// The event of a complete message.
#[inline(always)]
pub(crate) fn message(whole: Whole, payload: Payload<'_>) -> Event<'_> {
    match whole {
        Whole::Text(valid) => Event::Text(Text::new(payload, valid)),
        Whole::Binary => Event::Binary(Binary::new(payload)),
    }
}

impl fmt::Debug for Inbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbound").field("is_closed", &self.is_closed).finish_non_exhaustive()
    }
}
