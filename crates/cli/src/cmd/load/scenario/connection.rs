//! One connection: its pace, its send queue, and its end.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use wireloom::wireloom_ws::{Cause, End};
use wireloom::{CloseCode, Payload, Receiver, Sender, WebSocketError};

use super::super::pacer::{Alarm, Schedule};
use super::super::run::Run;

/// How long closing may take.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// One connection of a run.
#[derive(Clone)]
pub(in crate::cmd::load) struct Connection {
    pub(in crate::cmd::load) run: Arc<Run>,
    /// The index of the connection among those of the run, from 0.
    pub(in crate::cmd::load) index: usize,
    /// The number with which it was opened, which chose its token: greater where an earlier one could not be opened.
    pub(in crate::cmd::load) opened_as: usize,
    /// When the connection opens. Messages that are due earlier are sent by other connections.
    pub(in crate::cmd::load) opens_at: Instant,
}

impl Connection {
    /// When the messages of this connection are sent.
    pub(super) fn pace(&self) -> Pace {
        match self.run.schedule(self.index, self.opens_at) {
            Some((schedule, alarm)) => Pace::Open(Box::new(Open { schedule, alarm })),
            None => Pace::Closed(self.run.work.pipeline),
        }
    }

    /// Ends the connection. `lost` messages are unanswered. If all work was done, it is closed; `handle` is called for
    /// messages that still arrive.
    pub(super) async fn finish(
        &self,
        ended: Result<Ended, WebSocketError>,
        lost: u64,
        sender: &mut Sender,
        receiver: &mut Receiver,
        handle: impl FnMut(&wireloom::Message<'_>),
    ) {
        match ended {
            Ok(Ended::Done) => self.close(sender, receiver, handle).await,
            Ok(Ended::Closed) => self.ended(None, receiver, lost),
            Err(error) => self.ended(Some(&error), receiver, lost),
        }
    }

    async fn close(
        &self,
        sender: &mut Sender,
        receiver: &mut Receiver,
        mut handle: impl FnMut(&wireloom::Message<'_>),
    ) {
        let close = async {
            sender.close(CloseCode::NORMAL, "").await?;
            while let Some(message) = receiver.recv().await? {
                handle(&message);
            }
            Ok::<(), WebSocketError>(())
        };
        // The result is known; a server that does not close cannot change it.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, close).await;
    }

    /// Records that the connection ended before the run, with `lost` unanswered messages.
    fn ended(&self, error: Option<&WebSocketError>, receiver: &Receiver, lost: u64) {
        let mut recorder = self.run.recorder();
        recorder.disconnected();
        match error {
            None | Some(WebSocketError::Closed) => {
                let text = match receiver.end() {
                    Some(End { cause: Cause::Close { code, reason }, .. }) => {
                        let code = code.map(|code| format!(" with {}", code.value())).unwrap_or_default();
                        format!("the server closed a connection{code} {reason}").trim_end().to_owned()
                    }
                    _ => "the server closed a connection".to_owned(),
                };
                recorder.error(|errors| &mut errors.closed, 1, || text);
            }
            Some(error) => recorder.error(|errors| &mut errors.broken, 1, || error.to_string()),
        }
        recorder.error(
            |errors| &mut errors.lost,
            lost,
            || "a connection ended before its messages were answered".to_owned(),
        );
    }
}

/// Reads what had arrived when a write failed with `error`: the last answers, which are passed to `handle`, and the server's Close frame.
pub(super) async fn read_rest(
    error: WebSocketError,
    sender: &Sender,
    receiver: &mut Receiver,
    mut handle: impl FnMut(&wireloom::Message<'_>),
) -> Result<Ended, WebSocketError> {
    if sender.is_open() {
        // The server does not read.
        return Err(error);
    }
    let rest = async {
        while let Ok(Some(message)) = receiver.recv().await {
            handle(&message);
        }
    };
    // Those who close last may wait for this end.
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, rest).await;
    match receiver.end() {
        Some(End { cause: Cause::Close { .. }, .. }) => Ok(Ended::Closed),
        _ => Err(error),
    }
}

/// How the work on a connection ended without a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// All was done.
    Done,
    /// The server has closed the connection.
    Closed,
}

/// When to send.
pub(super) enum Pace {
    /// While fewer than this many messages wait for their answers.
    Closed(usize),
    Open(Box<Open>),
}

/// On a schedule.
pub(super) struct Open {
    schedule: Schedule,
    alarm: Alarm,
}

/// Whether a message can be sent.
pub(super) enum Next {
    /// A message is due since this time.
    Due(Instant),
    /// Wait for an answer, or until a message is due.
    Wait,
    /// Sending has ended.
    Over,
}

impl Pace {
    /// Takes the right to send a message while `waiting` others wait for their answers. After `Due` the caller sends it, and calls
    /// [`sent`](Self::sent).
    pub(super) fn next(&self, run: &Run, now: Instant, waiting: usize) -> Next {
        let intended = match self {
            Self::Closed(pipeline) if waiting >= *pipeline => return Next::Wait,
            Self::Closed(_) => now,
            Self::Open(open) => open.schedule.next(),
        };
        if run.plan.is_over(intended) {
            return Next::Over;
        }
        if intended > now {
            return if run.has_tickets() { Next::Wait } else { Next::Over };
        }
        if run.take_ticket(run.plan.is_measured(intended)) { Next::Due(intended) } else { Next::Over }
    }

    pub(super) fn sent(&mut self) {
        if let Self::Open(open) = self {
            open.schedule.advance();
        }
    }

    /// Ready if the next message may be due; otherwise registers the task.
    pub(super) fn poll_due(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Closed(_) => Poll::Pending,
            Self::Open(open) => open.alarm.poll_at(cx, open.schedule.next()),
        }
    }
}

/// Queues a message; ready with `false` when the send queue is full. The task is woken when there is room.
pub(super) fn queue(
    cx: &mut Context<'_>,
    sender: &mut Sender,
    message: Payload<'_>,
) -> Result<bool, WebSocketError> {
    // A pending `feed` has queued nothing.
    match pin!(sender.feed(message)).poll(cx) {
        Poll::Ready(queued) => queued.map(|()| true),
        Poll::Pending => Ok(false),
    }
}

/// Failures of a connection that opens others, without a success between them.
#[derive(Default)]
pub(super) struct Failures {
    since: Option<Instant>,
    count: u32,
}

impl Failures {
    /// How long a server may accept no connection: a restart takes less.
    const GIVE_UP_AFTER: Duration = Duration::from_secs(1);

    /// With a rate of one a second or less, a single failure says little.
    const COUNT_MIN: u32 = 3;

    /// Before the next attempt: a refused connection costs next to nothing, so that a closed loop would only count failures.
    const PAUSE: Duration = Duration::from_millis(10);

    pub(super) fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// Waits before the next attempt; returns whether to make none.
    pub(super) async fn failed(&mut self, now: Instant) -> bool {
        self.count = self.count.saturating_add(1);
        let since = *self.since.get_or_insert(now);
        if self.count >= Self::COUNT_MIN && now >= since + Self::GIVE_UP_AFTER {
            return true;
        }
        tokio::time::sleep(Self::PAUSE).await;
        false
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use wireloom::wireloom_ws::Role;
    use wireloom::wireloom_ws::handshake::Negotiated;
    use wireloom::{WebSocket, WebSocketConfig};

    use super::*;

    // A server that has had enough, and does not read what is on its way.
    #[tokio::test]
    async fn what_has_arrived_is_read_after_a_write_that_failed() {
        let (mut server, transport) = tokio::io::duplex(1 << 10);
        let (negotiated, config) = (Negotiated::default(), WebSocketConfig::default());
        let socket = WebSocket::from_transport(transport, Role::Client, negotiated, None, config, &[]);
        let (mut sender, mut receiver) = socket.split();
        server.write_all(b"\x81\x05hello\x88\x02\x03\xf0").await.expect("it has room");
        drop(server);
        let error = sender.send("late").await.expect_err("the transport has failed");
        let mut answers = Vec::new();
        let handle = |answer: &wireloom::Message<'_>| answers.push(answer.as_text().map(str::to_owned));
        let ended = read_rest(error, &sender, &mut receiver, handle).await;
        assert_eq!((ended, answers), (Ok(Ended::Closed), vec![Some("hello".to_owned())]));
        let (_server, transport) = tokio::io::duplex(1 << 10);
        let (negotiated, config) = (Negotiated::default(), WebSocketConfig::default());
        let socket = WebSocket::from_transport(transport, Role::Client, negotiated, None, config, &[]);
        let (sender, mut receiver) = socket.split();
        let ended = read_rest(WebSocketError::SlowPeer, &sender, &mut receiver, |_| {}).await;
        assert_eq!(ended, Err(WebSocketError::SlowPeer));
    }
}
