//! What a new configuration replaces: the configuration and what is made of it.

use std::collections::HashMap;

use regex::Regex;
use wireloom::OriginPolicy;

use crate::auth::Verifier;
use crate::config::{ConfigError, HubConfig, name_of, namespace_of, shown};
use crate::endpoint::Endpoint;
use crate::proxy::Proxies;

/// The state that a new configuration replaces.
pub(crate) struct Settings {
    pub(crate) config: HubConfig,
    pub(crate) verifier: Verifier,
    pub(crate) proxies: Proxies,
    /// The endpoint that learns what has ended.
    pub(crate) events: Option<Endpoint>,
    /// The pages whose clients may connect.
    pub(crate) pages: OriginPolicy,
    /// What the names of channels match, by namespace.
    patterns: HashMap<String, Regex>,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Settings")
    }
}

impl Settings {
    /// What was learned with the settings before, `known`, is kept.
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
        let (verifier, proxies) = (verifier?, Proxies::new(&config)?);
        let events = Endpoint::new(&config.events.proxy());
        let mut patterns = HashMap::new();
        for (name, options) in config.all_options() {
            if let Some(pattern) = &options.channel_regex {
                let pattern = Regex::new(pattern).map_err(|error| {
                    ConfigError(format!("namespace {}: channel_regex: {error}", shown(name)))
                })?;
                patterns.insert(name.to_owned(), pattern);
            }
        }
        Ok(Self { verifier, proxies, events, pages, patterns, config })
    }

    /// Whether a channel may have this name in its namespace.
    pub(crate) fn allows_name(&self, channel: &str) -> bool {
        self.patterns.get(namespace_of(channel)).is_none_or(|pattern| pattern.is_match(name_of(channel)))
    }
}
