//! The memory of subscribed connections.

use super::{Entrant, entrants};
use crate::loopback::cores::Cores;
use crate::loopback::fanout::{Fanout, Load};
use crate::loopback::servers::{self, Running};
use crate::results::{Cost, Entry, Figure, RaceResult, Role, Rounds, Target};
use crate::runner::Runner;
use std::time::Duration;

/// The target, in bytes.
const BYTES_MAX: f64 = 1400.0;

/// The growth of a server process for each connection that has joined a channel and received one message. Each protocol
/// has a new process, because memory that another load left to the allocator would hide the growth.
pub(super) fn run(runner: &mut Runner, cores: &Cores, subscribers: usize) -> Result<(), String> {
    let title = format!("memory, {subscribers} subscribers");
    let first = runner.scale(100, 2);
    let mut entries = Vec::new();
    let protocols_max = servers::fanouts().iter().map(|server| server.protocols.len()).max().unwrap_or(0);
    for index in 0..protocols_max {
        let servers = servers::fanouts().into_iter().filter_map(|server| {
            let protocols = server.protocols.get(index..=index)?;
            Some(server.speaks(protocols))
        });
        let running = servers::start(runner, cores, servers.collect())?;
        for Entrant { name, role, protocol, running } in entrants(&running) {
            let role = if role == Role::Wireloom && index > 0 { Role::Variant } else { role };
            let [first, all] = [first, subscribers].map(|count| Load::of_one_channel(protocol, 128, count));
            entries.extend(growth(runner, &title, running, (name, role), [first, all], subscribers)?);
        }
    }
    for entry in &entries {
        if let (Role::Wireloom | Role::Variant, Some(bytes)) = (entry.role, entry.cost()) {
            let note = format!("{:.0} B; the target is at most {BYTES_MAX} B, so at least 1", bytes.median);
            let title =
                format!("{BYTES_MAX} B in parts of the memory of a subscribed connection: {}", entry.name);
            runner.keep_figure(Figure::new("w7", title, BYTES_MAX / bytes.median, Some(1.0), note));
        }
    }
    runner.keep(RaceResult { cost: Cost::Memory, ..RaceResult::new("w7", title, entries) });
    Ok(())
}

/// The growth of a server process for each channel with a subscriber, of which each connection has as many as the others.
pub(super) fn of_channels(
    runner: &mut Runner,
    cores: &Cores,
    subscribers: usize,
    channels: usize,
) -> Result<(), String> {
    let title = format!("memory, {channels} channels with a subscriber each, over {subscribers} connections");
    let mut entries = Vec::new();
    for server in servers::many_channels() {
        let running = servers::start(runner, cores, vec![server])?;
        for Entrant { name, role, protocol, running } in entrants(&running).into_iter().take(1) {
            let [first, all] = [16, channels].map(|channels| {
                let load = Load::of_one_channel(protocol, 128, subscribers.min(channels));
                Load { channels, members: 1, ..load }
            });
            entries.extend(growth(runner, &title, running, (name, role), [first, all], channels)?);
        }
    }
    let targets = vec![Target::fastest_rival(1.0)];
    runner.keep(RaceResult { cost: Cost::Memory, targets, ..RaceResult::new("w7", title, entries) });
    Ok(())
}

/// The growth of a process for each of the `count` things of the second load, after the first has been there.
fn growth(
    runner: &mut Runner,
    title: &str,
    running: &Running,
    (name, role): (String, Role),
    [first, all]: [Load; 2],
    count: usize,
) -> Result<Option<Entry>, String> {
    runner.show(&format!("{title}: {name}"));
    let open = |load| -> Result<Fanout, String> {
        let mut fanout = Fanout::open(&running.addresses, load)?;
        fanout.run(Duration::ZERO)?;
        Ok(fanout)
    };
    let failed = |error: String| format!("{title}, {name}: {error}");
    drop(open(first).map_err(failed)?);
    let before = running.process.memory();
    let _subscribed = open(all).map_err(failed)?;
    let Some((before, after)) = before.zip(running.process.memory()) else {
        runner.skip(title, "the kernel has no smaps_rollup", "Linux has had it since 4.14");
        return Ok(None);
    };
    let each = after.saturating_sub(before) as f64 / count as f64;
    let runs = vec![Rounds { costs: vec![each], rates: Vec::new() }];
    Ok(Some(Entry { name, role, note: None, allocations: None, runs }))
}
