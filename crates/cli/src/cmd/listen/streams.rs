//! Accepts streams, and joins each to a WebSocket of its own.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use wireloom::{Connector, DeflateConfig, WebSocketConfig};

use super::notes::Notes;
use super::{Failure, interruption, not_bound, usage};
use crate::args::{Endpoint, Listen};
#[cfg(unix)]
use crate::cmd::bind::UnixSocket;
use crate::cmd::bind::bind;
use crate::cmd::connect::connector;
use crate::cmd::join::{Joining, Stream};
use crate::exit::Exit;
use crate::signals::Signals;

/// After accepting has failed, for want of descriptors for example.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// The WebSocket server to which accepted streams are joined.
struct To {
    url: String,
    connector: Connector,
    joining: Joining,
    notes: Notes,
}

/// Accepts until a signal.
///
/// # Errors
/// Nothing can be listened on, or an option cannot be used.
pub(super) async fn run(args: &Listen, notes: &Notes) -> Result<Exit, Failure> {
    let Some(Endpoint::WebSocket(url)) = &args.to else { return Err(usage("TO is no WebSocket")) };
    let joining = args.joining();
    let to = Arc::new(To {
        url: url.clone(),
        connector: connector(args, &joining)?,
        joining,
        notes: notes.clone(),
    });
    let mut signals = Signals::new().map_err(usage)?;
    let mut listener = Listener::bind(&args.address).await?;
    notes.listening(&listener.name);
    // Set when the command ends.
    let (ends, ending) = watch::channel(false);
    let mut joined = JoinSet::new();
    let mut last_error = None;
    loop {
        tokio::select! {
            accepted = listener.accept(), if joined.len() < args.max_connections => match accepted {
                Ok((stream, peer)) => {
                    last_error = None;
                    joined.spawn(join(to.clone(), stream, peer, ending.clone()));
                }
                Err(error) => {
                    let error = error.to_string();
                    if last_error.as_ref() != Some(&error) {
                        notes.failed(&listener.name, &format!("a connection cannot be accepted: {error}"));
                    }
                    last_error = Some(error);
                    tokio::time::sleep(RETRY_AFTER).await;
                }
            },
            Some(_) = joined.join_next() => {}
            _ = signals.recv() => break,
        }
    }
    drop(listener);
    let _ = ends.send(true);
    tokio::select! {
        () = async { while joined.join_next().await.is_some() {} } => {}
        _ = signals.recv() => {}
    }
    Ok(Exit::Success)
}

async fn join(to: Arc<To>, stream: Stream, peer: String, ending: watch::Receiver<bool>) {
    let mut interrupted = std::pin::pin!(interruption(ending));
    let opened = tokio::select! {
        opened = to.connector.connect(&to.url) => opened,
        () = &mut interrupted => return,
    };
    match opened {
        Ok(socket) => {
            to.notes.joined(&peer);
            let ended = to.joining.run(socket, stream, interrupted).await;
            to.notes.ended(&peer, &ended);
        }
        Err(error) => {
            stream.reset();
            to.notes.failed(&peer, &format!("TO cannot be reached: {error}"));
        }
    }
}

fn connector(args: &Listen, joining: &Joining) -> Result<Connector, Failure> {
    let mut config = WebSocketConfig::client();
    joining.configure(&mut config.core);
    let mut connector = Connector::new()
        .config(config)
        .http2(args.http2)
        .http1_only(!args.http2)
        .connect_timeout(args.timeout)
        .handshake_timeout(args.timeout)
        .tls(connector::tls(&args.tls).map_err(usage)?);
    for name in &args.subprotocol {
        connector = connector.subprotocol(name);
    }
    for (name, value) in &args.header {
        connector = connector::with_header(connector, name, value, true);
    }
    if args.compress {
        connector = connector.deflate(DeflateConfig::default());
    }
    if let Some(name) = &args.tls.sni {
        connector = connector.server_name(name);
    }
    Ok(connector)
}

/// A listener for streams.
struct Listener {
    name: String,
    socket: Socket,
}

enum Socket {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(UnixSocket),
}

impl Listener {
    async fn bind(address: &Endpoint) -> Result<Self, Failure> {
        match address {
            Endpoint::Tcp(address) => {
                let listener = bind(address).await.map_err(not_bound)?;
                let address = listener.local_addr().map_err(not_bound)?;
                Ok(Self { name: format!("tcp:{address}"), socket: Socket::Tcp(listener) })
            }
            #[cfg(unix)]
            Endpoint::Unix(path) => {
                let name = format!("unix:{path}");
                let socket = UnixSocket::bind(&name, path).map_err(not_bound)?;
                Ok(Self { name, socket: Socket::Unix(socket) })
            }
            _ => Err(usage("ADDRESS is no stream")),
        }
    }

    /// The next stream, and the name of its peer.
    async fn accept(&mut self) -> std::io::Result<(Stream, String)> {
        poll_fn(|cx| match &self.socket {
            Socket::Tcp(listener) => {
                listener.poll_accept(cx).map_ok(|(stream, peer)| (Stream::tcp(stream), peer.to_string()))
            }
            #[cfg(unix)]
            Socket::Unix(socket) => match socket.listener.poll_accept(cx) {
                Poll::Ready(Ok((stream, _))) => Poll::Ready(Ok((Stream::unix(stream), self.name.clone()))),
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                Poll::Pending => Poll::Pending,
            },
        })
        .await
    }
}
