//! A WebSocket that is opened again when it is lost. It owns the waiting, the counting and the saying what may have been
//! lost; whether to resend or to ask for what was missed is the application's to know.
//!
//! ```text
//! waiting -> connecting -> open -> lost --> waiting ...
//!    ^            | failed           '----> over
//!    '------------+--> over
//! ```

mod ledger;
mod policy;

use std::pin::{Pin, pin};
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};
use wireloom_ws::{Cause, CloseCode, Initiator};

pub use policy::{ReconnectPolicy, Trouble};

use super::{Connector, Opened};
use crate::error::{Error, Stage};
use crate::headers::Headers;
use crate::websocket::{OwnedMessage, Payload, WebSocket};
use ledger::Ledger;

/// A WebSocket that is opened again when it is lost.
///
/// ```no_run
/// use wireloom::Connector;
/// use wireloom::client::{ReconnectPolicy, Step};
///
/// # async fn example() -> Result<(), wireloom::Error> {
/// let mut policy = ReconnectPolicy::default();
/// policy.keep_len_max = 1 << 20;
/// let mut socket = Connector::new().reconnecting("wss://example.com/events", policy);
/// let mut resend = Vec::new();
/// let mut last_event = String::new();
/// while let Some(step) = socket.next().await? {
///     match step {
///         Step::Connected(_) => {
///             // What came while nobody was listening has to be asked for.
///             socket.send(format!("since {last_event}")).await?;
///             for message in resend.drain(..) {
///                 socket.send(message).await?;
///             }
///         }
///         Step::Message(message) => last_event = message.as_text().unwrap_or_default().to_owned(),
///         Step::Lost(loss) => {
///             eprintln!("{} messages may not have arrived", loss.unconfirmed);
///             resend = loss.kept;
///         }
///         Step::NotOpened { error, .. } => eprintln!("{error}"),
///         _ => {}
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[must_use]
pub struct Reconnecting {
    connector: Connector,
    url: String,
    policy: ReconnectPolicy,
    state: State,
    /// Attempts in a row that failed, or led to nothing stable.
    failed: u32,
    /// When the last connection was lost.
    lost_at: Option<Instant>,
}

enum State {
    Waiting(Instant),
    Connecting(Pin<Box<dyn Future<Output = Result<Opened, Error>> + Send>>),
    Open(Box<Open>),
    Over,
}

struct Open {
    socket: WebSocket,
    ledger: Ledger,
    received: u64,
    /// When the last message was received.
    received_at: Instant,
    opened_at: Instant,
}

/// What happened to a [`Reconnecting`] WebSocket.
#[derive(Debug)]
#[non_exhaustive]
pub enum Step {
    /// It is open. What was subscribed to before has to be subscribed to again.
    Connected(Connected),
    /// A message.
    Message(OwnedMessage),
    /// The connection is lost.
    Lost(Loss),
    /// An attempt failed; there will be another.
    NotOpened {
        /// Why.
        error: Error,
        /// When the next one begins.
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
    /// For how long there was no connection: what others were sent in that time never came here. `None` for the first.
    pub gap: Option<Duration>,
}

/// A connection that was lost, and what may have been lost with it.
///
/// What arrived was handed out before, except for a message of which only a part had arrived. What the peer sent and what did
/// not arrive nobody here can know: protocols that need it number their messages.
#[derive(Debug)]
#[non_exhaustive]
pub struct Loss {
    /// Why.
    pub trouble: Trouble,
    /// Messages that were sent over it.
    pub sent: u64,
    /// Of these, the last so many may not have arrived, and may have. A pong proves that those before have arrived at the
    /// peer's end, not that its application has seen them.
    pub unconfirmed: u64,
    /// Of these, the last ones, as far as [`keep_len_max`](ReconnectPolicy::keep_len_max) reaches.
    pub kept: Vec<OwnedMessage>,
    /// Messages that were received over it.
    pub received: u64,
    /// For how long it was open.
    pub open_for: Duration,
    /// When the next attempt begins; `None` when there is none: it is over.
    pub retry_in: Option<Duration>,
}

impl Connector {
    /// A WebSocket that is opened again when it is lost. The first [`next`](Reconnecting::next) opens it.
    pub fn reconnecting(&self, url: impl Into<String>, policy: ReconnectPolicy) -> Reconnecting {
        Reconnecting {
            connector: self.clone(),
            url: url.into(),
            policy,
            state: State::Waiting(Instant::now()),
            failed: 0,
            lost_at: None,
        }
    }
}

impl Reconnecting {
    /// What happens next; `None` when it is over: after [`close`](Self::close), after a loss that is not to be mended, or
    /// after an error. Keep calling it: between the calls nothing happens.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing, and no attempt is begun anew.
    ///
    /// # Errors
    /// The connection cannot be opened, and the policy is not to try again.
    pub async fn next(&mut self) -> Result<Option<Step>, Error> {
        loop {
            match &mut self.state {
                State::Waiting(until) => {
                    sleep_until(*until).await;
                    let (connector, url) = (self.connector.clone(), self.url.clone());
                    self.state = State::Connecting(Box::pin(async move { connector.open(&url).await }));
                }
                State::Connecting(connecting) => {
                    let opened = connecting.as_mut().await;
                    return self.connected(opened).map(Some);
                }
                State::Open(open) => {
                    let received = if open.ledger.is_in_doubt() {
                        let ask_at = open.ledger.asked_at + self.policy.confirm_after;
                        match timeout_at(ask_at, open.socket.recv_owned()).await {
                            Ok(received) => received,
                            Err(_) => {
                                open.ask();
                                continue;
                            }
                        }
                    } else if open.ledger.is_asking() {
                        let deadline =
                            open.ledger.asked_at.max(open.received_at) + self.policy.confirm_timeout;
                        match timeout_at(deadline, open.socket.recv_owned()).await {
                            Ok(received) => received,
                            Err(_) => {
                                open.learn();
                                if open.ledger.is_asking() {
                                    return Ok(self.lost(Some(Error::Timeout(Stage::Silence))));
                                }
                                continue;
                            }
                        }
                    } else {
                        open.socket.recv_owned().await
                    };
                    if let Ok(Some(message)) = received {
                        open.received += 1;
                        open.received_at = Instant::now();
                        open.learn();
                        return Ok(Some(Step::Message(message)));
                    }
                    return Ok(self.lost(received.err()));
                }
                State::Over => return Ok(None),
            }
        }
    }

    fn connected(&mut self, opened: Result<Opened, Error>) -> Result<Step, Error> {
        match opened {
            Ok(opened) => {
                let now = Instant::now();
                let connected = Connected {
                    subprotocol: opened.socket.subprotocol().map(String::from),
                    status: opened.status,
                    headers: opened.headers,
                    gap: self.lost_at.map(|lost_at| now - lost_at),
                };
                let ledger = Ledger::new(self.policy.keep_len_max, now);
                let open =
                    Open { socket: opened.socket, ledger, received: 0, received_at: now, opened_at: now };
                self.state = State::Open(Box::new(open));
                Ok(Step::Connected(connected))
            }
            Err(error) => {
                let trouble = Trouble::NotOpened(error);
                let retry_in = self.wait(&trouble);
                let Trouble::NotOpened(error) = trouble else { return Err(Error::Closed) };
                retry_in.map(|retry_in| Step::NotOpened { error: error.clone(), retry_in }).ok_or(error)
            }
        }
    }

    /// The connection has ended: nothing is to be told when this end has closed it and the peer agreed.
    fn lost(&mut self, error: Option<Error>) -> Option<Step> {
        let State::Open(mut open) = std::mem::replace(&mut self.state, State::Over) else { return None };
        open.learn();
        let end = open.socket.end();
        let trouble = match (error, end) {
            (None, Some(end)) if end.by == Initiator::Local && matches!(end.cause, Cause::Close { .. }) => {
                return None;
            }
            (None, Some(end)) => Trouble::Closed(end),
            (error, _) => Trouble::Failed(error.unwrap_or(Error::Cut)),
        };
        let open_for = open.opened_at.elapsed();
        if open_for >= self.policy.stable_after {
            self.failed = 0;
        }
        self.lost_at = Some(Instant::now());
        let retry_in = self.wait(&trouble);
        let (sent, unconfirmed) = (open.ledger.sent(), open.ledger.unconfirmed());
        let (received, kept) = (open.received, open.ledger.into_kept());
        Some(Step::Lost(Loss { trouble, sent, unconfirmed, kept, received, open_for, retry_in }))
    }

    /// Waits for the next attempt, if there is to be one.
    fn wait(&mut self, trouble: &Trouble) -> Option<Duration> {
        let mut chance = [0; 8];
        // Without randomness the delay is the longest.
        let chance = getrandom::getrandom(&mut chance).map_or(u64::MAX, |()| u64::from_ne_bytes(chance));
        let delay = self.policy.delay(trouble, self.failed, chance);
        self.failed = self.failed.saturating_add(1);
        #[cfg(feature = "tracing")]
        tracing::debug!(?delay, failed = self.failed, "the WebSocket is not open");
        self.state = match delay {
            Some(delay) => State::Waiting(Instant::now() + delay),
            None => State::Over,
        };
        delay
    }

    /// Whether it is open, as far as [`next`](Self::next) has noticed.
    pub fn is_connected(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// Messages that were sent over the connection that there is, and are not known to have arrived.
    pub fn unconfirmed(&mut self) -> u64 {
        let State::Open(open) = &mut self.state else { return 0 };
        open.learn();
        open.ledger.unconfirmed()
    }

    /// Sends a message over the connection that there is; see [`Sender::send`](crate::Sender::send). It is counted as lost with
    /// that connection until a pong proves that it has arrived. Nothing is received while this waits for a slow peer, which
    /// [`SlowPeer`](crate::SlowPeer) bounds.
    ///
    /// # Cancel safety
    /// As there. A message whose sending was cancelled is counted as one that may have arrived.
    ///
    /// # Errors
    /// [`Error::Closed`] while there is no connection: nothing was sent. Other errors are those of the connection, whose loss
    /// [`next`](Self::next) reports, this message among those in doubt.
    pub async fn send(&mut self, message: impl Into<Payload<'_>>) -> Result<(), Error> {
        let State::Open(open) = &mut self.state else { return Err(Error::Closed) };
        let message = message.into();
        open.ledger.record(&message);
        let sent = open.socket.send(message).await;
        match &sent {
            Ok(()) => {
                open.learn();
                if open.ledger.is_in_doubt() && open.ledger.asked_at.elapsed() >= self.policy.confirm_after {
                    open.ask();
                }
            }
            // It was not even queued.
            Err(Error::Closed | Error::WebSocket(_)) => open.ledger.take_back(),
            Err(_) => {}
        }
        sent
    }

    /// Closes for good; see [`WebSocket::close`].
    ///
    /// # Errors
    /// As there.
    pub async fn close(&mut self, code: CloseCode, reason: &str) -> Result<(), Error> {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Open(mut open) => open.socket.close(code, reason).await,
            _ => Ok(()),
        }
    }
}

impl Open {
    /// Asks the peer what has arrived.
    fn ask(&mut self) {
        let (sender, _) = self.socket.halves();
        let number = sender.pings_sent().wrapping_add(1);
        {
            let payload = number.to_be_bytes();
            // Once it is polled the ping is queued; whoever receives writes it.
            let mut asking = pin!(sender.ping(&payload));
            let _ = asking.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
        self.ledger.ask(number, Instant::now());
    }

    /// Takes note of what the peer has answered.
    fn learn(&mut self) {
        self.ledger.answer(self.socket.halves().0.pings_answered());
    }
}

impl std::fmt::Debug for Reconnecting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reconnecting")
            .field("connected", &self.is_connected())
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}
