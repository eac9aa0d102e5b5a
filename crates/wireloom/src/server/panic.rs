//! Catches panics of handlers, so that only the request or the WebSocket concerned ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use super::Handler;
use crate::http::{Request, Response};
use crate::registry::Registry;

pin_project! {
    /// The response of a handler, and whether it is 500 because the handler panicked.
    pub(super) struct HandlerFuture<'r, F> {
        registry: &'r Registry,
        // None when the handler panicked before it returned a future.
        #[pin]
        future: Option<F>,
    }
}

/// Calls a handler.
pub(super) fn answer<'h>(
    registry: &'h Registry,
    handler: &'h impl Handler,
    request: Request,
) -> HandlerFuture<'h, impl Future<Output = Response>> {
    HandlerFuture { registry, future: catch(registry, || handler.handle(request)) }
}

impl<F: Future<Output = Response>> Future for HandlerFuture<'_, F> {
    type Output = (Response, bool);

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let polled = this.future.as_pin_mut().and_then(|future| catch(this.registry, || future.poll(cx)));
        match polled {
            Some(polled) => polled.map(|response| (response, false)),
            None => Poll::Ready((Response::text(500, "internal server error\n"), true)),
        }
    }
}

/// The result of `work`, unless it panics. Its borrows are not used again then.
pub(super) fn catch<T>(registry: &Registry, work: impl FnOnce() -> T) -> Option<T> {
    let done = catch_unwind(AssertUnwindSafe(work)).ok();
    if done.is_none() {
        registry.count_panic();
    }
    done
}
