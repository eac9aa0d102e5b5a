//! permessage-deflate compared with a naive decoder: it inflates the messages of the crate, both have the same result for any input, and
//! output remains within its limit.

mod naive;
mod pools;

use naive::Naive;
use wireloom_testing::split::Split;
use wireloom_testing::{Rng, rounds, runs_all};
use wireloom_ws::deflate::{
    Compressor, Decompressor, DeflateConfig, DeflateParams, InflateError, InflateLimit,
};
use wireloom_ws::role::Role;

const LIMIT: InflateLimit = InflateLimit::new(1 << 24);

/// A message: text, structured or random bytes.
fn message(rng: &mut Rng, max: usize) -> Vec<u8> {
    let len = rng.len(max);
    match rng.u8(0..6) {
        0 => rng.bytes(len),
        1 => vec![rng.u8(..); len],
        2 => rng.text(len / 2).into_bytes(),
        3 => {
            // One block, repeated at a distance around the size of each window.
            let period = 1 + rng.len(40_000);
            let block = rng.bytes(period.min(len.max(1)));
            block.iter().copied().cycle().take(len).collect()
        }
        _ => {
            let mut json = Vec::new();
            while json.len() < len {
                let (id, price) = (rng.u16(..), rng.u32(..));
                json.extend_from_slice(
                    format!("{{\"id\":{id},\"price\":{price},\"side\":\"buy\"}},").as_bytes(),
                );
            }
            json
        }
    }
}

fn params(rng: &mut Rng) -> DeflateParams {
    DeflateParams {
        server_no_context_takeover: rng.bool(),
        client_no_context_takeover: rng.bool(),
        server_max_window_bits: rng.u8(8..=15),
        client_max_window_bits: rng.u8(8..=15),
    }
}

fn config(rng: &mut Rng) -> DeflateConfig {
    DeflateConfig { level: rng.u8(0..=9), mem_level: rng.u8(1..=9), ..DeflateConfig::default() }
}

/// Compresses whole, or in chunks of any size.
fn compress(rng: &mut Rng, compressor: &mut Compressor, message: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    if rng.bool() {
        compressor.compress(message, &mut out);
        return out;
    }
    let mut left = message;
    let split = Split::random(rng);
    for part in split.parts(rng, message.len()) {
        compressor.compress_chunk(&left[..part], false, &mut out);
        left = &left[part..];
    }
    compressor.compress_chunk(left, true, &mut out);
    out
}

/// Decompresses at a random split, into a vector or stepwise into a small buffer.
fn decompress(
    rng: &mut Rng,
    decompressor: &mut Decompressor,
    payload: &[u8],
) -> Result<Vec<u8>, InflateError> {
    let mut out = Vec::new();
    let mut left = payload;
    let stepwise = rng.bool();
    let mut buf = vec![0; 1 + rng.len(4096)];
    let split = Split::random(rng);
    let mut parts = split.parts(rng, payload.len());
    if parts.is_empty() || rng.bool() {
        parts.push(0);
    }
    for (i, part) in parts.iter().enumerate() {
        let (mut input, fin) = (&left[..*part], i + 1 == parts.len());
        left = &left[*part..];
        if !stepwise {
            decompressor.decompress(input, fin, &mut out, &LIMIT)?;
            continue;
        }
        loop {
            let step = decompressor.step(input, fin, &mut buf, &LIMIT)?;
            out.extend_from_slice(&buf[..step.produced]);
            input = &input[step.consumed..];
            if !step.more {
                assert!(input.is_empty());
                break;
            }
        }
    }
    assert!(!decompressor.is_in_message());
    Ok(out)
}

// RFC 7692 §7.1.1, §7.1.2, §7.2: each setting and direction, split in each way.
#[test]
fn every_message_round_trips_with_any_parameters() {
    rounds(200, |rng| {
        let (params, config) = (params(rng), config(rng));
        for (from, to) in [(Role::Client, Role::Server), (Role::Server, Role::Client)] {
            let mut compressor = Compressor::new(from, &params, &config);
            let mut decompressor = Decompressor::new(to, &params);
            for _ in 0..1 + rng.len(12) {
                let message = message(rng, 40_000);
                let payload = compress(rng, &mut compressor, &message);
                assert_eq!(
                    decompress(rng, &mut decompressor, &payload),
                    Ok(message),
                    "{params:?} {config:?}"
                );
                if rng.u8(0..8) == 0 {
                    compressor.shrink();
                    decompressor.shrink();
                }
            }
        }
    });
}

// RFC 7692 §7.1.1.1, §7.1.1.2: "MUST NOT use context takeover"; §7.1.2.1, §7.1.2.2: a window no larger than negotiated.
#[test]
fn no_reference_exceeds_the_negotiated_window() {
    rounds(100, |rng| {
        let (params, config) = (params(rng), config(rng));
        for (role, no_context_takeover, bits) in [
            (Role::Server, params.server_no_context_takeover, params.server_max_window_bits),
            (Role::Client, params.client_no_context_takeover, params.client_max_window_bits),
        ] {
            let mut compressor = Compressor::new(role, &params, &config);
            let mut naive = Naive::default();
            for _ in 0..4 {
                let message = message(rng, 80_000);
                let payload = compress(rng, &mut compressor, &message);
                if no_context_takeover {
                    // A new decoder rejects every reference to an earlier message.
                    naive.clear_window();
                }
                assert_eq!(naive.message(&payload), Ok(message), "{role:?} {params:?} {config:?}");
            }
            let distance = naive.distance_max;
            assert!(distance <= 1 << bits, "{distance} for {role:?} {params:?} {config:?}");
        }
    });
    // The windows are put to use.
    for (server_max_window_bits, distance) in [(8, 220), (15, 30_000)] {
        let params = DeflateParams { server_max_window_bits, ..DeflateParams::default() };
        let (mut naive, mut payload) = (Naive::default(), Vec::new());
        let message = Rng::with_seed(8).bytes(distance).repeat(2);
        Compressor::new(Role::Server, &params, &DeflateConfig::default()).compress(&message, &mut payload);
        assert_eq!(naive.message(&payload), Ok(message));
        assert_eq!(naive.distance_max, distance);
    }
}

// RFC 7692 §7.1.2: with 8 bits, at every level: zlib compresses with 9, and no distance may exceed 256.
#[test]
fn a_window_of_8_bits_is_kept_at_every_level() {
    let params = DeflateParams { server_max_window_bits: 8, ..DeflateParams::default() };
    let mut rng = Rng::with_seed(8);
    for level in 0..=9 {
        for period in (200..300).chain([500, 512, 513, 1024]) {
            let config = DeflateConfig { level, ..DeflateConfig::default() };
            let mut compressor = Compressor::new(Role::Server, &params, &config);
            let message: Vec<u8> = rng.bytes(period).into_iter().cycle().take(3000).collect();
            let mut naive = Naive::default();
            let mut payload = Vec::new();
            compressor.compress(&message, &mut payload);
            assert_eq!(naive.message(&payload), Ok(message));
            assert!(naive.distance_max <= 256, "level {level}, period {period}: {}", naive.distance_max);
        }
    }
}

// RFC 7692 §7.2.2, RFC 1951: modified streams have the same result as in the naive decoder.
#[test]
fn has_the_same_results_as_a_naive_decoder() {
    let mut results = [0; 2];
    rounds(3000, |rng| {
        let (params, config) = (params(rng), config(rng));
        let mut compressor = Compressor::new(Role::Server, &params, &config);
        let message = message(rng, 300);
        let mut payload = compress(rng, &mut compressor, &message);
        for _ in 0..rng.u8(0..4) {
            let at = rng.usize(..payload.len());
            match rng.u8(0..6) {
                0 => payload.truncate(at),
                1 => payload.insert(at, rng.u8(..)),
                2 => payload[at] = rng.u8(..),
                // BFINAL and the block type of the first block.
                3 => payload[0] ^= rng.u8(1..8),
                4 => payload.extend_from_within(..at),
                _ => payload[at] ^= 1 << rng.u8(0..8),
            }
            if payload.is_empty() {
                break;
            }
        }
        if rng.u8(0..8) == 0 {
            let len = rng.len(40);
            payload = rng.bytes(len);
        }
        let mut decompressor = Decompressor::new(Role::Client, &params);
        let result = decompress(rng, &mut decompressor, &payload);
        let expected = Naive::default().message(&payload).map_err(|_| InflateError::Corrupt);
        results[usize::from(expected.is_ok())] += 1;
        assert_eq!(result, expected, "{payload:02x?}");
    });
    assert!(!runs_all(3000) || results.iter().all(|&count| count > 300), "both results occur: {results:?}");
}

#[test]
fn an_incompressible_message_hardly_grows() {
    rounds(50, |rng| {
        let len = rng.len(300_000);
        let (message, config) = (rng.bytes(len), config(rng));
        let mut compressor = Compressor::new(Role::Client, &DeflateParams::default(), &config);
        let payload = compress(rng, &mut compressor, &message);
        assert!(payload.len() <= message.len() + message.len() / 7 + 16, "{} {config:?}", message.len());
    });
}

/// `len` zeros, compressed as well as DEFLATE can.
fn bomb(len: usize) -> Vec<u8> {
    let config = DeflateConfig { level: 9, ..DeflateConfig::default() };
    let mut out = Vec::new();
    Compressor::new(Role::Server, &DeflateParams::default(), &config).compress(&vec![0; len], &mut out);
    out
}

#[test]
fn bounds_the_length_of_a_message_exactly() {
    let lengths: [usize; 16] =
        [0, 1, 2, 255, 256, 257, 258, 259, 511, 512, 513, 4096, 65_535, 65_536, 65_537, 1_000_000];
    rounds(4, |rng| {
        for max in lengths {
            for len in [max.saturating_sub(1), max, max + 1] {
                let payload = bomb(len);
                let limit = InflateLimit::new(max);
                let expected = if len <= max { Ok(()) } else { Err(InflateError::TooLarge) };
                let mut decompressor = Decompressor::new(Role::Client, &DeflateParams::default());
                // The content of the vector and earlier messages do not count.
                let mut out = b"before".to_vec();
                decompressor.decompress(&bomb(max), true, &mut out, &limit).unwrap();
                assert_eq!(out.len(), 6 + max);
                out.truncate(6);
                let cut = rng.usize(..=payload.len());
                let result = decompressor
                    .decompress(&payload[..cut], false, &mut out, &limit)
                    .and_then(|()| decompressor.decompress(&payload[cut..], true, &mut out, &limit));
                assert_eq!(result, expected, "{len} within {max}");
                assert!(out.len() <= 6 + max);
            }
        }
    });
}

#[test]
fn a_bomb_is_stopped_before_it_is_buffered() {
    let payload = bomb(64 << 20);
    assert!(payload.len() < 80_000);
    for params in
        [DeflateParams::default(), DeflateParams { server_no_context_takeover: true, ..Default::default() }]
    {
        let mut out = Vec::new();
        let mut decompressor = Decompressor::new(Role::Client, &params);
        let limit = InflateLimit::new(1 << 20);
        assert_eq!(decompressor.decompress(&payload, true, &mut out, &limit), Err(InflateError::TooLarge));
        assert!(out.capacity() <= 2 << 20, "{} held", out.capacity());
    }
    // In steps as well.
    let mut decompressor = Decompressor::new(Role::Client, &DeflateParams::default());
    let (mut buf, mut input, mut seen) = ([0; 1000], &payload[..], 0);
    let result = loop {
        match decompressor.step(input, true, &mut buf, &InflateLimit::new(1 << 20)) {
            Ok(step) => (input, seen) = (&input[step.consumed..], seen + step.produced),
            Err(error) => break error,
        }
    };
    assert_eq!(result, InflateError::TooLarge);
    assert!(seen <= 1 << 20);
}

#[test]
fn bounds_the_ratio_of_long_messages() {
    let limit = InflateLimit { max_len: 1 << 24, max_ratio: 100, ratio_free_len: 50_000 };
    for (len, expected) in [(49_999, Ok(())), (50_000, Ok(())), (50_001, Err(InflateError::Ratio))] {
        let mut decompressor = Decompressor::new(Role::Client, &DeflateParams::default());
        assert_eq!(decompressor.decompress(&bomb(len), true, &mut Vec::new(), &limit), expected, "{len}");
    }
    // Honest text stays far below.
    let text: Vec<u8> = (0..40_000u32).flat_map(|n| format!("{n} bottles of beer\n").into_bytes()).collect();
    let mut payload = Vec::new();
    let params = DeflateParams::default();
    Compressor::new(Role::Server, &params, &DeflateConfig::default()).compress(&text, &mut payload);
    let mut out = Vec::new();
    Decompressor::new(Role::Client, &params).decompress(&payload, true, &mut out, &limit).unwrap();
    assert_eq!(out, text);
}

#[test]
fn no_stream_exceeds_the_default_ratio() {
    for len in [100_000, 1_000_000, 10_000_000] {
        let (payload, mut out) = (bomb(len), Vec::new());
        let mut decompressor = Decompressor::new(Role::Client, &DeflateParams::default());
        let limit = InflateLimit { ratio_free_len: 0, ..InflateLimit::new(usize::MAX) };
        decompressor.decompress(&payload, true, &mut out, &limit).unwrap();
        assert_eq!(out.len(), len);
    }
}

#[test]
fn blocks_without_content_cost_no_memory_and_linear_time() {
    let empty_stored = [0x00, 0x00, 0x00, 0xff, 0xff];
    let empty_fixed_final = [0x03, 0x00];
    let empty_stored_final = [0x01, 0x00, 0x00, 0xff, 0xff];
    for block in [&empty_stored[..], &empty_fixed_final, &empty_stored_final] {
        let mut out = Vec::new();
        let mut decompressor = Decompressor::new(Role::Server, &DeflateParams::default());
        decompressor.decompress(&block.repeat(200_000), false, &mut out, &LIMIT).unwrap();
        decompressor.decompress(&[0x00], true, &mut out, &LIMIT).unwrap();
        assert!(out.is_empty());
        assert!(out.capacity() <= 1 << 20);
    }
}

// RFC 7692 §6.1: a fragment may have any part of the compressed message, or none.
#[test]
fn empty_fragments_change_nothing() {
    let hello = [0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];
    let mut decompressor = Decompressor::new(Role::Client, &DeflateParams::default());
    let mut out = Vec::new();
    for byte in hello {
        decompressor.decompress(b"", false, &mut out, &LIMIT).unwrap();
        decompressor.decompress(&[byte], false, &mut out, &LIMIT).unwrap();
    }
    assert!(decompressor.is_in_message());
    decompressor.decompress(b"", true, &mut out, &LIMIT).unwrap();
    assert_eq!(out, b"Hello");
}
