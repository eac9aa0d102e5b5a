//! W1: decode small frames, back to back; and one of 70 kB. In memory.

use super::contestants;
use crate::baseline::Copying;
use crate::corpus::{Content, Corpus, End};
use crate::race::{Contestant, Race};
use crate::results::{Role, Target};
use crate::runner::Runner;
use crate::wireloom::{SHARED, SMALL};

/// Text messages of 13 B, 200 B and 70 kB, validated: first borrowed, then owned by the application.
pub(crate) fn run(runner: &mut Runner) -> Result<(), String> {
    // About 256 KiB of frames, so that they stay in the L2 cache, like bytes that the kernel has just received.
    let (small, medium, large) = (runner.scale(14_000, 200), runner.scale(1_250, 20), runner.scale(4, 2));
    let sizes = [
        ("13 B", 13, small, 0.22, 0.5),
        ("200 B", 200, medium, 0.35, 0.5),
        ("70 kB", 70_000, large, 0.85, 1.0),
    ];
    for (size, len, count, borrowed, kept) in sizes {
        let targets = vec![Target::fastest_rival(borrowed)];
        // A message of 70 kB does not fit into the small buffer.
        let borrowing = if len < SMALL { borrowing::<SMALL> } else { borrowing::<SHARED> };
        runner.race(borrowing(size, len, count, End::Server, targets))?;
        runner.race(keeping(size, len, count, kept))?;
    }
    runner.race(borrowing::<SMALL>("13 B", 13, small, End::Client, Vec::new()))?;
    runner.race(borrowing::<SMALL>("200 B", 200, medium, End::Client, Vec::new()))
}

fn borrowing<const BUFFER_LEN: usize>(
    size: &str,
    len: usize,
    count: usize,
    end: End,
    targets: Vec<Target>,
) -> Race {
    let corpus = Corpus::new(Content::Ascii, len, count, end);
    let masked = if end == End::Server { "masked" } else { "unmasked" };
    let mut contestants = contestants::borrowing_readers::<BUFFER_LEN>(&corpus, end);
    contestants.push(contestants::decoder::<SMALL>(&corpus, end));
    contestants.push(Contestant::new("the copy alone", Role::Baseline, Copying::new(&corpus)));
    let title = format!("read {masked} text, {size}");
    Race { workload: "w1", title, targets, messages: count, contestants }
}

fn keeping(size: &str, len: usize, count: usize, most: f64) -> Race {
    let corpus = Corpus::new(Content::Ascii, len, count, End::Server);
    let contestants = contestants::keeping_readers::<SMALL>(&corpus, End::Server);
    let title = format!("read masked text, {size}, kept");
    Race { workload: "w1", title, targets: vec![Target::fastest_rival(most)], messages: count, contestants }
}
