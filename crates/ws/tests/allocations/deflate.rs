//! Allocations of permessage-deflate: none per message in steady state, and per connection the documented memory.

use wireloom_ws::deflate::{
    Compressor, Decompressor, DeflateConfig, DeflateParams, InflateError, InflateLimit,
};
use wireloom_ws::role::Role;

use crate::counting::{allocations, held, with_allocations_up_to};

const LIMIT: InflateLimit = InflateLimit::new(1 << 20);

fn message(n: usize) -> Vec<u8> {
    (0..40 + n % 7).flat_map(|i| format!("{{\"id\":{},\"side\":\"buy\"}},", i * n).into_bytes()).collect()
}

#[test]
fn a_warm_connection_allocates_for_no_message() {
    for no_context_takeover in [false, true] {
        let params =
            DeflateParams { server_no_context_takeover: no_context_takeover, ..DeflateParams::default() };
        for level in 0..=9 {
            let config = DeflateConfig { level, ..DeflateConfig::default() };
            let mut compressor = Compressor::new(Role::Server, &params, &config);
            let mut decompressor = Decompressor::new(Role::Client, &params);
            let (mut payload, mut inflated) = (Vec::with_capacity(8192), Vec::with_capacity(16_384));
            let messages: Vec<_> = (1..100).map(message).collect();
            let mut round = || {
                for message in &messages {
                    payload.clear();
                    inflated.clear();
                    compressor.compress(message, &mut payload);
                    decompressor.decompress(&payload, true, &mut inflated, &LIMIT).unwrap();
                    assert_eq!(&inflated, message);
                }
            };
            round();
            assert_eq!(allocations(round), 0, "level {level}");
        }
    }
}

#[test]
#[cfg(target_pointer_width = "64")]
fn a_connection_holds_what_the_documentation_says() {
    let mut payload = Vec::with_capacity(1024);
    for window_bits in 8..=15u8 {
        for mem_level in 1..=9u8 {
            let params = DeflateParams { server_max_window_bits: window_bits, ..DeflateParams::default() };
            let config = DeflateConfig { mem_level, ..DeflateConfig::default() };
            let mut compressor = Compressor::new(Role::Server, &params, &config);
            let bytes = held(|| compressor.compress(b"Hello", &mut payload));
            let documented = 134_300 + (4 << window_bits.max(9)) + (7 << (mem_level + 6));
            assert!((bytes - documented).abs() < 500, "{bytes} for {window_bits}, {mem_level}");
            // The window of five bytes and its identifier are kept.
            assert_eq!(held(|| compressor.shrink()), 5 + 16 - bytes);
        }
    }
    let params = DeflateParams { server_no_context_takeover: true, ..DeflateParams::default() };
    let mut decompressor = Decompressor::new(Role::Client, &params);
    let mut out = Vec::with_capacity(4096);
    let bytes = held(|| decompressor.decompress(&[0x00], true, &mut out, &LIMIT).unwrap());
    assert!((bytes - 47_600).abs() < 500, "{bytes}");
    assert_eq!(held(|| decompressor.shrink()), -bytes);
}

#[test]
fn an_unused_direction_allocates_nothing() {
    let bytes = held(|| {
        let (params, config) = (DeflateParams::default(), DeflateConfig::default());
        let compressor = Compressor::new(Role::Client, &params, &config);
        let decompressor = Decompressor::new(Role::Client, &params);
        assert!(size_of_val(&compressor) + size_of_val(&decompressor) <= 512);
    });
    assert_eq!(bytes, 0);
}

#[test]
fn fails_without_memory_for_the_message() {
    let mut compressed = Vec::new();
    Compressor::new(Role::Server, &DeflateParams::default(), &DeflateConfig::default())
        .compress(&vec![7; 1 << 20], &mut compressed);
    let mut decompressor = Decompressor::new(Role::Client, &DeflateParams::default());
    let mut out = Vec::new();
    let inflated = with_allocations_up_to(300 << 10, || {
        decompressor.decompress(&compressed, true, &mut out, &InflateLimit::new(2 << 20))
    });
    assert_eq!(inflated, Err(InflateError::OutOfMemory));
    assert!((1..=300 << 10).contains(&out.len()), "{} bytes before the error", out.len());
    // The next message cannot be found, as after any other error.
    let next = decompressor.decompress(&[0x00], true, &mut Vec::new(), &LIMIT);
    assert_eq!(next, Err(InflateError::OutOfMemory));
}
