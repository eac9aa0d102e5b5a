//! The channel between a connection, which reads an HTTP/1.1 body, and the application. Nothing is read before the
//! application requests it, so a slow application slows its peer down.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};

use crate::error::HttpError;
use crate::headers::Headers;
use crate::memory::{Account, Evict};

#[derive(Default)]
struct Shared(Mutex<Channel>);

#[derive(Default)]
struct Channel {
    content: BytesMut,
    end: Option<Result<(), HttpError>>,
    trailers: Option<Headers>,
    demand: Option<Demand>,
    receiver: Option<Waker>,
    sender: Option<Waker>,
}

/// The demand of the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Demand {
    Content,
    /// The receiver was dropped.
    Closed,
}

/// The application's half of the channel.
pub(crate) struct BodyReceiver(Arc<Shared>);

/// The connection's half of the channel. Dropping it before [`finish`](Self::finish) fails the body.
pub(super) struct BodySender(Arc<Shared>);

pub(super) fn body_channel() -> (BodySender, BodyReceiver) {
    let channel = Arc::<Shared>::default();
    (BodySender(channel.clone()), BodyReceiver(channel))
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Channel> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, end: Result<(), HttpError>, trailers: Option<Headers>) {
        let mut channel = self.lock();
        if channel.end.is_none() {
            channel.end = Some(end);
            channel.trailers = trailers;
        }
        let receiver = channel.receiver.take();
        drop(channel);
        receiver.into_iter().for_each(Waker::wake);
    }
}

/// A request whose body is collected ends with [`HttpError::Overloaded`], which is answered with 503.
impl Evict for Shared {
    fn evict(&self) {
        let mut channel = self.lock();
        channel.content = BytesMut::new();
        channel.demand = Some(Demand::Closed);
        let sender = channel.sender.take();
        drop(channel);
        sender.into_iter().for_each(Waker::wake);
        self.end(Err(HttpError::Overloaded), None);
    }
}

impl BodyReceiver {
    pub(crate) fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, HttpError>>> {
        let mut channel = self.0.lock();
        if !channel.content.is_empty() {
            return Poll::Ready(Some(Ok(channel.content.split().freeze())));
        }
        match &channel.end {
            Some(Ok(())) => return Poll::Ready(None),
            Some(Err(error)) => return Poll::Ready(Some(Err(error.clone()))),
            None => {}
        }
        channel.demand.get_or_insert(Demand::Content);
        channel.receiver = Some(cx.waker().clone());
        let sender = channel.sender.take();
        drop(channel);
        sender.into_iter().for_each(Waker::wake);
        Poll::Pending
    }

    /// The body is ended when the server has to free memory.
    pub(crate) fn end_on_evict(&self, account: &Account) {
        let weak = Arc::downgrade(&self.0);
        account.on_evict(weak);
    }

    pub(crate) fn trailers(&mut self) -> Option<Headers> {
        self.0.lock().trailers.take()
    }
}

impl Drop for BodyReceiver {
    fn drop(&mut self) {
        let mut channel = self.0.lock();
        channel.demand = Some(Demand::Closed);
        channel.content = BytesMut::new();
        let sender = channel.sender.take();
        drop(channel);
        sender.into_iter().for_each(Waker::wake);
    }
}

impl BodySender {
    /// Ready when the receiver requests content or was dropped.
    pub(super) fn poll_demand(&self, cx: &mut Context<'_>) -> Poll<Demand> {
        let mut channel = self.0.lock();
        match channel.demand {
            Some(demand) => Poll::Ready(demand),
            None => {
                channel.sender = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Whether the receiver was dropped.
    pub(super) fn is_closed(&self) -> bool {
        self.0.lock().demand == Some(Demand::Closed)
    }

    /// Hands over the bytes that `append` adds to the content.
    pub(super) fn put<T>(&self, append: impl FnOnce(&mut BytesMut) -> T) -> T {
        let mut channel = self.0.lock();
        let result = append(&mut channel.content);
        if channel.demand == Some(Demand::Closed) {
            channel.content = BytesMut::new();
        }
        let mut receiver = None;
        if !channel.content.is_empty() {
            channel.demand = None;
            receiver = channel.receiver.take();
        }
        drop(channel);
        receiver.into_iter().for_each(Waker::wake);
        result
    }

    /// Ends the body.
    pub(super) fn finish(&self, trailers: Headers) {
        self.0.end(Ok(()), Some(trailers).filter(|trailers| !trailers.is_empty()));
    }

    /// Ends the body with an error.
    pub(super) fn fail(&self, error: HttpError) {
        self.0.end(Err(error), None);
    }
}

impl Drop for BodySender {
    fn drop(&mut self) {
        self.fail(HttpError::ConnectionLost);
    }
}
