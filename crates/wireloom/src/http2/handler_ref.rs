//! The reference of a stream to the task that runs its handler.

use std::task::{Context, Poll};

use wireloom_http2::StreamKey;

use super::shared::Shared;
use super::slots::{Receiving, StreamRef};
use super::state::State;
use crate::sync::Arc;

impl Shared {
    /// Refers to a stream for the task that runs its handler; `None` when the stream has ended.
    pub(crate) fn handler_of(self: &Arc<Self>, key: StreamKey) -> Option<HandlerRef> {
        let mut state = self.lock();
        let stream = state.core.contains(key).then(|| state.slots.refer(key, Receiving::Discarding))?;
        state.handlers += 1;
        drop(state);
        Some(HandlerRef { shared: self.clone(), stream })
    }
}

/// The interest of a handler's task in its stream.
pub(crate) struct HandlerRef {
    shared: Arc<Shared>,
    stream: StreamRef,
}

impl HandlerRef {
    /// Ready when the stream or the connection has failed: the response has no receiver.
    pub(crate) fn poll_failed(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.shared.lock();
        let State { slots, deferred, .. } = &mut *state;
        match slots.get(self.stream) {
            Some(slot) if slot.error.is_none() => {
                deferred.register(&mut slot.handler, cx);
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }
}

impl Drop for HandlerRef {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.handlers -= 1;
        state.release(self.stream);
    }
}
