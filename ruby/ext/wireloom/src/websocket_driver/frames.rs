//! Frames of one direction into messages, judged in the order and the words of `websocket-driver`, which differ from the
//! core's [`wireloom_ws::Decoder`]: a peer may mask or not unless told, and each broken rule has a sentence of its own.
//!
//! Owns where it stands in the stream and the bytes that were not used yet. Payloads are read once, from what the application
//! handed in, and unmasked on their way into the String that the listener gets.

use crate::{scratch, strings};
use magnus::prelude::*;
use magnus::rb_sys::FromRawValue;
use magnus::{RString, Value};
use std::cell::Cell;
use wireloom_ws::frame::CONTROL_LEN_MAX;
use wireloom_ws::mask::{self, MaskKey};
use wireloom_ws::utf8;

/// The highest bits of a frame's first and second byte (RFC 6455 §5.2).
pub(crate) const FIN: u8 = 0x80;
pub(crate) const MASK: u8 = 0x80;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PONG: u8 = 10;

/// A message that is being put together never reserves more than this on a frame header's word alone, in bytes.
const TRUSTED_LEN: usize = 1 << 20;
/// From then on it reserves so many times what has arrived.
const TRUSTED_RATIO: usize = 16;
/// What [`Frames::next`] found.
pub(crate) enum Found {
    /// The input is used up.
    Nothing,
    /// A message: its data, and whether it is text.
    Message(RString, bool),
    /// A message for an extension: its data, opcode and reserved bits.
    Raw(RString, u8, u8),
    /// A control frame with its payload.
    Control(u8, RString),
    /// The peer broke a rule: the name of the error in `Hybi::ERRORS`, and what to say. Who asks for more passes over that frame.
    Broken(&'static str, String),
}

/// What the owner of a connection chooses.
pub(crate) struct Rules {
    /// The longest message, in bytes.
    pub(crate) message_len_max: u64,
    /// Frames have to be masked.
    pub(crate) require_masking: bool,
    /// Frames must not be masked: a client hears a server (RFC 6455 §5.1).
    pub(crate) refuse_masking: bool,
    /// Reserved bits that an extension claims on the first frame of a message, as 4, 2 and 1.
    pub(crate) rsv_allowed: u8,
    /// Messages go through extensions, which may make text of them: nothing is validated here.
    pub(crate) raw: bool,
}

struct Frame {
    opcode: u8,
    fin: bool,
    /// Turned to the next payload byte.
    key: Option<MaskKey>,
    remaining: u64,
}

/// The message that is arriving. Its data is the String in [`Frames::assembly`].
struct Message {
    opcode: u8,
    rsv: u8,
    len: u64,
    /// All of it so far, so that nothing had to be validated.
    ascii: bool,
}

pub(crate) struct Frames {
    pub(crate) rules: Rules,
    /// Input that was not used yet.
    kept: Vec<u8>,
    /// `at <= kept.len()`; what lies before has been used.
    at: usize,
    frame: Option<Frame>,
    message: Option<Message>,
    utf8: utf8::Validator,
    /// The next header is of the frame that broke a rule.
    broken: bool,
    /// What is to come of that frame's payload, in bytes.
    passing: u64,
    stopped: bool,
}

impl Frames {
    pub(crate) fn new(rules: Rules) -> Self {
        Self {
            rules,
            kept: Vec::new(),
            at: 0,
            frame: None,
            message: None,
            utf8: utf8::Validator::new(),
            broken: false,
            passing: 0,
            stopped: false,
        }
    }

    /// Bytes held beyond the struct's own, without the message under way, which is a String.
    pub(crate) fn held_len(&self) -> usize {
        self.kept.capacity()
    }

    /// Forgets everything and takes no further input.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
        self.frame = None;
        self.message = None;
        self.kept = Vec::new();
        self.at = 0;
    }

    /// Whether input waits that [`next_kept`](Self::next_kept) has to see before any other.
    pub(crate) fn has_kept(&self) -> bool {
        self.at < self.kept.len()
    }

    /// Keeps input for [`next_kept`](Self::next_kept).
    pub(crate) fn keep(&mut self, input: &[u8]) {
        if self.stopped || input.is_empty() {
            return;
        }
        if self.kept.capacity() < self.kept.len() + input.len() {
            let mut wider = scratch::take();
            wider.extend_from_slice(&self.kept[self.at..]);
            self.kept = wider;
            self.at = 0;
        }
        self.kept.extend_from_slice(input);
    }

    /// The next thing in the input that was kept.
    pub(crate) fn next_kept(&mut self, assembly: &Cell<Value>, nil: Value) -> Found {
        let kept = std::mem::take(&mut self.kept);
        let (used, found) = self.next(&kept[self.at..], assembly, nil);
        let at = self.at + used;
        self.at = 0;
        if !matches!(found, Found::Nothing) {
            self.kept = kept;
            self.at = at;
        } else {
            // Little is left, if anything.
            self.kept = kept[at..].to_vec();
            scratch::give(kept);
        }
        found
    }

    /// The next thing in `input`, and how many bytes of it were used. `assembly` is where the message under way is kept, `nil`
    /// between messages. When nothing is found, what was not used has to be kept: up to 138 bytes.
    #[inline]
    pub(crate) fn next(&mut self, input: &[u8], assembly: &Cell<Value>, nil: Value) -> (usize, Found) {
        let mut at = 0;
        if self.stopped {
            return (input.len(), Found::Nothing);
        }
        if self.broken || self.passing > 0 {
            at = self.pass_over(input);
            if self.broken || self.passing > 0 {
                return (at, Found::Nothing);
            }
        }
        loop {
            let frame = match self.frame.take() {
                Some(frame) => frame,
                None => match self.header(&input[at..]) {
                    Ok(Some((frame, len))) => {
                        at += len;
                        frame
                    }
                    Ok(None) => return (at, Found::Nothing),
                    Err((kind, said)) => {
                        self.broken = true;
                        self.give_up(assembly, nil);
                        return (at, Found::Broken(kind, said));
                    }
                },
            };
            let here = input.len() - at;
            let len = usize::try_from(frame.remaining).map_or(here, |remaining| remaining.min(here));
            let piece = &input[at..at + len];
            let whole = len as u64 == frame.remaining;
            if frame.opcode >= CLOSE {
                if !whole {
                    self.frame = Some(frame);
                    return (at, Found::Nothing);
                }
                let payload = strings::binary_with(len, |room| fill(room, piece, frame.key));
                return (at + len, Found::Control(frame.opcode, payload));
            }
            at += len;
            let found = if whole && frame.fin && assembly.get().is_nil() {
                self.whole(&frame, piece)
            } else {
                self.assemble(frame, piece, assembly, nil)
            };
            if !matches!(found, Found::Nothing) || at == input.len() {
                return (at, found);
            }
        }
    }

    /// Passes over what is here of a frame that broke a rule; returns how many bytes that was.
    #[cold]
    fn pass_over(&mut self, input: &[u8]) -> usize {
        let mut at = 0;
        if self.broken {
            let Some((len, end)) = extent(input) else { return 0 };
            (self.broken, self.passing, at) = (false, len, end);
        }
        let here = (input.len() - at) as u64;
        let passed = self.passing.min(here);
        self.passing -= passed;
        at + passed as usize
    }

    /// Forgets the message under way.
    #[cold]
    fn give_up(&mut self, assembly: &Cell<Value>, nil: Value) {
        assembly.set(nil);
        self.message = None;
        self.utf8 = utf8::Validator::new();
    }

    /// A message that is here whole in one frame.
    #[inline]
    fn whole(&mut self, frame: &Frame, piece: &[u8]) -> Found {
        let Some(message) = self.message.take() else { return Found::Nothing };
        if message.opcode != TEXT || self.rules.raw {
            let data = strings::binary_with(piece.len(), |room| fill(room, piece, frame.key));
            return self.found(&message, data);
        }
        let (mut ascii, mut valid) = (true, true);
        let data = strings::utf8_with(piece.len(), |room| {
            fill(room, piece, frame.key);
            ascii = room.is_ascii();
            valid = ascii || utf8::validate(room).is_ok();
        });
        if !valid {
            return not_utf8();
        }
        strings::declare_valid(data, ascii);
        Found::Message(data, true)
    }

    /// A piece of a message that does not come whole: unmasked on its way into the message's String.
    fn assemble(&mut self, mut frame: Frame, piece: &[u8], assembly: &Cell<Value>, nil: Value) -> Found {
        let Some(message) = &mut self.message else { return Found::Nothing };
        let validate = message.opcode == TEXT && !self.rules.raw;
        let missing = usize::try_from(frame.remaining).unwrap_or(usize::MAX);
        let data = RString::from_value(assembly.get())
            .unwrap_or_else(|| strings::with_capacity(missing.min(TRUSTED_LEN)));
        strings::make_room(data, piece.len(), |have| {
            missing.min((have + piece.len()).saturating_mul(TRUSTED_RATIO).max(TRUSTED_LEN))
        });
        let mut valid = true;
        let utf8 = &mut self.utf8;
        strings::append_with(data, piece.len(), |room| {
            frame.key = fill(room, piece, frame.key);
            if validate {
                message.ascii = message.ascii && room.is_ascii();
                // RFC 6455 §8.1: refused at the first impossible byte, not at the end of the message.
                valid = message.ascii || utf8.push(room).is_ok();
            }
        });
        frame.remaining -= piece.len() as u64;
        let done = frame.fin && frame.remaining == 0;
        if !valid || (done && validate && self.utf8.finish().is_err()) {
            self.passing = frame.remaining;
            self.give_up(assembly, nil);
            return not_utf8();
        }
        if !done {
            assembly.set(data.as_value());
            if frame.remaining > 0 {
                self.frame = Some(frame);
            }
            return Found::Nothing;
        }
        if validate {
            strings::declare_utf8(data, message.ascii);
        }
        assembly.set(nil);
        match self.message.take() {
            Some(message) => self.found(&message, data),
            None => Found::Nothing,
        }
    }

    fn found(&self, message: &Message, data: RString) -> Found {
        if self.rules.raw {
            Found::Raw(data, message.opcode, message.rsv)
        } else {
            Found::Message(data, message.opcode == TEXT)
        }
    }

    /// The next header and its length, if all of it is here. Rules are judged as soon as the bytes they need have arrived.
    #[inline]
    fn header(&mut self, bytes: &[u8]) -> Result<Option<(Frame, usize)>, (&'static str, String)> {
        let Some(&first) = bytes.first() else { return Ok(None) };
        let (fin, rsv, opcode) = (first & FIN != 0, first >> 4 & 7, first & 0xF);
        let opens = opcode == TEXT || opcode == BINARY;
        if rsv != 0 && (!opens || rsv & !self.rules.rsv_allowed != 0) {
            let bit = |bit: u8| u8::from(rsv & bit != 0);
            let said = format!(
                "One or more reserved bits are on: reserved1 = {}, reserved2 = {}, reserved3 = {}",
                bit(4),
                bit(2),
                bit(1)
            );
            return Err(("protocol_error", said));
        }
        if opcode > PONG || (opcode > BINARY && opcode < CLOSE) {
            return Err(("protocol_error", format!("Unrecognized frame opcode: {opcode}")));
        }
        let control = opcode >= CLOSE;
        if control && !fin {
            return Err(("protocol_error", format!("Received fragmented control frame: opcode = {opcode}")));
        }
        if opens && self.message.is_some() {
            return Err((
                "protocol_error",
                "Received new data frame but previous continuous frame is unfinished".to_owned(),
            ));
        }
        let Some(&second) = bytes.get(1) else { return Ok(None) };
        let masked = second & MASK != 0;
        let len7 = second & 0x7F;
        if len7 < 126 {
            self.check_len(control, u64::from(len7))?;
        }
        if self.rules.require_masking && !masked {
            return Err(("unacceptable", "Received unmasked frame but masking is required".to_owned()));
        }
        // RFC 6455 §5.1: a client MUST fail the connection when the server masks.
        if self.rules.refuse_masking && masked {
            return Err(("protocol_error", "Received masked frame from a server".to_owned()));
        }
        let (len, key_at, least) = match len7 {
            126 => match bytes.get(2..4).and_then(|field| field.first_chunk()) {
                Some(field) => (u64::from(u16::from_be_bytes(*field)), 4, 126),
                None => return Ok(None),
            },
            127 => match bytes.get(2..10).and_then(|field| field.first_chunk()) {
                Some(field) => (u64::from_be_bytes(*field), 10, 1 << 16),
                None => return Ok(None),
            },
            len => (u64::from(len), 2, 0),
        };
        if control && len > CONTROL_LEN_MAX as u64 {
            let said = format!("Received control frame having too long payload: {len}");
            return Err(("protocol_error", said));
        }
        self.check_len(control, len)?;
        // RFC 6455 §5.2: the minimal number of bytes MUST be used to encode the length.
        if len < least {
            let said = format!("Received frame length {len} in a form for longer ones");
            return Err(("protocol_error", said));
        }
        let (key, end) = if masked {
            match bytes.get(key_at..key_at + 4).and_then(|key| key.first_chunk()) {
                Some(key) => (Some(MaskKey::new(*key)), key_at + 4),
                None => return Ok(None),
            }
        } else {
            (None, key_at)
        };
        if !control {
            match &mut self.message {
                Some(message) => message.len += len,
                None if opens => self.message = Some(Message { opcode, rsv, len, ascii: true }),
                None => {
                    return Err(("protocol_error", "Received unexpected continuation frame".to_owned()));
                }
            }
        }
        Ok(Some((Frame { opcode, fin, key, remaining: len }, end)))
    }

    fn check_len(&self, control: bool, len: u64) -> Result<(), (&'static str, String)> {
        let before = self.message.as_ref().map_or(0, |message| message.len);
        if !control && before.saturating_add(len) > self.rules.message_len_max {
            return Err(("too_large", "WebSocket frame length too large".to_owned()));
        }
        Ok(())
    }
}

/// How long a frame's payload and its header are, whatever else is wrong with it, once all of the header is here.
fn extent(bytes: &[u8]) -> Option<(u64, usize)> {
    let &second = bytes.get(1)?;
    let (len, end) = match second & 0x7F {
        126 => (u64::from(u16::from_be_bytes(*bytes.get(2..4)?.first_chunk()?)), 4),
        127 => (u64::from_be_bytes(*bytes.get(2..10)?.first_chunk()?), 10),
        len => (u64::from(len), 2),
    };
    let end = end + if second & MASK != 0 { 4 } else { 0 };
    (bytes.len() >= end).then_some((len, end))
}

/// Copies `piece` into `room`, unmasked; returns the key for the byte behind it.
#[inline]
fn fill(room: &mut [u8], piece: &[u8], key: Option<MaskKey>) -> Option<MaskKey> {
    match key {
        Some(key) => Some(mask::copy(room, piece, key)),
        None => {
            room.copy_from_slice(piece);
            None
        }
    }
}

fn not_utf8() -> Found {
    Found::Broken("encoding_error", "Could not decode a text frame as UTF-8".to_owned())
}

/// A value that is nobody's.
pub(crate) fn nil() -> Value {
    // SAFETY: nil is a constant of Ruby.
    unsafe { Value::from_raw(rb_sys::Qnil as rb_sys::VALUE) }
}
