//! Wireloom's server beside that of the `h2` crate. The fuzz workspace runs the same comparison for longer, and beside
//! nghttp2.

#![allow(unreachable_pub, reason = "the module is shared with the fuzz targets")]

mod differential;

use std::collections::BTreeMap;

use differential::{compare, frames::frames, rust_h2};
use wireloom_testing::rounds;

#[test]
fn h2_handles_random_frames_the_same() {
    let mut differences: BTreeMap<&str, u32> = BTreeMap::new();
    rounds(8_000, |rng| {
        let len = rng.usize(1..200);
        let bytes = rng.bytes(len);
        if let Some(difference) = compare(rust_h2::Server::new(), &frames(&bytes)) {
            *differences.entry(difference).or_default() += 1;
        }
    });
    println!("{differences:#?}");
}
