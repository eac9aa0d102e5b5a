//! The configuration of a hub, by namespace, and its file format.
//!
//! A channel named `chat:lobby` belongs to the namespace `chat`; one without a colon belongs to the default namespace, whose
//! options are the section `[channel]`.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use wireloom::OriginPolicy;

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
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HubConfig {
    /// Limits and rights of connections.
    pub client: ClientConfig,
    /// How tokens are verified.
    pub token: TokenConfig,
    /// The server API.
    pub api: ApiConfig,
    /// The endpoint for RPC calls that no callback answers.
    pub rpc: RpcConfig,
    /// The memory of histories.
    pub history: HistoryConfig,
    /// The default namespace.
    pub channel: ChannelOptions,
    /// The other namespaces.
    #[serde(rename = "namespace", deserialize_with = "namespaces")]
    pub namespaces: HashMap<String, ChannelOptions>,
}

/// Limits and rights of connections.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientConfig {
    /// Clients may connect without a token.
    pub anonymous: bool,
    /// The interval of the server's pings.
    #[serde(deserialize_with = "duration")]
    pub ping_interval: Duration,
    /// How long a client may take to answer a ping.
    #[serde(deserialize_with = "duration")]
    pub pong_timeout: Duration,
    /// How long a client may take to send its connect command.
    #[serde(deserialize_with = "duration")]
    pub stale_after: Duration,
    /// How long a connection may stay after its token expired, for a refresh to arrive.
    #[serde(deserialize_with = "duration")]
    pub expired_grace: Duration,
    /// The maximum number of subscriptions of a connection.
    pub channels_max: usize,
    /// The maximum length of a channel's name, in bytes.
    pub channel_name_len_max: usize,
    /// The maximum length of a message from a client, in bytes.
    pub message_len_max: usize,
    /// The maximum rate of commands of a connection, per second; bursts of 5 s worth of commands are allowed.
    pub commands_per_s_max: u32,
    /// The maximum number of bytes in the send queue of a client.
    pub queue_len_max: usize,
    /// The maximum time that a message may be in the send queue of a client.
    #[serde(deserialize_with = "duration")]
    pub queue_time_max: Duration,
    /// The policy for a publication that does not fit, on channels without recovery. On channels with recovery the client is
    /// disconnected, so that it reconnects and recovers.
    pub slow: SlowPolicy,
    /// Origins of browsers that may connect; `*` allows all. The server's own origin may always connect.
    pub allowed_origins: Vec<String>,
    /// The maximum number of connections of the node.
    pub connections_max: usize,
    /// The maximum number of connections of one user on the node; 0 means no limit.
    pub connections_per_user_max: usize,
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
            connections_max: 100_000,
            connections_per_user_max: 0,
        }
    }
}

/// The policy for a publication that does not fit into the queue of a slow client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
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

/// How tokens are verified. Without any key, every token is refused.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TokenConfig {
    /// The secret of HS256, HS384 and HS512.
    pub hmac_secret: Option<String>,
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
    /// The audience that tokens must name.
    pub audience: Option<String>,
    /// The issuer that tokens must name.
    pub issuer: Option<String>,
}

/// The server API.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ApiConfig {
    /// The key that requests must carry. Without one the API is off.
    pub key: Option<String>,
}

/// An HTTP endpoint of the application that answers RPC calls.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RpcConfig {
    /// Its URL. Without one, and without a callback, `rpc` is refused.
    pub url: Option<String>,
    /// How long it may take to answer.
    #[serde(deserialize_with = "duration")]
    pub timeout: Duration,
}

impl Default for RpcConfig {
    fn default() -> Self {
        Self { url: None, timeout: Duration::from_secs(3) }
    }
}

/// The memory of histories; takes effect when the hub is built.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HistoryConfig {
    /// Bytes of publications in memory, of all channels together. Near the limit those of the channels that nothing was published into
    /// for the longest time are dropped, at the limit the oldest of the channel that is published into.
    pub len_max: usize,
}

impl Default for HistoryConfig {
    fn default() -> Self {
        Self { len_max: 256 << 20 }
    }
}

/// The clients that have a right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// No client, unless a token grants it.
    #[default]
    Token,
    /// Clients that are subscribed to the channel.
    Subscriber,
    /// Clients with a user id.
    Client,
    /// Every client.
    Anyone,
}

/// What a client that reconnects receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecoveryMode {
    /// Every publication that it missed.
    #[default]
    Stream,
    /// The newest publication, unless it has that already.
    Cache,
}

/// The options of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ChannelOptions {
    /// The maximum number of publications that are kept.
    pub history_size: usize,
    /// How long each is kept.
    #[serde(deserialize_with = "duration")]
    pub history_ttl: Duration,
    /// Clients can recover missed publications, even if they did not ask for that when they subscribed.
    pub force_recovery: bool,
    /// What clients that recover receive.
    pub recovery_mode: RecoveryMode,
    /// The kinds of deltas that clients may ask for. This needs a history, because a delta is relative to the previous
    /// publication.
    pub allowed_delta_types: Vec<DeltaType>,
    /// Presence: the clients of a channel are listed.
    pub presence: bool,
    /// Clients that subscribe and unsubscribe are announced, to clients that ask for it.
    pub join_leave: bool,
    /// Joins and leaves are announced to all clients of the channel.
    pub force_push_join_leave: bool,
    /// A channel whose name ends with `#` and user ids, such as `chat:x#7,42`, is for these users, without a token. Without this
    /// option, `#` has no meaning.
    pub allow_user_limited_channels: bool,
    /// The clients that may subscribe.
    pub subscribe: Access,
    /// The clients that may publish.
    pub publish: Access,
    /// The clients that may list and count clients.
    pub presence_access: Access,
    /// The clients that may read the history.
    pub history_access: Access,
    /// Origins whose pages may subscribe; if empty, all that may connect.
    pub allowed_origins: Vec<String>,
}

/// A delta format, in which a publication is sent as the change from the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
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
        let client = &config.client;
        let zero = [
            ("client.ping_interval", client.ping_interval.is_zero()),
            ("client.pong_timeout", client.pong_timeout.is_zero()),
            ("client.stale_after", client.stale_after.is_zero()),
            ("client.channels_max", client.channels_max == 0),
            ("client.queue_len_max", client.queue_len_max == 0),
            ("client.message_len_max", client.message_len_max == 0),
            ("client.commands_per_s_max", client.commands_per_s_max == 0),
        ];
        if let Some((name, _)) = zero.iter().find(|(_, is_zero)| *is_zero) {
            return Err(ConfigError(format!("{name} must not be 0")));
        }
        if client.pong_timeout >= client.ping_interval {
            return Err(ConfigError("client.pong_timeout must be shorter than client.ping_interval".into()));
        }
        if config.api.key.as_deref() == Some("") {
            return Err(ConfigError("api.key must not be empty".into()));
        }
        check_origins(&client.allowed_origins)?;
        let options = config.namespaces.iter().map(|(name, options)| (name.as_str(), options));
        for (name, options) in options.chain([("(default)", &config.channel)]) {
            if (options.history_size > 0) == options.history_ttl.is_zero() {
                return Err(ConfigError(format!(
                    "namespace {name}: history needs both history_size and history_ttl"
                )));
            }
            if options.force_recovery && !options.has_history() {
                return Err(ConfigError(format!("namespace {name}: force_recovery needs a history")));
            }
            check_origins(&options.allowed_origins)?;
            if !options.allowed_delta_types.is_empty() && !options.has_history() {
                return Err(ConfigError(format!("namespace {name}: allowed_delta_types needs a history")));
            }
        }
        Ok(config)
    }

    /// The options of a channel; `None` when its namespace does not exist.
    #[must_use]
    pub fn channel_options(&self, channel: &str) -> Option<&ChannelOptions> {
        let name = channel.strip_prefix('$').unwrap_or(channel);
        match name.split_once(':') {
            Some((namespace, _)) => self.namespaces.get(namespace),
            None => Some(&self.channel),
        }
    }
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

fn check_origins(origins: &[String]) -> Result<(), ConfigError> {
    match origins.iter().find(|origin| *origin != "*" && !OriginPolicy::is_origin(origin)) {
        Some(other) => {
            Err(ConfigError(format!("{other:?} is not an origin, such as \"https://example.com\", or \"*\"")))
        }
        None => Ok(()),
    }
}

fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    humantime::parse_duration(&text).map_err(serde::de::Error::custom)
}

fn namespaces<'de, D: Deserializer<'de>>(from: D) -> Result<HashMap<String, ChannelOptions>, D::Error> {
    use serde::de::Error;
    let mut namespaces = HashMap::new();
    for mut table in Vec::<toml::Table>::deserialize(from)? {
        let name = match table.remove("name") {
            Some(toml::Value::String(name)) => name,
            _ => return Err(D::Error::custom("a namespace needs a name")),
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || !name.chars().all(is_name) {
            return Err(D::Error::custom(format!("{name:?} cannot be the name of a namespace")));
        }
        let options =
            table.try_into().map_err(|error| D::Error::custom(format!("namespace {name}: {error}")))?;
        if namespaces.insert(name.clone(), options).is_some() {
            return Err(D::Error::custom(format!("namespace {name} is defined twice")));
        }
    }
    Ok(namespaces)
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
    fn refuses_options_that_cannot_work() {
        for (text, reason) in [
            ("x", "expected"),
            ("[client]\nping = 1", "unknown field `ping`"),
            ("[client]\nping_interval = \"0s\"", "client.ping_interval must not be 0"),
            ("[client]\nping_interval = \"5 parsecs\"", "parsecs"),
            ("[client]\nping_interval = \"5s\"", "shorter"),
            ("[channel]\nhistory_size = 1", "both history_size and history_ttl"),
            ("[channel]\nforce_recovery = true", "needs a history"),
            ("[channel]\nallowed_delta_types = [\"fossil\"]", "needs a history"),
            ("[channel]\nallowed_delta_types = [\"xdelta\"]", "unknown variant `xdelta`"),
            ("[[namespace]]\npresence = true", "needs a name"),
            ("[[namespace]]\nname = \"a:b\"", "cannot be the name"),
            ("[[namespace]]\nname = \"a\"\n[[namespace]]\nname = \"a\"", "twice"),
            ("[[namespace]]\nname = \"a\"\npublish = \"nobody\"", "namespace a"),
            ("[api]\nkey = \"\"", "must not be empty"),
            ("[client]\nallowed_origins = [\"example.com\"]", "\"example.com\" is not an origin"),
            (
                "[channel]\nallowed_origins = [\"https://*.a.example\"]",
                "\"https://*.a.example\" is not an origin",
            ),
        ] {
            let error = HubConfig::from_toml(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
