//! A server's HTTP/2 connection: requests go to the handler, its responses to their streams, and extended CONNECT opens a
//! tunnel with a WebSocket in it (RFC 9113, RFC 8441).
//!
//! A handler is first polled in the task of the connection: responses that are ready at once leave in one write. A handler
//! that is pending moves to a spawned task, which ends when the client resets the stream.

use std::future::{Future as _, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::task::JoinSet;
#[cfg(feature = "tracing")]
use tracing::Instrument as _;
use wireloom_http2::StreamKey;
use wireloom_http2::error::ErrorCode;
use wireloom_http2::field::{Field, Token};
use wireloom_http2::message::RequestKind;

use super::{Handler, panic};
use crate::error::HttpError;
use crate::headers::Headers;
use crate::http::{Afterwards, Body, Origin, Request, Response, Running, send_body};
use crate::http1::date;
use crate::http1::write::digits;
pub(super) use crate::http2::Shared;
use crate::http2::{Driver, HandlerRef, HeadMemory, Incoming, Progress, RecvStream, Tunnel, to_fields};
use crate::memory::{Account, Group};
use crate::registry::{Phase, Registration, Registry};
use crate::transport::Io;

/// Serves until the connection ends. `first` is the request of an upgrade; `tunnels` is the memory of all WebSockets
/// over the connection.
pub(super) async fn serve(
    mut driver: Driver,
    first: Option<(StreamKey, Request)>,
    origin: Arc<Origin>,
    registry: Arc<Registry>,
    registration: &Registration,
    tunnels: Arc<Group>,
    handler: &Arc<impl Handler>,
) {
    registry.counters.http2.fetch_add(1, Ordering::Relaxed);
    let (shared, account) = (driver.shared().clone(), registration.account().clone());
    let connection = ConnectionState { shared, registry, account, tunnels, origin, handler: handler.clone() };
    let mut tasks = JoinSet::new();
    let mut incoming = Vec::new();
    let shared = connection.shared.clone();
    let work = async {
        let mut first = first;
        loop {
            let progress = poll_fn(|cx| {
                if let Some((key, request)) = first.take() {
                    connection.start(cx, Exchange { key, request, tunnel: None, head: None }, &mut tasks);
                }
                let progress = ready!(driver.poll(cx, &mut incoming));
                for request in incoming.drain(..) {
                    connection.handle_incoming(cx, request, &mut tasks);
                }
                Poll::Ready(progress)
            });
            let progress = progress.await;
            while tasks.try_join_next().is_some() {}
            if progress == Progress::Ended {
                break;
            }
        }
        driver.linger().await;
        registration.disconnect();
        // WebSockets in tunnels notice the end of the connection, and their handlers return.
        while tasks.join_next().await.is_some() {}
    };
    let drain = async {
        // GOAWAY: the client opens further streams elsewhere.
        connection.registry.wait_for(Phase::NotAccepting).await;
        shared.shut_down();
        connection.registry.wait_for(Phase::Aborted).await;
    };
    let (mut work, mut drain) = (pin!(work), pin!(drain));
    poll_fn(|cx| {
        if drain.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        work.as_mut().poll(cx)
    })
    .await;
}

/// State shared by all requests of a connection.
struct ConnectionState<H> {
    shared: Arc<Shared>,
    registry: Arc<Registry>,
    account: Account,
    /// The memory of all WebSockets in tunnels.
    tunnels: Arc<Group>,
    origin: Arc<Origin>,
    handler: Arc<H>,
}

/// A request for the handler.
struct Exchange {
    key: StreamKey,
    request: Request,
    /// The content of extended CONNECT.
    tunnel: Option<RecvStream>,
    head: Option<HeadMemory>,
}

impl<H: Handler> ConnectionState<H> {
    fn handle_incoming(&self, cx: &mut Context<'_>, mut incoming: Incoming, tasks: &mut JoinSet<()>) {
        let (key, kind, content) = (incoming.key, incoming.kind, incoming.content.take());
        if !self.account.takes_new_work() || (kind == RequestKind::ExtendedConnect && self.is_full(tasks)) {
            // RFC 9113 §8.7: the client may send it again.
            return self.shared.reset(key, ErrorCode::REFUSED_STREAM);
        }
        let head = incoming.head_memory.take();
        let mut exchange =
            Exchange { key, request: Request::http2(incoming, &self.origin), tunnel: None, head };
        let request = &mut exchange.request;
        request.set_stream(&self.shared, key);
        match (kind, content) {
            (RequestKind::ExtendedConnect, content) if self.knows_protocol(request) => {
                exchange.tunnel = content;
            }
            // RFC 8441 §4, RFC 9220 §3: an unknown protocol. RFC 9110 §9.3.6: this server is not a proxy.
            (RequestKind::ExtendedConnect | RequestKind::Connect, _) => {
                let refusal = Response::text(501, "this server is not a proxy\n");
                let sent = send_whole(&self.shared, key, refusal, false);
                return reset_if_unsent(&self.shared, key, sent);
            }
            (_, Some(content)) => {
                let len = request.header("content-length").and_then(|len| std::str::from_utf8(len).ok());
                let len = len.and_then(|len| len.parse().ok());
                request.set_body(Body::http2(content, len));
            }
            (_, None) => {}
        }
        self.start(cx, exchange, tasks);
    }

    /// Whether as many handlers of WebSockets run after the end of their stream as streams may be open. The core counts streams, and
    /// that of a WebSocket ends with its closing handshake.
    fn is_full(&self, tasks: &mut JoinSet<()>) -> bool {
        let handlers_max = self.origin.config.streams_max.saturating_mul(2);
        while tasks.len() >= handlers_max && tasks.try_join_next().is_some() {}
        tasks.len() >= handlers_max
    }

    /// Whether the handler is asked about an extended CONNECT.
    fn knows_protocol(&self, request: &Request) -> bool {
        let known = &self.origin.config.connect_protocols;
        request.is_websocket()
            || request.protocol().is_some_and(|named| known.iter().any(|one| one.eq_ignore_ascii_case(named)))
    }

    /// Polls the handler once, and spawns it if it is pending.
    fn start(&self, cx: &mut Context<'_>, exchange: Exchange, tasks: &mut JoinSet<()>) {
        self.registry.counters.requests.fetch_add(1, Ordering::Relaxed);
        let (shared, registry, handler) = (self.shared.clone(), self.registry.clone(), self.handler.clone());
        let key = exchange.key;
        let mut answering = Box::pin(answer(shared, registry, self.tunnels.clone(), handler, exchange));
        // A panic must not end the other requests: its stream is reset while it unwinds.
        let polled = panic::catch(&self.registry, || answering.as_mut().poll(cx));
        match polled.unwrap_or(Poll::Ready(None)) {
            Poll::Ready(None) => {}
            Poll::Ready(Some(websocket)) => {
                #[cfg(feature = "tracing")]
                let websocket = websocket.in_current_span();
                tasks.spawn(websocket);
            }
            Poll::Pending => {
                // `None`: the stream was reset meanwhile.
                let Some(stream) = self.shared.handler_of(key) else { return };
                let finishing = finish(stream, self.registry.clone(), answering);
                #[cfg(feature = "tracing")]
                let finishing = finishing.in_current_span();
                tasks.spawn(finishing);
            }
        }
    }
}

/// Runs a handler to its end, or until its stream fails.
async fn finish<F>(stream: HandlerRef, registry: Arc<Registry>, mut answering: Pin<Box<F>>)
where
    F: Future<Output = Option<Running>>,
{
    let websocket = poll_fn(|cx| {
        if stream.poll_failed(cx).is_ready() {
            return Poll::Ready(None);
        }
        panic::catch(&registry, || answering.as_mut().poll(cx)).unwrap_or(Poll::Ready(None))
    });
    let websocket = websocket.await;
    drop(registry);
    drop(answering);
    // The tunnel of a WebSocket reports a reset by itself.
    drop(stream);
    if let Some(websocket) = websocket {
        websocket.await;
    }
}

/// Calls the handler and sends its response; returns the WebSocket to run on the stream, if any.
async fn answer(
    shared: Arc<Shared>,
    registry: Arc<Registry>,
    tunnels: Arc<Group>,
    handler: Arc<impl Handler>,
    exchange: Exchange,
) -> Option<Running> {
    let Exchange { key, request, tunnel, head: _head } = exchange;
    let mut unanswered = ResetUnlessAnswered { shared: &shared, key, answered: false };
    let (is_head, is_connect) = (request.is_method("HEAD"), request.is_method("CONNECT"));
    let (mut response, _) = panic::answer(&registry, &*handler, request).await;
    unanswered.answered = true;
    let opening = response.opening.take();
    let afterwards = response.afterwards;
    if let Some(code) = response.body_mut().reset_code() {
        shared.reset(key, code);
        return None;
    }
    if let (Some(opening), Some(recv)) = (opening, tunnel) {
        if let Some(registration) = registry.admit_tunnel(tunnels) {
            let (status, mut headers, _) = response.into_parts();
            headers.make_names_lowercase();
            let mut send = shared.send_stream(key);
            send.send_response(head(&digits(status), &headers, &date::now()), false).ok()?;
            let io = Io::Tunnel(Box::new(Tunnel::new(send, recv)));
            return Some(opening.open(io, &[], Some(registration)));
        }
        // RFC 9113 §8.7: no REFUSED_STREAM, because the handler has processed the request.
        response = HttpError::Overloaded.into();
    }
    if is_connect && response.status() / 100 == 2 {
        // RFC 9110 §9.3.6, RFC 8441 §5: every 2xx response opens the tunnel, which the handler does not use.
        response = Response::text(400, "a 2xx response to CONNECT requires a tunnel\n");
    }
    let answered = match response.body_mut().is_whole() {
        true => send_whole(&shared, key, response, is_head),
        false => Box::pin(send_stream(&shared, key, response, is_head)).await,
    };
    reset_if_unsent(&shared, key, answered);
    if afterwards == Afterwards::CloseConnection {
        shared.shut_down();
    }
    None
}

/// Resets the stream of a response that was not sent, because the client does not accept a head of this size.
fn reset_if_unsent(shared: &Shared, key: StreamKey, answered: Result<(), HttpError>) {
    if let Err(HttpError::Http2(_)) = answered {
        shared.reset(key, ErrorCode::INTERNAL_ERROR);
    }
}

/// Resets a stream whose handler was dropped before it returned.
struct ResetUnlessAnswered<'a> {
    shared: &'a Arc<Shared>,
    key: StreamKey,
    answered: bool,
}

impl Drop for ResetUnlessAnswered<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.shared.reset(self.key, ErrorCode::INTERNAL_ERROR);
        }
    }
}

fn send_whole(
    shared: &Arc<Shared>,
    key: StreamKey,
    response: Response,
    is_head: bool,
) -> Result<(), HttpError> {
    let allows_body = response.allows_body();
    let (status, mut headers, mut body) = response.into_parts();
    headers.make_names_lowercase();
    let head_len = body.len_hint().filter(|_| is_head);
    let mut body = body.whole().filter(|_| allows_body).unwrap_or_default();
    let (status, date, mut decimals) = (digits(status), date::now(), [0; 20]);
    let len = head_len.unwrap_or(body.len() as u64);
    let len = allows_body.then(|| Field::known(Token::ContentLength, decimal(len, &mut decimals)));
    if is_head {
        // RFC 9110 §9.3.2: a response to HEAD has no content.
        body = Bytes::new();
    }
    shared.send_response(key, head(&status, &headers, &date).chain(len), body)
}

/// Sends a streaming body.
async fn send_stream(
    shared: &Arc<Shared>,
    key: StreamKey,
    response: Response,
    is_head: bool,
) -> Result<(), HttpError> {
    let allows_body = response.allows_body();
    let (status, mut headers, body) = response.into_parts();
    headers.make_names_lowercase();
    let none = is_head || !allows_body;
    let mut send = shared.send_stream(key);
    {
        let (status, date, mut decimals) = (digits(status), date::now(), [0; 20]);
        let len = body.len_hint().filter(|_| allows_body);
        let len = len.map(|len| Field::known(Token::ContentLength, decimal(len, &mut decimals)));
        send.send_response(head(&status, &headers, &date).chain(len), none)?;
    }
    drop(headers);
    if none {
        return Ok(());
    }
    send_body(&mut send, body).await
}

/// The fields of a response, without its length.
fn head<'a>(
    status: &'a [u8; 3],
    headers: &'a Headers,
    date: &'a date::Date,
) -> impl Iterator<Item = Field<'a>> + Clone {
    std::iter::once(Field::known(Token::Status, status))
        // RFC 9113 §8.2.2: no connection-specific fields.
        .chain(to_fields(headers).filter(|field| !field.token().is_connection_specific()))
        // RFC 9110 §6.6.1: at most one Date.
        .chain(headers.get("date").is_none().then(|| Field::known(Token::Date, date)))
}

fn decimal(mut number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_numbers() {
        for number in [0, 7, 10, 1234, u64::MAX] {
            assert_eq!(decimal(number, &mut [0; 20]), number.to_string().as_bytes());
        }
        assert_eq!(&digits(404), b"404");
    }
}
