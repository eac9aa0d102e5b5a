//! The half of a connection that takes bytes in and finds messages and control frames in them. It answers nothing, and
//! needs no lock of whoever sends meanwhile: what concerns the other half is told to it, as [`Outbound`](crate::Outbound)
//! says.

use crate::close::CloseFrame;
use crate::config::{Config, Delivery};
use crate::decoder::Decoder;
use crate::deflate::Decompressor;
use crate::error::Error;
use crate::event::{Binary, Chunk, Event, Payload, Pong, Text};
use crate::frame::Header;
use crate::limits::Limits;
use crate::opcode::{Kind, Opcode};
use crate::receive::{Arrival, Receiver};
use crate::role::Role;
use alloc::vec::Vec;
use bytes::Bytes;
use core::fmt;
use core::time::Duration;

/// What takes bytes in, of a [`Connection`](crate::Connection) that was [split](crate::Connection::split).
pub struct Inbound {
    receiver: Receiver,
    /// A Close frame or a fault: what follows it is dropped (RFC 6455 §1.4).
    over: bool,
}

/// What an [`Inbound`] with nothing under way amounts to: enough to make it again, in a tenth of its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleInbound {
    sender: Role,
    delivery: Delivery,
    frame_len_max: u64,
    message_len_max: u64,
    fragments_spare: u64,
}

impl IdleInbound {
    pub(crate) fn new(decoder: &Decoder, delivery: Delivery) -> Option<Self> {
        let (sender, frame_len_max, message_len_max, fragments_spare) = decoder.idle()?;
        Some(Self { sender, delivery, frame_len_max, message_len_max, fragments_spare })
    }
}

impl From<IdleInbound> for Inbound {
    fn from(idle: IdleInbound) -> Self {
        let IdleInbound { sender, delivery, frame_len_max, message_len_max, fragments_spare } = idle;
        let limits = Limits { frame_len_max, message_len_max, fragments_spare, ..Limits::default() };
        let decoder = Decoder::new(sender, false, &limits);
        Self { receiver: Receiver::new(decoder, delivery, None, &limits), over: false }
    }
}

impl Inbound {
    /// What is to be known to make this again later; `None` while something is under way, after the end, and where there is
    /// more to know (compression, frames that are watched).
    pub fn idle(&self) -> Option<IdleInbound> {
        if self.over { None } else { self.receiver.idle() }
    }

    pub(crate) fn new(role: Role, config: &Config, decompressor: Option<Decompressor>) -> Self {
        let peer = match role {
            Role::Client => Role::Server,
            Role::Server => Role::Client,
        };
        let decoder = Decoder::new(peer, decompressor.is_some(), &config.limits);
        let receiver = Receiver::new(decoder, config.delivery, decompressor, &config.limits);
        Self { receiver, over: false }
    }

    /// Notes the headers of frames that arrive from now on, for [`frames_seen`](Self::frames_seen).
    pub fn watch_frames(&mut self) {
        self.receiver.decoder.watch();
    }

    /// The headers that were noted since this was asked last.
    pub fn frames_seen(&mut self) -> Vec<Header> {
        self.receiver.decoder.take_seen()
    }

    /// Takes bytes from the front of `input`, as [`Connection::handle_input`](crate::Connection::handle_input) does. Control
    /// frames are to be told to [`Outbound::handle_event`](crate::Outbound::handle_event), which also fills in a pong's round
    /// trip.
    ///
    /// # Errors
    /// The rule or limit that the peer broke; tell [`Outbound::handle_error`](crate::Outbound::handle_error).
    #[inline]
    pub fn handle_input<'a>(&'a mut self, input: &'a mut [u8]) -> Result<(usize, Option<Event<'a>>), Error> {
        if let Some((kind, at, len)) = self.whole_message(input) {
            return Ok((at + len, Some(message(kind, &mut input[at..at + len]))));
        }
        let (used, arrival) = self.advance(input)?;
        Ok((used, self.event(arrival, input, None)))
    }

    /// The short way of [`handle_input`](Self::handle_input): an uncompressed message in one frame that is here to its last
    /// byte, as its kind, offset and length; it is unmasked, and validated if it is text. `None` means nothing but that
    /// `handle_input` is to be asked.
    #[inline(always)]
    pub fn whole_message(&mut self, input: &mut [u8]) -> Option<(Kind, usize, usize)> {
        self.receiver.whole_message(input)
    }

    /// Bytes that the data frame under way still lacks.
    #[inline]
    pub fn payload_remaining(&self) -> u64 {
        self.receiver.decoder.payload_remaining()
    }

    /// Where to read the next bytes of a large message to; see
    /// [`Connection::recv_slot`](crate::Connection::recv_slot).
    pub fn recv_slot(&mut self) -> Option<&mut [u8]> {
        if self.over { None } else { self.receiver.slot() }
    }

    /// The first `len` bytes of [`recv_slot`](Self::recv_slot) have been read into.
    ///
    /// # Errors
    /// As for [`handle_input`](Self::handle_input).
    ///
    /// # Panics
    /// When `len` is more than the slot held.
    pub fn received(&mut self, len: usize) -> Result<Option<Event<'_>>, Error> {
        if self.over {
            return Ok(None);
        }
        let arrival = self.slot_filled(len)?;
        Ok(self.event(arrival, &mut [], None))
    }

    /// The message that came in pieces or compressed and was lent last: until more is taken in, it stays where it is.
    #[inline]
    pub fn assembled(&self) -> &[u8] {
        self.receiver.assembly.as_slice()
    }

    /// That message, moved out with its memory.
    pub fn take_assembled(&mut self) -> Bytes {
        self.receiver.assembly.take()
    }

    /// Whether [`handle_input`](Self::handle_input) has an event without further bytes: what is lent as it inflates.
    pub fn has_more(&self) -> bool {
        !self.over && self.receiver.has_more()
    }

    /// Whether there is memory in which messages are assembled.
    pub fn has_memory(&self) -> bool {
        !self.receiver.assembly.is_unused()
    }

    /// The memory in which messages are assembled, if no message is under way: to be lent to another connection while this
    /// one has nothing to assemble.
    pub fn take_memory(&mut self) -> Vec<u8> {
        self.receiver.take_memory()
    }

    /// Memory to assemble messages in, if there is none.
    pub fn give_memory(&mut self, memory: Vec<u8>) {
        self.receiver.give_memory(memory);
    }

    /// Gives back the memory that an idle connection can do without.
    pub fn release_buffers(&mut self) {
        self.receiver.release();
    }

    /// [`handle_input`](Self::handle_input) by place, without its short way. Close frames have been judged.
    pub(crate) fn advance(&mut self, input: &mut [u8]) -> Result<(usize, Arrival), Error> {
        if self.over {
            return Ok((input.len(), Arrival::Nothing));
        }
        let found = self.receiver.advance(input).and_then(|(used, arrival)| {
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

    pub(crate) fn slot_filled(&mut self, len: usize) -> Result<Arrival, Error> {
        let found = self.receiver.slot_filled(len);
        if found.is_err() {
            self.close();
        }
        found
    }

    /// What follows is dropped.
    fn close(&mut self) {
        self.over = true;
        self.receiver.decoder.stop();
    }

    /// A control frame's payload.
    #[inline]
    pub(crate) fn control<'a>(&'a self, at: Option<usize>, len: usize, input: &'a [u8]) -> &'a [u8] {
        match at {
            Some(at) => &input[at..at + len],
            None => self.receiver.decoder.control(),
        }
    }

    /// What has arrived, with what it borrows.
    #[inline(always)]
    pub(crate) fn event<'a>(
        &'a mut self,
        arrival: Arrival,
        input: &'a mut [u8],
        round_trip: Option<Duration>,
    ) -> Option<Event<'a>> {
        Some(match arrival {
            Arrival::Nothing => return None,
            Arrival::Message { kind, at, len } => message(kind, &mut input[at..at + len]),
            Arrival::Assembled { kind: Kind::Text } => {
                Event::Text(Text::new(Payload::Assembled(&mut self.receiver.assembly)))
            }
            Arrival::Assembled { kind: Kind::Binary } => {
                Event::Binary(Binary::new(Payload::Assembled(&mut self.receiver.assembly)))
            }
            Arrival::AssembledChunk { kind, first, fin } => {
                Event::Chunk(Chunk { kind, first, fin, data: self.receiver.assembly.as_slice() })
            }
            Arrival::Chunk { kind, first, fin, at, len } => {
                Event::Chunk(Chunk { kind, first, fin, data: &input[at..at + len] })
            }
            Arrival::Control { opcode, at, len } => {
                let payload = self.control(at, len, input);
                match opcode {
                    Opcode::Ping => Event::Ping(payload),
                    Opcode::Pong => Event::Pong(Pong { payload, round_trip }),
                    // It was judged when it arrived.
                    _ => Event::Close(CloseFrame::decode(payload).ok()?),
                }
            }
        })
    }
}

/// The event of a message that lies in the caller's buffer, unmasked and, if text, validated.
#[inline(always)]
pub(crate) fn message(kind: Kind, data: &mut [u8]) -> Event<'_> {
    match kind {
        Kind::Text => Event::Text(Text::new(Payload::Input(data))),
        Kind::Binary => Event::Binary(Binary::new(Payload::Input(data))),
    }
}

impl fmt::Debug for Inbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbound").field("over", &self.over).finish_non_exhaustive()
    }
}
