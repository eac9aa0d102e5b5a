//! Fan-out: Wireloom's hub, and a broadcast channel of tokio with tungstenite. Each message of a connection is delivered to every
//! connection.

use futures_util::{SinkExt, StreamExt};
use std::io;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio_tungstenite::tungstenite::Message;
use wireloom::Server;
use wireloom_hub::{Hub, HubConfig};

/// Rooms without a history, for bare messages.
const CONFIG: &str = r#"
client.anonymous = true
client.queue_len_max = 16777216

[[namespace]]
name = "rooms"
subscribe = "anyone"
publish = "anyone"
"#;

pub(super) async fn wireloom(listener: TcpListener) -> io::Result<()> {
    let config = HubConfig::from_toml(CONFIG).map_err(io::Error::other)?;
    let hub = Hub::builder().config(config).build().map_err(io::Error::other)?;
    let serve = move |request| {
        let hub = hub.clone();
        async move { hub.answer(request).await }
    };
    Server::new(listener).serve(serve).await
}

/// As the examples of both show it.
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
                Some(Ok(message)) if message.is_binary() => drop(room.send(message)),
                Some(Ok(_)) => {}
                _ => return,
            },
        }
    }
}
