//! `wireloom serve`: binds, says where, serves, and ends when it is told to.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;

use tracing::{error, info, warn};
use wireloom::{
    DeflateConfig, Keepalive, Observed, OriginPolicy, Server, ServerConfig, ServerHandle, ServerTls,
    SlowPeer, Watch,
};

use crate::args::{LogFormat, LogLevel, Serve, SlowPolicy};
use crate::exit::Exit;
use crate::routes::Routes;
use crate::terminal;
use crate::{descriptors, log};

pub(crate) fn run(args: &Serve) -> Exit {
    log::begin(args.log, args.log_level);
    descriptors::raise_limit();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if let Some(workers) = args.workers {
        builder.worker_threads(workers);
    }
    let served = builder.enable_all().build().map_err(|error| error.to_string());
    match served.and_then(|runtime| runtime.block_on(serve(args))) {
        Ok(()) => Exit::Done,
        Err(reason) => {
            match args.log {
                LogFormat::Text => terminal::say_error(reason),
                LogFormat::Json => error!("{reason}"),
            }
            Exit::NotBegun
        }
    }
}

async fn serve(args: &Serve) -> Result<(), String> {
    let config = args.config();
    let routes = Arc::new(Routes::new(args));
    let mut servers = Vec::new();
    let mut listening = Vec::new();
    let mut add = |server: Server, is_tls: bool| {
        listening.push((is_tls, server.local_addr().map_err(|error| error.to_string())?));
        servers.push(server);
        Ok::<(), String>(())
    };
    for address in &args.listen {
        add(bind(address, &config).await?, false)?;
    }
    if args.tls {
        let tls = match (&args.cert, &args.key) {
            (Some(cert), Some(key)) => ServerTls::from_pem_files(cert, key).map_err(|error| {
                let (cert, key) = (cert.display(), key.display());
                format!("the certificate {cert} with the key {key} cannot be used: {error}")
            })?,
            _ => ServerTls::self_signed(&["localhost", "127.0.0.1", "::1"])
                .map(|(tls, _)| tls)
                .map_err(|error| format!("no certificate can be made: {error}"))?,
        };
        for address in &args.tls_listen {
            add(bind(address, &config).await?.tls(tls.clone()), true)?;
        }
    }
    let handles: Vec<ServerHandle> = servers.iter().map(Server::handle).collect();
    routes.watch(handles.clone());
    let mut stop = Stop::new().map_err(|error| error.to_string())?;
    match args.log {
        // Whoever reads this may have gone; that is no reason not to serve.
        LogFormat::Text => drop(announce(&listening, args)),
        LogFormat::Json => {
            listening.iter().for_each(|(tls, address)| info!(%address, tls, "listening"));
        }
    }
    tokio::spawn(async move {
        stop.asked().await;
        info!("shutting down; once more to cut at once");
        handles.iter().for_each(ServerHandle::shut_down);
        stop.asked().await;
        warn!("cutting what is left");
        handles.iter().for_each(ServerHandle::cut);
    });
    let mut tasks = tokio::task::JoinSet::new();
    for server in servers {
        let routes = routes.clone();
        tasks.spawn(server.serve(move |request| {
            let routes = routes.clone();
            async move { routes.answer(request).await }
        }));
    }
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    }
    info!("ended");
    Ok(())
}

async fn bind(address: &str, config: &ServerConfig) -> Result<Server, String> {
    let server =
        Server::bind(address).await.map_err(|error| format!("cannot listen on {address}: {error}"))?;
    Ok(server.config(config.clone()))
}

impl Serve {
    /// What the arguments choose for the server.
    pub(crate) fn config(&self) -> ServerConfig {
        let mut config = ServerConfig::default();
        let http = &self.http;
        // RFC 6455 §10.2.
        config.origins = match self.allow_origin.iter().any(|origin| origin == "*") {
            true => OriginPolicy::any(),
            false => OriginPolicy::listed(&self.allow_origin).with_same_origin([""; 0]),
        };
        config.connections_max = http.max_connections;
        config.connections_per_address_max = http.max_per_address;
        config.handshake_timeout = http.handshake_timeout;
        config.keep_alive_timeout = http.keep_alive;
        config.tcp_keepalive = Some(http.tcp_keepalive);
        config.body_timeout = http.body_timeout;
        config.head_len_max = http.max_head;
        if let Some(len_max) = http.max_body {
            config.body_len_max = len_max;
        }
        config.handshakes_max = http.max_handshakes;
        self.http2.apply(&mut config.http2);
        config.shutdown_grace = self.grace;
        let websocket = &self.websocket;
        let (late_after, cut_after) = (websocket.slow_after, websocket.slow_timeout);
        config.websocket.slow_peer = match websocket.slow_policy {
            SlowPolicy::Wait => SlowPeer::Wait { cut_after },
            SlowPolicy::Drop => SlowPeer::DropNewest { late_after, cut_after },
            SlowPolicy::Disconnect => SlowPeer::Disconnect { late_after },
        };
        if self.log_level == LogLevel::Trace {
            // Frames are noted only while somebody watches; the log is told of all that is.
            config.websocket.observer = Watch::with(|_: &Observed<'_>| {});
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

fn announce(listening: &[(bool, SocketAddr)], args: &Serve) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for (tls, address) in listening {
        let (http, ws) = if *tls { ("https", "wss") } else { ("http", "ws") };
        writeln!(out, "wireloom {} on {http}://{address}/", env!("CARGO_PKG_VERSION"))?;
        writeln!(out, "  {ws}://{address}/echo          sends back each message")?;
        writeln!(out, "  {ws}://{address}/rooms/NAME    gives each message to all members")?;
        writeln!(out, "  {ws}://{address}/sink          counts and discards")?;
        writeln!(out, "  {ws}://{address}/source        sends: ?size=&rate=&count=")?;
    }
    if args.tls && args.cert.is_none() {
        writeln!(
            out,
            "the certificate is made for this run and nobody vouches for it: connect with --insecure"
        )?;
    }
    out.flush()
}

/// What asks the command to end: SIGTERM or SIGINT. Heard from when this is made, so that none is lost.
struct Stop {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
}

impl Stop {
    #[cfg(unix)]
    fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    #[cfg(not(unix))]
    fn new() -> io::Result<Self> {
        Ok(Self {})
    }

    async fn asked(&mut self) {
        #[cfg(unix)]
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
        #[cfg(not(unix))]
        if tokio::signal::ctrl_c().await.is_err() {
            // It cannot be heard here: nobody will ask.
            std::future::pending().await
        }
    }
}
