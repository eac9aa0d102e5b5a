//! The hub: every connection and channel of a node, and the operations on them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Handle;
use tracing::warn;

use crate::auth::Verifier;
use crate::channels::{Channels, end_subscription};
use crate::client::{Active, Client, Format, Subscription};
use crate::clock::Clock;
use crate::config::{ChannelOptions, ConfigError, HubConfig};
use crate::engine::{
    Action, Control, Delivery, Engine, EngineError, Membership, MemoryEngine, PRESENCE_REFRESH,
};
use crate::history::{History, HistoryQuery, Position, Retention};
use crate::hooks::{
    ConnectEvent, ConnectGrant, DisconnectEvent, HookFuture, Hooks, PublishEvent, Refusal, RpcEvent,
    SubscribeEvent, SubscribeGrant,
};
use crate::metrics::{HubStats, Metrics};
use crate::outbox::{Outbox, Pushed};
use crate::protocol::{ClientInfo, Disconnect, Encoding, Publication, Push, RefreshPush, UnsubscribeCode};
use crate::random::{token, uuid};
use crate::shards::lock;

/// Channels with a history that one node keeps, unless the engine was made with another limit.
const CHANNELS_MAX: usize = 1_000_000;

/// Channels, their subscribers and their histories. Clones are handles to the same hub.
///
/// ```
/// use wireloom::Server;
/// use wireloom_hub::{Hub, HubConfig};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let config = HubConfig::from_toml(
///     r#"
///     client.anonymous = true
///     channel = { subscribe = "anyone", publish = "anyone", history_size = 100, history_ttl = "1h" }
///     "#,
/// )?;
/// let hub = Hub::builder().config(config).build()?;
/// hub.publish("news", r#"{"hello": "world"}"#).await?;
/// Server::bind("127.0.0.1:8000").await?.serve(move |request| {
///     let hub = hub.clone();
///     async move { hub.answer(request).await }
/// }).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Hub(pub(crate) Arc<Node>);

/// Everything that the connections of a node share.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) clock: Clock,
    pub(crate) channels: Channels,
    pub(crate) hooks: Hooks,
    pub(crate) metrics: Metrics,
    engine: Arc<dyn Engine>,
    settings: RwLock<Arc<Settings>>,
    clients: Mutex<Clients>,
    /// The runtime of the first connection; engines deliver from threads of their own.
    runtime: OnceLock<Handle>,
    this: Weak<Node>,
}

/// The state that a new configuration replaces as a whole.
pub(crate) struct Settings {
    pub(crate) config: HubConfig,
    pub(crate) verifier: Verifier,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Settings")
    }
}

impl std::fmt::Debug for dyn Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The connections of a node.
#[derive(Debug, Default)]
struct Clients {
    by_id: HashMap<String, Arc<Client>>,
    /// How many connections each user has; none is listed with 0.
    by_user: HashMap<String, Vec<Arc<Client>>>,
    is_closed: bool,
}

/// Makes a [`Hub`].
#[derive(Default)]
pub struct HubBuilder {
    config: HubConfig,
    engine: Option<Arc<dyn Engine>>,
    hooks: Hooks,
}

macro_rules! hook {
    ($(#[$doc:meta])* $name:ident, $field:ident, $event:ty, $result:ty) => {
        $(#[$doc])*
        #[must_use]
        pub fn $name<F, Fut>(mut self, hook: F) -> Self
        where
            F: Fn($event) -> Fut + Send + Sync + 'static,
            Fut: Future<Output = $result> + Send + 'static,
        {
            self.hooks.$field = Some(Arc::new(move |event| Box::pin(hook(event)) as HookFuture<$result>));
            self
        }
    };
}

impl HubBuilder {
    /// Sets the configuration.
    #[must_use]
    pub fn config(mut self, config: HubConfig) -> Self {
        self.config = config;
        self
    }

    /// Keeps histories and presence in this engine instead of in memory.
    #[must_use]
    pub fn engine(mut self, engine: impl Engine) -> Self {
        self.engine = Some(Arc::new(engine));
        self
    }

    hook!(
        /// Decides who may connect, after a token was verified, and instead of `client.anonymous`.
        on_connect, connect, ConnectEvent, Result<ConnectGrant, Disconnect>
    );
    hook!(
        /// Decides who may subscribe, instead of the namespace's `subscribe`.
        on_subscribe, subscribe, SubscribeEvent, Result<SubscribeGrant, Refusal>
    );
    hook!(
        /// Decides who may publish, instead of the namespace's `publish`, and returns what is published.
        on_publish, publish, PublishEvent, Result<Bytes, Refusal>
    );
    hook!(
        /// Answers calls of methods.
        on_rpc, rpc, RpcEvent, Result<Bytes, Refusal>
    );
    hook!(
        /// Receives messages that have no answer.
        on_message, message, RpcEvent, ()
    );
    hook!(
        /// Receives every connection that has ended after it was established.
        on_disconnect, disconnect, DisconnectEvent, ()
    );

    /// The hub.
    ///
    /// # Errors
    /// A key of the configuration cannot be read.
    pub fn build(self) -> Result<Hub, ConfigError> {
        let settings = Settings { verifier: Verifier::new(&self.config.token)?, config: self.config };
        let engine = self.engine.unwrap_or_else(|| Arc::new(MemoryEngine::new(CHANNELS_MAX)));
        Ok(Hub(Arc::new_cyclic(|this| Node {
            name: token(),
            clock: Clock::new(),
            channels: Channels::new(),
            hooks: self.hooks,
            metrics: Metrics::default(),
            engine,
            settings: RwLock::new(Arc::new(settings)),
            clients: Mutex::default(),
            runtime: OnceLock::new(),
            this: this.clone(),
        })))
    }
}

/// Options of a publication.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct PublishOptions {
    /// Tags, which subscribers see.
    pub tags: HashMap<String, String>,
    /// Does not add it to the history.
    pub skip_history: bool,
}

impl Hub {
    /// Begins a hub.
    #[must_use]
    pub fn builder() -> HubBuilder {
        HubBuilder::default()
    }

    /// Publishes a JSON value, or any bytes, into a channel. Its position, when the channel has a history.
    ///
    /// # Errors
    /// The channel's namespace does not exist, or the engine failed.
    pub async fn publish(&self, channel: &str, data: impl Into<Bytes>) -> Result<Position, PublishError> {
        self.publish_with(channel, data, PublishOptions::default()).await
    }

    /// Publishes with options.
    ///
    /// # Errors
    /// As for [`publish`](Self::publish).
    pub async fn publish_with(
        &self,
        channel: &str,
        data: impl Into<Bytes>,
        options: PublishOptions,
    ) -> Result<Position, PublishError> {
        let publication = Publication { data: data.into(), tags: options.tags, ..Publication::default() };
        self.0.publish(channel, publication, options.skip_history).await
    }

    /// Removes the history of a channel. Its subscribers start again from a new position; clients that return cannot recover.
    ///
    /// # Errors
    /// The engine failed.
    pub async fn remove_history(&self, channel: &str) -> Result<(), EngineError> {
        self.0.start();
        self.0.engine.remove_history(channel).await
    }

    /// Replaces the configuration. Connections stay; the new one applies to namespaces and tokens from now on.
    ///
    /// # Errors
    /// A key of the configuration cannot be read; the old configuration stays.
    pub fn reload(&self, config: HubConfig) -> Result<(), ConfigError> {
        let settings = Settings { verifier: Verifier::new(&config.token)?, config };
        *self.0.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
        Ok(())
    }

    /// Asks every client to reconnect elsewhere, and refuses new ones. Returns once all have gone or after `grace`.
    pub async fn shut_down(&self, grace: Duration) {
        let clients: Vec<_> = {
            let mut clients = lock(&self.0.clients);
            clients.is_closed = true;
            clients.by_id.values().cloned().collect()
        };
        clients.iter().for_each(|client| client.outbox.end(Disconnect::Shutdown));
        let gone = async {
            while !lock(&self.0.clients).by_id.is_empty() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let _ = tokio::time::timeout(grace, gone).await;
    }

    /// The counters of the hub.
    #[must_use]
    pub fn stats(&self) -> HubStats {
        let (node, metrics) = (&self.0, &self.0.metrics);
        HubStats {
            clients: lock(&node.clients).by_id.len(),
            channels: node.channels.len(),
            connected: metrics.connected.get(),
            publications: metrics.publications.get(),
            dropped: metrics.dropped.get(),
            evicted_slow: metrics.evicted_slow.get(),
            recovered: metrics.recovered.get(),
            unrecovered: metrics.unrecovered.get(),
            refused: metrics.refused.get(),
            ended: metrics.ended.get(),
        }
    }
}

/// Why something was not published.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PublishError {
    /// The name is empty or too long.
    BadChannel,
    /// The channel's namespace does not exist.
    UnknownNamespace,
    /// The engine failed.
    Engine(EngineError),
}

impl std::fmt::Display for PublishError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::BadChannel => f.write_str("the name of the channel is empty or too long"),
            Self::UnknownNamespace => f.write_str("the namespace of the channel does not exist"),
            Self::Engine(error) => error.fmt(f),
        }
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
    pub(crate) fn engine(&self) -> &dyn Engine {
        &*self.engine
    }

    pub(crate) fn settings(&self) -> Arc<Settings> {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The options of a channel.
    pub(crate) fn options(&self, channel: &str) -> Option<ChannelOptions> {
        self.settings().config.channel_options(channel).cloned()
    }

    /// Starts what runs beside the connections, in the runtime of the first one.
    pub(crate) fn start(&self) {
        self.runtime.get_or_init(|| {
            if let Some(node) = self.this.upgrade() {
                let delivery: Arc<dyn Delivery> = node;
                self.engine.start(Arc::downgrade(&delivery));
                tokio::spawn(maintain(self.this.clone()));
            }
            Handle::current()
        });
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = self.runtime.get() {
            runtime.spawn(task);
        }
    }

    pub(crate) async fn publish(
        &self,
        channel: &str,
        publication: Publication,
        skip_history: bool,
    ) -> Result<Position, PublishError> {
        self.start();
        let settings = self.settings();
        if channel.is_empty() || channel.len() > settings.config.client.channel_name_len_max {
            return Err(PublishError::BadChannel);
        }
        let options = settings.config.channel_options(channel).ok_or(PublishError::UnknownNamespace)?;
        let retention = retention(options).filter(|_| !skip_history);
        self.metrics.publications.increment();
        self.engine.publish(channel, publication, retention).await.map_err(PublishError::Engine)
    }

    /// A new connection; `None` when there are too many, or when the hub shuts down.
    pub(crate) fn accept(&self, format: Format) -> Result<Arc<Client>, Disconnect> {
        self.start();
        let settings = self.settings();
        let config = &settings.config.client;
        let outbox = Outbox::new(config.queue_len_max, config.slow);
        let client = Arc::new(Client::new(uuid(), format, outbox));
        let mut clients = lock(&self.clients);
        let refused = match () {
            () if clients.is_closed => Some(Disconnect::Shutdown),
            () if clients.by_id.len() >= config.connections_max => Some(Disconnect::ConnectionLimit),
            () => None,
        };
        if let Some(reason) = refused {
            self.metrics.ended.increment(reason.code().into());
            return Err(reason);
        }
        clients.by_id.insert(client.id.clone(), client.clone());
        Ok(client)
    }

    /// A connection now has a user. False when that user has too many.
    pub(crate) fn identify(&self, client: &Arc<Client>) -> bool {
        let user_max = self.settings().config.client.connections_per_user_max;
        let mut clients = lock(&self.clients);
        let own = clients.by_user.entry(client.user().to_owned()).or_default();
        if user_max > 0 && !client.user().is_empty() && own.len() >= user_max {
            return false;
        }
        own.push(client.clone());
        self.metrics.connected.increment();
        true
    }

    /// Undoes everything that a connection did.
    pub(crate) async fn forget(&self, client: &Arc<Client>, reason: Disconnect) {
        self.metrics.ended.increment(reason.code().into());
        {
            let mut clients = lock(&self.clients);
            clients.by_id.remove(&client.id);
            if let Some(own) = clients.by_user.get_mut(client.user()) {
                own.retain(|other| !Arc::ptr_eq(other, client));
                if own.is_empty() {
                    clients.by_user.remove(client.user());
                }
            }
        }
        let subscriptions = std::mem::take(&mut *lock(&client.subscriptions));
        for (channel, subscription) in subscriptions {
            if let Subscription::Active(active) = subscription {
                self.channels.remove(&channel, active.key);
                self.leave(&channel, &client.id, active).await;
            }
        }
        if let (Some(_), Some(hook)) = (client.identity(), &self.hooks.disconnect) {
            hook(DisconnectEvent { client: client.id.clone(), user: client.user().into(), reason }).await;
        }
    }

    /// Informs the engine and the other subscribers of the end of a subscription.
    pub(crate) async fn leave(&self, channel: &str, client: &str, active: Active) {
        self.engine.unsubscribe(channel);
        if active.presence
            && let Err(error) = self.engine.remove_presence(channel, client).await
        {
            warn!(channel, client, %error, "presence was not removed");
        }
        if active.announced
            && let Err(error) = self.engine.publish_membership(channel, Membership::Leave(active.info)).await
        {
            warn!(channel, client, %error, "a leave was not announced");
        }
    }

    /// Ends a subscription from the server's side.
    pub(crate) fn unsubscribe(&self, channel: &str, client: &Client, code: UnsubscribeCode) {
        let Some(active) = end_subscription(&self.channels, channel, client, code) else { return };
        let Some(node) = self.this.upgrade() else { return };
        let (channel, client) = (channel.to_owned(), client.id.clone());
        self.spawn(async move { node.leave(&channel, &client, active).await });
    }

    fn clients_of(&self, user: &str, client: &str) -> Vec<Arc<Client>> {
        let clients = lock(&self.clients);
        let own = clients.by_user.get(user).map_or(&[][..], Vec::as_slice);
        own.iter().filter(|one| client.is_empty() || one.id == client).cloned().collect()
    }

    pub(crate) fn clients_len(&self) -> usize {
        lock(&self.clients).by_id.len()
    }

    pub(crate) fn users_len(&self) -> usize {
        lock(&self.clients).by_user.keys().filter(|user| !user.is_empty()).count()
    }

    pub(crate) async fn history(
        &self,
        channel: &str,
        query: &HistoryQuery,
    ) -> Result<Option<History>, EngineError> {
        let Some(retention) = self.options(channel).as_ref().and_then(retention) else { return Ok(None) };
        self.engine.history(channel, query, retention).await.map(Some)
    }

    pub(crate) fn note_slow(&self, channel: &str, client: &Client, pushed: Pushed) {
        match pushed {
            Pushed::Dropped => self.metrics.dropped.increment(),
            Pushed::Overflowed => {
                self.metrics.evicted_slow.increment();
                warn!(
                    reason = "slow",
                    channel,
                    client = client.id,
                    user = client.user(),
                    "client evicted: its queue is full"
                );
            }
            Pushed::Queued | Pushed::Ended => {}
        }
    }
}

/// How much of a channel's history is kept, if any.
pub(crate) fn retention(options: &ChannelOptions) -> Option<Retention> {
    options.has_history().then_some(Retention { size: options.history_size, ttl: options.history_ttl })
}

impl Delivery for Node {
    fn retention(&self, channel: &str) -> Option<Retention> {
        self.options(channel).as_ref().and_then(retention)
    }

    fn deliver_publication(&self, channel: &str, epoch: &str, previous: u64, publication: &Arc<Publication>) {
        let lost = self.channels.publish(channel, epoch, previous, publication, &|client, pushed| {
            self.note_slow(channel, client, pushed);
        });
        for (client, _) in lost {
            self.unsubscribe(channel, &client, UnsubscribeCode::InsufficientState);
        }
    }

    fn deliver_membership(&self, channel: &str, membership: &Membership) {
        self.channels.announce(channel, membership);
    }

    fn deliver_history_lost(&self, channel: &str) {
        for (client, _) in self.channels.lose_history(channel) {
            self.unsubscribe(channel, &client, UnsubscribeCode::InsufficientState);
        }
    }

    fn deliver_control(&self, control: &Control) {
        for client in self.clients_of(&control.user, &control.client) {
            match &control.action {
                Action::Disconnect { except, .. } if *except == client.id => {}
                Action::Disconnect { code, reason, .. } => {
                    client.outbox.end(Disconnect::Custom { code: *code, reason: reason.clone() });
                }
                Action::Unsubscribe { channel } => {
                    self.unsubscribe(channel, &client, UnsubscribeCode::Server)
                }
                Action::Subscribe { channel } => {
                    let (Some(node), channel) = (self.this.upgrade(), channel.clone()) else { return };
                    self.spawn(async move { subscribe_from_server(&node, &client, &channel).await });
                }
                Action::Refresh { expire_at } => {
                    let expires_at = expire_at.map(Duration::from_secs);
                    client.set_expires_at(expires_at);
                    let ttl = expires_at.map_or(0, |at| at.saturating_sub(self.clock.now()).as_secs());
                    let refresh = RefreshPush {
                        expires: expires_at.is_some(),
                        ttl: ttl.try_into().unwrap_or(u32::MAX),
                    };
                    client.push(Push { refresh: Some(refresh), ..Push::default() });
                }
            }
        }
    }
}

async fn subscribe_from_server(node: &Arc<Node>, client: &Arc<Client>, channel: &str) {
    let subscribed =
        crate::subscribe::subscribe(node, client, crate::subscribe::Request::from_server(channel)).await;
    let Ok(established) = subscribed else { return };
    let push = crate::session::subscribed(channel, &established.result);
    established.start(vec![crate::protocol::Reply { push: Some(push), ..Default::default() }]).await;
}

/// Drops what has expired, every second, and refreshes presence.
async fn maintain(node: Weak<Node>) {
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut refreshed = tokio::time::Instant::now();
    loop {
        ticks.tick().await;
        let Some(node) = node.upgrade() else { return };
        node.engine.maintain();
        if refreshed.elapsed() >= PRESENCE_REFRESH {
            refreshed = tokio::time::Instant::now();
            let clients: Vec<_> = lock(&node.clients).by_id.values().cloned().collect();
            for client in clients {
                let listed: Vec<(Arc<str>, ClientInfo)> = lock(&client.subscriptions)
                    .iter()
                    .filter_map(|(channel, subscription)| match subscription {
                        Subscription::Active(active) if active.presence => {
                            Some((channel.clone(), active.info.clone()))
                        }
                        _ => None,
                    })
                    .collect();
                for (channel, info) in listed {
                    if let Err(error) = node.engine.add_presence(&channel, &info).await {
                        warn!(%channel, %error, "presence was not refreshed");
                    }
                }
            }
        }
    }
}

/// The origin of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub(crate) peer: Option<SocketAddr>,
    /// The origin of the page, where there is one.
    pub(crate) origin: Option<String>,
    pub(crate) encoding: Encoding,
}
