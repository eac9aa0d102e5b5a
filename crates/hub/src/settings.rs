//! What a new configuration replaces: the configuration and what is made of it.

use wireloom::OriginPolicy;

use crate::auth::Verifier;
use crate::config::{ConfigError, HubConfig};
use crate::endpoint::{CallsAgain, Endpoint};
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
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Settings")
    }
}

impl Settings {
    pub(crate) fn new(config: HubConfig) -> Result<Self, ConfigError> {
        let pages = match &config.client.allowed_origins {
            origins if origins.iter().any(|origin| origin == "*") => OriginPolicy::any(),
            origins => OriginPolicy::listed(origins).with_same_origin([""; 0]),
        };
        let (verifier, proxies) = (Verifier::new(&config.token)?, Proxies::new(&config)?);
        // Whoever receives an event twice knows it by its id.
        let events = Endpoint::new(&config.events.proxy(), CallsAgain::Yes);
        Ok(Self { verifier, proxies, events, pages, config })
    }
}
