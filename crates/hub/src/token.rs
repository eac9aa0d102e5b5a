//! Making tokens, for trials and for backends in Rust.

use jsonwebtoken::{EncodingKey, Header, encode};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::config::{ConfigError, HubConfig};

/// The claims of a token that [`HubConfig::sign_token`] makes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TokenClaims {
    /// The user; empty for an anonymous client.
    pub user: String,
    /// The channel, for the token of a subscription; `None` for that of a connection.
    pub channel: Option<String>,
    /// Channels that a connection is subscribed to from the start.
    pub channels: Vec<String>,
    /// Information about this client for other clients: a JSON value.
    pub info: Option<String>,
    /// A JSON value for endpoints with `include_connection_meta`, never sent to clients; only in the token of a connection.
    pub meta: Option<String>,
    /// When the token expires, in seconds since 1970; `None` for never.
    pub exp: Option<u64>,
}

#[derive(Serialize)]
struct Signed<'a> {
    sub: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    channel: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    channels: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    info: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    meta: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exp: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    aud: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    iss: Option<&'a str>,
}

fn json<'a>(name: &str, value: Option<&'a str>) -> Result<Option<&'a RawValue>, ConfigError> {
    let parsed = value.map(serde_json::from_str).transpose();
    parsed.map_err(|error| ConfigError(format!("{name} is not JSON: {error}")))
}

impl HubConfig {
    /// Signs a token (HS256) with the secret that verifies it: `token.hmac_secret`, or that of `token.subscription` for a channel. It has
    /// the audience and the issuer of that section.
    ///
    /// # Errors
    /// The configuration has no such secret, or `info` or `meta` is not JSON.
    pub fn sign_token(&self, claims: &TokenClaims) -> Result<String, ConfigError> {
        let own = self.token.subscription.as_deref().filter(|_| claims.channel.is_some());
        let (section, config) = own.map_or(("token", &self.token), |own| ("token.subscription", own));
        let secret = config.hmac_secret.as_ref();
        let secret = secret.ok_or_else(|| ConfigError(format!("{section}.hmac_secret is not set")))?;
        let signed = Signed {
            sub: &claims.user,
            channel: claims.channel.as_deref(),
            channels: &claims.channels,
            info: json("info", claims.info.as_deref())?,
            meta: json("meta", claims.meta.as_deref())?,
            exp: claims.exp,
            aud: config.audience.as_deref(),
            iss: config.issuer.as_deref(),
        };
        crate::jwt::install();
        encode(&Header::default(), &signed, &EncodingKey::from_secret(secret.as_bytes()))
            .map_err(|error| ConfigError(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Verifier;
    use std::time::Duration;

    #[test]
    fn signs_what_the_same_configuration_verifies() {
        let config = HubConfig::from_toml(
            "[token]\nhmac_secret = \"a\"\naudience = \"hub\"\nissuer = \"app\"\n[token.subscription]\nhmac_secret = \"b\"\n",
        )
        .unwrap();
        let verifier = Verifier::new(&config.token).unwrap();
        let now = Duration::from_secs(100);
        let mut claims = TokenClaims {
            user: "7".into(),
            info: Some("{\"a\":1}".into()),
            meta: Some("[1]".into()),
            exp: Some(101),
            ..TokenClaims::default()
        };
        let connection = verifier.connect(&config.sign_token(&claims).unwrap(), now).unwrap();
        assert_eq!((&*connection.sub, &connection.info()[..]), ("7", &b"{\"a\":1}"[..]));
        assert_eq!(connection.meta().unwrap().unwrap().json(), "[1]");
        assert!(verifier.connect(&config.sign_token(&claims).unwrap(), Duration::from_secs(101)).is_err());
        claims.channel = Some("$x".into());
        let token = config.sign_token(&claims).unwrap();
        assert_eq!(verifier.subscribe(&token, now).unwrap().channel, "$x");
        assert!(verifier.connect(&token, now).is_err());
        claims.info = Some("{".into());
        assert!(config.sign_token(&claims).is_err());
        assert!(HubConfig::default().sign_token(&TokenClaims::default()).is_err());
    }
}
