//! Entry points for the fuzz targets, for functions that are not public.

use std::time::Duration;

use crate::auth::{ConnectClaims, SubscribeClaims, Verifier};
use crate::{Hub, HubConfig};

/// Executes a call of the server API; returns the length of the result.
pub async fn call(hub: &Hub, method: &str, body: &[u8]) -> usize {
    hub.call(method, body).await.map_or(0, |result| result.get().len())
}

/// Whether a token is valid, for a connection or a subscription.
pub fn is_valid(config: &HubConfig, token: &str, now: Duration) -> bool {
    let Ok(verifier) = Verifier::new(&config.token) else { return false };
    verifier.connect(token, now).is_ok() || verifier.subscribe(token, now).is_ok()
}

/// Reads the claims of a token.
pub fn read_claims(json: &[u8]) {
    if let Ok(claims) = serde_json::from_slice::<ConnectClaims>(json) {
        let _ = (claims.expires_at(), claims.info());
        claims.subs.values().for_each(|sub| drop((sub.info(), sub.data())));
    }
    if let Ok(claims) = serde_json::from_slice::<SubscribeClaims>(json) {
        let _ = (claims.expires_at(), claims.info());
    }
}
