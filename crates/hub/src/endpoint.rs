//! An HTTP endpoint of the application's backend: its connection, its limits, and the answers that all endpoints have in common.

use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::{Mutex, Semaphore};
use tracing::warn;
use wireloom::client::{Http2, Pool, Request, Response};
use wireloom::{Connector, Error};

use crate::clock::{Clock, WarningLimit};
use crate::config::ProxyConfig;
use crate::hooks::{Failure, Refusal};
use crate::protocol::{Disconnect, ErrorCode};
use crate::spans::{Span, is_context};

/// The maximum length of a response, in bytes.
const RESPONSE_LEN_MAX: usize = 1 << 20;

/// The maximum number of calls in progress. Further ones wait, within their timeout.
const CALLS_MAX: usize = 256;

/// The form of every response.
#[derive(Deserialize)]
struct Answer<T> {
    result: Option<T>,
    error: Option<AnswerError>,
    disconnect: Option<AnswerDisconnect>,
}

#[derive(Deserialize)]
struct AnswerError {
    code: u32,
    #[serde(default)]
    message: String,
    #[serde(default)]
    temporary: bool,
}

#[derive(Deserialize)]
struct AnswerDisconnect {
    code: u16,
    #[serde(default)]
    reason: String,
}

/// An HTTP endpoint of the application's backend.
pub(crate) struct Endpoint {
    /// For spans.
    name: &'static str,
    url: String,
    timeout: Duration,
    headers: Vec<(String, String)>,
    connector: Connector,
    /// The connection of HTTP/2, which `https` endpoints may speak.
    kept: Mutex<Kept>,
    /// Those of HTTP/1.1.
    pool: Pool,
    calls_again: CallsAgain,
    calls: Semaphore,
    clock: Clock,
    warnings: WarningLimit,
}

/// What is known of an endpoint.
enum Kept {
    /// Nothing: the next call finds out.
    Nothing,
    /// It speaks HTTP/1.1.
    Http1,
    Http2(Http2),
}

/// Whether a call is repeated whose connection ends before the first byte of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallsAgain {
    /// It asks for a decision.
    Yes,
    /// It may change something, and may have been carried out.
    No,
}

/// How long a connection of HTTP/1.1 is kept. Common servers close theirs after 5 s or later.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

impl Endpoint {
    /// `None` without a URL.
    pub(crate) fn new(name: &'static str, config: &ProxyConfig, calls_again: CallsAgain) -> Option<Self> {
        let url = config.url.clone()?;
        let kept = if url.starts_with("https://") { Kept::Nothing } else { Kept::Http1 };
        let headers = config.headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        // Redirects are not followed, so that a backend cannot send what clients said elsewhere.
        let connector = Connector::new().connect_timeout(config.timeout);
        Some(Self {
            name,
            url,
            timeout: config.timeout,
            headers,
            pool: Pool::with_limits(connector.clone(), CALLS_MAX, IDLE_TIMEOUT),
            connector,
            calls_again,
            kept: Mutex::new(kept),
            calls: Semaphore::new(CALLS_MAX),
            clock: Clock::new(),
            warnings: WarningLimit::default(),
        })
    }

    /// Posts JSON; returns the result. A failure of the endpoint is logged, and is error 100, which clients retry.
    pub(crate) async fn call<T: DeserializeOwned>(
        &self,
        headers: &[(String, String)],
        body: Vec<u8>,
    ) -> Result<Option<T>, Failure> {
        let span = Span::sent(self.name, headers);
        let context = span.context();
        let answered = tokio::time::timeout(self.timeout, self.exchange(headers, &context, body)).await;
        let answered = answered.unwrap_or_else(|_| Err("it took too long".into()));
        let body = answered.map_err(|reason| {
            span.fail(&reason);
            self.failed(&reason)
        })?;
        let answer: Answer<T> = serde_json::from_slice(&body).map_err(|error| {
            // The error may quote the body, which is not for those who read traces.
            span.fail("a malformed answer");
            self.failed(&error.to_string())
        })?;
        if let Some(AnswerDisconnect { code, reason }) = answer.disconnect {
            // A Close frame has room for no more, and for no other code.
            return match (3000..5000).contains(&code) && reason.len() <= 123 {
                true => Err(Failure::Disconnected(Disconnect::Custom { code, reason })),
                false => Err(self.failed("disconnect has a code outside of 3000 to 4999, or a long reason")),
            };
        }
        if let Some(AnswerError { code, message, temporary }) = answer.error {
            return Err(Refusal { code, message, temporary }.into());
        }
        Ok(answer.result)
    }

    async fn exchange(
        &self,
        headers: &[(String, String)],
        context: &[(String, String)],
        body: Vec<u8>,
    ) -> Result<Bytes, String> {
        let _call = self.calls.acquire().await.map_err(|error| error.to_string())?;
        let request = Request::post(&self.url, body).header("content-type", "application/json");
        let request = if self.calls_again == CallsAgain::Yes { request.idempotent() } else { request };
        // No header of a client stands beside one of the configuration.
        let is_own = |name: &str| self.headers.iter().any(|(own, _)| own.eq_ignore_ascii_case(name));
        // The context of the call's span replaces that of the client, which the span continues.
        let is_replaced = |name: &str| is_own(name) || !context.is_empty() && is_context(name);
        let forwarded = headers.iter().filter(|(name, _)| !is_replaced(name));
        let context = context.iter().filter(|(name, _)| !is_own(name));
        let request = forwarded
            .chain(context)
            .chain(&self.headers)
            .fold(request, |request, (name, value)| request.header(name, value));
        let response = self.send(request).await.map_err(|error| error.to_string())?;
        if response.status != 200 {
            return Err(format!("status {}", response.status));
        }
        response.body.with_len_max(RESPONSE_LEN_MAX).bytes().await.map_err(|error| error.to_string())
    }

    async fn send(&self, request: Request) -> Result<Response, Error> {
        match self.http2().await? {
            Some(http2) => http2.request(request).await,
            None => self.pool.request(request).await,
        }
    }

    /// The connection of HTTP/2 to the endpoint; `None` if it speaks HTTP/1.1.
    async fn http2(&self) -> Result<Option<Http2>, Error> {
        let mut kept = self.kept.lock().await;
        match &*kept {
            Kept::Http1 => return Ok(None),
            Kept::Http2(http2) if http2.is_open() => return Ok(Some(http2.clone())),
            Kept::Http2(_) | Kept::Nothing => {}
        }
        match self.connector.connect_http2(&self.url).await {
            Ok(http2) => {
                *kept = Kept::Http2(http2.clone());
                Ok(Some(http2))
            }
            Err(Error::NoHttp2(_)) => {
                *kept = Kept::Http1;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    pub(crate) fn failed(&self, reason: &str) -> Failure {
        if self.warnings.may_warn(self.clock.now()) {
            warn!(url = self.url, reason, "an endpoint of the backend failed");
        }
        ErrorCode::Internal.into()
    }
}

/// A payload in JSON, or in base64 if it is no JSON.
pub(crate) fn payload(json: Option<Box<serde_json::value::RawValue>>, base64: Option<&str>) -> Option<Bytes> {
    use base64::Engine as _;
    match base64.filter(|text| !text.is_empty()) {
        Some(text) => base64::engine::general_purpose::STANDARD.decode(text).ok().map(Bytes::from),
        None => Some(json.map(|json| Bytes::from(String::from(Box::<str>::from(json)))).unwrap_or_default()),
    }
}
