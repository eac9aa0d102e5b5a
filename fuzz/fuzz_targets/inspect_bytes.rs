//! `wireloom-inspect` on any bytes of a connection, in both directions: HTTP/1.1, HTTP/2, WebSocket and TLS. Entries are the same
//! however the bytes are cut, for protocols that were detected; and masking a recording neither loses nor panics.

#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use std::time::Duration;
use wireloom_inspect::recording::Encoder;
use wireloom_inspect::{Assume, Config, Direction, Entry, Inspector};

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    assume: u8,
    key_log: &'a [u8],
    runs: Vec<(bool, &'a [u8])>,
    cut: u8,
}

fuzz_target!(|input: Input<'_>| {
    let assume = match input.assume % 4 {
        0 => Assume::Detect,
        1 => Assume::WebSocket,
        2 => Assume::Http2,
        _ => Assume::Http1,
    };
    let inspect = |cut: usize| -> Vec<Entry> {
        let mut inspector = Inspector::new(Config { assume, ..Config::default() });
        inspector.add_secrets(input.key_log);
        let mut entries = Vec::new();
        for (to_client, bytes) in &input.runs {
            let direction = if *to_client { Direction::ToClient } else { Direction::ToServer };
            for bytes in bytes.chunks(cut) {
                inspector.handle_bytes(1, None, direction, bytes, &mut entries);
            }
        }
        inspector.finish(&mut entries);
        entries
    };
    let whole = inspect(usize::MAX);
    let cut = inspect(usize::from(input.cut).max(1));
    // Protocol detection, and the place where decoding resumes, depend on how the bytes arrive.
    if assume == Assume::WebSocket {
        let kinds = |entries: &[Entry]| entries.iter().map(|entry| entry.kind.clone()).collect::<Vec<_>>();
        assert_eq!(kinds(&whole), kinds(&cut));
    }
    let mut encoder = Encoder::new(1, true);
    for (to_client, bytes) in &input.runs {
        let direction = if *to_client { Direction::ToClient } else { Direction::ToServer };
        let _ = encoder.bytes(Duration::ZERO, direction, bytes);
    }
    let _ = encoder.end(Duration::ZERO, Direction::ToServer);
    let _ = encoder.end(Duration::ZERO, Direction::ToClient);
});
