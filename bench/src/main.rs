//! `wireloom-bench`: runs the workloads. Wireloom and its rivals take turns in one run, and each is checked to do the
//! same work.
//!
//! ```text
//! cargo run --profile dist -p wireloom-bench -- all
//! ```

mod allocation;
mod args;
mod bandwidth;
mod baseline;
mod checksum;
mod clock;
mod contestant;
mod corpus;
mod decode_check;
#[cfg(target_os = "linux")]
mod events;
mod exchange;
mod isa;
#[cfg(target_os = "linux")]
mod loopback;
mod race;
mod repeat;
mod report;
mod results;
mod rivals;
mod runner;
mod statistics;
mod stories;
mod wire;
mod wireloom;
mod wireloom_http2;
mod wireloom_socket;
mod workloads;

use args::{Args, Command};
use report::Metadata;
use runner::Runner;
use std::path::Path;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: allocation::CountingAllocator = allocation::CountingAllocator;

/// Runs the workloads in this process.
fn measure(args: &Args) -> Result<Runner, String> {
    let mut runner = Runner::new(args.effort, args.smoke, args.only.clone());
    let outcome = args.workloads.iter().try_for_each(|workload| (workload.run)(&mut runner));
    runner.finish();
    outcome.map(|()| runner)
}

/// Whether this program is built with the profile of the packages. Profiles have no name at run time, but a folder.
fn is_dist() -> bool {
    let folder =
        std::env::current_exe().ok().and_then(|program| Some(program.parent()?.file_name()?.to_owned()));
    folder.is_some_and(|folder| folder == "dist")
}

fn run(args: &Args) -> Result<(), String> {
    if !args.smoke && !is_dist() {
        return Err("only what is shipped is measured: cargo run --profile dist -p wireloom-bench".into());
    }
    if args.smoke {
        print!("{}", report::smoke(&measure(args)?.results));
        return Ok(());
    }
    let rounds = (args.effort.rounds, args.effort.process_rounds);
    let capped = isa::capped().map(Into::into);
    let mut metadata = Metadata::collect(rounds, capped, allocation::name());
    let (results, failures) = repeat::run(args, &mut metadata)?;
    print!("{}", report::text(&results, &metadata));
    // The pages would lose what failed.
    if args.write && failures.is_empty() {
        report::write(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), &results, &metadata)?;
    }
    if let Some(path) = &args.json {
        let value = serde_json::json!({ "metadata": metadata, "results": results });
        std::fs::write(path, format!("{value:#}\n"))
            .map_err(|error| format!("{}: {error}", path.display()))?;
    }
    if failures.is_empty() {
        return Ok(());
    }
    let unwritten = if args.write { "; docs/benchmarks and README.md stay as they were" } else { "" };
    Err(format!("failed: {}{unwritten}", failures.join("; ")))
}

/// Measures on behalf of the parent process, and writes the results to `path`.
fn measure_for(args: &Args, path: &Path) -> Result<(), String> {
    let results = measure(args)?.results;
    let value = serde_json::to_vec(&results).map_err(|error| error.to_string())?;
    std::fs::write(path, value).map_err(|error| format!("{}: {error}", path.display()))
}

fn main() -> ExitCode {
    let outcome = match args::parse() {
        Ok(Command::Help) => {
            print!("{}", args::usage());
            return ExitCode::SUCCESS;
        }
        #[cfg(target_os = "linux")]
        Ok(Command::Serve(name)) => return loopback::servers::serve(&name),
        #[cfg(target_os = "linux")]
        Ok(Command::Connect(name, url)) => return loopback::clients::connect(&name, &url),
        Ok(Command::MeasureFor(args, path)) => measure_for(&args, &path),
        Ok(Command::Run(args)) => run(&args),
        Err(error) => {
            eprint!("wireloom-bench: {error}\n\n{}", args::usage());
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("wireloom-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
