//! Flushing the write batch. The batch is the core's queue of outgoing frames; frames are queued nowhere else.
//!
//! ```text
//!            a frame is queued                           all is written
//!  Idle ------------------------> AtPollEnd, InTask(..) ------------------> Idle
//!                                    |           ^
//!                                    +-----------+  the transport is full: the flusher's waker is registered
//! ```
//!
//! Every lock of the state ends with [`State::before_unlock`](super::state::State), which finds a flusher for the queue. So
//! after a poll that has queued a frame, either all is written, or a flush is due:
//!
//! - [`Flush::AtPollEnd`]: the future that uses the WebSocket is polled by [`Driven`]. It flushes at the end of that poll, and is
//!   woken when the transport accepts more. This costs no task.
//! - [`Flush::InTask`]: elsewhere, a spawned task flushes at the next turn of the runtime, and waits for the transport.
//!
//! `model` checks this under shuttle.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tokio::runtime::{Handle, RuntimeFlavor};

use super::linger::Linger;
use super::state::Shared;
use super::wakers::Waiter;
use crate::memory::Account;
use crate::sync::{self, AbortHandle};

/// Whether the batch will be flushed, and by what.
#[derive(Debug, Default)]
pub(super) enum Flush {
    /// Nothing is queued, or nothing can be written.
    #[default]
    Idle,
    /// By [`Driven`], at the end of its current poll, or when the transport wakes it.
    AtPollEnd,
    /// By a spawned task.
    InTask(AbortHandle),
}

impl Flush {
    /// Whether queued bytes will be written. A task that was dropped with its runtime writes nothing.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        match self {
            Self::Idle => false,
            Self::AtPollEnd => true,
            Self::InTask(task) => !task.is_finished(),
        }
    }

    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        matches!(self, Self::Idle)
    }
}

/// A flush task that runs in parallel to the thread that sends flushes once the batch has not grown for this number of yields: a
/// flush for every message would be a system call for every message.
const YIELDS_WITHOUT_GROWTH: u32 = 16;

thread_local! {
    /// The connection whose future this thread polls, by address; 0 for none.
    static DRIVEN: Cell<usize> = const { Cell::new(0) };

    /// The transport of that connection, when it was dropped during the current poll.
    static LINGER: Cell<Option<Pin<Box<Linger>>>> = const { Cell::new(None) };

    /// Memory for write batches. A connection borrows it from its first frame until all is written.
    /// Boxes, because they are passed in registers.
    static BUFFERS: RefCell<[Option<Box<[u8]>>; BUFFERS_MAX]> = const { RefCell::new([const { None }; BUFFERS_MAX]) };
}

#[cfg(test)]
shuttle::thread_local! {
    /// `DRIVEN` of a thread of the model.
    static MODEL_DRIVEN: Cell<usize> = Cell::new(0);
}

/// Replaces the connection whose future this thread polls.
fn replace_driven(id: usize) -> usize {
    #[cfg(test)]
    if sync::Model::is_entered() {
        return MODEL_DRIVEN.with(|driven| driven.replace(id));
    }
    DRIVEN.replace(id)
}

/// Whether this thread polls the future of this connection. While the thread ends it polls none.
fn is_driven(shared: &Weak<Shared>) -> bool {
    let id = shared.as_ptr().addr();
    #[cfg(test)]
    if sync::Model::is_entered() {
        return MODEL_DRIVEN.with(|driven| driven.get() == id);
    }
    DRIVEN.try_with(Cell::get) == Ok(id)
}

/// The capacity of pooled memory: a full batch and the longest message that is copied behind it.
pub(super) const BUFFER_LEN: usize = BATCH_LEN_MAX + COPIED_LEN_MAX + wireloom_ws::frame::HEADER_LEN_MAX;

/// From this length on, in bytes, a batch is written although more may come.
pub(super) const BATCH_LEN_MAX: usize = 64 << 10;

/// A longer message is written directly from the caller's memory, in a separate system call, instead of being copied into the batch.
pub(super) const COPIED_LEN_MAX: usize = 16 << 10;

/// Buffers that a thread keeps.
const BUFFERS_MAX: usize = 4;

/// Memory for a batch, of this thread's pool or new.
pub(super) fn take_buffer() -> Box<[u8]> {
    let take = |buffers: &RefCell<[Option<Box<[u8]>>; BUFFERS_MAX]>| {
        buffers.borrow_mut().iter_mut().find_map(Option::take)
    };
    // There is none while the thread ends.
    BUFFERS.try_with(take).ok().flatten().unwrap_or_else(|| vec![0; BUFFER_LEN].into())
}

/// Keeps memory for the next batch of any connection.
pub(super) fn put_buffer(mut buffer: Vec<u8>) {
    if buffer.capacity() != BUFFER_LEN {
        return;
    }
    buffer.resize(BUFFER_LEN, 0);
    let _ = BUFFERS.try_with(|buffers| {
        if let Some(slot) = buffers.borrow_mut().iter_mut().find(|kept| kept.is_none()) {
            *slot = Some(buffer.into_boxed_slice());
        }
    });
}

/// Finds a flusher for this connection: the future that is driven on this thread, or a new task. `Idle` outside of a runtime and in one
/// that shuts down: then the futures of the sender and the receiver flush while they are polled.
pub(super) fn schedule(shared: &Weak<Shared>) -> Flush {
    if is_driven(shared) {
        return Flush::AtPollEnd;
    }
    let Ok(runtime) = Handle::try_current() else { return Flush::Idle };
    // The future of `block_on` runs beside the workers.
    let is_parallel =
        tokio::task::try_id().is_none() && !matches!(runtime.runtime_flavor(), RuntimeFlavor::CurrentThread);
    let flush = Flush::InTask(sync::spawn(&runtime, flush_in_task(shared.clone(), is_parallel)));
    if flush.is_due() { flush } else { Flush::Idle }
}

async fn flush_in_task(shared: Weak<Shared>, is_parallel: bool) {
    if is_parallel {
        wait_while_filling(&shared).await;
    }
    poll_fn(|cx| match shared.upgrade() {
        Some(shared) => shared.lock().poll_flush(Some((Waiter::FlushTask, cx))).map(drop),
        None => Poll::Ready(()),
    })
    .await;
}

/// Waits while another thread appends to the batch. It needs no timer, which a runtime may lack.
async fn wait_while_filling(shared: &Weak<Shared>) {
    let (mut len, mut yields) = (0, 0);
    while yields < YIELDS_WITHOUT_GROWTH {
        tokio::task::yield_now().await;
        let Some(shared) = shared.upgrade() else { return };
        let queued = shared.queued_len();
        if queued == 0 {
            // The other thread has flushed it.
            return;
        }
        yields = if queued == len { yields + 1 } else { 0 };
        len = queued;
    }
}

/// Lets the transport of an ended connection linger: in the connection's future if this thread drives it, otherwise, on a server,
/// in a spawned task. Elsewhere the transport is closed at once, because a client's runtime may have no timers.
pub(super) fn linger(shared: &Weak<Shared>, account: &Account, make_linger: impl FnOnce() -> Linger) {
    if is_driven(shared) {
        let _ = LINGER.try_with(|linger| linger.set(Some(Box::pin(make_linger()))));
    } else if account.is_of_server() {
        spawn_linger(make_linger);
    }
}

/// Lets the transport of an ended connection linger in a spawned task. It is closed at once outside of a runtime.
pub(super) fn spawn_linger(make_linger: impl FnOnce() -> Linger) {
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(make_linger());
    }
}

pin_project! {
    /// A future that uses a WebSocket. Messages that a poll of it sends are written at the end of that poll, or when the transport
    /// accepts them.
    pub(crate) struct Driven<F> {
        shared: Weak<Shared>,
        #[pin]
        future: F,
        // Closes the transport, once the future has dropped the WebSocket.
        linger: Option<Pin<Box<Linger>>>,
    }

    impl<F> PinnedDrop for Driven<F> {
        fn drop(this: Pin<&mut Self>) {
            // Halves that were moved out of the future continue without it.
            if let Some(shared) = this.project().shared.upgrade() {
                shared.lock().handle_driver_end();
            }
        }
    }
}

impl<F> Driven<F> {
    pub(crate) fn new(shared: &Arc<Shared>, future: F) -> Self {
        Self { shared: Arc::downgrade(shared), future, linger: None }
    }

    /// The state of the WebSocket.
    #[cfg(feature = "server")]
    pub(crate) fn shared(&self) -> &Weak<Shared> {
        &self.shared
    }

    /// The transport of a WebSocket that the future has dropped, until it is closed.
    #[cfg(feature = "server")]
    pub(crate) fn linger(self: Pin<&mut Self>) -> &mut Option<Pin<Box<Linger>>> {
        self.project().linger
    }
}

/// Ready when the transport is closed.
#[cfg(feature = "server")]
pub(crate) fn poll_linger(linger: &mut Option<Pin<Box<Linger>>>, cx: &mut Context<'_>) -> Poll<()> {
    if let Some(lingering) = linger {
        ready!(lingering.as_mut().poll(cx));
        *linger = None;
    }
    Poll::Ready(())
}

/// Ready when a WebSocket has ended, or both of its halves are dropped.
#[cfg(feature = "server")]
pub(crate) fn poll_ended(shared: &Weak<Shared>, cx: &Context<'_>) -> Poll<()> {
    let Some(shared) = shared.upgrade() else { return Poll::Ready(()) };
    let mut state = shared.lock();
    if state.link.write_error().is_some() {
        return Poll::Ready(());
    }
    // Woken by every end, and by the drop of the state. It registers again when it is woken for another reason.
    state.link.register(Some((Waiter::Driver, cx)));
    Poll::Pending
}

impl<F: Future> Future for Driven<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let polled = {
            let _driving = DrivenScope::new(this.shared.as_ptr().addr());
            let polled = this.future.poll(cx);
            if let Some(linger) = LINGER.take() {
                *this.linger = Some(linger);
            }
            polled
        };
        if let Some(shared) = this.shared.upgrade() {
            let mut state = shared.lock();
            state.flush_driven(cx);
            if polled.is_ready() {
                // It is not polled again, although its owner may keep it.
                state.handle_driver_end();
            }
        }
        polled
    }
}

/// While this lives, this thread polls the future of a connection.
struct DrivenScope {
    /// The connection whose future polls this one, if any.
    outer: usize,
    /// The transport that it has dropped during its poll.
    outer_linger: Option<Pin<Box<Linger>>>,
}

impl DrivenScope {
    fn new(id: usize) -> Self {
        Self { outer: replace_driven(id), outer_linger: LINGER.try_with(Cell::take).ok().flatten() }
    }
}

impl Drop for DrivenScope {
    fn drop(&mut self) {
        replace_driven(self.outer);
        // After a panic this drops the transport of the inner connection.
        let _ = LINGER.try_with(|linger| linger.set(self.outer_linger.take()));
    }
}
