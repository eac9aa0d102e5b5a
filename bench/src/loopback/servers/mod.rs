//! The servers that echo: what each is called, and how it is started. Those written in Rust are this very program, told to
//! serve; each has a module that holds the echo as its authors would write it. The others are in `bench/foreign`.

mod fastwebsockets;
mod foreign;
mod messages;
mod raw;
mod sockudo_ws;
mod tokio_websockets;
mod tungstenite;
mod wireloom;
mod yawc;

use crate::heat::Class;
use crate::rivals::with_version;
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener};
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
    pub(crate) dialect: Dialect,
    /// What starts it; it says where it listens and ends with its standard input. Whether what is missing may be
    /// installed is the argument.
    ///
    /// # Errors
    /// Why it cannot be had here.
    pub(crate) command: Box<dyn Fn(bool) -> Result<Command, String>>,
}

impl Server {
    /// One of those in this program.
    fn own(word: &'static str, name: impl Into<String>, class: Class) -> Self {
        let dialect = if class == Class::Floor { Dialect::Bytes } else { Dialect::WebSocket };
        let command = move |_| own_command(&["--serve", word]);
        Self { name: name.into(), class, dialect, command: Box::new(command) }
    }

    /// One that is not.
    fn foreign(name: &str, command: fn(bool) -> Result<Command, String>) -> Self {
        let (class, dialect) = (Class::Rival, Dialect::WebSocket);
        Self { name: name.into(), class, dialect, command: Box::new(command) }
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

/// All of them.
pub(crate) fn all() -> Vec<Server> {
    let batched = |package| format!("{}, batched by hand", with_version(package));
    vec![
        Server::own("raw-epoll", "raw TCP on epoll", Class::Floor),
        Server::own("raw-tokio", RAW_TOKIO, Class::Floor),
        Server::own("wireloom", "wireloom", Class::Wireloom),
        Server::own("fastwebsockets", with_version("fastwebsockets"), Class::Rival),
        Server::own("tokio-websockets", with_version("tokio-websockets"), Class::Rival),
        Server::own("tokio-websockets-batched", batched("tokio-websockets"), Class::Batched),
        Server::own("sockudo-ws", with_version("sockudo-ws"), Class::Rival),
        Server::own("sockudo-ws-batched", batched("sockudo-ws"), Class::Batched),
        Server::own("yawc", with_version("yawc"), Class::Rival),
        Server::own("yawc-batched", batched("yawc"), Class::Batched),
        Server::own("tokio-tungstenite", with_version("tokio-tungstenite"), Class::Rival),
        Server::own("tokio-tungstenite-batched", batched("tokio-tungstenite"), Class::Batched),
        Server::foreign("gws (Go)", foreign::gws),
        Server::foreign("bun (uWebSockets)", foreign::bun),
    ]
}

/// The floor that the bars are held against.
pub(crate) const RAW_TOKIO: &str = "raw TCP on tokio";

/// Serves as `word` says until the standard input ends.
pub(crate) fn serve(word: &str) -> ExitCode {
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
    // Who started it is gone, or wants it gone.
    std::thread::spawn(|| {
        _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let outcome = if word == "raw-epoll" { raw::on_epoll(&listener) } else { on_tokio(word, listener) };
    eprintln!("{word}: {outcome:?}");
    ExitCode::FAILURE
}

fn on_tokio(word: &str, listener: TcpListener) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        if word == "wireloom" {
            return wireloom::serve(listener).await;
        }
        loop {
            // Who was cut while waiting is no matter.
            let Ok((stream, _)) = listener.accept().await else { continue };
            stream.set_nodelay(true)?;
            match word {
                "raw-tokio" => tokio::spawn(raw::echo(stream)),
                "fastwebsockets" => tokio::spawn(fastwebsockets::echo(stream)),
                "tokio-websockets" => tokio::spawn(tokio_websockets::echo(stream)),
                "tokio-websockets-batched" => tokio::spawn(tokio_websockets::echo_batched(stream)),
                "sockudo-ws" => tokio::spawn(sockudo_ws::echo(stream)),
                "sockudo-ws-batched" => tokio::spawn(sockudo_ws::echo_batched(stream)),
                "yawc" => tokio::spawn(yawc::echo(stream)),
                "yawc-batched" => tokio::spawn(yawc::echo_batched(stream)),
                "tokio-tungstenite" => tokio::spawn(tungstenite::echo(stream)),
                "tokio-tungstenite-batched" => tokio::spawn(tungstenite::echo_batched(stream)),
                _ => return Err(std::io::Error::other("no server is called so")),
            };
        }
    })
}
