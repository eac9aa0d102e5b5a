//! The arguments for recordings, which `serve` and `connect` share.

use std::path::PathBuf;

use clap::Args;

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Recording")]
pub(crate) struct Record {
    /// Write the bytes of all connections, above TLS, to this file, for `wireloom inspect`. Credentials, cookies and tokens in heads are
    /// masked; messages and bodies are not. A new file is readable only by its user
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
    /// Do not mask credentials, cookies and tokens in the recording
    #[arg(long, requires = "record")]
    pub(crate) record_secrets: bool,
}
