//! Options that join a WebSocket to a stream of bytes: the program of `--exec`, and how bytes become messages. `connect` and `listen` share them.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::value;

/// The default of `--grace`; its help names it.
const GRACE: Duration = Duration::from_secs(5);

/// How a stream of bytes is split into messages, and messages become bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Framing {
    /// A line is a text message, and a message is a line
    Lines,
    /// Each read is a binary message; payloads are written as they are
    Bytes,
    /// Before each message its length, as 4 bytes, big-endian; messages are sent as binary
    Prefixed,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Joining")]
pub(crate) struct Join {
    /// Run this command with the shell for each WebSocket: what it prints is sent, and what arrives is its standard input
    #[arg(long, value_name = "COMMAND")]
    pub(crate) exec: Option<String>,
    /// How bytes become messages, and messages bytes: lines by default for programs and the standard input, bytes for tcp: and unix:
    #[arg(long, value_name = "FRAMING", value_enum)]
    pub(crate) framing: Option<Framing>,
    /// How long the other end may take to end once its WebSocket is closed: then a program is terminated, and a socket is closed
    /// [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = value::time)]
    pub(crate) grace: Option<Duration>,
}

impl Join {
    pub(crate) fn grace(&self) -> Duration {
        self.grace.unwrap_or(GRACE)
    }
}
