//! The streams of a connection: their states as far as the capture shows them (RFC 9113 §5.1), flow-control windows (§5.2), and
//! the WebSockets in them (RFC 8441 §5).

use std::collections::HashMap;

use wireloom_http2::error::Violation;
use wireloom_http2::field::{FieldList, Token};
use wireloom_http2::frame::{Data, StreamId};
use wireloom_http2::message::{RequestKind, check_promise, check_request, check_response, check_trailers};
use wireloom_http2::settings::WINDOW_SIZE_MAX;
use wireloom_ws::handshake::http2 as handshake;

use super::{opens, violation};
use crate::entry::{Context, Direction, Entry};
use crate::http1::deflate;
use crate::limits::STREAMS_MAX;
use crate::websocket::{Frames, text_or_binary};

/// The streams that are open.
#[derive(Debug)]
pub(super) struct Streams {
    open: HashMap<u32, Stream>,
    /// The highest stream that each end has opened.
    highest: [u32; 2],
    /// What each end may still send: on the connection, and on a new stream.
    windows: [i64; 2],
    initial: [i64; 2],
    connect_protocol: bool,
    from_start: bool,
}

#[derive(Debug)]
struct Stream {
    /// Directions that have ended.
    ended: [bool; 2],
    /// Heads that have passed, final ones only.
    has_head: [bool; 2],
    windows: [i64; 2],
    request: RequestKind,
    is_websocket: bool,
    /// Whether the request offered compression.
    offers_deflate: bool,
    websocket: Option<Box<[Frames; 2]>>,
}

impl Streams {
    pub(super) fn new(from_start: bool) -> Self {
        Self {
            open: HashMap::new(),
            highest: [0; 2],
            windows: [65_535; 2],
            initial: [65_535; 2],
            connect_protocol: false,
            from_start,
        }
    }

    pub(super) fn set_connect_protocol(&mut self, enabled: bool) {
        self.connect_protocol |= enabled;
    }

    /// A larger window counts at once, a smaller one when it is acknowledged: until then either may be in use.
    pub(super) fn raise_initial_window(&mut self, sender: Direction, size: u32) {
        let initial = &mut self.initial[sender.index()];
        *initial = (*initial).max(size.into());
    }

    pub(super) fn set_initial_window(&mut self, sender: Direction, size: u32) {
        self.initial[sender.index()] = size.into();
    }

    /// Changes the windows of what `sender` sends (RFC 9113 §6.9.2).
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
        if self.open.len() >= STREAMS_MAX
            && let Some(&oldest) = self.open.keys().min()
        {
            self.open.remove(&oldest);
        }
        let record = Stream {
            ended: [false; 2],
            has_head: [false; 2],
            windows: self.initial,
            request: RequestKind::Plain,
            is_websocket: false,
            offers_deflate: false,
            websocket: None,
        };
        self.open.insert(stream, record);
    }

    /// HEADERS in `direction`: a new stream, or one that is open.
    pub(super) fn open(&mut self, entry: &mut Entry, direction: Direction, stream: u32) {
        if self.open.contains_key(&stream) {
            return;
        }
        let highest = &mut self.highest[direction.index()];
        if opens(direction, stream) && stream > *highest {
            *highest = stream;
            self.insert(stream);
        } else if !self.from_start {
            self.insert(stream);
        } else if !opens(direction, stream) && stream > self.highest[direction.reverse().index()] {
            violation(entry, Violation::FrameOnIdleStream);
        }
    }

    pub(super) fn handle_data(&mut self, context: &mut Context<'_>, mut entry: Entry, data: &Data<'_>) {
        let (direction, side) = (context.direction, context.direction.index());
        let id = data.stream_id.get();
        let len = data.flow_len() as i64;
        self.windows[side] -= len;
        if self.from_start && self.windows[side] < 0 {
            violation(&mut entry, Violation::ConnectionWindowExceeded);
        }
        let opener = if opens(direction, id) { direction } else { direction.reverse() };
        let Some(stream) = self.open.get_mut(&id) else {
            if self.from_start && id > self.highest[opener.index()] {
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

    /// A field section has been decoded. `is_known` says that all its fields are.
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
            check_request(fields, connect_protocol).map(|head| stream.request = head.kind)
        } else {
            check_response(fields, stream.request).map(|head| stream.has_head[side] = !head.is_interim())
        };
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
            let opener = if opens(direction, id.get()) { direction } else { direction.reverse() };
            if self.from_start && id.get() > self.highest[opener.index()] {
                violation(entry, Violation::FrameOnIdleStream);
            }
            return;
        };
        *window = window.saturating_add(increment.into());
        if self.from_start && *window > i64::from(WINDOW_SIZE_MAX) {
            violation(entry, Violation::WindowOverflow);
        }
    }

    /// This direction of the stream has ended.
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

    /// The stream was reset, or is lost.
    pub(super) fn reset(&mut self, context: &mut Context<'_>, id: u32) {
        let Some(mut stream) = self.open.remove(&id) else { return };
        for direction in [Direction::ToServer, Direction::ToClient] {
            if let (Some(frames), false) = (&mut stream.websocket, stream.ended[direction.index()]) {
                let mut context = Context { direction, ..context.on_same() };
                frames[direction.index()].finish(&mut context);
            }
        }
    }

    /// DATA of a stream were not captured.
    pub(super) fn gap(&mut self, context: &mut Context<'_>, id: u32, len: u64) {
        if let Some(frames) = self.open.get_mut(&id).and_then(|stream| stream.websocket.as_mut()) {
            frames[context.direction.index()].gap(context, len);
        }
    }

    /// Any frames of a direction were not captured.
    pub(super) fn lose(&mut self, context: &mut Context<'_>) {
        self.from_start = false;
        let side = context.direction.index();
        for (&id, stream) in &mut self.open {
            if let Some(frames) = &mut stream.websocket {
                frames[side].gap(&mut context.on_stream(id), u64::MAX);
            }
        }
    }

    /// The connection has ended in this direction.
    pub(super) fn finish(&mut self, context: &mut Context<'_>) {
        let side = context.direction.index();
        let mut open: Vec<_> = self.open.iter_mut().collect();
        open.sort_by_key(|(id, _)| **id);
        for (&id, stream) in open {
            if let (Some(frames), false) = (&mut stream.websocket, stream.ended[side]) {
                frames[side].finish(&mut context.on_stream(id));
                stream.ended[side] = true;
            }
        }
    }
}
