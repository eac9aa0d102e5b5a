//! HTTP/2 on one connection (RFC 9113): frames and field blocks by the decoders of `wireloom-http2`, the order of frames,
//! and the WebSockets within streams (RFC 8441).

mod describe;
mod streams;

use std::collections::VecDeque;

use wireloom_http2::Role;
use wireloom_http2::Settings;
use wireloom_http2::error::{Error, Violation};
use wireloom_http2::field::{FieldLimits, FieldList};
use wireloom_http2::frame::{self, Flags, Frame, FrameHeader, Kind, StreamId};
use wireloom_http2::hpack::{Decoder, TABLE_SIZE_DEFAULT};
use wireloom_http2::message::RequestKind;

use crate::entry::{Context, Direction, Entry, Payload, Protocol};
use crate::limits::{FIELD_BLOCK_LEN_MAX, HPACK_TABLE_MAX, HTTP2_FRAME_LEN_MAX};
use crate::websocket::text_or_binary;
use streams::Streams;

/// The preface of a client of HTTP/2 (RFC 9113 §3.4).
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The maximum number of SETTINGS frames of a direction that await acknowledgement.
const SETTINGS_MAX: usize = 64;

/// Both directions of a connection.
#[derive(Debug)]
pub(crate) struct Http2 {
    sides: [Side; 2],
    streams: Streams,
    /// The beginning of the connection was captured, so that its whole state is known.
    from_start: bool,
}

/// One direction: what one end sends.
#[derive(Debug)]
struct Side {
    buffer: Vec<u8>,
    state: State,
    decoder: Hpack,
    block: Option<Block>,
    /// The SETTINGS of this end.
    settings: Settings,
    is_first: bool,
    /// Changes that take effect when they are acknowledged: the smallest table size, and by how much windows shrink.
    pending: VecDeque<(Option<u32>, i64)>,
    goaway: Option<u32>,
}

#[derive(Debug)]
enum State {
    /// The client's preface is expected.
    Preface,
    /// The buffer begins with a frame.
    Frame,
    /// The rest of a frame that is not decoded.
    Skip { left: u64 },
    /// The next frame cannot be found.
    Lost,
}

/// The decoder of a direction's field blocks.
struct Hpack {
    decoder: Decoder,
    /// All blocks so far were decoded, so that the dynamic table equals the sender's.
    in_step: bool,
}

impl std::fmt::Debug for Hpack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hpack").field("in_step", &self.in_step).finish_non_exhaustive()
    }
}

/// The field block that arrives in HEADERS or PUSH_PROMISE and CONTINUATION.
#[derive(Debug)]
struct Block {
    stream: u32,
    promised: Option<u32>,
    end_stream: bool,
    bytes: Vec<u8>,
    too_long: bool,
}

fn role(direction: Direction) -> Role {
    match direction {
        Direction::ToServer => Role::Client,
        Direction::ToClient => Role::Server,
    }
}

fn violation(entry: &mut Entry, violation: Violation) {
    entry.violation(violation.rule(), violation.reason());
}

impl Side {
    fn new(state: State) -> Self {
        Self {
            buffer: Vec::new(),
            state,
            decoder: Hpack { decoder: Decoder::new(TABLE_SIZE_DEFAULT), in_step: true },
            block: None,
            settings: Settings::INITIAL,
            is_first: true,
            pending: VecDeque::new(),
            goaway: None,
        }
    }
}

impl Http2 {
    /// A connection. `from_start`: its beginning was captured.
    pub(crate) fn new(from_start: bool) -> Self {
        let mut sides = [Side::new(State::Preface), Side::new(State::Frame)];
        if !from_start {
            sides[0].state = State::Frame;
            sides.iter_mut().for_each(|side| side.decoder.in_step = false);
        }
        Self { sides, streams: Streams::new(from_start), from_start }
    }

    /// The connection after an upgrade from HTTP/1.1. `is_head`: the request that was upgraded is HEAD.
    pub(crate) fn upgraded(is_head: bool) -> Self {
        let mut http2 = Self::new(true);
        http2.streams.upgrade(if is_head { RequestKind::Head } else { RequestKind::Plain });
        http2
    }

    /// Whether `bytes` very likely begin with an HTTP/2 frame.
    pub(crate) fn is_plausible(bytes: &[u8]) -> bool {
        let Some(header) = bytes.first_chunk() else { return false };
        let FrameHeader { len, kind, flags, stream_id } = FrameHeader::decode(header);
        let on_connection = stream_id.is_connection();
        let is_reserved_bit_set = header[5] & 0x80 != 0;
        let fits = match kind {
            Kind::DATA => !on_connection && flags.0 & !0x9 == 0 && len <= 1 << 20,
            Kind::HEADERS => !on_connection && flags.0 & !0x2d == 0 && (1..=1 << 16).contains(&len),
            Kind::RST_STREAM => !on_connection && flags.0 == 0 && len == 4,
            Kind::SETTINGS => on_connection && flags.0 & !1 == 0 && len % 6 == 0 && len <= 600,
            Kind::PING => on_connection && flags.0 & !1 == 0 && len == 8,
            Kind::GOAWAY => on_connection && flags.0 == 0 && (8..=4096).contains(&len),
            Kind::WINDOW_UPDATE => flags.0 == 0 && len == 4,
            _ => false,
        };
        fits && !is_reserved_bit_set
    }

    pub(crate) fn handle(&mut self, context: &mut Context<'_>, bytes: &[u8]) {
        let side = &mut self.sides[context.direction.index()];
        if matches!(side.state, State::Lost) {
            if !Self::is_plausible(bytes) {
                return;
            }
            side.state = State::Frame;
        }
        side.buffer.extend_from_slice(bytes);
        let mut buffer = std::mem::take(&mut side.buffer);
        let used = self.frames(context, &buffer);
        buffer.drain(..used);
        self.sides[context.direction.index()].buffer = buffer;
    }

    /// Decodes the frames at the front of `bytes`; returns the number of consumed bytes.
    fn frames(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> usize {
        let mut at = 0;
        loop {
            let rest = &bytes[at..];
            let side = &mut self.sides[context.direction.index()];
            match &mut side.state {
                State::Preface => {
                    if rest.len() < PREFACE.len() && PREFACE.starts_with(rest) {
                        return at;
                    }
                    side.state = State::Frame;
                    if rest.starts_with(PREFACE) {
                        at += PREFACE.len();
                        let mut entry = context.entry(Protocol::Http2, "preface");
                        entry.stream = Some(0);
                        entry.len = PREFACE.len() as u64;
                        entry.detail("preface", PREFACE.escape_ascii().to_string(), "RFC 9113 §3.4");
                        context.report(entry);
                    } else if self.from_start {
                        let mut entry = context.entry(Protocol::Http2, "preface");
                        violation(&mut entry, Violation::PrefaceInvalid);
                        context.report(entry);
                    }
                }
                State::Frame => {
                    let Some((header, payload)) = rest.split_first_chunk() else { return at };
                    let reserved = header[5] >> 7;
                    let header = FrameHeader::decode(header);
                    let len = header.len as usize;
                    if len > HTTP2_FRAME_LEN_MAX {
                        side.state = State::Skip { left: len as u64 };
                        at += FrameHeader::LEN;
                        self.skipped(context, &header, "the frame is longer than the reader decodes", true);
                        continue;
                    }
                    let Some(payload) = payload.get(..len) else { return at };
                    at += FrameHeader::LEN + len;
                    self.frame(context, &header, reserved, payload);
                }
                State::Skip { left } => {
                    let len = usize::try_from(*left).unwrap_or(usize::MAX).min(rest.len());
                    *left -= len as u64;
                    at += len;
                    if *left > 0 {
                        return at;
                    }
                    side.state = State::Frame;
                }
                State::Lost => return bytes.len(),
            }
        }
    }

    /// Reports a frame whose payload is not decoded.
    fn skipped(&mut self, context: &mut Context<'_>, header: &FrameHeader, reason: &str, is_limit: bool) {
        let mut entry = describe::entry(context, header, 0);
        if is_limit {
            entry.limit(reason);
        } else {
            entry.missing(reason);
        }
        context.report(entry);
        let side = &mut self.sides[context.direction.index()];
        if matches!(header.kind, Kind::HEADERS | Kind::PUSH_PROMISE | Kind::CONTINUATION) {
            side.decoder.in_step = false;
            side.block = None;
        }
        if header.kind == Kind::DATA {
            let stream = header.stream_id.get();
            self.streams.gap(&mut context.on_stream(stream), stream, header.len.into());
        }
    }

    fn frame(&mut self, context: &mut Context<'_>, header: &FrameHeader, reserved: u8, payload: &[u8]) {
        let mut entry = describe::entry(context, header, reserved);
        let direction = context.direction;
        let [to_server, to_client] = &mut self.sides;
        let (side, other) = match direction {
            Direction::ToServer => (to_server, to_client),
            Direction::ToClient => (to_client, to_server),
        };
        if std::mem::take(&mut side.is_first) && self.from_start && header.kind != Kind::SETTINGS {
            violation(&mut entry, Violation::PrefaceWithoutSettings);
        }
        // The receiver's SETTINGS_MAX_FRAME_SIZE; the default, which is the minimum, until it is known.
        if self.from_start
            && let Err(broken) = header.check_len(other.settings.max_frame_size)
        {
            violation(&mut entry, broken);
        }
        let continues = header.kind == Kind::CONTINUATION;
        let stream = header.stream_id.get();
        match &side.block {
            Some(block) if !continues || block.stream != stream => {
                violation(&mut entry, Violation::FieldBlockInterrupted);
                side.block = None;
                side.decoder.in_step = false;
            }
            None if continues && self.from_start => {
                violation(&mut entry, Violation::ContinuationUnexpected);
            }
            _ => {}
        }
        let frame = match Frame::parse(header, payload) {
            Ok(frame) => frame,
            Err(broken) => {
                violation(&mut entry, broken);
                if matches!(header.kind, Kind::HEADERS | Kind::PUSH_PROMISE | Kind::CONTINUATION) {
                    side.decoder.in_step = false;
                    side.block = None;
                }
                entry.payload = text_or_binary(payload.to_vec());
                context.report(entry);
                return;
            }
        };
        describe::frame(&mut entry, &frame, payload);
        match frame {
            Frame::Data(data) => {
                let mut context = context.on_stream(stream);
                self.streams.handle_data(&mut context, entry, &data);
                return;
            }
            Frame::Headers(headers) => {
                if let Some(dependency) = headers.dependency
                    && let Err(broken) = dependency.check(headers.stream_id)
                {
                    violation(&mut entry, broken);
                }
                self.streams.open(&mut entry, direction, stream);
                let end_stream = headers.end_stream;
                self.begin_block(direction, stream, None, end_stream, headers.fragment);
                if headers.end_headers {
                    self.end_block(context, &mut entry);
                }
            }
            Frame::PushPromise(promise) => {
                if direction == Direction::ToServer {
                    violation(&mut entry, Violation::PushByClient);
                } else if self.from_start && !other.settings.enable_push {
                    violation(&mut entry, Violation::PushDisabled);
                }
                let promised = promise.promised_id.get();
                self.begin_block(direction, stream, Some(promised), false, promise.fragment);
                if promise.end_headers {
                    self.end_block(context, &mut entry);
                }
            }
            Frame::Continuation(continuation) => {
                if let Some(block) = &mut side.block {
                    block.push(continuation.fragment);
                    if continuation.end_headers {
                        self.end_block(context, &mut entry);
                    }
                } else {
                    entry.undecoded("the beginning of the field block is not known");
                }
            }
            Frame::Settings(frame::SettingsFrame::Values(values)) => {
                let is_first = side.settings == Settings::INITIAL;
                match side.settings.apply(values, role(direction), is_first) {
                    Ok(changes) => {
                        let (grows, shrinks) =
                            (changes.initial_window_delta.max(0), changes.initial_window_delta.min(0));
                        let broken = self.streams.resize(direction.reverse(), grows);
                        if let Some(broken) = broken {
                            violation(&mut entry, broken);
                        }
                        if side.pending.len() < SETTINGS_MAX {
                            side.pending.push_back((changes.header_table_size_min, shrinks));
                        }
                    }
                    Err(broken) => violation(&mut entry, broken),
                }
                self.streams.raise_initial_window(direction.reverse(), side.settings.initial_window_size);
                if direction == Direction::ToClient {
                    self.streams.set_connect_protocol(side.settings.enable_connect_protocol);
                }
            }
            Frame::Settings(frame::SettingsFrame::Ack) => {
                if let Some((table_size_min, shrinks)) = other.pending.pop_front() {
                    // RFC 9113 §4.3.1: the encoder of this side must use the new size after its acknowledgement.
                    if let Some(smallest) = table_size_min {
                        side.decoder.decoder.set_table_size_max(smallest.min(HPACK_TABLE_MAX));
                        let size = other.settings.header_table_size.min(HPACK_TABLE_MAX);
                        side.decoder.decoder.set_table_size_max(size);
                    }
                    let _ = self.streams.resize(direction, shrinks);
                    self.streams.set_initial_window(direction, other.settings.initial_window_size);
                } else if self.from_start {
                    entry.violation("RFC 9113 §6.5.3", "acknowledgement without SETTINGS");
                }
            }
            Frame::Goaway(goaway) => {
                let last = goaway.last_stream_id.get();
                if side.goaway.is_some_and(|before| last > before) {
                    violation(&mut entry, Violation::GoawayIdIncreased);
                }
                side.goaway = Some(last);
            }
            Frame::WindowUpdate(update) => {
                self.streams.handle_window_update(&mut entry, direction, update.stream_id, update.increment);
            }
            Frame::RstStream(_) => {
                self.streams.check_reset(&mut entry, direction, stream);
                context.report(entry);
                self.streams.reset(&mut context.on_stream(stream), stream);
                return;
            }
            Frame::PriorityUpdate(_) if direction == Direction::ToClient => {
                violation(&mut entry, Violation::PriorityUpdateByServer);
            }
            _ => {}
        }
        context.report(entry);
    }

    fn begin_block(
        &mut self,
        direction: Direction,
        stream: u32,
        promised: Option<u32>,
        end_stream: bool,
        fragment: &[u8],
    ) {
        let mut block = Block { stream, promised, end_stream, bytes: Vec::new(), too_long: false };
        block.push(fragment);
        self.sides[direction.index()].block = Some(block);
    }

    /// Decodes the field block, which is complete, for the entry of its last frame.
    fn end_block(&mut self, context: &mut Context<'_>, entry: &mut Entry) {
        let side = &mut self.sides[context.direction.index()];
        let Some(block) = side.block.take() else { return };
        let limits = FieldLimits::new(FIELD_BLOCK_LEN_MAX as u32, 4096);
        let mut fields = FieldList::new();
        let was_in_step = side.decoder.in_step;
        let result = if block.too_long {
            side.decoder.in_step = false;
            entry.limit("the field block is longer than the reader decodes");
            return;
        } else {
            side.decoder.decoder.decode(&block.bytes, &limits, &mut fields)
        };
        if let Err(error) = result {
            side.decoder.in_step = false;
            if let (true, Error::Peer { violation: broken, .. }) = (was_in_step, Error::from(error)) {
                violation(entry, broken);
            } else {
                entry.undecoded("the field block refers to fields that were not captured");
            }
        } else if !was_in_step {
            entry.undecoded("earlier field blocks were not captured: indexed fields may be wrong");
        }
        describe::fields(entry, &fields);
        let is_known = result.is_ok() && was_in_step;
        let stream = block.promised.unwrap_or(block.stream);
        let mut context = context.on_stream(stream);
        self.streams.handle_fields(&mut context, entry, &fields, block.promised.is_some(), is_known);
        if block.end_stream {
            self.streams.end(&mut context, stream);
        }
    }

    /// Handles a gap: bytes that were not captured, `None` if their number is not known.
    pub(crate) fn gap(&mut self, context: &mut Context<'_>, len: Option<u64>) {
        // No frame is longer than a gap of unknown length.
        let len = len.unwrap_or(u64::MAX);
        let side = &mut self.sides[context.direction.index()];
        let buffer = std::mem::take(&mut side.buffer);
        let mut lost = len;
        match (&mut side.state, buffer.split_first_chunk()) {
            (State::Skip { left }, _) => {
                lost = lost.saturating_sub(*left);
                *left = left.saturating_sub(len);
            }
            (State::Frame, Some((header, payload))) => {
                let header = FrameHeader::decode(header);
                let left = u64::from(header.len) - payload.len() as u64;
                side.state = State::Skip { left: left.saturating_sub(len) };
                lost = lost.saturating_sub(left);
                self.skipped(context, &header, "bytes of the frame were not captured", false);
            }
            _ => {}
        }
        if lost > 0 {
            let side = &mut self.sides[context.direction.index()];
            side.state = State::Lost;
            side.block = None;
            side.decoder.in_step = false;
            self.from_start = false;
            self.streams.lose(context);
        }
    }

    /// Handles the end of this direction.
    pub(crate) fn finish(&mut self, context: &mut Context<'_>) {
        let side = &mut self.sides[context.direction.index()];
        let buffer = std::mem::take(&mut side.buffer);
        if let (State::Frame, Some((header, payload))) = (&side.state, buffer.split_first_chunk()) {
            let header = FrameHeader::decode(header);
            let missing = header.len as usize - payload.len();
            let mut entry = describe::entry(context, &header, 0);
            entry.missing(format!("the bytes end {missing} bytes before the end of the frame"));
            entry.payload = text_or_binary(payload.to_vec());
            context.report(entry);
        } else if !buffer.is_empty() {
            let mut entry = context.entry(Protocol::Http2, "incomplete");
            entry.len = buffer.len() as u64;
            entry.missing("the bytes end within the header of a frame");
            entry.payload = Payload::Binary(buffer);
            context.report(entry);
        }
        self.streams.finish(context);
    }
}

impl Block {
    fn push(&mut self, fragment: &[u8]) {
        if self.bytes.len() + fragment.len() > FIELD_BLOCK_LEN_MAX {
            self.too_long = true;
        } else {
            self.bytes.extend_from_slice(fragment);
        }
    }
}

/// The names of the flags that are set, by the type of the frame.
fn flag_names(kind: Kind, flags: Flags) -> Vec<&'static str> {
    let names: &[(u8, &'static str)] = match kind {
        Kind::DATA => &[(1, "END_STREAM"), (8, "PADDED")],
        Kind::HEADERS => &[(1, "END_STREAM"), (4, "END_HEADERS"), (8, "PADDED"), (0x20, "PRIORITY")],
        Kind::PUSH_PROMISE => &[(4, "END_HEADERS"), (8, "PADDED")],
        Kind::CONTINUATION => &[(4, "END_HEADERS")],
        Kind::SETTINGS | Kind::PING => &[(1, "ACK")],
        _ => &[],
    };
    names.iter().filter(|(bit, _)| flags.0 & bit != 0).map(|(_, name)| *name).collect()
}

/// Whether the sender may open a stream with this identifier.
fn opens(direction: Direction, stream: u32) -> bool {
    StreamId::from_wire(stream).opener() == Some(role(direction))
}
