//! Conversion of a configuration of Centrifugo (version 6) into one of this hub.

use serde_json::{Map, Value};

use crate::config::needs::{self, Unmet};
use crate::config::{ConfigError, DEFAULT_NAMESPACE, HubConfig, check_prefix};

/// Settings that have a counterpart with the same meaning: Centrifugo's path, and the section and name here.
const SAME: [(&str, &str, &str); 30] = [
    ("client.allowed_origins", "client", "allowed_origins"),
    ("client.allow_anonymous_connect_without_token", "client", "anonymous"),
    ("client.ping_interval", "client", "ping_interval"),
    ("client.pong_timeout", "client", "pong_timeout"),
    ("client.stale_close_delay", "client", "stale_after"),
    ("client.expired_close_delay", "client", "expired_grace"),
    ("client.channel_limit", "client", "channels_max"),
    ("client.queue_max_size", "client", "queue_len_max"),
    ("client.connection_limit", "client", "connections_max"),
    ("client.user_connection_limit", "client", "connections_per_user_max"),
    ("client.subscribe_to_user_personal_channel.enabled", "client", "personal_channel"),
    (
        "client.subscribe_to_user_personal_channel.personal_channel_namespace",
        "client",
        "personal_channel_namespace",
    ),
    ("channel.history_meta_ttl", "history", "meta_ttl"),
    ("channel.max_length", "client", "channel_name_len_max"),
    ("websocket.message_size_limit", "client", "message_len_max"),
    ("http_api.key", "api", "key"),
    ("client.token.hmac_secret_key", "token", "hmac_secret"),
    ("client.token.hmac_previous_secret_key", "token", "hmac_previous_secret"),
    ("client.token.rsa_public_key", "token", "rsa_public_key"),
    ("client.token.ecdsa_public_key", "token", "ecdsa_public_key"),
    ("client.token.jwks_public_endpoint", "token", "jwks_url"),
    ("client.token.audience", "token", "audience"),
    ("client.token.issuer", "token", "issuer"),
    ("client.subscription_token.hmac_secret_key", "token.subscription", "hmac_secret"),
    ("client.subscription_token.hmac_previous_secret_key", "token.subscription", "hmac_previous_secret"),
    ("client.subscription_token.rsa_public_key", "token.subscription", "rsa_public_key"),
    ("client.subscription_token.ecdsa_public_key", "token.subscription", "ecdsa_public_key"),
    ("client.subscription_token.jwks_public_endpoint", "token.subscription", "jwks_url"),
    ("client.subscription_token.audience", "token.subscription", "audience"),
    ("client.subscription_token.issuer", "token.subscription", "issuer"),
];

/// Endpoints of the backend: Centrifugo's path, and the section here.
const ENDPOINTS: [(&str, &str); 6] = [
    ("client.proxy.connect", "proxy.connect"),
    ("client.proxy.refresh", "proxy.refresh"),
    ("channel.proxy.subscribe", "proxy.subscribe"),
    ("channel.proxy.publish", "proxy.publish"),
    ("channel.proxy.sub_refresh", "proxy.sub_refresh"),
    ("rpc.proxy", "rpc"),
];

/// Settings that are off unless a flag is set: Centrifugo's paths of the flag and of the settings.
const SWITCHES: [(&str, &str); 4] = [
    ("client.proxy.connect.enabled", "client.proxy.connect"),
    ("client.proxy.refresh.enabled", "client.proxy.refresh"),
    ("client.subscription_token.enabled", "client.subscription_token"),
    ("rpc.without_namespace.proxy_enabled", "rpc.proxy"),
];

/// Settings of an endpoint with the same meaning.
const SAME_OF_ENDPOINT: [(&str, &str); 6] = [
    ("endpoint", "url"),
    ("timeout", "timeout"),
    ("http_headers", "forward_headers"),
    ("client_emulated_headers", "emulated_headers"),
    ("static_http_headers", "headers"),
    ("http.static_headers", "headers"),
];

/// Options of a namespace with the same meaning.
const SAME_OPTIONS: [(&str, &str); 15] = [
    ("history_size", "history_size"),
    ("history_ttl", "history_ttl"),
    ("history_meta_ttl", "history_meta_ttl"),
    ("force_recovery", "force_recovery"),
    ("force_recovery_mode", "recovery_mode"),
    ("allowed_delta_types", "allowed_delta_types"),
    ("allow_tags_filter", "allow_tags_filter"),
    ("channel_regex", "channel_regex"),
    ("presence", "presence"),
    ("join_leave", "join_leave"),
    ("force_push_join_leave", "force_push_join_leave"),
    ("allow_user_limited_channels", "allow_user_limited_channels"),
    ("subscribe_proxy_enabled", "subscribe_proxy"),
    ("publish_proxy_enabled", "publish_proxy"),
    ("sub_refresh_proxy_enabled", "sub_refresh_proxy"),
];

/// The rights of a namespace: the flags `allow_NAME_for_…`, and the setting here.
const RIGHTS: [(&str, &str); 4] = [
    ("subscribe", "subscribe"),
    ("publish", "publish"),
    ("presence", "presence_access"),
    ("history", "history_access"),
];

/// Settings that have these values here always.
const ALWAYS: [(&str, &str); 4] = [
    ("channel.private_prefix", "$"),
    ("channel.namespace_boundary", ":"),
    ("channel.user_boundary", "#"),
    ("channel.user_separator", ","),
];

/// Where names begin in what nodes share, and how they do by default: there as here, hubs with the default share everything.
const PREFIXES: [&str; 4] =
    ["engine.redis.prefix", "broker.nats.prefix", "broker.redis.prefix", "presence_manager.redis.prefix"];
const DEFAULT_PREFIX: &str = "centrifugo";

/// Transports, which are on here, and there only where `enabled` says so.
const TRANSPORTS: [&str; 5] = ["sse", "http_stream", "uni_websocket", "uni_sse", "uni_http_stream"];

/// Options of a namespace that are on here always.
const ALWAYS_ON_OPTIONS: [&str; 2] = ["allow_recovery", "allow_positioning"];

/// The operations of a namespace that endpoints decide.
const OPERATIONS: [&str; 3] = ["subscribe", "publish", "sub_refresh"];

/// The name of the endpoint that has none.
const DEFAULT: &str = "default";

/// A converted configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Converted {
    /// The configuration of this hub, in TOML.
    pub toml: String,
    /// The paths of settings that have no counterpart, or are not converted.
    pub unknown: Vec<String>,
}

/// The names of settings that are in sections since version 6, or how these names begin.
const VERSION_5: [&str; 4] = ["namespaces", "presence", "join_leave", "allowed_origins"];
const VERSION_5_PREFIXES: [&str; 6] = ["token_", "proxy_", "allow_", "history_", "client_", "api_"];

fn is_version_5(root: &Map<String, Value>) -> bool {
    root.iter().any(|(name, value)| {
        let is_flat = || VERSION_5_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        !value.is_object() && (VERSION_5.contains(&&**name) || is_flat())
    })
}

/// Converts a configuration of Centrifugo in JSON.
///
/// # Errors
/// The text is not a JSON object, is of version 5, whose settings have other names, or has no setting with a counterpart.
pub fn convert_centrifugo(json: &str) -> Result<Converted, ConfigError> {
    let mut root: Map<String, Value> =
        serde_json::from_str(json).map_err(|error| ConfigError(format!("not a JSON object: {error}")))?;
    if is_version_5(&root) {
        return Err(ConfigError(
            "of version 5 of Centrifugo; convert it to version 6 first \
             (https://centrifugal.dev/docs/getting-started/migration_v6)"
                .into(),
        ));
    }
    let mut unknown = Vec::new();
    // An endpoint that is off, and separate keys that are off, are left out. They are off unless they say that they are on.
    let mut is_on = |switch: &str, path: &str| {
        let is_on = take(&mut root, switch) == Some(Value::Bool(true));
        if !is_on {
            take(&mut root, path);
        }
        is_on
    };
    let [has_connect, has_refresh, has_own_tokens, _] = SWITCHES.map(|(switch, path)| is_on(switch, path));
    for (path, always) in ALWAYS {
        let other = take(&mut root, path).filter(|value| *value != always);
        list_unless_empty(path, other, &mut unknown);
    }
    let off = TRANSPORTS.map(|name| (name, take(&mut root, &format!("{name}.enabled"))));
    let off: Vec<_> = off.into_iter().filter(|(_, enabled)| *enabled != Some(Value::Bool(true))).collect();
    // Another endpoint must not answer what one with a name does.
    let rpc_proxy = "rpc.without_namespace.proxy_name";
    if take(&mut root, rpc_proxy).is_some_and(|name| name != DEFAULT) {
        unknown.push(rpc_proxy.to_owned());
        take(&mut root, "rpc.proxy");
    }
    let mut file = File::default();
    for (path, section, name) in SAME {
        let is_no_limit = |value: &Value| name == "connections_max" && *value == 0;
        if let Some(value) = take(&mut root, path).filter(|value| !is_empty(value) && !is_no_limit(value)) {
            file.section(section).add(name, value, [path.to_owned()]);
        }
    }
    // Here there is one.
    let mut prefix = None;
    for path in PREFIXES {
        let is_default = |value: &Value| value == DEFAULT_PREFIX;
        let Some(other) = take(&mut root, path).filter(|value| !is_empty(value) && !is_default(value)) else {
            continue;
        };
        let is_valid = other.as_str().is_some_and(|other| check_prefix(other).is_ok());
        if !is_valid || *prefix.get_or_insert_with(|| other.clone()) != other {
            unknown.push(path.to_owned());
        }
    }
    if let Some(prefix) = prefix {
        file.section("engine").add("prefix", prefix, Vec::new());
    }
    for (path, section) in ENDPOINTS {
        for (own, name) in SAME_OF_ENDPOINT {
            let path = format!("{path}.{own}");
            if let Some(value) = take(&mut root, &path).filter(|value| !is_empty(value)) {
                let section = file.section(section);
                // The same setting by its other name.
                if section.has(name) { unknown.push(path) } else { section.add(name, value, [path]) }
            }
        }
    }
    // What is missing may be in the environment. Nobody comes in by what would stand in its place.
    if has_connect && !file.section("proxy.connect").has("url") {
        unknown.push("client.proxy.connect.enabled".to_owned());
        unknown.extend(file.section("client").remove("anonymous"));
    }
    if has_refresh && !file.section("proxy.refresh").has("url") {
        unknown.push("client.proxy.refresh.enabled".to_owned());
    }
    if has_own_tokens && file.section("token.subscription").settings.is_empty() {
        unknown.push("client.subscription_token.enabled".to_owned());
        // Without a key it refuses all tokens.
        file.section("token.subscription").is_kept = true;
    }
    let without_namespace = "channel.without_namespace";
    match take(&mut root, without_namespace) {
        Some(Value::Object(options)) => {
            let section = Section::of_namespace("[channel]".into(), DEFAULT_NAMESPACE);
            file.0.push(section.with_options(options, without_namespace, &mut unknown));
        }
        other => list_unless_empty(without_namespace, other, &mut unknown),
    }
    match take(&mut root, "channel.namespaces") {
        Some(Value::Array(namespaces)) => {
            for (number, namespace) in namespaces.into_iter().enumerate() {
                let name = namespace.get("name").and_then(Value::as_str).map(str::to_owned);
                let (Some(name), Value::Object(mut options)) = (name, namespace) else {
                    unknown.push(format!("channel.namespaces.{number}"));
                    continue;
                };
                options.remove("name");
                let path = format!("channel.namespaces.{name}");
                let head = format!("[[namespace]]\nname = {}", rendered(&Value::from(&*name)));
                let section = Section::of_namespace(head, &name);
                file.0.push(section.with_options(options, &path, &mut unknown));
            }
        }
        other => list_unless_empty("channel.namespaces", other, &mut unknown),
    }
    list("", &Value::Object(root), &mut unknown);
    file.remove_unmet(&mut unknown);
    // The order of a JSON object's members depends on how serde_json is built.
    unknown.sort();
    let is_empty = file.rendered().is_empty();
    if is_empty && !unknown.is_empty() {
        let unknown = unknown.join(", ");
        return Err(ConfigError(format!("no setting has a counterpart; not converted: {unknown}")));
    }
    if !is_empty {
        off.iter().for_each(|(name, _)| file.section("transports").add(name, Value::Bool(false), Vec::new()));
    }
    Ok(Converted { toml: file.rendered(), unknown })
}

/// Lists a value that has another type than it should.
fn list_unless_empty(path: &str, value: Option<Value>, unknown: &mut Vec<String>) {
    if value.is_some_and(|value| !is_empty(&value)) {
        unknown.push(path.to_owned());
    }
}

/// The file of this hub.
#[derive(Default)]
struct File(Vec<Section>);

/// A section of the file.
struct Section {
    head: String,
    /// `None` for the options of a namespace, else the name.
    name: Option<&'static str>,
    /// Empty for other sections.
    namespace: String,
    settings: Vec<Setting>,
    /// Whether it has a meaning without settings.
    is_kept: bool,
}

struct Setting {
    name: &'static str,
    value: Value,
    /// Where the value was.
    paths: Vec<String>,
}

impl File {
    /// The section with this name, which is added if it is not there.
    fn section(&mut self, name: &'static str) -> &mut Section {
        let at = self.0.iter().position(|section| section.name == Some(name)).unwrap_or_else(|| {
            let (head, namespace, settings) = (format!("[{name}]"), String::new(), Vec::new());
            self.0.push(Section { head, name: Some(name), namespace, settings, is_kept: false });
            self.0.len() - 1
        });
        &mut self.0[at]
    }

    /// Removes settings that have no effect without others, which are missing, until there are none, and lists where they were.
    fn remove_unmet(&mut self, unknown: &mut Vec<String>) {
        // A value of a wrong type is for whoever reads the file.
        while let Ok(config) = toml::from_str::<HubConfig>(&self.rendered()) {
            let count = unknown.len();
            for Unmet { namespace, setting, .. } in needs::unmet(&config) {
                for section in self.0.iter_mut().filter(|section| section.is_of(namespace.as_deref())) {
                    let own = match section.name {
                        Some(name) => setting.strip_prefix(name).and_then(|rest| rest.strip_prefix('.')),
                        None => Some(&*setting),
                    };
                    let Some(own) = own else { continue };
                    unknown.extend(section.remove(own));
                    // Beside an endpoint the other right has no meaning.
                    if let Some(right) = own.strip_suffix("_proxy") {
                        unknown.extend(section.remove(right));
                    }
                }
            }
            if unknown.len() == count {
                return;
            }
        }
    }

    fn rendered(&self) -> String {
        let sections = self.0.iter().filter(|section| section.is_kept || !section.settings.is_empty());
        sections.map(Section::rendered).collect()
    }
}

impl Section {
    fn of_namespace(head: String, namespace: &str) -> Self {
        Self { head, name: None, namespace: namespace.into(), settings: Vec::new(), is_kept: true }
    }

    fn is_of(&self, namespace: Option<&str>) -> bool {
        match namespace {
            Some(namespace) => self.name.is_none() && self.namespace == namespace,
            None => self.name.is_some(),
        }
    }

    fn add(&mut self, name: &'static str, value: Value, paths: impl Into<Vec<String>>) {
        self.settings.push(Setting { name, value, paths: paths.into() });
    }

    fn has(&self, name: &str) -> bool {
        self.settings.iter().any(|setting| setting.name == name)
    }

    /// Removes a setting, and returns where it was.
    fn remove(&mut self, name: &str) -> Vec<String> {
        let at = self.settings.iter().position(|setting| setting.name == name);
        at.map(|at| self.settings.remove(at).paths).unwrap_or_default()
    }

    fn rendered(&self) -> String {
        let line = |Setting { name, value, .. }: &Setting| format!("{name} = {}\n", rendered(value));
        format!("{}\n{}\n", self.head, self.settings.iter().map(line).collect::<String>())
    }

    /// With the options of a namespace.
    fn with_options(
        mut self,
        mut options: Map<String, Value>,
        path: &str,
        unknown: &mut Vec<String>,
    ) -> Self {
        options.retain(|name, value| !(ALWAYS_ON_OPTIONS.contains(&&**name) && *value == true));
        for operation in OPERATIONS {
            let name = format!("{operation}_proxy_name");
            if options.remove(&name).is_none_or(|name| name == DEFAULT) {
                continue;
            }
            // Here an operation has one endpoint, and another one must not decide instead. Beside an endpoint the flags have no meaning.
            if options.remove(&format!("{operation}_proxy_enabled")) == Some(Value::Bool(true)) {
                options.retain(|flag, _| !flag.starts_with(&format!("allow_{operation}_for_")));
                unknown.push(format!("{path}.{name}"));
            }
        }
        for (own, here) in SAME_OPTIONS {
            if let Some(value) = options.remove(own).filter(|value| !is_empty(value)) {
                self.add(here, value, [format!("{path}.{own}")]);
            }
        }
        for (right, setting) in RIGHTS {
            let mut flag = |whom: &str| {
                let name = format!("allow_{right}_for_{whom}");
                (options.remove(&name) == Some(Value::Bool(true))).then(|| format!("{path}.{name}"))
            };
            let flags = [flag("client"), flag("subscriber"), flag("anonymous")];
            // The flag for anonymous clients widens the others.
            let access = match flags.each_ref().map(Option::is_some) {
                [true, _, true] => "anyone",
                [true, _, false] => "client",
                [false, true, true] => "subscriber",
                [false, true, false] => "subscribed-client",
                [false, false, _] => "token",
            };
            let paths = flags.into_iter().flatten();
            if access == "token" {
                unknown.extend(paths);
            } else {
                self.add(setting, access.into(), paths.collect::<Vec<_>>());
            }
        }
        list(&format!("{path}."), &Value::Object(options), unknown);
        self
    }
}

/// Removes the value at a path; objects that are empty then, too.
fn take(root: &mut Map<String, Value>, path: &str) -> Option<Value> {
    let Some((first, rest)) = path.split_once('.') else { return root.remove(path) };
    let inner = root.get_mut(first)?.as_object_mut()?;
    let taken = take(inner, rest);
    if inner.is_empty() {
        root.remove(first);
    }
    taken
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        _ => false,
    }
}

/// Lists the paths of all values.
fn list(prefix: &str, value: &Value, into: &mut Vec<String>) {
    match value {
        Value::Object(all) => {
            for (name, inner) in all {
                let path = format!("{prefix}{name}");
                match inner {
                    Value::Object(_) => list(&format!("{path}."), inner, into),
                    _ => into.push(path),
                }
            }
        }
        _ => into.push(prefix.trim_end_matches('.').to_owned()),
    }
}

/// A value in TOML.
fn rendered(value: &Value) -> String {
    match value {
        Value::Object(all) => {
            let each =
                all.iter().map(|(name, value)| format!("{} = {}", Value::from(&**name), rendered(value)));
            format!("{{ {} }}", each.collect::<Vec<_>>().join(", "))
        }
        Value::Array(all) => format!("[{}]", all.iter().map(rendered).collect::<Vec<_>>().join(", ")),
        // TOML's basic strings, booleans and numbers are those of JSON.
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Access;

    /// `centrifugo defaultconfig` writes all of them.
    #[test]
    fn defaults_change_nothing() {
        let converted = convert_centrifugo(
            r##"{
            "client": {
                "connection_limit": 0,
                "subscription_token": { "hmac_secret_key": "other" },
                "proxy": { "connect": { "endpoint": "http://b/", "timeout": "1s" } }
            },
            "rpc": {
                "proxy": { "endpoint": "http://b/", "timeout": "1s" },
                "without_namespace": { "proxy_enabled": false, "proxy_name": "default" }
            },
            "channel": {
                "without_namespace": { "force_recovery_mode": "", "channel_regex": "", "allowed_delta_types": null },
                "private_prefix": "$", "namespace_boundary": ":", "user_boundary": "#", "user_separator": ","
            },
            "sse": { "enabled": true }, "http_stream": { "enabled": true }, "uni_sse": { "enabled": true },
            "uni_http_stream": { "enabled": true }, "uni_websocket": { "enabled": true },
            "engine": { "redis": { "prefix": "centrifugo" } }, "broker": { "nats": { "prefix": "centrifugo" } }
        }"##,
        );
        let Converted { toml, unknown } = converted.unwrap();
        assert_eq!((toml.trim(), &*unknown), ("[channel]", &[][..]));
    }

    #[test]
    fn converts_what_has_a_counterpart_and_lists_the_rest() {
        let converted = convert_centrifugo(
            r#"{
            "client": {
                "token": { "hmac_secret_key": "a \"secret\"", "user_id_claim": "id" },
                "subscription_token": { "enabled": false, "hmac_secret_key": "other" },
                "allowed_origins": ["https://a.example"],
                "subscribe_to_user_personal_channel": { "enabled": true, "personal_channel_namespace": "chat", "single_connection": true },
                "proxy": { "connect": { "enabled": true, "endpoint": "http://b/", "timeout": "2s", "http_headers": ["Cookie"] } }
            },
            "http_api": { "key": "k" },
            "admin": { "enabled": true, "password": "x" },
            "rpc": {
                "proxy": { "endpoint": "http://d/" },
                "without_namespace": { "proxy_enabled": true, "proxy_name": "other" }
            },
            "channel": {
                "history_meta_ttl": "720h",
                "without_namespace": { "presence": true },
                "proxy": { "subscribe": { "endpoint": "http://c/", "http": { "static_headers": { "X-Secret": "s" } } } },
                "namespaces": [
                    { "name": "chat", "history_size": 10, "history_ttl": "300s", "history_meta_ttl": "24h", "allow_subscribe_for_client": true,
                      "allow_publish_for_subscriber": true, "allow_history_for_client": true, "allow_history_for_anonymous": true,
                      "allow_presence_for_anonymous": true, "subscribe_proxy_enabled": true, "subscribe_proxy_name": "default",
                      "publish_proxy_name": "other", "delta_publish": true, "allow_recovery": true }
                ]
            }
        }"#,
        )
        .unwrap();
        let config = HubConfig::from_toml(&converted.toml)
            .unwrap_or_else(|error| panic!("{error}\n{}", converted.toml));
        assert_eq!(config.token.hmac_secret.as_deref(), Some("a \"secret\""));
        assert!(config.token.subscription.is_none() && config.channel.presence);
        assert_eq!(config.api.key.as_deref(), Some("k"));
        assert_eq!(config.proxy.connect.url.as_deref(), Some("http://b/"));
        assert_eq!(config.proxy.connect.forward_headers, ["Cookie"]);
        assert_eq!(config.proxy.subscribe.headers["X-Secret"], "s");
        assert_eq!(config.rpc.url, None, "another endpoint answers calls");
        assert!(config.client.personal_channel && config.client.personal_channel_namespace == "chat");
        let chat = &config.namespaces["chat"];
        assert_eq!((chat.subscribe, chat.publish), (Access::Client, Access::SubscribedClient));
        assert_eq!((chat.history_access, chat.presence_access), (Access::Anyone, Access::Token));
        assert!(chat.subscribe_proxy && chat.history_size == 10);
        let hours = |time: std::time::Duration| time.as_secs() / 3600;
        assert_eq!((hours(config.history.meta_ttl), hours(chat.history_meta_ttl)), (720, 24));
        let expected = [
            "admin.enabled",
            "admin.password",
            "channel.namespaces.chat.allow_presence_for_anonymous",
            "channel.namespaces.chat.delta_publish",
            "client.subscribe_to_user_personal_channel.single_connection",
            "client.token.user_id_claim",
            "rpc.without_namespace.proxy_name",
        ];
        assert_eq!(converted.unknown, expected);
        assert!(convert_centrifugo("[]").is_err());
    }

    /// With the conditions of Centrifugo's handlers, in the same order.
    #[test]
    fn each_combination_of_flags_grants_the_same() {
        for flags in 0..8 {
            let is_on = |bit: u32| flags >> bit & 1 == 1;
            let (client, subscriber, anonymous) = (is_on(0), is_on(1), is_on(2));
            let json = format!(
                r#"{{ "channel": {{ "without_namespace": {{ "allow_publish_for_client": {client},
                    "allow_publish_for_subscriber": {subscriber}, "allow_publish_for_anonymous": {anonymous} }} }} }}"#
            );
            let converted = convert_centrifugo(&json).unwrap();
            let access = HubConfig::from_toml(&converted.toml).unwrap().channel.publish;
            for (has_user, is_subscribed) in [(false, false), (false, true), (true, false), (true, true)] {
                let there = (client || subscriber && is_subscribed) && (has_user || anonymous);
                let here = match access {
                    Access::Token => false,
                    Access::SubscribedClient => has_user && is_subscribed,
                    Access::Subscriber => is_subscribed,
                    Access::Client => has_user,
                    Access::Anyone => true,
                };
                assert_eq!(here, there, "{json} {has_user} {is_subscribed}");
            }
            let is_listed = anonymous && !client && !subscriber;
            assert_eq!(!converted.unknown.is_empty(), is_listed, "{json}");
        }
    }

    #[test]
    fn no_other_endpoint_decides_than_the_one_with_the_name() {
        let converted = convert_centrifugo(
            r#"{ "channel": {
                "proxy": { "subscribe": { "endpoint": "http://b/" } },
                "namespaces": [
                    { "name": "a", "subscribe_proxy_enabled": true, "subscribe_proxy_name": "other", "allow_subscribe_for_client": true },
                    { "name": "b", "subscribe_proxy_enabled": true },
                    { "name": "c", "subscribe_proxy_name": "other", "allow_subscribe_for_client": true }
                ]
            } }"#,
        )
        .unwrap();
        let config = HubConfig::from_toml(&converted.toml).unwrap();
        let decided = ["a", "b", "c"]
            .map(|name| (config.namespaces[name].subscribe, config.namespaces[name].subscribe_proxy));
        assert_eq!(decided, [(Access::Token, false), (Access::Token, true), (Access::Client, false)]);
        assert_eq!(converted.unknown, ["channel.namespaces.a.subscribe_proxy_name"]);
    }

    /// They are off in Centrifugo unless they are turned on.
    #[test]
    fn no_transport_is_turned_on() {
        let converted = convert_centrifugo(
            r#"{ "http_api": { "key": "k" }, "sse": { "enabled": false }, "uni_websocket": { "enabled": true },
                 "http_stream": { "max_request_body_size": 5 } }"#,
        )
        .unwrap();
        let on = HubConfig::from_toml(&converted.toml).unwrap().transports;
        let on = [on.sse, on.http_stream, on.uni_websocket, on.uni_sse, on.uni_http_stream];
        assert_eq!(on, [false, false, true, false, false]);
        assert_eq!(converted.unknown, ["http_stream.max_request_body_size"]);
    }

    /// What has no effect without another setting is refused in a file.
    #[test]
    fn what_has_no_effect_is_left_out_and_listed() {
        let converted = convert_centrifugo(
            r#"{
            "client": { "subscribe_to_user_personal_channel": { "personal_channel_namespace": "a" } },
            "channel": {
                "proxy": { "publish": { "endpoint": "http://b/", "timeout": "2s", "http_headers": ["Cookie"] } },
                "without_namespace": { "history_ttl": "60s", "force_recovery": true, "allow_history_for_client": true,
                                       "allow_history_for_anonymous": true },
                "namespaces": [
                    { "name": "a", "history_size": 5, "history_ttl": "0s", "allow_presence_for_client": true, "force_recovery": true },
                    { "name": "b", "history_size": 5, "history_ttl": "60s", "force_recovery": true }
                ]
            }
        }"#,
        )
        .unwrap();
        let config = HubConfig::from_toml(&converted.toml)
            .unwrap_or_else(|error| panic!("{error}\n{}", converted.toml));
        assert!(config.namespaces["b"].has_history() && config.namespaces["b"].force_recovery);
        let expected = [
            "channel.namespaces.a.allow_presence_for_client",
            "channel.namespaces.a.force_recovery",
            "channel.namespaces.a.history_size",
            "channel.proxy.publish.endpoint",
            "channel.proxy.publish.http_headers",
            "channel.proxy.publish.timeout",
            "channel.without_namespace.allow_history_for_anonymous",
            "channel.without_namespace.allow_history_for_client",
            "channel.without_namespace.force_recovery",
            "channel.without_namespace.history_ttl",
            "client.subscribe_to_user_personal_channel.personal_channel_namespace",
        ];
        assert_eq!(converted.unknown, expected);
    }

    /// Endpoints and keys may be in the environment of the other server. What they decide stays closed.
    #[test]
    fn a_setting_that_is_missing_opens_nothing() {
        let converted = convert_centrifugo(
            r#"{
            "client": {
                "allow_anonymous_connect_without_token": true,
                "token": { "hmac_secret_key": "s" },
                "subscription_token": { "enabled": true },
                "proxy": { "connect": { "enabled": true, "timeout": "2s" } }
            },
            "channel": { "namespaces": [
                { "name": "a", "subscribe_proxy_enabled": true, "allow_subscribe_for_client": true, "allow_subscribe_for_anonymous": true,
                  "publish_proxy_enabled": true, "allow_publish_for_client": true }
            ] }
        }"#,
        )
        .unwrap();
        let config = HubConfig::from_toml(&converted.toml)
            .unwrap_or_else(|error| panic!("{error}\n{}", converted.toml));
        assert!(!config.client.anonymous);
        assert!(config.token.subscription.is_some_and(|tokens| tokens.hmac_secret.is_none()));
        let a = &config.namespaces["a"];
        assert_eq!((a.subscribe, a.publish), (Access::Token, Access::Token));
        let expected = [
            "channel.namespaces.a.allow_publish_for_client",
            "channel.namespaces.a.allow_subscribe_for_anonymous",
            "channel.namespaces.a.allow_subscribe_for_client",
            "channel.namespaces.a.publish_proxy_enabled",
            "channel.namespaces.a.subscribe_proxy_enabled",
            "client.allow_anonymous_connect_without_token",
            "client.proxy.connect.enabled",
            "client.proxy.connect.timeout",
            "client.subscription_token.enabled",
        ];
        assert_eq!(converted.unknown, expected);
    }

    #[test]
    fn hubs_that_are_apart_stay_apart() {
        let prefix = |rest: &str| {
            let json = format!(r#"{{ "http_api": {{ "key": "k" }}, {rest} }}"#);
            let Converted { toml, unknown } = convert_centrifugo(&json).unwrap();
            (HubConfig::from_toml(&toml).unwrap().engine.prefix, unknown)
        };
        let nats = r#""broker": { "nats": { "prefix": "staging" } }"#;
        assert_eq!(prefix(nats), ("staging".into(), vec![]));
        let redis = |own: &str| format!(r#""engine": {{ "redis": {{ "prefix": "{own}" }} }}"#);
        assert_eq!(prefix(&redis("staging")), ("staging".into(), vec![]));
        assert_eq!(prefix(&format!("{}, {nats}", redis("staging"))), ("staging".into(), vec![]));
        let listed = vec!["broker.nats.prefix".to_owned()];
        assert_eq!(prefix(&format!("{}, {nats}", redis("other"))), ("other".into(), listed));
        let listed = vec!["engine.redis.prefix".to_owned()];
        assert_eq!(prefix(&redis("my.app")), ("wl".into(), listed));
    }

    #[test]
    fn refuses_version_5() {
        for setting in [
            r#""token_rsa_public_key": "x""#,
            r#""proxy_subscribe_endpoint": "http://b/""#,
            r#""presence": true"#,
            r#""history_size": 10"#,
            r#""allow_subscribe_for_client": true"#,
            r#""api_key": "x""#,
            r#""namespaces": [{ "name": "chat" }]"#,
        ] {
            // Some sections have their names in both versions.
            for more in ["", r#", "client": { "allowed_origins": ["*"] }"#] {
                let refused = convert_centrifugo(&format!("{{{setting}{more}}}")).unwrap_err().to_string();
                assert!(refused.contains("version 5"), "{setting}: {refused}");
            }
        }
    }

    #[test]
    fn nothing_is_left_out_silently() {
        let unknown = |rest: &str| {
            let json = format!(r#"{{ "http_api": {{ "key": "k" }}, "channel": {{ {rest} }} }}"#);
            convert_centrifugo(&json).unwrap().unknown
        };
        assert_eq!(unknown(r#""namespaces": {}, "without_namespace": {}"#), [""; 0]);
        assert_eq!(unknown(r#""private_prefix": "private-""#), ["channel.private_prefix"]);
        assert_eq!(unknown(r#""namespaces": { "chat": {} }"#), ["channel.namespaces"]);
        assert_eq!(unknown(r#""without_namespace": [1]"#), ["channel.without_namespace"]);
        let expected = ["channel.namespaces.1", "channel.namespaces.2", "channel.namespaces.3"];
        assert_eq!(unknown(r#""namespaces": [{ "name": "a" }, "b", { "name": 1 }, {}]"#), expected);
        // Where nothing is left, there is no configuration.
        let refused = convert_centrifugo(r#"{ "admin": { "enabled": true } }"#).unwrap_err().to_string();
        assert!(refused.contains("admin.enabled"), "{refused}");
        assert_eq!(convert_centrifugo("{}").unwrap().toml, "");
    }
}
