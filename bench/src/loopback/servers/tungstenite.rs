//! tokio-tungstenite, with a read buffer of 16 KiB: it clears all of it for each read, and with its default of 128 KiB a small
//! message takes three times as long.

use super::messages::{self, Answer};
use std::ops::ControlFlow::{Break, Continue};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};

fn answer(message: Result<Message, Error>) -> Answer<Message> {
    match message {
        Ok(message) => Continue((message.is_text() || message.is_binary()).then_some(message)),
        Err(_) => Break(()),
    }
}

async fn accept(stream: TcpStream) -> Option<WebSocketStream<TcpStream>> {
    let config = WebSocketConfig::default().read_buffer_size(16 << 10);
    tokio_tungstenite::accept_async_with_config(stream, Some(config)).await.ok()
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
