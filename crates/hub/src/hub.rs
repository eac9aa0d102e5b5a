//! The public API of a hub: how it is built, and its operations.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::config::{ConfigError, HistoryConfig, HubConfig};
use crate::engine::{Engine, EngineError, EngineHealth, MemoryEngine};
use crate::history::Position;
use crate::hooks::{
    ConnectEvent, ConnectGrant, DisconnectEvent, HookFuture, Hooks, PublishEvent, Refusal, RpcEvent,
    SubscribeEvent, SubscribeGrant, copied,
};
use crate::idempotency::Origin;
use crate::metrics::{HubStats, SlowClient};
use crate::node::{Node, PublishError};
use crate::protocol::{Disconnect, Publication};
use crate::settings::Settings;

/// Channels, their subscribers and their histories. Clones are handles to the same hub.
///
/// Its background tasks run in the tokio runtime in which it is first used, and once that has ended, in the next one. The connections
/// to NATS or Redis end with the first one, which should go on for as long as the hub is used.
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
        /// Decides whether a client may connect, after its token was verified. Replaces `client.anonymous`.
        ///
        /// ```
        /// use wireloom_hub::protocol::Disconnect;
        /// use wireloom_hub::{ConnectGrant, Hub};
        ///
        /// let hub = Hub::builder().on_connect(|event| async move {
        ///     // Data that the client has sent, such as a ticket of your own.
        ///     match &event.data[..] {
        ///         br#""ticket-7""# => Ok(ConnectGrant { user: "7".into(), ..ConnectGrant::default() }),
        ///         _ => Err(Disconnect::PermissionDenied),
        ///     }
        /// });
        /// # hub.build().unwrap();
        /// ```
        on_connect, connect, ConnectEvent, Result<ConnectGrant, Disconnect>
    );
    hook!(
        /// Decides whether a client may subscribe. Replaces the namespace's `subscribe`.
        ///
        /// ```
        /// use wireloom_hub::protocol::ErrorCode;
        /// use wireloom_hub::{Hub, SubscribeGrant};
        ///
        /// let hub = Hub::builder().on_subscribe(|event| async move {
        ///     // The members of a team, from your database.
        ///     let is_member = event.channel == "team" && event.user == "7";
        ///     is_member.then(SubscribeGrant::default).ok_or(ErrorCode::PermissionDenied.into())
        /// });
        /// # hub.build().unwrap();
        /// ```
        on_subscribe, subscribe, SubscribeEvent, Result<SubscribeGrant, Refusal>
    );
    hook!(
        /// Decides whether a client may publish, and returns the data to publish. Replaces the namespace's `publish`.
        ///
        /// ```
        /// use wireloom_hub::{Hub, Refusal};
        ///
        /// let hub = Hub::builder().on_publish(|event| async move {
        ///     if event.data.len() > 1_000 {
        ///         // A code of the application, which the client sees.
        ///         return Err(Refusal { code: 1001, message: "too long".into(), temporary: false });
        ///     }
        ///     Ok(event.data)
        /// });
        /// # hub.build().unwrap();
        /// ```
        on_publish, publish, PublishEvent, Result<Bytes, Refusal>
    );
    hook!(
        /// Answers calls of methods.
        ///
        /// ```
        /// use wireloom_hub::Hub;
        /// use wireloom_hub::protocol::ErrorCode;
        ///
        /// let hub = Hub::builder().on_rpc(|event| async move {
        ///     match &*event.method {
        ///         "echo" => Ok(event.data),
        ///         _ => Err(ErrorCode::MethodNotFound.into()),
        ///     }
        /// });
        /// # hub.build().unwrap();
        /// ```
        on_rpc, rpc, RpcEvent, Result<Bytes, Refusal>
    );
    hook!(
        /// Receives messages that have no answer.
        ///
        /// ```
        /// use wireloom_hub::Hub;
        ///
        /// let hub = Hub::builder().on_message(|event| async move {
        ///     println!("{}: {} bytes", event.user, event.data.len());
        /// });
        /// # hub.build().unwrap();
        /// ```
        on_message, message, RpcEvent, ()
    );
    hook!(
        /// Called for every established connection that has ended.
        /// It is not called for connections that a crash ended; `[events]` of the configuration reports those too.
        ///
        /// ```
        /// use wireloom_hub::Hub;
        ///
        /// let hub = Hub::builder().on_disconnect(|event| async move {
        ///     println!("{} has left: {}", event.client, event.reason.reason());
        /// });
        /// # hub.build().unwrap();
        /// ```
        on_disconnect, disconnect, DisconnectEvent, ()
    );

    /// Builds the hub.
    ///
    /// # Errors
    /// The configuration cannot be used, such as an endpoint that does not exist or a key that cannot be read.
    pub fn build(self) -> Result<Hub, ConfigError> {
        let HistoryConfig { channels_max, len_max, .. } = self.config.history;
        let settings = Settings::new(self.config, None)?;
        let engine =
            self.engine.unwrap_or_else(|| Arc::new(MemoryEngine::new(channels_max).history_len_max(len_max)));
        // The ends of connections that the previous process left open are reported even if no client connects, and other nodes send
        // messages.
        let starts_now = settings.proxies.events.is_some() || engine.node_name().is_some();
        let node = Node::new(self.hooks, engine, settings);
        if starts_now && tokio::runtime::Handle::try_current().is_ok() {
            node.start();
        }
        Ok(Hub(node))
    }
}

/// Options of a publication.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct PublishOptions {
    /// Tags, which subscribers see.
    pub tags: HashMap<String, String>,
    /// Whether it is left out of the history.
    pub skip_history: bool,
    /// If not empty, publications with the same key into one channel are published once, and all return the position of
    /// the first. A key (at most 128 bytes) is remembered for five minutes: by this node, and if the channel has a
    /// history, also by the engine, for every node and across restarts. Of more than 100,000 keys, which are 333 per
    /// second, a node and the engine on disk forget the oldest earlier. Those that endpoints give to publications of clients are others,
    /// and as many. A publication that failed or was not answered in time can be repeated with its key.
    pub idempotency_key: String,
}

impl Hub {
    /// A builder with the default configuration.
    #[must_use]
    pub fn builder() -> HubBuilder {
        HubBuilder::default()
    }

    /// Publishes a copy of a JSON value, or of any bytes, into a channel. Returns its position, whose offset is 0 if the channel has
    /// no history.
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
        let PublishOptions { tags, skip_history, idempotency_key } = options;
        let publication = Publication { data: copied(data.into()), tags, ..Publication::default() };
        self.0.publish(channel, publication, skip_history, Origin::Server, &idempotency_key).await
    }

    /// Removes the history of a channel. Its subscribers start again with a new epoch; clients that reconnect cannot
    /// recover.
    ///
    /// # Errors
    /// The engine failed.
    pub async fn remove_history(&self, channel: &str) -> Result<(), EngineError> {
        self.0.start();
        self.0.engine().remove_history(channel).await
    }

    /// Replaces the configuration. Connections stay; the new one applies to namespaces and tokens from now on. An engine keeps the limits
    /// of `[history]` and the prefix of `[engine]` that it was made with.
    ///
    /// # Errors
    /// The configuration cannot be used, such as an endpoint that does not exist or a key that cannot be read; the old one stays.
    pub fn reload(&self, config: HubConfig) -> Result<(), ConfigError> {
        self.0.set_settings(Settings::new(config, Some(&self.0.settings()))?);
        Ok(())
    }

    /// Asks every client to reconnect elsewhere, and refuses new ones. Returns when all have disconnected and the events of their ends
    /// were delivered, or after `grace` and at most a second more, in which these events are stored. Where they
    /// [outlive the process](crate::engine::EventQueue::outlives_process), a delivery that fails is left to the next one. Await it before
    /// the runtime ends. It may be called again, also with a shorter `grace`.
    ///
    /// # Cancel safety
    /// Every client is asked also if the caller gives up.
    pub async fn shut_down(&self, grace: Duration) {
        self.0.shut_down(grace).await;
    }

    /// At most `max` clients whose send queues are not empty, the longest queue first.
    #[must_use]
    pub fn slowest(&self, max: usize) -> Vec<SlowClient> {
        self.0.slowest(max)
    }

    /// Whether the engine can store publications, presence and events. While it cannot, publications into channels with a history are
    /// refused, or connections whose end is reported.
    #[must_use]
    pub fn health(&self) -> EngineHealth {
        self.0.engine().health()
    }

    /// The counters of the hub.
    #[must_use]
    pub fn stats(&self) -> HubStats {
        self.0.stats()
    }
}
