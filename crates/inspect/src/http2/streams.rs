//! The streams of a connection: their states (RFC 9113 §5.1), as far as the capture shows them, flow-control windows
//! (§5.2), and the WebSockets in them (RFC 8441 §5).

use std::collections::BTreeMap;

use wireloom_http2::error::Violation;
use wireloom_http2::field::{FieldList, Token};
use wireloom_http2::frame::{Data, StreamId};
use wireloom_http2::message::{
    ContentLeft, RequestKind, check_promise, check_request, check_response, check_trailers,
};
use wireloom_http2::settings::WINDOW_SIZE_MAX;
use wireloom_ws::handshake::http2 as handshake;

use super::{opens, violation};
use crate::entry::{Context, Direction, Entry};
use crate::http1::deflate;
use crate::limits::STREAMS_MAX;
use crate::websocket::{Frames, text_or_binary};

/// The maximum number of ranges of streams that an end has skipped. A correct end opens each stream, or begins at some
/// number.
const PASSED_OVER_MAX: usize = 64;

/// The streams that are open.
#[derive(Debug)]
pub(super) struct Streams {
    /// Ordered by identifier, so that the oldest is found in O(log n).
    open: BTreeMap<u32, Stream>,
    /// The highest stream that each end has opened.
    highest: [u32; 2],
    /// Ranges (first, last) of streams that each end skipped when it opened a higher one: they are closed (RFC 9113
    /// §5.1.1).
    passed_over: [Vec<(u32, u32)>; 2],
    /// The flow-control windows of each end: of the connection, and the initial one of a new stream.
    windows: [i64; 2],
    initial: [i64; 2],
    connect_protocol: bool,
    from_start: bool,
}

#[derive(Debug)]
struct Stream {
    /// Directions that have ended.
    ended: [bool; 2],
    /// Directions whose final head has passed.
    has_head: [bool; 2],
    windows: [i64; 2],
    /// The announced content that each end has not sent yet.
    content: [ContentLeft; 2],
    request: RequestKind,
    is_websocket: bool,
    /// Whether the request offered compression.
    offers_deflate: bool,
    websocket: Option<Box<[Frames; 2]>>,
}

impl Streams {
    pub(super) fn new(from_start: bool) -> Self {
        Self {
            open: BTreeMap::new(),
            highest: [0; 2],
            passed_over: Default::default(),
            windows: [65_535; 2],
            initial: [65_535; 2],
            connect_protocol: false,
            from_start,
        }
    }

    pub(super) fn set_connect_protocol(&mut self, enabled: bool) {
        self.connect_protocol |= enabled;
    }

    /// A larger window applies at once, a smaller one when it is acknowledged: until then the sender may use either.
    pub(super) fn raise_initial_window(&mut self, sender: Direction, size: u32) {
        let initial = &mut self.initial[sender.index()];
        *initial = (*initial).max(size.into());
    }

    pub(super) fn set_initial_window(&mut self, sender: Direction, size: u32) {
        self.initial[sender.index()] = size.into();
    }

    /// Changes the windows of all streams for what `sender` sends (RFC 9113 §6.9.2).
    pub(super) fn resize(&mut self, sender: Direction, delta: i64) -> Option<Violation> {
        let mut broken = None;
        for stream in self.open.values_mut() {
            let window = &mut stream.windows[sender.index()];
            *window = window.saturating_add(delta);
            if *window > i64::from(WINDOW_SIZE_MAX) {
                broken = Some(Violation::WindowOverflowBySettings);
            }
        }
        broken
    }

    fn insert(&mut self, stream: u32) {
        if self.open.len() >= STREAMS_MAX {
            self.open.pop_first();
        }
        let record = Stream {
            ended: [false; 2],
            has_head: [false; 2],
            windows: self.initial,
            content: [ContentLeft::UNKNOWN; 2],
            request: RequestKind::Plain,
            is_websocket: false,
            offers_deflate: false,
            websocket: None,
        };
        self.open.insert(stream, record);
    }

    /// RFC 7540 §3.2: the request that was upgraded is that of stream 1, and has ended.
    pub(super) fn upgrade(&mut self, request: RequestKind) {
        let client = Direction::ToServer.index();
        self.highest[client] = 1;
        self.insert(1);
        if let Some(stream) = self.open.get_mut(&1) {
            stream.request = request;
            stream.has_head[client] = true;
            stream.ended[client] = true;
        }
    }

    /// Handles HEADERS in `direction`, on a new or an open stream.
    pub(super) fn open(&mut self, entry: &mut Entry, direction: Direction, stream: u32) {
        if self.open.contains_key(&stream) {
            return;
        }
        let side = direction.index();
        let passed_over = &mut self.passed_over[side];
        if opens(direction, stream) && stream > self.highest[side] {
            let first = self.highest[side] + if self.highest[side] == 0 { 2 - stream % 2 } else { 2 };
            if first < stream && passed_over.len() < PASSED_OVER_MAX {
                passed_over.push((first, stream - 2));
            }
            self.highest[side] = stream;
            self.insert(stream);
        } else if !self.from_start {
            self.insert(stream);
        } else if passed_over.iter().any(|&(first, last)| (first..=last).contains(&stream)) {
            violation(entry, Violation::StreamIdNotIncreasing);
        } else if direction == Direction::ToServer && !opens(direction, stream) {
            violation(entry, Violation::StreamIdParity);
        } else if !opens(direction, stream) && stream > self.highest[direction.reverse().index()] {
            violation(entry, Violation::FrameOnIdleStream);
        }
    }

    /// Whether neither end has opened a stream.
    fn is_idle(&self, direction: Direction, stream: u32) -> bool {
        let opener = if opens(direction, stream) { direction } else { direction.reverse() };
        self.from_start && stream > self.highest[opener.index()]
    }

    pub(super) fn handle_data(&mut self, context: &mut Context<'_>, mut entry: Entry, data: &Data<'_>) {
        let (direction, side) = (context.direction, context.direction.index());
        let id = data.stream_id.get();
        let len = data.flow_len() as i64;
        self.windows[side] -= len;
        if self.from_start && self.windows[side] < 0 {
            violation(&mut entry, Violation::ConnectionWindowExceeded);
        }
        let is_idle = self.is_idle(direction, id);
        let Some(stream) = self.open.get_mut(&id) else {
            if is_idle {
                violation(&mut entry, Violation::FrameOnIdleStream);
            }
            entry.payload = text_or_binary(data.data.to_vec());
            context.report(entry);
            return;
        };
        stream.windows[side] -= len;
        if self.from_start && stream.windows[side] < 0 {
            violation(&mut entry, Violation::StreamWindowExceeded);
        }
        if stream.ended[side] {
            violation(&mut entry, Violation::FrameAfterEndStream);
        } else if self.from_start && !stream.has_head[side] && stream.websocket.is_none() {
            violation(&mut entry, Violation::DataBeforeHeaders);
        }
        let content = &mut stream.content[side];
        let received = content.receive(data.data.len());
        if let (Err(broken), true) =
            (received.and(if data.end_stream { content.end() } else { Ok(()) }), self.from_start)
        {
            violation(&mut entry, broken);
            *content = ContentLeft::UNKNOWN;
        }
        match &mut stream.websocket {
            Some(frames) => {
                context.report(entry);
                frames[side].handle(context, data.data);
            }
            None => {
                entry.payload = text_or_binary(data.data.to_vec());
                context.report(entry);
            }
        }
        if data.end_stream {
            self.end(context, id);
        }
    }

    /// Handles a decoded field section. `is_known`: all its fields could be decoded.
    pub(super) fn handle_fields(
        &mut self,
        context: &mut Context<'_>,
        entry: &mut Entry,
        fields: &FieldList,
        is_promise: bool,
        is_known: bool,
    ) {
        let Some(id) = context.stream else { return };
        if is_promise {
            self.highest[1] = self.highest[1].max(id);
            self.insert(id);
        }
        let (direction, side) = (context.direction, context.direction.index());
        let connect_protocol = self.connect_protocol || !self.from_start;
        let Some(stream) = self.open.get_mut(&id) else { return };
        if stream.ended[side] {
            violation(entry, Violation::FrameAfterEndStream);
        }
        let checked = if is_promise {
            check_promise(fields).map(|head| stream.request = head.kind)
        } else if stream.has_head[side] {
            check_trailers(fields)
        } else if direction == Direction::ToServer {
            stream.has_head[side] = true;
            check_request(fields, connect_protocol).map(|head| {
                stream.request = head.kind;
                stream.content[side] = head.content;
            })
        } else {
            check_response(fields, stream.request).map(|head| {
                stream.has_head[side] = !head.is_interim();
                stream.content[side] = head.content;
            })
        };
        let ends = entry.flags.contains(&"END_STREAM");
        let checked = checked.and(if ends { stream.content[side].end() } else { Ok(()) });
        if let (Err(broken), true) = (checked, is_known) {
            violation(entry, broken);
        }
        let all = |name: &'static [u8]| fields.iter().filter(move |field| field.name() == name);
        if direction == Direction::ToServer {
            stream.is_websocket |= all(b":protocol").any(|field| field.value() == b"websocket");
            if stream.is_websocket {
                entry.flags.push("UPGRADE");
                stream.offers_deflate = all(b"sec-websocket-extensions")
                    .any(|field| field.value().windows(18).any(|part| part == b"permessage-deflate"));
                let parts = fields.iter().map(|field| (field.name(), field.value()));
                if let (Err(error), true, Ok(())) = (handshake::check_request(parts), is_known, checked) {
                    entry.violation("RFC 8441 §5", error.to_string());
                }
            }
        } else if stream.is_websocket && stream.websocket.is_none() {
            let status = fields.find(Token::Status).map(|status| status.value().to_vec());
            if status.as_deref().is_some_and(|status| status.first() == Some(&b'2')) {
                let lines: Vec<&str> = all(b"sec-websocket-extensions")
                    .filter_map(|field| std::str::from_utf8(field.value()).ok())
                    .collect();
                let params = deflate(entry, &lines, self.from_start.then_some(stream.offers_deflate));
                let frames = |direction| Frames::new(direction, params, true);
                stream.websocket = Some(Box::new([frames(Direction::ToServer), frames(Direction::ToClient)]));
            }
        }
    }

    pub(super) fn handle_window_update(
        &mut self,
        entry: &mut Entry,
        direction: Direction,
        id: StreamId,
        increment: u32,
    ) {
        let side = direction.reverse().index();
        let window = if id.is_connection() {
            &mut self.windows[side]
        } else if let Some(stream) = self.open.get_mut(&id.get()) {
            &mut stream.windows[side]
        } else {
            if self.is_idle(direction, id.get()) {
                violation(entry, Violation::FrameOnIdleStream);
            }
            return;
        };
        *window = window.saturating_add(increment.into());
        if self.from_start && *window > i64::from(WINDOW_SIZE_MAX) {
            violation(entry, Violation::WindowOverflow);
        }
    }

    /// Handles the end of this direction of the stream.
    pub(super) fn end(&mut self, context: &mut Context<'_>, id: u32) {
        let Some(stream) = self.open.get_mut(&id) else { return };
        stream.ended[context.direction.index()] = true;
        if let Some(frames) = &mut stream.websocket {
            frames[context.direction.index()].finish(context);
        }
        if stream.ended == [true; 2] {
            self.open.remove(&id);
        }
    }

    /// Checks RST_STREAM in `direction`.
    pub(super) fn check_reset(&self, entry: &mut Entry, direction: Direction, stream: u32) {
        // RFC 9113 §6.4.
        if self.is_idle(direction, stream) {
            violation(entry, Violation::FrameOnIdleStream);
        }
    }

    /// Removes a stream that was reset, or can no longer be followed.
    pub(super) fn reset(&mut self, context: &mut Context<'_>, id: u32) {
        let Some(mut stream) = self.open.remove(&id) else { return };
        for direction in [Direction::ToServer, Direction::ToClient] {
            if let (Some(frames), false) = (&mut stream.websocket, stream.ended[direction.index()]) {
                let mut context = Context { direction, ..context.on_same() };
                frames[direction.index()].finish(&mut context);
            }
        }
    }

    /// Handles a gap in the DATA of a stream.
    pub(super) fn gap(&mut self, context: &mut Context<'_>, id: u32, len: u64) {
        let Some(stream) = self.open.get_mut(&id) else { return };
        let side = context.direction.index();
        stream.content[side] = ContentLeft::UNKNOWN;
        if let Some(frames) = &mut stream.websocket {
            frames[side].gap(context, Some(len));
        }
    }

    /// Handles a gap in which any frames of a direction may be missing.
    pub(super) fn lose(&mut self, context: &mut Context<'_>) {
        self.from_start = false;
        let side = context.direction.index();
        for (&id, stream) in &mut self.open {
            if let Some(frames) = &mut stream.websocket {
                frames[side].gap(&mut context.on_stream(id), None);
            }
        }
    }

    /// Handles the end of the connection in this direction.
    pub(super) fn finish(&mut self, context: &mut Context<'_>) {
        let side = context.direction.index();
        for (&id, stream) in &mut self.open {
            if let (Some(frames), false) = (&mut stream.websocket, stream.ended[side]) {
                frames[side].finish(&mut context.on_stream(id));
                stream.ended[side] = true;
            }
        }
    }
}
