//! Connections whose server's side is the body of a response: server-sent events (WHATWG HTML §9.2), lines of JSON, or Protobuf messages
//! after their lengths.
//!
//! Clients that only receive send one connect request with the request. Others are emulated: further commands arrive in requests of
//! their own and reach the session by its [`Inbox`].

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use tokio::time::Sleep;
use wireloom::{Body, BodySender, PreparedMessage, Response};

use super::clean_up::CleanUp;
use super::progress::while_accepted;
use super::work::Work;
use crate::client::{Client, Page, Transport};
use crate::node::Node;
use crate::outbox::Taken;
use crate::protocol::{ConnectRequest, Disconnect, DisconnectPush, Encoding, Push, Reply};
use crate::proxy::Headers;
use crate::session::Session;
use crate::sessions::Inbox;

/// How long a client may take to receive the reason when the connection ends.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum number of bytes that are handed over at once. A client must read this many in `queue_time_max`.
const PART_LEN_MAX: usize = 16 << 10;

/// The first request of a connection.
pub(crate) enum First {
    /// The connect request of a client that only receives.
    Connect(Box<ConnectRequest>),
    /// Commands.
    Commands(Bytes),
}

/// How messages are separated in the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Events,
    Lines,
    /// Each message begins with its length.
    None,
}

impl Framing {
    fn of(transport: Transport) -> Self {
        match transport {
            Transport::Sse | Transport::UniSse => Self::Events,
            Transport::HttpStream(Encoding::Protobuf) => Self::None,
            _ => Self::Lines,
        }
    }

    fn content_type(self) -> &'static str {
        match self {
            Self::Events => "text/event-stream",
            Self::Lines => "application/json",
            Self::None => "application/octet-stream",
        }
    }

    /// The text before and after each message. JSON contains no newline here, so one line of `data` is enough.
    fn around(self) -> (&'static [u8], &'static [u8]) {
        match self {
            Self::Events => (b"data: ", b"\n\n"),
            Self::Lines => (b"", b"\n"),
            Self::None => (b"", b""),
        }
    }

    /// All messages as one chunk.
    fn join(self, messages: &mut Vec<PreparedMessage>) -> Bytes {
        let (before, after) = self.around();
        let len_of = |message: &PreparedMessage| before.len() + message.as_bytes().len() + after.len();
        let mut chunk = BytesMut::with_capacity(messages.iter().map(len_of).sum());
        for message in messages.drain(..) {
            chunk.put_slice(before);
            chunk.put_slice(message.as_bytes());
            chunk.put_slice(after);
        }
        chunk.freeze()
    }
}

/// The response to a client: a body that lasts as long as the connection.
pub(crate) fn stream(
    node: Arc<Node>,
    transport: Transport,
    peer: SocketAddr,
    page: Option<Page>,
    first: First,
    headers: Headers,
) -> Response {
    let client = match node.accept(transport, Some(peer), page) {
        Ok(client) => client,
        Err(reason) => return Response::text(503, format!("{}\n", reason.reason())),
    };
    let framing = Framing::of(transport);
    let (body, content) = Body::channel();
    let mut output = Output { body, rest: Bytes::new() };
    tokio::spawn(async move {
        let clean_up = CleanUp::new(&node, &client);
        let mut session = Session::new(node.clone(), client.clone(), headers);
        let inbox = transport.is_emulated().then(|| {
            let config = &node.settings().config.client;
            node.sessions.open(config.queue_len_max.max(2 * config.message_len_max))
        });
        if let Some(inbox) = &inbox {
            session.emulate(inbox.id());
        }
        let reason = run(&clean_up, begin(&clean_up, session, first), inbox, &mut output).await;
        // The client may not read. Others should see it leave at once.
        let sending = async {
            let is_sent = tokio::time::timeout(CLOSE_TIMEOUT, output.finish(&client, &reason)).await;
            if is_sent != Ok(true) {
                // A body that ends would keep its bytes and the connection until they are accepted.
                output.body.abort();
            }
        };
        tokio::join!(sending, clean_up.leave(reason.clone()));
        clean_up.forget().await;
    });
    Response::new(200).with_body(framing.content_type(), content)
}

/// A session that handles what its client sent with the request.
fn begin(clean_up: &CleanUp, session: Session, first: First) -> Work {
    let mut work = Work::Idle(session.pause());
    work.begin(clean_up, |mut session| async move {
        match first {
            First::Connect(request) => {
                if let Err(reason) = session.connect_one_way(*request).await {
                    session.client.outbox.end(reason);
                }
            }
            First::Commands(commands) => session.handle_commands(commands).await,
        }
        session.pause()
    });
    work
}

/// Serves a session until it ends; returns the reason.
async fn run(
    clean_up: &CleanUp,
    mut work: Work,
    mut inbox: Option<Inbox>,
    output: &mut Output,
) -> Disconnect {
    let CleanUp { node, client } = clean_up;
    let framing = Framing::of(client.transport);
    let mut messages = Vec::new();
    let mut timer = pin!(tokio::time::sleep_until(node.clock.instant(Duration::MAX)));
    loop {
        set_timer(node, client, &work, timer.as_mut(), true);
        tokio::select! {
            biased;
            taken = poll_fn(|cx| client.outbox.poll_take(cx, &mut messages)) => match taken {
                Taken::Messages => {
                    let sending = output.send(node, client, framing.join(&mut messages));
                    if let Err(reason) = while_working(clean_up, &mut work, timer.as_mut(), sending).await {
                        return reason;
                    }
                    // Between two writes the client is read once: its queue may never be empty again before it has unsubscribed.
                    tokio::select! {
                        biased;
                        () = proceed(clean_up, &mut work, inbox.as_mut()) => {}
                        () = std::future::ready(()) => {}
                    }
                }
                Taken::End(reason) => return reason,
            },
            () = output.body.closed() => return Disconnect::ConnectionClosed,
            () = proceed(clean_up, &mut work, inbox.as_mut()) => {}
            () = timer.as_mut() => work.handle_timeout(clean_up, true),
        }
    }
}

/// Ends a connection that has expired, and sets the timer to its next deadline.
fn set_timer(node: &Node, client: &Client, work: &Work, mut timer: Pin<&mut Sleep>, is_reading: bool) {
    node.end_expired(client);
    let deadline = node.clock.instant(work.poll_timeout(node, client, is_reading));
    if timer.deadline() != deadline {
        timer.as_mut().reset(deadline);
    }
}

/// Waits for a write. A command goes on meanwhile: others may wait for what it holds, or for what it is the next to get.
async fn while_working<T>(
    clean_up: &CleanUp,
    work: &mut Work,
    mut timer: Pin<&mut Sleep>,
    writing: impl Future<Output = T>,
) -> T {
    let mut writing = pin!(writing);
    loop {
        set_timer(&clean_up.node, &clean_up.client, work, timer.as_mut(), false);
        tokio::select! {
            biased;
            () = proceed(clean_up, work, None) => {}
            written = writing.as_mut() => return written,
            () = timer.as_mut() => work.handle_timeout(clean_up, false),
        }
    }
}

/// One step: an idle session begins to handle a message, a busy one finishes.
///
/// # Cancel safety
/// Nothing is lost when the future is dropped.
async fn proceed(clean_up: &CleanUp, work: &mut Work, inbox: Option<&mut Inbox>) {
    match (&mut *work, inbox) {
        (Work::Busy(busy), _) => *work = Work::Idle(busy.await),
        (Work::Idle(_), Some(inbox)) => {
            let commands = inbox.recv().await;
            work.begin(clean_up, |mut session| async move {
                session.handle_commands(commands).await;
                session.pause()
            });
        }
        (Work::Idle(_), None) => std::future::pending().await,
    }
}

/// The body of a response, which accepts as much as the client does.
struct Output {
    body: BodySender,
    /// The unsent rest of the current chunk.
    rest: Bytes,
}

impl Output {
    /// Sends a chunk, unless the client is too slow. If the connection is being ended, it does not wait for the client to read:
    /// [`finish`](Self::finish) sends the rest.
    async fn send(&mut self, node: &Node, client: &Client, chunk: Bytes) -> Result<(), Disconnect> {
        let queue_time_max = node.settings().config.client.queue_time_max;
        self.rest = chunk;
        while let Some(part) = next_part(&self.rest) {
            let len = part.len();
            // A part is accepted when the client has read others, so that each has the whole time.
            let sending = while_accepted(Box::pin(self.body.send(part)), queue_time_max, || 0);
            let sent = tokio::select! {
                biased;
                sent = sending => sent,
                reason = poll_fn(|cx| client.outbox.poll_ended(cx)) => return Err(reason),
            };
            match sent {
                Some(Ok(())) => self.rest.advance(len),
                Some(Err(_)) => return Err(Disconnect::ConnectionClosed),
                None => return Err(Disconnect::Slow),
            }
        }
        Ok(())
    }

    /// Sends what is left of a chunk and what is queued, then the reason as the last push, because streams have no close code. Returns
    /// whether the client may still receive it: one that is slow does not.
    async fn finish(&mut self, client: &Client, reason: &Disconnect) -> bool {
        if *reason == Disconnect::Slow {
            return false;
        }
        let disconnect = DisconnectPush {
            code: reason.code().into(),
            reason: reason.reason().into(),
            reconnect: reason.allows_reconnect(),
        };
        let push = Push { disconnect: Some(disconnect), ..Push::default() };
        let push = client.encode(&Reply { push: Some(push), ..Reply::default() });
        let (framing, mut messages) = (Framing::of(client.transport), Vec::new());
        let mut chunk = std::mem::take(&mut self.rest);
        loop {
            if self.body.send(chunk).await.is_err() {
                // The client has disconnected.
                return false;
            }
            let taken = poll_fn(|cx| Poll::Ready(client.outbox.poll_take(cx, &mut messages))).await;
            if taken != Poll::Ready(Taken::Messages) {
                break;
            }
            chunk = framing.join(&mut messages);
        }
        messages.extend(push);
        self.body.send(framing.join(&mut messages)).await.is_ok()
    }
}

/// The beginning of a chunk that is handed over at once; `None` at its end.
fn next_part(chunk: &Bytes) -> Option<Bytes> {
    (!chunk.is_empty()).then(|| chunk.slice(..chunk.len().min(PART_LEN_MAX)))
}
