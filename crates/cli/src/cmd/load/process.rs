//! Processor time and memory of this process.

use std::time::Duration;

/// Processor time since the process began.
#[cfg(unix)]
pub(super) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

#[cfg(not(unix))]
pub(super) fn cpu_time() -> Duration {
    Duration::ZERO
}

/// Resident memory, in bytes.
#[cfg(target_os = "linux")]
pub(super) fn memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn memory() -> Option<u64> {
    None
}
