//! A source: receives messages as fast as they come, or slowly.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Instant;

use wireloom::{CloseCode, WebSocket, WebSocketError};

use super::connection::{Connection, Ended, Next, Pace};

/// The maximum number of messages that are received before the clock is read again.
const BATCH: usize = 256;

pub(super) async fn run(connection: Connection, mut socket: WebSocket) {
    let run = connection.run.clone();
    let (sender, receiver) = socket.halves();
    let mut pace = connection.pace();
    let mut end = pin!(tokio::time::sleep_until(
        run.plan.end.unwrap_or(run.plan.begin + super::super::plan::FAR).into()
    ));
    let ended: Result<Ended, WebSocketError> = poll_fn(|cx| {
        loop {
            let now = Instant::now();
            // The messages and bytes of the warm-up, and those that are measured.
            let mut counts = [(0, 0); 2];
            let (mut is_pending, mut ended) = (false, None);
            for _ in 0..BATCH {
                let intended = match &pace {
                    Pace::Open(_) => match pace.next(&run, now, 0) {
                        Next::Due(intended) => intended,
                        Next::Wait => break,
                        Next::Over => {
                            ended = Some(Ok(Ended::Done));
                            break;
                        }
                    },
                    Pace::Closed(_) if !run.take_ticket(run.plan.is_measured(now)) => {
                        ended = Some(Ok(Ended::Done));
                        break;
                    }
                    Pace::Closed(_) => now,
                };
                let is_measured = run.plan.is_measured(intended);
                match pin!(receiver.recv()).poll(cx) {
                    Poll::Ready(Ok(Some(message))) => {
                        let (messages, bytes) = &mut counts[usize::from(is_measured)];
                        *messages += 1;
                        *bytes += message.as_bytes().len() as u64;
                        pace.sent();
                        continue;
                    }
                    Poll::Ready(Ok(None)) => ended = Some(Ok(Ended::Closed)),
                    Poll::Ready(Err(error)) => ended = Some(Err(error)),
                    Poll::Pending => is_pending = true,
                }
                run.return_ticket(is_measured);
                break;
            }
            for (is_measured, (messages, bytes)) in [false, true].into_iter().zip(counts) {
                if messages > 0 {
                    run.recorder().received(Instant::now(), messages, bytes, is_measured);
                }
            }
            if let Some(ended) = ended {
                return Poll::Ready(ended);
            }
            if end.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok(Ended::Done));
            }
            if is_pending || (counts == [(0, 0); 2] && pace.poll_due(cx).is_pending()) {
                return Poll::Pending;
            }
        }
    })
    .await;
    match ended {
        // A source that has sent everything closes.
        Ok(Ended::Closed) if receiver.end().is_some_and(|end| end.code() == CloseCode::NORMAL) => {
            run.recorder().disconnected();
        }
        ended => connection.finish(ended, 0, sender, receiver, |_| {}).await,
    }
}
