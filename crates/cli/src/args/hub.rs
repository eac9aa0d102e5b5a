//! The arguments of `wireloom hub`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

const AFTER: &str = "\
Try it:
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
}

const CHECK_AFTER: &str = "\
Reads all histories, and repairs what a crash has left behind. No server may use the directory meanwhile.

Exit codes:
  0  everything can be read
  1  there is no file, it cannot be read, or a server uses it
  5  the file is damaged, or some publications cannot be read

A damaged file keeps `serve` from starting. Restore it from a backup, or set it aside: the next start then begins without
histories, and clients that reconnect are told that they cannot recover.

Try it:
  wireloom hub check /var/lib/wireloom
  wireloom hub check --set-aside /var/lib/wireloom";

#[derive(Args, Debug)]
#[command(after_help = CHECK_AFTER)]
pub(crate) struct Check {
    /// The directory
    pub(crate) dir: PathBuf,
    /// If the file is damaged, rename it
    #[arg(long)]
    pub(crate) set_aside: bool,
}
