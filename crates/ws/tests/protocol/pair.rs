//! Two ends joined in memory: each end receives exactly the messages of the other, in order, however the bytes are split.

use std::time::Duration;
use wireloom_testing::{Pair, Received, Rng, rounds};
use wireloom_ws::deflate::{DeflateConfig, DeflateParams};
use wireloom_ws::{Cause, CloseCode, Config, Delivery, Initiator, Keepalive, Role, Transport};

const BOTH: [Role; 2] = [Role::Client, Role::Server];

/// A pair with random settings, with or without the extension.
fn random_pair(rng: &mut Rng) -> Pair {
    let mut config = Config::default();
    config.delivery = if rng.bool() { Delivery::Messages } else { Delivery::Chunks };
    let deflate = DeflateConfig { min_len: rng.len(200), level: rng.u8(0..=9), ..DeflateConfig::default() };
    let params = DeflateParams {
        server_no_context_takeover: rng.bool(),
        client_no_context_takeover: rng.bool(),
        server_max_window_bits: rng.u8(8..=15),
        client_max_window_bits: rng.u8(8..=15),
    };
    Pair::with(config, rng.bool().then_some((params, &deflate)))
}

/// One end sends something, which the other must receive.
fn send_random(pair: &mut Pair, role: Role, rng: &mut Rng) -> Received {
    let end = pair.end(role);
    let now = end.clock.now();
    let connection = &mut end.connection;
    let chars = rng.len(3_000);
    let (text, len) = (rng.text(chars), rng.len(100_000));
    let data = rng.bytes(len);
    match rng.u8(0..8) {
        0 => connection.send_text(&text).unwrap(),
        1 => connection.send_text_uncompressed(&text).unwrap(),
        2 => {
            let mut rest = &*text;
            while !rest.is_empty() {
                let mut cut = 1 + rng.len(rest.len());
                while !rest.is_char_boundary(cut) {
                    cut += 1;
                }
                connection.send_text_chunk(&rest[..cut], false).unwrap();
                rest = &rest[cut..];
            }
            connection.send_text_chunk("", true).unwrap();
        }
        3 => {
            let ping = rng.bytes(8);
            connection.send_ping(now, &ping).unwrap();
            return Received::Ping(ping);
        }
        kind => {
            match kind {
                4 => connection.send_binary(&data).unwrap(),
                5 => connection.send_bytes(data.clone().into()).unwrap(),
                6 => connection.send_binary_uncompressed(&data).unwrap(),
                _ => {
                    // The receiver's limit on fragments allows 16,384.
                    for chunk in data.chunks((1 + rng.len(20_000)).max(data.len().div_ceil(10_000))) {
                        connection.send_binary_chunk(chunk, false).unwrap();
                    }
                    connection.send_binary_chunk(b"", true).unwrap();
                }
            }
            return Received::Binary(data);
        }
    }
    Received::Text(text)
}

/// All received events except pongs, whose number depends on when pings were read.
fn without_pongs(received: &[Received]) -> Vec<&Received> {
    received.iter().filter(|received| !matches!(received, Received::Pong(..))).collect()
}

#[test]
fn both_receive_exactly_what_the_other_sent() {
    rounds(60, |rng| {
        let mut pair = random_pair(rng);
        let (mut by_client, mut by_server) = (Vec::new(), Vec::new());
        for _ in 0..rng.len(30) {
            match rng.u8(0..4) {
                0 => by_client.push(send_random(&mut pair, Role::Client, rng)),
                1 => by_server.push(send_random(&mut pair, Role::Server, rng)),
                _ => _ = pair.step(rng),
            }
        }
        let closer = *rng.pick(&BOTH);
        let end = pair.end(closer);
        end.connection.close(end.clock.now(), CloseCode::new(4242), "done").unwrap();
        pair.run(rng);

        let close = |mut sent: Vec<Received>| {
            sent.push(Received::Close(Some(4242), "done".into()));
            sent
        };
        let (by_client, by_server) = (close(by_client), close(by_server));
        assert_eq!(without_pongs(&pair.server_received), by_client.iter().collect::<Vec<_>>());
        assert_eq!(without_pongs(&pair.client_received), by_server.iter().collect::<Vec<_>>());
        assert!(pair.client.connection.was_clean() && pair.server.connection.was_clean());
        assert!(pair.close_transport());
        for role in BOTH {
            let ended = pair.end(role).connection.end().unwrap();
            assert_eq!(ended.by, if role == closer { Initiator::Local } else { Initiator::Peer });
            assert_eq!(ended.code().value(), 4242);
        }
    });
}

#[test]
fn closes_at_any_moment_end_cleanly_on_both_sides() {
    rounds(100, |rng| {
        let mut pair = random_pair(rng);
        for _ in 0..rng.len(20) {
            let role = *rng.pick(&BOTH);
            if pair.end(role).connection.is_open() {
                match rng.u8(0..4) {
                    0 => {
                        let end = pair.end(role);
                        end.connection.close(end.clock.now(), CloseCode::NORMAL, "").unwrap();
                    }
                    1 => _ = send_random(&mut pair, role, rng),
                    _ => {}
                }
            }
            pair.step(rng);
        }
        let server = &mut pair.server;
        server.connection.close(server.clock.now(), CloseCode::GOING_AWAY, "").unwrap();
        pair.run(rng);
        assert!(pair.client.connection.was_clean() && pair.server.connection.was_clean());
        assert_eq!(pair.server.connection.transport(), Transport::Close);
        assert!(pair.close_transport());
    });
}

#[test]
fn a_pong_has_the_round_trip_time() {
    rounds(20, |rng| {
        let mut pair = Pair::new();
        let now = pair.client.clock.now();
        pair.client.connection.send_ping(now, b"how long").unwrap();
        let wait = Duration::from_micros(1 + rng.u64(..1_000_000));
        pair.advance(wait);
        pair.run(rng);
        assert_eq!(pair.client_received, [Received::Pong(b"how long".into(), Some(wait))]);
    });
}

#[test]
fn keepalive_keeps_an_idle_pair_open_and_ends_a_dead_one() {
    let mut config = Config::default();
    config.keepalive =
        Some(Keepalive { ping_after: Duration::from_secs(20), dead_after: Duration::from_secs(60) });
    let mut rng = Rng::with_seed(1);
    let mut pair = Pair::with(config, None);
    for _ in 0..100 {
        pair.advance(Duration::from_secs(10));
        pair.run(&mut rng);
    }
    assert!(pair.client.connection.is_open() && pair.server.connection.is_open());
    assert!(pair.server_received.iter().any(|received| matches!(received, Received::Ping(_))));
    // From now on nothing arrives.
    for _ in 0..7 {
        pair.advance(Duration::from_secs(10));
    }
    for role in BOTH {
        let connection = &pair.end(role).connection;
        assert_eq!(connection.end().unwrap().cause, Cause::Silence);
        assert_eq!(connection.transport(), Transport::Close);
        assert_eq!(connection.poll_timeout(), None);
    }
}

/// A driver that sleeps until each deadline in turn does not loop forever.
#[test]
fn deadlines_do_not_spin() {
    let mut config = Config::default();
    config.keepalive =
        Some(Keepalive { ping_after: Duration::from_secs(20), dead_after: Duration::from_secs(60) });
    let mut pair = Pair::with(config, None);
    let server = &mut pair.server;
    let mut wakes = 0;
    while let Some(deadline) = server.connection.poll_timeout() {
        server.clock.advance_to(deadline);
        server.connection.handle_timeout(server.clock.now());
        server.connection.take_transmit();
        wakes += 1;
        assert!(wakes < 10, "woken for nothing");
    }
    assert_eq!(server.connection.transport(), Transport::Close);
}
