//! W1: decode small frames, back to back; and one of 70 kB.

use super::lanes;
use crate::bench::Bench;
use crate::contestant::Copying;
use crate::corpus::{Content, Corpus, End};
use crate::measure::{Kind, Lane, Race};
use crate::wireloom::SMALL;

/// Text messages of 13 B, 200 B and 70 kB, handed out validated.
pub(crate) fn run(bench: &mut Bench) -> Result<(), String> {
    // About 256 KiB of frames, so that they stay in the second level of cache, as what the kernel has just received does.
    let (small, medium, large) = (bench.scale(14_000, 200), bench.scale(1_250, 20), bench.scale(4, 2));
    bench.race(race("13 B", 13, small, End::Server, Some(0.22)))?;
    bench.race(race("200 B", 200, medium, End::Server, Some(0.35)))?;
    bench.race(race("70 kB", 70_000, large, End::Server, Some(0.85)))?;
    bench.race(race("13 B", 13, small, End::Client, None))?;
    bench.race(race("200 B", 200, medium, End::Client, None))
}

fn race(size: &str, len: usize, count: usize, end: End, bar: Option<f64>) -> Race {
    let corpus = Corpus::new(Content::Ascii, len, count, end);
    let masked = if end == End::Server { "masked" } else { "unmasked" };
    let mut lanes = lanes::readers::<SMALL>(&corpus, end);
    lanes.push(Lane::new("the copy alone", Kind::Floor, Copying::new(&corpus)));
    Race { workload: "w1", title: format!("read {masked} text, {size}"), bar, messages: count, lanes }
}
