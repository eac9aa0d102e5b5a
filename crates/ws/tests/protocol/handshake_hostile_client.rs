//! Responses that do not open the connection (RFC 6455 §4.1), and requests that a client must not send.

use wireloom_testing::Rng;
use wireloom_testing::split::Split;
use wireloom_ws::deflate::{DeflateConfig, NegotiationError};
use wireloom_ws::handshake::client::{Outcome, Progress};
use wireloom_ws::handshake::error::{HandshakeError, LimitReached, Malformed, Misuse, ResponseError as R};
use wireloom_ws::handshake::extensions::ExtensionsError as E;
use wireloom_ws::handshake::{ClientHandshake, ClientOptions, HandshakeLimits, http2};

const STATUS: &str = "HTTP/1.1 101 Switching Protocols";
const UPGRADE: &str = "Upgrade: websocket";
const CONNECTION: &str = "Connection: Upgrade";
const ACCEPT: &str = "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

fn options() -> ClientOptions {
    ClientOptions::new("h", "/")
        .subprotocol("chat")
        .subprotocol("superchat")
        .deflate(DeflateConfig::default())
}

fn head(status_line: &str, lines: &[&str]) -> Vec<u8> {
    format!("{status_line}\r\n{}\r\n", lines.iter().map(|line| format!("{line}\r\n")).collect::<String>())
        .into_bytes()
}

fn line(status_line: &str) -> Vec<u8> {
    head(status_line, &[UPGRADE, CONNECTION, ACCEPT])
}

fn instead(of: &str, lines: &[&str]) -> Vec<u8> {
    let kept = [UPGRADE, CONNECTION, ACCEPT].into_iter().filter(|&line| line != of);
    head(STATUS, &kept.chain(lines.iter().copied()).collect::<Vec<_>>())
}

fn with(lines: &[&str]) -> Vec<u8> {
    instead("", lines)
}

fn check(options: ClientOptions, split: Split, bytes: &[u8]) -> Result<Progress, HandshakeError> {
    let mut rng = Rng::with_seed(bytes.len() as u64);
    let mut handshake =
        ClientHandshake::new(options, *b"the sample nonce", HandshakeLimits::default()).unwrap();
    let mut at = 0;
    for part in split.parts(&mut rng, bytes.len()) {
        match handshake.handle_input(&bytes[at..at + part])? {
            Progress::Incomplete => at += part,
            done => return Ok(done),
        }
    }
    Ok(Progress::Incomplete)
}

fn failed(options: &ClientOptions, bytes: &[u8], error: impl Into<HandshakeError>) {
    let error = error.into();
    for split in [Split::Whole, Split::Every(1), Split::Every(7), Split::Random(40)] {
        let result = check(options.clone(), split, bytes);
        assert_eq!(result, Err(error), "{split:?} {}", String::from_utf8_lossy(bytes));
    }
}

#[test]
fn accepts_every_form_that_the_rfcs_allow() {
    for bytes in [
        with(&[]),
        line("HTTP/1.1 101 "),
        line("HTTP/1.1 101"),
        line("HTTP/1.1 101 \u{fc}"),
        instead(UPGRADE, &["UPGRADE: WebSocket"]), // item 2: in any case
        instead(CONNECTION, &["Connection: keep-alive, upgrade"]),
        instead(ACCEPT, &["Sec-WebSocket-Accept:  \ts3pPLMBiTxaQ9kYGzzhZRbK+xOo= \t"]), // item 4: blanks around it
        with(&["Sec-WebSocket-Protocol: superchat"]),
        with(&["Sec-WebSocket-Extensions: permessage-deflate"]),
        with(&["Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=\"10\""]),
        with(&["Set-Cookie: a=b", "Set-Cookie: c=d"]),
        [&b"HTTP/1.1 100 Continue\r\n\r\n"[..], &with(&[])].concat(),
    ] {
        let result = check(options(), Split::Random(11), &bytes);
        assert!(
            matches!(result, Ok(Progress::Done { .. })),
            "{result:?} {}",
            String::from_utf8_lossy(&bytes)
        );
    }
}

#[test]
fn rejects_responses_that_do_not_match() {
    let start_line = R::Malformed(Malformed::StartLine);
    let deflate = "Sec-WebSocket-Extensions: permessage-deflate";
    for (bytes, error) in [
        (line("HTTP/1.0 101 Switching Protocols"), R::HttpVersion),
        (line("HTTP/2.1 101 Switching Protocols"), start_line),
        (line("HTTP/2 101"), start_line),
        (line("HTTP/2.0 101"), start_line),
        (line("http/1.1 101 x"), start_line),
        (line("ICY 200 OK"), start_line),
        (line("HTTP/1.1 1o1 x"), start_line),
        (line("HTTP/1.1 10 x"), start_line),
        (line("HTTP/1.1 1011 x"), start_line),
        (line("HTTP/1.1 099 x"), start_line),
        (line("HTTP/1.1 000 x"), start_line),
        (line("HTTP/1.1"), start_line),
        (line("HTTP/1.1  101 x"), start_line),
        (line("GET / HTTP/1.1"), start_line),
        (b"SSH-2.0-OpenSSH_9.6\r\n".to_vec(), start_line),
        (b"220 mail.example.com ESMTP\r\n".to_vec(), start_line),
        (b"<html>\n".to_vec(), start_line),
        (b"\x15\x03\x03\x00\x02\x02\x28".to_vec(), R::Malformed(Malformed::ControlByte)),
        (with(&["X: \0"]), R::Malformed(Malformed::ControlByte)),
        (with(&["X : y"]), R::Malformed(Malformed::HeaderName)),
        (with(&["X"]), R::Malformed(Malformed::HeaderName)),
        (with(&["X: a\rb"]), R::Malformed(Malformed::HeaderValue)),
        // RFC 6455 §4.1, response item 2.
        (instead(UPGRADE, &[]), R::UpgradeMissing),
        (instead(UPGRADE, &["Upgrade:"]), R::UpgradeInvalid),
        (instead(UPGRADE, &["Upgrade: h2c"]), R::UpgradeInvalid),
        (instead(UPGRADE, &["Upgrade: websocket, h2c"]), R::UpgradeInvalid),
        (instead(UPGRADE, &["Upgrade: websocket", "Upgrade: h2c"]), R::UpgradeInvalid),
        (instead(UPGRADE, &["Upgrade: websocket/13"]), R::UpgradeInvalid),
        // Item 3.
        (instead(CONNECTION, &[]), R::ConnectionMissing),
        (instead(CONNECTION, &["Connection:"]), R::ConnectionInvalid),
        (instead(CONNECTION, &["Connection: close"]), R::ConnectionInvalid),
        (instead(CONNECTION, &["Connection: upgrades"]), R::ConnectionInvalid),
        // Item 4; §11.3.3.
        (instead(ACCEPT, &[]), R::AcceptMissing),
        (instead(ACCEPT, &[ACCEPT, ACCEPT]), R::AcceptDuplicate),
        (instead(ACCEPT, &["Sec-WebSocket-Accept:"]), R::AcceptInvalid),
        (instead(ACCEPT, &["Sec-WebSocket-Accept: dGhlIHNhbXBsZSBub25jZQ=="]), R::AcceptInvalid),
        (instead(ACCEPT, &["Sec-WebSocket-Accept: S3PPLMBITXAQ9KYGZZHZRBK+XOO="]), R::AcceptInvalid),
        (instead(ACCEPT, &["Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo"]), R::AcceptInvalid),
        (instead(ACCEPT, &["Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOp="]), R::AcceptInvalid),
        (instead(ACCEPT, &["Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=, x"]), R::AcceptInvalid),
        // Item 5; RFC 7692 §7.1.
        (with(&["Sec-WebSocket-Extensions: x-webkit-deflate-frame"]), R::ExtensionNotOffered),
        (with(&["Sec-WebSocket-Extensions: Permessage-Deflate"]), R::ExtensionNotOffered),
        (with(&["Sec-WebSocket-Extensions: permessage-deflate, mux"]), R::ExtensionNotOffered),
        (with(&[deflate, deflate]), R::ExtensionDuplicate),
        (with(&["Sec-WebSocket-Extensions: permessage-deflate, permessage-deflate"]), R::ExtensionDuplicate),
        (with(&["Sec-WebSocket-Extensions:"]), R::Extensions(E::Empty)),
        (
            with(&["Sec-WebSocket-Extensions: permessage-deflate;"]),
            R::Extensions(E::ExpectedParam { offset: 19 }),
        ),
        (
            with(&["Sec-WebSocket-Extensions: permessage-deflate; x"]),
            R::Deflate(NegotiationError::UnknownParam),
        ),
        (
            with(&["Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"]),
            R::Deflate(NegotiationError::InvalidValue),
        ),
        (
            with(&["Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=16"]),
            R::Deflate(NegotiationError::InvalidValue),
        ),
        // Item 6; §11.3.4.
        (with(&["Sec-WebSocket-Protocol:"]), R::SubprotocolNotOffered),
        (with(&["Sec-WebSocket-Protocol: Chat"]), R::SubprotocolNotOffered),
        (with(&["Sec-WebSocket-Protocol: other"]), R::SubprotocolNotOffered),
        (with(&["Sec-WebSocket-Protocol: chat, superchat"]), R::SubprotocolNotOffered),
        (
            with(&["Sec-WebSocket-Protocol: chat", "Sec-WebSocket-Protocol: superchat"]),
            R::SubprotocolDuplicate,
        ),
        (with(&["Sec-WebSocket-Protocol: chat", "Sec-WebSocket-Protocol: chat"]), R::SubprotocolDuplicate),
    ] {
        failed(&options(), &bytes, error);
    }
    let mut latin = with(&["Sec-WebSocket-Extensions: a"]);
    let at = latin.len() - 5;
    latin[at] = 0xFC;
    failed(&options(), &latin, R::ExtensionsInvalid);
}

#[test]
fn rejects_answers_to_nothing_offered() {
    // RFC 6455 §4.1, response items 5 and 6, for a client that offers nothing.
    let plain = ClientOptions::new("h", "/");
    failed(&plain, &with(&["Sec-WebSocket-Extensions: permessage-deflate"]), R::ExtensionNotOffered);
    failed(&plain, &with(&["Sec-WebSocket-Protocol: chat"]), R::SubprotocolNotOffered);
    failed(&plain, &with(&["Sec-WebSocket-Protocol:"]), R::SubprotocolNotOffered);
    // RFC 7692 §7.1.1.1, §7.1.2.1: demands that the server ignores.
    let demanding = DeflateConfig { server_no_context_takeover: true, ..DeflateConfig::default() };
    let answer = with(&["Sec-WebSocket-Extensions: permessage-deflate"]);
    let error = R::Deflate(NegotiationError::ContextTakeoverNotAnswered);
    failed(&plain.clone().deflate(demanding), &answer, error);
    let demanding = DeflateConfig { server_max_window_bits: 10, ..DeflateConfig::default() };
    failed(&plain.deflate(demanding), &answer, R::Deflate(NegotiationError::WindowTooLarge));
}

#[test]
fn limits_endless_responses() {
    let long = with(&[&format!("Set-Cookie: {}", "c".repeat(16 * 1024))]);
    failed(&options(), &long, LimitReached::HeadLen);
    failed(&options(), "\r\n".repeat(10_000).as_bytes(), LimitReached::HeadLen);
    failed(&options(), "H".repeat(20_000).as_bytes(), LimitReached::HeadLen);
    failed(&options(), "HTTP/1.1 100 Continue\r\n\r\n".repeat(1_000).as_bytes(), LimitReached::HeadLen);
    failed(&options(), &with(&vec!["X: y"; 98]), LimitReached::Headers);
    let fits = with(&vec!["X: y"; 97]);
    assert!(matches!(check(options(), Split::Random(100), &fits), Ok(Progress::Done { .. })));
}

#[test]
fn nothing_can_be_injected_into_a_request() {
    // RFC 6455 §4.1: the components of the request are checked before any of it is sent.
    let plain = || ClientOptions::new("h", "/");
    for (options, misuse) in [
        (ClientOptions::new("", "/"), Misuse::Host),
        (ClientOptions::new("h\r\nX: y", "/"), Misuse::Host),
        (ClientOptions::new("h\0", "/"), Misuse::Host),
        (ClientOptions::new("h i", "/"), Misuse::Host),
        (ClientOptions::new("user:secret@h", "/"), Misuse::Host),
        (ClientOptions::new("http://h", "/"), Misuse::Host),
        (ClientOptions::new("h/path", "/"), Misuse::Host),
        (ClientOptions::new("h:99999", "/"), Misuse::Host),
        (ClientOptions::new("[::1", "/"), Misuse::Host),
        (ClientOptions::new("h\u{fc}", "/"), Misuse::Host),
        (ClientOptions::new("h", ""), Misuse::Resource),
        (ClientOptions::new("h", "chat"), Misuse::Resource),
        (ClientOptions::new("h", "*"), Misuse::Resource),
        (ClientOptions::new("h", "http://h/"), Misuse::Resource),
        (ClientOptions::new("h", "/a b"), Misuse::Resource),
        (ClientOptions::new("h", "/ HTTP/1.1\r\nX: y\r\n\r\n"), Misuse::Resource),
        (ClientOptions::new("h", "/\t"), Misuse::Resource),
        (ClientOptions::new("h", "/\0"), Misuse::Resource),
        (ClientOptions::new("h", "/\u{7f}"), Misuse::Resource),
        (ClientOptions::new("h", "/\u{fc}"), Misuse::Resource),
        // RFC 6455 §3: no fragment.
        (ClientOptions::new("h", "/#top"), Misuse::Resource),
        (plain().origin(""), Misuse::Origin),
        (plain().origin("a\r\nX: y"), Misuse::Origin),
        (plain().origin("a b"), Misuse::Origin),
        (plain().origin("\u{fc}"), Misuse::Origin),
        // RFC 6455 §4.1, item 10.
        (plain().subprotocol(""), Misuse::Subprotocol),
        (plain().subprotocol("a,b"), Misuse::Subprotocol),
        (plain().subprotocol("a b"), Misuse::Subprotocol),
        (plain().subprotocol("a\r\nX: y"), Misuse::Subprotocol),
        (plain().subprotocol("a").subprotocol("b").subprotocol("a"), Misuse::SubprotocolDuplicate),
        (plain().header("", "x"), Misuse::HeaderName),
        (plain().header("X Y", "x"), Misuse::HeaderName),
        (plain().header("X:", "x"), Misuse::HeaderName),
        (plain().header("X\r\nY", "x"), Misuse::HeaderName),
        (plain().header(":path", "/"), Misuse::HeaderName),
        (plain().header("X", "a\r\nY: b"), Misuse::HeaderValue),
        (plain().header("X", "a\nb"), Misuse::HeaderValue),
        (plain().header("X", "a\rb"), Misuse::HeaderValue),
        (plain().header("X", "a\0b"), Misuse::HeaderValue),
        (plain().header("host", "x"), Misuse::HeaderReserved),
        (plain().header("Origin", "x"), Misuse::HeaderReserved),
        (plain().header("Connection", "x"), Misuse::HeaderReserved),
        (plain().header("UPGRADE", "x"), Misuse::HeaderReserved),
        (plain().header("Content-Length", "4"), Misuse::HeaderReserved),
        (plain().header("Transfer-Encoding", "chunked"), Misuse::HeaderReserved),
        (plain().header("Sec-WebSocket-Key", "x"), Misuse::HeaderReserved),
        (plain().header("Sec-WebSocket-Version", "8"), Misuse::HeaderReserved),
        (plain().header("Sec-WebSocket-Protocol", "x"), Misuse::HeaderReserved),
        (plain().header("sec-websocket-extensions", "x"), Misuse::HeaderReserved),
    ] {
        let made = ClientHandshake::new(options.clone(), [0; 16], HandshakeLimits::default());
        assert_eq!(made.err(), Some(misuse), "{options:?}");
        assert_eq!(http2::request_fields(&options, true).err(), Some(misuse), "{options:?}");
    }
    let http1_only = plain().header("Keep-Alive", "1");
    assert_eq!(http2::request_fields(&http1_only, true), Err(Misuse::HeaderReserved));
}

#[test]
fn http2_responses_have_rules_of_their_own() {
    // RFC 8441 §5; RFC 9113 §8.3.2, §8.5.
    let check = |fields: &[(&str, &str)]| {
        let fields = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        http2::check_response(&options(), fields)
    };
    assert_eq!(check(&[(":status", "100")]), Ok(Outcome::Informational));
    for status in ["200", "204", "299"] {
        assert!(matches!(check(&[(":status", status)]), Ok(Outcome::Accepted(_))), "{status}");
    }
    for status in ["300", "401", "404", "501", "999"] {
        let outcome = check(&[(":status", status), ("location", "/x")]);
        let Ok(Outcome::Refused(response)) = outcome else { panic!("{status}") };
        assert_eq!(
            (response.status().to_string().as_str(), response.header("Location")),
            (status, Some(&b"/x"[..]))
        );
    }
    for (fields, error) in [
        (&[][..], R::PseudoHeader),
        (&[("x", "y")], R::PseudoHeader),
        (&[(":status", "")], R::PseudoHeader),
        (&[(":status", "99")], R::PseudoHeader),
        (&[(":status", "2000")], R::PseudoHeader),
        (&[(":status", "+20")], R::PseudoHeader),
        (&[(":status", "099")], R::PseudoHeader),
        (&[(":status", "101")], R::PseudoHeader),
        (&[(":status", "200"), (":status", "200")], R::PseudoHeader),
        (&[(":status", "200"), (":path", "/")], R::PseudoHeader),
        (&[(":status", "200"), ("connection", "upgrade")], R::ConnectionSpecific),
        (&[(":status", "200"), ("upgrade", "websocket")], R::ConnectionSpecific),
        (&[(":status", "200"), ("x", "a\nb")], R::Malformed(Malformed::HeaderValue)),
        (&[(":status", "200"), ("sec-websocket-protocol", "other")], R::SubprotocolNotOffered),
        (&[(":status", "200"), ("sec-websocket-extensions", "other")], R::ExtensionNotOffered),
    ] {
        assert_eq!(check(fields), Err(error.into()), "{fields:?}");
    }
}
