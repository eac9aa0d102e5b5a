//! An HTTP endpoint of the application's backend: its connection, its limits, and the answers that all endpoints have in common.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::Mutex;
use tracing::warn;
use wireloom::client::{Http2, Pool, Request, Response, url_without_secrets};
use wireloom::{Connector, Error, HttpError};

use crate::clock::{Clock, WarningLimit};
use crate::config::ProxyConfig;
use crate::hooks::{Failure, Refusal};
use crate::nullable::or_default;
use crate::protocol::{Disconnect, ErrorCode};
use crate::spans::{Span, is_context};
use crate::turns::{CALLS_MAX, Turns};

/// The maximum length of a response, in bytes.
const RESPONSE_LEN_MAX: usize = 1 << 20;

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
    #[serde(default, deserialize_with = "or_default")]
    message: String,
    #[serde(default, deserialize_with = "or_default")]
    temporary: bool,
}

#[derive(Deserialize)]
struct AnswerDisconnect {
    code: u16,
    #[serde(default, deserialize_with = "or_default")]
    reason: String,
}

/// An HTTP endpoint of the application's backend.
pub(crate) struct Endpoint {
    url: String,
    pub(crate) config: ProxyConfig,
    connector: Connector,
    /// The connection of HTTP/2, which `https` endpoints may speak.
    kept: Arc<Mutex<Kept>>,
    /// Those of HTTP/1.1.
    pool: Pool,
    pub(crate) turns: Turns,
    clock: Clock,
    warnings: WarningLimit,
}

/// The protocol of an endpoint, and its HTTP/2 connection.
enum Kept {
    /// Unknown: the next call negotiates it.
    Nothing,
    /// It speaks HTTP/1.1.
    Http1,
    Http2(Link),
}

/// A connection of HTTP/2.
#[derive(Clone)]
struct Link {
    http2: Http2,
    /// The number of answers that have begun.
    answers: Arc<AtomicU64>,
}

/// The connection of HTTP/2 that a call is made over, and the number of its answers before.
type Used = Option<(Link, u64)>;

/// The kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallKind {
    Connect,
    Refresh,
    Subscribe,
    SubRefresh,
    Publish,
    Rpc,
    Events,
}

impl CallKind {
    /// For spans.
    fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Refresh => "refresh",
            Self::Subscribe => "subscribe",
            Self::SubRefresh => "sub_refresh",
            Self::Publish => "publish",
            Self::Rpc => "rpc",
            Self::Events => "events",
        }
    }

    /// Whether a call is repeated whose connection ends before the first byte of the answer.
    fn is_repeated(self) -> bool {
        match self {
            // The backend recognizes a repeated event by its id.
            Self::Connect | Self::Refresh | Self::Subscribe | Self::SubRefresh | Self::Events => true,
            // It may change something, and may have been carried out.
            Self::Publish | Self::Rpc => false,
        }
    }
}

/// How long a connection of HTTP/1.1 is kept. Common servers close theirs after 5 s or later.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({})", url_without_secrets(&self.url))
    }
}

impl Endpoint {
    /// The endpoint of a configuration; `None` without a URL. It makes new connections: certificates are read and the protocol is
    /// negotiated again. If the configuration is that of `known`, the calls in progress there count here too.
    pub(crate) fn renewed(config: &ProxyConfig, known: Option<&Arc<Self>>) -> Option<Arc<Self>> {
        let known = known.filter(|known| known.config == *config);
        Self::new(config, known.map(|known| known.turns.clone()).unwrap_or_default()).map(Arc::new)
    }

    fn new(config: &ProxyConfig, turns: Turns) -> Option<Self> {
        let url = config.url.clone()?;
        let kept = if url.starts_with("https://") { Kept::Nothing } else { Kept::Http1 };
        // Redirects are not followed, so that a backend cannot forward clients' data to another host.
        let connector = Connector::new().connect_timeout(config.timeout);
        Some(Self {
            url,
            config: config.clone(),
            pool: Pool::with_limits(connector.clone(), CALLS_MAX, IDLE_TIMEOUT),
            connector,
            kept: Arc::new(Mutex::new(kept)),
            turns,
            clock: Clock::new(),
            warnings: WarningLimit::default(),
        })
    }

    /// Posts JSON for a user, if it is known; returns the result. A failure of the endpoint is logged, and is error 100, which clients retry.
    pub(crate) async fn call<T: DeserializeOwned>(
        &self,
        kind: CallKind,
        user: Option<&str>,
        headers: &[(String, String)],
        body: Vec<u8>,
    ) -> Result<Option<T>, Failure> {
        let span = Span::sent(kind.name(), headers);
        let context = span.context();
        let mut used = None;
        // Boxed, so that the commands of clients which ask no endpoint have no room for it.
        let exchange = Box::pin(self.exchange(kind, user, &mut used, headers, &context, body.into()));
        let answered = tokio::time::timeout(self.config.timeout, exchange).await;
        let answered = answered.unwrap_or_else(|_| {
            // If no other call was answered either, the backend may be gone without a word: the next call opens another connection. Calls
            // in progress keep this one.
            if let Some((link, answers)) = used
                && link.answers.load(Ordering::Relaxed) == answers
            {
                link.http2.shut_down();
            }
            Err("it took too long".into())
        });
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
        kind: CallKind,
        user: Option<&str>,
        used: &mut Used,
        headers: &[(String, String)],
        context: &[(String, String)],
        body: Bytes,
    ) -> Result<Bytes, String> {
        let _turn = self.turns.acquire(user).await;
        // A configured header replaces the client's header of that name.
        let is_own = |name: &str| self.config.headers.keys().any(|own| own.eq_ignore_ascii_case(name));
        // The context of the call's span replaces that of the client, which the span continues.
        let is_replaced = |name: &str| is_own(name) || !context.is_empty() && is_context(name);
        let forwarded = headers.iter().filter(|(name, _)| !is_replaced(name));
        let context = context.iter().filter(|(name, _)| !is_own(name));
        let forwarded = forwarded.chain(context).map(|(name, value)| (name, value));
        let headers: Vec<_> = forwarded.chain(&self.config.headers).collect();
        let request = || {
            let request = Request::post(&self.url, body.clone()).header("content-type", "application/json");
            let request = if kind.is_repeated() { request.idempotent() } else { request };
            headers.iter().fold(request, |request, (name, value)| request.header(*name, value))
        };
        let response = self.send(kind, used, request).await.map_err(|error| error.to_string())?;
        if response.status != 200 {
            return Err(format!("status {}", response.status));
        }
        response.body.with_len_max(RESPONSE_LEN_MAX).bytes().await.map_err(|error| error.to_string())
    }

    /// Sends a request, and once more over HTTP/2 if its connection ended and that is safe. The pool does the same over HTTP/1.1.
    async fn send(
        &self,
        kind: CallKind,
        used: &mut Used,
        request: impl Fn() -> Request,
    ) -> Result<Response, Error> {
        let mut is_repeated = false;
        loop {
            let Some(link) = self.http2().await? else { return self.pool.request(request()).await };
            let before = link.answers.load(Ordering::Relaxed);
            let (link, _) = used.insert((link, before));
            let answered = link.http2.request(request()).await;
            link.answers.fetch_add(answered.is_ok().into(), Ordering::Relaxed);
            match &answered {
                Err(Error::Http(error)) if !is_repeated && may_repeat(kind, error) => is_repeated = true,
                _ => return answered,
            }
        }
    }

    /// The connection of HTTP/2 to the endpoint; `None` if it speaks HTTP/1.1.
    async fn http2(&self) -> Result<Option<Link>, Error> {
        let mut kept = self.kept.clone().lock_owned().await;
        match &*kept {
            Kept::Http1 => return Ok(None),
            Kept::Http2(link) if link.http2.is_open() => return Ok(Some(link.clone())),
            Kept::Http2(_) | Kept::Nothing => {}
        }
        let (connector, url, timeout) = (self.connector.clone(), self.url.clone(), self.config.timeout);
        // The others wait for this attempt: it does not end with the call that has begun it.
        let attempt = tokio::spawn(async move {
            match tokio::time::timeout(timeout, connector.connect_http2(&url)).await {
                Ok(Ok(http2)) => {
                    let link = Link { http2, answers: Arc::default() };
                    *kept = Kept::Http2(link.clone());
                    Ok(Some(link))
                }
                Ok(Err(Error::NoHttp2(_))) => {
                    *kept = Kept::Http1;
                    Ok(None)
                }
                Ok(Err(error)) => Err(error),
                Err(_) => Err(Error::HandshakeTimeout),
            }
        });
        // The runtime may end.
        attempt.await.unwrap_or_else(|_| Err(HttpError::Closed.into()))
    }

    pub(crate) fn failed(&self, reason: &str) -> Failure {
        if self.warnings.may_warn(self.clock.now()) {
            warn!(url = url_without_secrets(&self.url), reason, "an endpoint of the backend failed");
        }
        ErrorCode::Internal.into()
    }
}

fn may_repeat(kind: CallKind, error: &HttpError) -> bool {
    match error {
        // RFC 9113 §8.7: such as one that has crossed a GOAWAY.
        HttpError::NotProcessed => true,
        HttpError::Closed | HttpError::ConnectionLost | HttpError::GoAway(_) | HttpError::Io(_) => {
            kind.is_repeated()
        }
        _ => false,
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

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::mpsc;

    use super::*;

    /// The certificates that are trusted are read again, and what the endpoint speaks is found out again.
    #[tokio::test]
    async fn a_renewed_endpoint_has_its_calls_and_no_connections() {
        let config = ProxyConfig { url: Some("https://a/".into()), ..ProxyConfig::default() };
        let known = Endpoint::renewed(&config, None).unwrap();
        *known.kept.lock().await = Kept::Http1;
        let renewed = Endpoint::renewed(&config, Some(&known)).unwrap();
        assert!(matches!(*renewed.kept.lock().await, Kept::Nothing));
        assert!(renewed.turns.are_those_of(&known.turns));
    }

    /// The reaction of a backend to a call over HTTP/2.
    #[derive(Clone, Copy, Debug)]
    enum Does {
        Answer,
        /// REFUSED_STREAM.
        Refuse,
        Disconnect,
        Nothing,
    }

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let len = u8::try_from(payload.len()).unwrap();
        [&[0, 0, len, kind, flags], &stream.to_be_bytes()[..], payload].concat()
    }

    /// Serves one connection, and reports its calls.
    async fn serve(mut stream: TcpStream, does: Vec<Does>, calls: mpsc::UnboundedSender<Does>) {
        const PREFACE_LEN: usize = 24;
        const SETTINGS: u8 = 4;
        const END_STREAM: u8 = 1;
        stream.read_exact(&mut [0; PREFACE_LEN]).await.unwrap();
        stream.write_all(&frame(SETTINGS, 0, 0, b"")).await.unwrap();
        let mut does = does.into_iter();
        let mut head = [0; 9];
        while stream.read_exact(&mut head).await.is_ok() {
            let [_, high, low, kind, flags, a, b, c, d] = head;
            let mut payload = vec![0; u16::from_be_bytes([high, low]).into()];
            stream.read_exact(&mut payload).await.unwrap();
            let stream_id = u32::from_be_bytes([a, b, c, d]);
            if kind == SETTINGS && flags == 0 {
                stream.write_all(&frame(SETTINGS, 1, 0, b"")).await.unwrap();
            }
            if !matches!(kind, 0 | 1) || flags & END_STREAM == 0 {
                continue;
            }
            let next = does.next().unwrap();
            calls.send(next).unwrap();
            match next {
                Does::Answer => {
                    // `:status: 200` is in HPACK's table.
                    let answer = [
                        frame(1, 4, stream_id, &[0x88]),
                        frame(0, END_STREAM, stream_id, br#"{"result":7}"#),
                    ];
                    stream.write_all(&answer.concat()).await.unwrap();
                }
                Does::Refuse => stream.write_all(&frame(3, 0, stream_id, &[0, 0, 0, 7])).await.unwrap(),
                Does::Disconnect => return,
                Does::Nothing => {}
            }
        }
    }

    /// An endpoint that speaks HTTP/2, of a backend that does this on one connection after the other, and its calls.
    async fn endpoint(connections: Vec<Vec<Does>>) -> (Endpoint, mpsc::UnboundedReceiver<Does>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let (calls, called) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            for does in connections {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(stream, does, calls.clone()));
            }
        });
        let config =
            ProxyConfig { url: Some(url), timeout: Duration::from_secs(60), ..ProxyConfig::default() };
        let mut endpoint = Endpoint::new(&config, Turns::default()).unwrap();
        // As of `https`.
        endpoint.kept = Arc::new(Mutex::new(Kept::Nothing));
        (endpoint, called)
    }

    #[tokio::test]
    async fn a_call_is_repeated_where_that_is_safe() {
        use Does::{Answer, Disconnect, Refuse};
        for (kind, connections, succeeds) in [
            (CallKind::Rpc, vec![vec![Answer, Refuse, Answer]], true),
            (CallKind::Rpc, vec![vec![Answer, Disconnect], vec![Answer]], false),
            (CallKind::Connect, vec![vec![Answer, Disconnect], vec![Answer]], true),
            (CallKind::Connect, vec![vec![Answer, Disconnect], vec![Disconnect], vec![Answer]], false),
        ] {
            let case = format!("{kind:?} {connections:?}");
            let (endpoint, _called) = endpoint(connections).await;
            assert_eq!(
                endpoint.call::<Value>(kind, None, &[], b"{}".to_vec()).await.unwrap(),
                Some(7.into())
            );
            let called = endpoint.call::<Value>(kind, None, &[], b"{}".to_vec()).await;
            assert_eq!(called.is_ok(), succeeds, "{case}");
        }
    }

    #[tokio::test]
    async fn a_slow_method_does_not_end_a_connection_that_answers_others() {
        let connections = vec![vec![Does::Nothing, Does::Answer, Does::Answer]];
        let (mut endpoint, mut called) = endpoint(connections).await;
        endpoint.config.timeout = Duration::from_secs(5);
        let slow = endpoint.call::<Value>(CallKind::Rpc, None, &[], b"{}".to_vec());
        let fast = async {
            called.recv().await;
            endpoint.call::<Value>(CallKind::Rpc, None, &[], b"{}".to_vec()).await
        };
        let (slow, fast) = tokio::join!(slow, fast);
        assert!(slow.is_err());
        assert_eq!(fast.unwrap(), Some(7.into()));
        assert_eq!(
            endpoint.call::<Value>(CallKind::Rpc, None, &[], b"{}".to_vec()).await.unwrap(),
            Some(7.into())
        );
    }

    #[tokio::test]
    async fn a_call_that_is_dropped_leaves_its_connection_to_those_that_wait() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let config =
            ProxyConfig { url: Some(url), timeout: Duration::from_secs(5), ..ProxyConfig::default() };
        let mut endpoint = Endpoint::new(&config, Turns::default()).unwrap();
        endpoint.kept = Arc::new(Mutex::new(Kept::Nothing));
        let connection = {
            let dropped = endpoint.call::<Value>(CallKind::Rpc, None, &[], b"{}".to_vec());
            tokio::select! {
                _ = dropped => panic!("it was answered"),
                accepted = listener.accept() => accepted.unwrap().0,
            }
        };
        // No other connection is served.
        let (calls, _called) = mpsc::unbounded_channel();
        tokio::spawn(serve(connection, vec![Does::Answer], calls));
        assert_eq!(
            endpoint.call::<Value>(CallKind::Rpc, None, &[], b"{}".to_vec()).await.unwrap(),
            Some(7.into())
        );
    }

    // Its host has vanished: nothing says so.
    #[tokio::test]
    async fn a_connection_on_which_a_call_times_out_is_not_used_again() {
        let connections = vec![vec![Does::Nothing; 9], vec![Does::Answer]];
        let (mut endpoint, mut called) = endpoint(connections).await;
        endpoint.config.timeout = Duration::from_secs(1);
        assert!(endpoint.call::<Value>(CallKind::Rpc, None, &[], b"{}".to_vec()).await.is_err());
        assert!(matches!(called.recv().await, Some(Does::Nothing)));
        endpoint.config.timeout = Duration::from_secs(60);
        assert_eq!(
            endpoint.call::<Value>(CallKind::Rpc, None, &[], b"{}".to_vec()).await.unwrap(),
            Some(7.into())
        );
    }
}
