//! An echo: sends in a closed or an open loop and checks the answers.

use std::collections::VecDeque;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use wireloom::{Message, Sender, WebSocket, WebSocketError};

use super::super::payload::Answer;
use super::connection::{Connection, Next, Pace, queue};
use super::exchange::{self, Arrival, BATCH, Exchange};

pub(super) async fn run(connection: Connection, socket: WebSocket) {
    let pace = connection.pace();
    let echo = Echo {
        connection: connection.clone(),
        pace,
        pending: VecDeque::new(),
        first: 0,
        is_blocked: false,
        is_sending: true,
    };
    exchange::run(connection, echo, socket).await;
}

struct Echo {
    connection: Connection,
    pace: Pace,
    /// The scheduled times of the unanswered messages, in nanoseconds since the run began. Their numbers are
    /// consecutive, because an echo answers in order.
    pending: VecDeque<u64>,
    /// The number of the first unanswered message.
    first: u64,
    /// The send queue is full.
    is_blocked: bool,
    is_sending: bool,
}

impl Exchange for Echo {
    fn is_sending(&self) -> bool {
        self.is_sending
    }

    fn pending(&self) -> usize {
        self.pending.len()
    }

    fn poll_due(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.pace.poll_due(cx)
    }

    fn send_due(&mut self, cx: &mut Context<'_>, sender: &mut Sender) -> Result<(), WebSocketError> {
        if !self.is_sending {
            return Ok(());
        }
        let run = self.connection.run.clone();
        let now = Instant::now();
        let (mut payloads, mut recorder) = (run.work.payloads(), run.recorder());
        self.is_blocked = false;
        for _ in 0..BATCH.max(run.work.pipeline) {
            let intended = match self.pace.next(&run, now, self.pending.len()) {
                Next::Due(intended) => intended,
                Next::Wait => return Ok(()),
                Next::Over => {
                    self.is_sending = false;
                    return Ok(());
                }
            };
            let is_measured = run.plan.is_measured(intended);
            let message = payloads.message(self.first + self.pending.len() as u64);
            let len = message.len();
            if !queue(cx, sender, message)? {
                run.return_ticket(is_measured);
                self.is_blocked = true;
                return Ok(());
            }
            recorder.sent(now, now.saturating_duration_since(intended), len, is_measured);
            self.pending.push_back(run.plan.nanos(intended));
            self.pace.sent();
        }
        // More is due than a batch: continue after the received messages have been handled.
        cx.waker().wake_by_ref();
        Ok(())
    }

    fn handle(&mut self, arrival: &mut Arrival<'_>, answer: &Message<'_>) {
        let Arrival { payloads, recorder, now } = arrival;
        let now = *now;
        let run = &self.connection.run;
        let waiting = self.first..self.first + self.pending.len() as u64;
        match payloads.check(answer, waiting) {
            Answer::Equal(number) => {
                while let Some(intended) = self.pending.pop_front() {
                    self.first += 1;
                    if self.first > number {
                        let intended = run.plan.instant(intended);
                        let latency = now.saturating_duration_since(intended);
                        let is_measured = run.plan.is_measured(intended);
                        recorder.answered(now, latency, answer.as_bytes().len(), is_measured);
                        break;
                    }
                    recorder.error(
                        |errors| &mut errors.lost,
                        1,
                        || "a message was lost: a later one was answered first".to_owned(),
                    );
                }
            }
            Answer::Repeated => recorder.error(
                |errors| &mut errors.unexpected,
                1,
                || "an answer arrived twice, or too late".to_owned(),
            ),
            Answer::Wrong => {
                // It counts as the answer to the oldest message.
                if self.pending.pop_front().is_some() {
                    self.first += 1;
                }
                recorder.error(
                    |errors| &mut errors.wrong,
                    1,
                    || "an answer differs from what was sent".to_owned(),
                );
            }
        }
    }

    fn expire(&mut self, now: Instant) -> Result<(), WebSocketError> {
        let run = &self.connection.run;
        let timeout = run.plan.timeout;
        while self.pending.front().is_some_and(|&intended| now >= run.plan.instant(intended) + timeout) {
            self.pending.pop_front();
            self.first += 1;
            run.recorder().error(
                |errors| &mut errors.lost,
                1,
                || format!("a message was not answered within {timeout:?}"),
            );
        }
        if self.is_blocked && self.pending.is_empty() { Err(WebSocketError::SlowPeer) } else { Ok(()) }
    }

    fn next_wake(&self, now: Instant) -> Instant {
        /// The minimum time between two checks, so that a connection with a high rate does not check for each message.
        const PAUSE: Duration = Duration::from_millis(1);
        let plan = &self.connection.run.plan;
        let oldest = self.pending.front().map_or(now, |&intended| plan.instant(intended));
        let expiry = (oldest + plan.timeout).max(now + PAUSE);
        match plan.end {
            Some(end) if self.is_sending && end > now => expiry.min(end),
            _ => expiry,
        }
    }
}
