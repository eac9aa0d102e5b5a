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
use std::task::{Context, Poll, Waker};

use tokio::runtime::Handle;

use crate::sync::{self, Arc};

/// From this number of bytes on, the connection reads no more: the function is slow. A model reaches it.
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
    /// Tasks that go on once there is room.
    waiting: Vec<Waker>,
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        Self { events: VecDeque::new(), len: 0, is_delivering: false, waiting: Vec::new() }
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

    /// The next event to deliver, and the tasks to wake before; after the last one nothing is delivered any more.
    pub(crate) fn next_delivery(&mut self) -> Option<(E, Vec<Waker>)> {
        let next = self.events.pop_front();
        self.is_delivering = next.is_some();
        let (event, len) = next?;
        self.len -= len;
        let waiting = if self.len < QUEUED_LEN_MAX { std::mem::take(&mut self.waiting) } else { Vec::new() };
        Some((event, waiting))
    }

    /// The events that are left are delivered with the next one. Returns the tasks to wake.
    pub(crate) fn cancel_delivery(&mut self) -> Vec<Waker> {
        self.is_delivering = false;
        std::mem::take(&mut self.waiting)
    }

    /// Ready when the connection may go on. It waits only for events that are being delivered.
    pub(crate) fn poll_room(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.len < QUEUED_LEN_MAX || !self.is_delivering {
            return Poll::Ready(());
        }
        if !self.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

/// A connection that is observed.
pub(crate) trait Observed: Send + Sync + 'static {
    /// Takes the next event from the queue. What is returned delivers it, while nothing is locked. `None` after the last one.
    fn next_delivery(&self) -> Option<impl FnOnce()>;

    /// See [`EventQueue::cancel_delivery`].
    fn cancel_delivery(&self);
}

/// The only delivery of a connection. Dropping it before it is done, as a panic of the function does, leaves the other events to the next one.
pub(crate) struct Delivery<T: Observed> {
    connection: Arc<T>,
    is_done: bool,
}

impl<T: Observed> Delivery<T> {
    /// [`EventQueue::begin_delivery`] was true.
    pub(crate) fn new(connection: Arc<T>) -> Self {
        Self { connection, is_done: false }
    }

    /// Delivers the events that are queued, and those that are added meanwhile.
    pub(crate) fn run(mut self) {
        self.deliver_some();
        if self.is_done {
            return;
        }
        match Handle::try_current() {
            Ok(runtime) => {
                sync::spawn(&runtime, async move {
                    while !self.is_done {
                        tokio::task::yield_now().await;
                        self.deliver_some();
                    }
                });
            }
            Err(_) => {
                while !self.is_done {
                    self.deliver_some();
                }
            }
        }
    }

    fn deliver_some(&mut self) {
        for _ in 0..DELIVERED_MAX {
            match self.connection.next_delivery() {
                Some(deliver) => deliver(),
                None => return self.is_done = true,
            }
        }
    }
}

impl<T: Observed> Drop for Delivery<T> {
    fn drop(&mut self) {
        if !self.is_done {
            self.connection.cancel_delivery();
        }
    }
}
