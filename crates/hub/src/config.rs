//! The configuration of a hub, by namespace, and its file format.
//!
//! A channel named `chat:lobby` belongs to the namespace `chat`; one without a colon belongs to the default namespace, whose
//! options are the section `[channel]`.
//!
//! Layers: `choice`, `named` → `needs`.

mod choice;
mod named;
pub(crate) mod needs;

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};
use wireloom::{IpNet, OriginPolicy};

pub use choice::ProxyChoice;

/// Everything that can be configured.
///
/// ```
/// use wireloom_hub::HubConfig;
///
/// let config = HubConfig::from_toml(
///     r#"
///     [client]
///     anonymous = true
///
///     [[namespace]]
///     name = "chat"
///     history_size = 100
///     history_ttl = "10m"
///     presence = true
///     subscribe = "anyone"
///     publish = "subscriber"
///     "#,
/// )?;
/// assert_eq!(config.channel_options("chat:lobby").unwrap().history_size, 100);
/// # Ok::<(), wireloom_hub::ConfigError>(())
/// ```
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct HubConfig {
    /// Limits and rights of connections.
    pub client: ClientConfig,
    /// The transports besides `/connection/websocket` and rooms.
    pub transports: TransportsConfig,
    /// How tokens are verified.
    pub token: TokenConfig,
    /// The server API.
    pub api: ApiConfig,
    /// The endpoint for RPC calls that no callback answers.
    pub rpc: ProxyConfig,
    /// The endpoints of methods with a namespace, such as `billing:pay`, by namespace. [`rpc`](Self::rpc) answers all others.
    pub rpc_namespaces: HashMap<String, ProxyChoice>,
    /// The endpoints that decide about other operations.
    pub proxy: ProxiesConfig,
    /// Endpoints that namespaces choose by their names.
    #[serde(rename = "endpoint", deserialize_with = "named::tables", skip_serializing)]
    pub endpoints: HashMap<String, ProxyConfig>,
    /// The endpoint that learns which connections and subscriptions have ended.
    pub events: EventsConfig,
    /// The memory of histories.
    pub history: HistoryConfig,
    /// Settings of the engine.
    pub engine: EngineConfig,
    /// The default namespace.
    pub channel: ChannelOptions,
    /// The other namespaces.
    #[serde(rename = "namespace", deserialize_with = "named::tables", skip_serializing)]
    pub namespaces: HashMap<String, ChannelOptions>,
}

/// Limits and rights of connections.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientConfig {
    /// Clients may connect without a token.
    pub anonymous: bool,
    /// The interval of the server's pings.
    #[serde(with = "duration")]
    pub ping_interval: Duration,
    /// How long a client may take to answer a ping.
    #[serde(with = "duration")]
    pub pong_timeout: Duration,
    /// How long a client may take to send its connect command.
    #[serde(with = "duration")]
    pub stale_after: Duration,
    /// How long a connection may stay after its token expired, for a refresh to arrive.
    #[serde(with = "duration")]
    pub expired_grace: Duration,
    /// The maximum number of subscriptions of a connection. A connection whose token or backend names more is ended with 3505.
    pub channels_max: usize,
    /// The maximum length of a channel's name, in bytes; at most 1,024.
    pub channel_name_len_max: usize,
    /// The maximum length of a message from a client, in bytes; of a publication in a room, too.
    #[serde(with = "size")]
    pub message_len_max: usize,
    /// The maximum rate of commands of a connection, per second; bursts of 5 s worth of commands are allowed.
    pub commands_per_s_max: u32,
    /// The maximum number of bytes of pushes in the send queue of a client, at most 4G; a client that exceeds it is too slow. While the queue has more
    /// bytes of replies than this, the next command of the client waits. A reply has publications of at most eight times as many bytes:
    /// `history` ends there, `presence` is refused, and a channel that missed more does not recover. Where commands arrive at `/emulation`, as many bytes of those may wait.
    #[serde(with = "size")]
    pub queue_len_max: usize,
    /// The maximum time in which a client accepts nothing that is written to it: less than 1 KiB of a WebSocket, or 16 KiB of a stream.
    #[serde(with = "duration")]
    pub queue_time_max: Duration,
    /// The policy for a publication that does not fit, on channels without recovery. On channels with recovery the client is
    /// disconnected, so that it reconnects and recovers.
    pub slow: SlowPolicy,
    /// Origins of the pages that may connect, such as `https://example.com`, or `https://*.example.com` for subdomains; `*` allows all.
    /// Pages that were loaded from an IP address or `localhost` of this server may always connect, and so may clients that are no
    /// browsers. Event streams and HTTP streams, whose requests may have no `Origin`, are also refused if `Host` names another domain.
    pub allowed_origins: Vec<String>,
    /// Proxies whose `X-Forwarded-For` is trusted, as addresses or networks such as `10.1.0.0/16`. The client is the last address in it
    /// that is none of these; "0.0.0.0" means peers without an address: those of a Unix socket, and in a tower stack every request without
    /// a `Peer`, whose clients could then forge addresses. Limits of anonymous clients use this address, and so do logs and lists of slow
    /// clients.
    #[serde(with = "networks")]
    pub trusted_proxies: Vec<IpNet>,
    /// Each connection of a user is subscribed to the channel `#USER`. The backend publishes into it to reach one user.
    pub personal_channel: bool,
    /// The namespace of these channels; empty for the default one.
    pub personal_channel_namespace: String,
    /// The maximum number of connections of the node.
    pub connections_max: usize,
    /// The maximum number of connections of one user on the node; 0 means no limit.
    pub connections_per_user_max: usize,
    /// The maximum number of subscriptions of all connections of one user on the node, including those named by tokens or the backend; 0
    /// means no limit.
    pub channels_per_user_max: usize,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            anonymous: false,
            ping_interval: Duration::from_secs(25),
            pong_timeout: Duration::from_secs(8),
            stale_after: Duration::from_secs(15),
            expired_grace: Duration::from_secs(25),
            channels_max: 128,
            channel_name_len_max: 255,
            message_len_max: 64 << 10,
            commands_per_s_max: 1_000,
            queue_len_max: 1 << 20,
            queue_time_max: Duration::from_secs(30),
            slow: SlowPolicy::Disconnect,
            allowed_origins: Vec::new(),
            trusted_proxies: Vec::new(),
            personal_channel: false,
            personal_channel_namespace: String::new(),
            connections_max: 100_000,
            connections_per_user_max: 0,
            channels_per_user_max: 0,
        }
    }
}

/// The policy for a publication that does not fit into the queue of a slow client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SlowPolicy {
    /// The client is disconnected with code 3008.
    #[default]
    Disconnect,
    /// The oldest queued publications are dropped.
    DropOldest,
    /// The publication is dropped.
    DropNewest,
}

/// The transports besides `/connection/websocket` and rooms. The path of one that is off is not found; connections that are open stay.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct TransportsConfig {
    /// `/connection/sse`, and `/emulation` for its commands: server-sent events for clients without WebSocket.
    pub sse: bool,
    /// `/connection/http_stream`, and `/emulation` for its commands: streamed responses for clients without WebSocket.
    pub http_stream: bool,
    /// `/connection/uni_websocket`: only pushes, over WebSocket.
    pub uni_websocket: bool,
    /// `/connection/uni_sse`: only pushes, as server-sent events.
    pub uni_sse: bool,
    /// `/connection/uni_http_stream`: only pushes, in a streamed response.
    pub uni_http_stream: bool,
}

impl Default for TransportsConfig {
    fn default() -> Self {
        Self { sse: true, http_stream: true, uni_websocket: true, uni_sse: true, uni_http_stream: true }
    }
}

/// How tokens are verified. Without any key, every token is refused.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct TokenConfig {
    /// The secret of HS256, HS384 and HS512.
    pub hmac_secret: Option<String>,
    /// The secret before that, while tokens that it signed are still in use.
    pub hmac_previous_secret: Option<String>,
    /// A PEM public key for RS256, RS384, RS512 (PKCS #1 or #8).
    pub rsa_public_key: Option<String>,
    /// A PEM public key for ES256 and ES384.
    pub ecdsa_public_key: Option<String>,
    /// A PEM public key for EdDSA.
    pub eddsa_public_key: Option<String>,
    /// A JSON Web Key Set (RFC 7517) as text, for tokens that name a key.
    pub jwks: Option<String>,
    /// A file with a JSON Web Key Set. It is read again when the configuration is reloaded.
    pub jwks_file: Option<std::path::PathBuf>,
    /// The URL of a JSON Web Key Set. It is fetched when a token names a key that is not known, and then every
    /// `jwks_refresh`. Redirects are not followed; a response has at most 256 KiB and 5 s.
    pub jwks_url: Option<String>,
    /// The interval at which the keys of `jwks_url` are fetched again. Tokens whose key is known do not wait for it. If
    /// both kinds of token have the same URL, the shorter interval is used.
    #[serde(with = "duration")]
    pub jwks_refresh: Duration,
    /// How far the clock of the issuer may be off: a token is accepted this long after its `exp` and before its `nbf`, and what it grants
    /// lasts as much longer.
    #[serde(with = "duration")]
    pub leeway: Duration,
    /// The audience that tokens must name.
    pub audience: Option<String>,
    /// The issuer that tokens must name.
    pub issuer: Option<String>,
    /// The keys of subscriptions' tokens, if these are not verified as those of connections are.
    pub subscription: Option<Box<TokenConfig>>,
}

impl Default for TokenConfig {
    fn default() -> Self {
        Self {
            hmac_secret: None,
            hmac_previous_secret: None,
            rsa_public_key: None,
            ecdsa_public_key: None,
            eddsa_public_key: None,
            jwks: None,
            jwks_file: None,
            jwks_url: None,
            jwks_refresh: Duration::from_secs(600),
            leeway: Duration::ZERO,
            audience: None,
            issuer: None,
            subscription: None,
        }
    }
}

/// The server API.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ApiConfig {
    /// The key that requests must carry. Without one the API is off.
    pub key: Option<String>,
}

/// An HTTP endpoint of the application's backend, with the requests and responses of Centrifugo's proxies.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProxyConfig {
    /// Its URL. Without one the endpoint is off. Redirects are not followed; a response has at most 1 MiB.
    pub url: Option<String>,
    /// How long it may take to answer.
    #[serde(with = "duration")]
    pub timeout: Duration,
    /// Header fields that every request has, such as a secret that the endpoint checks.
    pub headers: HashMap<String, String>,
    /// The names of header fields of the client's own request that are forwarded, such as `cookie`. No others are.
    pub forward_headers: Vec<String>,
    /// The names of header fields that clients may give in the `headers` of their connect command, such as `authorization`: browsers cannot
    /// set those of a WebSocket. They are forwarded where the request has none of the name in `forward_headers`. Together they have 16 KiB at
    /// most, names included: a connect command with more is refused with code 107. A client can give them any value, and a proxy in front of the
    /// hub cannot change it: list none that such a proxy sets.
    pub emulated_headers: Vec<String>,
    /// Requests have the `meta` that a token, or the result of `connect` or `refresh`, has attached to the connection. Those of `connect`
    /// have none.
    pub include_connection_meta: bool,
}

impl Default for ProxyConfig {
    fn default() -> Self {
        let (headers, forward_headers, emulated_headers, include_connection_meta) = Default::default();
        let timeout = Duration::from_secs(3);
        Self { url: None, timeout, headers, forward_headers, emulated_headers, include_connection_meta }
    }
}

/// The endpoints of the application's backend that decide about operations of clients.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProxiesConfig {
    /// Decides who connects without a token, and as which user. Replaces `client.anonymous`.
    pub connect: ProxyConfig,
    /// Renews connections that expire. Clients renew nothing then.
    pub refresh: ProxyConfig,
    /// Decides who subscribes, in namespaces with `subscribe_proxy`.
    pub subscribe: ProxyConfig,
    /// Renews subscriptions that expire, in namespaces with `sub_refresh_proxy`.
    pub sub_refresh: ProxyConfig,
    /// Decides who publishes and what, in namespaces with `publish_proxy`.
    pub publish: ProxyConfig,
}

/// An HTTP endpoint of the application's backend that learns which connections and subscriptions have ended, at least once each.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct EventsConfig {
    /// Its URL. Without one nothing is reported. It reports connections that began while it was set, and in namespaces with
    /// `unsubscribe_events` their subscriptions. A connection whose beginning the engine cannot store is refused.
    pub url: Option<String>,
    /// How long it may take to answer. Any answer with the status 200 and without an `error` accepts the events of a request; others
    /// are sent again.
    #[serde(with = "duration")]
    pub timeout: Duration,
    /// Header fields that every request has, such as a secret that the endpoint checks.
    pub headers: HashMap<String, String>,
    /// The maximum number of events in a request.
    pub batch_max: usize,
}

impl Default for EventsConfig {
    fn default() -> Self {
        Self { url: None, timeout: Duration::from_secs(10), headers: HashMap::new(), batch_max: 256 }
    }
}

impl EventsConfig {
    /// As an endpoint.
    pub(crate) fn proxy(&self) -> ProxyConfig {
        let Self { url, timeout, headers, .. } = self.clone();
        ProxyConfig { url, timeout, headers, ..ProxyConfig::default() }
    }
}

/// How long positions are kept where nothing else is configured.
pub(crate) const POSITION_TTL: Duration = Duration::from_secs(24 * 3600);

/// The memory of histories; takes effect when the hub is built.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct HistoryConfig {
    /// The maximum number of channels with history on a node. Clients may use nine tenths of them; the rest is for the server API. A
    /// quarter of what the others leave of these may count to a user, and a thousandth of them always; the anonymous clients of an address
    /// are one user. A channel that a client has published into counts to one of its subscribers, or to the client if there is none, or
    /// none of the 16 that were looked at has room left. Each node counts the channels that it has used since its start; there is no limit
    /// on the channels of all nodes in Redis or NATS.
    pub channels_max: usize,
    /// Bytes of publications in memory, of all channels together. Near the limit, the longest histories lose their oldest publications; at
    /// the limit, the history that is published into.
    #[serde(with = "size")]
    pub len_max: usize,
    /// How long positions of channels are kept, unless `history_meta_ttl` of the namespace is set. Takes effect with the next publication,
    /// also when the configuration is read again.
    #[serde(with = "duration")]
    pub meta_ttl: Duration,
}

impl Default for HistoryConfig {
    fn default() -> Self {
        Self { channels_max: 100_000, len_max: 256 << 20, meta_ttl: POSITION_TTL }
    }
}

/// Settings of the engine that nodes share, NATS or Redis; they take effect when the engine is made.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct EngineConfig {
    /// The prefix of this hub's names in Redis and NATS: the same for all nodes of a hub, and different for two hubs that share a server,
    /// such as production and staging. Up to 32 ASCII letters, digits and `-`. Engines in memory and on disk ignore it.
    pub prefix: String,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self { prefix: "wl".into() }
    }
}

/// The clients that have a right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// No client by this setting. With every value, the token of a subscription permits subscribing, and the server API may do everything.
    #[default]
    Token,
    /// Those with a user that are subscribed to the channel. For `subscribe`, the same as `client`.
    SubscribedClient,
    /// Those that are subscribed to the channel, anonymous ones too. For `subscribe`, the same as `client`.
    Subscriber,
    /// Those with a user, which a token or the backend names.
    Client,
    /// All, anonymous ones too.
    Anyone,
}

/// The publications that a client receives when it recovers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecoveryMode {
    /// Every publication that it missed.
    #[default]
    Stream,
    /// The newest publication, unless it has that already.
    Cache,
}

/// The options of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ChannelOptions {
    /// The maximum number of publications that are kept.
    pub history_size: usize,
    /// How long each is kept.
    #[serde(with = "duration")]
    pub history_ttl: Duration,
    /// How long the position of a channel, which is its epoch and offset, is kept after the last publication. Until then a client that has
    /// missed nothing recovers, even if every publication has expired; later it receives `recovered: false`. "0s" means `meta_ttl` of
    /// [`HistoryConfig`]. At least `history_ttl`.
    #[serde(with = "duration")]
    pub history_meta_ttl: Duration,
    /// Clients can recover missed publications, even if they did not ask for that when they subscribed.
    pub force_recovery: bool,
    /// The publications that clients receive when they recover.
    pub recovery_mode: RecoveryMode,
    /// The kinds of deltas that clients may ask for. This needs a history, because a delta is relative to the previous
    /// publication.
    pub allowed_delta_types: Vec<DeltaType>,
    /// Clients may restrict a subscription to publications with certain tags. They then receive no deltas.
    pub allow_tags_filter: bool,
    /// An endpoint decides who subscribes without a token, instead of `subscribe`: `true` for `[proxy.subscribe]`, or the name of an
    /// `[[endpoint]]`.
    pub subscribe_proxy: ProxyChoice,
    /// An endpoint decides who publishes and what, instead of `publish`: `true` for `[proxy.publish]`, or the name of an `[[endpoint]]`.
    pub publish_proxy: ProxyChoice,
    /// An endpoint is asked to renew subscriptions that expire: `true` for `[proxy.sub_refresh]`, or the name of an `[[endpoint]]`.
    pub sub_refresh_proxy: ProxyChoice,
    /// The end of each subscription is reported to the endpoint `[events]`.
    pub unsubscribe_events: bool,
    /// Presence: the clients of a channel are listed.
    pub presence: bool,
    /// Clients that subscribe and unsubscribe are announced, to clients that ask for it.
    pub join_leave: bool,
    /// Joins and leaves are announced to all clients of the channel.
    pub force_push_join_leave: bool,
    /// A channel whose name ends with `#` and user ids, such as `chat:x#7,42`, is for these users, without a token. Without this
    /// option, `#` has no meaning.
    pub allow_user_limited_channels: bool,
    /// A regular expression that the names of the namespace's channels match, without the namespace and `$`. The syntax is that of
    /// [`regex`](https://docs.rs/regex#syntax); `^` and `$` bind it to the whole name.
    pub channel_regex: Option<String>,
    /// The clients that may subscribe.
    pub subscribe: Access,
    /// The clients that may publish.
    pub publish: Access,
    /// The clients that may list and count clients.
    pub presence_access: Access,
    /// The clients that may read the history by the command `history`. It does not restrict subscribers: a client that may subscribe may
    /// recover all publications of the history, also those from before its first subscription.
    pub history_access: Access,
    /// The maximum number of the namespace's channels with history that clients may have open on a node, which count to users and leave
    /// shares to others as in [`HistoryConfig`]; 0 means no limit but that one.
    pub channels_max: usize,
    /// The maximum rate of a connection's publications, per second, after a burst of one second's worth; 0 means no limit. The hub stops
    /// reading from a connection that is faster, so that its publisher waits.
    pub publications_per_s_max: u32,
    /// The same limit in bytes of payload per second.
    #[serde(with = "size")]
    pub publication_bytes_per_s_max: usize,
    /// Origins whose pages may use the channels, in the same forms as `allowed_origins` of `[client]`; if empty, all that may connect.
    pub allowed_origins: Vec<String>,
}

/// A delta format, in which a publication is sent as the change from the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeltaType {
    /// The [format](https://fossil-scm.org/home/doc/trunk/www/delta_format.wiki) of Fossil.
    Fossil,
}

impl DeltaType {
    /// The delta type with this name in the client protocol.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        match name {
            "fossil" => Some(Self::Fossil),
            _ => None,
        }
    }
}

impl Default for ChannelOptions {
    fn default() -> Self {
        Self {
            history_size: 0,
            history_ttl: Duration::ZERO,
            history_meta_ttl: Duration::ZERO,
            force_recovery: false,
            recovery_mode: RecoveryMode::default(),
            allowed_delta_types: Vec::new(),
            allow_tags_filter: false,
            subscribe_proxy: ProxyChoice::Off,
            publish_proxy: ProxyChoice::Off,
            sub_refresh_proxy: ProxyChoice::Off,
            unsubscribe_events: false,
            presence: false,
            join_leave: false,
            force_push_join_leave: false,
            allow_user_limited_channels: false,
            channel_regex: None,
            subscribe: Access::default(),
            publish: Access::default(),
            presence_access: Access::default(),
            history_access: Access::default(),
            channels_max: 50_000,
            publications_per_s_max: 1_000,
            publication_bytes_per_s_max: 512 << 10,
            allowed_origins: Vec::new(),
        }
    }
}

impl ChannelOptions {
    /// Whether publications are kept.
    #[must_use]
    pub fn has_history(&self) -> bool {
        self.history_size > 0 && !self.history_ttl.is_zero()
    }
}

impl HubConfig {
    /// Reads the file format.
    ///
    /// # Errors
    /// The text is not TOML, or an option is unknown or has an invalid value.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        let config: Self = toml::from_str(text).map_err(|error| ConfigError(error.to_string()))?;
        config.check()
    }

    pub(crate) fn from_table(table: toml::Table) -> Result<Self, ConfigError> {
        let config: Self =
            table.try_into().map_err(|error: toml::de::Error| ConfigError(error.to_string()))?;
        config.check()
    }

    pub(crate) fn check(self) -> Result<Self, ConfigError> {
        let config = self;
        let client = &config.client;
        let zero = [
            ("client.ping_interval", client.ping_interval.is_zero()),
            ("client.pong_timeout", client.pong_timeout.is_zero()),
            ("client.stale_after", client.stale_after.is_zero()),
            ("client.channels_max", client.channels_max == 0),
            ("client.queue_len_max", client.queue_len_max == 0),
            ("client.message_len_max", client.message_len_max == 0),
            ("client.commands_per_s_max", client.commands_per_s_max == 0),
            ("client.connections_max", client.connections_max == 0),
            ("client.queue_time_max", client.queue_time_max.is_zero()),
            ("events.batch_max", config.events.batch_max == 0),
            ("history.meta_ttl", config.history.meta_ttl.is_zero()),
        ];
        if let Some((name, _)) = zero.iter().find(|(_, is_zero)| *is_zero) {
            return Err(ConfigError(format!("{name} must not be 0")));
        }
        if client.pong_timeout >= client.ping_interval {
            return Err(ConfigError("client.pong_timeout must be shorter than client.ping_interval".into()));
        }
        if client.channel_name_len_max > CHANNEL_NAME_LEN_MAX {
            return Err(ConfigError(format!(
                "client.channel_name_len_max must not exceed {CHANNEL_NAME_LEN_MAX}"
            )));
        }
        if config.api.key.as_deref() == Some("") {
            return Err(ConfigError("api.key must not be empty".into()));
        }
        let tokens =
            [("token", Some(&config.token)), ("token.subscription", config.token.subscription.as_deref())];
        let tokens = tokens.into_iter().filter_map(|(section, tokens)| Some((section, tokens?)));
        let secrets = tokens.flat_map(|(section, tokens)| {
            [
                (section, "hmac_secret", &tokens.hmac_secret),
                (section, "hmac_previous_secret", &tokens.hmac_previous_secret),
            ]
        });
        for (section, name, secret) in secrets.chain([("api", "key", &config.api.key)]) {
            // The secrets of the guides are public.
            if secret.as_ref().is_some_and(|secret| secret.to_ascii_lowercase().contains("change me")) {
                return Err(ConfigError(format!(
                    "{section}.{name} is the one of an example: choose your own"
                )));
            }
        }
        if let Some(name) = config.rpc_namespaces.keys().find(|name| !named::is_name(name)) {
            return Err(ConfigError(format!("{name:?} cannot be the name of a namespace of methods")));
        }
        let namespace = &client.personal_channel_namespace;
        if !namespace.is_empty() && !config.namespaces.contains_key(namespace) {
            return Err(ConfigError(format!("client.personal_channel_namespace {namespace} does not exist")));
        }
        check_prefix(&config.engine.prefix)?;
        check_origins(&client.allowed_origins)?;
        needs::check(&config)?;
        for (name, options) in config.all_options() {
            if !options.history_meta_ttl.is_zero() && options.history_meta_ttl < options.history_ttl {
                let name = shown(name);
                return Err(ConfigError(format!(
                    "namespace {name}: history_meta_ttl must not be shorter than history_ttl"
                )));
            }
            check_origins(&options.allowed_origins)?;
        }
        Ok(config)
    }

    /// The options of every namespace, with its name, which is empty for the default one.
    pub(crate) fn all_options(&self) -> impl Iterator<Item = (&str, &ChannelOptions)> {
        let named = self.namespaces.iter().map(|(name, options)| (name.as_str(), options));
        named.chain([("", &self.channel)])
    }

    /// The personal channel of a user.
    pub(crate) fn personal_channel(&self, user: &str) -> String {
        let namespace = &self.client.personal_channel_namespace;
        let separator = if namespace.is_empty() { "" } else { ":" };
        format!("{namespace}{separator}#{user}")
    }

    /// The user whose personal channel this is, by the options of the channel: `#7,8` may be a channel of the users 7 and 8.
    pub(crate) fn owner<'a>(&self, channel: &'a str, options: &ChannelOptions) -> Option<&'a str> {
        if !self.client.personal_channel {
            return None;
        }
        let owner = channel.strip_prefix(&*self.personal_channel(""))?;
        (!options.allow_user_limited_channels || !owner.contains(',')).then_some(owner)
    }

    /// The options of a channel; `None` when its namespace does not exist.
    #[must_use]
    pub fn channel_options(&self, channel: &str) -> Option<&ChannelOptions> {
        match namespace_of(channel) {
            "" => Some(&self.channel),
            namespace => self.namespaces.get(namespace),
        }
    }
}

/// The name of a namespace in errors.
pub(crate) fn shown(namespace: &str) -> &str {
    if namespace.is_empty() { "(default)" } else { namespace }
}

/// The bound of `channel_name_len_max`. A name twice in base64 fits into a line of the NATS protocol, which has 4,096 bytes: NATS ends the
/// connection of a node that sends a longer one.
const CHANNEL_NAME_LEN_MAX: usize = 1_024;

/// The name of a channel's namespace; empty for the default one.
pub(crate) fn namespace_of(channel: &str) -> &str {
    let name = channel.strip_prefix('$').unwrap_or(channel);
    // A channel that begins with a colon is in a namespace without a name, which does not exist.
    name.split_once(':').map_or("", |(namespace, _)| if namespace.is_empty() { ":" } else { namespace })
}

/// The name of a channel without its namespace.
pub(crate) fn name_of(channel: &str) -> &str {
    let name = channel.strip_prefix('$').unwrap_or(channel);
    name.split_once(':').map_or(name, |(_, name)| name)
}

/// Why a configuration cannot be used, as a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(pub(crate) String);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.trim_end())
    }
}

impl std::error::Error for ConfigError {}

/// The longest prefix. It is in a line of the NATS protocol twice.
const PREFIX_LEN_MAX: usize = 32;

/// Whether this can begin the names of a hub: it is a token of a subject of NATS, without dots, spaces and wildcards, and has no brace, which
/// would choose the slot in a Redis Cluster. A colon, a dot or an underscore ends it.
pub(crate) fn check_prefix(prefix: &str) -> Result<(), ConfigError> {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if (1..=PREFIX_LEN_MAX).contains(&prefix.len()) && prefix.bytes().all(is_valid) {
        return Ok(());
    }
    Err(ConfigError(format!(
        "engine.prefix {prefix:?} must have 1 to {PREFIX_LEN_MAX} characters, which are ASCII letters, digits or '-'"
    )))
}

fn check_origins(origins: &[String]) -> Result<(), ConfigError> {
    let is_valid =
        |origin: &str| origin == "*" || OriginPolicy::is_origin(origin) || OriginPolicy::is_pattern(origin);
    match origins.iter().find(|origin| !is_valid(origin)) {
        Some(other) => Err(ConfigError(format!(
            "{other:?} is not an origin, such as \"https://example.com\" or \"https://*.example.com\", or \"*\""
        ))),
        None => Ok(()),
    }
}

/// A time as a text, such as `"25s"`.
mod duration {
    use super::{Deserializer, Duration};

    /// A hundred years: times after such an interval are still times.
    const MAX: Duration = Duration::from_secs(36_525 * 24 * 3_600);

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        struct Visitor;

        impl serde::de::Visitor<'_> for Visitor {
            type Value = String;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a time with its unit, such as \"25s\" or \"1h\"")
            }

            fn visit_str<E>(self, text: &str) -> Result<String, E> {
                Ok(text.to_owned())
            }
        }

        let text = from.deserialize_str(Visitor)?;
        match humantime::parse_duration(&text) {
            Ok(duration) if duration > MAX => {
                Err(serde::de::Error::custom(format_args!("{text:?} is longer than 100 years")))
            }
            parsed => parsed.map_err(serde::de::Error::custom),
        }
    }

    pub(super) fn serialize<S: serde::Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&humantime::format_duration(*duration))
    }
}

/// Networks as texts. An address is a network, too.
mod networks {
    use std::net::IpAddr;

    use super::{Deserialize, Deserializer, IpNet};

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<IpNet>, D::Error> {
        let parse = |text: String| {
            let address = text.parse::<IpAddr>().map(IpNet::from);
            address.or_else(|_| text.parse()).map(canonical).map_err(|_| {
                serde::de::Error::custom(format!(
                    "{text:?} is not an address or a network, such as 10.1.0.0/16"
                ))
            })
        };
        Vec::<String>::deserialize(from)?.into_iter().map(parse).collect()
    }

    /// A network of mapped addresses (RFC 4291 §2.5.5.2) is the one of IPv4.
    fn canonical(network: IpNet) -> IpNet {
        match (network.addr().to_canonical(), network.prefix_len().checked_sub(96)) {
            (address @ IpAddr::V4(_), Some(len)) => IpNet::new(address, len).unwrap_or(network),
            _ => network,
        }
    }

    pub(super) fn serialize<S: serde::Serializer>(networks: &[IpNet], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(networks.iter().map(IpNet::to_string))
    }
}

/// A size in bytes: a number, or a text with a suffix for powers of 1024, such as `"64K"`, `"1M"` or `"2G"`.
mod size {
    use super::{Deserialize, Deserializer, parse_size};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Size {
        Number(usize),
        Text(String),
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<usize, D::Error> {
        match Size::deserialize(from)? {
            Size::Number(bytes) => Ok(bytes),
            Size::Text(text) => parse_size(&text).ok_or_else(|| {
                serde::de::Error::custom(format!("{text:?} is not a size, such as 65536 or \"64K\""))
            }),
        }
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
    pub(super) fn serialize<S: serde::Serializer>(bytes: &usize, to: S) -> Result<S::Ok, S::Error> {
        for (suffix, shift) in [("G", 30), ("M", 20), ("K", 10)] {
            if *bytes > 0 && bytes.trailing_zeros() >= shift {
                return to.collect_str(&format_args!("{}{suffix}", bytes >> shift));
            }
        }
        to.serialize_u64(*bytes as u64)
    }
}

fn parse_size(text: &str) -> Option<usize> {
    let (digits, shift) = match text.strip_suffix(['K', 'M', 'G', 'k', 'm', 'g']) {
        Some(digits) => match text.as_bytes().last()?.to_ascii_uppercase() {
            b'K' => (digits, 10),
            b'M' => (digits, 20),
            _ => (digits, 30),
        },
        None => (text, 0),
    };
    digits.parse::<usize>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_namespace_of_a_channel() {
        let config = HubConfig::from_toml("[[namespace]]\nname = \"a\"\npresence = true").unwrap();
        assert!(config.channel_options("a:b:c").unwrap().presence);
        assert!(config.channel_options("$a:b").unwrap().presence);
        assert!(!config.channel_options("b").unwrap().presence);
        assert_eq!(config.channel_options("b:a"), None);
    }

    #[test]
    fn sizes_are_numbers_or_have_a_suffix() {
        for (text, len) in
            [("7", 7), ("\"7\"", 7), ("\"2K\"", 2 << 10), ("\"3m\"", 3 << 20), ("\"1G\"", 1 << 30)]
        {
            let config = HubConfig::from_toml(&format!("client.queue_len_max = {text}")).unwrap();
            assert_eq!(config.client.queue_len_max, len, "{text}");
        }
    }

    #[test]
    fn networks_of_mapped_addresses_are_those_of_ipv4() {
        let networks = [
            "::ffff:10.0.0.0/104",
            "::ffff:10.0.0.1",
            "::ffff:0:0/96",
            "::/0",
            "2001:db8::/100",
            "10.0.0.0/8",
        ];
        let config = HubConfig::from_toml(&format!("client.trusted_proxies = {networks:?}")).unwrap();
        let read: Vec<_> = config.client.trusted_proxies.iter().map(IpNet::to_string).collect();
        assert_eq!(read, ["10.0.0.0/8", "10.0.0.1/32", "0.0.0.0/0", "::/0", "2001:db8::/100", "10.0.0.0/8"]);
    }

    #[test]
    fn errors_of_values_have_their_line() {
        const BEFORE: &str = "client.anonymous = true\n\n";
        for (text, line) in [
            ("[client.x]\n", 3),
            ("[api]\n\nkey = 1", 5),
            ("[history]\n\nlen_max = \"much\"", 5),
            ("[channel]\n\nhistory_ttl = \"5 parsecs\"", 5),
            ("[[namespace]]\nname = \"a\"\npublish = \"nobody\"", 5),
            ("[[namespace]]\nname = \"a\"\n[[namespace]]\nhistory_ttl = \"x\"\nname = \"b\"", 6),
            ("[[namespace]]\nname = \"a\"\n[[namespace]]\nname = 5", 6),
            // Of the table.
            ("[[namespace]]\nname = \"a\"\n[[namespace]]\npresence = true", 5),
            ("[[namespace]]\nname = \"a\"\n[[namespace]]\nname = \"b\"\npresense = true", 5),
        ] {
            let error = HubConfig::from_toml(&format!("{BEFORE}{text}")).unwrap_err().to_string();
            assert!(error.contains(&format!("at line {line}, ")), "{text}: {error}");
        }
    }

    #[test]
    fn refuses_options_that_cannot_work() {
        for (text, reason) in [
            ("x", "expected"),
            ("[client]\nping = 1", "unknown field `ping`"),
            ("[client]\nping_interval = \"0s\"", "client.ping_interval must not be 0"),
            ("[client]\nping_interval = \"5 parsecs\"", "parsecs"),
            ("[client]\nping_interval = \"18446744073709551615s\"", "longer than 100 years"),
            ("[channel]\nhistory_size = 1\nhistory_ttl = \"36525days 1ns\"", "longer than 100 years"),
            ("[client]\nconnections_max = 0", "client.connections_max must not be 0"),
            ("[client]\nqueue_time_max = \"0s\"", "client.queue_time_max must not be 0"),
            ("[client]\nping_interval = \"5s\"", "shorter"),
            ("[client]\nchannel_name_len_max = 1025", "must not exceed 1024"),
            ("[channel]\nhistory_size = 1", "namespace (default): history_size needs history_ttl"),
            ("[channel]\nhistory_ttl = \"1s\"", "namespace (default): history_ttl needs history_size"),
            (
                "[channel]\nhistory_size = 1\nhistory_ttl = \"2s\"\nhistory_meta_ttl = \"1s\"",
                "shorter than history_ttl",
            ),
            ("[history]\nmeta_ttl = \"0s\"", "history.meta_ttl must not be 0"),
            ("engine.prefix = \"\"", "engine.prefix \"\" must have 1 to 32 characters"),
            ("engine.prefix = \"123456789012345678901234567890123\"", "must have 1 to 32 characters"),
            ("engine.prefix = \"a.b\"", "engine.prefix \"a.b\" must have"),
            ("engine.prefix = \"a_b\"", "engine.prefix \"a_b\" must have"),
            ("engine.prefix = \"{a}\"", "engine.prefix \"{a}\" must have"),
            ("engine.prefix = \"ä\"", "engine.prefix \"ä\" must have"),
            (
                "[channel]\nforce_recovery = true",
                "force_recovery needs a history (history_size and history_ttl)",
            ),
            ("[channel]\nhistory_meta_ttl = \"1h\"", "history_meta_ttl needs a history"),
            ("[channel]\nrecovery_mode = \"cache\"", "recovery_mode needs a history"),
            ("[channel]\nhistory_access = \"anyone\"", "history_access needs a history"),
            ("[channel]\nsub_refresh_proxy = true", "sub_refresh_proxy needs proxy.sub_refresh.url"),
            (
                "proxy.publish.url = \"http://a/\"",
                "proxy.publish.url needs publish_proxy = true in a namespace",
            ),
            (
                "[channel]\npublish_proxy = \"a\"",
                "namespace (default): publish_proxy needs an [[endpoint]] with the name \"a\"; there is none",
            ),
            (
                "[channel]\npublish_proxy = \"a\"\nsubscribe_proxy = \"c\"\n[rpc_namespaces]\nx = \"b\"\n\
                [[endpoint]]\nname = \"c\"\nurl = \"http://c/\"\n[[endpoint]]\nname = \"b\"\nurl = \"http://b/\"",
                "publish_proxy needs an [[endpoint]] with the name \"a\"; there are \"b\", \"c\"",
            ),
            ("[rpc_namespaces]\nx = \"a\"", "rpc_namespaces.x needs an [[endpoint]] with the name \"a\""),
            ("[rpc_namespaces]\nx = true", "rpc_namespaces.x needs rpc.url"),
            ("[rpc_namespaces]\n\"x:y\" = false", "\"x:y\" cannot be the name of a namespace of methods"),
            (
                "[[endpoint]]\nname = \"a\"\nurl = \"http://a/\"",
                "endpoint.a needs a namespace or rpc_namespaces that names it",
            ),
            ("[channel]\npublish_proxy = \"a\"\n[[endpoint]]\nname = \"a\"", "endpoint.a needs a url"),
            ("[channel]\npublish_proxy = 1", "expected true, false or the name of an [[endpoint]]"),
            ("[[endpoint]]\nurl = \"http://a/\"", "[[endpoint]] needs a name"),
            ("[[endpoint]]\nname = \"a\"\n[[endpoint]]\nname = \"a\"", "endpoint a is defined twice"),
            (
                "proxy.connect.forward_headers = [\"cookie\"]",
                "proxy.connect.forward_headers needs proxy.connect.url",
            ),
            ("rpc.timeout = \"1s\"", "rpc.timeout needs rpc.url"),
            (
                "proxy.refresh.include_connection_meta = true",
                "include_connection_meta needs proxy.refresh.url",
            ),
            ("events.headers = { a = \"b\" }", "events.headers needs events.url"),
            ("events.timeout = \"1s\"", "events.timeout needs events.url"),
            ("events.batch_max = 1", "events.batch_max needs events.url"),
            ("token.subscription.jwks_refresh = \"1h\"", "needs token.subscription.jwks_url"),
            (
                "client.personal_channel_namespace = \"a\"\n[[namespace]]\nname = \"a\"",
                "client.personal_channel_namespace needs client.personal_channel",
            ),
            (
                "[channel]\nunsubscribe_events = true",
                "namespace (default): unsubscribe_events needs events.url",
            ),
            (
                "[[namespace]]\nname = \"a\"\npresence_access = \"anyone\"",
                "namespace a: presence_access needs presence",
            ),
            ("[channel]\nallowed_delta_types = [\"fossil\"]", "needs a history"),
            ("[channel]\nallowed_delta_types = [\"xdelta\"]", "unknown variant `xdelta`"),
            ("[[namespace]]\npresence = true", "needs a name"),
            ("[namespace]\nname = \"a\"", "expected tables [[namespace]], with two brackets"),
            ("[channel]\nhistory_ttl = 3600", "expected a time with its unit, such as \"25s\" or \"1h\""),
            ("[[namespace]]\nname = \"a:b\"", "cannot be the name"),
            ("[[namespace]]\nname = \"a\"\n[[namespace]]\nname = \"a\"", "twice"),
            ("[[namespace]]\nname = \"a\"\npublish = \"nobody\"", "unknown variant `nobody`"),
            ("[api]\nkey = \"\"", "must not be empty"),
            ("[api]\nkey = \"change me, too\"", "api.key is the one of an example"),
            ("[token]\nhmac_secret = \"Change me\"", "token.hmac_secret is the one of an example"),
            (
                "[token.subscription]\nhmac_previous_secret = \"change me\"",
                "token.subscription.hmac_previous_secret is the one of an example",
            ),
            ("[client]\npersonal_channel = true\npersonal_channel_namespace = \"a\"", "does not exist"),
            ("[client]\nqueue_len_max = \"1T\"", "\"1T\" is not a size"),
            ("[history]\nlen_max = \"99999999999G\"", "is not a size"),
            ("[client]\nallowed_origins = [\"example.com\"]", "\"example.com\" is not an origin"),
            ("[channel]\nallowed_origins = [\"https://*.com\"]", "\"https://*.com\" is not an origin"),
        ] {
            let error = HubConfig::from_toml(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
