//! The arguments of `wireloom connect`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args};

use super::value;

const AFTER: &str = "\
Lines of the standard input are sent, each as a message; messages go to the standard output, each
on a line. At the end of the input the connection is closed, and what still arrives is printed.

For scripts: --send says what to send instead of the input, which is not read then. With --expect
or --count the lines of a pipe or a file are sent, those of a terminal are not read, and the
connection stays open until all that was asked for has come, or --timeout ends it.

On a terminal lines can be edited, and the arrow keys find earlier ones; a line that begins with a
space is not kept. What a peer sends cannot steer the terminal.

With an http:// or https:// URL a request is made, over HTTP/2 or, where the server has nothing
newer and --http2 is not given, over HTTP/1.1; the content of the response is printed as it comes.

Exit codes:
  0  closed with 1000, 1001 or without a code
  1  no connection: not found, refused, timed out, or the handshake failed
  2  wrong arguments
  3  the peer closed with another code, or answered a request with 400 or more
  4  --expect or --count was not met
  5  the connection was cut, the peer broke the protocol, or the output cannot be written

Try it:
  echo hello | wireloom connect ws://127.0.0.1:8080/echo
  wireloom connect ws://127.0.0.1:8080/echo --send hello --expect hello
  seq 1000 | wireloom connect ws://127.0.0.1:8080/echo --count 1000 --timeout 10
  wireloom connect 'ws://127.0.0.1:8080/source?size=5000&count=100000' --count 100000 --quiet
  wireloom connect wss://127.0.0.1:8443/rooms/lobby --http2 --insecure
  wireloom connect http://127.0.0.1:8080/echo --data hello
  tar cz . | wireloom connect https://127.0.0.1:8443/sink --insecure --data @-";

#[derive(Args, Debug)]
#[command(after_help = AFTER)]
pub(crate) struct Connect {
    /// ws:// or wss://, or http:// or https:// to make a request
    #[arg(value_name = "URL")]
    pub(crate) url: String,
    /// Add a header to the handshake; may be repeated
    #[arg(long, short = 'H', value_name = "NAME: VALUE", value_parser = value::header)]
    pub(crate) header: Vec<(String, String)>,
    /// Offer a subprotocol; may be repeated, the preferred one first
    #[arg(long, value_name = "NAME")]
    pub(crate) subprotocol: Vec<String>,
    /// The origin to name, as browsers do
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) origin: Option<String>,
    /// Give up connecting after so long, and --expect and --count too
    #[arg(long, value_name = "TIME", value_parser = value::time)]
    pub(crate) timeout: Option<Duration>,
    /// Print no messages
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Say what happens: -v the handshake and the end, -vv each frame too
    #[arg(long, short, action = ArgAction::Count)]
    pub(crate) verbose: u8,

    #[command(flatten)]
    pub(crate) route: Route,
    #[command(flatten)]
    pub(crate) messages: Messages,
    #[command(flatten)]
    pub(crate) script: Script,
    #[command(flatten)]
    pub(crate) request: Request,
    #[command(flatten)]
    pub(crate) tls: Tls,
}

impl Connect {
    /// What is sent, or what is to come, was said beforehand.
    pub(crate) fn is_scripted(&self) -> bool {
        !self.script.send.is_empty() || self.is_expecting()
    }

    /// What is to come was said: the connection ends when it has, not with the input.
    pub(crate) fn is_expecting(&self) -> bool {
        !self.script.expect.is_empty() || self.script.count.is_some()
    }

    /// Whether the URL asks for a request rather than a WebSocket.
    pub(crate) fn is_request(&self) -> bool {
        ["http://", "https://"].iter().any(|scheme| {
            self.url.get(..scheme.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(scheme))
        })
    }

    /// An option that means nothing to this URL.
    pub(crate) fn misplaced(&self) -> Option<&'static str> {
        let of_requests =
            [("--method", self.request.method.is_some()), ("--data", self.request.data.is_some())];
        let of_websockets = [
            ("--subprotocol", !self.subprotocol.is_empty()),
            ("--origin", self.origin.is_some()),
            ("--redirects", self.route.redirects > 0),
            ("--reconnect", self.route.reconnect),
            ("--binary", self.messages.binary),
            ("--compress", self.messages.compress),
            ("--ping", self.messages.ping.is_some()),
            ("--send", !self.script.send.is_empty()),
            ("--expect", !self.script.expect.is_empty()),
            ("--count", self.script.count.is_some()),
        ];
        let misplaced = if self.is_request() { &of_websockets[..] } else { &of_requests };
        misplaced.iter().find_map(|(name, is_given)| is_given.then_some(*name))
    }
}

#[derive(Args, Debug)]
#[command(next_help_heading = "The way there")]
pub(crate) struct Route {
    /// Connect through a proxy: http://, https://, socks5:// or socks5h:// (which resolves names), with USER:PASSWORD@ where it
    /// wants that
    #[arg(long, value_name = "URL")]
    pub(crate) proxy: Option<String>,
    /// Connect through the proxy that the environment names (https_proxy, http_proxy, all_proxy, no_proxy)
    #[arg(long, conflicts_with = "proxy")]
    pub(crate) proxy_from_env: bool,
    /// Open the WebSocket over HTTP/2 (RFC 8441): by ALPN for wss://, by prior knowledge for ws://; make a request over nothing
    /// else
    #[arg(long)]
    pub(crate) http2: bool,
    /// Follow so many redirects
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) redirects: u8,
    /// Open the connection again when it is lost, and say what may be lost with it. Goes on after the end of the input
    #[arg(long, conflicts_with_all = ["send", "expect", "count"])]
    pub(crate) reconnect: bool,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Messages")]
pub(crate) struct Messages {
    /// Send binary messages instead of text
    #[arg(long)]
    pub(crate) binary: bool,
    /// Offer compression
    #[arg(long)]
    pub(crate) compress: bool,
    /// Send a ping every so often
    #[arg(long, value_name = "TIME", value_parser = value::time)]
    pub(crate) ping: Option<Duration>,
    /// The longest message to take
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = value::size)]
    pub(crate) max_message: u64,
    /// Keep no history of the lines that were typed
    #[arg(long)]
    pub(crate) no_history: bool,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "For scripts")]
pub(crate) struct Script {
    /// Send this message instead of lines of the input; may be repeated
    #[arg(long, value_name = "MESSAGE")]
    pub(crate) send: Vec<String>,
    /// Expect this message next; may be repeated
    #[arg(long, value_name = "MESSAGE")]
    pub(crate) expect: Vec<String>,
    /// Close after so many messages have come
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Requests")]
pub(crate) struct Request {
    /// The method; GET by default, or POST with --data
    #[arg(long, short = 'X', value_name = "METHOD", value_parser = value::method)]
    pub(crate) method: Option<String>,
    /// The content: a text, @FILE, or @- for the standard input, which is sent as it comes
    #[arg(long, short = 'd', value_name = "DATA")]
    pub(crate) data: Option<String>,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "TLS")]
pub(crate) struct Tls {
    /// Trust any certificate: whoever is in between can read and change everything
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Trust the certificates in this file (PEM) instead of the platform's
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    pub(crate) cacert: Option<PathBuf>,
    /// Show this certificate, with its chain, to a server that asks (PEM)
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) cert: Option<PathBuf>,
    /// The certificate's key (PEM)
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,
}
