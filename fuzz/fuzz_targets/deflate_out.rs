//! Messages through the compressor and back through the decompressor, under any parameters, in pieces on both sides: the
//! same bytes come out.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wireloom_testing::Rng;
use wireloom_testing::split::Split;
use wireloom_ws::deflate::{Compressor, Decompressor, DeflateConfig, DeflateParams, InflateLimit};
use wireloom_ws::role::Role;

const LIMIT: InflateLimit = InflateLimit::new(1 << 20);

fuzz_target!(|input: (u64, Vec<&[u8]>)| {
    let (seed, messages) = input;
    let mut rng = Rng::with_seed(seed);
    let params = DeflateParams {
        server_no_context_takeover: rng.bool(),
        client_no_context_takeover: rng.bool(),
        server_max_window_bits: rng.u8(8..=15),
        client_max_window_bits: rng.u8(8..=15),
    };
    let config = DeflateConfig { level: rng.u8(..11), mem_level: rng.u8(..11), ..DeflateConfig::default() };
    let (sender, receiver) =
        if rng.bool() { (Role::Server, Role::Client) } else { (Role::Client, Role::Server) };
    let mut compressor = Compressor::new(sender, &params, &config);
    let mut decompressor = Decompressor::new(receiver, &params);
    for message in messages {
        // Repeated, so that windows fill and slide.
        let message = message.repeat(1 + rng.len(200));
        let message = &message[..message.len().min(LIMIT.max_len)];
        let mut payload = Vec::new();
        if rng.bool() {
            compressor.compress(message, &mut payload);
        } else {
            let mut at = 0;
            for len in Split::random(&mut rng).parts(&mut rng, message.len()) {
                compressor.compress_chunk(&message[at..at + len], false, &mut payload);
                at += len;
            }
            compressor.compress_chunk(b"", true, &mut payload);
        }
        assert!(!payload.is_empty(), "a compressed message has at least one octet (RFC 7692 §7.2.3.6)");
        assert!(!payload.ends_with(&[0x00, 0x00, 0xFF, 0xFF]), "the tail does not travel (RFC 7692 §7.2.1)");
        let (mut out, mut at) = (Vec::new(), 0);
        for len in Split::random(&mut rng).parts(&mut rng, payload.len()) {
            decompressor
                .decompress(&payload[at..at + len], false, &mut out, &LIMIT)
                .expect("own data inflates");
            at += len;
        }
        decompressor.decompress(b"", true, &mut out, &LIMIT).expect("own data ends");
        assert!(out == message, "{} bytes came out of {}", out.len(), message.len());
        if rng.u8(0..4) == 0 {
            compressor.shrink();
            decompressor.shrink();
        }
    }
});
