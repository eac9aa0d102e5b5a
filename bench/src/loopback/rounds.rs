//! Times processes against one another in interleaved rounds: how much each did, and what that cost it.

use super::process::{CpuTime, Process};
use crate::bench::Bench;
use crate::heat::{Class, Score, Spread};
use std::time::Instant;

/// Does something, and returns how often.
type Work<'a> = Box<dyn FnMut() -> Result<u64, String> + 'a>;

/// One contestant.
pub(crate) struct Entry<'a> {
    pub(crate) name: String,
    pub(crate) class: Class,
    pub(crate) process: &'a Process,
    /// One round of it.
    pub(crate) work: Work<'a>,
}

/// Runs all of them in turns: [`RATE`](crate::heat::RATE), [`CPU`](crate::heat::CPU) and [`USER`](crate::heat::USER) of each.
///
/// # Errors
/// The contestant that failed.
pub(crate) fn run(bench: &Bench, title: &str, mut entries: Vec<Entry<'_>>) -> Result<Vec<Score>, String> {
    let rounds = bench.effort.turns;
    let mut rates = vec![Vec::with_capacity(rounds); entries.len()];
    let mut costs = rates.clone();
    let mut sums = vec![(CpuTime::default(), 0); entries.len()];
    for round in 0..rounds {
        bench.say(&format!("{title}: round {} of {rounds}", round + 1));
        for turn in 0..entries.len() {
            // Every other round runs backwards, so that nobody always follows the same neighbour.
            let step = if round % 2 == 0 { turn } else { entries.len() - 1 - turn };
            let at = (step + round / 2) % entries.len();
            let entry = &mut entries[at];
            let (cpu, start) = (entry.process.cpu_time(), Instant::now());
            let count = (entry.work)().map_err(|error| format!("{title}, {}: {error}", entry.name))?;
            let (time, cpu) = (start.elapsed(), entry.process.cpu_time() - cpu);
            rates[at].push(count as f64 / time.as_secs_f64());
            costs[at].push(cpu.total.as_nanos() as f64 / count as f64);
            sums[at].0.user += cpu.user;
            sums[at].1 += count;
        }
    }
    let scores = entries.into_iter().zip(rates).zip(costs).zip(sums).map(|(((entry, rates), costs), sum)| {
        // Its steps are coarse: the sum of the rounds says more than each of them.
        let user = Spread::once(sum.0.user.as_nanos() as f64 / sum.1 as f64);
        Score {
            name: entry.name,
            class: entry.class,
            values: vec![Spread::of(rates), Spread::of(costs), user],
        }
    });
    Ok(scores.collect())
}
