//! The comparisons of the targets `h2_nghttp2` and `hpack_nghttp2`, from seeds.

use wireloom_fuzz::differential::compare_random;
use wireloom_fuzz::differential::frames::{client_frames, server_frames};
use wireloom_fuzz::nghttp2;
use wireloom_testing::rounds;

const ROUNDS: u64 = 20_000;

#[test]
fn the_server_of_nghttp2_handles_random_frames_the_same() {
    compare_random(ROUNDS, nghttp2::Server::new, client_frames);
}

#[test]
fn the_client_of_nghttp2_handles_random_frames_the_same() {
    compare_random(ROUNDS, nghttp2::Client::new, server_frames);
}

/// Blocks of representations that are mostly valid: literals, indexes, table sizes, Huffman strings.
fn block(rng: &mut wireloom_testing::Rng) -> Vec<u8> {
    let mut block = Vec::new();
    for _ in 0..rng.usize(0..12) {
        match rng.u8(0..8) {
            0 => block.push(0x80 | rng.u8(1..62)),
            1 => block.push(0x80 | rng.u8(..)),
            2 => block.extend([0x20 | rng.u8(0..30)]),
            3 => block.extend([0x3f, rng.u8(..), rng.u8(0..32)]),
            4 => {
                let len = rng.usize(0..8);
                block.extend([0x40 | rng.u8(1..62), 0x80 | len as u8]);
                block.extend(rng.bytes(len));
            }
            5 => {
                let len = rng.usize(0..4);
                block.extend(rng.bytes(len));
            }
            _ => {
                let (name, value) = (rng.usize(1..6), rng.usize(0..100));
                block.extend([*rng.pick(&[0, 0x10, 0x40]), name as u8]);
                block.extend((0..name).map(|_| rng.u8(b'a'..=b'z')));
                block.push(value as u8);
                block.extend((0..value).map(|_| rng.u8(b' '..=b'~')));
            }
        }
    }
    block
}

#[test]
fn nghttp2_decodes_random_blocks_the_same() {
    rounds(ROUNDS, |rng| {
        let blocks: Vec<_> = (0..rng.usize(1..6))
            .map(|_| ((rng.u8(0..4) == 0).then(|| rng.u16(0..9_000)), block(rng)))
            .collect();
        wireloom_fuzz::hpack::compare_blocks(blocks.iter().map(|(size, block)| (*size, &block[..])));
    });
}
