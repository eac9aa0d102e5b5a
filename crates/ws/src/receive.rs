//! Turns frames into messages, assembled or in chunks, and inflates them. Control frames are passed on.
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
use crate::config::Delivery;
use crate::decoder::{Decoder, Item};
use crate::deflate::{Decompressor, DeflatePool, InflateError, InflateLimit};
use crate::error::{Error, LimitExceeded, PeerMisbehaved};
use crate::event::Whole;
use crate::limits::{INFLATE_RATIO_FREE, Limits};
use crate::opcode::{Kind, Opcode};
use crate::owned::OwnedMessage;
use crate::utf8;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Reads go directly to the assembly while at least this many bytes of the frame are missing.
const SLOT_LEN_MIN: u64 = 4 << 10;

/// The longest chunk of a compressed message.
const INFLATED_CHUNK_LEN: usize = 32 << 10;

/// What a call has found, by its place in the input or the assembly.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arrival {
    /// All input was consumed, and nothing is complete.
    Nothing,
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

pub(crate) struct Receiver {
    decoder: Decoder,
    assembly: Assembly,
    content: Content,
    /// A chunk of the current message has been delivered.
    in_chunks: bool,
    /// Set when permessage-deflate was negotiated.
    inflate: Option<Box<Inflate>>,
}

/// The state of the assembly.
#[derive(Clone, Copy, Debug)]
enum Content {
    /// Empty, or its bytes were delivered: the next message overwrites them.
    Delivered,
    /// It holds bytes of an incomplete message of this kind.
    Collected(Kind),
}

/// The state of compressed messages.
struct Inflate {
    decompressor: Decompressor,
    limit: InflateLimit,
    /// The configured bound of `limit`.
    len_max: usize,
    utf8: utf8::Validator,
    /// Compressed bytes that are inflated chunk by chunk.
    pending: Option<Pending>,
    /// The buffer for the next [`Pending`].
    spare: Vec<u8>,
}

struct Pending {
    kind: Kind,
    /// The message ends with these bytes.
    fin: bool,
    bytes: Vec<u8>,
    /// Bytes that have been inflated.
    at: usize,
}

impl Receiver {
    pub(crate) fn new(decoder: Decoder, decompressor: Option<Decompressor>, limits: &Limits) -> Self {
        let inflate = decompressor.map(|decompressor| {
            let mut limit = InflateLimit::new(usize::try_from(limits.message_len_max).unwrap_or(usize::MAX));
            limit.max_ratio = limits.inflate_ratio_max;
            limit.ratio_free_len = INFLATE_RATIO_FREE as usize;
            let utf8 = utf8::Validator::new();
            let len_max = limit.max_len;
            Box::new(Inflate { decompressor, limit, len_max, utf8, pending: None, spare: Vec::new() })
        });
        Self {
            decoder,
            assembly: Assembly::default(),
            content: Content::Delivered,
            in_chunks: false,
            inflate,
        }
    }

    pub(crate) fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    pub(crate) fn decoder_mut(&mut self) -> &mut Decoder {
        &mut self.decoder
    }

    /// The assembly, for a payload that was delivered there last.
    #[inline]
    pub(crate) fn assembly(&self) -> &Assembly {
        &self.assembly
    }

    #[inline]
    pub(crate) fn assembly_mut(&mut self) -> &mut Assembly {
        &mut self.assembly
    }

    /// Whether permessage-deflate was negotiated.
    pub(crate) fn is_compressed(&self) -> bool {
        self.inflate.is_some()
    }

    /// The fast path: an uncompressed message in one frame that is buffered to its last byte, with its offset and length.
    #[inline(always)]
    pub(crate) fn whole_message(&mut self, input: &mut [u8]) -> Option<(Whole, usize, usize)> {
        // Pending chunks of a compressed message come first; the decoder has consumed their bytes.
        if self.is_inflating() { None } else { self.decoder.whole_message(input) }
    }

    /// [`Receiver::whole_message`], owned, with the length of its frame.
    #[inline(always)]
    pub(crate) fn whole_owned(&mut self, input: &mut [u8]) -> Option<(OwnedMessage, usize)> {
        if self.is_inflating() { None } else { self.decoder.whole_owned(input) }
    }

    /// How many bytes the message at the front of `input` lacks until [`Receiver::whole_message`] finds it.
    pub(crate) fn missing_len(&self, input: &[u8]) -> Option<usize> {
        if self.is_inflating() { None } else { self.decoder.missing_len(input) }
    }

    #[inline(always)]
    fn is_inflating(&self) -> bool {
        self.inflate.as_ref().is_some_and(|inflate| inflate.pending.is_some())
    }

    /// Consumes bytes from the front of `input` up to the next arrival, or all of them; call [`Receiver::whole_message`] first.
    pub(crate) fn advance(
        &mut self,
        input: &mut [u8],
        delivery: Delivery,
    ) -> Result<(usize, Arrival), Error> {
        let ready = match delivery {
            Delivery::Chunks => self.deliver_collected(),
            Delivery::Messages => None,
        };
        let ready = if ready.is_some() { ready } else { self.inflate_pending(delivery)? };
        if let Some(arrival) = ready {
            return Ok((0, arrival));
        }
        let mut used = 0;
        loop {
            let begin = used;
            let (taken, item) = self.decoder.step(&mut input[begin..])?;
            used += taken;
            if let Some(arrival) = self.handle_item(input, begin, item, delivery)? {
                return Ok((used, arrival));
            }
            if used == input.len() {
                return Ok((used, Arrival::Nothing));
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
    ) -> Result<Option<Arrival>, Error> {
        match item {
            Item::Nothing => Ok(None),
            Item::Control { opcode, at, len } => {
                Ok(Some(Arrival::Control { opcode, at: at.map(|at| begin + at), len }))
            }
            Item::Message { whole, at, len } => {
                Ok(Some(Arrival::Message(Part::Whole(whole), Place::Input { at: begin + at, len })))
            }
            Item::Chunk { kind, end, at, len, .. } => match delivery {
                Delivery::Chunks => {
                    let part = self.chunk(kind, end.is_some());
                    Ok(Some(Arrival::Message(part, Place::Input { at: begin + at, len })))
                }
                Delivery::Messages => {
                    self.collect(kind);
                    let data = &input[begin + at..begin + at + len];
                    self.assembly.push(data, self.decoder.payload_remaining());
                    Ok(end.map(|whole| self.complete(whole)))
                }
            },
            Item::Compressed { kind, fin, at, len, .. } => {
                let data = &input[begin + at..begin + at + len];
                match delivery {
                    Delivery::Chunks => {
                        if let Some(inflate) = &mut self.inflate {
                            let mut bytes = core::mem::take(&mut inflate.spare);
                            bytes.clear();
                            bytes.extend_from_slice(data);
                            inflate.pending = Some(Pending { kind, fin, bytes, at: 0 });
                        }
                        self.inflate_pending(delivery)
                    }
                    Delivery::Messages => self.inflate(kind, data, fin),
                }
            }
        }
    }

    /// Clears the assembly if its bytes were delivered.
    #[inline]
    fn collect(&mut self, kind: Kind) {
        if let Content::Delivered = self.content {
            self.assembly.clear();
            self.content = Content::Collected(kind);
        }
    }

    /// The collected message is complete. It is a chunk if the beginning was delivered in chunks.
    fn complete(&mut self, whole: Whole) -> Arrival {
        self.content = Content::Delivered;
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
        let Content::Collected(kind) = self.content else { return None };
        self.content = Content::Delivered;
        (self.assembly.len() > 0).then(|| Arrival::Message(self.chunk(kind, false), Place::Assembly))
    }

    /// Inflates a fragment of a message into the assembly.
    fn inflate(&mut self, kind: Kind, piece: &[u8], fin: bool) -> Result<Option<Arrival>, Error> {
        self.collect(kind);
        let Some(inflate) = &mut self.inflate else { return Ok(None) };
        let Inflate { decompressor, limit, utf8, .. } = &mut **inflate;
        let (inflated, text) =
            self.assembly.append_with(|out| decompressor.decompress(piece, fin, out, limit));
        // Text before the byte at which inflation fails is validated first, so that the error does not depend on how the input is
        // split.
        let end = validate(kind, utf8, text, fin && inflated.is_ok())?;
        inflated.map_err(|error| inflate_error(error, limit))?;
        Ok(end.map(|whole| self.complete(whole)))
    }

    /// Inflates pending bytes: delivers the next chunk, or collects all of them.
    fn inflate_pending(&mut self, delivery: Delivery) -> Result<Option<Arrival>, Error> {
        let Some(inflate) = &mut self.inflate else { return Ok(None) };
        let Inflate { decompressor, limit, utf8, pending: pending_slot, spare, .. } = &mut **inflate;
        let Some(pending) = pending_slot else { return Ok(None) };
        let (kind, fin) = (pending.kind, pending.fin);
        if delivery == Delivery::Messages {
            let Some(Pending { bytes, at, .. }) = pending_slot.take() else { return Ok(None) };
            return self.inflate(kind, &bytes[at..], fin);
        }
        self.content = Content::Delivered;
        let slot = self.assembly.reset_to(INFLATED_CHUNK_LEN);
        let before = decompressor.message_len();
        let step = decompressor.step(&pending.bytes[pending.at..], fin, slot, limit).map_err(|error| {
            let produced = decompressor.message_len().min(limit.max_len).saturating_sub(before);
            let valid = validate(kind, utf8, &slot[..produced], false);
            valid.err().map_or_else(|| inflate_error(error, limit), Error::from)
        })?;
        let end = validate(kind, utf8, &slot[..step.produced], fin && !step.more)?;
        self.assembly.filled(step.produced);
        pending.at += step.consumed;
        if !step.more {
            *spare = pending_slot.take().map(|pending| pending.bytes).unwrap_or_default();
        }
        let part = match end {
            Some(whole) if !self.in_chunks => Part::Whole(whole),
            None if step.produced == 0 => return Ok(None),
            end => self.chunk(kind, end.is_some()),
        };
        Ok(Some(Arrival::Message(part, Place::Assembly)))
    }

    /// Room for the next bytes of the message, if many of its bytes were collected and many are missing.
    pub(crate) fn slot(&mut self) -> Option<&mut [u8]> {
        let remaining = self.decoder.payload_remaining();
        let has_slot = matches!(self.content, Content::Collected(_))
            && self.inflate.is_none()
            && remaining >= SLOT_LEN_MIN
            && self.assembly.len() >= DIRECT_LEN_MIN;
        has_slot.then(|| self.assembly.slot(remaining))
    }

    /// `len` bytes were read into the slot.
    ///
    /// # Panics
    /// When the slot is shorter, or there is none.
    pub(crate) fn slot_filled(&mut self, len: usize) -> Result<Arrival, Error> {
        assert!(self.slot().is_some_and(|slot| len <= slot.len()), "more bytes than the slot holds");
        let slot = self.assembly.slot(self.decoder.payload_remaining());
        // The slot ends within the frame, so that one step takes all of it.
        let (_, item) = self.decoder.step(&mut slot[..len])?;
        self.assembly.filled(len);
        match item {
            Item::Chunk { end: Some(whole), .. } => Ok(self.complete(whole)),
            _ => Ok(Arrival::Nothing),
        }
    }

    /// Whether there is an arrival without further bytes.
    pub(crate) fn has_more(&self, delivery: Delivery) -> bool {
        let has_collected = matches!(self.content, Content::Collected(_)) && self.assembly.len() > 0;
        self.is_inflating() || delivery == Delivery::Chunks && has_collected
    }

    /// Takes the buffer of the assembly if it is not needed: when nothing is collected, or when a large buffer holds a few bytes.
    pub(crate) fn take_memory(&mut self) -> Option<Vec<u8>> {
        match self.content {
            Content::Delivered => self.assembly.has_memory().then(|| self.assembly.take_memory()),
            Content::Collected(_) => self.assembly.take_excess_memory(),
        }
    }

    /// Takes a codec from the pool, if messages are compressed.
    pub(crate) fn take_codec(&mut self, pool: &mut DeflatePool) {
        if let Some(inflate) = &mut self.inflate {
            inflate.decompressor.take_codec(pool);
        }
    }

    /// Returns the codec to the pool, except within a compressed message.
    pub(crate) fn return_codec(&mut self, pool: &mut DeflatePool) {
        if let Some(inflate) = &mut self.inflate {
            inflate.spare = Vec::new();
            inflate.decompressor.return_codec(pool);
        }
    }

    /// Frees the memory that an idle connection does not need.
    pub(crate) fn release(&mut self) {
        drop(self.take_memory());
        if let Some(inflate) = &mut self.inflate {
            inflate.spare = Vec::new();
            inflate.decompressor.shrink();
        }
    }

    /// Drops a message of which a part has arrived, and frees all memory. Nothing is received any more.
    pub(crate) fn free(&mut self) {
        self.assembly.release();
        self.content = Content::Delivered;
        self.inflate = None;
    }

    pub(crate) fn set_inflated_max(&mut self, max: usize) -> usize {
        let Some(inflate) = &mut self.inflate else { return usize::MAX };
        // Bytes that were delivered in chunks, or collected before, need no more memory.
        let total = inflate.decompressor.message_len().saturating_add(max);
        inflate.limit.max_len = inflate.len_max.min(total);
        total
    }

    /// Memory in use, in bytes: the assembly and the state of compression.
    pub(crate) fn memory_len(&self) -> usize {
        let inflate = self.inflate.as_ref().map_or(0, |inflate| {
            let pending = inflate.pending.as_ref().map_or(0, |pending| pending.bytes.capacity());
            inflate.decompressor.memory_len() + inflate.spare.capacity() + pending
        });
        self.assembly.capacity() + inflate
    }
}

/// Validates inflated text (RFC 6455 §8.1). At the end of the message it returns its kind.
fn validate(
    kind: Kind,
    utf8: &mut utf8::Validator,
    bytes: &[u8],
    fin: bool,
) -> Result<Option<Whole>, PeerMisbehaved> {
    let whole = match kind {
        Kind::Binary => Whole::Binary,
        Kind::Text => {
            utf8.push(bytes).map_err(|_| PeerMisbehaved::InvalidUtf8)?;
            if !fin {
                return Ok(None);
            }
            Whole::Text(utf8.finish_text().map_err(|_| PeerMisbehaved::InvalidUtf8)?)
        }
    };
    Ok(fin.then_some(whole))
}

fn inflate_error(error: InflateError, limit: &InflateLimit) -> Error {
    match error {
        InflateError::TooLarge => LimitExceeded::InflatedTooLarge { max: limit.max_len as u64 }.into(),
        InflateError::Ratio => LimitExceeded::InflateRatio { max: limit.max_ratio }.into(),
        InflateError::OutOfMemory => LimitExceeded::OutOfMemory.into(),
        InflateError::Corrupt => PeerMisbehaved::InvalidDeflate.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deflate::{Compressor, DeflateConfig, DeflateParams};
    use crate::role::Role;
    use alloc::vec;

    #[test]
    fn counts_the_memory_of_messages_and_of_their_inflation() {
        let (limits, params) = (Limits::default(), DeflateParams::default());
        let decoder = Decoder::new(Role::Server, true, &limits);
        let decompressor = Decompressor::new(Role::Client, &params);
        let mut receiver = Receiver::new(decoder, Some(decompressor), &limits);
        assert_eq!(receiver.memory_len(), 0);
        let mut compressed = Vec::new();
        Compressor::new(Role::Server, &params, &DeflateConfig::default())
            .compress(&[7; 100_000], &mut compressed);
        let len = compressed.len();
        assert!(len <= 125);
        let mut wire = vec![0xC2, len as u8];
        wire.extend_from_slice(&compressed);
        let parts = |receiver: &Receiver| {
            let inflate = receiver.inflate.as_ref().unwrap();
            let pending = inflate.pending.as_ref().map_or(0, |pending| pending.bytes.capacity());
            [
                receiver.assembly.capacity(),
                inflate.decompressor.memory_len(),
                inflate.spare.capacity(),
                pending,
            ]
        };
        for is_last in [false, false, false, true] {
            assert!(matches!(receiver.advance(&mut wire, Delivery::Chunks), Ok((_, Arrival::Message(..)))));
            wire.clear();
            let [assembly, inflate, spare, pending] = parts(&receiver);
            assert!(assembly >= INFLATED_CHUNK_LEN && inflate > 32 << 10);
            assert_eq!((spare >= len, pending >= len), (is_last, !is_last));
            assert_eq!(receiver.memory_len(), assembly + inflate + spare + pending);
        }
        // The next message uses the memory of the last one.
        receiver.release();
        let [assembly, _, spare, pending] = parts(&receiver);
        assert_eq!([assembly, spare, pending], [0; 3]);
    }
}
