//! Conversion of a configuration of Centrifugo (version 6) into one of this hub.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::config::needs::{self, Unmet};
use crate::config::{ConfigError, HubConfig, check_prefix};

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
const ENDPOINTS: [(&str, &str); 5] = [
    ("client.proxy.connect", "proxy.connect"),
    ("client.proxy.refresh", "proxy.refresh"),
    ("channel.proxy.subscribe", "proxy.subscribe"),
    ("channel.proxy.publish", "proxy.publish"),
    ("channel.proxy.sub_refresh", "proxy.sub_refresh"),
];

/// Settings that are off unless a flag is set: Centrifugo's paths of the flag and of the settings.
const SWITCHES: [(&str, &str); 3] = [
    ("client.proxy.connect.enabled", "client.proxy.connect"),
    ("client.proxy.refresh.enabled", "client.proxy.refresh"),
    ("client.subscription_token.enabled", "client.subscription_token"),
];

/// Settings of an endpoint with the same meaning.
const SAME_OF_ENDPOINT: [(&str, &str); 7] = [
    ("endpoint", "url"),
    ("timeout", "timeout"),
    ("http_headers", "forward_headers"),
    ("client_emulated_headers", "emulated_headers"),
    ("static_http_headers", "headers"),
    ("http.static_headers", "headers"),
    ("include_connection_meta", "include_connection_meta"),
];

/// Options of a namespace with the same meaning.
const SAME_OPTIONS: [(&str, &str); 12] = [
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
];

/// The rights of a namespace: the flags `allow_NAME_for_…`, and the setting here.
const RIGHTS: [(&str, &str); 4] = [
    ("subscribe", "subscribe"),
    ("publish", "publish"),
    ("presence", "presence_access"),
    ("history", "history_access"),
];

/// Settings that have these values here always.
const ALWAYS: [(&str, &str); 5] = [
    ("channel.private_prefix", "$"),
    ("channel.namespace_boundary", ":"),
    ("channel.user_boundary", "#"),
    ("channel.user_separator", ","),
    ("rpc.namespace_boundary", ":"),
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

/// The name of the endpoint of an operation itself.
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
    let [has_connect, has_refresh, has_own_tokens] = SWITCHES.map(|(switch, path)| is_on(switch, path));
    for (path, always) in ALWAYS {
        let other = take(&mut root, path).filter(|value| *value != always);
        list_unless_empty(path, other, &mut unknown);
    }
    let off = TRANSPORTS.map(|name| (name, take(&mut root, &format!("{name}.enabled"))));
    let off: Vec<_> = off.into_iter().filter(|(_, enabled)| *enabled != Some(Value::Bool(true))).collect();
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
    for (path, name) in ENDPOINTS {
        file.section(name).settings = Endpoint::take(&mut root, path, &mut unknown).0;
    }
    let mut endpoints = Endpoints::take(&mut root, &mut unknown);
    convert_methods(&mut root, &mut file, &mut endpoints, &mut unknown);
    // A missing URL or key may be in the environment. Without it, the options that would admit clients in its place are removed.
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
            let section = Section::of_namespace("[channel]".into(), "");
            file.0.push(section.with_options(options, without_namespace, &mut endpoints, &mut unknown));
        }
        other => list_unless_empty(without_namespace, other, &mut unknown),
    }
    for (name, options) in take_named(&mut root, "channel.namespaces", &mut unknown) {
        let path = format!("channel.namespaces.{name}");
        let head = format!("[[namespace]]\nname = {}", rendered(&Value::from(&*name)));
        let section = Section::of_namespace(head, &name);
        file.0.push(section.with_options(options, &path, &mut endpoints, &mut unknown));
    }
    endpoints.write(&mut file, &mut unknown);
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
        off.iter()
            .for_each(|(name, _)| file.section("transports").add(*name, Value::Bool(false), Vec::new()));
    }
    Ok(Converted { toml: file.rendered(), unknown })
}

/// The settings of an endpoint.
#[derive(Clone, Default)]
struct Endpoint(Vec<Setting>);

impl Endpoint {
    /// The endpoint at a path. One without a URL of HTTP cannot be asked.
    fn take(root: &mut Map<String, Value>, path: &str, unknown: &mut Vec<String>) -> Self {
        match take(root, path) {
            Some(Value::Object(settings)) => Self::new(settings, path, unknown),
            other => {
                list_unless_empty(path, other, unknown);
                Self::default()
            }
        }
    }

    fn new(mut settings: Map<String, Value>, path: &str, unknown: &mut Vec<String>) -> Self {
        let mut endpoint = Self::default();
        for (own, name) in SAME_OF_ENDPOINT {
            let Some(value) = take(&mut settings, own).filter(|value| !is_empty(value) && *value != false)
            else {
                continue;
            };
            let is_of_http = |url: &str| url.starts_with("http://") || url.starts_with("https://");
            let path = format!("{path}.{own}");
            // The same setting by its other name.
            if endpoint.has(name) || name == "url" && !value.as_str().is_some_and(is_of_http) {
                unknown.push(path);
            } else {
                endpoint.0.push(Setting { name: name.into(), value, paths: vec![path] });
            }
        }
        list(&format!("{path}."), &Value::Object(settings), unknown);
        endpoint
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|setting| setting.name == name)
    }
}

/// The endpoints with names.
#[derive(Default)]
struct Endpoints {
    all: BTreeMap<String, Endpoint>,
    /// The names that are chosen.
    chosen: BTreeSet<String>,
    /// The names of those whose settings are elsewhere, too.
    copied: BTreeSet<String>,
}

impl Endpoints {
    /// Those of `proxies` that can be asked.
    fn take(root: &mut Map<String, Value>, unknown: &mut Vec<String>) -> Self {
        let mut found = Self::default();
        for (name, settings) in take_named(root, "proxies", unknown) {
            let path = format!("proxies.{name}");
            let endpoint = Endpoint::new(settings, &path, unknown);
            if endpoint.has("url") && !found.all.contains_key(&name) {
                found.all.insert(name, endpoint);
            } else {
                unknown.extend(endpoint.0.into_iter().flat_map(|setting| setting.paths));
            }
        }
        found
    }

    /// The value of a namespace's option for the endpoint with this name; `None` if there is no such endpoint.
    fn choose(&mut self, name: Option<&Value>) -> Option<Value> {
        let name = match name {
            Some(name) if !is_empty(name) && name != DEFAULT => name.as_str()?,
            _ => return Some(Value::Bool(true)),
        };
        self.all.contains_key(name).then(|| {
            self.chosen.insert(name.to_owned());
            name.into()
        })
    }

    /// The settings of one that is not chosen by its name, after all.
    fn copy(&mut self, name: &str) -> Vec<Setting> {
        self.chosen.remove(name);
        self.copied.insert(name.to_owned());
        self.all.get(name).map(|endpoint| endpoint.0.clone()).unwrap_or_default()
    }

    /// Adds one, with a name that begins like this. It is chosen.
    fn add(&mut self, name: &str, endpoint: Endpoint) -> Value {
        let mut name = name.to_owned();
        while self.all.contains_key(&name) {
            name.push('_');
        }
        self.all.insert(name.clone(), endpoint);
        self.chosen.insert(name.clone());
        name.into()
    }

    /// Those that are not chosen are listed.
    fn write(self, file: &mut File, unknown: &mut Vec<String>) {
        for (name, Endpoint(settings)) in self.all {
            if self.chosen.contains(&name) {
                let head = format!("[[endpoint]]\nname = {}", rendered(&Value::from(&*name)));
                file.0.push(Section { head, place: Place::Endpoint, settings, is_kept: true });
            } else if !self.copied.contains(&name) {
                unknown.extend(settings.into_iter().flat_map(|setting| setting.paths));
            }
        }
    }
}

/// The endpoint of methods with these options; `false` for none. `own` is the one without a name.
fn choose_of_methods(
    mut options: Map<String, Value>,
    path: &str,
    own: &Endpoint,
    endpoints: &mut Endpoints,
    unknown: &mut Vec<String>,
) -> Value {
    let (is_on, name) = (options.remove("proxy_enabled"), options.remove("proxy_name"));
    list(&format!("{path}."), &Value::Object(options), unknown);
    if is_on != Some(Value::Bool(true)) {
        return Value::Bool(false);
    }
    let missing = match endpoints.choose(name.as_ref()) {
        Some(Value::Bool(true)) if !own.has("url") => "proxy_enabled",
        Some(choice) => return choice,
        None => "proxy_name",
    };
    unknown.push(format!("{path}.{missing}"));
    Value::Bool(false)
}

/// The endpoints of methods. What none answers there is closed here: `[rpc]` would answer it.
fn convert_methods(
    root: &mut Map<String, Value>,
    file: &mut File,
    endpoints: &mut Endpoints,
    unknown: &mut Vec<String>,
) {
    // An endpoint that is off is left out.
    let mut of_own = Vec::new();
    let own = Endpoint::take(root, "rpc.proxy", &mut of_own);
    let without_namespace = "rpc.without_namespace";
    let options = match take(root, without_namespace) {
        Some(Value::Object(options)) => options,
        other => {
            list_unless_empty(without_namespace, other, unknown);
            Map::new()
        }
    };
    let default = choose_of_methods(options, without_namespace, &own, endpoints, unknown);
    let mut asks_own = default == true;
    file.section("rpc").settings = match &default {
        Value::Bool(true) => own.0.clone(),
        Value::String(name) => endpoints.copy(name),
        _ => Vec::new(),
    };
    // Where `[rpc]` is another one.
    let mut name_of_own = None;
    for (name, options) in take_named(root, "rpc.namespaces", unknown) {
        let path = format!("rpc.namespaces.{name}");
        let choice = match choose_of_methods(options, &path, &own, endpoints, unknown) {
            Value::Bool(false) if default == false => continue,
            Value::Bool(true) if default != true => {
                asks_own = true;
                name_of_own.get_or_insert_with(|| endpoints.add("rpc", own.clone())).clone()
            }
            choice => choice,
        };
        let key = if name.contains('.') { rendered(&Value::from(name)) } else { name };
        file.section("rpc_namespaces").add(key, choice, []);
    }
    if asks_own {
        unknown.extend(of_own);
    }
}

/// The objects of an array, which have a name each.
fn take_named(
    root: &mut Map<String, Value>,
    path: &str,
    unknown: &mut Vec<String>,
) -> Vec<(String, Map<String, Value>)> {
    let all = match take(root, path) {
        Some(Value::Array(all)) => all,
        other => {
            list_unless_empty(path, other, unknown);
            return Vec::new();
        }
    };
    let mut found = Vec::new();
    for (number, one) in all.into_iter().enumerate() {
        let name = one.get("name").and_then(Value::as_str).map(str::to_owned);
        match (name, one) {
            (Some(name), Value::Object(mut settings)) => {
                settings.remove("name");
                found.push((name, settings));
            }
            _ => unknown.push(format!("{path}.{number}")),
        }
    }
    found
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
    place: Place,
    settings: Vec<Setting>,
    /// Whether it has a meaning without settings.
    is_kept: bool,
}

/// The kind of a section.
#[derive(PartialEq, Eq)]
enum Place {
    /// It has this name.
    Section(&'static str),
    /// The options of the namespace with this name; empty for the default one.
    Namespace(String),
    /// An endpoint with a name.
    Endpoint,
}

#[derive(Clone)]
struct Setting {
    name: String,
    value: Value,
    /// Where the value was.
    paths: Vec<String>,
}

impl File {
    /// The section with this name, which is added if it is not there.
    fn section(&mut self, name: &'static str) -> &mut Section {
        let place = Place::Section(name);
        let at = self.0.iter().position(|section| section.place == place).unwrap_or_else(|| {
            let (head, settings) = (format!("[{name}]"), Vec::new());
            self.0.push(Section { head, place, settings, is_kept: false });
            self.0.len() - 1
        });
        &mut self.0[at]
    }

    /// Removes settings that have no effect without others, which are missing, until there are none, and lists where they were.
    fn remove_unmet(&mut self, unknown: &mut Vec<String>) {
        // A value of a wrong type is left for the reader of the file.
        while let Ok(config) = toml::from_str::<HubConfig>(&self.rendered()) {
            let count = unknown.len();
            for Unmet { namespace, setting, .. } in needs::unmet(&config) {
                for section in self.0.iter_mut().filter(|section| section.is_of(namespace.as_deref())) {
                    let own = match section.place {
                        Place::Section(name) => {
                            setting.strip_prefix(name).and_then(|rest| rest.strip_prefix('.'))
                        }
                        Place::Namespace(_) | Place::Endpoint => Some(&*setting),
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
        Self { head, place: Place::Namespace(namespace.into()), settings: Vec::new(), is_kept: true }
    }

    fn is_of(&self, namespace: Option<&str>) -> bool {
        match (&self.place, namespace) {
            (Place::Section(_), None) => true,
            (Place::Namespace(own), Some(namespace)) => own == namespace,
            _ => false,
        }
    }

    fn add(&mut self, name: impl Into<String>, value: Value, paths: impl Into<Vec<String>>) {
        self.settings.push(Setting { name: name.into(), value, paths: paths.into() });
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
        endpoints: &mut Endpoints,
        unknown: &mut Vec<String>,
    ) -> Self {
        options.retain(|name, value| !(ALWAYS_ON_OPTIONS.contains(&&**name) && *value == true));
        for operation in OPERATIONS {
            let (flag, name) = (format!("{operation}_proxy_enabled"), format!("{operation}_proxy_name"));
            let (is_on, named) = (options.remove(&flag), options.remove(&name));
            let flaw = match is_on {
                None | Some(Value::Null | Value::Bool(false)) => continue,
                Some(Value::Bool(true)) => match endpoints.choose(named.as_ref()) {
                    Some(choice) => {
                        self.add(format!("{operation}_proxy"), choice, [format!("{path}.{flag}")]);
                        continue;
                    }
                    None => name,
                },
                Some(_) => flag,
            };
            // Nothing else decides instead of an endpoint that is missing. Beside it the flags had no meaning.
            options.retain(|flag, _| !flag.starts_with(&format!("allow_{operation}_for_")));
            unknown.push(format!("{path}.{flaw}"));
        }
        // It decides before the flags, and has no counterpart.
        if options.get("subscribe_stream_proxy_enabled") == Some(&Value::Bool(true)) {
            options.retain(|flag, _| !flag.starts_with("allow_subscribe_for_"));
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
mod tests;
