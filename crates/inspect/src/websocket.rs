//! The frames of one direction of a WebSocket (RFC 6455 §5, RFC 7692 §6): unmasked, inflated, reassembled. Unlike an end
//! of the connection it continues after a violation as long as the next frame can be found.

use wireloom_ws::deflate::{Decompressor, DeflateParams, InflateError, InflateLimit};
use wireloom_ws::frame::{CONTROL_LEN_MAX, HEADER_LEN_MAX, Header};
use wireloom_ws::mask::{self, MaskKey};
use wireloom_ws::utf8::Validator;
use wireloom_ws::{CloseCode, CloseFrame, Opcode, Role};
use wireloom_ws::{PeerMisbehaved, role};

use crate::entry::{Context, Direction, Entry, Payload, Protocol};
use crate::limits::{Budget, Content, Reservation};

/// The longest plausible frame, in bytes, if decoding starts in the middle of a connection.
const PLAUSIBLE_LEN_MAX: u64 = 16 << 20;

/// The size of a compression window in use, in bytes, as the budget counts it.
const WINDOW_LEN: usize = 32 << 10;

/// The frames of one direction.
#[derive(Debug)]
pub(crate) struct Frames {
    sender: Role,
    inflater: Option<Inflater>,
    state: State,
    message: Option<Message>,
    close_sent: bool,
}

#[derive(Debug)]
enum State {
    /// The bytes of a header that have arrived.
    Header(Vec<u8>),
    Payload(Box<Frame>),
    /// The next frame cannot be found in the bytes.
    Lost {
        skipped: u64,
    },
}

/// A header as it is on the wire, valid or not. The decoder of `wireloom-ws` cannot be used, because it rejects invalid
/// headers, which are to be shown.
#[derive(Clone, Copy, Debug)]
struct RawHeader {
    first: u8,
    masked: bool,
    key: Option<MaskKey>,
    payload_len: u64,
    len: usize,
}

/// The frame whose payload arrives.
#[derive(Debug)]
struct Frame {
    raw: RawHeader,
    opcode: Option<Opcode>,
    entry: Entry,
    key: Option<MaskKey>,
    remaining: u64,
    /// The payload of this frame. If a message has only one frame, `Message` holds it instead.
    content: Content,
    missing: u64,
}

/// The message whose fragments arrive.
#[derive(Debug)]
struct Message {
    text: bool,
    compressed: bool,
    content: Content,
    fragments: u64,
    wire_len: u64,
    utf8: Validator,
    /// Whether bytes are missing in the capture, or cannot be inflated.
    damage: Option<Damage>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    Missing,
    NotUtf8,
    Corrupt,
    /// It refers to messages that were not captured.
    NoContext,
    NoMemory,
}

#[derive(Debug)]
struct Inflater {
    role: Role,
    params: DeflateParams,
    codec: Decompressor,
    /// Earlier messages are missing, so that a reference to them is not a violation.
    incomplete: bool,
    window: Option<Reservation>,
}

impl Inflater {
    fn new(sender: Role, params: DeflateParams) -> Self {
        let role = match sender {
            Role::Client => Role::Server,
            Role::Server => Role::Client,
        };
        Self { role, params, codec: Decompressor::new(role, &params), incomplete: false, window: None }
    }

    /// Marks earlier messages as missing.
    fn forget(&mut self) {
        self.codec = Decompressor::new(self.role, &self.params);
        self.incomplete = true;
    }

    fn inflate(
        &mut self,
        mut input: &[u8],
        fin: bool,
        budget: &Budget,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Damage> {
        if self.window.is_none() {
            self.window = budget.reserve(WINDOW_LEN);
        }
        if self.window.is_none() {
            self.forget();
            return Err(Damage::NoMemory);
        }
        let limit = InflateLimit { max_len: usize::MAX, max_ratio: u32::MAX, ratio_free_len: usize::MAX };
        let mut out = [0; 16 << 10];
        loop {
            match self.codec.step(input, fin, &mut out, &limit) {
                Ok(step) => {
                    sink(&out[..step.produced]);
                    input = &input[step.consumed..];
                    if !step.more {
                        break;
                    }
                }
                Err(InflateError::Corrupt) if !self.incomplete => {
                    self.forget();
                    return Err(Damage::Corrupt);
                }
                Err(_) => {
                    self.forget();
                    return Err(Damage::NoContext);
                }
            }
        }
        if fin {
            self.codec.shrink();
        }
        Ok(())
    }
}

impl Frames {
    /// The frames in this direction. `from_start`: the handshake was captured.
    pub(crate) fn new(direction: Direction, deflate: Option<DeflateParams>, from_start: bool) -> Self {
        let sender = match direction {
            Direction::ToServer => Role::Client,
            Direction::ToClient => Role::Server,
        };
        // Without a handshake, assume that RSV1 means permessage-deflate.
        let params = deflate.or((!from_start).then(DeflateParams::default));
        let mut inflater = params.map(|params| Inflater::new(sender, params));
        if let (false, Some(inflater)) = (from_start, &mut inflater) {
            inflater.incomplete = true;
        }
        let state = State::Header(Vec::new());
        Self { sender, inflater, state, message: None, close_sent: false }
    }

    /// Whether `bytes` begin with a plausible header for this direction. Used if the beginning of the connection is
    /// missing.
    pub(crate) fn is_plausible(direction: Direction, bytes: &[u8]) -> bool {
        let sender = match direction {
            Direction::ToServer => role::Role::Client,
            Direction::ToClient => role::Role::Server,
        };
        match Header::decode(bytes, sender, 4) {
            Ok(Some((header, len))) => {
                let is_whole = (bytes.len() - len) as u64 >= header.payload_len;
                header.payload_len <= if is_whole { u64::MAX } else { PLAUSIBLE_LEN_MAX }
            }
            _ => false,
        }
    }

    pub(crate) fn handle(&mut self, context: &mut Context<'_>, mut bytes: &[u8]) {
        if let State::Lost { skipped } = &mut self.state {
            let direction = context.direction;
            if !Self::is_plausible(direction, bytes) {
                *skipped = skipped.saturating_add(bytes.len() as u64);
                return;
            }
            if *skipped > 0 {
                let mut entry = context.entry(Protocol::WebSocket, "skipped");
                entry.len = *skipped;
                entry.undecoded("the beginning of the next frame was not found before here");
                context.report(entry);
            }
            self.state = State::Header(Vec::new());
        }
        loop {
            match &mut self.state {
                State::Header(head) => {
                    let start = head.len();
                    let more = bytes.len().min(HEADER_LEN_MAX - start);
                    head.extend_from_slice(&bytes[..more]);
                    let Some(raw) = RawHeader::parse(head) else {
                        return;
                    };
                    let head = std::mem::take(head);
                    bytes = &bytes[raw.len - start..];
                    self.begin(context, raw, &head[..raw.len]);
                }
                State::Payload(frame) => {
                    let len = usize::try_from(frame.remaining).unwrap_or(usize::MAX).min(bytes.len());
                    if len == 0 && frame.remaining > 0 {
                        return;
                    }
                    let (payload, rest) = bytes.split_at(len);
                    bytes = rest;
                    self.payload(context, payload);
                }
                State::Lost { skipped } => {
                    *skipped = skipped.saturating_add(bytes.len() as u64);
                    return;
                }
            }
        }
    }

    /// Handles a gap: bytes that were not captured, `None` if their number is not known.
    pub(crate) fn gap(&mut self, context: &mut Context<'_>, len: Option<u64>) {
        if let State::Payload(frame) = &mut self.state {
            let missing = len.map_or(frame.remaining, |len| len.min(frame.remaining));
            frame.missing += missing;
            frame.remaining -= missing;
            frame.content.skip(Some(missing));
            // A mask repeats every four bytes.
            frame.key = frame.key.map(|key| key.advanced((missing % 4) as usize));
            if let (Some(message), false) = (&mut self.message, frame.is_control()) {
                message.damage.get_or_insert(Damage::Missing);
                message.content.skip(Some(missing));
                message.wire_len = message.wire_len.saturating_add(missing);
                if message.compressed
                    && let Some(inflater) = &mut self.inflater
                {
                    inflater.forget();
                }
            }
            if frame.remaining == 0 {
                self.end_frame(context);
            }
            if len == Some(missing) {
                return;
            }
        }
        self.message = None;
        self.inflater.iter_mut().for_each(Inflater::forget);
        self.state = State::Lost { skipped: 0 };
    }

    /// Handles the end of this direction.
    pub(crate) fn finish(&mut self, context: &mut Context<'_>) {
        match std::mem::replace(&mut self.state, State::Header(Vec::new())) {
            State::Header(head) if !head.is_empty() => {
                let mut entry = context.entry(Protocol::WebSocket, "incomplete");
                entry.len = head.len() as u64;
                entry.missing("the bytes end within the header of a frame");
                entry.payload = Payload::Binary(head);
                context.report(entry);
            }
            State::Payload(mut frame) => {
                let remaining = frame.remaining;
                frame.entry.missing(format!("the bytes end {remaining} bytes before the end of the frame"));
                frame.missing += remaining;
                self.state = State::Payload(frame);
                self.end_frame(context);
            }
            State::Lost { skipped } if skipped > 0 => {
                let mut entry = context.entry(Protocol::WebSocket, "skipped");
                entry.len = skipped;
                entry.undecoded("the beginning of the next frame was not found");
                context.report(entry);
            }
            _ => {}
        }
    }

    fn begin(&mut self, context: &Context<'_>, raw: RawHeader, head: &[u8]) {
        let opcode = Opcode::from_bits(raw.first & 0xF);
        let kind: std::borrow::Cow<'static, str> = match opcode {
            Some(Opcode::Continuation) => "CONTINUATION".into(),
            Some(Opcode::Text) => "TEXT".into(),
            Some(Opcode::Binary) => "BINARY".into(),
            Some(Opcode::Close) => "CLOSE".into(),
            Some(Opcode::Ping) => "PING".into(),
            Some(Opcode::Pong) => "PONG".into(),
            None => format!("opcode {:#x}", raw.first & 0xF).into(),
        };
        let mut entry = context.entry(Protocol::WebSocket, kind);
        entry.len = raw.payload_len;
        let bits = [(0x80, "FIN"), (0x40, "RSV1"), (0x20, "RSV2"), (0x10, "RSV3")];
        entry.flags.extend(bits.iter().filter(|(bit, _)| raw.first & bit != 0).map(|(_, name)| name));
        if raw.masked {
            entry.flags.push("MASK");
        }
        raw.describe(&mut entry);
        let rsv_allowed = if self.inflater.is_some() { 4 } else { 0 };
        match Header::decode(head, self.sender, rsv_allowed) {
            Ok(_) => {}
            Err(misbehaved) => violation(&mut entry, misbehaved),
        }
        self.check_order(context, &mut entry, raw, opcode);
        let content = Content::new(context.budget);
        let frame =
            Frame { raw, opcode, entry, key: raw.key, remaining: raw.payload_len, content, missing: 0 };
        self.state = State::Payload(Box::new(frame));
    }

    /// RFC 6455 §5.4, §5.5.1: which frame may follow which.
    fn check_order(
        &mut self,
        context: &Context<'_>,
        entry: &mut Entry,
        raw: RawHeader,
        opcode: Option<Opcode>,
    ) {
        match opcode {
            Some(Opcode::Text | Opcode::Binary) => {
                if self.message.is_some() {
                    violation(entry, PeerMisbehaved::UnfinishedMessage);
                }
                self.message = Some(Message {
                    text: opcode == Some(Opcode::Text),
                    compressed: raw.first & 0x40 != 0 && self.inflater.is_some(),
                    content: Content::new(context.budget),
                    fragments: 0,
                    wire_len: 0,
                    utf8: Validator::new(),
                    damage: None,
                });
            }
            Some(Opcode::Continuation) if self.message.is_none() => {
                violation(entry, PeerMisbehaved::UnexpectedContinuation);
            }
            _ => {}
        }
        if opcode.is_some_and(|opcode| !opcode.is_control())
            && let Some(message) = &mut self.message
        {
            message.fragments += 1;
        }
        // RFC 6455 §5.5.1: no data frames after a Close frame.
        if self.close_sent && opcode.is_some_and(|opcode| !opcode.is_control()) {
            entry.violation("RFC 6455 §5.5.1", "data frame after a Close frame");
        }
    }

    /// Handles the next bytes of the frame's payload, and its end.
    fn payload(&mut self, context: &mut Context<'_>, payload: &[u8]) {
        let Self { state: State::Payload(frame), message, inflater, .. } = self else { return };
        let mut scratch = [0; 4096];
        frame.remaining -= payload.len() as u64;
        let ends = frame.remaining == 0;
        let mut chunks = payload.chunks(scratch.len()).peekable();
        let mut is_last = false;
        while !is_last {
            let chunk = chunks.next().unwrap_or_default();
            is_last = chunks.peek().is_none();
            let bytes = &mut scratch[..chunk.len()];
            bytes.copy_from_slice(chunk);
            if let Some(key) = frame.key {
                frame.key = Some(mask::apply(bytes, key));
            }
            match message {
                Some(message) if frame.opcode.is_some_and(|opcode| !opcode.is_control()) => {
                    let fin = ends && is_last && frame.raw.first & 0x80 != 0;
                    message.push(bytes, fin, frame, inflater.as_mut(), context.budget);
                }
                _ => frame.content.push(bytes),
            }
        }
        if ends {
            self.end_frame(context);
        }
    }

    fn end_frame(&mut self, context: &mut Context<'_>) {
        let State::Payload(frame) = std::mem::replace(&mut self.state, State::Header(Vec::new())) else {
            return;
        };
        let Frame { raw, opcode, mut entry, mut content, missing, .. } = *frame;
        entry.time = context.time;
        let fin = raw.first & 0x80 != 0;
        let is_control = opcode.is_none_or(Opcode::is_control);
        if missing > 0 && entry.problems.iter().all(|problem| problem.kind != crate::ProblemKind::Missing) {
            entry.missing(format!("{missing} bytes of the payload were not captured"));
        }
        if is_control {
            let is_whole = content.is_complete() && missing == 0;
            self.close_sent |= opcode == Some(Opcode::Close);
            describe_control(&mut entry, opcode, content.bytes(), is_whole);
        } else if let Some(message) = &mut self.message {
            message.describe(&mut entry, fin, &mut content);
            if fin {
                self.message = None;
            }
        } else {
            entry.payload_len = (!content.is_complete()).then_some(content.len());
            entry.payload = text_or_binary(content.take());
        }
        context.report(entry);
    }
}

impl Frame {
    fn is_control(&self) -> bool {
        self.opcode.is_none_or(Opcode::is_control)
    }
}

impl Message {
    fn push(
        &mut self,
        bytes: &[u8],
        fin: bool,
        frame: &mut Frame,
        inflater: Option<&mut Inflater>,
        budget: &Budget,
    ) {
        self.wire_len = self.wire_len.saturating_add(bytes.len() as u64);
        let is_fragment = self.fragments > 1 || frame.raw.first & 0x80 == 0;
        let Self { content, utf8, text, .. } = self;
        let mut invalid = false;
        let mut sink = |bytes: &[u8]| {
            content.push(bytes);
            if is_fragment {
                frame.content.push(bytes);
            }
            invalid |= *text && !invalid && utf8.push(bytes).is_err();
        };
        let result = match (self.compressed, inflater, self.damage) {
            (false, ..) => {
                sink(bytes);
                Ok(())
            }
            (true, Some(inflater), None | Some(Damage::NotUtf8)) => {
                inflater.inflate(bytes, fin, budget, &mut sink)
            }
            // The rest of a message that could not be inflated.
            _ => Ok(()),
        };
        if let Err(damage) = result {
            self.damage = Some(damage);
        } else if invalid && self.damage.is_none() {
            self.damage = Some(Damage::NotUtf8);
        }
    }

    /// Completes the entry of the message's latest frame.
    fn describe(&mut self, entry: &mut Entry, fin: bool, fragment: &mut Content) {
        if fin && self.text && self.damage.is_none() && self.utf8.finish().is_err() {
            self.damage = Some(Damage::NotUtf8);
        }
        match self.damage {
            Some(Damage::NotUtf8) if fin => violation(entry, PeerMisbehaved::InvalidUtf8),
            Some(Damage::Corrupt) if fin => violation(entry, PeerMisbehaved::InvalidDeflate),
            Some(Damage::NoContext) if fin => {
                entry.undecoded("compressed with reference to messages that were not captured");
            }
            Some(Damage::NoMemory) => {
                entry.limit("not inflated: too much is held already");
            }
            Some(Damage::Missing) if fin && self.compressed => {
                entry.undecoded("inflated up to the first missing byte");
            }
            _ => {}
        }
        let is_fragmented = self.fragments > 1 || !fin;
        let content = if fin { &mut self.content } else { fragment };
        entry.payload_len = (!content.is_complete()).then_some(content.len());
        let bytes = content.take();
        entry.payload = if self.text && !is_fragmented {
            text_or_binary(bytes)
        } else if self.text {
            // A fragment may end within a code point.
            Payload::Text(String::from_utf8_lossy(&bytes).into_owned())
        } else {
            Payload::Binary(bytes)
        };
        if fin && self.fragments > 1 {
            entry.fragments = Some(self.fragments);
            entry.detail("message", format!("{} frames", self.fragments), "RFC 6455 §5.4");
        }
        if fin && self.compressed {
            let inflated = format!("{} bytes, inflated from {}", self.content.len(), self.wire_len);
            entry.detail("permessage-deflate", inflated, "RFC 7692 §7.2.2");
        }
    }
}

impl RawHeader {
    /// Reads a header; `None` until all of it has arrived.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let (&first, &second) = (bytes.first()?, bytes.get(1)?);
        let (payload_len, mut len) = match second & 0x7F {
            126 => (u64::from(u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?)), 4),
            127 => (u64::from_be_bytes(*bytes.get(2..)?.first_chunk()?), 10),
            len => (u64::from(len), 2),
        };
        let masked = second & 0x80 != 0;
        let mut key = None;
        if masked {
            key = Some(MaskKey::new(*bytes.get(len..)?.first_chunk()?));
            len += 4;
        }
        Some(Self { first, masked, key, payload_len, len })
    }

    fn describe(&self, entry: &mut Entry) {
        let bit = |mask: u8| if self.first & mask != 0 { "1" } else { "0" };
        let fin =
            if self.first & 0x80 != 0 { "1: last frame of the message" } else { "0: more frames follow" };
        entry.detail("FIN", fin, "RFC 6455 §5.2");
        let rsv1 = if self.first & 0x40 != 0 { "1: the message is compressed" } else { "0" };
        entry.detail("RSV1", rsv1, "RFC 7692 §6");
        entry.detail("RSV2", bit(0x20), "RFC 6455 §5.2");
        entry.detail("RSV3", bit(0x10), "RFC 6455 §5.2");
        let (meaning, section) = match self.first & 0xF {
            0x0 => ("continuation of a message", "RFC 6455 §5.4"),
            0x1 => ("text", "RFC 6455 §5.6"),
            0x2 => ("binary", "RFC 6455 §5.6"),
            0x8 => ("connection close", "RFC 6455 §5.5.1"),
            0x9 => ("ping", "RFC 6455 §5.5.2"),
            0xA => ("pong", "RFC 6455 §5.5.3"),
            0x3..=0x7 => ("reserved for data frames", "RFC 6455 §5.2"),
            _ => ("reserved for control frames", "RFC 6455 §5.2"),
        };
        entry.detail("opcode", format!("{:#x}: {meaning}", self.first & 0xF), section);
        entry.detail("MASK", if self.masked { "1" } else { "0" }, "RFC 6455 §5.1");
        entry.detail("payload length", self.payload_len.to_string(), "RFC 6455 §5.2");
        if let Some(key) = self.key {
            let [a, b, c, d] = key.bytes();
            entry.detail("masking key", format!("{a:02x} {b:02x} {c:02x} {d:02x}"), "RFC 6455 §5.3");
        }
    }
}

pub(crate) fn violation(entry: &mut Entry, misbehaved: PeerMisbehaved) {
    entry.violation(misbehaved.rule(), wireloom_ws::Error::Peer(misbehaved).to_string());
}

/// Completes the entry of a control frame, or of a frame with a reserved opcode.
fn describe_control(entry: &mut Entry, opcode: Option<Opcode>, payload: &[u8], is_whole: bool) {
    if opcode == Some(Opcode::Close) {
        if let Some((code, reason)) = payload.split_first_chunk() {
            let code = CloseCode::new(u16::from_be_bytes(*code));
            let name = close_name(code).map(|name| format!(": {name}")).unwrap_or_default();
            entry.detail("status code", format!("{code}{name}"), "RFC 6455 §7.4");
            let reason = String::from_utf8_lossy(reason);
            if !reason.is_empty() {
                entry.detail("reason", reason.clone(), "RFC 6455 §5.5.1");
            }
            let space = if reason.is_empty() { "" } else { " " };
            entry.payload = Payload::Text(format!("{code}{space}{reason}"));
        } else if !payload.is_empty() {
            entry.payload = Payload::Binary(payload.to_vec());
        }
        if let (true, true, Err(misbehaved)) =
            (is_whole, payload.len() <= CONTROL_LEN_MAX, CloseFrame::decode(payload))
        {
            violation(entry, misbehaved);
        }
        return;
    }
    entry.payload = text_or_binary(payload.to_vec());
}

fn close_name(code: CloseCode) -> Option<&'static str> {
    Some(match code.value() {
        1000 => "normal closure",
        1001 => "going away",
        1002 => "protocol error",
        1003 => "unsupported data",
        1005 => "no status received, never sent",
        1006 => "abnormal closure, never sent",
        1007 => "invalid payload data",
        1008 => "policy violation",
        1009 => "message too big",
        1010 => "mandatory extension",
        1011 => "internal error",
        1012 => "service restart",
        1013 => "try again later",
        1014 => "bad gateway",
        1015 => "TLS handshake, never sent",
        3000..=3999 => "registered for libraries and frameworks",
        4000..=4999 => "private use",
        _ => return None,
    })
}

/// Text if the bytes are UTF-8 and contain readable characters, otherwise binary.
pub(crate) fn text_or_binary(bytes: Vec<u8>) -> Payload {
    if bytes.is_empty() {
        return Payload::None;
    }
    match String::from_utf8(bytes) {
        Ok(text) => Payload::Text(text),
        Err(error) => Payload::Binary(error.into_bytes()),
    }
}
