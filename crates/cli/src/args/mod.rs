//! The arguments, and the help that explains them.

mod connect;
mod http2;
mod serve;
mod value;

use std::path::PathBuf;

use clap::builder::Styles;
use clap::builder::styling::AnsiColor;
use clap::{Args as ClapArgs, Parser, Subcommand};
use clap_complete::Shell;

pub(crate) use connect::Connect;
pub(crate) use serve::{LogFormat, LogLevel, Serve, SlowPolicy};

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

`wireloom serve --help` and `wireloom connect --help` tell more, exit codes among it.";

/// WebSocket and HTTP from the shell.
#[derive(Debug, Parser)]
#[command(name = "wireloom", version, disable_help_subcommand = true, styles = STYLES, after_help = AFTER)]
#[command(max_term_width = 120)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve WebSocket, HTTP/1.1 and HTTP/2: an echo, rooms, a sink, a source
    Serve(Box<Serve>),
    /// Connect to a WebSocket: lines go out, messages come in; or make a request
    Connect(Box<Connect>),
    /// Print what lets a shell complete this command
    Completions(Completions),
    /// Print the manual page
    Man(Man),
}

const COMPLETIONS_AFTER: &str = "\
Try it:
  wireloom completions bash > ~/.local/share/bash-completion/completions/wireloom
  wireloom completions zsh > ~/.zfunc/_wireloom      # a folder of $fpath
  wireloom completions fish > ~/.config/fish/completions/wireloom.fish";

#[derive(ClapArgs, Debug)]
#[command(after_help = COMPLETIONS_AFTER)]
pub(crate) struct Completions {
    /// For which shell
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
    /// Of which subcommand
    #[arg(value_name = "SUBCOMMAND")]
    pub(crate) subcommand: Option<String>,
    /// Write all pages into this folder instead
    #[arg(long, value_name = "FOLDER", conflicts_with = "subcommand")]
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
        for verb in Args::command().get_subcommands() {
            for argument in verb.get_arguments() {
                assert!(argument.get_help().is_some(), "{} {}", verb.get_name(), argument.get_id());
            }
        }
    }

    // What the library chooses when nobody asks is what the help says.
    #[test]
    fn defaults_are_the_librarys() {
        let args = Args::parse_from(["wireloom", "serve"]);
        let Command::Serve(serve) = args.command else { panic!("serve") };
        let mut config = serve.config();
        // The command compresses when a client asks; a library leaves that to its user.
        assert!(config.deflate.take().is_some());
        assert_eq!(config, wireloom::ServerConfig::default());
    }
}
