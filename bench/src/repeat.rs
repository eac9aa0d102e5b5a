//! Measures the same workloads several times, each time in a new process, so that the memory layout of one process does
//! not decide a race.

use crate::args::Args;
use crate::report::Metadata;
use crate::report::load;
use crate::results::Results;
use std::path::Path;
use std::process::Command;

/// Makes all runs, merges their results, and names the workloads that failed. A workload that fails in one run does not end the others.
///
/// # Errors
/// The only run failed.
pub(crate) fn run(args: &Args, metadata: &mut Metadata) -> Result<(Results, Vec<String>), String> {
    let mut failures = Vec::new();
    if args.runs == 1 && !args.write {
        let before = load();
        let results = crate::measure(args)?.results;
        metadata.load.push((before, load()));
        return Ok((results, failures));
    }
    let mut results = Results::default();
    let file = std::env::temp_dir().join(format!("wireloom-bench-{}.json", std::process::id()));
    for run in 0..args.runs {
        let before = load();
        for workload in &args.workloads {
            eprintln!("run {} of {}: {}", run + 1, args.runs, workload.name);
            match one(args, workload.name, &file) {
                Ok(found) => results.merge(run, found),
                Err(reason) => {
                    failures.push(format!("{}, run {}", workload.name, run + 1));
                    results.merge(run, failed(workload.name, reason));
                }
            }
        }
        metadata.load.push((before, load()));
    }
    _ = std::fs::remove_file(&file);
    Ok((results, failures))
}

/// Measures one workload in a new process.
fn one(args: &Args, workload: &str, file: &Path) -> Result<Results, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.arg(workload).args(&args.child).arg("--measure-for").arg(file);
    let status = command.status().map_err(|error| error.to_string())?;
    if !status.success() {
        return Err(format!("its process ended with {status}; its message is above"));
    }
    let text = std::fs::read(file).map_err(|error| error.to_string())?;
    serde_json::from_slice(&text).map_err(|error| error.to_string())
}

fn failed(workload: &str, reason: String) -> Results {
    let mut results = Results::default();
    results.missing.push(crate::results::Missing {
        name: format!("{workload}, a whole run"),
        reason,
        remedy: format!("Run `wireloom-bench {workload}` alone to see what failed"),
    });
    results
}
