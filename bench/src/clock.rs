//! The clock of all races within this process. It runs only while this thread does, so that other processes change the figures
//! through shared caches and memory only.

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
    fn runs_while_the_thread_does() {
        let start = now();
        while now() == start {
            std::hint::spin_loop();
        }
        assert!(now() > start);
    }
}
