//! Frames of one direction into parts of messages, validated in the order and with the messages of `websocket-driver`, which
//! differ from those of the core: masking is optional unless the rules require or refuse it, and each broken rule has a sentence of
//! its own.
//!
//! Owns the position in the stream and the bytes that were not used yet. It reads no payload and makes no object: the codec
//! copies payloads, unmasked, from the input into the String that the listener gets.

use crate::scratch;
use std::collections::TryReserveError;
use std::ops::Range;
use std::sync::Arc;
use wireloom_ws::deflate::Decompressor;
use wireloom_ws::frame::CONTROL_LEN_MAX;
use wireloom_ws::mask::MaskKey;

/// The highest bits of a frame's first and second byte (RFC 6455 §5.2).
pub(crate) const FIN: u8 = 0x80;
pub(crate) const MASK: u8 = 0x80;
pub(crate) const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
pub(super) const PING: u8 = 9;
pub(super) const PONG: u8 = 10;

/// The result of [`Frames::next`].
pub(crate) enum Found {
    /// The input is used up.
    Nothing,
    /// Payload of a message.
    Part(Part),
    /// A control frame: its opcode, where its payload is in the input, and the key that masks it.
    Control(u8, Range<usize>, Option<MaskKey>),
    /// The peer broke a rule: the name of the error in `Hybi::ERRORS`, and a message. The next call skips that frame.
    Broken(&'static str, String),
}

/// Payload of a message, all that is in the input of one frame.
pub(crate) struct Part {
    /// The number of its message.
    pub(crate) message: u64,
    /// Where it is in the input.
    pub(crate) range: Range<usize>,
    /// The key that masks it, turned to its first byte.
    pub(crate) key: Option<MaskKey>,
    /// Of the message: text or binary, and the reserved bits.
    pub(crate) opcode: u8,
    pub(crate) rsv: u8,
    /// Bytes of the frame that are missing behind it.
    pub(crate) missing: u64,
    /// The first part of its message, and the last.
    pub(crate) first: bool,
    pub(crate) last: bool,
}

/// The settings of a connection.
pub(crate) struct Rules {
    /// The longest message, in bytes.
    pub(crate) message_len_max: u64,
    /// Frames have to be masked.
    pub(crate) require_masking: bool,
    /// Frames must not be masked: they come from a server (RFC 6455 §5.1).
    pub(crate) refuse_masking: bool,
    /// Reserved bits that an extension claims on the first frame of a message, as 4, 2 and 1.
    pub(crate) rsv_allowed: u8,
    /// Messages go through extensions, which may make text of them: nothing is validated here.
    pub(crate) raw: bool,
}

/// The most bytes that [`Frames::next`] may leave unread: a header and the payload of a control frame.
const REMAINDER_MAX: usize = 138;

struct Frame {
    opcode: u8,
    fin: bool,
    /// Turned to the next payload byte.
    key: Option<MaskKey>,
    remaining: u64,
}

/// The message that is arriving.
struct Message {
    number: u64,
    opcode: u8,
    rsv: u8,
    /// The sum of the lengths in the headers of its frames so far, in bytes.
    len: u64,
    /// Parts of it were found before.
    begun: bool,
}

pub(crate) struct Frames {
    pub(crate) rules: Rules,
    /// permessage-deflate, where the core does it. No thread parses frames while another one inflates.
    pub(crate) decompressor: Option<Box<Decompressor>>,
    /// Input that was not all used yet. A thread that works on what was found in it owns it too.
    kept: Option<Arc<Vec<u8>>>,
    /// `at < kept.len()`, or 0; what lies before has been used.
    at: usize,
    frame: Option<Frame>,
    message: Option<Message>,
    /// Messages that have begun.
    messages: u64,
    /// The next header is of the frame that broke a rule.
    broken: bool,
    /// The rest of that frame's payload, in bytes.
    skipping: u64,
    stopped: bool,
}

impl Frames {
    pub(crate) fn new(rules: Rules) -> Self {
        Self {
            rules,
            decompressor: None,
            kept: None,
            at: 0,
            frame: None,
            message: None,
            messages: 0,
            broken: false,
            skipping: 0,
            stopped: false,
        }
    }

    /// Bytes held beyond the struct's own, without the message under way, which is a String.
    pub(crate) fn held_len(&self) -> usize {
        self.kept.as_ref().map_or(0, |kept| kept.capacity())
    }

    /// Forgets everything and takes no further input.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
        self.frame = None;
        self.message = None;
        self.decompressor = None;
        self.keep_rest(&[]);
    }

    /// Whether there is input for [`next_kept`](Self::next_kept).
    pub(crate) fn has_kept(&self) -> bool {
        self.kept.is_some()
    }

    /// Keeps input for the next call.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(crate) fn keep(&mut self, input: &[u8]) -> Result<(), TryReserveError> {
        if self.stopped || input.is_empty() {
            return Ok(());
        }
        if let Some(kept) = self.kept.as_mut().and_then(Arc::get_mut)
            && kept.capacity() - kept.len() >= input.len()
        {
            kept.extend_from_slice(input);
            return Ok(());
        }
        let rest = self.kept.as_deref().map_or(&[][..], |kept| &kept[self.at..]);
        let len = rest.len() + input.len();
        // A remainder stays until more arrives: an idle connection has no more than that. The shared buffer is for what is used at once.
        let mut wider = if len <= REMAINDER_MAX { Vec::new() } else { scratch::take() };
        wider.try_reserve_exact(len)?;
        wider.extend_from_slice(rest);
        wider.extend_from_slice(input);
        self.at = 0;
        if let Some(kept) = self.kept.replace(Arc::new(wider)) {
            give(kept);
        }
        Ok(())
    }

    /// [`next`](Self::next) in the input that was kept: also that input, from which on its ranges count, and what was found. The position
    /// is behind that already, so that a call of another thread goes on there while this one works on it. The caller returns the input by
    /// [`give`].
    pub(crate) fn next_kept(&mut self) -> Option<(Arc<Vec<u8>>, usize, Found)> {
        let (kept, at) = (Arc::clone(self.kept.as_ref()?), self.at);
        let (used, found) = self.next(&kept[at..]);
        if matches!(found, Found::Nothing) || at + used == kept.len() {
            self.keep_rest(&kept[at + used..]);
        } else {
            self.at = at + used;
        }
        Some((kept, at, found))
    }

    /// Keeps `rest`, a copy, in place of what was kept.
    fn keep_rest(&mut self, rest: &[u8]) {
        self.at = 0;
        let rest = (!rest.is_empty()).then(|| Arc::new(rest.to_vec()));
        if let Some(kept) = std::mem::replace(&mut self.kept, rest) {
            give(kept);
        }
    }

    /// The next part of a message or control frame in `input`, and how many bytes were used. When nothing is found, what was not
    /// used has to be kept: up to 138 bytes.
    #[inline]
    pub(crate) fn next(&mut self, input: &[u8]) -> (usize, Found) {
        let mut at = 0;
        if self.stopped {
            return (input.len(), Found::Nothing);
        }
        if self.broken || self.skipping > 0 {
            at = self.skip(input);
            if self.broken || self.skipping > 0 {
                return (at, Found::Nothing);
            }
        }
        let mut frame = match self.frame.take() {
            Some(frame) => frame,
            None => match self.header(&input[at..]) {
                Ok(Some((frame, len))) => {
                    at += len;
                    frame
                }
                Ok(None) => return (at, Found::Nothing),
                Err((kind, message)) => {
                    self.broken = true;
                    self.message = None;
                    return (at, Found::Broken(kind, message));
                }
            },
        };
        let buffered = input.len() - at;
        let len = usize::try_from(frame.remaining).map_or(buffered, |remaining| remaining.min(buffered));
        let range = at..at + len;
        let whole = len as u64 == frame.remaining;
        if frame.opcode >= CLOSE {
            if !whole {
                self.frame = Some(frame);
                return (at, Found::Nothing);
            }
            return (range.end, Found::Control(frame.opcode, range, frame.key));
        }
        if len == 0 && !whole {
            self.frame = Some(frame);
            return (at, Found::Nothing);
        }
        let Some(message) = &mut self.message else { return (range.end, Found::Nothing) };
        let (key, last) = (frame.key, whole && frame.fin);
        frame.remaining -= len as u64;
        let part = Part {
            message: message.number,
            range: range.clone(),
            key,
            opcode: message.opcode,
            rsv: message.rsv,
            missing: frame.remaining,
            first: !std::mem::replace(&mut message.begun, true),
            last,
        };
        if last {
            self.message = None;
        } else if !whole {
            frame.key = key.map(|key| key.advanced(len));
            self.frame = Some(frame);
        }
        (range.end, Found::Part(part))
    }

    /// Refuses the message of the part that was found last: skips what is missing of its frame, and forgets the message.
    #[cold]
    pub(crate) fn refuse_message(&mut self) {
        self.skipping = self.frame.take().map_or(0, |frame| frame.remaining);
        self.message = None;
    }

    /// Skips what `input` holds of a frame that broke a rule; returns how many bytes that was.
    #[cold]
    fn skip(&mut self, input: &[u8]) -> usize {
        let mut at = 0;
        if self.broken {
            let Some((len, end)) = extent(input) else { return 0 };
            (self.broken, self.skipping, at) = (false, len, end);
        }
        let skipped = self.skipping.min((input.len() - at) as u64);
        self.skipping -= skipped;
        at + skipped as usize
    }

    /// The next header and its length, once it is complete. Rules are checked as soon as the bytes they need have arrived.
    #[inline]
    fn header(&mut self, bytes: &[u8]) -> Result<Option<(Frame, usize)>, (&'static str, String)> {
        let Some(&first) = bytes.first() else { return Ok(None) };
        let (fin, rsv, opcode) = (first & FIN != 0, first >> 4 & 7, first & 0xF);
        let opens = opcode == TEXT || opcode == BINARY;
        if rsv != 0 && (!opens || rsv & !self.rules.rsv_allowed != 0) {
            let bit = |bit: u8| u8::from(rsv & bit != 0);
            let message = format!(
                "One or more reserved bits are on: reserved1 = {}, reserved2 = {}, reserved3 = {}",
                bit(4),
                bit(2),
                bit(1)
            );
            return Err(("protocol_error", message));
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
            let message = format!("Received control frame having too long payload: {len}");
            return Err(("protocol_error", message));
        }
        self.check_len(control, len)?;
        // RFC 6455 §5.2: the minimal number of bytes MUST be used to encode the length.
        if len < least {
            let message = format!("Received frame length {len} in a form for longer ones");
            return Err(("protocol_error", message));
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
                None if opens => {
                    self.messages += 1;
                    self.message = Some(Message { number: self.messages, opcode, rsv, len, begun: false });
                }
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

/// Returns input that was kept; its last owner has the buffer for other connections.
pub(crate) fn give(kept: Arc<Vec<u8>>) {
    if let Some(kept) = Arc::into_inner(kept) {
        scratch::give(kept);
    }
}

/// The lengths of a frame's payload and of its header, once the header is complete, whatever else is wrong with it.
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
