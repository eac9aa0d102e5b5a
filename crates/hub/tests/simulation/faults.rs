//! The schedule of faults.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use tokio::time::sleep;
use turmoil::Sim;

use crate::network::TICK;

/// Jumps of the clocks of hosts that have not happened yet, and the number of those that have.
#[derive(Clone, Default)]
pub(crate) struct Clocks(Arc<Mutex<HashMap<&'static str, (Duration, u64)>>>);

impl Clocks {
    fn jump(&self, host: &'static str, by: Duration) {
        self.0.lock().unwrap().entry(host).or_default().0 += by;
    }

    /// How often the clock of a host has jumped.
    pub(crate) fn jumps(&self, host: &'static str) -> u64 {
        self.0.lock().unwrap().entry(host).or_default().1
    }

    /// Runs on a host: its clock jumps, as that of a process that was stopped, or of a machine that slept.
    pub(crate) async fn follow(self, host: &'static str) {
        loop {
            sleep(Duration::from_millis(20)).await;
            let by = {
                let mut jumps = self.0.lock().unwrap();
                let jump = jumps.entry(host).or_default();
                jump.1 += u64::from(!jump.0.is_zero());
                std::mem::take(&mut jump.0)
            };
            if !by.is_zero() {
                tokio::time::advance(by).await;
            }
        }
    }
}

/// Never returns when the faults have been over for a while: then servers stay.
pub(crate) async fn until_shutdowns_end(disturbed: Duration) {
    if turmoil::sim_elapsed().is_some_and(|now| now > disturbed + Duration::from_secs(20)) {
        std::future::pending::<()>().await;
    }
}

/// Disturbs a simulation until a time, then lets it recover.
pub(crate) struct Faults {
    rng: Rng,
    hosts: Vec<&'static str>,
    /// Those whose software restarts.
    servers: Vec<&'static str>,
    clocks: Clocks,
    until: Duration,
    next: Duration,
    /// Faults that always happen.
    planned: Vec<(Duration, Planned)>,
    /// Ends of faults in progress.
    ends: Vec<(Duration, End)>,
    pub(crate) count: u64,
}

type Planned = Box<dyn FnOnce(&mut Sim<'_>)>;

enum End {
    Repair(&'static str, &'static str),
    Release(&'static str, &'static str),
    Start(&'static str),
}

impl Faults {
    pub(crate) fn new(
        rng: Rng,
        hosts: Vec<&'static str>,
        servers: Vec<&'static str>,
        clocks: Clocks,
        until: Duration,
    ) -> Self {
        let next = Duration::from_secs(1);
        Self { rng, hosts, servers, clocks, until, next, planned: Vec::new(), ends: Vec::new(), count: 0 }
    }

    /// Does this at that time, beside the random faults, which may undo it.
    pub(crate) fn plan(&mut self, at: Duration, act: impl FnOnce(&mut Sim<'_>) + 'static) {
        self.planned.push((at, Box::new(act)));
    }

    /// Runs the simulation to its end. `check` sees each step.
    pub(crate) fn run(&mut self, sim: &mut Sim<'_>, mut check: impl FnMut(Duration)) {
        loop {
            let now = sim.elapsed();
            self.disturb(sim, now);
            if sim.step().unwrap_or_else(|error| panic!("at {now:?}: {error}")) {
                return;
            }
            check(now);
        }
    }

    fn disturb(&mut self, sim: &mut Sim<'_>, now: Duration) {
        let is_over = now >= self.until;
        let (due, later) =
            std::mem::take(&mut self.ends).into_iter().partition(|(at, _)| is_over || *at <= now);
        self.ends = later;
        let due: Vec<(Duration, End)> = due;
        for (_, end) in due {
            match end {
                End::Repair(a, b) => sim.repair(a, b),
                End::Release(a, b) => sim.release(a, b),
                End::Start(host) => sim.bounce(host),
            }
        }
        for (_, act) in self.planned.extract_if(.., |(at, _)| *at <= now) {
            act(sim);
        }
        if is_over || now < self.next {
            return;
        }
        self.next = now + Duration::from_millis(self.rng.u64(100..4_000));
        self.count += 1;
        let (a, b) = self.pair();
        let server = self.servers[self.rng.usize(..self.servers.len())];
        // Shorter and longer than the timeouts of the parts.
        let end = now + Duration::from_millis(1 << self.rng.u32(4..15)) + TICK;
        match self.rng.u32(..100) {
            ..20 => {
                sim.partition(a, b);
                self.ends.push((end, End::Repair(a, b)));
            }
            20..35 => {
                sim.partition_oneway(a, b);
                self.ends.push((end, End::Repair(a, b)));
            }
            35..60 => {
                sim.hold(a, b);
                self.ends.push((end, End::Release(a, b)));
            }
            60..75 => sim.set_link_latency(a, b, Duration::from_millis(self.rng.u64(1..1_500))),
            75..85 => sim.bounce(server),
            85..90 if sim.is_host_running(server) => {
                // A silent crash: the other hosts receive no reset.
                for &host in self.hosts.iter().filter(|&&host| host != server) {
                    sim.partition(server, host);
                    self.ends.push((end, End::Repair(server, host)));
                }
                sim.crash(server);
                self.ends.push((end, End::Start(server)));
            }
            90.. => {
                let host = self.hosts[self.rng.usize(..self.hosts.len())];
                self.clocks.jump(host, Duration::from_millis(self.rng.u64(100..90_000)));
            }
            _ => {}
        }
    }

    fn pair(&mut self) -> (&'static str, &'static str) {
        let a = self.rng.usize(..self.hosts.len());
        let b = (a + self.rng.usize(1..self.hosts.len())) % self.hosts.len();
        (self.hosts[a], self.hosts[b])
    }
}
