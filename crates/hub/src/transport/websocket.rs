//! Connections over WebSocket: the client protocol, and bare messages of one channel.
//!
//! One task serves a connection. It writes the messages of its outbox, reads commands, and executes them one after the
//! other. While a command waits for the engine or for a callback, publications are still written.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tracing::{debug, warn};
use wireloom::{CloseCode, PreparedMessage, Receiver, Sender, WebSocket};

use super::clean_up::CleanUp;
use super::work::Work;
use crate::client::{Client, Format, Transport};
use crate::node::{Node, Origin};
use crate::outbox::{CAPACITY_KEPT, Taken};
use crate::protocol::Disconnect;
use crate::session::{Room, Session};

/// Serves a connection that speaks the client protocol, or only receives its pushes.
pub(crate) async fn protocol(node: Arc<Node>, socket: WebSocket, transport: Transport, origin: Box<Origin>) {
    let (mut sender, mut receiver) = socket.split();
    let client = match node.accept(transport, origin.peer) {
        Ok(client) => client,
        Err(reason) => {
            return Box::pin(close(&mut sender, transport.format(), &reason)).await;
        }
    };
    let clean_up = CleanUp::new(&node, &client);
    let session = Box::new(Session::new(node.clone(), client.clone(), origin));
    let reason = run(&node, &client, &mut sender, &mut receiver, Work::Idle(session)).await;
    // Boxed, like every future that runs once, so that it takes no memory while the connection is open.
    Box::pin(finish(clean_up, &mut sender, &mut receiver, client.format, reason)).await;
}

/// Serves a session until it ends; returns the reason.
async fn run(
    node: &Node,
    client: &Client,
    sender: &mut Sender,
    receiver: &mut Receiver,
    mut work: Work,
) -> Disconnect {
    let _open = client.outbox.open_to_batches(sender.clone());
    let mut messages = Vec::new();
    let mut timer = pin!(tokio::time::sleep_until(node.clock.instant(Duration::MAX)));
    loop {
        let is_idle = match &work {
            Work::Idle(session) => {
                // Most deliveries do not change the deadline: the timer is reset only if it changes.
                let deadline = node.clock.instant(session.poll_timeout());
                if timer.deadline() != deadline {
                    timer.as_mut().reset(deadline);
                }
                true
            }
            Work::Busy(_) => false,
        };
        tokio::select! {
            biased;
            taken = poll_fn(|cx| client.outbox.poll_take(cx, &mut messages)) => match taken {
                Taken::End(reason) => return reason,
                Taken::Messages => {
                    if let Err(reason) = write(node, client, sender, &mut messages).await {
                        return reason;
                    }
                }
            },
            proceeded = proceed(&mut work, receiver) => {
                if let Err(reason) = proceeded {
                    return reason;
                }
            }
            () = timer.as_mut(), if is_idle => work.handle_timeout(),
        }
    }
}

/// One step: an idle session receives a message, a busy one finishes its command. Returns an error at the end of the
/// connection.
///
/// # Cancel safety
/// Nothing is lost when the future is dropped.
async fn proceed(work: &mut Work, receiver: &mut Receiver) -> Result<(), Disconnect> {
    match work {
        Work::Busy(busy) => *work = Work::Idle(busy.await),
        Work::Idle(_) => {
            let message = match receiver.recv_owned().await {
                Ok(Some(message)) => message,
                Ok(None) => return Err(Disconnect::ConnectionClosed),
                Err(error) => return Err(broken(&error)),
            };
            work.begin(|mut session| async move {
                session.handle_message(message).await;
                session
            });
        }
    }
    Ok(())
}

/// The reason for a connection that the WebSocket failed with a close code.
fn broken(error: &wireloom::WebSocketError) -> Disconnect {
    let code = match error {
        wireloom::WebSocketError::Protocol(error) => error.close_code(),
        _ => None,
    };
    match code {
        Some(code) => Disconnect::Custom { code: code.value(), reason: error.to_string() },
        None => Disconnect::ConnectionClosed,
    }
}

/// Writes all messages, unless the client is too slow.
async fn write(
    node: &Node,
    client: &Client,
    sender: &mut Sender,
    messages: &mut Vec<PreparedMessage>,
) -> Result<(), Disconnect> {
    let last = messages.pop();
    let written = match last {
        // A batch has stalled.
        None => written_in_time(node, client, Box::pin(sender.flush())).await,
        Some(last) if messages.is_empty() => written_in_time(node, client, sender.send(&last)).await,
        Some(last) => {
            let all = Box::pin(async {
                for message in messages.drain(..) {
                    sender.feed(&message).await?;
                }
                sender.send(&last).await
            });
            written_in_time(node, client, all).await
        }
    };
    if messages.capacity() > CAPACITY_KEPT {
        *messages = Vec::new();
    }
    written
}

/// Waits for a write. Most are ready at once; only a pending one needs a timer, and memory for it.
async fn written_in_time(
    node: &Node,
    client: &Client,
    mut writing: impl Future<Output = Result<(), wireloom::WebSocketError>> + Unpin,
) -> Result<(), Disconnect> {
    let at_once = poll_fn(|cx| Poll::Ready(Pin::new(&mut writing).poll(cx))).await;
    let written = match at_once {
        Poll::Ready(written) => Ok(written),
        Poll::Pending => {
            let queue_time_max = node.settings().config.client.queue_time_max;
            let waiting = async {
                tokio::select! {
                    written = tokio::time::timeout(queue_time_max, writing) => Some(written),
                    // If the connection is being ended, do not wait for a client that does not read.
                    () = poll_fn(|cx| client.outbox.poll_ended(cx)) => None,
                }
            };
            let Some(written) = Box::pin(waiting).await else { return Ok(()) };
            written
        }
    };
    match written {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => {
            debug!(client = client.id, %error, "the connection failed");
            Err(Disconnect::ConnectionClosed)
        }
        Err(_) => {
            warn!(
                reason = "slow",
                client = client.id,
                user = client.user(),
                "client evicted: it does not read"
            );
            Err(Disconnect::Slow)
        }
    }
}

/// The close code for a bare client, which does not know those of the protocol.
fn bare_code(reason: &Disconnect) -> CloseCode {
    match reason {
        Disconnect::ConnectionClosed => CloseCode::NORMAL,
        Disconnect::Shutdown => CloseCode::GOING_AWAY,
        Disconnect::PermissionDenied | Disconnect::InvalidToken => CloseCode::POLICY_VIOLATION,
        Disconnect::Internal => CloseCode::INTERNAL_ERROR,
        Disconnect::Custom { code, .. } => CloseCode::new(*code),
        _ => CloseCode::TRY_AGAIN_LATER,
    }
}

async fn close(sender: &mut Sender, format: Format, reason: &Disconnect) {
    let code = match format {
        Format::Bare => bare_code(reason),
        _ => CloseCode::new(reason.code()),
    };
    // The connection may have ended already, or the application chose a code that no Close frame can carry.
    let _ = sender.close(code, reason.reason()).await;
}

/// Ends the subscriptions while the closing handshake runs, whose duration the core limits.
async fn finish(
    mut clean_up: CleanUp,
    sender: &mut Sender,
    receiver: &mut Receiver,
    format: Format,
    reason: Disconnect,
) {
    let closing = async {
        close(sender, format, &reason).await;
        while let Ok(Some(_)) = receiver.recv().await {}
    };
    tokio::join!(closing, clean_up.leave(reason.clone()));
    clean_up.forget().await;
}

/// Serves a connection whose messages are the publications of one channel, both ways.
pub(crate) async fn bare(node: Arc<Node>, socket: WebSocket, origin: Box<Origin>, room: Box<Room>) {
    let (mut sender, mut receiver) = socket.split();
    let client = match node.accept(Transport::Room, origin.peer) {
        Ok(client) => client,
        Err(reason) => return Box::pin(close(&mut sender, Format::Bare, &reason)).await,
    };
    let clean_up = CleanUp::new(&node, &client);
    let mut session = Box::new(Session::new(node.clone(), client.clone(), origin));
    let reason = match Box::pin(session.join(*room)).await {
        Ok(()) => run(&node, &client, &mut sender, &mut receiver, Work::Idle(session)).await,
        Err(reason) => reason,
    };
    Box::pin(finish(clean_up, &mut sender, &mut receiver, client.format, reason)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_output<A, B, C, D, F>(_: impl Fn(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn open_connections_hold_little_memory() {
        let sizes = [
            size_of_output(protocol),
            size_of_output(bare),
            size_of::<Client>(),
            size_of::<Session>(),
            size_of::<crate::client::Active>(),
        ];
        assert!(sizes.iter().sum::<usize>() <= 2_300, "{sizes:?}");
    }
}
