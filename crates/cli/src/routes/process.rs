//! The figures of this process that the operating system reports.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

#[cfg(target_os = "linux")]
use crate::{descriptors, proc_file::Stat};

/// How long figures are current: counting the open files takes time for each of them, and any number of clients may ask.
const CURRENT: Duration = Duration::from_secs(1);

/// Figures of this process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Process {
    pub(super) cpu_seconds: f64,
    pub(super) resident_bytes: f64,
    pub(super) virtual_bytes: f64,
    pub(super) open_fds: f64,
    pub(super) max_fds: f64,
    pub(super) threads: f64,
}

/// The figures, and when they were read.
type Latest = Mutex<Option<(Instant, Process)>>;

/// The figures that were read within [`CURRENT`]. While they are read anew, the former ones.
pub(super) fn latest() -> Option<Process> {
    static LATEST: Latest = Mutex::new(None);
    latest_of(&LATEST, Instant::now(), read)
}

fn latest_of(latest: &Latest, now: Instant, read: impl FnOnce() -> Option<Process>) -> Option<Process> {
    let lock = || latest.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((read_at, process)) = &mut *lock() {
        if now.saturating_duration_since(*read_at) < CURRENT {
            return Some(*process);
        }
        *read_at = now;
    }
    let process = read()?;
    *lock() = Some((now, process));
    Some(process)
}

/// Reads proc(5).
#[cfg(target_os = "linux")]
fn read() -> Option<Process> {
    use rustix::process::{Resource, getrlimit};
    let stat = Stat::read()?;
    let field = |number| stat.field(number);
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let max_fds = getrlimit(Resource::Nofile).current.map_or(f64::INFINITY, |max| max as f64);
    Some(Process {
        cpu_seconds: (field(14)? + field(15)?) / ticks,
        resident_bytes: stat.resident_bytes()?,
        virtual_bytes: field(23)?,
        open_fds: count_open(max_fds)?,
        max_fds,
        threads: field(20)?,
    })
}

/// The number of open files; `None` where it cannot be read.
#[cfg(target_os = "linux")]
fn count_open(max: f64) -> Option<f64> {
    match std::fs::read_dir("/proc/self/fd") {
        Ok(open) => Some(open.count() as f64),
        // To count them takes a free one.
        Err(error) if descriptors::is_out_of(&error) => Some(max),
        Err(_) => None,
    }
}

#[cfg(not(target_os = "linux"))]
fn read() -> Option<Process> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_once_a_second() {
        let (latest, begin, process) = (Latest::default(), Instant::now(), read().unwrap());
        for (after_ms, is_read) in [(0, true), (999, false), (1_000, true), (1_500, false), (2_000, true)] {
            let mut reads = 0;
            let now = begin + Duration::from_millis(after_ms);
            let of = latest_of(&latest, now, || {
                reads += 1;
                Some(process)
            });
            assert_eq!((of, reads), (Some(process), u32::from(is_read)), "{after_ms}");
        }
    }

    #[test]
    fn reads_plausible_figures() {
        let process = read().unwrap();
        assert!(
            process.resident_bytes > 1e5 && process.virtual_bytes >= process.resident_bytes,
            "{process:?}"
        );
        assert!(process.open_fds >= 3.0 && process.max_fds >= process.open_fds, "{process:?}");
        assert!(process.threads >= 1.0 && process.cpu_seconds >= 0.0, "{process:?}");
    }
}
