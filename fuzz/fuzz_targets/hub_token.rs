//! Any text as a token, for keys of every kind: none is valid, because the secrets are not an input. Any bytes as its claims.

#![no_main]

use std::sync::LazyLock;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use wireloom_hub::HubConfig;
use wireloom_hub::fuzzing::{is_valid, read_claims};

static CONFIG: LazyLock<HubConfig> = LazyLock::new(|| {
    let mut config = HubConfig::default();
    config.token.hmac_secret = Some("that no input has".into());
    config.token.rsa_public_key = Some(include_str!("../../crates/hub/tests/keys/rsa.pub.pem").into());
    config.token.ecdsa_public_key = Some(include_str!("../../crates/hub/tests/keys/ecdsa.pub.pem").into());
    config.token.eddsa_public_key = Some(include_str!("../../crates/hub/tests/keys/eddsa.pub.pem").into());
    config.token.jwks = Some(include_str!("../../crates/hub/tests/keys/jwks.json").into());
    config
});

fuzz_target!(|bytes: &[u8]| {
    read_claims(bytes);
    if let Ok(token) = std::str::from_utf8(bytes) {
        assert!(!is_valid(&CONFIG, token, Duration::from_secs(1_000_000)), "a forged token");
    }
});
