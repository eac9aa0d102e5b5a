//! The servers: what each is called, and how it is started. Those written in Rust are this very program, told to
//! serve; each has a module that holds the echo as its authors would write it. The others are in `bench/foreign`.

mod fastwebsockets;
pub(crate) mod foreign;
mod hyper;
mod messages;
mod raw;
mod sockudo_ws;
mod tokio_websockets;
mod tungstenite;
mod wireloom;
mod yawc;

use super::cores::Cores;
use super::process::{Launch, Process};
use crate::bench::Bench;
use crate::heat::Class;
use crate::rivals::with_version;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Command, ExitCode};

/// What the bytes on the connection mean to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// Nothing: they come back as they are.
    Bytes,
    /// A handshake, then frames: their messages come back.
    WebSocket,
}

/// A server that can be started.
pub(crate) struct Server {
    pub(crate) name: String,
    pub(crate) class: Class,
    /// What starts it; it says where it listens and ends with its standard input. Whether what is missing may be
    /// installed is the argument.
    ///
    /// # Errors
    /// Why it cannot be had here.
    pub(crate) launch: Box<dyn Fn(bool) -> Result<Launch, String>>,
}

impl Server {
    /// One of those in this program.
    fn own(word: &'static str, name: impl Into<String>, class: Class) -> Self {
        let launch = move |_| Ok(own_command(&["--serve", word])?.into());
        Self { name: name.into(), class, launch: Box::new(launch) }
    }

    /// What an echo of it expects.
    pub(crate) fn dialect(&self) -> Dialect {
        if self.class == Class::Floor { Dialect::Bytes } else { Dialect::WebSocket }
    }

    /// One that is not.
    fn foreign(name: &str, launch: fn(bool) -> Result<Launch, String>) -> Self {
        Self { name: name.into(), class: Class::Rival, launch: Box::new(launch) }
    }
}

/// This program with these arguments.
///
/// # Errors
/// It does not know where it is.
pub(crate) fn own_command(arguments: &[&str]) -> Result<Command, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args(arguments);
    Ok(command)
}

/// Those that echo.
pub(crate) fn echoes() -> Vec<Server> {
    let floor = |word, name| Server::own(word, name, Class::Floor);
    let rival = |word| Server::own(word, with_version(word), Class::Rival);
    let batched = |word, package| {
        let name = format!("{}, batched by hand", with_version(package));
        Server::own(word, name, Class::Batched)
    };
    vec![
        floor("raw-epoll", "raw TCP on epoll"),
        floor("raw-tokio", RAW_TOKIO),
        Server::own("wireloom", "wireloom", Class::Wireloom),
        Server::own("wireloom-kept", "wireloom, messages kept", Class::Ours),
        rival("fastwebsockets"),
        rival("tokio-websockets"),
        batched("tokio-websockets-batched", "tokio-websockets"),
        rival("sockudo-ws"),
        batched("sockudo-ws-batched", "sockudo-ws"),
        rival("yawc"),
        batched("yawc-batched", "yawc"),
        rival("tokio-tungstenite"),
        batched("tokio-tungstenite-batched", "tokio-tungstenite"),
        Server::foreign("gws (Go)", foreign::gws),
        Server::foreign("bun (uWebSockets)", foreign::bun),
    ]
}

/// Those that answer requests over HTTP/2.
pub(crate) fn http2() -> Vec<Server> {
    vec![
        Server::own("wireloom", "wireloom", Class::Wireloom),
        Server::own("hyper", with_version("hyper"), Class::Rival),
        Server::foreign("nghttpd", foreign::nghttpd),
    ]
}

/// Those that echo over HTTP/2 too.
pub(crate) fn tunnels() -> Vec<Server> {
    vec![
        Server::own("wireloom", "wireloom", Class::Wireloom),
        Server::own(
            "yawc-http2",
            format!("{} on hyper, batched by hand", with_version("yawc")),
            Class::Batched,
        ),
    ]
}

/// Wireloom, by as many threads as the words say.
pub(crate) fn workers() -> Vec<Server> {
    vec![
        Server::own("wireloom-threads", "one runtime, a thread for each core", Class::Wireloom),
        Server::own("wireloom-listeners", "a runtime and a listener for each core", Class::Ours),
        Server::own("wireloom", "one runtime, one thread", Class::Ours),
    ]
}

/// The one that echoes over TLS.
pub(crate) fn over_tls() -> Vec<Server> {
    vec![Server::own("wireloom-tls", "wireloom over TLS", Class::Ours)]
}

/// A path whose answer is [`SMALL_BODY`], also to what is uploaded there.
pub(crate) const SMALL: &str = "/small";
/// What is answered there.
pub(crate) const SMALL_BODY: &str = "hello\n";
/// A path whose answer is [`LARGE_LEN`] bytes long.
pub(crate) const LARGE: &str = "/large";
/// Bytes.
pub(crate) const LARGE_LEN: usize = 16 << 20;

/// What is answered at [`LARGE`].
fn large() -> Vec<u8> {
    let mut bytes = vec![0; LARGE_LEN];
    fastrand::Rng::with_seed(9113).fill(&mut bytes);
    bytes
}

/// A server that runs.
pub(crate) struct Running {
    pub(crate) server: Server,
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
}

/// Starts those that are wanted; who cannot be had is said to be missing.
///
/// # Errors
/// Who should run and does not.
pub(crate) fn start(bench: &mut Bench, cores: &Cores, servers: Vec<Server>) -> Result<Vec<Running>, String> {
    let mut running = Vec::new();
    for server in servers {
        if !bench.is_wanted(&server.name) {
            continue;
        }
        bench.say(&format!("starting {}", server.name));
        match (server.launch)(!bench.smoke) {
            Ok(launch) => {
                let (process, address) =
                    Process::serve(launch, cores).map_err(|error| format!("{}: {error}", server.name))?;
                running.push(Running { server, process, address });
            }
            Err(reason) => bench.skip(&server.name, &reason),
        }
    }
    Ok(running)
}

/// The floor that the bars are held against.
pub(crate) const RAW_TOKIO: &str = "raw TCP on tokio";

/// Serves as `word` says until the standard input ends.
pub(crate) fn serve(word: &str) -> ExitCode {
    if word == "wireloom-listeners" {
        return wireloom::serve_by_listeners(Cores::count());
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
    let outcome = match word {
        "raw-epoll" => raw::on_epoll(&listener),
        "wireloom-threads" => wireloom::serve_by_threads(listener, Cores::count()),
        _ => on_tokio(word, listener),
    };
    eprintln!("{word}: {outcome:?}");
    ExitCode::FAILURE
}

/// Who started this is gone, or wants it gone.
fn end_with_input() {
    std::thread::spawn(|| {
        _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
}

fn on_tokio(word: &str, listener: TcpListener) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        match word {
            "wireloom" => return wireloom::serve(listener).await,
            "wireloom-kept" => return wireloom::serve_kept(listener).await,
            "wireloom-tls" => return wireloom::serve_tls(listener).await,
            _ => {}
        }
        loop {
            // Who was cut while waiting is no matter.
            let Ok((stream, _)) = listener.accept().await else { continue };
            stream.set_nodelay(true)?;
            match word {
                "hyper" => tokio::spawn(hyper::serve(stream)),
                "raw-tokio" => tokio::spawn(raw::echo(stream)),
                "fastwebsockets" => tokio::spawn(fastwebsockets::echo(stream)),
                "tokio-websockets" => tokio::spawn(tokio_websockets::echo(stream)),
                "tokio-websockets-batched" => tokio::spawn(tokio_websockets::echo_batched(stream)),
                "sockudo-ws" => tokio::spawn(sockudo_ws::echo(stream)),
                "sockudo-ws-batched" => tokio::spawn(sockudo_ws::echo_batched(stream)),
                "yawc" => tokio::spawn(yawc::echo(stream)),
                "yawc-http2" => tokio::spawn(yawc::echo_http2(stream)),
                "yawc-batched" => tokio::spawn(yawc::echo_batched(stream)),
                "tokio-tungstenite" => tokio::spawn(tungstenite::echo(stream)),
                "tokio-tungstenite-batched" => tokio::spawn(tungstenite::echo_batched(stream)),
                _ => return Err(std::io::Error::other("no server is called so")),
            };
        }
    })
}
