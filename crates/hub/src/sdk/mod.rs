//! A client of the Centrifugal client protocol, version 2, for this hub and for other servers that speak it: JSON over WebSocket.
//!
//! ```no_run
//! use wireloom_hub::Client;
//! use wireloom_hub::sdk::{SubscribeOptions, SubscriptionEvent};
//!
//! # async fn example() -> Result<(), wireloom_hub::sdk::ClientError> {
//! let client = Client::builder("ws://127.0.0.1:8000/connection/websocket").start();
//! let mut chat = client.subscribe("chat:lobby", SubscribeOptions::default()).await?;
//! client.publish("chat:lobby", r#"{"text": "hello"}"#).await?;
//! while let Some(event) = chat.next().await {
//!     match event {
//!         SubscriptionEvent::Subscribed(subscribed) if subscribed.has_gap() => println!("some messages were missed"),
//!         SubscriptionEvent::Publication(publication) => println!("{:?}", publication.data),
//!         _ => {}
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A task of its own has the connection. It connects again after a loss, with a delay that grows, subscribes again and recovers what was
//! missed. An application that does not take its events stops it from reading; the server then treats it as any slow client, and the
//! next connection waits until they are taken.
//!
//! Layers: `queue`, `builder` → `connection` → `subscription` + `task`.

mod builder;
mod connection;
mod queue;
mod subscription;
mod task;

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use tokio::sync::{mpsc, oneshot};

use self::connection::check_len;
use self::queue::{Len, Receiver, queue};
use self::task::{Call, Notice, Request, Task};
use crate::history::{History, HistoryQuery, Position, count_within};
use crate::protocol::{
    ClientInfo, Command, HistoryRequest, PresenceRequest, PresenceStatsRequest, PresenceStatsResult,
    Publication, PublishRequest, Reply, RpcRequest, SendRequest, StreamPosition, SubscribeResult,
};

pub use self::builder::{ClientBuilder, TokenFuture};
pub use self::subscription::{SubscribeOptions, Subscribed, Subscription, SubscriptionEvent};

/// The number of requests to the task that may wait.
const REQUESTS_MAX: usize = 64;

/// The capacity of a queue of events, in events. Beyond it the connection is not read.
const EVENTS_MAX: usize = 1_024;

/// A connection to a server. Clones are handles to the same one. It ends when all handles are dropped, its subscriptions included.
#[derive(Clone, Debug)]
pub struct Client {
    requests: mpsc::Sender<Request>,
    notices: mpsc::UnboundedSender<Notice>,
    timeout: Duration,
    command_len_max: usize,
}

/// An event of the client as a whole.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ClientEvent {
    /// It is connected.
    Connected {
        /// The id of the connection, as other clients see it.
        client: String,
        /// Data of the application.
        data: Bytes,
    },
    /// The connection was lost or ended, and is made again.
    Connecting {
        /// The close code, or 0 if there was none.
        code: u32,
        /// The reason, as a text.
        reason: String,
    },
    /// The server has ended the connection for good, or refused it; or the first one cannot be made, for a reason that will not pass, such as
    /// the URL.
    Disconnected {
        /// The close code, or the code of the error; 0 if there was none.
        code: u32,
        /// The reason, as a text.
        reason: String,
    },
    /// The server has subscribed the connection to a channel, or recovered such a subscription.
    Subscribed {
        /// The channel.
        channel: String,
        /// The subscription.
        subscribed: Subscribed,
    },
    /// A publication of a channel to which the server has subscribed the connection.
    Publication {
        /// The channel.
        channel: String,
        /// The publication.
        publication: Publication,
    },
    /// The server has ended a subscription that it made, maybe while there was no connection.
    Unsubscribed {
        /// The channel.
        channel: String,
    },
    /// A message to this connection alone.
    Message(Bytes),
}

impl Len for ClientEvent {
    fn len(&self) -> usize {
        match self {
            Self::Connected { client, data } => client.len() + data.len(),
            Self::Message(data) => data.len(),
            Self::Subscribed { channel, subscribed } => channel.len() + subscribed.len(),
            Self::Publication { channel, publication } => channel.len() + publication.encoded_len(),
            Self::Connecting { reason, .. } | Self::Disconnected { reason, .. } => reason.len(),
            Self::Unsubscribed { channel } => channel.len(),
        }
    }
}

/// Why an operation of a client failed.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ClientError {
    /// The server refused the command.
    Refused(crate::protocol::Error),
    /// The server did not answer in time, or the client could not connect meanwhile. A call that was still waiting to be sent is not sent any
    /// more. Otherwise it is unknown whether the server has executed it, or will: a publication may have been made, or may be made later.
    Timeout,
    /// The connection was lost before the answer. A publication may have been made.
    ConnectionLost,
    /// The server has ended the connection for good, with this code and reason; or it was closed here, or the first one cannot be made, with
    /// code 0.
    Disconnected {
        /// The code.
        code: u32,
        /// The reason, as a text.
        reason: String,
    },
    /// The payload is not JSON.
    InvalidJson,
    /// The command is longer than [`command_len_max`](ClientBuilder::command_len_max). It was not sent.
    TooLong {
        /// The length of the command, in bytes.
        len: usize,
        /// The longest command.
        len_max: usize,
    },
    /// The client has a subscription to this channel already.
    AlreadySubscribed,
}

impl std::fmt::Display for ClientError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(error) => write!(f, "refused with {}: {}", error.code, error.message),
            Self::Timeout => f.write_str("no answer in time"),
            Self::ConnectionLost => f.write_str("the connection was lost"),
            Self::Disconnected { code, reason } => write!(f, "disconnected with {code}: {reason}"),
            Self::InvalidJson => f.write_str("the payload is not JSON"),
            Self::TooLong { len, len_max } => write!(
                f,
                "the command takes {len} bytes, more than {len_max}; see command_len_max, and message_len_max of the server"
            ),
            Self::AlreadySubscribed => f.write_str("there is a subscription to this channel already"),
        }
    }
}

impl std::error::Error for ClientError {}

/// The events of a client; see [`Client::events`].
#[derive(Debug)]
pub struct ClientEvents(Receiver<ClientEvent>);

impl ClientEvents {
    /// The next event; `None` once the client has ended.
    ///
    /// # Cancel safety
    /// No event is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<ClientEvent> {
        self.0.recv().await
    }
}

impl Client {
    /// A builder of a client for this URL, such as `wss://example.com/connection/websocket`.
    #[must_use]
    pub fn builder(url: impl Into<String>) -> ClientBuilder {
        ClientBuilder::new(url.into())
    }

    /// Waits until the client is connected: for as long as it takes, where another attempt may help, such as after a timeout or while the
    /// host is not found. [`ClientEvent::Connecting`] has the reason of each attempt.
    ///
    /// # Errors
    /// [`ClientError::Disconnected`]: the server refused the connection for good, or the first one cannot be made, for a reason that will not
    /// pass: the URL, the server's certificate, a response such as 404. See
    /// [`LossReason::is_temporary`](wireloom::client::LossReason::is_temporary). A client that was connected before tries again after those
    /// too, with the longest delay: a load balancer may answer so while its servers restart.
    pub async fn connected(&self) -> Result<(), ClientError> {
        let (done, connected) = oneshot::channel();
        self.request(Request::Connected(done)).await?;
        connected.await.unwrap_or_else(|_| Err(ended()))
    }

    /// The events of the client from now on. Only the last caller receives them.
    ///
    /// # Errors
    /// The client has ended.
    pub async fn events(&self) -> Result<ClientEvents, ClientError> {
        let (sender, events) = queue(EVENTS_MAX);
        self.request(Request::Events(sender)).await?;
        Ok(ClientEvents(events))
    }

    /// Subscribes to a channel. The subscription lasts until it is dropped, also across connections.
    ///
    /// # Errors
    /// The server refused it, the client could not connect in time or has ended, or it is subscribed to the channel already.
    pub async fn subscribe(
        &self,
        channel: impl Into<String>,
        options: SubscribeOptions,
    ) -> Result<Subscription, ClientError> {
        let channel = channel.into();
        let (sender, events) = queue(EVENTS_MAX);
        let (done, subscribed) = oneshot::channel();
        let request =
            Request::Subscribe { channel: channel.clone(), options: Box::new(options), events: sender, done };
        // Dropping it ends the subscription, also when the caller gives up.
        let subscription = Subscription::new(self.clone(), channel, events);
        let subscribing = async {
            self.request(request).await?;
            subscribed.await.unwrap_or_else(|_| Err(ended()))
        };
        let subscribed = tokio::time::timeout(self.timeout, subscribing).await;
        subscribed.unwrap_or(Err(ClientError::Timeout)).map(|()| subscription)
    }

    /// Publishes a JSON value into a channel. It is not sent again after a loss of the connection.
    ///
    /// # Errors
    /// It is not JSON or too long; the server refused it; no answer arrived.
    pub async fn publish(
        &self,
        channel: impl Into<String>,
        data: impl Into<Bytes>,
    ) -> Result<(), ClientError> {
        let (channel, data) = (channel.into(), json(data)?);
        let publish = Some(PublishRequest { channel, data });
        self.call(Command { publish, ..Command::default() }).await.map(drop)
    }

    /// Calls a method of the application with a JSON value, and returns its result.
    ///
    /// # Errors
    /// As for [`publish`](Self::publish).
    pub async fn rpc(&self, method: impl Into<String>, data: impl Into<Bytes>) -> Result<Bytes, ClientError> {
        let rpc = Some(RpcRequest { method: method.into(), data: json(data)? });
        let reply = self.call(Command { rpc, ..Command::default() }).await?;
        Ok(reply.rpc.unwrap_or_default().data)
    }

    /// Sends a JSON value to the application, which does not answer. Returns when it has left.
    ///
    /// # Errors
    /// It is not JSON or too long, or it did not leave in time or before the connection was lost.
    pub async fn send(&self, data: impl Into<Bytes>) -> Result<(), ClientError> {
        let send = Some(SendRequest { data: json(data)? });
        self.call(Command { send, ..Command::default() }).await.map(drop)
    }

    /// Reads the history of a channel.
    ///
    /// # Errors
    /// The server refused it, or no answer arrived.
    pub async fn history(
        &self,
        channel: impl Into<String>,
        query: &HistoryQuery,
    ) -> Result<History, ClientError> {
        let since =
            query.since.clone().map(|since| StreamPosition { offset: since.offset, epoch: since.epoch });
        let limit = query.limit.map_or(-1, |limit| i32::try_from(limit).unwrap_or(i32::MAX));
        let history = HistoryRequest { channel: channel.into(), limit, since, reverse: query.reverse };
        let reply = self.call(Command { history: Some(history), ..Command::default() }).await?;
        let result = reply.history.unwrap_or_default();
        let mut publications: Vec<_> = result.publications.into_iter().map(Into::into).collect();
        publications.truncate(count_within(&publications, query.len_max.unwrap_or(usize::MAX)));
        Ok(History { publications, position: Position { offset: result.offset, epoch: result.epoch } })
    }

    /// The clients of a channel, by the id of their connection.
    ///
    /// # Errors
    /// The server refused it, or no answer arrived.
    pub async fn presence(
        &self,
        channel: impl Into<String>,
    ) -> Result<HashMap<String, ClientInfo>, ClientError> {
        let presence = Some(PresenceRequest { channel: channel.into() });
        let reply = self.call(Command { presence, ..Command::default() }).await?;
        Ok(reply.presence.unwrap_or_default().presence)
    }

    /// The numbers of clients and users of a channel.
    ///
    /// # Errors
    /// The server refused it, or no answer arrived.
    pub async fn presence_stats(
        &self,
        channel: impl Into<String>,
    ) -> Result<PresenceStatsResult, ClientError> {
        let presence_stats = Some(PresenceStatsRequest { channel: channel.into() });
        let reply = self.call(Command { presence_stats, ..Command::default() }).await?;
        Ok(reply.presence_stats.unwrap_or_default())
    }

    /// Closes the connection, for all handles. Commands that were accepted before are sent, unless the server takes longer than
    /// [`timeout`](ClientBuilder::timeout) to read them.
    pub async fn disconnect(&self) {
        let (done, disconnected) = oneshot::channel();
        if self.notices.send(Notice::Disconnect(done)).is_ok() {
            let _ = disconnected.await;
        }
    }

    async fn call(&self, command: Command) -> Result<Reply, ClientError> {
        check_len(&command, self.command_len_max)?;
        let calling = async {
            let (done, answered) = oneshot::channel();
            self.request(Request::Call(Box::new(Call { command, done }))).await?;
            answered.await.unwrap_or_else(|_| Err(ended()))
        };
        tokio::time::timeout(self.timeout, calling).await.unwrap_or(Err(ClientError::Timeout))
    }

    async fn request(&self, request: Request) -> Result<(), ClientError> {
        self.requests.send(request).await.map_err(|_| ended())
    }
}

impl ClientBuilder {
    /// Starts the client, which connects in a task of its own.
    ///
    /// # Panics
    /// Outside of a runtime of tokio.
    #[must_use]
    pub fn start(self) -> Client {
        let (client, task) = self.build(REQUESTS_MAX);
        tokio::spawn(task.run());
        client
    }

    /// A handle and its task, between which at most this number of requests wait.
    fn build(self, requests_max: usize) -> (Client, Task) {
        let (requests, received) = mpsc::channel(requests_max);
        let (notices, noticed) = mpsc::unbounded_channel();
        let (timeout, command_len_max) = (self.timeout, self.command_len_max);
        (Client { requests, notices, timeout, command_len_max }, Task::new(self, received, noticed))
    }
}

/// The error of a client that has ended, whose last state is not known here.
fn ended() -> ClientError {
    ClientError::Disconnected { code: 0, reason: "the client has ended".into() }
}

fn json(data: impl Into<Bytes>) -> Result<Bytes, ClientError> {
    let data = data.into();
    match serde_json::from_slice::<&serde_json::value::RawValue>(&data) {
        Ok(_) => Ok(data),
        Err(_) => Err(ClientError::InvalidJson),
    }
}

impl Subscribed {
    fn new(result: &SubscribeResult) -> Self {
        Self {
            position: Position { offset: result.offset, epoch: result.epoch.clone() },
            was_recovering: result.was_recovering,
            recovered: result.recovered,
            data: result.data.clone(),
        }
    }

    /// As for [`Len`].
    fn len(&self) -> usize {
        self.position.epoch.len() + self.data.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_count_every_byte_that_a_server_chooses() {
        let text = || "x".repeat(100);
        let position = Position { epoch: text(), offset: 1 };
        let subscribed = Subscribed { position, data: text().into(), ..Subscribed::default() };
        let publication = Publication { data: text().into(), ..Publication::default() };
        for (event, count) in [
            (ClientEvent::Connected { client: text(), data: text().into() }, 2),
            (ClientEvent::Connecting { code: 0, reason: text() }, 1),
            (ClientEvent::Disconnected { code: 0, reason: text() }, 1),
            (ClientEvent::Subscribed { channel: text(), subscribed: subscribed.clone() }, 3),
            (ClientEvent::Publication { channel: text(), publication }, 2),
            (ClientEvent::Unsubscribed { channel: text() }, 1),
            (ClientEvent::Message(text().into()), 1),
        ] {
            assert!((100 * count..100 * count + 10).contains(&event.len()), "{} {event:?}", event.len());
        }
        assert_eq!(SubscriptionEvent::Subscribed(subscribed).len(), 200);
    }
}
