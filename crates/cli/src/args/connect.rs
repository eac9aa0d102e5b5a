//! The arguments of `wireloom connect`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};

use super::join::Join;
use super::record::Record;
use super::value::{self, Resolve, has_scheme};
use crate::exit::exit_codes;

const AFTER: &str = concat!(
    "\
With a ws:// or wss:// URL, connect opens a WebSocket. Each line of the standard input is sent as a
message, and each message received is printed on a line. On a terminal lines can be edited, and the
arrow keys recall earlier ones; a line that begins with a space is not kept. Control characters in
messages are escaped on a terminal.

When the input ends, connect goes on receiving. It closes the WebSocket
  on a terminal (Ctrl-D): at once;
  otherwise: after --linger without a message, or after 250ms when there were as many messages as
  lines sent. If there were fewer, or the input was empty (</dev/null, cron), it says so.
--no-close never closes, --recv-only does not read the input, and --expect and --count close once
they are met. SIGINT and SIGTERM close with 1001. What the server sent before its Close is printed.

For scripts: --send sends a message instead of the input, which is not read then. With --expect or
--count the lines of a pipe or file are sent, but those of a terminal are not read.

With an http:// or https:// URL, connect makes a request and prints the content of the response.
http:// uses HTTP/1.1, or HTTP/2 with --http2; https:// uses what the server prefers (ALPN).
ws+unix:PATH:/RESOURCE and http+unix:PATH:/RESOURCE are those of a server at a Unix socket.

With --exec the WebSocket is joined to a program instead: a line that it prints is a message, and a
message is a line of its standard input (--framing). At its end the WebSocket is closed, with 1011
if its exit code is not 0; `wireloom help listen` has the table.

Commands on a terminal:
  /ping [TEXT]          send a ping; the round-trip time is printed
  /close [CODE REASON]  close the WebSocket, with 1000 if no code is given
  /binary HEX           send a binary message
  //TEXT                send a text message that begins with a slash

Formats of --in and --out:
  lines     a message per line
  raw       in: the whole input is one message; out: payloads, and nothing else
  base64    a message per line, in base64
  hex       a message per line, in hexadecimal; connect URL --in hex --send 00ff sends two bytes
  prefixed  before each message its length, as 4 bytes, big-endian

",
    exit_codes!(),
    "
Try it:
  echo hello | wireloom connect ws://127.0.0.1:8080/echo
  wireloom connect ws://127.0.0.1:8080/echo --send hello --expect hello
  seq 1000 | wireloom connect ws://127.0.0.1:8080/echo --count 1000 --timeout 10
  wireloom connect 'ws://127.0.0.1:8080/source?size=5000&count=100000' --count 100000 --quiet
  wireloom connect wss://127.0.0.1:8443/rooms/lobby --http2 --insecure
  wireloom connect ws://127.0.0.1:8080/echo --send-file photo.jpg --out raw --count 1 -o copy.jpg
  wireloom connect http://127.0.0.1:8080/echo --data hello
  wireloom connect ws://127.0.0.1:8080/echo --exec 'seq 3'
  tar cz . | wireloom connect https://127.0.0.1:8443/sink --insecure --data @-"
);

#[derive(Args, Debug)]
#[command(after_help = AFTER)]
pub(crate) struct Connect {
    /// ws:// or wss:// for a WebSocket, http:// or https:// for a request; without a scheme ws://
    #[arg(value_name = "URL", value_parser = value::url)]
    pub(crate) url: String,
    /// Add a header; may be repeated. Host and Origin replace the usual ones
    #[arg(long, short = 'H', value_name = "NAME: VALUE", value_parser = value::header, allow_hyphen_values = true)]
    pub(crate) header: Vec<(String, String)>,
    /// Send a user name and password (Basic authentication)
    #[arg(long, short = 'u', value_name = "USER:PASSWORD")]
    pub(crate) user: Option<String>,
    /// Send these cookies; may be repeated
    #[arg(long, short = 'b', value_name = "NAME=VALUE", value_parser = value::cookies)]
    pub(crate) cookie: Vec<String>,
    /// The User-Agent to send
    #[arg(long, short = 'A', value_name = "NAME")]
    pub(crate) user_agent: Option<String>,
    /// Offer a subprotocol; may be repeated, the preferred one first
    #[arg(long, value_name = "NAME")]
    pub(crate) subprotocol: Vec<String>,
    /// The origin to send, as browsers do
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) origin: Option<String>,
    /// Time limit for connecting, and for all of a request, --expect or --count
    #[arg(long, value_name = "TIME", value_parser = value::time)]
    pub(crate) timeout: Option<Duration>,

    #[command(flatten)]
    pub(crate) display: Display,
    #[command(flatten)]
    pub(crate) route: Route,
    #[command(flatten)]
    pub(crate) messages: Messages,
    #[command(flatten)]
    pub(crate) closing: Closing,
    #[command(flatten)]
    pub(crate) script: Script,
    #[command(flatten)]
    pub(crate) request: Request,
    #[command(flatten)]
    pub(crate) join: Join,
    #[command(flatten)]
    pub(crate) record: Record,
    #[command(flatten)]
    pub(crate) tls: Tls,
}

impl Connect {
    /// Whether the messages to send are arguments, so that the input is not read.
    pub(crate) fn has_sends(&self) -> bool {
        !self.script.send.is_empty() || !self.script.send_file.is_empty()
    }

    /// Whether the connection ends when certain messages have arrived.
    pub(crate) fn is_expecting(&self) -> bool {
        !self.script.expect.is_empty() || self.script.count.is_some()
    }

    /// Whether the input is read. A script reads no terminal.
    pub(crate) fn reads_input(&self) -> bool {
        use std::io::IsTerminal as _;
        let is_scripts_terminal = self.is_expecting() && std::io::stdin().is_terminal();
        !self.closing.recv_only && !self.has_sends() && !is_scripts_terminal
    }

    /// Whether the URL asks for a request rather than a WebSocket.
    pub(crate) fn is_request(&self) -> bool {
        ["http", "https", "http+unix"].iter().any(|scheme| has_scheme(&self.url, scheme))
    }

    /// Whether the head of the response is printed.
    pub(crate) fn shows_head(&self) -> bool {
        self.display.include || self.request.head
    }

    /// Whether messages are sent as binary.
    pub(crate) fn is_binary(&self) -> bool {
        self.messages.binary || (!self.messages.text && self.messages.input != Format::Lines)
    }

    /// How many redirects to follow.
    pub(crate) fn redirects_max(&self) -> u8 {
        /// As many as Chromium and Go follow by default, about.
        const FOLLOWED: u8 = 10;
        self.route.redirects.unwrap_or(if self.route.location { FOLLOWED } else { 0 })
    }

    fn mode(&self) -> Mode {
        if self.is_request() {
            Mode::Request
        } else if self.join.exec.is_some() {
            Mode::Program
        } else if self.route.reconnect {
            Mode::Reconnect
        } else if self.is_expecting() {
            Mode::Expect
        } else {
            Mode::Messages
        }
    }

    /// A sentence about an option that would be ignored; `None` if there is none.
    pub(crate) fn conflict(&self) -> Option<String> {
        use Mode::{Expect, Messages, Program, Reconnect, Request};
        const WEBSOCKET: &[Mode] = &[Messages, Expect, Reconnect, Program];
        const INPUT: &[Mode] = &[Messages, Expect, Reconnect];
        let modes_of = [
            ("--method", self.request.method.is_some(), &[Request][..]),
            ("--data", self.request.data.is_some(), &[Request]),
            ("--head", self.request.head, &[Request]),
            ("--response-timeout", self.request.response_timeout.is_some(), &[Request]),
            ("--stall-timeout", self.request.stall_timeout.is_some(), &[Request]),
            ("--http1.1", self.route.http1, &[Request]),
            ("--subprotocol", !self.subprotocol.is_empty(), WEBSOCKET),
            ("--compress", self.messages.compress, WEBSOCKET),
            ("--max-message", self.messages.max_message.is_some(), WEBSOCKET),
            ("--exec", self.join.exec.is_some(), &[Program]),
            ("--framing", self.join.framing.is_some(), &[Program]),
            ("--grace", self.join.grace.is_some(), &[Program]),
            ("--reconnect", self.route.reconnect, &[Reconnect]),
            ("--binary", self.messages.binary, INPUT),
            ("--text", self.messages.text, INPUT),
            ("--in", self.messages.input != Format::Lines, INPUT),
            ("--out", self.messages.output != Format::Lines, INPUT),
            ("--timestamps", self.display.timestamps, INPUT),
            ("--ping", self.messages.ping.is_some(), INPUT),
            ("--no-close", self.closing.no_close, &[Messages, Reconnect]),
            ("--recv-only", self.closing.recv_only, INPUT),
            ("--output", self.display.output.is_some(), &[Request, Messages, Expect, Reconnect]),
            ("--json", self.display.json, &[Messages, Expect]),
            ("--send", !self.script.send.is_empty(), &[Messages, Expect]),
            ("--send-file", !self.script.send_file.is_empty(), &[Messages, Expect]),
            ("--expect", !self.script.expect.is_empty(), &[Expect]),
            ("--count", self.script.count.is_some(), &[Expect]),
            ("--linger", self.closing.linger.is_some(), &[Messages]),
        ];
        let mode = self.mode();
        let ignored = modes_of.iter().find(|(_, is_given, modes)| *is_given && !modes.contains(&mode));
        if let Some((name, _, modes)) = ignored {
            return Some(match (mode, *modes) {
                (Request, _) => format!("{name} does not apply to an http:// URL"),
                (_, [Request]) => format!("{name} does not apply to a WebSocket URL"),
                (_, [Program]) => format!("{name} needs --exec"),
                (Program, _) => format!("{name} does not apply to the program of --exec"),
                (Reconnect, _) => format!("{name} does not apply to --reconnect"),
                _ => format!("{name} does not apply to --expect and --count"),
            });
        }
        let is_text = !matches!(self.messages.output, Format::Raw | Format::Prefixed);
        // Notes have times with any output.
        (self.display.timestamps && !is_text && self.display.verbose == 0)
            .then(|| "--timestamps needs --out lines, base64 or hex, or -v".to_owned())
    }
}

/// The mode of the command, which decides which options apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Request,
    /// Sends and receives until one end closes.
    Messages,
    /// Until certain messages have arrived.
    Expect,
    Reconnect,
    /// Joins the WebSocket to a program.
    Program,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Output")]
pub(crate) struct Display {
    /// Print no messages, and no content of responses
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Print what happens: -v the connection and the handshake, -vv each message and ping, -vvv each frame
    #[arg(long, short, action = ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Print passwords, cookies, tokens and queries in -v, too
    #[arg(long)]
    pub(crate) show_secrets: bool,
    /// Print the response's status and headers before messages or content
    #[arg(long, short)]
    pub(crate) include: bool,
    /// Write messages or content to this file
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Print an object per line for each event, in both directions: time, direction, type, length, payload or base64, close code
    #[arg(long, conflicts_with_all = ["output_format", "quiet", "include", "timestamps"])]
    pub(crate) json: bool,
    /// Print the time (UTC) before each message and note
    #[arg(long, short)]
    pub(crate) timestamps: bool,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Route {
    /// Connect through a proxy: http://, https://, socks5:// or socks5h:// (the proxy resolves names), with USER:PASSWORD@ if it
    /// requires that
    #[arg(long, value_name = "URL")]
    pub(crate) proxy: Option<String>,
    /// Connect through the proxy of the environment (https_proxy, http_proxy, all_proxy, no_proxy)
    #[arg(long, conflicts_with = "proxy")]
    pub(crate) proxy_from_env: bool,
    /// Connect to this address instead of resolving the host; may be repeated
    #[arg(long, value_name = "HOST:PORT:ADDRESS", value_parser = value::resolve)]
    pub(crate) resolve: Vec<Resolve>,
    /// Use HTTP/2 and nothing else: by ALPN for wss:// and https://, by prior knowledge for ws:// and http://. A WebSocket is opened
    /// by extended CONNECT (RFC 8441)
    #[arg(long)]
    pub(crate) http2: bool,
    /// Make the request over HTTP/1.1 and nothing else
    #[arg(long = "http1.1", conflicts_with = "http2")]
    pub(crate) http1: bool,
    /// The longest head of a response over HTTP/1.1
    #[arg(long, value_name = "BYTES", default_value = "256K", value_parser = value::memory)]
    pub(crate) max_head: usize,
    /// Follow up to 10 redirects. Headers given here are not sent to another origin
    #[arg(long, short = 'L')]
    pub(crate) location: bool,
    /// Follow up to this many redirects
    #[arg(long, value_name = "N")]
    pub(crate) redirects: Option<u8>,
    /// Open the WebSocket again when it is lost, and report what may be lost with it. Goes on after the end of the input, unless input and
    /// output are a terminal
    #[arg(long)]
    pub(crate) reconnect: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Lines,
    Raw,
    Base64,
    Hex,
    Prefixed,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Messages")]
pub(crate) struct Messages {
    /// Send binary messages instead of text; the default for every --in but lines
    #[arg(long)]
    pub(crate) binary: bool,
    /// Send text messages, with any --in
    #[arg(long, conflicts_with = "binary")]
    pub(crate) text: bool,
    /// How the input is split into messages
    #[arg(long = "in", value_name = "FORMAT", value_enum, default_value_t = Format::Lines, hide_possible_values = true)]
    pub(crate) input: Format,
    /// How messages are written
    #[arg(long = "out", id = "output_format", value_name = "FORMAT", value_enum, default_value_t = Format::Lines, hide_possible_values = true)]
    pub(crate) output: Format,
    /// Offer compression (permessage-deflate)
    #[arg(long)]
    pub(crate) compress: bool,
    /// Send a ping at this interval
    #[arg(long, value_name = "TIME", value_parser = value::time)]
    pub(crate) ping: Option<Duration>,
    /// The longest message to accept; 64M by default
    #[arg(long, value_name = "BYTES", value_parser = value::size)]
    pub(crate) max_message: Option<u64>,
    /// Do not save typed lines to the history
    #[arg(long)]
    pub(crate) no_history: bool,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Closing")]
pub(crate) struct Closing {
    /// After the end of the input, close when no message has arrived for this long; 3s by default, 0 closes at once
    #[arg(long, value_name = "TIME", value_parser = value::time_or_zero)]
    pub(crate) linger: Option<Duration>,
    /// After the end of the input, receive until the server closes
    #[arg(long, conflicts_with = "linger")]
    pub(crate) no_close: bool,
    /// Do not read the input; receive until the server closes
    #[arg(long, conflicts_with_all = ["linger", "send", "send_file"])]
    pub(crate) recv_only: bool,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Scripts")]
pub(crate) struct Script {
    /// Send this message, or the content of @FILE (@- is the standard input, @@ an @); may be repeated. With --in base64 or hex it is
    /// in that format and sent as binary
    #[arg(long, value_name = "MESSAGE", allow_hyphen_values = true)]
    pub(crate) send: Vec<String>,
    /// Send the content of this file as a binary message, after all --send; may be repeated
    #[arg(long, value_name = "FILE")]
    pub(crate) send_file: Vec<PathBuf>,
    /// Expect this message next; may be repeated. With --out base64 or hex it is in that format
    #[arg(long, value_name = "MESSAGE", allow_hyphen_values = true)]
    pub(crate) expect: Vec<String>,
    /// Close after this many messages
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Requests")]
pub(crate) struct Request {
    /// The method; GET by default, or POST with --data
    #[arg(long, short = 'X', value_name = "METHOD", value_parser = value::method)]
    pub(crate) method: Option<String>,
    /// The content: a text, @FILE, or @- for the standard input, which is sent as it is read
    #[arg(long, short = 'd', value_name = "DATA", allow_hyphen_values = true)]
    pub(crate) data: Option<String>,
    /// Request only the head (HEAD), and print it
    #[arg(long, short = 'I', conflicts_with_all = ["method", "data"])]
    pub(crate) head: bool,
    /// How long the head of the response may take; 30s by default
    #[arg(long, value_name = "TIME", value_parser = value::time)]
    pub(crate) response_timeout: Option<Duration>,
    /// How long the content may take to bring another 1 KiB; 60s by default, and no limit for text/event-stream
    #[arg(long, value_name = "TIME", value_parser = value::time)]
    pub(crate) stall_timeout: Option<Duration>,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "TLS")]
pub(crate) struct Tls {
    /// Accept any certificate: the connection can be intercepted
    #[arg(long, short = 'k')]
    pub(crate) insecure: bool,
    /// Trust the certificates in this file (PEM) instead of the platform's: authorities, or the server's own certificate
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    pub(crate) cacert: Option<PathBuf>,
    /// Present this certificate and its chain to a server that asks for one (PEM)
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) cert: Option<PathBuf>,
    /// The certificate's private key (PEM)
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,
    /// Ask for this server name (SNI) and check the certificate against it, instead of the URL's host
    #[arg(long, value_name = "NAME")]
    pub(crate) sni: Option<String>,
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use crate::args::{Args, Command};

    fn conflict(args: &str) -> Option<String> {
        let args = Args::try_parse_from(["wireloom", "connect"].into_iter().chain(args.split(' ')));
        match args.unwrap_or_else(|error| panic!("{error}")).command {
            Command::Connect(connect) => connect.conflict(),
            _ => unreachable!("connect was given"),
        }
    }

    #[test]
    fn refuses_options_that_would_be_ignored() {
        for (args, expected) in [
            ("ws://h/ --data x", "--data does not apply to a WebSocket URL"),
            ("http://h/ --count 1", "--count does not apply to an http:// URL"),
            ("http://h/ --grace 1s", "--grace does not apply to an http:// URL"),
            ("ws://h/ --framing lines", "--framing needs --exec"),
            ("ws://h/ --grace 1s", "--grace needs --exec"),
            ("ws://h/ --exec cat --send a", "--send does not apply to the program of --exec"),
            ("ws://h/ --exec cat --reconnect", "--reconnect does not apply to the program of --exec"),
            ("ws://h/ --reconnect --expect a", "--expect does not apply to --reconnect"),
            ("ws://h/ --reconnect --json", "--json does not apply to --reconnect"),
            ("ws://h/ --reconnect --linger 1s", "--linger does not apply to --reconnect"),
            ("ws://h/ --grace 5s", "--grace needs --exec"),
            ("ws://h/ --count 1 --no-close", "--no-close does not apply to --expect and --count"),
            ("ws://h/ --count 1 --linger 1s", "--linger does not apply to --expect and --count"),
            ("ws://h/ -t --out raw", "--timestamps needs --out lines, base64 or hex, or -v"),
        ] {
            assert_eq!(conflict(args).as_deref(), Some(expected), "{args}");
        }
        for args in [
            "ws://h/ --linger 1s --send a --json --compress",
            "ws://h/ --count 1 --ping 1s -t",
            "ws://h/ -t -vv --out raw -o f",
            "ws://h/ --reconnect --no-close --in hex --out raw -o f",
            "ws://h/ --exec cat --framing lines --grace 1s --max-message 1K",
            "http://h/ --data x -o f",
        ] {
            assert_eq!(conflict(args), None, "{args}");
        }
    }
}
