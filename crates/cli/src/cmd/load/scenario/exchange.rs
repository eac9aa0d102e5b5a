//! Messages that wait for answers: the loop that `echo` and `replay` share.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::MutexGuard;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::time::Sleep;
use wireloom::{Message, Receiver, Sender, WebSocket, WebSocketError};

use super::super::payload::Payloads;
use super::super::recorder::Recorder;
use super::connection::{Connection, Ended, read_rest};

/// The maximum number of messages that are handled before the clock is read again.
pub(super) const BATCH: usize = 64;

/// The messages of one connection, and the check of their answers.
pub(super) trait Exchange {
    /// Sends the messages that are due, up to the room of the send queue. Wakes the task if more is due.
    ///
    /// # Errors
    /// The connection failed.
    fn send_due(&mut self, cx: &mut Context<'_>, sender: &mut Sender) -> Result<(), WebSocketError>;

    /// Ready if the next message may be due; otherwise registers the task.
    fn poll_due(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// Handles a message of the server.
    fn handle(&mut self, arrival: &mut Arrival<'_>, message: &Message<'_>);

    /// Gives up messages that have waited for too long.
    ///
    /// # Errors
    /// [`WebSocketError::SlowPeer`]: the server does not read.
    fn expire(&mut self, now: Instant) -> Result<(), WebSocketError>;

    /// When to call [`expire`](Self::expire) next, and check for the end of the run.
    fn next_wake(&self, now: Instant) -> Instant;

    /// Whether more will be sent.
    fn is_sending(&self) -> bool;

    /// Messages that wait for their answers.
    fn pending(&self) -> usize;
}

/// Messages that arrived with one read share the locks and the time.
pub(super) struct Arrival<'a> {
    pub(super) payloads: MutexGuard<'a, Payloads>,
    pub(super) recorder: MutexGuard<'a, Recorder>,
    pub(super) now: Instant,
}

impl<'a> Arrival<'a> {
    fn new(connection: &'a Connection) -> Self {
        let run = &connection.run;
        Self { payloads: run.work.payloads(), recorder: run.recorder(), now: Instant::now() }
    }
}

/// Runs until everything was sent and answered, or the connection has ended.
pub(super) async fn run(connection: Connection, mut exchange: impl Exchange, mut socket: WebSocket) {
    let (sender, receiver) = socket.halves();
    let mut ended = {
        let mut wake = pin!(tokio::time::sleep_until(exchange.next_wake(Instant::now()).into()));
        poll_fn(|cx| poll(&connection, &mut exchange, cx, sender, receiver, wake.as_mut())).await
    };
    if let Err(error) = ended {
        let handle = |answer: &Message<'_>| exchange.handle(&mut Arrival::new(&connection), answer);
        ended = read_rest(error, sender, receiver, handle).await;
    }
    let lost = exchange.pending() as u64;
    // Repeated answers may arrive before the server's Close frame.
    let handle = |answer: &Message<'_>| exchange.handle(&mut Arrival::new(&connection), answer);
    connection.finish(ended, lost, sender, receiver, handle).await;
}

fn poll(
    connection: &Connection,
    exchange: &mut impl Exchange,
    cx: &mut Context<'_>,
    sender: &mut Sender,
    receiver: &mut Receiver,
    mut wake: Pin<&mut Sleep>,
) -> Poll<Result<Ended, WebSocketError>> {
    loop {
        // Read all answers that have arrived before messages count as lost.
        let now = Instant::now();
        let has_more = match poll_answers(connection, exchange, cx, receiver)? {
            Poll::Ready(Answers::More) => true,
            Poll::Ready(Answers::End) => return Poll::Ready(Ok(Ended::Closed)),
            Poll::Pending => false,
        };
        exchange.send_due(cx, sender)?;
        if !exchange.is_sending() && exchange.pending() == 0 {
            return Poll::Ready(Ok(Ended::Done));
        }
        if has_more || (exchange.is_sending() && exchange.poll_due(cx).is_ready()) {
            continue;
        }
        let next = exchange.next_wake(now).into();
        if next < wake.deadline() {
            wake.as_mut().reset(next);
        }
        if wake.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        exchange.expire(now)?;
        wake.as_mut().reset(exchange.next_wake(now).into());
    }
}

/// The state after a batch of messages.
enum Answers {
    More,
    /// The server has closed the connection.
    End,
}

/// Handles the messages that have arrived, at most a batch.
fn poll_answers(
    connection: &Connection,
    exchange: &mut impl Exchange,
    cx: &mut Context<'_>,
    receiver: &mut Receiver,
) -> Result<Poll<Answers>, WebSocketError> {
    let mut arrival = None;
    for _ in 0..BATCH {
        match pin!(receiver.recv()).poll(cx)? {
            Poll::Ready(Some(message)) => {
                let arrival = arrival.get_or_insert_with(|| Arrival::new(connection));
                exchange.handle(arrival, &message);
            }
            Poll::Ready(None) => return Ok(Poll::Ready(Answers::End)),
            Poll::Pending => return Ok(Poll::Pending),
        }
    }
    Ok(Poll::Ready(Answers::More))
}
