//! The core of each process: the one that is measured has a core to itself, where the machine has two.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores of a run. This thread stays on its own until this is dropped.
#[derive(Debug)]
pub(crate) struct Cores {
    /// Those that this process may use.
    allowed: CpuSet,
    /// The core of the measured process.
    measured: CpuSet,
    /// The core of this thread, which loads it.
    load: CpuSet,
}

impl Cores {
    /// The first of the cores that this process may use for the measured, the last for this thread.
    pub(crate) fn take() -> Self {
        let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
        let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
        let first = cores.next().unwrap_or(0);
        let cores = Self { measured: only(first), load: only(cores.next_back().unwrap_or(first)), allowed };
        pin(&cores.load);
        cores
    }

    /// All cores for both: for servers with several threads.
    pub(crate) fn share() -> Self {
        let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
        Self { measured: allowed, load: allowed, allowed }
    }

    /// How many this process may use.
    pub(crate) fn count() -> usize {
        sched_getaffinity(None).map_or(1, |allowed| allowed.count() as usize)
    }

    /// Processes that `work` starts run on the measured core: affinity is inherited.
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

/// Where it is not allowed, figures are noisier and nothing else changes.
fn pin(set: &CpuSet) {
    _ = sched_setaffinity(None, set);
}
