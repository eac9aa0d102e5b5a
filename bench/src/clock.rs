//! The clock that everything is timed with. It runs only while this thread does: what others do on the machine leaves the
//! figures alone, but for the caches and the memory that they share with it.

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
