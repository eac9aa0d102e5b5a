//! Accepts WebSockets, and joins them to streams.

use std::io;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::timeout;
use wireloom::{DeflateConfig, OriginPolicy, Request, Response, Server, ServerConfig, ServerHandle};

use super::notes::Notes;
use super::{Failure, interruption, not_bound, usage};
use crate::args::{Endpoint, Listen, has_scheme};
#[cfg(unix)]
use crate::cmd::bind::UnixSocket;
use crate::cmd::bind::bind;
use crate::cmd::connect::connector;
use crate::cmd::join::{Ended, Joining, Stream};
use crate::exit::Exit;
use crate::signals::Signals;

/// The state that answers requests.
struct Routes {
    args: Listening,
    origins: OriginPolicy,
    joining: Joining,
    /// One for each WebSocket that may be joined.
    slots: Arc<Semaphore>,
    notes: Notes,
    /// Set when the command ends.
    ending: watch::Receiver<bool>,
    /// How the only WebSocket has ended; `None` where there may be more.
    ended: Option<mpsc::Sender<Ended>>,
}

/// The arguments that requests need.
struct Listening {
    /// The path of the URL; `None` for every path.
    path: Option<String>,
    to: To,
    subprotocols: Vec<String>,
    timeout: std::time::Duration,
}

/// The endpoint to which WebSockets are joined.
enum To {
    Standard,
    Tcp(String),
    #[cfg(unix)]
    Unix(String),
    Program(String),
}

/// Serves until a signal, or until the only WebSocket has ended.
///
/// # Errors
/// Nothing can be listened on.
pub(super) async fn run(args: &Listen, notes: &Notes) -> Result<Exit, Failure> {
    let Endpoint::WebSocket(url) = &args.address else { return Err(usage("ADDRESS is not of WebSockets")) };
    let to = match (&args.join.exec, &args.to) {
        (Some(program), _) => To::Program(program.clone()),
        (None, Some(Endpoint::Tcp(address))) => To::Tcp(address.clone()),
        #[cfg(unix)]
        (None, Some(Endpoint::Unix(path))) => To::Unix(path.clone()),
        _ => To::Standard,
    };
    let is_only = matches!(to, To::Standard);
    let joining = args.joining();
    let mut config = ServerConfig::default();
    // Aborting a WebSocket kills its program.
    config.shutdown_grace = joining.end_timeout();
    joining.configure(&mut config.websocket.core);
    config.deflate = args.compress.then(DeflateConfig::default);
    // The handler checks origins, so that * can be allowed.
    config.origins = OriginPolicy::any();
    let (ended, mut only) = mpsc::channel(1);
    let (ends, ending) = watch::channel(false);
    let routes = Arc::new(Routes {
        args: Listening {
            path: path(url),
            to,
            subprotocols: args.subprotocol.clone(),
            timeout: args.timeout,
        },
        origins: match args.allow_origin.iter().any(|origin| origin == "*") {
            true => OriginPolicy::any(),
            false => OriginPolicy::listed(&args.allow_origin).with_same_origin([""; 0]),
        },
        joining,
        slots: Arc::new(Semaphore::new(if is_only { 1 } else { args.max_connections })),
        notes: notes.clone(),
        ending,
        ended: is_only.then_some(ended),
    });
    let signals = Signals::new().map_err(usage)?;
    let (handle, serving) = serving(args, url, config, routes).await?;
    let mut serving = tokio::spawn(serving);
    let mut end = tokio::spawn(shut_down(handle.clone(), ends, signals));
    tokio::select! {
        served = &mut serving => {
            end.abort();
            match served {
                Ok(Ok(())) => Ok(only.try_recv().map_or(Exit::Success, |ended| ended.exit())),
                Ok(Err(error)) => Err(not_bound(error)),
                Err(error) => Err(not_bound(error)),
            }
        }
        Some(ended) = only.recv(), if is_only => {
            handle.shut_down();
            let _ = timeout(args.join.grace(), serving).await;
            Ok(ended.exit())
        }
        _ = &mut end => Ok(Exit::Success),
    }
}

/// Shuts down at the first signal, and returns at the second.
async fn shut_down(handle: ServerHandle, ends: watch::Sender<bool>, mut signals: Signals) {
    signals.recv().await;
    let _ = ends.send(true);
    handle.shut_down();
    signals.recv().await;
}

/// The path that is asked for; `None` for every path.
fn path(url: &str) -> Option<String> {
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    let path = rest.find('/').map(|at| &rest[at..])?;
    let path = path.split('?').next().unwrap_or_default();
    (path != "/").then(|| path.to_owned())
}

type Serving = std::pin::Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

async fn serving(
    args: &Listen,
    url: &str,
    config: ServerConfig,
    routes: Arc<Routes>,
) -> Result<(ServerHandle, Serving), Failure> {
    let handler = {
        let routes = routes.clone();
        move |request: Request| {
            let routes = routes.clone();
            async move { routes.answer(request).await }
        }
    };
    #[cfg(unix)]
    if let Some(path) = url.strip_prefix("ws+unix:") {
        let socket = UnixSocket::bind(url, path).map_err(not_bound)?;
        let server = Server::new(socket).config(config);
        routes.notes.listening(url);
        return Ok((server.handle(), Box::pin(server.serve(handler))));
    }
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let (authority, resource) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let listener = bind(authority).await.map_err(not_bound)?;
    let address = listener.local_addr().map_err(not_bound)?;
    let mut server = Server::new(listener).config(config);
    let is_tls = has_scheme(url, "wss");
    if is_tls {
        let (cert, key) = (args.tls.cert.as_deref(), args.tls.key.as_deref());
        server = server.tls(connector::server_tls(cert, key).map_err(usage)?);
    }
    let scheme = if is_tls { "wss" } else { "ws" };
    routes.notes.listening(&format!("{scheme}://{address}{resource}"));
    Ok((server.handle(), Box::pin(server.serve(handler))))
}

impl Routes {
    async fn answer(self: &Arc<Self>, request: Request) -> Response {
        if self.args.path.as_ref().is_some_and(|path| path != request.path()) {
            return Response::not_found();
        }
        let upgrade = match request.websocket() {
            Ok(upgrade) => upgrade,
            Err(refusal) => return refusal,
        };
        if !self.origins.allows(upgrade.request()) {
            return Response::text(403, "the origin is not allowed; see --allow-origin\n");
        }
        let Ok(slot) = self.slots.clone().try_acquire_owned() else {
            return Response::text(503, "--max-connections WebSockets are open\n");
        };
        let peer = request.peer().to_string();
        // Before the handshake is answered, so that the client learns of a failure.
        let stream = match timeout(self.args.timeout, self.args.to.open(&peer, request.target())).await {
            Ok(Ok(stream)) => stream,
            failed => {
                let why = failed.map_or_else(
                    |_| "timed out".to_owned(),
                    |opened| match opened {
                        Ok(_) => String::new(),
                        Err(error) => error.to_string(),
                    },
                );
                self.notes.failed(&peer, &format!("TO cannot be reached: {why}"));
                return Response::text(502, "the endpoint behind this WebSocket cannot be reached\n");
            }
        };
        let routes = self.clone();
        let preferences: Vec<&str> = self.args.subprotocols.iter().map(String::as_str).collect();
        upgrade.subprotocols(&preferences).on_open(move |socket| async move {
            routes.notes.joined(&peer);
            let interrupted = interruption(routes.ending.clone());
            let ended = routes.joining.run(socket, stream, interrupted).await;
            routes.notes.ended(&peer, &ended);
            if let Some(sender) = &routes.ended {
                let _ = sender.send(ended).await;
            }
            drop(slot);
        })
    }
}

impl To {
    async fn open(&self, peer: &str, target: &str) -> io::Result<Stream> {
        match self {
            Self::Standard => Ok(Stream::standard()),
            Self::Tcp(address) => Ok(Stream::tcp(TcpStream::connect(address).await?)),
            #[cfg(unix)]
            Self::Unix(path) => Ok(Stream::unix(tokio::net::UnixStream::connect(path).await?)),
            Self::Program(command) => {
                Stream::program(command, &[("WIRELOOM_PEER", peer), ("WIRELOOM_TARGET", target)])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_optional() {
        for (url, expected) in [
            ("ws://127.0.0.1:1", None),
            ("ws://127.0.0.1:1/", None),
            ("wss://[::1]:1/a/b?c", Some("/a/b")),
            ("ws+unix:/run/socket", None),
        ] {
            assert_eq!(path(url).as_deref(), expected, "{url}");
        }
    }
}
