//! Events of a connection for a function of the application. They are queued while the connection is locked, and delivered after the unlock, in
//! order, by one thread at a time.
//!
//! ```text
//!          an event is queued, and the thread unlocks          none is left, or the function has panicked
//!  idle ---------------------------------------------> delivering -----------------------------------------> idle
//!                                                       |      ^
//!                                 DELIVERED_MAX events  '------'  a task goes on
//! ```

use std::collections::VecDeque;

use tokio::runtime::Handle;

use crate::sync::{self, Arc};

/// From this number of bytes on, the function is slow: the connection reads no more, and those who send wait. A model reaches it.
pub(crate) const QUEUED_LEN_MAX: usize = if cfg!(test) { 1 << 10 } else { 1 << 20 };

/// The events that a thread delivers before a task of the runtime goes on: others may add events all the time.
const DELIVERED_MAX: usize = if cfg!(test) { 4 } else { 4_096 };

/// Events that have not been delivered.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    /// With the length of each in bytes.
    events: VecDeque<(E, usize)>,
    /// The sum of the lengths.
    len: usize,
    /// A thread delivers the events until there is none, now or when it unlocks the connection.
    is_delivering: bool,
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        Self { events: VecDeque::new(), len: 0, is_delivering: false }
    }
}

impl<E> EventQueue<E> {
    /// Queues an event, which takes `len` bytes.
    pub(crate) fn push(&mut self, event: E, len: usize) {
        self.len += len;
        self.events.push_back((event, len));
    }

    /// Whether the next event may be delivered without the queue.
    pub(crate) fn is_idle(&self) -> bool {
        self.events.is_empty() && !self.is_delivering
    }

    /// True if events wait and no thread delivers them: then the caller has to run a [`Delivery`].
    pub(crate) fn begin_delivery(&mut self) -> bool {
        let begins = !self.events.is_empty() && !self.is_delivering;
        self.is_delivering |= begins;
        begins
    }

    /// The next event to deliver, and whether there [is room](Self::has_room) again; after the last one nothing is delivered any more.
    pub(crate) fn next_delivery(&mut self) -> Option<(E, bool)> {
        let had_room = self.has_room();
        let next = self.events.pop_front();
        self.is_delivering = next.is_some();
        let (event, len) = next?;
        self.len -= len;
        Some((event, !had_room && self.has_room()))
    }

    /// The events that are left are delivered with the next one. There is room again.
    pub(crate) fn cancel_delivery(&mut self) {
        self.is_delivering = false;
    }

    /// Whether the connection may read and send. It waits only for events that are being delivered.
    pub(crate) fn has_room(&self) -> bool {
        self.len < QUEUED_LEN_MAX || !self.is_delivering
    }
}

/// A connection that is observed.
pub(crate) trait Observed: Send + Sync + 'static {
    /// Takes the next event from the queue. What is returned delivers it, while nothing is locked. `None` after the last one.
    fn next_delivery(&self) -> Option<impl FnOnce()>;

    /// See [`EventQueue::cancel_delivery`].
    fn cancel_delivery(&self);
}

/// The only delivery of a connection. A panic of the function leaves the other events to the next one. A runtime that ends drops its task,
/// which delivers them then.
pub(crate) struct Delivery<T: Observed> {
    connection: Arc<T>,
    is_done: bool,
    /// The function has been called and has not returned: when this is dropped, it has panicked.
    in_call: bool,
}

impl<T: Observed> Delivery<T> {
    /// [`EventQueue::begin_delivery`] was true.
    pub(crate) fn new(connection: Arc<T>) -> Self {
        Self { connection, is_done: false, in_call: false }
    }

    /// Delivers the events that are queued, and those that are added meanwhile.
    pub(crate) fn run(mut self) {
        self.deliver_some();
        if let (false, Ok(runtime)) = (self.is_done, Handle::try_current()) {
            sync::spawn(&runtime, async move {
                while !self.is_done {
                    tokio::task::yield_now().await;
                    self.deliver_some();
                }
            });
        }
    }

    fn deliver_some(&mut self) {
        for _ in 0..DELIVERED_MAX {
            match self.connection.next_delivery() {
                Some(deliver) => {
                    self.in_call = true;
                    deliver();
                    self.in_call = false;
                }
                None => return self.is_done = true,
            }
        }
    }
}

impl<T: Observed> Drop for Delivery<T> {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        if self.in_call {
            return self.connection.cancel_delivery();
        }
        // Without a runtime. Another one, because the function may panic.
        let mut rest = Self::new(self.connection.clone());
        while !rest.is_done {
            rest.deliver_some();
        }
    }
}
