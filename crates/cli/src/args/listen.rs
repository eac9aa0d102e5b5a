//! The arguments of `wireloom listen`.

use std::time::Duration;

use clap::{ArgAction, Args};

use super::connect::Tls;
use super::join::Join;
use super::value::{self, has_scheme};
use crate::exit::exit_codes;

const AFTER: &str = concat!(
    "\
listen accepts connections at ADDRESS and joins each of them to TO, in both directions. One of the
two is a WebSocket, the other a stream of bytes:
  ADDRESS  WebSockets: HOST:PORT, :PORT, ws://HOST:PORT/PATH, wss://HOST:PORT/PATH, ws+unix:PATH
           streams:    tcp:HOST:PORT, unix:PATH
  TO       streams:    - (the standard input and output, for one WebSocket), tcp:HOST:PORT,
                       unix:PATH, or a program (--exec)
           WebSocket:  a ws:// or wss:// URL, or ws+unix:PATH:/RESOURCE

HTTP/1.1 and HTTP/2 are accepted. With a PATH, other paths are answered with 404. Pages of other
origins are refused unless --allow-origin names them: what is joined here trusts its clients.

At the ends:
  the stream ends            what was read is sent, then Close 1000; what still arrives is written
  the peer sends Close       what arrived is written, then the stream's input is ended (FIN, end of
                             the standard input); what the stream still sends is discarded for
                             --grace
  the WebSocket breaks       as for Close; a TCP connection is reset, so that its peer can tell
  the stream fails           Close 1011; a reset connection, a line that is not UTF-8 or too long
  a program exits with N     Close 1000 if N is 0, otherwise 1011 with the reason \"exit code N\"
  a program outlives --grace SIGTERM, and a second later SIGKILL, to its process group, with what
                             the shell has left in the background
  it closes its input        what arrives for it is discarded until it ends
  it does not read its input the peer is held up; one that has left meanwhile is noticed
  TO cannot be reached       WebSockets are answered with 502, accepted streams are reset
  SIGINT or SIGTERM          Close 1001, and no new connections; the second signal ends at once

On a terminal the control characters of what arrives are escaped.

A program finds the peer's address in WIRELOOM_PEER and the target of the request in
WIRELOOM_TARGET. The memory of a connection is bounded: 64 KiB in each direction, and --max-message
with the framings lines and prefixed.

",
    exit_codes!(),
    "
Try it:
  wireloom listen 127.0.0.1:8080                                 # netcat for one WebSocket
  wireloom listen 127.0.0.1:8080 tcp:127.0.0.1:5900              # VNC for a browser
  wireloom listen tcp:127.0.0.1:9000 wss://example.com/tunnel    # the other end of such a tunnel
  wireloom listen 127.0.0.1:8080 --exec 'while read line; do echo \"$line\" | rev; done'
  wireloom listen ws://127.0.0.1:8080/log --exec 'tail -f /var/log/syslog'"
);

#[derive(Args, Debug)]
#[command(after_help = AFTER)]
pub(crate) struct Listen {
    /// Where to listen; see below
    #[arg(value_name = "ADDRESS", value_parser = source)]
    pub(crate) address: Endpoint,
    /// The endpoint to which each connection is joined; see below. The standard input and output by default
    #[arg(value_name = "TO", value_parser = target, conflicts_with = "exec")]
    pub(crate) to: Option<Endpoint>,
    /// Connections at once; further WebSockets are answered with 503, further streams wait
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = value::count)]
    pub(crate) max_connections: usize,
    /// Accept WebSockets from pages of this origin; may be repeated, * for all
    #[arg(long, value_name = "ORIGIN", value_parser = value::origin)]
    pub(crate) allow_origin: Vec<String>,
    /// A subprotocol to accept, or to offer; may be repeated, the preferred one first
    #[arg(long, value_name = "NAME")]
    pub(crate) subprotocol: Vec<String>,
    /// With a URL as TO: add a header; may be repeated
    #[arg(long, short = 'H', value_name = "NAME: VALUE", value_parser = value::header, allow_hyphen_values = true)]
    pub(crate) header: Vec<(String, String)>,
    /// With a URL as TO: use HTTP/2 (RFC 8441)
    #[arg(long)]
    pub(crate) http2: bool,
    /// Accept or offer compression (permessage-deflate)
    #[arg(long)]
    pub(crate) compress: bool,
    /// The longest message to accept, and to read with the framings lines and prefixed
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = value::memory)]
    pub(crate) max_message: usize,
    /// Time limit for reaching TO
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = value::time)]
    pub(crate) timeout: Duration,
    /// Print nothing but errors
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Print when connections are joined and how they end
    #[arg(long, short, action = ArgAction::SetTrue)]
    pub(crate) verbose: bool,

    #[command(flatten)]
    pub(crate) join: Join,
    #[command(flatten)]
    pub(crate) tls: Tls,
}

/// One side of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// The standard input and output.
    Standard,
    Tcp(String),
    Unix(String),
    /// A URL of the scheme `ws`, `wss` or `ws+unix`.
    WebSocket(String),
}

impl Endpoint {
    pub(crate) fn is_websocket(&self) -> bool {
        matches!(self, Self::WebSocket(_))
    }

    fn is_tls(&self) -> bool {
        matches!(self, Self::WebSocket(url) if has_scheme(url, "wss"))
    }
}

impl Listen {
    /// A sentence about arguments that do not go together; `None` if they do.
    pub(crate) fn conflict(&self) -> Option<&'static str> {
        let from_websocket = self.address.is_websocket();
        let to_websocket = self.to.as_ref().is_some_and(Endpoint::is_websocket);
        let has_identity = self.tls.cert.is_some();
        let checks_server = self.tls.insecure || self.tls.cacert.is_some() || self.tls.sni.is_some();
        match (from_websocket, to_websocket) {
            (true, true) => Some("ADDRESS and TO are both WebSockets; one of them is a stream of bytes"),
            (false, false) => {
                Some("with tcp: or unix: as ADDRESS, TO is a WebSocket, such as ws://127.0.0.1:8080/echo")
            }
            (true, false) if !self.header.is_empty() => Some("--header needs a URL as TO"),
            (true, false) if self.http2 => Some("--http2 needs a URL as TO: both versions are accepted here"),
            (true, false) if checks_server => Some("--insecure, --cacert and --sni need a URL as TO"),
            (true, false) if has_identity && !self.address.is_tls() => {
                Some("--cert and --key need a wss:// URL as ADDRESS")
            }
            (false, true) if !self.allow_origin.is_empty() => {
                Some("--allow-origin needs WebSockets at ADDRESS")
            }
            (false, true)
                if (has_identity || checks_server) && !self.to.as_ref().is_some_and(Endpoint::is_tls) =>
            {
                Some("--cert, --key, --insecure, --cacert and --sni need a wss:// URL as TO")
            }
            _ => None,
        }
    }
}

/// An endpoint that can be listened on.
fn source(text: &str) -> Result<Endpoint, String> {
    if has_scheme(text, "ws+unix") {
        return Ok(Endpoint::WebSocket(text.to_owned()));
    }
    if has_scheme(text, "ws") || has_scheme(text, "wss") {
        let (_, rest) = text.split_once("://").ok_or("a URL is ws://HOST:PORT/PATH")?;
        let authority = rest.split(['/', '?']).next().unwrap_or_default();
        value::address(authority)?;
        return Ok(Endpoint::WebSocket(text.to_owned()));
    }
    match stream(text)? {
        Some(endpoint) => Ok(endpoint),
        None => Ok(Endpoint::WebSocket(format!("ws://{}", value::address(text)?))),
    }
}

/// An endpoint that can be joined to.
fn target(text: &str) -> Result<Endpoint, String> {
    if text == "-" {
        return Ok(Endpoint::Standard);
    }
    if ["ws", "wss", "ws+unix"].iter().any(|scheme| has_scheme(text, scheme)) {
        return Ok(Endpoint::WebSocket(text.to_owned()));
    }
    stream(text)?.ok_or_else(|| "it is -, tcp:HOST:PORT, unix:PATH, or a ws:// or wss:// URL".to_owned())
}

fn stream(text: &str) -> Result<Option<Endpoint>, String> {
    match text.split_once(':') {
        Some(("tcp", address)) => Ok(Some(Endpoint::Tcp(value::address(address)?))),
        Some(("unix", path)) if cfg!(unix) && !path.is_empty() => Ok(Some(Endpoint::Unix(path.to_owned()))),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Args, Command};

    fn listen(args: &[&str]) -> Listen {
        let args = Args::try_parse_from(["wireloom", "listen"].iter().chain(args));
        match args.unwrap_or_else(|error| panic!("{error}")).command {
            Command::Listen(listen) => *listen,
            _ => unreachable!("listen was given"),
        }
    }

    #[test]
    fn one_end_is_a_websocket() {
        for args in [
            &["127.0.0.1:8080"][..],
            &[":8080", "-"],
            &["ws://127.0.0.1:8080/vnc", "tcp:127.0.0.1:5900"],
            &["wss://[::1]:0", "unix:/run/socket", "--framing", "lines"],
            &["ws+unix:/run/ws", "--exec", "cat"],
            &["tcp:127.0.0.1:0", "wss://example.com/tunnel", "--http2", "-H", "a: b"],
            &["unix:/run/socket", "ws+unix:/run/ws:/echo"],
            &["wss://127.0.0.1:0", "tcp:127.0.0.1:1", "--cert", "c", "--key", "k"],
            &[
                "tcp:127.0.0.1:1",
                "wss://127.0.0.1:1/",
                "--cert",
                "c",
                "--key",
                "k",
                "--cacert",
                "a",
                "--sni",
                "n",
            ],
        ] {
            assert_eq!(listen(args).conflict(), None, "{args:?}");
        }
        for args in [
            &["127.0.0.1:8080", "ws://127.0.0.1:1/"][..],
            &["tcp:127.0.0.1:1"],
            &["tcp:127.0.0.1:1", "tcp:127.0.0.1:2"],
            &["unix:/run/socket", "--exec", "cat"],
            &["127.0.0.1:8080", "--http2"],
            &["127.0.0.1:8080", "-H", "a: b"],
            &["tcp:127.0.0.1:1", "ws://127.0.0.1:1/", "--allow-origin", "*"],
            &["127.0.0.1:8443", "tcp:127.0.0.1:1", "--cert", "c", "--key", "k"],
            &["ws://127.0.0.1:8443", "--cert", "c", "--key", "k"],
            &["wss://127.0.0.1:0", "tcp:127.0.0.1:1", "--insecure"],
            &["wss://127.0.0.1:0", "tcp:127.0.0.1:1", "--cacert", "a"],
            &["wss://127.0.0.1:0", "tcp:127.0.0.1:1", "--sni", "n"],
            &["tcp:127.0.0.1:1", "ws://127.0.0.1:1/", "--cert", "c", "--key", "k"],
            &["tcp:127.0.0.1:1", "ws://127.0.0.1:1/", "--insecure"],
        ] {
            assert!(listen(args).conflict().is_some(), "{args:?}");
        }
    }

    #[test]
    fn refuses_what_is_no_address() {
        for wrong in ["", "8080", "tcp:8080", "ws://h/", "http://127.0.0.1:1/", "unix:"] {
            assert!(source(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "127.0.0.1:1", "http://127.0.0.1:1/", "tcp:1", "unix:"] {
            assert!(target(wrong).is_err(), "{wrong}");
        }
    }
}
