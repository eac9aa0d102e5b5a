//! The state of a node: its connections, its channels, and its side of the engine.

mod cluster;

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tracing::warn;

use crate::batch::Unwritten;
use crate::calls::Calls;
use crate::changes::{Change, Changes, Key};
use crate::channel_limits::ChannelLimits;
use crate::channels::{Channels, end_subscription};
use crate::client::{Active, Client, Format, Subscription, Transport};
use crate::clients::Clients;
use crate::clock::{Clock, WarningLimit, seconds};
use crate::concurrently::concurrently;
use crate::config::ChannelOptions;
use crate::engine::{Action, Control, Delivery, Engine, EngineError, Membership, PRESENCE_REFRESH};
use crate::events::{Events, Host};
use crate::history::{History, HistoryQuery, Position, Retention};
use crate::hooks::{DisconnectEvent, Hooks};
use crate::idempotency::Idempotency;
use crate::logins::Logins;
use crate::metrics::{HubStats, Metrics, SlowClient};
use crate::opened::Opened;
use crate::outbox::{Outbox, Pushed};
use crate::protocol::{Disconnect, ErrorCode, Publication, Push, RefreshPush, UnsubscribeCode};
use crate::random::token;
use crate::sessions::Sessions;
use crate::settings::Settings;
use crate::shards::lock;

/// The maximum number of concurrent refreshes of presence.
const REFRESHES_MAX: usize = 64;

/// The maximum number of subscriptions of a connection that are ended at the same time.
const LEAVES_MAX: usize = 64;

/// The maximum number of connections that are woken while no other connection can be added.
const WOKEN_MAX: usize = 256;

/// The number of deliveries that cost one unit of tokio's budget for one turn of a task, which is 128.
const DELIVERIES_PER_UNIT: usize = 512;

/// Charges work to the turn of the task, in units of tokio's budget: others should not wait for all that this task has to do.
pub(crate) async fn charge(units: usize) {
    for _ in 0..units {
        tokio::task::coop::consume_budget().await;
    }
}

/// Everything that the connections of a node share.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) clock: Clock,
    pub(crate) channels: Channels,
    pub(crate) hooks: Hooks,
    pub(crate) metrics: Metrics,
    pub(crate) idempotency: Idempotency,
    /// For warnings about what clients ask for.
    pub(crate) warnings: WarningLimit,
    /// For wrong API keys, which clients' warnings must not hide.
    key_warnings: WarningLimit,
    /// For what the engine fails to do for clients.
    engine_warnings: WarningLimit,
    /// For clients that are too slow.
    slow_warnings: WarningLimit,
    /// Of the admin page.
    pub(crate) logins: Logins,
    pub(crate) channel_limits: ChannelLimits,
    pub(crate) events: Arc<Events>,
    /// Of this node.
    pub(crate) sessions: Arc<Sessions>,
    calls: Calls,
    engine: Arc<dyn Engine>,
    settings: RwLock<Arc<Settings>>,
    clients: Mutex<Clients>,
    /// Another connection is to be woken next.
    next_has_changed: Arc<Notify>,
    /// The task of [`wake_clients`].
    waking: Mutex<Option<JoinHandle<()>>>,
    /// How many subscriptions have been begun.
    subscribes: AtomicU64,
    changes: Mutex<Changes>,
    /// The runtime of the first connection. Engines may deliver from other threads, and need it to spawn tasks.
    runtime: OnceLock<Handle>,
    this: Weak<Node>,
}

impl std::fmt::Debug for dyn Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a publication failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PublishError {
    /// The name is empty or too long.
    BadChannel,
    /// The idempotency key is too long.
    BadKey,
    /// The channel's namespace does not exist.
    UnknownNamespace,
    /// The engine failed.
    Engine(EngineError),
}

impl std::fmt::Display for PublishError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::BadChannel => f.write_str("the name of the channel is empty or too long"),
            Self::BadKey => f.write_str("the idempotency key is too long"),
            Self::UnknownNamespace => f.write_str("the namespace of the channel does not exist"),
            Self::Engine(error) => error.fmt(f),
        }
    }
}

impl From<EngineError> for PublishError {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

impl std::error::Error for PublishError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Engine(error) => Some(error),
            _ => None,
        }
    }
}

impl Node {
    pub(crate) fn new(hooks: Hooks, engine: Arc<dyn Engine>, settings: Settings) -> Arc<Self> {
        let clock = Clock::new();
        Arc::new_cyclic(|this| Self {
            name: engine.node_name().map_or_else(token, str::to_owned),
            clock: clock.clone(),
            channels: Channels::new(),
            hooks,
            metrics: Metrics::default(),
            idempotency: Idempotency::default(),
            warnings: WarningLimit::default(),
            key_warnings: WarningLimit::default(),
            engine_warnings: WarningLimit::default(),
            slow_warnings: WarningLimit::default(),
            logins: Logins::default(),
            channel_limits: ChannelLimits::default(),
            events: Arc::new(Events::new(engine.clone(), clock)),
            sessions: Arc::default(),
            calls: Calls::default(),
            engine,
            settings: RwLock::new(Arc::new(settings)),
            clients: Mutex::default(),
            next_has_changed: Arc::default(),
            waking: Mutex::default(),
            subscribes: AtomicU64::new(0),
            changes: Mutex::default(),
            runtime: OnceLock::new(),
            this: this.clone(),
        })
    }

    pub(crate) fn engine(&self) -> &dyn Engine {
        &*self.engine
    }

    pub(crate) fn settings(&self) -> Arc<Settings> {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_settings(&self, settings: Settings) {
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }

    /// The options of a channel.
    pub(crate) fn options(&self, channel: &str) -> Option<ChannelOptions> {
        self.settings().config.channel_options(channel).cloned()
    }

    /// Starts the background tasks, in the runtime of the first connection.
    pub(crate) fn start(&self) {
        self.runtime.get_or_init(|| {
            if let Some(node) = self.this.upgrade() {
                let delivery: Arc<dyn Delivery> = node;
                self.engine.start(Arc::downgrade(&delivery));
                let host: Weak<dyn Host> = self.this.clone();
                self.events.start(&host);
                tokio::spawn(maintain(self.this.clone()));
                tokio::spawn(refresh_presence(self.this.clone()));
            }
            Handle::current()
        });
    }

    /// Starts [`wake_clients`] in the runtime of this connection, unless it runs: the runtime that it was in may have ended.
    fn start_waking(&self) {
        let mut waking = lock(&self.waking);
        if waking.as_ref().is_none_or(JoinHandle::is_finished)
            && let Ok(runtime) = Handle::try_current()
        {
            *waking = Some(runtime.spawn(wake_clients(self.this.clone())));
        }
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = self.runtime.get() {
            runtime.spawn(task);
        }
    }

    /// Writes queued messages. A node without a runtime has no connections.
    pub(crate) fn write_later(&self, unwritten: Unwritten) {
        if let Some(runtime) = self.runtime.get() {
            unwritten.write_later(runtime);
        }
    }

    pub(crate) fn check_channel(&self, channel: &str) -> Result<(), PublishError> {
        let len_max = self.settings().config.client.channel_name_len_max;
        if channel.is_empty() || channel.len() > len_max { Err(PublishError::BadChannel) } else { Ok(()) }
    }

    pub(crate) async fn publish(
        &self,
        channel: &str,
        publication: Publication,
        skip_history: bool,
        idempotency_key: &str,
    ) -> Result<Position, PublishError> {
        self.start();
        self.check_channel(channel)?;
        let settings = self.settings();
        let options = settings.config.channel_options(channel).ok_or(PublishError::UnknownNamespace)?;
        let retention = retention(options).filter(|_| !skip_history);
        self.metrics.publications.increment();
        let published = self.engine.publish(channel, publication, retention, idempotency_key).await;
        charge(1 + self.channels.subscribers(channel) / DELIVERIES_PER_UNIT).await;
        published.map_err(PublishError::Engine)
    }

    /// Adds a connection. An error if there are too many, or the hub is shutting down.
    pub(crate) fn accept(
        &self,
        transport: Transport,
        peer: Option<SocketAddr>,
        page: Option<Box<str>>,
    ) -> Result<Arc<Client>, Disconnect> {
        self.start();
        self.start_waking();
        let settings = self.settings();
        let config = &settings.config.client;
        let outbox = Outbox::new(config.queue_len_max, config.slow);
        let client = Client::new(transport, peer, page, outbox);
        let added = lock(&self.clients).add(client, config.connections_max);
        added.inspect_err(|reason| self.metrics.ended.increment(reason.code().into()))
    }

    /// Whether this time has come. Otherwise the outbox of the connection wakes its task then, or before.
    pub(crate) fn is_due(&self, client: &Arc<Client>, at: Duration) -> bool {
        if client.wakes_at.get().is_some_and(|wakes_at| wakes_at <= at) || at == Duration::MAX {
            return false;
        }
        if at <= self.clock.now() {
            return true;
        }
        if lock(&self.clients).timers.wake_at(client, at) {
            self.next_has_changed.notify_one();
        }
        false
    }

    /// Registers the user of a connection; returns false if the user has too many connections.
    pub(crate) fn identify(&self, client: &Arc<Client>) -> bool {
        let user_max = self.settings().config.client.connections_per_user_max;
        let Ok(missed) = lock(&self.clients).identify(client, user_max) else { return false };
        if let Some(reason) = missed {
            client.outbox.end(reason);
        }
        self.metrics.connected.increment();
        true
    }

    /// Ends all subscriptions of a connection, which cannot subscribe any more.
    pub(crate) async fn leave_all(&self, client: &Arc<Client>, reason: &Disconnect) {
        client.outbox.end(reason.clone());
        let subscriptions = lock(&client.subscriptions).take();
        let (Some(node), Some(runtime), false) =
            (self.this.upgrade(), self.runtime.get(), subscriptions.is_empty())
        else {
            return;
        };
        let (code, reason): (u32, Arc<str>) = (reason.code().into(), reason.reason().into());
        let client = client.clone();
        let leaves = subscriptions.into_iter().filter_map(move |(channel, subscription)| {
            let Subscription::Active(active) = subscription else { return None };
            let (node, client, reason) = (node.clone(), client.clone(), reason.clone());
            Some(async move {
                node.channels.remove(&channel, active.key());
                node.changes_made(&channel, &client).await;
                node.leave(&channel, &client, active, code, &reason).await;
            })
        });
        // In a task of its own, because that of the connection may be dropped halfway.
        let leaving = runtime.spawn(concurrently(LEAVES_MAX, leaves));
        // An error: the runtime ends.
        let _ = leaving.await;
    }

    /// Removes a connection that has ended.
    pub(crate) async fn forget(&self, client: &Arc<Client>, reason: Disconnect) {
        self.leave_all(client, &reason).await;
        let opened = lock(&self.clients).remove(client);
        if let Some(opened) = opened {
            self.events.end(opened, reason.code().into(), reason.reason());
        }
        if let (Some(_), Some(hook)) = (client.identity(), &self.hooks.disconnect) {
            hook(DisconnectEvent { client: client.id.to_string(), user: client.user().into(), reason }).await;
        }
    }

    /// A number for a subscription that is being established.
    pub(crate) fn begin_subscribe(&self) -> u64 {
        self.subscribes.fetch_add(1, Ordering::Relaxed)
    }

    /// Notes that the end of a connection is to be reported.
    pub(crate) fn note_opened(&self, client: &Client, opened: Opened) {
        lock(&self.clients).note_opened(client, opened);
    }

    /// What is about to be opened, if its end is to be reported.
    pub(crate) fn prepare(&self, client: &Client, channel: Option<&str>) -> Option<Opened> {
        self.settings().events.as_ref()?;
        Some(self.events.prepare(&client.id.text(), client.user(), channel))
    }

    /// Makes presence agree with a client's subscription. Several tasks may do so at the same time, without a lock: each looks again
    /// after its change, so that the one that makes the last change has seen the last state.
    pub(crate) async fn update_presence(&self, channel: &str, client: &Client) -> Result<(), EngineError> {
        let mut listed = client.presence_in(channel);
        loop {
            match &listed {
                Some(info) => self.engine.add_presence(channel, info).await?,
                None => self.engine.remove_presence(channel, &client.id.text()).await?,
            }
            let before = std::mem::replace(&mut listed, client.presence_in(channel));
            if listed == before {
                return Ok(());
            }
        }
    }

    /// Informs the engine, the backend and the other subscribers of the end of a subscription, which is not listed any more.
    async fn leave(&self, channel: &str, client: &Client, active: Active, code: u32, reason: &str) {
        self.engine.unsubscribe(channel);
        if let Some(opened) = active.opened() {
            self.events.end(opened.clone(), code, reason);
        }
        if active.presence
            && let Err(error) = self.update_presence(channel, client).await
        {
            self.note_engine_failure(channel, &error, "presence was not removed");
        }
        if active.announced {
            self.announce(channel, Membership::Leave(client.info(active.info()))).await;
        }
    }

    async fn announce(&self, channel: &str, membership: Membership) {
        if let Err(error) = self.engine.publish_membership(channel, membership).await {
            self.note_engine_failure(channel, &error, "a join or a leave was not announced");
        }
    }

    /// Ends a subscription from the server's side, and with it a connection that has no other. What is published after this returns is
    /// not forwarded.
    pub(crate) fn unsubscribe(&self, channel: &str, client: &Arc<Client>, code: UnsubscribeCode) {
        if client.format == Format::Bare && lock(&client.subscriptions).get(channel).is_some() {
            // RFC 6455 §7.4.1: the code for a violation of the server's policy. The end of the connection ends the subscription.
            let reason = code.reason().into();
            return client.outbox.end(Disconnect::Custom { code: 1008, reason });
        }
        let mut changes = lock(&self.changes);
        if code == UnsubscribeCode::Server {
            changes.cancel_subscribes(&Key::new(channel, client));
        }
        if let Some(active) = end_subscription(&self.channels, channel, client, code) {
            let (code, reason) = (code.code(), code.reason());
            self.change(&mut changes, channel, client, Change::Leave { active, code, reason });
        }
    }

    /// Ends a subscription that the client gives up. What follows is done also if the caller does not wait for it.
    ///
    /// # Errors
    /// The server made it.
    pub(crate) async fn unsubscribe_by_client(
        &self,
        channel: &str,
        client: &Arc<Client>,
    ) -> Result<(), ErrorCode> {
        {
            let mut changes = lock(&self.changes);
            let active = {
                let mut subscriptions = lock(&client.subscriptions);
                match subscriptions.get(channel) {
                    Some(Subscription::Active(active)) if active.server_side => {
                        return Err(ErrorCode::PermissionDenied);
                    }
                    Some(Subscription::Active(active)) => {
                        let active = active.clone();
                        subscriptions.remove(channel);
                        active
                    }
                    // Commands are executed one after the other, so that no subscribe command is in progress.
                    Some(Subscription::Pending(_)) | None => return Ok(()),
                }
            };
            self.channels.remove(channel, active.key());
            let (code, reason) = (0, "client unsubscribed");
            self.change(&mut changes, channel, client, Change::Leave { active, code, reason });
        }
        self.changes_made(channel, client).await;
        Ok(())
    }

    /// Announces the join of a subscription that has started, unless it has ended meanwhile. Its leave comes after this.
    pub(crate) fn join(&self, channel: &str, client: &Arc<Client>, key: usize) {
        let mut changes = lock(&self.changes);
        let info = match lock(&client.subscriptions).get_mut(channel) {
            Some(Subscription::Active(active)) if active.key() == key && !active.announced => {
                active.announced = true;
                active.info()
            }
            _ => return,
        };
        self.change(&mut changes, channel, client, Change::Join(client.info(info)));
    }

    /// Returns when the changes of a client's subscription that were begun before have been made.
    pub(crate) async fn changes_made(&self, channel: &str, client: &Client) {
        let made = lock(&self.changes).made(|| Key::new(channel, client));
        if let Some(made) = made {
            // An error: the runtime ends.
            let _ = made.await;
        }
    }

    /// Makes a change after those of the same connection and channel that were asked for before.
    fn change(&self, changes: &mut Changes, channel: &str, client: &Arc<Client>, change: Change) {
        let Some(node) = self.this.upgrade() else { return };
        let key = Key::new(channel, client);
        if !changes.push(&key, change) {
            return;
        }
        let client = client.clone();
        self.spawn(async move {
            loop {
                let Some(change) = lock(&node.changes).pop(&key) else { return };
                let channel = key.channel();
                match change {
                    Change::Subscribe => {
                        let is_cancelled = || lock(&node.changes).is_cancelled(&key);
                        subscribe_from_server(&node, &client, channel, is_cancelled).await;
                    }
                    Change::Join(info) => node.announce(channel, Membership::Join(info)).await,
                    Change::Leave { active, code, reason } => {
                        node.leave(channel, &client, active, code, reason).await;
                    }
                    Change::Made(waiting) => drop(waiting.send(())),
                }
            }
        });
    }

    /// Handles a client that can no longer follow a channel. If it subscribed by a command, its subscription ends so
    /// that it subscribes again; otherwise it must reconnect.
    pub(crate) fn lose_position(&self, channel: &str, client: &Arc<Client>) {
        if matches!(client.format, Format::Protocol(_)) && !client.is_subscribed_by_server(channel) {
            self.unsubscribe(channel, client, UnsubscribeCode::InsufficientState);
        } else {
            client.outbox.end(Disconnect::InsufficientState);
        }
    }

    /// The number of subscriptions of all connections of a user, the anonymous one excepted.
    pub(crate) fn subscriptions_of(&self, user: &str) -> usize {
        self.clients_of(user, "").iter().map(|client| lock(&client.subscriptions).len()).sum()
    }

    /// The connections of a user, or the one with this id.
    pub(crate) fn clients_of(&self, user: &str, client: &str) -> Vec<Arc<Client>> {
        lock(&self.clients).of(user, client)
    }

    pub(crate) fn all_clients(&self) -> Vec<Arc<Client>> {
        lock(&self.clients).iter().cloned().collect()
    }

    pub(crate) fn clients_len(&self) -> usize {
        lock(&self.clients).len()
    }

    pub(crate) fn users_len(&self) -> usize {
        lock(&self.clients).users_len()
    }

    pub(crate) async fn history(
        &self,
        channel: &str,
        query: &HistoryQuery,
    ) -> Result<Option<History>, EngineError> {
        let Some(retention) = self.options(channel).as_ref().and_then(retention) else { return Ok(None) };
        self.engine.history(channel, query, retention).await.map(Some)
    }

    /// Ends every connection. Returns when all have disconnected, or after `grace`.
    pub(crate) async fn shut_down(&self, grace: Duration) {
        let clients: Vec<_> = {
            let mut clients = lock(&self.clients);
            clients.close();
            clients.iter().cloned().collect()
        };
        clients.iter().for_each(|client| client.outbox.end(Disconnect::Shutdown));
        let gone = async {
            while self.clients_len() > 0 || !self.events.is_done() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let _ = tokio::time::timeout(grace, gone).await;
    }

    /// At most `max` clients whose send queues are not empty, the longest queue first.
    pub(crate) fn slowest(&self, max: usize) -> Vec<SlowClient> {
        let clients = lock(&self.clients);
        let queued = clients.iter().map(|client| (client.outbox.backlog(), client));
        let mut slow: Vec<_> = queued.filter(|(backlog, _)| backlog.queued > 0).collect();
        slow.sort_unstable_by_key(|(backlog, _)| std::cmp::Reverse(backlog.queued));
        slow.truncate(max);
        slow.into_iter().map(|(backlog, client)| SlowClient::new(client, backlog)).collect()
    }

    pub(crate) fn stats(&self) -> HubStats {
        let metrics = &self.metrics;
        HubStats {
            clients: lock(&self.clients).len(),
            channels: self.channels.len(),
            connected: metrics.connected.get(),
            publications: metrics.publications.get(),
            dropped: metrics.dropped.get(),
            evicted_slow: metrics.evicted_slow.get(),
            recovered: metrics.recovered.get(),
            unrecovered: metrics.unrecovered.get(),
            refused: metrics.refused.get(),
            ended: metrics.ended.get(),
            wrong_keys: metrics.wrong_keys.get(),
            engine_failures: metrics.engine_failures.get(),
        }
    }

    /// Counts a request with a wrong API key. The log has one a second at most.
    pub(crate) fn note_wrong_key(&self, peer: IpAddr, whose: &str) {
        self.metrics.wrong_keys.increment();
        if self.key_warnings.may_warn(self.clock.now()) {
            warn!(%peer, "a wrong key was sent to {whose}");
        }
    }

    /// Counts what the engine failed to do for a client in a channel. The log has one a second at most.
    pub(crate) fn note_engine_failure(&self, channel: &str, error: &EngineError, what: &str) {
        self.metrics.engine_failures.increment();
        if self.engine_warnings.may_warn(self.clock.now()) {
            warn!(channel, %error, "{what}");
        }
    }

    /// Counts a client that was disconnected because it is slow. The log has one a second at most.
    pub(crate) fn note_eviction(&self, client: &Client) {
        self.metrics.evicted_slow.increment();
        if self.slow_warnings.may_warn(self.clock.now()) {
            warn!(
                reason = "slow",
                client = &*client.id.text(),
                user = client.user(),
                "client evicted: it reads too slowly"
            );
        }
    }

    /// Counts a publication that a slow client does not receive. Called while its channel is locked; a client that is evicted is logged
    /// when its connection ends.
    pub(crate) fn note_pushed(&self, pushed: Pushed) {
        if pushed == Pushed::Dropped {
            self.metrics.dropped.increment();
        }
    }
}

/// How much of a channel's history is kept; `None` if it has no history.
pub(crate) fn retention(options: &ChannelOptions) -> Option<Retention> {
    options.has_history().then(|| Retention {
        size: options.history_size,
        ttl: options.history_ttl,
        position_ttl: options.history_meta_ttl.max(options.history_ttl),
    })
}

impl Host for Node {
    fn settings(&self) -> Arc<Settings> {
        Self::settings(self)
    }

    fn opened(&self) -> Vec<Opened> {
        let (mut all, clients): (Vec<_>, Vec<_>) = {
            let clients = lock(&self.clients);
            (clients.opened().values().cloned().collect(), clients.iter().cloned().collect())
        };
        for client in clients {
            let subscriptions = lock(&client.subscriptions);
            all.extend(subscriptions.iter().filter_map(|(_, subscription)| match subscription {
                Subscription::Active(active) => active.opened().cloned(),
                Subscription::Pending(_) => None,
            }));
        }
        all
    }

    fn end_opened(&self) {
        let opened: Vec<_> = {
            let clients = lock(&self.clients);
            clients.iter().filter(|client| clients.opened().contains_key(&client.id)).cloned().collect()
        };
        opened.iter().for_each(|client| client.outbox.end(Disconnect::ForceReconnect));
    }
}

impl Delivery for Node {
    fn retention(&self, channel: &str) -> Option<Retention> {
        self.options(channel).as_ref().and_then(retention)
    }

    fn deliver_publication(&self, channel: &str, epoch: &str, previous: u64, publication: &Arc<Publication>) {
        let on_slow = |pushed| self.note_pushed(pushed);
        let (lost, unwritten) = self.channels.publish(channel, epoch, previous, publication, &on_slow);
        self.write_later(unwritten);
        for (client, _) in lost {
            self.lose_position(channel, &client);
        }
    }

    fn deliver_membership(&self, channel: &str, membership: &Membership) {
        let on_slow = |pushed| self.note_pushed(pushed);
        self.write_later(self.channels.announce(channel, membership, &on_slow));
    }

    fn deliver_history_lost(&self, channel: &str) {
        for (client, _) in self.channels.lose_history(channel) {
            self.lose_position(channel, &client);
        }
    }

    fn deliver_from_node(&self, message: &[u8]) {
        self.handle_from_node(message);
    }

    fn deliver_control(&self, control: &Control) {
        // Each command is read once, in the order of their log, and concerns the connections that exist then. Those whose user is not known
        // yet compare the order later.
        if let Action::Disconnect { .. } = &control.action {
            lock(&self.clients).note_disconnect(control);
        }
        for client in self.clients_of(&control.user, &control.client) {
            match &control.action {
                Action::Subscribe { .. } if !client.takes_channels() => {}
                Action::Disconnect { .. } => {
                    if let Some(reason) = control.ends(&client) {
                        client.outbox.end(reason);
                    }
                }
                Action::Unsubscribe { channel } => {
                    self.unsubscribe(channel, &client, UnsubscribeCode::Server);
                }
                Action::Subscribe { channel } => {
                    self.change(&mut lock(&self.changes), channel, &client, Change::Subscribe);
                }
                Action::Refresh { expire_at } => {
                    let expires_at = self.clock.expiry(expire_at.and_then(crate::proxy::expiry));
                    client.set_expires_at(expires_at);
                    let ttl = expires_at.map_or(0, |at| seconds(at.saturating_sub(self.clock.now())));
                    let refresh = RefreshPush { expires: expires_at.is_some(), ttl };
                    client.push(Push { refresh: Some(refresh), ..Push::default() });
                    // A room receives no push, and may expire earlier now.
                    client.outbox.wake();
                }
            }
        }
    }
}

async fn subscribe_from_server(
    node: &Arc<Node>,
    client: &Arc<Client>,
    channel: &str,
    is_cancelled: impl Fn() -> bool,
) {
    let subscribed =
        crate::subscribe::subscribe(node, client, crate::subscribe::Request::from_server(channel)).await;
    let established = match subscribed {
        Ok(established) => established,
        Err(refusal) => return crate::subscribe::warn_refused(node, client, channel, &refusal),
    };
    if is_cancelled() {
        return;
    }
    let push = crate::session::subscribed(channel, &established.result);
    established.begin(vec![crate::protocol::Reply { push: Some(push), ..Default::default() }]).await;
}

/// Drops expired publications, every second.
async fn maintain(node: Weak<Node>) {
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(node) = node.upgrade() else { return };
        if let Some(step) = node.clock.correct() {
            warn!(?step, "the machine was suspended: the clock is set forward");
        }
        node.engine.maintain();
        node.idempotency.expire(node.clock.now());
    }
}

/// Wakes the tasks of connections whose time has come. It looks once a second at least: the machine may have been suspended.
async fn wake_clients(node: Weak<Node>) {
    loop {
        let Some(node) = node.upgrade() else { return };
        let now = node.clock.now();
        let (due, next) = {
            let timers = &mut lock(&node.clients).timers;
            (timers.take_due(now, WOKEN_MAX), timers.next())
        };
        due.iter().for_each(|client| client.outbox.wake());
        let next = node.clock.instant(next.min(now + Duration::from_secs(1)));
        let has_changed = node.next_has_changed.clone();
        drop((node, due));
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            () = has_changed.notified() => {}
        }
        charge(1).await;
    }
}

/// Refreshes the presence of this node's clients.
async fn refresh_presence(node: Weak<Node>) {
    let mut ticks =
        tokio::time::interval_at(tokio::time::Instant::now() + PRESENCE_REFRESH, PRESENCE_REFRESH);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(node) = node.upgrade() else { return };
        let refreshes = node.all_clients().into_iter().flat_map(|client| {
            let subscriptions = lock(&client.subscriptions);
            let listed = subscriptions.iter().filter_map(|(channel, subscription)| match subscription {
                Subscription::Active(active) if active.presence => {
                    let (node, client, channel) = (node.clone(), client.clone(), channel.clone());
                    Some(async move {
                        if let Err(error) = node.update_presence(&channel, &client).await {
                            node.note_engine_failure(&channel, &error, "presence was not refreshed");
                        }
                    })
                }
                _ => None,
            });
            listed.collect::<Vec<_>>()
        });
        concurrently(REFRESHES_MAX, refreshes).await;
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::client::Identity;
    use crate::connecting::RECENT_MAX;
    use crate::hub::Hub;
    use crate::protocol::Encoding;

    /// A client of user 7 that has connected.
    fn connected(node: &Node) -> Arc<Client> {
        let client = node.accept(Transport::WebSocket(Encoding::Json), None, None).unwrap();
        client.connect(Identity { user: "7".into(), ..Identity::default() });
        assert!(node.identify(&client));
        client
    }

    fn give(node: &Node, action: Action) {
        node.deliver_control(&Control { user: "7".into(), client: String::new(), action });
    }

    /// Keeps warnings.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<String>>>);

    impl tracing::Subscriber for Log {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            *metadata.level() <= tracing::Level::WARN && metadata.is_event()
        }

        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }

        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

        fn event(&self, event: &tracing::Event<'_>) {
            struct Line(String, String);
            impl tracing::field::Visit for Line {
                fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                    match field.name() {
                        "message" => self.0 = format!("{value:?}"),
                        name => self.1 += &format!(" {name}={value:?}"),
                    }
                }
            }
            let mut line = Line(String::new(), String::new());
            event.record(&mut line);
            lock(&self.0).push(line.0 + &line.1);
        }

        fn enter(&self, _: &tracing::span::Id) {}

        fn exit(&self, _: &tracing::span::Id) {}
    }

    #[tokio::test]
    async fn a_connection_that_ends_makes_room_for_the_next_one_of_its_user() {
        let config = crate::config::HubConfig::from_toml("[client]\nconnections_per_user_max = 2\n").unwrap();
        let hub = Hub::builder().config(config).build().unwrap();
        let node = &hub.0;
        let (first, _second) = (connected(node), connected(node));
        let third = node.accept(Transport::WebSocket(Encoding::Json), None, None).unwrap();
        third.connect(Identity { user: "7".into(), ..Identity::default() });
        assert!(!node.identify(&third));
        // The engine need not know yet.
        first.outbox.end(Disconnect::ConnectionClosed);
        let fourth = connected(node);
        node.forget(&first, Disconnect::ConnectionClosed).await;
        node.forget(&fourth, Disconnect::ConnectionClosed).await;
        connected(node);
    }

    #[test]
    fn connections_are_woken_after_the_first_runtime_has_ended() {
        let hub = Hub::builder().build().unwrap();
        for _ in 0..2 {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            runtime.block_on(async {
                let client = connected(&hub.0);
                let at = hub.0.clock.now() + Duration::from_millis(10);
                assert!(!hub.0.is_due(&client, at));
                let woken = async {
                    while client.wakes_at.get().is_some() {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                };
                tokio::time::timeout(Duration::from_secs(60), woken).await.unwrap();
            });
        }
    }

    async fn changes_are_made(node: &Node) {
        while !lock(&node.changes).is_empty() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_command_that_is_no_longer_kept_ends_those_who_were_connecting() {
        let hub = Hub::builder().build().unwrap();
        let node = &hub.0;
        let accept = || node.accept(Transport::WebSocket(Encoding::Json), None, None).unwrap();
        let disconnect = |user: &str| {
            let action = Action::Disconnect { code: 3503, reason: String::new(), except: Vec::new() };
            node.deliver_control(&Control { user: user.into(), client: String::new(), action });
        };
        let is_ended = |client: Arc<Client>, user: &str| {
            client.connect(Identity { user: user.into(), ..Identity::default() });
            assert!(node.identify(&client));
            client.outbox.has_ended()
        };
        let (one, anonymous, in_time, other) = (accept(), accept(), accept(), accept());
        disconnect("7");
        (1..RECENT_MAX).for_each(|_| disconnect("8"));
        assert!(!is_ended(in_time, "9"));
        disconnect("8");
        let later = accept();
        assert_eq!([is_ended(one, "7"), is_ended(other, "9")], [true, true]);
        assert_eq!([is_ended(anonymous, ""), is_ended(later, "7")], [false, false]);
    }

    /// Counts the lines of the log.
    #[derive(Clone, Default)]
    struct Lines(Arc<AtomicUsize>);

    impl tracing::Subscriber for Lines {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }

        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

        fn event(&self, _: &tracing::Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn enter(&self, _: &tracing::span::Id) {}

        fn exit(&self, _: &tracing::span::Id) {}
    }

    #[tokio::test(start_paused = true)]
    async fn failures_for_many_clients_are_one_line_a_second() {
        let lines = Lines::default();
        let _log = tracing::subscriber::set_default(lines.clone());
        let hub = Hub::builder().build().unwrap();
        let (node, client) = (&hub.0, connected(&hub.0));
        for second in 1..=3 {
            for _ in 0..100 {
                node.note_engine_failure("x", &EngineError::Unavailable("down".into()), "not subscribed");
                node.note_eviction(&client);
            }
            let stats = hub.stats();
            assert_eq!((stats.engine_failures, stats.evicted_slow), (100 * second, 100 * second));
            assert_eq!(lines.0.load(Ordering::Relaxed) as u64, 2 * second);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
    }

    #[tokio::test]
    async fn subscriptions_by_the_server_keep_the_order_of_its_commands() {
        let hub = Hub::builder().build().unwrap();
        let node = &hub.0;
        let client = connected(node);
        for (channel, count) in [("a", 2), ("b", 3), ("c", 4)] {
            for number in 0..count {
                let channel = channel.to_owned();
                give(
                    node,
                    match number % 2 {
                        0 => Action::Subscribe { channel },
                        _ => Action::Unsubscribe { channel },
                    },
                );
            }
        }
        changes_are_made(node).await;
        assert_eq!(["a", "b", "c"].map(|channel| client.is_subscribed(channel)), [false, true, false]);
    }

    #[tokio::test]
    async fn a_room_sees_at_once_that_it_expires() {
        let hub = Hub::builder().build().unwrap();
        let node = &hub.0;
        let client = node.accept(Transport::Room, None, None).unwrap();
        client.connect(Identity { user: "7".into(), ..Identity::default() });
        assert!(node.identify(&client));
        let polls = Arc::<AtomicUsize>::default();
        let (polled, waiting) = (polls.clone(), client.clone());
        let task = tokio::spawn(poll_fn(move |cx| {
            polled.fetch_add(1, Ordering::Relaxed);
            let _ = waiting.outbox.poll_take(cx, &mut Vec::new());
            std::task::Poll::<()>::Pending
        }));
        tokio::task::yield_now().await;
        give(node, Action::Refresh { expire_at: Some(1) });
        tokio::task::yield_now().await;
        assert_eq!(polls.load(Ordering::Relaxed), 2);
        task.abort();
    }

    #[tokio::test]
    async fn a_refused_subscription_of_the_server_is_logged() {
        let log = Log::default();
        let _guard = tracing::subscriber::set_default(log.clone());
        let hub = Hub::builder().build().unwrap();
        let node = &hub.0;
        let client = connected(node);
        give(node, Action::Subscribe { channel: "unknown:a".into() });
        changes_are_made(node).await;
        let lines = lock(&log.0).clone();
        let expected = format!(
            "a subscription that the server made was refused channel=\"unknown:a\" client=\"{}\" user=\"7\" reason=\"unknown channel\"",
            &*client.id.text()
        );
        assert_eq!(lines, [expected]);
        assert_eq!(hub.stats().refused, [(102, 1)].into());
    }

    #[tokio::test]
    async fn nothing_is_forwarded_after_the_server_has_unsubscribed_a_client() {
        let hub = Hub::builder().build().unwrap();
        let node = &hub.0;
        let client = connected(node);
        give(node, Action::Subscribe { channel: "a".into() });
        changes_are_made(node).await;
        let publish = async || {
            let before = client.outbox.backlog();
            hub.publish("a", "1").await.unwrap();
            client.outbox.backlog() != before
        };
        assert!(publish().await);
        // This one is still to be made, and holds up no other.
        give(node, Action::Subscribe { channel: "b".into() });
        give(node, Action::Unsubscribe { channel: "a".into() });
        assert!(!publish().await);
        // Nor is a subscription made that is ended before.
        give(node, Action::Unsubscribe { channel: "b".into() });
        changes_are_made(node).await;
        assert!(!client.is_subscribed("b"));
        assert_eq!(node.channels.len(), 0);
    }

    #[tokio::test]
    async fn a_task_does_not_make_many_deliveries_in_one_turn() {
        let hub = Hub::builder().build().unwrap();
        let client = connected(&hub.0);
        (0..5_000).for_each(|_| drop(hub.0.channels.add("a", client.clone(), false)));
        for (channel, at_least) in [("a", 7), ("b", 0)] {
            let mut all = pin!(async {
                for _ in 0..100 {
                    hub.0.publish(channel, Publication::default(), false, "").await.unwrap();
                }
            });
            let mut turns = 0;
            poll_fn(|cx| {
                turns += 1;
                all.as_mut().poll(cx)
            })
            .await;
            assert!((at_least..=2 * at_least + 2).contains(&turns), "{channel}: {turns}");
        }
    }
}
