//! The latency of messages that are sent at a rate, whether or not earlier ones were answered, at shares of what a closed loop reaches.

use crate::loopback::echo::{Echo, Until};
use crate::loopback::fanout::Fanout;
use crate::loopback::process::Process;
use crate::loopback::rounds::{self, Contestant};
use crate::results::{Cost, RaceResult, Role, Target};
use crate::runner::Runner;
use std::time::Duration;

/// Shares of the saturation.
const SHARES: [(f64, &str); 2] = [(0.5, "50 %"), (0.9, "90 %")];

/// Clients of one server.
pub(super) trait Clients {
    /// Sends the next message as soon as the last one is answered; returns the number of answers or deliveries.
    fn closed(&mut self, time: Duration) -> Result<u64, String>;
    /// Sends `count` messages, one each `interval`; returns the latencies of the answers or deliveries.
    fn open(&mut self, count: usize, interval: Duration) -> Result<Vec<u64>, String>;
}

impl Clients for Echo {
    fn closed(&mut self, time: Duration) -> Result<u64, String> {
        self.run(Until::Time(time), false)
    }

    fn open(&mut self, count: usize, interval: Duration) -> Result<Vec<u64>, String> {
        self.pace(count, interval)
    }
}

impl Clients for Fanout {
    fn closed(&mut self, time: Duration) -> Result<u64, String> {
        self.run(time)
    }

    fn open(&mut self, count: usize, interval: Duration) -> Result<Vec<u64>, String> {
        self.pace(count, interval)
    }
}

/// A contestant.
pub(super) struct Paced<'a, C> {
    pub(super) name: String,
    pub(super) role: Role,
    pub(super) process: &'a Process,
    pub(super) clients: C,
}

/// A race for each share. A message has `deliveries`. Each contestant runs at a share of Wireloom's saturation, or of its own where that
/// is lower: none is asked for more than Wireloom.
///
/// # Errors
/// The contestant that failed.
pub(super) fn race<C: Clients>(
    runner: &mut Runner,
    workload: &str,
    title: &str,
    deliveries: usize,
    mut paced: Vec<Paced<'_, C>>,
) -> Result<(), String> {
    let time = if runner.smoke { Duration::ZERO } else { runner.effort.process_round_time };
    let closed = paced.iter_mut().map(|Paced { name, role, process, clients }| Contestant {
        name: name.clone(),
        role: *role,
        note: None,
        process,
        work: Box::new(move || clients.closed(time)),
    });
    let saturated = rounds::run(runner, &format!("{title}, closed loop"), closed.collect())?;
    let rate = |of: usize| saturated[of].rate().map_or(1.0, |rate| rate.median);
    let ours = saturated.iter().position(|entry| entry.role == Role::Wireloom);
    for (share, percent) in SHARES {
        let title = format!("{title}, open loop, p99 at {percent} of saturation");
        let contestants = paced.iter_mut().enumerate().map(|(index, paced)| {
            let Paced { name, role, process, clients } = paced;
            let most = ours.map_or(f64::INFINITY, rate).min(rate(index));
            let interval = Duration::from_secs_f64(deliveries as f64 / (share * most));
            let count = if runner.smoke { 20 } else { (2 * time).div_duration_f64(interval) as usize };
            let work = Box::new(move || clients.open(count.max(1), interval));
            Contestant { name: name.clone(), role: *role, note: None, process, work }
        });
        let mut entries = rounds::latencies(runner, &title, contestants.collect())?;
        for (index, entry) in entries.iter_mut().enumerate() {
            let median = entry.note.take().unwrap_or_default();
            entry.note = Some(format!("{median}; a closed loop reached {:.0} k/s", rate(index) / 1e3));
        }
        let targets = vec![Target::fastest_rival(1.0)];
        runner.keep(RaceResult { cost: Cost::P99, targets, ..RaceResult::new(workload, title, entries) });
    }
    Ok(())
}
