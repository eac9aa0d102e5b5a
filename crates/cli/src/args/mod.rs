//! The arguments, and the help that explains them.
//!
//! Layers: `inspect`, `record`, `reference`, `value` → `http2`, `hub`, `join` → `connect` → `listen`, `load`, `serve`.

mod connect;
mod http2;
mod hub;
mod inspect;
mod join;
mod listen;
mod load;
mod record;
#[cfg(test)]
mod reference;
mod serve;
mod value;

use std::path::PathBuf;

use clap::builder::Styles;
use clap::builder::styling::AnsiColor;
use clap::{Args as ClapArgs, Parser, Subcommand};
use clap_complete::Shell;

pub(crate) use connect::{Connect, Display, Format, Tls};
pub(crate) use hub::{Check, ConfigCommand, Hub, HubCommand, Token};
pub(crate) use inspect::{Filter, InputFormat, Inspect, Proto, Side};
pub(crate) use join::Framing;
pub(crate) use listen::{Endpoint, Listen};
pub(crate) use load::{
    Expectation, Load, LoadCommand, Merge, Metric, ROUNDS_MIN, Scenario, Sizes, Speed, Stage,
};
pub(crate) use record::Record;
pub(crate) use serve::{Channels, IoUringUse, LiveStats, LogFormat, LogLevel, Serve, SlowPolicy};
pub(crate) use value::{has_scheme, time};

/// Colours, where a terminal shows them and NO_COLOR does not forbid them.
const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default())
    .placeholder(AnsiColor::Cyan.on_default());

const AFTER: &str = "\
Try it:
  wireloom serve &
  echo hello | wireloom connect ws://127.0.0.1:8080/echo

  wireloom load ws://127.0.0.1:8080/echo
  wireloom inspect capture.pcap

`wireloom help serve`, and so for each command, describes the options and the exit codes.";

const VERSION: &str = env!("WIRELOOM_VERSION");
const LONG_VERSION: &str = env!("WIRELOOM_VERSION_LONG");

/// WebSocket and HTTP from the shell.
#[derive(Debug, Parser)]
#[command(name = "wireloom", version = VERSION, long_version = LONG_VERSION, styles = STYLES, after_help = AFTER)]
#[command(max_term_width = 120)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve WebSocket, HTTP/1.1 and HTTP/2: an echo, rooms, a sink, a source
    Serve(Box<Serve>),
    /// Connect to a WebSocket: send lines, print messages; or make a request
    Connect(Box<Connect>),
    /// Join standard input, TCP, Unix sockets and programs to WebSockets
    Listen(Box<Listen>),
    /// Measure a WebSocket server: rate, latency, errors
    Load(Box<Load>),
    /// Decode a capture: handshakes, WebSocket and HTTP/2 frames, violations
    Inspect(Box<Inspect>),
    /// Look after channels: histories on disk, tokens, configurations
    Hub(Hub),
    /// Print a completion script for a shell
    Completions(Completions),
    /// Print a manual page
    Man(Man),
}

const COMPLETIONS_AFTER: &str = "\
Try it:
  wireloom completions bash > ~/.local/share/bash-completion/completions/wireloom
  wireloom completions zsh > ~/.zfunc/_wireloom      # a directory of $fpath
  wireloom completions fish > ~/.config/fish/completions/wireloom.fish";

#[derive(ClapArgs, Debug)]
#[command(after_help = COMPLETIONS_AFTER)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

const MAN_AFTER: &str = "\
Try it:
  wireloom man serve | man -l -
  wireloom man --dir ~/.local/share/man/man1      # all pages, for `man wireloom-serve`";

#[derive(ClapArgs, Debug)]
#[command(after_help = MAN_AFTER)]
pub(crate) struct Man {
    /// The subcommand to describe
    #[arg(value_name = "SUBCOMMAND")]
    pub(crate) subcommand: Option<String>,
    /// Write all pages to this directory
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "subcommand")]
    pub(crate) dir: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn arguments_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn every_option_is_explained() {
        for subcommand in Args::command().get_subcommands() {
            for argument in subcommand.get_arguments() {
                assert!(argument.get_help().is_some(), "{} {}", subcommand.get_name(), argument.get_id());
            }
        }
    }

    /// Help has 100 columns where there is no terminal; a longer line would be followed by its last word.
    #[test]
    fn the_lines_of_the_help_fit() {
        fn check(command: &clap::Command) {
            let below = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in below.lines() {
                assert!(line.chars().count() <= 100, "{}: {line}", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        check(&Args::command());
    }

    // The defaults in the help are those of the library.
    #[test]
    fn defaults_are_the_librarys() {
        let args = Args::parse_from(["wireloom", "serve"]);
        let Command::Serve(serve) = args.command else { panic!("serve") };
        let mut config = serve.config();
        // The command compresses if a client offers it; the library does not by default.
        assert!(config.deflate.take().is_some());
        // The check of origins differs too.
        let defaults = wireloom::ServerConfig::default();
        config.origins = defaults.origins.clone();
        // The limit on open files may be lower.
        assert!(config.connections_max <= defaults.connections_max);
        config.connections_max = defaults.connections_max;
        // The command leaves memory to the allocator and threads.
        assert_eq!(config.memory_max + crate::allocator::reserve(defaults.memory_max), defaults.memory_max);
        config.memory_max = defaults.memory_max;
        assert_eq!(config, defaults);
    }
}
