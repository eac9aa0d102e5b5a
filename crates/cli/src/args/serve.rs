//! The arguments of `wireloom serve`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::http2::{Http2Limits, bounds};
use super::value;

const AFTER: &str = concat!(
    "\
Each address speaks HTTP/1.1 and HTTP/2 (by prior knowledge, Upgrade: h2c or ALPN), and WebSocket
over both.

Routes:
  /             a page that names them
  /echo         sends back each message, or the body of a POST
  /rooms/NAME   gives each message to all members of the room
  /sink         counts and discards messages, or the body of a POST
  /source       sends messages, or the body of the answer to a GET:
                ?size=BYTES (1024)
                &rate=MESSAGES A SECOND (0: as fast as they are taken)
                &count=MESSAGES (0: endless)
  /healthz      says ok
  /metrics      numbers for Prometheus

Sizes are in bytes, or with K, M, G (64K); times in seconds, or with ms, s, m, h (500ms).

SIGTERM or SIGINT shuts down: no new connections, close code 1001 or GOAWAY, and what is left is
cut after --grace. A second one cuts at once.

Exit codes:
  0  after a shutdown
  1  it could not begin: an address is taken, a certificate cannot be read
  2  wrong arguments

Try it:
  wireloom serve &
  wireloom connect ws://127.0.0.1:8080/echo
  curl --data-binary hello http://127.0.0.1:8080/echo

  wireloom serve --tls --cert cert.pem --key key.pem --listen '[::]:80' --tls-listen '[::]:443'

",
    bounds!()
);

#[derive(Args, Debug)]
#[command(after_help = AFTER)]
pub(crate) struct Serve {
    /// Where to listen; may be repeated
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080", value_parser = value::address)]
    pub(crate) listen: Vec<String>,
    /// Listen for TLS too; without --cert with a certificate made for this run
    #[arg(long)]
    pub(crate) tls: bool,
    /// Where to listen for TLS; may be repeated
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8443", value_parser = value::address, requires = "tls")]
    pub(crate) tls_listen: Vec<String>,
    /// The certificate and its chain (PEM); read again when it changes
    #[arg(long, value_name = "FILE", requires = "key", requires = "tls")]
    pub(crate) cert: Option<PathBuf>,
    /// The certificate's key (PEM)
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,
    /// Let pages of this origin connect, such as https://example.com; * for all. Pages from here always may if they were
    /// loaded from an address or localhost, and clients that are no browsers. May be repeated
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) allow_origin: Vec<String>,
    /// Threads; as many as there are processors by default
    #[arg(long, value_name = "N", value_parser = value::count)]
    pub(crate) workers: Option<usize>,
    /// How long connections may take to end at shutdown
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = value::time)]
    pub(crate) grace: Duration,
    /// How to write the log, which goes to the standard error
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log: LogFormat,
    /// What to log: info is beginning and end, debug each request and WebSocket, trace each frame. Never queries, headers or messages
    #[arg(long, value_name = "LEVEL", value_enum, default_value_t = LogLevel::Info)]
    pub(crate) log_level: LogLevel,

    #[command(flatten)]
    pub(crate) compression: Compression,
    #[command(flatten)]
    pub(crate) http: HttpLimits,
    #[command(flatten)]
    pub(crate) http2: Http2Limits,
    #[command(flatten)]
    pub(crate) websocket: WebSocketLimits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines to read
    Text,
    /// An object a line
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Compression (permessage-deflate)")]
pub(crate) struct Compression {
    /// Do not compress, also when clients ask for it
    #[arg(long)]
    pub(crate) no_compress: bool,
    /// How hard: 1 is fastest, 9 is smallest
    #[arg(long, value_name = "0-9", default_value_t = 4, value_parser = clap::value_parser!(u8).range(0..=9))]
    pub(crate) compress_level: u8,
    /// Send shorter messages as they are
    #[arg(long, value_name = "BYTES", default_value = "64", value_parser = value::size)]
    pub(crate) compress_min: u64,
    /// The window, in bits; each one less halves the memory. Clients are held to it where they offer that
    #[arg(long, value_name = "9-15", default_value_t = 15, value_parser = clap::value_parser!(u8).range(9..=15))]
    pub(crate) compress_window: u8,
    /// Forget each message after it: less memory, longer messages
    #[arg(long)]
    pub(crate) no_context_takeover: bool,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Limits of connections and requests")]
pub(crate) struct HttpLimits {
    /// Connections at once on each address; more wait
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = value::count)]
    pub(crate) max_connections: usize,
    /// Connections at once from one client's address; not limited by default
    #[arg(long, value_name = "N", value_parser = value::count)]
    pub(crate) max_per_address: Option<usize>,
    /// Connections at once that have begun to speak and are in the TLS handshake or their first head; more wait
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = value::count)]
    pub(crate) max_handshakes: usize,
    /// How long TLS and a request's head may take, each
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = value::time)]
    pub(crate) handshake_timeout: Duration,
    /// How long a connection may be quiet between two requests
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = value::time)]
    pub(crate) keep_alive: Duration,
    /// Have the kernel ask after clients that have been quiet for so long
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = value::time)]
    pub(crate) tcp_keepalive: Duration,
    /// How long a piece of a request's body may take, or with --max-body the whole
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = value::time)]
    pub(crate) body_timeout: Duration,
    /// The longest head of a request over HTTP/1.1
    #[arg(long, value_name = "BYTES", default_value = "16K", value_parser = value::memory)]
    pub(crate) max_head: usize,
    /// The longest body that /echo takes, and holds whole then; without it each goes back as it comes
    #[arg(long, value_name = "BYTES", value_parser = value::memory)]
    pub(crate) max_body: Option<usize>,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Limits of WebSockets")]
pub(crate) struct WebSocketLimits {
    /// The longest message, also after decompression
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = value::size)]
    pub(crate) max_message: u64,
    /// The longest frame; as long as a message by default
    #[arg(long, value_name = "BYTES", value_parser = value::size)]
    pub(crate) max_frame: Option<u64>,
    /// Fragments of a message beyond one for every 16 bytes
    #[arg(long, value_name = "N", default_value_t = 16 << 10)]
    pub(crate) max_fragments: u64,
    /// How many times its compressed size a message over 1 MiB may be; 1032 is what DEFLATE can do at most
    #[arg(long, value_name = "N", default_value_t = 1_100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_inflate_ratio: u32,
    /// What may wait for one client; beyond it nothing more is sent to it
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = value::memory)]
    pub(crate) max_queue: usize,
    /// From how much waiting on a client is slow
    #[arg(long, value_name = "BYTES", default_value = "1M", value_parser = value::memory)]
    pub(crate) slow_queue: usize,
    /// With the policies drop and disconnect: after so long of waiting for it a client is slow, too
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = value::time)]
    pub(crate) slow_after: Duration,
    /// What becomes of a message for a client that is slow
    #[arg(long, value_name = "POLICY", value_enum, default_value_t = SlowPolicy::Wait)]
    pub(crate) slow_policy: SlowPolicy,
    /// With the policies wait and drop: cut a client that has taken nothing for so long
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = value::time)]
    pub(crate) slow_timeout: Duration,
    /// How long a client may take to answer a Close frame
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = value::time)]
    pub(crate) close_timeout: Duration,
    /// Ping clients that have been quiet for so long
    #[arg(long, value_name = "TIME", value_parser = value::time)]
    pub(crate) ping: Option<Duration>,
    /// Cut clients that have been quiet for so long; three times --ping by default
    #[arg(long, value_name = "TIME", value_parser = value::time, requires = "ping")]
    pub(crate) dead_after: Option<Duration>,
    /// How many messages a member of a room may lag behind before it is sent away
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = value::count)]
    pub(crate) max_room_lag: usize,
    /// What may wait for the members of a room together; beyond it whoever speaks there waits
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = value::memory)]
    pub(crate) max_room_queue: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SlowPolicy {
    /// It waits
    Wait,
    /// It is dropped
    Drop,
    /// The client is cut, with or without a message
    Disconnect,
}
