//! The share and the latency of streams that have DATA at the same time (RFC 9218 §10, §11).

use std::collections::BTreeMap;
use std::time::Duration;

use wireloom_http2::field::{Field, Token};
use wireloom_http2::frame::StreamId;
use wireloom_http2::{Config, Connection, Role, StreamKey};
use wireloom_testing::http2::{Frame, PREFACE, join, kind};
use wireloom_testing::rounds;

const WINDOW: u32 = 1 << 30;
const FRAME_LEN: usize = 16_384;

/// A server whose client has opened these streams with these requests, and grants large windows.
fn server(requests: &[Frame]) -> Connection {
    let mut config = Config::new(Role::Server);
    config.settings.enable_connect_protocol = true;
    let mut server = Connection::new(Role::Server, config).unwrap();
    let opening = [Frame::settings(&[(4, WINDOW)]), Frame::settings_ack(), Frame::window_update(0, WINDOW)];
    receive(&mut server, &[PREFACE, &join(&opening), &join(requests)].concat());
    for request in requests.iter().filter(|frame| frame.kind == kind::HEADERS) {
        let key = key(&server, request.stream);
        server.send_response(key, [Field::known(Token::Status, b"200")], false).unwrap();
    }
    transmit(&mut server, usize::MAX);
    server
}

fn receive(server: &mut Connection, bytes: &[u8]) {
    let mut at = 0;
    while let (taken, Some(_)) = server.handle_input(Duration::ZERO, &bytes[at..]).unwrap() {
        at += taken;
    }
}

fn key(server: &Connection, stream: u32) -> StreamKey {
    server.find(StreamId::new(stream).unwrap()).unwrap()
}

/// Writes at most `max` bytes, and returns them.
fn transmit(server: &mut Connection, max: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < max {
        let mut slices = [&[][..]; 16];
        let filled = server.poll_transmit(Duration::ZERO, &mut slices);
        let mut part = slices[..filled].concat();
        part.truncate(max - bytes.len());
        if part.is_empty() {
            break;
        }
        server.transmitted(Duration::ZERO, part.len());
        bytes.extend(part);
    }
    bytes
}

/// A request for an extended CONNECT, with more fields.
fn tunnel(stream: u32, more: &[(&str, &str)]) -> Frame {
    let fields = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "https"),
        (":authority", "example.org"),
        (":path", "/"),
    ];
    Frame::headers(stream, &[&fields, more].concat())
}

/// A GET request with more fields.
fn get(stream: u32, more: &[(&str, &str)]) -> Frame {
    let fields = [(":method", "GET"), (":scheme", "https"), (":authority", "example.org"), (":path", "/")];
    Frame::headers(stream, &[&fields, more].concat()).end_stream()
}

/// Keeps at least a megabyte queued, in chunks of this length.
fn fill(server: &mut Connection, key: StreamKey, chunk_len: usize) {
    while server.queued(key) < 1 << 20 {
        server.send_data(key, vec![b'd'; chunk_len], false).unwrap();
    }
}

#[test]
fn signals_of_rfc_7540_change_nothing() {
    // RFC 9113 §5.3.2, RFC 9218 §2.1.
    let sent = |requests: [Frame; 3], signals: &[Frame]| {
        let mut server = server(&requests);
        receive(&mut server, &join(signals));
        let keys = [1, 3, 5].map(|stream| key(&server, stream));
        keys.iter().for_each(|&key| fill(&mut server, key, 100_000));
        transmit(&mut server, 1_000_000)
    };
    let requests = || [1, 3, 5].map(|stream| get(stream, &[]));
    let [first, second, third] = requests();
    let signalled = [first.depends_on(5), second, third.depends_on(0x8000_0000)];
    let signals = [Frame::priority(5, 0x8000_0000, 255), Frame::priority(1, 3, 0)];
    assert_eq!(sent(requests(), &[]), sent(signalled, &signals));
}

#[test]
fn streams_without_a_signal_have_equal_shares_whatever_their_chunks() {
    // At least half of an equal share, and at most twice of it.
    rounds(3, |rng| {
        let count = rng.u32(2..20);
        let requests: Vec<Frame> = (0..count).map(|n| get(2 * n + 1, &[])).collect();
        let mut server = server(&requests);
        let streams: Vec<(StreamKey, usize)> = requests
            .iter()
            .map(|frame| (key(&server, frame.stream), *rng.pick(&[100, 600, 5_000, 9_000, 16_384, 100_000])))
            .collect();
        let mut sent = Vec::new();
        for _ in 0..100 {
            streams.iter().for_each(|&(key, chunk_len)| fill(&mut server, key, chunk_len));
            sent.extend(transmit(&mut server, 100_000));
        }
        let mut shares = BTreeMap::<u32, usize>::new();
        let mut rest = &sent[..];
        while let Some(frame) = Frame::read(&mut rest) {
            *shares.entry(frame.stream).or_default() += frame.payload.len();
        }
        let equal = sent.len() / count as usize;
        for (key, chunk_len) in streams {
            let share = shares.get(&key.id()).copied().unwrap_or_default();
            assert!(
                (equal / 2..=2 * equal).contains(&share),
                "{share} of {equal} in chunks of {chunk_len}: {shares:?}"
            );
        }
    });
}

#[test]
fn a_message_of_a_tunnel_waits_for_at_most_one_round() {
    // With any signal of the client for the downloads or for the tunnel, at the same urgency.
    let signals: &[&[(&str, &str)]] =
        &[&[], &[("priority", "i")], &[("priority", "u=3")], &[("priority", "")]];
    for for_download in signals {
        for for_tunnel in signals {
            for downloads in [1, 5, 20] {
                let mut requests: Vec<Frame> = (0..downloads).map(|n| get(2 * n + 1, for_download)).collect();
                let id = 2 * downloads + 1;
                requests.push(tunnel(id, for_tunnel));
                let mut server = server(&requests);
                let keys: Vec<StreamKey> = (0..downloads).map(|n| key(&server, 2 * n + 1)).collect();
                let tunnel = key(&server, id);
                for round in 0..20 {
                    keys.iter().for_each(|&key| fill(&mut server, key, 50_000));
                    transmit(&mut server, 10_000 * (round + 1));
                    server.send_data(tunnel, "hello", false).unwrap();
                    // The frames already in the output, and a frame of each other stream.
                    let ahead = server.memory().output as usize;
                    let sent = transmit(&mut server, ahead + (downloads as usize + 1) * (FRAME_LEN + 9));
                    let message = [&[0, 0, 5, 0, 0][..], &id.to_be_bytes(), b"hello"].concat();
                    assert!(
                        sent.windows(message.len()).any(|bytes| bytes == message),
                        "{downloads} downloads {for_download:?}, tunnel {for_tunnel:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_signal_does_not_make_a_tunnel_wait_for_another_tunnel() {
    // RFC 9218 §11: neither the field nor PRIORITY_UPDATE, before the request or after it.
    for update in [Frame::priority_update(3, "u=3"), Frame::priority_update(1, "u=3, i=?0")] {
        for is_first in [false, true] {
            let mut requests = vec![tunnel(1, &[("priority", "u=3")]), tunnel(3, &[])];
            requests.insert(if is_first { 0 } else { 2 }, update.clone());
            let mut server = server(&requests);
            let [first, second] = [1, 3].map(|stream| key(&server, stream));
            fill(&mut server, first, 50_000);
            fill(&mut server, second, 50_000);
            let mut sent = &transmit(&mut server, 20 * (FRAME_LEN + 9))[..];
            let streams: Vec<u32> =
                std::iter::from_fn(|| Frame::read(&mut sent)).map(|frame| frame.stream).collect();
            assert!(streams.windows(2).all(|pair| pair[0] != pair[1]), "{streams:?}");
        }
    }
}
