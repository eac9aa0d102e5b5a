//! The services of the routes over an open WebSocket.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use wireloom::{Message, Receiver, Version, WebSocket, WebSocketError};

use super::figures::{FigureBatch, Figures};
use super::sink::SinkCounters;
use super::source::Source;

/// The service of a WebSocket.
pub(super) enum Service {
    Echo,
    Sink(Arc<SinkCounters>),
    Source(Source),
}

/// An open WebSocket, and the figures that it adds to.
pub(super) struct Client<'a> {
    pub(super) socket: &'a mut WebSocket,
    pub(super) version: Version,
    pub(super) figures: &'a Figures,
}

impl Service {
    pub(super) fn route(&self) -> &'static str {
        match self {
            Self::Echo => "/echo",
            Self::Sink(_) => "/sink",
            Self::Source(_) => "/source",
        }
    }

    /// Serves until the WebSocket is closed.
    ///
    /// # Errors
    /// The error that ended it.
    pub(super) async fn run(self, client: Client<'_>) -> Result<(), WebSocketError> {
        match self {
            Self::Echo => echo(client).await,
            Self::Sink(sink_counters) => sink(client, &sink_counters).await,
            // Boxed, so that the future of an idle echo stays small.
            Self::Source(source) => {
                let batch = FigureBatch::new(client.figures, client.version);
                Box::pin(source.run(client.socket, batch)).await
            }
        }
    }
}

async fn echo(client: Client<'_>) -> Result<(), WebSocketError> {
    let mut batch = FigureBatch::new(client.figures, client.version);
    let (sender, receiver) = client.socket.halves();
    while let Some(message) = recv(receiver, &mut batch).await? {
        let len = message.as_bytes().len();
        sender.send(message).await?;
        batch.sent(1, len);
    }
    Ok(())
}

async fn sink(client: Client<'_>, sink_counters: &SinkCounters) -> Result<(), WebSocketError> {
    let mut batch = FigureBatch::new(client.figures, client.version);
    let (_, receiver) = client.socket.halves();
    while let Some(message) = recv(receiver, &mut batch).await? {
        sink_counters.add(message.as_bytes().len());
    }
    Ok(())
}

/// Receives and counts the next message. Flushes the counters before it waits.
pub(super) async fn recv<'a>(
    receiver: &'a mut Receiver,
    batch: &mut FigureBatch<'_>,
) -> Result<Option<Message<'a>>, WebSocketError> {
    let mut receiving = pin!(receiver.recv());
    poll_fn(|cx| {
        let received = receiving.as_mut().poll(cx);
        match &received {
            std::task::Poll::Ready(Ok(Some(message))) => batch.received(message.as_bytes().len()),
            std::task::Poll::Pending => batch.flush(),
            _ => {}
        }
        received
    })
    .await
}
