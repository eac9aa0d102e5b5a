//! An idle connection: sends nothing. At the end a ping checks that it is alive; the latency is the time of that ping.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Instant;

use wireloom::{Error, WebSocket};

use super::Connection;

/// The future is small: there may be tens of thousands. A block keeps its captures in place, where a function would have room for
/// its arguments and for what they are moved to.
#[allow(clippy::manual_async_fn, reason = "see above")]
pub(super) fn run(connection: Connection, mut socket: WebSocket) -> impl Future<Output = ()> + Send {
    async move {
        let ended = hold(&connection, &mut socket).await;
        let (sender, receiver) = socket.halves();
        match ended {
            Ok(true) => Box::pin(connection.close(sender, receiver, |_| {})).await,
            Ok(false) => connection.ended(None, receiver, 0),
            Err(Error::SlowPeer) => {
                connection.run.recorder().error(
                    |errors| &mut errors.lost,
                    1,
                    || "a connection did not answer the ping at the end".to_owned(),
                );
            }
            Err(error) => connection.ended(Some(&error), receiver, 0),
        }
    }
}

/// Waits for the end of the run, and for the answer to a ping then: `true`. `false` when the server has closed the connection.
async fn hold(connection: &Connection, socket: &mut WebSocket) -> Result<bool, Error> {
    let run = &connection.run;
    let (sender, receiver) = socket.halves();
    let plan = &run.plan;
    let mut wake = pin!(tokio::time::sleep_until(plan.end.unwrap_or(plan.measured_from).into()));
    let mut sent_at = None;
    poll_fn(|cx| {
        loop {
            // A server may send something of its own accord.
            while let Poll::Ready(received) = pin!(receiver.recv()).poll(cx)? {
                if received.is_none() {
                    return Poll::Ready(Ok(false));
                }
            }
            let now = Instant::now();
            if let Some(sent_at) = sent_at
                && sender.pings_answered() > 0
            {
                run.recorder().answered(now, now - sent_at, 0, true);
                return Poll::Ready(Ok(true));
            }
            if wake.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if sent_at.is_some() {
                return Poll::Ready(Err(Error::SlowPeer));
            }
            if let Poll::Ready(sent) = pin!(sender.ping(b"")).poll(cx) {
                sent?;
            }
            run.recorder().sent(now, now.saturating_duration_since(wake.deadline().into_std()), 0, true);
            sent_at = Some(now);
            wake.as_mut().reset((now + plan.timeout).into());
        }
    })
    .await
}
