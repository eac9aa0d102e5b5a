//! sockudo-ws.

use super::Transport;
use super::messages::{self, Answer};
use sockudo_ws::handshake::server_handshake;
use sockudo_ws::protocol::{Message, Role};
use sockudo_ws::{Config, stream::WebSocketStream};
use std::ops::ControlFlow::{Break, Continue};

async fn accept<S: Transport>(mut stream: S) -> Option<WebSocketStream<S>> {
    // No timers: the other servers have none.
    let config = Config::builder().auto_ping(false).idle_timeout(0).build();
    let leftover = server_handshake(&mut stream).await.ok()?.leftover;
    Some(WebSocketStream::from_raw_with_leftover(stream, Role::Server, config, leftover))
}

fn answer(message: Result<Message, sockudo_ws::Error>) -> Answer<Message> {
    match message {
        Ok(message) => Continue((message.is_text() || message.is_binary()).then_some(message)),
        Err(_) => Break(()),
    }
}

/// The loop of its README, "For a Tokio unified echo loop".
pub(super) async fn echo(stream: impl Transport) {
    if let Some(socket) = accept(stream).await {
        messages::echo_fed(socket, answer).await;
    }
}

/// Sends and flushes each message by itself.
pub(super) async fn echo_by_send(stream: impl Transport) {
    if let Some(socket) = accept(stream).await {
        messages::echo(socket, answer).await;
    }
}
