//! Fan-out: Wireloom's hub on one node or several, and a broadcast channel of tokio with tungstenite.

use super::super::tls;
use super::{Cores, Launch, Process, end_with_input, foreign, own_command};
use futures_util::{SinkExt, StreamExt};
use std::io;
use std::process::{Command, ExitCode, Stdio};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio_tungstenite::tungstenite::Message;
use wireloom::{IoUring, Server, ServerConfig, ServerTls};
use wireloom_hub::engine::NatsEngine;
use wireloom_hub::{Hub, HubConfig};

/// The environment variable with the URL of NATS for a node.
const NATS: &str = "WIRELOOM_BENCH_NATS";

/// Rooms for bare messages, channels without a history, and one with a history. The ping interval is longer than any
/// run.
const CONFIG: &str = r#"
[client]
anonymous = true
commands_per_s_max = 4000000000
ping_interval = "2h"
pong_timeout = "1h"
queue_len_max = 16777216

[channel]
subscribe = "anyone"
publish = "anyone"
publications_per_s_max = 0
publication_bytes_per_s_max = 0

[[namespace]]
name = "rooms"
subscribe = "anyone"
publish = "anyone"
publications_per_s_max = 0
publication_bytes_per_s_max = 0

[[namespace]]
name = "listed"
subscribe = "anyone"
presence = true

[[namespace]]
name = "kept"
subscribe = "anyone"
publish = "anyone"
history_size = 100
history_ttl = "10m"
force_recovery = true
"#;

/// One node over TLS.
pub(super) async fn node_over_tls(listener: TcpListener) -> io::Result<()> {
    let tls = ServerTls::from_rustls(tls::server()?);
    serve(Server::new(listener).tls(tls), IoUring::Auto).await
}

/// One node.
pub(super) async fn node(listener: TcpListener, io_uring: IoUring) -> io::Result<()> {
    serve(Server::new(listener), io_uring).await
}

async fn serve(server: Server, io_uring: IoUring) -> io::Result<()> {
    let config = HubConfig::from_toml(CONFIG).map_err(io::Error::other)?;
    let mut hub = Hub::builder().config(config);
    if let Ok(url) = std::env::var(NATS) {
        hub = hub.engine(NatsEngine::connect(&url).await.map_err(io::Error::other)?);
    }
    let hub = hub.build().map_err(io::Error::other)?;
    let answer = move |request| {
        let hub = hub.clone();
        async move { hub.answer(request).await }
    };
    // Compression is used if the client offers it.
    let mut config =
        ServerConfig { deflate: Some(wireloom::DeflateConfig::default()), ..ServerConfig::default() };
    config.websocket.io_uring = io_uring;
    server.config(config).serve(answer).await
}

/// How several nodes are started.
///
/// # Errors
/// nats-server is not installed.
pub(super) fn cluster(argument: &str) -> Result<Launch, String> {
    foreign::run(Command::new("nats-server").arg("--version"))?;
    Ok(own_command(&["--serve", argument])?.into())
}

/// Runs a NATS server and `nodes` nodes as separate processes, until the standard input is closed.
pub(super) fn serve_cluster(nodes: usize) -> ExitCode {
    let outcome = (|| -> Result<std::convert::Infallible, String> {
        let cores = Cores::share();
        let (_nats, address) = nats(&cores)?;
        let mut running = Vec::with_capacity(nodes);
        let mut addresses = Vec::with_capacity(nodes);
        for _ in 0..nodes {
            let mut command = own_command(&["--serve", "hub"])?;
            command.env(NATS, format!("nats://{address}"));
            let (process, address) = Process::serve(command.into(), &cores)?;
            running.push(process);
            addresses.push(address[0].to_string());
        }
        println!("listening on {}", addresses.join(" "));
        end_with_input();
        loop {
            std::thread::park();
        }
    })();
    eprintln!("{outcome:?}");
    ExitCode::FAILURE
}

/// A NATS server, which ends with this process where `setpriv` is installed.
fn nats(cores: &Cores) -> Result<(Process, std::net::SocketAddr), String> {
    let address = foreign::free_address()?;
    let store = foreign::beside("nats")?.join(address.port().to_string());
    _ = std::fs::remove_dir_all(&store);
    let mut command = foreign::bound("nats-server");
    command.args(["-a", "127.0.0.1", "-p", &address.port().to_string(), "-js", "-sd"]).arg(store);
    command.stderr(Stdio::null());
    let (process, _) = Process::serve(Launch { command, address: Some(address) }, cores)?;
    Ok((process, address))
}

/// A room as the examples of both libraries show it.
pub(super) async fn tungstenite(listener: TcpListener) -> io::Result<()> {
    let (room, _) = broadcast::channel(4_096);
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        stream.set_nodelay(true)?;
        tokio::spawn(join(stream, room.clone()));
    }
}

async fn join(stream: TcpStream, room: broadcast::Sender<Message>) {
    let Ok(mut socket) = tokio_tungstenite::accept_async(stream).await else { return };
    let mut messages = room.subscribe();
    loop {
        tokio::select! {
            message = messages.recv() => match message {
                Ok(message) => if socket.send(message).await.is_err() { return },
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            },
            message = socket.next() => match message {
                Some(Ok(message)) if message.is_text() || message.is_binary() => drop(room.send(message)),
                Some(Ok(_)) => {}
                _ => return,
            },
        }
    }
}
