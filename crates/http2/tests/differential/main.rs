//! Wireloom's server and client beside those of the `h2` crate. The fuzz workspace runs the same comparison for longer, and
//! beside nghttp2.

#![allow(unreachable_pub, reason = "the module is shared with the fuzz targets")]

mod comparison;

use comparison::frames::{client_frames, server_frames};
use comparison::{compare_random, rust_h2};

const ROUNDS: u64 = 8_000;

#[test]
fn the_server_of_h2_handles_random_frames_the_same() {
    compare_random(ROUNDS, rust_h2::Server::new, client_frames);
}

#[test]
fn the_client_of_h2_handles_random_frames_the_same() {
    compare_random(ROUNDS, rust_h2::Client::new, server_frames);
}
