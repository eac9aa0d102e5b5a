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
use crate::config::ChannelOptions;
use crate::encoded::publication_of;
use crate::hooks::{ConnectEvent, ConnectGrant, Failure, Refusal, copied};
use crate::node::Node;
use crate::protocol::UnsubscribeCode;
use crate::protocol::{
    Command, Commands, ConnectRequest, ConnectResult, DecodeError, Disconnect, Encoding, ErrorCode, Push,
    Reply, SubscribePush, SubscribeRequest, SubscribeResult, decode_object,
};
use crate::proxy::{Caller, Headers, RefreshOutcome, expiry};
use crate::rights::Grant;
use crate::settings::Settings;
use crate::shards::lock;
use crate::subscribe;

/// A connection that speaks the client protocol.
pub(crate) struct Session {
    pub(crate) node: Arc<Node>,
    pub(crate) client: Arc<Client>,
    pub(crate) kept: Kept,
}

/// What a session keeps while it waits for the next command. The task of the connection has the node and the client, too.
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
pub(crate) const REPLY_QUEUES_MAX: usize = 8;

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
    /// When the connection is to expire by a callback's decision although its token is valid for longer.
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
        let subscriptions = match settings.proxies.sub_refresh {
            Some(_) => client.renewed_by_backend(),
            None => Vec::new(),
        };
        let first = subscriptions.into_iter().map(|(_, at)| at).chain(connection).min();
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
        let (config, proxies) = (&settings.config, &settings.proxies);
        let now = self.node.clock.now();
        self.kept.rare.get_or_insert_default().renew_after = now + RENEWAL_INTERVAL;
        if let Some(endpoint) = &proxies.refresh
            && self.client.expires_at().is_some_and(|at| at <= now)
        {
            match self.caller().refresh(endpoint, config).await {
                Ok(RefreshOutcome { expired: true, .. }) => return self.end(Disconnect::Expired),
                Ok(outcome) => self.client.set_expires_at(self.node.clock.expiry(expiry(outcome.expire_at))),
                Err(failure) => drop(self.client.fail(failure)),
            }
        }
        let due = self.client.renewed_by_backend().into_iter().filter(|(_, at)| *at <= now);
        let renewals = due.map(|(channel, _)| {
            let (node, settings) = (self.node.clone(), settings.clone());
            renew_subscription(node, settings, self.client.clone(), self.headers().clone(), channel)
        });
        concurrently(RENEWALS_MAX, renewals).await;
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
        let connected = match decode_object(message) {
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
        // Boxed, because each future that has one on its way would be as long.
        let mut commands = Commands::new(encoding, message).map(|command| command.map(Box::new)).peekable();
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

    /// Waits until so much of the replies before is written that there is room for another one.
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
            return match self.connect(id, connect).await {
                Err(Denied::Refused(refusal)) => {
                    self.refuse(id, refusal);
                    Ok(())
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
        let wanted = request.subs.clone();
        self.connect(0, request).await.map_err(|denied| match denied {
            Denied::Refused(refusal) => {
                self.node.metrics.refused.increment(refusal.code);
                end_of(&refusal)
            }
            Denied::Ended(reason) => reason,
        })?;
        for (channel, command) in wanted {
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
    fn emulate_headers(&mut self, given: &HashMap<String, String>) {
        let settings = self.node.settings();
        let wanted = settings.proxies.emulated.iter().filter_map(|name| {
            let is_it =
                |own: &str, value: &str| own.eq_ignore_ascii_case(name) && !value.contains(char::is_control);
            let (_, value) = given.iter().find(|(own, value)| is_it(own, value))?;
            Some((name.clone(), value.clone()))
        });
        let emulated: Vec<_> = wanted.collect();
        if !emulated.is_empty() {
            self.kept.rare.get_or_insert_default().headers.emulated = emulated;
        }
    }

    async fn connect(&mut self, id: u32, request: ConnectRequest) -> Result<(), Denied> {
        if !matches!(self.kept.state, State::Connecting { .. }) {
            return Err(Disconnect::BadRequest.into());
        }
        self.emulate_headers(&request.headers);
        let (mut grant, mut subs) = self.authenticate(&request).await?;
        // A room has one channel, whose publications do not name it.
        if self.client.format() == Format::Bare {
            subs.retain(|(channel, _)| request.subs.contains_key(channel));
        }
        let identity = Identity { user: std::mem::take(&mut grant.user).into(), info: grant.info.clone() };
        if !self.client.connect(identity) || !self.node.identify(&self.client) {
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
        self.client.set_expires_at(grant.expires_at);
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

    /// The identity of the client, and the channels to which the connection is subscribed from the start.
    async fn authenticate(
        &mut self,
        request: &ConnectRequest,
    ) -> Result<(ConnectGrant, Vec<(String, Grant)>), Denied> {
        let settings = self.node.settings();
        let mut grant = ConnectGrant::default();
        let (mut subs, mut is_cut) = (Vec::new(), false);
        let has_token = !request.token.is_empty();
        if has_token {
            let _turn = settings.verifier.prepare_connect(&request.token).await;
            let (clock, warnings) = (&self.node.clock, &self.node.warnings);
            let verified = settings.verifier.connect(&request.token, clock.system_now());
            let claims = verified.map_err(|error| match error.logged(clock, warnings, self.client.id) {
                TokenError::Invalid(_) => Denied::Ended(Disconnect::InvalidToken),
                other => Denied::Refused(other.code().into()),
            })?;
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
            is_cut =
                has_token && grant.expires_at.is_some_and(|at| expires_at.is_none_or(|token| at < token));
            grant.expires_at = [grant.expires_at, expires_at].into_iter().flatten().min();
            subs.retain(|(name, _)| grant.channels.contains(name));
        } else if let Some(endpoint) = settings.proxies.connect.as_ref().filter(|_| !has_token) {
            let denied = |failure| match failure {
                Failure::Refused(refusal) => Denied::Refused(refusal),
                Failure::Disconnected(reason) => Denied::Ended(reason),
            };
            let flawed = |flaw: &str| denied(endpoint.failed(flaw));
            let asked = self.caller().connect(endpoint, &settings.config, request).await;
            let mut outcome = asked.map_err(denied)?;
            let (info, data) = outcome.payloads().map_err(flawed)?;
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
        Ok((grant, subs))
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
    settings: Arc<Settings>,
    client: Arc<Client>,
    headers: Headers,
    channel: Arc<str>,
) {
    let Some(endpoint) = &settings.proxies.sub_refresh else { return };
    let caller = Caller { client: &client, headers: &headers };
    match caller.sub_refresh(endpoint, &settings.config, &channel).await {
        Ok(RefreshOutcome { expired: true, .. }) => {
            node.unsubscribe(&channel, &client, UnsubscribeCode::Expired);
        }
        Ok(outcome) => {
            client.set_subscription_expiry(&channel, node.clock.expiry(expiry(outcome.expire_at)));
        }
        Err(failure) => drop(client.fail(failure)),
    }
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
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Waker};

    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    use super::*;
    use crate::client::Transport;
    use crate::clock::Clock;
    use crate::config::HubConfig;
    use crate::engine::{Action, Control, Delivery as _};
    use crate::history::HistoryQuery;
    use crate::hooks::SubscribeGrant;
    use crate::hub::Hub;
    use crate::protocol::ClientInfo;
    use crate::token::TokenClaims;

    #[test]
    fn publications_are_paced_after_a_burst() {
        const QUEUE: usize = 1 << 20;
        let options = |publications_per_s_max, publication_bytes_per_s_max| ChannelOptions {
            publications_per_s_max,
            publication_bytes_per_s_max,
            ..ChannelOptions::default()
        };
        let second = Duration::from_secs(1);
        // A burst, and one publication that begins within it.
        for (options, queue, len, burst) in [
            (options(10, 0), QUEUE, 1_000_000, 10),
            (options(0, 1_000), QUEUE, 100, 10),
            (options(100, 1_000), QUEUE, 100, 10),
            (options(0, 1_000), 400, 100, 2),
        ] {
            let mut pace = Pace::default();
            let waits: Vec<_> = (0..13).map(|_| pace.delay(&options, queue, len, second)).collect();
            assert_eq!(waits.iter().filter(|wait| wait.is_zero()).count(), burst + 1, "{waits:?}");
            assert_eq!(waits[burst + 1], second / 10);
            // Later it is as before.
            assert_eq!(pace.delay(&options, queue, len, 100 * second), Duration::ZERO);
        }
        let mut pace = Pace::default();
        assert!((0..1_000).all(|_| pace.delay(&options(0, 0), QUEUE, 1_000_000, second).is_zero()));
    }

    /// How many turns a session takes for a message.
    async fn turns(session: &mut Session, message: &str) -> usize {
        tokio::task::yield_now().await;
        let mut handled = std::pin::pin!(session.handle_message(message.into()));
        let mut turns = 0;
        poll_fn(|cx| {
            turns += 1;
            handled.as_mut().poll(cx)
        })
        .await;
        turns
    }

    async fn connected(node: &Arc<Node>) -> Session {
        let client = node.accept(Transport::WebSocket(Encoding::Json), None, None).unwrap();
        let mut session = Session::new(node.clone(), client, Headers::NONE);
        session.handle_message("{\"id\":1,\"connect\":{}}".into()).await;
        session
    }

    #[tokio::test]
    async fn the_turns_for_a_message_are_those_of_its_commands() {
        const COUNT: usize = 200;
        let config = "[client]\nanonymous = true\n[channel]\nsubscribe = \"anyone\"\n";
        let hub = Hub::builder().config(HubConfig::from_toml(config).unwrap()).build().unwrap();
        let token = |algorithm: &str| {
            let header = URL_SAFE_NO_PAD.encode(format!("{{\"alg\":\"{algorithm}\"}}"));
            format!("\"token\":\"{header}.e30.AAAA\"")
        };
        let [cheap, costly] = ["HS256", "ES384"].map(token);
        for (command, least, most) in [
            ("\"ping\":{}".to_owned(), 2, 4),
            (format!("\"refresh\":{{{cheap}}}"), 2, 8),
            (format!("\"refresh\":{{{costly}}}"), COUNT, 2 * COUNT),
            (format!("\"sub_refresh\":{{\"channel\":\"a\",{costly}}}"), COUNT, 2 * COUNT),
            (format!("\"subscribe\":{{\"channel\":\"a\",{costly}}}"), COUNT, 2 * COUNT),
            (format!("\"rpc\":{{\"data\":\"{}\"}}", "x".repeat(8 << 10)), 4, 12),
        ] {
            let mut session = connected(&hub.0).await;
            let commands = (0..COUNT).map(|number| format!("{{\"id\":{},{command}}}", number + 2));
            let turns = turns(&mut session, &commands.collect::<Vec<_>>().join("\n")).await;
            assert!((least..=most).contains(&turns), "{}: {turns}", &command[..20.min(command.len())]);
            assert!(!session.client.outbox.has_ended());
        }
    }

    #[tokio::test]
    async fn a_join_or_a_leave_in_a_large_room_takes_more_turns() {
        let config = "[client]\nanonymous = true\n[channel]\nsubscribe = \"anyone\"\n\
                      join_leave = true\nforce_push_join_leave = true\n";
        let hub = Hub::builder().config(HubConfig::from_toml(config).unwrap()).build().unwrap();
        let node = &hub.0;
        let member = connected(node).await.client;
        (0..2_000).for_each(|_| drop(node.channels.add("large", member.clone(), false)));
        let mut session = connected(node).await;
        for command in ["subscribe", "unsubscribe"] {
            let mut turns_in = async |channel: &str| {
                let message = format!("{{\"id\":2,\"{command}\":{{\"channel\":\"{channel}\"}}}}");
                turns(&mut session, &message).await
            };
            let [small, large] = [turns_in("small").await, turns_in("large").await];
            assert!(large >= small + 2, "{command}: {small}, {large}");
        }
    }

    #[tokio::test]
    async fn a_large_read_takes_more_than_one_turn() {
        let config = HubConfig::from_toml(
            "[client]\nanonymous = true\n[channel]\nsubscribe = \"anyone\"\npresence = true\n\
             presence_access = \"anyone\"\nhistory_access = \"anyone\"\nhistory_size = 10\nhistory_ttl = \"1h\"\n",
        );
        let hub = Hub::builder().config(config.unwrap()).build().unwrap();
        let node = hub.0.clone();
        for number in 0..20_000 {
            let info = ClientInfo { client: number.to_string(), ..ClientInfo::default() };
            node.engine().add_presence("large", &info).await.unwrap();
        }
        for _ in 0..7 {
            hub.publish("large", vec![b'1'; 1 << 20]).await.unwrap();
        }
        let history = r#"{"id":2,"history":{"channel":"CHANNEL","limit":-1}}"#;
        let recover = r#"{"id":2,"subscribe":{"channel":"CHANNEL","recover":true}}"#;
        let presence = r#"{"id":2,"presence":{"channel":"CHANNEL"}}"#;
        let stats = r#"{"id":2,"presence_stats":{"channel":"CHANNEL"}}"#;
        for command in [presence, stats, history, recover] {
            for (channel, is_large) in [("small", false), ("large", true)] {
                let mut session = connected(&node).await;
                let turns = turns(&mut session, &command.replace("CHANNEL", channel)).await;
                assert_eq!(turns > 1, is_large, "{command} {channel}: {turns}");
                assert!(!session.client.outbox.has_ended());
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_does_not_extend_what_a_callback_has_granted() {
        let config = HubConfig::from_toml("[token]\nhmac_secret = \"secret\"\n").unwrap();
        let hour = Duration::from_secs(3_600);
        // By the callback and by the tokens, in hours from now; and when the connection expires after each.
        for (granted, first, second, expected) in [
            (Some(1), Some(24), 24, [Some(1), Some(1)]),
            (Some(1), None, 24, [Some(1), Some(1)]),
            // What the token says, or longer.
            (Some(24), Some(24), 48, [Some(24), Some(48)]),
            (Some(48), Some(24), 48, [Some(24), Some(48)]),
            (None, Some(24), 48, [Some(24), Some(48)]),
            (None, None, 48, [None, Some(48)]),
        ] {
            let start = Clock::new().now();
            let at =
                |hours: Option<u32>| hours.map(|hours| Duration::from_secs((start + hour * hours).as_secs()));
            let sign = |exp: Option<u32>| {
                let exp = at(exp).map(|at| at.as_secs());
                config.sign_token(&TokenClaims { user: "7".into(), exp, ..TokenClaims::default() }).unwrap()
            };
            let granted = at(granted);
            let hub = Hub::builder().config(config.clone()).on_connect(move |event| async move {
                Ok(ConnectGrant { user: event.user, expires_at: granted, ..ConnectGrant::default() })
            });
            let node = hub.build().unwrap().0;
            let client = node.accept(Transport::WebSocket(Encoding::Json), None, None).unwrap();
            let mut session = Session::new(node.clone(), client.clone(), Headers::NONE);
            let connect = format!("{{\"id\":1,\"connect\":{{\"token\":\"{}\"}}}}", sign(first));
            session.handle_message(connect.as_str().into()).await;
            assert_eq!(client.expires_at(), at(expected[0]), "{expected:?}");
            let refresh = format!("{{\"id\":2,\"refresh\":{{\"token\":\"{}\"}}}}", sign(Some(second)));
            session.handle_message(refresh.as_str().into()).await;
            assert_eq!(client.expires_at(), at(expected[1]), "{expected:?}");
            // The server may extend it, and tokens after that.
            let action = Action::Refresh { expire_at: at(Some(30)).map(|at| at.as_secs()) };
            node.deliver_control(&Control { user: "7".into(), client: String::new(), action });
            assert_eq!(client.expires_at(), at(Some(30)), "{expected:?}");
            session.handle_message(refresh.as_str().into()).await;
            assert_eq!(client.expires_at(), at(Some(second)), "{expected:?}");
        }
    }

    /// Counts how often it is dropped.
    struct Foreign(Arc<AtomicUsize>);

    impl AsRef<[u8]> for Foreign {
        fn as_ref(&self) -> &[u8] {
            b"7"
        }
    }

    impl Drop for Foreign {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What the hub keeps is dropped under its locks.
    #[tokio::test]
    async fn the_hub_keeps_no_bytes_of_the_application() {
        let config = HubConfig::from_toml(
            "[channel]\npresence = true\njoin_leave = true\nhistory_size = 10\nhistory_ttl = \"1h\"\n",
        );
        let dropped = Arc::<AtomicUsize>::default();
        let foreign = {
            let dropped = dropped.clone();
            move || Bytes::from_owner(Foreign(dropped.clone()))
        };
        let (connect, subscribe, publish) = (foreign.clone(), foreign.clone(), foreign.clone());
        let hub = Hub::builder()
            .config(config.unwrap())
            .on_connect(move |_| {
                let (info, data) = (connect(), connect());
                async { Ok(ConnectGrant { user: "7".into(), info, data, ..ConnectGrant::default() }) }
            })
            .on_subscribe(move |_| {
                let (info, data) = (subscribe(), subscribe());
                async { Ok(SubscribeGrant { info, data, expires_at: None }) }
            })
            .on_publish(move |_| std::future::ready(Ok(publish())));
        let hub = hub.build().unwrap();
        let node = &hub.0;
        let client = node.accept(Transport::WebSocket(Encoding::Json), None, None).unwrap();
        let mut session = Session::new(node.clone(), client.clone(), Headers::NONE);
        for (command, expected) in [
            ("\"connect\":{}", 2),
            ("\"subscribe\":{\"channel\":\"a\"}", 4),
            ("\"publish\":{\"channel\":\"a\",\"data\":1}", 5),
        ] {
            session.handle_message(format!("{{\"id\":1,{command}}}").as_str().into()).await;
            assert_eq!(dropped.load(Ordering::Relaxed), expected, "{command}");
        }
        hub.publish("a", foreign()).await.unwrap();
        assert_eq!(dropped.load(Ordering::Relaxed), 6);
        let history = node.history("a", &HistoryQuery::default()).await.unwrap().unwrap();
        assert_eq!(history.publications.len(), 2);
        assert_eq!(node.engine().presence("a").await.unwrap()[0].chan_info, "7");
    }

    /// What was sent to a client.
    fn sent(client: &Client) -> Vec<serde_json::Value> {
        let mut messages = Vec::new();
        let _ = client.outbox.poll_take(&mut Context::from_waker(Waker::noop()), &mut messages);
        messages.iter().map(|message| serde_json::from_slice(message.as_bytes()).unwrap()).collect()
    }

    /// Until all other tasks wait.
    async fn settle() {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    /// A backend may send them before it answers who the client is.
    #[tokio::test]
    async fn a_client_that_has_not_connected_receives_no_commands_of_the_server_api() {
        let config = HubConfig::from_toml("[client]\nanonymous = true\n").unwrap();
        let node = Hub::builder().config(config).build().unwrap().0;
        let client = node.accept(Transport::WebSocket(Encoding::Json), None, None).unwrap();
        let mut session = Session::new(node.clone(), client.clone(), Headers::NONE);
        for action in [Action::Subscribe { channel: "a".into() }, Action::Refresh { expire_at: Some(1) }] {
            let client = client.id.to_string();
            node.deliver_control(&Control { user: String::new(), client, action });
        }
        settle().await;
        assert!(sent(&client).is_empty());
        let granted = subscribe::Request::from_server("a");
        let refused = subscribe::subscribe(&node, &client, granted).await.map(drop);
        assert_eq!(refused.unwrap_err().code, ErrorCode::PermissionDenied.code());
        session.handle_message("{\"id\":1,\"connect\":{}}".into()).await;
        assert!(!client.is_subscribed("a"));
        assert_eq!(client.expires_at(), None);
    }

    /// The engine is slow.
    #[tokio::test]
    async fn commands_of_the_server_api_follow_the_answer_to_connect() {
        const CHANNELS: usize = 16;
        let expire_at = Some(Clock::new().system_now().as_secs() + 3_600);
        let hub = Hub::builder().on_connect(|_| async {
            let channels = (0..CHANNELS).map(|number| number.to_string()).collect();
            Ok(ConnectGrant { user: "7".into(), channels, ..ConnectGrant::default() })
        });
        let node = hub.build().unwrap().0;
        let client = node.accept(Transport::WebSocket(Encoding::Json), None, None).unwrap();
        let mut session = Session::new(node.clone(), client.clone(), Headers::NONE);
        let control = |action| {
            node.deliver_control(&Control { user: "7".into(), client: String::new(), action });
        };
        {
            let mut connecting = std::pin::pin!(session.handle_message("{\"id\":1,\"connect\":{}}".into()));
            let begun = poll_fn(|cx| Poll::Ready(connecting.as_mut().poll(cx))).await;
            assert!(begun.is_pending() && client.has_connected());
            control(Action::Subscribe { channel: "late".into() });
            control(Action::Unsubscribe { channel: "0".into() });
            control(Action::Refresh { expire_at });
            settle().await;
            connecting.await;
        }
        settle().await;
        let messages = sent(&client);
        let connected = &messages[0]["connect"]["subs"];
        assert_eq!(connected.as_object().map(serde_json::Map::len), Some(CHANNELS), "{messages:?}");
        let is_pushed = |channel: &str, kind: &str| {
            messages[1..].iter().any(|one| one["push"]["channel"] == channel && one["push"][kind].is_object())
        };
        assert!(is_pushed("late", "subscribe") && is_pushed("0", "unsubscribe"), "{messages:?}");
        assert!(messages[1..].iter().any(|one| one["push"]["refresh"].is_object()), "{messages:?}");
        assert_eq!(["0", "1", "late"].map(|one| client.is_subscribed(one)), [false, true, true]);
        assert!(client.expires_at().is_some());
        // Nothing waits any more.
        control(Action::Unsubscribe { channel: "1".into() });
        assert!(!client.is_subscribed("1"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_of_this_process_ends_no_connection() {
        let hub = Hub::builder().config(HubConfig::from_toml("[client]\nanonymous = true\n").unwrap());
        let node = hub.build().unwrap().0;
        let client = node.accept(Transport::WebSocket(Encoding::Json), None, None).unwrap();
        let mut session = Session::new(node.clone(), client.clone(), Headers::NONE);
        let pause = Duration::from_secs(3_600);
        let timeout = async |session: &mut Session, pause| {
            tokio::time::sleep_until(node.clock.instant(session.kept.poll_timeout(&node, &client, true)))
                .await;
            tokio::time::advance(pause).await;
            session.kept.handle_timeout(&node, &client, true);
        };
        let has_ended = || client.outbox.has_ended();
        timeout(&mut session, pause).await;
        assert!(!has_ended());
        session.handle_message("{\"id\":1,\"connect\":{}}".into()).await;
        timeout(&mut session, Duration::ZERO).await;
        assert!(matches!(session.kept.state, State::Connected { ping: Ping::Missing(_) }));
        timeout(&mut session, pause).await;
        assert!(!has_ended());
        // What has arrived meanwhile is handled after that.
        session.handle_message("{}".into()).await;
        let pinged = node.clock.now() + session.node.settings().config.client.ping_interval;
        timeout(&mut session, Duration::ZERO).await;
        // No pong.
        while !has_ended() {
            timeout(&mut session, Duration::ZERO).await;
        }
        assert_eq!(node.clock.now() - pinged, node.settings().config.client.pong_timeout);
    }
}
