//! Requests over one HTTP/2 connection: `--pipeline` at once, or on a schedule.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use bytes::Bytes;
use tokio::task::JoinSet;
use wireloom::Error;
use wireloom::client::{Http2, Request};

use super::super::run::Run;
use super::connection::{Connection, Next};

/// The maximum number of concurrent requests of one connection in the open loop.
const REQUESTS_MAX: usize = 10_000;

pub(super) async fn run(connection: Connection, http2: Http2) {
    let run = connection.run.clone();
    let mut pace = connection.pace();
    let path: Arc<str> = run.opener.path(connection.index).into();
    let mut number = 0;
    let mut requests = JoinSet::new();
    let mut is_sending = true;
    poll_fn(|cx| {
        loop {
            while let Poll::Ready(Some(_)) = requests.poll_join_next(cx) {}
            if is_sending && !http2.is_open() {
                is_sending = false;
                let mut recorder = run.recorder();
                recorder.disconnected();
                recorder.error(
                    |errors| &mut errors.closed,
                    1,
                    || "the server closed a connection".to_owned(),
                );
            }
            while is_sending && requests.len() < REQUESTS_MAX {
                let now = Instant::now();
                match pace.next(&run, now, requests.len()) {
                    Next::Due(intended) => {
                        requests.spawn(exchange(run.clone(), http2.clone(), path.clone(), number, intended));
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
            if !is_sending || pace.poll_due(cx).is_pending() {
                // A request that has ended in the meantime wakes this task.
                return match requests.poll_join_next(cx) {
                    Poll::Ready(Some(_)) => continue,
                    _ => Poll::Pending,
                };
            }
        }
    })
    .await;
    let _ = tokio::time::timeout(super::connection::CLOSE_TIMEOUT, http2.close()).await;
}

async fn exchange(run: Arc<Run>, http2: Http2, path: Arc<str>, number: u64, intended: Instant) {
    let work = &run.work;
    let content =
        if work.has_content { Bytes::copy_from_slice(work.payloads().bytes(number)) } else { Bytes::new() };
    let (now, is_measured) = (Instant::now(), run.plan.is_measured(intended));
    run.recorder().sent(now, now.saturating_duration_since(intended), content.len(), is_measured);
    let request = Request::new(work.method.clone(), &*path).with_body(content.clone());
    let answered = tokio::time::timeout(run.plan.timeout, async {
        let mut response = http2.request(request).await?;
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
