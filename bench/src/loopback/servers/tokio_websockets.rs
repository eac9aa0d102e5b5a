//! tokio-websockets.

use super::messages::{self, Answer};
use std::ops::ControlFlow::{Break, Continue};
use tokio::net::TcpStream;
use tokio_websockets::{Config, Limits, Message, ServerBuilder, WebSocketStream};

async fn accept(stream: TcpStream) -> Option<WebSocketStream<TcpStream>> {
    // Frames of any size, so that a message leaves as it came.
    let config = Config::default().frame_size(usize::MAX);
    let builder = ServerBuilder::new().config(config).limits(Limits::unlimited());
    Some(builder.accept(stream).await.ok()?.1)
}

fn answer(message: Result<Message, tokio_websockets::Error>) -> Answer<Message> {
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
