//! One connection of a server that speaks HTTP/2: requests become [`Request`]s, what the handler returns becomes responses,
//! and extended CONNECT a tunnel with a WebSocket in it (RFC 9113, RFC 8441).
//!
//! A handler is first asked in the task of the connection: what it can answer at once is answered with everything else that
//! this wake-up brought, in one write. Only a handler that waits gets a task of its own, on whichever thread is free; it is
//! stopped when the client resets the stream.

use std::future::{Future as _, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::task::JoinSet;
#[cfg(feature = "tracing")]
use tracing::Instrument as _;
use wireloom_http2::StreamKey;
use wireloom_http2::error::ErrorCode;
use wireloom_http2::field::{Field, Token};
use wireloom_http2::message::RequestKind;

use super::{Handler, panic};
use crate::error::Error;
use crate::headers::Headers;
use crate::http::{Body, Origin, Request, Response, Running};
use crate::http1::date;
use crate::http1::write::digits;
pub(super) use crate::http2::Shared;
use crate::http2::{At, Driver, Incoming, Moved, RecvStream, Tunnel, to_fields};
use crate::registry::{Phase, Registry};
use crate::transport::Io;

/// Serves until the end. `first` is a request that was upgraded.
pub(super) async fn serve(
    mut driver: Driver,
    first: Option<(StreamKey, Request)>,
    origin: Arc<Origin>,
    registry: Arc<Registry>,
    handler: &Arc<impl Handler>,
) {
    registry.counters.http2.fetch_add(1, Ordering::Relaxed);
    let serving = Serving { shared: driver.shared().clone(), registry, origin, handler: handler.clone() };
    let mut tasks = JoinSet::new();
    let mut incoming = Vec::new();
    let shared = serving.shared.clone();
    let work = async {
        let mut first = first;
        loop {
            let moved = poll_fn(|cx| {
                if let Some((key, request)) = first.take() {
                    serving.begin(cx, key, request, None, &mut tasks);
                }
                let moved = std::task::ready!(driver.poll(cx, &mut incoming));
                for request in incoming.drain(..) {
                    serving.take(cx, request, &mut tasks);
                }
                Poll::Ready(moved)
            });
            let moved = moved.await;
            while tasks.try_join_next().is_some() {}
            if moved == Moved::Ended {
                break;
            }
        }
        driver.linger().await;
        // What serves WebSockets sees that they have ended.
        while tasks.join_next().await.is_some() {}
    };
    let drain = async {
        serving.registry.reached(Phase::Draining).await;
        shared.shut_down();
        serving.registry.reached(Phase::Cut).await;
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

/// What all requests of a connection have in common.
struct Serving<H> {
    shared: Arc<Shared>,
    registry: Arc<Registry>,
    origin: Arc<Origin>,
    handler: Arc<H>,
}

impl<H: Handler> Serving<H> {
    fn take(&self, cx: &mut Context<'_>, incoming: Incoming, tasks: &mut JoinSet<()>) {
        let (key, kind, content) = (incoming.key, incoming.kind, incoming.content);
        let mut request = Request::http2(incoming, &self.origin);
        let content = content.map(|content| self.shared.receiver(content));
        let mut tunnel = None;
        match kind {
            RequestKind::ExtendedConnect if request.is_websocket() => tunnel = content,
            // RFC 8441 §4, RFC 9220 §3: a protocol that is not known. RFC 9110 §9.3.6: no proxy is here.
            RequestKind::ExtendedConnect | RequestKind::Connect => {
                let refusal = Response::text(501, "CONNECT leads nowhere from here\n");
                let _ = send_whole(&self.shared, key, refusal, false);
                return;
            }
            _ => {
                let Some(mut content) = content else { return self.begin(cx, key, request, None, tasks) };
                let len = request.header("content-length").and_then(|len| std::str::from_utf8(len).ok());
                let len = len.and_then(|len| len.parse().ok());
                if request.names("expect", "100-continue") {
                    content = content.expected();
                }
                request.set_body(Body::http2(content, len));
            }
        }
        self.begin(cx, key, request, tunnel, tasks);
    }

    /// Asks the handler, and lets it go on in a task of its own if it has to wait.
    fn begin(
        &self,
        cx: &mut Context<'_>,
        key: StreamKey,
        request: Request,
        tunnel: Option<RecvStream>,
        tasks: &mut JoinSet<()>,
    ) {
        self.registry.counters.requests.fetch_add(1, Ordering::Relaxed);
        let (shared, registry, handler) = (self.shared.clone(), self.registry.clone(), self.handler.clone());
        let mut answering = Box::pin(answer(shared, registry, handler, key, request, tunnel));
        // A body that panics is not to end the other requests; its stream is reset as it unwinds.
        let polled = panic::catch(&self.registry, || answering.as_mut().poll(cx));
        match polled.unwrap_or(Poll::Ready(None)) {
            Poll::Ready(None) => {}
            Poll::Ready(Some(running)) => {
                #[cfg(feature = "tracing")]
                let running = running.in_current_span();
                tasks.spawn(running);
            }
            Poll::Pending => {
                let left = self.shared.attach(key, answering, |answering, at| {
                    let finishing = finish(self.shared.clone(), self.registry.clone(), at, answering);
                    #[cfg(feature = "tracing")]
                    let finishing = finishing.in_current_span();
                    tasks.spawn(finishing)
                });
                // Outside of the lock.
                drop(left);
            }
        }
    }
}

/// Answers in a task of its own.
async fn finish<F>(shared: Arc<Shared>, registry: Arc<Registry>, at: At, mut answering: Pin<Box<F>>)
where
    F: Future<Output = Option<Running>>,
{
    let answered =
        poll_fn(|cx| panic::catch(&registry, || answering.as_mut().poll(cx)).unwrap_or(Poll::Ready(None)));
    let opened = answered.await;
    drop(registry);
    drop(answering);
    // A WebSocket learns of a reset by itself.
    shared.detach(at);
    drop(shared);
    if let Some(running) = opened {
        running.await;
    }
}

async fn answer(
    shared: Arc<Shared>,
    registry: Arc<Registry>,
    handler: Arc<impl Handler>,
    key: StreamKey,
    request: Request,
    tunnel: Option<RecvStream>,
) -> Option<Running> {
    let mut unanswered = Unanswered { shared: &shared, key, answered: false };
    let is_head = request.method() == "HEAD";
    let (mut response, _) = panic::answer(&registry, &*handler, request).await;
    unanswered.answered = true;
    let opening = response.opening.take();
    if let (Some(opening), Some(recv)) = (opening, tunnel) {
        let (status, mut headers, _) = response.into_parts();
        headers.make_names_lowercase();
        let mut send = shared.sender(key);
        send.respond(head(&digits(status), &headers, &date::now()), false).ok()?;
        let io = Io::Tunnel(Box::new(Tunnel::new(send, recv)));
        return Some(opening.open(io, &[], Some(registry.seat())));
    }
    let answered = match response.body_mut().is_whole() {
        true => send_whole(&shared, key, response, is_head),
        false => Box::pin(send_stream(&shared, key, response, is_head)).await,
    };
    if let Err(Error::Http2(_)) = answered {
        // The head is larger than the client takes.
        shared.reset(key, ErrorCode::INTERNAL_ERROR);
    }
    None
}

/// Resets a stream whose handler was stopped.
struct Unanswered<'a> {
    shared: &'a Arc<Shared>,
    key: StreamKey,
    answered: bool,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.shared.reset(self.key, ErrorCode::INTERNAL_ERROR);
        }
    }
}

fn send_whole(shared: &Arc<Shared>, key: StreamKey, response: Response, is_head: bool) -> Result<(), Error> {
    let allows_body = response.allows_body();
    let (status, mut headers, mut body) = response.into_parts();
    headers.make_names_lowercase();
    let mut body = body.whole().filter(|_| allows_body).unwrap_or_default();
    let (status, date, mut decimals) = (digits(status), date::now(), [0; 20]);
    let len =
        allows_body.then(|| Field::known(Token::ContentLength, decimal(body.len() as u64, &mut decimals)));
    if is_head {
        // RFC 9110 §9.3.2: the answer to HEAD has no body.
        body = Bytes::new();
    }
    shared.respond(key, head(&status, &headers, &date).chain(len), body)
}

/// Sends a body as it comes into being.
async fn send_stream(
    shared: &Arc<Shared>,
    key: StreamKey,
    response: Response,
    is_head: bool,
) -> Result<(), Error> {
    let allows_body = response.allows_body();
    let (status, mut headers, mut body) = response.into_parts();
    headers.make_names_lowercase();
    let none = is_head || !allows_body;
    let mut send = shared.sender(key);
    {
        let (status, date, mut decimals) = (digits(status), date::now(), [0; 20]);
        let len = body.len_hint().filter(|_| allows_body);
        let len = len.map(|len| Field::known(Token::ContentLength, decimal(len, &mut decimals)));
        send.respond(head(&status, &headers, &date).chain(len), none)?;
    }
    drop(headers);
    if none {
        return Ok(());
    }
    loop {
        // As much is made as the client takes.
        poll_fn(|cx| send.poll_capacity(cx)).await?;
        match body.chunk().await {
            Ok(Some(chunk)) => send.send(chunk, false)?,
            Ok(None) => break,
            // RFC 9113 §8.1.1: what ends too early is reset.
            Err(_) => {
                send.reset(ErrorCode::INTERNAL_ERROR);
                return Ok(());
            }
        }
    }
    match body.trailers() {
        Some(mut trailers) => send.send_trailers(&mut trailers),
        None => send.send(Bytes::new(), true),
    }
}

/// The fields of a response but its length.
fn head<'a>(
    status: &'a [u8; 3],
    headers: &'a Headers,
    date: &'a date::Date,
) -> impl Iterator<Item = Field<'a>> + Clone {
    std::iter::once(Field::known(Token::Status, status))
        // RFC 9113 §8.2.2: what belongs to a connection of HTTP/1.1 stays there.
        .chain(to_fields(headers).filter(|field| field.name() != b"upgrade"))
        .chain(std::iter::once(Field::known(Token::Date, date)))
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
