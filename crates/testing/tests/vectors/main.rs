//! The vectors in `testing/vectors`, which bind the implementations in other languages to the Rust core: the committed files are
//! what the core makes, and the core behaves as they say however their input is split.
//!
//! `WIRELOOM_RENEW_VECTORS=1 cargo test -p wireloom-testing --test vectors` writes the files.

#![allow(clippy::unwrap_used)]

mod cases;
mod record;
mod replay;

use record::Record;
use replay::events;
use std::path::PathBuf;
use wireloom_testing::rounds;
use wireloom_testing::split::Split;
use wireloom_ws::frame::{HEADER_LEN_MAX, Header};
use wireloom_ws::mask::{self, MaskKey};
use wireloom_ws::utf8::Validator;
use wireloom_ws::{CloseCode, Opcode};

/// If this variable is set, the files are written instead of compared.
const RENEW: &str = "WIRELOOM_RENEW_VECTORS";

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testing/vectors").join(name)
}

/// Compares a committed file with what the core makes.
fn check(name: &str, made: &str) {
    if std::env::var_os(RENEW).is_some() {
        std::fs::write(path(name), made).unwrap();
    }
    let committed = std::fs::read_to_string(path(name)).unwrap_or_default();
    let changed = made.lines().zip(committed.lines()).find(|(made, committed)| made != committed);
    assert!(
        committed == made,
        "{name} is not what the core makes; if that is intended, set {RENEW}=1\n(made, committed): {changed:?}"
    );
}

fn committed(name: &str) -> Vec<Record> {
    record::read(&std::fs::read_to_string(path(name)).unwrap())
}

const EVENTS: [&str; 6] = ["text", "binary", "ping", "pong", "close", "error"];

fn made_received(title: &str, cases: Vec<Record>) -> String {
    let mut made = format!("# {title} Made by the Rust core: README.md.\n\n");
    for mut record in cases {
        let events = events(&record, |end, input| end.receive(input));
        record.extend(events);
        record::write(&mut made, &record);
    }
    made
}

#[test]
fn committed_frames_are_what_the_core_receives() {
    check(
        "receive.txt",
        &made_received("Input of a connection without extensions, and its events.", cases::receive()),
    );
}

#[test]
fn committed_compressed_frames_are_what_the_core_receives() {
    check(
        "deflate.txt",
        &made_received("Input of a connection with permessage-deflate, and its events.", cases::deflate()),
    );
}

#[test]
fn committed_encodings_are_what_the_core_sends() {
    let mut made = String::from("# Frames and their bytes. Made by the Rust core: README.md.\n\n");
    for record in cases::encode() {
        record::write(&mut made, &encoded(record));
    }
    check("encode.txt", &made);
}

/// The record with the bytes of its frame.
fn encoded(mut record: Record) -> Record {
    let payload = record::parse_bytes(record::value(&record, "payload"));
    let key = record::parse_bytes(record::value(&record, "key"));
    let mask = <[u8; 4]>::try_from(key).ok().map(MaskKey::new);
    let header = Header {
        fin: record::value(&record, "fin") == "1",
        rsv: record::value(&record, "rsv").parse().unwrap(),
        opcode: Opcode::from_bits(record::value(&record, "opcode").parse().unwrap()).unwrap(),
        mask,
        payload_len: payload.len() as u64,
    };
    let mut bytes = [0; HEADER_LEN_MAX];
    let len = header.encode(&mut bytes);
    let mut frame = bytes[..len].to_vec();
    mask::extend(&mut frame, &payload, mask.unwrap_or_default());
    record.push(("bytes".into(), record::bytes(&frame)));
    record
}

#[test]
fn committed_masks_are_what_the_core_makes() {
    let mut made = String::from("# mask KEY OFFSET INPUT OUTPUT. Made by the Rust core: README.md.\n\n");
    for (key, offset, input) in cases::mask() {
        let mut output = input.clone();
        mask::apply(&mut output, MaskKey::new(key).advanced(offset));
        let fields = [record::bytes(&key), offset.to_string(), record::bytes(&input), record::bytes(&output)];
        assert!(fields.iter().all(|field| !field.contains(' ')), "a field is one word");
        made.push_str(&format!("mask {}\n", fields.join(" ")));
    }
    check("mask.txt", &made);
}

#[test]
fn committed_texts_are_judged_as_the_core_does() {
    let mut made = String::from(
        "# valid, invalid: a whole text; incomplete: the beginning of valid text. Made by the Rust core: README.md.\n\n",
    );
    for text in cases::utf8() {
        let mut validator = Validator::new();
        let key = match (validator.push(&text), validator.is_boundary()) {
            (Err(_), _) => "invalid",
            (Ok(()), true) => "valid",
            (Ok(()), false) => "incomplete",
        };
        made.push_str(&format!("{key} {}\n", record::bytes(&text)));
    }
    check("utf8.txt", &made);
}

#[test]
fn committed_close_codes_are_those_of_the_core() {
    let mut made = String::from(
        "# code NUMBER, and whether a Close frame may hold it. Made by the Rust core: README.md.\n\n",
    );
    for code in cases::close_codes() {
        let sendable = if CloseCode::new(code).is_sendable() { "yes" } else { "no" };
        made.push_str(&format!("code {code} {sendable}\n"));
    }
    check("close.txt", &made);
}

#[test]
fn committed_accept_keys_are_those_of_the_core() {
    let mut made = String::from(
        "# accept KEY VALUE: Sec-WebSocket-Key and Sec-WebSocket-Accept. Made by the Rust core: README.md.\n\n",
    );
    for key in cases::keys() {
        let accept = wireloom_ws::handshake::accept_key(key.as_bytes());
        made.push_str(&format!("accept {key} {}\n", String::from_utf8_lossy(&accept)));
    }
    check("accept.txt", &made);
}

#[test]
fn events_do_not_depend_on_the_split() {
    for file in ["receive.txt", "deflate.txt"] {
        for record in committed(file) {
            let name = record::value(&record, "name");
            let expected: Vec<_> =
                record.iter().filter(|(key, _)| EVENTS.contains(&key.as_str())).cloned().collect();
            let input_len = record::parse_bytes(record::value(&record, "input")).len();
            // Every place in a header and a short payload; of long inputs, only the beginning.
            let places = if input_len > 4096 { 20 } else { input_len.min(300) };
            for at in 0..places {
                let (first, second) = (at, input_len - at);
                let events = events(&record, |end, input| {
                    let mut received = end.receive(&input[..first]);
                    received.extend(end.receive(&input[input.len() - second..]));
                    received
                });
                assert_eq!(events, expected, "{file}: {name}, split at {at}");
            }
            rounds(10, |rng| {
                let split = Split::random(rng);
                let events = events(&record, |end, input| end.receive_split(input, split, rng));
                assert_eq!(events, expected, "{file}: {name}, {split:?}");
            });
        }
    }
}

#[test]
fn bytes_survive_the_format() {
    rounds(200, |rng| {
        let mut bytes = rng.bytes(20);
        bytes.extend(vec![7; rng.len(100)]);
        bytes.extend([1, 2, 3, 4].repeat(rng.len(20)));
        bytes.extend(rng.bytes(9));
        assert_eq!(record::parse_bytes(&record::bytes(&bytes)), bytes);
    });
}
