//! permessage-deflate: 16 messages of JSON, 1 KiB each, with context takeover.

use crate::capped;
use gungraun::{library_benchmark, library_benchmark_group};
use std::hint::black_box;
use std::time::Duration;
use wireloom_ws::deflate::{DeflateConfig, DeflateParams};
use wireloom_ws::{Config, Connection, Event, Role};

const MESSAGES: usize = 16;

fn connection(role: Role) -> Connection {
    let deflate = DeflateConfig::default();
    let negotiated = Some((DeflateParams::default(), &deflate));
    match role {
        Role::Server => Connection::server(Config::default(), negotiated, Duration::ZERO),
        Role::Client => Connection::client(Config::default(), negotiated, [7; 32], Duration::ZERO),
    }
}

/// Events of about 1 KiB: the keys repeat, most values do not.
fn events() -> Vec<String> {
    let mut rng = fastrand::Rng::with_seed(2);
    let mut event = || {
        let mut json = String::from("[");
        while json.len() < 960 {
            let (id, price, size) = (rng.u32(..), rng.u32(..100_000), rng.u16(..));
            json += &format!("{{\"id\":{id},\"symbol\":\"WLM\",\"price\":{price},\"size\":{size}}},");
        }
        json + "{}]"
    };
    (0..=MESSAGES).map(|_| event()).collect()
}

fn sender() -> (Connection, Vec<String>) {
    capped(|| {
        let (mut connection, mut events) = (connection(Role::Client), events());
        connection.send_text(&events.remove(0)).expect("an open connection");
        drop(connection.take_transmit());
        (connection, events)
    })
}

#[library_benchmark]
#[bench::json_1024(sender())]
fn compress((mut connection, events): (Connection, Vec<String>)) -> (Connection, Vec<String>) {
    for event in &events {
        connection.send_text(event).expect("an open connection");
        black_box(connection.take_transmit());
    }
    (connection, events)
}

/// A server that has read one compressed message, and the frames of the others.
fn receiver() -> (Connection, Vec<u8>) {
    capped(|| {
        let (mut sender, mut receiver) = (connection(Role::Client), connection(Role::Server));
        let mut frames = events().into_iter().map(|event| {
            sender.send_text(&event).expect("an open connection");
            sender.take_transmit()
        });
        let mut first = frames.next().expect("more than one event");
        receiver.handle_input(Duration::ZERO, &mut first).expect("valid frames");
        (receiver, frames.flatten().collect())
    })
}

#[library_benchmark]
#[bench::json_1024(receiver())]
fn decompress((mut connection, mut input): (Connection, Vec<u8>)) -> (Connection, Vec<u8>) {
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

library_benchmark_group!(name = deflate_group, benchmarks = [compress, decompress]);
