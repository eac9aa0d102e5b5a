//! One connection of a client: opening, sending, receiving.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use wireloom::{CloseCode, WebSocket};

use super::builder::ClientBuilder;
use crate::history::Position;
use crate::protocol::{Command, ConnectRequest, ConnectResult, Error, Reply, SubscribeRequest};

/// How long a ping of the server may be late.
const PING_DELAY_MAX: Duration = Duration::from_secs(10);

/// An open connection, on which `connect` has succeeded.
pub(super) struct Connection {
    socket: WebSocket,
    /// How long a write may take.
    timeout: Duration,
    ping_interval: Duration,
    has_pong: bool,
    /// When the server is taken for lost, unless a message arrives.
    pub(super) silent_at: Option<Instant>,
}

/// Why a connection could not be opened, or has ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Lost {
    /// It is made again.
    Retry { code: u32, reason: String },
    /// The token has expired: it is made again with a new one.
    TokenExpired,
    /// The server does not want it again.
    Final { code: u32, reason: String },
}

impl Lost {
    fn retry(reason: impl ToString) -> Self {
        Self::Retry { code: 0, reason: reason.to_string() }
    }

    /// By a close code of the server.
    fn closed(code: u32, reason: String) -> Self {
        // The protocol: codes 3500 to 3999 and 4500 to 4999 are final.
        match code {
            3500..=3999 | 4500..=4999 => Self::Final { code, reason },
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
    pub(super) rest: Vec<Reply>,
}

impl Connection {
    /// Opens a connection and connects with the token. `subs` are the positions of the subscriptions that the server made.
    pub(super) async fn open(
        builder: Arc<ClientBuilder>,
        token: String,
        subs: HashMap<String, Position>,
    ) -> Result<Opened, Lost> {
        let opening = async {
            let socket = builder.connector.connect(&builder.url).await.map_err(Lost::retry)?;
            let (has_pong, ping_interval) = (false, Duration::ZERO);
            let mut connection =
                Self { socket, timeout: builder.timeout, ping_interval, has_pong, silent_at: None };
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
            connection.send(&[Command { id: 1, connect: Some(connect), ..Command::default() }]).await?;
            loop {
                let mut replies = connection.recv().await?.into_iter();
                let Some(reply) = replies.find(|reply| reply.id == 1) else { continue };
                if let Some(error) = reply.error {
                    return Err(Lost::refused(error));
                }
                let result = reply.connect.unwrap_or_default();
                connection.ping_interval = Duration::from_secs(result.ping.into());
                connection.has_pong = result.pong;
                connection.note_message();
                return Ok(Opened { connection, result, rest: replies.collect() });
            }
        };
        timeout(builder.timeout, opening).await.unwrap_or_else(|_| Err(Lost::retry("no answer in time")))
    }

    /// Sends commands as one message.
    pub(super) async fn send(&mut self, commands: &[Command]) -> Result<(), Lost> {
        // Serialization fails only for maps whose keys are not strings; there are none.
        let texts: Vec<_> =
            commands.iter().map(|command| serde_json::to_string(command).unwrap_or_default()).collect();
        match timeout(self.timeout, self.socket.send(&*texts.join("\n"))).await {
            Ok(sent) => sent.map_err(Lost::retry),
            Err(_) => Err(Lost::retry("the server does not read")),
        }
    }

    /// The next message: at least one reply. Answers pings.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub(super) async fn recv(&mut self) -> Result<Vec<Reply>, Lost> {
        let message = match self.socket.recv_owned().await {
            Ok(Some(message)) => message,
            Ok(None) | Err(_) => return Err(self.end()),
        };
        let replies = serde_json::Deserializer::from_slice(message.as_bytes()).into_iter::<Reply>();
        let replies: Result<Vec<_>, _> = replies.collect();
        self.note_message();
        replies.map_err(|error| Lost::retry(format_args!("a message is malformed: {error}")))
    }

    /// Whether the server waits for an answer to this ping.
    pub(super) fn wants_pong(&self, reply: &Reply) -> bool {
        self.has_pong && *reply == Reply::default()
    }

    fn note_message(&mut self) {
        if !self.ping_interval.is_zero() {
            self.silent_at = Some(Instant::now() + self.ping_interval + PING_DELAY_MAX);
        }
    }

    /// Why the connection has ended.
    fn end(&self) -> Lost {
        match self.socket.end() {
            Some(end) => Lost::closed(end.code().value().into(), end.reason().to_owned()),
            None => Lost::retry("the connection was lost"),
        }
    }

    /// Closes the connection. The server may take `timeout` to agree.
    pub(super) async fn close(mut self) {
        let closing = async {
            let _ = self.socket.close(CloseCode::NORMAL, "").await;
            while let Ok(Some(_)) = self.socket.recv_owned().await {}
        };
        let _ = timeout(self.timeout, closing).await;
    }
}
