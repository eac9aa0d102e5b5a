//! The messages of a subscription that have arrived and are not delivered yet.
//!
//! The client of NATS keeps 65,536 of them for each subscription, however long they are. Here they are bounded by their length: they are
//! taken from the client as they arrive, also while one is delivered, and those that do not fit are dropped.
//!
//! ```text
//! for each channel:  one message | up to LEN_MAX
//! for all of them:   '- up to 2 * TOTAL_MAX - TOTAL_MAX -'   a few channels that use all of it leave the others one message each
//! ```

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use async_nats::Message;
use tokio::task::coop;
use tokio_stream::Stream;

/// The cost of messages that wait, beyond which others are dropped. Several of the longest that a server accepts by default.
const LEN_MAX: usize = 8 << 20;

/// The cost of the messages of all channels, beyond which a channel has one at most.
const TOTAL_MAX: usize = 64 << 20;

/// The messages in all backlogs of a node.
#[derive(Debug, Default)]
pub(super) struct Total {
    /// `len <= 2 * TOTAL_MAX`.
    len: AtomicUsize,
    dropped: AtomicU64,
}

impl Total {
    /// The number of messages that were dropped so far.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Adds the cost of a message, the first of its channel or a further one, if there is room for it.
    fn add(&self, cost: usize, is_first: bool) -> bool {
        let max = if is_first { 2 * TOTAL_MAX } else { TOTAL_MAX };
        let added = |len: usize| len.checked_add(cost).filter(|sum| *sum <= max);
        self.len.fetch_update(Ordering::Relaxed, Ordering::Relaxed, added).is_ok()
    }

    fn remove(&self, cost: usize) {
        self.len.fetch_sub(cost, Ordering::Relaxed);
    }
}

/// There was no room for messages: see [`Backlog::take_dropped`].
#[derive(Debug)]
pub(super) struct Dropped;

/// The messages of a subscription that are not delivered yet.
pub(super) struct Backlog<S> {
    messages: S,
    waiting: VecDeque<Message>,
    /// The cost of those that wait. `len <= LEN_MAX`, unless one waits alone.
    len: usize,
    has_ended: bool,
    dropped: usize,
    total: Arc<Total>,
}

impl<S> Drop for Backlog<S> {
    fn drop(&mut self) {
        self.total.remove(self.len);
    }
}

fn cost(message: &Message) -> usize {
    message.length + size_of::<Message>()
}

impl<S: Stream<Item = Message> + Unpin> Backlog<S> {
    pub(super) fn new(messages: S, total: Arc<Total>) -> Self {
        Self { messages, waiting: VecDeque::new(), len: 0, has_ended: false, dropped: 0, total }
    }

    /// The next message, or `Dropped` if none waits and some were dropped; `None` when the subscription has ended.
    ///
    /// # Cancel safety
    /// No message is lost.
    pub(super) async fn next(&mut self) -> Option<Result<Message, Dropped>> {
        poll_fn(|cx| {
            // The client's task runs between messages, too, or it could not take them from the connection.
            ready!(coop::poll_proceed(cx)).made_progress();
            self.fill(cx);
            let Some(message) = self.waiting.pop_front() else {
                if self.dropped > 0 {
                    return Poll::Ready(Some(Err(Dropped)));
                }
                return if self.has_ended { Poll::Ready(None) } else { Poll::Pending };
            };
            self.len -= cost(&message);
            self.total.remove(cost(&message));
            if self.waiting.is_empty() {
                // A storm of messages leaves no memory behind.
                self.waiting = VecDeque::new();
            }
            Poll::Ready(Some(Ok(message)))
        })
        .await
    }

    /// Takes what arrives until `handling` is done, which is polled first: a flood does not take its turns.
    pub(super) async fn during<T>(&mut self, handling: impl Future<Output = T>) -> T {
        let mut handling = pin!(handling);
        poll_fn(|cx| {
            let handled = handling.as_mut().poll(cx);
            if handled.is_pending() {
                self.fill(cx);
            }
            handled
        })
        .await
    }

    /// The number of messages that were dropped since the last call.
    pub(super) fn take_dropped(&mut self) -> usize {
        std::mem::take(&mut self.dropped)
    }

    /// Whether a message may wait. Its cost is added to the total then.
    fn has_room(&self, cost: usize) -> bool {
        let is_first = self.waiting.is_empty();
        (is_first || self.len + cost <= LEN_MAX) && self.total.add(cost, is_first)
    }

    fn fill(&mut self, cx: &mut Context<'_>) {
        while !self.has_ended
            && let Poll::Ready(next) = Pin::new(&mut self.messages).poll_next(cx)
        {
            match next {
                None => self.has_ended = true,
                Some(message) if self.has_room(cost(&message)) => {
                    self.len += cost(&message);
                    self.waiting.push_back(message);
                }
                Some(_) => {
                    self.dropped += 1;
                    self.total.dropped.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
    use tokio_stream::wrappers::UnboundedReceiverStream;

    use super::*;

    /// A payload that counts what is held of all.
    struct Payload(Vec<u8>, Arc<AtomicUsize>);

    impl AsRef<[u8]> for Payload {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    impl Drop for Payload {
        fn drop(&mut self) {
            self.1.fetch_sub(self.0.len(), Ordering::Relaxed);
        }
    }

    struct Source(UnboundedSender<Message>, Arc<AtomicUsize>);

    impl Source {
        fn send(&self, number: u8, len: usize) {
            self.1.fetch_add(len, Ordering::Relaxed);
            let payload = Bytes::from_owner(Payload(vec![number; len], self.1.clone()));
            let (reply, headers, status, description) = Default::default();
            let message =
                Message { subject: "a".into(), reply, payload, headers, status, description, length: len };
            self.0.send(message).unwrap();
        }

        fn held(&self) -> usize {
            self.1.load(Ordering::Relaxed)
        }
    }

    fn backlog() -> (Source, Backlog<UnboundedReceiverStream<Message>>) {
        one_of(&Arc::default())
    }

    fn one_of(total: &Arc<Total>) -> (Source, Backlog<UnboundedReceiverStream<Message>>) {
        let (sender, receiver) = unbounded_channel();
        let backlog = Backlog::new(UnboundedReceiverStream::new(receiver), total.clone());
        (Source(sender, Arc::default()), backlog)
    }

    #[tokio::test]
    async fn the_messages_of_all_channels_are_bounded() {
        const MIB: usize = 1 << 20;
        let total = Arc::<Total>::default();
        let mut channels: Vec<_> = (0..100).map(|_| one_of(&total)).collect();
        // More channels than the total has room for receive more than each may have.
        let mut first = Vec::new();
        for (source, backlog) in &mut channels {
            (0..10).for_each(|number| source.send(number, MIB));
            backlog.during(tokio::task::yield_now()).await;
            first.push(backlog.waiting.front().map(|message| message.payload[0]));
        }
        let held = |channels: &[(Source, _)]| channels.iter().map(|(source, _)| source.held()).sum::<usize>();
        assert!((TOTAL_MAX..=2 * TOTAL_MAX).contains(&held(&channels)), "{}", held(&channels));
        // Those that came late have one message each, until there is no room at all.
        let has_one = channels.iter().filter(|(source, _)| source.held() == MIB).count();
        assert!(has_one >= TOTAL_MAX / MIB - 8, "{has_one}");
        assert!(first[..has_one].iter().all(|number| *number == Some(0)));
        let (_, late) = channels.last_mut().unwrap();
        // The drop is reported though no message follows.
        assert!(matches!(late.next().await, Some(Err(Dropped))));
        assert_eq!(late.take_dropped(), 10);
        assert_eq!(total.dropped() as usize, 1_000 - held(&channels) / MIB);
        // Channels that are no longer followed make room.
        channels.truncate(1);
        assert_eq!(total.len.load(Ordering::Relaxed), channels[0].1.len);
        let (source, mut backlog) = one_of(&total);
        source.send(1, MIB);
        assert_eq!(next(&mut backlog).await.payload.len(), MIB);
    }

    async fn next(backlog: &mut Backlog<UnboundedReceiverStream<Message>>) -> Message {
        backlog.next().await.unwrap().unwrap()
    }

    #[tokio::test]
    async fn messages_that_wait_are_bounded_by_their_length() {
        let (source, mut backlog) = backlog();
        (0..100).for_each(|number| source.send(number, 1 << 20));
        let mut received = vec![next(&mut backlog).await.payload[0]];
        assert!(source.held() <= LEN_MAX, "{}", source.held());
        // While one is delivered, too.
        backlog
            .during(async {
                for number in 100..200 {
                    source.send(number, 1 << 20);
                    tokio::task::yield_now().await;
                }
            })
            .await;
        assert!(source.held() <= LEN_MAX, "{}", source.held());
        drop(source);
        while let Some(Ok(message)) = backlog.next().await {
            received.push(message.payload[0]);
        }
        // Of those that came later, one found the room of the first.
        assert_eq!(received, [0, 1, 2, 3, 4, 5, 6, 100]);
        assert_eq!(backlog.take_dropped(), 200 - received.len());
        assert!(backlog.next().await.is_none());
    }

    #[tokio::test]
    async fn many_short_messages_wait_and_a_long_one_alone() {
        let (source, mut backlog) = backlog();
        source.send(1, 2 * LEN_MAX);
        assert_eq!(next(&mut backlog).await.payload.len(), 2 * LEN_MAX);
        (0..10_000).for_each(|_| source.send(2, 100));
        for _ in 0..10_000 {
            assert_eq!(next(&mut backlog).await.payload.len(), 100);
        }
        assert_eq!((backlog.take_dropped(), backlog.len), (0, 0));
    }
}
