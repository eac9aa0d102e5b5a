//! A sink: sends messages that are not answered. A ping after them confirms that they have arrived; the latency is its
//! round-trip time.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::time::Sleep;
use wireloom::{Receiver, Sender, WebSocket, WebSocketError};

use super::connection::{Connection, Ended, Next, Pace, queue, read_rest};

/// The time between the answer to a ping and the next ping.
const PING_INTERVAL: Duration = Duration::from_millis(50);

/// The maximum number of messages that are queued before received messages are handled.
const BATCH: usize = 64;

pub(super) async fn run(connection: Connection, mut socket: WebSocket) {
    let (sender, receiver) = socket.halves();
    let pace = match connection.pace() {
        // As fast as the connection accepts them.
        Pace::Closed(_) => Pace::Closed(usize::MAX),
        open => open,
    };
    let now = Instant::now();
    let mut sink = Sink {
        connection,
        pace,
        number: 0,
        sent: Sent::default(),
        confirmed: Sent::default(),
        ping: None,
        pings: 0,
        next_ping: now,
        is_sending: true,
    };
    let mut ended = {
        let mut wake = pin!(tokio::time::sleep_until(now.into()));
        poll_fn(|cx| sink.poll(cx, sender, receiver, wake.as_mut())).await
    };
    if let Err(error) = ended {
        ended = read_rest(error, sender, receiver, |_| {}).await;
        sink.take_pong(Instant::now(), sender);
    }
    let lost = sink.sent.messages - sink.confirmed.messages;
    sink.connection.finish(ended, lost, sender, receiver, |_| {}).await;
}

/// The number of measured messages, and the length of their payload.
#[derive(Clone, Copy, Default)]
struct Sent {
    messages: u64,
    bytes: u64,
}

/// A ping that waits for its pong.
struct Ping {
    sent_at: Instant,
    /// The messages that were sent before it.
    sent: Sent,
    is_last: bool,
}

struct Sink {
    connection: Connection,
    pace: Pace,
    number: u64,
    sent: Sent,
    confirmed: Sent,
    ping: Option<Ping>,
    pings: u32,
    next_ping: Instant,
    is_sending: bool,
}

impl Sink {
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        sender: &mut Sender,
        receiver: &mut Receiver,
        mut wake: Pin<&mut Sleep>,
    ) -> Poll<Result<Ended, WebSocketError>> {
        loop {
            // A sink may answer.
            while let Poll::Ready(received) = pin!(receiver.recv()).poll(cx)? {
                if received.is_none() {
                    return Poll::Ready(Ok(Ended::Closed));
                }
            }
            let now = Instant::now();
            if self.take_pong(now, sender) {
                return Poll::Ready(Ok(Ended::Done));
            }
            let has_more = self.send_due(cx, now, sender)?;
            self.send_ping(cx, now, sender)?;
            if has_more {
                // Give the transport and other connections a turn.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if self.is_sending && self.pace.poll_due(cx).is_ready() {
                continue;
            }
            let timeout = self.connection.run.plan.timeout;
            let at = self.ping.as_ref().map_or(self.next_ping, |ping| ping.sent_at + timeout);
            if wake.deadline() != at.into() {
                wake.as_mut().reset(at.into());
            }
            if wake.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if self.ping.as_ref().is_some_and(|ping| ping.sent_at + timeout <= Instant::now()) {
                return Poll::Ready(Err(WebSocketError::SlowPeer));
            }
        }
    }

    /// Sends the messages that are due; returns whether more may be due.
    fn send_due(
        &mut self,
        cx: &mut Context<'_>,
        now: Instant,
        sender: &mut Sender,
    ) -> Result<bool, WebSocketError> {
        let run = self.connection.run.clone();
        let (mut payloads, mut recorder) = (run.work.payloads(), run.recorder());
        for _ in 0..BATCH {
            if !self.is_sending {
                return Ok(false);
            }
            let intended = match self.pace.next(&run, now, 0) {
                Next::Due(intended) => intended,
                Next::Wait => return Ok(false),
                Next::Over => {
                    self.is_sending = false;
                    // The last ping follows at once.
                    self.next_ping = now;
                    return Ok(false);
                }
            };
            let is_measured = run.plan.is_measured(intended);
            let message = payloads.message(self.number);
            let len = message.len();
            if !queue(cx, sender, message)? {
                run.return_ticket(is_measured);
                return Ok(false);
            }
            recorder.sent(now, now.saturating_duration_since(intended), len, is_measured);
            if is_measured {
                self.sent.messages += 1;
                self.sent.bytes += len as u64;
            }
            self.number += 1;
            self.pace.sent();
        }
        Ok(true)
    }

    fn send_ping(
        &mut self,
        cx: &mut Context<'_>,
        now: Instant,
        sender: &mut Sender,
    ) -> Result<(), WebSocketError> {
        if self.ping.is_some() || now < self.next_ping {
            return Ok(());
        }
        // It is queued by the first poll, behind the messages.
        if let Poll::Ready(sent) = pin!(sender.ping(b"")).poll(cx) {
            sent?;
        }
        self.pings += 1;
        self.ping = Some(Ping { sent_at: now, sent: self.sent, is_last: !self.is_sending });
        Ok(())
    }

    /// Handles pongs; returns whether the last ping has been answered.
    fn take_pong(&mut self, now: Instant, sender: &Sender) -> bool {
        let Some(ping) = self.ping.take_if(|_| sender.pings_answered() >= self.pings) else { return false };
        let run = &self.connection.run;
        let mut recorder = run.recorder();
        let (messages, bytes) =
            (ping.sent.messages - self.confirmed.messages, ping.sent.bytes - self.confirmed.bytes);
        if messages > 0 {
            recorder.received(now, messages, bytes, true);
        }
        recorder.latency_of(now - ping.sent_at, run.plan.is_measured(ping.sent_at));
        self.confirmed = ping.sent;
        self.next_ping = if self.is_sending { now + PING_INTERVAL } else { now };
        ping.is_last
    }
}
