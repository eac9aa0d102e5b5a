//! The allocator, and how it returns memory to the system.
//!
//! mimalloc returns freed pages only while a thread allocates: each thread collects the pages that it owns, even if
//! another thread freed the memory in them. After many connections have closed, the workers of the runtime sleep and do
//! not allocate. Therefore each worker collects before it sleeps, once in each round that [`return_memory`] starts.
//! 19,500 connections with permessage-deflate held 460 MiB; 5 MiB remained 10 s after they closed, and all of it
//! without rounds.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use wireloom::ServerHandle;

#[cfg(target_os = "linux")]
use crate::proc_file::Stat;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How often the number of open connections is checked.
const INTERVAL: Duration = Duration::from_secs(1);

/// The same while the process holds more than half of the limit: what many requests have left is then returned before others add to it.
const INTERVAL_NEAR_LIMIT: Duration = Duration::from_millis(100);

/// Memory is returned when this number of connections, and an eighth of all, have closed.
const CLOSED_MIN: usize = 500;

/// Memory is returned when the process holds this many bytes, and an eighth, more than its connections account for, beyond what was
/// left the last time: a few connections with long messages may leave as much as many idle ones.
const UNUSED_MIN: u64 = 16 << 20;

/// Rounds after connections have closed: a worker may be busy, and another may free what it owns later.
const ROUNDS: u32 = 3;

/// Tasks that are spawned for each worker, so that every worker wakes in a round.
const WAKES: usize = 8;

/// The number of rounds so far.
static ROUND: AtomicU32 = AtomicU32::new(0);

/// `mi_option_purge_delay`, which the crate does not name: how long freed pages are kept, in milliseconds. With its default, 1,000,
/// long messages that grew exceeded the limit of memory by all the places that they had left within a second.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
const PURGE_DELAY_MS: std::ffi::c_long = 10;

/// The least limit with which the process keeps to it, in bytes.
pub(crate) const LIMIT_MIN: usize = 64 << 20;

/// The most that [`reserve`] takes of a limit, in bytes.
const RESERVE_MAX: usize = 16 << 20;

thread_local! {
    /// The last round in which this thread has collected.
    static COLLECTED: Cell<u32> = const { Cell::new(0) };
}

/// The part of a limit that connections cannot use, in bytes: for freed places of up to 512 KiB, which the allocator returns only with
/// the 4 MiB of memory around them, and for what threads keep.
pub(crate) fn reserve(limit: usize) -> usize {
    (limit / 4).min(RESERVE_MAX)
}

/// To be called before memory is limited.
#[allow(unsafe_code)]
pub(crate) fn configure() {
    // SAFETY: an option is one word, which mimalloc reads at each use, and it ignores options that it does not have.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, PURGE_DELAY_MS) }
    // mimalloc asks for pages of 2 MiB. One byte makes such a page resident, and what was returned of it comes back when the kernel joins
    // pages: up to 57 MiB under an attack on a limit of 64 MiB. Echoes of 64 B to 4 MiB do not take more processor time without them.
    // Where it fails, nothing is lost but memory.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    // Opens the file of `resident`, which stays open.
    resident();
}

/// To be called before a worker of the runtime sleeps.
pub(crate) fn before_park() {
    let round = ROUND.load(Ordering::Relaxed);
    if COLLECTED.replace(round) != round {
        collect();
    }
}

/// Returns the memory that this thread does not need, and the unused memory that no thread owns.
#[allow(unsafe_code)]
fn collect() {
    // SAFETY: mi_collect has no preconditions; mimalloc is the allocator of this process, and may be called on any thread.
    unsafe { libmimalloc_sys::mi_collect(true) }
}

/// Starts rounds when many connections have closed, or much memory is not in use. Never returns.
pub(crate) async fn return_memory(server: ServerHandle) {
    let mut rounds_left = 0;
    let mut most_open = 0;
    // Held in addition to what connections account for, after the last round.
    let mut in_use = u64::MAX;
    let mut interval = INTERVAL;
    loop {
        tokio::time::sleep(interval).await;
        let stats = server.stats();
        let open = stats.connections_open;
        let closed = most_open.max(open) - open;
        if closed >= CLOSED_MIN.max(most_open / 8) {
            rounds_left = ROUNDS;
            most_open = open;
        }
        most_open = most_open.max(open);
        if let Some(resident) = resident() {
            let memory = stats.memory;
            interval = if resident > memory.max as u64 / 2 { INTERVAL_NEAR_LIMIT } else { INTERVAL };
            let held = resident.saturating_sub(memory.total as u64);
            in_use = in_use.min(held);
            if held > in_use.saturating_add(UNUSED_MIN.max(in_use / 8)) {
                rounds_left = ROUNDS;
                // The baseline is measured again after the rounds.
                in_use = u64::MAX;
            }
        }
        if rounds_left > 0 {
            rounds_left -= 1;
            ROUND.fetch_add(1, Ordering::Relaxed);
            for _ in 0..tokio::runtime::Handle::current().metrics().num_workers() * WAKES {
                tokio::spawn(tokio::task::yield_now());
            }
        }
    }
}

/// Resident memory of this process, in bytes.
#[cfg(target_os = "linux")]
fn resident() -> Option<u64> {
    Some(Stat::read()?.resident_bytes()? as u64)
}

#[cfg(not(target_os = "linux"))]
fn resident() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    // The number differs if another version of mimalloc has another order of options.
    #[test]
    #[allow(unsafe_code)]
    fn the_option_has_its_place() {
        // SAFETY: as in `configure`.
        let default = unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) };
        assert_eq!(default, 1_000);
        configure();
        // SAFETY: as in `configure`.
        assert_eq!(unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) }, PURGE_DELAY_MS);
    }
}
