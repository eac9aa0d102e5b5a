//! `wireloom hub`: what concerns channels and needs no server.

mod configuration;

use wireloom_hub::engine::{DiskEngine, DiskError, FileReport, Salvaged};

use super::print::print;
use crate::args::{Check, HubCommand};
use crate::exit::Exit;
use crate::terminal;

pub(crate) use configuration::{read, with_environment};

pub(crate) fn run(command: &HubCommand) -> Exit {
    match command {
        HubCommand::Check(args) => check(args),
        HubCommand::Token(args) => print_made(configuration::token(args).map(|token| (token, Exit::Success))),
        HubCommand::Config(args) => print_made(configuration::config(args)),
    }
}

/// Prints the output of a command and returns its exit code, or prints why there is none.
fn print_made(output: Result<(String, Exit), String>) -> Exit {
    match output {
        Ok((text, exit)) => match print(text.as_bytes()) {
            Exit::Success => exit,
            failed => failed,
        },
        Err(error) => {
            terminal::print_error(error);
            Exit::NoConnection
        }
    }
}

fn push_unreadable(text: &mut String, unreadable: usize) {
    if unreadable > 0 {
        text.push_str(&format!("; {unreadable} publications cannot be read"));
    }
}

fn check(args: &Check) -> Exit {
    let report = match DiskEngine::check(&args.dir) {
        Ok(report) => report,
        Err(error) => {
            terminal::print_error(&error);
            if !matches!(error, DiskError::Damaged { .. }) {
                if args.dir.is_file() {
                    let file = args.dir.display();
                    terminal::print_error(format!(
                        "this is no directory of `serve --data`; a configuration is checked by `wireloom hub config {file}`"
                    ));
                }
                return Exit::NoConnection;
            }
            let acted = match (args.salvage, args.set_aside) {
                (true, _) => DiskEngine::salvage(&args.dir).map(|salvaged| {
                    let Salvaged { set_aside, channels, publications, unreadable, .. } = salvaged;
                    let mut text = format!("salvaged {channels} channels, {publications} publications");
                    push_unreadable(&mut text, unreadable);
                    format!("{text}; it is now {}", set_aside.display())
                }),
                (false, true) => {
                    DiskEngine::set_aside(&args.dir).map(|path| format!("it is now {}", path.display()))
                }
                (false, false) => return Exit::Broken,
            };
            match acted {
                Ok(text) => terminal::print_error(text),
                Err(error) => {
                    terminal::print_error(error);
                    return Exit::NoConnection;
                }
            }
            return Exit::Broken;
        }
    };
    let FileReport { path, len, channels, publications, unreadable, is_repaired, .. } = report;
    let mut text =
        format!("{}: {channels} channels, {publications} publications, {len} bytes", path.display());
    if is_repaired {
        text.push_str(", repaired");
    }
    push_unreadable(&mut text, unreadable);
    let printed = print(format!("{text}\n").as_bytes());
    if unreadable > 0 { Exit::Broken } else { printed }
}
