//! The command `wireloom`: arguments, input and output, exit codes. The protocols are the crate `wireloom`.

mod allocator;
mod args;
mod cmd;
mod descriptors;
mod exit;
mod log;
mod recording;
mod routes;
mod signals;
mod terminal;

use std::process::ExitCode;

use args::Command;
use clap::Parser as _;

fn main() -> ExitCode {
    let exit = match args::Args::parse().command {
        Command::Serve(serve) => cmd::serve::run(&serve),
        Command::Connect(connect) => cmd::connect::run(*connect),
        Command::Load(load) => cmd::load::run(*load),
        Command::Inspect(inspect) => cmd::inspect::run(&inspect),
        Command::Completions(completions) => cmd::man::completions(&completions),
        Command::Man(man) => cmd::man::man(&man),
    };
    ExitCode::from(exit as u8)
}
