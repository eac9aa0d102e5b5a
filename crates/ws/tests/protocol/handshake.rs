//! Both ends of the opening handshake against each other, and the examples of the RFCs, at random splits.

use wireloom_testing::split::Split;
use wireloom_testing::{Rng, rounds};
use wireloom_ws::deflate::DeflateConfig;
use wireloom_ws::handshake::client::{self, Outcome};
use wireloom_ws::handshake::error::{HandshakeError, LimitReached, Misuse, RequestError, ResponseError};
use wireloom_ws::handshake::extensions::ExtensionsError;
use wireloom_ws::handshake::server::{self, ServerHandshake};
use wireloom_ws::handshake::{
    Acceptance, ClientHandshake, ClientOptions, HandshakeLimits, Negotiated, Request, Response, Version,
    http2,
};

/// RFC 6455 §1.2, the client's half.
const REQUEST: &[u8] = b"GET /chat HTTP/1.1\r\n\
    Host: server.example.com\r\n\
    Upgrade: websocket\r\n\
    Connection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
    Origin: http://example.com\r\n\
    Sec-WebSocket-Protocol: chat, superchat\r\n\
    Sec-WebSocket-Version: 13\r\n\r\n";

/// RFC 6455 §1.2, the server's half.
const RESPONSE: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\n\
    Upgrade: websocket\r\n\
    Connection: Upgrade\r\n\
    Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\
    Sec-WebSocket-Protocol: chat\r\n\r\n";

fn example() -> ClientOptions {
    ClientOptions::new("server.example.com", "/chat")
        .origin("http://example.com")
        .subprotocol("chat")
        .subprotocol("superchat")
}

fn client(options: ClientOptions) -> ClientHandshake {
    ClientHandshake::new(options, *b"the sample nonce", HandshakeLimits::default()).unwrap()
}

/// Feeds the server; returns the handshake, and the bytes after the request.
fn feed_server(
    rng: &mut Rng,
    split: Split,
    bytes: &[u8],
) -> Result<(ServerHandshake, Vec<u8>), HandshakeError> {
    let mut handshake = ServerHandshake::new(HandshakeLimits::default());
    let mut at = 0;
    for part in split.parts(rng, bytes.len()) {
        match handshake.handle_input(&bytes[at..at + part])? {
            server::Progress::Incomplete => at += part,
            server::Progress::Complete { consumed } => {
                return Ok((handshake, bytes[at + consumed..].to_vec()));
            }
        }
    }
    panic!("incomplete after {} bytes", bytes.len());
}

/// Feeds the client; returns its progress, with `consumed` relative to `bytes`.
fn feed_client(
    rng: &mut Rng,
    split: Split,
    handshake: &mut ClientHandshake,
    bytes: &[u8],
) -> Result<client::Progress, HandshakeError> {
    let mut at = 0;
    for part in split.parts(rng, bytes.len()) {
        let mut progress = handshake.handle_input(&bytes[at..at + part])?;
        match &mut progress {
            client::Progress::Incomplete => at += part,
            client::Progress::Done { consumed, .. } | client::Progress::Refused { consumed, .. } => {
                *consumed += at;
                return Ok(progress);
            }
        }
    }
    Ok(client::Progress::Incomplete)
}

#[test]
fn speaks_the_example_of_the_rfc() {
    // RFC 6455 §1.2, §1.3, both halves.
    rounds(50, |rng| {
        let split = Split::random(rng);
        let bytes = [REQUEST, b"\x81\x80frames"].concat();
        let (mut server, rest) = feed_server(rng, split, &bytes).unwrap();
        assert_eq!(rest, b"\x81\x80frames", "{split:?}");
        let request = server.request().unwrap();
        assert_eq!((request.path(), request.query(), request.version()), ("/chat", None, 13));
        assert_eq!((request.host(), request.origin()), ("server.example.com", Some("http://example.com")));
        assert!(request.subprotocols().eq(["chat", "superchat"]));
        let mut out = b"before".to_vec();
        let acceptance = Acceptance { subprotocol: Some("chat"), ..Acceptance::default() };
        let negotiated = server.accept(&acceptance, &mut out).unwrap();
        assert_eq!(out.strip_prefix(b"before"), Some(RESPONSE));

        let mut client = client(example());
        let bytes = [RESPONSE, b"\x81\0"].concat();
        let done = client::Progress::Done { negotiated, consumed: RESPONSE.len() };
        assert_eq!(feed_client(rng, split, &mut client, &bytes), Ok(done), "{split:?}");
    });
}

#[test]
fn the_request_has_the_required_fields() {
    // RFC 6455 §4.1: a GET of HTTP/1.1 (2, 3), Host (4), Upgrade (5), Connection (6), Key (7), Origin (8), Version (9),
    // Protocol (10), Extensions (11), other headers (12).
    let options = example().deflate(DeflateConfig::default()).header("Cookie", "a=b");
    let handshake = client(options);
    assert_eq!(
        std::str::from_utf8(handshake.request()).unwrap(),
        "GET /chat HTTP/1.1\r\n\
         Host: server.example.com\r\n\
         Upgrade: websocket\r\n\
         Connection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Version: 13\r\n\
         Origin: http://example.com\r\n\
         Sec-WebSocket-Protocol: chat, superchat\r\n\
         Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n\
         Cookie: a=b\r\n\r\n"
    );
    // RFC 6455 §4.1, item 7: the nonce is new each time, and so is the key.
    let other = ClientHandshake::new(example(), [7; 16], HandshakeLimits::default()).unwrap();
    assert_ne!(other.request(), client(example()).request());
}

/// A random request.
fn any_options(rng: &mut Rng) -> ClientOptions {
    let hosts = ["example.com", "example.com:8080", "127.0.0.1:1", "[::1]", "[2001:db8::7]:443"];
    let mut options = ClientOptions::new(*rng.pick(&hosts), *rng.pick(&["/", "/a/b?c=d", "/?x", "/%20|{}"]));
    if rng.bool() {
        options = options.origin("https://example.com");
    }
    for i in 0..rng.usize(0..4) {
        options = options.subprotocol(format!("p{i}.example"));
    }
    for i in 0..rng.usize(0..20) {
        let len = rng.len(300);
        options = options.header(format!("X-{i}"), "v".repeat(len));
    }
    if rng.bool() {
        options = options.deflate(any_deflate(rng));
    }
    options
}

fn any_deflate(rng: &mut Rng) -> DeflateConfig {
    DeflateConfig {
        server_no_context_takeover: rng.bool(),
        client_no_context_takeover: rng.bool(),
        server_max_window_bits: rng.u8(8..=15),
        client_max_window_bits: rng.u8(8..=15),
        ..DeflateConfig::default()
    }
}

/// Checks that each end can inflate the messages of the other.
fn assert_agree(server: &Negotiated, client: &Negotiated) {
    assert_eq!(server.subprotocol, client.subprotocol);
    assert_eq!(server.deflate.is_some(), client.deflate.is_some());
    if let (Some(server), Some(client)) = (server.deflate, client.deflate) {
        assert!(client.client_max_window_bits <= server.client_max_window_bits);
        assert!(server.server_max_window_bits <= client.server_max_window_bits);
        assert!(client.client_no_context_takeover || !server.client_no_context_takeover);
        assert!(server.server_no_context_takeover || !client.server_no_context_takeover);
    }
}

#[test]
fn both_ends_agree_at_any_split() {
    rounds(300, |rng| {
        let options = any_options(rng);
        let mut asking = client(options);
        let sent = [asking.request(), b"early"].concat();
        let split = Split::random(rng);
        let (mut serving, rest) = feed_server(rng, split, &sent).unwrap();
        assert_eq!(rest, b"early");
        let offered: Vec<String> = serving.request().unwrap().subprotocols().map(String::from).collect();
        let chosen = if offered.is_empty() || rng.bool() { None } else { Some(rng.pick(&offered).clone()) };
        let deflate = any_deflate(rng);
        let acceptance = Acceptance {
            subprotocol: chosen.as_deref(),
            deflate: if rng.bool() { Some(&deflate) } else { None },
            headers: &[("Set-Cookie", "a=b"), ("Set-Cookie", "c=d")],
        };
        let mut out = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n".to_vec();
        let agreed = serving.accept(&acceptance, &mut out).unwrap();
        let head_len = out.len();
        out.extend_from_slice(b"frames");
        let split = Split::random(rng);
        let Ok(client::Progress::Done { negotiated, consumed }) = feed_client(rng, split, &mut asking, &out)
        else {
            panic!("{:?}", String::from_utf8_lossy(&out));
        };
        assert_eq!(consumed, head_len);
        assert_agree(&agreed, &negotiated);
    });
}

#[test]
fn both_ends_agree_over_http2() {
    // RFC 8441 §5.
    rounds(200, |rng| {
        let options = any_options(rng);
        let secure = rng.bool();
        let fields = http2::request_fields(&options, secure).unwrap();
        let scheme = fields.iter().find(|(name, _)| name == ":scheme").map(|(_, value)| &value[..]);
        assert_eq!(scheme, Some(if secure { "https" } else { "http" }));
        let borrowed =
            |(name, value): &(String, String)| (name.clone().into_bytes(), value.clone().into_bytes());
        let fields: Vec<(Vec<u8>, Vec<u8>)> = fields.iter().map(borrowed).collect();
        let request =
            http2::check_request(fields.iter().map(|(name, value)| (&name[..], &value[..]))).unwrap();
        let chosen = request.subprotocols().next().map(String::from);
        let deflate = any_deflate(rng);
        let acceptance = Acceptance {
            subprotocol: chosen.as_deref(),
            deflate: Some(&deflate),
            headers: &[("Set-Cookie", "a")],
        };
        let (response, agreed) = request.accept(&acceptance).unwrap();
        assert_eq!((response.status(), response.header("set-cookie")), (200, Some(&b"a"[..])));
        assert!(response.headers().all(|(name, _)| name == name.to_lowercase()));
        let answer = [(&b":status"[..], &b"200"[..])];
        let answer =
            answer.into_iter().chain(response.headers().map(|(name, value)| (name.as_bytes(), value)));
        let Ok(Outcome::Accepted(negotiated)) = http2::check_response(&options, answer) else { panic!() };
        assert_agree(&agreed, &negotiated);
    });
}

#[test]
fn parsed_parts_are_checked_like_bytes() {
    rounds(200, |rng| {
        let options = any_options(rng);
        let handshake = client(options);
        let (server, _) = feed_server(rng, Split::Whole, handshake.request()).unwrap();
        let by_bytes = server.request().unwrap();
        let fields = handshake.fields();
        let fields = fields.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
        let by_parts = Request::from_parts("GET", by_bytes.resource(), Version::Http11, fields).unwrap();
        assert!(by_bytes.headers().eq(by_parts.headers()));
        assert_eq!((by_bytes.host(), by_bytes.resource()), (by_parts.host(), by_parts.resource()));
        let (response, _) = by_parts.accept(&Acceptance::default()).unwrap();
        assert_eq!(by_bytes.accept(&Acceptance::default()).unwrap().0, response);
        let outcome = handshake.check_response(response.status(), Version::Http11, response.headers());
        assert_eq!(outcome, Ok(Outcome::Accepted(Negotiated::default())));
    });
}

#[test]
fn any_bytes_have_the_same_outcome_at_any_split() {
    // Valid heads with a few bytes changed, dropped, doubled: any outcome is allowed, but it must not depend on the split.
    let mangle = |rng: &mut Rng, bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        for _ in 0..rng.usize(0..5) {
            if bytes.is_empty() {
                break;
            }
            let at = rng.usize(0..bytes.len());
            match rng.u8(0..5) {
                0 => bytes[at] = rng.u8(..),
                1 => bytes[at] = *rng.pick(b"\r\n \t\0:,;=\"/"),
                2 => drop(bytes.remove(at)),
                3 => bytes.insert(at, *rng.pick(b"\r\n \t\0:,;=\"/")),
                _ => bytes.truncate(at + 1),
            }
        }
        bytes
    };
    let server_outcome = |rng: &mut Rng, split: Split, bytes: &[u8]| {
        let mut handshake = ServerHandshake::new(HandshakeLimits::default());
        let mut at = 0;
        for part in split.parts(rng, bytes.len()) {
            match handshake.handle_input(&bytes[at..at + part]) {
                Ok(server::Progress::Incomplete) => at += part,
                Ok(server::Progress::Complete { consumed }) => {
                    return Ok(Some((at + consumed, handshake.request().cloned())));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    };
    rounds(1_500, |rng| {
        let request = mangle(rng, REQUEST);
        let whole = server_outcome(rng, Split::Whole, &request);
        let split = Split::random(rng);
        assert_eq!(server_outcome(rng, split, &request), whole, "{:?}", String::from_utf8_lossy(&request));

        let response = mangle(rng, RESPONSE);
        let whole = feed_client(rng, Split::Whole, &mut client(example()), &response);
        let cut = feed_client(rng, split, &mut client(example()), &response);
        assert_eq!(cut, whole, "{:?}", String::from_utf8_lossy(&response));
    });
}

#[test]
fn redirects_and_challenges_are_values() {
    // RFC 6455 §4.1: another status than 101 is handled by the procedures of HTTP.
    for (status, name, value) in [
        (301, "Location", "wss://elsewhere.example/chat"),
        (307, "location", "/other"),
        (401, "WWW-Authenticate", "Basic realm=\"x\""),
        (407, "Proxy-Authenticate", "Basic"),
        (429, "Retry-After", "120"),
        (200, "Content-Type", "text/html"),
    ] {
        let head = format!("HTTP/1.1 {status} Because\r\n{name}: {value}\r\nContent-Length: 4\r\n\r\n");
        rounds(10, |rng| {
            let split = Split::random(rng);
            let mut handshake = client(example());
            let bytes = format!("{head}body");
            let Ok(client::Progress::Refused { response, consumed }) =
                feed_client(rng, split, &mut handshake, bytes.as_bytes())
            else {
                panic!("{head}");
            };
            assert_eq!((response.status(), response.reason(), consumed), (status, "Because", head.len()));
            assert_eq!(response.header(&name.to_uppercase()), Some(value.as_bytes()));
        });
    }
    // HTTP/1.0 can refuse, too.
    let progress = client(example()).handle_input(b"HTTP/1.0 404 Not Found\r\n\r\n");
    assert!(matches!(progress, Ok(client::Progress::Refused { response, .. }) if response.status() == 404));
}

#[test]
fn informational_responses_come_first_within_the_limit() {
    // RFC 9110 §15.2.
    let hint = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n";
    let mut handshake = client(example());
    for _ in 0..3 {
        assert_eq!(handshake.handle_input(hint), Ok(client::Progress::Incomplete));
    }
    assert!(matches!(handshake.handle_input(RESPONSE), Ok(client::Progress::Done { .. })));

    // One limit bounds all of them together.
    let max = hint.len() * 3 + RESPONSE.len();
    for (hints, room, fits) in [(3, max, true), (3, max - 1, false), (1_000_000, max, false)] {
        let limits = HandshakeLimits { head_len_max: room, ..HandshakeLimits::default() };
        let mut handshake = ClientHandshake::new(example(), *b"the sample nonce", limits).unwrap();
        let hinted = (0..hints).find_map(|_| handshake.handle_input(hint).err());
        let result = hinted.map_or_else(|| handshake.handle_input(RESPONSE), Err);
        match fits {
            true => assert!(matches!(result, Ok(client::Progress::Done { .. }))),
            false => assert_eq!(result, Err(LimitReached::HeadLen.into())),
        }
    }
}

#[test]
fn nothing_is_answered_twice_or_too_early() {
    let mut handshake = ServerHandshake::new(HandshakeLimits::default());
    let mut out = Vec::new();
    let refusal = Response::refusal(403).unwrap();
    assert_eq!(handshake.accept(&Acceptance::default(), &mut out), Err(Misuse::NoRequest));
    assert_eq!(handshake.reject(&refusal, &mut out), Err(Misuse::NoRequest));
    handshake.handle_input(REQUEST).unwrap();
    assert_eq!(handshake.handle_input(b"x"), Err(Misuse::Finished.into()));

    // RFC 6455 §4.2.2: only what the client offered can be chosen. The request still waits after a misuse.
    for acceptance in [
        Acceptance { subprotocol: Some("Chat"), ..Acceptance::default() },
        Acceptance { subprotocol: Some(""), ..Acceptance::default() },
        Acceptance { subprotocol: Some("chat, superchat"), ..Acceptance::default() },
        Acceptance { headers: &[("X", "a\r\nY: b")], ..Acceptance::default() },
        Acceptance { headers: &[("X\r\nY", "b")], ..Acceptance::default() },
        Acceptance { headers: &[("Sec-WebSocket-Protocol", "chat")], ..Acceptance::default() },
        Acceptance { headers: &[("Content-Length", "5")], ..Acceptance::default() },
    ] {
        assert!(handshake.accept(&acceptance, &mut out).is_err(), "{acceptance:?}");
        assert!(out.is_empty() && handshake.request().is_some());
    }
    handshake.reject(&refusal, &mut out).unwrap();
    assert!(out.starts_with(b"HTTP/1.1 403 Forbidden\r\n"));
    assert_eq!(handshake.reject(&refusal, &mut out), Err(Misuse::NoRequest));
    assert_eq!(handshake.handle_input(b"x"), Err(Misuse::Finished.into()));

    let mut handshake = client(example());
    handshake.handle_input(RESPONSE).unwrap();
    assert_eq!(handshake.handle_input(b"x"), Err(Misuse::Finished.into()));
}

#[test]
fn a_failed_handshake_stays_failed() {
    let mut handshake = ServerHandshake::new(HandshakeLimits::default());
    let error = Err(RequestError::Method.into());
    assert_eq!(handshake.handle_input(b"PUT / HTTP/1.1\r\n\r\n"), error);
    assert_eq!(handshake.handle_input(REQUEST), error);
    let mut handshake = client(example());
    let error = handshake.handle_input(b"nonsense\r\n").unwrap_err();
    assert_eq!(handshake.handle_input(RESPONSE), Err(error));
}

#[test]
fn secrets_reach_no_log() {
    let options =
        ClientOptions::new("a", "/x?token=hunter2").header("Authorization", "hunter2").subprotocol("hunter2");
    let mut client = ClientHandshake::new(options.clone(), [7; 16], HandshakeLimits::default()).unwrap();
    let mut server = ServerHandshake::new(HandshakeLimits::default());
    let mut shown = format!("{options:?} {client:?}");
    let (head, end) = client.request().split_at(client.request().len() - 2);
    for part in [head, end] {
        let progress = server.handle_input(part).unwrap();
        shown += &format!("{server:?} {progress:?}");
    }
    client.handle_input(b"HTTP/1.1 403 No\r\nSet-Cookie: hunter2\r\n").unwrap();
    shown += &format!("{client:?}");
    let headers = [("Set-Cookie", "hunter2")];
    shown += &format!("{:?}", Acceptance { headers: &headers, ..Acceptance::default() });
    assert!(shown.contains("uthorization") && !shown.contains("hunter2"), "{shown}");
}

#[test]
fn keeps_the_answer_that_opened_the_connection() {
    let mut client =
        ClientHandshake::new(ClientOptions::new("a", "/"), [7; 16], HandshakeLimits::default()).unwrap();
    let mut server = ServerHandshake::new(HandshakeLimits::default());
    server.handle_input(client.request()).unwrap();
    assert_eq!(client.response(), None);
    let mut answer = Vec::new();
    let acceptance = Acceptance { headers: &[("Server", "x")], ..Acceptance::default() };
    server.accept(&acceptance, &mut answer).unwrap();
    client.handle_input(&answer).unwrap();
    let response = client.response().unwrap();
    assert_eq!((response.status(), response.header("server")), (101, Some(&b"x"[..])));
}

// RFC 9113 §8.3.1: `:authority` and `host` agree.
#[test]
fn authority_and_host_agree_over_http2() {
    let check = |authority: Option<&'static [u8]>, hosts: &[&'static [u8]]| {
        let mut fields: Vec<(&[u8], &[u8])> = vec![
            (b":method", b"CONNECT"),
            (b":protocol", b"websocket"),
            (b":scheme", b"https"),
            (b":path", b"/chat"),
        ];
        fields.extend(authority.map(|authority| (&b":authority"[..], authority)));
        fields.extend(hosts.iter().map(|&host| (&b"host"[..], host)));
        fields.push((b"sec-websocket-version", b"13"));
        http2::check_request(fields).map(|request| request.host().to_owned())
    };
    assert_eq!(check(Some(b"a.example"), &[]).as_deref(), Ok("a.example"));
    assert_eq!(check(None, &[b"b.example"]).as_deref(), Ok("b.example"));
    assert_eq!(check(Some(b"a.example"), &[b"A.Example"]).as_deref(), Ok("a.example"));
    assert_eq!(check(Some(b"a.example"), &[b"b.example"]), Err(RequestError::HostDuplicate.into()));
    assert_eq!(check(None, &[b"a.example", b"a.example"]), Err(RequestError::HostDuplicate.into()));
    assert_eq!(check(None, &[]), Err(RequestError::HostMissing.into()));
}

// RFC 9110 §7.8, §15.
#[test]
fn every_refusal_has_connection_close() {
    for status in [200, 201, 404, 503] {
        let refusal = Response::refusal(status).unwrap().with_body("text/plain", "why").unwrap();
        assert_eq!(refusal.body(), b"why");
        let mut written = Vec::new();
        refusal.write_to(&mut written);
        let written = String::from_utf8(written).unwrap();
        assert!(written.starts_with(&format!("HTTP/1.1 {status} ")));
        assert!(written.ends_with("Connection: close\r\nContent-Length: 3\r\n\r\nwhy"), "{written}");
    }
}

#[test]
fn checks_responses_of_an_http_library() {
    let handshake = client(example());
    let request = handshake.request().to_vec();
    for status in [100, 102, 103, 199] {
        assert_eq!(handshake.check_response(status, Version::Http11, []), Ok(Outcome::Informational));
    }
    assert!(matches!(handshake.check_response(200, Version::Http11, []), Ok(Outcome::Refused(_))));
    assert_eq!(handshake.check_response(101, Version::Http11, []), Err(ResponseError::UpgradeMissing.into()));
    assert_eq!(handshake.into_request(), request);
}

#[test]
fn errors_have_a_reason() {
    let extensions = ExtensionsError::ExpectedSeparator { offset: 7 };
    let errors: [(HandshakeError, &str); 6] = [
        (RequestError::VersionUnsupported(8).into(), "Sec-WebSocket-Version must be 13, not 8"),
        (RequestError::HostMissing.into(), "Host is missing"),
        (ResponseError::AcceptMissing.into(), "the server sent no Sec-WebSocket-Accept"),
        (LimitReached::Headers.into(), "too many headers in the handshake"),
        (Misuse::Finished.into(), "the handshake has ended"),
        (
            ResponseError::Extensions(extensions).into(),
            &format!("the server sent invalid Sec-WebSocket-Extensions: {extensions}"),
        ),
    ];
    for (error, text) in errors {
        assert_eq!(error.to_string(), text);
    }
    let deflate = wireloom_ws::deflate::NegotiationError::WindowTooLarge;
    let error = HandshakeError::from(ResponseError::Deflate(deflate)).to_string();
    assert!(error.ends_with(&format!(": {deflate}")), "{error}");
}
