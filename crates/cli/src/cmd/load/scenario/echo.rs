//! An echo: sends in a closed or an open loop and checks the answers.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::time::Sleep;
use wireloom::{Error, Message, Receiver, Sender, WebSocket};

use super::super::payload::{Answer, Payloads};
use super::super::recorder::Recorder;
use super::{Connection, Next, Pace, queue};

/// Messages that are handled between two looks at the clock.
const BATCH: usize = 64;

pub(super) async fn run(connection: Connection, mut socket: WebSocket) {
    let (sender, receiver) = socket.halves();
    let pace = connection.pace();
    let mut echo =
        Echo { connection, pace, pending: VecDeque::new(), first: 0, is_blocked: false, is_sending: true };
    let ended = {
        let mut wake = pin!(tokio::time::sleep_until(echo.next_wake(Instant::now()).into()));
        poll_fn(|cx| echo.poll(cx, sender, receiver, wake.as_mut())).await
    };
    let Echo { connection, .. } = &echo;
    match ended {
        Ok(true) => {
            let connection = connection.clone();
            // Repeated answers may arrive before the server's Close frame.
            let handle = |answer: &Message<'_>| {
                let run = echo.connection.run.clone();
                echo.handle(&run.work.payloads(), &mut run.recorder(), Instant::now(), answer);
            };
            connection.close(sender, receiver, handle).await;
        }
        Ok(false) => connection.ended(None, receiver, echo.pending.len() as u64),
        Err(error) => connection.ended(Some(&error), receiver, echo.pending.len() as u64),
    }
}

struct Echo {
    connection: Connection,
    pace: Pace,
    /// When the messages that wait for their answers were to be sent, in nanoseconds since the run began. Their numbers follow each
    /// other: an echo answers in order.
    pending: VecDeque<u64>,
    /// The number of the first of them.
    first: u64,
    /// The send queue is full.
    is_blocked: bool,
    is_sending: bool,
}

impl Echo {
    /// Ready with `true` when all has been answered, and with `false` when the server has closed the connection.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        sender: &mut Sender,
        receiver: &mut Receiver,
        mut wake: Pin<&mut Sleep>,
    ) -> Poll<Result<bool, Error>> {
        loop {
            let has_more = match self.poll_answers(cx, receiver)? {
                Poll::Ready(true) => true,
                Poll::Ready(false) => return Poll::Ready(Ok(false)),
                Poll::Pending => false,
            };
            self.send_due(cx, sender)?;
            if !self.is_sending && self.pending.is_empty() {
                return Poll::Ready(Ok(true));
            }
            if has_more || (self.is_sending && self.pace.poll_due(cx).is_ready()) {
                continue;
            }
            if wake.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            let now = Instant::now();
            self.expire(now);
            if self.is_blocked && self.pending.is_empty() {
                return Poll::Ready(Err(Error::SlowPeer));
            }
            wake.as_mut().reset(self.next_wake(now).into());
        }
    }

    /// Takes the answers that have arrived. Ready with `true` when there may be more, and with `false` at the end.
    fn poll_answers(&mut self, cx: &mut Context<'_>, receiver: &mut Receiver) -> Result<Poll<bool>, Error> {
        let run = self.connection.run.clone();
        let mut locked = None;
        for _ in 0..BATCH {
            match pin!(receiver.recv()).poll(cx) {
                Poll::Ready(Ok(Some(answer))) => {
                    // All messages of one read arrived at once.
                    let (payloads, recorder, now) =
                        locked.get_or_insert_with(|| (run.work.payloads(), run.recorder(), Instant::now()));
                    self.handle(payloads, recorder, *now, &answer);
                }
                Poll::Ready(Ok(None)) => return Ok(Poll::Ready(false)),
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => return Ok(Poll::Pending),
            }
        }
        Ok(Poll::Ready(true))
    }

    /// Sends what is due and fits into the send queue.
    fn send_due(&mut self, cx: &mut Context<'_>, sender: &mut Sender) -> Result<(), Error> {
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
        // There is more to send than fits between two looks at what has arrived.
        cx.waker().wake_by_ref();
        Ok(())
    }

    fn handle(&mut self, payloads: &Payloads, recorder: &mut Recorder, now: Instant, answer: &Message<'_>) {
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
                // It is taken for the answer to the oldest message.
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

    /// Gives up messages that have waited for too long.
    fn expire(&mut self, now: Instant) {
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
    }

    /// When to look for lost messages and for the end of the run.
    fn next_wake(&self, now: Instant) -> Instant {
        /// The least time between two looks, so that a connection that sends much does not look for each message.
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
