//! The echo of those libraries whose WebSocket is a stream and a sink of messages.

use futures_core::Stream;
use futures_sink::Sink;
use futures_util::{SinkExt, StreamExt};
use std::future::poll_fn;
use std::ops::ControlFlow::{self, Break, Continue};
use std::task::Poll;

/// What came is to be sent back, passed over, or the end.
pub(super) type Answer<M> = ControlFlow<(), Option<M>>;

/// The loop of their examples: each message goes back by itself.
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

/// All messages that are there go back together.
pub(super) async fn echo_batched<S, M>(mut socket: S, answer: fn(S::Item) -> Answer<M>)
where
    S: Stream + Sink<M> + Unpin,
{
    while let Some(item) = socket.next().await {
        let mut next = Some(item);
        while let Some(item) = next {
            match answer(item) {
                Continue(Some(message)) => {
                    if socket.feed(message).await.is_err() {
                        return;
                    }
                }
                Continue(None) => {}
                Break(()) => return,
            }
            // The loop outside sets the waker again.
            next = poll_fn(|context| match socket.poll_next_unpin(context) {
                Poll::Ready(item) => Poll::Ready(item),
                Poll::Pending => Poll::Ready(None),
            })
            .await;
        }
        if socket.flush().await.is_err() {
            return;
        }
    }
}
