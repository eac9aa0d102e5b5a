//! The reader's entries: one per frame, head, body or event of a connection.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

/// The direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

impl Direction {
    /// The other direction.
    #[must_use]
    pub const fn reverse(self) -> Self {
        match self {
            Self::ToServer => Self::ToClient,
            Self::ToClient => Self::ToServer,
        }
    }

    /// The sender: `client` or `server`.
    pub const fn sender(self) -> &'static str {
        match self {
            Self::ToServer => "client",
            Self::ToClient => "server",
        }
    }

    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

/// The protocol that an entry belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// TCP: connections opened and closed, bytes missing.
    Tcp,
    /// TLS: handshake, records that cannot be decrypted.
    Tls,
    /// HTTP/1.1, and the WebSocket handshake on it.
    Http1,
    /// HTTP/2.
    Http2,
    /// WebSocket, over HTTP/1.1 or HTTP/2.
    WebSocket,
    /// Bytes of another protocol.
    Unknown,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Http1 => "http/1.1",
            Self::Http2 => "h2",
            Self::WebSocket => "ws",
            Self::Unknown => "?",
        })
    }
}

/// A field of a frame, as `--verbose` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detail {
    /// The RFC's name of the field.
    pub name: Cow<'static, str>,
    /// Its value.
    pub value: String,
    /// The section that defines it; empty where there is none.
    pub reference: &'static str,
}

/// The kind of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProblemKind {
    /// The sender broke a rule of the protocol.
    Violation,
    /// Bytes are missing in the capture.
    Missing,
    /// The bytes were captured but cannot be decoded: keys or the preceding state are missing.
    Undecoded,
    /// A limit of the reader was reached.
    Limit,
}

impl ProblemKind {
    /// The word that output uses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Violation => "violation",
            Self::Missing => "missing",
            Self::Undecoded => "undecoded",
            Self::Limit => "limit",
        }
    }
}

/// A problem of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Its kind.
    pub kind: ProblemKind,
    /// The rule that was broken, such as `RFC 6455 §5.1`; empty for problems of the capture.
    pub rule: &'static str,
    /// The problem in words.
    pub text: String,
}

/// The content of a frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Payload {
    /// Nothing to show.
    #[default]
    None,
    /// Text: a text message, a reason.
    Text(String),
    /// Bytes.
    Binary(Vec<u8>),
    /// Header fields, after an optional start line.
    Fields {
        /// The request or status line of HTTP/1.1; empty in HTTP/2.
        start: String,
        /// Names and values, unchanged; values need not be text.
        fields: Vec<(Vec<u8>, Vec<u8>)>,
    },
}

/// One line of output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Time since the Unix epoch; `None` where the input has none.
    pub time: Option<Duration>,
    /// The number of the connection, from 1, in the order of first packets.
    pub connection: u32,
    /// The direction.
    pub direction: Direction,
    /// The HTTP/2 stream, if there is one.
    pub stream: Option<u32>,
    /// The protocol.
    pub protocol: Protocol,
    /// The type of the frame or event: `TEXT`, `HEADERS`, `request`, `open`.
    pub kind: Cow<'static, str>,
    /// Names of the flags that are set.
    pub flags: Vec<&'static str>,
    /// The length of the payload on the wire, in bytes.
    pub len: u64,
    /// The content, unmasked and inflated; the whole message if this is its last frame.
    pub payload: Payload,
    /// The length of the whole content in bytes, if `payload` holds only its beginning.
    pub payload_len: Option<u64>,
    /// The number of frames of the message in `payload`, if there are several.
    pub fragments: Option<u64>,
    /// The fields of the frame.
    pub details: Vec<Detail>,
    /// Its problems.
    pub problems: Vec<Problem>,
}

impl Entry {
    pub(crate) fn detail(
        &mut self,
        name: impl Into<Cow<'static, str>>,
        value: impl Into<String>,
        reference: &'static str,
    ) -> &mut Self {
        self.details.push(Detail { name: name.into(), value: value.into(), reference });
        self
    }

    pub(crate) fn violation(&mut self, rule: &'static str, text: impl Into<String>) -> &mut Self {
        self.problem(ProblemKind::Violation, rule, text)
    }

    pub(crate) fn missing(&mut self, text: impl Into<String>) -> &mut Self {
        self.problem(ProblemKind::Missing, "", text)
    }

    pub(crate) fn undecoded(&mut self, text: impl Into<String>) -> &mut Self {
        self.problem(ProblemKind::Undecoded, "", text)
    }

    pub(crate) fn limit(&mut self, text: impl Into<String>) -> &mut Self {
        self.problem(ProblemKind::Limit, "", text)
    }

    fn problem(&mut self, kind: ProblemKind, rule: &'static str, text: impl Into<String>) -> &mut Self {
        self.problems.push(Problem { kind, rule, text: text.into() });
        self
    }
}

/// The position of a decoder in the capture, and where it writes entries.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) out: &'a mut Vec<Entry>,
    pub(crate) budget: &'a crate::limits::Budget,
    pub(crate) time: Option<Duration>,
    pub(crate) connection: u32,
    pub(crate) direction: Direction,
    pub(crate) stream: Option<u32>,
}

impl Context<'_> {
    /// A new entry at this position; it is not reported yet.
    pub(crate) fn entry(&self, protocol: Protocol, kind: impl Into<Cow<'static, str>>) -> Entry {
        Entry {
            time: self.time,
            connection: self.connection,
            direction: self.direction,
            stream: self.stream,
            protocol,
            kind: kind.into(),
            flags: Vec::new(),
            len: 0,
            payload: Payload::None,
            payload_len: None,
            fragments: None,
            details: Vec::new(),
            problems: Vec::new(),
        }
    }

    pub(crate) fn report(&mut self, entry: Entry) {
        self.out.push(entry);
    }

    /// The same position, reborrowed.
    pub(crate) fn on_same(&mut self) -> Context<'_> {
        let Self { time, connection, direction, stream, .. } = *self;
        Context { out: self.out, budget: self.budget, time, connection, direction, stream }
    }

    /// The same position, on an HTTP/2 stream.
    pub(crate) fn on_stream(&mut self, stream: u32) -> Context<'_> {
        Context { stream: Some(stream), ..self.on_same() }
    }

    /// The same position, in the other direction.
    pub(crate) fn reverse(&mut self) -> Context<'_> {
        Context { direction: self.direction.reverse(), ..self.on_same() }
    }
}
