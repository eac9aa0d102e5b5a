//! `wireloom serve`: binds, says where, serves, and ends when it is told to.

use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use wireloom::{DeflateConfig, Keepalive, Server, ServerConfig, ServerHandle, ServerTls};

use crate::args;
use crate::exit::Exit;
use crate::routes::Routes;

pub(crate) fn run(args: args::Serve) -> Exit {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if let Some(workers) = args.workers {
        builder.worker_threads(workers);
    }
    let served = builder.enable_all().build().map_err(|error| error.to_string());
    match served.and_then(|runtime| runtime.block_on(serve(&args))) {
        Ok(()) => Exit::Done,
        Err(error) => {
            eprintln!("wireloom: {error}");
            Exit::NotBegun
        }
    }
}

async fn serve(args: &args::Serve) -> Result<(), String> {
    let config = config(args);
    let routes = Arc::new(Routes::new(args.allow_origin.clone()));
    let mut servers = Vec::new();
    let plain = bind(args.listen, &config).await?;
    let mut addresses = vec![("http", "ws", plain.local_addr().map_err(|error| error.to_string())?)];
    servers.push(plain);
    if args.tls {
        let tls = match (&args.cert, &args.key) {
            (Some(cert), Some(key)) => ServerTls::from_pem_files(cert, key),
            _ => ServerTls::self_signed(&["localhost", "127.0.0.1", "::1"]).map(|(tls, _)| tls),
        };
        let tls = tls.map_err(|error| format!("the certificate cannot be used: {error}"))?;
        let server = bind(args.tls_listen, &config).await?.tls(tls);
        addresses.push(("https", "wss", server.local_addr().map_err(|error| error.to_string())?));
        servers.push(server);
    }
    let handles: Vec<ServerHandle> = servers.iter().map(Server::handle).collect();
    routes.watch(handles.clone());
    // Whoever reads this may have gone; that is no reason not to serve.
    let _ = announce(&addresses, args);
    tokio::spawn(async move {
        if stop_asked().await.is_ok() {
            eprintln!("shutting down; once more to cut at once");
            handles.iter().for_each(ServerHandle::shut_down);
            if stop_asked().await.is_ok() {
                handles.iter().for_each(ServerHandle::cut);
            }
        }
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
    Ok(())
}

async fn bind(address: std::net::SocketAddr, config: &ServerConfig) -> Result<Server, String> {
    let server =
        Server::bind(address).await.map_err(|error| format!("cannot listen on {address}: {error}"))?;
    Ok(server.config(config.clone()))
}

fn config(args: &args::Serve) -> ServerConfig {
    let mut config = ServerConfig::default();
    config.connections_max = args.max_connections;
    config.connections_per_address_max = args.max_per_address;
    config.handshake_timeout = Duration::from_secs(args.handshake_timeout);
    config.body_len_max = args.max_body;
    config.shutdown_grace = Duration::from_secs(args.grace);
    config.deflate = (!args.no_compress).then(DeflateConfig::default);
    let core = &mut config.websocket.core;
    core.limits.message_len_max = args.max_message;
    core.limits.frame_len_max = args.max_message;
    core.keepalive = args.ping.map(|seconds| Keepalive {
        ping_after: Duration::from_secs(seconds),
        dead_after: Duration::from_secs(seconds.saturating_mul(3)),
    });
    config
}

fn announce(addresses: &[(&str, &str, std::net::SocketAddr)], args: &args::Serve) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for (http, ws, address) in addresses {
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

/// Waits for SIGTERM or SIGINT.
async fn stop_asked() -> io::Result<()> {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            _ = terminate.recv() => Ok(()),
            interrupted = tokio::signal::ctrl_c() => interrupted,
        }
    }
    #[cfg(not(unix))]
    tokio::signal::ctrl_c().await
}
