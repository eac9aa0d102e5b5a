//! W2: read masked binary frames of 1 KiB, 64 KiB and 1 MiB, and write them of 1 KiB and 1 MiB.

use super::contestants;
use crate::baseline::{Copying, CopyingOut};
use crate::corpus::{Content, Corpus, End};
use crate::race::{Contestant, Race};
use crate::results::{Role, Target};
use crate::runner::Runner;
use crate::wireloom::{SHARED, SMALL};

/// Reads as a server, writes as a client.
pub(crate) fn run(runner: &mut Runner) -> Result<(), String> {
    let small = (1 << 10, runner.scale(256, 8));
    let large = (runner.scale(1 << 20, 1 << 17), 2);
    runner.race(read::<SMALL>("1 KiB", small, 0.5))?;
    runner.race(read::<SHARED>("64 KiB", (64 << 10, runner.scale(8, 2)), 0.95))?;
    runner.race(read::<SHARED>("1 MiB", large, 0.95))?;
    let targets = vec![Target::fastest_rival(0.7), Target::fastest_stream(0.9)];
    runner.race(write("1 KiB", (small.0, runner.scale(64, 8)), targets))?;
    runner.race(write("1 MiB", (large.0, 1), vec![Target::fastest_rival(1.0)]))
}

fn read<const BUFFER_LEN: usize>(size: &str, (len, count): (usize, usize), most: f64) -> Race {
    let corpus = Corpus::new(Content::Binary, len, count, End::Server);
    let mut contestants = contestants::borrowing_readers::<BUFFER_LEN>(&corpus, End::Server);
    contestants.push(Contestant::new("the copy alone", Role::Baseline, Copying::new(&corpus)));
    let unmasking = Copying::unmasking(&corpus);
    contestants.push(Contestant::new("the copy, unmasked in place", Role::Baseline, unmasking));
    let title = format!("read masked binary, {size}");
    Race { workload: "w2", title, targets: vec![Target::fastest_rival(most)], messages: count, contestants }
}

fn write(size: &str, (len, count): (usize, usize), targets: Vec<Target>) -> Race {
    let corpus = Corpus::new(Content::Binary, len, count, End::Server);
    let mut contestants = contestants::writers(&corpus, End::Client);
    let copying = CopyingOut::new(corpus.messages.iter().map(|message| [&**message]));
    contestants.push(Contestant::new("the copy alone", Role::Baseline, copying));
    let title = format!("write masked binary, {size}");
    Race { workload: "w2", title, targets, messages: count, contestants }
}
