//! tokio-tungstenite: with its defaults, and with a read buffer of 16 KiB instead of 128 KiB, all of which it clears for each read.

use super::Transport;
use super::messages::{self, Answer};
use std::ops::ControlFlow::{Break, Continue};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};

fn answer(message: Result<Message, Error>) -> Answer<Message> {
    match message {
        Ok(message) => Continue((message.is_text() || message.is_binary()).then_some(message)),
        Err(_) => Break(()),
    }
}

async fn accept<S: Transport>(stream: S, config: WebSocketConfig) -> Option<WebSocketStream<S>> {
    tokio_tungstenite::accept_async_with_config(stream, Some(config)).await.ok()
}

fn small() -> WebSocketConfig {
    WebSocketConfig::default().read_buffer_size(16 << 10)
}

pub(super) async fn echo(stream: impl Transport) {
    if let Some(socket) = accept(stream, WebSocketConfig::default()).await {
        messages::echo(socket, answer).await;
    }
}

pub(super) async fn echo_small(stream: impl Transport) {
    if let Some(socket) = accept(stream, small()).await {
        messages::echo(socket, answer).await;
    }
}

pub(super) async fn echo_batched(stream: impl Transport) {
    if let Some(socket) = accept(stream, small()).await {
        messages::echo_batched(socket, answer).await;
    }
}
