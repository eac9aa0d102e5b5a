//! State shared by `Sender` and `Receiver`: the outbound half of the protocol core and the transport, behind one mutex. The
//! mutex is locked once for each message that is sent and each read, and never held across an `.await`. Nothing is decoded while it is
//! held, and code of the application runs after the unlock (`guard`).

use std::cell::{OnceCell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::sync::Weak;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::time::Instant;

use wireloom_ws::handshake::Negotiated;
use wireloom_ws::limits::TRAILING_LEN_MAX;
use wireloom_ws::{CloseCode, Connection, IdleInbound, Kind, PreparedFrame, Transport};

use super::active_receiver::{ActiveReceiver, ReceiverSlot};
use super::clock;
use super::config::{SharedConfig, WebSocketConfig};
use super::flush::{self, BATCH_LEN_MAX, Flush};
use super::interned::{Kept, interned};
use super::link::{self, Link};
use super::observer;
use super::session::Session;
use super::slow::Slow;
use super::waiters::{Task, Waiter};
use crate::deadline;
use crate::error::WebSocketError;
use crate::event_queue::{self, Observed};
use crate::guard::{Deferred, Guard, Guardable, Guarded};
use crate::memory::{Account, Category, Evict, Reservation};
use crate::sync::{self, Arc, AtomicBool, MutexGuard};
use crate::transport::{BUFFERED_LEN_MAX, Io, Linger};

/// The length of the read that finds bytes behind a Close frame.
const TRAILING_READ_LEN: usize = 64;

/// How long bytes behind a Close frame are discarded at most, also where the close timeout is longer.
const TRAILING_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a transport is read and drained after a close with 1013.
const OVERLOADED_LINGER: Duration = Duration::from_secs(1);

/// A flush task that runs in parallel to the thread that sends flushes once the batch has not grown for this number of yields: a
/// flush for every message would be a system call for every message.
const YIELDS_WITHOUT_GROWTH: u32 = 16;

thread_local! {
    /// Most clients of a server have the same result.
    static NEGOTIATED: Kept<Negotiated> = const { RefCell::new(VecDeque::new()) };
}

pub(crate) struct Shared {
    state: Guarded<State>,
    /// The receiver and the senders that live. It changes under the lock; in the state it would take eight bytes of each connection.
    halves: AtomicU32,
    /// The receiver has buffered messages that it has not returned, so a batch may be delayed until they are answered. This
    /// decides when a batch is written, never whether.
    more_buffered: AtomicBool,
    /// A server that shuts down has sent its Close frame. Messages that arrive are read and dropped until the peer's Close frame or the
    /// close timeout: closing a socket with unread bytes would reset the connection.
    is_discarding: AtomicBool,
    is_observed: bool,
    /// `None` if neither a subprotocol nor compression was negotiated.
    negotiated: Option<std::sync::Arc<Negotiated>>,
}

impl Shared {
    /// `arrived` are bytes that were read behind the opening handshake. The memory is counted in `account`, which may close the WebSocket
    /// to free memory.
    pub(super) fn new(
        core: Connection,
        io: Io,
        config: SharedConfig,
        negotiated: Negotiated,
        arrived: &[u8],
        account: &Account,
    ) -> Arc<Self> {
        let SharedConfig { config, observer } = config;
        let is_observed = observer.is_some();
        let (mut inbound, mut outbound) = core.split();
        if is_observed {
            inbound.log_headers();
            outbound.log_headers();
        }
        // The response of the opening handshake may still be buffered.
        let flush = if io.has_buffered_writes() { Flush::Unflushed } else { Flush::Flushed };
        let mut link = Link::new(io);
        let mut slot = ReceiverSlot::Idle(0);
        if !arrived.is_empty() || inbound.idle().is_none() {
            slot = ReceiverSlot::Waiting(ActiveReceiver::with_input(inbound, arrived));
        }
        if !arrived.is_empty() {
            link.traffic.bytes_received = arrived.len() as u64;
        }
        let shared = Arc::new_cyclic(|shared| Self {
            state: Guarded::new(State {
                session: Session::new(outbound, observer),
                link,
                flush,
                slow: Slow::default(),
                slot,
                send_queue: account.reservation(Category::SendQueue),
                shared: shared.clone(),
                config,
                last_waiter: Waiter::RECEIVER,
                deferred: Deferred::default(),
            }),
            halves: AtomicU32::new(1),
            more_buffered: AtomicBool::new(false),
            is_discarding: AtomicBool::new(false),
            is_observed,
            negotiated: (negotiated != Negotiated::default()).then(|| interned(negotiated, &NEGOTIATED)),
        });
        let target = Arc::downgrade(&shared);
        account.on_evict(target);
        shared
    }

    /// The state. Before it is unlocked, the compressor returns to the pool of the thread and a flush of queued bytes is scheduled. The
    /// observer is notified afterwards.
    #[inline]
    pub(super) fn lock(&self) -> Guard<'_, State> {
        self.state.lock()
    }

    /// As [`lock`](Self::lock), unless that would wait.
    pub(super) fn try_lock(&self) -> Option<Guard<'_, State>> {
        self.state.try_lock()
    }

    /// The state, for effects of frames that have arrived. Flushing and notifying is left to the next [`lock`](Self::lock).
    pub(super) fn lock_plain(&self) -> MutexGuard<'_, State> {
        self.state.lock_plain()
    }

    /// Appends a message to a batch that is sure to be written, while the receiver has buffered more messages.
    #[inline(always)]
    pub(super) fn append(&self, kind: Kind, payload: &[u8]) -> bool {
        if !self.has_more_buffered() {
            return false;
        }
        // Nothing here is observed or needs a flusher.
        let state = &mut *self.state.lock_plain();
        state.flush.is_due()
            && !state.slow.is_waiting()
            && state.session.core.append_message(kind, payload, BATCH_LEN_MAX)
    }

    /// Bytes that are queued for writing. Nothing else happens.
    pub(super) fn queued_len(&self) -> usize {
        self.state.with(|state| state.session.core.queued_len())
    }

    /// The cost of compression since the last call, in bytes of the task's budget.
    pub(super) fn take_compression_cost(&self) -> usize {
        self.state.with(|state| state.session.take_compression_cost())
    }

    /// Ready when the transport is not needed any more. Once both halves are dropped, this writes the queue.
    pub(super) fn poll_ended(&self, waiter: Waiter, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        let is_dropped = !self.has_halves();
        if is_dropped && !state.link.is_closed() && state.poll_flush(Some((waiter, cx))).is_ready() {
            state.end_dropped();
        }
        let has_lingered = state.link.is_lingering();
        ready!(state.link.poll_ended(waiter, cx));
        if is_dropped || has_lingered {
            state.drop_io(WebSocketError::Closed);
        }
        Poll::Ready(())
    }

    /// Another sender lives; returns its number among those that wait for the transport.
    pub(super) fn add_sender(&self) -> Waiter {
        self.state.with(|state| {
            self.halves.fetch_add(1, Ordering::Relaxed);
            state.last_waiter.advance()
        })
    }

    /// A half is dropped. True if it was the last one, which sends the Close frame.
    pub(super) fn drop_half(&self, state: &mut State) -> bool {
        let is_last = self.halves.fetch_sub(1, Ordering::AcqRel) == 1;
        if is_last {
            state.close_dropped();
        }
        is_last
    }

    /// Whether the receiver or a sender lives.
    pub(super) fn has_halves(&self) -> bool {
        self.halves.load(Ordering::Acquire) > 0
    }

    /// The number of another future that waits for the transport.
    pub(super) fn next_waiter(&self) -> Waiter {
        self.state.with(|state| state.last_waiter.advance())
    }

    #[inline]
    pub(super) fn has_more_buffered(&self) -> bool {
        self.more_buffered.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn set_more_buffered(&self, more: bool) {
        self.more_buffered.store(more, Ordering::Relaxed);
    }

    /// Whether messages that arrive are dropped.
    #[inline]
    pub(super) fn is_discarding(&self) -> bool {
        self.is_discarding.load(Ordering::Relaxed)
    }

    /// Whether frames and messages are observed.
    #[inline]
    pub(super) fn is_observed(&self) -> bool {
        self.is_observed
    }

    pub(super) fn subprotocol(&self) -> Option<&str> {
        self.negotiated.as_ref()?.subprotocol.as_deref()
    }

    #[inline]
    pub(super) fn is_compressed(&self) -> bool {
        self.negotiated.as_ref().is_some_and(|negotiated| negotiated.deflate.is_some())
    }

    /// Takes the state of the receiver; `None` after the end.
    #[inline]
    pub(super) fn take_receiver(&self) -> Option<Box<ActiveReceiver>> {
        self.state.with(|state| {
            let State { slot, session, config, send_queue, .. } = state;
            let idle = || IdleInbound::new(session.core.role(), &config.core);
            let mut active = slot.take(|last_len| ActiveReceiver::from_idle(idle(), last_len))?;
            active.account = send_queue.account().clone();
            Some(active)
        })
    }

    /// Requests the closing handshake from outside of both halves. The Close frame is sent when the receiver is polled for the next
    /// message: then all messages that were read have been answered. False if the WebSocket is in use for a while, as one that compresses a
    /// long message.
    pub(crate) fn try_request_close(&self) -> bool {
        self.try_lock().map(|mut state| state.request_close()).is_some()
    }

    /// Begins the closing handshake, although the receiver has not been polled again.
    pub(crate) fn go_away(&self) {
        self.lock().begin_going_away();
    }

    /// As [`go_away`](Self::go_away). False if the WebSocket is in use for a while.
    pub(crate) fn try_go_away(&self) -> bool {
        self.try_lock().map(|mut state| state.begin_going_away()).is_some()
    }

    /// Bytes that were received, and those of the other direction before `end` that have arrived at the peer.
    #[cfg(feature = "client")]
    pub(crate) fn transferred_len(&self, end: u64) -> u64 {
        let Link { io, traffic, .. } = &self.lock().link;
        traffic.bytes_received + io.acknowledged_len(traffic.bytes_sent).min(end)
    }

    /// The end of what was queued until now, as [`transferred_len`](Self::transferred_len) counts: with TLS the most that it may be, but for
    /// the overhead of the records that are not made yet.
    #[cfg(feature = "client")]
    pub(super) fn queued_end(&self) -> u64 {
        let State { link: Link { io, traffic, .. }, session, .. } = &*self.lock();
        let left = match io.left_len() {
            Some(left) => left + io.buffered_len_max().unwrap_or(BUFFERED_LEN_MAX) as u64,
            None => traffic.bytes_sent,
        };
        left + session.core.queued_len() as u64
    }

    /// Ends a WebSocket that counts as lost, although the application may keep both halves: nothing more is sent, also of what the kernel has
    /// buffered.
    #[cfg(feature = "client")]
    pub(crate) fn abandon(&self) {
        self.lock().reset(WebSocketError::ConnectionLost);
    }

    /// Ends a WebSocket whose server has ended, although the application may keep both halves: with the Close frame of one that is dropped,
    /// if the transport accepts that at once. False if the WebSocket is in use for a while.
    pub(crate) fn try_abort(&self) -> bool {
        self.try_lock().map(|mut state| state.abort()).is_some()
    }

    /// Frees memory of a connection on which nothing has been transferred since the last call, and counts its read buffer.
    pub(crate) fn release_if_idle(&self) {
        // One that is in use is not idle.
        let Some(mut state) = self.try_lock() else { return };
        state.count_read_buffer();
        if !state.session.release_if_idle() || state.slot.is_busy() {
            return;
        }
        let unused = state.slot.release();
        drop(state);
        unused.into_iter().for_each(ActiveReceiver::recycle);
    }
}

/// Closes with 1013 and frees the send queue and the message that is arriving, whether or not its task is polled.
impl Evict for Shared {
    fn evict(&self) -> bool {
        self.try_lock().map(|mut state| state.overload()).is_some()
    }
}

impl Guardable for State {
    #[inline]
    fn deferred(&mut self) -> &mut Deferred {
        &mut self.deferred
    }

    /// Schedules the flush and queues notifications.
    #[inline]
    fn before_unlock(&mut self) {
        self.session.return_codec(self.send_queue.account());
        if self.session.core.wants_write() {
            self.find_flusher();
        }
        if self.session.is_observed() || !self.session.core.is_open() && observer::is_traced() {
            self.queue_notifications();
        }
    }
}

/// Keeps a connection until its transport is not needed any more.
async fn linger_in_task(shared: Arc<Shared>) {
    let waiter = shared.next_waiter();
    poll_fn(|cx| shared.poll_ended(waiter, cx)).await;
}

async fn flush_in_task(shared: Weak<Shared>, waiter: Waiter, is_parallel: bool) {
    if is_parallel {
        wait_while_filling(&shared).await;
    }
    poll_fn(|cx| match shared.upgrade() {
        Some(shared) => shared.lock().poll_flush_task(waiter, cx),
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

impl Observed for Shared {
    fn next_delivery(&self) -> Option<impl FnOnce()> {
        let (event, observer, waiting) = self.state.with(|state| {
            let (event, observer, has_room_again) = state.session.notifications()?.next_delivery()?;
            Some((event, observer, has_room_again.then(|| state.link.wakers()).flatten()))
        })?;
        Some(move || {
            waiting.into_iter().for_each(|wakers| wakers.wake_all());
            observer::notify(observer.as_ref(), &event);
        })
    }

    fn cancel_delivery(&self) {
        let waiting = self.state.with(|state| {
            state.session.notifications()?.events.cancel_delivery();
            state.link.wakers()
        });
        waiting.into_iter().for_each(|wakers| wakers.wake_all());
    }
}

pub(super) struct State {
    pub(super) session: Session,
    pub(super) link: Link,
    pub(super) flush: Flush,
    pub(super) slow: Slow,
    pub(super) slot: ReceiverSlot,
    pub(super) deferred: Deferred,
    /// The memory of the queue.
    send_queue: Reservation,
    last_waiter: Waiter,
    shared: Weak<Shared>,
    /// Shared by the WebSockets of a server.
    pub(super) config: Arc<WebSocketConfig>,
}

impl State {
    /// Whether messages can be sent.
    pub(super) fn is_open(&self) -> bool {
        self.session.core.is_open() && self.link.write_error().is_none()
    }

    /// The server shuts down.
    fn request_close(&mut self) {
        self.session.close_requested = true;
        self.wake();
    }

    fn begin_going_away(&mut self) {
        self.request_close();
        self.go_away();
    }

    /// Begins the closing handshake if that was requested.
    #[inline]
    pub(super) fn go_away(&mut self) {
        if self.session.go_away() {
            self.discard();
        }
    }

    /// The Close frame of a server that shuts down is queued.
    #[cold]
    fn discard(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.is_discarding.store(true, Ordering::Relaxed);
        }
        let _ = self.poll_flush(None);
        self.wake();
    }

    /// The runtime for tasks of the connection.
    pub(super) fn runtime(&self) -> Option<Handle> {
        self.send_queue.account().runtime()
    }

    /// Whether this thread polls the future that is driven.
    pub(super) fn is_driven(&self) -> bool {
        flush::is_driven(self.shared.as_ptr().addr())
    }

    /// Finds a flusher for the queue, unless there is one. False if none can be found.
    #[inline]
    pub(super) fn find_flusher(&mut self) -> bool {
        self.flush.is_due() || self.schedule()
    }

    /// Finds another flusher, if anything can be written: the future that is driven on this thread, or a new task.
    #[cold]
    fn schedule(&mut self) -> bool {
        if self.link.write_error().is_some() {
            return false;
        }
        self.flush = if self.is_driven() { Flush::AtPollEnd } else { self.spawn_flusher() };
        self.flush.has_flusher()
    }

    /// `Unflushed` without a runtime, in one that shuts down, and for a connection that is being dropped: then the futures of the sender and
    /// the receiver flush while they are polled.
    fn spawn_flusher(&mut self) -> Flush {
        let Some(runtime) = Handle::try_current().ok().or_else(|| self.runtime()) else {
            return Flush::Unflushed;
        };
        if self.shared.strong_count() == 0 {
            return Flush::Unflushed;
        }
        // The future of `block_on` runs beside the workers.
        let is_parallel = tokio::task::try_id().is_none()
            && !matches!(runtime.runtime_flavor(), RuntimeFlavor::CurrentThread);
        let waiter = self.last_waiter.advance();
        let task = flush_in_task(self.shared.clone(), waiter, is_parallel);
        let flush = Flush::InTask(waiter, sync::spawn(&runtime, task));
        if flush.is_due() { flush } else { Flush::Unflushed }
    }

    /// The future that flushed has ended or was dropped.
    pub(super) fn handle_driver_end(&mut self) {
        if matches!(self.flush, Flush::AtPollEnd) {
            self.schedule();
        }
    }

    /// The end of a poll of the future that flushes.
    pub(super) fn flush_driven(&mut self, driver: Waiter, cx: &Context<'_>) {
        if self.flush.has_flusher() || self.session.core.wants_write() {
            let _ = self.poll_flush(Some((driver, cx)));
        }
        self.count_read_buffer();
    }

    /// Ready when this task has flushed, or another flusher has taken its place.
    fn poll_flush_task(&mut self, task: Waiter, cx: &Context<'_>) -> Poll<()> {
        if self.flush.is_by(task) {
            let _ = ready!(self.poll_flush(Some((task, cx))));
        }
        self.link.remove(task);
        Poll::Ready(())
    }

    /// Whether nothing is queued or buffered, and a message needs nothing but to be written: none is compressed, observed or slow.
    #[inline]
    pub(super) fn is_at_rest(&self) -> bool {
        matches!(self.flush, Flush::Flushed)
            && !self.session.core.wants_write()
            && !self.session.core.is_compressed()
            && !self.session.is_observed()
            && self.link.is_writable()
    }

    /// Writes the queue. While the transport is full, a flusher waits for it, and so does `task` if there is one.
    pub(super) fn poll_flush(&mut self, task: Task<'_, '_>) -> Poll<Result<(), WebSocketError>> {
        if let Some(error) = self.link.write_error() {
            return Poll::Ready(Err(error.clone()));
        }
        if matches!(self.flush, Flush::Flushed) && !self.session.core.wants_write() {
            return Poll::Ready(Ok(()));
        }
        let (len, written) = self.link.poll_write_all(task, &mut self.session, &mut self.deferred);
        self.count_written(len);
        match written {
            Poll::Pending => {
                self.find_flusher();
                self.poll_slow(task)
            }
            Poll::Ready(Ok(())) => {
                self.end_flush();
                self.send_queue.set(0);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(self.fail_write(&error))),
        }
    }

    /// The queue is written, or dropped.
    fn end_flush(&mut self) {
        self.flush = Flush::Flushed;
        if self.slow.is_waiting() {
            self.slow.clear();
            self.link.wake_waiting();
        }
    }

    /// The transport has accepted `len` bytes.
    pub(super) fn count_written(&mut self, len: usize) {
        if len == 0 {
            return;
        }
        self.link.traffic.bytes_sent += len as u64;
        let was_full = self.slow.is_waiting();
        if was_full && self.link.io.left_len().is_none() {
            self.slow.accepted(len);
        }
        self.session.handle_written(was_full);
    }

    /// As [`poll_flush`](Self::poll_flush), but ready when the bytes are written that were queued at the first call, which sets `end`. Other
    /// senders may keep the queue from becoming empty, and the connection may have been closed since.
    pub(super) fn poll_flush_to(
        &mut self,
        end: &mut Option<u64>,
        task: Task<'_, '_>,
    ) -> Poll<Result<(), WebSocketError>> {
        let queued_end = self.link.traffic.bytes_sent + self.session.core.queued_len() as u64;
        let is_first = end.is_none();
        let end = *end.get_or_insert(queued_end);
        let flushed = self.poll_flush(task);
        let is_sent = match &flushed {
            Poll::Ready(Err(WebSocketError::Closed)) => !is_first && self.link.traffic.bytes_sent >= end,
            Poll::Pending => self.link.has_written(end),
            Poll::Ready(_) => false,
        };
        if is_sent { Poll::Ready(Ok(())) } else { flushed }
    }

    /// Called while the transport is full: ready when the peer has been slow for too long.
    fn poll_slow(&mut self, task: Task<'_, '_>) -> Poll<Result<(), WebSocketError>> {
        let queued_len = self.session.core.queued_len();
        // A transport that counts the bytes that have left it buffers up to this.
        let left_len = self.link.io.left_len();
        let buffered_len_max = if left_len.is_some() { BUFFERED_LEN_MAX } else { 0 };
        let held = self.session.core.queue_memory_len() + buffered_len_max;
        if self.send_queue.try_set(held).is_err() {
            // The transport is full and accepts no Close frame.
            self.reset(WebSocketError::Overloaded);
            return Poll::Ready(Err(WebSocketError::Overloaded));
        }
        let policy = &self.config.slow_peer;
        if self.slow.wait(policy, clock::now(), queued_len, left_len) {
            // It continues to write and watches the deadline, also when the future that sends is dropped.
            self.deferred.wake_by_ref(&self.link.receiver);
        }
        // Without a task there is no timer: the flusher has one.
        let waker = task.map(|task| self.link.register(Some(task)));
        let mut cx = waker.as_ref().map(Context::from_waker);
        ready!(self.slow.poll_disconnect(policy, cx.as_mut()));
        self.disconnect_slow();
        Poll::Ready(Err(WebSocketError::SlowPeer))
    }

    /// Ready when the observer has room for the events of what is received or sent.
    pub(super) fn poll_observer(&mut self, waiter: Waiter, cx: &Context<'_>) -> Poll<()> {
        if !self.session.is_observer_behind() {
            return Poll::Ready(());
        }
        self.link.register(Some((waiter, cx)));
        Poll::Pending
    }

    /// As [`poll_observer`](Self::poll_observer) for a sender, which also is ready when nothing can be written any more: the observer may hang.
    pub(super) fn poll_observer_unless_ended(&mut self, waiter: Waiter, cx: &Context<'_>) -> Poll<()> {
        if self.session.is_observer_behind() && self.link.write_error().is_none() {
            return self.poll_observer(waiter, cx);
        }
        Poll::Ready(())
    }

    /// Whether a message that is sent now would wait for too long.
    pub(super) fn is_slow(&self) -> bool {
        self.session.core.is_congested() || self.slow.is_overdue(clock::now)
    }

    /// Sends a message whose payload is written from where it is; bytes that the transport does not accept are queued.
    pub(super) fn send_borrowed(&mut self, kind: Kind, payload: &[u8]) -> Result<(), wireloom_ws::Error> {
        let Self { session, link, deferred, send_queue, .. } = self;
        let (mut total, refused) = (0, OnceCell::new());
        let write = |slices: &[&[u8]]| {
            let written = link.try_write(slices);
            total += written.as_ref().map_or(0, |len| *len);
            written.map_err(|error| refused.set(error)).ok()
        };
        let is_full = || refused.get().is_some_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        let mut is_kept = true;
        let keep = |len| {
            // Counted before it is copied.
            is_kept = (refused.get().is_none() || is_full()) && send_queue.try_set(len).is_ok();
            is_kept
        };
        session.send_borrowed(kind, payload, write, keep, deferred)?;
        if refused.get().is_none() {
            send_queue.set(0);
        }
        self.count_direct_write(total);
        match refused.get() {
            Some(error) if !is_full() => {
                self.fail_write(error);
            }
            Some(_) if !is_kept => self.reset(WebSocketError::Overloaded),
            // Registers the flusher with a transport that is full, or has buffered bytes itself.
            _ => {
                let _ = self.poll_flush(None);
            }
        }
        Ok(())
    }

    /// The transport has accepted `len` bytes that were not queued.
    fn count_direct_write(&mut self, len: usize) {
        self.count_written(len);
        if self.link.io.has_buffered_writes() && matches!(self.flush, Flush::Flushed) {
            self.flush = Flush::Unflushed;
        }
    }

    /// Whether prepared frames may be written to the socket from where they are: nothing is queued, and no one observes or waits.
    pub(super) fn can_write_prepared(&self) -> bool {
        self.session.core.can_write_prepared()
            && self.link.write_error().is_none()
            && self.link.io.socket().is_some()
            && matches!(self.flush, Flush::Flushed)
            && !self.link.io.has_buffered_writes()
            && !self.session.is_observed()
    }

    /// A single write of these frames, of `len` bytes, has had this result; [`can_write_prepared`](Self::can_write_prepared) was true
    /// before. Queues the rest, and returns the number of frames that are sent.
    pub(super) fn finish_prepared(
        &mut self,
        frames: &[&PreparedFrame],
        len: usize,
        written: io::Result<usize>,
    ) -> Result<usize, wireloom_ws::Error> {
        let (total, refused) = match written.and_then(link::not_zero) {
            Ok(len) => (len, None),
            Err(error) => (0, Some(error)),
        };
        self.count_direct_write(total);
        if let Some(error) = refused.filter(|error| error.kind() != io::ErrorKind::WouldBlock) {
            self.fail_write(&error);
            return Ok(0);
        }
        if total == len && !self.session.core.is_compressed() {
            // Nothing is left, and there is no window that it changes.
            return Ok(frames.len());
        }
        self.session.queue_rest(frames, total)
    }

    /// Counts the read buffer while the receiver has one. Most are returned within the poll that takes them, and are not counted: this is
    /// called at the end of a poll of the handler, at the next [`release_if_idle`](Shared::release_if_idle) where another task polls the
    /// receiver, and when it waits.
    #[inline]
    pub(super) fn count_read_buffer(&mut self) {
        // A handler keeps it until it uses a closed WebSocket again, which fails: no other connection should be closed for it.
        let len = if self.link.is_closed() { 0 } else { self.slot.read_buffer_len() };
        let kib = (len >> 10) as u16;
        if kib != self.session.read_buffer_kib {
            self.change_read_buffer(kib);
        }
    }

    #[cold]
    #[inline(never)]
    fn change_read_buffer(&mut self, kib: u16) {
        let (account, counted) = (self.send_queue.account(), &mut self.session.read_buffer_kib);
        if kib < *counted {
            account.subtract(Category::ReadBuffer, usize::from(*counted - kib) << 10);
        } else if account.try_add(Category::ReadBuffer, usize::from(kib - *counted) << 10).is_err() {
            // At the limit, this lets the server close connections that hold more.
            return;
        }
        *counted = kib;
    }

    pub(super) fn count_dropped(&mut self) {
        self.session.count_dropped();
        if let Some(counters) = self.send_queue.account().slow_peers() {
            counters.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Nothing can be written any more. Bytes that the peer has sent are still read: its Close frame may be among them.
    pub(super) fn fail_write(&mut self, error: &io::Error) -> WebSocketError {
        let error = self.link.fail_write(error);
        self.drop_queue();
        self.wake();
        error
    }

    /// Nothing is written any more: drops the queue.
    fn drop_queue(&mut self) {
        let Self { session, deferred, .. } = self;
        session.core.handle_write_failed(clock::now(), |payload| deferred.drop_later(payload));
        self.end_flush();
        self.send_queue.set(0);
    }

    /// The server is out of memory: closes with 1013, if the transport accepts the frame at once, and frees the send queue and the
    /// message that is arriving. The transport lingers, so that the peer can read the frame.
    pub(super) fn overload(&mut self) {
        let _ = self.session.close(CloseCode::TRY_AGAIN_LATER, "out of memory");
        let flushed = self.poll_flush(None);
        self.slot.overload();
        if matches!(flushed, Poll::Ready(Ok(()))) {
            let deadline = Instant::now() + OVERLOADED_LINGER;
            self.linger_in_task(WebSocketError::Overloaded, Linger::until(Some(deadline), usize::MAX));
        } else {
            // Unread output holds memory of the kernel.
            self.reset(WebSocketError::Overloaded);
        }
    }

    /// Ends reading and writing. The transport is kept until the peer has closed it, and the caller finds a task for that. What is read
    /// meanwhile is paid for as before.
    fn linger(&mut self, why: WebSocketError, linger: Linger) {
        let linger = linger.with_account(self.send_queue.account());
        self.link.linger(why.clone(), linger);
        self.fail(why);
    }

    /// As [`linger`](Self::linger), in a task of its own.
    fn linger_in_task(&mut self, why: WebSocketError, linger: Linger) {
        self.linger(why, linger);
        if let (Some(shared), Some(runtime)) = (self.shared.upgrade(), self.runtime()) {
            self.deferred.call(move || {
                sync::spawn(&runtime, linger_in_task(shared));
            });
        }
    }

    /// Removes the transport: no more reads and writes.
    pub(super) fn take_io(&mut self, why: WebSocketError) -> Io {
        let was_closed = self.link.is_closed();
        let io = self.link.take_io();
        if was_closed {
            // The queue was dropped and the end was reported then.
            self.session.core.handle_eof();
            self.wake();
        } else {
            self.fail(why);
        }
        io
    }

    /// Ends reading and writing.
    pub(super) fn fail(&mut self, error: WebSocketError) {
        // A Close frame of this end is reported before it counts as unanswered.
        self.session.queue_notifications();
        self.session.core.handle_eof();
        self.close_link(error);
        self.wake();
    }

    /// Both halves stop using the transport: for this reason, unless writing has failed before.
    pub(super) fn close_link(&mut self, error: WebSocketError) {
        self.drop_queue();
        self.link.close(error);
        self.count_read_buffer();
    }

    /// Ends a connection whose peer is too slow.
    pub(super) fn disconnect_slow(&mut self) {
        #[cfg(feature = "tracing")]
        {
            let queued = self.session.core.queued_len();
            self.deferred.call(move || tracing::debug!(queued, "the peer is too slow and is disconnected"));
        }
        if let Some(counters) = self.send_queue.account().slow_peers() {
            counters.disconnected.fetch_add(1, Ordering::Relaxed);
        }
        self.reset(WebSocketError::SlowPeer);
    }

    /// Drops the transport and what the kernel has buffered for it, although the application may keep both halves.
    fn reset(&mut self, error: WebSocketError) {
        self.link.io.abandon();
        self.drop_io(error);
    }

    /// Wakes the tasks of both halves.
    pub(super) fn wake(&mut self) {
        self.deferred.wake_by_ref(&self.link.receiver);
        self.link.wake_waiting();
    }

    /// Shuts the transport down when the core requires it, once the queue is written. True when the connection has ended.
    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>) -> bool {
        if self.link.is_closed() {
            return true;
        }
        match self.session.core.transport() {
            Transport::Open => false,
            // The transport itself still buffers frames, as TLS does. The close timeout ends that.
            _ if self.slow.is_waiting() && self.session.core.poll_timeout().is_some() => false,
            transport => {
                self.link.shut_down(cx);
                let has_exchanged = self.session.core.was_clean();
                if has_exchanged && self.would_reset(cx) {
                    self.linger_trailing();
                }
                has_exchanged || transport == Transport::Close
            }
        }
    }

    /// Whether closing the socket of a server now may reset it: the peer has sent more behind its Close frame, or has not received all, and
    /// may send more meanwhile.
    fn would_reset(&mut self, cx: &mut Context<'_>) -> bool {
        let core = &self.session.core;
        if core.transport() == Transport::ShutdownWrite || core.has_read_end() {
            return !core.has_read_end();
        }
        match self.link.poll_read(cx, &mut [0; TRAILING_READ_LEN]) {
            Poll::Ready(read) => matches!(read, Ok(1..)),
            Poll::Pending => self.link.io.has_unsent(),
        }
    }

    /// The transport lingers: the peer, which may break RFC 6455 §5.5.1, should still receive what was sent to it.
    #[cold]
    fn linger_trailing(&mut self) {
        let latest = Instant::now() + TRAILING_TIMEOUT;
        let deadline = self.session.poll_timeout().map_or(latest, |deadline| deadline.min(latest));
        self.linger_in_task(WebSocketError::Closed, Linger::until(Some(deadline), TRAILING_LEN_MAX));
    }

    /// Both halves are dropped: queues the Close frame, and ends the connection unless a task can continue with it.
    fn close_dropped(&mut self) {
        if self.link.is_closed() {
            return;
        }
        if self.link.write_error().is_none() {
            self.session.close_dropped();
        }
        // The task that receives has another deadline, and the server waits for this.
        self.wake();
        let is_written = self.poll_flush(None).is_ready();
        let needs_task = !is_written || self.lingers();
        let has_task = || self.runtime().is_some_and(|runtime| deadline::has_timers(&runtime));
        if needs_task && !has_task() {
            self.drop_io(WebSocketError::Closed);
        } else if is_written {
            self.end_dropped();
        }
    }

    /// Whether the transport of a connection whose halves are dropped has to linger until the peer has closed it: the end of a socket with
    /// unread bytes resets the connection, and a stream of HTTP/2 drops the frames that its connection has not written.
    fn lingers(&self) -> bool {
        self.link.write_error().is_none() && self.session.core.poll_timeout().is_some()
    }

    /// The end of a connection whose halves are dropped, and whose queue is written.
    fn end_dropped(&mut self) {
        if self.lingers() {
            let deadline = clock::now().saturating_add(self.config.core.close_timeout);
            self.linger(WebSocketError::Closed, Linger::until(clock::instant_at(deadline), usize::MAX));
        } else {
            self.drop_io(WebSocketError::Closed);
        }
    }

    fn abort(&mut self) {
        if !self.link.is_closed() {
            self.session.close_dropped();
            let _ = self.poll_flush(None);
        } else if !self.link.is_lingering() {
            return;
        }
        self.drop_io(WebSocketError::ConnectionLost);
    }

    /// Ends reading and writing, and drops the transport.
    pub(super) fn drop_io(&mut self, why: WebSocketError) {
        let io = self.take_io(why);
        self.deferred.drop_later(Box::new(io));
    }

    /// Queues the events of the session, and delivers them after the unlock.
    #[cold]
    pub(super) fn queue_notifications(&mut self) {
        self.session.queue_notifications();
        if self.session.notifications().is_some_and(|queue| queue.events.begin_delivery())
            && let Some(shared) = self.shared.upgrade()
        {
            let delivery = event_queue::Delivery::new(shared);
            self.deferred.call(move || delivery.run());
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.slot = ReceiverSlot::Ended;
        self.count_read_buffer();
        // A task that waits to flush ends.
        self.wake();
    }
}
