//! Captures made on loopback, decoded. `captures/make.sh` says how they were made.

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
            Err(error) => panic!("{len}: {error}"),
        }
    }
}
