//! Requests over one connection: over HTTP/2 `--pipeline` at once, over HTTP/1.1 one, or on a schedule.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use bytes::Bytes;
use tokio::task::JoinSet;
use wireloom::Error;
use wireloom::client::{Http2, Pool, Request, Response};

use super::super::run::{Run, joined};
use super::connection::{CLOSE_TIMEOUT, Connection, Failures, Next};

/// The maximum number of concurrent requests of one HTTP/2 connection in the open loop.
const REQUESTS_MAX: usize = 10_000;

/// The client that sends the requests of a connection.
#[derive(Clone)]
pub(super) enum Client {
    Http2(Http2),
    /// With the URL.
    Http1(Pool, String),
}

impl Client {
    /// How many requests may be sent at once.
    fn requests_max(&self) -> usize {
        match self {
            Self::Http2(_) => REQUESTS_MAX,
            Self::Http1(..) => 1,
        }
    }

    /// Whether more can be sent. Over HTTP/1.1 a connection that was closed is opened again.
    fn is_open(&self) -> bool {
        match self {
            Self::Http2(http2) => http2.is_open(),
            Self::Http1(..) => true,
        }
    }

    async fn request(&self, method: String, path: &str, content: Bytes) -> Result<Response, Error> {
        match self {
            Self::Http2(http2) => http2.request(Request::new(method, path).with_body(content)).await,
            Self::Http1(pool, url) => pool.request(Request::new(method, &**url).with_body(content)).await,
        }
    }

    async fn close(self) {
        if let Self::Http2(http2) = self {
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, http2.close()).await;
        }
    }
}

pub(super) async fn run(connection: Connection, client: Client) {
    let run = connection.run.clone();
    let mut pace = connection.pace();
    let path: Arc<str> = run.opener.path(connection.opened_as).into();
    let mut number = 0;
    let mut requests = JoinSet::new();
    let mut is_sending = true;
    let failures = Arc::new(tokio::sync::Mutex::new(Failures::default()));
    poll_fn(|cx| {
        loop {
            while let Poll::Ready(Some(ended)) = requests.poll_join_next(cx) {
                is_sending &= joined(ended).unwrap_or(true);
            }
            if is_sending && !client.is_open() {
                is_sending = false;
                let mut recorder = run.recorder();
                recorder.disconnected();
                recorder.error(
                    |errors| &mut errors.closed,
                    1,
                    || "the server closed a connection".to_owned(),
                );
            }
            while is_sending && requests.len() < client.requests_max() {
                let now = Instant::now();
                match pace.next(&run, now, requests.len()) {
                    Next::Due(intended) => {
                        let failures = failures.clone();
                        let exchange =
                            exchange(run.clone(), client.clone(), path.clone(), number, intended, failures);
                        requests.spawn(exchange);
                        number += 1;
                        pace.sent();
                    }
                    Next::Wait => break,
                    Next::Over => is_sending = false,
                }
            }
            if !is_sending && requests.is_empty() {
                return Poll::Ready(());
            }
            let is_full = requests.len() >= client.requests_max();
            if !is_sending || is_full || pace.poll_due(cx).is_pending() {
                // A request that has ended in the meantime wakes this task.
                return match requests.poll_join_next(cx) {
                    Poll::Ready(Some(ended)) => {
                        is_sending &= joined(ended).unwrap_or(true);
                        continue;
                    }
                    _ => Poll::Pending,
                };
            }
        }
    })
    .await;
    client.close().await;
}

/// Sends a request and checks its answer. Returns whether more may be sent: over HTTP/1.1 the server may accept no connection any more.
async fn exchange(
    run: Arc<Run>,
    client: Client,
    path: Arc<str>,
    number: u64,
    intended: Instant,
    failures: Arc<tokio::sync::Mutex<Failures>>,
) -> bool {
    let work = &run.work;
    let content =
        if work.has_content { Bytes::copy_from_slice(work.payloads().bytes(number)) } else { Bytes::new() };
    let (now, is_measured) = (Instant::now(), run.plan.is_measured(intended));
    run.recorder().sent(now, now.saturating_duration_since(intended), content.len(), is_measured);
    let answered = tokio::time::timeout(run.plan.timeout, async {
        let mut response = client.request(work.method.clone(), &path, content.clone()).await?;
        let body = if work.checks {
            response.body.bytes().await?
        } else {
            // Read in chunks, because it may be larger than the limit for collecting.
            let mut len = 0;
            while let Some(chunk) = response.body.chunk().await? {
                len += chunk.len();
            }
            return Ok((response.status, len, true));
        };
        Ok::<_, Error>((response.status, body.len(), body == content))
    })
    .await;
    let now = Instant::now();
    let connected = answered.as_ref().map(Result::is_ok).ok();
    record(&run, answered, now, intended, is_measured);
    if matches!(client, Client::Http2(_)) {
        return true;
    }
    let mut failures = failures.lock().await;
    match connected {
        Some(true) => failures.succeeded(),
        Some(false) if failures.failed(now).await => {
            run.recorder().disconnected();
            return false;
        }
        // A server that does not answer in time may be connected.
        _ => {}
    }
    true
}

/// Status, length, and whether the content is the expected one.
type Answered = Result<Result<(u16, usize, bool), Error>, tokio::time::error::Elapsed>;

fn record(run: &Run, answered: Answered, now: Instant, intended: Instant, is_measured: bool) {
    let mut recorder = run.recorder();
    match answered {
        Ok(Ok((status, len, is_equal))) if status < 400 && is_equal => {
            recorder.answered(now, now.saturating_duration_since(intended), len, is_measured);
        }
        Ok(Ok((status, _, is_equal))) => recorder.error(
            |errors| &mut errors.wrong,
            1,
            || match is_equal {
                true => format!("the server answered {status}"),
                false => format!("the content of an answer ({status}) differs from what was sent"),
            },
        ),
        Ok(Err(error)) => {
            recorder.error(|errors| &mut errors.lost, 1, || format!("a request failed: {error}"));
        }
        Err(_) => recorder.error(
            |errors| &mut errors.lost,
            1,
            || format!("a request was not answered within {:?}", run.plan.timeout),
        ),
    }
}
