//! Wireloom's server and client beside those of the `h2` crate. The fuzz workspace runs the same comparison for longer, and
//! beside nghttp2.

#![allow(unreachable_pub, reason = "the module is shared with the fuzz targets")]

mod differential;

use std::collections::BTreeMap;

use differential::frames::{client_frames, server_frames};
use differential::{Peer, compare, rust_h2};
use wireloom_testing::http2::Frame;
use wireloom_testing::rounds;

/// Compares both over random frames, and prints how often each difference of the table occurred.
fn compare_random<P: Peer>(peer: fn() -> P, frames: fn(&[u8]) -> Vec<Frame>) {
    let mut differences: BTreeMap<&str, u32> = BTreeMap::new();
    rounds(8_000, |rng| {
        let len = rng.usize(1..200);
        let bytes = rng.bytes(len);
        if let Some(difference) = compare(peer(), &frames(&bytes)) {
            *differences.entry(difference).or_default() += 1;
        }
    });
    println!("{differences:#?}");
}

#[test]
fn the_server_of_h2_handles_random_frames_the_same() {
    compare_random(rust_h2::Server::new, client_frames);
}

#[test]
fn the_client_of_h2_handles_random_frames_the_same() {
    compare_random(rust_h2::Client::new, server_frames);
}
