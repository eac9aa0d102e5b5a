//! Churn: opens a connection, closes it, and begins again. The latency is the time until it is open.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Instant;

use wireloom::CloseCode;

use super::connection::{CLOSE_TIMEOUT, Connection, Failures, Next};

pub(super) async fn run(connection: Connection) {
    let run = connection.run.clone();
    let mut pace = connection.pace();
    let mut failures = Failures::default();
    loop {
        let intended = poll_fn(|cx| {
            loop {
                match pace.next(&run, Instant::now(), 0) {
                    Next::Due(intended) => return Poll::Ready(Some(intended)),
                    Next::Over => return Poll::Ready(None),
                    Next::Wait => {}
                }
                if pace.poll_due(cx).is_pending() {
                    return Poll::Pending;
                }
            }
        });
        let Some(intended) = intended.await else { return };
        pace.sent();
        let (now, is_measured) = (Instant::now(), run.plan.is_measured(intended));
        run.recorder().sent(now, now.saturating_duration_since(intended), 0, is_measured);
        match run.opener.websocket(connection.opened_as).await {
            Ok(mut socket) => {
                failures.succeeded();
                let now = Instant::now();
                run.recorder().answered(now, now.saturating_duration_since(intended), 0, is_measured);
                let close = async {
                    socket.close(CloseCode::NORMAL, "").await?;
                    while socket.recv().await?.is_some() {}
                    Ok::<(), wireloom::Error>(())
                };
                let text = match tokio::time::timeout(CLOSE_TIMEOUT, close).await {
                    Ok(Ok(())) => continue,
                    Ok(Err(error)) => error.to_string(),
                    Err(_) => format!("a connection was not closed within {CLOSE_TIMEOUT:?}"),
                };
                run.recorder().error(|errors| &mut errors.broken, 1, || text);
            }
            Err(error) => {
                run.recorder().connect_failed(&error);
                if failures.failed(Instant::now()).await {
                    run.recorder().disconnected();
                    return;
                }
            }
        }
    }
}
