//! The part of a response that the client has not accepted: counted memory, and the end of the response when the server has to free it.

use std::task::{Context, Poll};

use crate::guard::{Deferred, Guardable, Guarded, WakerSlot};
use crate::memory::{Account, Category, Evict, Reservation};
use crate::sync::Arc;

/// A response over HTTP/1.1 that waits for its client.
pub(super) struct Unsent {
    eviction: Arc<Guarded<Eviction>>,
    _memory: Reservation,
}

#[derive(Default)]
struct Eviction {
    is_evicted: bool,
    waker: WakerSlot,
    deferred: Deferred,
}

impl Guardable for Eviction {
    fn deferred(&mut self) -> &mut Deferred {
        &mut self.deferred
    }
}

impl Evict for Guarded<Eviction> {
    fn evict(&self) -> bool {
        let mut guard = self.lock();
        let Eviction { is_evicted, waker, deferred } = &mut *guard;
        *is_evicted = true;
        deferred.wake(waker);
        true
    }
}

impl Unsent {
    /// `len` bytes are held until this is dropped.
    pub(super) fn new(account: &Account, len: usize) -> Self {
        let eviction = Arc::new(Guarded::new(Eviction::default()));
        let weak = Arc::downgrade(&eviction);
        account.on_evict(weak);
        let mut memory = account.reservation(Category::SendQueue);
        memory.set(len);
        Self { eviction, _memory: memory }
    }

    /// Ready when the memory has to be freed.
    pub(super) fn poll_evicted(&self, cx: &Context<'_>) -> Poll<()> {
        let mut guard = self.eviction.lock();
        let Eviction { is_evicted, waker, deferred } = &mut *guard;
        if *is_evicted {
            return Poll::Ready(());
        }
        deferred.register(waker, cx);
        Poll::Pending
    }
}
