//! `wireloom serve`: binds the addresses, prints them, and serves until a signal.
//!
//! Layers: `hub`, `reserve` → `admin`.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tracing::{error, info, warn};
use wireloom::{
    DeflateConfig, IoUring, Keepalive, Observer, OriginPolicy, Server, ServerConfig, ServerHandle, SlowPeer,
    Tap,
};

use self::admin::Admin;
use self::reserve::{Reserve, SharingListener};
use super::bind;
use super::connect::connector;
use crate::args::{IoUringUse, LogFormat, LogLevel, Serve, SlowPolicy};
use crate::exit::Exit;
use crate::recording::{self, Side};
use crate::routes::Routes;
use crate::signals::Signals;
use crate::terminal;
use crate::{allocator, descriptors, log};

use wireloom_hub::Hub;

mod admin;
mod hub;
mod reserve;

/// How long the clients of the hub may take to leave before all connections are closed.
const HUB_GRACE: Duration = Duration::from_secs(2);

/// How long the hub has at least once nothing is served, to report what has ended.
const HUB_GRACE_MIN: Duration = Duration::from_secs(1);

/// How long the process may take to end once nothing is served: a call to a file system may never return.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) fn run(args: &Serve) -> Exit {
    if let (Some(ping), Some(dead_after)) = (args.websocket.ping, args.websocket.dead_after)
        && dead_after <= ping
    {
        // Otherwise no client could answer a ping in time.
        terminal::try_print_error("--dead-after must be longer than --ping");
        return Exit::Usage;
    }
    let log = log::init(args.log, args.log_level);
    descriptors::raise_limit();
    if let (Some(max), Some(allowed)) =
        (args.http.max_connections, descriptors::connections_allowed(args.dir.is_some()))
        && max > allowed
    {
        warn!(allowed, "the limit on open files allows fewer connections than --max-connections");
    }
    if args.http.max_memory.is_some_and(|max| max < allocator::LIMIT_MIN) {
        warn!("with a --max-memory below 64M the process may take more than 1.25 times as much and 32M");
    }
    #[cfg(not(feature = "opentelemetry"))]
    if let Some(name) = crate::traces::endpoint() {
        warn!("{name} is ignored: the command was built without the feature opentelemetry");
    }
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if let Some(workers) = args.workers {
        builder.worker_threads(workers);
    }
    allocator::configure();
    builder.on_thread_park(allocator::before_park);
    let served = builder.enable_all().build().map_err(|error| error.to_string().into()).and_then(|runtime| {
        let served = runtime.block_on(serve(args));
        runtime.shutdown_timeout(EXIT_TIMEOUT);
        served
    });
    match served {
        Ok(()) => Exit::Success,
        Err(Failure(exit, reason)) => {
            match args.log {
                LogFormat::Text => {
                    // After the lines of the log.
                    drop(log);
                    terminal::try_print_error(reason);
                }
                LogFormat::Json => error!("{reason}"),
            }
            exit
        }
    }
}

/// Why nothing is served.
struct Failure(Exit, String);

/// Most are of the addresses.
impl From<String> for Failure {
    fn from(reason: String) -> Self {
        Self(Exit::NoConnection, reason)
    }
}

/// An option cannot be used, or its file.
fn unusable(reason: String) -> Failure {
    Failure(Exit::Usage, reason)
}

/// The part of a limit of memory that connections to `--admin` have for themselves, in bytes.
fn admin_share(limit: usize) -> usize {
    limit / 8
}

async fn serve(args: &Serve) -> Result<(), Failure> {
    let mut config = args.config();
    let recording = recording::start(&args.record, Side::Server).map_err(unusable)?;
    config.tap = recording.as_ref().map(|recording| Tap::new(recording.observer()));
    #[cfg(feature = "opentelemetry")]
    let traces = crate::traces::start()?;
    // Before the hub, which may wait for its broker: without a handler the first process of a container ignores signals.
    let mut signals = Signals::new().map_err(|error| error.to_string())?;
    let (hub, has_rooms) = tokio::select! {
        built = hub::build(args) => built?,
        signal = signals.recv() => return Err(Failure(signal.exit(), "interrupted before it listened".to_owned())),
    };
    let routes = Arc::new(Routes::new(args, hub.clone()).map_err(unusable)?);
    let reserve = Reserve::new();
    // The limits are those of all addresses together.
    let handle = ServerHandle::new();
    let mut servers = Vec::new();
    let mut listening = Vec::new();
    let (sockets, addresses): (Vec<_>, Vec<_>) =
        args.addresses().into_iter().partition(|address| address.starts_with("unix:"));
    for address in addresses {
        let (server, address) = server_at(&address, &reserve).await?;
        listening.push((false, address));
        servers.push(server);
    }
    if args.tls {
        let tls = connector::server_tls(args.cert.as_deref(), args.key.as_deref()).map_err(unusable)?;
        for address in &args.tls_listen {
            let (server, address) = server_at(address, &reserve).await?;
            listening.push((true, address));
            servers.push(server.tls(tls.clone()));
        }
    }
    #[cfg(not(unix))]
    drop(sockets);
    #[cfg(unix)]
    let sockets = bind_unix(&sockets, &reserve)?;
    routes.set_server(handle.clone());
    tokio::spawn(allocator::return_memory(handle.clone()));
    let (mut admin, mut admin_address) = (None, None);
    if let Some(address) = &args.admin {
        let listener = bind::bind(address).await?;
        admin_address = listener.local_addr().ok();
        admin = Some(Admin::new(reserve.spend(listener), args.admin_memory_max()));
    }
    hub::reload_on_hangup(&hub, args).map_err(|error| error.to_string())?;
    match args.log {
        LogFormat::Text => {
            let text = announcement(&listening, admin_address, has_rooms, &hub, args);
            // The standard output may be closed, or a full pipe.
            tokio::task::spawn_blocking(move || io::stdout().write_all(&text?));
        }
        LogFormat::Json => {
            if hub.has_api() && admin_address.is_none() {
                warn!("the server API is not served without --admin");
            }
            if let Some(address) = admin_address {
                info!(%address, "admin listening");
            }
            listening.iter().for_each(|(tls, address)| info!(%address, tls, "listening"));
        }
    }
    let admin = admin.map(|admin| admin.start(&routes));
    let mut tasks = JoinSet::new();
    #[cfg(unix)]
    for (path, server) in sockets {
        info!(path, "listening");
        let routes = routes.clone();
        tasks.spawn(server.sharing(&handle).config(config.clone()).serve(move |request| {
            let routes = routes.clone();
            async move { routes.handle(request).await }
        }));
    }
    for server in servers {
        let routes = routes.clone();
        tasks.spawn(server.sharing(&handle).config(config.clone()).serve(move |request| {
            let routes = routes.clone();
            async move { routes.handle(request).await }
        }));
    }
    Serving { tasks, handle, hub, grace: args.grace }.until_end(signals).await?;
    // Last, so that the shutdown can be observed.
    if let Some(admin) = admin {
        admin.stop().await;
    }
    #[cfg(feature = "opentelemetry")]
    if let Some(traces) = traces {
        traces.shut_down().await;
    }
    drop(recording);
    info!("stopped");
    Ok(())
}

/// The running servers and the hub.
struct Serving {
    tasks: JoinSet<io::Result<()>>,
    handle: ServerHandle,
    hub: Hub,
    grace: Duration,
}

impl Serving {
    /// Serves until the first signal or failure. Returns once all connections have ended and the hub has reported them, which takes until
    /// soon after the grace period or the second signal.
    async fn until_end(mut self, mut signals: Signals) -> Result<(), String> {
        tokio::select! {
            failed = self.served() => {
                self.hub.shut_down(HUB_GRACE_MIN).await;
                return failed;
            }
            _ = signals.recv() => {}
        }
        info!("shutting down; another signal disconnects at once");
        tokio::select! {
            ended = self.shut_down() => return ended,
            _ = signals.recv() => {}
        }
        warn!("disconnecting the remaining clients");
        self.handle.abort();
        let ended = self.served().await;
        self.hub.shut_down(HUB_GRACE_MIN).await;
        ended
    }

    async fn shut_down(&mut self) -> Result<(), String> {
        let begin = Instant::now();
        self.handle.stop_accepting();
        // The hub shuts down before the servers, which would close its connections with a code that does not make
        // clients reconnect elsewhere.
        let _ = tokio::time::timeout(HUB_GRACE, self.hub.shut_down(self.grace)).await;
        self.handle.shut_down();
        let ended = self.served().await;
        self.hub.shut_down(self.grace.saturating_sub(begin.elapsed()).max(HUB_GRACE_MIN)).await;
        ended
    }

    /// Returns once nothing is served any more.
    async fn served(&mut self) -> Result<(), String> {
        while let Some(ended) = self.tasks.join_next().await {
            ended.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// A server at an address, and the one that it has got.
async fn server_at(
    address: &str,
    reserve: &Reserve,
) -> Result<(Server<SharingListener<TcpListener>>, SocketAddr), String> {
    let listener = bind::bind(address).await?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    Ok((Server::new(reserve.spare(listener)), address))
}

/// A server at the path of a Unix socket.
#[cfg(unix)]
type UnixServer = (String, Server<SharingListener<bind::UnixSocket>>);

/// Binds Unix sockets, which are given as `unix:PATH`.
#[cfg(unix)]
fn bind_unix(sockets: &[String], reserve: &Reserve) -> Result<Vec<UnixServer>, String> {
    let paths = sockets.iter().filter_map(|socket| socket.strip_prefix("unix:"));
    let bound = paths.map(|path| {
        let socket = bind::UnixSocket::bind(&format!("unix:{path}"), path)?;
        Ok((path.to_owned(), Server::new(reserve.spare(socket))))
    });
    bound.collect()
}

impl Serve {
    /// The addresses to listen on without TLS.
    fn addresses(&self) -> Vec<String> {
        self.port.map_or_else(|| self.listen.clone(), |port| vec![format!("127.0.0.1:{port}")])
    }

    /// Whether the routes are served that do not belong to channels.
    pub(crate) fn has_demo(&self) -> bool {
        self.channels.demo || (self.channels.hub.is_none() && self.dir.is_none())
    }

    /// The memory of `--admin`, which is its own: it answers while clients have exhausted theirs. In bytes.
    fn admin_memory_max(&self) -> usize {
        let max = self.http.max_memory.unwrap_or_else(|| ServerConfig::default().memory_max);
        admin_share(max - allocator::reserve(max))
    }

    /// The configuration that the arguments choose.
    pub(crate) fn config(&self) -> ServerConfig {
        let mut config = ServerConfig::default();
        let http = &self.http;
        // RFC 6455 §10.2: the hub and the other routes check origins themselves.
        config.origins = OriginPolicy::any();
        if let Some(max) = http.max_connections {
            config.connections_max = max;
        }
        if let Some(allowed) = descriptors::connections_allowed(self.dir.is_some()) {
            // Further ones wait in the kernel's queue.
            config.connections_max = config.connections_max.min(allowed);
        }
        config.connections_per_address_max = http.max_per_address;
        config.proxy_protocol_from.clone_from(&http.proxy_protocol_from);
        if let Some(memory_max) = http.max_memory {
            config.memory_max = memory_max;
        }
        config.memory_max -= allocator::reserve(config.memory_max);
        if self.admin.is_some() {
            config.memory_max -= admin_share(config.memory_max);
        }
        config.handshake_timeout = http.handshake_timeout;
        config.keep_alive_timeout = http.keep_alive;
        config.tcp_keepalive = Some(http.tcp_keepalive);
        config.body_timeout = http.body_timeout;
        config.head_len_max = http.max_head;
        if let Some(len_max) = http.max_body {
            config.body_len_max = len_max;
        }
        config.handshakes_max = http.max_handshakes;
        self.http2.apply(&mut config);
        config.shutdown_grace = self.grace;
        let websocket = &self.websocket;
        let (queue_timeout, stall_timeout) = (websocket.slow_after, websocket.slow_timeout);
        config.websocket.slow_peer = match websocket.slow_policy {
            SlowPolicy::Wait => SlowPeer::Wait { stall_timeout },
            SlowPolicy::Drop => SlowPeer::DropNewest { queue_timeout, stall_timeout },
            SlowPolicy::Disconnect => SlowPeer::Disconnect { queue_timeout },
        };
        config.websocket.io_uring = match websocket.io_uring {
            IoUringUse::Auto => IoUring::Auto,
            IoUringUse::On => IoUring::On,
            IoUringUse::Off => IoUring::Off,
        };
        if self.log_level == LogLevel::Trace {
            // Frames are logged only if there is an observer, so set one that does nothing.
            config.websocket.observer = Some(Observer::new(|_| {}));
        }
        let core = &mut config.websocket.core;
        core.limits.message_len_max = websocket.max_message;
        core.limits.frame_len_max = websocket.max_frame.unwrap_or(websocket.max_message);
        core.limits.fragments_spare = websocket.max_fragments;
        core.limits.inflate_ratio_max = websocket.max_inflate_ratio;
        core.limits.queued_len_max = websocket.max_queue;
        core.limits.queued_len_high = websocket.slow_queue;
        core.close_timeout = websocket.close_timeout;
        core.keepalive = websocket.ping.map(|ping_after| Keepalive {
            ping_after,
            dead_after: websocket.dead_after.unwrap_or(ping_after.saturating_mul(3)),
        });
        let compression = &self.compression;
        config.deflate = (!compression.no_compress).then(|| DeflateConfig {
            level: compression.compress_level,
            min_len: usize::try_from(compression.compress_min).unwrap_or(usize::MAX),
            server_max_window_bits: compression.compress_window,
            client_max_window_bits: compression.compress_window,
            server_no_context_takeover: compression.no_context_takeover,
            client_no_context_takeover: compression.no_context_takeover,
            ..DeflateConfig::default()
        });
        config
    }
}

/// The addresses, and what is served there.
fn announcement(
    listening: &[(bool, SocketAddr)],
    admin: Option<SocketAddr>,
    has_rooms: bool,
    hub: &Hub,
    args: &Serve,
) -> io::Result<Vec<u8>> {
    let has_demo = args.has_demo();
    let mut out = Vec::new();
    for (tls, address) in listening {
        let (http, ws) = if *tls { ("https", "wss") } else { ("http", "ws") };
        writeln!(out, "wireloom {} on {http}://{address}/", env!("CARGO_PKG_VERSION"))?;
        if has_demo {
            writeln!(out, "  {ws}://{address}/echo          sends each message back")?;
        }
        if has_rooms {
            writeln!(out, "  {ws}://{address}/rooms/NAME    sends each message to all members")?;
        }
        writeln!(out, "  {ws}://{address}/connection/websocket  channels for Centrifugal clients")?;
        writeln!(out, "    without WebSocket: /connection/http_stream, /connection/sse, with /emulation")?;
        writeln!(
            out,
            "    to receive only: /connection/uni_websocket, /connection/uni_http_stream, /connection/uni_sse"
        )?;
        if !has_rooms {
            writeln!(out, "    not /rooms/NAME: --hub has no namespace \"rooms\"")?;
        }
        writeln!(
            out,
            "  {http}://{address}/livez         answers ok; /healthz only while the engine stores everything"
        )?;
        if let Some(dir) = &args.dir {
            writeln!(out, "  {http}://{address}/              the files of {}", dir.display())?;
        }
        if has_demo {
            writeln!(out, "  {ws}://{address}/sink          counts and discards messages")?;
            writeln!(out, "  {ws}://{address}/source        sends messages: ?size=&rate=&count=")?;
        }
    }
    if let Some(address) = admin {
        writeln!(out, "admin on http://{address}/#server")?;
        writeln!(out, "  http://{address}/metrics")?;
        if hub.has_api() {
            writeln!(out, "  http://{address}/api/METHOD  the server API of channels")?;
        }
    }
    if !has_demo {
        writeln!(
            out,
            "--demo adds {}/echo, /sink, /source, /live and /metrics",
            if args.dir.is_some() { "" } else { "the page, " }
        )?;
    }
    if hub.has_api() && admin.is_none() {
        writeln!(out, "the server API is not served: it needs --admin ADDRESS")?;
    }
    if args.tls && args.cert.is_none() {
        writeln!(out, "the certificate is self-signed and made for this run: connect with --insecure")?;
    }
    Ok(out)
}
