//! Connections over WebSocket: the client protocol, and bare messages of one channel.
//!
//! One task serves a connection. It writes the messages of its outbox, reads commands, and executes them one after the
//! other. While a command waits for the engine or for a callback, publications are still written.

use std::future::{self, poll_fn};
use std::mem;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tracing::debug;
use wireloom::{CloseCode, OwnedMessage, PreparedMessage, Receiver, Sender, WebSocket, WebSocketError};

use super::clean_up::CleanUp;
use super::progress::while_accepted;
use super::work::Work;
use crate::client::{Client, Format, Page, Transport};
use crate::node::Node;
use crate::outbox::Taken;
use crate::protocol::Disconnect;
use crate::proxy::Headers;
use crate::session::{Room, Session};

/// A connection, and what its task does.
enum Connection {
    Open(Open),
    /// The closing handshake.
    Closing(Pin<Box<dyn Future<Output = ()> + Send>>),
}

/// An open connection.
struct Open {
    writer: Writer,
    receiver: Receiver,
    /// The node and the client.
    clean_up: CleanUp,
    work: Work,
}

/// The writer of messages that the task has taken.
enum Writer {
    Idle(Sender),
    /// A write waits for the client. Boxed twice: the pointer and its table together would take 8 bytes more of every idle connection.
    Busy(Box<Pin<Box<dyn Future<Output = Written> + Send>>>),
}

/// The end of a write.
type Written = (Sender, Result<(), Disconnect>);

/// Serves a connection that speaks the client protocol, or only receives its pushes.
pub(crate) fn protocol(
    node: Arc<Node>,
    socket: WebSocket,
    transport: Transport,
    peer: Option<SocketAddr>,
    page: Option<Page>,
    headers: Headers,
) -> impl Future<Output = ()> + Send {
    serve(node, socket, transport, peer, page, headers, None)
}

/// Serves a connection whose messages are the publications of one channel, both ways.
pub(crate) fn bare(
    node: Arc<Node>,
    socket: WebSocket,
    peer: Option<SocketAddr>,
    page: Option<Page>,
    headers: Headers,
    room: Box<Room>,
) -> impl Future<Output = ()> + Send {
    serve(node, socket, Transport::Room, peer, page, headers, Some(room))
}

/// Serves a connection until it ends. Not an `async fn`, whose future would hold the arguments beside what is made of them, and polled by
/// hand: futures that wait at the same time would take several times the memory of all else. What does not last is boxed, and the timer is
/// that of the node.
fn serve(
    node: Arc<Node>,
    socket: WebSocket,
    transport: Transport,
    peer: Option<SocketAddr>,
    page: Option<Page>,
    headers: Headers,
    room: Option<Box<Room>>,
) -> impl Future<Output = ()> + Send {
    let (mut sender, receiver) = socket.split();
    match node.accept(transport, peer, page) {
        Ok(client) => {
            client.outbox.open_to_batches(sender.clone());
            let clean_up = CleanUp::new(&node, &client);
            let mut work = Work::Idle(Session::new(node, client, headers).pause());
            if let Some(room) = room {
                work.begin(&clean_up, |mut session| async move {
                    if let Err(reason) = session.join(room).await {
                        session.client.outbox.end(reason);
                    }
                    session.pause()
                });
            }
            Connection::Open(Open { writer: Writer::Idle(sender), receiver, clean_up, work })
        }
        Err(reason) => {
            Connection::Closing(Box::pin(
                async move { close(&mut sender, transport.format(), &reason).await },
            ))
        }
    }
}

impl Future for Connection {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let step = match &mut *self {
                Self::Open(open) => ready!(open.poll_step(cx)),
                Self::Closing(closing) => return closing.as_mut().poll(cx),
            };
            if let Err(reason) = step
                // Replaced below: nothing can see it.
                && let Self::Open(open) = mem::replace(&mut *self, Self::Closing(Box::pin(future::pending())))
            {
                *self = Self::Closing(Box::pin(open.finish(reason)));
            }
        }
    }
}

impl Open {
    /// One step; an error at the end of the connection. A command goes on while a write waits for the client: others may wait for what it
    /// holds, or for what it is the next to get.
    fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Disconnect>> {
        self.clean_up.node.end_expired(&self.clean_up.client);
        self.work.poll_busy(cx);
        let was_writing = matches!(self.writer, Writer::Busy(_));
        let is_writing = self.writer.poll(cx)?.is_pending();
        // Between two writes the client is read once: its queue may never be empty again before it has unsubscribed.
        let has_written = was_writing && !is_writing;
        if has_written
            && !self.clean_up.client.outbox.has_ended()
            && let Poll::Ready(read) = self.poll_read(cx)
        {
            return Poll::Ready(read);
        }
        let CleanUp { node, client, .. } = &self.clean_up;
        if !is_writing {
            let mut messages = Vec::new();
            let taken = client.outbox.poll_take_after_batch(cx, &mut messages);
            // The next message may be a Close, which is answered after the messages that a batch writes.
            let Ok(taken) = taken else { return Poll::Pending };
            match taken {
                Poll::Ready(Taken::Messages) => {
                    self.writer.begin(node, client, messages);
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Taken::End(reason)) => return Poll::Ready(Err(reason)),
                Poll::Pending => {}
            }
            if !has_written && let Poll::Ready(read) = self.poll_read(cx) {
                return Poll::Ready(read);
            }
        }
        let CleanUp { node, client, .. } = &self.clean_up;
        // The outbox has the waker: of this task, or of the write, which looks for the end of the connection there.
        if !node.is_due(client, self.work.poll_timeout(node, client, !is_writing)) {
            return Poll::Pending;
        }
        // Charged to the turn of the task: a write that has not seen that the connection ends does so in the next one.
        ready!(tokio::task::coop::poll_proceed(cx)).made_progress();
        self.work.handle_timeout(&self.clean_up, !is_writing);
        Poll::Ready(Ok(()))
    }

    /// An idle session begins to handle the next message; an error at the end of the connection.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Disconnect>> {
        let Work::Idle(session) = &mut self.work else { return Poll::Pending };
        // A client of a room receives its own publications before the answer to its Close, which may be next. Messages that have arrived
        // are published before, in one burst.
        if !self.receiver.has_next_message() && session.settle(&self.clean_up.node) {
            return Poll::Ready(Ok(()));
        }
        let received = ready!(poll_receive(&mut self.receiver, cx));
        Poll::Ready(received.map(|message| {
            self.work.begin(&self.clean_up, |mut session| async move {
                session.handle_message(message).await;
                session.pause()
            });
        }))
    }

    /// Ends the subscriptions while the closing handshake runs, whose duration the core limits.
    async fn finish(self, reason: Disconnect) {
        let Self { writer, mut receiver, clean_up, work } = self;
        // A command that is being executed ends, and undoes what it has begun.
        drop(work);
        clean_up.client.outbox.close_to_batches();
        let format = clean_up.client.format();
        let closing = async {
            if let Writer::Idle(mut sender) = writer {
                close(&mut sender, format, &reason).await;
            }
            while let Ok(Some(_)) = receiver.recv().await {}
        };
        tokio::join!(closing, clean_up.leave(reason.clone()));
        clean_up.forget().await;
    }
}

/// The next message; an error at the end of the connection.
fn poll_receive(receiver: &mut Receiver, cx: &mut Context<'_>) -> Poll<Result<OwnedMessage, Disconnect>> {
    Poll::Ready(match ready!(receiver.poll_recv_owned(cx)) {
        Ok(Some(message)) => Ok(message),
        Ok(None) => Err(Disconnect::ConnectionClosed),
        Err(error) => Err(broken(&error)),
    })
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

impl Writer {
    /// Ready when nothing is being written; an error if that has failed.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Disconnect>> {
        let Self::Busy(writing) = self else { return Poll::Ready(Ok(())) };
        let (sender, written) = ready!((**writing).as_mut().poll(cx));
        *self = Self::Idle(sender);
        Poll::Ready(written)
    }

    /// Begins to write messages, or what a batch has left where there are none.
    fn begin(&mut self, node: &Arc<Node>, client: &Arc<Client>, messages: Vec<PreparedMessage>) {
        // Replaced below: nothing can see it.
        let before = mem::replace(self, Self::Busy(Box::new(Box::pin(future::pending()))));
        *self = match before {
            Self::Idle(sender) => {
                Self::Busy(Box::new(Box::pin(write(node.clone(), client.clone(), sender, messages))))
            }
            busy @ Self::Busy(_) => busy,
        };
    }
}

async fn write(
    node: Arc<Node>,
    client: Arc<Client>,
    mut sender: Sender,
    messages: Vec<PreparedMessage>,
) -> Written {
    let written = {
        let are_queued = AtomicBool::new(false);
        let mut writing = pin!(send(&mut sender, &messages, &are_queued));
        // Most writes are done at once, and need no timer.
        match poll_fn(|cx| Poll::Ready(writing.as_mut().poll(cx))).await {
            Poll::Ready(written) => written.map_err(|error| failed(&client, &error)),
            Poll::Pending => Box::pin(finish_write(&node, &client, writing, &are_queued)).await,
        }
    };
    (sender, written)
}

/// Sets `are_queued` when the connection has all messages, or the room for the last one.
async fn send(
    sender: &mut Sender,
    messages: &[PreparedMessage],
    are_queued: &AtomicBool,
) -> Result<(), WebSocketError> {
    if let [first @ .., last] = messages {
        for message in first {
            sender.feed(message).await?;
        }
        drop(sender.reserve().await?);
        are_queued.store(true, Ordering::Relaxed);
        return sender.send(last).await;
    }
    are_queued.store(true, Ordering::Relaxed);
    sender.flush().await
}

/// Waits for a write, unless the client is too slow. An error if the connection is being ended and a message was not queued: nothing may
/// follow one that the client does not get.
async fn finish_write(
    node: &Node,
    client: &Client,
    writing: impl Future<Output = Result<(), WebSocketError>> + Unpin,
    are_queued: &AtomicBool,
) -> Result<(), Disconnect> {
    let queue_time_max = node.settings().config.client.queue_time_max;
    let written = tokio::select! {
        written = while_accepted(writing, queue_time_max, || client.outbox.bytes_sent()) => written,
        // If the connection is being ended, do not wait for a client that does not read.
        reason = poll_fn(|cx| client.outbox.poll_ended(cx)) => {
            return if are_queued.load(Ordering::Relaxed) { Ok(()) } else { Err(reason) };
        }
    };
    match written {
        Some(written) => written.map_err(|error| failed(client, &error)),
        None => Err(Disconnect::Slow),
    }
}

fn failed(client: &Client, error: &WebSocketError) -> Disconnect {
    debug!(client = &*client.id.text(), %error, "the connection failed");
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::task::coop::{consume_budget, has_budget_remaining};
    use wireloom::WebSocketConfig;
    use wireloom::wireloom_ws::{Role, handshake::Negotiated};

    use super::*;
    use crate::config::HubConfig;
    use crate::hub::Hub;
    use crate::outbox::Later;
    use crate::protocol::Encoding;

    fn size_of_output<A, B, C, D, E, F, G>(_: impl Fn(A, B, C, D, E, F) -> G) -> usize {
        size_of::<G>()
    }

    #[test]
    fn open_connections_hold_little_memory() {
        let sizes = [
            size_of_output(protocol),
            size_of_output(bare),
            size_of::<Client>(),
            size_of::<crate::client::Active>(),
        ];
        assert!(sizes.iter().sum::<usize>() <= 408, "{sizes:?}");
    }

    /// Clients that wait for the backend hold as much each.
    #[tokio::test]
    async fn a_command_in_progress_holds_little_memory() {
        let node = Hub::builder().build().unwrap().0;
        let client = node.accept(Transport::WebSocket(Encoding::Json), None, None).unwrap();
        let mut session = Session::new(node, client, Headers::NONE);
        let len = size_of_val(&session.handle_message("{}".into()));
        // It is below 6 KiB. How the compiler lays out futures differs between versions.
        assert!(len <= 8 << 10, "{len}");
    }

    #[tokio::test]
    async fn a_deadline_without_budget_waits_for_the_next_turn() {
        let config = HubConfig::from_toml("[client]\nanonymous = true\n").unwrap();
        let node = Hub::builder().config(config).build().unwrap().0;
        let client = node.accept(Transport::WebSocket(Encoding::Json), None, None).unwrap();
        let mut session = Session::new(node.clone(), client.clone(), Headers::NONE);
        session.handle_message("{\"id\":1,\"connect\":{}}".into()).await;
        let (_peer, transport) = tokio::io::duplex(16);
        let socket = WebSocket::from_transport(
            transport,
            Role::Server,
            Negotiated::default(),
            None,
            WebSocketConfig::default(),
            &[],
        );
        let (sender, receiver) = socket.split();
        let clean_up = CleanUp::new(&node, &client);
        let writer = Writer::Idle(sender);
        let mut open = Open { writer, receiver, clean_up, work: Work::Idle(session.pause()) };
        // The client does not read.
        poll_fn(|cx| {
            while open.poll_step(cx).is_ready() {}
            Poll::Ready(())
        })
        .await;
        assert!(matches!(open.writer, Writer::Busy(_)));
        client.set_expires_at(Some(Duration::from_secs(1)));
        // A command takes what is left of the turn.
        open.work.begin(&open.clean_up, |session| async {
            while has_budget_remaining() {
                consume_budget().await;
            }
            session.pause()
        });
        let steps = poll_fn(|cx| Poll::Ready((0..9).take_while(|_| open.poll_step(cx).is_ready()).count()));
        assert!(steps.await < 9);
        let ended = async {
            loop {
                if let Err(reason) = poll_fn(|cx| open.poll_step(cx)).await {
                    return reason;
                }
            }
        };
        assert_eq!(tokio::time::timeout(Duration::from_secs(60), ended).await, Ok(Disconnect::Expired));
    }

    /// Its publications are paced, so that it always has another one to send.
    #[tokio::test(start_paused = true)]
    async fn a_client_of_a_room_that_publishes_all_the_time_expires() {
        const SECOND: Duration = Duration::from_secs(1);
        let config = HubConfig::from_toml(
            "[client]\nanonymous = true\nexpired_grace = \"1s\"\n[[namespace]]\nname = \"rooms\"\n\
             subscribe = \"anyone\"\npublish = \"anyone\"\npublications_per_s_max = 100\n",
        );
        let node = Hub::builder().config(config.unwrap()).build().unwrap().0;
        let (peer, transport) = tokio::io::duplex(64 << 10);
        let over = |transport, role| {
            let config = WebSocketConfig::default();
            WebSocket::from_transport(transport, role, Negotiated::default(), None, config, &[])
        };
        let room = Box::new(Room { channel: "rooms:x".into(), token: String::new() });
        let socket = over(transport, Role::Server);
        let serving = tokio::spawn(bare(node.clone(), socket, None, None, Headers::NONE, room));
        let (mut sender, mut receiver) = over(peer, Role::Client).split();
        let sending = tokio::spawn(async move { while sender.send("x").await.is_ok() {} });
        assert!(receiver.recv_owned().await.unwrap().is_some());
        let now = node.clock.now();
        node.all_clients()[0].set_expires_at(Some(now + SECOND));
        let reading = async { while let Ok(Some(_)) = receiver.recv_owned().await {} };
        assert_eq!(tokio::time::timeout(60 * SECOND, reading).await, Ok(()));
        assert!(node.clock.now() - now < 5 * SECOND);
        serving.await.unwrap();
        sending.abort();
    }

    /// Others are sent all of them at once, and the Close behind them is answered after them.
    #[tokio::test]
    async fn messages_of_a_room_that_arrive_together_are_one_burst() {
        let config = HubConfig::from_toml(
            "[client]\nanonymous = true\n[[namespace]]\nname = \"rooms\"\nsubscribe = \"anyone\"\n\
             publish = \"anyone\"\n",
        );
        let node = Hub::builder().config(config.unwrap()).build().unwrap().0;
        let join = async || {
            let client = node.accept(Transport::Room, None, None).unwrap();
            let mut session = Session::new(node.clone(), client.clone(), Headers::NONE);
            let room = Box::new(Room { channel: "rooms:x".into(), token: String::new() });
            session.join(room).await.unwrap();
            session
        };
        let (session, other) = (join().await, join().await);
        let (peer, transport) = tokio::io::duplex(64 << 10);
        let over = |transport, role| {
            let config = WebSocketConfig::default();
            WebSocket::from_transport(transport, role, Negotiated::default(), None, config, &[])
        };
        let (mut publisher, mut received) = over(peer, Role::Client).split();
        for number in 0..3 {
            publisher.send(number.to_string()).await.unwrap();
        }
        publisher.close(CloseCode::NORMAL, "").await.unwrap();
        let (sender, receiver) = over(transport, Role::Server).split();
        let clean_up = CleanUp::new(&node, &session.client);
        let mut open =
            Open { writer: Writer::Idle(sender), receiver, clean_up, work: Work::Idle(session.pause()) };
        let mut backlogs = Vec::new();
        loop {
            let step = poll_fn(|cx| Poll::Ready(open.poll_step(cx))).await;
            backlogs.push(other.client.outbox.backlog().queued);
            if let Poll::Ready(Err(reason)) = step {
                assert_eq!(reason, Disconnect::ConnectionClosed);
                break;
            }
        }
        backlogs.dedup();
        assert_eq!(backlogs, [0, 3]);
        for number in 0..3 {
            let message = received.recv_owned().await.unwrap().unwrap();
            assert_eq!(message.as_text(), Some(&*number.to_string()));
        }
    }

    /// Such as one that asks a backend which does not answer.
    #[tokio::test(start_paused = true)]
    async fn a_connection_expires_during_a_command() {
        let node = Hub::builder().build().unwrap().0;
        let client = node.accept(Transport::WebSocket(Encoding::Json), None, None).unwrap();
        let session = Session::new(node.clone(), client.clone(), Headers::NONE);
        let (_peer, transport) = tokio::io::duplex(16);
        let config = WebSocketConfig::default();
        let socket =
            WebSocket::from_transport(transport, Role::Server, Negotiated::default(), None, config, &[]);
        let (sender, receiver) = socket.split();
        let clean_up = CleanUp::new(&node, &client);
        let mut open =
            Open { writer: Writer::Idle(sender), receiver, clean_up, work: Work::Idle(session.pause()) };
        open.work.begin(&open.clean_up, |_| future::pending());
        let expires_at = node.clock.now() + Duration::from_secs(60);
        client.set_expires_at(Some(expires_at));
        let ended = async {
            loop {
                if let Err(reason) = poll_fn(|cx| open.poll_step(cx)).await {
                    return reason;
                }
            }
        };
        assert_eq!(tokio::time::timeout(Duration::from_secs(600), ended).await, Ok(Disconnect::Expired));
        let late = node.clock.now() - (expires_at + node.settings().config.client.expired_grace);
        assert!(late < Duration::from_secs(2), "{late:?}");
    }

    /// The queue exceeds the transport's buffer, and the client reads while the connection is ended.
    #[tokio::test]
    async fn nothing_follows_a_message_that_is_given_up() {
        let config = HubConfig::from_toml("[client]\nanonymous = true\nqueue_len_max = 8388608\n").unwrap();
        let node = Hub::builder().config(config).build().unwrap().0;
        let client = node.accept(Transport::WebSocket(Encoding::Json), None, None).unwrap();
        let session = Session::new(node.clone(), client.clone(), Headers::NONE);
        let (peer, transport) = tokio::io::duplex(64 << 10);
        let over = |transport, role| {
            let config = WebSocketConfig::default();
            WebSocket::from_transport(transport, role, Negotiated::default(), None, config, &[])
        };
        let mut peer = over(peer, Role::Client);
        let (sender, receiver) = over(transport, Role::Server).split();
        let padding = "x".repeat(1 << 10);
        for number in 0..4_000 {
            client.outbox.push(PreparedMessage::text(&format!("{number} {padding}")), &mut Later::default());
        }
        client.outbox.end(Disconnect::Shutdown);
        let clean_up = CleanUp::new(&node, &client);
        let mut open =
            Open { writer: Writer::Idle(sender), receiver, clean_up, work: Work::Idle(session.pause()) };
        let mut received = Vec::new();
        let mut note = |message: OwnedMessage| {
            let (number, _) = message.as_text().unwrap().split_once(' ').unwrap();
            received.push(number.parse::<usize>().unwrap());
        };
        let reason = loop {
            if let Poll::Ready(Err(reason)) = poll_fn(|cx| Poll::Ready(open.poll_step(cx))).await {
                break reason;
            }
            // More slowly than messages are taken.
            for _ in 0..10 {
                let mut receiving = pin!(peer.recv_owned());
                let Poll::Ready(message) = poll_fn(|cx| Poll::Ready(receiving.as_mut().poll(cx))).await
                else {
                    break;
                };
                note(message.unwrap().unwrap());
            }
        };
        let reading = async {
            while let Ok(Some(message)) = peer.recv_owned().await {
                note(message);
            }
        };
        tokio::join!(open.finish(reason), reading);
        assert!(received.len() > 500 && received.iter().copied().eq(0..received.len()), "{received:?}");
    }
}
