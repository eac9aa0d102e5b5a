//! The arguments, and the help that explains them.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{ArgAction, Args as ClapArgs, Parser, Subcommand};

/// WebSocket from the shell.
#[derive(Debug, Parser)]
#[command(name = "wireloom", version, disable_help_subcommand = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve WebSocket and HTTP/1.1: an echo, rooms, a sink, a source
    Serve(Box<Serve>),
    /// Connect to a WebSocket: lines go out, messages come in
    Connect(Box<Connect>),
}

const SERVE_AFTER: &str = "\
Routes:
  /             a page that names them
  /echo         sends back each message, or the body of a request
  /rooms/NAME   gives each message to all members of the room
  /sink         counts and discards
  /source       sends: ?size=BYTES (1024) &rate=MESSAGES A SECOND (0: as fast as they are taken) &count=MESSAGES (0: endless)
  /healthz      ok
  /metrics      numbers for Prometheus

SIGTERM or SIGINT shuts down: no new connections, close code 1001, and what is left is cut after --grace. A second one
cuts at once.

Exit codes: 0 after a shutdown, 1 when it could not begin, 2 for wrong arguments.

Try it:
  wireloom serve &
  wireloom connect ws://127.0.0.1:8080/echo";

#[derive(ClapArgs, Debug)]
#[command(after_help = SERVE_AFTER)]
pub(crate) struct Serve {
    /// Where to listen
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub(crate) listen: SocketAddr,
    /// Listen for TLS too; without --cert with a certificate made for this run
    #[arg(long)]
    pub(crate) tls: bool,
    /// Where to listen for TLS
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8443")]
    pub(crate) tls_listen: SocketAddr,
    /// The certificate and its chain (PEM); read again when it changes
    #[arg(long, value_name = "FILE", requires = "key", requires = "tls")]
    pub(crate) cert: Option<PathBuf>,
    /// The certificate's key (PEM)
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,
    /// Let pages of this origin connect, such as https://example.com; * for all. Pages from here always may, and clients that
    /// are no browsers. May be repeated
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) allow_origin: Vec<String>,
    /// Do not compress, also when clients ask for it
    #[arg(long)]
    pub(crate) no_compress: bool,
    /// The longest message, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20)]
    pub(crate) max_message: u64,
    /// The longest body of a request, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20)]
    pub(crate) max_body: usize,
    /// Connections at once
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = positive)]
    pub(crate) max_connections: usize,
    /// Connections at once from one address
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) max_per_address: Option<usize>,
    /// How long TLS and a request's head may take
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub(crate) handshake_timeout: u64,
    /// Ping clients that have been quiet for so long, and cut those that stay quiet three times as long
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) ping: Option<u64>,
    /// How long connections may take to end at shutdown
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub(crate) grace: u64,
    /// Threads; as many as there are processors by default
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) workers: Option<usize>,
}

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if (1..=1 << 28).contains(&number) => Ok(number),
        _ => Err("a number from 1 on".into()),
    }
}

const CONNECT_AFTER: &str = "\
Lines of the standard input are sent, each as a message; messages go to the standard output, each on a line. At the end of
the input the connection is closed, and what still arrives is printed. With --send, --expect or --count the input is not
read.

Exit codes:
  0  closed with 1000, 1001 or without a code
  1  no connection: not found, refused, timed out, or the handshake failed
  2  wrong arguments
  3  the peer closed with another code
  4  --expect or --count was not met
  5  the connection was cut, or the peer broke the protocol

Try it:
  echo hello | wireloom connect ws://127.0.0.1:8080/echo
  wireloom connect ws://127.0.0.1:8080/echo --send hello --expect hello
  wireloom connect 'ws://127.0.0.1:8080/source?size=5000&count=100000' --count 100000 --quiet";

#[derive(ClapArgs, Debug)]
#[command(after_help = CONNECT_AFTER)]
pub(crate) struct Connect {
    /// ws:// or wss://
    #[arg(value_name = "URL")]
    pub(crate) url: String,
    /// Add a header to the handshake; may be repeated
    #[arg(long, short = 'H', value_name = "NAME: VALUE", value_parser = header)]
    pub(crate) header: Vec<(String, String)>,
    /// Offer a subprotocol; may be repeated, the preferred one first
    #[arg(long, value_name = "NAME")]
    pub(crate) subprotocol: Vec<String>,
    /// The origin to name, as browsers do
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) origin: Option<String>,
    /// Send binary messages instead of text
    #[arg(long)]
    pub(crate) binary: bool,
    /// Offer compression
    #[arg(long)]
    pub(crate) compress: bool,
    /// Send a ping every so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) ping: Option<u64>,
    /// Trust any certificate: whoever is in between can read and change everything
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Trust the certificates in this file (PEM) instead of the platform's
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    pub(crate) ca: Option<PathBuf>,
    /// Follow so many redirects
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) redirects: u8,
    /// Send this message; may be repeated
    #[arg(long, value_name = "MESSAGE")]
    pub(crate) send: Vec<String>,
    /// Expect this message next; may be repeated
    #[arg(long, value_name = "MESSAGE")]
    pub(crate) expect: Vec<String>,
    /// Close after so many messages have come
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// Give up --expect and --count after so many seconds; connecting too
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) timeout: Option<u64>,
    /// The longest message to take, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20)]
    pub(crate) max_message: u64,
    /// Print no messages
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Say what happens: -v the connection and its end, -vv each message
    #[arg(long, short, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("a header is NAME: VALUE")?;
    Ok((name.trim().into(), value.trim().into()))
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
    fn reads_headers() {
        assert_eq!(header("Cookie: a=b: c"), Ok(("Cookie".into(), "a=b: c".into())));
        assert!(header("Cookie").is_err());
    }
}
