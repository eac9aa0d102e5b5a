//! The receiving half of a connection: messages assembled, or lent in pieces, and inflated. It answers nothing; what needs
//! an answer is handed to `connection`.

use crate::assembly::Assembly;
use crate::config::Delivery;
use crate::decoder::{Decoder, Item};
use crate::deflate::{Decompressor, InflateError, InflateLimit};
use crate::error::{Error, LimitExceeded, PeerMisbehaved};
use crate::inbound::IdleInbound;
use crate::limits::{INFLATE_RATIO_FREE, Limits};
use crate::opcode::{Kind, Opcode};
use crate::utf8;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// From this much of a frame outstanding on, reads go straight to where the message grows.
const SLOT_LEN_MIN: u64 = 4 << 10;

/// The most that is inflated before it is lent.
const INFLATED_CHUNK_LEN: usize = 32 << 10;

/// What has arrived, by place.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arrival {
    /// All input was consumed and nothing is complete.
    Nothing,
    /// A whole message in the input.
    Message { kind: Kind, at: usize, len: usize },
    /// A whole message in the assembly.
    Assembled { kind: Kind },
    /// A piece of a message in the input.
    Chunk { kind: Kind, first: bool, fin: bool, at: usize, len: usize },
    /// A piece of a message in the assembly.
    AssembledChunk { kind: Kind, first: bool, fin: bool },
    /// A control frame's payload: in the input, or in the decoder when `at` is `None`.
    Control { opcode: Opcode, at: Option<usize>, len: usize },
}

pub(crate) struct Receiver {
    pub(crate) decoder: Decoder,
    pub(crate) assembly: Assembly,
    /// What the assembly holds has been handed out: the next message clears it.
    handed_out: bool,
    lend: bool,
    /// A compressed piece is being lent as it inflates.
    lending: bool,
    /// Set when permessage-deflate was negotiated.
    inflate: Option<Box<Inflate>>,
}

/// The state of compressed messages.
struct Inflate {
    decompressor: Decompressor,
    limit: InflateLimit,
    utf8: utf8::Validator,
    /// A compressed piece that is being lent as it inflates: the rest of it from `at` on.
    piece: Vec<u8>,
    at: usize,
    /// What message the piece belongs to, and whether it is its last.
    piece_of: (Kind, bool),
    /// A chunk of the message has been lent.
    handed: bool,
}

impl Receiver {
    pub(crate) fn new(
        decoder: Decoder,
        delivery: Delivery,
        decompressor: Option<Decompressor>,
        limits: &Limits,
    ) -> Self {
        let inflate = decompressor.map(|decompressor| {
            let mut limit = InflateLimit::new(usize::try_from(limits.message_len_max).unwrap_or(usize::MAX));
            limit.max_ratio = limits.inflate_ratio_max;
            limit.ratio_free_len = INFLATE_RATIO_FREE as usize;
            let utf8 = utf8::Validator::new();
            Box::new(Inflate {
                decompressor,
                limit,
                utf8,
                piece: Vec::new(),
                at: 0,
                piece_of: (Kind::Binary, false),
                handed: false,
            })
        });
        let lend = delivery == Delivery::Chunks;
        Self { decoder, assembly: Assembly::default(), handed_out: false, lend, lending: false, inflate }
    }

    /// Takes bytes from the front of `input` up to the next arrival. [`Receiver::whole_message`] has been tried.
    pub(crate) fn advance(&mut self, input: &mut [u8]) -> Result<(usize, Arrival), Error> {
        if let Some(arrival) = self.lend_inflated()? {
            return Ok((0, arrival));
        }
        let (used, item) = self.decoder.step(input)?;
        self.advance_past(input, used, item)
    }

    /// The short way past everything: an uncompressed message that is all here, as its kind, offset and length.
    #[inline(always)]
    pub(crate) fn whole_message(&mut self, input: &mut [u8]) -> Option<(Kind, usize, usize)> {
        // While a compressed piece is being lent, the decoder stands behind it.
        if self.lending { None } else { self.decoder.whole_message(input) }
    }

    /// Goes on from an item that the decoder found.
    fn advance_past(
        &mut self,
        input: &mut [u8],
        mut used: usize,
        mut item: Item,
    ) -> Result<(usize, Arrival), Error> {
        loop {
            let begin = used;
            if let Some(arrival) = self.take(input, item)? {
                return Ok((used, arrival));
            }
            if used == input.len() {
                return Ok((used, Arrival::Nothing));
            }
            let (more, next) = self.decoder.step(&mut input[begin..])?;
            used += more;
            item = shifted(next, begin);
        }
    }

    /// What an item means: an arrival, or something that has been put away.
    fn take(&mut self, input: &mut [u8], item: Item) -> Result<Option<Arrival>, Error> {
        match item {
            Item::Nothing => Ok(None),
            Item::Control { opcode, at, len } => Ok(Some(Arrival::Control { opcode, at, len })),
            Item::Message { kind, compressed: false, at, len } => {
                Ok(Some(Arrival::Message { kind, at, len }))
            }
            Item::Chunk { kind, compressed: false, first, fin, at, len } if self.lend => {
                Ok(Some(Arrival::Chunk { kind, first, fin, at, len }))
            }
            Item::Chunk { kind, compressed: false, fin, at, len, .. } => {
                self.begin_assembly();
                self.assembly.push(&input[at..at + len], self.decoder.payload_remaining());
                Ok(self.finish_assembly(kind, fin))
            }
            Item::Message { kind, compressed: true, at, len } => {
                self.inflate(kind, &input[at..at + len], true)
            }
            Item::Chunk { kind, compressed: true, fin, at, len, .. } => {
                self.inflate(kind, &input[at..at + len], fin)
            }
        }
    }

    #[inline]
    fn begin_assembly(&mut self) {
        if self.handed_out {
            self.handed_out = false;
            self.assembly.clear();
        }
    }

    #[inline]
    fn finish_assembly(&mut self, kind: Kind, fin: bool) -> Option<Arrival> {
        self.handed_out = fin;
        fin.then_some(Arrival::Assembled { kind })
    }

    /// A piece of a compressed message.
    fn inflate(&mut self, kind: Kind, piece: &[u8], fin: bool) -> Result<Option<Arrival>, Error> {
        if self.lend {
            if let Some(inflate) = &mut self.inflate {
                inflate.piece.clear();
                inflate.piece.extend_from_slice(piece);
                inflate.at = 0;
                inflate.piece_of = (kind, fin);
                self.lending = true;
            }
            return self.lend_inflated();
        }
        self.begin_assembly();
        let Some(inflate) = &mut self.inflate else { return Ok(None) };
        let Inflate { decompressor, limit, utf8, .. } = &mut **inflate;
        let (inflated, text) =
            self.assembly.append_with(|out| decompressor.decompress(piece, fin, out, limit));
        // Text before the place where inflation fails is judged first, or the verdict would depend on how the peer's bytes
        // are cut.
        if kind == Kind::Text {
            validate(utf8, text, fin && inflated.is_ok())?;
        }
        inflated.map_err(|error| inflate_error(error, limit))?;
        Ok(self.finish_assembly(kind, fin))
    }

    /// The next chunk of the compressed piece that is being lent; `None` when none is.
    fn lend_inflated(&mut self) -> Result<Option<Arrival>, Error> {
        let Some(inflate) = &mut self.inflate else { return Ok(None) };
        if !self.lending {
            return Ok(None);
        }
        let Inflate { decompressor, limit, utf8, piece, at, piece_of: (kind, fin), handed } = &mut **inflate;
        let (kind, fin) = (*kind, *fin);
        self.assembly.restart();
        let slot = self.assembly.slot(INFLATED_CHUNK_LEN as u64);
        let before = decompressor.message_len();
        let step = decompressor.step(&piece[*at..], fin, slot, limit).map_err(|error| {
            let produced = decompressor.message_len().min(limit.max_len).saturating_sub(before);
            match kind {
                Kind::Text => validate(utf8, &slot[..produced], false).err().map(Error::from),
                Kind::Binary => None,
            }
            .unwrap_or_else(|| inflate_error(error, limit))
        })?;
        self.assembly.filled(step.produced);
        *at += step.consumed;
        let fin = fin && !step.more;
        if kind == Kind::Text {
            validate(utf8, self.assembly.as_slice(), fin)?;
        }
        let first = !*handed;
        *handed = !fin && (*handed || step.produced > 0);
        self.lending = step.more;
        if step.produced == 0 && !fin {
            return Ok(None);
        }
        Ok(Some(Arrival::AssembledChunk { kind, first, fin }))
    }

    /// Where the next bytes of the message may be read to, when one large enough is being assembled.
    pub(crate) fn slot(&mut self) -> Option<&mut [u8]> {
        let remaining = self.decoder.payload_remaining();
        if self.lend
            || self.inflate.is_some()
            || remaining < SLOT_LEN_MIN
            || self.handed_out
            || self.assembly.len() == 0
        {
            return None;
        }
        Some(self.assembly.slot(remaining))
    }

    /// `len` bytes were read into the slot.
    pub(crate) fn slot_filled(&mut self, len: usize) -> Result<Arrival, Error> {
        let remaining = self.decoder.payload_remaining();
        let slot = self.assembly.slot(remaining);
        let (_, item) = self.decoder.step(&mut slot[..len])?;
        self.assembly.filled(len);
        match item {
            Item::Chunk { kind, fin: true, .. } => {
                self.handed_out = true;
                Ok(Arrival::Assembled { kind })
            }
            _ => Ok(Arrival::Nothing),
        }
    }

    /// See [`Inbound::idle`](crate::Inbound::idle).
    pub(crate) fn idle(&self) -> Option<IdleInbound> {
        let delivery = if self.lend { Delivery::Chunks } else { Delivery::Messages };
        if self.inflate.is_some() { None } else { IdleInbound::new(&self.decoder, delivery) }
    }

    pub(crate) fn has_more(&self) -> bool {
        self.lending
    }

    /// The memory of the assembly, if it holds nothing that is still to be handed out.
    pub(crate) fn take_memory(&mut self) -> Vec<u8> {
        // In chunks nothing is kept.
        if self.lending || !self.lend && !self.handed_out && self.assembly.len() > 0 {
            return Vec::new();
        }
        self.handed_out = false;
        self.assembly.take_memory()
    }

    pub(crate) fn give_memory(&mut self, memory: Vec<u8>) {
        if self.assembly.is_unused() {
            self.assembly.give_memory(memory);
        }
    }

    /// Gives back what memory an idle connection can do without.
    pub(crate) fn release(&mut self) {
        if self.handed_out || self.assembly.len() == 0 {
            self.assembly.release();
            self.handed_out = false;
        }
        if let Some(inflate) = &mut self.inflate
            && !self.lending
        {
            inflate.piece = Vec::new();
            inflate.decompressor.shrink();
        }
    }
}

fn shifted(item: Item, by: usize) -> Item {
    match item {
        Item::Nothing => Item::Nothing,
        Item::Message { kind, compressed, at, len } => Item::Message { kind, compressed, at: at + by, len },
        Item::Chunk { kind, compressed, first, fin, at, len } => {
            Item::Chunk { kind, compressed, first, fin, at: at + by, len }
        }
        Item::Control { opcode, at, len } => Item::Control { opcode, at: at.map(|at| at + by), len },
    }
}

/// RFC 6455 §8.1, on text that came compressed.
fn validate(utf8: &mut utf8::Validator, text: &[u8], fin: bool) -> Result<(), PeerMisbehaved> {
    let valid = utf8.push(text).and_then(|()| if fin { utf8.finish() } else { Ok(()) });
    valid.map_err(|_| PeerMisbehaved::InvalidUtf8)
}

fn inflate_error(error: InflateError, limit: &InflateLimit) -> Error {
    match error {
        InflateError::TooLarge => LimitExceeded::InflatedTooLarge { max: limit.max_len as u64 }.into(),
        InflateError::Ratio => LimitExceeded::InflateRatio { max: limit.max_ratio }.into(),
        InflateError::Corrupt => PeerMisbehaved::InvalidDeflate.into(),
    }
}
