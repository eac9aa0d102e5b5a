//! W2: read and write masked binary frames of 1 KiB and 1 MiB.

use super::lanes;
use crate::bench::Bench;
use crate::contestant::Copying;
use crate::corpus::{Content, Corpus, End};
use crate::measure::{Kind, Lane, Race};
use crate::wireloom::SMALL;

/// Reads as a server, writes as a client.
pub(crate) fn run(bench: &mut Bench) -> Result<(), String> {
    let small = (1 << 10, bench.scale(256, 8));
    let large = (bench.scale(1 << 20, 1 << 17), 2);
    bench.race(read("1 KiB", small, 0.5))?;
    bench.race(read("1 MiB", large, 0.95))?;
    bench.race(write("1 KiB", (small.0, bench.scale(64, 8)), 0.7))?;
    bench.race(write("1 MiB", (large.0, 1), 1.0))
}

fn read(size: &str, (len, count): (usize, usize), bar: f64) -> Race {
    let corpus = Corpus::new(Content::Binary, len, count, End::Server);
    let mut lanes = lanes::readers::<SMALL>(&corpus, End::Server);
    lanes.push(Lane::new("the copy alone", Kind::Floor, Copying::new(&corpus)));
    let title = format!("read masked binary, {size}");
    Race { workload: "w2", title, bar: Some(bar), messages: count, lanes }
}

fn write(size: &str, (len, count): (usize, usize), bar: f64) -> Race {
    let corpus = Corpus::new(Content::Binary, len, count, End::Server);
    let lanes = lanes::writers(&corpus, End::Client);
    let title = format!("write masked binary, {size}");
    Race { workload: "w2", title, bar: Some(bar), messages: count, lanes }
}
