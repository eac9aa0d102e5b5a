//! The command line.

use crate::isa;
use crate::race::Effort;
use crate::workloads::{self, ALL, Workload};
use lexopt::prelude::*;
use std::path::PathBuf;

/// A run of some workloads.
pub(crate) struct Args {
    pub(crate) workloads: Vec<&'static Workload>,
    pub(crate) effort: Effort,
    pub(crate) smoke: bool,
    pub(crate) only: Option<String>,
    pub(crate) json: Option<PathBuf>,
    /// Whether to write docs/benchmarks and the table of the README.
    pub(crate) write: bool,
    /// How many times everything is measured. If more than once, each time in new processes.
    pub(crate) runs: usize,
    /// The arguments that a process for one workload is started with.
    pub(crate) child: Vec<String>,
}

/// The task of this process.
pub(crate) enum Command {
    Help,
    Run(Args),
    /// Measure, and write the results to this file.
    MeasureFor(Args, PathBuf),
    /// Run the server with this name.
    #[cfg(target_os = "linux")]
    Serve(String),
    /// Run the client with this name, for this URL.
    #[cfg(target_os = "linux")]
    Connect(String, String),
}

pub(crate) fn usage() -> String {
    let mut usage = "usage: wireloom-bench all|WORKLOAD… [--quick | --smoke] [--runs N] [--isa ISA] [--only NAME] [--json FILE]\n\
        all      every workload several times in new processes; writes docs/benchmarks and the table of README.md\n\
        --quick  fewer and shorter rounds\n\
        --smoke  every workload once over tiny inputs: only its results are checked\n\
        --runs   measure N times, each time in new processes\n\
        --isa    cap Wireloom's kernels: sse2, ssse3, avx2 or avx512; the rivals' are not capped\n\
        --only   the contestants whose name begins so, for a profile\n\
        --json   write every round to FILE as well\n\
        WIRELOOM_BENCH_ALLOCATOR=mimalloc in the environment replaces the system's allocator for every contestant in Rust.\n\n\
        Workloads:\n"
        .to_owned();
    for workload in ALL {
        usage += &format!("  {:<8} {}\n", workload.name, workload.about);
    }
    usage
}

pub(crate) fn parse() -> Result<Command, lexopt::Error> {
    let mut args = Args {
        workloads: Vec::new(),
        effort: Effort::FULL,
        smoke: false,
        only: None,
        json: None,
        write: false,
        runs: 1,
        child: Vec::new(),
    };
    let (mut all, mut runs, mut measure_for, mut role) = (false, None, None, None);
    let mut parser = lexopt::Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            Short('h') | Long("help") => return Ok(Command::Help),
            Long("quick") => {
                args.effort = Effort::QUICK;
                args.child.push("--quick".into());
            }
            Long("smoke") => (args.effort, args.smoke) = (Effort::SMOKE, true),
            Long("runs") => runs = Some(parser.value()?.parse()?),
            Long("isa") => {
                let name = parser.value()?.string()?;
                isa::cap(&name)?;
                args.child.extend(["--isa".into(), name]);
            }
            Long("only") => {
                let name = parser.value()?.string()?;
                args.child.extend(["--only".into(), name.clone()]);
                args.only = Some(name);
            }
            Long("json") => args.json = Some(parser.value()?.into()),
            Long("measure-for") => measure_for = Some(parser.value()?.into()),
            #[cfg(target_os = "linux")]
            Long("serve") => role = Some(Command::Serve(parser.value()?.string()?)),
            #[cfg(target_os = "linux")]
            Long("connect") => {
                role = Some(Command::Connect(parser.value()?.string()?, parser.value()?.string()?));
            }
            Value(name) if name == "all" => all = true,
            Value(name) => {
                let name = name.string()?;
                let workload = workloads::find(&name);
                args.workloads.push(workload.ok_or_else(|| format!("no workload is called {name:?}"))?);
            }
            _ => return Err(arg.unexpected()),
        }
    }
    if let Some(role) = role {
        return Ok(role);
    }
    if all || args.workloads.is_empty() {
        args.workloads = ALL.iter().collect();
    }
    args.write = all && !args.smoke;
    args.runs = runs.unwrap_or(if all { args.effort.runs } else { 1 }).max(1);
    Ok(match measure_for {
        Some(path) => Command::MeasureFor(args, path),
        None => Command::Run(args),
    })
}
