//! A WebSocket that is opened again when it is lost. It waits between attempts and counts the messages that may have been lost. The
//! application decides whether to send them again, or to ask the server for messages that it missed.
//!
//! ```text
//! Waiting -> Preparing -> Connecting -> Open -> lost --> Waiting ...
//!    ^            | failed    | failed            '----> Ended
//!    '------------+-----------+--> Ended
//! ```

mod policy;
mod sender;
mod sent_messages;

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use tokio::time::{Instant, Sleep, sleep_until};
use wireloom_ws::{Cause, CloseCode, Initiator};

pub use policy::{LossReason, ReconnectPolicy, Retry};
pub use sender::ReconnectingSender;

use super::{Connector, Opened};
use crate::deadline::{PeerDeadline, after};
use crate::error::{Error, WebSocketError};
use crate::headers::Headers;
use crate::websocket::{OwnedMessage, Payload, WebSocket};
use sender::{Link, Links};
use sent_messages::SentMessages;

/// A WebSocket that is opened again when it is lost.
///
/// ```no_run
/// use wireloom::Connector;
/// use wireloom::client::{ReconnectPolicy, ReconnectEvent};
///
/// # async fn example() -> Result<(), wireloom::Error> {
/// let mut policy = ReconnectPolicy::default();
/// policy.keep_len_max = 1 << 20;
/// let mut socket = Connector::new().reconnecting("wss://example.com/events", policy);
/// let mut resend = Vec::new();
/// let mut last_event = String::new();
/// while let Some(step) = socket.next().await? {
///     match step {
///         ReconnectEvent::Connected(_) => {
///             // Request the messages published in the meantime.
///             socket.send(format!("since {last_event}")).await?;
///             for message in resend.drain(..) {
///                 socket.send(message).await?;
///             }
///         }
///         ReconnectEvent::Message(message) => last_event = message.as_text().unwrap_or_default().to_owned(),
///         ReconnectEvent::Lost(loss) => {
///             eprintln!("{} messages may not have arrived", loss.unconfirmed);
///             resend = loss.kept;
///         }
///         ReconnectEvent::NotOpened { error, .. } => eprintln!("{error}"),
///         _ => {}
///     }
/// }
/// # Ok(())
/// # }
/// ```
///
/// [`prepare`](Self::prepare) changes the request of each attempt, for tokens that expire. [`split`](Self::split) sends from other
/// tasks. It is also a [`Stream`] of [`ReconnectEvent`]s.
#[must_use]
pub struct Reconnecting {
    attempt: Attempt,
    prepare: Option<Box<Prepare>>,
    policy: ReconnectPolicy,
    state: State,
    /// The connection that [`ReconnectingSender`]s use.
    links: Links,
    /// The next deadline of the state.
    timer: Option<Pin<Box<Sleep>>>,
    /// When the last connection was lost.
    lost_at: Option<Instant>,
}

/// The request of one attempt to open the WebSocket; see [`Reconnecting::prepare`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Attempt {
    /// Opens the WebSocket. Add the headers of this attempt to it.
    pub connector: Connector,
    /// The URL.
    pub url: String,
    /// Consecutive attempts before this one that failed or led to an unstable connection.
    pub failed: u32,
}

type Prepared = Pin<Box<dyn Future<Output = Result<Attempt, Error>> + Send>>;
type Prepare = dyn FnMut(Attempt) -> Prepared + Send;

enum State {
    Waiting(Instant),
    Preparing(Prepared),
    Connecting(Pin<Box<dyn Future<Output = Result<Opened, Error>> + Send>>),
    Open(Box<Open>),
    Ended,
}

struct Open {
    socket: WebSocket,
    link: Arc<Link>,
    received: u64,
    silence: Silence,
    opened_at: Instant,
}

/// The time for which nothing was received, and nothing up to the ping has arrived at the peer, while its pong is awaited: on a slow link the
/// ping waits behind long messages. What follows it proves nothing: the kernel of a server that hangs acknowledges it.
struct Silence {
    deadline: PeerDeadline,
    /// The ping that the deadline is for.
    pinged_at: Instant,
    /// The bytes that had been received at the last look, and those up to the ping that had arrived.
    transferred: u64,
}

/// An event of a [`Reconnecting`] WebSocket.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReconnectEvent {
    /// The WebSocket is open. Subscriptions must be renewed.
    Connected(Connected),
    /// A message.
    Message(OwnedMessage),
    /// The connection is lost.
    Lost(Loss),
    /// An attempt failed; another one follows.
    NotOpened {
        /// Why.
        error: Error,
        /// The time of the next attempt.
        retry_in: Duration,
    },
}

/// A connection that was opened.
#[derive(Debug)]
#[non_exhaustive]
pub struct Connected {
    /// The subprotocol that was agreed upon.
    pub subprotocol: Option<String>,
    /// The status of the response that opened it.
    pub status: u16,
    /// The headers of that response.
    pub headers: Headers,
    /// The time without a connection. `None` for the first connection.
    pub gap: Option<Duration>,
}

/// A connection that was lost, and the messages that may have been lost with it.
///
/// Messages that had arrived completely were returned before. Messages of the peer that did not arrive are unknown here: protocols
/// that need them number their messages.
///
/// A connection that has failed is reset, and the kernel drops what it has not sent. So no message arrives behind those of the next connection, and without
/// [`keep_len_max`](ReconnectPolicy::keep_len_max) the messages that were on their way are lost.
#[derive(Debug)]
#[non_exhaustive]
pub struct Loss {
    /// Why.
    pub reason: LossReason,
    /// Messages that were sent over it.
    pub sent: u64,
    /// The number of messages, the last of these, that may or may not have arrived. A pong proves that those before have arrived
    /// at the peer's end, not that its application has seen them.
    pub unconfirmed: u64,
    /// The newest unconfirmed messages, up to [`keep_len_max`](ReconnectPolicy::keep_len_max) bytes.
    pub kept: Vec<OwnedMessage>,
    /// Messages that were received over it.
    pub received: u64,
    /// The time for which the connection was open.
    pub open_for: Duration,
    /// The time of the next attempt; `None` if there is none.
    pub retry_in: Option<Duration>,
}

impl Connector {
    /// A WebSocket that is opened again when it is lost. The first [`next`](Reconnecting::next) opens it.
    pub fn reconnecting(&self, url: impl Into<String>, mut policy: ReconnectPolicy) -> Reconnecting {
        // A ping that cannot be queued is tried again after this time: without any, forever at once.
        policy.confirm_after = policy.confirm_after.max(Duration::from_millis(1));
        Reconnecting {
            attempt: Attempt { connector: self.clone(), url: url.into(), failed: 0 },
            prepare: None,
            policy,
            state: State::Waiting(Instant::now()),
            links: Links::default(),
            timer: None,
            lost_at: None,
        }
    }
}

impl Reconnecting {
    /// Calls `prepare` before each attempt with the request as it was configured, and makes the request that it returns: for
    /// tokens that expire, or another server. An error counts as a failed attempt, for the reason [`LossReason::NotOpened`], also after the
    /// WebSocket was open: one that is not [temporary](LossReason::is_temporary) is final.
    ///
    /// ```no_run
    /// # async fn fresh_token() -> Result<String, wireloom::Error> { Ok(String::new()) }
    /// # fn example(connector: wireloom::Connector, policy: wireloom::client::ReconnectPolicy) {
    /// let socket = connector.reconnecting("wss://example.com/events", policy).prepare(|mut attempt| async move {
    ///     let bearer = format!("Bearer {}", fresh_token().await?);
    ///     attempt.connector = attempt.connector.header("Authorization", bearer);
    ///     Ok(attempt)
    /// });
    /// # }
    /// ```
    pub fn prepare<F, Fut>(mut self, mut prepare: F) -> Self
    where
        F: FnMut(Attempt) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Attempt, Error>> + Send + 'static,
    {
        self.prepare = Some(Box::new(move |attempt| Box::pin(prepare(attempt))));
        self
    }

    /// The next event; `None` after [`close`](Self::close), after a loss without another attempt, and after an error. Nothing
    /// happens between the calls: keep calling it.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing, and no attempt starts again.
    ///
    /// # Errors
    /// The connection cannot be opened, and the policy does not try again.
    pub async fn next(&mut self) -> Result<Option<ReconnectEvent>, Error> {
        std::future::poll_fn(|cx| self.poll_event(cx)).await
    }

    /// Polls for the next event; see [`next`](Self::next).
    ///
    /// # Errors
    /// As for [`next`](Self::next).
    pub fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<ReconnectEvent>, Error>> {
        loop {
            match &mut self.state {
                State::Waiting(until) => {
                    let until = *until;
                    ready!(poll_timer(&mut self.timer, until, cx));
                    let attempt = self.attempt.clone();
                    self.state = match &mut self.prepare {
                        Some(prepare) => State::Preparing(prepare(attempt)),
                        None => connecting(attempt),
                    };
                }
                State::Preparing(preparing) => match ready!(preparing.as_mut().poll(cx)) {
                    Ok(attempt) => self.state = connecting(attempt),
                    // The application knows whether its error is final.
                    Err(error) => {
                        return Poll::Ready(self.not_opened(error, LossReason::NotOpened).map(Some));
                    }
                },
                State::Connecting(connecting) => {
                    let opened = ready!(connecting.as_mut().poll(cx));
                    return Poll::Ready(self.connected(opened).map(Some));
                }
                State::Open(open) => {
                    let received = open.socket.halves().1.poll_recv_owned(cx);
                    match received {
                        Poll::Ready(Ok(Some(message))) => {
                            open.received += 1;
                            open.link.confirm(open.socket.halves().0);
                            return Poll::Ready(Ok(Some(ReconnectEvent::Message(message))));
                        }
                        Poll::Ready(end) => return Poll::Ready(Ok(self.lost(end.err()))),
                        Poll::Pending => {}
                    }
                    open.link.confirm(open.socket.halves().0);
                    match open.next_check(&self.policy, cx) {
                        None => {
                            self.timer = None;
                            return Poll::Pending;
                        }
                        Some(Check::Ping(at)) => {
                            ready!(poll_timer(&mut self.timer, at, cx));
                            if !open.link.try_ping() {
                                return Poll::Pending;
                            }
                        }
                        Some(Check::Look(at)) => ready!(poll_timer(&mut self.timer, at, cx)),
                        Some(Check::Lost) => {
                            return Poll::Ready(Ok(self.lost(Some(WebSocketError::KeepaliveTimeout))));
                        }
                    }
                }
                State::Ended => return Poll::Ready(Ok(None)),
            }
        }
    }

    fn connected(&mut self, opened: Result<Opened, Error>) -> Result<ReconnectEvent, Error> {
        match opened {
            Ok(opened) => {
                let now = Instant::now();
                let connected = Connected {
                    subprotocol: opened.socket.subprotocol().map(String::from),
                    status: opened.status,
                    headers: opened.headers,
                    gap: self.lost_at.map(|lost_at| now - lost_at),
                };
                let mut socket = opened.socket;
                let sent_messages = SentMessages::new(self.policy.keep_len_max, now);
                let link = Link::new(socket.halves().0.clone(), sent_messages, self.policy.confirm_after);
                self.links.set(Some(link.clone()));
                let deadline = PeerDeadline::after(self.policy.confirm_timeout);
                let silence = Silence { deadline, pinged_at: now, transferred: 0 };
                let open = Open { socket, link, received: 0, silence, opened_at: now };
                self.state = State::Open(Box::new(open));
                Ok(ReconnectEvent::Connected(connected))
            }
            Err(error) if self.lost_at.is_none() => self.not_opened(error, LossReason::NotOpened),
            Err(error) => self.not_opened(error, LossReason::NotReopened),
        }
    }

    fn not_opened(&mut self, error: Error, reason: fn(Error) -> LossReason) -> Result<ReconnectEvent, Error> {
        let retry_in = self.wait(&reason(error.clone())).ok_or_else(|| error.clone())?;
        Ok(ReconnectEvent::NotOpened { error, retry_in })
    }

    /// The connection has ended. `None` when this end has closed it and the peer has confirmed.
    fn lost(&mut self, error: Option<WebSocketError>) -> Option<ReconnectEvent> {
        self.links.set(None);
        let State::Open(mut open) = std::mem::replace(&mut self.state, State::Ended) else { return None };
        open.link.confirm(open.socket.halves().0);
        let end = open.socket.end();
        let reason = match (error, end) {
            (None, Some(end)) if end.by == Initiator::Local && matches!(end.cause, Cause::Close { .. }) => {
                return None;
            }
            (None, Some(end)) => LossReason::Closed(end),
            (error, _) => LossReason::Failed(error.unwrap_or(WebSocketError::ConnectionLost)),
        };
        // Messages that have not arrived count as lost. They must not arrive after those of the next connection.
        if let LossReason::Failed(_) = reason {
            open.socket.shared().abandon();
        }
        let open_for = open.opened_at.elapsed();
        if open_for >= self.policy.stable_after {
            self.attempt.failed = 0;
        }
        self.lost_at = Some(Instant::now());
        let retry_in = self.wait(&reason);
        let mut sent_messages = open.link.sent_messages();
        let (sent, unconfirmed, kept) =
            (sent_messages.sent(), sent_messages.unconfirmed(), sent_messages.take_kept());
        Some(ReconnectEvent::Lost(Loss {
            reason,
            sent,
            unconfirmed,
            kept,
            received: open.received,
            open_for,
            retry_in,
        }))
    }

    /// Waits for the next attempt, if the policy allows one.
    fn wait(&mut self, reason: &LossReason) -> Option<Duration> {
        let mut random = [0; 8];
        // Without randomness the delay is the longest.
        let random = getrandom::getrandom(&mut random).map_or(u64::MAX, |()| u64::from_ne_bytes(random));
        let delay = self.policy.delay(reason, self.attempt.failed, random);
        self.attempt.failed = self.attempt.failed.saturating_add(1);
        #[cfg(feature = "tracing")]
        tracing::debug!(?delay, failed = self.attempt.failed, "the WebSocket is not open");
        self.state = match delay {
            Some(delay) => State::Waiting(after(Instant::now(), delay)),
            None => State::Ended,
        };
        delay
    }

    /// Whether the WebSocket is open, according to the last [`next`](Self::next).
    pub fn is_connected(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// Messages that were sent over the current connection and are not known to have arrived.
    pub fn unconfirmed(&mut self) -> u64 {
        let State::Open(open) = &mut self.state else { return 0 };
        open.link.confirm(open.socket.halves().0);
        open.link.sent_messages().unconfirmed()
    }

    /// Sends a message over the current connection; see [`Sender::send`](crate::Sender::send). It counts as lost with that
    /// connection until a pong proves that it has arrived. Nothing is received while this waits for a slow peer, which
    /// [`SlowPeer`](crate::SlowPeer) bounds.
    ///
    /// # Cancel safety
    /// As for [`Sender::send`](crate::Sender::send). A message that was queued before the future was dropped counts as one that may have
    /// arrived; one that was not queued does not count, nor does one that [`SlowPeer`](crate::SlowPeer) has dropped.
    ///
    /// # Errors
    /// [`WebSocketError::Closed`] while there is no connection, or it is ending: nothing was sent. Other errors are those of the connection,
    /// whose loss [`next`](Self::next) reports, with this message among the unconfirmed ones.
    pub async fn send(&mut self, message: impl Into<Payload<'_>>) -> Result<(), WebSocketError> {
        let State::Open(open) = &mut self.state else { return Err(WebSocketError::Closed) };
        open.link.send(message.into()).await
    }

    /// A sender for other tasks; see [`ReconnectingSender`].
    pub fn sender(&self) -> ReconnectingSender {
        ReconnectingSender::new(self.links.clone())
    }

    /// Splits this into a sender for other tasks and the receiving half.
    pub fn split(self) -> (ReconnectingSender, Self) {
        (self.sender(), self)
    }

    /// Closes without reconnecting; see [`WebSocket::close`].
    ///
    /// # Errors
    /// As for [`WebSocket::close`].
    pub async fn close(&mut self, code: CloseCode, reason: &str) -> Result<(), WebSocketError> {
        self.links.set(None);
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Open(mut open) => open.socket.close(code, reason).await,
            _ => Ok(()),
        }
    }
}

impl Drop for Reconnecting {
    /// Closes the connection, although senders may live: no other one would be opened.
    fn drop(&mut self) {
        self.links.set(None);
    }
}

impl Stream for Reconnecting {
    type Item = Result<ReconnectEvent, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_event(cx).map(Result::transpose)
    }
}

/// The next deadline of an open connection.
enum Check {
    /// A ping, whose pong proves that the messages before it have arrived.
    Ping(Instant),
    /// Whether the peer has sent anything since the ping.
    Look(Instant),
    /// The ping has not been answered: the connection is lost.
    Lost,
}

impl Open {
    /// The next deadline. The task is woken when a [`ReconnectingSender`] changes it.
    fn next_check(&mut self, policy: &ReconnectPolicy, cx: &Context<'_>) -> Option<Check> {
        let sent_messages = self.link.poll_sent_messages(cx);
        // A deadline that the clock cannot represent never expires.
        if sent_messages.needs_ping() {
            sent_messages.pinged_at.checked_add(policy.confirm_after).map(Check::Ping)
        } else if let Some(ping_end) = sent_messages.awaited_end() {
            let pinged_at = sent_messages.pinged_at;
            drop(sent_messages);
            let transferred = self.socket.shared().transferred_len(ping_end);
            let next = self.silence.look(pinged_at, transferred);
            Some(next.map_or(Check::Lost, Check::Look))
        } else {
            None
        }
    }
}

impl Silence {
    /// The time of the next look; `None` when the peer has been silent for too long.
    fn look(&mut self, pinged_at: Instant, transferred: u64) -> Option<Instant> {
        if transferred > self.transferred || pinged_at > self.pinged_at {
            self.deadline.restart();
        }
        (self.pinged_at, self.transferred) = (pinged_at, transferred);
        self.deadline.look(Instant::now())
    }
}

fn connecting(Attempt { connector, url, .. }: Attempt) -> State {
    State::Connecting(Box::pin(async move { connector.open(&url).await }))
}

/// Ready at `deadline`.
fn poll_timer(timer: &mut Option<Pin<Box<Sleep>>>, deadline: Instant, cx: &mut Context<'_>) -> Poll<()> {
    if deadline <= Instant::now() {
        *timer = None;
        return Poll::Ready(());
    }
    let sleep = timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
    if sleep.deadline() != deadline {
        sleep.as_mut().reset(deadline);
    }
    ready!(sleep.as_mut().poll(cx));
    *timer = None;
    Poll::Ready(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for Reconnecting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reconnecting")
            .field("connected", &self.is_connected())
            .field("failed", &self.attempt.failed)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
    use wireloom_ws::Role;
    use wireloom_ws::handshake::Negotiated;

    use super::*;
    use crate::client::opened::Sent;
    use crate::websocket::{SlowPeer, WebSocketConfig};

    const SECOND: Duration = Duration::from_secs(1);

    /// A connection with a message and a ping on their way to the peer.
    async fn pinged() -> (DuplexStream, Reconnecting) {
        let (mut peer, transport) = tokio::io::duplex(1 << 10);
        // Only silence ends the connection.
        let slow_peer = SlowPeer::Wait { stall_timeout: Duration::MAX };
        let config = WebSocketConfig { slow_peer, ..WebSocketConfig::default() };
        let socket =
            WebSocket::from_transport(transport, Role::Client, Negotiated::default(), None, config, &[]);
        let mut reconnecting = Connector::new().reconnecting("ws://a/", ReconnectPolicy::default());
        let opened = Opened {
            socket,
            version: crate::http::Version::Http11,
            status: 101,
            headers: Headers::default(),
            peer: None,
            tls: None,
            request: Sent::Http1(Vec::new()),
        };
        reconnecting.connected(Ok(opened)).unwrap();
        reconnecting.send("a").await.unwrap();
        // A message of one byte, and a ping of four.
        let mut frames = [0; 7 + 10];
        tokio::select! {
            event = reconnecting.next() => panic!("{event:?}"),
            read = peer.read_exact(&mut frames) => assert_eq!(read.unwrap(), 17),
        }
        assert_eq!(frames[7], 0x89);
        (peer, reconnecting)
    }

    async fn lost(reconnecting: &mut Reconnecting) {
        let event = reconnecting.next().await.unwrap();
        let Some(ReconnectEvent::Lost(loss)) = event else { panic!("{event:?}") };
        assert!(matches!(loss.reason, LossReason::Failed(WebSocketError::KeepaliveTimeout)), "{loss:?}");
        assert_eq!(loss.unconfirmed, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_sends_a_long_message_is_not_lost() {
        let (mut peer, mut reconnecting) = pinged().await;
        tokio::spawn(async move {
            peer.write_all(&[0x82, 126, 100, 0]).await.unwrap();
            for _ in 0..100 {
                tokio::time::sleep(SECOND).await;
                peer.write_all(&[7; 256]).await.unwrap();
            }
            // Open and silent.
            std::future::pending::<()>().await;
            drop(peer);
        });
        let event = reconnecting.next().await.unwrap();
        assert!(matches!(event, Some(ReconnectEvent::Message(_))), "{event:?}");
        let arrived_at = Instant::now();
        lost(&mut reconnecting).await;
        let silent_for = arrived_at.elapsed();
        assert!((30 * SECOND..39 * SECOND).contains(&silent_for), "{silent_for:?}");
    }

    // The ping waits behind the message.
    #[tokio::test(start_paused = true)]
    async fn a_peer_that_receives_a_long_message_is_not_lost() {
        let (mut peer, mut reconnecting) = pinged().await;
        // The next ping is due while the message is queued.
        peer.write_all(&[0x8a, 4, 0, 0, 0, 1]).await.unwrap();
        let sending = tokio::time::timeout(SECOND, reconnecting.send(&[7; 10_000])).await;
        assert!(sending.is_err(), "{sending:?}");
        tokio::spawn(async move {
            for _ in 0..100 {
                tokio::time::sleep(SECOND).await;
                peer.read_exact(&mut [0; 100]).await.unwrap();
            }
            std::future::pending::<()>().await;
            drop(peer);
        });
        let begin = Instant::now();
        let event = reconnecting.next().await.unwrap();
        assert!(matches!(event, Some(ReconnectEvent::Lost(_))), "{event:?}");
        let lost_after = begin.elapsed();
        assert!((120 * SECOND..140 * SECOND).contains(&lost_after), "{lost_after:?}");
    }

    // The kernel of a server that hangs acknowledges what is sent after the ping.
    #[tokio::test(start_paused = true)]
    async fn what_arrives_after_the_ping_is_no_sign_of_life() {
        let (mut peer, mut reconnecting) = pinged().await;
        let mut sender = reconnecting.sender();
        tokio::spawn(async move {
            while sender.send("a").await.is_ok() {
                peer.read_exact(&mut [0; 7]).await.unwrap();
                tokio::time::sleep(SECOND).await;
            }
        });
        let begin = Instant::now();
        let event = tokio::time::timeout(3_600 * SECOND, reconnecting.next()).await.unwrap().unwrap();
        let Some(ReconnectEvent::Lost(loss)) = event else { panic!("{event:?}") };
        assert!(matches!(loss.reason, LossReason::Failed(WebSocketError::KeepaliveTimeout)), "{loss:?}");
        let lost_after = begin.elapsed();
        assert!((30 * SECOND..39 * SECOND).contains(&lost_after), "{lost_after:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_lost_connection_has_not_written_is_not_written_later() {
        let (mut peer, mut reconnecting) = pinged().await;
        let sending = tokio::time::timeout(SECOND, reconnecting.send(&[7; 10_000])).await;
        assert!(sending.is_err(), "{sending:?}");
        let event = reconnecting.next().await.unwrap();
        let Some(ReconnectEvent::Lost(loss)) = event else { panic!("{event:?}") };
        assert_eq!(loss.unconfirmed, 2);
        let mut rest = Vec::new();
        peer.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest.len(), 1 << 10);
    }

    // The pong could not be read while the process was suspended, or the application did something else.
    #[tokio::test(start_paused = true)]
    async fn a_pause_of_this_end_does_not_count_as_silence() {
        let (peer, mut reconnecting) = pinged().await;
        for _ in 0..3 {
            tokio::time::advance(3_600 * SECOND).await;
            let waited = tokio::time::timeout(Duration::from_millis(100), reconnecting.next()).await;
            assert!(waited.is_err(), "{waited:?}");
        }
        let silent_at = Instant::now();
        lost(&mut reconnecting).await;
        assert!(silent_at.elapsed() > SECOND);
        drop(peer);
    }
}
