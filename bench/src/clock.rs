//! The clock of all races within this process: the CPU time of this thread. Other processes affect it only through
//! shared caches and memory.

use std::time::Duration;

/// The time that this thread has spent on a CPU.
#[cfg(unix)]
pub(crate) fn now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Without such a clock: the time since the first call.
#[cfg(not(unix))]
pub(crate) fn now() -> Duration {
    static START: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    START.elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advances_while_the_thread_runs() {
        let start = now();
        while now() == start {
            std::hint::spin_loop();
        }
        assert!(now() > start);
    }
}
