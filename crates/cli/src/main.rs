//! The command `wireloom`: arguments, input and output, exit codes. The protocols are the crate `wireloom`.
//!
//! Layers: `proc_file` → `allocator`, `descriptors`, `exit`, `file`, `terminal`, `throttle`, `traces` → `signals` → `args` → `log`, `recording` → `routes` → `cmd`.

mod allocator;
mod args;
mod cmd;
mod descriptors;
mod exit;
mod file;
mod log;
#[cfg(target_os = "linux")]
mod proc_file;
mod recording;
mod routes;
mod signals;
mod terminal;
mod throttle;
mod traces;

use std::io::{self, Write as _};
use std::process::ExitCode;

use args::Command;
use clap::Parser as _;
use exit::Exit;

fn main() -> ExitCode {
    let args = match args::Args::try_parse() {
        Ok(args) => args,
        Err(error) => return usage(&error),
    };
    let exit = match args.command {
        Command::Serve(serve) => cmd::serve::run(&serve),
        Command::Connect(connect) => cmd::connect::run(*connect),
        Command::Listen(listen) => cmd::listen::run(&listen),
        Command::Load(load) => cmd::load::run(*load),
        Command::Inspect(inspect) => cmd::inspect::run(&inspect),
        Command::Hub(hub) => cmd::hub::run(&hub.command),
        Command::Completions(completions) => cmd::man::completions(&completions),
        Command::Man(man) => cmd::man::man(&man),
    };
    ExitCode::from(exit as u8)
}

/// Prints the help, the version, or what is wrong with the arguments.
fn usage(error: &clap::Error) -> ExitCode {
    match error.print().and_then(|()| io::stdout().flush()) {
        Ok(()) => ExitCode::from(error.exit_code() as u8),
        // `wireloom help connect | head` is no failure.
        Err(failure) if failure.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            terminal::print_error(format_args!("the output cannot be written: {failure}"));
            ExitCode::from(Exit::Broken as u8)
        }
    }
}
