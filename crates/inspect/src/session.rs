//! The protocol of one connection above TCP: its detection and its decoder.

use crate::entry::{Context, Direction, Entry, Protocol};
use crate::http1::{Http1, Next, Switch};
use crate::http2::{Http2, PREFACE};
use crate::limits::Content;
use crate::secret::may_be_head;
use crate::websocket::{Frames, text_or_binary};

/// The protocol that the first bytes are assumed to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Assume {
    /// Detected by the first bytes.
    #[default]
    Detect,
    /// WebSocket frames without a handshake.
    WebSocket,
    /// HTTP/2.
    Http2,
    /// HTTP/1.1.
    Http1,
}

/// The protocol of a connection, without TLS.
#[derive(Debug)]
pub(crate) enum Session {
    /// Not enough bytes have arrived to detect the protocol. The bytes, by direction.
    Detect([Vec<u8>; 2]),
    Http1(Box<Http1>),
    Http2(Box<Http2>),
    WebSocket(Box<[Frames; 2]>),
    Other(Box<[Other; 2]>),
}

/// One direction of an unknown protocol.
#[derive(Debug)]
pub(crate) struct Other {
    content: Content,
    reported: bool,
}

impl Session {
    pub(crate) fn new(assume: Assume) -> Self {
        match assume {
            Assume::Detect => Self::Detect([Vec::new(), Vec::new()]),
            Assume::WebSocket => Self::websocket(None, false),
            Assume::Http2 => Self::Http2(Box::new(Http2::new(false))),
            Assume::Http1 => Self::Http1(Box::default()),
        }
    }

    /// A WebSocket. `from_start`: its handshake was captured.
    pub(crate) fn websocket(deflate: Option<wireloom_ws::deflate::DeflateParams>, from_start: bool) -> Self {
        let frames = |direction| Frames::new(direction, deflate, from_start);
        Self::WebSocket(Box::new([frames(Direction::ToServer), frames(Direction::ToClient)]))
    }

    pub(crate) fn handle(&mut self, context: &mut Context<'_>, bytes: &[u8]) {
        match self {
            Self::Detect(buffers) => {
                let buffer = &mut buffers[context.direction.index()];
                buffer.extend_from_slice(bytes);
                if let Some(session) = detect(context, buffer) {
                    let buffers = std::mem::take(buffers);
                    *self = session;
                    self.handle_all(context, &buffers);
                }
            }
            Self::Http1(http1) => {
                if let Some(Switch { to, left }) = http1.handle(context, bytes) {
                    *self = match to {
                        Next::WebSocket(deflate) => Self::websocket(deflate, true),
                        Next::Http2 { is_head } => Self::Http2(Box::new(Http2::upgraded(is_head))),
                        Next::Other => Self::other(context),
                    };
                    self.handle_all(context, &left);
                }
            }
            Self::Http2(http2) => http2.handle(context, bytes),
            Self::WebSocket(frames) => frames[context.direction.index()].handle(context, bytes),
            Self::Other(sides) => {
                let side = &mut sides[context.direction.index()];
                side.content.push(bytes);
            }
        }
    }

    /// Handles bytes of both directions that arrived before the protocol was known.
    fn handle_all(&mut self, context: &mut Context<'_>, left: &[Vec<u8>; 2]) {
        for direction in [Direction::ToServer, Direction::ToClient] {
            let bytes = &left[direction.index()];
            if !bytes.is_empty() {
                let mut context = Context { direction, ..context.on_same() };
                self.handle(&mut context, bytes);
            }
        }
    }

    fn other(context: &Context<'_>) -> Self {
        let side = || Other { content: Content::new(context.budget), reported: false };
        Self::Other(Box::new([side(), side()]))
    }

    /// Handles a gap: bytes that were not captured, `None` if their number is not known.
    pub(crate) fn gap(&mut self, context: &mut Context<'_>, len: Option<u64>) {
        match self {
            Self::Detect(buffers) => buffers[context.direction.index()].clear(),
            Self::Http1(http1) => http1.gap(context, len),
            Self::Http2(http2) => http2.gap(context, len),
            Self::WebSocket(frames) => frames[context.direction.index()].gap(context, len),
            Self::Other(sides) => sides[context.direction.index()].content.skip(len),
        }
    }

    /// Handles the end of this direction.
    pub(crate) fn finish(&mut self, context: &mut Context<'_>) {
        match self {
            Self::Detect(buffers) => {
                let bytes = std::mem::take(&mut buffers[context.direction.index()]);
                if !bytes.is_empty() {
                    let mut entry = unknown(context, &bytes);
                    entry.len = bytes.len() as u64;
                    entry.missing("the bytes end before the protocol is known");
                    entry.payload = text_or_binary(bytes);
                    context.report(entry);
                }
            }
            Self::Http1(http1) => http1.finish(context),
            Self::Http2(http2) => http2.finish(context),
            Self::WebSocket(frames) => frames[context.direction.index()].finish(context),
            Self::Other(sides) => sides[context.direction.index()].report(context),
        }
    }
}

impl Other {
    fn report(&mut self, context: &mut Context<'_>) {
        /// The number of bytes of an unknown protocol that an entry shows.
        const SHOWN: usize = 256;
        let len = self.content.len();
        if len == 0 || std::mem::replace(&mut self.reported, true) {
            return;
        }
        let mut bytes = self.content.take();
        let mut entry = unknown(context, &bytes);
        entry.len = len;
        bytes.truncate(SHOWN);
        entry.payload_len = (bytes.len() as u64 != entry.len).then_some(entry.len);
        entry.payload = text_or_binary(bytes);
        context.report(entry);
    }
}

/// An entry for these bytes: `head` if they may be the rest of one, where the capture begins within it.
fn unknown(context: &Context<'_>, bytes: &[u8]) -> Entry {
    context.entry(Protocol::Unknown, if may_be_head(bytes) { "head" } else { "data" })
}

/// Whether `bytes` and `prefix` are equal up to the length of the shorter one.
fn begins(bytes: &[u8], prefix: &[u8]) -> bool {
    let len = bytes.len().min(prefix.len());
    bytes[..len] == prefix[..len]
}

/// Detects the protocol that begins with `bytes`; `None` if more bytes are needed.
fn detect(context: &Context<'_>, bytes: &[u8]) -> Option<Session> {
    let direction = context.direction;
    if direction == Direction::ToServer && begins(bytes, PREFACE) {
        return (bytes.len() >= PREFACE.len()).then(|| Session::Http2(Box::new(Http2::new(true))));
    }
    if direction == Direction::ToClient && begins(bytes, b"HTTP/1.") {
        return (bytes.len() >= 7).then(|| Session::Http1(Box::default()));
    }
    if direction == Direction::ToServer && looks_like_request(bytes) {
        return (bytes.len() >= 8).then(|| Session::Http1(Box::default()));
    }
    if Http2::is_plausible(bytes) {
        // A server whose SETTINGS arrive first (a connection from its start), or the middle of a connection.
        let from_start = bytes.get(3) == Some(&4);
        return Some(Session::Http2(Box::new(Http2::new(from_start))));
    }
    if Frames::is_plausible(direction, bytes) {
        return Some(Session::websocket(None, false));
    }
    (bytes.len() >= 16).then(|| Session::other(context))
}

/// Whether `bytes` may begin a request of HTTP/1.1: a method in upper case, a space, a target.
pub(crate) fn looks_like_request(bytes: &[u8]) -> bool {
    let method_len = bytes.iter().take_while(|byte| byte.is_ascii_uppercase() || **byte == b'-').count();
    match bytes.get(method_len) {
        None => (1..=16).contains(&method_len),
        Some(b' ') => method_len >= 3 && bytes.get(method_len + 1).is_none_or(u8::is_ascii_graphic),
        Some(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Payload;
    use crate::inspector::{Config, Inspector};

    #[test]
    fn masks_a_capture_that_begins_within_a_head() {
        let long = format!("{}; sid=secret\r\nHost: h\r\n\r\n", "secret".repeat(100));
        for (bytes, is_head) in [
            (&b"secret; sid=secret\r\nAuthorization: Bearer secret\r\n\r\n"[..], true),
            (b"secret; sid=secret\r\n\r\n", true),
            (b"sid=secret\r\nA: b\r\n\r\n\x81\x01a", true),
            (b"k: secret", true),
            (long.as_bytes(), true),
            (b"{\"command\": \"secret\"}\n", false),
            (b"the text of another protocol", false),
        ] {
            let mut inspector = Inspector::new(Config::default());
            let mut entries = Vec::new();
            inspector.handle_bytes(1, None, Direction::ToServer, bytes, &mut entries);
            inspector.finish(&mut entries);
            let entry = entries.iter_mut().find(|entry| entry.protocol == Protocol::Unknown).unwrap();
            let payload = entry.payload.clone();
            entry.mask_secrets();
            assert_eq!((&*entry.kind == "head", entry.payload != payload), (is_head, is_head), "{payload:?}");
            let shown = match &entry.payload {
                Payload::Text(text) => text.clone().into_bytes(),
                Payload::Binary(bytes) => bytes.clone(),
                payload => panic!("{payload:?}"),
            };
            assert!(!is_head || !shown.windows(6).any(|part| part == b"secret"), "{payload:?}");
        }
    }
}
