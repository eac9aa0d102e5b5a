//! The head of an HTTP/1.1 message (RFC 9112 §2 to §5): [`parse_request`] and [`parse_response`] parse a whole one. The handshakes collect
//! theirs from input of any chunk size.
//!
//! ```text
//! GET /chat HTTP/1.1 CRLF     the start line, checked as soon as it is complete
//! Host: example.com CRLF      the header lines, counted as they arrive
//! CRLF                        the empty line: httparse parses the head
//! 81 05 ...                   after the head: not consumed
//! ```
//!
//! Each byte is read once to find the end and once by httparse, however the input is split. A peer that does not speak HTTP is
//! refused at its first control character or at the end of its first line, not when the limit or the deadline is reached. A
//! lone LF ends a line, as RFC 9112 §2.2 allows.

use alloc::vec::Vec;
use core::fmt;
use core::mem::MaybeUninit;
use core::ops::Range;

use super::error::{HandshakeError, LimitReached, Malformed, RequestError, ResponseError};
use super::limits::HandshakeLimits;
use super::token::{is_field_value, is_token};
use crate::role::Role;

/// The versions of HTTP/1 that can be read; of these only 1.1 can be upgraded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    Http11,
}

/// Header lines that are parsed without an allocation: those that [`HandshakeLimits::DEFAULT`] allows.
const LINES_FEW: usize = HandshakeLimits::DEFAULT.headers_max;

/// The first line of a request (RFC 9112 §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLine<'h> {
    /// The method, a token.
    pub method: &'h str,
    /// The target, not validated.
    pub target: &'h str,
    /// The version.
    pub version: Version,
}

/// The first line of a response (RFC 9112 §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusLine<'h> {
    /// The status, from 100 to 999.
    pub status: u16,
    /// The reason phrase.
    pub reason: &'h str,
    /// The version.
    pub version: Version,
}

/// The header lines of a head, in order: names, which are tokens, and values without surrounding whitespace. Both are parts of the head.
#[derive(Clone, Copy, Debug)]
pub struct HeaderLines<'a, 'h>(&'a [httparse::Header<'h>]);

impl<'a, 'h> HeaderLines<'a, 'h> {
    /// Names and values.
    pub fn iter(self) -> impl ExactSizeIterator<Item = (&'h str, &'h [u8])> + use<'a, 'h> {
        self.0.iter().map(|line| (line.name, line.value))
    }
}

/// Why a head cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeadError {
    /// A line is malformed, or the head has another end than its bytes: the rest could be a smuggled request.
    Malformed(Malformed),
    /// Another major version of HTTP (RFC 9110 §15.6.6).
    HttpVersionUnknown,
    /// More header lines than the limit.
    TooManyHeaders,
}

/// Parses the whole head of a request with at most `headers_max` header lines, and calls `take` with its parts. The request is one of
/// HTTP/1.1 also when its minor version is later ([`lower_minor_version`]).
///
/// ```
/// use wireloom_ws::handshake::{HeadError, parse_request};
///
/// let head = b"GET /chat HTTP/1.1\r\nHost: example.com\r\n\r\n";
/// let host = parse_request(head, 100, |line, headers| {
///     assert_eq!((line.method, line.target), ("GET", "/chat"));
///     headers.iter().find(|(name, _)| *name == "Host").map(|(_, value)| value)
/// })?;
/// assert_eq!(host, Some(&b"example.com"[..]));
/// # Ok::<(), HeadError>(())
/// ```
///
/// # Errors
/// [`HeadError`].
pub fn parse_request<'h, T>(
    head: &'h [u8],
    headers_max: usize,
    take: impl FnOnce(RequestLine<'h>, HeaderLines<'_, 'h>) -> T,
) -> Result<T, HeadError> {
    let (mut few, mut many) = ([const { MaybeUninit::uninit() }; LINES_FEW], Vec::new());
    let lines = line_room(&mut few, &mut many, head, headers_max);
    let mut request = httparse::Request::new(&mut []);
    match request.parse_with_uninit_headers(head, lines) {
        Ok(httparse::Status::Complete(len)) if len == head.len() => {}
        Ok(_) => return Err(HeadError::Malformed(Malformed::LineEnd)),
        Err(httparse::Error::Version) if names_version(head) => return Err(HeadError::HttpVersionUnknown),
        Err(error) => return Err(head_error(error)),
    }
    let (Some(method), Some(target), Some(minor)) = (request.method, request.path, request.version) else {
        return Err(HeadError::Malformed(Malformed::StartLine));
    };
    let line = RequestLine { method, target, version: Version::from_minor(minor) };
    Ok(take(line, HeaderLines(request.headers)))
}

/// Parses the whole head of a response, as [`parse_request`] does. Folded lines are errors, unless
/// [they were replaced](replace_obs_fold).
///
/// # Errors
/// [`HeadError`].
pub fn parse_response<'h, T>(
    head: &'h [u8],
    headers_max: usize,
    take: impl FnOnce(StatusLine<'h>, HeaderLines<'_, 'h>) -> T,
) -> Result<T, HeadError> {
    let (mut few, mut many) = ([const { MaybeUninit::uninit() }; LINES_FEW], Vec::new());
    let lines = line_room(&mut few, &mut many, head, headers_max);
    let mut response = httparse::Response::new(&mut []);
    let parser = httparse::ParserConfig::default();
    match parser.parse_response_with_uninit_headers(&mut response, head, lines).map_err(head_error)? {
        httparse::Status::Complete(len) if len == head.len() => {}
        _ => return Err(HeadError::Malformed(Malformed::LineEnd)),
    }
    let (Some(status @ 100..), Some(minor)) = (response.code, response.version) else {
        return Err(HeadError::Malformed(Malformed::StartLine));
    };
    let reason = response.reason.unwrap_or_default();
    let line = StatusLine { status, reason, version: Version::from_minor(minor) };
    Ok(take(line, HeaderLines(response.headers)))
}

/// Room for the header lines of `head`, at most `headers_max`.
fn line_room<'a, 'h>(
    few: &'a mut [MaybeUninit<httparse::Header<'h>>],
    many: &'a mut Vec<MaybeUninit<httparse::Header<'h>>>,
    head: &[u8],
    headers_max: usize,
) -> &'a mut [MaybeUninit<httparse::Header<'h>>] {
    match few.get_mut(..headers_max) {
        Some(few) => few,
        None => {
            // At least as many as there are header lines.
            let line_count = head.iter().filter(|&&byte| byte == b'\n').count();
            many.resize(headers_max.min(line_count), MaybeUninit::uninit());
            many
        }
    }
}

/// Whether the request line ends with any version of HTTP (RFC 9112 §2.3).
fn names_version(head: &[u8]) -> bool {
    let line = head.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let mut words = line.trim_ascii_end().split(|&byte| byte == b' ').skip(2);
    let version = words.next().unwrap_or_default();
    words.next().is_none()
        && matches!(version, [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
            if major.is_ascii_digit() && minor.is_ascii_digit())
}

fn head_error(error: httparse::Error) -> HeadError {
    HeadError::Malformed(match error {
        httparse::Error::HeaderName => Malformed::HeaderName,
        httparse::Error::HeaderValue => Malformed::HeaderValue,
        httparse::Error::NewLine => Malformed::LineEnd,
        httparse::Error::TooManyHeaders => return HeadError::TooManyHeaders,
        _ => Malformed::StartLine,
    })
}

impl From<HeadError> for RequestError {
    fn from(error: HeadError) -> Self {
        match error {
            HeadError::Malformed(malformed) => Self::Malformed(malformed),
            HeadError::HttpVersionUnknown => Self::HttpVersionUnknown,
            // They were counted before.
            HeadError::TooManyHeaders => Self::Malformed(Malformed::StartLine),
        }
    }
}

impl From<HeadError> for ResponseError {
    fn from(error: HeadError) -> Self {
        match error {
            HeadError::Malformed(malformed) => Self::Malformed(malformed),
            HeadError::HttpVersionUnknown | HeadError::TooManyHeaders => {
                Self::Malformed(Malformed::StartLine)
            }
        }
    }
}

/// Collects a head. `line_start <= scanned <= bytes.len()`, and after a call `scanned == bytes.len() <= room`.
#[derive(Clone)]
pub(super) struct HeadReader {
    reads: Role,
    bytes: Vec<u8>,
    scanned: usize,
    line_start: usize,
    /// Lines that have ended, the start line among them; empty ones before it are not counted.
    lines: usize,
    /// How long the head may be.
    room: usize,
    headers_max: usize,
}

/// Shows no bytes: they may hold secrets.
impl fmt::Debug for HeadReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeadReader")
            .field("reads", &self.reads)
            .field("len", &self.bytes.len())
            .field("room", &self.room)
            .finish_non_exhaustive()
    }
}

impl HeadReader {
    /// A reader of the heads that this role receives: a server requests, a client responses.
    pub(super) fn new(reads: Role, limits: HandshakeLimits) -> Self {
        Self {
            reads,
            bytes: Vec::new(),
            scanned: 0,
            line_start: 0,
            lines: 0,
            room: limits.head_len_max,
            headers_max: limits.headers_max,
        }
    }

    /// Consumes the bytes of the input that belong to the head: `Some(consumed)` when it is complete, `None` when all were consumed
    /// and more are needed.
    pub(super) fn push(&mut self, input: &[u8]) -> Result<Option<usize>, HandshakeError> {
        let held = self.bytes.len();
        let taken = input.len().min(self.room - held);
        self.bytes.extend_from_slice(&input[..taken]);
        if self.find_end()? {
            self.bytes.truncate(self.scanned);
            return Ok(Some(self.scanned - held));
        }
        if self.bytes.len() == self.room { Err(LimitReached::HeadLen.into()) } else { Ok(None) }
    }

    /// Scans the new bytes; `true` when the empty line is among them.
    fn find_end(&mut self) -> Result<bool, HandshakeError> {
        // Without a branch on each byte this is a vector loop. Only a head with such a byte is searched for it line by line.
        let new = &self.bytes[self.scanned..];
        let suspect = new.iter().fold(false, |suspect, &byte| suspect | is_forbidden(byte));
        loop {
            let new = &self.bytes[self.scanned..];
            let line_feed = new.iter().position(|&byte| byte == b'\n');
            let end = line_feed.unwrap_or(new.len());
            if suspect && new[..end].iter().any(|&byte| is_forbidden(byte)) {
                return Err(malformed(self.reads, Malformed::ControlByte));
            }
            if line_feed.is_none() {
                self.scanned = self.bytes.len();
                return Ok(false);
            }
            let line = &self.bytes[self.line_start..self.scanned + end];
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            self.scanned += end + 1;
            self.line_start = self.scanned;
            match (line.is_empty(), self.lines) {
                // RFC 9112 §2.2: a server should ignore an empty line before the request line.
                (true, 0) => continue,
                (true, _) => return Ok(true),
                (false, 0) => check_start_line(self.reads, line)?,
                (false, lines) if lines > self.headers_max => return Err(LimitReached::Headers.into()),
                (false, _) => {}
            }
            self.lines += 1;
        }
    }

    /// Parses the complete head of a request, and leaves the reader empty.
    pub(super) fn take_request(&mut self) -> Result<RequestHead, RequestError> {
        let mut bytes = core::mem::take(&mut self.bytes);
        lower_minor_version(&mut bytes);
        let (method, target, version, fields) = parse_request(&bytes, self.lines, |line, headers| {
            let place = |part: &str| span(&bytes, part.as_bytes());
            (place(line.method), place(line.target), line.version, spans(&bytes, headers))
        })?;
        Ok(RequestHead { method, target, version, head: Head::new(bytes, fields) })
    }

    /// Parses the complete head of a response, and prepares the reader for the next one. One limit bounds the length of both.
    pub(super) fn take_response(&mut self) -> Result<ResponseHead, ResponseError> {
        let mut bytes = core::mem::take(&mut self.bytes);
        replace_obs_fold(&mut bytes);
        lower_minor_version(&mut bytes);
        let lines = self.lines;
        self.room -= bytes.len();
        (self.scanned, self.line_start, self.lines) = (0, 0, 0);
        let (status, reason, version, fields) = parse_response(&bytes, lines, |line, headers| {
            (line.status, span(&bytes, line.reason.as_bytes()), line.version, spans(&bytes, headers))
        })?;
        Ok(ResponseHead { status, reason, version, head: Head::new(bytes, fields) })
    }
}

fn malformed(reads: Role, malformed: Malformed) -> HandshakeError {
    match reads {
        Role::Server => RequestError::Malformed(malformed).into(),
        Role::Client => ResponseError::Malformed(malformed).into(),
    }
}

/// Processes a message of a later HTTP/1 as one of HTTP/1.1 (RFC 9110 §6.2): replaces the minor version in the first line of a head.
pub fn lower_minor_version(head: &mut [u8]) {
    const VERSION: &[u8] = b"HTTP/1.";
    // RFC 9112 §2.2: empty lines may precede a request.
    let start = head.iter().take_while(|&&byte| matches!(byte, b'\r' | b'\n')).count();
    let head = &mut head[start..];
    let line = head.split(|&byte| byte == b'\n').next().unwrap_or_default().trim_ascii_end();
    let at = if head.starts_with(VERSION) {
        VERSION.len()
    } else if line.len() > VERSION.len() && line[..line.len() - 1].ends_with(VERSION) {
        line.len() - 1
    } else {
        return;
    };
    if let Some(minor @ b'2'..=b'9') = head.get_mut(at) {
        *minor = b'1';
    }
}

/// Replaces folded lines in the head of a response with spaces (RFC 9112 §5.2: a user agent must). The first header cannot be folded.
pub fn replace_obs_fold(head: &mut [u8]) {
    let next_end =
        |head: &[u8], from: usize| Some(from + head[from..].iter().position(|&byte| byte == b'\n')?);
    let mut from = next_end(head, 0).map_or(head.len(), |at| at + 1);
    while let Some(at) = next_end(head, from) {
        from = at + 1;
        if matches!(head.get(from), Some(b' ' | b'\t')) {
            head[at] = b' ';
            if head[at - 1] == b'\r' {
                head[at - 1] = b' ';
            }
        }
    }
}

/// Whether a head may not contain this control character. httparse checks that a CR precedes a LF.
fn is_forbidden(byte: u8) -> bool {
    (byte < b' ' && byte != b'\t' && byte != b'\n' && byte != b'\r') || byte == 0x7F
}

/// Checks the HTTP version of the first line, so that a peer that speaks another protocol is refused there.
fn check_start_line(reads: Role, line: &[u8]) -> Result<(), HandshakeError> {
    let mut words = line.split(|&byte| byte == b' ');
    let word = match reads {
        Role::Server => words.next_back(),
        Role::Client => words.next(),
    };
    match (word, reads) {
        // RFC 9110 §6.2: a later HTTP/1 too.
        (Some([b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'0'..=b'9']), _) => Ok(()),
        // RFC 9112 §2.3: `HTTP-version = "HTTP/" DIGIT "." DIGIT`.
        (Some([b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9']), Role::Server) => {
            Err(RequestError::HttpVersionUnknown.into())
        }
        _ => Err(malformed(reads, Malformed::StartLine)),
    }
}

impl Version {
    fn from_minor(minor: u8) -> Self {
        if minor == 1 { Self::Http11 } else { Self::Http10 }
    }
}

/// The range of `bytes` that this part of them has.
fn span(bytes: &[u8], part: &[u8]) -> Range<usize> {
    // An empty part may lie anywhere.
    if part.is_empty() {
        return 0..0;
    }
    let start = part.as_ptr() as usize - bytes.as_ptr() as usize;
    start..start + part.len()
}

fn spans(bytes: &[u8], headers: HeaderLines<'_, '_>) -> Vec<Field> {
    let field = |(name, value): (&str, &[u8])| Field {
        name: span(bytes, name.as_bytes()),
        value: span(bytes, value),
    };
    headers.iter().map(field).collect()
}

/// A request's head, parsed but not validated.
pub(super) struct RequestHead {
    pub(super) method: Range<usize>,
    pub(super) target: Range<usize>,
    pub(super) version: Version,
    pub(super) head: Head,
}

/// A response's head, parsed but not validated.
#[derive(Clone)]
pub(super) struct ResponseHead {
    pub(super) status: u16,
    pub(super) reason: Range<usize>,
    pub(super) version: Version,
    pub(super) head: Head,
}

/// The header fields of a message, as ranges of its bytes.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Head {
    bytes: Vec<u8>,
    fields: Vec<Field>,
    /// A bit for each length that a name has: most names that are looked for are as long as none.
    name_lens: u32,
}

/// The bit of a name's length. Long names share one.
fn len_bit(len: usize) -> u32 {
    1 << len.min(31)
}

#[derive(Clone, PartialEq, Eq)]
struct Field {
    name: Range<usize>,
    value: Range<usize>,
}

impl Head {
    fn new(bytes: Vec<u8>, fields: Vec<Field>) -> Self {
        let name_lens = fields.iter().fold(0, |lens, field| lens | len_bit(field.name.len()));
        Self { bytes, fields, name_lens }
    }

    /// A head from fields that an HTTP library has parsed. They are checked again, since that library may be lenient.
    pub(super) fn from_fields<'a, N: AsRef<[u8]>>(
        fields: impl IntoIterator<Item = (N, &'a [u8])>,
    ) -> Result<Self, Malformed> {
        // Enough for most handshakes.
        let (mut bytes, mut placed) = (Vec::with_capacity(512), Vec::with_capacity(16));
        for (name, value) in fields {
            let name = name.as_ref();
            if !is_token(name) {
                return Err(Malformed::HeaderName);
            }
            if !is_field_value(value) {
                return Err(Malformed::HeaderValue);
            }
            let start = bytes.len();
            bytes.extend_from_slice(name);
            let middle = bytes.len();
            bytes.extend_from_slice(value.trim_ascii());
            placed.push(Field { name: start..middle, value: middle..bytes.len() });
        }
        Ok(Self::new(bytes, placed))
    }

    /// Appends a text that is not one of the fields.
    pub(super) fn push_text(&mut self, text: &str) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(text.as_bytes());
        start..self.bytes.len()
    }

    /// The range of a part of the bytes.
    pub(super) fn range_of(&self, part: &[u8]) -> Range<usize> {
        span(&self.bytes, part)
    }

    /// This part of the bytes, if it is UTF-8. The caller refuses a head where it is not: an empty string in its place could have
    /// another meaning.
    pub(super) fn text(&self, span: Range<usize>) -> Option<&str> {
        core::str::from_utf8(self.bytes.get(span)?).ok()
    }

    /// The fields in their order: names as they were sent, values without surrounding whitespace.
    pub(super) fn fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
        // Names are tokens, and so are text.
        self.fields
            .iter()
            .filter_map(|field| Some((self.text(field.name.clone())?, &self.bytes[field.value.clone()])))
    }

    /// The values of the fields with this name, in any case, in their order.
    pub(super) fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        let mut at = 0;
        core::iter::from_fn(move || {
            let (found, value) = self.find(name, at)?;
            at = found + 1;
            Some(value)
        })
    }

    /// The index and the value of the first field with this name, in any case, from an index on. Not inlined: one loop that stays in
    /// the instruction cache serves all names.
    #[inline(never)]
    fn find(&self, name: &str, from: usize) -> Option<(usize, &[u8])> {
        if self.name_lens & len_bit(name.len()) == 0 {
            return None;
        }
        let named = |field: &Field| {
            field.name.len() == name.len()
                && self.bytes[field.name.clone()].eq_ignore_ascii_case(name.as_bytes())
        };
        let found = from + self.fields.get(from..)?.iter().position(named)?;
        Some((found, &self.bytes[self.fields[found].value.clone()]))
    }

    /// The value of the field with this name, if there is exactly one.
    pub(super) fn one<'a>(&'a self, name: &'a str) -> Occurs<'a> {
        match self.find(name, 0) {
            None => Occurs::Never,
            Some((at, _)) if self.find(name, at + 1).is_some() => Occurs::Often,
            Some((_, value)) => Occurs::Once(value),
        }
    }

    /// Whether there is a field with this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.find(name, 0).is_some()
    }
}

/// How often a field occurs.
pub(super) enum Occurs<'a> {
    Never,
    Once(&'a [u8]),
    Often,
}

/// Shows the names, not the values: cookies and credentials must not reach a log.
impl fmt::Debug for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.fields().map(|(name, _)| name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(reads: Role, limits: HandshakeLimits, pieces: &[&[u8]]) -> Result<Option<usize>, HandshakeError> {
        let mut reader = HeadReader::new(reads, limits);
        let mut before = 0;
        for piece in pieces {
            if let Some(consumed) = reader.push(piece)? {
                return Ok(Some(before + consumed));
            }
            before += piece.len();
        }
        Ok(None)
    }

    #[test]
    fn finds_the_end_and_consumes_nothing_after_it() {
        let limits = HandshakeLimits::default();
        for (bytes, end) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], Some(18)),
            (b"\r\n\nGET / HTTP/1.1\r\nA: b\r\n\r\n\x81\0\r\n\r\n", Some(27)),
            (b"GET / HTTP/1.1\nA: b\n\nrest", Some(21)),
            (b"GET / HTTP/1.1\r\nA: b\r\n\r", None),
            (b"\r\n\r\n\r\n", None),
            (b"", None),
        ] {
            assert_eq!(read(Role::Server, limits, &[bytes]), Ok(end), "{bytes:?}");
            let bytewise: Vec<&[u8]> = bytes.chunks(1).collect();
            assert_eq!(read(Role::Server, limits, &bytewise), Ok(end), "{bytes:?}");
        }
    }

    #[test]
    fn accepts_a_head_up_to_the_limit() {
        let head = b"GET / HTTP/1.1\r\nA: b\r\nC: d\r\n\r\n";
        let limits = HandshakeLimits::default();
        let too_long = Err(LimitReached::HeadLen.into());
        for (max, result) in [
            (head.len() - 1, too_long),
            (head.len(), Ok(Some(head.len()))),
            (head.len() + 1, Ok(Some(head.len()))),
        ] {
            let limits = HandshakeLimits { head_len_max: max, ..limits };
            assert_eq!(read(Role::Server, limits, &[head]), result, "{max}");
            let bytewise: Vec<&[u8]> = head.chunks(1).collect();
            assert_eq!(read(Role::Server, limits, &bytewise), result, "{max}");
        }
        let too_many = Err(LimitReached::Headers.into());
        for (max, result) in [(1, too_many), (2, Ok(Some(head.len()))), (3, Ok(Some(head.len())))] {
            let limits = HandshakeLimits { headers_max: max, ..limits };
            assert_eq!(read(Role::Server, limits, &[head]), result, "{max}");
        }
    }

    // RFC 9110 §6.2.
    #[test]
    fn lowers_the_minor_version() {
        for (head, expected) in [
            ("GET / HTTP/1.2\r\nA: HTTP/1.3\r\n\r\n", "GET / HTTP/1.1\r\nA: HTTP/1.3\r\n\r\n"),
            ("\r\n\nGET / HTTP/1.9\n\n", "\r\n\nGET / HTTP/1.1\n\n"),
            ("HTTP/1.5 200 HTTP/1.6\r\n\r\n", "HTTP/1.1 200 HTTP/1.6\r\n\r\n"),
            ("GET / HTTP/1.0\r\n\r\n", "GET / HTTP/1.0\r\n\r\n"),
            ("GET / HTTP/2.2\r\n\r\n", "GET / HTTP/2.2\r\n\r\n"),
            ("GET /1.2\r\n\r\n", "GET /1.2\r\n\r\n"),
            ("HTTP/1.", "HTTP/1."),
            ("", ""),
        ] {
            let mut bytes = head.as_bytes().to_vec();
            lower_minor_version(&mut bytes);
            assert_eq!(bytes, expected.as_bytes(), "{head:?}");
        }
    }

    // RFC 9112 §5.2.
    #[test]
    fn replaces_folded_lines() {
        for (head, expected) in [
            ("HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\td\r\n\r\n", "HTTP/1.1 200 OK\r\nA: b   c  \td\r\n\r\n"),
            ("HTTP/1.1 200 OK\nA: b\n c\n\n", "HTTP/1.1 200 OK\nA: b  c\n\n"),
            // Before the first header there is nothing to continue.
            ("HTTP/1.1 200 OK\r\n A: b\r\n\r\n", "HTTP/1.1 200 OK\r\n A: b\r\n\r\n"),
            ("\n", "\n"),
        ] {
            let mut bytes = head.as_bytes().to_vec();
            replace_obs_fold(&mut bytes);
            assert_eq!(bytes, expected.as_bytes(), "{head:?}");
        }
    }

    #[test]
    fn refuses_other_protocols_at_their_first_line() {
        let limits = HandshakeLimits::default();
        let start_line = |reads| Err(malformed(reads, Malformed::StartLine));
        let control = Err(malformed(Role::Server, Malformed::ControlByte));
        assert_eq!(read(Role::Server, limits, &[b"\x16\x03\x01"]), control, "TLS");
        assert_eq!(read(Role::Server, limits, &[b"SSH-2.0-x\r\n"]), start_line(Role::Server));
        assert_eq!(read(Role::Client, limits, &[b"SSH-2.0-x\r\n"]), start_line(Role::Client));
        let http2 = Err(RequestError::HttpVersionUnknown.into());
        assert_eq!(read(Role::Server, limits, &[b"PRI * HTTP/2.0\r\n"]), http2);
    }

    #[test]
    fn debug_shows_no_values() {
        let head = Head::from_fields([(&b"Cookie"[..], &b"secret"[..])]).unwrap();
        assert_eq!(alloc::format!("{head:?}"), "[\"Cookie\"]");
    }
}
