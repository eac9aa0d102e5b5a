//! Any bytes from a peer, into an end in either role, with and without compression, messages whole or in chunks: whole and cut at
//! random, it receives and sends the same and ends the same; what it sends is valid, and nothing follows its Close frame.

#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use std::time::Duration;
use wireloom_testing::split::Split;
use wireloom_testing::{End, Frame, Received, Rng};
use wireloom_ws::{Config, Delivery, Role};

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    seed: u64,
    client: bool,
    deflate: bool,
    chunks: bool,
    small: bool,
    bytes: &'a [u8],
}

fn end(input: &Input<'_>) -> End {
    let mut config = Config::default();
    // Inflating to megabytes only slows the fuzzer down.
    config.limits.message_len_max = if input.small { 100 } else { 1 << 16 };
    config.limits.frame_len_max = if input.small { 60 } else { 1 << 16 };
    config.limits.fragments_spare = if input.small { 8 } else { 1 << 10 };
    config.delivery = if input.chunks { Delivery::Chunks } else { Delivery::Messages };
    let role = if input.client { Role::Client } else { Role::Server };
    if input.deflate { End::deflated(role, config) } else { End::with(role, config, None) }
}

fn check(input: &Input<'_>) {
    let mut rng = Rng::with_seed(input.seed);
    let (mut whole, mut cut) = (end(input), end(input));
    let received = whole.receive(input.bytes);
    let split = Split::random(&mut rng);
    assert_eq!(cut.receive_split(input.bytes, split, &mut rng), received, "{split:?}");
    assert_eq!(cut.connection.end(), whole.connection.end());

    let failed = received.iter().filter(|received| matches!(received, Received::Failed(_))).count();
    assert!(failed <= 1 && (failed == 0 || matches!(received.last(), Some(Received::Failed(_)))));
    let max = if input.small { 100 } else { 1 << 16 };
    for received in &received {
        match received {
            Received::Text(text) => assert!(text.len() <= max),
            Received::Binary(data) => assert!(data.len() <= max),
            Received::Ping(payload) | Received::Pong(payload, _) => assert!(payload.len() <= 125),
            Received::Close(..) | Received::Failed(_) => {}
        }
    }

    let sent = whole.sent_frames();
    assert_eq!(sent, cut.sent_frames());
    let pings = received.iter().filter(|received| matches!(received, Received::Ping(_))).count();
    assert!(sent.len() <= pings + 1, "a pong a ping, then the close");
    for (i, frame) in sent.iter().enumerate() {
        assert_eq!(frame.key().is_some(), input.client);
        assert!(frame.is_final() && frame.reserved() == 0 && frame.payload().len() <= 125);
        match frame.opcode() {
            Frame::PONG => {}
            Frame::CLOSE => assert_eq!(i, sent.len() - 1),
            other => panic!("sent {other:X} unasked"),
        }
    }
    let over = received.iter().any(|received| matches!(received, Received::Failed(_) | Received::Close(..)));
    assert_eq!(over, sent.last().is_some_and(|frame| frame.opcode() == Frame::CLOSE));
    assert_eq!(over, !whole.connection.is_open());
    assert_eq!(over, whole.connection.send_text("x").is_err());

    // The deadline ends whatever the peer leaves open. If pongs before the Close frame have left since that was queued, the peer
    // had no time to answer it, and has as long again, unless it broke the protocol.
    if over && whole.connection.poll_timeout().is_some() {
        let deadlines = if failed == 0 { sent.len().min(2) } else { 1 };
        for _ in 0..deadlines {
            let deadline = whole.connection.poll_timeout().expect("a deadline for the peer's Close frame");
            whole.clock.advance_to(deadline);
            whole.connection.handle_timeout(whole.clock.now());
        }
        assert_eq!(whole.connection.poll_timeout(), None);
    }
    cut.clock.advance(Duration::from_secs(1));
    cut.connection.handle_eof();
    assert!(cut.connection.end().is_some());
    cut.connection.release_buffers();
}

fuzz_target!(|input: Input<'_>| check(&input));
