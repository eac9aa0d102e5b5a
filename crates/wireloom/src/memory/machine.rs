//! The memory of the machine, or the limit of the control group of the process.

use std::path::Path;
use std::sync::OnceLock;

/// A quarter of the memory of the machine or of the control group, whichever is smaller; 1 GiB where neither is known.
pub(crate) fn default_max() -> usize {
    static MAX: OnceLock<usize> = OnceLock::new();
    *MAX.get_or_init(|| {
        let limits = [machine(), cgroup_v2(), cgroup_v1()];
        limits.into_iter().flatten().min().map_or(1 << 30, |bytes| bytes / 4)
    })
}

fn machine() -> Option<usize> {
    total_of(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn total_of(meminfo: &str) -> Option<usize> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}

/// The smallest `memory.max` on the way from the group of this process to the root.
fn cgroup_v2() -> Option<usize> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?.trim_start_matches('/');
    let mounted = Path::new("/sys/fs/cgroup");
    let mut path = mounted.join(group);
    let mut smallest = None;
    while path.starts_with(mounted) {
        let limit = std::fs::read_to_string(path.join("memory.max")).ok().and_then(|text| limit_of(&text));
        smallest = [smallest, limit].into_iter().flatten().min();
        if !path.pop() {
            break;
        }
    }
    smallest
}

fn cgroup_v1() -> Option<usize> {
    limit_of(&std::fs::read_to_string("/sys/fs/cgroup/memory/memory.limit_in_bytes").ok()?)
}

/// `max` means no limit, and so does a number larger than any machine's memory.
fn limit_of(text: &str) -> Option<usize> {
    text.trim().parse().ok().filter(|&bytes| bytes < 1 << 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_files_of_linux() {
        assert_eq!(total_of("MemTotal:       16384 kB\nMemFree: 1 kB\n"), Some(16 << 20));
        assert_eq!(total_of("MemFree: 1 kB\n"), None);
        assert_eq!(limit_of("536870912\n"), Some(512 << 20));
        assert_eq!(limit_of("max\n"), None);
        assert_eq!(limit_of("9223372036854771712\n"), None);
        assert!(default_max() > 1 << 20);
    }
}
