//! HTTP/1.1 bodies (RFC 9112 §6): of a given length, chunked, or up to the end of the connection.

use crate::entry::{Context, Protocol};
use crate::limits::Content;
use crate::websocket::text_or_binary;

/// The longest line of a chunk size or a trailer, in bytes.
const LINE_LEN_MAX: usize = 4096;

/// How the end of a body is found (RFC 9112 §6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    None,
    Length(u64),
    Chunked,
    UntilClose,
}

/// The framing of a body: where its content is, and where it ends.
#[derive(Debug)]
pub(super) struct Body {
    state: State,
    /// The number of bytes that were not captured; `None` if there are some, and their number is not known.
    missing: Option<u64>,
    error: Option<&'static str>,
}

#[derive(Debug)]
enum State {
    Bytes(u64),
    UntilClose,
    ChunkSize,
    Chunk(u64),
    ChunkEnd,
    Trailer,
    /// The next chunk cannot be found.
    Lost,
}

impl Body {
    /// The body with this framing, if there is one.
    pub(super) fn of(framing: Framing) -> Option<Self> {
        let state = match framing {
            Framing::None => return None,
            Framing::Length(len) => State::Bytes(len),
            Framing::Chunked => State::ChunkSize,
            Framing::UntilClose => State::UntilClose,
        };
        Some(Self { state, missing: Some(0), error: None })
    }

    /// Handles the bytes of the body at the front of `bytes`, and passes its content to `content`; returns the number of bytes, and whether
    /// the body has ended.
    pub(super) fn handle(&mut self, bytes: &[u8], mut content: impl FnMut(&[u8])) -> (usize, bool) {
        let mut at = 0;
        loop {
            let rest = &bytes[at..];
            match &mut self.state {
                State::Bytes(left) | State::Chunk(left) => {
                    let len = usize::try_from(*left).unwrap_or(usize::MAX).min(rest.len());
                    content(&rest[..len]);
                    at += len;
                    *left -= len as u64;
                    match self.state {
                        State::Bytes(0) => return (at, true),
                        State::Chunk(0) => self.state = State::ChunkEnd,
                        _ => return (at, false),
                    }
                }
                State::UntilClose | State::Lost => {
                    content(rest);
                    return (bytes.len(), false);
                }
                State::ChunkSize => match httparse::parse_chunk_size(rest) {
                    Ok(httparse::Status::Complete((len, size))) => {
                        at += len;
                        self.state = if size == 0 { State::Trailer } else { State::Chunk(size) };
                    }
                    Ok(httparse::Status::Partial) if rest.len() <= LINE_LEN_MAX => return (at, false),
                    _ => self.fail("the size of a chunk is invalid"),
                },
                State::ChunkEnd => match rest {
                    [b'\r', b'\n', ..] => {
                        at += 2;
                        self.state = State::ChunkSize;
                    }
                    [] | [b'\r'] => return (at, false),
                    _ => self.fail("a chunk does not end with CRLF"),
                },
                State::Trailer => match rest.windows(2).position(|pair| pair == b"\r\n") {
                    Some(0) => return (at + 2, true),
                    Some(end) => at += end + 2,
                    None if rest.len() <= LINE_LEN_MAX => return (at, false),
                    None => self.fail("a trailer line is too long"),
                },
            }
        }
    }

    /// Whether its end cannot be found.
    pub(super) fn is_lost(&self) -> bool {
        matches!(self.state, State::Lost)
    }

    fn fail(&mut self, error: &'static str) {
        self.error = Some(error);
        self.state = State::Lost;
    }

    /// Skips bytes that were not captured; returns whether they are within the body.
    pub(super) fn gap(&mut self, len: Option<u64>) -> bool {
        match (&mut self.state, len) {
            (State::Bytes(left) | State::Chunk(left), Some(len)) if *left > len => *left -= len,
            (State::UntilClose | State::Lost, _) => {}
            _ => return false,
        }
        self.missing = self.missing.zip(len).map(|(missing, len)| missing.saturating_add(len));
        true
    }

    /// Reports the body with its content. `is_cut`: the bytes ended before the body did.
    pub(super) fn report(&self, content: &mut Content, context: &mut Context<'_>, is_cut: bool) {
        let mut entry = context.entry(Protocol::Http1, "body");
        entry.len = content.len();
        if let Some(error) = self.error {
            entry.violation("RFC 9112 §7.1", error);
        }
        match self.missing {
            Some(0) => {}
            Some(missing) => drop(entry.missing(format!("{missing} bytes of the body were not captured"))),
            None => drop(entry.missing("bytes of the body were not captured")),
        }
        match self.state {
            State::Bytes(left) if is_cut => {
                entry.missing(format!("the bytes end {left} bytes before the end of the body"));
            }
            State::UntilClose | State::Lost => {}
            _ if is_cut => {
                entry.missing("the bytes end before the last chunk");
            }
            _ => {}
        }
        entry.payload_len = (!content.is_complete()).then_some(content.len());
        entry.payload = text_or_binary(content.take());
        context.report(entry);
    }
}
