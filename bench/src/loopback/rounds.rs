//! Times processes in interleaved rounds: how much each one did, and its CPU time or the latency of what it did.

use super::process::Process;
use crate::race::turns;
use crate::results::{Entry, Role, Rounds};
use crate::runner::Runner;
use crate::statistics::Summary;
use std::time::Instant;

/// Does one round of work, and returns the number of operations, or the latency of each.
type Work<'a, T> = Box<dyn FnMut() -> Result<T, String> + 'a>;

/// One contestant.
pub(crate) struct Contestant<'a, T = u64> {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) note: Option<&'static str>,
    pub(crate) process: &'a Process,
    /// One round of it.
    pub(crate) work: Work<'a, T>,
}

/// Runs all of them in turns, and compares their CPU time.
///
/// # Errors
/// The contestant that failed.
pub(crate) fn run(
    runner: &Runner,
    title: &str,
    contestants: Vec<Contestant<'_>>,
) -> Result<Vec<Entry>, String> {
    in_turns(runner, title, contestants, |contestant| {
        let (cpu, start) = (contestant.process.cpu_time(), Instant::now());
        let count = (contestant.work)()?;
        let (time, cpu) = (start.elapsed(), contestant.process.cpu_time().saturating_sub(cpu));
        Ok((cpu.as_nanos() as f64 / count as f64, count as f64 / time.as_secs_f64()))
    })
}

/// Runs all of them in turns, and compares the p99 of the latencies that they return, in nanoseconds.
///
/// # Errors
/// The contestant that failed.
pub(crate) fn latencies(
    runner: &Runner,
    title: &str,
    contestants: Vec<Contestant<'_, Vec<u64>>>,
) -> Result<Vec<Entry>, String> {
    let mut medians = vec![Vec::new(); contestants.len()];
    let names: Vec<_> = contestants.iter().map(|contestant| contestant.name.clone()).collect();
    let mut entries = in_turns(runner, title, contestants, |contestant| {
        let start = Instant::now();
        let mut latencies = (contestant.work)()?;
        let rate = latencies.len() as f64 / start.elapsed().as_secs_f64();
        latencies.sort_unstable();
        let at = |part: usize| latencies[latencies.len() * part / 100] as f64;
        if let Some(index) = names.iter().position(|name| *name == contestant.name) {
            medians[index].push(at(50));
        }
        Ok((at(99), rate))
    })?;
    for (entry, medians) in entries.iter_mut().zip(medians) {
        let median = Summary::of(medians).map_or(0.0, |summary| summary.median);
        entry.note = Some(format!("median {:.0} µs", median / 1e3));
    }
    Ok(entries)
}

/// All rounds of all of them. A round returns a cost and a rate.
fn in_turns<'a, T>(
    runner: &Runner,
    title: &str,
    mut contestants: Vec<Contestant<'a, T>>,
    mut one: impl FnMut(&mut Contestant<'a, T>) -> Result<(f64, f64), String>,
) -> Result<Vec<Entry>, String> {
    let rounds = runner.effort.process_rounds;
    let mut measured = vec![Rounds::default(); contestants.len()];
    for round in 0..rounds {
        runner.show(&format!("{title}: round {} of {rounds}", round + 1));
        for at in turns(round, contestants.len()) {
            let contestant = &mut contestants[at];
            let (cost, rate) =
                one(contestant).map_err(|error| format!("{title}, {}: {error}", contestant.name))?;
            measured[at].rates.push(rate);
            measured[at].costs.push(cost);
        }
    }
    let entries = contestants.into_iter().zip(measured).map(|(contestant, rounds)| Entry {
        name: contestant.name,
        role: contestant.role,
        note: contestant.note.map(Into::into),
        allocations: None,
        runs: vec![rounds],
    });
    Ok(entries.collect())
}
