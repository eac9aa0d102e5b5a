//! The servers: their names, and how they are started. The servers written in Rust are this program, started with
//! `--serve`; each has a module with the echo as its documentation shows it. The others are in `bench/foreign`.

mod broadcast;
mod fastwebsockets;
pub(crate) mod foreign;
mod hub;
mod hyper;
mod messages;
mod raw;
mod raw_http2;
mod sockudo_ws;
mod tokio_websockets;
mod tungstenite;
mod wireloom;
mod yawc;

use super::cores::Cores;
use super::process::{Launch, Process};
use super::protocol::Protocol;
use super::tls;
use crate::allocation;
use crate::isa;
use crate::results::Role;
use crate::rivals::with_version;
use crate::runner::Runner;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Command, ExitCode};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;

/// How a server treats the bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// It returns them unchanged.
    Bytes,
    /// A handshake, then frames: it returns their messages.
    WebSocket,
}

/// Why a server cannot be started, and how to get it.
pub(crate) struct Unavailable {
    pub(crate) reason: String,
    pub(crate) remedy: String,
}

/// Returns how a server is started. The argument says whether a missing program may be installed.
type Launcher = Box<dyn Fn(bool) -> Result<Launch, Unavailable>>;

/// The transport of an echo server: TCP, or TLS over it.
trait Transport: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> Transport for T {}

const BARE: &[Protocol] = &[Protocol::Bare];

/// A server that can be started.
pub(crate) struct Server {
    pub(crate) name: String,
    pub(crate) role: Role,
    /// A caveat for the comparison with the others.
    pub(crate) note: Option<&'static str>,
    pub(crate) launch: Launcher,
    /// The protocols of a server that fans out.
    pub(crate) protocols: &'static [Protocol],
}

impl Server {
    /// A server in this program.
    fn own(argument: &'static str, name: impl Into<String>, role: Role) -> Self {
        let launch = move |_| match own_command(&["--serve", argument]) {
            Ok(command) => Ok(command.into()),
            Err(reason) => Err(Unavailable { reason, remedy: String::new() }),
        };
        Self { name: name.into(), role, note: None, launch: Box::new(launch), protocols: BARE }
    }

    /// One of those in this program, with mimalloc as its allocator.
    fn own_on_mimalloc(argument: &'static str, name: impl Into<String>, role: Role) -> Self {
        let launch = move |_| match own_command(&["--serve", argument]) {
            Ok(mut command) => {
                command.env(allocation::VARIABLE, "mimalloc");
                Ok(command.into())
            }
            Err(reason) => Err(Unavailable { reason, remedy: String::new() }),
        };
        Self { name: name.into(), role, note: None, launch: Box::new(launch), protocols: BARE }
    }

    /// A server outside this program.
    fn foreign(
        name: impl Into<String>,
        remedy: &'static str,
        launch: fn(bool) -> Result<Launch, String>,
    ) -> Self {
        let launch = move |may_install| {
            launch(may_install).map_err(|reason| Unavailable { reason, remedy: remedy.into() })
        };
        Self { name: name.into(), role: Role::Rival, note: None, launch: Box::new(launch), protocols: BARE }
    }

    fn with_note(self, note: &'static str) -> Self {
        Self { note: Some(note), ..self }
    }

    /// With these protocols only.
    pub(crate) fn speaks(self, protocols: &'static [Protocol]) -> Self {
        Self { protocols, ..self }
    }

    fn named(self, name: &str) -> Self {
        Self { name: name.into(), ..self }
    }

    /// The dialect of its echo.
    pub(crate) fn dialect(&self) -> Dialect {
        if self.role == Role::Baseline { Dialect::Bytes } else { Dialect::WebSocket }
    }
}

/// This program with these arguments.
///
/// # Errors
/// The operating system does not know its path.
pub(crate) fn own_command(arguments: &[&str]) -> Result<Command, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    if let Some(isa) = isa::capped() {
        command.args(["--isa", isa]);
    }
    command.args(arguments);
    Ok(command)
}

/// Servers that echo.
pub(crate) fn echoes() -> Vec<Server> {
    let baseline = |argument, name| Server::own(argument, name, Role::Baseline);
    let rival = |argument| Server::own(argument, with_version(argument), Role::Rival);
    let batched = |argument, package| {
        let name = format!("{}, batched by the application", with_version(package));
        Server::own(argument, name, Role::Batched)
    };
    let sockudo = with_version("sockudo-ws");
    vec![
        baseline("raw-epoll", "raw TCP on epoll"),
        baseline("raw-tokio", RAW_TOKIO),
        Server::own("wireloom", "wireloom, split halves, borrowed", Role::Wireloom),
        Server::own("wireloom-kept", "wireloom, recv_owned, kept", Role::Variant),
        rival("fastwebsockets"),
        batched("fastwebsockets-batched", "fastwebsockets")
            .with_note("its transport holds writes until the next read; the library itself has no batching"),
        rival("tokio-websockets"),
        batched("tokio-websockets-batched", "tokio-websockets"),
        Server::own("sockudo-ws", format!("{sockudo}, its documented loop"), Role::Rival)
            .with_note("`feed`; `next` flushes when the read batch is exhausted"),
        Server::own_on_mimalloc(
            "sockudo-ws",
            format!("{sockudo}, its documented loop, mimalloc"),
            Role::Rival,
        )
        .with_note("its documentation recommends mimalloc"),
        Server::own("sockudo-ws-send", format!("{sockudo}, send"), Role::Rival),
        rival("yawc"),
        batched("yawc-batched", "yawc").with_note("with the buffers of its own benchmark"),
        rival("tokio-tungstenite").with_note("its defaults: a read buffer of 128 KiB"),
        Server::own(
            "tokio-tungstenite-small",
            with_version("tokio-tungstenite") + ", buffer of 16 KiB",
            Role::Rival,
        ),
        batched("tokio-tungstenite-batched", "tokio-tungstenite").with_note("read buffer of 16 KiB"),
        Server::foreign(format!("gws {} (Go)", foreign::gws_version()), BY_GO, foreign::gws),
        Server::foreign(
            format!("bun {} (uWebSockets and JavaScript)", foreign::bun_version()),
            "Install npm; the bench downloads bun when it runs without --smoke",
            foreign::bun,
        )
        .with_note("the handler is JavaScript, so each message also costs a call into the engine"),
    ]
}

/// Servers whose echo is measured at a rate: two of the rivals that are fastest at one message at a time.
pub(crate) fn paced_echoes() -> Vec<Server> {
    vec![
        Server::own("raw-tokio", RAW_TOKIO, Role::Baseline),
        Server::own("wireloom", "wireloom, split halves, borrowed", Role::Wireloom),
        Server::own(
            "fastwebsockets-batched",
            format!("{}, batched by the application", with_version("fastwebsockets")),
            Role::Batched,
        ),
        Server::own(
            "sockudo-ws",
            format!("{}, its documented loop", with_version("sockudo-ws")),
            Role::Rival,
        ),
    ]
}

/// Servers that answer requests over HTTP/2.
pub(crate) fn http2() -> Vec<Server> {
    vec![
        Server::own("wireloom", "wireloom", Role::Wireloom),
        Server::own("hyper", with_version("hyper"), Role::Rival),
        Server::foreign(
            "nghttpd",
            "Install nghttp2-server (Debian), which has it",
            foreign::nghttpd,
        )
        .with_note("opens and reads its file for each request, and sends five fields where the others send three or four"),
        Server::own("raw-http2", "a loop over the frames, one read and one write", Role::Baseline)
            .with_note("no HPACK, no limits; answers from bytes that were built before"),
    ]
}

/// Servers that also echo over HTTP/2.
pub(crate) fn tunnels() -> Vec<Server> {
    vec![
        Server::own("wireloom", "wireloom", Role::Wireloom),
        Server::own(
            "yawc-http2",
            format!("{} on hyper, batched by the application", with_version("yawc")),
            Role::Batched,
        ),
    ]
}

/// Servers that accept compressed messages.
pub(crate) fn inflating() -> Vec<Server> {
    vec![
        Server::own("wireloom-deflate", "wireloom", Role::Wireloom),
        Server::own("yawc-deflate", format!("{}, permessage-deflate", with_version("yawc")), Role::Rival),
    ]
}

/// Servers that accept compressed messages over HTTP/2.
pub(crate) fn inflating_http2() -> Vec<Server> {
    vec![
        Server::own("wireloom-deflate", "wireloom", Role::Wireloom),
        Server::own(
            "yawc-http2-deflate",
            format!("{} on hyper, permessage-deflate", with_version("yawc")),
            Role::Rival,
        ),
    ]
}

const BY_NPM: &str = "Install Node and npm; the bench installs the package when it runs without --smoke";
const BY_GO: &str = "Install Go 1.21 or later from go.dev/dl; the bench builds it";

/// The protocols of the Centrifugal SDKs.
const CENTRIFUGAL: &[Protocol] = &[Protocol::Json, Protocol::Protobuf];

/// The hub on one node.
fn hub() -> Server {
    let protocols = &[Protocol::Bare, Protocol::Json, Protocol::Protobuf];
    Server::own("hub", "wireloom-hub", Role::Wireloom).speaks(protocols)
}

fn socket_io() -> Server {
    socket_io_by("", |may_install| foreign::socket_io(&[], may_install))
}

fn socket_io_by(setup: &str, launch: fn(bool) -> Result<Launch, String>) -> Server {
    let name = format!("socket.io {}{setup}", foreign::node_version("socket.io"));
    Server::foreign(name, BY_NPM, launch).speaks(&[Protocol::SocketIo])
}

fn faye() -> Server {
    let name = format!("Faye {}", foreign::node_version("faye"));
    Server::foreign(name, BY_NPM, foreign::faye).speaks(&[Protocol::Faye])
}

fn centrifugo() -> Server {
    let remedy = "Put the program centrifugo 6 on the PATH";
    Server::foreign(foreign::centrifugo_name(), remedy, foreign::centrifugo).speaks(CENTRIFUGAL)
}

fn centrifuge() -> Server {
    Server::foreign(
        format!("centrifuge {}", foreign::centrifuge_version()),
        "Install Go 1.26 or later from go.dev/dl; the bench builds it",
        foreign::centrifuge,
    )
    .with_note("the library inside Centrifugo; it may join several publications in one message")
    .speaks(CENTRIFUGAL)
}

fn bun_room(launch: fn(bool) -> Result<Launch, String>) -> Server {
    let name = format!("uWebSockets, publish, in bun {}", foreign::bun_version());
    Server::foreign(name, BY_NPM, launch)
}

fn gorilla_room(launch: fn(bool) -> Result<Launch, String>) -> Server {
    let name = format!("gorilla/websocket {}, prepared messages", foreign::gorilla_version());
    Server::foreign(name, BY_GO, launch)
}

/// Servers that deliver each message to every connection.
pub(crate) fn fanouts() -> Vec<Server> {
    vec![
        hub(),
        Server::own("hub-plain", "wireloom-hub, without io_uring", Role::Variant),
        Server::own(
            "tokio-broadcast",
            format!("tokio broadcast, {}", with_version("tokio-tungstenite")),
            Role::Rival,
        ),
        bun_room(foreign::bun_publish),
        gorilla_room(foreign::gorilla),
        socket_io(),
        faye(),
        centrifuge(),
        centrifugo(),
    ]
}

/// Servers whose fan-out is measured at a rate: the two rivals that are fastest at bare messages, one at a time.
pub(crate) fn paced_fanouts() -> Vec<Server> {
    vec![raw_broadcast(), hub().speaks(BARE), bun_room(foreign::bun_publish), gorilla_room(foreign::gorilla)]
}

/// Servers that deliver to as many connections as there can be.
pub(crate) fn large_fanouts() -> Vec<Server> {
    vec![raw_broadcast(), hub().speaks(BARE), bun_room(foreign::bun_publish)]
}

/// The baseline of fan-out: the system calls that every server has to make.
pub(crate) fn raw_broadcast() -> Server {
    Server::own("raw-broadcast", "one `write` for each subscriber, on epoll", Role::Baseline)
        .with_note("no queues, no limits")
}

/// Servers that compress the messages that they deliver.
pub(crate) fn compressing() -> Vec<Server> {
    vec![
        hub().speaks(&[Protocol::Bare]),
        bun_room(foreign::bun_deflate),
        gorilla_room(foreign::gorilla_deflate),
    ]
}

/// Servers whose connections can join more than one channel.
pub(crate) fn channels() -> Vec<Server> {
    vec![hub().speaks(CENTRIFUGAL), socket_io(), faye(), centrifuge(), centrifugo()]
}

/// Servers whose channels are counted in hundreds of thousands: the hub and its fastest rival with fewer.
pub(crate) fn many_channels() -> Vec<Server> {
    vec![hub().speaks(CENTRIFUGAL), centrifuge()]
}

/// Servers whose clients recover the messages that they missed.
pub(crate) fn recovering() -> Vec<Server> {
    vec![
        hub().speaks(CENTRIFUGAL),
        socket_io_by(", connection state recovery", |may_install| {
            foreign::socket_io(&["--recovery"], may_install)
        }),
        centrifuge(),
        centrifugo(),
    ]
}

/// Servers with several nodes.
pub(crate) fn clusters() -> Vec<Server> {
    let nats = "go install github.com/nats-io/nats-server/v2@latest, or Debian's nats-server";
    type Launching = fn(bool) -> Result<Launch, String>;
    let hub_on = |name: &str, role, launch: Launching| {
        Server { role, ..Server::foreign(name, nats, launch) }.speaks(&[Protocol::Json])
    };
    vec![
        hub_on("wireloom-hub, 2 nodes, NATS", Role::Wireloom, |_| hub::cluster("hub-2")),
        hub_on("wireloom-hub, 3 nodes, NATS", Role::Variant, |_| hub::cluster("hub-3")),
        Server { role: Role::Baseline, ..hub().speaks(&[Protocol::Json]).named("wireloom-hub, 1 node") },
        socket_io_by(", 2 processes, cluster adapter", |may_install| {
            foreign::socket_io(&["--processes", "2"], may_install)
        }),
        socket_io_by(", 3 processes, cluster adapter", |may_install| {
            foreign::socket_io(&["--processes", "3"], may_install)
        }),
    ]
}

/// Wireloom with one thread or several.
pub(crate) fn workers() -> Vec<Server> {
    vec![
        Server::own("wireloom-threads", "one runtime, a thread for each core", Role::Wireloom),
        Server::own("wireloom-listeners", "a runtime and a listener for each core", Role::Variant),
        Server::own("wireloom", "one runtime, one thread", Role::Variant),
    ]
}

/// The server whose idle connections over TLS are measured.
pub(crate) fn idle_over_tls() -> Vec<Server> {
    vec![Server::own("wireloom-tls", "wireloom over TLS", Role::Variant)]
}

/// Servers that echo over TLS: those in Rust by rustls with its defaults, Wireloom as well.
pub(crate) fn echoes_over_tls() -> Vec<Server> {
    let batched = |argument, package| {
        let name = format!("{}, batched by the application", with_version(package));
        Server::own(argument, name, Role::Batched)
    };
    vec![
        Server::own("raw-tokio-tls", "bytes over TLS on tokio", Role::Baseline),
        Server::own("wireloom-tls", "wireloom, split halves, borrowed", Role::Wireloom),
        batched("fastwebsockets-batched-tls", "fastwebsockets"),
        Server::own(
            "sockudo-ws-tls",
            format!("{}, its documented loop", with_version("sockudo-ws")),
            Role::Rival,
        ),
        batched("yawc-batched-tls", "yawc"),
        Server::foreign(
            format!("bun {} (uWebSockets and JavaScript)", foreign::bun_version()),
            BY_NPM,
            foreign::bun_tls,
        )
        .with_note("BoringSSL"),
    ]
}

/// Servers that deliver each message to every connection over TLS.
pub(crate) fn fanouts_over_tls() -> Vec<Server> {
    vec![
        Server::own("hub-tls", "wireloom-hub", Role::Wireloom),
        bun_room(foreign::bun_publish_tls).with_note("BoringSSL"),
        gorilla_room(foreign::gorilla_tls).with_note("Go's TLS"),
    ]
}

/// A path that answers with [`SMALL_BODY`], also to an upload.
pub(crate) const SMALL: &str = "/small";
/// The body of its answer.
pub(crate) const SMALL_BODY: &str = "hello\n";
/// A path that answers with [`LARGE_LEN`] bytes.
pub(crate) const LARGE: &str = "/large";
/// Bytes.
pub(crate) const LARGE_LEN: usize = 16 << 20;

/// The body of the answer at [`LARGE`].
fn large() -> Vec<u8> {
    let mut bytes = vec![0; LARGE_LEN];
    fastrand::Rng::with_seed(9113).fill(&mut bytes);
    bytes
}

/// A running server.
pub(crate) struct Running {
    pub(crate) server: Server,
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
    /// The addresses of its nodes; most servers have one.
    pub(crate) addresses: Vec<SocketAddr>,
}

/// Starts the servers that are wanted. Those that cannot be started are recorded as missing.
///
/// # Errors
/// A server was started and then failed.
pub(crate) fn start(
    runner: &mut Runner,
    cores: &Cores,
    servers: Vec<Server>,
) -> Result<Vec<Running>, String> {
    let mut running = Vec::new();
    for server in servers {
        if !runner.is_wanted(&server.name) {
            continue;
        }
        runner.show(&format!("starting {}", server.name));
        match (server.launch)(!runner.smoke) {
            Ok(launch) => {
                let (process, addresses) =
                    Process::serve(launch, cores).map_err(|error| format!("{}: {error}", server.name))?;
                running.push(Running { server, process, address: addresses[0], addresses });
            }
            Err(Unavailable { reason, remedy }) => runner.skip(&server.name, &reason, &remedy),
        }
    }
    Ok(running)
}

/// The name of the baseline on tokio.
pub(crate) const RAW_TOKIO: &str = "raw TCP on tokio";

/// Runs the server that `argument` names until the standard input is closed.
pub(crate) fn serve(argument: &str) -> ExitCode {
    match argument {
        "wireloom-listeners" => return wireloom::serve_by_listeners(Cores::count()),
        "hub-2" => return hub::serve_cluster(2),
        "hub-3" => return hub::serve_cluster(3),
        _ => {}
    }
    let listener = match TcpListener::bind((Ipv4Addr::LOCALHOST, 0)) {
        Ok(listener) => listener,
        Err(error) => {
            eprintln!("cannot listen: {error}");
            return ExitCode::FAILURE;
        }
    };
    match listener.local_addr() {
        Ok(address) => println!("listening on {address}"),
        Err(error) => eprintln!("{error}"),
    }
    end_with_input();
    let outcome = match argument {
        "raw-epoll" => raw::on_epoll(&listener),
        "raw-broadcast" => broadcast::on_epoll(&listener),
        "raw-http2" => raw_http2::serve(&listener),
        "wireloom-threads" => wireloom::serve_by_threads(listener, Cores::count()),
        _ => on_tokio(argument, listener),
    };
    eprintln!("{argument}: {outcome:?}");
    ExitCode::FAILURE
}

/// Ends this process when its standard input is closed, so that it does not outlive the benchmark.
fn end_with_input() {
    std::thread::spawn(|| {
        _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
}

fn on_tokio(argument: &str, listener: TcpListener) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        match argument {
            "wireloom" => return wireloom::serve(listener).await,
            "wireloom-deflate" => return wireloom::serve_deflate(listener).await,
            "wireloom-kept" => return wireloom::serve_kept(listener).await,
            "hub" => return hub::node(listener, ::wireloom::IoUring::Auto).await,
            "hub-tls" => return hub::node_over_tls(listener).await,
            "hub-plain" => return hub::node(listener, ::wireloom::IoUring::Off).await,
            "tokio-broadcast" => return hub::tungstenite(listener).await,
            "wireloom-tls" => return wireloom::serve_tls(listener).await,
            _ => {}
        }
        let (argument, tls) = match argument.strip_suffix("-tls") {
            Some(argument) => (argument, Some(TlsAcceptor::from(tls::server()?))),
            None => (argument, None),
        };
        loop {
            // A connection may have been reset before it was accepted.
            let Ok((stream, _)) = listener.accept().await else { continue };
            stream.set_nodelay(true)?;
            let Some(tls) = tls.clone() else {
                spawn(argument, stream)?;
                continue;
            };
            let argument = argument.to_owned();
            tokio::spawn(async move {
                // The client may end the connection in any way.
                if let Ok(stream) = tls.accept(stream).await {
                    _ = spawn(&argument, stream);
                }
            });
        }
    })
}

/// Serves one connection by the server that `argument` names.
fn spawn(argument: &str, stream: impl Transport) -> std::io::Result<()> {
    match argument {
        "hyper" => tokio::spawn(hyper::serve(stream)),
        "raw-tokio" => tokio::spawn(raw::echo(stream)),
        "fastwebsockets" => tokio::spawn(fastwebsockets::echo(stream)),
        "fastwebsockets-batched" => tokio::spawn(fastwebsockets::echo_batched(stream)),
        "tokio-websockets" => tokio::spawn(tokio_websockets::echo(stream)),
        "tokio-websockets-batched" => tokio::spawn(tokio_websockets::echo_batched(stream)),
        "sockudo-ws" => tokio::spawn(sockudo_ws::echo(stream)),
        "sockudo-ws-send" => tokio::spawn(sockudo_ws::echo_by_send(stream)),
        "yawc" => tokio::spawn(yawc::echo(stream)),
        "yawc-http2" => tokio::spawn(yawc::echo_http2(stream)),
        "yawc-deflate" => tokio::spawn(yawc::echo_deflate(stream)),
        "yawc-http2-deflate" => tokio::spawn(yawc::echo_http2_deflate(stream)),
        "yawc-batched" => tokio::spawn(yawc::echo_batched(stream)),
        "tokio-tungstenite" => tokio::spawn(tungstenite::echo(stream)),
        "tokio-tungstenite-small" => tokio::spawn(tungstenite::echo_small(stream)),
        "tokio-tungstenite-batched" => tokio::spawn(tungstenite::echo_batched(stream)),
        _ => return Err(std::io::Error::other("no server is called so")),
    };
    Ok(())
}
