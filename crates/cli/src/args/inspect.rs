//! The arguments of `wireloom inspect`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::exit::exit_codes;

const AFTER: &str = concat!(
    "\
Reads pcap and pcapng (tcpdump, Wireshark), HAR (browsers), hexdumps (xxd, hexdump -C, od -t x1),
raw bytes, and recordings of `serve` and `connect` (--record). Packets are reassembled to
connections; TLS is decrypted with the secrets of --key-log, of SSLKEYLOGFILE, or of the capture
itself.

Each line shows one frame:
  time since the first one, > from the client or < from the server, connection and stream of HTTP/2,
  protocol and type, flags, length of the payload in bytes, and the beginning of the content.
A line that begins with ! names the rule that the frame breaks, or what is missing in the capture.

Control characters from the capture are escaped. Credentials, cookies and tokens in heads are
masked, and field blocks that cannot be read are left out, unless --show-secrets is given.

",
    exit_codes!(),
    "
Try it:
  tcpdump -i lo -w capture.pcap 'tcp port 8080'
  wireloom inspect capture.pcap
  wireloom inspect capture.pcap --opcode text --from client -v
  wireloom inspect capture.pcap --json | jq 'select(.problems)'
  tcpdump -i lo -U -w - 'tcp port 8080' | wireloom inspect -"
);

#[derive(Args, Debug)]
#[command(after_help = AFTER)]
pub(crate) struct Inspect {
    /// The file, or - for the standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    #[command(flatten)]
    pub(crate) input: Input,
    #[command(flatten)]
    pub(crate) filter: Filter,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Input")]
pub(crate) struct Input {
    /// The format of the input
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) format: InputFormat,
    /// The protocol of the first bytes, where the capture begins in the middle of a connection
    #[arg(long, value_enum, default_value_t, value_name = "PROTOCOL")]
    pub(crate) protocol: Proto,
    /// The sender of raw bytes, and of the lines of a hexdump without > or <
    #[arg(long, value_enum, default_value = "client", value_name = "SIDE")]
    pub(crate) sender: Side,
    /// Decrypt TLS with the secrets of this file, in the format of SSLKEYLOGFILE; that variable names the default
    #[arg(long, value_name = "FILE")]
    pub(crate) key_log: Option<PathBuf>,
    /// Wait for more at the end of the file, until SIGINT (Ctrl-C) or SIGTERM
    #[arg(long, short = 'f')]
    pub(crate) follow: bool,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Filters: entries that match all kinds given, and any value of each")]
pub(crate) struct Filter {
    /// Show a connection, 2, or a stream of HTTP/2 in it, 2:5; may be repeated
    #[arg(long, value_name = "N[:STREAM]", value_parser = StreamFilter::parse)]
    pub(crate) stream: Vec<StreamFilter>,
    /// Show WebSocket frames with an opcode: text, binary, continuation, close, ping, pong, or a number; may be repeated
    #[arg(long, value_name = "OPCODE", value_parser = opcode)]
    pub(crate) opcode: Vec<String>,
    /// Show frames of a type, such as HEADERS, SETTINGS or request; may be repeated
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) kind: Vec<String>,
    /// Show what this side sent
    #[arg(long, value_enum, value_name = "SIDE")]
    pub(crate) from: Option<Side>,
    /// Show entries whose content, field names or field values contain this text, in any case
    #[arg(long, value_name = "TEXT")]
    pub(crate) text: Option<String>,
    /// Show entries that break a rule, are incomplete or cannot be decoded
    #[arg(long)]
    pub(crate) problems: bool,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Output")]
pub(crate) struct Output {
    /// Explain each field, with the section of the RFC that defines it
    #[arg(long, short)]
    pub(crate) verbose: bool,
    /// Print one JSON object per line
    #[arg(long, conflicts_with = "full")]
    pub(crate) json: bool,
    /// Print a summary of each stream instead of its frames
    #[arg(long, conflicts_with_all = ["verbose", "full"])]
    pub(crate) stats: bool,
    /// Print whole contents, up to 1 MiB, below the lines
    #[arg(long)]
    pub(crate) full: bool,
    /// Print times of day in UTC instead of seconds since the first entry
    #[arg(long)]
    pub(crate) absolute: bool,
    /// Print credentials, cookies and tokens in heads
    #[arg(long)]
    pub(crate) show_secrets: bool,
}

/// The format of the input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum InputFormat {
    /// By its first bytes
    #[default]
    Auto,
    /// pcap or pcapng
    Pcap,
    /// HTTP Archive
    Har,
    /// Lines of hexadecimal digits
    Hexdump,
    /// The bytes themselves
    Raw,
    /// A recording of `--record`
    Recording,
}

/// The protocol of the first bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Proto {
    /// By the bytes
    #[default]
    Auto,
    /// WebSocket frames
    Ws,
    /// HTTP/2 frames
    H2,
    /// HTTP/1.1
    Http1,
}

/// A side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Side {
    /// The client
    Client,
    /// The server
    Server,
}

/// The type of the entries of an opcode, such as `TEXT`.
fn opcode(text: &str) -> Result<String, String> {
    const NAMES: [(u8, &str); 6] =
        [(0, "CONTINUATION"), (1, "TEXT"), (2, "BINARY"), (8, "CLOSE"), (9, "PING"), (10, "PONG")];
    let number = match text.strip_prefix("0x") {
        Some(digits) => u8::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let named = NAMES.iter().find(|(of, name)| number == Some(*of) || name.eq_ignore_ascii_case(text));
    match (named, number) {
        (Some((_, name)), _) => Ok((*name).into()),
        (None, Some(number @ ..=0xf)) => Ok(format!("opcode {number:#x}")),
        _ => Err("an opcode is text, binary, continuation, close, ping, pong, or a number up to 15".into()),
    }
}

/// A connection, or a stream in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamFilter {
    pub(crate) connection: u32,
    pub(crate) stream: Option<u32>,
}

impl StreamFilter {
    fn parse(text: &str) -> Result<Self, String> {
        let parse = |number: &str| {
            number.parse().map_err(|_| "it is a connection, 2, or a connection and a stream, 2:5".to_owned())
        };
        match text.split_once(':') {
            None => Ok(Self { connection: parse(text)?, stream: None }),
            Some((connection, stream)) => {
                Ok(Self { connection: parse(connection)?, stream: Some(parse(stream)?) })
            }
        }
    }
}
