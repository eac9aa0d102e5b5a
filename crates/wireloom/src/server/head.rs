//! The head of an HTTP/1.1 request (RFC 9112 §2 to §5): found, parsed by httparse, judged.

use crate::headers::{Headers, Place};
use crate::http::Version;

/// Header lines in a head: as for [`wireloom_ws::handshake::HandshakeLimits`].
const HEADERS_MAX: usize = 100;

/// A head.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) method: Place,
    pub(super) target: Place,
    pub(super) version: Version,
    pub(super) headers: Headers,
}

/// A status, and why in a few words.
pub(super) type Refusal = (u16, &'static str);

/// Where the head ends, behind its empty line. `scanned` bytes were looked at before; it is moved on, so that each byte
/// is looked at once however slowly they come.
pub(super) fn end(bytes: &[u8], scanned: &mut usize) -> Option<usize> {
    // A line that ended before may be followed by its CR only now.
    let mut at = scanned.saturating_sub(3);
    while let Some(line_feed) = bytes[at..].iter().position(|&byte| byte == b'\n') {
        let next = at + line_feed + 1;
        match bytes[next..] {
            [b'\n', ..] => return Some(next + 1),
            [b'\r', b'\n', ..] => return Some(next + 2),
            _ => at = next,
        }
    }
    *scanned = bytes.len();
    None
}

/// Reads a whole head.
pub(super) fn parse(bytes: Vec<u8>) -> Result<Head, Refusal> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(&bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return Err((400, "the request is cut off")),
        // RFC 6585 §5.
        Err(httparse::Error::TooManyHeaders) => return Err((431, "too many headers")),
        // RFC 9110 §15.6.6.
        Err(httparse::Error::Version) => return Err((505, "unknown HTTP version")),
        Err(_) => return Err((400, "this is not HTTP")),
    }
    let place = |part: &[u8]| Headers::place_of(&bytes, part);
    let target = request.path.unwrap_or_default();
    if !target.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err((400, "invalid request target"));
    }
    let version = if request.version == Some(0) { Version::Http10 } else { Version::Http11 };
    let mut hosts = 0;
    let mut fields = Vec::with_capacity(request.headers.len());
    for header in request.headers.iter() {
        hosts += usize::from(header.name.eq_ignore_ascii_case("host"));
        fields.push((place(header.name.as_bytes()), place(header.value)));
    }
    // RFC 9112 §3.2: a 400 for a request without Host, or with more than one.
    if hosts > 1 || (hosts == 0 && version == Version::Http11) {
        return Err((400, "a request has one Host"));
    }
    let method = place(request.method.unwrap_or_default().as_bytes());
    let target = place(target.as_bytes());
    Ok(Head { method, target, version, headers: Headers::from_arena(bytes, fields) })
}

/// Whether a request can begin with this byte (RFC 9110 §5.6.2: a method is a token).
pub(super) fn is_method_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_end_at_every_split() {
        for head in ["GET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET / HTTP/1.1\nHost: a\n\n", "a\r\n\n"] {
            let mut scanned = 0;
            for len in 0..head.len() {
                assert_eq!(end(&head.as_bytes()[..len], &mut scanned), None, "{head:?} {len}");
            }
            let all = [head.as_bytes(), b"\x81\0"].concat();
            assert_eq!(end(&all, &mut scanned), Some(head.len()), "{head:?}");
        }
    }

    // RFC 9112 §3.2.
    #[test]
    fn wants_one_host() {
        let parse = |head: &str| parse(head.as_bytes().into()).map(drop).map_err(|(status, _)| status);
        assert_eq!(parse("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), Ok(()));
        assert_eq!(parse("GET / HTTP/1.0\r\n\r\n"), Ok(()));
        assert_eq!(parse("GET / HTTP/1.1\r\n\r\n"), Err(400));
        assert_eq!(parse("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"), Err(400));
        assert_eq!(parse("GET / HTTP/3.1\r\n\r\n"), Err(505));
        let many = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "a: b\r\n".repeat(HEADERS_MAX));
        assert_eq!(parse(&many), Err(431));
    }
}
