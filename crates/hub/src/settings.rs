//! The state that a new configuration replaces: the configuration and the objects made from it.

use std::collections::HashMap;

use regex::Regex;
use tracing::warn;
use wireloom::OriginPolicy;

use crate::auth::Verifier;
use crate::config::{ConfigError, HistoryConfig, HubConfig, name_of, namespace_of, shown};
use crate::proxy::Proxies;

/// The state that a new configuration replaces.
pub(crate) struct Settings {
    pub(crate) config: HubConfig,
    pub(crate) verifier: Verifier,
    pub(crate) proxies: Proxies,
    /// The pages whose clients may connect.
    pub(crate) pages: OriginPolicy,
    /// `channel_regex`, by namespace.
    patterns: HashMap<String, Regex>,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Settings")
    }
}

impl Settings {
    /// Makes the state. `known` is the previous one, of which the fetched keys, the counts of calls in progress and the limits of the
    /// engine are kept.
    ///
    /// # Errors
    /// The configuration cannot be used. One that was not read from a file is checked here.
    pub(crate) fn new(config: HubConfig, known: Option<&Self>) -> Result<Self, ConfigError> {
        let mut config = config.check()?;
        for options in config.namespaces.values_mut().chain([&mut config.channel]) {
            if options.history_meta_ttl.is_zero() {
                options.history_meta_ttl = config.history.meta_ttl;
            }
        }
        let pages = match &config.client.allowed_origins {
            origins if origins.iter().any(|origin| origin == "*") => OriginPolicy::any(),
            origins => OriginPolicy::listed(origins).with_same_origin([""; 0]),
        };
        let verifier = match known {
            Some(known) => known.verifier.renew(&config.token),
            None => Verifier::new(&config.token),
        };
        let (verifier, proxies) = (verifier?, Proxies::new(&config, known.map(|known| &known.proxies))?);
        let mut patterns = HashMap::new();
        for (name, options) in config.all_options() {
            if let Some(pattern) = &options.channel_regex {
                let pattern = Regex::new(pattern).map_err(|error| {
                    ConfigError(format!("namespace {}: channel_regex: {error}", shown(name)))
                })?;
                patterns.insert(name.to_owned(), pattern);
            }
        }
        if let Some(known) = known {
            keep_limits(&mut config, &known.config);
        }
        Ok(Self { verifier, proxies, pages, patterns, config })
    }

    /// Whether a channel may have this name in its namespace.
    pub(crate) fn allows_name(&self, channel: &str) -> bool {
        self.patterns.get(namespace_of(channel)).is_none_or(|pattern| pattern.is_match(name_of(channel)))
    }
}

/// Restores the limits that the engine was made with: they change only at a restart.
fn keep_limits(config: &mut HubConfig, known: &HubConfig) {
    let (HistoryConfig { channels_max, len_max, .. }, prefix) =
        (&mut config.history, &mut config.engine.prefix);
    for (name, has_changed) in [
        ("history.channels_max", *channels_max != known.history.channels_max),
        ("history.len_max", *len_max != known.history.len_max),
        ("engine.prefix", *prefix != known.engine.prefix),
    ] {
        if has_changed {
            warn!("{name} has changed, which needs a restart");
        }
    }
    (*channels_max, *len_max) = (known.history.channels_max, known.history.len_max);
    prefix.clone_from(&known.engine.prefix);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_an_engine_keeps_stay() {
        let config = |max: u32| {
            let config =
                format!("history = {{ channels_max = {max}, len_max = {max} }}\nengine.prefix = \"p{max}\"");
            HubConfig::from_toml(&config).unwrap()
        };
        let before = Settings::new(config(10), None).unwrap();
        let after = Settings::new(config(5), Some(&before)).unwrap().config;
        assert_eq!((after.history.channels_max, after.history.len_max), (10, 10));
        assert_eq!(after.engine.prefix, before.config.engine.prefix);
    }

    #[test]
    fn calls_of_endpoints_that_do_not_change_count_after_a_reload() {
        let config = |rpc: &str| {
            let config = "channel.subscribe_proxy = true\nproxy.connect.url = \"http://a/\"\n\
                proxy.subscribe = { url = \"http://a/\", headers = { x = \"1\", y = \"2\" } }\n";
            HubConfig::from_toml(&format!("{config}rpc.url = \"http://{rpc}/\"\n")).unwrap()
        };
        let before = Settings::new(config("a"), None).unwrap();
        let after = Settings::new(config("b"), Some(&before)).unwrap();
        let endpoints = [&before, &after].map(|settings| {
            let proxies = &settings.proxies;
            let subscribe = proxies.of_channel("x").and_then(|channel| channel.subscribe.clone());
            [proxies.connect.clone(), subscribe, proxies.of_method("x").cloned()].map(Option::unwrap)
        });
        let is_same = [0, 1, 2].map(|one| endpoints[0][one].turns.are_those_of(&endpoints[1][one].turns));
        assert_eq!(is_same, [true, true, false]);
        assert!(!endpoints[0][0].turns.are_those_of(&endpoints[0][1].turns), "each has calls of its own");
    }
}
