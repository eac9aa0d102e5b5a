//! Counts the instructions of the hot paths and compares them with the committed baseline.
//!
//! ```text
//! cargo run -p wireloom-counts              compares; fails if a count exceeds its baseline by more than 2 %
//! cargo run -p wireloom-counts -- --renew   writes the counts of this tree to baseline.txt
//! ```
//!
//! Counts depend on the compiler, so they are taken with the Rust version that the baseline names, through rustup where
//! the default toolchain is another one. The benchmarks are linked statically against musl: the C library of the machine,
//! which chooses its `memcpy` by processor, has no part in them.

mod baseline;
mod report;
mod run;

use baseline::Baseline;
use std::path::Path;
use std::process::ExitCode;

/// The exit code of a run that this machine cannot make; the last line of its output is the reason.
const SKIPPED: u8 = 77;

/// Why there are no counts.
enum Failure {
    /// This machine lacks something.
    Unavailable(String),
    /// Something broke.
    Broken(String),
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let is_renewal = match &*args.iter().map(String::as_str).collect::<Vec<_>>() {
        [] => false,
        ["--renew"] => true,
        _ => {
            eprintln!("usage: wireloom-counts [--renew]");
            return ExitCode::from(2);
        }
    };
    match compare(is_renewal) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(Failure::Broken(error)) => {
            eprintln!("wireloom-counts: {error}");
            ExitCode::FAILURE
        }
        Err(Failure::Unavailable(reason)) => {
            println!("\nskipped: {reason}");
            ExitCode::from(SKIPPED)
        }
    }
}

/// Whether no count exceeds its baseline.
fn compare(is_renewal: bool) -> Result<bool, Failure> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("baseline.txt");
    let base =
        Baseline::read(&path).map_err(|error| Failure::Broken(format!("{}: {error}", path.display())))?;
    let valgrind = run::valgrind_version()?;
    let toolchain = run::toolchain(&base.rustc)?;
    let head = Baseline { rustc: base.rustc.clone(), valgrind, counts: run::counts(toolchain.as_deref())? };
    let comparison = report::Comparison::new(&base, &head);
    print!("{comparison}");
    if is_renewal {
        head.write(&path).map_err(|error| Failure::Broken(format!("{}: {error}", path.display())))?;
        println!("renewed {}", path.display());
        return Ok(true);
    }
    Ok(comparison.is_within_tolerance())
}
