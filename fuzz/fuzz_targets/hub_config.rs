//! Any text as a configuration: what is accepted makes a hub, and finds the options of any channel.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wireloom_hub::{Hub, HubConfig};

fuzz_target!(|text: &str| {
    let Ok(mut config) = HubConfig::from_toml(text) else { return };
    for channel in ["", "x", ":", "$:", "chat:x", "$chat:x", text] {
        let _ = config.channel_options(channel);
    }
    // The files of the machine are not an input.
    config.token.jwks_file = None;
    drop(Hub::builder().config(config).build());
});
