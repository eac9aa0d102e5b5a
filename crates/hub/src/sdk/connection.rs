//! One connection of a client: opening, sending, receiving.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, timeout, timeout_at};
use wireloom::client::LossReason;
use wireloom::{CloseCode, WebSocket};

use super::ClientError;
use super::builder::ClientBuilder;
use crate::clock::Deadline;
use crate::history::Position;
use crate::protocol::{Command, ConnectRequest, ConnectResult, Error, Reply, SubscribeRequest, bounded};

/// The most memory for the elements of the lists and maps of a reply, in bytes: as much as the longest message. 250,000 publications fit.
const ELEMENTS_LEN_MAX: usize = 64 << 20;

/// The length of the longest id in a command: `"id":4294967295,`.
const ID_LEN: usize = 16;

/// How long a ping of the server may be late.
const PING_DELAY_MAX: Duration = Duration::from_secs(10);

/// For how many timeouts the server may owe an answer, although bytes arrive: it may be long, and so may be what is before it.
const ANSWER_TIMEOUTS: u32 = 60;

/// An open connection, on which `connect` has succeeded.
pub(super) struct Connection {
    socket: WebSocket,
    /// How long no byte may arrive or leave while a message is on its way.
    timeout: Duration,
    ping_interval: Duration,
    has_pong: bool,
    opened_at: Instant,
    /// While a message is sent: the server does not read, unless bytes leave.
    stuck: Option<Watch>,
    /// The server is taken for lost, unless bytes arrive.
    silence: Option<Watch>,
    /// The first command that the server owes an answer to.
    owed: Option<Watch>,
}

/// A deadline that begins anew when something has changed: the number of bytes, or the command. In time since `opened_at`.
#[derive(Clone, Copy)]
struct Watch {
    timeout: Duration,
    deadline: Deadline,
    seen: u64,
}

impl Watch {
    fn new(now: Duration, timeout: Duration, seen: u64) -> Self {
        Self { timeout, deadline: Deadline::new(now, timeout), seen }
    }

    fn is_over(&mut self, now: Duration, seen: u64) -> bool {
        if seen != self.seen {
            *self = Self::new(now, self.timeout, seen);
        }
        self.deadline.is_over(now, self.timeout)
    }
}

/// The result of [`Connection::recv`].
#[derive(Debug)]
pub(super) enum Received {
    /// The message that was being sent has left.
    Sent,
    /// It could not be sent. What has arrived is still received, and then the reason.
    Unsent,
    Replies(Replies),
}

/// The replies of a message, decoded one at a time, so that a message of many tiny ones costs no memory.
#[derive(Debug, Default)]
pub(super) struct Replies {
    /// Empty after an error.
    rest: Bytes,
}

impl Replies {
    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

impl Iterator for Replies {
    type Item = Result<Reply, Lost>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut values = serde_json::Deserializer::from_slice(&self.rest).into_iter::<Reply>();
        let reply = bounded(ELEMENTS_LEN_MAX, || values.next());
        let used = values.byte_offset();
        match &reply {
            Some(Ok(_)) => self.rest = self.rest.slice(used..),
            Some(Err(_)) | None => self.rest = Bytes::new(),
        }
        reply.map(|reply| reply.map_err(|error| Lost::retry(format_args!("a message is malformed: {error}"))))
    }
}

/// Why a connection could not be opened, or has ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Lost {
    /// It is made again.
    Retry { code: u32, reason: String },
    /// It could not be opened, and another attempt does not help, such as after a response of 404. If one was open before, it is made again: a
    /// load balancer may answer so while its servers restart.
    NotOpened { reason: String },
    /// The token has expired: it is made again with a new one.
    TokenExpired,
    /// It is not made again: the server does not want it.
    Final { code: u32, reason: String },
}

impl Lost {
    pub(super) fn retry(reason: impl ToString) -> Self {
        Self::Retry { code: 0, reason: reason.to_string() }
    }

    fn not_opened(error: wireloom::Error) -> Self {
        let reason = error.to_string();
        match LossReason::NotOpened(error).is_temporary() {
            true => Self::Retry { code: 0, reason },
            false => Self::NotOpened { reason },
        }
    }

    /// By a close code of the server.
    fn closed(code: u32, reason: String) -> Self {
        // The protocol: codes 3500 to 3999 and 4500 to 4999 are final. A message that was too long (RFC 6455 §7.4.1): the server accepts less than
        // `command_len_max`, and the same command may be sent again, such as `connect`.
        match code {
            1009 | 3500..=3999 | 4500..=4999 => Self::Final { code, reason },
            _ => Self::Retry { code, reason },
        }
    }

    fn refused(error: Error) -> Self {
        match error {
            Error { code: 109, .. } => Self::TokenExpired,
            Error { temporary: true, code, message } => Self::Retry { code, reason: message },
            Error { code, message, .. } => Self::Final { code, reason: message },
        }
    }
}

/// A new connection, the server's answer to `connect`, and what has arrived behind it.
pub(super) struct Opened {
    pub(super) connection: Connection,
    pub(super) result: ConnectResult,
    pub(super) rest: Replies,
}

impl Connection {
    /// Opens a connection and connects with the token. `subs` are the positions of the subscriptions that the server made and recovers.
    pub(super) async fn open(
        builder: Arc<ClientBuilder>,
        token: String,
        subs: HashMap<String, Position>,
    ) -> Result<Opened, Lost> {
        let opened = timeout(builder.timeout, builder.connector.connect(&builder.url)).await;
        let socket = opened.map_err(|_| Lost::retry("no answer in time"))?.map_err(Lost::not_opened)?;
        let recovered = |position: Position| SubscribeRequest {
            recover: true,
            epoch: position.epoch,
            offset: position.offset,
            ..SubscribeRequest::default()
        };
        let connect = ConnectRequest {
            token,
            data: builder.data.clone(),
            name: builder.name.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            subs: subs.into_iter().map(|(channel, position)| (channel, recovered(position))).collect(),
            ..ConnectRequest::default()
        };
        Self::new(socket, builder.timeout).connect(connect).await
    }

    pub(super) fn new(socket: WebSocket, timeout: Duration) -> Self {
        Self {
            socket,
            timeout,
            ping_interval: Duration::ZERO,
            has_pong: false,
            opened_at: Instant::now(),
            stuck: None,
            silence: None,
            owed: None,
        }
    }

    async fn connect(mut self, connect: ConnectRequest) -> Result<Opened, Lost> {
        let command = Command { id: 1, connect: Some(connect), ..Command::default() };
        self.begin_send(&mut [command].into(), 0, |_| true).await?;
        let mut deadline = Instant::now() + self.timeout;
        let give_up = Instant::now() + self.answer_max();
        while Instant::now() < give_up {
            let traffic = self.socket.traffic();
            let Ok(received) = timeout_at(deadline.min(give_up), self.recv(true)).await else {
                if self.socket.traffic() == traffic {
                    break;
                }
                // Both messages may be long: the reply has what the client has missed.
                deadline = Instant::now() + self.timeout;
                continue;
            };
            let Received::Replies(mut replies) = received? else {
                deadline = Instant::now() + self.timeout;
                continue;
            };
            let is_answer = |reply: &Result<Reply, _>| !reply.as_ref().is_ok_and(|reply| reply.id != 1);
            let Some(reply) = replies.find(is_answer) else { continue };
            let reply = reply?;
            if let Some(error) = reply.error {
                return Err(Lost::refused(error));
            }
            let result = reply.connect.unwrap_or_default();
            self.ping_interval = Duration::from_secs(result.ping.into());
            self.has_pong = result.pong;
            self.note_bytes();
            return Ok(Opened { connection: self, result, rest: replies });
        }
        Err(Lost::retry("no answer in time"))
    }

    /// Begins to send the first of the commands that are wanted as one message, which leaves while [`recv`](Self::recv) waits. The message
    /// before has left.
    pub(super) async fn begin_send(
        &mut self,
        commands: &mut VecDeque<Command>,
        len_max: usize,
        is_wanted: impl FnMut(&Command) -> bool,
    ) -> Result<(), Lost> {
        let batch = next_batch(commands, len_max, is_wanted);
        if !batch.is_empty() {
            // The queue is empty, so that there is room.
            self.socket.feed(&*batch).await.map_err(Lost::retry)?;
            self.stuck = Some(self.watch(self.timeout, self.socket.traffic().bytes_sent));
        }
        Ok(())
    }

    pub(super) fn is_sending(&self) -> bool {
        self.stuck.is_some()
    }

    /// The next message, or that the one which is being sent has left. Unless `reads`, only that is waited for.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub(super) async fn recv(&mut self, reads: bool) -> Result<Received, Lost> {
        let (sender, receiver) = self.socket.halves();
        let message = tokio::select! {
            biased;
            sent = sender.flush(), if self.stuck.is_some() => {
                self.stuck = None;
                return Ok(if sent.is_ok() { Received::Sent } else { Received::Unsent });
            }
            received = receiver.recv_owned(), if reads => received,
            else => std::future::pending().await,
        };
        let Ok(Some(message)) = message else { return Err(self.end()) };
        self.note_bytes();
        Ok(Received::Replies(Replies { rest: message.into_bytes() }))
    }

    /// Whether the server waits for an answer to this ping.
    pub(super) fn wants_pong(&self, reply: &Reply) -> bool {
        self.has_pong && *reply == Reply::default()
    }

    /// When [`failure`](Self::failure) is to be asked.
    pub(super) fn failure_at(&self, reads: bool) -> Option<Instant> {
        let [silence, owed] = [self.silence, self.owed].map(|watch| watch.filter(|_| reads));
        let watches = [self.stuck, silence, owed].into_iter().flatten();
        watches.map(|watch| self.opened_at + watch.deadline.at()).min()
    }

    /// Why the connection counts as lost: no byte has left for too long, or has arrived for longer than the server's pings allow, or an
    /// answer takes too long. While nothing is read, pings and answers wait.
    pub(super) fn failure(&mut self, reads: bool) -> Option<&'static str> {
        let (now, traffic) = (self.opened_at.elapsed(), self.socket.traffic());
        let is_over = |watch: &mut Option<Watch>, seen: Option<u64>| {
            watch.as_mut().is_some_and(|watch| watch.is_over(now, seen.unwrap_or(watch.seen)))
        };
        if is_over(&mut self.stuck, Some(traffic.bytes_sent)) {
            Some("the server does not read")
        } else if reads && is_over(&mut self.silence, Some(traffic.bytes_received)) {
            Some("the server is silent")
        } else if reads && is_over(&mut self.owed, None) {
            Some("the server does not answer")
        } else {
            None
        }
    }

    /// Notes the first command that the server owes an answer to. Each has its time from when those before it are answered.
    pub(super) fn note_owed(&mut self, id: Option<u32>) {
        let id = id.map(u64::from);
        if self.owed.map(|watch| watch.seen) != id {
            self.owed = id.map(|id| self.watch(self.answer_max(), id));
        }
    }

    fn note_bytes(&mut self) {
        if !self.ping_interval.is_zero() {
            let silence_max = self.ping_interval + PING_DELAY_MAX;
            self.silence = Some(self.watch(silence_max, self.socket.traffic().bytes_received));
        }
    }

    fn watch(&self, timeout: Duration, seen: u64) -> Watch {
        Watch::new(self.opened_at.elapsed(), timeout, seen)
    }

    fn answer_max(&self) -> Duration {
        self.timeout.saturating_mul(ANSWER_TIMEOUTS)
    }

    /// Why the connection has ended.
    fn end(&self) -> Lost {
        match self.socket.end() {
            Some(end) => Lost::closed(end.code().value().into(), end.reason().to_owned()),
            None => Lost::retry("the connection was lost"),
        }
    }

    /// Ends a connection that counts as lost. Commands that have not left must not arrive later: their callers may send them again.
    pub(super) fn abandon(self, reason: &str) -> Lost {
        drop(self.socket.into_inner());
        Lost::retry(reason)
    }

    /// Sends the commands and closes the connection, for which the server may take `timeout`. Returns whether all of them have left.
    pub(super) async fn close(
        mut self,
        mut commands: VecDeque<Command>,
        len_max: usize,
        mut is_wanted: impl FnMut(&Command) -> bool,
    ) -> bool {
        let limit = self.timeout;
        let mut have_left = false;
        let closing = async {
            loop {
                if !self.is_sending() {
                    self.begin_send(&mut commands, len_max, &mut is_wanted).await?;
                }
                if !self.is_sending() {
                    break;
                }
                if matches!(self.recv(true).await?, Received::Unsent) {
                    return Err(self.end());
                }
            }
            have_left = true;
            let _ = self.socket.close(CloseCode::NORMAL, "").await;
            while let Ok(Some(_)) = self.socket.recv_owned().await {}
            Ok::<_, Lost>(())
        };
        if timeout(limit, closing).await.is_err() {
            drop(self.socket.into_inner());
        }
        have_left
    }
}

fn encode(command: &Command) -> String {
    // Serialization fails only for maps whose keys are not strings; there are none.
    serde_json::to_string(command).unwrap_or_default()
}

/// Checks the length of a command without an id.
///
/// # Errors
/// It would be longer than `len_max`.
pub(super) fn check_len(command: &Command, len_max: usize) -> Result<(), ClientError> {
    let len = encode(command).len() + ID_LEN;
    if len > len_max { Err(ClientError::TooLong { len, len_max }) } else { Ok(()) }
}

/// Takes commands for one message: as many as it has room for, and at least one, unless none is wanted.
fn next_batch(
    commands: &mut VecDeque<Command>,
    len_max: usize,
    mut is_wanted: impl FnMut(&Command) -> bool,
) -> String {
    let mut batch = String::new();
    while let Some(command) = commands.front() {
        if !is_wanted(command) {
            commands.pop_front();
            continue;
        }
        let text = encode(command);
        if !batch.is_empty() {
            if batch.len() + 1 + text.len() > len_max {
                break;
            }
            batch.push('\n');
        }
        batch.push_str(&text);
        commands.pop_front();
    }
    batch
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
    use tokio::time::{sleep, sleep_until};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(5);

    /// A link of 100 bytes per second.
    async fn pass(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) {
        let mut bytes = [0; 100];
        while let Ok(len @ 1..) = from.read(&mut bytes).await {
            to.write_all(&bytes[..len]).await.unwrap();
            sleep(Duration::from_secs(1)).await;
        }
    }

    /// A connection over a slow link, and its server.
    async fn connection() -> (Connection, WebSocket) {
        let (near, link) = tokio::io::duplex(100);
        let (other_link, far) = tokio::io::duplex(100);
        let ((from_near, to_near), (from_far, to_far)) =
            (tokio::io::split(link), tokio::io::split(other_link));
        tokio::spawn(pass(from_near, to_far));
        tokio::spawn(pass(from_far, to_near));
        let client = wireloom::connect_over(near, "ws://localhost/");
        let (client, server) = tokio::join!(client, wireloom::accept(far));
        (Connection::new(client.unwrap(), TIMEOUT), server.unwrap())
    }

    /// A text that takes 100 s.
    fn long() -> String {
        "x".repeat(10_000)
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_answer_may_take_its_time() {
        let (connection, mut server) = connection().await;
        let serving = async {
            assert!(server.recv().await.unwrap().is_some());
            let reply = json!({ "id": 1, "connect": { "client": "7", "ping": 1, "data": long() } });
            server.send(&*reply.to_string()).await.unwrap();
            let publication = json!({ "push": { "channel": "a", "pub": { "data": long() } } });
            server.send(&*publication.to_string()).await.unwrap();
            server
        };
        let client = async {
            let mut connection = connection.connect(ConnectRequest::default()).await.ok().unwrap().connection;
            loop {
                let failure_at = connection.failure_at(true).unwrap();
                tokio::select! {
                    replies = connection.recv(true) => {
                        let Ok(Received::Replies(mut replies)) = replies else { panic!("{replies:?}") };
                        assert!(replies.next().unwrap().unwrap().push.is_some());
                        return connection;
                    }
                    () = sleep_until(failure_at) => assert_eq!(connection.failure(true), None),
                }
            }
        };
        let (_server, mut connection) = tokio::join!(serving, client);
        let silent_since = Instant::now();
        while connection.failure(true) != Some("the server is silent") {
            sleep_until(connection.failure_at(true).unwrap()).await;
        }
        let silent_for = silent_since.elapsed();
        let expected = Duration::from_secs(1) + PING_DELAY_MAX;
        assert!((expected..expected + Duration::from_millis(10)).contains(&silent_for), "{silent_for:?}");
    }

    // The pings that arrived meanwhile are still to be read.
    #[tokio::test(start_paused = true)]
    async fn a_pause_of_this_process_is_no_silence_of_the_server() {
        let (mut connection, _server) = connection().await;
        connection.ping_interval = Duration::from_secs(25);
        connection.note_bytes();
        tokio::time::advance(Duration::from_secs(3_600)).await;
        assert_eq!(connection.failure(true), None);
        sleep_until(connection.failure_at(true).unwrap()).await;
        assert_eq!(connection.failure(false), None);
        assert_eq!(connection.failure(true), Some("the server is silent"));
    }

    /// Whether commands leave.
    async fn sends(connection: &mut Connection, commands: &[Command]) -> bool {
        let mut commands = commands.to_vec().into();
        connection.begin_send(&mut commands, 0, |_| true).await.unwrap();
        while let Some(failure_at) = connection.failure_at(false) {
            tokio::select! {
                received = connection.recv(true) => assert!(matches!(received, Ok(Received::Sent))),
                () = sleep_until(failure_at) => if connection.failure(false).is_some() { return false },
            }
        }
        true
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_command_may_take_its_time() {
        let (mut connection, mut server) = connection().await;
        let connect = Some(ConnectRequest { name: long(), ..ConnectRequest::default() });
        let commands = [Command { id: 1, connect, ..Command::default() }];
        let (received, is_sent) = tokio::join!(server.recv_owned(), sends(&mut connection, &commands));
        assert!(received.unwrap().is_some() && is_sent);
        // Now the server is not reading.
        assert!(!sends(&mut connection, &commands).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_does_not_answer_is_given_up() {
        let (connection, _server) = connection().await;
        let began = Instant::now();
        let lost = connection.connect(ConnectRequest::default()).await.err();
        assert_eq!(lost, Some(Lost::retry("no answer in time")));
        assert!(began.elapsed() < 3 * TIMEOUT, "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_whose_answer_never_ends_is_given_up() {
        let (connection, mut server) = connection().await;
        let began = Instant::now();
        // It would take hours.
        let endless = "x".repeat(4_000_000);
        let lost = tokio::select! {
            opened = connection.connect(ConnectRequest::default()) => opened.err(),
            sent = server.send(&*endless) => panic!("{sent:?}"),
        };
        assert_eq!(lost, Some(Lost::retry("no answer in time")));
        assert!(began.elapsed() < (ANSWER_TIMEOUTS + 1) * TIMEOUT, "{:?}", began.elapsed());
    }

    #[test]
    fn replies_are_decoded_one_at_a_time() {
        let replies = |text: &'static str| Replies { rest: text.into() };
        let ids = |text| replies(text).map(|reply| reply.ok().map(|reply| reply.id)).collect::<Vec<_>>();
        assert_eq!(ids("{\"id\":1}\n{}\n {\"id\":3} "), [Some(1), Some(0), Some(3)]);
        assert_eq!(ids("{\"id\":1}{\"id\":x}{\"id\":3}"), [Some(1), None]);
        assert_eq!(ids(" \n"), []);
    }

    #[test]
    fn many_tiny_elements_are_malformed() {
        let lists = [r#""subscribe":{"publications":["#, r#""history":{"publications":["#]
            .map(|begin| (begin, "{},", "{}]"));
        let maps = [
            (r#""presence":{"presence":{"#, r#""":{},"#, r#""":{}}"#),
            (r#""connect":{"subs":{"#, r#""":{},"#, r#""":{}}"#),
        ];
        for (begin, element, end) in lists.into_iter().chain(maps) {
            for (count, is_valid) in [(10_000, true), (2 << 20, false)] {
                let text = format!("{{\"id\":1,{begin}{}{end}}}}}", element.repeat(count));
                let reply = Replies { rest: text.into() }.next().unwrap();
                assert_eq!(reply.is_ok(), is_valid, "{begin} {count}: {:?}", reply.err());
            }
        }
    }

    // It would be as long the next time.
    #[tokio::test]
    async fn a_message_that_is_too_long_is_the_end() {
        let (near, far) = tokio::io::duplex(1 << 10);
        let mut config = wireloom::WebSocketConfig::default();
        config.core.limits.message_len_max = 100;
        let connector = wireloom::Connector::new().config(config);
        let client = connector.connect_over(near, "ws://localhost/");
        let (client, server) = tokio::join!(client, wireloom::accept(far));
        let (mut connection, mut server) = (Connection::new(client.unwrap(), TIMEOUT), server.unwrap());
        let text = long();
        let (_, lost) = tokio::join!(server.send(&*text), connection.recv(true));
        assert!(matches!(lost, Err(Lost::Final { code: 1009, .. })), "{lost:?}");
    }
}
