//! What an application's code does when it panics: it ends, with the request or the WebSocket that it was for, and nothing
//! else does.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;

use super::Handler;
use super::registry::Registry;
use crate::http::{Request, Response};

/// The response of a handler, and whether it is 500 because the handler panicked.
pub(super) async fn answer(
    registry: &Registry,
    handler: &impl Handler,
    request: Request,
) -> (Response, bool) {
    // Within a future, because a handler may panic before it gives one.
    let mut answering = pin!(async { (handler.handle(request).await, false) });
    poll_fn(|cx| {
        let polled = catch(registry, || answering.as_mut().poll(cx));
        polled.unwrap_or_else(|| (Response::text(500, "something went wrong here\n"), true).into())
    })
    .await
}

/// What this returns, unless it panics. What it borrows is not used again then.
pub(super) fn catch<T>(registry: &Registry, work: impl FnOnce() -> T) -> Option<T> {
    let done = catch_unwind(AssertUnwindSafe(work)).ok();
    if done.is_none() {
        registry.count_panic();
    }
    done
}
