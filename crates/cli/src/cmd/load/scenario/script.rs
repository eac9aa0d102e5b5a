//! `--script`: steps that each connection repeats.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use wireloom::{Message, Receiver, Sender, WebSocket, WebSocketError};

use super::super::script::Step;
use super::connection::{Connection, Ended};

pub(super) async fn run(connection: Connection, mut socket: WebSocket) {
    let run = connection.run.clone();
    let (sender, receiver) = socket.halves();
    let mut round = 0;
    let ended = loop {
        if run.plan.is_over(Instant::now()) || !run.take_ticket(true) {
            break Ok(Ended::Done);
        }
        match play(&connection, round, sender, receiver).await {
            Ok(ControlFlow::Continue(())) => round += 1,
            Ok(ControlFlow::Break(ended)) => break Ok(ended),
            Err(error) => break Err(error),
        }
    };
    connection.finish(ended, 0, sender, receiver, |_| {}).await;
}

/// Runs the steps once, unless the run or the connection ends before, or a message does not arrive: what follows would
/// belong to other steps. The latency of an expected message is the time since the last message was sent.
async fn play(
    connection: &Connection,
    round: u64,
    sender: &mut Sender,
    receiver: &mut Receiver,
) -> Result<ControlFlow<Ended>, WebSocketError> {
    let run = &connection.run;
    let timeout = run.plan.timeout;
    let numbered = |text: &str| {
        text.replace("{connection}", &connection.index.to_string()).replace("{round}", &round.to_string())
    };
    // After the end of the run, nothing is sent, and answers have the same time as those of other scenarios.
    let answered_until = run.plan.end.map(|end| end + timeout);
    let mut sent_at = Instant::now();
    for step in &run.work.script.0 {
        if matches!(step, Step::Send(_) | Step::SendBinary(_)) && run.plan.is_over(Instant::now()) {
            return Ok(ControlFlow::Break(Ended::Done));
        }
        let expected = match step {
            Step::Wait(time) => {
                if pause(run.plan.end, *time).await.is_break() {
                    return Ok(ControlFlow::Break(Ended::Done));
                }
                continue;
            }
            Step::Send(text) => {
                let text = numbered(text);
                sent_at = Instant::now();
                sender.send(&*text).await?;
                run.recorder().sent(sent_at, Duration::ZERO, text.len(), true);
                continue;
            }
            Step::SendBinary(bytes) => {
                sent_at = Instant::now();
                sender.send(&bytes[..]).await?;
                run.recorder().sent(sent_at, Duration::ZERO, bytes.len(), true);
                continue;
            }
            Step::Expect(text) => Expected::Text(numbered(text)),
            Step::ExpectPrefix(text) => Expected::Prefix(numbered(text)),
            Step::ExpectAny => Expected::Any,
        };
        let until = Instant::now() + timeout;
        let until = answered_until.map_or(until, |end| until.min(end));
        match tokio::time::timeout_at(until.into(), receiver.recv()).await {
            Ok(Ok(Some(message))) => {
                let now = Instant::now();
                let mut recorder = run.recorder();
                if expected.is_met_by(&message) {
                    recorder.answered(now, now - sent_at, message.as_bytes().len(), true);
                } else {
                    recorder.error(
                        |errors| &mut errors.wrong,
                        1,
                        || format!("a message is not the one that the script expects: {step:?}"),
                    );
                }
            }
            Ok(Ok(None)) => return Ok(ControlFlow::Break(Ended::Closed)),
            Ok(Err(error)) => return Err(error),
            Err(_) => {
                run.recorder().error(
                    |errors| &mut errors.lost,
                    1,
                    || {
                        format!(
                            "a message that the script expects did not arrive within {timeout:?}: {step:?}"
                        )
                    },
                );
                return Ok(ControlFlow::Continue(()));
            }
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// The message that a step expects.
enum Expected {
    Text(String),
    Prefix(String),
    Any,
}

impl Expected {
    fn is_met_by(&self, message: &Message<'_>) -> bool {
        match self {
            Self::Text(text) => message.as_text() == Some(text),
            Self::Prefix(text) => message.as_bytes().starts_with(text.as_bytes()),
            Self::Any => true,
        }
    }
}

/// Waits for `time`, but not longer than the run. It does not receive: later steps expect the messages.
async fn pause(end: Option<Instant>, time: Duration) -> ControlFlow<()> {
    let until = Instant::now() + time;
    tokio::time::sleep_until(end.map_or(until, |end| until.min(end)).into()).await;
    if end.is_some_and(|end| Instant::now() >= end) {
        ControlFlow::Break(())
    } else {
        ControlFlow::Continue(())
    }
}
