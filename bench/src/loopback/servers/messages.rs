//! The echo of those libraries whose WebSocket is a stream and a sink of messages.

use futures_core::Stream;
use futures_sink::Sink;
use futures_util::{SinkExt, StreamExt};
use std::future::poll_fn;
use std::ops::ControlFlow::{self, Break, Continue};
use std::task::Poll;

/// An item is a message to send back, something to skip, or the end.
pub(super) type Answer<M> = ControlFlow<(), Option<M>>;

/// The loop of their examples: each message is sent and flushed by itself.
pub(super) async fn echo<S, M>(mut socket: S, answer: fn(S::Item) -> Answer<M>)
where
    S: Stream + Sink<M> + Unpin,
{
    while let Some(Continue(message)) = socket.next().await.map(answer) {
        if let Some(message) = message
            && socket.send(message).await.is_err()
        {
            return;
        }
    }
}

/// Collects the messages that have arrived, feeds them, and flushes once. All ready messages are read before the first
/// is fed, because some libraries flush when they are polled for reading.
pub(super) async fn echo_batched<S, M>(mut socket: S, answer: fn(S::Item) -> Answer<M>)
where
    S: Stream + Sink<M> + Unpin,
{
    let mut messages = Vec::new();
    while let Some(item) = socket.next().await {
        let mut next = Some(item);
        while let Some(item) = next {
            match answer(item) {
                Continue(message) => messages.extend(message),
                Break(()) => return,
            }
            // The outer loop registers the waker again.
            next = poll_fn(|context| match socket.poll_next_unpin(context) {
                Poll::Ready(item) => Poll::Ready(item),
                Poll::Pending => Poll::Ready(None),
            })
            .await;
        }
        for message in messages.drain(..) {
            if socket.feed(message).await.is_err() {
                return;
            }
        }
        if socket.flush().await.is_err() {
            return;
        }
    }
}

/// Feeds each message and leaves it to the library to flush: for those whose `next` does so before it waits.
pub(super) async fn echo_fed<S, M>(mut socket: S, answer: fn(S::Item) -> Answer<M>)
where
    S: Stream + Sink<M> + Unpin,
{
    while let Some(Continue(message)) = socket.next().await.map(answer) {
        if let Some(message) = message
            && socket.feed(message).await.is_err()
        {
            return;
        }
    }
}
