//! One connection to an echo: sends in a closed or an open loop and checks the answers.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use wireloom::{CloseCode, Error, Message, Receiver, Sender, WebSocket};

use super::pacer::Schedule;
use super::payload::{Answer, Template};
use super::run::{Plan, Run};

/// How long closing may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// When to send.
pub(super) enum Loop {
    /// While fewer than this many messages wait for their answers.
    Closed(usize),
    /// On a schedule; the notification comes when a message is due.
    Open(Schedule, Arc<Notify>),
}

/// A message that waits for its answer.
struct Pending {
    number: u64,
    /// When it was to be sent.
    intended: Instant,
}

/// One connection.
pub(super) struct Echo<'a> {
    run: &'a Run,
    load: Loop,
    template: Template,
    /// The oldest first: an echo answers in order.
    pending: VecDeque<Pending>,
    next_number: u64,
    /// The send queue is full.
    is_blocked: bool,
    is_sending: bool,
}

impl<'a> Echo<'a> {
    pub(super) fn new(run: &'a Run, load: Loop, template: Template) -> Self {
        let pending = VecDeque::new();
        Self { run, load, template, pending, next_number: 0, is_blocked: false, is_sending: true }
    }

    /// Runs until nothing more is to be sent and each message has been answered or is lost.
    pub(super) async fn run(mut self, mut socket: WebSocket) {
        let (sender, receiver) = socket.halves();
        match self.exchange(sender, receiver).await {
            Ok(true) => {
                let close = async {
                    sender.close(CloseCode::NORMAL, "").await?;
                    // Repeated answers may arrive before the server's Close frame.
                    while let Some(answer) = receiver.recv().await? {
                        self.handle(&answer);
                    }
                    Ok::<(), Error>(())
                };
                // The result is known; a server that does not close cannot change it.
                let _ = tokio::time::timeout(CLOSE_TIMEOUT, close).await;
            }
            Ok(false) | Err(Error::Closed) => {
                let end = receiver.end();
                self.ended(
                    |counts| &mut counts.closed,
                    || match end {
                        Some(end) => format!("the server closed a connection: {:?}", end.cause),
                        None => "the server closed a connection".to_owned(),
                    },
                );
            }
            Err(error) => self.ended(|counts| &mut counts.broken, || error.to_string()),
        }
    }

    /// `false` when the server has closed the connection.
    async fn exchange(&mut self, sender: &mut Sender, receiver: &mut Receiver) -> Result<bool, Error> {
        let notify = match &self.load {
            Loop::Open(_, notify) => Some(notify.clone()),
            Loop::Closed(_) => None,
        };
        let mut stopped = self.run.stopped();
        let mut wake = pin!(tokio::time::sleep_until(self.next_wake(Instant::now()).into()));
        loop {
            self.send_due(sender)?;
            if !self.is_sending && self.pending.is_empty() {
                return Ok(true);
            }
            tokio::select! {
                biased;
                received = receiver.recv() => match received? {
                    Some(answer) => self.handle(&answer),
                    None => return Ok(false),
                },
                () = notified(notify.as_deref()), if self.is_sending => {}
                permit = sender.reserve(), if self.is_blocked => {
                    drop(permit?);
                    self.is_blocked = false;
                }
                _ = stopped.wait_for(|&is_stopped| is_stopped) => return Ok(true),
                () = &mut wake => {
                    let now = Instant::now();
                    self.expire(now);
                    if self.is_blocked && self.pending.is_empty() {
                        return Err(Error::SlowPeer);
                    }
                    wake.as_mut().reset(self.next_wake(now).into());
                }
            }
        }
    }

    /// Sends what is due and fits into the send queue.
    fn send_due(&mut self, sender: &mut Sender) -> Result<(), Error> {
        let plan = &self.run.plan;
        while self.is_sending && !self.is_blocked {
            let now = Instant::now();
            let intended = match &self.load {
                Loop::Closed(pipeline) if self.pending.len() >= *pipeline => return Ok(()),
                Loop::Closed(_) => now,
                Loop::Open(schedule, _) => schedule.next(),
            };
            if plan.is_over(intended) || !self.run.take_ticket(plan.is_measured(intended)) {
                self.is_sending = false;
                return Ok(());
            }
            if intended > now {
                self.run.return_ticket(plan.is_measured(intended));
                return Ok(());
            }
            if !sender.try_send(self.template.message(self.next_number))? {
                self.run.return_ticket(plan.is_measured(intended));
                self.is_blocked = true;
                return Ok(());
            }
            let delay = now.saturating_duration_since(intended);
            self.run.recorder().sent(now, delay, plan.is_measured(intended));
            self.pending.push_back(Pending { number: self.next_number, intended });
            self.next_number += 1;
            if let Loop::Open(schedule, _) = &mut self.load {
                schedule.advance();
            }
        }
        Ok(())
    }

    fn handle(&mut self, answer: &Message<'_>) {
        let now = Instant::now();
        let mut recorder = self.run.recorder();
        match self.template.check(answer, self.pending.iter().map(|pending| pending.number)) {
            Answer::Equal(number) => {
                while let Some(pending) = self.pending.pop_front() {
                    if pending.number == number {
                        let latency = now.saturating_duration_since(pending.intended);
                        recorder.answered(now, latency, self.run.plan.is_measured(pending.intended));
                        break;
                    }
                    recorder.counts.lost += 1;
                    recorder.note_error(|| "a message was lost: a later one was answered first".to_owned());
                }
            }
            Answer::Other if self.template.is_message(answer) => {
                recorder.counts.unexpected += 1;
                recorder.note_error(|| "an answer arrived twice, or too late".to_owned());
            }
            Answer::Other => {
                // It is taken for the answer to the oldest message.
                self.pending.pop_front();
                recorder.counts.wrong += 1;
                recorder.note_error(|| "an answer differs from what was sent".to_owned());
            }
        }
    }

    /// Gives up messages that have waited for too long.
    fn expire(&mut self, now: Instant) {
        let timeout = self.run.plan.timeout;
        while self.pending.front().is_some_and(|pending| now >= pending.intended + timeout) {
            self.pending.pop_front();
            let mut recorder = self.run.recorder();
            recorder.counts.lost += 1;
            recorder.note_error(|| format!("a message was not answered within {timeout:?}"));
        }
    }

    /// When to look for lost messages and for the end of the run.
    fn next_wake(&self, now: Instant) -> Instant {
        let Plan { timeout, end, .. } = self.run.plan;
        let expiry = self.pending.front().map_or(now, |pending| pending.intended) + timeout;
        match end {
            Some(end) if self.is_sending && end > now => expiry.min(end),
            _ => expiry,
        }
    }

    /// The connection ended before the run did: what it had sent is lost.
    fn ended(&self, count: fn(&mut super::recorder::Counts) -> &mut u64, text: impl FnOnce() -> String) {
        let mut recorder = self.run.recorder();
        *count(&mut recorder.counts) += 1;
        recorder.counts.lost += self.pending.len() as u64;
        recorder.note_error(text);
    }
}

async fn notified(notify: Option<&Notify>) {
    match notify {
        Some(notify) => notify.notified().await,
        None => std::future::pending().await,
    }
}
