//! The receiving half of a connection: bytes in, messages and control frames out, messages assembled or in chunks. It shares no state
//! with the sending half: the driver passes control frames and errors to [`Outbound`](crate::Outbound).
//!
//! The caller chooses between messages and chunks with each call, also within one message:
//!
//! ```text
//!             Delivery::Messages                       Delivery::Chunks
//! frames ---> collected in the assembly --complete-->  |  in place, as they arrive -->
//!             collected, then a call wants chunks:     |  the collected bytes are the next chunk
//!             a chunk was delivered before:            |  the remaining message is its last chunk
//! ```

use crate::assembly::{Assembly, DIRECT_LEN_MIN};
use crate::close::CloseFrame;
use crate::config::{Config, Delivery};
use crate::decoder::{Decoder, Item};
use crate::deflate::{Decompressor, DeflatePool};
use crate::error::Error;
use crate::event::{Binary, Chunk, Event, Payload, Pong, Text, Whole};
use crate::frame::Header;
use crate::inflate::{Inflate, Inflated};
use crate::limits::Limits;
use crate::opcode::{Kind, Opcode};
use crate::role::Role;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

/// Reads go directly to the assembly while at least this many bytes of the frame are missing.
const SLOT_LEN_MIN: u64 = 4 << 10;

/// The receiving half of a [`Connection`](crate::Connection) that was [split](crate::Connection::split).
///
/// It borrows the buffer of the driver for each call. A driver that borrows a message for longer uses a [`Reader`](crate::Reader),
/// which owns the buffer.
pub struct Inbound {
    pub(crate) decoder: Decoder,
    /// Where messages that do not arrive whole are collected or inflated.
    pub(crate) assembly: Assembly,
    /// The kind of the incomplete message of which the assembly holds bytes. `None` if it is empty, or its bytes were delivered: the next
    /// message overwrites them.
    collected: Option<Kind>,
    /// A chunk of the current message has been delivered.
    in_chunks: bool,
    /// Set when permessage-deflate was negotiated.
    inflate: Option<Box<Inflate>>,
    delivery: Delivery,
}

/// The result of a call, by its place in the input or the assembly.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arrival {
    /// All input was consumed, and nothing is complete.
    Nothing,
    /// A part of a compressed message was inflated. The next call continues.
    Inflating,
    /// A message, or a chunk of one.
    Message(Part, Place),
    /// A control frame. The payload is in the input at `at`, or in the decoder when that is `None`.
    Control { opcode: Opcode, at: Option<usize>, len: usize },
}

/// Whether a payload is a whole message or a chunk. Only a whole text has the proof of its validity.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    Whole(Whole),
    Chunk { kind: Kind, first: bool, fin: bool },
}

/// Where a payload is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    Input { at: usize, len: usize },
    Assembly,
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
        Self::with_decoder(Decoder::new(sender, false, &limits), None, delivery)
    }
}

impl Inbound {
    pub(crate) fn new(role: Role, config: &Config, decompressor: Option<Decompressor>) -> Self {
        let decoder = Decoder::new(role.peer(), decompressor.is_some(), &config.limits);
        let inflate = decompressor.map(|decompressor| Box::new(Inflate::new(decompressor, &config.limits)));
        Self::with_decoder(decoder, inflate, config.delivery)
    }

    fn with_decoder(decoder: Decoder, inflate: Option<Box<Inflate>>, delivery: Delivery) -> Self {
        Self { decoder, assembly: Assembly::default(), collected: None, in_chunks: false, inflate, delivery }
    }

    /// The state from which this can be restored. `None` within a frame or message, after the end, with compression, and while
    /// headers are logged.
    pub fn idle(&self) -> Option<IdleInbound> {
        // The decoder is not idle after the end, and not with compression.
        let (sender, frame_len_max, message_len_max, fragments_spare) = self.decoder.idle()?;
        Some(IdleInbound { sender, delivery: self.delivery, frame_len_max, message_len_max, fragments_spare })
    }

    /// Logs the headers of frames that arrive from now on, for [`take_headers`](Self::take_headers).
    pub fn log_headers(&mut self) {
        self.decoder.log_headers();
    }

    /// The headers that were logged since the last call.
    pub fn take_headers(&mut self) -> Vec<Header> {
        self.decoder.take_headers()
    }

    /// Consumes bytes from the front of `input`, as [`Connection::handle_input`](crate::Connection::handle_input) does; see there for what
    /// compressed messages cost. Pass control frames to [`Outbound::handle_event`](crate::Outbound::handle_event), which also sets the
    /// round-trip time of a pong.
    ///
    /// # Errors
    /// The rule or limit that the peer broke; pass it to [`Outbound::handle_error`](crate::Outbound::handle_error).
    #[inline]
    pub fn handle_input<'a>(&'a mut self, input: &'a mut [u8]) -> Result<(usize, Option<Event<'a>>), Error> {
        if let Some((whole, at, len)) = self.decoder.whole_message(input) {
            return Ok((at + len, Some(message(whole, Payload::Input(&mut input[at..at + len])))));
        }
        let (used, arrival) = self.advance(input, self.delivery, usize::MAX)?;
        Ok((used, self.event(arrival, input, None)))
    }

    /// Frees the memory that an idle connection does not need; the next message allocates it again.
    pub fn release_buffers(&mut self) {
        drop(self.take_memory());
        if let Some(inflate) = &mut self.inflate {
            inflate.shrink();
        }
    }

    /// Memory in use, in bytes: messages that are being assembled, and the state of compression.
    #[inline]
    pub fn memory_len(&self) -> usize {
        self.assembly.capacity() + self.inflate.as_ref().map_or(0, |inflate| inflate.memory_len())
    }

    /// Bytes of all compressed messages so far, after they were inflated.
    #[inline]
    pub fn inflated_len(&self) -> u64 {
        self.inflate.as_ref().map_or(0, |inflate| inflate.total_len())
    }

    /// Whether permessage-deflate was negotiated.
    #[inline]
    pub fn is_compressed(&self) -> bool {
        self.inflate.is_some()
    }

    /// Takes an inflating codec from the pool, for the messages of the next read; see [`DeflatePool`].
    pub fn take_codec(&mut self, pool: &mut DeflatePool) {
        if let Some(inflate) = &mut self.inflate {
            inflate.take_codec(pool);
        }
    }

    /// Returns the codec to the pool, except within a compressed message.
    pub fn return_codec(&mut self, pool: &mut DeflatePool) {
        if let Some(inflate) = &mut self.inflate {
            inflate.return_codec(pool);
        }
    }

    /// Whether messages are delivered whole or in chunks.
    #[inline]
    pub fn delivery(&self) -> Delivery {
        self.delivery
    }

    /// Whether there is an arrival without further bytes.
    pub(crate) fn has_more_as(&self, delivery: Delivery) -> bool {
        !self.decoder.is_closed()
            && (self.has_pending() || delivery == Delivery::Chunks && self.has_collected())
    }

    /// Whether a part of a message was collected, and not delivered.
    #[inline]
    pub(crate) fn has_collected(&self) -> bool {
        self.collected.is_some() && self.assembly.len() > 0
    }

    /// [`handle_input`](Self::handle_input) without its fast path. It returns the place of the payload; Close frames are validated. A
    /// message that is collected is inflated in steps of `step_len` bytes.
    pub(crate) fn advance(
        &mut self,
        input: &mut [u8],
        delivery: Delivery,
        step_len: usize,
    ) -> Result<(usize, Arrival), Error> {
        let found = self.next_arrival(input, delivery, step_len).and_then(|(used, arrival)| {
            if let Arrival::Control { opcode: Opcode::Close, at, len } = arrival {
                CloseFrame::decode(self.control(at, len, input))?;
                self.decoder.close();
            }
            Ok((used, arrival))
        });
        if found.is_err() {
            self.decoder.close();
        }
        found
    }

    /// Consumes bytes from the front of `input` up to the next arrival, or all of them.
    fn next_arrival(
        &mut self,
        input: &mut [u8],
        delivery: Delivery,
        step_len: usize,
    ) -> Result<(usize, Arrival), Error> {
        if self.decoder.is_closed() {
            return Ok((input.len(), Arrival::Nothing));
        }
        if delivery == Delivery::Chunks
            && let Some(arrival) = self.deliver_collected()
        {
            return Ok((0, arrival));
        }
        let inflated_before = self.inflated_len();
        if let Some(arrival) = self.inflate_pending(delivery, step_len)? {
            return Ok((0, arrival));
        }
        let mut left = step_len.saturating_sub((self.inflated_len() - inflated_before) as usize).max(1);
        let mut used = 0;
        loop {
            let begin = used;
            let (taken, item) = self.decoder.decode(&mut input[begin..])?;
            used += taken;
            if let Some(arrival) = self.handle_item(input, begin, item, delivery, left)? {
                return Ok((used, arrival));
            }
            if used == input.len() {
                return Ok((used, Arrival::Nothing));
            }
            // Many fragments inflate to as much as one.
            if let Some(inflate) = &self.inflate {
                left = step_len.saturating_sub((inflate.total_len() - inflated_before) as usize);
                if left == 0 {
                    return Ok((used, Arrival::Inflating));
                }
            }
        }
    }

    /// Collects or delivers an item. Its offsets are relative to `begin`.
    fn handle_item(
        &mut self,
        input: &[u8],
        begin: usize,
        item: Item,
        delivery: Delivery,
        step_len: usize,
    ) -> Result<Option<Arrival>, Error> {
        let input = &input[begin..];
        Ok(match (item, delivery) {
            (Item::Nothing, _) => None,
            (Item::Control { opcode, at, len }, _) => {
                Some(Arrival::Control { opcode, at: at.map(|at| begin + at), len })
            }
            (Item::Message { whole, at, len }, _) => {
                Some(Arrival::Message(Part::Whole(whole), Place::Input { at: begin + at, len }))
            }
            (Item::Chunk { kind, end, at, len }, Delivery::Chunks) => {
                let part = self.chunk(kind, end.is_some());
                Some(Arrival::Message(part, Place::Input { at: begin + at, len }))
            }
            (Item::Chunk { kind, end, at, len }, Delivery::Messages) => {
                self.collect(kind);
                self.assembly.push(&input[at..at + len], self.decoder.payload_remaining());
                end.map(|whole| self.complete(whole))
            }
            (Item::Compressed { kind, fin, at, len }, Delivery::Chunks) => {
                if let Some(inflate) = &mut self.inflate {
                    inflate.push(kind, &input[at..at + len], fin);
                }
                self.inflate_pending(delivery, step_len)?
            }
            (Item::Compressed { kind, fin, at, len }, Delivery::Messages) => {
                self.collect(kind);
                let Some(inflate) = &mut self.inflate else { return Ok(None) };
                let inflated =
                    inflate.append(kind, &input[at..at + len], fin, &mut self.assembly, step_len)?;
                self.inflated(inflated)
            }
        })
    }

    /// Clears the assembly if its bytes were delivered.
    #[inline]
    fn collect(&mut self, kind: Kind) {
        if self.collected.is_none() {
            self.assembly.clear();
            self.collected = Some(kind);
        }
    }

    /// The collected message is complete. It is a chunk if the beginning was delivered in chunks.
    fn complete(&mut self, whole: Whole) -> Arrival {
        self.collected = None;
        let part = if self.in_chunks { self.chunk(whole.kind(), true) } else { Part::Whole(whole) };
        Arrival::Message(part, Place::Assembly)
    }

    /// The next chunk of the current message.
    fn chunk(&mut self, kind: Kind, fin: bool) -> Part {
        let first = !core::mem::replace(&mut self.in_chunks, !fin);
        Part::Chunk { kind, first, fin }
    }

    /// The collected bytes of an incomplete message, as a chunk.
    fn deliver_collected(&mut self) -> Option<Arrival> {
        let kind = self.collected.take()?;
        (self.assembly.len() > 0).then(|| Arrival::Message(self.chunk(kind, false), Place::Assembly))
    }

    /// A step of a message that is collected.
    fn inflated(&mut self, inflated: Inflated) -> Option<Arrival> {
        if self.has_pending() {
            self.decoder.skip_fast_path();
            return Some(Arrival::Inflating);
        }
        inflated.end.map(|whole| self.complete(whole))
    }

    fn has_pending(&self) -> bool {
        self.inflate.as_ref().is_some_and(|inflate| inflate.pending().is_some())
    }

    /// Inflates pending bytes: delivers the next chunk, or collects a step of them.
    fn inflate_pending(&mut self, delivery: Delivery, step_len: usize) -> Result<Option<Arrival>, Error> {
        let Some(kind) = self.inflate.as_ref().and_then(|inflate| inflate.pending()) else { return Ok(None) };
        match delivery {
            Delivery::Messages => self.collect(kind),
            Delivery::Chunks => self.collected = None,
        }
        let Self { inflate: Some(inflate), assembly, decoder, .. } = self else { return Ok(None) };
        if delivery == Delivery::Messages {
            let inflated = inflate.append_pending(assembly, step_len)?;
            return Ok(self.inflated(inflated));
        }
        let Inflated { len, end } = inflate.next_chunk(assembly)?;
        if inflate.pending().is_some() {
            decoder.skip_fast_path();
        }
        let part = match end {
            Some(whole) if !self.in_chunks => Part::Whole(whole),
            None if len == 0 => return Ok(None),
            end => self.chunk(kind, end.is_some()),
        };
        Ok(Some(Arrival::Message(part, Place::Assembly)))
    }

    /// Whether many bytes of a message were collected, and many are missing.
    pub(crate) fn has_slot(&self) -> bool {
        self.collected.is_some()
            && self.inflate.is_none()
            && self.decoder.payload_remaining() >= SLOT_LEN_MIN
            && self.assembly.len() >= DIRECT_LEN_MIN
    }

    /// Room for the next bytes of a large message, if it [has a slot](Self::has_slot).
    pub(crate) fn slot(&mut self) -> Option<&mut [u8]> {
        self.has_slot().then(|| self.assembly.slot(self.decoder.payload_remaining()))
    }

    /// The capacity of the assembly once the slot exists.
    pub(crate) fn slot_capacity(&self) -> usize {
        self.assembly.slot_capacity(self.decoder.payload_remaining())
    }

    /// The bytes of the last [`slot`](Self::slot); empty without one.
    pub(crate) fn slot_bytes(&self) -> &[u8] {
        self.assembly.slot_bytes(self.decoder.payload_remaining())
    }

    /// `len` bytes were read into [`slot`](Self::slot).
    ///
    /// # Panics
    /// When the slot is shorter, or there is none.
    pub(crate) fn slot_filled(&mut self, len: usize) -> Result<Arrival, Error> {
        assert!(self.slot().is_some_and(|slot| len <= slot.len()), "more bytes than the slot holds");
        let slot = self.assembly.slot(self.decoder.payload_remaining());
        // The slot ends within the frame, so that one call takes all of it.
        let decoded = self.decoder.decode(&mut slot[..len]);
        if decoded.is_err() {
            self.decoder.close();
        }
        let (_, item) = decoded?;
        self.assembly.filled(len);
        match item {
            Item::Chunk { end: Some(whole), .. } => Ok(self.complete(whole)),
            _ => Ok(Arrival::Nothing),
        }
    }

    /// Takes the buffer of the assembly if it is not needed: when nothing is collected, or when a large buffer holds a few bytes.
    pub(crate) fn take_memory(&mut self) -> Option<Vec<u8>> {
        if self.collected.is_some() {
            return self.assembly.take_excess_memory();
        }
        self.assembly.has_memory().then(|| self.assembly.take_memory())
    }

    /// Drops all further input and a message of which a part has arrived, and frees all memory.
    pub(crate) fn free(&mut self) {
        self.decoder.close();
        self.assembly.release();
        self.collected = None;
        self.inflate = None;
    }

    /// A control frame's payload.
    #[inline]
    fn control<'a>(&'a self, at: Option<usize>, len: usize, input: &'a [u8]) -> &'a [u8] {
        match at {
            Some(at) => &input[at..at + len],
            None => self.decoder.control(),
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
            Arrival::Nothing | Arrival::Inflating => return None,
            Arrival::Message(Part::Whole(whole), place) => message(
                whole,
                match place {
                    Place::Input { at, len } => Payload::Input(&mut input[at..at + len]),
                    Place::Assembly => Payload::Assembled(&mut self.assembly),
                },
            ),
            Arrival::Message(Part::Chunk { kind, first, fin }, place) => {
                let data = match place {
                    Place::Input { at, len } => &input[at..at + len],
                    Place::Assembly => self.assembly.as_slice(),
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
        f.debug_struct("Inbound").field("is_closed", &self.decoder.is_closed()).finish_non_exhaustive()
    }
}
