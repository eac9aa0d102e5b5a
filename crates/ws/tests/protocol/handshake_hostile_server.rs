//! Requests that are not a valid opening handshake, and the answers of a server (RFC 6455 §4.2.1).

use wireloom_testing::Rng;
use wireloom_testing::split::Split;
use wireloom_ws::handshake::client;
use wireloom_ws::handshake::error::{HandshakeError, LimitReached, Malformed, RequestError as R};
use wireloom_ws::handshake::extensions::ExtensionsError as E;
use wireloom_ws::handshake::server::{Progress, ServerHandshake};
use wireloom_ws::handshake::{ClientHandshake, ClientOptions, HandshakeLimits, http2};

const HOST: &str = "Host: h";
const UPGRADE: &str = "Upgrade: websocket";
const CONNECTION: &str = "Connection: Upgrade";
const KEY: &str = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";
const VERSION: &str = "Sec-WebSocket-Version: 13";

fn head(request_line: &str, lines: &[&str]) -> Vec<u8> {
    let mut head = format!("{request_line}\r\n");
    for line in lines {
        head.push_str(line);
        head.push_str("\r\n");
    }
    head.push_str("\r\n");
    head.into_bytes()
}

/// A valid handshake except for its first line.
fn line(request_line: &str) -> Vec<u8> {
    head(request_line, &[HOST, UPGRADE, CONNECTION, KEY, VERSION])
}

/// A valid handshake in which these lines replace one.
fn instead(of: &str, lines: &[&str]) -> Vec<u8> {
    let kept = [HOST, UPGRADE, CONNECTION, KEY, VERSION];
    let all: Vec<&str> = kept.into_iter().filter(|&line| line != of).chain(lines.iter().copied()).collect();
    head("GET /chat HTTP/1.1", &all)
}

/// A valid handshake with these lines added.
fn with(lines: &[&str]) -> Vec<u8> {
    instead("", lines)
}

fn check(split: Split, bytes: &[u8]) -> Result<Option<usize>, HandshakeError> {
    let mut rng = Rng::with_seed(bytes.len() as u64);
    let mut handshake = ServerHandshake::new(HandshakeLimits::default());
    let mut at = 0;
    for part in split.parts(&mut rng, bytes.len()) {
        match handshake.handle_input(&bytes[at..at + part])? {
            Progress::Incomplete => at += part,
            Progress::Complete { consumed } => return Ok(Some(at + consumed)),
        }
    }
    Ok(None)
}

fn refused(bytes: &[u8], error: HandshakeError, status: u16) {
    let shown = String::from_utf8_lossy(bytes);
    for split in [Split::Whole, Split::Every(1), Split::Every(7), Split::Random(40)] {
        assert_eq!(check(split, bytes), Err(error), "{split:?} {shown}");
    }
    assert_eq!(error.status(), status, "{shown}");
    // The refusal is a response that a client can read.
    let mut refusal = Vec::new();
    error.refusal().write_to(&mut refusal);
    let options = ClientOptions::new("h", "/");
    let mut client = ClientHandshake::new(options, [0; 16], HandshakeLimits::default()).unwrap();
    let Ok(client::Progress::Refused { response, consumed }) = client.handle_input(&refusal) else {
        panic!("{:?}", String::from_utf8_lossy(&refusal));
    };
    assert_eq!(response.status(), status);
    let len = response.header("content-length").map(|len| String::from_utf8_lossy(len).into_owned());
    assert_eq!(len, Some((refusal.len() - consumed).to_string()));
    assert!(refusal.len() > consumed + 10, "a refusal says why");
}

#[test]
fn the_valid_head_is_valid() {
    let valid = with(&[]);
    assert_eq!(check(Split::Whole, &valid), Ok(Some(valid.len())));
}

#[test]
fn accepts_every_form_that_the_rfcs_allow() {
    // Unusual, but valid.
    for bytes in [
        line("GET http://h/chat HTTP/1.1"),  // RFC 6455 §4.2.1, item 1
        line("GET https://h:99?x HTTP/1.1"), // RFC 9112 §3.2.2
        line("GET /?a=b&c=%20|{} HTTP/1.1"),
        line("\r\n\r\nGET / HTTP/1.1"), // RFC 9112 §2.2
        String::from_utf8(line("GET / HTTP/1.1")).unwrap().replace("\r\n", "\n").into_bytes(), // RFC 9112 §2.2
        instead(HOST, &["hOsT:\t  h:8080 \t"]), // RFC 9110 §5.1, §5.5
        instead(HOST, &["Host: [::1]:80"]),
        instead(HOST, &["Host: a_b.example."]),
        instead(UPGRADE, &["Upgrade: WebSocket"]), // item 3: in any case
        instead(UPGRADE, &["Upgrade: h2c, websocket"]),
        instead(UPGRADE, &["Upgrade: h2c", "Upgrade: WEBSOCKET"]),
        instead(CONNECTION, &["Connection: keep-alive, UPGRADE"]), // item 4: a token, in any case
        instead(CONNECTION, &["Connection: keep-alive", "connection: upgrade"]),
        instead(CONNECTION, &["Connection: ,,upgrade,"]), // RFC 2616 §2.1
        instead(KEY, &["Sec-WebSocket-Key:   dGhlIHNhbXBsZSBub25jZQ==  "]),
        instead(KEY, &["Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAB=="]), // RFC 4648 §3.5
        with(&["Content-Length: 0"]),
        with(&["Content-Length: 00"]),
        with(&["Origin: null"]),
        with(&["Sec-WebSocket-Protocol: a,, b", "Sec-WebSocket-Protocol:", "Sec-WebSocket-Protocol: A"]),
        with(&[
            "Sec-WebSocket-Extensions: x; y; z=\"1\"",
            "Sec-WebSocket-Extensions: ,",
            "Sec-WebSocket-Extensions: x",
        ]),
        with(&["Sec-WebSocket-Accept: whatever"]),
        with(&["X-Empty:", "X: \u{fc}"]), // RFC 9110 §5.5
    ] {
        assert_eq!(
            check(Split::Random(9), &bytes),
            Ok(Some(bytes.len())),
            "{}",
            String::from_utf8_lossy(&bytes)
        );
    }
}

#[test]
fn rejects_invalid_first_lines() {
    let start_line = R::Malformed(Malformed::StartLine);
    for (bytes, error, status) in [
        // RFC 6455 §4.2.1, item 1: an HTTP/1.1 or higher GET.
        (line("GET / HTTP/1.0"), R::HttpVersionTooLow, 426),
        (line("GET / HTTP/2.1"), R::HttpVersionUnknown, 505),
        (line("GET / HTTP/0.9"), R::HttpVersionUnknown, 505),
        (line("GET / HTTP/2.0"), R::HttpVersionUnknown, 505),
        (line("GET / HTTP/3.0"), R::HttpVersionUnknown, 505),
        (line("PRI * HTTP/2.0"), R::HttpVersionUnknown, 505),
        (line("GET / HTTP/2"), start_line, 400),
        (line("GET / HTTP/11"), start_line, 400),
        (line("GET / HTTP/1.11"), start_line, 400),
        (line("GET / http/1.1"), start_line, 400),
        (line("GET / HTTPS/1.1"), start_line, 400),
        (line("GET / HTTP/1.1 "), start_line, 400),
        (line("GET / HTTP/1.1x"), start_line, 400),
        (line("GET /"), start_line, 400),
        (line("GET"), start_line, 400),
        (line("HTTP/1.1"), start_line, 400),
        (line("HTTP/1.1 101 Switching Protocols"), start_line, 400),
        (line(" GET / HTTP/1.1"), start_line, 400),
        (line("GET  / HTTP/1.1"), start_line, 400),
        (line("GET /  HTTP/1.1"), start_line, 400),
        (line("GET /a b HTTP/1.1"), start_line, 400),
        (line("GET\t/\tHTTP/1.1"), start_line, 400),
        (line("G(T / HTTP/1.1"), start_line, 400),
        (line("G\u{c9}T / HTTP/1.1"), start_line, 400),
        (line(": / HTTP/1.1"), start_line, 400),
        (line("POST / HTTP/1.1"), R::Method, 405),
        (line("HEAD / HTTP/1.1"), R::Method, 405),
        (line("CONNECT h:80 HTTP/1.1"), R::Method, 405),
        (line("OPTIONS * HTTP/1.1"), R::Method, 405),
        (line("get / HTTP/1.1"), R::Method, 405),
        (line("GETX / HTTP/1.1"), R::Method, 405),
        (line("GET * HTTP/1.1"), R::Target, 400),
        (line("GET chat HTTP/1.1"), R::Target, 400),
        (line("GET h:80 HTTP/1.1"), R::Target, 400),
        (line("GET ws://h/ HTTP/1.1"), R::Target, 400),
        (line("GET http:// HTTP/1.1"), R::Target, 400),
        (line("GET http:/h HTTP/1.1"), R::Target, 400),
        (line("GET http://u:p@h/ HTTP/1.1"), R::Target, 400),
        (line("GET http://h:port/ HTTP/1.1"), R::Target, 400),
        // RFC 6455 §3: no fragment.
        (line("GET /#x HTTP/1.1"), R::Target, 400),
        (line("GET /\u{fc} HTTP/1.1"), R::Target, 400),
        (line("GET ?x HTTP/1.1"), R::Target, 400),
    ] {
        refused(&bytes, error.into(), status);
    }
    refused(b"GET /\xFF HTTP/1.1\r\n\r\n", start_line.into(), 400);
}

#[test]
fn rejects_invalid_header_lines() {
    use Malformed::{ControlByte, HeaderName, HeaderValue, LineEnd, StartLine};
    for (bytes, malformed) in [
        (with(&["X"]), HeaderName),
        (with(&["X y: z"]), HeaderName),
        // RFC 9112 §5.1: no blank before the colon.
        (with(&["X : y"]), HeaderName),
        (with(&[": y"]), HeaderName),
        (with(&["X\u{e9}: y"]), HeaderName),
        (with(&["X@: y"]), HeaderName),
        (with(&["(X): y"]), HeaderName),
        // RFC 9112 §5.2: no folded lines.
        (with(&["X: y", " z"]), HeaderName),
        (with(&["X: y", "\tz"]), HeaderName),
        (head("GET / HTTP/1.1", &[" Host: h"]), HeaderName),
        // RFC 9110 §5.5: CR, LF and NUL are dangerous.
        (with(&["X: a\rb"]), HeaderValue),
        (with(&["X: a\r"]), HeaderValue),
        (with(&["\r"]), LineEnd),
        (with(&["X\rY: z"]), HeaderName),
        (with(&["X: \0"]), ControlByte),
        (with(&["X\0: y"]), ControlByte),
        (with(&["X: \u{1b}[31m"]), ControlByte),
        (with(&["X: \u{7f}"]), ControlByte),
        (with(&["X: \u{8}"]), ControlByte),
        (with(&["X: a\u{b}b"]), ControlByte),
        (line("GET /\0 HTTP/1.1"), ControlByte),
        (line("GET / HTTP/1.1\u{c}"), ControlByte),
        (b"\0".to_vec(), ControlByte),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(), ControlByte),
        (b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58".to_vec(), ControlByte),
        (b"QUIT\r\n".to_vec(), StartLine),
        (b"EHLO example.com\r\n".to_vec(), StartLine),
        (b"<policy-file-request/>\n".to_vec(), StartLine),
        (b"\r\r\n\r\n".to_vec(), StartLine),
    ] {
        refused(&bytes, R::Malformed(malformed).into(), 400);
    }
}

#[test]
fn rejects_missing_repeated_and_invalid_headers() {
    for (bytes, error, status) in [
        // RFC 6455 §4.2.1, item 2; RFC 9112 §3.2.
        (instead(HOST, &[]), R::HostMissing, 400),
        (instead(HOST, &["Host: h", "Host: h"]), R::HostDuplicate, 400),
        (instead(HOST, &["Host: h", "host: i"]), R::HostDuplicate, 400),
        (instead(HOST, &["Host:"]), R::HostInvalid, 400),
        (instead(HOST, &["Host: a, b"]), R::HostInvalid, 400),
        (instead(HOST, &["Host: a,b"]), R::HostInvalid, 400),
        (instead(HOST, &["Host: a b"]), R::HostInvalid, 400),
        (instead(HOST, &["Host: u@h"]), R::HostInvalid, 400),
        (instead(HOST, &["Host: http://h"]), R::HostInvalid, 400),
        (instead(HOST, &["Host: h/x"]), R::HostInvalid, 400),
        (instead(HOST, &["Host: h?x"]), R::HostInvalid, 400),
        (instead(HOST, &["Host: h#x"]), R::HostInvalid, 400),
        (instead(HOST, &["Host: h:x"]), R::HostInvalid, 400),
        (instead(HOST, &["Host: h:65536"]), R::HostInvalid, 400),
        (instead(HOST, &["Host: h:-1"]), R::HostInvalid, 400),
        (instead(HOST, &["Host: :80"]), R::HostInvalid, 400),
        (instead(HOST, &["Host: ::1"]), R::HostInvalid, 400),
        (instead(HOST, &["Host: [::1"]), R::HostInvalid, 400),
        (instead(HOST, &["Host: [h]"]), R::HostInvalid, 400),
        (instead(HOST, &["Host: \u{fc}.example"]), R::HostInvalid, 400),
        (instead(HOST, &["Host: a\\b"]), R::HostInvalid, 400),
        // The bytes behind the head must be frames.
        (with(&["Content-Length: 1"]), R::Body, 400),
        (with(&["Content-Length: 0", "Content-Length: 5"]), R::Body, 400),
        (with(&["Content-Length: 0, 5"]), R::Body, 400),
        (with(&["Content-Length: -0"]), R::Body, 400),
        (with(&["Content-Length: +0"]), R::Body, 400),
        (with(&["Content-Length: 0x0"]), R::Body, 400),
        (with(&["Content-Length: "]), R::Body, 400),
        (with(&["Content-Length: 18446744073709551616"]), R::Body, 400),
        (with(&["Transfer-Encoding: chunked"]), R::Body, 400),
        (with(&["Transfer-Encoding: identity"]), R::Body, 400),
        (with(&["transfer-encoding:"]), R::Body, 400),
        // Item 3.
        (instead(UPGRADE, &[]), R::UpgradeMissing, 426),
        (instead(UPGRADE, &["Upgrade:"]), R::UpgradeInvalid, 426),
        (instead(UPGRADE, &["Upgrade: h2c"]), R::UpgradeInvalid, 426),
        (instead(UPGRADE, &["Upgrade: websockets"]), R::UpgradeInvalid, 426),
        (instead(UPGRADE, &["Upgrade: websocket/13"]), R::UpgradeInvalid, 426),
        (instead(UPGRADE, &["Upgrade: \"websocket\""]), R::UpgradeInvalid, 426),
        (instead(UPGRADE, &["Upgrade: web socket"]), R::UpgradeInvalid, 426),
        (instead(UPGRADE, &["Upgrade: h2c websocket"]), R::UpgradeInvalid, 426),
        // Item 4.
        (instead(CONNECTION, &[]), R::ConnectionMissing, 400),
        (instead(CONNECTION, &["Connection:"]), R::ConnectionInvalid, 400),
        (instead(CONNECTION, &["Connection: keep-alive"]), R::ConnectionInvalid, 400),
        (instead(CONNECTION, &["Connection: close, upgraded"]), R::ConnectionInvalid, 400),
        (instead(CONNECTION, &["Connection: not upgrade"]), R::ConnectionInvalid, 400),
        (instead(CONNECTION, &["Connection: upgrade;x"]), R::ConnectionInvalid, 400),
        // Item 5; §11.3.1.
        (instead(KEY, &[]), R::KeyMissing, 400),
        (instead(KEY, &[KEY, KEY]), R::KeyDuplicate, 400),
        (instead(KEY, &[KEY, "Sec-WebSocket-Key:"]), R::KeyDuplicate, 400),
        (instead(KEY, &["Sec-WebSocket-Key:"]), R::KeyInvalid, 400),
        (instead(KEY, &["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ"]), R::KeyInvalid, 400),
        (instead(KEY, &["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ="]), R::KeyInvalid, 400),
        (instead(KEY, &["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZTE="]), R::KeyInvalid, 400),
        (instead(KEY, &["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25j"]), R::KeyInvalid, 400),
        (instead(KEY, &["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZTEy"]), R::KeyInvalid, 400),
        (instead(KEY, &["Sec-WebSocket-Key: dGhl IHNhbXBsZSBub25jZQ=="]), R::KeyInvalid, 400),
        (instead(KEY, &["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZ?=="]), R::KeyInvalid, 400),
        (instead(KEY, &["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25_ZQ=="]), R::KeyInvalid, 400),
        (instead(KEY, &["Sec-WebSocket-Key: ========================"]), R::KeyInvalid, 400),
        (instead(KEY, &["Sec-WebSocket-Key: the sample nonce"]), R::KeyInvalid, 400),
        (
            instead(KEY, &["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==, dGhlIHNhbXBsZSBub25jZQ=="]),
            R::KeyInvalid,
            400,
        ),
        (instead(KEY, &["Sec-WebSocket-Key1: 18x 6]8vM;54 *(5:  {   U1]8  z [  8"]), R::KeyMissing, 400),
        // Item 6; §4.2.2, item 4; §4.3, §4.4; §11.3.5.
        (instead(VERSION, &[]), R::VersionMissing, 400),
        (instead(VERSION, &[VERSION, VERSION]), R::VersionDuplicate, 400),
        (instead(VERSION, &["Sec-WebSocket-Version: 8", VERSION]), R::VersionDuplicate, 400),
        (instead(VERSION, &["Sec-WebSocket-Version: 13, 8"]), R::VersionInvalid, 400),
        (instead(VERSION, &["Sec-WebSocket-Version:"]), R::VersionInvalid, 400),
        (instead(VERSION, &["Sec-WebSocket-Version: 013"]), R::VersionInvalid, 400),
        (instead(VERSION, &["Sec-WebSocket-Version: +13"]), R::VersionInvalid, 400),
        (instead(VERSION, &["Sec-WebSocket-Version: -13"]), R::VersionInvalid, 400),
        (instead(VERSION, &["Sec-WebSocket-Version: 13.0"]), R::VersionInvalid, 400),
        (instead(VERSION, &["Sec-WebSocket-Version: thirteen"]), R::VersionInvalid, 400),
        (instead(VERSION, &["Sec-WebSocket-Version: 256"]), R::VersionInvalid, 400),
        (instead(VERSION, &["Sec-WebSocket-Version: 1313131313131313"]), R::VersionInvalid, 400),
        (instead(VERSION, &["Sec-WebSocket-Version: 0"]), R::VersionUnsupported(0), 426),
        (instead(VERSION, &["Sec-WebSocket-Version: 7"]), R::VersionUnsupported(7), 426),
        (instead(VERSION, &["Sec-WebSocket-Version: 8"]), R::VersionUnsupported(8), 426),
        (instead(VERSION, &["Sec-WebSocket-Version: 12"]), R::VersionUnsupported(12), 426),
        (instead(VERSION, &["Sec-WebSocket-Version: 14"]), R::VersionUnsupported(14), 426),
        (instead(VERSION, &["Sec-WebSocket-Version: 255"]), R::VersionUnsupported(255), 426),
        // Item 7; RFC 6454 §7.3.
        (with(&["Origin: https://good.example", "Origin: https://evil.example"]), R::OriginDuplicate, 400),
        (with(&["Origin: https://\u{fc}.example"]), R::OriginInvalid, 400),
        (with(&["Origin: a\tb"]), R::OriginInvalid, 400),
        // Item 8; §4.1, item 10; §11.3.4.
        (with(&["Sec-WebSocket-Protocol: a b"]), R::SubprotocolInvalid, 400),
        (with(&["Sec-WebSocket-Protocol: a, b;c"]), R::SubprotocolInvalid, 400),
        (with(&["Sec-WebSocket-Protocol: \"a\""]), R::SubprotocolInvalid, 400),
        (with(&["Sec-WebSocket-Protocol: a/b"]), R::SubprotocolInvalid, 400),
        (with(&["Sec-WebSocket-Protocol: \u{fc}"]), R::SubprotocolInvalid, 400),
        (with(&["Sec-WebSocket-Protocol: a, b, a"]), R::SubprotocolDuplicate, 400),
        (with(&["Sec-WebSocket-Protocol: a", "Sec-WebSocket-Protocol: a"]), R::SubprotocolDuplicate, 400),
        // Item 9; §9.1.
        (with(&["Sec-WebSocket-Extensions:"]), R::Extensions(E::Empty), 400),
        (with(&["Sec-WebSocket-Extensions: ,"]), R::Extensions(E::Empty), 400),
        (with(&["Sec-WebSocket-Extensions: a;"]), R::Extensions(E::ExpectedParam { offset: 2 }), 400),
        (with(&["Sec-WebSocket-Extensions: ;a"]), R::Extensions(E::ExpectedName { offset: 0 }), 400),
        (with(&["Sec-WebSocket-Extensions: a;b="]), R::Extensions(E::ExpectedValue { offset: 4 }), 400),
        (with(&["Sec-WebSocket-Extensions: a b"]), R::Extensions(E::ExpectedSeparator { offset: 2 }), 400),
        (with(&["Sec-WebSocket-Extensions: a;b=\"c"]), R::Extensions(E::UnclosedQuote { offset: 4 }), 400),
        (
            with(&["Sec-WebSocket-Extensions: a;b=\"c d\""]),
            R::Extensions(E::QuotedNotToken { offset: 4 }),
            400,
        ),
        (
            with(&["Sec-WebSocket-Extensions: a", "Sec-WebSocket-Extensions: b=c"]),
            R::Extensions(E::ExpectedSeparator { offset: 1 }),
            400,
        ),
    ] {
        refused(&bytes, error.into(), status);
    }
    let mut latin = with(&["Sec-WebSocket-Extensions: a"]);
    let at = latin.len() - 5;
    latin[at] = 0xFC;
    refused(&latin, R::ExtensionsInvalid.into(), 400);
}

#[test]
fn limits_endless_heads() {
    let long = |unit: &str, times: usize| unit.repeat(times);
    let defaults = HandshakeLimits::default();
    let cookie = long("c", 16 * 1024);
    for bytes in [
        with(&[&format!("Cookie: {cookie}")]),
        line(&format!("GET /{cookie} HTTP/1.1")),
        long("\r\n", 10_000).into_bytes(),
        long("\n", 20_000).into_bytes(),
        long("G", 20_000).into_bytes(),
        with(&[&format!("Sec-WebSocket-Protocol: {}", long("a,", 9_000))]),
        with(&[&format!("Sec-WebSocket-Extensions: {}", long("a;b,", 5_000))]),
    ] {
        refused(&bytes, LimitReached::HeadLen.into(), 431);
    }
    let headers = vec!["X: y"; defaults.headers_max - 5];
    let fits = with(&headers);
    assert_eq!(check(Split::Random(50), &fits), Ok(Some(fits.len())));
    refused(&with(&[&headers[..], &["X: y"]].concat()), LimitReached::Headers.into(), 431);
    refused(&line(&format!("GET / HTTP/1.1{}", long("\r\nA:", 5_000))), LimitReached::Headers.into(), 431);
}

#[test]
fn http2_requests_have_rules_of_their_own() {
    // RFC 8441 §4, §5; RFC 9113 §8.2, §8.3.
    const VALID: [(&str, &str); 6] = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "https"),
        (":path", "/chat"),
        (":authority", "h"),
        ("sec-websocket-version", "13"),
    ];
    let check = |fields: &[(&str, &str)]| {
        http2::check_request(fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())))
    };
    assert!(check(&VALID).is_ok());
    let changed = |name: &str, value: Option<&'static str>| {
        let change =
            |(n, v): (&'static str, &'static str)| if n == name { Some((n, value?)) } else { Some((n, v)) };
        VALID.into_iter().filter_map(change).collect::<Vec<_>>()
    };
    let added = |name: &'static str, value: &'static str| [&VALID[..], &[(name, value)]].concat();
    for (fields, error, status) in [
        (changed(":method", None), R::PseudoHeader, 400),
        (changed(":protocol", None), R::PseudoHeader, 400),
        (changed(":scheme", None), R::PseudoHeader, 400),
        (changed(":path", None), R::PseudoHeader, 400),
        (changed(":authority", None), R::HostMissing, 400),
        (changed(":method", Some("GET")), R::Method, 400),
        (changed(":protocol", Some("connect-udp")), R::Protocol, 501),
        (changed(":protocol", Some("")), R::Protocol, 501),
        (changed(":scheme", Some("wss")), R::Scheme, 400),
        (changed(":path", Some("")), R::Target, 400),
        (changed(":path", Some("*")), R::Target, 400),
        (changed(":path", Some("/a b")), R::Target, 400),
        (changed(":path", Some("/#a")), R::Target, 400),
        (changed(":authority", Some("")), R::HostInvalid, 400),
        (changed(":authority", Some("u@h")), R::HostInvalid, 400),
        (changed("sec-websocket-version", None), R::VersionMissing, 400),
        (changed("sec-websocket-version", Some("8")), R::VersionUnsupported(8), 400),
        (added(":path", "/late"), R::PseudoHeader, 400),
        (added(":unknown", "x"), R::PseudoHeader, 400),
        (added("host", "other"), R::HostDuplicate, 400),
        (added("connection", "upgrade"), R::ConnectionSpecific, 400),
        (added("upgrade", "websocket"), R::ConnectionSpecific, 400),
        (added("transfer-encoding", "chunked"), R::ConnectionSpecific, 400),
        (added("keep-alive", "1"), R::ConnectionSpecific, 400),
        (added("content-length", "0"), R::Body, 400),
        (added("X", "y"), R::Malformed(Malformed::HeaderName), 400),
        (added("x y", "z"), R::Malformed(Malformed::HeaderName), 400),
        (added("", "z"), R::Malformed(Malformed::HeaderName), 400),
        (added("x", "a\r\nb: c"), R::Malformed(Malformed::HeaderValue), 400),
        (added("x", "a\0"), R::Malformed(Malformed::HeaderValue), 400),
        (added("sec-websocket-protocol", "a b"), R::SubprotocolInvalid, 400),
        (added("sec-websocket-extensions", "a;"), R::Extensions(E::ExpectedParam { offset: 2 }), 400),
    ] {
        let error = HandshakeError::from(error);
        assert_eq!(check(&fields), Err(error), "{fields:?}");
        let refusal = http2::refusal(error);
        assert_eq!(refusal.status(), status, "{fields:?}");
        for forbidden in ["upgrade", "connection", "allow"] {
            assert_eq!(refusal.header(forbidden), None);
        }
    }
    // RFC 8441 §5: the key is superseded, not forbidden.
    assert!(check(&added("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")).is_ok());
}

// RFC 9112 §3.2: a target is ASCII. Bytes that are not text must not turn into an empty target, or into `/`.
#[test]
fn rejects_targets_and_methods_that_are_not_text() {
    let request = |method: &[u8], target: &[u8]| {
        let rest = b" HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
            Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
        let bytes = [method, b" ", target, &rest[..]].concat();
        let mut handshake = ServerHandshake::new(HandshakeLimits::default());
        handshake
            .handle_input(&bytes)
            .map(|_| handshake.request().map(|request| request.resource().to_owned()))
    };
    assert_eq!(request(b"GET", b"/ok"), Ok(Some("/ok".to_owned())));
    for target in [&b"/\xff"[..], b"/\xc3", b"\xff", b"/a?\x80", "/ß".as_bytes(), "ß".as_bytes()] {
        assert!(request(b"GET", target).is_err(), "{target:02x?}");
    }
    assert!(request(b"GE\xff", b"/").is_err());
}
