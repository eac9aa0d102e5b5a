//! The application decides by HTTP: requests and responses of Centrifugo's proxies, for each operation that has an endpoint.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use wireloom::client::url_without_secrets;

use crate::client::Client;
use crate::config::{ConfigError, HubConfig, ProxyChoice, ProxyConfig, namespace_of};
use crate::endpoint::{CallKind, Endpoint, payload};
use crate::filter::Filter;
use crate::hooks::Failure;
use crate::idempotency::KEY_LEN_MAX;
use crate::meta::Meta;
use crate::nullable::{map_or_default, or_default};
use crate::overrides::Overrides;
use crate::protocol::{ConnectRequest, Encoding, FilterNode};
use crate::random::Uuid;

/// The endpoints of the application.
pub(crate) struct Proxies {
    pub(crate) connect: Option<Arc<Endpoint>>,
    pub(crate) refresh: Option<Arc<Endpoint>>,
    /// By namespace.
    channels: HashMap<String, ChannelProxies>,
    /// Of methods by namespace; `None` for one that none answers.
    rpc_namespaces: HashMap<String, Option<Arc<Endpoint>>>,
    /// Of other methods.
    rpc: Option<Arc<Endpoint>>,
    /// The one that learns what has ended.
    pub(crate) events: Option<Arc<Endpoint>>,
    /// All of them, by the name of their section.
    endpoints: HashMap<String, Arc<Endpoint>>,
    /// The names of header fields of requests that some endpoint receives, in lower case.
    pub(crate) forwarded: Vec<String>,
    /// The same for those that clients give in their connect command, without repetition.
    pub(crate) emulated: Vec<String>,
}

/// The endpoints of a namespace.
pub(crate) struct ChannelProxies {
    pub(crate) subscribe: Option<Arc<Endpoint>>,
    pub(crate) sub_refresh: Option<Arc<Endpoint>>,
    pub(crate) publish: Option<Arc<Endpoint>>,
}

/// Header fields of a client that some endpoint receives, with names in lower case. A proxy between the client and the hub decides
/// about those of its request; those that it gives in its connect command have whatever values it likes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Headers {
    pub(crate) of_request: Vec<(String, String)>,
    pub(crate) emulated: Vec<(String, String)>,
}

impl Headers {
    pub(crate) const NONE: Self = Self { of_request: Vec::new(), emulated: Vec::new() };
}

/// The fields that every request has.
#[derive(Serialize)]
struct About<'a> {
    client: Uuid,
    transport: &'static str,
    protocol: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    user: &'a str,
}

#[derive(Serialize)]
struct Data<'a> {
    /// Of the payload, whatever the protocol of the client is.
    encoding: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    b64data: Option<String>,
}

impl<'a> Data<'a> {
    const NONE: Self = Self { encoding: "json", data: None, b64data: None };

    fn of(data: &'a Bytes) -> Self {
        match serde_json::from_slice::<&RawValue>(data) {
            _ if data.is_empty() => Self::NONE,
            Ok(json) => Self { data: Some(json), ..Self::NONE },
            Err(_) => Self { encoding: "binary", data: None, b64data: Some(STANDARD.encode(data)) },
        }
    }
}

#[derive(Serialize)]
struct Call<'a> {
    #[serde(flatten)]
    about: About<'a>,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    version: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    channels: Vec<&'a str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    channel: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    method: &'a str,
    #[serde(flatten)]
    data: Data<'a>,
}

/// A call as it is sent.
#[derive(Serialize)]
struct Body<'a> {
    #[serde(flatten)]
    call: &'a Call<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    meta: Option<&'a RawValue>,
}

/// The answer to `connect`.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct ConnectOutcome {
    #[serde(deserialize_with = "or_default")]
    pub(crate) user: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) expire_at: u64,
    info: Option<Box<RawValue>>,
    b64info: Option<String>,
    data: Option<Box<RawValue>>,
    b64data: Option<String>,
    meta: Option<Box<RawValue>>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) channels: Vec<String>,
    #[serde(deserialize_with = "map_or_default")]
    pub(crate) subs: HashMap<String, SubscribeOutcome>,
}

/// The answer to `subscribe`, and one subscription in that to `connect`.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct SubscribeOutcome {
    info: Option<Box<RawValue>>,
    b64info: Option<String>,
    data: Option<Box<RawValue>>,
    b64data: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) expire_at: u64,
    #[serde(rename = "override", deserialize_with = "or_default")]
    pub(crate) overrides: Overrides,
    /// Publications with other tags are kept from the subscriber.
    server_tags_filter: Option<FilterNode>,
}

/// The answer to `refresh` and `sub_refresh`.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct RefreshOutcome {
    #[serde(deserialize_with = "or_default")]
    pub(crate) expired: bool,
    #[serde(deserialize_with = "or_default")]
    pub(crate) expire_at: u64,
    info: Option<Box<RawValue>>,
    b64info: Option<String>,
    /// Of `refresh`.
    meta: Option<Box<RawValue>>,
}

/// The answer to `publish`.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct PublishOutcome {
    data: Option<Box<RawValue>>,
    b64data: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) skip_history: bool,
    #[serde(deserialize_with = "map_or_default")]
    pub(crate) tags: HashMap<String, String>,
    /// Of publications with the same key, the first is published.
    #[serde(deserialize_with = "or_default")]
    pub(crate) idempotency_key: String,
}

#[derive(Default, Deserialize)]
struct RpcOutcome {
    data: Option<Box<RawValue>>,
    b64data: Option<String>,
}

/// The time of an expiry, by the clock of the backend's system; `None` for never, which is 0.
pub(crate) fn expiry(seconds: u64) -> Option<Duration> {
    (seconds > 0).then(|| Duration::from_secs(seconds))
}

impl ConnectOutcome {
    /// Information for others, and data for the client.
    pub(crate) fn payloads(&mut self) -> Result<(Bytes, Bytes), &'static str> {
        let info = payload(self.info.take(), self.b64info.as_deref()).ok_or("b64info is not base64")?;
        let data = payload(self.data.take(), self.b64data.as_deref()).ok_or("b64data is not base64")?;
        Ok((info, data))
    }

    /// The JSON value to attach to the connection.
    pub(crate) fn meta(&self) -> Result<Option<Meta>, &'static str> {
        Meta::new(self.meta.as_deref())
    }
}

impl RefreshOutcome {
    /// The new information for other clients; empty to keep the old one.
    pub(crate) fn info(&mut self) -> Result<Bytes, &'static str> {
        payload(self.info.take(), self.b64info.as_deref()).ok_or("b64info is not base64")
    }

    /// The new meta of the connection.
    pub(crate) fn meta(&self) -> Result<Option<Meta>, &'static str> {
        Meta::new(self.meta.as_deref())
    }
}

impl SubscribeOutcome {
    /// Information for others, and data for the client.
    pub(crate) fn payloads(&mut self) -> Result<(Bytes, Bytes), &'static str> {
        let info = payload(self.info.take(), self.b64info.as_deref()).ok_or("b64info is not base64")?;
        let data = payload(self.data.take(), self.b64data.as_deref()).ok_or("b64data is not base64")?;
        Ok((info, data))
    }

    pub(crate) fn filter(&self) -> Result<Option<Box<Filter>>, &'static str> {
        let Some(filter) = &self.server_tags_filter else { return Ok(None) };
        Filter::new(filter).map(Box::new).map(Some).ok_or("server_tags_filter is malformed or too large")
    }
}

impl PublishOutcome {
    /// The payload that replaces the client's; `None` if it stays.
    pub(crate) fn payload(&mut self) -> Result<Option<Bytes>, &'static str> {
        let data = payload(self.data.take(), self.b64data.as_deref()).ok_or("b64data is not base64")?;
        Ok((!data.is_empty()).then_some(data))
    }
}

impl Proxies {
    /// Those that stay as they are `known` are the same.
    ///
    /// # Errors
    /// A URL or a header cannot be used.
    pub(crate) fn new(config: &HubConfig, known: Option<&Self>) -> Result<Self, ConfigError> {
        let (proxies, events) = (&config.proxy, config.events.proxy());
        let of_operations = [
            ("proxy.connect", &proxies.connect),
            ("proxy.refresh", &proxies.refresh),
            ("proxy.subscribe", &proxies.subscribe),
            ("proxy.sub_refresh", &proxies.sub_refresh),
            ("proxy.publish", &proxies.publish),
            ("rpc", &config.rpc),
            ("events", &events),
        ];
        let of_operations = of_operations.map(|(section, proxy)| (section.to_owned(), proxy));
        let named = config.endpoints.iter().map(|(name, proxy)| (format!("endpoint.{name}"), proxy));
        let all: Vec<_> = of_operations.into_iter().chain(named).collect();
        for (section, proxy) in &all {
            check(section, proxy)?;
        }
        let forwarded = all.iter().flat_map(|(_, proxy)| &proxy.forward_headers);
        let forwarded = forwarded.map(|name| name.to_ascii_lowercase()).collect();
        let emulated = all.iter().flat_map(|(_, proxy)| &proxy.emulated_headers);
        let emulated: BTreeSet<_> = emulated.map(|name| name.to_ascii_lowercase()).collect();
        let endpoints = all.into_iter().filter_map(|(section, proxy)| {
            let known = known.and_then(|known| known.endpoints.get(&section));
            let endpoint = Endpoint::renewed(proxy, known)?;
            Some((section, endpoint))
        });
        let endpoints: HashMap<_, _> = endpoints.collect();
        let endpoint = |section: &str| endpoints.get(section).cloned();
        // The check of the configuration has refused what is not there.
        let chosen = |choice: &ProxyChoice, own: &str| match choice {
            ProxyChoice::Off => None,
            ProxyChoice::On => endpoint(own),
            ProxyChoice::Named(name) => endpoint(&format!("endpoint.{name}")),
        };
        let channels = config.all_options().map(|(name, options)| {
            let proxies = ChannelProxies {
                subscribe: chosen(&options.subscribe_proxy, "proxy.subscribe"),
                sub_refresh: chosen(&options.sub_refresh_proxy, "proxy.sub_refresh"),
                publish: chosen(&options.publish_proxy, "proxy.publish"),
            };
            (name.to_owned(), proxies)
        });
        let methods = config.rpc_namespaces.iter();
        Ok(Self {
            connect: endpoint("proxy.connect"),
            refresh: endpoint("proxy.refresh"),
            channels: channels.collect(),
            rpc_namespaces: methods.map(|(name, choice)| (name.clone(), chosen(choice, "rpc"))).collect(),
            rpc: endpoint("rpc"),
            events: endpoint("events"),
            forwarded,
            emulated: emulated.into_iter().collect(),
            endpoints,
        })
    }

    /// The endpoints of a channel's namespace; `None` if it does not exist.
    pub(crate) fn of_channel(&self, channel: &str) -> Option<&ChannelProxies> {
        self.channels.get(namespace_of(channel))
    }

    /// The endpoint that renews subscriptions to a channel.
    pub(crate) fn renews(&self, channel: &str) -> Option<&Arc<Endpoint>> {
        self.of_channel(channel)?.sub_refresh.as_ref()
    }

    /// The endpoint that answers calls of a method.
    pub(crate) fn of_method(&self, method: &str) -> Option<&Arc<Endpoint>> {
        let own = method.split_once(':').and_then(|(namespace, _)| self.rpc_namespaces.get(namespace));
        own.unwrap_or(&self.rpc).as_ref()
    }
}

fn check(section: &str, proxy: &ProxyConfig) -> Result<(), ConfigError> {
    let Some(url) = &proxy.url else { return Ok(()) };
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    if rest.is_none_or(|rest| rest.is_empty() || rest.starts_with('/')) {
        let url = url_without_secrets(url);
        return Err(ConfigError(format!("{section}.url {url:?} is not a URL of http or https")));
    }
    if proxy.timeout.is_zero() {
        return Err(ConfigError(format!("{section}.timeout must not be 0")));
    }
    let names = proxy.forward_headers.iter().chain(&proxy.emulated_headers).chain(proxy.headers.keys());
    for name in names {
        // RFC 9110 §7.6.1: fields of one connection, and those that describe the request's own content.
        const OWN: [&str; 11] = [
            "host",
            "connection",
            "content-length",
            "content-type",
            "transfer-encoding",
            "upgrade",
            "te",
            "trailer",
            "keep-alive",
            "proxy-connection",
            "expect",
        ];
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_token) || OWN.contains(&&*name.to_ascii_lowercase()) {
            return Err(ConfigError(format!("{section}: the header {name:?} cannot be sent")));
        }
    }
    if let Some((name, _)) = proxy.headers.iter().find(|(_, value)| value.contains(['\r', '\n', '\0'])) {
        return Err(ConfigError(format!("{section}: the value of the header {name:?} cannot be sent")));
    }
    Ok(())
}

/// A connection as its endpoints see it.
#[derive(Clone, Copy)]
pub(crate) struct Caller<'a> {
    pub(crate) client: &'a Client,
    /// Its header fields for all endpoints.
    pub(crate) headers: &'a Headers,
}

impl<'a> Caller<'a> {
    fn call(&self) -> Call<'a> {
        let protocol = match self.client.transport.encoding() {
            Encoding::Json => "json",
            Encoding::Protobuf => "protobuf",
        };
        let transport = self.client.transport.name();
        let about = About { client: self.client.id, transport, protocol, user: self.client.user() };
        let (name, version, channel, method, channels) = Default::default();
        Call { about, name, version, channels, channel, method, data: Data::NONE }
    }

    /// The headers that one endpoint receives. An emulated one replaces none.
    fn headers_for(&self, endpoint: &Endpoint) -> Vec<(String, String)> {
        let is_in = |list: &[String], name: &str| list.iter().any(|one| one.eq_ignore_ascii_case(name));
        let Headers { of_request, emulated } = self.headers;
        let mut headers: Vec<_> = of_request
            .iter()
            .filter(|(name, _)| is_in(&endpoint.config.forward_headers, name))
            .cloned()
            .collect();
        for (name, value) in
            emulated.iter().filter(|(name, _)| is_in(&endpoint.config.emulated_headers, name))
        {
            if !headers.iter().any(|(own, _)| own == name) {
                headers.push((name.clone(), value.clone()));
            }
        }
        headers
    }

    async fn ask<T: serde::de::DeserializeOwned>(
        &self,
        endpoint: &Endpoint,
        kind: CallKind,
        call: &Call<'_>,
    ) -> Result<Option<T>, Failure> {
        let meta = self.client.meta().filter(|_| endpoint.config.include_connection_meta);
        let meta = meta.as_ref().and_then(|meta| serde_json::from_str(meta.json()).ok());
        let body = serde_json::to_vec(&Body { call, meta }).unwrap_or_default();
        let user = self.client.has_connected().then(|| self.client.user());
        endpoint.call(kind, user, &self.headers_for(endpoint), body).await
    }

    /// Asks for a decision: an answer without a result refuses.
    async fn ask_for<T: serde::de::DeserializeOwned>(
        &self,
        endpoint: &Endpoint,
        kind: CallKind,
        call: &Call<'_>,
    ) -> Result<T, Failure> {
        let answer = self.ask(endpoint, kind, call).await?;
        answer.ok_or_else(|| endpoint.failed("the response has neither result nor error"))
    }

    pub(crate) async fn connect(
        &self,
        endpoint: &Endpoint,
        request: &ConnectRequest,
    ) -> Result<ConnectOutcome, Failure> {
        let mut call = self.call();
        (call.name, call.version, call.data) = (&request.name, &request.version, Data::of(&request.data));
        call.channels = request.subs.keys().map(String::as_str).collect();
        self.ask_for(endpoint, CallKind::Connect, &call).await
    }

    pub(crate) async fn refresh(&self, endpoint: &Endpoint) -> Result<RefreshOutcome, Failure> {
        self.ask_for(endpoint, CallKind::Refresh, &self.call()).await
    }

    pub(crate) async fn subscribe(
        &self,
        endpoint: &Endpoint,
        channel: &str,
        data: &Bytes,
    ) -> Result<SubscribeOutcome, Failure> {
        let call = Call { channel, data: Data::of(data), ..self.call() };
        self.ask_for(endpoint, CallKind::Subscribe, &call).await
    }

    pub(crate) async fn sub_refresh(
        &self,
        endpoint: &Endpoint,
        channel: &str,
    ) -> Result<RefreshOutcome, Failure> {
        let call = Call { channel, ..self.call() };
        self.ask_for(endpoint, CallKind::SubRefresh, &call).await
    }

    /// The payload to publish, and how.
    pub(crate) async fn publish(
        &self,
        endpoint: &Endpoint,
        channel: &str,
        data: Bytes,
    ) -> Result<(Bytes, PublishOutcome), Failure> {
        let call = Call { channel, data: Data::of(&data), ..self.call() };
        let mut outcome: PublishOutcome = self.ask_for(endpoint, CallKind::Publish, &call).await?;
        if outcome.idempotency_key.len() > KEY_LEN_MAX {
            return Err(endpoint.failed("idempotency_key is longer than 128 bytes"));
        }
        let replaced = outcome.payload().map_err(|reason| endpoint.failed(reason))?;
        Ok((replaced.unwrap_or(data), outcome))
    }

    pub(crate) async fn rpc(
        &self,
        endpoint: &Endpoint,
        method: &str,
        data: &Bytes,
    ) -> Result<Bytes, Failure> {
        let call = Call { method, data: Data::of(data), ..self.call() };
        let answer: Option<RpcOutcome> = self.ask(endpoint, CallKind::Rpc, &call).await?;
        let RpcOutcome { data, b64data } = answer.unwrap_or_default();
        payload(data, b64data.as_deref()).ok_or_else(|| endpoint.failed("b64data is not base64"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_encoding_is_that_of_the_payload() {
        for (payload, expected) in [
            ("", r#"{"encoding":"json"}"#),
            ("[1]", r#"{"encoding":"json","data":[1]}"#),
            ("no JSON", r#"{"encoding":"binary","b64data":"bm8gSlNPTg=="}"#),
        ] {
            let data = Bytes::from(payload);
            assert_eq!(serde_json::to_string(&Data::of(&data)).unwrap(), expected);
        }
    }
}
