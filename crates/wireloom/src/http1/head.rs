//! Heads of HTTP/1.1 requests and responses (RFC 9112 §2 to §5): finds their end, parses them with httparse, and validates requests.

use std::io::BufRead as _;
use std::mem::MaybeUninit;

use wireloom_ws::handshake::uri::is_authority;
use wireloom_ws::handshake::{HandshakeLimits, lower_minor_version, replace_obs_fold};

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
    let mut at = scanned.saturating_sub(3);
    loop {
        // Reading from memory does not fail.
        at += (&bytes[at..]).skip_until(b'\n').unwrap_or_default();
        match bytes[at..] {
            [b'\n', ..] => return Some(at + 1),
            [b'\r', b'\n', ..] => return Some(at + 2),
            [] => {
                *scanned = bytes.len();
                return None;
            }
            _ => {}
        }
    }
}

/// Parses and validates the whole head of a request.
pub(crate) fn parse(mut bytes: Vec<u8>) -> Result<Head, Refusal> {
    lower_minor_version(&mut bytes);
    let mut headers = [const { MaybeUninit::uninit() }; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut []);
    match request.parse_with_uninit_headers(&bytes, &mut headers) {
        Ok(httparse::Status::Complete(len)) if len == bytes.len() => {}
        // httparse found another end than `end` did: the remaining bytes could be a smuggled request.
        Ok(httparse::Status::Complete(_)) => return Err((400, "ambiguous end of the request")),
        Ok(httparse::Status::Partial) => return Err((400, "incomplete request")),
        // RFC 6585 §5.
        Err(httparse::Error::TooManyHeaders) => return Err((431, "too many headers")),
        // RFC 9110 §15.6.6.
        Err(httparse::Error::Version) if names_version(&bytes) => return Err((505, "unknown HTTP version")),
        Err(httparse::Error::HeaderName) => return Err((400, "invalid header name")),
        Err(httparse::Error::HeaderValue) => return Err((400, "invalid header value")),
        Err(_) => return Err((400, "malformed request")),
    }
    let place = |part: &[u8]| Headers::span_of(&bytes, part);
    let method = request.method.unwrap_or_default();
    let target = request.path.unwrap_or_default();
    let authority = check_target(method, target).ok_or((400, "invalid request target"))?;
    let authority = authority.map(|authority| place(authority.as_bytes()));
    let version = if request.version == Some(0) { Version::Http10 } else { Version::Http11 };
    let mut hosts = 0;
    let mut fields = Vec::with_capacity(request.headers.len());
    for header in request.headers.iter() {
        let mut value = place(header.value);
        if header.name.eq_ignore_ascii_case("host") {
            hosts += 1;
            // RFC 9112 §3.2: 400 for an invalid value.
            if !header.value.is_empty() && !is_authority(header.value) {
                return Err((400, "invalid Host"));
            }
            // RFC 9112 §3.2.2: the authority of an absolute URI takes its place.
            if let Some(authority) = authority {
                value = authority;
            }
        }
        fields.push((place(header.name.as_bytes()), value));
    }
    // RFC 9112 §3.2: 400 for a request without Host, or with more than one.
    if hosts > 1 || (hosts == 0 && version == Version::Http11) {
        return Err((400, "a request needs exactly one Host"));
    }
    let method = place(method.as_bytes());
    let target = place(target.as_bytes());
    let mut headers = Headers::from_arena(bytes, fields);
    if hosts == 0
        && let Some(authority) = authority
    {
        let host = headers.at(authority).to_vec();
        headers.push_unchecked(b"Host", &host);
    }
    Ok(Head { method, target, version, headers })
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

/// Whether the request line ends with any version of HTTP (RFC 9112 §2.3).
fn names_version(head: &[u8]) -> bool {
    let line = head.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let mut words = line.trim_ascii_end().split(|&byte| byte == b' ').skip(2);
    let version = words.next().unwrap_or_default();
    words.next().is_none()
        && matches!(version, [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
            if major.is_ascii_digit() && minor.is_ascii_digit())
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
    // The limit on the length of the head bounds this.
    let lines = bytes.iter().filter(|&&byte| byte == b'\n').count().saturating_sub(2);
    if lines > headers_max {
        return Err((headers_max + 2, "too many headers"));
    }
    let mut headers = vec![httparse::EMPTY_HEADER; lines];
    let mut response = httparse::Response::new(&mut headers);
    match response.parse(&bytes) {
        Ok(httparse::Status::Complete(len)) if len == bytes.len() => {}
        _ => return Err(find_problem(&bytes)),
    }
    let place = |part: &[u8]| Headers::span_of(&bytes, part);
    let fields = response.headers.iter();
    let fields = fields.map(|field| (place(field.name.as_bytes()), place(field.value))).collect();
    let version = if response.version == Some(0) { Version::Http10 } else { Version::Http11 };
    let status = response.code.filter(|status| *status >= 100).ok_or((1, "the status is below 100"))?;
    Ok((status, version, Headers::from_arena(bytes, fields)))
}

/// The first line of a response's head that httparse refuses by itself.
fn find_problem(head: &[u8]) -> ResponseProblem {
    for (at, line) in head.split_inclusive(|&byte| byte == b'\n').enumerate() {
        let alone = [line, b"\r\n"].concat();
        let mut headers = [httparse::EMPTY_HEADER; 1];
        let problem = match at {
            0 => httparse::Response::new(&mut []).parse(&alone).err().map(|_| "not a status line of HTTP/1"),
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
