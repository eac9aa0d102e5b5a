//! The loop that passes the messages of a WebSocket to a [`Session`].

use std::future::Future;

use wireloom_ws::{CloseCode, End};

use super::message::Message;
use super::{Sender, WebSocket};
use crate::error::WebSocketError;

/// Handles the messages of a WebSocket, for [`WebSocket::pump`].
///
/// ```
/// use wireloom::{WebSocketError, Message, Sender, Session, WebSocket};
///
/// struct Echo;
///
/// impl Session for Echo {
///     async fn on_message(&mut self, sender: &mut Sender, message: Message<'_>) -> Result<(), WebSocketError> {
///         sender.send(message).await
///     }
/// }
///
/// # async fn example(socket: WebSocket) -> Result<(), WebSocketError> {
/// socket.pump(Echo).await?;
/// # Ok(())
/// # }
/// ```
pub trait Session: Send {
    /// The WebSocket is open.
    ///
    /// # Errors
    /// An error closes the connection with 1011.
    fn on_open(&mut self, sender: &mut Sender) -> impl Future<Output = Result<(), WebSocketError>> + Send {
        let _ = sender;
        async { Ok(()) }
    }

    /// A message has arrived. The next one is received when this has returned.
    ///
    /// # Errors
    /// As for [`on_open`](Self::on_open).
    fn on_message(
        &mut self,
        sender: &mut Sender,
        message: Message<'_>,
    ) -> impl Future<Output = Result<(), WebSocketError>> + Send;

    /// The connection has ended; `None` when the cause is unknown.
    fn on_close(&mut self, end: Option<&End>) -> impl Future<Output = ()> + Send {
        let _ = end;
        async {}
    }
}

pub(super) async fn run(socket: WebSocket, mut session: impl Session) -> Result<Option<End>, WebSocketError> {
    let (mut sender, mut receiver) = socket.split();
    let outcome = async {
        session.on_open(&mut sender).await?;
        while let Some(message) = receiver.recv().await? {
            session.on_message(&mut sender, message).await?;
        }
        Ok(())
    }
    .await;
    if outcome.is_err() && receiver.end().is_none() {
        // The code may be sent.
        let _ = sender.begin_close(CloseCode::INTERNAL_ERROR, "");
        // Messages that still arrive are dropped until the peer answers the Close frame.
        while matches!(receiver.recv().await, Ok(Some(_))) {}
    }
    let end = receiver.end();
    session.on_close(end.as_ref()).await;
    outcome.map(|()| end)
}
