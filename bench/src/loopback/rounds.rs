//! Times processes in interleaved rounds: how much each one did, and its CPU time.

use super::process::Process;
use crate::race::turns;
use crate::results::{Entry, Role, Rounds};
use crate::runner::Runner;
use std::time::Instant;

/// Does one round of work, and returns the number of operations.
type Work<'a> = Box<dyn FnMut() -> Result<u64, String> + 'a>;

/// One contestant.
pub(crate) struct Contestant<'a> {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) note: Option<&'static str>,
    pub(crate) process: &'a Process,
    /// One round of it.
    pub(crate) work: Work<'a>,
}

/// Runs all of them in turns.
///
/// # Errors
/// The contestant that failed.
pub(crate) fn run(
    runner: &Runner,
    title: &str,
    mut contestants: Vec<Contestant<'_>>,
) -> Result<Vec<Entry>, String> {
    let rounds = runner.effort.process_rounds;
    let mut measured = vec![Rounds::default(); contestants.len()];
    for round in 0..rounds {
        runner.show(&format!("{title}: round {} of {rounds}", round + 1));
        for at in turns(round, contestants.len()) {
            let contestant = &mut contestants[at];
            let (cpu, start) = (contestant.process.cpu_time(), Instant::now());
            let count =
                (contestant.work)().map_err(|error| format!("{title}, {}: {error}", contestant.name))?;
            let (time, cpu) = (start.elapsed(), contestant.process.cpu_time().saturating_sub(cpu));
            measured[at].rates.push(count as f64 / time.as_secs_f64());
            measured[at].costs.push(cpu.as_nanos() as f64 / count as f64);
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
