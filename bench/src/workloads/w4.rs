//! W4: receive one masked text message of 16 MiB in reads of 64 KiB, validated; assembled, and in borrowed chunks.

use super::contestants;
use crate::bandwidth::{self, Aligned};
use crate::baseline::Copying;
use crate::corpus::{Content, Corpus, End};
use crate::race::{Contestant, Race};
use crate::results::{Figure, Role, Target};
use crate::runner::Runner;
use crate::wireloom::LARGE;
use std::hint::black_box;
use wireloom_ws::mask::{self, MaskKey};
use wireloom_ws::utf8;

/// All races, and the fraction of the machine's read bandwidth that the fused pass (unmask and validate) reaches.
pub(crate) fn run(runner: &mut Runner) -> Result<(), String> {
    let len = runner.scale(16 << 20, 1 << 18);
    for (content, name, assembled, chunked) in
        [(Content::Ascii, "ASCII", 1.0, 0.6), (Content::MultiByte, "multi-byte", 0.9, 0.7)]
    {
        let corpus = Corpus::new(content, len, 1, End::Server);
        let contestants = contestants::borrowing_readers::<LARGE>(&corpus, End::Server);
        runner.race(race(name, "", &corpus, assembled, contestants))?;
        let contestants = contestants::chunking_readers(&corpus, End::Server);
        runner.race(race(name, ", in chunks, rivals assembled", &corpus, chunked, contestants))?;
    }
    let sizes = [("64 KiB", 64 << 10), ("1 MiB", 1 << 20), ("16 MiB", 16 << 20)];
    for (size, len) in &sizes[..runner.scale(sizes.len(), 1)] {
        let figure = fraction(runner, size, *len)?;
        runner.keep_figure(figure);
    }
    Ok(())
}

fn race(name: &str, how: &str, corpus: &Corpus, most: f64, mut contestants: Vec<Contestant>) -> Race {
    contestants.push(Contestant::new("the copy alone", Role::Baseline, Copying::new(corpus)));
    let title = format!("read one masked {name} text, 16 MiB{how}");
    Race { workload: "w4", title, targets: vec![Target::fastest_rival(most)], messages: 1, contestants }
}

/// The speed of the fused pass over ASCII in place, divided by that of the fastest read of the same bytes.
fn fraction(runner: &Runner, size: &str, len: usize) -> Result<Figure, String> {
    // This key maps ASCII to ASCII, so that the pass can be repeated in place.
    let key = MaskKey::new([0x01, 0x00, 0x13, 0x0A]);
    let mut text = Aligned::new(len);
    text.as_mut_slice().fill(b'x');
    let mut other = Aligned::new(len);
    other.as_mut_slice().fill(b'x');
    let mut masked = Aligned::new(len);
    let mut valid = true;
    let [read, fused, masking] = runner.alternate([
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
    let note = format!(
        "{:.1} of {:.1} GB/s; unmasking in place without validation: {:.1}",
        rate(fused),
        rate(read),
        rate(masking)
    );
    let title = format!("fused pass over ASCII, {size}, in parts of the read bandwidth");
    Ok(Figure::new("w4", title, rate(fused) / rate(read), None, note))
}
