//! tokio-websockets.

use super::Transport;
use super::messages::{self, Answer};
use std::ops::ControlFlow::{Break, Continue};
use tokio_websockets::{Config, Limits, Message, ServerBuilder, WebSocketStream};

async fn accept<S: Transport>(stream: S, config: Config) -> Option<WebSocketStream<S>> {
    let builder = ServerBuilder::new().config(config).limits(Limits::unlimited());
    Some(builder.accept(stream).await.ok()?.1)
}

fn answer(message: Result<Message, tokio_websockets::Error>) -> Answer<Message> {
    match message {
        Ok(message) => Continue((message.is_text() || message.is_binary()).then_some(message)),
        Err(_) => Break(()),
    }
}

/// Frames of any length, so that a message is returned in one frame.
fn config() -> Config {
    Config::default().frame_size(usize::MAX)
}

pub(super) async fn echo(stream: impl Transport) {
    if let Some(socket) = accept(stream, config()).await {
        messages::echo(socket, answer).await;
    }
}

/// With a flush threshold above a batch: at the default of 8 KiB, `feed` would flush within it.
pub(super) async fn echo_batched(stream: impl Transport) {
    if let Some(socket) = accept(stream, config().flush_threshold(64 << 10)).await {
        messages::echo_batched(socket, answer).await;
    }
}
