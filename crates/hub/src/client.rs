//! One connection as the rest of the hub sees it.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use wireloom::PreparedMessage;

use crate::clock::Expiry;
use crate::hooks::{Failure, Refusal};
use crate::meta::Meta;
use crate::opened::Opened;
use crate::outbox::{Later, Outbox};
use crate::protocol::{
    self, ClientInfo, ConnectPush, ConnectResult, Disconnect, Encoding, ErrorCode, Push, Reply,
};
use crate::random::Uuid;
use crate::shards::lock;
use crate::subscriptions::Subscriptions;

/// How a connection reaches the hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Transport {
    WebSocket(Encoding),
    /// Replies and pushes in the body of a response; commands arrive in requests of their own.
    HttpStream(Encoding),
    /// The same, as server-sent events.
    Sse,
    UniWebSocket,
    UniHttpStream,
    UniSse,
    /// A plain WebSocket of one channel.
    Room,
}

impl Transport {
    pub(crate) fn format(self) -> Format {
        match self {
            Self::WebSocket(encoding) | Self::HttpStream(encoding) => Format::Protocol(encoding),
            Self::Sse => Format::Protocol(Encoding::Json),
            Self::UniWebSocket | Self::UniHttpStream | Self::UniSse => Format::OneWay,
            Self::Room => Format::Bare,
        }
    }

    /// The encoding of its commands, and of what is forwarded for it.
    pub(crate) fn encoding(self) -> Encoding {
        match self.format() {
            Format::Protocol(encoding) => encoding,
            Format::OneWay | Format::Bare => Encoding::Json,
        }
    }

    /// Its name, as Centrifugo's proxies have it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::WebSocket(_) => "websocket",
            Self::HttpStream(_) => "http_stream",
            Self::Sse => "sse",
            Self::UniWebSocket => "uni_websocket",
            Self::UniHttpStream => "uni_http_stream",
            Self::UniSse => "uni_sse",
            Self::Room => "room",
        }
    }

    /// Its path; for a room, the part that all rooms share.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::WebSocket(_) => "/connection/websocket",
            Self::HttpStream(_) => "/connection/http_stream",
            Self::Sse => "/connection/sse",
            Self::UniWebSocket => "/connection/uni_websocket",
            Self::UniHttpStream => "/connection/uni_http_stream",
            Self::UniSse => "/connection/uni_sse",
            Self::Room => "/rooms",
        }
    }

    /// Whether commands arrive beside the connection, at `/emulation`.
    pub(crate) fn is_emulated(self) -> bool {
        matches!(self, Self::HttpStream(_) | Self::Sse)
    }
}

/// The format of messages on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Format {
    /// The client protocol.
    Protocol(Encoding),
    /// Only pushes, each a JSON object.
    OneWay,
    /// Bare payloads of the publications of one channel.
    Bare,
}

/// The page of a client in a browser: its origin; or the host alone, if the browser sends no origin because it is that of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Page(Box<str>);

impl Page {
    pub(crate) fn with_origin(origin: &str) -> Self {
        Self(origin.into())
    }

    /// A page of the origin that its request is sent to.
    pub(crate) fn of_host(host: &str) -> Self {
        Self(format!("//{host}").into())
    }

    /// Its origin, or `//` and the host.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// Its origin. A host alone may have either scheme: a proxy may have ended TLS.
    pub(crate) fn origins(&self) -> impl Iterator<Item = String> {
        let schemes: &[_] = if self.0.starts_with("//") { &["https:", "http:"] } else { &[""] };
        schemes.iter().map(|scheme| format!("{scheme}{}", self.0))
    }
}

/// The user of a connection.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Identity {
    /// Empty for an anonymous client.
    pub(crate) user: Box<str>,
    /// A JSON value for others to see; may be empty.
    pub(crate) info: bytes::Bytes,
    /// A JSON value for the backend, which no client sees.
    pub(crate) meta: Option<Meta>,
}

/// The user of a connection, and its place among those of the same user.
#[derive(Debug)]
struct Known {
    user: Box<str>,
    attached: Mutex<Attached>,
    place: AtomicU32,
    /// A [`Listing`].
    listing: AtomicU8,
}

impl Known {
    fn new(Identity { user, info, meta }: Identity) -> Box<Self> {
        let attached = Mutex::new(Attached { info, meta });
        let (place, listing) = (AtomicU32::new(0), AtomicU8::new(Listing::Done as u8));
        Box::new(Self { user, attached, place, listing })
    }
}

/// The part of an identity that a renewal may change.
#[derive(Debug)]
struct Attached {
    info: bytes::Bytes,
    meta: Option<Meta>,
}

/// One connection as the rest of the hub sees it.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) id: Uuid,
    pub(crate) transport: Transport,
    /// See [`peer`](Self::peer).
    peer: Option<(IpAddr, u16)>,
    /// The client's page, if there is one. Boxed twice, because a pointer to text takes 8 bytes more of those without a page.
    page: Option<Box<Page>>,
    pub(crate) outbox: Outbox,
    /// Boxed, and not set for an anonymous client while nothing is known of it.
    known: OnceLock<Box<Known>>,
    pub(crate) subscriptions: Mutex<Subscriptions<Subscription>>,
    /// When the connection's token expires.
    expires_at: Expiry,
    /// When the task of the connection is to be woken. [`Timers`](crate::timers::Timers) changes it.
    pub(crate) wakes_at: Expiry,
    /// [`HAS_CONNECTED`] and [`HAS_EXPIRING_SUBSCRIPTIONS`], together because a byte more would take eight.
    flags: AtomicU8,
    /// A [`CleanedUp`].
    pub(crate) cleaned_up: AtomicU8,
}

/// Whether presence lists a connection as others are to see it.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
enum Listing {
    Done,
    /// A task lists it.
    InProgress,
    /// The listed information has changed since the task began, or no task has begun.
    Due,
}

/// The answer to its connect command is decided. Its user does not change any more.
const HAS_CONNECTED: u8 = 1;

/// A subscription has had a token that expires.
const HAS_EXPIRING_SUBSCRIPTIONS: u8 = 2;

/// How much of a connection has been cleaned up.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(crate) enum CleanedUp {
    /// It is open.
    Nothing,
    /// Its end has been counted.
    Counted,
    /// The node has removed it.
    All,
}

/// A connection's subscription to a channel.
#[derive(Clone, Debug)]
pub(crate) enum Subscription {
    /// It is being established. Its end removes this entry; the task that establishes it undoes the rest.
    Pending(Arc<Pending>),
    /// Its subscriber has started.
    Active(Active),
}

/// A subscription that is being established. Each has its own: an earlier one may still be in progress after it was ended.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// If presence is to list the client: the information that others see in this channel only, as JSON.
    pub(crate) listed: OnceLock<bytes::Bytes>,
    /// Set if its end is reported to the backend.
    pub(crate) opened: OnceLock<Opened>,
}

impl Subscription {
    /// The information about the client that presence lists in this channel; `None` if it does not list the client.
    pub(crate) fn listed(&self) -> Option<bytes::Bytes> {
        match self {
            Self::Pending(pending) => pending.listed.get().cloned(),
            Self::Active(active) => active.presence.then(|| active.info()),
        }
    }

    /// Whether it is this one, which is being established.
    pub(crate) fn is(&self, own: &Arc<Pending>) -> bool {
        matches!(self, Self::Pending(pending) if Arc::ptr_eq(pending, own))
    }
}

/// The state of a subscription that must be undone when it ends.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Active {
    /// Its key in the channel's subscribers.
    key: u32,
    /// Whether the client is listed in presence.
    pub(crate) presence: bool,
    /// Whether its join has been announced, or is about to be: its leave is to follow.
    pub(crate) announced: bool,
    /// Whether the server made it. The client cannot end or renew such a subscription.
    pub(crate) server_side: bool,
    /// Whether the backend is asked to renew it.
    pub(crate) renewed_by_backend: bool,
    /// Boxed, because most subscriptions have none of it.
    rare: Option<Box<Rare>>,
}

/// The part of a subscription that few have.
#[derive(Clone, Debug, Default, PartialEq)]
struct Rare {
    /// Information about the client that others see in this channel only, as JSON.
    info: bytes::Bytes,
    /// When the subscription's token expires, since 1970.
    expires_at: Option<Duration>,
    /// Set if its end is reported to the backend.
    opened: Option<Opened>,
}

impl Active {
    /// A subscription that is not listed or announced anywhere.
    pub(crate) fn new(key: usize, info: bytes::Bytes, expires_at: Option<Duration>) -> Self {
        let rare = Rare { info, expires_at, opened: None };
        Self {
            key: key as u32,
            presence: false,
            announced: false,
            server_side: false,
            renewed_by_backend: false,
            rare: (rare != Rare::default()).then(|| Box::new(rare)),
        }
    }

    /// Its key in the channel's subscribers.
    pub(crate) fn key(&self) -> usize {
        self.key as usize
    }

    /// Information about the client that others see in this channel only, as JSON.
    pub(crate) fn info(&self) -> bytes::Bytes {
        self.rare.as_ref().map_or_else(bytes::Bytes::new, |rare| rare.info.clone())
    }

    /// When its token expires, since 1970.
    pub(crate) fn expires_at(&self) -> Option<Duration> {
        self.rare.as_ref()?.expires_at
    }

    /// The report of its end to the backend, if there is one.
    pub(crate) fn opened(&self) -> Option<&Opened> {
        self.rare.as_ref()?.opened.as_ref()
    }

    pub(crate) fn set_opened(&mut self, opened: Option<Opened>) {
        if opened.is_some() {
            self.rare.get_or_insert_default().opened = opened;
        }
    }
}

impl Client {
    pub(crate) fn new(
        transport: Transport,
        peer: Option<SocketAddr>,
        page: Option<Page>,
        outbox: Outbox,
    ) -> Self {
        Self {
            id: Uuid::new(),
            transport,
            peer: peer.map(|peer| (peer.ip(), peer.port())),
            page: page.map(Box::new),
            outbox,
            known: OnceLock::new(),
            subscriptions: Mutex::default(),
            expires_at: Expiry::default(),
            wakes_at: Expiry::default(),
            flags: AtomicU8::new(0),
            cleaned_up: AtomicU8::new(CleanedUp::Nothing as u8),
        }
    }

    /// The client's address, without the interface of a link-local one; `None` if the server that accepted the connection does not report
    /// it.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        self.peer.map(SocketAddr::from)
    }

    /// The client's page, if there is one.
    pub(crate) fn page(&self) -> Option<&Page> {
        self.page.as_deref()
    }

    pub(crate) fn format(&self) -> Format {
        self.transport.format()
    }

    /// Whether the server may subscribe it to further channels: a room has one channel.
    pub(crate) fn takes_channels(&self) -> bool {
        self.format() != Format::Bare
    }

    fn has(&self, flag: u8) -> bool {
        self.flags.load(Ordering::Acquire) & flag != 0
    }

    pub(crate) fn has_connected(&self) -> bool {
        self.has(HAS_CONNECTED)
    }

    fn known(&self) -> Option<&Known> {
        self.known.get().map(|known| &**known)
    }

    /// The user; empty for an anonymous client, and for one that has not connected.
    pub(crate) fn user(&self) -> &str {
        self.known().map_or("", |known| &known.user)
    }

    /// The place of the connection among those of its user; `None` if it has none. [`Clients`](crate::clients::Clients) changes it.
    pub(crate) fn user_place(&self) -> Option<&AtomicU32> {
        self.known().map(|known| &known.place)
    }

    /// Sets the identity, once it is admitted. Only the task of its session calls this.
    pub(crate) fn connect(&self, identity: Identity) {
        if identity != Identity::default() {
            self.known.get_or_init(|| Known::new(identity));
        }
        self.flags.fetch_or(HAS_CONNECTED, Ordering::Release);
    }

    /// The JSON value that the backend has attached to the connection.
    pub(crate) fn meta(&self) -> Option<Meta> {
        lock(&self.known()?.attached).meta.clone()
    }

    /// Replaces the information and the meta, where a renewal has them. Returns whether others see a change.
    pub(crate) fn renew(&self, info: bytes::Bytes, meta: Option<Meta>) -> bool {
        if !self.has_connected() || info.is_empty() && meta.is_none() {
            return false;
        }
        let known = self.known.get_or_init(|| Known::new(Identity::default()));
        let mut attached = lock(&known.attached);
        if meta.is_some() {
            attached.meta = meta;
        }
        let has_changed = !info.is_empty() && info != attached.info;
        if has_changed {
            attached.info = info;
        }
        has_changed
    }

    pub(crate) fn expires_at(&self) -> Option<Duration> {
        self.expires_at.get()
    }

    pub(crate) fn set_expires_at(&self, at: Option<Duration>) {
        self.expires_at.set(at);
    }

    /// Notes that a subscription expires at this time.
    pub(crate) fn note_subscription_expiry(&self, at: Option<Duration>) {
        if at.is_some() {
            self.flags.fetch_or(HAS_EXPIRING_SUBSCRIPTIONS, Ordering::Release);
        }
    }

    /// The time at which the first of its subscriptions expires.
    pub(crate) fn subscriptions_expire_at(&self) -> Option<Duration> {
        if !self.has(HAS_EXPIRING_SUBSCRIPTIONS) {
            return None;
        }
        let subscriptions = lock(&self.subscriptions);
        let expiries = subscriptions.iter().filter_map(|(_, subscription)| match subscription {
            Subscription::Active(active) => active.expires_at(),
            Subscription::Pending(_) => None,
        });
        expiries.min()
    }

    /// When the token of the connection or of a subscription expires first, and the reason with which the connection ends then.
    pub(crate) fn first_expiry(&self) -> Option<(Duration, Disconnect)> {
        let connection = self.expires_at().map(|at| (at, Disconnect::Expired));
        let subscriptions = self.subscriptions_expire_at().map(|at| (at, Disconnect::SubscriptionExpired));
        connection.into_iter().chain(subscriptions).min_by_key(|(at, _)| *at)
    }

    /// The subscriptions that the backend renews, and when they expire.
    pub(crate) fn renewed_by_backend(&self) -> Vec<(Arc<str>, Duration)> {
        if !self.has(HAS_EXPIRING_SUBSCRIPTIONS) {
            return Vec::new();
        }
        let subscriptions = lock(&self.subscriptions);
        let expiries = subscriptions.iter().filter_map(|(channel, subscription)| match subscription {
            Subscription::Active(active) if active.renewed_by_backend => {
                active.expires_at().map(|at| (channel.clone(), at))
            }
            _ => None,
        });
        expiries.collect()
    }

    /// Sets when a subscription expires, if it exists, and its information if a renewal has it. Returns whether presence is to change.
    pub(crate) fn renew_subscription(
        &self,
        channel: &str,
        expires_at: Option<Duration>,
        info: bytes::Bytes,
    ) -> bool {
        let mut subscriptions = lock(&self.subscriptions);
        let Some(Subscription::Active(active)) = subscriptions.get_mut(channel) else { return false };
        self.note_subscription_expiry(expires_at);
        let rare = active.rare.get_or_insert_default();
        rare.expires_at = expires_at;
        let has_changed = !info.is_empty() && info != rare.info;
        if has_changed {
            rare.info = info;
        }
        has_changed && active.presence
    }

    /// Notes that presence is to list it again. Returns whether the caller is to begin a task that does: there is one at a time.
    pub(crate) fn is_to_be_listed(&self) -> bool {
        let due = |known: &Known| known.listing.swap(Listing::Due as u8, Ordering::AcqRel);
        self.known().is_some_and(|known| due(known) == Listing::Done as u8)
    }

    /// Called by that task before it lists the connection.
    pub(crate) fn begin_listing(&self) {
        if let Some(known) = self.known() {
            known.listing.store(Listing::InProgress as u8, Ordering::Release);
        }
    }

    /// Called by that task afterwards. Returns whether it is done; otherwise it begins again.
    pub(crate) fn end_listing(&self) -> bool {
        let (in_progress, done) = (Listing::InProgress as u8, Listing::Done as u8);
        let end = |known: &Known| {
            known.listing.compare_exchange(in_progress, done, Ordering::AcqRel, Ordering::Acquire).is_ok()
        };
        self.known().is_none_or(end)
    }

    /// The channels in which presence lists it.
    pub(crate) fn listed_in(&self) -> Vec<Arc<str>> {
        let subscriptions = lock(&self.subscriptions);
        let listed = subscriptions.iter().filter(|(_, subscription)| subscription.listed().is_some());
        listed.map(|(channel, _)| channel.clone()).collect()
    }

    /// The client as others see it.
    pub(crate) fn info(&self, channel_info: bytes::Bytes) -> ClientInfo {
        let conn_info = self.known().map(|known| lock(&known.attached).info.clone()).unwrap_or_default();
        ClientInfo {
            user: self.user().into(),
            client: self.id.to_string(),
            conn_info,
            chan_info: channel_info,
        }
    }

    /// How presence is to list the client in a channel; `None` if not at all.
    pub(crate) fn presence_in(&self, channel: &str) -> Option<ClientInfo> {
        let listed = lock(&self.subscriptions).get(channel)?.listed()?;
        Some(self.info(listed))
    }

    pub(crate) fn is_subscribed(&self, channel: &str) -> bool {
        matches!(lock(&self.subscriptions).get(channel), Some(Subscription::Active(_)))
    }

    /// Whether it is subscribed and the server has not made the subscription, which only the server can renew.
    pub(crate) fn has_made_subscription(&self, channel: &str) -> bool {
        matches!(lock(&self.subscriptions).get(channel), Some(Subscription::Active(active)) if !active.server_side)
    }

    /// Sends the answer to a command, or a part of it; on bare connections it does nothing.
    pub(crate) fn send(&self, reply: &Reply) {
        if let Some(message) = self.encode(reply) {
            self.outbox.reply(message, &mut Later::default());
        }
    }

    /// A reply or a push as this client receives it; `None` if its format does not have it.
    pub(crate) fn encode(&self, reply: &Reply) -> Option<PreparedMessage> {
        match self.format() {
            Format::Protocol(encoding) => Some(encode(encoding, reply)),
            Format::OneWay => one_way(reply),
            Format::Bare => None,
        }
    }

    /// The refusal of a command whose call of the backend failed. The connection ends if the backend has ended it.
    pub(crate) fn fail(&self, failure: Failure) -> Refusal {
        match failure {
            Failure::Refused(refusal) => refusal,
            Failure::Disconnected(reason) => {
                self.outbox.end(reason);
                // The connection ends before this is sent.
                ErrorCode::Internal.into()
            }
        }
    }

    /// Sends what the client did not ask for; on bare connections it does nothing.
    pub(crate) fn push(&self, push: Push, later: &mut Later) {
        if let Some(message) = self.encode(&Reply { push: Some(push), ..Reply::default() }) {
            self.outbox.push(message, later);
        }
    }
}

/// A reply as one WebSocket message.
pub(crate) fn encode(encoding: Encoding, reply: &Reply) -> PreparedMessage {
    let bytes = protocol::encode_reply(encoding, reply);
    match encoding {
        // serde writes JSON as UTF-8.
        Encoding::Json => PreparedMessage::text(std::str::from_utf8(&bytes).unwrap_or_default()),
        Encoding::Protobuf => PreparedMessage::binary(&bytes),
    }
}

/// A push for a client that only receives. A ping is an empty push; the reply to `connect` is sent as a push. There are no other
/// replies, because these clients send no commands.
pub(crate) fn one_way(reply: &Reply) -> Option<PreparedMessage> {
    let push = match (&reply.push, &reply.connect) {
        (Some(push), _) => push.clone(),
        (None, Some(connect)) => Push { connect: Some(connect.clone().into()), ..Push::default() },
        (None, None) if *reply == Reply::default() => Push::default(),
        (None, None) => return None,
    };
    Some(PreparedMessage::text(&serde_json::to_string(&push).unwrap_or_default()))
}

impl From<ConnectResult> for ConnectPush {
    fn from(result: ConnectResult) -> Self {
        let ConnectResult { client, version, expires, ttl, data, subs, ping, pong, session, node, time } =
            result;
        Self { client, version, expires, ttl, data, subs, ping, pong, session, node, time }
    }
}
