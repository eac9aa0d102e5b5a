//! The channel between a connection, which reads an HTTP/1.1 body, and the application. Nothing is read before the
//! application requests it, so a slow application slows its peer down.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};

use crate::error::HttpError;
use crate::guard::{Deferred, Guardable, Guarded, WakerSlot};
use crate::headers::Headers;
use crate::memory::{Account, Category, Evict, Reservation};

type Shared = Guarded<Channel>;

struct Channel {
    content: BytesMut,
    /// The memory of the content, or of the chunk that was read last: the application has that, in general, until it reads the next one.
    memory: Reservation,
    end: Option<Result<(), HttpError>>,
    trailers: Option<Headers>,
    demand: Option<Demand>,
    receiver: WakerSlot,
    sender: WakerSlot,
    deferred: Deferred,
}

/// The demand of the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Demand {
    Content,
    /// The receiver was dropped, or its content was.
    Closed,
}

/// The application's half of the channel.
pub(crate) struct BodyReceiver(Arc<Shared>);

/// The connection's half of the channel. Dropping it before [`finish`](Self::finish) fails the body.
pub(super) struct BodySender(Arc<Shared>);

pub(super) fn body_channel() -> (BodySender, BodyReceiver) {
    let channel = Arc::new(Guarded::new(Channel {
        content: BytesMut::new(),
        memory: Account::default().reservation(Category::Body),
        end: None,
        trailers: None,
        demand: None,
        receiver: WakerSlot::default(),
        sender: WakerSlot::default(),
        deferred: Deferred::default(),
    }));
    (BodySender(channel.clone()), BodyReceiver(channel))
}

impl Guardable for Channel {
    fn deferred(&mut self) -> &mut Deferred {
        &mut self.deferred
    }
}

impl Channel {
    /// The first end counts.
    fn end(&mut self, end: Result<(), HttpError>, trailers: Option<Headers>) {
        if self.end.is_none() {
            self.end = Some(end);
            self.trailers = trailers;
        }
        self.deferred.wake(&mut self.receiver);
    }

    /// No more content is taken. What has not been read is dropped: then the body is incomplete, also when its end has arrived.
    fn discard(&mut self, error: HttpError) {
        if !std::mem::take(&mut self.content).is_empty() {
            self.end = None;
            self.memory.set(0);
        }
        self.demand = Some(Demand::Closed);
        self.deferred.wake(&mut self.sender);
        self.end(Err(error), None);
    }

    /// Reserves memory for the content, or ends the body.
    fn reserve(&mut self) {
        if self.memory.try_set(self.content.capacity()).is_err() {
            self.discard(HttpError::Overloaded);
        }
    }
}

/// A request whose body is collected ends with [`HttpError::Overloaded`], which is answered with 503.
impl Evict for Shared {
    fn evict(&self) -> bool {
        self.lock().discard(HttpError::Overloaded);
        true
    }
}

impl BodyReceiver {
    pub(crate) fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, HttpError>>> {
        let mut channel = self.0.lock();
        if !channel.content.is_empty() {
            return Poll::Ready(Some(Ok(std::mem::take(&mut channel.content).freeze())));
        }
        channel.memory.set(0);
        match &channel.end {
            Some(Ok(())) => return Poll::Ready(None),
            Some(Err(error)) => return Poll::Ready(Some(Err(error.clone()))),
            None => {}
        }
        let Channel { demand, receiver, sender, deferred, .. } = &mut *channel;
        demand.get_or_insert(Demand::Content);
        deferred.register(receiver, cx);
        deferred.wake(sender);
        Poll::Pending
    }

    /// The chunk that was read last is not held any more. Returns whether the connection reads more of the body.
    pub(crate) fn release_chunk(&self) -> bool {
        let mut channel = self.0.lock();
        if channel.content.is_empty() {
            channel.memory.set(0);
        }
        channel.end.is_none()
    }

    /// Counts the content among the memory of its connection. The body is ended when the server has to free memory.
    pub(crate) fn count_in(&self, account: &Account) {
        let weak = Arc::downgrade(&self.0);
        account.on_evict(weak);
        let mut channel = self.0.lock();
        channel.memory = account.reservation(Category::Body);
        channel.reserve();
    }

    pub(crate) fn trailers(&mut self) -> Option<Headers> {
        self.0.lock().trailers.take()
    }
}

impl Drop for BodyReceiver {
    fn drop(&mut self) {
        let mut channel = self.0.lock();
        channel.discard(HttpError::Closed);
        channel.memory.set(0);
    }
}

impl BodySender {
    /// Ready when the receiver requests content or was dropped.
    pub(super) fn poll_demand(&self, cx: &mut Context<'_>) -> Poll<Demand> {
        let mut channel = self.0.lock();
        let Channel { demand, sender, deferred, .. } = &mut *channel;
        match *demand {
            Some(demand) => Poll::Ready(demand),
            None => {
                deferred.register(sender, cx);
                Poll::Pending
            }
        }
    }

    /// Whether the receiver was dropped.
    pub(super) fn is_closed(&self) -> bool {
        self.0.lock().demand == Some(Demand::Closed)
    }

    /// Hands over content.
    pub(super) fn put(&self, content: BytesMut) {
        let mut channel = self.0.lock();
        if content.is_empty() || channel.demand == Some(Demand::Closed) {
            return;
        }
        channel.content.unsplit(content);
        channel.demand = None;
        channel.reserve();
        let Channel { receiver, deferred, .. } = &mut *channel;
        deferred.wake(receiver);
    }

    /// Ends the body.
    pub(super) fn finish(&self, trailers: Headers) {
        self.0.lock().end(Ok(()), Some(trailers).filter(|trailers| !trailers.is_empty()));
    }

    /// Ends the body with an error.
    pub(super) fn fail(&self, error: HttpError) {
        self.0.lock().end(Err(error), None);
    }
}

impl Drop for BodySender {
    fn drop(&mut self) {
        self.fail(HttpError::ConnectionLost);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;

    use super::*;
    use crate::memory::Memory;
    use crate::sync::Model;

    fn context() -> Context<'static> {
        Context::from_waker(std::task::Waker::noop())
    }

    /// Reads to the end, as the application does: the content, and the error if it ends with one.
    fn read_all(receiver: &mut BodyReceiver) -> (Vec<u8>, Option<HttpError>) {
        let mut content = Vec::new();
        loop {
            match receiver.poll_chunk(&mut context()) {
                Poll::Ready(Some(Ok(chunk))) => content.extend_from_slice(&chunk),
                Poll::Ready(Some(Err(error))) => return (content, Some(error)),
                Poll::Ready(None) => return (content, None),
                Poll::Pending => panic!("the body has ended"),
            }
        }
    }

    fn trailers() -> Headers {
        let mut trailers = Headers::new();
        trailers.push("checksum", b"1").unwrap();
        trailers
    }

    // The end may have arrived before its content is dropped.
    #[test]
    fn a_body_that_loses_content_to_an_eviction_is_incomplete() {
        let (sender, mut receiver) = body_channel();
        assert!(receiver.poll_chunk(&mut context()).is_pending());
        sender.put("the last chunk".into());
        sender.finish(trailers());
        receiver.0.evict();
        assert_eq!(read_all(&mut receiver), (Vec::new(), Some(HttpError::Overloaded)));
        assert!(receiver.trailers().is_none());
        // Nothing is lost.
        let (sender, mut receiver) = body_channel();
        sender.put("all".into());
        sender.finish(trailers());
        assert!(
            matches!(receiver.poll_chunk(&mut context()), Poll::Ready(Some(Ok(chunk))) if chunk == "all")
        );
        receiver.0.evict();
        assert_eq!(read_all(&mut receiver), (Vec::new(), None));
        assert!(receiver.trailers().is_some());
        // The end arrives after the eviction, and so does content.
        let (sender, mut receiver) = body_channel();
        receiver.0.evict();
        assert_eq!(sender.poll_demand(&mut context()), Poll::Ready(Demand::Closed));
        sender.put("more".into());
        sender.finish(trailers());
        assert_eq!(read_all(&mut receiver), (Vec::new(), Some(HttpError::Overloaded)));
        assert!(receiver.trailers().is_none());
    }

    // A handler may be slow, and it may not read at all: content arrives with the head.
    #[test]
    fn content_is_counted_until_the_next_chunk_is_requested() {
        const LEN: usize = 10_000;
        let memory = Memory::new(1 << 20);
        let (account, counted) = (memory.account(), || memory.stats().bodies);
        let (sender, mut receiver) = body_channel();
        sender.put(BytesMut::zeroed(LEN));
        receiver.count_in(&account);
        for is_copied in [true, false] {
            assert!(counted() >= LEN, "{}", counted());
            let chunk = receiver.poll_chunk(&mut context());
            assert!(matches!(chunk, Poll::Ready(Some(Ok(chunk))) if chunk.len() == LEN));
            assert!(counted() >= LEN, "the application has it");
            if is_copied {
                assert!(receiver.release_chunk());
                assert_eq!(counted(), 0);
            }
            assert!(receiver.poll_chunk(&mut context()).is_pending());
            assert_eq!(counted(), 0);
            sender.put(BytesMut::zeroed(LEN));
            assert!(receiver.release_chunk());
        }
        drop(receiver);
        assert_eq!(counted(), 0);
        // There is no memory for it.
        let mut held = account.reservation(Category::Body);
        held.set(1 << 20);
        for is_early in [true, false] {
            let (sender, mut receiver) = body_channel();
            if is_early {
                sender.put(BytesMut::zeroed(LEN));
                receiver.count_in(&account);
            } else {
                receiver.count_in(&account);
                assert!(receiver.poll_chunk(&mut context()).is_pending());
                sender.put(BytesMut::zeroed(LEN));
            }
            assert!(sender.is_closed() && !receiver.release_chunk());
            assert_eq!(read_all(&mut receiver), (Vec::new(), Some(HttpError::Overloaded)));
        }
    }

    /// The waker of a task that owns a half of the body. Waking or dropping it drops the half.
    struct Task<T>(std::sync::Mutex<Option<T>>);

    impl<T: Send + 'static> Task<T> {
        fn waker(owned: T) -> std::task::Waker {
            Arc::new(Self(std::sync::Mutex::new(Some(owned)))).into()
        }
    }

    impl<T: Send + 'static> std::task::Wake for Task<T> {
        fn wake(self: Arc<Self>) {
            let owned = self.0.lock().unwrap().take();
            drop(owned);
        }
    }

    #[test]
    fn a_task_whose_waker_is_replaced_may_own_the_other_half() {
        let (sender, receiver) = body_channel();
        let waker = Task::waker(receiver);
        assert!(sender.poll_demand(&mut Context::from_waker(&waker)).is_pending());
        drop(waker);
        assert!(sender.poll_demand(&mut context()).is_pending());
        assert_eq!(sender.poll_demand(&mut context()), Poll::Ready(Demand::Closed));
        let (sender, mut receiver) = body_channel();
        let waker = Task::waker(sender);
        assert!(receiver.poll_chunk(&mut Context::from_waker(&waker)).is_pending());
        drop(waker);
        assert!(receiver.poll_chunk(&mut context()).is_pending());
        assert_eq!(read_all(&mut receiver), (Vec::new(), Some(HttpError::ConnectionLost)));
    }

    #[test]
    fn a_body_is_complete_or_fails_whenever_it_is_evicted() {
        Model::explore(1_000, || {
            let (sender, mut receiver) = body_channel();
            let shared = receiver.0.clone();
            let evicting = shuttle::thread::spawn(move || shared.evict());
            let reading = shuttle::future::spawn(async move {
                let mut content = Vec::new();
                loop {
                    match poll_fn(|cx| receiver.poll_chunk(cx)).await {
                        Some(Ok(chunk)) => content.extend_from_slice(&chunk),
                        Some(Err(error)) => return (content, Err(error)),
                        None => return (content, Ok(receiver.trailers().is_some())),
                    }
                }
            });
            shuttle::future::block_on(async {
                for chunk in ["one", "two"] {
                    if poll_fn(|cx| sender.poll_demand(cx)).await == Demand::Closed {
                        return;
                    }
                    sender.put(chunk.into());
                }
                sender.finish(trailers());
            });
            drop(sender);
            let (content, end) = shuttle::future::block_on(reading).unwrap();
            match end {
                Ok(has_trailers) => assert!(content == b"onetwo" && has_trailers),
                Err(error) => assert_eq!(error, HttpError::Overloaded),
            }
            evicting.join().unwrap();
        });
    }
}
