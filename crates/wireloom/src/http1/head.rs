//! Heads of HTTP/1.1 requests and responses (RFC 9112 §2 to §5): finds their end, and validates requests. The WebSocket core parses them,
//! as it does for its handshakes.

use wireloom_ws::handshake::error::Malformed;
use wireloom_ws::handshake::uri::is_authority;
use wireloom_ws::handshake::{
    HandshakeLimits, HeadError, HeaderLines, RequestLine, Version as HeadVersion, lower_minor_version,
    parse_request, parse_response as parse_response_head, replace_obs_fold,
};

use crate::headers::{Headers, Span};
use crate::version::Version;

/// Header lines in the head of a request.
const HEADERS_MAX: usize = HandshakeLimits::DEFAULT.headers_max;

/// The head of a request.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) method: Span,
    pub(crate) target: Span,
    pub(crate) version: Version,
    pub(crate) headers: Headers,
}

/// The status of a refused request, and the reason.
pub(crate) type Refusal = (u16, &'static str);

/// The end of the head, after its empty line. `scanned` is the number of bytes that earlier calls have searched; this advances it,
/// so that each byte is searched once, however slowly they arrive.
pub(crate) fn end(bytes: &[u8], scanned: &mut usize) -> Option<usize> {
    // The bytes before may end with LF or LF CR.
    let from = scanned.saturating_sub(3);
    for at in line_ends(&bytes[from..]) {
        match bytes[from + at..] {
            [b'\n', ..] => return Some(from + at + 1),
            [b'\r', b'\n', ..] => return Some(from + at + 2),
            _ => {}
        }
    }
    *scanned = bytes.len();
    None
}

/// The indices behind each LF. Eight bytes are searched at a time: most lines are short.
fn line_ends(bytes: &[u8]) -> impl Iterator<Item = usize> {
    const LOW: u64 = u64::from_ne_bytes([0x7F; 8]);
    let (words, rest) = bytes.as_chunks::<8>();
    let in_words = words.iter().enumerate().flat_map(|(number, word)| {
        let differs = u64::from_le_bytes(*word) ^ u64::from_ne_bytes([b'\n'; 8]);
        // The highest bit of each byte that is LF.
        let mut found = !(((differs & LOW) + LOW) | differs | LOW);
        std::iter::from_fn(move || {
            let bit = (found != 0).then(|| found.trailing_zeros() as usize)?;
            found &= found - 1;
            Some(number * 8 + bit / 8 + 1)
        })
    });
    let rest_start = bytes.len() - rest.len();
    let in_rest = rest.iter().enumerate().filter(|&(_, &byte)| byte == b'\n');
    in_words.chain(in_rest.map(move |(at, _)| rest_start + at + 1))
}

/// Parses and validates the whole head of a request.
pub(crate) fn parse(mut bytes: Vec<u8>) -> Result<Head, Refusal> {
    lower_minor_version(&mut bytes);
    let parsed = parse_request(&bytes, HEADERS_MAX, |line, headers| Parsed::check(&bytes, line, headers));
    let Parsed { method, target, version, fields, missing_host } = parsed.map_err(refusal)??;
    let mut headers = Headers::from_arena(bytes, fields);
    if let Some(authority) = missing_host {
        let host = headers.at(authority).to_vec();
        headers.push_unchecked(b"Host", &host);
    }
    Ok(Head { method, target, version, headers })
}

fn refusal(error: HeadError) -> Refusal {
    match error {
        // RFC 6585 §5.
        HeadError::TooManyHeaders => (431, "too many headers"),
        // RFC 9110 §15.6.6.
        HeadError::HttpVersionUnknown => (505, "unknown HTTP version"),
        HeadError::Malformed(Malformed::HeaderName) => (400, "invalid header name"),
        HeadError::Malformed(Malformed::HeaderValue) => (400, "invalid header value"),
        HeadError::Malformed(Malformed::LineEnd) => (400, "ambiguous end of a line"),
        _ => (400, "malformed request"),
    }
}

/// The parts of a valid head, as spans of its bytes.
struct Parsed {
    method: Span,
    target: Span,
    version: Version,
    fields: Vec<(Span, Span)>,
    /// The authority of an absolute URI, if there is no Host.
    missing_host: Option<Span>,
}

impl Parsed {
    fn check(bytes: &[u8], line: RequestLine<'_>, headers: HeaderLines<'_, '_>) -> Result<Self, Refusal> {
        let RequestLine { method, target, version } = line;
        let place = |part: &[u8]| Headers::span_of(bytes, part);
        let authority = check_target(method, target).ok_or((400, "invalid request target"))?;
        let authority = authority.map(|authority| place(authority.as_bytes()));
        let version = version_of(version);
        let headers = headers.iter();
        let mut hosts = 0;
        let mut fields = Vec::with_capacity(headers.len());
        for (name, value) in headers {
            let mut span = place(value);
            if name.eq_ignore_ascii_case("host") {
                hosts += 1;
                // RFC 9112 §3.2: 400 for an invalid value.
                if !value.is_empty() && !is_authority(value) {
                    return Err((400, "invalid Host"));
                }
                // RFC 9112 §3.2.2: the authority of an absolute URI takes its place.
                if let Some(authority) = authority {
                    span = authority;
                }
            }
            fields.push((place(name.as_bytes()), span));
        }
        // RFC 9112 §3.2: 400 for a request without Host, or with more than one.
        if hosts > 1 || (hosts == 0 && version == Version::Http11) {
            return Err((400, "a request needs exactly one Host"));
        }
        let (method, target) = (place(method.as_bytes()), place(target.as_bytes()));
        Ok(Self { method, target, version, fields, missing_host: authority.filter(|_| hosts == 0) })
    }
}

fn version_of(version: HeadVersion) -> Version {
    match version {
        HeadVersion::Http10 => Version::Http10,
        HeadVersion::Http11 => Version::Http11,
    }
}

/// Checks a target (RFC 9112 §3.2): `None` if it is invalid, and the authority of an absolute URI.
fn check_target<'t>(method: &str, target: &'t str) -> Option<Option<&'t str>> {
    // RFC 3986 §3.5: a fragment stays with the client.
    if target.bytes().any(|byte| !byte.is_ascii_graphic() || byte == b'#') {
        return None;
    }
    if target.starts_with('/') || (target == "*" && method == "OPTIONS") {
        return Some(None);
    }
    if method == "CONNECT" {
        return is_authority(target.as_bytes()).then_some(None);
    }
    let (scheme, rest) = target.split_once("://")?;
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    // RFC 3986 §3.1; RFC 9110 §4.2.1, §4.2.4: neither without a host nor with a user.
    let valid = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
        && is_authority(authority.as_bytes());
    valid.then_some(Some(authority))
}

/// The problem of a response's head, and the number of the line that has it, from 1.
pub(crate) type ResponseProblem = (usize, &'static str);

/// Parses the whole head of a response with at most `headers_max` lines of headers: status, version and headers.
pub(crate) fn parse_response(
    mut bytes: Vec<u8>,
    headers_max: usize,
) -> Result<(u16, Version, Headers), ResponseProblem> {
    // RFC 9112 §5.2: a user agent replaces folded lines.
    replace_obs_fold(&mut bytes);
    lower_minor_version(&mut bytes);
    let parsed = parse_response_head(&bytes, headers_max, |line, headers| {
        let place = |part: &[u8]| Headers::span_of(&bytes, part);
        let fields = headers.iter().map(|(name, value)| (place(name.as_bytes()), place(value))).collect();
        (line.status, version_of(line.version), fields)
    });
    match parsed {
        Ok((status, version, fields)) => Ok((status, version, Headers::from_arena(bytes, fields))),
        Err(HeadError::TooManyHeaders) => Err((headers_max + 2, "too many headers")),
        Err(_) => Err(find_problem(&bytes)),
    }
}

/// The first line of a response's head that httparse refuses by itself.
fn find_problem(head: &[u8]) -> ResponseProblem {
    for (at, line) in head.split_inclusive(|&byte| byte == b'\n').enumerate() {
        let alone = [line, b"\r\n"].concat();
        let mut headers = [httparse::EMPTY_HEADER; 1];
        let problem = match at {
            0 => match parse_response_head(&alone, 0, |_, _| ()) {
                Ok(()) => None,
                Err(_) => Some("not a status line of HTTP/1"),
            },
            _ => match httparse::parse_headers(&alone, &mut headers) {
                Err(httparse::Error::HeaderName) => Some("invalid header name"),
                Err(httparse::Error::HeaderValue) => Some("invalid header value"),
                Err(_) => Some("malformed line"),
                Ok(_) => None,
            },
        };
        if let Some(problem) = problem {
            return (at + 1, problem);
        }
    }
    (1, "malformed")
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
    fn requires_one_host() {
        let parse = |head: &str| parse(head.as_bytes().into()).map(drop).map_err(|(status, _)| status);
        assert_eq!(parse("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), Ok(()));
        assert_eq!(parse("GET / HTTP/1.0\r\n\r\n"), Ok(()));
        assert_eq!(parse("GET / HTTP/1.1\r\n\r\n"), Err(400));
        assert_eq!(parse("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"), Err(400));
        assert_eq!(parse("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), Err(400));
        for host in [
            "a b", "a/b", "u@a", "a, b", "a\x7f", "\"a\"", "a?b", "h:abc", "h:99999", "h:80:80", "h:+1",
            ":80", "[::1", "[::1]x", "[::1]:x", "::1", "[h]", "]", "a[",
        ] {
            assert_eq!(parse(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")), Err(400), "{host}");
        }
        for host in ["", "a", "a:", "a:80", "a:65535", "[::1]", "[::1]:80", "a%20b", "a_b"] {
            assert_eq!(parse(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")), Ok(()), "{host}");
        }
    }

    #[test]
    fn checks_request_lines() {
        let parse = |head: &str| parse(head.as_bytes().into()).map(drop).map_err(|(status, _)| status);
        for (line, expected) in [
            ("GET / HTTP/3.1", Err(505)),
            // RFC 9110 §6.2.
            ("GET / HTTP/1.2", Ok(())),
            ("GET / HTTP/1.9", Ok(())),
            ("GET / HTTP/2.0", Err(505)),
            ("GET / HTTP/0.9", Err(505)),
            ("GET / HTP/1.1", Err(400)),
            ("GET / http/1.1", Err(400)),
            ("GET / HTTP/1.10", Err(400)),
            ("GET  / HTTP/1.1", Err(400)),
            ("GET / / HTTP/1.1", Err(400)),
            ("GET / HTTP/1.1 ", Err(400)),
            ("GET /", Err(400)),
            ("GET\t/\tHTTP/1.1", Err(400)),
            ("G\u{e9}T / HTTP/1.1", Err(400)),
            ("GET /\u{e9} HTTP/1.1", Err(400)),
            ("GET /#a HTTP/1.1", Err(400)),
            ("GET a HTTP/1.1", Err(400)),
            ("GET * HTTP/1.1", Err(400)),
            ("OPTIONS * HTTP/1.1", Ok(())),
            ("GET http://a/b?c HTTP/1.1", Ok(())),
            ("GET http://a?c HTTP/1.1", Ok(())),
            ("GET http:///b HTTP/1.1", Err(400)),
            ("GET http://u@a/b HTTP/1.1", Err(400)),
            ("GET http://a:b/ HTTP/1.1", Err(400)),
            ("GET http://[::1/ HTTP/1.1", Err(400)),
            ("GET http://[::1]:80/ HTTP/1.1", Ok(())),
            ("GET 1http://a/b HTTP/1.1", Err(400)),
            ("GET a:80 HTTP/1.1", Err(400)),
            ("CONNECT a:80 HTTP/1.1", Ok(())),
            ("CONNECT a:80/b HTTP/1.1", Err(400)),
        ] {
            assert_eq!(parse(&format!("{line}\r\nHost: a\r\n\r\n")), expected, "{line}");
        }
        let many = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "a: b\r\n".repeat(HEADERS_MAX));
        assert_eq!(parse(&many), Err(431));
    }

    // RFC 9112 §2.2, §5.1, §5.2: ambiguous heads.
    #[test]
    fn refuses_ambiguous_header_lines() {
        for line in [
            "X : a",
            " X: a",
            "X: a\r\n b",
            "X: a\r\n\tb",
            "X",
            ": a",
            "X: a\0",
            "X: a\rb",
            "X\0: a",
            "X(: a",
            "X: a\x0bb",
        ] {
            let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{line}\r\n\r\n");
            let result = parse(head.as_bytes().into());
            assert!(matches!(result, Err((400, _))), "{line:?}: {result:?}");
        }
    }

    // RFC 9112 §3.2.2.
    #[test]
    fn the_authority_of_an_absolute_uri_replaces_host() {
        for rest in ["1.1\r\nX: y\r\nHost: a\r\n\r\n", "1.0\r\nHost: a\r\n\r\n", "1.0\r\nX: y\r\n\r\n"] {
            let head = parse(format!("GET http://b:81/c HTTP/{rest}").into()).unwrap();
            assert_eq!(head.headers.get_all("host").collect::<Vec<_>>(), [b"b:81"], "{rest:?}");
            assert_eq!(head.headers.text(head.target), "http://b:81/c");
        }
    }

    #[test]
    fn reads_responses() {
        let parse = |head: &str| parse_response(head.as_bytes().into(), 100);
        let (status, version, headers) = parse("HTTP/1.7 404 Nothing here\r\nA: b\r\n\r\n").unwrap();
        assert_eq!((status, version, headers.len()), (404, Version::Http11, 1));
        for (head, line) in [
            ("HTP/1.1 200 OK\r\n\r\n", 1),
            ("HTTP/2.0 200 OK\r\n\r\n", 1),
            ("HTTP/1.1 99 OK\r\n\r\n", 1),
            ("HTTP/1.1 200 OK\r\n A: b\r\n\r\n", 2),
            ("HTTP/1.1 200 OK\r\nA: b\r\nC d\r\n\r\n", 3),
            ("HTTP/1.1 200 OK\r\nA: b\r\nC : d\r\nE: f\r\n\r\n", 3),
            ("HTTP/1.1 200 OK\r\nA: b\r\nC: d\r\nE: \0\r\n\r\n", 4),
        ] {
            assert_eq!(parse(head).map_err(|(line, _)| line).map(drop), Err(line), "{head:?}");
        }
    }

    // RFC 9112 §5.2.
    #[test]
    fn unfolds_the_headers_of_responses() {
        let head = "HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\t d\r\nE:\r\n f\r\n \r\nG: h\n i\r\n\r\n";
        let (_, _, headers) = parse_response(head.as_bytes().into(), 100).unwrap();
        let words = |name| {
            headers
                .get(name)
                .map(|value| String::from_utf8_lossy(value).split_whitespace().collect::<Vec<_>>().join(" "))
        };
        assert_eq!(["a", "e", "g"].map(words), ["b c d", "f", "h i"].map(|words| Some(words.to_owned())));
    }

    #[test]
    fn bounds_the_headers_of_responses() {
        let parse = |count| {
            parse_response(format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(count)).into(), 1_000)
        };
        assert_eq!(parse(999).unwrap().2.len(), 999);
        assert_eq!(parse(1_000).unwrap().2.len(), 1_000);
        assert_eq!(parse(1_001), Err((1_002, "too many headers")));
    }
}
