//! The memory of subscribed connections.

use super::{Entrant, entrants};
use crate::loopback::cores::Cores;
use crate::loopback::fanout::{Fanout, Load};
use crate::loopback::servers;
use crate::results::{Cost, Entry, Figure, RaceResult, Role, Rounds};
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
            let failed = |error: String| format!("{title}, {name}: {error}");
            runner.show(&format!("{title}: {name}"));
            let open = |subscribers| -> Result<Fanout, String> {
                let load = Load::of_one_channel(protocol, 128, subscribers);
                let mut fanout = Fanout::open(&running.addresses, load)?;
                fanout.run(Duration::ZERO)?;
                Ok(fanout)
            };
            drop(open(first).map_err(failed)?);
            let before = running.process.memory();
            let _subscribed = open(subscribers).map_err(failed)?;
            let Some((before, after)) = before.zip(running.process.memory()) else {
                runner.skip(&title, "the kernel has no smaps_rollup", "Linux has had it since 4.14");
                return Ok(());
            };
            let each = after.saturating_sub(before) as f64 / subscribers as f64;
            let runs = vec![Rounds { costs: vec![each], rates: Vec::new() }];
            let role = if role == Role::Wireloom && index > 0 { Role::Variant } else { role };
            entries.push(Entry { name, role, note: None, allocations: None, runs });
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
