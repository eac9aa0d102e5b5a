//! Several nodes: messages are published on one node and delivered to the subscribers of all nodes.

use super::entrants;
use super::fanout::race;
use crate::loopback::cores::Cores;
use crate::loopback::fanout::Load;
use crate::loopback::servers;
use crate::results::{Figure, RaceResult, Role};
use crate::runner::Runner;

/// Subscribers are connected to all nodes in turn.
pub(super) fn run(runner: &mut Runner, cores: &Cores, subscribers: usize) -> Result<(), String> {
    let running = servers::start(runner, cores, servers::clusters())?;
    for (burst, sent) in [(1, "one message at a time"), (16, "bursts of 16")] {
        let title = format!("fan-out over several nodes, 128 B to {subscribers} subscribers, {sent}");
        let loads = entrants(&running).into_iter().map(|entrant| {
            let load = Load::of_one_channel(entrant.protocol, 128, subscribers);
            (entrant, Load { burst, ..load })
        });
        let (entries, latencies) = race(runner, &title, loads.collect())?;
        let of = |wanted: Role| {
            let found = entries.iter().zip(&latencies).find(|(entry, _)| entry.role == wanted);
            found.and_then(|(_, latency)| *latency)
        };
        if let (Some(two), Some(one)) = (of(Role::Wireloom), of(Role::Baseline)) {
            let note = format!(
                "median {} µs and {} µs, p99 {} µs and {} µs",
                two.median / 1_000,
                one.median / 1_000,
                two.p99 / 1_000,
                one.p99 / 1_000
            );
            let title = format!("median delivery latency, 2 nodes over NATS ÷ 1 node: {sent}");
            let ratio = two.median as f64 / one.median.max(1) as f64;
            runner.keep_figure(Figure::new("w7", title, ratio, None, note));
        }
        runner.keep(RaceResult::new("w7", title, entries));
    }
    Ok(())
}
