//! `wireloom load`: sends messages to an echo, and measures rate, latency and errors. Modules import downwards: `run` from `echo`,
//! both from `recorder`; `report` from what a run returns.

mod echo;
mod pacer;
mod payload;
mod progress;
mod recorder;
mod report;
mod run;
mod target;

use std::io::{self, Write as _};

use super::connect::failure;
use super::connect::trace::without_secrets;
use crate::args::Load;
use crate::exit::Exit;
use crate::signals::Signals;
use crate::{descriptors, terminal};
use progress::Progress;
use report::Report;

pub(crate) fn run(args: Load) -> Exit {
    descriptors::raise_limit();
    // One thread: the load of one core is known, and nothing moves between cores.
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(load(&args)),
        Err(error) => {
            terminal::print_error(error);
            Exit::NoConnection
        }
    }
}

async fn load(args: &Load) -> Exit {
    let usage = |error: String| {
        terminal::print_error(error);
        Exit::Usage
    };
    let connector = match target::connector(args).await {
        Ok(connector) => connector,
        Err(error) => return usage(error),
    };
    let mut signals = match Signals::new() {
        Ok(signals) => signals,
        Err(error) => return usage(error.to_string()),
    };
    let mut progress = Progress::new(args);
    let outcome = run::run(args, connector, &mut progress, &mut signals).await;
    progress.finish();
    let report = match outcome {
        Ok(outcome) => Report::new(args, outcome),
        Err(error) => {
            let text = format!("{}: {error}", without_secrets(&args.url));
            terminal::print_error(terminal::visible_line(text.trim_end()));
            return failure(&error);
        }
    };
    let text = if args.output.json {
        format!("{}\n", terminal::visible_json(&report.json().to_string()))
    } else {
        report.table()
    };
    if let Err(error) = io::stdout().write_all(text.as_bytes()) {
        terminal::print_error(format_args!("the output cannot be written: {error}"));
        return Exit::Broken;
    }
    if !report.is_as_expected() {
        Exit::Unmet
    } else if report.has_errors() {
        Exit::Broken
    } else {
        Exit::Success
    }
}
