//! Any bytes from a peer, into an end in either role, with and without compression, messages held or lent: whole and cut at
//! random it hears the same, says the same and ends the same; what it says is lawful, and nothing follows its Close frame.

#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use std::time::Duration;
use wireloom_testing::split::Split;
use wireloom_testing::{End, Frame, Heard, Rng};
use wireloom_ws::{Config, Delivery, Role};

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    seed: u64,
    client: bool,
    deflate: bool,
    lend: bool,
    small: bool,
    bytes: &'a [u8],
}

fn end(input: &Input<'_>) -> End {
    let mut config = Config::default();
    // Inflating to megabytes only slows the fuzzer down.
    config.limits.message_len_max = if input.small { 100 } else { 1 << 16 };
    config.limits.frame_len_max = if input.small { 60 } else { 1 << 16 };
    config.limits.fragments_spare = if input.small { 8 } else { 1 << 10 };
    config.delivery = if input.lend { Delivery::Chunks } else { Delivery::Messages };
    let role = if input.client { Role::Client } else { Role::Server };
    if input.deflate { End::deflated(role, config) } else { End::with(role, config, None) }
}

fn check(input: &Input<'_>) {
    let mut rng = Rng::with_seed(input.seed);
    let (mut whole, mut cut) = (end(input), end(input));
    let heard = whole.hear(input.bytes);
    let split = Split::draw(&mut rng);
    assert_eq!(cut.hear_split(input.bytes, split, &mut rng), heard, "{split:?}");
    assert_eq!(cut.connection.end(), whole.connection.end());

    let failed = heard.iter().filter(|heard| matches!(heard, Heard::Failed(_))).count();
    assert!(failed <= 1 && (failed == 0 || matches!(heard.last(), Some(Heard::Failed(_)))));
    let max = if input.small { 100 } else { 1 << 16 };
    for heard in &heard {
        match heard {
            Heard::Text(text) => assert!(text.len() <= max),
            Heard::Binary(data) => assert!(data.len() <= max),
            Heard::Ping(payload) | Heard::Pong(payload, _) => assert!(payload.len() <= 125),
            Heard::Close(..) | Heard::Failed(_) => {}
        }
    }

    let said = whole.say();
    assert_eq!(said, cut.say());
    let pings = heard.iter().filter(|heard| matches!(heard, Heard::Ping(_))).count();
    assert!(said.len() <= pings + 1, "a pong a ping, then the close");
    for (i, frame) in said.iter().enumerate() {
        assert_eq!(frame.key().is_some(), input.client);
        assert!(frame.is_final() && frame.reserved() == 0 && frame.payload().len() <= 125);
        match frame.opcode() {
            Frame::PONG => {}
            Frame::CLOSE => assert_eq!(i, said.len() - 1),
            other => panic!("said {other:X} unasked"),
        }
    }
    let over = heard.iter().any(|heard| matches!(heard, Heard::Failed(_) | Heard::Close(..)));
    assert_eq!(over, said.last().is_some_and(|frame| frame.opcode() == Frame::CLOSE));
    assert_eq!(over, !whole.connection.is_open());
    assert_eq!(over, whole.connection.send_text("x").is_err());

    // The deadline ends whatever the peer leaves open.
    if over && let Some(deadline) = whole.connection.poll_timeout() {
        whole.clock.advance_to(deadline);
        whole.connection.handle_timeout(whole.clock.now());
        assert_eq!(whole.connection.poll_timeout(), None);
    }
    cut.clock.advance(Duration::from_secs(1));
    cut.connection.handle_eof();
    assert!(cut.connection.end().is_some());
    cut.connection.release_buffers();
}

fuzz_target!(|input: Input<'_>| check(&input));
