//! The arguments of `wireloom serve`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use wireloom::IpNet;

use super::http2::{Http2Limits, bounds};
use super::record::Record;
use super::value;
use crate::exit::exit_codes;

const AFTER: &str = concat!(
    "\
Each address accepts HTTP/1.1 and HTTP/2 (by prior knowledge or ALPN), and WebSocket over both.

Routes with --hub, and without it:
  /rooms/NAME   sends each message to all members of the room: the channel rooms:NAME
  /connection/websocket
                channels for Centrifugal clients, in JSON or Protobuf
  /connection/http_stream, /connection/sse, /emulation
                the same for clients without WebSocket
  /connection/uni_websocket, /connection/uni_http_stream, /connection/uni_sse
                channels for clients that only receive
  /livez        answers ok while the server runs: for supervisors and load balancers
  /healthz      the same, but 503 while the engine (disk, NATS, Redis) fails

Routes with --dir:
  /PATH         the file, with ranges, ETag and type; of a directory its index.html

Routes without --hub and --dir, and with --demo:
  /             a page to connect to WebSockets, meet in rooms, put load on the server and watch it
  /echo         sends each message back, or the body of a POST
  /sink         counts and discards messages, or the body of a POST
  /source       sends messages, or the body of the response to a GET:
                ?size=BYTES (1024; at least 1 in a body)
                &rate=MESSAGES PER SECOND (0: as fast as the client takes them)
                &count=MESSAGES (0: no end)
  /live         the state of the server as JSON, each second; see --live-stats
  /metrics      figures for Prometheus; with --admin only there

Routes of --admin:
  /             the page, with the state of the server, and its channels after a login
  /live, /metrics, /livez, /healthz
  /api/METHOD, /admin/…   the server API of channels, if --hub has a key for it

Sizes are in bytes, or with K, M, G (64K); times in seconds, or with ms, s, m, h (500ms).

SIGTERM or SIGINT shuts down: no new connections, close code 1001 or GOAWAY for the open ones, and
after --grace the rest is disconnected. Clients of channels are asked to reconnect elsewhere before
(close code 3001), and have 2 s to leave; the events of their ends are delivered up to --grace, and
then stored where the engine stores. A second signal disconnects at once.

",
    exit_codes!(),
    "
Try it:
  wireloom serve &
  wireloom connect ws://127.0.0.1:8080/echo
  curl --data-binary hello http://127.0.0.1:8080/echo

  wireloom serve --dir public          # pages with rooms at /rooms/NAME
  wireloom serve --tls --cert cert.pem --key key.pem --listen '[::]:80' --tls-listen '[::]:443'

",
    bounds!()
);

#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER)]
pub(crate) struct Serve {
    /// The address to listen on; :PORT is all interfaces, unix:PATH a Unix socket; may be repeated
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080", value_parser = value::listen)]
    pub(crate) listen: Vec<String>,
    /// Listen on this port of 127.0.0.1
    #[arg(long, short, value_name = "PORT", conflicts_with = "listen")]
    pub(crate) port: Option<u16>,
    /// Serve the files of this directory, and rooms for their pages; not the page, and without --demo not /echo and the like. Names that
    /// begin with a dot, and links that lead out of it, are not served
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Serve /metrics, the state of the server and the server API of channels on this address only, with /livez, /healthz and the page,
    /// which has the channels for operators
    #[arg(long, value_name = "ADDRESS", value_parser = value::address)]
    pub(crate) admin: Option<String>,
    /// Accept requests for /metrics and those to --admin by this host name as well. IP addresses, localhost and names without a dot
    /// are always accepted: a page cannot let them resolve to this server. May be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) allow_host: Vec<String>,
    /// Which clients may see the server's state live, with its log and its slowest clients, in the section Server of the page:
    /// local by default, none with --admin
    #[arg(long, value_name = "CLIENTS", value_enum)]
    pub(crate) live_stats: Option<LiveStats>,
    /// Listen for TLS too; without --cert with a certificate made for this run
    #[arg(long)]
    pub(crate) tls: bool,
    /// The address to listen on for TLS; may be repeated
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8443", value_parser = value::address, requires = "tls")]
    pub(crate) tls_listen: Vec<String>,
    /// The certificate and its chain (PEM); loaded again when the file changes
    #[arg(long, value_name = "FILE", requires = "key", requires = "tls")]
    pub(crate) cert: Option<PathBuf>,
    /// The certificate's private key (PEM)
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,
    /// Accept WebSockets from pages of this origin, such as https://example.com; * for all. Pages of this server that were
    /// loaded from an IP address or localhost, and clients that send no Origin, are always accepted. May be repeated. The hub also has
    /// [client] allowed_origins
    #[arg(long, value_name = "ORIGIN", value_parser = value::origin)]
    pub(crate) allow_origin: Vec<String>,
    /// Worker threads; by default one per processor
    #[arg(long, value_name = "N", value_parser = value::count)]
    pub(crate) workers: Option<usize>,
    /// How long connections may take to end at shutdown
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = value::time)]
    pub(crate) grace: Duration,
    /// The format of the log, which is written to the standard error
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log: LogFormat,
    /// What to log: info is start, shutdown and evictions; debug adds each request and WebSocket; trace adds each frame. Queries, headers
    /// and messages are never logged
    #[arg(long, value_name = "LEVEL", value_enum, default_value_t = LogLevel::Info)]
    pub(crate) log_level: LogLevel,

    #[command(flatten)]
    pub(crate) record: Record,
    #[command(flatten)]
    pub(crate) channels: Channels,
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
pub(crate) enum LiveStats {
    /// Those on the same machine that ask for localhost or a loopback address, and through no proxy
    Local,
    All,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines of text
    Text,
    /// An object per line
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

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Channels")]
pub(crate) struct Channels {
    /// The configuration of channels, clients, tokens and the server API (TOML); read again on SIGHUP. With it, only channels are
    /// served. Without it everyone may join rooms
    #[arg(long, value_name = "FILE")]
    pub(crate) hub: Option<PathBuf>,
    /// With --hub or --dir: serve the page (unless there is --dir), /echo, /sink, /source, /live and /metrics as well
    #[arg(long)]
    pub(crate) demo: bool,
    /// Keep the histories of channels in this directory, so that they survive a restart
    #[arg(long, value_name = "DIR", conflicts_with_all = ["nats", "redis"])]
    pub(crate) data: Option<PathBuf>,
    /// Share channels with the other nodes that are connected to this NATS server; it needs JetStream
    #[arg(long, value_name = "URL", conflicts_with = "redis")]
    pub(crate) nats: Option<String>,
    /// Share channels with the other nodes that are connected to this Redis or Valkey server: redis://HOST:PORT,
    /// redis+sentinel://HOST:PORT,HOST:PORT/MASTER or redis+cluster://HOST:PORT,HOST:PORT; rediss for TLS
    #[arg(long, value_name = "URL")]
    pub(crate) redis: Option<String>,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Compression (permessage-deflate)")]
pub(crate) struct Compression {
    /// Do not compress, even if clients offer it
    #[arg(long, conflicts_with_all = ["compress_level", "compress_min", "compress_window", "no_context_takeover"])]
    pub(crate) no_compress: bool,
    /// The compression level: 1 is fastest, 9 is smallest
    #[arg(long, value_name = "0-9", default_value_t = 4, value_parser = clap::value_parser!(u8).range(0..=9))]
    pub(crate) compress_level: u8,
    /// Do not compress messages shorter than this
    #[arg(long, value_name = "BYTES", default_value = "64", value_parser = value::size)]
    pub(crate) compress_min: u64,
    /// The window, in bits; each bit less halves the memory. Also required of clients that offer it
    #[arg(long, value_name = "9-15", default_value_t = 15, value_parser = clap::value_parser!(u8).range(9..=15))]
    pub(crate) compress_window: u8,
    /// Compress each message by itself: less memory, larger messages
    #[arg(long)]
    pub(crate) no_context_takeover: bool,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Limits of connections and requests")]
pub(crate) struct HttpLimits {
    /// Connections at once, on all addresses together; further ones wait to be accepted. 100000 by default, or as many as the limit on open
    /// files allows
    #[arg(long, value_name = "N", value_parser = value::count)]
    pub(crate) max_connections: Option<usize>,
    /// Connections at once from one client address (an IPv6 /64); unlimited by default
    #[arg(long, value_name = "N", value_parser = value::count)]
    pub(crate) max_per_address: Option<usize>,
    /// Proxies of this address or network, such as 10.1.0.0/16, send a header of the PROXY protocol (version 1 or 2) first, and the client
    /// that it names is counted and logged. They must send it; a header from another address is an error. 0.0.0.0 means the peers of a Unix socket.
    /// May be repeated
    #[arg(long, value_name = "NETWORK", value_parser = value::network)]
    pub(crate) proxy_protocol_from: Vec<IpNet>,
    /// Memory that all clients together may make the server hold; near it they are read from more slowly, at it the largest holders are
    /// disconnected. A quarter of the memory of the machine or container by default. With --admin an eighth is for that address
    #[arg(long, value_name = "BYTES", value_parser = value::memory)]
    pub(crate) max_memory: Option<usize>,
    /// Connections at once in the TLS handshake or their first request head; further ones wait
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = value::count)]
    pub(crate) max_handshakes: usize,
    /// How long the TLS handshake and a request's head may take, each
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = value::time)]
    pub(crate) handshake_timeout: Duration,
    /// How long a connection may be idle between two requests
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = value::time)]
    pub(crate) keep_alive: Duration,
    /// Send TCP keepalive probes to clients that have been silent for this long
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = value::time)]
    pub(crate) tcp_keepalive: Duration,
    /// How long each part of a request's body may take to arrive, or with --max-body all of it
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = value::time)]
    pub(crate) body_timeout: Duration,
    /// The longest head of a request over HTTP/1.1
    #[arg(long, value_name = "BYTES", default_value = "16K", value_parser = value::memory)]
    pub(crate) max_head: usize,
    /// The longest body that /echo accepts; it is buffered as a whole then. Without this option bodies are streamed back
    #[arg(long, value_name = "BYTES", value_parser = value::memory)]
    pub(crate) max_body: Option<usize>,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Limits of WebSockets")]
pub(crate) struct WebSocketLimits {
    /// The longest message, also after decompression
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = value::size)]
    pub(crate) max_message: u64,
    /// The longest frame; as long as a message by default
    #[arg(long, value_name = "BYTES", value_parser = value::size)]
    pub(crate) max_frame: Option<u64>,
    /// Fragments of a message in addition to one for every 16 bytes
    #[arg(long, value_name = "N", default_value_t = 16 << 10)]
    pub(crate) max_fragments: u64,
    /// How many times larger than its compressed size a message over 1 MiB may be; the maximum of DEFLATE is 1032
    #[arg(long, value_name = "N", default_value_t = 1_100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_inflate_ratio: u32,
    /// The send queue of a client; while it is full nothing more is queued
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = value::memory)]
    pub(crate) max_queue: usize,
    /// The length of the send queue from which on a client is slow
    #[arg(long, value_name = "BYTES", default_value = "1M", value_parser = value::memory)]
    pub(crate) slow_queue: usize,
    /// With the policies drop and disconnect: a client is also slow when messages have been queued for this long
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = value::time)]
    pub(crate) slow_after: Duration,
    /// What to do with a message for a slow client
    #[arg(long, value_name = "POLICY", value_enum, default_value_t = SlowPolicy::Wait)]
    pub(crate) slow_policy: SlowPolicy,
    /// With the policies wait and drop: disconnect a client that has read nothing for this long
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = value::time)]
    pub(crate) slow_timeout: Duration,
    /// How long a client may take to answer a Close frame
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = value::time)]
    pub(crate) close_timeout: Duration,
    /// Ping clients that have been silent for this long
    #[arg(long, value_name = "TIME", value_parser = value::time)]
    pub(crate) ping: Option<Duration>,
    /// Disconnect clients that have been silent for this long; three times --ping by default
    #[arg(long, value_name = "TIME", value_parser = value::time, requires = "ping")]
    pub(crate) dead_after: Option<Duration>,
    /// Whether messages to many clients are written by io_uring; with on, it is an error if the system does not allow that
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = IoUringUse::Auto)]
    pub(crate) io_uring: IoUringUse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum IoUringUse {
    /// Where the system allows it
    Auto,
    /// Always
    On,
    /// Never
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SlowPolicy {
    /// Wait until the client has read
    Wait,
    /// Drop the message
    Drop,
    /// Disconnect the client, even if there is no message
    Disconnect,
}
