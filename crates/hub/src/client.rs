//! One connection as the rest of the hub sees it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use wireloom::PreparedMessage;

use crate::outbox::{Outbox, Pushed};
use crate::protocol::{self, ClientInfo, ConnectPush, ConnectResult, Encoding, Push, Reply};
use crate::shards::lock;

/// How messages look on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Format {
    /// The client protocol.
    Protocol(Encoding),
    /// Pushes alone, as server-sent events.
    EventStream,
    /// Publications of one channel, and nothing around them.
    Bare,
}

/// The user of a connection.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Identity {
    /// Empty for an anonymous client.
    pub(crate) user: String,
    /// A JSON value for others to see; may be empty.
    pub(crate) info: bytes::Bytes,
}

/// One connection as the rest of the hub sees it.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) id: String,
    pub(crate) format: Format,
    /// `None` where the server that accepted the connection gives no address.
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) outbox: Outbox,
    identity: OnceLock<Identity>,
    pub(crate) subscriptions: Mutex<HashMap<Arc<str>, Subscription>>,
    /// Since 1970; when the connection's token expires.
    expires_at: Mutex<Option<Duration>>,
    /// Set once a subscription has had a token that expires.
    has_expiring_subscriptions: AtomicBool,
}

/// A connection's subscription to a channel.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Subscription {
    /// The command is being carried out.
    Pending,
    /// It is established. In a box: the list of a client has room for more than it holds.
    Active(Box<Active>),
}

/// The state of a subscription that its end has to undo.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Active {
    /// Its place among the channel's subscribers.
    pub(crate) key: usize,
    /// Set when the client is listed.
    pub(crate) presence: bool,
    /// Set when its leaving is announced.
    pub(crate) announced: bool,
    /// What others see of the client in this channel, beside what they see everywhere.
    pub(crate) info: bytes::Bytes,
    /// Since 1970; when the subscription's token expires.
    pub(crate) expires_at: Option<Duration>,
    /// The server made it; the client cannot end or renew it.
    pub(crate) server_side: bool,
}

impl Client {
    pub(crate) fn new(id: String, format: Format, peer: Option<SocketAddr>, outbox: Outbox) -> Self {
        Self {
            id,
            format,
            peer,
            outbox,
            identity: OnceLock::new(),
            subscriptions: Mutex::default(),
            expires_at: Mutex::default(),
            has_expiring_subscriptions: AtomicBool::new(false),
        }
    }

    /// `None` until the client has connected.
    pub(crate) fn identity(&self) -> Option<&Identity> {
        self.identity.get()
    }

    /// The user; empty for an anonymous client, and for one that has not connected.
    pub(crate) fn user(&self) -> &str {
        self.identity().map_or("", |identity| &identity.user)
    }

    /// False when the client has connected already.
    pub(crate) fn connect(&self, identity: Identity) -> bool {
        self.identity.set(identity).is_ok()
    }

    pub(crate) fn expires_at(&self) -> Option<Duration> {
        *lock(&self.expires_at)
    }

    pub(crate) fn set_expires_at(&self, at: Option<Duration>) {
        *lock(&self.expires_at) = at;
    }

    /// To be called before a subscription expires at this time.
    pub(crate) fn note_subscription_expiry(&self, at: Option<Duration>) {
        if at.is_some() {
            self.has_expiring_subscriptions.store(true, Ordering::Relaxed);
        }
    }

    /// When the first of its subscriptions expires.
    pub(crate) fn subscriptions_expire_at(&self) -> Option<Duration> {
        if !self.has_expiring_subscriptions.load(Ordering::Relaxed) {
            return None;
        }
        let subscriptions = lock(&self.subscriptions);
        let expiries = subscriptions.values().filter_map(|subscription| match subscription {
            Subscription::Active(active) => active.expires_at,
            Subscription::Pending => None,
        });
        expiries.min()
    }

    /// The client as others see it.
    pub(crate) fn info(&self, channel_info: bytes::Bytes) -> ClientInfo {
        let identity = self.identity().cloned().unwrap_or_default();
        ClientInfo {
            user: identity.user,
            client: self.id.clone(),
            conn_info: identity.info,
            chan_info: channel_info,
        }
    }

    pub(crate) fn is_subscribed(&self, channel: &str) -> bool {
        matches!(lock(&self.subscriptions).get(channel), Some(Subscription::Active(_)))
    }

    /// Whether the server made the subscription to a channel.
    pub(crate) fn is_subscribed_by_server(&self, channel: &str) -> bool {
        let subscriptions = lock(&self.subscriptions);
        matches!(subscriptions.get(channel), Some(Subscription::Active(active)) if active.server_side)
    }

    /// Sends a reply or a push; bare connections have none.
    pub(crate) fn send(&self, reply: &Reply) {
        let message = match self.format {
            Format::Protocol(encoding) => Some(encode(encoding, reply)),
            Format::EventStream => event(reply),
            Format::Bare => None,
        };
        if message.map(|message| self.outbox.push(message)) == Some(Pushed::Overflowed) {
            let user = self.user();
            tracing::warn!(reason = "slow", client = self.id, user, "client evicted: its queue is full");
        }
    }

    pub(crate) fn push(&self, push: Push) {
        self.send(&Reply { push: Some(push), ..Reply::default() });
    }
}

/// A reply as one WebSocket message.
pub(crate) fn encode(encoding: Encoding, reply: &Reply) -> PreparedMessage {
    let bytes = protocol::encode_reply(encoding, reply);
    match encoding {
        // JSON is written by serde, as UTF-8.
        Encoding::Json => PreparedMessage::text(std::str::from_utf8(&bytes).unwrap_or_default()),
        Encoding::Protobuf => PreparedMessage::binary(&bytes),
    }
}

/// A push as a server-sent event; a ping is an empty push, and the reply to `connect` is a push as well. There are no other
/// replies where a client sends no commands.
pub(crate) fn event(reply: &Reply) -> Option<PreparedMessage> {
    let push = match (&reply.push, &reply.connect) {
        (Some(push), _) => push.clone(),
        (None, Some(connect)) => Push { connect: Some(connect.clone().into()), ..Push::default() },
        (None, None) if *reply == Reply::default() => Push::default(),
        (None, None) => return None,
    };
    // JSON holds no newline, so that one line of `data` is enough.
    let json = serde_json::to_string(&push).unwrap_or_default();
    Some(PreparedMessage::text(&format!("data: {json}\n\n")))
}

impl From<ConnectResult> for ConnectPush {
    fn from(result: ConnectResult) -> Self {
        let ConnectResult { client, version, expires, ttl, data, subs, ping, pong, session, node, time } =
            result;
        Self { client, version, expires, ttl, data, subs, ping, pong, session, node, time }
    }
}
