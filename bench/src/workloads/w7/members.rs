//! Many clients at once: they join a channel, and they return to it after a loss.

use super::{Entrant, entrants};
use crate::loopback::cores::Cores;
use crate::loopback::members::Members;
use crate::loopback::servers;
use crate::results::{Entry, Figure, RaceResult, Role, Rounds, Target};
use crate::runner::Runner;
use std::time::Duration;

/// Publications that each client misses.
const MISSED: usize = 20;
/// Members that must be able to join within a second.
const JOINS_PER_S: f64 = 1_000.0;

/// Members joining one channel, listed there where the server lists them.
pub(super) fn joining(runner: &mut Runner, cores: &Cores, count: usize) -> Result<(), String> {
    let running = servers::start(runner, cores, servers::channels())?;
    let title = format!("{count} members joining one channel");
    let mut entries = Vec::new();
    for entrant in entrants(&running) {
        let entry = measure(runner, &title, &entrant, count, || {
            let mut members = Members::new(entrant.running.address, entrant.protocol, "listed:w7")?;
            let time = members.join(count);
            members.disconnect();
            time
        });
        entries.push(entry?);
    }
    if let Some(rate) = entries.iter().find(|entry| entry.role == Role::Wireloom).and_then(Entry::rate) {
        let note = format!("{:.0} members a second", rate.median);
        let title = "members joining a second, in parts of 10,000 in 10 s";
        runner.keep_figure(Figure::new("w7", title, rate.median / JOINS_PER_S, Some(1.0), note));
    }
    let targets = vec![Target::fastest_rival(1.0)];
    runner.keep(RaceResult { targets, ..RaceResult::new("w7", title, entries) });
    Ok(())
}

/// All clients lose their connection, miss publications and return at once, until all have what they missed.
pub(super) fn recovery(runner: &mut Runner, cores: &Cores, count: usize) -> Result<(), String> {
    let running = servers::start(runner, cores, servers::recovering())?;
    let title = format!("recovery storm, {count} clients that missed {MISSED} messages each");
    let mut entries = Vec::new();
    for entrant in entrants(&running) {
        let failed = |error: String| format!("{title}, {}: {error}", entrant.name);
        let mut members =
            Members::new(entrant.running.address, entrant.protocol, "kept:w7").map_err(failed)?;
        members.join(count).map_err(failed)?;
        // A channel has a position only after its first publication.
        members.publish(1).map_err(failed)?;
        let (mut rounds, mut longest) = (Rounds::default(), Duration::ZERO);
        for round in 0..runner.effort.process_rounds.min(3) {
            runner.show(&format!("{title}: {}, round {}", entrant.name, round + 1));
            let positions = members.disconnect();
            // Gives the server time to notice the ends of the connections.
            std::thread::sleep(Duration::from_millis(500));
            members.publish(MISSED).map_err(failed)?;
            let cpu = entrant.running.process.cpu_time();
            let time = members.recover(positions, MISSED).map_err(failed)?;
            let cpu = entrant.running.process.cpu_time().saturating_sub(cpu);
            rounds.costs.push(cpu.as_nanos() as f64 / count as f64);
            rounds.rates.push(count as f64 / time.as_secs_f64());
            longest = longest.max(time);
        }
        let note = Some(format!("all had recovered after at most {:.2} s", longest.as_secs_f64()));
        let (name, role) = (entrant.name.clone(), entrant.role);
        entries.push(Entry { name, role, note, allocations: None, runs: vec![rounds] });
    }
    let targets = vec![Target::fastest_rival(1.0)];
    runner.keep(RaceResult { targets, ..RaceResult::new("w7", title, entries) });
    Ok(())
}

/// The rounds of one entrant, each of which takes `count` clients through something and returns the time.
fn measure(
    runner: &Runner,
    title: &str,
    entrant: &Entrant<'_>,
    count: usize,
    mut work: impl FnMut() -> Result<Duration, String>,
) -> Result<Entry, String> {
    let mut rounds = Rounds::default();
    for round in 0..runner.effort.process_rounds.min(3) {
        runner.show(&format!("{title}: {}, round {}", entrant.name, round + 1));
        let cpu = entrant.running.process.cpu_time();
        let time = work().map_err(|error| format!("{title}, {}: {error}", entrant.name))?;
        let cpu = entrant.running.process.cpu_time().saturating_sub(cpu);
        rounds.costs.push(cpu.as_nanos() as f64 / count as f64);
        rounds.rates.push(count as f64 / time.as_secs_f64());
        // Gives the server time to end the connections of this round before the next.
        std::thread::sleep(Duration::from_millis(500));
    }
    let (name, role) = (entrant.name.clone(), entrant.role);
    Ok(Entry { name, role, note: None, allocations: None, runs: vec![rounds] })
}
