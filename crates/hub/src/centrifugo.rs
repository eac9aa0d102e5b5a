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

    /// What a namespace is to have for an endpoint with this name; `None` if there is none.
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

/// What a section is for.
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
        // A value of a wrong type is for whoever reads the file.
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
mod tests {
    use super::*;
    use crate::{Access, ProxyChoice};

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
        assert!(chat.subscribe_proxy == ProxyChoice::On && chat.history_size == 10);
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
                    { "name": "c", "subscribe_proxy_name": "other", "allow_subscribe_for_client": true },
                    { "name": "d", "subscribe_stream_proxy_enabled": true, "allow_subscribe_for_client": true }
                ]
            } }"#,
        )
        .unwrap();
        let config = HubConfig::from_toml(&converted.toml).unwrap();
        let decided = ["a", "b", "c", "d"]
            .map(|name| (config.namespaces[name].subscribe, config.namespaces[name].subscribe_proxy.clone()));
        let (off, on) = (ProxyChoice::Off, ProxyChoice::On);
        let closed = (Access::Token, off.clone());
        assert_eq!(decided, [closed.clone(), (Access::Token, on), (Access::Client, off), closed]);
        let expected = ["a.subscribe_proxy_name", "d.subscribe_stream_proxy_enabled"];
        assert_eq!(converted.unknown, expected.map(|path| format!("channel.namespaces.{path}")));
    }

    /// With the configuration of Centrifugo's documentation of them.
    #[test]
    fn endpoints_with_names_are_converted() {
        let converted = convert_centrifugo(
            r#"{
            "proxies": [
                { "name": "subscribe1", "endpoint": "http://localhost:3001/centrifugo/subscribe" },
                { "name": "publish1", "endpoint": "http://localhost:3001/centrifugo/publish", "timeout": "1s", "http_headers": ["Cookie"],
                  "include_connection_meta": true, "binary_encoding": true,
                  "http": { "static_headers": { "X-Custom-Header": "custom value" } } },
                { "name": "subscribe2", "endpoint": "http://localhost:3002/centrifugo/subscribe" },
                { "name": "publish2", "endpoint": "grpc://localhost:3002" },
                { "name": "rpc1", "endpoint": "http://localhost:3001/centrifugo/rpc" },
                { "name": "rpc2", "endpoint": "grpc://localhost:3002" },
                { "name": "unused", "endpoint": "http://localhost:3003/", "include_connection_meta": false }
            ],
            "channel": {
                "proxy": { "publish": { "endpoint": "http://localhost:3000/" }, "sub_refresh": { "endpoint": "http://localhost:3000/" } },
                "without_namespace": { "sub_refresh_proxy_enabled": true, "sub_refresh_proxy_name": "default" },
                "namespaces": [
                    { "name": "ns1", "subscribe_proxy_enabled": true, "subscribe_proxy_name": "subscribe1",
                      "publish_proxy_enabled": true, "publish_proxy_name": "publish1", "allow_publish_for_client": true },
                    { "name": "ns2", "subscribe_proxy_enabled": true, "subscribe_proxy_name": "subscribe2",
                      "publish_proxy_enabled": true, "publish_proxy_name": "publish2", "allow_publish_for_client": true },
                    { "name": "ns3", "publish_proxy_enabled": true, "sub_refresh_proxy_enabled": "yes" }
                ]
            },
            "rpc": { "namespaces": [
                { "name": "ns1", "proxy_enabled": true, "proxy_name": "rpc1" },
                { "name": "ns2", "proxy_enabled": true, "proxy_name": "rpc2" }
            ] }
        }"#,
        )
        .unwrap();
        let config = HubConfig::from_toml(&converted.toml)
            .unwrap_or_else(|error| panic!("{error}\n{}", converted.toml));
        let named = |name: &str| ProxyChoice::Named(name.into());
        let [ns1, ns2, ns3] = ["ns1", "ns2", "ns3"].map(|name| config.namespaces[name].clone());
        assert_eq!([ns1.subscribe_proxy, ns1.publish_proxy], [named("subscribe1"), named("publish1")]);
        assert_eq!([ns2.subscribe_proxy, ns2.publish_proxy], [named("subscribe2"), ProxyChoice::Off]);
        assert_eq!((ns2.publish, ns3.publish_proxy), (Access::Token, ProxyChoice::On));
        assert_eq!(config.channel.sub_refresh_proxy, ProxyChoice::On);
        let mut names: Vec<_> = config.endpoints.keys().map(String::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["publish1", "rpc1", "subscribe1", "subscribe2"]);
        let publish1 = &config.endpoints["publish1"];
        assert_eq!(publish1.url.as_deref(), Some("http://localhost:3001/centrifugo/publish"));
        assert_eq!((publish1.timeout.as_secs(), &*publish1.forward_headers), (1, &["Cookie".to_owned()][..]));
        assert_eq!(publish1.headers["X-Custom-Header"], "custom value");
        assert_eq!(config.rpc_namespaces, [("ns1".to_owned(), named("rpc1"))].into());
        let expected = [
            "channel.namespaces.ns2.publish_proxy_name",
            "channel.namespaces.ns3.sub_refresh_proxy_enabled",
            "proxies.publish1.binary_encoding",
            "proxies.publish2.endpoint",
            "proxies.rpc2.endpoint",
            "proxies.unused.endpoint",
            "rpc.namespaces.ns2.proxy_name",
        ];
        assert_eq!(converted.unknown, expected);
    }

    /// What none answers there is not answered by `[rpc]`.
    #[test]
    fn methods_keep_their_endpoints() {
        let namespaces = |rpc: &str| {
            let json = format!(
                r#"{{ "proxies": [{{ "name": "other", "endpoint": "http://other/" }}, {{ "name": "rpc", "endpoint": "http://rpc/" }}],
                    "rpc": {{ "proxy": {{ "endpoint": "http://own/", "binary_encoding": true }}, {rpc} }} }}"#
            );
            let Converted { toml, unknown } = convert_centrifugo(&json).unwrap();
            let config = HubConfig::from_toml(&toml).unwrap_or_else(|error| panic!("{error}\n{toml}"));
            let mut methods: Vec<_> = config
                .rpc_namespaces
                .into_iter()
                .map(|(name, choice)| match choice {
                    ProxyChoice::Off => (name, None),
                    ProxyChoice::On => (name, config.rpc.url.clone()),
                    ProxyChoice::Named(endpoint) => (name, config.endpoints[&endpoint].url.clone()),
                })
                .collect();
            methods.push((String::new(), config.rpc.url));
            methods.sort();
            let methods =
                methods.into_iter().map(|(name, url)| format!("{name} {}", url.unwrap_or_default()));
            (methods.collect::<Vec<_>>(), unknown)
        };
        let on = |name: &str, more: &str| format!(r#"{{ "name": "{name}", "proxy_enabled": true{more} }}"#);
        let all = [
            on("own", ""),
            on("default", r#", "proxy_name": "default""#),
            on("a.b", r#", "proxy_name": "other""#),
            on("missing", r#", "proxy_name": "none""#),
            r#"{ "name": "off" }"#.to_owned(),
        ];
        let all = all.join(", ");
        let without =
            |options: &str| format!(r#""without_namespace": {{ {options} }}, "namespaces": [{all}]"#);
        let missing = "rpc.namespaces.missing.proxy_name";
        assert_eq!(
            namespaces(&without(r#""proxy_enabled": true"#)),
            (
                [
                    "http://own/",
                    "a.b http://other/",
                    "default http://own/",
                    "missing ",
                    "off ",
                    "own http://own/"
                ]
                .map(|line| if line.starts_with("http") { format!(" {line}") } else { line.into() })
                .to_vec(),
                ["proxies.rpc.endpoint", missing, "rpc.proxy.binary_encoding"].map(str::to_owned).to_vec()
            )
        );
        let of_others = ["a.b http://other/", "default http://own/"];
        assert_eq!(
            namespaces(&without("")),
            (
                [" ", of_others[0], of_others[1], "own http://own/"].map(str::to_owned).to_vec(),
                ["proxies.rpc.endpoint", missing, "rpc.proxy.binary_encoding"].map(str::to_owned).to_vec()
            )
        );
        assert_eq!(
            namespaces(&without(r#""proxy_enabled": true, "proxy_name": "rpc""#)),
            (
                [" http://rpc/", of_others[0], of_others[1], "missing ", "off ", "own http://own/"]
                    .map(str::to_owned)
                    .to_vec(),
                [missing, "rpc.proxy.binary_encoding"].map(str::to_owned).to_vec()
            )
        );
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
