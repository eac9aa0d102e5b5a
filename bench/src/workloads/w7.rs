//! W7: fan-out over loopback. One connection publishes, every one receives.

use crate::loopback::cores::Cores;
use crate::loopback::fanout::{Fanout, Load};
use crate::loopback::process::files_max;
use crate::loopback::rounds::{self, Contestant};
use crate::loopback::servers::{self, Running};
use crate::results::{Cost, Entry, Figure, RaceResult, Role, Rounds, Target};
use crate::runner::Runner;
use std::time::Duration;

/// All races.
pub(crate) fn run(runner: &mut Runner) -> Result<(), String> {
    let cores = Cores::take();
    let most = files_max().saturating_sub(100).max(1);
    let subscribers = runner.scale(1_000, 4).min(most);
    let running = servers::start(runner, &cores, servers::fanouts())?;
    for (payload_len, title) in [(128, "128 B"), (4 << 10, "4 KiB")] {
        for (burst, sent) in [(1, "one message at a time"), (16, "bursts of 16")] {
            let title = format!("fan-out, {title} to {subscribers} subscribers, {sent}");
            race(runner, &running, title, Load { payload_len, subscribers, burst })?;
        }
    }
    drop(running);
    memory(runner, &cores, subscribers)
}

fn race(runner: &mut Runner, running: &[Running], title: String, load: Load) -> Result<(), String> {
    let time = if runner.smoke { Duration::ZERO } else { runner.effort.process_round_time };
    let mut fanouts = Vec::with_capacity(running.len());
    for Running { server, address, .. } in running {
        let failed = |error: String| format!("{title}, {}: {error}", server.name);
        runner.show(&format!("{title}: checking {}", server.name));
        let mut fanout = Fanout::open(*address, load).map_err(failed)?;
        fanout.run(Duration::ZERO).map_err(failed)?;
        fanout.take_p99();
        fanouts.push(fanout);
    }
    let contestants =
        running.iter().zip(&mut fanouts).map(|(Running { server, process, .. }, fanout)| Contestant {
            name: server.name.clone(),
            role: server.role,
            note: None,
            process,
            work: Box::new(move || fanout.run(time)),
        });
    let mut entries = rounds::run(runner, &title, contestants.collect())?;
    for (entry, fanout) in entries.iter_mut().zip(&mut fanouts) {
        entry.note = fanout.take_p99().map(|p99| format!("p99 of the delivery latency: {} µs", p99 / 1_000));
    }
    let targets = vec![Target::fastest_rival(1.0 / 1.2)];
    runner.keep(RaceResult { targets, ..RaceResult::new("w7", title, entries) });
    Ok(())
}

/// The growth of a process with each connection that has joined the room and received one message.
fn memory(runner: &mut Runner, cores: &Cores, subscribers: usize) -> Result<(), String> {
    let title = format!("memory, {subscribers} subscribers");
    let first = runner.scale(100, 2);
    let mut entries = Vec::new();
    for Running { server, process, address } in servers::start(runner, cores, servers::fanouts())? {
        let failed = |error: String| format!("{title}, {}: {error}", server.name);
        runner.show(&format!("{title}: {}", server.name));
        let open = |subscribers| -> Result<Fanout, String> {
            let mut fanout = Fanout::open(address, Load { payload_len: 128, subscribers, burst: 1 })?;
            fanout.run(Duration::ZERO)?;
            Ok(fanout)
        };
        drop(open(first).map_err(failed)?);
        let before = process.memory();
        let _subscribed = open(subscribers).map_err(failed)?;
        let Some((before, after)) = before.zip(process.memory()) else {
            runner.skip(&title, "the kernel has no smaps_rollup", "Linux has had it since 4.14");
            return Ok(());
        };
        let each = after.saturating_sub(before) as f64 / subscribers as f64;
        let runs = vec![Rounds { costs: vec![each], rates: Vec::new() }];
        entries.push(Entry { name: server.name, role: server.role, note: None, allocations: None, runs });
    }
    let bytes = entries.iter().find(|entry| entry.role == Role::Wireloom).and_then(Entry::cost);
    if let Some(bytes) = bytes {
        let note = "the target is at most 3072 B, so at least 1".into();
        let title = "3072 B in parts of the memory of a subscribed connection";
        runner.keep_figure(Figure::new("w7", title, 3072.0 / bytes.median, Some(1.0), note));
    }
    runner.keep(RaceResult { cost: Cost::Memory, ..RaceResult::new("w7", title, entries) });
    Ok(())
}
