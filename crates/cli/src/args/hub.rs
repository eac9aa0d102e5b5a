//! The arguments of `wireloom hub`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::value;

const AFTER: &str = "\
Try it:
  wireloom hub config
  wireloom hub token --hub hub.toml --user 42
  wireloom hub check /var/lib/wireloom";

#[derive(Args, Debug)]
#[command(after_help = AFTER)]
pub(crate) struct Hub {
    #[command(subcommand)]
    pub(crate) command: HubCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum HubCommand {
    /// Check the histories that `serve --data` keeps in a directory
    Check(Check),
    /// Make a token for a client, signed with the secret of a configuration
    Token(Token),
    /// Explain all settings, check a configuration, or convert one of Centrifugo
    Config(ConfigCommand),
}

const CHECK_AFTER: &str = "\
Reads all histories, and repairs what a crash has left behind. No server may use the directory
meanwhile.

Exit codes:
  0  everything can be read
  1  there is no file, it cannot be read, or a server uses it
  5  the file is damaged, some publications cannot be read, or the output cannot be written

`serve` does not start with a damaged file. Restore it from a backup, salvage its readable part, or
set it aside: the next start then begins without histories, and clients that reconnect receive
`recovered: false`. Salvaging helps with damage in the middle of the file. From a truncated file
usually nothing can be read, because the roots of the database are often at its end.

Try it:
  wireloom hub check /var/lib/wireloom
  wireloom hub check --salvage /var/lib/wireloom";

#[derive(Args, Debug)]
#[command(after_help = CHECK_AFTER)]
pub(crate) struct Check {
    /// The directory
    pub(crate) dir: PathBuf,
    /// If the file is damaged, rename it
    #[arg(long)]
    pub(crate) set_aside: bool,
    /// If the file is damaged, rename it, and write what can be read of each channel into a new one
    #[arg(long, conflicts_with = "set_aside")]
    pub(crate) salvage: bool,
}

const TOKEN_AFTER: &str = "\
The token is a JSON Web Token, printed to the standard output. It is signed with [token]
hmac_secret, and with that of [token.subscription], if there is one, for a --channel. Anyone who has
it acts as the user until it expires.

Exit codes:
  0  the token is printed
  1  the file cannot be read or used, or a variable names no setting
  5  the output cannot be written

Try it:
  wireloom hub token --hub hub.toml --user 42 --ttl 10m
  wireloom hub token --hub hub.toml --user 42 --channel '$chat:x'";

#[derive(Args, Debug)]
#[command(after_help = TOKEN_AFTER)]
pub(crate) struct Token {
    /// The configuration, as for `wireloom serve`
    #[arg(long, value_name = "FILE")]
    pub(crate) hub: PathBuf,
    /// The user; without it the token is for an anonymous client
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    pub(crate) user: String,
    /// Make a token for a subscription to this channel, not for a connection
    #[arg(long, value_name = "CHANNEL", conflicts_with = "subscribe")]
    pub(crate) channel: Option<String>,
    /// Subscribe the connection to this channel from the start. May be repeated
    #[arg(long, value_name = "CHANNEL")]
    pub(crate) subscribe: Vec<String>,
    /// What other clients see of this one: a JSON value
    #[arg(long, value_name = "JSON", value_parser = value::json)]
    pub(crate) info: Option<String>,
    /// What endpoints with `include_connection_meta` receive, and no client: a JSON value
    #[arg(long, value_name = "JSON", value_parser = value::json, conflicts_with = "channel")]
    pub(crate) meta: Option<String>,
    /// How long the token is valid
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = value::time)]
    pub(crate) ttl: Duration,
}

const CONFIG_AFTER: &str = "\
Environment variables that begin with WIRELOOM_HUB_ replace settings of the file, here as for
`serve`, also without --hub.

Exit codes:
  0  the configuration can be used
  1  the file cannot be read or used, or a variable names no setting
  5  a configuration of Centrifugo cannot be converted, or the result needs a change; or the output
     cannot be written

Try it:
  wireloom hub config
  wireloom hub config hub.toml
  wireloom hub config --from-centrifugo config.json >hub.toml";

#[derive(Args, Debug)]
#[command(after_help = CONFIG_AFTER)]
pub(crate) struct ConfigCommand {
    /// Check this file. Without it, all settings are printed with their defaults
    pub(crate) file: Option<PathBuf>,
    /// Print this configuration of Centrifugo (JSON) as one of the hub; settings without a counterpart are listed on the standard error
    #[arg(long, value_name = "FILE", conflicts_with = "file")]
    pub(crate) from_centrifugo: Option<PathBuf>,
}
