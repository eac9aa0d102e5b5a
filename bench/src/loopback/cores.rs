//! Which core each process runs on: the measured process has a core to itself if the machine has at least two.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores of a run. This thread is pinned to `load` until this is dropped.
#[derive(Debug)]
pub(crate) struct Cores {
    /// The cores that this process may use.
    allowed: CpuSet,
    /// The core of the measured process.
    measured: CpuSet,
    /// The core of this thread, which generates the load.
    load: CpuSet,
}

impl Cores {
    /// Takes the first core that this process may use for the measured process, and the last for this thread.
    pub(crate) fn take() -> Self {
        let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
        let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
        let first = cores.next().unwrap_or(0);
        let cores = Self { measured: only(first), load: only(cores.next_back().unwrap_or(first)), allowed };
        pin(&cores.load);
        cores
    }

    /// Uses all cores for both: for servers with several threads.
    pub(crate) fn share() -> Self {
        let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
        Self { measured: allowed, load: allowed, allowed }
    }

    /// The number of cores that this process may use.
    pub(crate) fn count() -> usize {
        sched_getaffinity(None).map_or(1, |allowed| allowed.count() as usize)
    }

    /// Runs `work`. The processes that it starts inherit the affinity to the measured core.
    pub(crate) fn on_measured<T>(&self, work: impl FnOnce() -> T) -> T {
        pin(&self.measured);
        let done = work();
        pin(&self.load);
        done
    }
}

impl Drop for Cores {
    fn drop(&mut self) {
        pin(&self.allowed);
    }
}

fn only(core: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(core);
    set
}

/// Pins this thread. If that is not permitted, the figures are noisier and nothing else changes.
fn pin(set: &CpuSet) {
    _ = sched_setaffinity(None, set);
}
