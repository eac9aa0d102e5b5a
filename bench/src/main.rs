//! `wireloom-bench`: the workloads, Wireloom and its rivals in one process, in turns, checked to do the same work.
//!
//! ```text
//! cargo run --release -p wireloom-bench -- w1 w2 w4
//! ```

mod allocation;
mod bandwidth;
mod bench;
mod clock;
mod contestant;
mod corpus;
mod exchange;
mod heat;
#[cfg(target_os = "linux")]
mod loopback;
mod measure;
mod report;
mod rivals;
mod stories;
mod tally;
mod wire;
mod wireloom;
mod wireloom_http2;
mod workloads;
mod written;

use bench::Bench;
use lexopt::prelude::*;
use measure::Effort;
use std::path::PathBuf;
use std::process::ExitCode;
use workloads::{ALL, Workload};

#[global_allocator]
static ALLOCATOR: allocation::CountingAllocator = allocation::CountingAllocator;

/// What the command line asks for.
struct Args {
    workloads: Vec<&'static Workload>,
    effort: Effort,
    smoke: bool,
    only: Option<String>,
    json: Option<PathBuf>,
    /// To be this server or this client, for another process of this program.
    #[cfg(target_os = "linux")]
    role: Option<Role>,
}

/// What a process of this program can be besides the benchmark.
#[cfg(target_os = "linux")]
enum Role {
    Server(String),
    /// Its word, and the URL.
    Client(String, String),
}

fn usage() -> String {
    let mut usage = "usage: wireloom-bench [WORKLOAD…] [--quick | --smoke] [--only NAME] [--json FILE]\n\
        --quick  fewer and shorter rounds\n\
        --smoke  every workload once over tiny inputs: only its results are checked\n\
        --only   the contestants whose name begins so, for a profile\n\
        --json   writes the figures to FILE as well\n\n\
        Without a name all workloads run:\n"
        .to_owned();
    for workload in ALL {
        usage += &format!("  {:<8} {}\n", workload.name, workload.about);
    }
    usage
}

/// `None` if only the usage is asked for.
fn parse() -> Result<Option<Args>, lexopt::Error> {
    let mut args = Args {
        workloads: Vec::new(),
        effort: Effort::FULL,
        smoke: false,
        only: None,
        json: None,
        #[cfg(target_os = "linux")]
        role: None,
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            Short('h') | Long("help") => return Ok(None),
            Long("quick") => args.effort = Effort::QUICK,
            Long("smoke") => (args.effort, args.smoke) = (Effort::SMOKE, true),
            Long("only") => args.only = Some(parser.value()?.string()?),
            #[cfg(target_os = "linux")]
            Long("serve") => args.role = Some(Role::Server(parser.value()?.string()?)),
            #[cfg(target_os = "linux")]
            Long("connect") => {
                args.role = Some(Role::Client(parser.value()?.string()?, parser.value()?.string()?));
            }
            Long("json") => args.json = Some(parser.value()?.into()),
            Value(name) => {
                let workload = ALL.iter().find(|workload| name == workload.name);
                args.workloads.push(workload.ok_or_else(|| format!("no workload is called {name:?}"))?);
            }
            _ => return Err(arg.unexpected()),
        }
    }
    if args.workloads.is_empty() {
        args.workloads = ALL.iter().collect();
    }
    Ok(Some(args))
}

fn run(args: &Args) -> Result<(), String> {
    if cfg!(debug_assertions) && !args.smoke {
        return Err("a debug build measures nothing: add --release".into());
    }
    let mut bench = Bench::new(args.effort, args.smoke, args.only.clone());
    let outcome = args.workloads.iter().try_for_each(|workload| (workload.run)(&mut bench));
    bench.finish();
    outcome?;
    if args.smoke {
        print!("{}", report::smoke(&bench));
    } else {
        print!("{}", report::table(&bench));
    }
    if let Some(path) = &args.json {
        let text = format!("{:#}\n", report::json(&bench));
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

fn main() -> ExitCode {
    match parse() {
        #[cfg(target_os = "linux")]
        Ok(Some(Args { role: Some(Role::Server(word)), .. })) => loopback::servers::serve(&word),
        #[cfg(target_os = "linux")]
        Ok(Some(Args { role: Some(Role::Client(word, url)), .. })) => loopback::clients::connect(&word, &url),
        Ok(Some(args)) => match run(&args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("wireloom-bench: {error}");
                ExitCode::FAILURE
            }
        },
        Ok(None) => {
            print!("{}", usage());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprint!("wireloom-bench: {error}\n\n{}", usage());
            ExitCode::from(2)
        }
    }
}
