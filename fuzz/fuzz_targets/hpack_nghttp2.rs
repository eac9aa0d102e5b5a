//! HPACK blocks into the decoders of Wireloom and nghttp2.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wireloom_fuzz::hpack::compare_blocks;

fuzz_target!(|blocks: Vec<(Option<u16>, &[u8])>| compare_blocks(blocks));
