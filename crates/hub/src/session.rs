//! A connection that speaks the client protocol: commands in, replies out, deadlines.
//!
//! ```text
//! Connecting --connect--> Connected --token expired, no pong, too many commands, bad request--> ended by the outbox
//! ```

mod commands;

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use wireloom::OwnedMessage;

use crate::auth::{Flaw, TokenError};
use crate::budget::{self, BYTES_PER_UNIT, charge};
use crate::client::{Client, Format, Identity};
use crate::clock::{Deadline, Nanos, seconds};
use crate::concurrently::concurrently;
use crate::config::{ChannelOptions, HubConfig};
use crate::encoded::publication_of;
use crate::endpoint::Endpoint;
use crate::hooks::{ConnectEvent, ConnectGrant, Failure, Refusal, copied};
use crate::meta::Meta;
use crate::node::Node;
use crate::protocol::UnsubscribeCode;
use crate::protocol::{
    Command, Commands, ConnectRequest, ConnectResult, DecodeError, Disconnect, Encoding, ErrorCode, Push,
    Reply, SubscribePush, SubscribeRequest, SubscribeResult, bounded, decode_object,
};
use crate::proxy::{Caller, Headers, RefreshOutcome, expiry};
use crate::rights::Grant;
use crate::shards::lock;
use crate::subscribe;

/// A connection that speaks the client protocol.
pub(crate) struct Session {
    pub(crate) node: Arc<Node>,
    pub(crate) client: Arc<Client>,
    pub(crate) kept: Kept,
}

/// State of a session between commands. It excludes the node and the client, which the connection's task has.
pub(crate) struct Kept {
    state: State,
    /// The rate of its commands.
    commands: CellRate,
    /// Boxed, because few sessions publish, are renewed or emulated, or have header fields that are forwarded.
    rare: Option<Box<Rare>>,
}

/// The request of a client without the client protocol.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    /// The channel whose publications its messages are.
    pub(crate) channel: String,
    /// The token of the connection; empty for an anonymous client.
    pub(crate) token: String,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// The connect command must come first.
    Connecting {
        stale: Deadline,
    },
    Connected {
        ping: Ping,
    },
}

/// The server pings, the client answers.
#[derive(Clone, Copy, Debug)]
enum Ping {
    /// The next ping is due at this time.
    DueAt(Nanos),
    /// A ping was sent, and must be answered.
    Missing(Deadline),
}

/// The shortest time between two requests to the backend for a renewal.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(1);

/// The number of subscriptions of a connection that the backend is asked to renew at the same time.
const RENEWALS_MAX: usize = 16;

/// The maximum length of the publications in a reply, in lengths of the send queue: a reply is encoded in one turn, and waits as a whole.
const REPLY_QUEUES_MAX: usize = 8;

/// The maximum length of the publications in a reply, but for one alone.
pub(crate) fn reply_len_max(config: &HubConfig) -> usize {
    REPLY_QUEUES_MAX.saturating_mul(config.client.queue_len_max)
}

/// The most memory for the elements of the lists and maps in a command, which may take 60 times as much as their texts: room for filters and
/// headers, and for the subscriptions that a connection may have.
pub(crate) fn elements_len_max(config: &HubConfig) -> usize {
    config.client.channels_max.saturating_mul(512).saturating_add(64 << 10)
}

/// The maximum length of the headers that a connect command has for the backend, in bytes. They are kept as long as the connection.
const HEADERS_LEN_MAX: usize = 16 << 10;

/// How many commands may be ahead of their rate, as a time at that rate.
const BURST: Duration = Duration::from_secs(5);

/// The state that few sessions need.
#[derive(Debug, Default)]
struct Rare {
    /// The id of an emulated session.
    id: Option<Arc<str>>,
    /// Those which endpoints of the backend receive.
    headers: Headers,
    pace: Pace,
    /// The backend is not asked for renewals before this time.
    renew_after: Duration,
    /// When the connection is to expire by a callback's decision although its token, if it has one, is valid for longer.
    granted_until: Option<Duration>,
    /// The room whose burst may have publications of this client.
    unsettled: Option<Arc<str>>,
}

/// The rate limits of publications, in messages and in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    messages: CellRate,
    bytes: CellRate,
}

/// The generic cell rate algorithm (ITU-T I.371): a limit on a rate as one time.
#[derive(Clone, Copy, Debug, Default)]
struct CellRate {
    /// When everything so far would have been sent at the permitted rate.
    paid_until: Nanos,
}

impl CellRate {
    /// How long the next `amount` must wait, if at most `burst` may be ahead of the rate.
    fn delay(&mut self, amount: f64, per_s: f64, burst: f64, now: Duration) -> Duration {
        if per_s == 0.0 {
            return Duration::ZERO;
        }
        let time = |amount: f64| Duration::try_from_secs_f64(amount / per_s).unwrap_or_default();
        let begin = self.paid_until.get().max(now);
        self.paid_until = begin.saturating_add(time(amount)).into();
        begin.saturating_sub(now).saturating_sub(time(burst))
    }
}

impl Pace {
    /// How long a publication of `len` bytes must wait. A burst of one second's worth passes, but no more than half of what fits
    /// into the send queue of a subscriber.
    fn delay(
        &mut self,
        options: &ChannelOptions,
        queue_len_max: usize,
        len: usize,
        now: Duration,
    ) -> Duration {
        let messages = f64::from(options.publications_per_s_max);
        let bytes = options.publication_bytes_per_s_max as f64;
        let burst = bytes.min(queue_len_max as f64 / 2.0);
        let wait = self.messages.delay(1.0, messages, messages, now);
        wait.max(self.bytes.delay(len as f64, bytes, burst, now))
    }
}

impl Kept {
    /// Forwards what the client has published in its room; false if that was done.
    pub(crate) fn settle(&mut self, node: &Node) -> bool {
        let room = self.rare.as_mut().and_then(|rare| rare.unsettled.take());
        room.inspect(|channel| node.settle(channel)).is_some()
    }

    /// The session goes on.
    pub(crate) fn resume(self, node: Arc<Node>, client: Arc<Client>) -> Session {
        Session { node, client, kept: self }
    }

    /// The next time to call [`handle_timeout`](Self::handle_timeout), since 1970. A client whose messages are not read while it has others
    /// to accept need not answer pings.
    pub(crate) fn poll_timeout(&self, node: &Node, client: &Client, is_reading: bool) -> Duration {
        let ping = match self.state {
            State::Connected { .. } if !is_reading => Duration::MAX,
            State::Connecting { stale } => return stale.at(),
            State::Connected { ping: Ping::DueAt(at) } => at.get(),
            State::Connected { ping: Ping::Missing(deadline) } => deadline.at(),
        };
        self.renewal_at(node, client).map_or(ping, |at| at.min(ping))
    }

    /// When the backend is to be asked to renew the connection or a subscription; `None` if it renews neither.
    fn renewal_at(&self, node: &Node, client: &Client) -> Option<Duration> {
        let expires_at = client.expires_at();
        if expires_at.is_none() && client.subscriptions_expire_at().is_none() {
            return None;
        }
        let settings = node.settings();
        let connection = expires_at.filter(|_| settings.proxies.refresh.is_some());
        let subscriptions = client.renewed_by_backend().into_iter();
        // A reload may have removed the endpoint.
        let subscriptions = subscriptions.filter(|(channel, _)| settings.proxies.renews(channel).is_some());
        let first = subscriptions.map(|(_, at)| at).chain(connection).min();
        first.map(|at| at.max(self.rare.as_ref().map_or(Duration::ZERO, |rare| rare.renew_after)))
    }

    /// Whether [`Session::renew`] has something to do.
    pub(crate) fn needs_renewal(&self, node: &Node, client: &Client) -> bool {
        matches!(self.state, State::Connected { .. })
            && self.renewal_at(node, client).is_some_and(|at| at <= node.clock.now())
    }

    pub(crate) fn handle_timeout(&mut self, node: &Node, client: &Client, is_reading: bool) {
        let settings = node.settings();
        let config = &settings.config.client;
        let now = node.clock.now();
        match &mut self.state {
            State::Connecting { stale } => {
                if stale.is_over(now, config.stale_after) {
                    client.outbox.end(Disconnect::Stale);
                }
            }
            State::Connected { .. } if !is_reading => {}
            State::Connected { ping: Ping::DueAt(at) } if at.get() <= now => {
                client.send(&Reply::default());
                let ping = match client.format() {
                    // The client cannot send a pong.
                    Format::OneWay | Format::Bare => {
                        Ping::DueAt(now.saturating_add(config.ping_interval).into())
                    }
                    Format::Protocol(_) => Ping::Missing(Deadline::new(now, config.pong_timeout)),
                };
                self.state = State::Connected { ping };
            }
            State::Connected { ping: Ping::Missing(deadline) } => {
                if deadline.is_over(now, config.pong_timeout) {
                    client.outbox.end(Disconnect::NoPong);
                }
            }
            State::Connected { .. } => {}
        }
    }
}

impl Session {
    pub(crate) fn new(node: Arc<Node>, client: Arc<Client>, headers: Headers) -> Self {
        let settings = node.settings();
        let config = &settings.config.client;
        let now = node.clock.now();
        let state = State::Connecting { stale: Deadline::new(now, config.stale_after) };
        let rare = (headers != Headers::NONE).then(|| Box::new(Rare { headers, ..Rare::default() }));
        Self { client, kept: Kept { state, commands: CellRate::default(), rare }, node }
    }

    /// It waits for the next command.
    pub(crate) fn pause(self) -> Kept {
        self.kept
    }

    /// The same as [`renew`](Self::renew) if it has something to do. A session that is never idle is renewed, too.
    pub(crate) async fn renew_if_due(&mut self) {
        if self.kept.needs_renewal(&self.node, &self.client) {
            Box::pin(self.renew()).await;
        }
    }

    /// Asks the backend to renew what has expired. If it fails, it is asked again until the grace period is over.
    pub(crate) async fn renew(&mut self) {
        let settings = self.node.settings();
        let now = self.node.clock.now();
        self.kept.rare.get_or_insert_default().renew_after = now + RENEWAL_INTERVAL;
        if let Some(endpoint) = &settings.proxies.refresh
            && self.client.expires_at().is_some_and(|at| at <= now)
        {
            match self.caller().refresh(endpoint).await {
                Ok(RefreshOutcome { expired: true, .. }) => return self.end(Disconnect::Expired),
                Ok(mut outcome) => match outcome.info().and_then(|info| Ok((info, outcome.meta()?))) {
                    Ok((info, meta)) => {
                        self.client.set_expires_at(self.node.clock.expiry(expiry(outcome.expire_at)));
                        self.change(info, meta);
                    }
                    Err(flaw) => drop(endpoint.failed(flaw)),
                },
                Err(failure) => drop(self.client.fail(failure)),
            }
        }
        let due = self.client.renewed_by_backend().into_iter().filter(|(_, at)| *at <= now);
        let renewals = due.filter_map(|(channel, _)| {
            let (node, client, headers) = (self.node.clone(), self.client.clone(), self.headers().clone());
            let endpoint = settings.proxies.renews(&channel)?.clone();
            Some(renew_subscription(node, endpoint, client, headers, channel))
        });
        concurrently(RENEWALS_MAX, renewals).await;
    }

    /// Replaces what is known of the client, where a renewal has it. Presence has it later: the engine may take long for many channels.
    fn change(&self, info: Bytes, meta: Option<Meta>) {
        if self.client.renew(info, meta) && self.client.is_to_be_listed() {
            let (node, client) = (self.node.clone(), self.client.clone());
            tokio::spawn(async move {
                loop {
                    client.begin_listing();
                    list_again(&node, &client, client.listed_in()).await;
                    if client.end_listing() {
                        return;
                    }
                }
            });
        }
    }

    /// The time that a callback has set, until the server extends it: a token does not.
    fn granted_until(&self) -> Option<Duration> {
        let until = self.kept.rare.as_ref()?.granted_until?;
        self.client.expires_at().is_some_and(|at| at <= until).then_some(until)
    }

    fn end(&self, reason: Disconnect) {
        self.client.outbox.end(reason);
    }

    /// Handles a message: the commands in it, or the publication that it is in a room.
    pub(crate) async fn handle_message(&mut self, message: OwnedMessage) {
        match self.client.format() {
            Format::Protocol(encoding) => self.execute(encoding, message.into_bytes()).await,
            Format::Bare => self.publish_in_room(message).await,
            Format::OneWay => self.begin_one_way(message.as_bytes()).await,
        }
    }

    async fn publish_in_room(&mut self, message: OwnedMessage) {
        let room = lock(&self.client.subscriptions).iter().next().map(|(channel, _)| channel.clone());
        let Some(channel) = room else { return };
        if message.as_bytes().len() > self.node.settings().config.client.message_len_max {
            // RFC 6455 §7.4.1: the code for a message that is too big.
            return self.end(Disconnect::Custom { code: 1009, reason: "message too long".into() });
        }
        self.renew_if_due().await;
        if self.client.outbox.has_ended() {
            return;
        }
        match self.publish_message(&channel, publication_of(message)).await {
            Ok(()) => self.kept.rare.get_or_insert_default().unsettled = Some(channel),
            Err(refusal) => {
                self.node.metrics.refused.increment(refusal.code);
                self.end(end_of(&refusal));
            }
        }
    }

    /// Makes this the session with this id, whose commands are sent in requests of their own.
    pub(crate) fn emulate(&mut self, id: Arc<str>) {
        self.kept.rare.get_or_insert_default().id = Some(id);
    }

    /// The first message of a client that only receives is its connect request; others are ignored.
    async fn begin_one_way(&mut self, message: &[u8]) {
        if matches!(self.kept.state, State::Connected { .. }) {
            return;
        }
        let len_max = elements_len_max(&self.node.settings().config);
        let connected = match bounded(len_max, || decode_object(message)) {
            Ok(request) => self.connect_one_way(request).await,
            Err(DecodeError) => Err(Disconnect::BadRequest),
        };
        if let Err(reason) = connected {
            self.end(reason);
        }
    }

    /// Handles commands that did not arrive over the connection itself.
    pub(crate) async fn handle_commands(&mut self, commands: Bytes) {
        if let Format::Protocol(encoding) = self.client.format() {
            self.execute(encoding, commands).await;
        }
    }

    /// Executes the commands of one message, in order. Stops at the first one that breaks the protocol.
    async fn execute(&mut self, encoding: Encoding, message: Bytes) {
        let len = message.len();
        let elements_len_max = elements_len_max(&self.node.settings().config);
        let commands = Commands::new(encoding, message).elements_len_max(elements_len_max);
        // Boxed, because each future that has one on its way would be as long.
        let mut commands = commands.map(|command| command.map(Box::new)).peekable();
        // A message without a command would otherwise not be rate limited.
        if commands.peek().is_none() {
            return self.end(Disconnect::BadRequest);
        }
        charge(len / BYTES_PER_UNIT).await;
        let per_s = f64::from(self.node.settings().config.client.commands_per_s_max);
        for command in commands {
            self.replies_fit().await;
            self.renew_if_due().await;
            if self.client.outbox.has_ended() {
                return;
            }
            // The half keeps what is rounded from refusing the last command of a burst.
            let burst = per_s * BURST.as_secs_f64() - 0.5;
            if !self.kept.commands.delay(1.0, per_s, burst, self.node.clock.now()).is_zero() {
                return self.end(Disconnect::TooManyRequests);
            }
            match command {
                Ok(command) => {
                    let price = if command.reads() { budget::READ } else { budget::COMMAND };
                    if let Err(reason) = self.handle_command(command).await {
                        return self.end(reason);
                    }
                    charge(price).await;
                }
                Err(_) => return self.end(Disconnect::BadRequest),
            }
        }
    }

    /// Waits until enough of the previous replies is written to make room for another one.
    async fn replies_fit(&self) {
        poll_fn(|cx| self.client.outbox.poll_room(cx)).await;
    }

    async fn handle_command(&mut self, command: Box<Command>) -> Result<(), Disconnect> {
        let id = command.id;
        if *command == Command::default() {
            return self.handle_pong();
        }
        if id == 0 && command.send.is_none() {
            return Err(Disconnect::BadRequest);
        }
        if let Some(connect) = command.connect {
            return match self.connect(id, &connect).await {
                Err(Denied::Refused(refusal)) => {
                    self.refuse(id, refusal);
                    self.check_stale()
                }
                Err(Denied::Ended(reason)) => Err(reason),
                Ok(()) => Ok(()),
            };
        }
        if matches!(self.kept.state, State::Connecting { .. }) {
            return Err(Disconnect::BadRequest);
        }
        if let Some(request) = command.send {
            self.message(request.data).await;
            return Ok(());
        }
        if let Some(subscribe) = command.subscribe {
            self.subscribe(id, subscribe).await;
            return Ok(());
        }
        let mut reply = Box::new(Reply { id, ..Reply::default() });
        if let Err(refusal) = self.answer(command, &mut reply).await {
            self.node.metrics.refused.increment(refusal.code);
            reply.error = Some(refusal.into());
        }
        self.client.send(&reply);
        Ok(())
    }

    /// Of a session that was refused: if it has the next command already, it is never idle, which is when deadlines are looked at.
    fn check_stale(&mut self) -> Result<(), Disconnect> {
        let State::Connecting { stale } = &mut self.kept.state else { return Ok(()) };
        let is_over = stale.is_over(self.node.clock.now(), self.node.settings().config.client.stale_after);
        if is_over { Err(Disconnect::Stale) } else { Ok(()) }
    }

    fn handle_pong(&mut self) -> Result<(), Disconnect> {
        match &mut self.kept.state {
            State::Connecting { .. } => Err(Disconnect::BadRequest),
            State::Connected { ping } => {
                // An unsolicited pong is ignored.
                if let Ping::Missing(_) = ping {
                    let interval = self.node.settings().config.client.ping_interval;
                    *ping = Ping::DueAt(self.node.clock.now().saturating_add(interval).into());
                }
                Ok(())
            }
        }
    }

    /// Connects a client that has only a room: the channel whose publications its messages are.
    pub(crate) async fn join(&mut self, room: Box<Room>) -> Result<(), Disconnect> {
        let Room { channel, token } = *room;
        let subs = [(channel, SubscribeRequest::default())].into();
        self.connect_one_way(ConnectRequest { token, subs, ..ConnectRequest::default() }).await
    }

    /// Establishes a unidirectional connection, and its subscriptions to the channels in the request.
    pub(crate) async fn connect_one_way(&mut self, request: ConnectRequest) -> Result<(), Disconnect> {
        self.connect(0, &request).await.map_err(|denied| match denied {
            Denied::Refused(refusal) => {
                self.node.metrics.refused.increment(refusal.code);
                end_of(&refusal)
            }
            Denied::Ended(reason) => reason,
        })?;
        for (channel, command) in request.subs {
            if lock(&self.client.subscriptions).get(&channel).is_some() {
                continue;
            }
            self.replies_fit().await;
            let command = SubscribeRequest { channel: channel.clone(), ..command };
            let request = subscribe::Request::from_client(command, self.headers());
            let established = subscribe::subscribe(&self.node, &self.client, request).await;
            let mut established = established.map_err(|refusal| end_of(&refusal))?;
            let result = std::mem::take(&mut established.result);
            let publications = result.publications.iter().cloned();
            let replies =
                std::iter::once(subscribed(&channel, &result)).chain(publications.map(|publication| {
                    let publication = Some(publication);
                    Push { channel: channel.clone(), publication, ..Push::default() }
                }));
            let replies = replies.map(|push| Reply { push: Some(push), ..Reply::default() }).collect();
            established.start(replies).await;
        }
        Ok(())
    }

    /// This connection as endpoints of the backend see it.
    fn caller(&self) -> Caller<'_> {
        Caller { client: &self.client, headers: self.headers() }
    }

    fn headers(&self) -> &Headers {
        static NONE: Headers = Headers::NONE;
        self.kept.rare.as_ref().map_or(&NONE, |rare| &rare.headers)
    }

    /// Keeps the headers that the connect command has for clients which cannot set those of HTTP.
    ///
    /// # Errors
    /// They are too long.
    fn emulate_headers(&mut self, given: &HashMap<String, String>) -> Result<(), Refusal> {
        let settings = self.node.settings();
        let wanted = settings.proxies.emulated.iter().filter_map(|name| {
            let is_it =
                |own: &str, value: &str| own.eq_ignore_ascii_case(name) && !value.contains(char::is_control);
            let (_, value) = given.iter().find(|(own, value)| is_it(own, value))?;
            Some((name.clone(), value.clone()))
        });
        let emulated: Vec<_> = wanted.collect();
        if emulated.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > HEADERS_LEN_MAX {
            let message = "headers are longer than 16 KiB".into();
            return Err(Refusal { message, ..ErrorCode::BadRequest.into() });
        }
        if !emulated.is_empty() {
            self.kept.rare.get_or_insert_default().headers.emulated = emulated;
        }
        Ok(())
    }

    async fn connect(&mut self, id: u32, request: &ConnectRequest) -> Result<(), Denied> {
        if !matches!(self.kept.state, State::Connecting { .. }) {
            return Err(Disconnect::BadRequest.into());
        }
        self.emulate_headers(&request.headers).map_err(Denied::Refused)?;
        let Authenticated { mut grant, mut subs, meta } = self.authenticate(request).await?;
        // A room has one channel, whose publications do not name it.
        if self.client.format() == Format::Bare {
            subs.retain(|(channel, _)| request.subs.contains_key(channel));
        }
        self.client.set_expires_at(grant.expires_at);
        let user = std::mem::take(&mut grant.user).into();
        let identity = Identity { user, info: grant.info.clone(), meta };
        if !self.node.identify(&self.client, identity) {
            return Err(Disconnect::ConnectionLimit.into());
        }
        if let Some(opened) = self.node.prepare(&self.client, None) {
            // First, so that its end is reported whatever happens.
            self.node.note_opened(&self.client, opened.clone());
            if let Err(error) = self.node.events.open(&opened).await {
                self.node.note_engine_failure("", &error, "a connection was not stored");
                return Err(Disconnect::Internal.into());
            }
        }
        let settings = self.node.settings();
        let config = &settings.config.client;
        let now = self.node.clock.now();
        self.kept.state =
            State::Connected { ping: Ping::DueAt(now.saturating_add(config.ping_interval).into()) };
        // Where the backend renews connections, clients need not.
        let expires_at = grant.expires_at.filter(|_| settings.proxies.refresh.is_none());
        let ttl = expires_at.map(|at| seconds(at.saturating_sub(now)));
        let mut result = ConnectResult {
            client: self.client.id.to_string(),
            version: env!("CARGO_PKG_VERSION").into(),
            expires: ttl.is_some(),
            ttl: ttl.unwrap_or(0),
            data: grant.data,
            ping: seconds(config.ping_interval),
            pong: matches!(self.client.format(), Format::Protocol(_)),
            node: self.node.name.clone(),
            session: self
                .kept
                .rare
                .as_ref()
                .and_then(|rare| rare.id.as_deref())
                .unwrap_or_default()
                .to_owned(),
            ..ConnectResult::default()
        };
        let mut established = Vec::new();
        let mut recovered_len = 0;
        for (channel, grant) in subs {
            let position = request.subs.get(&channel).cloned().unwrap_or_default();
            let command = SubscribeRequest { channel: channel.clone(), token: String::new(), ..position };
            let request = subscribe::Request { recovered_len, ..subscribe::Request::granted(command, grant) };
            let subscription = match subscribe::subscribe(&self.node, &self.client, request).await {
                Ok(subscription) => subscription,
                // It is named twice, such as in `channels` and in `subs`.
                Err(refusal) if refusal.code == ErrorCode::AlreadySubscribed.code() => continue,
                Err(refusal) => {
                    subscribe::warn_refused(&self.node, &self.client, &channel, &refusal);
                    return Err(end_of(&refusal).into());
                }
            };
            let publications = subscription.result.publications.iter();
            recovered_len += publications.map(prost::Message::encoded_len).sum::<usize>();
            result.subs.insert(channel, subscription.result.clone());
            established.push(subscription);
        }
        self.client.send(&Reply { id, connect: Some(result), ..Reply::default() });
        self.node.answered(&self.client);
        for subscription in established {
            subscription.start(Vec::new()).await;
        }
        Ok(())
    }

    /// Asks who the client is.
    async fn authenticate(&mut self, request: &ConnectRequest) -> Result<Authenticated, Denied> {
        let settings = self.node.settings();
        let mut grant = ConnectGrant::default();
        let (mut subs, mut meta, mut is_cut) = (Vec::new(), None, false);
        let has_token = !request.token.is_empty();
        if has_token {
            let (clock, warnings, verifier) = (&self.node.clock, &self.node.warnings, &settings.verifier);
            let verify = || verifier.connect(&request.token, clock.system_now());
            let verified = verifier.in_turn_of_connect(&request.token, verify).await;
            let verified = verified.and_then(|claims| Ok((claims.meta()?, claims)));
            let (attached, claims) =
                verified.map_err(|error| match error.logged(clock, warnings, self.client.id) {
                    TokenError::Invalid(_) => Denied::Ended(Disconnect::InvalidToken),
                    other => Denied::Refused(other.code().into()),
                })?;
            meta = attached;
            grant.expires_at = claims.expires_at();
            grant.info = claims.info();
            grant.channels = claims.channels;
            grant.user = claims.sub;
            subs.extend(claims.subs.iter().map(|(name, sub)| {
                let (info, data) = (sub.info(), sub.data());
                let grant =
                    Grant { info, data, server_side: true, overrides: sub.overrides, ..Grant::default() };
                (name.clone(), grant)
            }));
        }
        if let Some(hook) = &self.node.hooks.connect {
            let expires_at = grant.expires_at;
            let event = ConnectEvent {
                client: self.client.id.to_string(),
                user: grant.user.clone(),
                has_token,
                expires_at,
                channels: grant.channels.iter().chain(subs.iter().map(|(name, _)| name)).cloned().collect(),
                data: request.data.clone(),
                headers: request.headers.clone(),
                peer: self.client.peer(),
            };
            grant = hook(event).await.map_err(Denied::Ended)?;
            grant.info = copied(grant.info);
            let exp = expires_at.map(|at| at.saturating_sub(settings.verifier.leeway_of_connect()));
            is_cut = grant.expires_at.is_some_and(|at| exp.is_none_or(|exp| at < exp));
            grant.expires_at = [grant.expires_at, expires_at].into_iter().flatten().min();
            subs.retain(|(name, _)| grant.channels.contains(name));
        } else if let Some(endpoint) = settings.proxies.connect.as_ref().filter(|_| !has_token) {
            let denied = |failure| match failure {
                Failure::Refused(refusal) => Denied::Refused(refusal),
                Failure::Disconnected(reason) => Denied::Ended(reason),
            };
            let flawed = |flaw: &str| denied(endpoint.failed(flaw));
            let asked = self.caller().connect(endpoint, request).await;
            let mut outcome = asked.map_err(denied)?;
            let (info, data) = outcome.payloads().map_err(flawed)?;
            meta = outcome.meta().map_err(flawed)?;
            for (name, sub) in outcome.subs {
                let granted = Grant::of(sub, &self.node.clock).map_err(flawed)?;
                subs.push((name, Grant { server_side: true, ..granted }));
            }
            grant = ConnectGrant {
                user: outcome.user,
                info,
                data,
                channels: outcome.channels,
                expires_at: expiry(outcome.expire_at),
            };
        } else if !has_token && !settings.config.client.anonymous {
            let missing = TokenError::from(Flaw::Missing);
            missing.logged(&self.node.clock, &self.node.warnings, self.client.id);
            return Err(Denied::Ended(Disconnect::InvalidToken));
        }
        grant.expires_at = self.node.clock.expiry(grant.expires_at);
        if is_cut {
            self.kept.rare.get_or_insert_default().granted_until = grant.expires_at;
        }
        let config = &settings.config;
        if config.client.personal_channel && !grant.user.is_empty() {
            let channel = config.personal_channel(&grant.user);
            let options = config.channel_options(&channel);
            if options.is_none_or(|options| config.owner(&channel, options).is_some()) {
                grant.channels.push(channel);
            }
        }
        let channels = std::mem::take(&mut grant.channels);
        let named = channels.into_iter().map(|name| (name, Grant { server_side: true, ..Grant::default() }));
        subs.extend(named);
        Ok(Authenticated { grant, subs, meta })
    }

    async fn subscribe(&mut self, id: u32, command: SubscribeRequest) {
        let request = subscribe::Request::from_client(command, self.headers());
        match subscribe::subscribe(&self.node, &self.client, request).await {
            Ok(mut established) => {
                let result = std::mem::take(&mut established.result);
                let reply = Reply { id, subscribe: Some(result), ..Reply::default() };
                if !established.start(vec![reply]).await {
                    self.refuse(id, ErrorCode::PermissionDenied.into());
                }
            }
            Err(refusal) => self.refuse(id, refusal),
        }
    }

    fn refuse(&self, id: u32, refusal: Refusal) {
        self.node.metrics.refused.increment(refusal.code);
        self.client.send(&Reply { id, error: Some(refusal.into()), ..Reply::default() });
    }
}

/// Asks the backend to renew a subscription.
async fn renew_subscription(
    node: Arc<Node>,
    endpoint: Arc<Endpoint>,
    client: Arc<Client>,
    headers: Headers,
    channel: Arc<str>,
) {
    let caller = Caller { client: &client, headers: &headers };
    match caller.sub_refresh(&endpoint, &channel).await {
        Ok(RefreshOutcome { expired: true, .. }) => {
            node.unsubscribe(&channel, &client, UnsubscribeCode::Expired);
        }
        Ok(mut outcome) => match outcome.info() {
            Ok(info) => {
                let expires_at = node.clock.expiry(expiry(outcome.expire_at));
                if client.renew_subscription(&channel, expires_at, info) {
                    list_again(&node, &client, vec![channel]).await;
                }
            }
            Err(flaw) => drop(endpoint.failed(flaw)),
        },
        Err(failure) => drop(client.fail(failure)),
    }
}

/// Presence lists a client again, after what others see of it has changed.
async fn list_again(node: &Arc<Node>, client: &Arc<Client>, channels: Vec<Arc<str>>) {
    charge(channels.len() * budget::READ).await;
    let updates = channels.into_iter().map(|channel| {
        let (node, client) = (node.clone(), client.clone());
        async move {
            if let Err(error) = node.update_presence(&channel, &client).await {
                node.note_engine_failure(&channel, &error, "presence was not changed");
            }
        }
    });
    concurrently(RENEWALS_MAX, updates).await;
}

/// The end of a connection that is refused what it cannot do without, or that cannot receive the refusal.
fn end_of(refusal: &Refusal) -> Disconnect {
    match refusal.code {
        code if code == ErrorCode::LimitExceeded.code() => Disconnect::ChannelLimit,
        code if code == ErrorCode::TokenExpired.code() => Disconnect::Expired,
        _ if refusal.temporary => Disconnect::Internal,
        _ => Disconnect::PermissionDenied,
    }
}

/// The push that announces a subscription which the server made.
pub(crate) fn subscribed(channel: &str, result: &SubscribeResult) -> Push {
    let subscribe = SubscribePush {
        recoverable: result.recoverable,
        epoch: result.epoch.clone(),
        offset: result.offset,
        positioned: result.positioned,
        data: result.data.clone(),
    };
    Push { channel: channel.into(), subscribe: Some(subscribe), ..Push::default() }
}

/// An authenticated client.
struct Authenticated {
    grant: ConnectGrant,
    /// The channels to which the connection is subscribed from the start.
    subs: Vec<(String, Grant)>,
    /// The JSON value that the backend attaches to the connection.
    meta: Option<Meta>,
}

/// Why a client could not connect.
enum Denied {
    /// It may send another connect command.
    Refused(Refusal),
    /// The connection ends.
    Ended(Disconnect),
}

impl From<Disconnect> for Denied {
    fn from(reason: Disconnect) -> Self {
        Self::Ended(reason)
    }
}

#[cfg(test)]
mod tests;
