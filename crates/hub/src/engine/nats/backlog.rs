//! The messages of a subscription that have arrived and are not delivered yet.
//!
//! The client of NATS keeps 65,536 of them for each subscription, however long they are. Here they are bounded by their length: they are
//! taken from the client as they arrive, also while one is delivered, and those that do not fit are dropped.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use async_nats::Message;
use tokio::task::coop;
use tokio_stream::Stream;

/// The cost of messages that wait, beyond which others are dropped. Several of the longest that a server accepts by default.
const LEN_MAX: usize = 8 << 20;

/// The messages of a subscription that are not delivered yet.
pub(super) struct Backlog<S> {
    messages: S,
    waiting: VecDeque<Message>,
    /// The cost of those that wait. `len <= LEN_MAX`, unless one waits alone.
    len: usize,
    has_ended: bool,
    dropped: usize,
}

fn cost(message: &Message) -> usize {
    message.length + size_of::<Message>()
}

impl<S: Stream<Item = Message> + Unpin> Backlog<S> {
    pub(super) fn new(messages: S) -> Self {
        Self { messages, waiting: VecDeque::new(), len: 0, has_ended: false, dropped: 0 }
    }

    /// The next message; `None` when the subscription has ended.
    ///
    /// # Cancel safety
    /// No message is lost.
    pub(super) async fn next(&mut self) -> Option<Message> {
        poll_fn(|cx| {
            // The client's task runs between messages, too, or it could not take them from the connection.
            ready!(coop::poll_proceed(cx)).made_progress();
            self.fill(cx);
            let Some(message) = self.waiting.pop_front() else {
                return if self.has_ended { Poll::Ready(None) } else { Poll::Pending };
            };
            self.len -= cost(&message);
            if self.waiting.is_empty() {
                // A storm of messages leaves no memory behind.
                self.waiting = VecDeque::new();
            }
            Poll::Ready(Some(message))
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

    fn fill(&mut self, cx: &mut Context<'_>) {
        while !self.has_ended
            && let Poll::Ready(next) = Pin::new(&mut self.messages).poll_next(cx)
        {
            match next {
                None => self.has_ended = true,
                Some(message) if self.waiting.is_empty() || self.len + cost(&message) <= LEN_MAX => {
                    self.len += cost(&message);
                    self.waiting.push_back(message);
                }
                Some(_) => self.dropped += 1,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

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
        let (sender, receiver) = unbounded_channel();
        (Source(sender, Arc::default()), Backlog::new(UnboundedReceiverStream::new(receiver)))
    }

    #[tokio::test]
    async fn messages_that_wait_are_bounded_by_their_length() {
        let (source, mut backlog) = backlog();
        (0..100).for_each(|number| source.send(number, 1 << 20));
        let mut received = vec![backlog.next().await.unwrap().payload[0]];
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
        while let Some(message) = backlog.next().await {
            received.push(message.payload[0]);
        }
        // Of those that came later, one found the room of the first.
        assert_eq!(received, [0, 1, 2, 3, 4, 5, 6, 100]);
        assert_eq!(backlog.take_dropped(), 200 - received.len());
    }

    #[tokio::test]
    async fn many_short_messages_wait_and_a_long_one_alone() {
        let (source, mut backlog) = backlog();
        source.send(1, 2 * LEN_MAX);
        assert_eq!(backlog.next().await.unwrap().payload.len(), 2 * LEN_MAX);
        (0..10_000).for_each(|_| source.send(2, 100));
        for _ in 0..10_000 {
            assert_eq!(backlog.next().await.unwrap().payload.len(), 100);
        }
        assert_eq!((backlog.take_dropped(), backlog.len), (0, 0));
    }
}
