//! An idle connection: sends nothing. At the end a ping checks that it is alive; the latency is the time of that ping.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Poll, ready};
use std::time::Instant;

use tokio::time::{Sleep, sleep_until};
use wireloom::{WebSocket, WebSocketError};

use super::connection::{Connection, Ended};

/// The ping at the end.
struct Ping {
    sent_at: Instant,
    timeout: Pin<Box<Sleep>>,
}

/// The future has to be small, because there may be tens of thousands. An `async` block stores its captures once; an
/// `async fn` would store its arguments twice.
#[allow(clippy::manual_async_fn, reason = "see above")]
pub(super) fn run(connection: Connection, mut socket: WebSocket) -> impl Future<Output = ()> + Send {
    async move {
        let ended = hold(&connection, &mut socket).await;
        let (sender, receiver) = socket.halves();
        match ended {
            Err(WebSocketError::SlowPeer) => {
                connection.run.recorder().error(
                    |errors| &mut errors.lost,
                    1,
                    || "a connection did not answer the ping at the end".to_owned(),
                );
            }
            ended => Box::pin(connection.finish(ended, 0, sender, receiver, |_| {})).await,
        }
    }
}

/// Waits for the end of the run, sends a ping, and waits for its answer.
async fn hold(connection: &Connection, socket: &mut WebSocket) -> Result<Ended, WebSocketError> {
    let run = &connection.run;
    let (sender, receiver) = socket.halves();
    let mut ping = None;
    poll_fn(|cx| {
        // The server may send messages without being asked.
        while let Poll::Ready(received) = pin!(receiver.recv()).poll(cx)? {
            if received.is_none() {
                return Poll::Ready(Ok(Ended::Closed));
            }
        }
        let ping = match &mut ping {
            Some(ping) => ping,
            None => {
                ready!(run.end.poll(cx, connection.index));
                if let Poll::Ready(sent) = pin!(sender.ping(b"")).poll(cx) {
                    sent?;
                }
                let (now, due) = (Instant::now(), run.plan.sending_end());
                run.recorder().sent(now, now.saturating_duration_since(due), 0, true);
                let timeout = Box::pin(sleep_until((now + run.plan.timeout).into()));
                ping.insert(Ping { sent_at: now, timeout })
            }
        };
        if sender.pings_answered() > 0 {
            let now = Instant::now();
            run.recorder().answered(now, now - ping.sent_at, 0, true);
            return Poll::Ready(Ok(Ended::Done));
        }
        ping.timeout.as_mut().poll(cx).map(|()| Err(WebSocketError::SlowPeer))
    })
    .await
}
