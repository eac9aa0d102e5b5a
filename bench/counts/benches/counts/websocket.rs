//! The WebSocket core: 64 masked messages decoded, 64 messages encoded.

use crate::capped;
use gungraun::{library_benchmark, library_benchmark_group};
use std::hint::black_box;
use std::time::Duration;
use wireloom_testing::frame::Frame;
use wireloom_ws::{Config, Connection, Event};

pub(crate) const MESSAGES: usize = 64;

/// Text of several scripts, `len` bytes.
pub(crate) fn text(len: usize) -> String {
    let mut text: String = "a message of a chat, žluťoučký kůň 部屋の ".chars().cycle().take(len).collect();
    while text.len() > len {
        text.pop();
    }
    text.extend(std::iter::repeat_n('.', len - text.len()));
    text
}

pub(crate) fn ascii(len: usize) -> String {
    "a message of a chat ".chars().cycle().take(len).collect()
}

/// Masked text frames, each with its own key, back to back.
pub(crate) fn masked_frames(text: &str, count: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut frames = Vec::new();
    for _ in 0..count {
        Frame::text(text).mask(Some(rng.u32(..).to_le_bytes())).write(&mut frames);
    }
    frames
}

fn server() -> Connection {
    Connection::server(Config::default(), None, Duration::ZERO)
}

fn client() -> Connection {
    Connection::client(Config::default(), None, [7; 32], Duration::ZERO)
}

fn reader(text: String) -> (Connection, Vec<u8>) {
    capped(|| (server(), masked_frames(&text, MESSAGES)))
}

#[library_benchmark]
#[bench::ascii_13(reader(ascii(13)))]
#[bench::ascii_200(reader(ascii(200)))]
#[bench::ascii_1024(reader(ascii(1024)))]
#[bench::ascii_70000(reader(ascii(70_000)))]
#[bench::utf8_1024(reader(text(1024)))]
fn decode((mut connection, mut input): (Connection, Vec<u8>)) -> (Connection, Vec<u8>) {
    let (mut at, mut messages) = (0, 0);
    while at < input.len() {
        let (used, event) = connection.handle_input(Duration::ZERO, &mut input[at..]).expect("valid frames");
        if let Some(Event::Text(text)) = event {
            black_box(text.len());
            messages += 1;
        }
        at += used;
    }
    assert_eq!(messages, MESSAGES);
    (connection, input)
}

fn writer(connection: Connection, len: usize) -> (Connection, String) {
    capped(|| {
        let mut writer = (connection, ascii(len));
        // The buffers of a connection that is in use.
        writer = encode_each(writer, 1);
        writer
    })
}

fn encode_each((mut connection, text): (Connection, String), count: usize) -> (Connection, String) {
    for _ in 0..count {
        connection.send_text(&text).expect("an open connection");
        loop {
            let mut slices: [&[u8]; 4] = [&[]; 4];
            let count = connection.poll_transmit(&mut slices);
            if count == 0 {
                break;
            }
            let len = slices[..count].iter().map(|slice| black_box(slice).len()).sum();
            connection.transmitted(len);
        }
    }
    (connection, text)
}

#[library_benchmark]
#[bench::masked_1024(writer(client(), 1024))]
#[bench::unmasked_1024(writer(server(), 1024))]
#[bench::unmasked_13(writer(server(), 13))]
fn encode(writer: (Connection, String)) -> (Connection, String) {
    encode_each(writer, MESSAGES)
}

library_benchmark_group!(name = websocket_group, benchmarks = [decode, encode]);
