//! Tokens: JSON Web Tokens (RFC 7519) with the claims of the client protocol.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::jwk::{JwkSet, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Header, Validation, decode, decode_header};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use tokio::sync::{Semaphore, SemaphorePermit};
use tracing::warn;
use wireloom::client::url_without_secrets;

use crate::budget::{self, BYTES_PER_UNIT, charge};
use crate::clock::{Clock, WarningLimit};
use crate::config::{ConfigError, TokenConfig};
use crate::jwks::RemoteKeys;
use crate::meta::Meta;
use crate::nullable::{map_or_default, or_default};
use crate::overrides::Overrides;
use crate::protocol::ErrorCode;
use crate::random::Uuid;

/// Verifies tokens.
pub(crate) struct Verifier {
    connect: Keys,
    /// The keys of subscriptions' tokens, if they have their own.
    subscribe: Option<Keys>,
    /// A permit for each signature that may be verified at the same time. The tasks of many connections that open at once do not pay for
    /// each other: those that wait here leave the others their turns.
    checks: Semaphore,
}

/// The keys that verify one kind of token.
struct Keys {
    keys: Vec<(Algorithm, DecodingKey)>,
    jwks: JwkSet,
    /// The keys at a URL.
    remote: Option<Arc<RemoteKeys>>,
    /// How old they may become.
    refresh_after: Duration,
    audience: Option<String>,
    issuer: Option<String>,
    leeway: Duration,
}

/// Why a token is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenError {
    /// Its `exp` has passed.
    Expired,
    /// It is malformed, forged, of another kind or issuer, or for another audience.
    Invalid(Flaw),
    /// Its key is at a URL that cannot be read now.
    Unavailable,
}

/// The flaw of an invalid token: logged for the operator, never sent to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    Missing,
    Malformed,
    Critical,
    NoKey(Algorithm),
    UnknownKey,
    KeyAlgorithm,
    Signature,
    Claims,
    Audience,
    Issuer,
    NotYet,
    OfSubscription,
    OtherChannel,
    OtherUser,
    OtherClient,
    LongMeta,
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "there is none, and neither anonymous nor proxy.connect lets it in",
            Self::Malformed => "it is not a JSON Web Token, or has an algorithm that is not supported",
            Self::Critical => "its header has critical extensions (crit)",
            Self::NoKey(algorithm) => {
                return write!(f, "no key is configured for its algorithm, {algorithm:?}");
            }
            Self::UnknownKey => "its key (kid) is in no key set",
            Self::KeyAlgorithm => {
                "its algorithm is not the one of its key (kid), or the key is not for signatures (use, key_ops)"
            }
            Self::Signature => "its signature is by another key",
            Self::Claims => "its claims cannot be read: one has another type",
            Self::Audience => "its aud is not the configured audience",
            Self::Issuer => "its iss is not the configured issuer",
            Self::NotYet => "its nbf is in the future",
            Self::OfSubscription => "it is the token of a subscription: a connection's has no claim channel",
            Self::OtherChannel => "it is for another channel",
            Self::OtherUser => "its sub is not the user of the connection",
            Self::OtherClient => "its client is not the id of the connection",
            Self::LongMeta => "its meta is longer than 16 KiB",
        })
    }
}

impl From<Flaw> for TokenError {
    fn from(flaw: Flaw) -> Self {
        Self::Invalid(flaw)
    }
}

impl From<jsonwebtoken::errors::Error> for Flaw {
    fn from(error: jsonwebtoken::errors::Error) -> Self {
        match error.kind() {
            ErrorKind::InvalidSignature => Self::Signature,
            ErrorKind::InvalidAudience => Self::Audience,
            ErrorKind::InvalidIssuer => Self::Issuer,
            ErrorKind::MissingRequiredClaim(name) if name == "aud" => Self::Audience,
            ErrorKind::MissingRequiredClaim(name) if name == "iss" => Self::Issuer,
            ErrorKind::InvalidAlgorithm | ErrorKind::InvalidKeyFormat => Self::KeyAlgorithm,
            ErrorKind::Json(_) => Self::Claims,
            _ => Self::Malformed,
        }
    }
}

impl TokenError {
    /// The code with which a command is refused.
    pub(crate) fn code(self) -> ErrorCode {
        match self {
            Self::Expired => ErrorCode::TokenExpired,
            Self::Invalid(_) => ErrorCode::PermissionDenied,
            Self::Unavailable => ErrorCode::Internal,
        }
    }

    /// The same error, after the log has what is wrong with the token. The log has one a second at most.
    pub(crate) fn logged(self, clock: &Clock, warnings: &WarningLimit, client: Uuid) -> Self {
        if let Self::Invalid(flaw) = self
            && warnings.may_warn(clock.now())
        {
            warn!(%client, "the token of a client is refused: {flaw}");
        }
        self
    }
}

/// The claims of a connection's token.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ConnectClaims {
    /// The user.
    pub(crate) sub: String,
    /// Only the token of a subscription has this claim.
    channel: Option<IgnoredAny>,
    exp: Option<NumericDate>,
    nbf: Option<NumericDate>,
    expire_at: Option<NumericDate>,
    info: Option<Box<RawValue>>,
    b64info: Option<String>,
    meta: Option<Box<RawValue>>,
    /// Channels to subscribe the connection to.
    #[serde(deserialize_with = "or_default")]
    pub(crate) channels: Vec<String>,
    /// Channels to subscribe the connection to, with options.
    #[serde(deserialize_with = "map_or_default")]
    pub(crate) subs: HashMap<String, SubClaims>,
}

/// The options of a channel that a connection's token subscribes it to.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SubClaims {
    info: Option<Box<RawValue>>,
    b64info: Option<String>,
    data: Option<Box<RawValue>>,
    b64data: Option<String>,
    #[serde(rename = "override", deserialize_with = "or_default")]
    pub(crate) overrides: Overrides,
}

/// The claims of a subscription's token.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SubscribeClaims {
    /// The user.
    pub(crate) sub: String,
    /// The channel.
    pub(crate) channel: String,
    /// The connection; if empty, any connection of the user.
    pub(crate) client: String,
    exp: Option<NumericDate>,
    nbf: Option<NumericDate>,
    expire_at: Option<NumericDate>,
    info: Option<Box<RawValue>>,
    b64info: Option<String>,
    #[serde(rename = "override", deserialize_with = "or_default")]
    pub(crate) overrides: Overrides,
}

/// A time since 1970. In JSON (RFC 7519 §2): seconds, which may have a fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct NumericDate(Duration);

impl<'de> Deserialize<'de> for NumericDate {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let number = serde_json::Number::deserialize(from)?;
        let seconds = number.as_f64().unwrap_or_default();
        Ok(Self(match number.as_u64() {
            Some(seconds) => Duration::from_secs(seconds),
            None if seconds < 0.0 => Duration::ZERO,
            None => Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX),
        }))
    }
}

impl ConnectClaims {
    /// Since 1970; `None` for never.
    pub(crate) fn expires_at(&self) -> Option<Duration> {
        expiry(self.exp, self.expire_at)
    }

    pub(crate) fn info(&self) -> Bytes {
        payload(self.info.as_deref(), self.b64info.as_deref())
    }

    /// The `meta` claim, which is attached to the connection.
    pub(crate) fn meta(&self) -> Result<Option<Meta>, TokenError> {
        Meta::new(self.meta.as_deref()).map_err(|_| Flaw::LongMeta.into())
    }
}

impl SubClaims {
    pub(crate) fn info(&self) -> Bytes {
        payload(self.info.as_deref(), self.b64info.as_deref())
    }

    pub(crate) fn data(&self) -> Bytes {
        payload(self.data.as_deref(), self.b64data.as_deref())
    }
}

impl SubscribeClaims {
    /// Since 1970; `None` for never.
    pub(crate) fn expires_at(&self) -> Option<Duration> {
        expiry(self.exp, self.expire_at)
    }

    pub(crate) fn info(&self) -> Bytes {
        payload(self.info.as_deref(), self.b64info.as_deref())
    }
}

/// The time of expiry: `expire_at` overrides `exp`; an `expire_at` of 0 means never.
fn expiry(exp: Option<NumericDate>, expire_at: Option<NumericDate>) -> Option<Duration> {
    match expire_at {
        Some(NumericDate(Duration::ZERO)) => None,
        Some(NumericDate(at)) => Some(at),
        None => exp.map(|exp| exp.0),
    }
}

fn payload(json: Option<&RawValue>, base64: Option<&str>) -> Bytes {
    if let Some(base64) = base64.filter(|text| !text.is_empty()) {
        return STANDARD.decode(base64).unwrap_or_default().into();
    }
    json.map(|json| Bytes::copy_from_slice(json.get().as_bytes())).unwrap_or_default()
}

/// The length of an RSA key of 2,048 bits in DER (RFC 8017 §A.1.1), with the shortest exponent.
const RSA_DER_LEN_MIN: usize = 268;

/// The algorithm of an EC key in PEM, which names its curve (RFC 5480 §2.1.1.1); `None` if there is none.
fn ec_algorithm(pem: &str) -> Option<Algorithm> {
    const P256: [u8; 10] = [0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
    const P384: [u8; 7] = [0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x22];
    // Text may surround the PEM block, as in the output of openssl.
    let lines = pem.lines().map(str::trim).skip_while(|line| !line.starts_with("-----BEGIN")).skip(1);
    let der =
        STANDARD.decode(lines.take_while(|line| !line.starts_with("-----")).collect::<String>()).ok()?;
    let names = |curve: &[u8]| der.windows(curve.len()).any(|part| part == curve);
    match (names(&P256), names(&P384)) {
        (true, _) => Some(Algorithm::ES256),
        (_, true) => Some(Algorithm::ES384),
        _ => None,
    }
}

/// The cost of verifying a signature, in units of a task's budget.
fn cost_of(algorithm: Algorithm) -> usize {
    match algorithm {
        Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512 => budget::COMMAND,
        Algorithm::ES256 | Algorithm::EdDSA => budget::TURN / 16,
        Algorithm::ES384 => budget::TURN,
        // RSA keys may have 8,192 bits.
        _ => budget::TURN / 4,
    }
}

impl Verifier {
    pub(crate) fn new(config: &TokenConfig) -> Result<Self, ConfigError> {
        Self::with_known(config, Vec::new())
    }

    /// A verifier for a new configuration, in which the keys at URLs that this one has fetched stay in use.
    pub(crate) fn renew(&self, config: &TokenConfig) -> Result<Self, ConfigError> {
        Self::with_known(config, self.remote().cloned().collect())
    }

    fn with_known(config: &TokenConfig, mut remote: Vec<Arc<RemoteKeys>>) -> Result<Self, ConfigError> {
        let subscribe = config.subscription.as_deref();
        if subscribe.is_some_and(|own| own.subscription.is_some()) {
            return Err(ConfigError("token.subscription has no section subscription of its own".into()));
        }
        let mut connect = Keys::new("token", config, &remote)?;
        // Both kinds may have the same URL.
        remote.extend(connect.remote.clone());
        let mut subscribe = subscribe.map(|own| Keys::new("token.subscription", own, &remote)).transpose()?;
        if let (Some(shared), Some(own)) = (&connect.remote, &mut subscribe)
            && own.remote.as_ref().is_some_and(|remote| Arc::ptr_eq(remote, shared))
        {
            // They are fetched by one task, which has one interval.
            own.refresh_after = own.refresh_after.min(connect.refresh_after);
            connect.refresh_after = own.refresh_after;
        }
        // At least every second thread does something else.
        let checks = std::thread::available_parallelism().map_or(1, |threads| threads.get().div_ceil(2));
        Ok(Self { connect, subscribe, checks: Semaphore::new(checks) })
    }

    /// The keys at URLs.
    fn remote(&self) -> impl Iterator<Item = &Arc<RemoteKeys>> {
        [Some(&self.connect), self.subscribe.as_ref()]
            .into_iter()
            .flatten()
            .filter_map(|keys| keys.remote.as_ref())
    }

    /// How long the token of a connection is accepted after its `exp`.
    pub(crate) fn leeway_of_connect(&self) -> Duration {
        self.connect.leeway
    }

    /// Calls `verify`, which verifies the token of a connection, when it is its turn; the turn is over before anything else is awaited.
    /// Fetches the keys at a URL if the token names one that is not known, and charges the check.
    pub(crate) async fn in_turn_of_connect<T>(&self, token: &str, verify: impl FnOnce() -> T) -> T {
        let _turn = self.prepare(&self.connect, token).await;
        verify()
    }

    /// The same for the token of a subscription.
    pub(crate) async fn in_turn_of_subscribe<T>(&self, token: &str, verify: impl FnOnce() -> T) -> T {
        let _turn = self.prepare(self.subscribe_keys(), token).await;
        verify()
    }

    /// The number of signatures that may be verified now.
    #[cfg(test)]
    pub(crate) fn turns(&self) -> usize {
        self.checks.available_permits()
    }

    async fn prepare(&self, keys: &Keys, token: &str) -> Option<SemaphorePermit<'_>> {
        let Header { alg, kid, .. } = decode_header(token).ok()?;
        keys.prepare(kid).await;
        let cost = cost_of(alg);
        charge(cost + token.len() / BYTES_PER_UNIT).await;
        if cost > budget::COMMAND { self.checks.acquire().await.ok() } else { None }
    }

    fn subscribe_keys(&self) -> &Keys {
        self.subscribe.as_ref().unwrap_or(&self.connect)
    }

    pub(crate) fn connect(&self, token: &str, now: Duration) -> Result<ConnectClaims, TokenError> {
        let mut claims: ConnectClaims = self.connect.verify(token)?;
        // RFC 8725 §3.12: one kind of token does not serve as another.
        if claims.channel.is_some() {
            return Err(Flaw::OfSubscription.into());
        }
        self.connect.check_time(&mut claims.exp, claims.nbf, now).map(|()| claims)
    }

    pub(crate) fn subscribe(&self, token: &str, now: Duration) -> Result<SubscribeClaims, TokenError> {
        let keys = self.subscribe_keys();
        let mut claims: SubscribeClaims = keys.verify(token)?;
        keys.check_time(&mut claims.exp, claims.nbf, now).map(|()| claims)
    }
}

impl Keys {
    /// `section` is the name of the configuration's section, for errors.
    fn new(section: &str, config: &TokenConfig, known: &[Arc<RemoteKeys>]) -> Result<Self, ConfigError> {
        use Algorithm::{EdDSA, HS256, HS384, HS512, RS256, RS384, RS512};
        crate::jwt::install();
        let mut keys = Vec::new();
        let mut add = |algorithms: &[Algorithm], key: DecodingKey| {
            keys.extend(algorithms.iter().map(|algorithm| (*algorithm, key.clone())));
        };
        let pem = |name: &str, key: Result<DecodingKey, jsonwebtoken::errors::Error>| {
            key.map_err(|error| ConfigError(format!("{section}.{name}: {error}")))
        };
        for (name, secret) in
            [("hmac_secret", &config.hmac_secret), ("hmac_previous_secret", &config.hmac_previous_secret)]
        {
            let Some(secret) = secret else { continue };
            if secret.is_empty() {
                return Err(ConfigError(format!("{section}.{name} must not be empty")));
            }
            add(&[HS256, HS384, HS512], DecodingKey::from_secret(secret.as_bytes()));
        }
        if let Some(key) = &config.rsa_public_key {
            let key = pem("rsa_public_key", DecodingKey::from_rsa_pem(key.as_bytes()))?;
            if key.try_get_as_bytes().is_ok_and(|der| der.len() < RSA_DER_LEN_MIN) {
                return Err(ConfigError(format!("{section}.rsa_public_key must have 2,048 bits or more")));
            }
            add(&[RS256, RS384, RS512], key);
        }
        if let Some(key) = &config.ecdsa_public_key {
            let own = pem("ecdsa_public_key", DecodingKey::from_ec_pem(key.as_bytes()))?;
            let algorithm = ec_algorithm(key).ok_or_else(|| {
                ConfigError(format!("{section}.ecdsa_public_key: the curve must be P-256 or P-384"))
            })?;
            add(&[algorithm], own);
        }
        if let Some(key) = &config.eddsa_public_key {
            let key = pem("eddsa_public_key", DecodingKey::from_ed_pem(key.as_bytes()))?;
            add(&[EdDSA], key);
        }
        let file = config.jwks_file.as_ref().map(|path| {
            std::fs::read_to_string(path)
                .map_err(|error| ConfigError(format!("{section}.jwks_file {}: {error}", path.display())))
        });
        let jwks = match file.transpose()?.as_ref().or(config.jwks.as_ref()) {
            Some(text) => {
                serde_json::from_str(text).map_err(|error| ConfigError(format!("{section}.jwks: {error}")))?
            }
            None => JwkSet { keys: Vec::new() },
        };
        let remote =
            config.jwks_url.as_deref().map(|url| match known.iter().find(|known| known.url() == url) {
                Some(known) => Ok(known.clone()),
                None => RemoteKeys::new(url).map(Arc::new).map_err(|error| {
                    ConfigError(format!("{section}.jwks_url {}: {error}", url_without_secrets(url)))
                }),
            });
        Ok(Self {
            keys,
            jwks,
            remote: remote.transpose()?,
            refresh_after: config.jwks_refresh,
            audience: config.audience.clone(),
            issuer: config.issuer.clone(),
            leeway: config.leeway,
        })
    }

    /// Fetches the keys at a URL if this one is not known.
    async fn prepare(&self, id: Option<String>) {
        let Some(remote) = &self.remote else { return };
        if let Some(id) = id.filter(|id| self.jwks.find(id).is_none()) {
            remote.prepare(&id, self.refresh_after).await;
        }
    }

    /// The claims of a token, verified with a key for the token's algorithm. Callers check `exp` and `nbf`.
    fn verify<T: DeserializeOwned>(&self, token: &str) -> Result<T, TokenError> {
        let header = decode_header(token).map_err(|_| Flaw::Malformed)?;
        // RFC 7515 §4.1.11: extensions that are not understood must be refused, and none is.
        if has_critical_extensions(token) {
            return Err(Flaw::Critical.into());
        }
        let mut validation = Validation::new(header.alg);
        validation.validate_exp = false;
        validation.validate_nbf = false;
        validation.required_spec_claims.clear();
        match &self.audience {
            Some(audience) => {
                validation.set_audience(&[audience]);
                validation.required_spec_claims.insert("aud".into());
            }
            None => validation.validate_aud = false,
        }
        if let Some(issuer) = &self.issuer {
            validation.set_issuer(&[issuer]);
            validation.required_spec_claims.insert("iss".into());
        }
        let verified = |key: &DecodingKey| decode(token, key, &validation).map(|data| data.claims);
        let id = header.kid.as_deref();
        if let Some(id) = id {
            let remote = self.remote.as_ref().and_then(|remote| remote.find(id));
            if let Some(jwk) = self.jwks.find(id).cloned().or(remote) {
                // RFC 8725 §3.1: a key is used only with its own algorithm, which may be none for signatures, and for its own use.
                let own = jwk.common.key_algorithm.map(|own| own.to_string().parse::<Algorithm>().ok());
                let has_other_use =
                    jwk.common.public_key_use.as_ref().is_some_and(|own| *own != PublicKeyUse::Signature);
                // RFC 7517 §4.3.
                let is_for_others = jwk
                    .common
                    .key_operations
                    .as_ref()
                    .is_some_and(|own| !own.contains(&KeyOperations::Verify));
                if has_other_use || is_for_others || own.is_some_and(|own| own != Some(header.alg)) {
                    return Err(Flaw::KeyAlgorithm.into());
                }
                let key = DecodingKey::from_jwk(&jwk).map_err(Flaw::from)?;
                return Ok(verified(&key).map_err(Flaw::from)?);
            }
        }
        // While keys are rotated there are two for an algorithm.
        let has_sets = self.remote.is_some() || !self.jwks.keys.is_empty();
        let mut flaw = if id.is_some() && has_sets { Flaw::UnknownKey } else { Flaw::NoKey(header.alg) };
        for (_, key) in self.keys.iter().filter(|(algorithm, _)| *algorithm == header.alg) {
            match verified(key).map_err(Flaw::from) {
                Ok(claims) => return Ok(claims),
                // With the key that has signed it, something else is wrong.
                Err(Flaw::Signature) if matches!(flaw, Flaw::Audience | Flaw::Issuer | Flaw::Claims) => {}
                Err(other) => flaw = other,
            }
        }
        let is_unavailable = id.is_some() && self.remote.as_ref().is_some_and(|remote| remote.has_failed());
        Err(if is_unavailable { TokenError::Unavailable } else { flaw.into() })
    }

    /// RFC 7519 §4.1.4, §4.1.5: both by the system's clock, with the same leeway. It is added to `exp`: what the token grants lasts as long
    /// as the token is accepted.
    fn check_time(
        &self,
        exp: &mut Option<NumericDate>,
        nbf: Option<NumericDate>,
        now: Duration,
    ) -> Result<(), TokenError> {
        if nbf.is_some_and(|nbf| nbf.0 > now.saturating_add(self.leeway)) {
            return Err(Flaw::NotYet.into());
        }
        if let Some(NumericDate(exp)) = exp {
            *exp = exp.saturating_add(self.leeway);
            if *exp <= now {
                return Err(TokenError::Expired);
            }
        }
        Ok(())
    }
}

/// Whether a token's header has the field `crit`. The token has been parsed.
fn has_critical_extensions(token: &str) -> bool {
    let head = token.split('.').next().unwrap_or_default();
    let Ok(head) = URL_SAFE_NO_PAD.decode(head) else { return true };
    serde_json::from_slice::<HashMap<String, IgnoredAny>>(&head)
        .map_or(true, |head| head.contains_key("crit"))
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use super::*;
    use jsonwebtoken::EncodingKey;
    use serde_json::json;

    const NOW: Duration = Duration::from_secs(1_000_000);

    fn verifier() -> Verifier {
        Verifier::new(&TokenConfig { hmac_secret: Some("secret".into()), ..TokenConfig::default() }).unwrap()
    }

    /// Signs as an application does that has made a hub, which chooses the provider of signatures for the process.
    fn encode(
        header: &Header,
        claims: &serde_json::Value,
        key: &EncodingKey,
    ) -> jsonwebtoken::errors::Result<String> {
        crate::jwt::install();
        jsonwebtoken::encode(header, claims, key)
    }

    fn sign(claims: &serde_json::Value, secret: &str) -> String {
        encode(&Header::default(), claims, &EncodingKey::from_secret(secret.as_bytes())).unwrap()
    }

    #[test]
    fn reads_the_claims_of_a_valid_token() {
        let token = sign(
            &json!({ "sub": "42", "exp": 1_000_001, "info": { "name": "x" }, "subs": { "a": {} }, "channels": ["b"] }),
            "secret",
        );
        let claims = verifier().connect(&token, NOW).unwrap();
        assert_eq!((&*claims.sub, &claims.info()[..]), ("42", &br#"{"name":"x"}"#[..]));
        assert_eq!(claims.expires_at(), Some(NOW + Duration::from_secs(1)));
        assert!(claims.subs.contains_key("a"));
        assert_eq!(claims.channels, ["b"]);
    }

    #[test]
    fn kinds_with_the_same_jwks_url_have_the_shorter_refresh() {
        let config = |url: &str, secs| TokenConfig {
            jwks_url: Some(url.to_owned()),
            jwks_refresh: Duration::from_secs(secs),
            ..TokenConfig::default()
        };
        let refresh = |own_url: &str, secs: [u64; 2]| {
            let subscription = Some(Box::new(config(own_url, secs[1])));
            let config = TokenConfig { subscription, ..config("http://a/", secs[0]) };
            let new = Verifier::new(&config).unwrap();
            [new.renew(&config).unwrap(), new].map(|verifier| {
                [&verifier.connect, verifier.subscribe_keys()].map(|keys| keys.refresh_after.as_secs())
            })
        };
        assert_eq!(refresh("http://a/", [7, 600]), [[7, 7]; 2]);
        assert_eq!(refresh("http://a/", [600, 7]), [[7, 7]; 2]);
        assert_eq!(refresh("http://b/", [600, 7]), [[600, 7]; 2]);
    }

    /// RFC 7519 §2: a NumericDate may have a fraction. Backends also write the largest integer for "never".
    #[test]
    fn reads_every_numeric_date() {
        let second = Duration::from_secs(1);
        for (exp, expires_at) in [
            (json!(1_000_000.5), NOW + second / 2),
            (json!(1_000_001.0), NOW + second),
            (json!(u64::MAX), Duration::from_secs(u64::MAX)),
            (json!(1e300), Duration::MAX),
        ] {
            let claims = verifier().connect(&sign(&json!({ "exp": exp }), "secret"), NOW).unwrap();
            assert_eq!(claims.expires_at(), Some(expires_at), "{exp}");
            let token = sign(&json!({ "exp": 1, "expire_at": exp }), "secret");
            let claims = verifier().connect(&token, Duration::ZERO).unwrap();
            assert_eq!(claims.expires_at(), Some(expires_at), "{exp}");
        }
        for exp in [json!(999_999.9), json!(1_000_000), json!(0.5), json!(-1), json!(-1e300)] {
            let token = sign(&json!({ "exp": exp }), "secret");
            assert_eq!(verifier().connect(&token, NOW).unwrap_err(), TokenError::Expired, "{exp}");
        }
    }

    #[test]
    fn refuses_expired_and_forged_tokens() {
        let expired = sign(&json!({ "sub": "42", "exp": 1_000_000 }), "secret");
        assert_eq!(verifier().connect(&expired, NOW).unwrap_err(), TokenError::Expired);
        let forged = sign(&json!({ "sub": "42" }), "other");
        assert_eq!(verifier().connect(&forged, NOW).unwrap_err(), Flaw::Signature.into());
        // {"alg":"none"} and no signature.
        let none = "eyJhbGciOiJub25lIn0.eyJzdWIiOiI0MiJ9.";
        for token in ["", "x", "a.b.c", none] {
            assert_eq!(verifier().connect(token, NOW).unwrap_err(), Flaw::Malformed.into(), "{token}");
        }
    }

    #[test]
    fn a_token_of_a_subscription_is_none_of_a_connection() {
        for channel in [json!("a"), json!(""), json!(null)] {
            let token = sign(&json!({ "sub": "42", "channel": channel }), "secret");
            let is_refused = verifier().connect(&token, NOW).err() == Some(Flaw::OfSubscription.into());
            assert_eq!(is_refused, !channel.is_null(), "{channel}");
        }
    }

    #[test]
    fn subscriptions_may_have_a_key_of_their_own() {
        let own = TokenConfig { hmac_secret: Some("own".into()), ..TokenConfig::default() };
        let config = TokenConfig {
            hmac_secret: Some("secret".into()),
            subscription: Some(own.into()),
            ..TokenConfig::default()
        };
        let verifier = Verifier::new(&config).unwrap();
        let connection = |secret| verifier.connect(&sign(&json!({ "sub": "42" }), secret), NOW).is_ok();
        let subscription =
            |secret| verifier.subscribe(&sign(&json!({ "sub": "42", "channel": "a" }), secret), NOW).is_ok();
        assert_eq!([connection("secret"), connection("own")], [true, false]);
        assert_eq!([subscription("secret"), subscription("own")], [false, true]);
        let nested = TokenConfig { subscription: Some(config.into()), ..TokenConfig::default() };
        assert!(Verifier::new(&nested).is_err());
    }

    #[test]
    fn a_previous_secret_verifies_too() {
        let config = TokenConfig {
            hmac_secret: Some("new".into()),
            hmac_previous_secret: Some("old".into()),
            ..TokenConfig::default()
        };
        let verifier = Verifier::new(&config).unwrap();
        let verifies = |secret| verifier.connect(&sign(&json!({ "sub": "42" }), secret), NOW).is_ok();
        assert_eq!(["new", "old", "older"].map(verifies), [true, true, false]);
    }

    #[test]
    fn refuses_critical_extensions() {
        let claims = json!({ "sub": "42" }).to_string();
        for (head, is_valid) in [
            (json!({ "alg": "HS256" }), true),
            (json!({ "alg": "HS256", "crit": ["b64"], "b64": true }), false),
            (json!({ "alg": "HS256", "crit": ["exp"] }), false),
        ] {
            let [head, claims] = [head.to_string(), claims.clone()].map(|part| URL_SAFE_NO_PAD.encode(part));
            let signed = format!("{head}.{claims}");
            let key = EncodingKey::from_secret(b"secret");
            crate::jwt::install();
            let signature = jsonwebtoken::crypto::sign(signed.as_bytes(), &key, Algorithm::HS256).unwrap();
            let token = format!("{signed}.{signature}");
            assert_eq!(verifier().connect(&token, NOW).is_ok(), is_valid, "{head}");
        }
    }

    #[test]
    fn both_times_have_the_same_leeway_on_the_same_clock() {
        let verifier = |leeway| {
            let leeway = Duration::from_secs(leeway);
            let config = TokenConfig { hmac_secret: Some("secret".into()), leeway, ..TokenConfig::default() };
            Verifier::new(&config).unwrap()
        };
        let expired = Some(TokenError::Expired);
        for (claims, leeway, error) in [
            (json!({ "exp": 999_990 }), 9, expired),
            (json!({ "exp": 999_990 }), 10, expired),
            (json!({ "exp": 999_990 }), 11, None),
            (json!({ "nbf": 1_000_010 }), 9, Some(Flaw::NotYet.into())),
            (json!({ "nbf": 1_000_010 }), 10, None),
            (json!({ "nbf": 1_000_000 }), 0, None),
            (json!({ "nbf": 1_000_001 }), 0, Some(Flaw::NotYet.into())),
        ] {
            let token = sign(&claims, "secret");
            assert_eq!(verifier(leeway).connect(&token, NOW).err(), error, "{claims} {leeway}");
        }
    }

    /// Otherwise a connection that is accepted would end at once.
    #[test]
    fn a_token_expires_when_its_leeway_is_over() {
        let leeway = Duration::from_secs(120);
        let config = TokenConfig { hmac_secret: Some("secret".into()), leeway, ..TokenConfig::default() };
        let verifier = Verifier::new(&config).unwrap();
        let exp = NOW - Duration::from_secs(40);
        for (claims, expires_at) in [
            (json!({ "exp": exp.as_secs() }), Some(exp + leeway)),
            (json!({ "exp": u64::MAX }), Some(Duration::from_secs(u64::MAX).saturating_add(leeway))),
            (json!({ "exp": exp.as_secs(), "expire_at": 7 }), Some(Duration::from_secs(7))),
            (json!({ "exp": exp.as_secs(), "expire_at": 0 }), None),
            (json!({}), None),
        ] {
            let token = sign(&claims, "secret");
            assert_eq!(verifier.connect(&token, NOW).unwrap().expires_at(), expires_at, "{claims}");
            assert_eq!(verifier.subscribe(&token, NOW).unwrap().expires_at(), expires_at, "{claims}");
        }
    }

    #[test]
    fn requires_the_issuer_and_the_audience() {
        let config = TokenConfig {
            hmac_secret: Some("secret".into()),
            audience: Some("hub".into()),
            issuer: Some("app".into()),
            ..TokenConfig::default()
        };
        let verifier = Verifier::new(&config).unwrap();
        assert!(verifier.connect(&sign(&json!({ "aud": "hub", "iss": "app" }), "secret"), NOW).is_ok());
        for (claims, flaw) in [
            (json!({ "aud": "hub" }), Flaw::Issuer),
            (json!({ "aud": "hub", "iss": "x" }), Flaw::Issuer),
            (json!({ "aud": "x", "iss": "app" }), Flaw::Audience),
            (json!({ "iss": "app" }), Flaw::Audience),
            (json!({ "aud": "hub", "iss": "app", "sub": 5 }), Flaw::Claims),
        ] {
            let error = verifier.connect(&sign(&claims, "secret"), NOW).unwrap_err();
            assert_eq!(error, flaw.into(), "{claims}");
        }
    }

    const RSA: &str = include_str!("../tests/keys/rsa.pem");
    const ECDSA: &str = include_str!("../tests/keys/ecdsa.pem");
    const EDDSA: &str = include_str!("../tests/keys/eddsa.pem");
    const RSA_PUBLIC: &str = include_str!("../tests/keys/rsa.pub.pem");
    const JWKS: &str = include_str!("../tests/keys/jwks.json");

    /// Each algorithm with its key's name and the key that signs.
    fn algorithms() -> [(Algorithm, &'static str, EncodingKey); 4] {
        [
            (Algorithm::HS256, "hmac", EncodingKey::from_secret(b"secret")),
            (Algorithm::RS256, "rsa", EncodingKey::from_rsa_pem(RSA.as_bytes()).unwrap()),
            (Algorithm::ES256, "ecdsa", EncodingKey::from_ec_pem(ECDSA.as_bytes()).unwrap()),
            (Algorithm::EdDSA, "eddsa", EncodingKey::from_ed_pem(EDDSA.as_bytes()).unwrap()),
        ]
    }

    fn header(algorithm: Algorithm, id: Option<&str>) -> Header {
        Header { kid: id.map(str::to_owned), ..Header::new(algorithm) }
    }

    /// All keys as PEM files.
    fn with_keys() -> Verifier {
        let config = TokenConfig {
            hmac_secret: Some("secret".into()),
            rsa_public_key: Some(RSA_PUBLIC.into()),
            ecdsa_public_key: Some(include_str!("../tests/keys/ecdsa.pub.pem").into()),
            eddsa_public_key: Some(include_str!("../tests/keys/eddsa.pub.pem").into()),
            ..TokenConfig::default()
        };
        Verifier::new(&config).unwrap()
    }

    fn with_jwks() -> Verifier {
        Verifier::new(&TokenConfig { jwks: Some(JWKS.into()), ..TokenConfig::default() }).unwrap()
    }

    #[test]
    fn verifies_each_algorithm_with_a_key_of_the_configuration_and_of_a_key_set() {
        let claims = json!({ "sub": "42", "exp": 1_000_001 });
        let expired = json!({ "sub": "42", "exp": 1_000_000 });
        for (algorithm, id, key) in algorithms() {
            for (verifier, id) in [(with_keys(), None), (with_jwks(), Some(id))] {
                let token = encode(&header(algorithm, id), &claims, &key).unwrap();
                assert_eq!(verifier.connect(&token, NOW).unwrap().sub, "42", "{algorithm:?} {id:?}");
                let token = encode(&header(algorithm, id), &expired, &key).unwrap();
                assert_eq!(verifier.connect(&token, NOW).unwrap_err(), TokenError::Expired);
            }
        }
    }

    #[test]
    fn verifies_each_hash_of_an_algorithm() {
        use Algorithm::{ES384, HS384, HS512, RS384, RS512};
        let rsa = || EncodingKey::from_rsa_pem(RSA.as_bytes()).unwrap();
        let hmac = || EncodingKey::from_secret(b"secret");
        let ecdsa = EncodingKey::from_ec_pem(include_str!("../tests/keys/ecdsa384.pem").as_bytes()).unwrap();
        let public = include_str!("../tests/keys/ecdsa384.pub.pem").to_owned();
        let es384 = Verifier::new(&TokenConfig { ecdsa_public_key: Some(public), ..TokenConfig::default() });
        let (es384, others) = (es384.unwrap(), with_keys());
        for (verifier, algorithm, key) in [
            (&others, HS384, hmac()),
            (&others, HS512, hmac()),
            (&others, RS384, rsa()),
            (&others, RS512, rsa()),
            (&es384, ES384, ecdsa),
        ] {
            let token = encode(&header(algorithm, None), &json!({ "sub": "42" }), &key).unwrap();
            assert_eq!(verifier.connect(&token, NOW).unwrap().sub, "42", "{algorithm:?}");
        }
    }

    #[test]
    fn reads_a_key_set_from_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("keys.json");
        let config = TokenConfig { jwks_file: Some(file.clone()), ..TokenConfig::default() };
        let missing = Verifier::new(&config).map(drop).unwrap_err().to_string();
        assert!(missing.starts_with("token.jwks_file"), "{missing}");
        std::fs::write(&file, JWKS).unwrap();
        let verifier = Verifier::new(&config).unwrap();
        for (algorithm, id, key) in algorithms() {
            let token = encode(&header(algorithm, Some(id)), &json!({ "sub": "42" }), &key).unwrap();
            assert_eq!(verifier.connect(&token, NOW).unwrap().sub, "42", "{algorithm:?}");
        }
    }

    #[test]
    fn refuses_forged_tokens_of_each_algorithm() {
        let claims = json!({ "sub": "42" });
        for (algorithm, id, key) in algorithms() {
            for (verifier, id) in [(with_keys(), None), (with_jwks(), Some(id))] {
                let token = encode(&header(algorithm, id), &claims, &key).unwrap();
                let refused = |token: &str| {
                    assert_eq!(verifier.connect(token, NOW).unwrap_err(), Flaw::Signature.into());
                };
                // Other claims, and no signature.
                let [head, _, signature] = token.split('.').collect::<Vec<_>>().try_into().unwrap();
                let admin = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(r#"{"sub":"admin"}"#);
                refused(&format!("{head}.{admin}.{signature}"));
                refused(&token[..=token.rfind('.').unwrap()]);
                // One byte of the signature is changed.
                let at = token.rfind('.').unwrap() + 5;
                let other = if token.as_bytes()[at] == b'A' { "B" } else { "A" };
                refused(&format!("{}{other}{}", &token[..at], &token[at + 1..]));
            }
        }
    }

    #[test]
    fn refuses_a_public_key_as_a_secret() {
        // RFC 8725 §2.1: the attacker signs with HS256, and with the public key as the secret.
        let key = EncodingKey::from_secret(RSA_PUBLIC.as_bytes());
        for (verifier, id, flaw) in
            [(with_keys(), None, Flaw::Signature), (with_jwks(), Some("rsa"), Flaw::KeyAlgorithm)]
        {
            let token = encode(&header(Algorithm::HS256, id), &json!({ "sub": "42" }), &key).unwrap();
            assert_eq!(verifier.connect(&token, NOW).unwrap_err(), flaw.into());
        }
    }

    #[test]
    fn refuses_a_key_of_the_set_with_another_algorithm_and_an_unknown_key() {
        let (verifier, [(_, _, hmac), ..]) = (with_jwks(), algorithms());
        for (algorithm, id, flaw) in [
            (Algorithm::HS512, "hmac", Flaw::KeyAlgorithm),
            (Algorithm::HS256, "unknown", Flaw::UnknownKey),
            (Algorithm::HS256, "ecdsa", Flaw::KeyAlgorithm),
        ] {
            let token = encode(&header(algorithm, Some(id)), &json!({ "sub": "42" }), &hmac).unwrap();
            assert_eq!(verifier.connect(&token, NOW).unwrap_err(), flaw.into(), "{algorithm:?} {id}");
        }
    }

    /// RFC 7517 §4.2 to §4.4: such as the key that an identity provider encrypts with.
    #[test]
    fn refuses_a_key_of_the_set_that_is_not_for_signatures() {
        let text = serde_json::from_str::<serde_json::Value>(JWKS).unwrap();
        for (name, value) in [
            ("alg", json!("RSA-OAEP")),
            ("alg", json!("invented")),
            ("use", json!("enc")),
            ("use", json!("invented")),
            ("key_ops", json!(["encrypt", "sign"])),
        ] {
            let mut set = text.clone();
            set["keys"][0][name] = value.clone();
            let config = TokenConfig { jwks: Some(set.to_string()), ..TokenConfig::default() };
            let verifier = Verifier::new(&config).unwrap();
            for (algorithm, id, key) in algorithms() {
                let token = encode(&header(algorithm, Some(id)), &json!({ "sub": "42" }), &key).unwrap();
                let error = (id == "rsa").then_some(Flaw::KeyAlgorithm.into());
                assert_eq!(verifier.connect(&token, NOW).err(), error, "{name} {value}: {id}");
            }
        }
    }

    /// Many connections that open at once would fill every turn of the others.
    #[tokio::test]
    async fn few_signatures_are_verified_at_the_same_time() {
        let verifier = Verifier::new(&TokenConfig::default()).unwrap();
        let token = |algorithm: &str| {
            let header = URL_SAFE_NO_PAD.encode(format!("{{\"alg\":\"{algorithm}\"}}"));
            format!("{header}.e30.AAAA")
        };
        let permits = verifier.checks.available_permits();
        let others = verifier.checks.acquire_many(permits as u32).await.unwrap();
        for (algorithm, waits) in [("HS256", false), ("ES256", true), ("EdDSA", true), ("PS512", true)] {
            let token = token(algorithm);
            let mut preparing = pin!(verifier.in_turn_of_connect(&token, || ()));
            let is_waiting = poll_fn(|cx| Poll::Ready(preparing.as_mut().poll(cx).is_pending())).await;
            assert_eq!(is_waiting, waits, "{algorithm}");
        }
        drop(others);
        verifier.in_turn_of_connect(&token("ES384"), || assert_eq!(verifier.turns(), permits - 1)).await;
        assert_eq!(verifier.turns(), permits);
    }

    #[test]
    fn refuses_every_token_without_a_key() {
        let verifier = Verifier::new(&TokenConfig::default()).unwrap();
        let error = verifier.connect(&sign(&json!({}), ""), NOW).unwrap_err();
        assert_eq!(error, Flaw::NoKey(Algorithm::HS256).into());
    }

    /// Every token with such a key would be refused.
    #[test]
    fn keys_that_verify_nothing_are_refused() {
        let pem =
            |body: &str| Some(format!("-----BEGIN PUBLIC KEY-----\n{body}\n-----END PUBLIC KEY-----\n"));
        let p521 = "MIGbMBAGByqGSM49AgEGBSuBBAAjA4GGAAQBYVCPwe972GsBcewpPVYGAYAIgBPl\n+NrWH7h6vENgbYDr90YVe2i+RZyrJrnYtL0bGQjC8E5VLKQUhocfNEP0f4kBTixy\n+f8yvXueBOk+fekOzhvucPPuKEzagz9X8POP6aXoA1XAze0WV4/154AmM2Sx95r2\npDPtGhO7/9cMBIbQDAo=";
        let secp256k1 = "MFYwEAYHKoZIzj0CAQYFK4EEAAoDQgAEpZD4knxlm5i3B6hqKG+wuu6DhZgUrL/y\nvfzUIoep4uyyWv5TC8yw44HAWKqE3JN5rMR6yDRmi2lHzEVPLMEhNQ==";
        let rsa1024 = "MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQDUweiEI+EgMOY6m1g0BMvY8Xqq\nrmu4EVboehTM0KtYtFAm1BH5+Q6Oqx/TzABTIxbfPdTPM8SJB/1GD8C9GrnVmjLZ\ndUe2EAgZ+jy5mpNvAZ1oy4tHH8uRhrKQ87OODXcC+cbe2Fkav4fSbKeEMvk3q9MU\nZax1VQbbi0kFZkZmkQIDAQAB";
        let refusal = |config: TokenConfig| Verifier::new(&config).err().map(|error| error.to_string());
        for curve in [p521, secp256k1] {
            let config = TokenConfig { ecdsa_public_key: pem(curve), ..TokenConfig::default() };
            let expected = "token.ecdsa_public_key: the curve must be P-256 or P-384";
            assert_eq!(refusal(config).as_deref(), Some(expected));
        }
        // Text before the PEM block, as openssl prints it, is ignored.
        let text = format!("Public-Key: (256 bit)\npub:\n{}", include_str!("../tests/keys/ecdsa.pub.pem"));
        let config = TokenConfig { ecdsa_public_key: Some(text), ..TokenConfig::default() };
        assert_eq!(refusal(config), None);
        let config = TokenConfig { rsa_public_key: pem(rsa1024), ..TokenConfig::default() };
        assert_eq!(refusal(config).as_deref(), Some("token.rsa_public_key must have 2,048 bits or more"));
    }
}
