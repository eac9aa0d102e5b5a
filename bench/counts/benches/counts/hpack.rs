//! HPACK: the field lists of 64 requests and 64 responses of one connection.

use crate::capped;
use gungraun::{library_benchmark, library_benchmark_group};
use std::hint::black_box;
use wireloom_http2::field::{Field, FieldLimits, FieldList};
use wireloom_http2::hpack::{Decoder, Encoder};

type Fields = Vec<(&'static str, String)>;

/// Requests of a browser: most fields repeat, paths change.
fn requests() -> Vec<Fields> {
    let mut rng = fastrand::Rng::with_seed(3);
    let mut request = |at: usize| -> Fields {
        vec![
            (":method", "GET".into()),
            (":scheme", "https".into()),
            (":authority", "www.example.com".into()),
            (":path", format!("/assets/panel-{at:03}.js?v={:08x}", rng.u32(..))),
            ("user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0".into()),
            ("accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8".into()),
            ("accept-language", "en-GB,en;q=0.7,de;q=0.3".into()),
            ("accept-encoding", "gzip, deflate, br, zstd".into()),
            ("referer", "https://www.example.com/dashboard".into()),
            ("cookie", "session=6f1e2d3c4b5a69788796a5b4c3d2e1f0".into()),
        ]
    };
    (0..64).map(&mut request).collect()
}

/// Responses of one site: a few values differ each time.
fn responses() -> Vec<Fields> {
    let mut rng = fastrand::Rng::with_seed(4);
    let mut response = |_| -> Fields {
        vec![
            (":status", ["200", "304", "404"][rng.usize(..3)].into()),
            ("date", "Fri, 20 Nov 2026 21:00:00 GMT".into()),
            ("content-type", ["text/html", "text/css", "image/png"][rng.usize(..3)].into()),
            ("content-length", rng.u32(..100_000).to_string()),
            ("etag", format!("\"{:x}\"", rng.u64(..))),
            ("cache-control", "public, max-age=31536000, immutable".into()),
            ("x-request-id", format!("{:016x}", rng.u64(..))),
        ]
    };
    (0..64).map(&mut response).collect()
}

fn encode_list(encoder: &mut Encoder, fields: &Fields, out: &mut Vec<u8>) {
    encoder.encode(fields.iter().map(|(name, value)| Field::new(name.as_bytes(), value.as_bytes())), out);
}

fn encoder(lists: Vec<Fields>) -> (Encoder, Vec<Fields>, Vec<u8>) {
    capped(|| (Encoder::new(), lists, Vec::with_capacity(4096)))
}

#[library_benchmark]
#[bench::requests(encoder(requests()))]
#[bench::responses(encoder(responses()))]
fn encode(
    (mut encoder, lists, mut block): (Encoder, Vec<Fields>, Vec<u8>),
) -> (Encoder, Vec<Fields>, Vec<u8>) {
    for list in &lists {
        block.clear();
        encode_list(&mut encoder, list, &mut block);
        black_box(&block);
    }
    (encoder, lists, block)
}

fn decoder(lists: Vec<Fields>) -> (Decoder, FieldList, Vec<Vec<u8>>) {
    capped(|| {
        let mut encoder = Encoder::new();
        let block = |fields: &Fields| {
            let mut block = Vec::new();
            encode_list(&mut encoder, fields, &mut block);
            block
        };
        (Decoder::new(4096), FieldList::new(), lists.iter().map(block).collect())
    })
}

#[library_benchmark]
#[bench::requests(decoder(requests()))]
#[bench::responses(decoder(responses()))]
fn decode(
    (mut decoder, mut list, blocks): (Decoder, FieldList, Vec<Vec<u8>>),
) -> (Decoder, FieldList, Vec<Vec<u8>>) {
    for block in &blocks {
        decoder.decode(block, &FieldLimits::default(), &mut list).expect("a valid block");
        black_box(list.iter().count());
    }
    (decoder, list, blocks)
}

library_benchmark_group!(name = hpack_group, benchmarks = [encode, decode]);
