//! Where the body of an HTTP/1.1 request ends (RFC 9112 §6, §7), and the body itself. Two readers that disagree about it
//! can be played against each other, so whatever is ambiguous is refused.

use wireloom_ws::handshake::Version;

use super::head::Refusal;
use crate::http::Request;

/// A line that begins a chunk, or of the trailer: longer ones are refused.
const LINE_LEN_MAX: usize = 1024;

/// Lines of a trailer.
const TRAILERS_MAX: usize = 100;

/// How a body says where it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    Length(usize),
    Chunked,
}

impl Framing {
    /// RFC 9112 §6.3.
    pub(super) fn of(request: &Request, len_max: usize) -> Result<Self, Refusal> {
        let mut codings = request.values("transfer-encoding");
        let mut length = None;
        for value in request.values("content-length") {
            // RFC 9110 §8.6: digits and nothing else; RFC 9112 §6.3: several that differ are an attack.
            let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
            let value = std::str::from_utf8(value).ok().filter(|_| digits);
            let value = value.ok_or((400, "invalid Content-Length"))?.parse().unwrap_or(u64::MAX);
            if length.replace(value).is_some_and(|other| other != value) {
                return Err((400, "Content-Length contradicts itself"));
            }
        }
        match (codings.next(), length) {
            // RFC 9112 §6.1: both together, or in HTTP/1.0, are how requests are smuggled.
            (Some(_), Some(_)) => Err((400, "both Content-Length and Transfer-Encoding")),
            (Some(_), _) if request.version == Version::Http10 => Err((400, "Transfer-Encoding in HTTP/1.0")),
            (Some(coding), None) => {
                if codings.next().is_none() && coding.eq_ignore_ascii_case(b"chunked") {
                    Ok(Self::Chunked)
                } else {
                    // RFC 9112 §6.1: a coding that is not understood.
                    Err((501, "unknown Transfer-Encoding"))
                }
            }
            // RFC 9110 §15.5.14.
            (None, Some(len)) if len > len_max as u64 => Err((413, "the body is too large")),
            (None, len) => Ok(Self::Length(len.unwrap_or(0) as usize)),
        }
    }
}

/// Collects a body.
#[derive(Debug)]
pub(super) struct BodyReader {
    body: Vec<u8>,
    state: State,
    len_max: usize,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// So much of the body, or of a chunk, is to come.
    Data {
        remaining: usize,
        chunked: bool,
    },
    /// The CRLF behind a chunk.
    ChunkEnd,
    ChunkSize,
    Trailer {
        lines: usize,
    },
    Complete,
}

impl BodyReader {
    pub(super) fn new(framing: Framing, len_max: usize) -> Self {
        let state = match framing {
            Framing::Length(0) => State::Complete,
            Framing::Length(remaining) => State::Data { remaining, chunked: false },
            Framing::Chunked => State::ChunkSize,
        };
        Self { body: Vec::new(), state, len_max }
    }

    pub(super) fn is_complete(&self) -> bool {
        matches!(self.state, State::Complete)
    }

    pub(super) fn into_body(self) -> Vec<u8> {
        self.body
    }

    /// Takes what it can from the front of `bytes`: how many.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<usize, Refusal> {
        let mut used = 0;
        loop {
            let rest = &bytes[used..];
            match self.state {
                State::Complete => return Ok(used),
                State::Data { remaining, chunked } => {
                    let len = remaining.min(rest.len());
                    self.body.extend_from_slice(&rest[..len]);
                    used += len;
                    self.state = match remaining - len {
                        0 if chunked => State::ChunkEnd,
                        0 => State::Complete,
                        remaining => State::Data { remaining, chunked },
                    };
                    if len == 0 {
                        return Ok(used);
                    }
                }
                State::ChunkEnd | State::ChunkSize | State::Trailer { .. } => {
                    let Some(len) = rest.iter().take(LINE_LEN_MAX).position(|&byte| byte == b'\n') else {
                        let overlong = rest.len() >= LINE_LEN_MAX;
                        return if overlong { Err((400, "overlong line in a body")) } else { Ok(used) };
                    };
                    // RFC 9112 §7.1: a bare LF ends no line of a chunked body.
                    let line = rest[..len].strip_suffix(b"\r").ok_or((400, "invalid chunk"))?;
                    used += len + 1;
                    self.line(line)?;
                }
            }
        }
    }

    fn line(&mut self, line: &[u8]) -> Result<(), Refusal> {
        self.state = match self.state {
            State::ChunkEnd if line.is_empty() => State::ChunkSize,
            State::ChunkSize => match self.chunk_size(line)? {
                0 => State::Trailer { lines: 0 },
                remaining => State::Data { remaining, chunked: true },
            },
            State::Trailer { .. } if line.is_empty() => State::Complete,
            // What a trailer says is dropped, as RFC 9110 §6.5.1 allows.
            State::Trailer { lines } if lines < TRAILERS_MAX => State::Trailer { lines: lines + 1 },
            _ => return Err((400, "invalid chunk")),
        };
        Ok(())
    }

    /// RFC 9112 §7.1: hexadecimal digits, then perhaps an extension, which is ignored.
    fn chunk_size(&self, line: &[u8]) -> Result<usize, Refusal> {
        let digits = line.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii_end();
        let valid = (1..=16).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit);
        let size = std::str::from_utf8(digits).ok().filter(|_| valid);
        let size = size.and_then(|size| u64::from_str_radix(size, 16).ok()).ok_or((400, "invalid chunk"))?;
        if size > (self.len_max - self.body.len()) as u64 {
            return Err((413, "the body is too large"));
        }
        Ok(size as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8], step: usize, len_max: usize) -> Result<(Vec<u8>, usize), u16> {
        let mut reader = BodyReader::new(Framing::Chunked, len_max);
        let (mut held, mut used) = (Vec::new(), 0);
        for piece in bytes.chunks(step) {
            held.extend_from_slice(piece);
            let taken = reader.push(&held).map_err(|(status, _)| status)?;
            held.drain(..taken);
            used += taken;
        }
        if reader.is_complete() { Ok((reader.into_body(), used)) } else { Err(0) }
    }

    // RFC 9112 §7.1.
    #[test]
    fn reads_chunks_at_every_split() {
        let bytes = b"5\r\nhello\r\n6;why=not\r\n world\r\n0\r\nTrailer: x\r\n\r\nGET";
        for step in 1..bytes.len() {
            assert_eq!(read(bytes, step, 11), Ok((b"hello world".to_vec(), bytes.len() - 3)), "step {step}");
        }
    }

    #[test]
    fn refuses_what_is_ambiguous_or_too_large() {
        for (bytes, status) in [
            (&b"5\nhello\r\n"[..], 400),
            (b"+5\r\nhello\r\n", 400),
            (b"0x5\r\nhello\r\n", 400),
            (b"\r\n", 400),
            (b"5\r\nhelloX\r\n", 400),
            (b"11111111111111111\r\n", 400),
            (b"c\r\nhello world!\r\n", 413),
            (b"ffffffffffffffff\r\n", 413),
        ] {
            assert_eq!(read(bytes, 3, 11), Err(status), "{bytes:?}");
        }
        assert_eq!(read(&[b'0'; LINE_LEN_MAX], 100, 11), Err(400));
    }
}
