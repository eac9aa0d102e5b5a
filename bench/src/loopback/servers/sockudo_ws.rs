//! sockudo-ws.

use super::messages::{self, Answer};
use sockudo_ws::handshake::server_handshake;
use sockudo_ws::protocol::{Message, Role};
use sockudo_ws::{Config, stream::WebSocketStream};
use std::ops::ControlFlow::{Break, Continue};
use tokio::net::TcpStream;

async fn accept(mut stream: TcpStream) -> Option<WebSocketStream<TcpStream>> {
    // No timers: nobody else has one.
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

pub(super) async fn echo(stream: TcpStream) {
    if let Some(socket) = accept(stream).await {
        messages::echo(socket, answer).await;
    }
}

pub(super) async fn echo_batched(stream: TcpStream) {
    if let Some(socket) = accept(stream).await {
        messages::echo_batched(socket, answer).await;
    }
}
