//! The length and the decoding of an HTTP/1.1 body (RFC 9112 §6, §7). Two implementations that disagree on the length allow
//! request smuggling, so ambiguous framing is rejected.

use bytes::{Buf as _, BytesMut};

use super::head::Refusal;
use crate::headers::Headers;
use crate::version::Version;

/// The longest chunk header or trailer line, in bytes; longer ones are rejected.
const LINE_LEN_MAX: usize = 1024;

/// Lines of a trailer.
const TRAILERS_MAX: usize = 100;

/// How the length of a body is determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    Length(u64),
    Chunked,
    /// By the end of the connection; responses only.
    Close,
}

/// The value of `Content-Length`.
fn length(head: &Headers) -> Result<Option<u64>, Refusal> {
    let mut length = None;
    // RFC 9110 §8.6: a list of equal values comes from several lines, and counts as they do.
    for value in head.get_all("content-length").flat_map(|value| value.split(|&byte| byte == b',')) {
        // Digits only. RFC 9112 §6.3: different values are an error, and may be an attack.
        let value = value.trim_ascii();
        let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
        let value = std::str::from_utf8(value).ok().filter(|_| digits);
        let value = value.and_then(|value| value.parse().ok()).ok_or((400, "invalid Content-Length"))?;
        if length.replace(value).is_some_and(|other| other != value) {
            return Err((400, "Content-Length contradicts itself"));
        }
    }
    Ok(length)
}

/// Whether `chunked` is the only transfer coding, which is the only one that is understood.
fn check_codings(head: &Headers) -> Result<(), Refusal> {
    let codings = head.get_all("transfer-encoding").flat_map(|value| value.split(|&byte| byte == b','));
    // RFC 9110 §5.6.1.2: empty elements of the list do not count.
    let codings = codings.map(<[u8]>::trim_ascii).filter(|coding| !coding.is_empty());
    let (mut count, mut chunked_count, mut ends_chunked) = (0, 0, false);
    for coding in codings {
        ends_chunked = coding.eq_ignore_ascii_case(b"chunked");
        count += 1;
        chunked_count += usize::from(ends_chunked);
    }
    match (ends_chunked, chunked_count, count) {
        (true, 1, 1) => Ok(()),
        // RFC 9112 §6.1: an unknown coding, of a body whose end can be found.
        (true, 1, _) => Err((501, "unknown Transfer-Encoding")),
        // RFC 9112 §6.1: once at most.
        (true, ..) => Err((400, "chunked twice in Transfer-Encoding")),
        // RFC 9112 §6.3: the length of the body cannot be determined.
        (false, ..) => Err((400, "Transfer-Encoding does not end with chunked")),
    }
}

impl Framing {
    /// Of a final response (RFC 9112 §6.3).
    pub(crate) fn of_response(
        head: &Headers,
        version: Version,
        status: u16,
        is_head: bool,
    ) -> Result<Self, Refusal> {
        if is_head || matches!(status, 204 | 304) {
            return Ok(Self::Length(0));
        }
        if head.get("transfer-encoding").is_some() {
            return Self::of(head, version);
        }
        Ok(length(head)?.map_or(Self::Close, Self::Length))
    }

    /// Of a request (RFC 9112 §6.3).
    pub(crate) fn of(head: &Headers, version: Version) -> Result<Self, Refusal> {
        match (head.get("transfer-encoding"), length(head)?) {
            // RFC 9112 §6.1: both headers together, or Transfer-Encoding in HTTP/1.0, may be request smuggling.
            (Some(_), Some(_)) => Err((400, "both Content-Length and Transfer-Encoding")),
            (Some(_), _) if version == Version::Http10 => Err((400, "Transfer-Encoding in HTTP/1.0")),
            (Some(_), None) => check_codings(head).map(|()| Self::Chunked),
            (None, len) => Ok(Self::Length(len.unwrap_or(0))),
        }
    }
}

/// Reads a body.
#[derive(Debug)]
pub(super) struct BodyDecoder {
    state: State,
    trailers: Headers,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Bytes of the body, or of a chunk, that have not arrived.
    Data {
        remaining: u64,
        chunked: bool,
    },
    /// The CRLF after a chunk.
    ChunkEnd,
    ChunkSize,
    Trailer {
        lines: usize,
    },
    /// Everything until the end of the connection.
    Rest,
    Complete,
}

impl BodyDecoder {
    pub(super) fn new(framing: Framing) -> Self {
        let state = match framing {
            Framing::Length(0) => State::Complete,
            Framing::Length(remaining) => State::Data { remaining, chunked: false },
            Framing::Chunked => State::ChunkSize,
            Framing::Close => State::Rest,
        };
        Self { state, trailers: Headers::new() }
    }

    pub(super) fn is_complete(&self) -> bool {
        matches!(self.state, State::Complete)
    }

    /// Bytes that have not arrived, if known.
    pub(super) fn remaining(&self) -> Option<u64> {
        match self.state {
            State::Complete => Some(0),
            State::Data { remaining, chunked: false } => Some(remaining),
            _ => None,
        }
    }

    /// The connection has ended. Returns whether the body is complete.
    pub(super) fn handle_eof(&mut self) -> bool {
        if matches!(self.state, State::Rest) {
            self.state = State::Complete;
        }
        self.is_complete()
    }

    pub(super) fn into_trailers(self) -> Headers {
        self.trailers
    }

    /// Consumes bytes from the front of `bytes`, and appends the content to `content`.
    pub(super) fn push(&mut self, bytes: &mut BytesMut, content: &mut BytesMut) -> Result<(), Refusal> {
        loop {
            match self.state {
                State::Complete => return Ok(()),
                State::Rest => {
                    if content.is_empty() {
                        *content = bytes.split();
                    } else {
                        content.unsplit(bytes.split());
                    }
                    return Ok(());
                }
                State::Data { remaining, chunked } => {
                    let len = bytes.len().min(usize::try_from(remaining).unwrap_or(usize::MAX));
                    if len == 0 {
                        return Ok(());
                    }
                    if content.is_empty() {
                        *content = bytes.split_to(len);
                    } else {
                        content.extend_from_slice(&bytes[..len]);
                        bytes.advance(len);
                    }
                    self.state = match remaining - len as u64 {
                        0 if chunked => State::ChunkEnd,
                        0 => State::Complete,
                        remaining => State::Data { remaining, chunked },
                    };
                }
                State::ChunkEnd | State::ChunkSize | State::Trailer { .. } => {
                    let Some(len) = bytes.iter().take(LINE_LEN_MAX).position(|&byte| byte == b'\n') else {
                        let overlong = bytes.len() >= LINE_LEN_MAX;
                        return if overlong { Err((400, "overlong line in a body")) } else { Ok(()) };
                    };
                    let line = bytes.split_to(len + 1);
                    // RFC 9112 §7.1: a bare LF does not end a line of a chunked body.
                    let line = line[..len].strip_suffix(b"\r").ok_or((400, "invalid chunk"))?;
                    self.line(line)?;
                }
            }
        }
    }

    fn line(&mut self, line: &[u8]) -> Result<(), Refusal> {
        self.state = match self.state {
            State::ChunkEnd if line.is_empty() => State::ChunkSize,
            State::ChunkSize => match chunk_size(line)? {
                0 => State::Trailer { lines: 0 },
                remaining => State::Data { remaining, chunked: true },
            },
            State::Trailer { .. } if line.is_empty() => State::Complete,
            State::Trailer { lines } if lines < TRAILERS_MAX => {
                self.trailer(line).ok_or((400, "invalid trailer"))?;
                State::Trailer { lines: lines + 1 }
            }
            _ => return Err((400, "invalid chunk")),
        };
        Ok(())
    }

    fn trailer(&mut self, line: &[u8]) -> Option<()> {
        let colon = line.iter().position(|&byte| byte == b':')?;
        let name = std::str::from_utf8(&line[..colon]).ok()?;
        // The list refuses control characters. RFC 9112 §2.2: a CR at the edge of the value is not whitespace to be removed.
        self.trailers.push(name, &line[colon + 1..]).ok()
    }
}

/// RFC 9112 §7.1: hexadecimal digits, then perhaps an extension, which is ignored.
fn chunk_size(line: &[u8]) -> Result<u64, Refusal> {
    // RFC 9112 §2.2: a CR alone may be the end of a line to another reader.
    if line.iter().any(|&byte| byte.is_ascii_control() && byte != b'\t') {
        return Err((400, "invalid chunk"));
    }
    let digits = line.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii_end();
    let valid = (1..=16).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit);
    let size = std::str::from_utf8(digits).ok().filter(|_| valid);
    size.and_then(|size| u64::from_str_radix(size, 16).ok()).ok_or((400, "invalid chunk"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8], step: usize) -> Result<(Vec<u8>, Headers, usize), u16> {
        let mut reader = BodyDecoder::new(Framing::Chunked);
        let (mut held, mut content) = (BytesMut::new(), BytesMut::new());
        let mut whole = Vec::new();
        for piece in bytes.chunks(step) {
            held.extend_from_slice(piece);
            reader.push(&mut held, &mut content).map_err(|(status, _)| status)?;
            whole.extend_from_slice(&content.split());
        }
        let left = held.len();
        if reader.is_complete() { Ok((whole, reader.into_trailers(), left)) } else { Err(0) }
    }

    // RFC 9112 §7.1.
    #[test]
    fn reads_chunks_at_every_split() {
        let bytes = b"5\r\nhello\r\n6;why=not\r\n world\r\n0\r\nTrailer: x\r\n\r\nGET";
        for step in 1..bytes.len() {
            let (content, trailers, left) = read(bytes, step).unwrap();
            assert_eq!((&*content, left), (&b"hello world"[..], 3), "step {step}");
            assert_eq!(trailers.get("trailer"), Some(&b"x"[..]));
        }
    }

    #[test]
    fn refuses_what_is_ambiguous() {
        for (bytes, status) in [
            (&b"5\nhello\r\n"[..], 400),
            (b"+5\r\nhello\r\n", 400),
            (b"0x5\r\nhello\r\n", 400),
            (b"5;a\rb\r\nhello\r\n", 400),
            (b"5;\0\r\nhello\r\n", 400),
            (b" 5\r\nhello\r\n", 400),
            (b"5 5\r\nhello\r\n", 400),
            (b"-5\r\nhello\r\n", 400),
            (b";a\r\nhello\r\n", 400),
            (b"0\r\na: b\r\n c\r\n\r\n", 400),
            (b"0\r\na: b\n\r\n", 400),
            (b"\r\n", 400),
            (b"5\r\nhelloX\r\n", 400),
            (b"11111111111111111\r\n", 400),
            (b"0\r\nno trailer\r\n\r\n", 400),
            (b"0\r\na b: c\r\n\r\n", 400),
            (b"0\r\na: \rb\r\n\r\n", 400),
            (b"0\r\na: b\x0c\r\n\r\n", 400),
            (b"0\r\na:\r\r\n\r\n", 400),
        ] {
            assert_eq!(read(bytes, 3), Err(status), "{bytes:?}");
        }
        assert_eq!(read(&[b'0'; LINE_LEN_MAX], 100), Err(400));
    }
}
