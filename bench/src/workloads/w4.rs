//! W4: receive one masked text message of 16 MiB in reads of 64 KiB, validated; assembled, and lent in pieces.

use super::lanes;
use crate::bandwidth::{self, Aligned};
use crate::bench::{Bench, Figure};
use crate::contestant::Copying;
use crate::corpus::{Content, Corpus, End};
use crate::measure::{Kind, Lane, Race};
use crate::wireloom::LARGE;
use std::hint::black_box;
use wireloom_ws::mask::{self, MaskKey};
use wireloom_ws::utf8;

/// The message, and how much of the machine's read bandwidth the fused pass over it reaches.
pub(crate) fn run(bench: &mut Bench) -> Result<(), String> {
    let len = bench.scale(16 << 20, 1 << 18);
    for (content, name, assembled, lent) in
        [(Content::Ascii, "ASCII", 1.0, 0.6), (Content::MultiByte, "multi-byte", 0.9, 0.7)]
    {
        let corpus = Corpus::new(content, len, 1, End::Server);
        let lanes = lanes::readers::<LARGE>(&corpus, End::Server);
        bench.race(race(name, "assembled", &corpus, assembled, lanes))?;
        let lanes = lanes::lending_readers(&corpus, End::Server);
        bench.race(race(name, "lent in pieces, rivals assembled", &corpus, lent, lanes))?;
    }
    let sizes = [("64 KiB", 64 << 10), ("1 MiB", 1 << 20), ("16 MiB", 16 << 20)];
    for (size, len) in &sizes[..bench.scale(sizes.len(), 1)] {
        let figure = fraction(bench, size, *len)?;
        bench.figures.push(figure);
    }
    Ok(())
}

fn race(name: &str, how: &str, corpus: &Corpus, bar: f64, mut lanes: Vec<Lane>) -> Race {
    lanes.push(Lane::new("the copy alone", Kind::Floor, Copying::new(corpus)));
    let title = format!("read one masked {name} text, 16 MiB, {how}");
    Race { workload: "w4", title, bar: Some(bar), messages: 1, lanes }
}

/// The fused pass in place over ASCII, against the fastest read of the same bytes.
fn fraction(bench: &Bench, size: &str, len: usize) -> Result<Figure, String> {
    // With this key ASCII stays ASCII, masked or not, so that the pass can be repeated in place.
    let key = MaskKey::new([0x01, 0x00, 0x13, 0x0A]);
    let mut text = Aligned::new(len);
    text.as_mut_slice().fill(b'x');
    let mut other = Aligned::new(len);
    other.as_mut_slice().fill(b'x');
    let mut masked = Aligned::new(len);
    let mut valid = true;
    let [read, fused, masking] = bench.turns([
        &mut || {
            black_box(bandwidth::read(black_box(other.as_mut_slice())));
        },
        &mut || valid &= utf8::unmask_validate(black_box(text.as_mut_slice()), key).is_ok(),
        &mut || {
            mask::apply(black_box(masked.as_mut_slice()), key);
        },
    ]);
    if !valid {
        return Err("the fused pass refuses ASCII".into());
    }
    let rate = |time: std::time::Duration| len as f64 / time.as_nanos().max(1) as f64;
    Ok(Figure {
        workload: "w4",
        title: format!("fused pass over ASCII, {size}, in parts of the read bandwidth"),
        value: rate(fused) / rate(read),
        bar: Some(if std::arch::is_x86_feature_detected!("avx512bw") { 0.85 } else { 0.65 }),
        note: format!(
            "{:.1} of {:.1} GB/s; unmasking in place without validation: {:.1}",
            rate(fused),
            rate(read),
            rate(masking)
        ),
    })
}
