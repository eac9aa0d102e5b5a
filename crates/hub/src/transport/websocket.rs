//! Connections over WebSocket: the client protocol, and bare messages of one channel.
//!
//! One task serves a connection. It writes the messages of its outbox, reads commands, and executes them one after the
//! other. While a command waits for the engine or for a callback, publications are still written.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tracing::{debug, warn};
use wireloom::{CloseCode, PreparedMessage, Receiver, Sender, WebSocket, WebSocketError};

use super::clean_up::CleanUp;
use super::work::Work;
use crate::client::{Client, Format, Transport};
use crate::node::{Node, Origin};
use crate::outbox::{CAPACITY_KEPT, Taken};
use crate::protocol::Disconnect;
use crate::session::{Room, Session};

/// A connection that was accepted.
struct Connection {
    sender: Sender,
    receiver: Receiver,
    /// The node and the client.
    clean_up: CleanUp,
    work: Work,
    /// What the client of a room joins.
    room: Option<Box<Room>>,
}

/// Serves a connection that speaks the client protocol, or only receives its pushes.
pub(crate) fn protocol(
    node: Arc<Node>,
    socket: WebSocket,
    transport: Transport,
    peer: Option<SocketAddr>,
    page: Option<Box<str>>,
    origin: Origin,
) -> impl Future<Output = ()> + Send {
    serve(node, socket, transport, peer, page, origin, None)
}

/// Serves a connection whose messages are the publications of one channel, both ways.
pub(crate) fn bare(
    node: Arc<Node>,
    socket: WebSocket,
    peer: Option<SocketAddr>,
    page: Option<Box<str>>,
    origin: Origin,
    room: Box<Room>,
) -> impl Future<Output = ()> + Send {
    serve(node, socket, Transport::Room, peer, page, origin, Some(room))
}

/// Serves a connection until it ends. Not an `async fn`, whose future would hold the arguments beside what is made of them. What runs
/// once is boxed, so that it takes no memory while the connection is open.
fn serve(
    node: Arc<Node>,
    socket: WebSocket,
    transport: Transport,
    peer: Option<SocketAddr>,
    page: Option<Box<str>>,
    origin: Origin,
    room: Option<Box<Room>>,
) -> impl Future<Output = ()> + Send {
    let (mut sender, receiver) = socket.split();
    let mut accepted = match node.accept(transport, peer, page) {
        Ok(client) => {
            let clean_up = CleanUp::new(&node, &client);
            let work = Work::Idle(Box::new(Session::new(node, client, origin)));
            Ok(Connection { sender, receiver, clean_up, work, room })
        }
        Err(reason) => Err(Box::pin(async move { close(&mut sender, transport.format(), &reason).await })),
    };
    async move {
        let connection = match &mut accepted {
            Ok(connection) => connection,
            Err(refusing) => return refusing.await,
        };
        let joined = match (connection.room.take(), &mut connection.work) {
            (Some(room), Work::Idle(session)) => Box::pin(session.join(room)).await,
            _ => Ok(()),
        };
        let reason = match joined {
            Ok(()) => run(connection).await,
            Err(reason) => reason,
        };
        Box::pin(finish(connection, reason)).await;
    }
}

/// What a connection does next.
enum Next {
    Taken(Taken),
    Proceeded,
    Timeout,
}

/// Serves a session until it ends; returns the reason. Futures that wait at the same time are polled here without being kept, which
/// would take several times the memory of all else.
async fn run(connection: &mut Connection) -> Disconnect {
    let Connection { sender, receiver, clean_up: CleanUp { node, client, .. }, work, .. } = connection;
    let _open = client.outbox.open_to_batches(sender.clone());
    let mut messages = Vec::new();
    let mut timer = pin!(tokio::time::sleep_until(node.clock.instant(Duration::MAX)));
    loop {
        if let Work::Idle(session) = &work {
            // Most deliveries do not change the deadline: the timer is reset only if it changes.
            let deadline = node.clock.instant(session.poll_timeout());
            if timer.deadline() != deadline {
                timer.as_mut().reset(deadline);
            }
        }
        let next = poll_fn(|cx| {
            if let Poll::Ready(taken) = client.outbox.poll_take(cx, &mut messages) {
                return Poll::Ready(Ok(Next::Taken(taken)));
            }
            if let Poll::Ready(proceeded) = poll_proceed(work, receiver, cx) {
                return Poll::Ready(proceeded.map(|()| Next::Proceeded));
            }
            if let Work::Idle(_) = work {
                ready!(timer.as_mut().poll(cx));
                return Poll::Ready(Ok(Next::Timeout));
            }
            Poll::Pending
        });
        match next.await {
            Ok(Next::Taken(Taken::Messages)) => {
                let mut all = Some((&mut *sender, &messages[..]));
                let begun = poll_fn(|cx| match all.take() {
                    Some((sender, messages)) => Poll::Ready(begin_write(sender, messages, cx)),
                    None => Poll::Pending,
                });
                let written = match begun.await {
                    Ok(None) => Ok(()),
                    Ok(Some(writing)) => Box::pin(finish_write(node, client, writing)).await,
                    Err(error) => Err(failed(client, &error)),
                };
                if let Err(reason) = written {
                    return reason;
                }
                messages.clear();
                if messages.capacity() > CAPACITY_KEPT {
                    messages = Vec::new();
                }
            }
            Ok(Next::Taken(Taken::End(reason))) | Err(reason) => return reason,
            Ok(Next::Proceeded) => {}
            Ok(Next::Timeout) => work.handle_timeout(),
        }
    }
}

/// One step: an idle session receives a message, a busy one finishes its command. An error at the end of the connection.
fn poll_proceed(
    work: &mut Work,
    receiver: &mut Receiver,
    cx: &mut Context<'_>,
) -> Poll<Result<(), Disconnect>> {
    match work {
        Work::Busy(busy) => *work = Work::Idle(ready!(busy.as_mut().poll(cx))),
        Work::Idle(_) => {
            let message = match ready!(receiver.poll_recv_owned(cx)) {
                Ok(Some(message)) => message,
                Ok(None) => return Poll::Ready(Err(Disconnect::ConnectionClosed)),
                Err(error) => return Poll::Ready(Err(broken(&error))),
            };
            work.begin(|mut session| async move {
                session.handle_message(message).await;
                session
            });
        }
    }
    Poll::Ready(Ok(()))
}

/// The reason for a connection that the WebSocket failed with a close code.
fn broken(error: &WebSocketError) -> Disconnect {
    let code = match error {
        WebSocketError::Protocol(error) => error.close_code(),
        _ => None,
    };
    match code {
        Some(code) => Disconnect::Custom { code: code.value(), reason: error.to_string() },
        None => Disconnect::ConnectionClosed,
    }
}

/// A write that waits for the client.
type Writing<'a> = Pin<Box<dyn Future<Output = Result<(), WebSocketError>> + Send + 'a>>;

/// Writes messages, or what a batch has left where there are none. Most writes are done at once; only one that waits takes memory.
fn begin_write<'a>(
    sender: &'a mut Sender,
    messages: &'a [PreparedMessage],
    cx: &mut Context<'_>,
) -> Result<Option<Writing<'a>>, WebSocketError> {
    let mut writing: Writing<'a> = match messages {
        [] => Box::pin(sender.flush()),
        [message] => {
            let mut sending = sender.send(message);
            return match Pin::new(&mut sending).poll(cx) {
                Poll::Ready(written) => written.map(|()| None),
                Poll::Pending => Ok(Some(Box::pin(sending))),
            };
        }
        [first @ .., last] => Box::pin(async move {
            for message in first {
                sender.feed(message).await?;
            }
            sender.send(last).await
        }),
    };
    match writing.as_mut().poll(cx) {
        Poll::Ready(written) => written.map(|()| None),
        Poll::Pending => Ok(Some(writing)),
    }
}

/// Waits for a write, unless the client is too slow.
async fn finish_write(node: &Node, client: &Client, writing: Writing<'_>) -> Result<(), Disconnect> {
    let queue_time_max = node.settings().config.client.queue_time_max;
    let written = tokio::select! {
        written = tokio::time::timeout(queue_time_max, writing) => written,
        // If the connection is being ended, do not wait for a client that does not read.
        () = poll_fn(|cx| client.outbox.poll_ended(cx)) => return Ok(()),
    };
    match written {
        Ok(written) => written.map_err(|error| failed(client, &error)),
        Err(_) => {
            warn!(
                reason = "slow",
                client = &*client.id,
                user = client.user(),
                "client evicted: it does not read"
            );
            Err(Disconnect::Slow)
        }
    }
}

fn failed(client: &Client, error: &WebSocketError) -> Disconnect {
    debug!(client = &*client.id, %error, "the connection failed");
    Disconnect::ConnectionClosed
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
async fn finish(connection: &mut Connection, reason: Disconnect) {
    let Connection { sender, receiver, clean_up, .. } = connection;
    let format = clean_up.client.format;
    let closing = async {
        close(sender, format, &reason).await;
        while let Ok(Some(_)) = receiver.recv().await {}
    };
    tokio::join!(closing, clean_up.leave(reason.clone()));
    clean_up.forget().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_output<A, B, C, D, E, F, G>(_: impl Fn(A, B, C, D, E, F) -> G) -> usize {
        size_of::<G>()
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
        assert!(sizes.iter().sum::<usize>() <= 1_600, "{sizes:?}");
    }
}
