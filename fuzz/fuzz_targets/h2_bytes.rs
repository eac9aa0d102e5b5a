//! Bytes into either role, whole and split at random: the same events and answers; nothing follows the end.
//!
//! Half of the inputs are read as frames of a few bytes each, so that lengths and streams make sense more often.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::time::Duration;
use wireloom_http2::error::Error;
use wireloom_http2::field::{Field, FieldList, Token};
use wireloom_http2::{Config, Connection, Event, Role, StreamKey};
use wireloom_testing::Rng;
use wireloom_testing::split::Split;

const GET: [Field<'static>; 4] = [
    Field::known(Token::Method, b"GET"),
    Field::known(Token::Scheme, b"https"),
    Field::known(Token::Authority, b"example.org"),
    Field::known(Token::Path, b"/"),
];

/// All events, with the DATA of each stream joined, because its chunks depend on how the input was split.
#[derive(Debug, Default, PartialEq)]
struct Received {
    events: Vec<String>,
    data: Vec<(StreamKey, Vec<u8>)>,
    error: Option<Error>,
    output: Vec<u8>,
}

impl Received {
    /// `fields` are those of the event, if it reports a message.
    fn note(&mut self, event: &Event<'_>, fields: &FieldList) -> Option<StreamKey> {
        match event {
            Event::Data { stream, data, end_stream } => {
                match self.data.iter_mut().find(|(key, _)| key == stream) {
                    Some((_, joined)) => joined.extend_from_slice(data),
                    None => self.data.push((*stream, data.to_vec())),
                }
                end_stream.then_some(*stream)
            }
            Event::Request { stream, end_stream, .. } => {
                self.events.push(format!("{event:?} {fields:?}"));
                end_stream.then_some(*stream)
            }
            Event::Trailers { stream, .. } => {
                self.events.push(format!("{event:?} {fields:?}"));
                Some(*stream)
            }
            Event::Response { .. } | Event::Informational { .. } | Event::Promise { .. } => {
                self.events.push(format!("{event:?} {fields:?}"));
                None
            }
            _ => {
                self.events.push(format!("{event:?}"));
                None
            }
        }
    }
}

fn drain(connection: &mut Connection, output: &mut Vec<u8>) {
    loop {
        let mut slices = [&[][..]; 3];
        let filled = connection.poll_transmit(Duration::ZERO, &mut slices);
        let len = slices[..filled].iter().map(|slice| slice.len()).sum();
        if len == 0 {
            return;
        }
        slices[..filled].iter().for_each(|slice| output.extend_from_slice(slice));
        connection.transmitted(Duration::ZERO, len);
    }
}

fn run(role: Role, input: &[u8], lens: &[usize]) -> Received {
    let mut config = Config::new(role);
    config.settings.max_concurrent_streams = 5;
    config.settings.enable_push = true;
    config.settings.enable_connect_protocol = role == Role::Server;
    config.settings.initial_window_size = 1_000;
    config.stream_window_max = 1_000;
    // Window is given back when chunks of DATA are passed on, and those depend on the splits.
    config.auto_release = false;
    let mut connection = Connection::new(role, config).expect("valid");
    let mut received = Received::default();
    if role == Role::Client {
        for _ in 0..3 {
            connection.send_request(GET, true).expect("a new connection");
        }
    }
    drain(&mut connection, &mut received.output);
    let now = Duration::from_secs(9);
    let mut rest = input;
    for &len in lens {
        let (mut chunk, after) = rest.split_at(len);
        rest = after;
        loop {
            match connection.handle_input(now, chunk) {
                Ok((taken, event)) => {
                    chunk = &chunk[taken..];
                    let Some(event) = event else {
                        let before = received.output.len();
                        drain(&mut connection, &mut received.output);
                        if chunk.is_empty() {
                            break;
                        }
                        assert!(taken > 0 || received.output.len() > before, "stuck");
                        continue;
                    };
                    let ended = received.note(&event, connection.fields());
                    if let (Some(stream), Role::Server) = (ended, role) {
                        let answered =
                            connection.send_response(stream, [Field::known(Token::Status, b"200")], false);
                        if answered.is_ok() {
                            connection.send_data(stream, &b"some content"[..], true).expect("answered");
                        }
                    }
                }
                Err(error) => {
                    assert_eq!(received.error.replace(error), None, "reported twice");
                    drain(&mut connection, &mut received.output);
                    break;
                }
            }
        }
    }
    if received.error.is_some() {
        // After the end, input is ignored and nothing is reported.
        let len = received.output.len();
        let (taken, event) = connection.handle_input(now, input).expect("reported once");
        assert!(taken == input.len() && event.is_none());
        drain(&mut connection, &mut received.output);
        assert_eq!(received.output.len(), len);
    }
    received
}

fuzz_target!(|input: (bool, u64, bool, Vec<(u8, u8, u8, &[u8])>, &[u8])| {
    let (server, seed, settings, frames, tail) = input;
    let role = if server { Role::Server } else { Role::Client };
    let mut bytes = Vec::new();
    if settings {
        if server {
            bytes.extend_from_slice(wireloom_http2::upgrade::PREFACE);
        }
        bytes.extend_from_slice(b"\0\0\0\x04\0\0\0\0\0\0\0\0\x04\x01\0\0\0\0");
    }
    for (kind, flags, stream, payload) in frames {
        let len = (payload.len() as u32).to_be_bytes();
        bytes.extend_from_slice(&[len[1], len[2], len[3], kind % 0x12, flags, 0, 0, 0, stream % 16]);
        bytes.extend_from_slice(payload);
    }
    bytes.extend_from_slice(tail);

    let whole = run(role, &bytes, &[bytes.len()]);
    let mut rng = Rng::with_seed(seed);
    let lens = Split::random(&mut rng).parts(&mut rng, bytes.len());
    let cut = run(role, &bytes, &lens);
    assert_eq!(whole.error, cut.error);
    assert_eq!(whole.events, cut.events);
    assert_eq!(whole.data, cut.data);
});
