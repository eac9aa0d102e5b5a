//! The receiving half with its own read buffer, for drivers whose messages are borrowed between reads.
//!
//! ```text
//!              space()                    decode()                         message()
//! transport -> read buffer, or the end -> unmasked, validated in place --> borrowed until the next call that takes
//!              of a large message                                          the reader mutably
//! ```

use crate::assembly::DIRECT_LEN_MIN;
use crate::config::Delivery;
use crate::deflate::DeflatePool;
use crate::error::Error;
use crate::event::{Event, Whole};
use crate::frame::{HEADER_LEN_MAX, Header};
use crate::inbound::{Arrival, IdleInbound, Inbound, Part, Place};
use crate::inflate::{STEP_EXTRA_LEN_MAX, STEP_LEN};
use crate::opcode::Kind;
use crate::owned::OwnedMessage;
use alloc::boxed::Box;
use alloc::vec::Vec;
use bytes::Bytes;
use core::fmt;
use core::ops::Range;

/// The alignment of the first byte in the buffer, if it is long enough: vector kernels and the kernel's copy are fastest there.
const ALIGN: usize = 64;

/// With fewer bytes of a message in the buffer, they are copied out of it: reading behind them would use memory that is not in cache.
const IN_PLACE_LEN_MIN: usize = 16 << 10;

/// Reads that take several messages are at most this long, so that the bytes stay in cache until they are decoded.
const READ_LEN_MAX: usize = 64 << 10;

/// The read for the header of a message that is read directly to its place: the longest header, and the bytes that a slot follows.
const HEADER_READ_LEN: usize = HEADER_LEN_MAX + DIRECT_LEN_MIN;

/// An [`Inbound`] and the buffer that it reads from.
///
/// The last message remains in place and can be borrowed repeatedly until the next one is decoded or bytes are read.
///
/// ```
/// use std::time::Duration;
/// use wireloom_ws::{Config, Connection, Reader, Step};
///
/// let (inbound, _outbound) = Connection::server(Config::default(), None, Duration::ZERO).split();
/// let mut reader = Reader::new(inbound);
/// reader.set_buffer(vec![0; 4096].into());
///
/// // RFC 6455 §5.7: a single-frame masked text message, "Hello".
/// let wire = [0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
/// let mut space = reader.space();
/// space.bytes()[..wire.len()].copy_from_slice(&wire);
/// space.filled(wire.len())?;
///
/// assert!(matches!(reader.decode()?, Step::Message));
/// assert_eq!(reader.message().text(), Some("Hello"));
/// assert!(matches!(reader.decode()?, Step::NeedsInput));
/// # Ok::<(), wireloom_ws::Error>(())
/// ```
pub struct Reader {
    inbound: Inbound,
    buffer: Buffer,
    /// Kind and part of the last message.
    part: Part,
    /// The place of the last message: in the buffer, before `buffer.start`, or in the assembly.
    place: Place,
    /// The last read was to end with a message, or a few bytes behind it.
    ends_with_message: bool,
}

/// `start <= end <= bytes.len()`.
#[derive(Default)]
struct Buffer {
    bytes: Box<[u8]>,
    /// The bytes from `start` to `end` are not decoded yet.
    start: usize,
    end: usize,
}

impl Buffer {
    /// Moves to the front of the buffer if all input has been decoded, or all but a few bytes.
    fn rewind(&mut self) {
        let len = self.end - self.start;
        if len > ALIGN {
            return;
        }
        let base = self.bytes.as_ptr().addr().wrapping_neg() % ALIGN;
        if len == 0 {
            self.start = if base < self.bytes.len() { base } else { 0 };
            self.end = self.start;
        } else if self.start > base + ALIGN {
            // The read behind them begins on a cache line.
            let start = base + ALIGN - len;
            self.bytes.copy_within(self.start..self.end, start);
            (self.start, self.end) = (start, base + ALIGN);
        }
    }
}

const NO_MESSAGE: (Part, Place) = (Part::Whole(Whole::Binary), Place::Input { at: 0, len: 0 });

/// The result of [`Reader::decode`].
#[derive(Debug)]
pub enum Step<'a> {
    /// A message or a chunk: see [`Reader::message`].
    Message,
    /// A control frame; pass it to [`Outbound::handle_event`](crate::Outbound::handle_event).
    Control(Event<'a>),
    /// All input was decoded: read into [`Reader::space`].
    NeedsInput,
    /// 256 KiB of a compressed message were inflated, and it has not ended: call again. The driver decides what runs before that, so that
    /// one message, which may inflate to [`message_len_max`](crate::Limits::message_len_max) bytes, does not keep a thread for long.
    Inflating,
}

/// A message or a chunk of one, borrowed from a [`Reader`].
#[derive(Clone, Copy)]
pub struct Received<'a> {
    part: Part,
    payload: &'a [u8],
}

impl<'a> Received<'a> {
    /// Text or binary.
    #[inline]
    pub fn kind(&self) -> Kind {
        match self.part {
            Part::Whole(whole) => whole.kind(),
            Part::Chunk { kind, .. } => kind,
        }
    }

    /// Whether this is a complete message.
    #[inline]
    pub fn is_whole(&self) -> bool {
        matches!(self.part, Part::Whole(_))
    }

    /// Whether the message ends here.
    #[inline]
    pub fn is_last(&self) -> bool {
        matches!(self.part, Part::Whole(_) | Part::Chunk { fin: true, .. })
    }

    /// The text; `None` for a binary message, and for a chunk of text that begins or ends within a code point.
    #[inline(always)]
    pub fn text(&self) -> Option<&'a str> {
        match self.part {
            Part::Whole(Whole::Text(valid)) => Some(valid.text(self.payload)),
            Part::Whole(Whole::Binary) | Part::Chunk { kind: Kind::Binary, .. } => None,
            Part::Chunk { kind: Kind::Text, .. } => chunk_text(self.payload),
        }
    }

    /// The payload, of text too.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// An owned copy. A chunk of text that begins or ends within a code point becomes binary.
    pub fn to_owned(&self) -> OwnedMessage {
        owned(self.part, Bytes::copy_from_slice(self.payload))
    }
}

impl fmt::Debug for Received<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some(text) => f.debug_tuple("Text").field(&text).finish(),
            None => f.debug_tuple("Binary").field(&self.payload).finish(),
        }
    }
}

#[cold]
#[inline(never)]
fn chunk_text(chunk: &[u8]) -> Option<&str> {
    crate::utf8::text(chunk).ok()
}

#[inline(always)]
fn owned(part: Part, data: Bytes) -> OwnedMessage {
    match part {
        Part::Whole(whole) => whole.with_payload(data),
        Part::Chunk { kind, .. } => OwnedMessage::from_chunk(kind, data),
    }
}

/// The buffer of an owned message. It stays here until the message is dropped, so that nothing can change text that was validated.
struct RecycledBuffer<F: Fn(Vec<u8>)> {
    buffer: Vec<u8>,
    message: Range<usize>,
    recycle: F,
}

impl<F: Fn(Vec<u8>)> AsRef<[u8]> for RecycledBuffer<F> {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[self.message.clone()]
    }
}

impl<F: Fn(Vec<u8>)> Drop for RecycledBuffer<F> {
    fn drop(&mut self) {
        (self.recycle)(core::mem::take(&mut self.buffer));
    }
}

/// Space for the next read: read into the front of [`bytes`](Self::bytes), and pass the length to [`filled`](Self::filled).
pub struct Space<'a> {
    reader: &'a mut Reader,
    /// The space is the end of a large message that is being assembled.
    is_direct: bool,
}

impl Space<'_> {
    /// The space.
    pub fn bytes(&mut self) -> &mut [u8] {
        if self.is_direct {
            // `Reader::space` has checked that there is a slot, and nothing was decoded since.
            return self.reader.inbound.slot().unwrap_or_default();
        }
        &mut self.reader.buffer.bytes[self.reader.buffer.end..]
    }

    /// The part of the [space](Self::bytes) to read into if messages are `message_len` bytes long, in one frame each.
    ///
    /// It ends where a message does, and with a few bytes more, which are moved to the front of the buffer before the next read. So all
    /// messages are read to the same memory, which stays in cache, and none has to be copied because it reaches the end of the buffer. Of a
    /// message longer than `in_place_max`, the part has the header and as many bytes as a large message begins with, so that the others are
    /// read directly behind these, and before them the last bytes of the current message. Short messages and compressed ones are read as they
    /// come.
    #[inline]
    pub fn bytes_for(&mut self, message_len: usize, in_place_max: usize) -> &mut [u8] {
        self.reader.ends_with_message = false;
        if message_len < IN_PLACE_LEN_MIN || self.is_direct {
            self.bytes()
        } else {
            self.part_for(message_len, in_place_max)
        }
    }

    fn part_for(&mut self, message_len: usize, in_place_max: usize) -> &mut [u8] {
        let len_max = if self.reader.inbound.is_compressed() {
            usize::MAX
        } else if message_len <= in_place_max {
            self.reader.ends_with_message = true;
            self.reader.whole_messages_len(message_len)
        } else {
            self.reader.header_read_len()
        };
        let bytes = self.bytes();
        let len = bytes.len().min(len_max);
        &mut bytes[..len]
    }

    /// `len` bytes were read. Returns true if they completed a message; otherwise call [`Reader::decode`].
    ///
    /// # Errors
    /// As for [`Reader::decode`].
    ///
    /// # Panics
    /// When `len` is more than the length of the space.
    pub fn filled(self, len: usize) -> Result<bool, Error> {
        let Reader { inbound, buffer, part, place, .. } = self.reader;
        if self.is_direct {
            return Ok(match inbound.slot_filled(len)? {
                Arrival::Message(arrived, at) => {
                    (*part, *place) = (arrived, at);
                    true
                }
                _ => false,
            });
        }
        assert!(len <= buffer.bytes.len() - buffer.end, "more bytes than there is room for");
        buffer.end += len;
        Ok(false)
    }
}

impl Reader {
    /// A reader without a buffer.
    pub fn new(inbound: Inbound) -> Self {
        let (part, place) = NO_MESSAGE;
        Self { inbound, buffer: Buffer::default(), part, place, ends_with_message: false }
    }

    /// The receiving half.
    pub fn inbound(&self) -> &Inbound {
        &self.inbound
    }

    /// The state from which the receiving half can be restored; `None` if there is input, or as for [`Inbound::idle`].
    pub fn idle(&self) -> Option<IdleInbound> {
        if self.buffer.bytes.is_empty() { self.inbound.idle() } else { None }
    }

    /// The headers that were logged since the last call; see [`Inbound::log_headers`].
    pub fn take_headers(&mut self) -> Vec<Header> {
        self.inbound.take_headers()
    }

    // The read buffer.

    /// Whether there is a read buffer.
    #[inline]
    pub fn has_buffer(&self) -> bool {
        !self.buffer.bytes.is_empty()
    }

    /// The length of the read buffer; 0 without one.
    #[inline]
    pub fn buffer_len(&self) -> usize {
        self.buffer.bytes.len()
    }

    /// Gives the reader a buffer if it has none. Its content is overwritten.
    pub fn set_buffer(&mut self, bytes: Box<[u8]>) {
        if !self.has_buffer() {
            self.buffer = Buffer { bytes, start: 0, end: 0 };
            self.buffer.rewind();
        }
    }

    /// Takes the buffer if all its input was decoded. The last message can no longer be borrowed.
    pub fn take_buffer(&mut self) -> Option<Box<[u8]>> {
        if !self.has_buffer() || self.has_input() {
            return None;
        }
        (self.part, self.place) = NO_MESSAGE;
        Some(core::mem::take(&mut self.buffer).bytes)
    }

    /// Whether there is input that has not been decoded.
    #[inline]
    pub fn has_input(&self) -> bool {
        self.buffer.start < self.buffer.end
    }

    /// Space for the next read: the end of a large message that is being assembled, or else the buffer. The last message can no longer
    /// be borrowed.
    ///
    /// The space may be empty without a buffer, and while the buffer is full of input that was not decoded.
    pub fn space(&mut self) -> Space<'_> {
        let is_direct = self.has_slot();
        Space { is_direct, ..self.buffer_space() }
    }

    /// Space for the next read in the buffer, also while a large message is being assembled. The last message can no longer be borrowed.
    pub fn buffer_space(&mut self) -> Space<'_> {
        (self.part, self.place) = NO_MESSAGE;
        self.buffer.rewind();
        Space { reader: self, is_direct: false }
    }

    /// Whether [`space`](Self::space) is the end of a large message that is being assembled.
    pub fn has_slot(&self) -> bool {
        !self.has_input() && self.inbound.has_slot()
    }

    /// Takes the input that has not been decoded out of the buffer.
    pub fn take_input(&mut self) -> Vec<u8> {
        let input = self.buffer.bytes[self.buffer.start..self.buffer.end].to_vec();
        self.discard_input();
        input
    }

    /// Drops input that has not been decoded.
    pub fn discard_input(&mut self) {
        self.buffer.start = self.buffer.end;
    }

    /// Bytes of the current data frame that have not arrived.
    #[inline]
    pub fn payload_remaining(&self) -> u64 {
        self.inbound.decoder.payload_remaining()
    }

    // Messages.

    /// Decodes up to the next message, chunk or control frame.
    ///
    /// # Errors
    /// The rule or limit that the peer broke; pass it to [`Outbound::handle_error`](crate::Outbound::handle_error). All further
    /// input is dropped.
    pub fn decode(&mut self) -> Result<Step<'_>, Error> {
        self.decode_as(self.inbound.delivery())
    }

    /// As [`decode`](Self::decode), with this [`Delivery`] instead of the configured one. If chunks of a message were delivered before, the
    /// remainder of a message is the last chunk. A driver that drops what it receives takes chunks, in whose memory it does so.
    ///
    /// # Errors
    /// As for `decode`.
    pub fn decode_as(&mut self, delivery: Delivery) -> Result<Step<'_>, Error> {
        if self.next_message() {
            return Ok(Step::Message);
        }
        (self.part, self.place) = NO_MESSAGE;
        let Buffer { bytes, start, end } = &mut self.buffer;
        let input = &mut bytes[*start..*end];
        let (used, arrival) = match self.inbound.advance(input, delivery, STEP_LEN) {
            Ok(advanced) => advanced,
            Err(error) => {
                *start = *end;
                return Err(error);
            }
        };
        let begin = *start;
        *start += used;
        match arrival {
            Arrival::Nothing => Ok(Step::NeedsInput),
            Arrival::Inflating => Ok(Step::Inflating),
            Arrival::Message(part, place) => {
                self.part = part;
                self.place = match place {
                    Place::Input { at, len } => Place::Input { at: begin + at, len },
                    Place::Assembly => Place::Assembly,
                };
                Ok(Step::Message)
            }
            Arrival::Control { .. } => match self.inbound.event(arrival, input, None) {
                Some(event) => Ok(Step::Control(event)),
                None => Ok(Step::NeedsInput),
            },
        }
    }

    /// The fast path of [`decode`](Self::decode): finds the next message if it is uncompressed, in one frame, and completely buffered.
    /// Returns false otherwise; then call `decode`.
    #[inline(always)]
    pub fn next_message(&mut self) -> bool {
        let Buffer { bytes, start, end } = &mut self.buffer;
        let Some((whole, at, len)) = self.inbound.decoder.whole_message(&mut bytes[*start..*end]) else {
            return false;
        };
        let at = *start + at;
        *start = at + len;
        self.part = Part::Whole(whole);
        self.place = Place::Input { at, len };
        true
    }

    /// Whether the next message is whole in the buffer, in one frame, compressed or not: [`decode`](Self::decode) returns it, or an error, before
    /// it handles what is behind it.
    pub fn has_next_message(&self) -> bool {
        let Buffer { bytes, start, end } = &self.buffer;
        self.inbound.decoder.has_whole(&bytes[*start..*end])
    }

    /// As [`next_message`](Self::next_message) and then [`take_message`](Self::take_message), but faster: the message is unmasked while it is
    /// copied. If it returns a message, the last one can no longer be borrowed.
    #[inline(always)]
    pub fn next_owned(&mut self) -> Option<OwnedMessage> {
        let Buffer { bytes, start, end } = &mut self.buffer;
        let (message, len) = self.inbound.decoder.whole_owned(&mut bytes[*start..*end])?;
        *start += len;
        (self.part, self.place) = NO_MESSAGE;
        Some(message)
    }

    /// Whether to read before the next call of [`decode`](Self::decode): the buffer holds the first bytes of an uncompressed message in one
    /// frame and has space for the missing ones. They are a large part of it, of which at most `missing_max` bytes are missing, or the few
    /// behind a read for [whole messages](Space::bytes_for). `decode` would copy them out of the buffer; once the message is complete,
    /// [`next_message`](Self::next_message) finds it in place.
    ///
    /// Call `decode` when no more bytes are available: it detects invalid text, and the buffer can be [taken](Self::take_buffer).
    pub fn should_read_on(&self, missing_max: usize) -> bool {
        let Buffer { bytes, start, end } = &self.buffer;
        let len_max = match end - start {
            IN_PLACE_LEN_MIN.. => missing_max.min(bytes.len() - end),
            // They are moved to the front before the read.
            1..=ALIGN if self.ends_with_message => bytes.len().saturating_sub(3 * ALIGN),
            _ => return false,
        };
        self.inbound.decoder.missing_len(&bytes[*start..*end]).is_some_and(|len| len <= len_max)
    }

    /// The missing bytes of the current message, as many messages of this length as one read should take, and a few bytes: a read that
    /// fills its space does not show that the transport has nothing more.
    fn whole_messages_len(&self, message_len: usize) -> usize {
        let Buffer { bytes, start, end } = &self.buffer;
        let missing = match self.inbound.decoder.missing_len(&bytes[*start..*end]) {
            Some(missing) => missing,
            None => usize::try_from(self.payload_remaining()).unwrap_or(usize::MAX),
        };
        let frame_len = self.inbound.decoder.frame_len(message_len);
        let messages = READ_LEN_MAX.saturating_sub(missing) / frame_len;
        let messages = messages.max(usize::from(missing <= 1));
        (messages * frame_len).saturating_add(missing).saturating_add(ALIGN)
    }

    /// The missing bytes of the current message if they are few, and the beginning of a large one. Fragments are read as they come,
    /// because nothing says how long the next one is.
    fn header_read_len(&self) -> usize {
        if self.inbound.decoder.is_fragmented() {
            return usize::MAX;
        }
        match usize::try_from(self.payload_remaining()) {
            Ok(missing @ ..=READ_LEN_MAX) => missing + HEADER_READ_LEN,
            _ => HEADER_READ_LEN,
        }
    }

    /// Whether [`decode_as`](Self::decode_as) may return something without further bytes.
    pub fn has_more_as(&self, delivery: Delivery) -> bool {
        self.has_input() || self.inbound.has_more_as(delivery)
    }

    /// The last message or chunk; empty when it can no longer be borrowed.
    #[inline(always)]
    pub fn message(&self) -> Received<'_> {
        Received { part: self.part, payload: self.payload() }
    }

    #[inline(always)]
    fn payload(&self) -> &[u8] {
        match self.place {
            Place::Input { at, len } => &self.buffer.bytes[at..at + len],
            Place::Assembly => self.inbound.assembly.as_slice(),
        }
    }

    /// Takes the last message or chunk. An assembled message is moved out with its buffer unless that is more than twice as long; others
    /// are copied.
    #[inline]
    pub fn take_message(&mut self) -> OwnedMessage {
        self.take_with(|buffer, message| Bytes::from(buffer).slice(message))
    }

    /// As [`take_message`](Self::take_message). If the message is moved out, its buffer is passed to `recycle` when the last reference to
    /// the message is dropped.
    #[inline]
    pub fn take_message_with(&mut self, recycle: impl Fn(Vec<u8>) + Send + 'static) -> OwnedMessage {
        self.take_with(|buffer, message| Bytes::from_owner(RecycledBuffer { buffer, message, recycle }))
    }

    /// `share` makes the message from its buffer and its range there.
    #[inline]
    fn take_with(&mut self, share: impl FnOnce(Vec<u8>, Range<usize>) -> Bytes) -> OwnedMessage {
        let data = match self.place {
            Place::Input { at, len } => Bytes::copy_from_slice(&self.buffer.bytes[at..at + len]),
            // The assembly is empty afterwards.
            Place::Assembly => self.inbound.assembly.take_with(share),
        };
        owned(self.part, data)
    }

    // Memory of an idle connection.

    /// Whether there is a buffer to assemble messages in.
    #[inline]
    pub fn has_memory(&self) -> bool {
        self.inbound.assembly.has_memory()
    }

    /// Gives the reader a buffer to assemble messages in if it has none.
    pub fn set_memory(&mut self, memory: Vec<u8>) {
        self.inbound.assembly.set_memory(memory);
    }

    /// Takes the buffer in which messages are assembled, if it is not needed while nothing arrives. The last message can no longer be
    /// borrowed.
    pub fn take_memory(&mut self) -> Option<Vec<u8>> {
        (self.part, self.place) = NO_MESSAGE;
        self.inbound.take_memory()
    }

    /// Memory in use once the next call of [`space`](Self::space) or [`decode`](Self::decode) has made room for what it appends to a long
    /// message, in bytes. It is also the most that is in use while the message is copied to a larger place: a message of 512 KiB and more
    /// grows by at least its length. What shorter ones grow by is less than a read, and does not count.
    #[inline]
    pub fn grown_memory_len(&self) -> usize {
        match self.inbound.has_collected() {
            true => self.collected_memory_len(),
            // A message that was delivered is overwritten.
            false => self.inbound.memory_len(),
        }
    }

    fn collected_memory_len(&self) -> usize {
        let Inbound { assembly, .. } = &self.inbound;
        let grown = if self.has_slot() {
            self.inbound.slot_capacity()
        } else if self.inbound.is_compressed() {
            assembly.grown_capacity(STEP_LEN + STEP_EXTRA_LEN_MAX)
        } else {
            assembly.grown_capacity(self.buffer.end - self.buffer.start)
        };
        self.inbound.memory_len() - assembly.capacity() + grown
    }

    /// See [`Inbound::take_codec`].
    pub fn take_codec(&mut self, pool: &mut DeflatePool) {
        self.inbound.take_codec(pool);
    }

    /// See [`Inbound::return_codec`].
    pub fn return_codec(&mut self, pool: &mut DeflatePool) {
        self.inbound.return_codec(pool);
    }

    /// Frees the memory that an idle connection does not need. The last message can no longer be borrowed.
    pub fn release_buffers(&mut self) {
        (self.part, self.place) = NO_MESSAGE;
        self.inbound.release_buffers();
    }

    /// Drops all input, also a message of which a part has arrived, and frees all memory but the read buffer. Nothing is decoded any
    /// more.
    pub fn free(&mut self) {
        self.discard_input();
        (self.part, self.place) = NO_MESSAGE;
        self.inbound.free();
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("inbound", &self.inbound).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
