//! A room: publishers send, and every subscriber receives each message. A message contains the number of its publisher,
//! its own number and its scheduled time, from which latency and lost, repeated and reordered messages are computed.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::time::timeout;
use wireloom::{CloseCode, Message, WebSocket, WebSocketError};

use super::super::link::Link;
use super::super::recorder::Recorder;
use super::super::run::Run;
use super::super::work::Work;
use super::connection::{Connection, Ended, Next, queue};

/// Bits of a message's number within its publisher.
const NUMBER_BITS: u32 = 40;

/// The publisher number of messages that test whether all subscribers have joined.
const PROBE: u64 = u64::MAX >> NUMBER_BITS;

/// The maximum number of missing messages that are remembered for each publisher and subscriber. Older ones count as
/// lost.
const MISSING_MAX: usize = 10_000;

/// The interval at which a subscriber checks whether it has received everything.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Sends a message until each subscriber has received it: a server may complete the handshake before it has joined the room.
///
/// # Errors
/// A connection ended, or a subscriber has received nothing in time.
pub(in crate::cmd::load) async fn wait_until_joined<'a>(
    work: &Work,
    has_tokens: bool,
    time_max: Duration,
    links: impl Iterator<Item = &'a mut Link>,
) -> Result<(), WebSocketError> {
    const INTERVAL: Duration = Duration::from_millis(100);
    let deadline = Instant::now() + time_max;
    let mut sockets = links.filter_map(|link| match link {
        Link::WebSocket(socket) => Some(socket),
        _ => None,
    });
    let Some(publisher) = sockets.next() else { return Ok(()) };
    for subscriber in sockets.skip(work.publishers - 1) {
        while !receives_probe(work, has_tokens, subscriber, INTERVAL).await? {
            if Instant::now() >= deadline {
                let text = "a subscriber does not receive what a publisher sends: is this the URL of a room?";
                return Err(io::Error::new(io::ErrorKind::TimedOut, text).into());
            }
            // The room may send messages back to their publisher. Read them, so that they do not fill its buffers.
            while let Ok(received) = timeout(Duration::ZERO, publisher.recv()).await {
                if received?.is_none() {
                    return Err(closed(publisher, has_tokens).await);
                }
            }
            let queued = {
                let mut payloads = work.payloads();
                let (sender, _) = publisher.halves();
                sender.try_send(payloads.message_with(PROBE << NUMBER_BITS, 0))
            };
            let is_queued = match queued {
                Err(WebSocketError::Closed) => return Err(closed(publisher, has_tokens).await),
                queued => queued?,
            };
            // If it is not queued, the server does not read; the next iteration tries again.
            if is_queued {
                // It is flushed by the next iteration too.
                timeout(INTERVAL, publisher.flush()).await.unwrap_or(Ok(()))?;
            }
        }
    }
    Ok(())
}

/// Whether a message of [`PROBE`] arrives within this time.
async fn receives_probe(
    work: &Work,
    has_tokens: bool,
    subscriber: &mut WebSocket,
    time_max: Duration,
) -> Result<bool, WebSocketError> {
    let receive = async {
        loop {
            let Some(message) = subscriber.recv().await? else { return Ok(false) };
            let numbers = work.payloads().numbers(&message);
            if numbers.is_some_and(|(number, _)| number >> NUMBER_BITS == PROBE) {
                return Ok::<_, WebSocketError>(true);
            }
        }
    };
    match timeout(time_max, receive).await {
        Ok(Ok(false)) => Err(closed(subscriber, has_tokens).await),
        Ok(received) => received,
        Err(_) => Ok(false),
    }
}

/// The error of a connection that the server has closed before the load began.
async fn closed(socket: &mut WebSocket, has_tokens: bool) -> WebSocketError {
    // The closing handshake may still be in progress.
    let ended = async { while let Ok(Some(_)) = socket.recv().await {} };
    let _ = timeout(LOOK_INTERVAL, ended).await;
    let Some(end) = socket.end() else { return WebSocketError::Closed };
    let hint = match (end.code() == CloseCode::POLICY_VIOLATION, has_tokens) {
        (true, false) => "; may everyone join and publish? --tokens FILE gives each connection a token",
        (true, true) => "; may the users of --tokens join and publish?",
        (false, _) => "",
    };
    let text = format!("the server closed a connection with {} {}{hint}", end.code().value(), end.reason());
    io::Error::new(io::ErrorKind::PermissionDenied, text).into()
}

pub(super) async fn publish(connection: Connection, mut socket: WebSocket) {
    let run = connection.run.clone();
    let (sender, receiver) = socket.halves();
    let mut pace = connection.pace();
    let own = (connection.index as u64) << NUMBER_BITS;
    let published = &run.room.published[connection.index];
    let ended: Result<Ended, WebSocketError> = poll_fn(|cx| {
        loop {
            // A server may send messages back to their publisher.
            while let Poll::Ready(received) = pin!(receiver.recv()).poll(cx)? {
                if received.is_none() {
                    return Poll::Ready(Ok(Ended::Closed));
                }
            }
            let now = Instant::now();
            let (mut payloads, mut recorder) = (run.work.payloads(), run.recorder());
            loop {
                let intended = match pace.next(&run, now, 0) {
                    Next::Due(intended) => intended,
                    Next::Wait => break,
                    Next::Over => return Poll::Ready(Ok(Ended::Done)),
                };
                let is_measured = run.plan.is_measured(intended);
                let number = published.load(Ordering::Relaxed);
                let message = payloads.message_with(own | number, run.plan.nanos(intended));
                let len = message.len();
                if !queue(cx, sender, message)? {
                    run.return_ticket(is_measured);
                    return Poll::Pending;
                }
                recorder.sent(now, now.saturating_duration_since(intended), len, is_measured);
                published.store(number + 1, Ordering::Relaxed);
                pace.sent();
            }
            drop((payloads, recorder));
            if pace.poll_due(cx).is_pending() {
                return Poll::Pending;
            }
        }
    })
    .await;
    run.room.publishing.fetch_sub(1, Ordering::Relaxed);
    if let Ok(Ended::Done) = ended {
        // Keep this connection in the room while others are still receiving.
        let receive_rest = async {
            let receiving = || run.recorder().connections - run.room.finished.load(Ordering::Relaxed);
            while receiving() > run.work.publishers {
                let _ = timeout(LOOK_INTERVAL, receiver.recv()).await;
            }
        };
        let _ = timeout(run.plan.timeout, receive_rest).await;
    }
    connection.finish(ended, 0, sender, receiver, |_| {}).await;
}

pub(super) async fn subscribe(connection: Connection, mut socket: WebSocket) {
    let run = connection.run.clone();
    let (sender, receiver) = socket.halves();
    let mut order: Vec<Order> = run.room.published.iter().map(|_| Order::default()).collect();
    let mut look = tokio::time::interval(LOOK_INTERVAL);
    let mut last_received = Instant::now();
    let ended: Result<Ended, WebSocketError> = poll_fn(|cx| {
        loop {
            let mut recorder = None;
            while let Poll::Ready(received) = pin!(receiver.recv()).poll(cx)? {
                let Some(message) = received else { return Poll::Ready(Ok(Ended::Closed)) };
                let recorder = recorder.get_or_insert_with(|| {
                    last_received = Instant::now();
                    run.recorder()
                });
                receive(&run, recorder, &mut order, last_received, &message);
            }
            drop(recorder);
            if look.poll_tick(cx).is_pending() {
                return Poll::Pending;
            }
            let is_published = run.room.publishing.load(Ordering::Relaxed) == 0;
            if is_published && (last_received.elapsed() >= run.plan.timeout || missing(&run, &order) == 0) {
                return Poll::Ready(Ok(Ended::Done));
            }
        }
    })
    .await;
    let lost = missing(&run, &order);
    if let Ok(Ended::Done) = ended {
        run.room.finished.fetch_add(1, Ordering::Relaxed);
        run.recorder().error(
            |errors| &mut errors.lost,
            lost,
            || "a message did not arrive at a subscriber".to_owned(),
        );
    }
    connection.finish(ended, lost, sender, receiver, |_| {}).await;
}

fn receive(run: &Run, recorder: &mut Recorder, order: &mut [Order], now: Instant, message: &Message<'_>) {
    let numbers = run.work.payloads().numbers(message);
    let found =
        numbers.map(|(number, nanos)| (number >> NUMBER_BITS, number & ((1 << NUMBER_BITS) - 1), nanos));
    let Some((publisher, number, nanos)) = found else {
        return recorder.error(
            |errors| &mut errors.wrong,
            1,
            || "a subscriber received what no publisher has sent".to_owned(),
        );
    };
    if publisher == PROBE {
        return;
    }
    let is_published = |published: &AtomicU64| number < published.load(Ordering::Relaxed);
    let order = order
        .get_mut(publisher as usize)
        .filter(|_| run.room.published.get(publisher as usize).is_some_and(is_published));
    let Some(order) = order else {
        return recorder.error(
            |errors| &mut errors.wrong,
            1,
            || "a subscriber received what no publisher has sent".to_owned(),
        );
    };
    let arrived = order.arrived(number);
    if arrived == Arrived::Again {
        return recorder.error(
            |errors| &mut errors.unexpected,
            1,
            || "a message arrived twice at a subscriber".to_owned(),
        );
    }
    if arrived == Arrived::Late {
        recorder.error(
            |errors| &mut errors.reordered,
            1,
            || "a message arrived after a later one of its publisher".to_owned(),
        );
    }
    let intended = run.plan.instant(nanos);
    let latency = now.saturating_duration_since(intended);
    recorder.answered(now, latency, message.as_bytes().len(), run.plan.is_measured(intended));
}

/// Messages that were published and have not arrived.
fn missing(run: &Run, order: &[Order]) -> u64 {
    let published = run.room.published.iter().map(|published| published.load(Ordering::Relaxed));
    published.zip(order).map(|(published, order)| published.saturating_sub(order.received)).sum()
}

/// Which messages of one publisher a subscriber has received.
#[derive(Default)]
struct Order {
    received: u64,
    /// One more than the highest number that has arrived.
    next: u64,
    /// Lower numbers that have not arrived.
    missing: BTreeSet<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrived {
    InOrder,
    /// It arrived after a later one.
    Late,
    Again,
}

impl Order {
    fn arrived(&mut self, number: u64) -> Arrived {
        if number >= self.next {
            let first_missing = self.next.max(number.saturating_sub(MISSING_MAX as u64));
            self.missing.extend(first_missing..number);
            while self.missing.len() > MISSING_MAX {
                self.missing.pop_first();
            }
            self.next = number + 1;
        } else if !self.missing.remove(&number) {
            return Arrived::Again;
        }
        self.received += 1;
        if number + 1 == self.next { Arrived::InOrder } else { Arrived::Late }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_the_order() {
        let mut order = Order::default();
        let arrived: Vec<Arrived> = [0, 1, 4, 2, 2, 4, 5, 3, 0].map(|number| order.arrived(number)).into();
        use Arrived::{Again, InOrder, Late};
        assert_eq!(arrived, [InOrder, InOrder, InOrder, Late, Again, Again, InOrder, Late, Again]);
        assert_eq!((order.received, order.missing.len()), (6, 0));
    }

    #[test]
    fn gaps_do_not_grow_without_bound() {
        let mut order = Order::default();
        order.arrived(u64::MAX >> 24);
        assert_eq!(order.missing.len(), MISSING_MAX);
    }
}
