//! Decodes frames into messages and parts of messages, without buffers: the order of frames (RFC 6455 §5.2–§5.5), unmasking and UTF-8
//! validation in one pass, limits. The layers above assemble, inflate and answer.
//!
//! ```text
//!            +-- uncompressed message in one frame, completely buffered: the fast path, no state change --+
//!            |                                                                                            v
//! bytes -> header (kept over splits) -> data frame ----> payload, in place -------------------------> Item
//!                                    \-> control frame -> payload (kept over splits) ---------------/
//! ```

use crate::error::{Error, LimitExceeded, PeerMisbehaved};
use crate::event::Whole;
use crate::frame::{FIN, HEADER_LEN_MAX, Header, HeaderLog, MASK};
use crate::limits::{FRAGMENT_LEN_EXCUSED, Limits};
use crate::mask::{self, MaskKey};
use crate::opcode::{Kind, Opcode};
use crate::owned::OwnedMessage;
use crate::role::Role;
use crate::utf8::{self, InvalidUtf8};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// First bytes of messages in one frame.
const WHOLE_TEXT: u8 = FIN | Opcode::Text as u8;
const WHOLE_BINARY: u8 = FIN | Opcode::Binary as u8;

/// The result of a call, with offsets into the input, where payloads are unmasked in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// All input was consumed and nothing is complete.
    Nothing,
    /// A complete message, uncompressed.
    Message { whole: Whole, at: usize, len: usize },
    /// A part of a message, up to the end of a frame or of the input. Text is valid, except that its last code point may continue in
    /// the next part. `end` is set for the last one, with the kind of the message.
    Chunk { kind: Kind, end: Option<Whole>, at: usize, len: usize },
    /// A part of a compressed message, or all of it: DEFLATE blocks (RFC 7692 §6.2), not validated.
    Compressed { kind: Kind, fin: bool, at: usize, len: usize },
    /// A control frame. The payload is in the input at `at`, or in the decoder when that is `None`.
    Control { opcode: Opcode, at: Option<usize>, len: usize },
}

/// The element that the next byte belongs to.
#[derive(Clone, Copy, Debug)]
enum State {
    /// The first frame of a message, or a control frame before it: the fast path may take it.
    Idle,
    /// A header that the fast path does not take: a part of it has arrived, its frame is inside of a message, headers are logged, or the
    /// layer above has something to deliver first.
    Header,
    /// The payload of this frame.
    Payload(Frame),
    /// Nothing: the peer broke this rule or limit.
    Failed(Error),
    /// Nothing: further input is dropped (RFC 6455 §1.4).
    Closed,
}

/// Decodes the frames of one direction of a connection. It stores no payloads of messages.
#[derive(Debug)]
pub(crate) struct Decoder {
    sender: Role,
    /// 4 when permessage-deflate was negotiated, else 0.
    rsv_allowed: u8,
    state: State,
    /// MASK if the sender masks, else 0.
    mask_bit: u8,
    /// The longest payload of a message in one frame, in bytes.
    whole_len_max: usize,
    header_len: u8,
    /// The first `header_len` bytes of an incomplete header.
    header: [u8; HEADER_LEN_MAX],
    message: Option<Message>,
    utf8: utf8::Validator,
    /// The payload of a control frame that arrived in several pieces; kept until the next one begins.
    control: Vec<u8>,
    frame_len_max: u64,
    message_len_max: u64,
    fragments_spare: u64,
    /// Headers of the frames that have begun, if they are logged.
    log: Option<Box<HeaderLog>>,
}

/// The frame whose payload is arriving.
#[derive(Clone, Copy, Debug)]
struct Frame {
    opcode: Opcode,
    fin: bool,
    /// Rotated to the next payload byte.
    key: Option<MaskKey>,
    remaining: u64,
}

/// The message whose fragments are arriving.
#[derive(Clone, Copy, Debug)]
struct Message {
    kind: Kind,
    compressed: bool,
    /// A part of it has been returned.
    started: bool,
    /// Announced payload so far, in bytes; `len <= message_len_max`.
    len: u64,
    fragments: u64,
}

/// Unmasks the payload of a whole message, and validates text. A trait, because a closure is not inlined here, which costs a tenth more
/// instructions.
trait Unmask {
    type Message;

    /// `None` after invalid text: the decoder has failed.
    fn unmask(
        decoder: &mut Decoder,
        kind: Kind,
        data: &mut [u8],
        key: Option<MaskKey>,
    ) -> Option<Self::Message>;
}

/// In place.
struct InPlace;

impl Unmask for InPlace {
    type Message = Whole;

    #[inline(always)]
    fn unmask(decoder: &mut Decoder, kind: Kind, data: &mut [u8], key: Option<MaskKey>) -> Option<Whole> {
        let valid = match (kind, key) {
            (Kind::Binary, None) => return Some(Whole::Binary),
            (Kind::Binary, Some(key)) => {
                mask::apply(data, key);
                return Some(Whole::Binary);
            }
            (Kind::Text, None) => utf8::validate_text(data),
            (Kind::Text, Some(key)) => utf8::unmask_validate_text(data, key),
        };
        decoder.or_fail(valid).map(Whole::Text)
    }
}

/// While copying it into an allocation of its own. A copy after unmasking in place would be slower: its loads are wider than the stores
/// before them, so the processor cannot forward the bytes and waits.
struct Owned;

impl Unmask for Owned {
    type Message = OwnedMessage;

    #[inline(always)]
    fn unmask(
        decoder: &mut Decoder,
        kind: Kind,
        data: &mut [u8],
        key: Option<MaskKey>,
    ) -> Option<OwnedMessage> {
        let key = key.unwrap_or_default();
        let (copy, whole) = match kind {
            Kind::Binary => {
                let mut copy = Vec::with_capacity(data.len());
                mask::extend(&mut copy, data, key);
                (copy, Whole::Binary)
            }
            Kind::Text => {
                let (copy, valid) = decoder.or_fail(utf8::unmasked_copy(data, key))?;
                (copy, Whole::Text(valid))
            }
        };
        Some(whole.with_payload(copy.into()))
    }
}

impl Decoder {
    /// A decoder for the frames of a peer in the role `sender`. `compression` allows RSV1 (RFC 7692 §6).
    pub(crate) fn new(sender: Role, compression: bool, limits: &Limits) -> Self {
        Self {
            sender,
            rsv_allowed: if compression { 4 } else { 0 },
            state: State::Idle,
            mask_bit: match sender {
                Role::Client => MASK,
                Role::Server => 0,
            },
            whole_len_max: usize::try_from(limits.frame_len_max.min(limits.message_len_max))
                .unwrap_or(usize::MAX),
            header_len: 0,
            header: [0; HEADER_LEN_MAX],
            message: None,
            utf8: utf8::Validator::new(),
            control: Vec::new(),
            frame_len_max: limits.frame_len_max,
            message_len_max: limits.message_len_max,
            fragments_spare: limits.fragments_spare,
            log: None,
        }
    }

    /// Bytes of the current data frame that have not arrived; 0 between frames, within a header or a control frame.
    #[inline]
    pub(crate) fn payload_remaining(&self) -> u64 {
        match self.state {
            State::Payload(frame) if !frame.opcode.is_control() => frame.remaining,
            _ => 0,
        }
    }

    /// Whether another frame of the current message is expected behind the current one.
    pub(crate) fn is_fragmented(&self) -> bool {
        match self.state {
            State::Payload(frame) => !frame.fin,
            _ => self.message.is_some(),
        }
    }

    /// The complete state of an idle decoder: the role of the sender, and the limits of frames, messages and fragments. `None` if it is not
    /// idle.
    pub(crate) fn idle(&self) -> Option<(Role, u64, u64, u64)> {
        (self.is_idle() && self.rsv_allowed == 0).then_some((
            self.sender,
            self.frame_len_max,
            self.message_len_max,
            self.fragments_spare,
        ))
    }

    #[inline(always)]
    const fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    /// Logs the headers of frames from now on, for [`Decoder::take_headers`]. The fast path logs none.
    pub(crate) fn log_headers(&mut self) {
        self.skip_fast_path();
        self.log.get_or_insert_default();
    }

    /// The headers that were logged since the last call.
    pub(crate) fn take_headers(&mut self) -> Vec<Header> {
        self.log.as_mut().map(|log| core::mem::take(&mut log.headers)).unwrap_or_default()
    }

    /// The next frame does not take the fast path, because the layer above has something to deliver first.
    pub(crate) fn skip_fast_path(&mut self) {
        if self.is_idle() {
            self.state = State::Header;
        }
    }

    /// Drops all further input.
    pub(crate) fn close(&mut self) {
        self.state = State::Closed;
    }

    /// Whether all further input is dropped.
    #[inline]
    pub(crate) const fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// The payload of the control frame that [`Item::Control`] announced without an offset.
    #[inline]
    pub(crate) fn control(&self) -> &[u8] {
        &self.control
    }

    /// Consumes bytes from the front of `bytes` up to the end of the next item; returns their number and the item. Payloads are
    /// unmasked in place; the bytes behind the item are not changed.
    ///
    /// # Errors
    /// The rule or limit that the peer broke; every later call returns the same error.
    #[inline]
    pub(crate) fn decode(&mut self, bytes: &mut [u8]) -> Result<(usize, Item), Error> {
        match self.whole_message(bytes) {
            Some((whole, at, len)) => Ok((at + len, Item::Message { whole, at, len })),
            None => self.decode_general(bytes),
        }
    }

    /// The fast path: an uncompressed message in one frame that is completely buffered, with its offset and length. `None` for
    /// everything else, and for errors.
    #[inline(always)]
    pub(crate) fn whole_message(&mut self, bytes: &mut [u8]) -> Option<(Whole, usize, usize)> {
        self.whole_with::<InPlace>(bytes)
    }

    /// [`Decoder::whole_message`], owned, with the length of its frame.
    #[inline(always)]
    pub(crate) fn whole_owned(&mut self, bytes: &mut [u8]) -> Option<(OwnedMessage, usize)> {
        let (message, at, len) = self.whole_with::<Owned>(bytes)?;
        Some((message, at + len))
    }

    /// A whole message, with the offset and length of its payload.
    #[inline(always)]
    fn whole_with<U: Unmask>(&mut self, bytes: &mut [u8]) -> Option<(U::Message, usize, usize)> {
        let &mut [first, second, ..] = bytes else { return None };
        let kind = match first {
            WHOLE_TEXT => Kind::Text,
            WHOLE_BINARY => Kind::Binary,
            _ => return None,
        };
        if !self.is_idle() {
            return None;
        }
        // A wrong mask bit makes this 128 or more.
        let len7 = second ^ self.mask_bit;
        if len7 >= 126 {
            return self.whole_extended::<U>(bytes, kind, len7);
        }
        // With constant offsets the compiler checks one bound only.
        let len = usize::from(len7);
        if len > self.whole_len_max {
            return None;
        }
        if self.mask_bit == 0 {
            let message = U::unmask(self, kind, bytes.get_mut(2..2 + len)?, None)?;
            Some((message, 2, len))
        } else {
            let ([_, _, key @ ..], data) = bytes.get_mut(..6 + len)?.split_first_chunk_mut::<6>()?;
            let message = U::unmask(self, kind, data, Some(MaskKey::new(*key)))?;
            Some((message, 6, len))
        }
    }

    /// The fast path of a payload of 126 bytes and more.
    #[inline(always)]
    fn whole_extended<U: Unmask>(
        &mut self,
        bytes: &mut [u8],
        kind: Kind,
        len7: u8,
    ) -> Option<(U::Message, usize, usize)> {
        let (len, key_at) = extended_len(bytes, len7)?;
        let at = key_at + usize::from(self.mask_bit >> 5);
        if len > self.whole_len_max || bytes.len() < at + len {
            return None;
        }
        let (head, rest) = bytes.split_at_mut(at);
        let key = if self.mask_bit == 0 { None } else { Some(MaskKey::new(*head.last_chunk()?)) };
        let message = U::unmask(self, kind, &mut rest[..len], key)?;
        Some((message, at, len))
    }

    #[inline(always)]
    fn or_fail<T>(&mut self, valid: Result<T, InvalidUtf8>) -> Option<T> {
        if valid.is_err() {
            self.state = State::Failed(PeerMisbehaved::InvalidUtf8.into());
        }
        valid.ok()
    }

    /// The length of a frame with this payload, in bytes.
    pub(crate) fn frame_len(&self, payload_len: usize) -> usize {
        let mask = (self.mask_bit == MASK).then(MaskKey::default);
        let header =
            Header { fin: true, rsv: 0, opcode: Opcode::Binary, mask, payload_len: payload_len as u64 };
        payload_len.saturating_add(header.encoded_len())
    }

    /// How many bytes of the message at the front of `bytes` are missing, 1 within its header; `None` if none is, or unless
    /// [`Decoder::whole_message`] will find it, or its text to be invalid, once they have arrived.
    pub(crate) fn missing_len(&self, bytes: &[u8]) -> Option<usize> {
        if !self.is_idle() || !matches!(bytes.first(), Some(&(WHOLE_TEXT | WHOLE_BINARY))) {
            return None;
        }
        let Some((header, at)) = Header::decode(bytes, self.sender, self.rsv_allowed).ok()? else {
            return Some(1);
        };
        let len = usize::try_from(header.payload_len).ok().filter(|&len| len <= self.whole_len_max)?;
        at.checked_add(len)?.checked_sub(bytes.len()).filter(|&missing| missing > 0)
    }

    /// Whether a message in one frame is whole at the front of `bytes`, so that the next item is this message, or an error.
    pub(crate) fn has_whole(&self, bytes: &[u8]) -> bool {
        if !self.is_idle() {
            return false;
        }
        let Ok(Some((header, at))) = Header::decode(bytes, self.sender, self.rsv_allowed) else {
            return false;
        };
        header.fin && !header.opcode.is_control() && header.payload_len <= (bytes.len() - at) as u64
    }

    /// The general path: frames split anywhere, fragments, control frames, compressed messages, errors.
    #[cold]
    #[inline(never)]
    fn decode_general(&mut self, bytes: &mut [u8]) -> Result<(usize, Item), Error> {
        let decoded = self.decode_frames(bytes);
        if let Err(error) = decoded {
            self.state = State::Failed(error);
        }
        decoded
    }

    fn decode_frames(&mut self, bytes: &mut [u8]) -> Result<(usize, Item), Error> {
        let mut used = 0;
        loop {
            let frame = match self.state {
                State::Payload(frame) => frame,
                State::Idle | State::Header => {
                    let Some((header, len)) = self.read_header(&bytes[used..])? else {
                        return Ok((bytes.len(), Item::Nothing));
                    };
                    used += len;
                    self.begin_frame(&header)?
                }
                State::Failed(error) => return Err(error),
                State::Closed => return Ok((bytes.len(), Item::Nothing)),
            };
            let rest = &mut bytes[used..];
            let len =
                usize::try_from(frame.remaining).map_or(rest.len(), |remaining| remaining.min(rest.len()));
            let item = if frame.opcode.is_control() {
                self.read_control(frame, &mut rest[..len], used)
            } else {
                self.read_data(frame, &mut rest[..len], used)?
            };
            used += len;
            if !matches!(item, Item::Nothing) || used == bytes.len() {
                return Ok((used, item));
            }
        }
    }

    /// The state behind `frame`, of which `remaining` bytes are missing.
    fn continue_frame(&mut self, frame: Frame) {
        self.state = if frame.remaining > 0 {
            State::Payload(frame)
        } else if self.message.is_some() || self.log.is_some() {
            State::Header
        } else {
            State::Idle
        };
    }

    /// The next header, and how many of `bytes` it has; `None` if it has all of them and is incomplete.
    fn read_header(&mut self, bytes: &[u8]) -> Result<Option<(Header, usize)>, Error> {
        let kept = usize::from(self.header_len);
        if kept == 0
            && let Some(found) = Header::decode(bytes, self.sender, self.rsv_allowed)?
        {
            return Ok(Some(found));
        }
        let taken = bytes.len().min(HEADER_LEN_MAX - kept);
        self.header[kept..kept + taken].copy_from_slice(&bytes[..taken]);
        match Header::decode(&self.header[..kept + taken], self.sender, self.rsv_allowed)? {
            Some((header, len)) => {
                self.header_len = 0;
                Ok(Some((header, len - kept)))
            }
            None => {
                // A header of 14 bytes is complete, so `kept + taken` is less.
                self.header_len = (kept + taken) as u8;
                if self.header_len > 0 {
                    self.state = State::Header;
                }
                Ok(None)
            }
        }
    }

    /// Checks a header against the current message and the limits. Returns its frame.
    fn begin_frame(&mut self, header: &Header) -> Result<Frame, Error> {
        if let Some(log) = &mut self.log {
            log.headers.push(*header);
        }
        if header.opcode.is_control() {
            self.control.clear();
        } else {
            if header.payload_len > self.frame_len_max {
                return Err(LimitExceeded::FrameTooLarge {
                    len: header.payload_len,
                    max: self.frame_len_max,
                }
                .into());
            }
            let begin = |kind| Message {
                kind,
                compressed: header.rsv & 4 != 0,
                started: false,
                len: 0,
                fragments: 0,
            };
            // RFC 6455 §5.4: the fragments of one message MUST NOT be interleaved with those of another.
            let mut message = match (header.opcode, self.message) {
                (Opcode::Continuation, None) => return Err(PeerMisbehaved::UnexpectedContinuation.into()),
                (Opcode::Continuation, Some(message)) => message,
                (_, Some(_)) => return Err(PeerMisbehaved::UnfinishedMessage.into()),
                (Opcode::Text, None) => begin(Kind::Text),
                (_, None) => begin(Kind::Binary),
            };
            message.len += header.payload_len;
            if message.len > self.message_len_max {
                return Err(LimitExceeded::MessageTooLarge { max: self.message_len_max }.into());
            }
            message.fragments += 1;
            if message.fragments
                > self.fragments_spare.saturating_add(message.len / FRAGMENT_LEN_EXCUSED).max(1)
            {
                return Err(LimitExceeded::TooManyFragments.into());
            }
            self.message = Some(message);
        }
        Ok(Frame { opcode: header.opcode, fin: header.fin, key: header.mask, remaining: header.payload_len })
    }

    /// Handles `payload` of a control frame, at `at` of the input.
    fn read_control(&mut self, mut frame: Frame, payload: &mut [u8], at: usize) -> Item {
        let whole = self.control.is_empty() && payload.len() as u64 == frame.remaining;
        if let Some(key) = frame.key {
            frame.key = Some(mask::apply(payload, key));
        }
        frame.remaining -= payload.len() as u64;
        self.continue_frame(frame);
        if whole {
            return Item::Control { opcode: frame.opcode, at: Some(at), len: payload.len() };
        }
        self.control.extend_from_slice(payload);
        if frame.remaining > 0 {
            return Item::Nothing;
        }
        Item::Control { opcode: frame.opcode, at: None, len: self.control.len() }
    }

    /// Handles `data` of a data frame, at `at` of the input.
    fn read_data(&mut self, mut frame: Frame, data: &mut [u8], at: usize) -> Result<Item, Error> {
        let Some(mut message) = self.message else { return Ok(Item::Nothing) };
        let len = data.len();
        let Message { kind, compressed, .. } = message;
        let is_text = kind == Kind::Text && !compressed;
        // RFC 6455 §8.1: text that is not UTF-8 MUST fail the connection; here, at the first impossible byte.
        let valid = match frame.key {
            Some(key) if is_text => self.utf8.push_masked(data, key).map(|key| frame.key = Some(key)),
            Some(key) => {
                frame.key = Some(mask::apply(data, key));
                Ok(())
            }
            None if is_text => self.utf8.push(data),
            None => Ok(()),
        };
        valid.map_err(|_| PeerMisbehaved::InvalidUtf8)?;
        frame.remaining -= len as u64;
        let fin = frame.fin && frame.remaining == 0;
        let whole = if fin && is_text {
            Whole::Text(self.utf8.finish_text().map_err(|_| PeerMisbehaved::InvalidUtf8)?)
        } else {
            Whole::Binary
        };
        let first = !message.started;
        message.started |= len > 0;
        self.message = if fin { None } else { Some(message) };
        self.continue_frame(frame);
        Ok(match (compressed, first, fin) {
            (.., false) if len == 0 => Item::Nothing,
            (true, ..) => Item::Compressed { kind, fin, at, len },
            (false, true, true) => Item::Message { whole, at, len },
            (false, ..) => Item::Chunk { kind, end: fin.then_some(whole), at, len },
        })
    }
}

/// An extended length and the offset behind it; `None` if it is incomplete or breaks a rule.
fn extended_len(bytes: &[u8], len7: u8) -> Option<(usize, usize)> {
    match len7 {
        126 => {
            let len = usize::from(u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?]));
            (len > 125).then_some((len, 4))
        }
        127 => {
            let field = bytes.get(2..10)?.first_chunk()?;
            let len = usize::try_from(u64::from_be_bytes(*field)).ok()?;
            // `decode_general` handles lengths beyond the buffer, whose sums could overflow, and those not in the shortest form.
            (len > 0xFFFF && len < bytes.len()).then_some((len, 10))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;
    use alloc::vec;
    use wireloom_testing::frame::Frame;

    fn server() -> Decoder {
        Decoder::new(Role::Client, false, &Limits::default())
    }

    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let frame = Frame::new(first, payload).fin(first & FIN != 0).rsv(first >> 4);
        frame.mask([0x11, 0x22, 0x83, 0x44]).bytes()
    }

    /// All messages and control frames of a stream that is fed `step` bytes at a time, with chunks joined.
    fn decode_all(decoder: &mut Decoder, stream: &[u8], step: usize) -> Result<Vec<String>, Error> {
        let (mut found_all, mut message) = (Vec::new(), String::new());
        for piece in stream.chunks(step) {
            let mut piece = piece.to_vec();
            let mut at = 0;
            while at < piece.len() {
                let begin = at;
                let (used, item) = decoder.decode(&mut piece[begin..])?;
                at += used;
                let payload = |at: usize, len: usize| &piece[begin + at..begin + at + len];
                match item {
                    Item::Nothing => assert_eq!(at, piece.len()),
                    Item::Message { whole: Whole::Text(valid), at, len } => {
                        found_all.push(String::from(valid.text(payload(at, len))));
                    }
                    Item::Message { whole: Whole::Binary, at, len } => {
                        found_all.push(String::from_utf8_lossy(payload(at, len)).into_owned());
                    }
                    Item::Compressed { .. } => panic!("no compression"),
                    Item::Chunk { end, at, len, .. } => {
                        message.extend(payload(at, len).iter().map(|&b| char::from(b)));
                        if end.is_some() {
                            found_all.push(core::mem::take(&mut message));
                        }
                    }
                    Item::Control { opcode, at, len } => {
                        let payload = at.map_or(decoder.control(), |at| payload(at, len));
                        assert_eq!(payload.len(), len);
                        found_all.push(alloc::format!("{opcode:?} {payload:?}"));
                    }
                }
            }
        }
        Ok(found_all)
    }

    // RFC 6455 §5.4: control frames may come between fragments.
    #[test]
    fn decodes_the_same_messages_at_every_split() {
        let mut stream = Vec::new();
        stream.extend(frame(0x81, b"Hello"));
        stream.extend(frame(0x82, &[b'x'; 300]));
        stream.extend(frame(0x01, b""));
        stream.extend(frame(0x00, b"Hel"));
        stream.extend(frame(0x89, b"are you there"));
        stream.extend(frame(0x00, b"lo"));
        stream.extend(frame(0x80, b""));
        stream.extend(frame(0x81, b""));
        stream.extend(frame(0x8A, b""));
        stream.extend(frame(0x82, &vec![b'y'; if cfg!(miri) { 700 } else { 70_000 }]));
        stream.extend(frame(0x88, b"\x03\xe8"));
        let whole = decode_all(&mut server(), &stream, stream.len()).unwrap();
        assert_eq!(whole.len(), 8);
        assert_eq!(whole[3], "Hello");
        let steps: &[usize] =
            if cfg!(miri) { &[1, 7, 64, 1000] } else { &[1, 2, 3, 5, 7, 13, 64, 1000, 65_536] };
        for &step in steps {
            assert_eq!(decode_all(&mut server(), &stream, step).unwrap(), whole, "step {step}");
        }
    }

    // RFC 6455 §8.1.
    #[test]
    fn rejects_text_at_its_first_impossible_byte() {
        let stream = frame(0x81, b"ab\xed\xa0\x80cdef");
        for cut in 0..stream.len() {
            let mut decoder = server();
            let found = decode_all(&mut decoder, &stream[..cut], 1);
            // Six bytes of header, `a`, `b`, ED, and then A0 makes a surrogate.
            assert_eq!(found.is_err(), cut > 6 + 3, "cut {cut}");
        }
        assert_eq!(
            decode_all(&mut server(), &frame(0x81, b"\xe2\x82"), 100),
            Err(PeerMisbehaved::InvalidUtf8.into())
        );
    }

    #[test]
    fn returns_the_same_error_again() {
        let mut decoder = server();
        for _ in 0..3 {
            let error = decoder.decode(&mut [0x83]).map(drop).unwrap_err();
            assert_eq!(error, PeerMisbehaved::ReservedOpcode(3).into());
        }
    }

    #[test]
    fn bounds_frames_and_messages() {
        let limits = Limits { frame_len_max: 10, message_len_max: 15, ..Limits::default() };
        let decoder = || Decoder::new(Role::Client, false, &limits);
        let decode = |stream: &[u8]| decode_all(&mut decoder(), stream, 100);
        assert!(decode(&frame(0x82, &[0; 10])).is_ok());
        assert_eq!(
            decode(&frame(0x82, &[0; 11])),
            Err(LimitExceeded::FrameTooLarge { len: 11, max: 10 }.into())
        );
        let two = |second: usize| [frame(0x02, &[b'a'; 10]), frame(0x80, &vec![b'b'; second])].concat();
        assert!(decode(&two(5)).is_ok());
        assert_eq!(decode(&two(6)), Err(LimitExceeded::MessageTooLarge { max: 15 }.into()));
    }

    #[test]
    fn bounds_fragments_by_their_payload() {
        let limits = Limits { fragments_spare: 4, ..Limits::default() };
        let run = |fragment: &[u8], count: usize| {
            let mut stream = frame(0x02, fragment);
            for _ in 1..count {
                stream.extend(frame(0x00, fragment));
            }
            decode_all(&mut Decoder::new(Role::Client, false, &limits), &stream, 1 << 20).map(drop)
        };
        assert_eq!(run(b"", 4), Ok(()));
        assert_eq!(run(b"", 5), Err(LimitExceeded::TooManyFragments.into()));
        assert_eq!(run(&[b'x'; 16], if cfg!(miri) { 100 } else { 10_000 }), Ok(()));
        assert_eq!(run(&[b'x'; 15], 64), Ok(()));
        assert_eq!(run(&[b'x'; 15], 65), Err(LimitExceeded::TooManyFragments.into()));
    }

    // RFC 6455 §5.2, §10.4: the fast path has the same bounds and forms of lengths.
    #[test]
    fn bounds_a_message_on_the_fast_path() {
        let maxima: &[u64] =
            if cfg!(miri) { &[125, 1000] } else { &[100, 125, 126, 1000, 65_535, 65_536, 70_000] };
        for &max in maxima {
            for limits in [
                Limits { frame_len_max: max, ..Limits::default() },
                Limits { message_len_max: max, ..Limits::default() },
            ] {
                for (len, fits) in [(max - 1, true), (max, true), (max + 1, false)] {
                    let mut wire = frame(0x82, &vec![7; len as usize]);
                    let mut decoder = Decoder::new(Role::Client, false, &limits);
                    assert_eq!(decoder.decode(&mut wire).is_ok(), fits, "{len} of {max}");
                    let missing = Decoder::new(Role::Client, false, &limits).missing_len(&wire[..20]);
                    assert_eq!(missing, fits.then(|| wire.len() - 20));
                }
            }
        }
    }

    // RFC 6455 §5.2: the minimal number of bytes MUST be used, and the highest bit MUST be 0.
    #[test]
    fn rejects_a_non_minimal_length_on_the_fast_path() {
        let payload = vec![7; 70_000];
        let decode = |len7: u8, extended: &[u8]| {
            let mut wire = [&[0x82, 0x80 | len7], extended, &[0; 4], &payload].concat();
            server().decode(&mut wire).map(|(used, _)| used)
        };
        let non_minimal = Err(PeerMisbehaved::NonMinimalLength.into());
        assert_eq!(decode(126, &125u16.to_be_bytes()), non_minimal);
        assert_eq!(decode(126, &126u16.to_be_bytes()), Ok(8 + 126));
        assert_eq!(decode(127, &1000u64.to_be_bytes()), non_minimal);
        assert_eq!(decode(127, &0xFFFFu64.to_be_bytes()), non_minimal);
        assert_eq!(decode(127, &0x1_0000u64.to_be_bytes()), Ok(14 + 0x1_0000));
        let too_long = LimitExceeded::FrameTooLarge { len: (1 << 63) - 1, max: 64 << 20 }.into();
        assert_eq!(decode(127, &((1u64 << 63) - 1).to_be_bytes()), Err(too_long));
        assert_eq!(decode(127, &u64::MAX.to_be_bytes()), Err(PeerMisbehaved::LengthOutOfRange.into()));
        let unbounded = Limits { frame_len_max: u64::MAX, message_len_max: u64::MAX, ..Limits::default() };
        let mut wire = [&[0x82, 0xFF][..], &[0xFF; 8], &[0; 4]].concat();
        let decoded = Decoder::new(Role::Client, false, &unbounded).decode(&mut wire).map(|(used, _)| used);
        assert_eq!(decoded, Err(PeerMisbehaved::LengthOutOfRange.into()));
    }

    // RFC 6455 §5.5.2, §5.5.3, and RFC 7692 §6.2.
    #[test]
    fn returns_control_frames_and_compressed_parts() {
        let mut decoder = Decoder::new(Role::Client, true, &Limits::default());
        let mut wire = [frame(0x8A, b"pong"), frame(0x41, b"DEF"), frame(0x80, b"LATE")].concat();
        let decoded = decoder.decode(&mut wire).unwrap();
        assert_eq!(decoded, (10, Item::Control { opcode: Opcode::Pong, at: Some(6), len: 4 }));
        let decoded = decoder.decode(&mut wire[10..]).unwrap();
        assert_eq!(decoded, (9, Item::Compressed { kind: Kind::Text, fin: false, at: 6, len: 3 }));
        let decoded = decoder.decode(&mut wire[19..]).unwrap();
        assert_eq!(decoded, (10, Item::Compressed { kind: Kind::Text, fin: true, at: 6, len: 4 }));
        assert_eq!(
            [&wire[6..10], &wire[16..19], &wire[25..]],
            [&b"pong"[..], b"DEF", b"LATE"],
            "unmasked in place"
        );
    }

    // RFC 6455 §8.1: also in unmasked text.
    #[test]
    fn rejects_invalid_text_in_the_fragments_of_a_server() {
        let mut decoder = Decoder::new(Role::Server, false, &Limits::default());
        assert!(decoder.decode(&mut [0x01, 2, b'a', 0xC3]).is_ok());
        assert_eq!(decoder.decode(&mut [0x00, 1, b'a']), Err(PeerMisbehaved::InvalidUtf8.into()));
    }

    #[test]
    fn payload_remaining_counts_data_frames_only() {
        let mut decoder = server();
        let mut wire = frame(0x02, &[7; 10]);
        assert!(decoder.decode(&mut wire[..10]).is_ok());
        assert_eq!(decoder.payload_remaining(), 6);
        let mut decoder = server();
        let mut wire = frame(0x89, &[7; 10]);
        assert!(decoder.decode(&mut wire[..10]).is_ok());
        assert_eq!(decoder.payload_remaining(), 0);
    }
}
