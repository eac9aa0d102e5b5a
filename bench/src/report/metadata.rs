//! Where and when a run was made.

use serde::{Deserialize, Serialize};
use std::fs;
use std::process::Command;

/// The machine, the versions and the load of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Metadata {
    pub(crate) date: String,
    pub(crate) cpu: String,
    /// The widest vectors that this CPU offers.
    pub(crate) vectors: String,
    /// The instruction set that Wireloom's kernels were capped to, if they were.
    pub(crate) capped: Option<String>,
    pub(crate) cores: usize,
    pub(crate) memory: String,
    pub(crate) system: String,
    pub(crate) rustc: String,
    pub(crate) commit: String,
    pub(crate) allocator: String,
    /// The load average over one minute, before and after each run.
    pub(crate) load: Vec<(f64, f64)>,
    /// Rounds of one run: for races within one process, and for races between processes.
    pub(crate) rounds: (usize, usize),
}

impl Metadata {
    pub(crate) fn collect(rounds: (usize, usize), capped: Option<String>, allocator: &str) -> Self {
        let status = first_line(git().args(["status", "--porcelain", "--untracked-files=no"]));
        let changed = if status.is_some() { " with changes" } else { "" };
        let commit = first_line(git().args(["rev-parse", "--short=10", "HEAD"]));
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            date: first_line(Command::new("date").args(["-u", "+%Y-%m-%d"])).unwrap_or_default(),
            cpu: cpu(),
            vectors: vectors().into(),
            capped,
            cores: std::thread::available_parallelism().map_or(1, Into::into),
            memory: memory().unwrap_or_default(),
            system: format!("{} {}", std::env::consts::OS, kernel.trim()).trim().into(),
            rustc: env!("WIRELOOM_BENCH_RUSTC").into(),
            commit: commit.unwrap_or_else(|| "unknown".into()) + changed,
            allocator: allocator.into(),
            load: Vec::new(),
            rounds,
        }
    }

    /// The name of the machine and instruction set in paths.
    pub(crate) fn label(&self) -> String {
        let isa = self.capped.as_deref().unwrap_or(&self.vectors);
        let isa: String = isa.chars().filter(char::is_ascii_alphanumeric).collect();
        // Results of machines of different makers are kept in different folders.
        let maker = if self.cpu.starts_with("AMD") { "amd-" } else { "" };
        let capped = if self.capped.is_some() { "-capped" } else { "" };
        format!("{maker}{}{capped}", isa.to_lowercase())
    }

    /// One line each.
    pub(crate) fn lines(&self) -> Vec<String> {
        let capped = self
            .capped
            .as_ref()
            .map_or(String::new(), |isa| format!(", Wireloom's kernels capped to {isa}, the rivals not"));
        let load = self.load.iter().map(|(before, after)| format!("{before:.1} to {after:.1}"));
        let load: Vec<String> = load.collect();
        vec![
            format!("Date: {}; commit {}", self.date, self.commit),
            format!("Machine: {}, {} cores, {}, {}{capped}", self.cpu, self.cores, self.memory, self.vectors),
            format!("System: {}; {}; allocator: {}", self.system, self.rustc, self.allocator),
            format!("Load before and after each run: {}", load.join(", ")),
            format!(
                "Rounds in a run: {} of a race within one process, {} of a race between processes",
                self.rounds.0, self.rounds.1
            ),
        ]
    }
}

/// The load average over one minute; 0 where it is not known.
pub(crate) fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(0.0)
}

/// git, in this checkout.
fn git() -> Command {
    let mut git = Command::new("git");
    git.args(["-C", env!("CARGO_MANIFEST_DIR")]);
    git
}

/// The first line of the output, if there is any.
fn first_line(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).lines().next()?.to_owned())
}

fn cpu() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = info
            .lines()
            .find(|line| line.strip_prefix(name).is_some_and(|rest| rest.trim_start().starts_with(':')))?;
        Some(line.split_once(": ")?.1.to_owned())
    };
    let model = field("model name").unwrap_or_else(|| "unknown CPU".into());
    match (field("cpu family"), field("model")) {
        (Some(family), Some(number)) => format!("{model} (family {family}, model {number})"),
        _ => model,
    }
}

fn memory() -> Option<String> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: f64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(format!("{:.0} GiB", kilobytes / f64::from(1 << 20)))
}

/// The widest vector instructions that this CPU reports at run time.
fn vectors() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512bw") {
            return "AVX-512";
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            return "AVX2";
        }
    }
    "baseline SIMD"
}
