//! Captures made on loopback, decoded. `captures/make.sh` says how they were made.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use wireloom_inspect::{Config, Entry, Inspector, Payload, ProblemKind, ReadError, read};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures").join(name)
}

fn read_with(
    inspector: &mut Inspector,
    input: impl std::io::Read + Send,
) -> (Vec<Entry>, Result<(), ReadError>) {
    let mut entries = Vec::new();
    let result = read(input, None, inspector, &mut |entry| {
        entries.push(entry);
        ControlFlow::Continue(())
    });
    (entries, result)
}

fn entries(name: &str) -> Vec<Entry> {
    let mut inspector = Inspector::new(Config::default());
    let (entries, result) = read_with(&mut inspector, File::open(path(name)).unwrap());
    result.unwrap();
    entries
}

/// Connection, direction, protocol, type, and content.
fn short(entry: &Entry) -> String {
    let content = match &entry.payload {
        Payload::Text(text) => text.clone(),
        Payload::Fields { start, .. } => start.clone(),
        Payload::Binary(bytes) => format!("{bytes:02x?}"),
        _ => String::new(),
    };
    let from = entry.direction.sender();
    format!("{} {from} {} {} {content}", entry.connection, entry.protocol, entry.kind).trim_end().to_owned()
}

fn frames(entries: &[Entry]) -> Vec<String> {
    entries.iter().filter(|entry| entry.protocol.to_string() != "tcp").map(short).collect()
}

#[test]
fn reads_a_websocket() {
    let entries = entries("plain.pcap");
    assert_eq!(
        frames(&entries),
        [
            "1 client http/1.1 request GET /echo HTTP/1.1",
            "1 server http/1.1 response HTTP/1.1 101 Switching Protocols",
            "1 client ws TEXT hello",
            "1 server ws TEXT hello",
            "1 client ws TEXT wörld",
            "1 server ws TEXT wörld",
            "1 client ws CLOSE 1000",
            "1 server ws CLOSE 1000",
        ]
    );
    assert!(entries.iter().all(|entry| entry.problems.is_empty()));
}

#[test]
fn inflates_messages_that_share_a_window() {
    let entries = entries("deflate.pcap");
    let texts: Vec<String> = frames(&entries).into_iter().filter(|line| line.contains("TEXT")).collect();
    assert_eq!(texts.len(), 4);
    assert!(texts.iter().all(|text| text.contains("jumps over the lazy dog")), "{texts:?}");
    let second = entries.iter().filter(|entry| entry.kind == "TEXT").nth(1).unwrap();
    assert!(second.len < 20, "the second message refers to the first: {}", second.len);
}

#[test]
fn decrypts_tls() {
    for name in ["tls12", "tls13"] {
        let mut inspector = Inspector::new(Config::default());
        inspector.add_secrets(&std::fs::read(path(&format!("{name}.keys"))).unwrap());
        let (entries, result) = read_with(&mut inspector, File::open(path(&format!("{name}.pcap"))).unwrap());
        result.unwrap();
        let texts: Vec<String> = frames(&entries).into_iter().filter(|line| line.contains(" ws ")).collect();
        let expected = [
            "1 client ws TEXT hello",
            "1 server ws TEXT hello",
            "1 client ws CLOSE 1000",
            "1 server ws CLOSE 1000",
        ];
        assert_eq!(texts, expected, "{name}");
    }
}

#[test]
fn reads_websockets_within_http2() {
    let entries = entries("http2.pcap");
    assert!(entries.iter().all(|entry| entry.problems.is_empty()), "{entries:#?}");
    let stream: Vec<String> = entries.iter().filter(|entry| entry.stream == Some(1)).map(short).collect();
    assert_eq!(
        stream,
        [
            "1 client h2 HEADERS",
            "1 server h2 HEADERS",
            "1 client h2 DATA",
            "1 client ws TEXT hello over HTTP/2",
            "1 server h2 DATA",
            "1 server ws TEXT hello over HTTP/2",
            "1 client h2 DATA",
            "1 client ws CLOSE 1000",
            "1 server h2 DATA",
            "1 server ws CLOSE 1000",
            "1 server h2 DATA",
        ]
    );
    let Payload::Fields { fields, .. } =
        &entries.iter().find(|entry| entry.kind == "HEADERS").unwrap().payload
    else {
        panic!("fields")
    };
    assert!(fields.contains(&(b":protocol".to_vec(), b"websocket".to_vec())));
}

/// Every capture with single bytes changed is reported or refused, without a panic.
#[test]
fn changed_captures_cause_no_panic() {
    let mut rng = wireloom_testing::Rng::with_seed(1);
    for name in ["plain.pcap", "deflate.pcap", "http2.pcap", "tls13.pcap"] {
        let bytes = std::fs::read(path(name)).unwrap();
        for _ in 0..200 {
            let mut bytes = bytes.clone();
            for _ in 0..rng.usize(1..8) {
                let at = rng.usize(24..bytes.len());
                bytes[at] = rng.u8(..);
            }
            let (entries, _) = read_with(&mut Inspector::new(Config::default()), &bytes[..]);
            assert!(entries.len() < 10_000, "{name}");
        }
    }
}

#[test]
fn reads_pcapng_with_its_secrets() {
    let (entries, result) =
        read_with(&mut Inspector::new(Config::default()), File::open(path("tls13.pcapng")).unwrap());
    result.unwrap();
    assert!(frames(&entries).contains(&"1 server ws TEXT hello".to_owned()), "{entries:#?}");
}

#[test]
fn gives_the_messages_of_clients_for_replay() {
    let messages = |name: &str| wireloom_inspect::replay::messages(File::open(path(name)).unwrap()).unwrap();
    let plain = messages("plain.pcap");
    let texts: Vec<&str> = plain.iter().map(|message| std::str::from_utf8(&message.data).unwrap()).collect();
    assert_eq!(texts, ["hello", "wörld"]);
    assert!(plain[0].offset.is_zero() && !plain[1].offset.is_zero());
    assert!(plain.iter().all(|message| message.text && message.connection == 1));
    assert_eq!(messages("http2.pcap").len(), 1);
    assert_eq!(messages("deflate.pcap").len(), 2);
    // Of ten connections, only the fragmented message breaks no rule.
    let valid = messages("violations.pcap");
    assert!(valid.iter().any(|message| message.data == b"one two three"), "{valid:?}");
}

#[test]
fn names_the_rule_that_is_broken() {
    let rules: Vec<String> = entries("violations.pcap")
        .iter()
        .flat_map(|entry| {
            let connection = entry.connection;
            entry.problems.iter().map(move |problem| {
                assert_eq!(problem.kind, ProblemKind::Violation);
                format!("{connection} {}", problem.rule)
            })
        })
        .collect();
    assert_eq!(
        rules,
        [
            "1 RFC 6455 §5.1",
            "2 RFC 6455 §5.2",
            "3 RFC 6455 §5.2",
            "4 RFC 6455 §8.1",
            "5 RFC 6455 §5.4",
            "6 RFC 6455 §5.4",
            "8 RFC 6455 §7.4",
            "9 RFC 6455 §5.2",
            "10 RFC 6455 §5.5.1",
        ]
    );
}

#[test]
fn names_the_rule_of_http2_that_is_broken() {
    let entries = entries("http2_violations.pcap");
    let cases: Vec<u32> = (1..=39).collect();
    let connections: BTreeSet<u32> = entries.iter().map(|entry| entry.connection).collect();
    assert!(connections.iter().eq(&cases), "{connections:?}");
    // The first rule that each connection breaks, and which side breaks it.
    let rules: Vec<String> = cases
        .iter()
        .map(|&case| {
            let problems = entries.iter().filter(|entry| entry.connection == case).flat_map(|entry| {
                let violations =
                    entry.problems.iter().filter(|problem| problem.kind == ProblemKind::Violation);
                violations.map(|problem| {
                    // The first section that the rule names.
                    let rule = problem.rule.split([',', '(']).next().unwrap();
                    let rule = rule.split(" to ").next().unwrap().split(" with ").next().unwrap().trim_end();
                    format!("{case} {} {rule}", entry.direction.sender())
                })
            });
            problems.into_iter().next().unwrap_or_else(|| format!("{case} nothing"))
        })
        .collect();
    assert_eq!(
        rules,
        [
            "1 client RFC 9113 §3.4",
            "2 server RFC 9113 §3.4",
            "3 client RFC 9113 §6.1",
            "4 client RFC 9113 §6.5",
            "5 client RFC 9113 §6.5",
            "6 client RFC 9113 §6.5",
            "7 client RFC 9113 §6.7",
            "8 client RFC 9113 §6.8",
            "9 client RFC 9113 §6.9",
            "10 client RFC 9113 §6.4",
            "11 client RFC 9113 §6.1",
            "12 client RFC 9113 §4.2",
            "13 client RFC 9113 §6.10",
            "14 client RFC 9113 §4.3",
            "15 client RFC 9113 §5.1",
            "16 client RFC 9113 §5.1.1",
            "17 client RFC 9113 §5.1.1",
            "18 client RFC 9113 §5.1",
            "19 client RFC 9113 §8.4",
            "20 client RFC 9113 §6.8",
            "21 server RFC 9218 §7.1",
            "22 server RFC 9113 §8.1",
            "23 client RFC 9113 §6.5.2",
            "24 server RFC 9113 §6.5.2",
            "25 client RFC 9113 §6.5.2",
            "26 client RFC 9113 §6.5.2",
            "27 client RFC 9113 §6.9",
            "28 client RFC 9113 §6.9.1",
            "29 client RFC 9113 §6.9.1",
            "30 client RFC 7541 §2.3.3",
            "31 client RFC 7541 §5",
            "32 client RFC 9113 §8.2.1",
            "33 client RFC 9113 §8.2.2",
            "34 client RFC 9113 §8.2.2",
            "35 client RFC 9113 §8.3.1",
            "36 client RFC 9113 §8.3",
            "37 client RFC 9113 §8.3",
            "38 client RFC 9113 §8.3",
            "39 client RFC 9113 §8.1.1",
        ]
    );
}

#[test]
fn reads_ipv6() {
    let entries = entries("ipv6.pcap");
    let lines = frames(&entries);
    assert!(lines.contains(&"1 client ws TEXT hello over IPv6".to_owned()), "{lines:?}");
    assert!(lines.contains(&"1 server ws TEXT hello over IPv6".to_owned()), "{lines:?}");
    assert!(entries.iter().all(|entry| entry.problems.is_empty()));
}

#[test]
fn a_truncated_capture_gives_what_was_readable() {
    let bytes = std::fs::read(path("plain.pcap")).unwrap();
    let whole = frames(&entries("plain.pcap"));
    for len in (0..bytes.len()).step_by(3) {
        let (entries, result) = read_with(&mut Inspector::new(Config::default()), &bytes[..len]);
        let readable = frames(&entries);
        assert!(whole.starts_with(&readable) || readable.len() <= whole.len() + 1, "{len}: {readable:?}");
        match result {
            Ok(()) => {}
            Err(ReadError::Truncated { offset }) => assert!(offset as usize <= len, "{len}: {offset}"),
            // Less than the four bytes that every such file begins with.
            Err(ReadError::Unrecognized) => assert!(len < 4, "{len}"),
            Err(error) => panic!("{len}: {error}"),
        }
    }
}

// RFC 9110 §7.8: the request ends with its content, whether it is upgraded or not.
#[test]
fn the_content_of_a_request_for_an_upgrade_is_read() {
    use wireloom_inspect::Direction::{ToClient, ToServer};
    let upgrade = |protocol: &str| {
        format!(
            "POST / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\nContent-Length: 7\r\n\r\n{{\"a\":1}}"
        )
    };
    let refused = [upgrade("h2c"), "GET /next HTTP/1.1\r\nHost: h\r\n\r\n".into()].concat();
    let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let switching = "HTTP/1.1 101 S\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\u{1}\0";
    let mut accepted = upgrade("websocket").into_bytes();
    accepted.extend(b"\x81\x82\0\0\0\0hi");
    // The client's bytes that the capture has before those of the server.
    for early in [refused.len() - 33, refused.len() - 28, refused.len()] {
        let mut inspector = Inspector::new(Config::default());
        let mut entries = Vec::new();
        inspector.handle_bytes(1, None, ToServer, &refused.as_bytes()[..early], &mut entries);
        inspector.handle_bytes(1, None, ToClient, ok.as_bytes(), &mut entries);
        inspector.handle_bytes(1, None, ToServer, &refused.as_bytes()[early..], &mut entries);
        let mut lines = frames(&entries);
        lines.sort();
        let expected = [
            "1 client http/1.1 body {\"a\":1}",
            "1 client http/1.1 request GET /next HTTP/1.1",
            "1 client http/1.1 request POST / HTTP/1.1",
            "1 server http/1.1 body ok",
            "1 server http/1.1 response HTTP/1.1 200 OK",
        ];
        assert_eq!(lines, expected, "{early}");
        assert!(entries.iter().all(|entry| entry.problems.is_empty()), "{entries:#?}");
    }
    for early in [accepted.len() - 10, accepted.len() - 5, accepted.len()] {
        let mut inspector = Inspector::new(Config::default());
        let mut entries = Vec::new();
        inspector.handle_bytes(1, None, ToServer, &accepted[..early], &mut entries);
        inspector.handle_bytes(1, None, ToClient, switching.as_bytes(), &mut entries);
        inspector.handle_bytes(1, None, ToServer, &accepted[early..], &mut entries);
        let lines = frames(&entries);
        for line in ["1 client http/1.1 body {\"a\":1}", "1 client ws TEXT hi", "1 server ws TEXT"] {
            assert!(lines.iter().any(|found| found == line), "{early}: {lines:#?}");
        }
    }
}

// RFC 7540 §3.2: the response to the request that was upgraded is on stream 1, which the client has ended.
#[test]
fn the_response_to_an_upgrade_to_http2_is_on_stream_1() {
    use wireloom_inspect::Direction::{ToClient, ToServer};
    const END_STREAM: u8 = 1;
    const END_HEADERS: u8 = 4;
    let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
        [&[0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream], payload].concat()
    };
    let settings = frame(4, 0, 0, &[]);
    // :status: 200, and content-length: 2.
    let ok = [0x88, 0x0F, 0x0D, 1, b'2'];
    let with_content = [frame(1, END_HEADERS, 1, &ok), frame(0, END_STREAM, 1, b"ok")].concat();
    let without_content = frame(1, END_HEADERS | END_STREAM, 1, &ok);
    // :method: GET, :scheme: http, :path: /, :authority: h.
    let next = frame(1, END_HEADERS | END_STREAM, 3, &[0x82, 0x86, 0x84, 0x01, 1, b'h']);
    let late = frame(0, END_STREAM, 1, b"late");
    for (method, response) in [("GET", with_content), ("HEAD", without_content)] {
        let request = format!(
            "{method} / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: \r\n\r\n"
        );
        let switching = b"HTTP/1.1 101 S\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n";
        let client = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &settings[..], &next].concat();
        let mut inspector = Inspector::new(Config::default());
        let mut entries = Vec::new();
        inspector.handle_bytes(1, None, ToServer, request.as_bytes(), &mut entries);
        let server = [switching, &settings[..], &response].concat();
        inspector.handle_bytes(1, None, ToClient, &server, &mut entries);
        inspector.handle_bytes(1, None, ToServer, &client, &mut entries);
        assert!(entries.iter().all(|entry| entry.problems.is_empty()), "{method}: {entries:#?}");
    }
    // The client has ended stream 1.
    let mut inspector = Inspector::new(Config::default());
    let mut entries = Vec::new();
    let request = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n";
    let switching = b"HTTP/1.1 101 S\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n";
    inspector.handle_bytes(1, None, ToServer, request, &mut entries);
    inspector.handle_bytes(1, None, ToClient, switching, &mut entries);
    let client = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &settings[..], &late].concat();
    inspector.handle_bytes(1, None, ToServer, &client, &mut entries);
    let problems: Vec<&str> =
        entries.iter().flat_map(|entry| &entry.problems).map(|problem| &*problem.text).collect();
    assert_eq!(problems, ["frame after END_STREAM"]);
}
