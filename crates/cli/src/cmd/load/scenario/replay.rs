//! `--replay`: sends what the clients of a capture sent, when they sent it.

use std::collections::VecDeque;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use wireloom::{Message, Sender, WebSocket, WebSocketError};

use super::super::pacer::Alarm;
use super::super::plan::FAR;
use super::super::recording::Data;
use super::connection::{Connection, queue};
use super::exchange::{self, Arrival, BATCH, Exchange};

/// The maximum number of unanswered messages of a connection.
const PENDING_MAX: usize = 65_536;

pub(super) async fn run(connection: Connection, socket: WebSocket) {
    let run = connection.run.clone();
    let player = Player {
        begin: connection.opens_at.max(run.plan.begin),
        next: 0,
        due: None,
        pending: VecDeque::new(),
        blocked_since: None,
        is_sending: true,
        alarm: run.alarm(),
        connection: connection.clone(),
    };
    exchange::run(connection, player, socket).await;
}

struct Player {
    connection: Connection,
    /// The time of the first message of the capture in this round.
    begin: Instant,
    /// The message to be sent next.
    next: usize,
    /// When it is due; `None` if it is due at once.
    due: Option<Instant>,
    /// With `--check`: the unanswered messages, and their scheduled times.
    pending: VecDeque<(usize, Instant)>,
    /// Since when the send queue is full.
    blocked_since: Option<Instant>,
    is_sending: bool,
    /// `None` when messages are sent without a pause.
    alarm: Option<Alarm>,
}

impl Exchange for Player {
    fn is_sending(&self) -> bool {
        self.is_sending
    }

    fn pending(&self) -> usize {
        self.pending.len()
    }

    fn poll_due(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match (&mut self.alarm, self.due) {
            (Some(alarm), Some(due)) => alarm.poll_at(cx, due),
            _ => Poll::Pending,
        }
    }

    fn send_due(&mut self, cx: &mut Context<'_>, sender: &mut Sender) -> Result<(), WebSocketError> {
        let run = self.connection.run.clone();
        let recording = &run.work.recording;
        let messages = recording.of(self.connection.index);
        let now = Instant::now();
        self.due = None;
        self.blocked_since = self.blocked_since.filter(|_| self.is_sending);
        for _ in 0..BATCH {
            if !self.is_sending {
                return Ok(());
            }
            let Some(message) = messages.get(self.next) else {
                self.begin_round(now);
                continue;
            };
            let intended = match self.alarm {
                Some(_) => self.begin + message.at,
                None => now,
            };
            if run.plan.is_over(intended) {
                self.is_sending = false;
                return Ok(());
            }
            if intended > now {
                self.due = Some(intended);
                return Ok(());
            }
            if self.pending.len() >= PENDING_MAX {
                return Ok(());
            }
            if !queue(cx, sender, message.payload())? {
                self.blocked_since.get_or_insert(now);
                return Ok(());
            }
            self.blocked_since = None;
            let len = match &message.data {
                Data::Text(text) => text.len(),
                Data::Binary(bytes) => bytes.len(),
            };
            run.recorder().sent(now, now.saturating_duration_since(intended), len, true);
            if run.work.checks {
                self.pending.push_back((self.next, intended));
            }
            self.next += 1;
        }
        // More is due than a batch: continue after the received messages have been handled.
        cx.waker().wake_by_ref();
        Ok(())
    }

    fn handle(&mut self, arrival: &mut Arrival<'_>, answer: &Message<'_>) {
        let run = &self.connection.run;
        let Arrival { recorder, now, .. } = arrival;
        let now = *now;
        let len = answer.as_bytes().len();
        if !run.work.checks {
            recorder.received(now, 1, len as u64, true);
            return;
        }
        match self.pending.pop_front() {
            Some((index, intended)) if run.work.recording.of(self.connection.index)[index].equals(answer) => {
                recorder.answered(now, now.saturating_duration_since(intended), len, true);
            }
            Some(_) => recorder.error(
                |errors| &mut errors.wrong,
                1,
                || "an answer differs from what was sent".to_owned(),
            ),
            None => recorder.error(
                |errors| &mut errors.unexpected,
                1,
                || "a message arrived that answers none".to_owned(),
            ),
        }
    }

    fn expire(&mut self, now: Instant) -> Result<(), WebSocketError> {
        let run = &self.connection.run;
        let timeout = run.plan.timeout;
        if self.blocked_since.is_some_and(|since| now >= since + timeout) {
            return Err(WebSocketError::SlowPeer);
        }
        while self.pending.front().is_some_and(|(_, intended)| now >= *intended + timeout) {
            self.pending.pop_front();
            run.recorder().error(
                |errors| &mut errors.lost,
                1,
                || format!("a message was not answered within {timeout:?}"),
            );
        }
        Ok(())
    }

    fn next_wake(&self, now: Instant) -> Instant {
        let plan = &self.connection.run.plan;
        let oldest = self.pending.front().map(|(_, intended)| *intended);
        let expiry = oldest.into_iter().chain(self.blocked_since).min().map(|since| since + plan.timeout);
        let end = plan.end.filter(|_| self.is_sending);
        expiry.into_iter().chain(end).min().unwrap_or(now + FAR).max(now + Duration::from_millis(1))
    }
}

impl Player {
    /// Begins again if `--duration` is not over. Connections stay synchronized, because a round of each takes the time
    /// of the capture.
    fn begin_round(&mut self, now: Instant) {
        /// The minimum time of a round, so that a capture with one message does not flood the server.
        const PAUSE: Duration = Duration::from_millis(1);
        let run = &self.connection.run;
        let recording = &run.work.recording;
        let is_empty = recording.of(self.connection.index).is_empty();
        if is_empty || run.plan.end.is_none() {
            self.is_sending = false;
            return;
        }
        self.next = 0;
        if self.alarm.is_some() {
            self.begin += recording.time.max(PAUSE);
        } else if run.plan.is_over(now) {
            self.is_sending = false;
        }
    }
}
