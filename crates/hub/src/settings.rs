//! What a new configuration replaces: the configuration and what is made of it.

use crate::auth::Verifier;
use crate::config::{ConfigError, HubConfig};

/// The state that a new configuration replaces.
pub(crate) struct Settings {
    pub(crate) config: HubConfig,
    pub(crate) verifier: Verifier,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Settings")
    }
}

impl Settings {
    pub(crate) fn new(config: HubConfig) -> Result<Self, ConfigError> {
        Ok(Self { verifier: Verifier::new(&config.token)?, config })
    }
}
