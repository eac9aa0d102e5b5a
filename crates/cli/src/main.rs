//! The command `wireloom`. It owns arguments, output and exit codes; what it does is the crate `wireloom`.

mod args;
mod cmd;
mod exit;
mod routes;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    let args = args::Args::parse();
    let exit = match args.command {
        args::Command::Serve(serve) => cmd::serve::run(*serve),
        args::Command::Connect(connect) => cmd::connect::run(*connect),
    };
    ExitCode::from(exit as u8)
}
