//! The time for any input is linear: eight times the input may cost about eight times the time, where a quadratic path would cost 64 times.
//! The send queue remains within its bounds.

use std::time::Duration;
use wireloom_testing::{End, Frame, Received};
use wireloom_ws::deflate::{Compressor, DeflateConfig, DeflateParams};
use wireloom_ws::limits::PONGS_QUEUED_LEN_MAX;
use wireloom_ws::{Config, Connection, Delivery, Error, Misuse, Role};

const KEY: [u8; 4] = [0x37, 0xFA, 0x21, 0x3D];

/// The CPU time of this thread, which does not depend on other load.
#[cfg(unix)]
fn time_used() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(not(unix))]
#[allow(clippy::disallowed_methods)] // The clock measures the test, not the core.
fn time_used() -> Duration {
    static START: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    START.elapsed()
}

/// Asserts that `run(8 * n)` costs less than 16 times `run(n)`, the fastest of several runs each: enough for cache misses, and too little
/// for a quadratic path.
fn assert_linear(n: usize, run: impl Fn(usize)) {
    let quickest = |n: usize| {
        let try_once = || {
            let begin = time_used();
            run(n);
            time_used() - begin
        };
        (0..5).map(|_| try_once()).min().unwrap().max(Duration::from_micros(50))
    };
    // Other load may spoil one comparison; a quadratic path fails all of them.
    let ratios: Vec<f64> = (0..3)
        .map(|_| quickest(8 * n).as_secs_f64() / quickest(n).as_secs_f64())
        .take_while(|&r| r >= 16.0)
        .collect();
    assert!(ratios.len() < 3, "eight times as much costs {ratios:?} times as much");
}

/// Receives `wire` in reads of `read` bytes; returns the number of messages.
fn receive(end: &mut End, wire: &[u8], read: usize) -> usize {
    let mut messages = 0;
    for chunk in wire.chunks(read) {
        let received = end.receive(chunk);
        assert!(!matches!(received.last(), Some(Received::Failed(_))), "{received:?}");
        messages += received
            .iter()
            .filter(|received| matches!(received, Received::Text(_) | Received::Binary(_)))
            .count();
    }
    messages
}

fn fragments(len: usize, of: usize, first: Frame) -> Vec<u8> {
    let mut wire = first.fin(false).mask(KEY).bytes();
    let fragment = Frame::continuation(vec![b'x'; of]).fin(false).mask(KEY).bytes();
    (0..len / of).for_each(|_| wire.extend(&fragment));
    wire.extend(Frame::continuation("").mask(KEY).bytes());
    wire
}

// 4 MiB in 64-byte fragments is honest traffic.
#[test]
fn a_message_in_small_fragments_takes_linear_time() {
    assert_linear(512 << 10, |len| {
        let wire = fragments(len, 64, Frame::text(""));
        assert_eq!(receive(&mut End::server(), &wire, 64 << 10), 1);
    });
}

#[test]
fn a_message_that_arrives_byte_by_byte_takes_linear_time() {
    assert_linear(16 << 10, |len| {
        let wire = Frame::text("x".repeat(len)).mask(KEY).bytes();
        assert_eq!(receive(&mut End::server(), &wire, 1), 1);
    });
}

#[test]
fn a_read_full_of_tiny_frames_takes_linear_time() {
    assert_linear(4 << 10, |count| {
        let wire = Frame::text("").mask(KEY).bytes().repeat(count);
        assert_eq!(receive(&mut End::server(), &wire, usize::MAX), count);
    });
}

#[test]
fn pings_within_a_message_that_never_ends_take_linear_time() {
    assert_linear(4 << 10, |count| {
        let mut wire = Frame::text("x").fin(false).mask(KEY).bytes();
        wire.extend(Frame::ping([1; 125]).mask(KEY).bytes().repeat(count));
        assert_eq!(receive(&mut End::server(), &wire, 1_000), 0);
    });
}

#[test]
fn a_compressed_message_in_fragments_of_a_byte_takes_linear_time() {
    for delivery in [Delivery::Messages, Delivery::Chunks] {
        assert_linear(1 << 10, |len| {
            let noise: Vec<u8> = wireloom_testing::Rng::with_seed(3).bytes(len);
            let mut compressed = Vec::new();
            Compressor::new(Role::Client, &DeflateParams::default(), &DeflateConfig::default())
                .compress(&noise, &mut compressed);
            let mut wire = Frame::binary("").rsv(4).fin(false).mask(KEY).bytes();
            for byte in compressed {
                wire.extend(Frame::continuation([byte]).fin(false).mask(KEY).bytes());
            }
            wire.extend(Frame::continuation("").mask(KEY).bytes());
            let mut config = Config::default();
            config.delivery = delivery;
            assert_eq!(receive(&mut End::deflated(Role::Server, config), &wire, 4_096), 1);
        });
    }
}

#[test]
fn compressed_messages_after_a_large_one_take_linear_time() {
    // The memory of the large one must not be cleared for each small one.
    let compress = |compressor: &mut Compressor, payload: &[u8]| {
        let mut compressed = Vec::new();
        compressor.compress(payload, &mut compressed);
        Frame::binary(compressed).rsv(4).mask(KEY).bytes()
    };
    assert_linear(256, |count| {
        let mut compressor =
            Compressor::new(Role::Client, &DeflateParams::default(), &DeflateConfig::default());
        let mut wire = compress(&mut compressor, &vec![0; 64 * count]);
        (0..count).for_each(|_| wire.extend(compress(&mut compressor, b"small")));
        assert_eq!(receive(&mut End::deflated(Role::Server, Config::default()), &wire, 4_096), count + 1);
    });
}

#[test]
fn a_queue_that_is_written_in_small_chunks_takes_linear_time() {
    assert_linear(2 << 10, |count| {
        let mut server = Connection::server(Config::default(), None, Duration::ZERO);
        for i in 0..count {
            server.send_binary(&[1; 100]).unwrap();
            if i % 16 == 0 {
                server.send_bytes(vec![2; 5_000].into()).unwrap();
            }
        }
        while server.wants_write() {
            let mut slices: [&[u8]; 2] = [&[]; 2];
            let count = server.poll_transmit(&mut slices);
            let len = slices[..count].iter().map(|slice| slice.len()).sum::<usize>().min(50);
            server.transmitted(len);
        }
    });
}

#[test]
fn the_queue_has_its_configured_bound() {
    let mut config = Config::default();
    config.limits.queued_len_max = 1_000;
    config.limits.queued_len_high = 500;
    for (len, fits) in [(497, true), (498, true), (499, false)] {
        let mut server = Connection::server(config.clone(), None, Duration::ZERO);
        // Four bytes of header.
        server.send_binary(&[0; 498]).unwrap();
        assert_eq!(server.queued_len(), 502);
        assert!(server.is_congested());
        let sent = server.send_binary(&vec![0; len]);
        assert_eq!(sent.is_ok(), fits, "{len}");
        if !fits {
            assert_eq!(sent, Err(Error::Misuse(Misuse::QueueFull { queued: 502, max: 1_000 })));
            assert_eq!(server.queued_len(), 502, "nothing was queued");
        }
        // A Close frame is sent in any case.
        server.close(Duration::ZERO, None, "").unwrap();
        server.take_transmit();
        assert!(!server.is_congested());
    }
    for (len, congested) in [(494, false), (495, false), (496, true), (497, true)] {
        let mut server = Connection::server(config.clone(), None, Duration::ZERO);
        server.send_binary(&vec![0; len]).unwrap();
        assert_eq!(server.is_congested(), congested, "{len} and a header");
    }
}

// The answers to a peer that sends pings and does not read are bounded.
#[test]
fn a_peer_that_reads_nothing_cannot_fill_the_queue() {
    let ping = Frame::ping([1; 125]).mask(KEY).bytes();
    let mut end = End::server();
    for _ in 0..1_000 {
        end.receive(ping.repeat(100));
        let mut slices: [&[u8]; 4] = [&[]; 4];
        end.connection.poll_transmit(&mut slices);
    }
    let max = PONGS_QUEUED_LEN_MAX + 127;
    assert!(end.connection.queued_len() <= max, "{}", end.connection.queued_len());
}
