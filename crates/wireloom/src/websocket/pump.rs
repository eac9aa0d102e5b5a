//! A WebSocket that calls instead of being asked: one object for what arrives. The loop is all that it owns.

use std::future::Future;

use wireloom_ws::{CloseCode, End};

use super::message::Message;
use super::{Sender, WebSocket};
use crate::error::Error;

/// What is done with what arrives on a WebSocket, for [`WebSocket::pump`].
///
/// ```
/// use wireloom::{Error, Message, Sender, Session, WebSocket};
///
/// struct Echo;
///
/// impl Session for Echo {
///     async fn on_message(&mut self, sender: &mut Sender, message: Message<'_>) -> Result<(), Error> {
///         sender.send(message).await
///     }
/// }
///
/// # async fn example(socket: WebSocket) -> Result<(), Error> {
/// socket.pump(Echo).await?;
/// # Ok(())
/// # }
/// ```
pub trait Session: Send {
    /// The WebSocket is open.
    ///
    /// # Errors
    /// An error ends the connection: the peer is told 1011.
    fn on_open(&mut self, sender: &mut Sender) -> impl Future<Output = Result<(), Error>> + Send {
        let _ = sender;
        async { Ok(()) }
    }

    /// A message has arrived. The next waits until this is done.
    ///
    /// # Errors
    /// As for [`on_open`](Self::on_open).
    fn on_message(
        &mut self,
        sender: &mut Sender,
        message: Message<'_>,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// All is over, and why: `None` when that is not known.
    fn on_close(&mut self, end: Option<&End>) -> impl Future<Output = ()> + Send {
        let _ = end;
        async {}
    }
}

pub(super) async fn run(socket: WebSocket, mut session: impl Session) -> Result<Option<End>, Error> {
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
        // What the peer still says is for nobody any more; that it has heard is worth the wait for its answer.
        let told = sender.close(CloseCode::INTERNAL_ERROR, "").await;
        while told.is_ok() && matches!(receiver.recv().await, Ok(Some(_))) {}
    }
    let end = receiver.end();
    session.on_close(end.as_ref()).await;
    outcome.map(|()| end)
}
