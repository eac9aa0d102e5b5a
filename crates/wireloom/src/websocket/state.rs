//! State shared by `Sender` and `Receiver`: the outbound half of the protocol core and the transport, behind one mutex. The
//! mutex is locked once for each message that is sent and each read, and never held across an `.await`. Nothing is decoded while it is
//! held, and code of the application runs after the unlock (`guard`).

use std::future::poll_fn;
use std::io;
use std::sync::Weak;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::time::Instant;

use wireloom_ws::frame::Header;
use wireloom_ws::handshake::Negotiated;
use wireloom_ws::{
    CloseCode, Event, IdleInbound, Kind, Misuse, Outbound, Pong, PreparedFrame, Role, Transport,
};

use super::active_receiver::{ActiveReceiver, LenClass};
use super::activity::Activity;
use super::config::{IoUring, SharedConfig, SlowPeer, WebSocketConfig};
use super::flush::{self, BATCH_LEN_MAX, Flush};
use super::linger::Linger;
use super::link::{self, Link, SLICES_MAX};
use super::notifications::{self, Notification, NotificationQueue};
use super::read_buffer::ReadBuffer;
use super::slow::{BUFFERED_LEN_MAX, Slow, SlowCounters};
use super::wakers::Waiter;
use super::{clock, codecs};
use crate::error::WebSocketError;
use crate::guard::{Deferred, Guard, Guardable, Guarded, WakerSlot};
use crate::memory::{Account, Category, Evict, Reservation};
use crate::sync::{Arc, AtomicBool};
use crate::transport::Io;

/// How long a transport is read and drained after a close with 1013.
const OVERLOADED_LINGER: Duration = Duration::from_secs(1);

/// Slices of most writes: the memory of few slices is initialized faster.
const SLICES_FEW: usize = 4;

/// A flush task that runs in parallel to the thread that sends flushes once the batch has not grown for this number of yields: a
/// flush for every message would be a system call for every message.
const YIELDS_WITHOUT_GROWTH: u32 = 16;

/// Bytes that one WebSocket has transferred, with frame headers and control frames, before TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Bytes read.
    pub bytes_received: u64,
    /// Bytes written.
    pub bytes_sent: u64,
}

pub(crate) struct Shared {
    state: Guarded<State>,
    /// The receiver has buffered messages that it has not returned, so a batch may be delayed until they are answered. This
    /// decides when a batch is written, never whether.
    more_buffered: AtomicBool,
    /// A server that shuts down has sent its Close frame: messages that arrive are dropped.
    is_discarding: AtomicBool,
    /// The receiver was dropped within a poll of the future that is driven, and no task receives yet.
    is_detached: AtomicBool,
    senders: AtomicU32,
    is_observed: bool,
    /// `None` if neither a subprotocol nor compression was negotiated.
    negotiated: Option<Box<Negotiated>>,
}

impl Shared {
    pub(super) fn new(core: Outbound, io: Io, config: SharedConfig, negotiated: Negotiated) -> Arc<Self> {
        let SharedConfig { config, observer } = config;
        let is_observed = observer.is_some();
        let rare = is_observed.then(|| {
            Box::new(Rare { notifications: Some(NotificationQueue::new(observer)), ..Rare::default() })
        });
        Arc::new_cyclic(|shared| Self {
            state: Guarded::new(State {
                core,
                link: Link::new(io),
                flush: Flush::Idle,
                going_away: GoingAway::No,
                shared: shared.clone(),
                activity: Activity::default(),
                traffic: Traffic::default(),
                slow: Slow::default(),
                send_queue: Account::default().reservation(Category::SendQueue),
                receiver: WakerSlot::default(),
                parked: None,
                rare,
                read_buffer: ReadBuffer::default(),
                last_len: LenClass::default(),
                latency_us: 0,
                config,
                deferred: Deferred::default(),
            }),
            more_buffered: AtomicBool::new(false),
            is_discarding: AtomicBool::new(false),
            is_detached: AtomicBool::new(false),
            senders: AtomicU32::new(0),
            is_observed,
            negotiated: (negotiated != Negotiated::default()).then(|| Box::new(negotiated)),
        })
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
    pub(super) fn apply<T>(&self, run: impl FnOnce(&mut State) -> T) -> T {
        self.state.with(run)
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
            && state.core.append_message(kind, payload, BATCH_LEN_MAX)
    }

    /// Bytes that are queued for writing. Nothing else happens.
    pub(super) fn queued_len(&self) -> usize {
        self.state.with(|state| state.core.queued_len())
    }

    /// A number for another sender.
    pub(super) fn next_sender(&self) -> u32 {
        self.senders.fetch_add(1, Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn has_more_buffered(&self) -> bool {
        self.more_buffered.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn set_more_buffered(&self, more: bool) {
        self.more_buffered.store(more, Ordering::Relaxed);
    }

    /// The receiver was dropped within a poll of the driven future.
    pub(super) fn detach(&self) {
        self.is_detached.store(true, Ordering::Relaxed);
    }

    /// Whether the receiver was dropped within this poll of the driven future, once.
    pub(super) fn take_detached(&self) -> bool {
        // The thread that polls the future has set it.
        let is_detached = self.is_detached.load(Ordering::Relaxed);
        if is_detached {
            self.is_detached.store(false, Ordering::Relaxed);
        }
        is_detached
    }

    /// Whether messages that arrive are dropped.
    #[inline]
    pub(super) fn is_discarding(&self) -> bool {
        self.is_discarding.load(Ordering::Relaxed)
    }

    /// A sender was dropped.
    pub(super) fn remove_sender(&self, number: u32) {
        self.lock().link.remove_sender(number);
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

    /// The receiver of a connection that was idle, or that waited for the rest of a message.
    #[inline]
    pub(super) fn take_receiver(&self) -> Box<ActiveReceiver> {
        let (parked, idle, last_len, account) = self.state.with(|state| {
            let idle = IdleInbound::new(state.core.role(), &state.config.core);
            (state.parked.take(), idle, state.last_len.len(), state.account().clone())
        });
        parked.unwrap_or_else(|| ActiveReceiver::from_idle(idle, last_len, account))
    }

    /// Requests the closing handshake from outside of both halves. The Close frame is sent when the receiver is polled for the next
    /// message: then all messages that were read have been answered.
    pub(crate) fn request_close(&self) {
        let mut state = self.lock();
        if state.going_away == GoingAway::No {
            state.going_away = GoingAway::Requested;
            state.wake();
        }
    }

    /// Begins the closing handshake that was requested, although the receiver has not been polled again.
    pub(crate) fn go_away(&self) {
        self.lock().go_away();
    }

    /// Also counts slow peers in `counters`.
    pub(crate) fn count_slow_in(&self, counters: Arc<SlowCounters>) {
        self.lock().slow.count_in(counters);
    }

    /// Counts the memory of this WebSocket in the account of its connection, which may close it to free memory.
    pub(crate) fn set_account(self: &Arc<Self>, account: &Account) {
        self.lock().send_queue = account.reservation(Category::SendQueue);
        let this = Arc::downgrade(self);
        account.on_evict(this);
    }

    /// Frees memory of a connection on which nothing has been transferred since the last call, and counts its read buffer.
    pub(crate) fn release_if_idle(&self) {
        let mut state = self.lock();
        state.count_read_buffer();
        let is_compressed = state.core.is_compressed();
        if state.activity.check(is_compressed) {
            state.core.release_buffers();
            if is_compressed {
                state.wake();
            }
        }
    }
}

/// Closes with 1013 and frees the send queue and the message that is arriving, whether or not its task is polled.
impl Evict for Shared {
    fn evict(&self) {
        self.lock().overload();
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
        if self.core.is_compressed() {
            codecs::with(|pool| self.core.return_codec(pool));
        }
        if self.core.wants_write() && !self.flush.is_due() {
            self.schedule();
        }
        if self.rare.is_some() || !self.core.is_open() {
            self.queue_notifications();
        }
    }
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

fn notify_observer(shared: &Shared) {
    notifications::deliver_all(|act: &mut dyn FnMut(&mut NotificationQueue)| {
        shared.state.with(|state| {
            if let Some(queue) = state.notifications() {
                act(queue);
            }
        });
    });
}

pub(super) struct State {
    pub(super) core: Outbound,
    pub(super) link: Link,
    flush: Flush,
    going_away: GoingAway,
    shared: Weak<Shared>,
    activity: Activity,
    pub(super) traffic: Traffic,
    pub(super) slow: Slow,
    /// The memory of the core's queue.
    send_queue: Reservation,
    /// The task of the receiver. The transport and the timer keep its waker too; this one is kept as long, so that theirs is never
    /// the last reference to the task.
    receiver: WakerSlot,
    /// The state of a receiver that waits for the rest of a message.
    parked: Option<Box<ActiveReceiver>>,
    rare: Option<Box<Rare>>,
    read_buffer: ReadBuffer,
    /// See [`ActiveReceiver::last_len`]: kept while the connection is idle.
    last_len: LenClass,
    /// The round-trip time of the last ping that was answered, in microseconds; 0 before.
    latency_us: u32,
    /// Shared by the WebSockets of a server.
    config: Arc<WebSocketConfig>,
    deferred: Deferred,
}

/// State that few connections have, allocated when it is first needed.
#[derive(Default)]
struct Rare {
    /// Created only if the connection is observed.
    notifications: Option<NotificationQueue>,
    /// The time at which the closing handshake begins by itself, and its code.
    close_at: Option<(Duration, CloseCode)>,
    /// Messages that the policy for a slow peer has dropped.
    dropped: u64,
    /// The close code for when the WebSocket is dropped while open.
    on_drop: Option<CloseCode>,
}

/// Whether a server that shuts down has closed this connection. Messages that arrive after its Close frame are read and dropped
/// until the peer's Close frame or the close timeout: closing a socket with unread bytes would reset the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GoingAway {
    No,
    /// The Close frame is sent when the messages that have been read are answered.
    Requested,
    /// The Close frame has been sent; messages that arrive are dropped.
    Discarding,
}

impl State {
    /// Takes a codec of this thread, if messages are compressed. It is returned when the state is unlocked.
    #[inline]
    pub(super) fn take_codec(&mut self) {
        if self.core.is_compressed() {
            codecs::with(|pool| self.core.take_codec(pool));
        }
    }

    /// Whether the receiver must free as much memory as it can.
    pub(super) fn take_release(&mut self) -> bool {
        self.activity.take_release()
    }

    /// Applies a control frame that has arrived.
    pub(super) fn handle_control(&mut self, event: &mut Event<'_>) {
        self.core.handle_event(clock::now(), event);
        if let Event::Pong(Pong { round_trip: Some(round_trip), .. }) = event {
            self.latency_us = u32::try_from(round_trip.as_micros()).unwrap_or(u32::MAX).max(1);
        }
    }

    /// The round-trip time of the last ping that was answered.
    pub(super) fn latency(&self) -> Option<Duration> {
        (self.latency_us > 0).then(|| Duration::from_micros(self.latency_us.into()))
    }

    /// Whether messages can be sent.
    pub(super) fn is_open(&self) -> bool {
        self.core.is_open() && self.link.write_error().is_none()
    }

    /// The receiver was dropped while senders live, with the state of what it has read. True if a task has to be spawned that receives
    /// in its place now, and not at the end of the poll of the driven future.
    pub(super) fn detach_receiver(&mut self, active: Option<Box<ActiveReceiver>>) -> bool {
        if let Some(active) = active {
            self.parked = Some(active);
        }
        !flush::is_driven(self.id())
    }

    /// Keeps the length of the last message while the connection is idle.
    pub(super) fn keep_last_len(&mut self, len: u32) {
        self.last_len = LenClass::of(len);
    }

    /// A read has brought `len` bytes. False if that was the end of the transport.
    pub(super) fn handle_read(&mut self, len: usize) -> bool {
        if len == 0 {
            self.core.handle_eof();
            return false;
        }
        self.traffic.bytes_received += len as u64;
        self.activity.transferred();
        if self.core.keeps_alive() {
            let now = clock::now();
            self.core.handle_activity(now);
        }
        true
    }

    /// Begins the closing handshake if that was requested.
    #[inline]
    pub(super) fn go_away(&mut self) {
        if self.going_away == GoingAway::Requested {
            self.send_going_away();
        }
    }

    #[cold]
    fn send_going_away(&mut self) {
        self.going_away = GoingAway::Discarding;
        if let Some(shared) = self.shared.upgrade() {
            shared.is_discarding.store(true, Ordering::Relaxed);
        }
        let now = clock::now();
        // The code and reason are this crate's own.
        let _ = self.core.close(now, CloseCode::GOING_AWAY, "the server is shutting down");
        let _ = self.poll_flush(None);
        self.wake();
    }

    /// The address of the connection, by which a thread knows what it drives.
    fn id(&self) -> usize {
        self.shared.as_ptr().addr()
    }

    /// Whether a flusher will write the queue.
    pub(super) fn is_flush_due(&mut self) -> bool {
        if !self.flush.is_due() {
            self.schedule();
        }
        !self.flush.is_idle()
    }

    #[cold]
    fn schedule(&mut self) {
        if self.link.write_error().is_none() {
            let task = |is_parallel| flush_in_task(self.shared.clone(), is_parallel);
            self.flush = flush::schedule(self.id(), task);
        }
    }

    /// The future that flushed has ended or was dropped.
    pub(super) fn handle_driver_end(&mut self) {
        if let Flush::AtPollEnd = self.flush {
            self.schedule();
        }
    }

    /// The end of a poll of the future that flushes.
    pub(super) fn flush_driven(&mut self, cx: &Context<'_>) {
        if !self.flush.is_idle() || self.core.wants_write() {
            let _ = self.poll_flush(Some((Waiter::Driver, cx)));
        }
        self.count_read_buffer();
    }

    /// Writes the queue. While the transport is full, a flusher waits for it, and so does `task` if there is one.
    pub(super) fn poll_flush(
        &mut self,
        task: Option<(Waiter, &Context<'_>)>,
    ) -> Poll<Result<(), WebSocketError>> {
        if let Some(error) = self.link.write_error() {
            return Poll::Ready(Err(error.clone()));
        }
        if self.flush.is_idle() && !self.core.wants_write() && !self.link.has_buffered_writes() {
            return Poll::Ready(Ok(()));
        }
        let had_to_wait = self.slow.is_waiting();
        match self.poll_write_all(task) {
            Poll::Pending => {
                if !self.flush.is_due() {
                    self.schedule();
                }
                self.poll_slow(task)
            }
            Poll::Ready(Ok(())) => {
                self.end_flush(had_to_wait);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => {
                let error = self.fail_write(&error);
                self.end_flush(had_to_wait);
                Poll::Ready(Err(error))
            }
        }
    }

    /// The number of bytes that will have been sent when all that is queued now is written.
    ///
    /// # Errors
    /// Nothing can be written any more.
    pub(super) fn queue_end(&self) -> Result<u64, WebSocketError> {
        match self.link.write_error() {
            Some(error) => Err(error.clone()),
            None => Ok(self.traffic.bytes_sent + self.core.queued_len() as u64),
        }
    }

    /// As [`poll_flush`](Self::poll_flush), but ready when the bytes before `end` are written. Other senders may keep the queue from
    /// becoming empty, and the connection may have been closed since.
    pub(super) fn poll_flush_to(
        &mut self,
        end: u64,
        task: Option<(Waiter, &Context<'_>)>,
    ) -> Poll<Result<(), WebSocketError>> {
        let flushed = self.poll_flush(task);
        let is_sent = match &flushed {
            Poll::Ready(Err(WebSocketError::Closed)) => self.traffic.bytes_sent >= end,
            // A transport that buffers has written bytes when as many others have followed as it can buffer.
            Poll::Pending if self.link.has_buffered_writes() => {
                self.traffic.bytes_sent >= end.saturating_add(BUFFERED_LEN_MAX as u64)
            }
            Poll::Pending => self.traffic.bytes_sent >= end,
            Poll::Ready(_) => false,
        };
        if is_sent { Poll::Ready(Ok(())) } else { flushed }
    }

    fn end_flush(&mut self, had_to_wait: bool) {
        self.flush = Flush::Idle;
        if had_to_wait {
            self.link.wake_all();
        }
    }

    /// Called while the transport is full: ready when the peer has been slow for too long.
    fn poll_slow(&mut self, task: Option<(Waiter, &Context<'_>)>) -> Poll<Result<(), WebSocketError>> {
        let now = clock::now();
        if self.send_queue.try_set(self.core.queued_len()).is_err() {
            // The transport is full and accepts no Close frame.
            self.reset(WebSocketError::Overloaded);
            return Poll::Ready(Err(WebSocketError::Overloaded));
        }
        if self.slow.wait(&self.config.slow_peer, now, self.core.queued_len()) {
            // It continues to write and watches the deadline, also when the future that sends is dropped.
            self.wake_receiver();
        }
        let waker = task.map(|task| self.link.register(Some(task)));
        // Without a task there is no timer: the flusher has one.
        let mut cx = waker.as_ref().map(Context::from_waker);
        ready!(self.slow.poll_disconnect(&self.config.slow_peer, cx.as_mut()));
        self.disconnect_slow();
        Poll::Ready(Err(WebSocketError::SlowPeer))
    }

    /// Whether a message that is sent now would wait for too long.
    pub(super) fn is_slow(&self) -> bool {
        self.core.is_congested() || self.slow.is_overdue(clock::now)
    }

    fn poll_write_all(&mut self, task: Option<(Waiter, &Context<'_>)>) -> Poll<io::Result<()>> {
        let mut total = 0;
        let written = loop {
            match self.poll_write_slices(task) {
                Poll::Ready(Ok(0)) => break self.link.poll_flush(task),
                Poll::Ready(Ok(len)) => {
                    total += len;
                    let deferred = &mut self.deferred;
                    self.core.transmitted_with(len, |payload| deferred.drop_later(payload));
                }
                Poll::Ready(Err(error)) => break Poll::Ready(Err(error)),
                Poll::Pending => break Poll::Pending,
            }
        };
        self.count_sent(total);
        // While the transport is full, the connection holds no more than the queue.
        flush::put_buffer(self.core.take_buffer());
        if let Poll::Ready(Ok(())) = written {
            self.slow.clear();
            self.send_queue.set(0);
        }
        written
    }

    /// Writes the first slices of the queue; ready with 0 only if it is empty.
    fn poll_write_slices(&mut self, task: Option<(Waiter, &Context<'_>)>) -> Poll<io::Result<usize>> {
        let mut slices: [&[u8]; SLICES_FEW] = [&[]; SLICES_FEW];
        let count = self.core.poll_transmit(&mut slices);
        if count == 0 {
            return Poll::Ready(Ok(0));
        }
        if count < SLICES_FEW {
            return self.link.write(task, &slices[..count]);
        }
        let mut slices: [&[u8]; SLICES_MAX] = [&[]; SLICES_MAX];
        let count = self.core.poll_transmit(&mut slices);
        self.link.write(task, &slices[..count])
    }

    /// Sends a message whose payload is written from where it is; bytes that the transport does not accept are queued.
    pub(super) fn send_borrowed(&mut self, kind: Kind, payload: &[u8]) -> Result<(), wireloom_ws::Error> {
        let Self { core, link, deferred, .. } = self;
        let (mut total, mut refused) = (0, None);
        let write = |slices: &[&[u8]]| match link.try_write(slices) {
            Ok(len) => {
                total += len;
                Some(len)
            }
            Err(error) => {
                refused = Some(error);
                None
            }
        };
        core.send_borrowed(kind, payload, write, |payload| deferred.drop_later(payload))?;
        self.count_sent(total);
        match refused {
            None => {}
            Some(error) if error.kind() == io::ErrorKind::WouldBlock => {
                // Registers the flusher with the transport.
                let _ = self.poll_flush(None);
            }
            Some(error) => {
                self.fail_write(&error);
            }
        }
        Ok(())
    }

    /// Whether prepared frames may be written to the socket from where they are: nothing is queued, and no one observes or waits.
    pub(super) fn can_write_prepared(&self) -> bool {
        self.core.can_write_prepared()
            && self.link.write_error().is_none()
            && self.link.socket().is_some()
            && self.flush.is_idle()
            && !self.slow.is_waiting()
            && self.rare.as_ref().is_none_or(|rare| rare.notifications.is_none())
    }

    /// Whether batches of writes may use io_uring.
    pub(super) fn uses_ring(&self) -> bool {
        self.config.io_uring != IoUring::Off
    }

    /// A single write of these frames has had this result; [`can_write_prepared`](Self::can_write_prepared) was true before. Queues the rest,
    /// and returns the number of frames that are sent.
    pub(super) fn finish_prepared(
        &mut self,
        frames: &[&PreparedFrame],
        written: io::Result<usize>,
    ) -> Result<usize, wireloom_ws::Error> {
        let (total, refused) = match written.and_then(link::not_zero) {
            Ok(len) => (len, None),
            Err(error) => (0, Some(error)),
        };
        self.count_sent(total);
        if let Some(error) = refused.filter(|error| error.kind() != io::ErrorKind::WouldBlock) {
            self.fail_write(&error);
            return Ok(0);
        }
        let mut rest = total;
        for (sent, frame) in frames.iter().enumerate() {
            let written = rest.min(frame.as_bytes().len());
            rest -= written;
            if written < frame.as_bytes().len() {
                self.core.give_buffer(flush::take_buffer);
            }
            match self.core.send_rest_of_prepared(frame, written) {
                Ok(()) => {}
                Err(wireloom_ws::Error::Misuse(Misuse::QueueFull { .. })) => return Ok(sent),
                Err(error) => return Err(error),
            }
        }
        Ok(frames.len())
    }

    /// The transport has accepted `len` bytes.
    fn count_sent(&mut self, len: usize) {
        if len == 0 {
            return;
        }
        self.traffic.bytes_sent += len as u64;
        self.activity.transferred();
        if self.slow.is_waiting() {
            self.slow.accepted(len);
            let now = clock::now();
            self.core.handle_activity(now);
        }
    }

    /// The next time to call [`State::handle_timeout`].
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let close_at = self.close_at().map(|(at, _)| at);
        let next = self.core.poll_timeout().into_iter().chain(close_at).min()?;
        // A deadline that the clock cannot represent never expires.
        clock::instant_at(next)
    }

    /// Whether the closing handshake has to begin by now ([`Sender::close_after`](super::Sender::close_after)).
    #[inline]
    pub(super) fn must_begin_close(&self) -> bool {
        self.core.is_open() && self.close_at().is_some_and(|(at, _)| at <= clock::now())
    }

    /// Whether the closing handshake has to end by now.
    #[inline]
    pub(super) fn must_end_close(&self) -> bool {
        !self.core.is_open() && self.core.poll_timeout().is_some_and(|deadline| deadline <= clock::now())
    }

    pub(super) fn handle_timeout(&mut self) {
        let now = clock::now();
        if let Some((at, code)) = self.close_at()
            && at <= now
        {
            self.set_close_at(None);
            // The code was checked when it was chosen.
            let _ = self.core.close(now, code, "");
        }
        self.core.handle_timeout(now);
    }

    /// The time at which the closing handshake begins by itself, and its code.
    fn close_at(&self) -> Option<(Duration, CloseCode)> {
        self.rare.as_ref()?.close_at
    }

    pub(super) fn set_close_at(&mut self, close_at: Option<(Duration, CloseCode)>) {
        if self.rare.is_some() || close_at.is_some() {
            self.rare.get_or_insert_default().close_at = close_at;
        }
    }

    /// The close code for when the WebSocket is dropped while open.
    fn on_drop(&self) -> CloseCode {
        self.rare.as_ref().and_then(|rare| rare.on_drop).unwrap_or(CloseCode::GOING_AWAY)
    }

    pub(super) fn set_on_drop(&mut self, code: CloseCode) {
        self.rare.get_or_insert_default().on_drop = Some(code);
    }

    /// The receiver has taken a read buffer.
    #[inline]
    pub(super) fn take_read_buffer(&mut self) {
        self.read_buffer.take();
    }

    /// The receiver has returned its read buffer.
    #[inline]
    pub(super) fn return_read_buffer(&mut self) {
        self.read_buffer.give_back(self.send_queue.account());
    }

    /// Counts the read buffer if the receiver holds it.
    fn count_read_buffer(&mut self) {
        self.read_buffer.count(self.send_queue.account());
    }

    /// The policy for a slow peer.
    #[inline]
    pub(super) fn slow_peer(&self) -> &SlowPeer {
        &self.config.slow_peer
    }

    /// Messages that the policy has dropped.
    pub(super) fn dropped(&self) -> u64 {
        self.rare.as_ref().map_or(0, |rare| rare.dropped)
    }

    pub(super) fn count_dropped(&mut self) {
        self.rare.get_or_insert_default().dropped += 1;
        self.slow.count_dropped();
    }

    /// Nothing can be written any more. Bytes that the peer has sent are still read: its Close frame may be among them.
    fn fail_write(&mut self, error: &io::Error) -> WebSocketError {
        let error = self.link.fail_write(error);
        self.drop_queue();
        self.wake();
        error
    }

    /// Nothing is written any more: drops the queue.
    fn drop_queue(&mut self) {
        let (now, deferred) = (clock::now(), &mut self.deferred);
        self.core.handle_write_failed_with(now, |payload| deferred.drop_later(payload));
        self.flush = Flush::Idle;
        self.slow.clear();
        self.send_queue.set(0);
    }

    /// Nothing more will arrive, and nothing leaves.
    pub(super) fn fail_read(&mut self, error: &io::Error) {
        self.fail(link::failure(error));
    }

    /// The account of the connection.
    pub(super) fn account(&self) -> &Account {
        self.send_queue.account()
    }

    /// The server is out of memory: closes with 1013, if the transport accepts the frame at once, and frees the send queue and the
    /// message that is arriving. The transport lingers, so that the peer can read the frame.
    pub(super) fn overload(&mut self) {
        let now = clock::now();
        let _ = self.core.close(now, CloseCode::TRY_AGAIN_LATER, "out of memory");
        let flushed = self.poll_flush(None);
        if let Some(parked) = &mut self.parked {
            parked.fail_overloaded();
        }
        // The handler holds it until it uses the WebSocket again, which fails: no other connection should be closed for it.
        self.return_read_buffer();
        let mut io = self.take_io(WebSocketError::Overloaded);
        if matches!(flushed, Poll::Ready(Ok(()))) {
            let _ = io.poll_shutdown(&mut Context::from_waker(Waker::noop()));
            let (id, account) = (self.id(), self.account().clone());
            // It may drop the transport.
            self.deferred.call(move || {
                flush::linger(id, &account, || Linger::new(io, Some(Instant::now() + OVERLOADED_LINGER)));
            });
        } else {
            // Unread output holds memory of the kernel.
            io.abandon();
            self.deferred.drop_later(Box::new(io));
        }
    }

    /// Removes the transport: no more reads and writes.
    pub(super) fn take_io(&mut self, why: WebSocketError) -> Io {
        let io = self.link.take_io();
        self.fail(why);
        io
    }

    /// Stores the state of a waiting receiver, so that [`overload`](Self::overload) can free it.
    pub(super) fn park(&mut self, active: Box<ActiveReceiver>) -> Option<Box<ActiveReceiver>> {
        if self.link.is_closed() {
            return Some(active);
        }
        self.parked = Some(active);
        None
    }

    /// Returns the parked state, if any.
    pub(super) fn unpark(&mut self) -> Option<Box<ActiveReceiver>> {
        self.parked.take()
    }

    /// Ends reading and writing.
    pub(super) fn fail(&mut self, error: WebSocketError) {
        self.core.handle_eof();
        self.close_link(error);
        self.wake();
    }

    /// Both halves stop using the transport: for this reason, unless writing has failed before.
    pub(super) fn close_link(&mut self, error: WebSocketError) {
        self.drop_queue();
        self.link.close(error);
    }

    /// Ends a connection whose peer is too slow.
    pub(super) fn disconnect_slow(&mut self) {
        #[cfg(feature = "tracing")]
        tracing::debug!(queued = self.core.queued_len(), "the peer is too slow and is disconnected");
        self.slow.count_disconnected();
        self.reset(WebSocketError::SlowPeer);
    }

    /// Drops the transport and what the kernel has buffered for it, although the application may keep both halves.
    fn reset(&mut self, error: WebSocketError) {
        let io = self.take_io(error);
        io.abandon();
        self.deferred.drop_later(Box::new(io));
    }

    pub(super) fn wake(&mut self) {
        self.wake_receiver();
        self.link.wake_all();
    }

    /// Wakes the task of the receiver.
    pub(super) fn wake_receiver(&mut self) {
        self.deferred.wake_by_ref(&self.receiver);
    }

    /// The receiver is polled by this task.
    #[inline]
    pub(super) fn register_receiver(&mut self, cx: &Context<'_>) {
        self.deferred.register(&mut self.receiver, cx);
    }

    /// The receiver is not polled any more.
    pub(super) fn unregister_receiver(&mut self) {
        self.deferred.unregister(&mut self.receiver);
    }

    /// Shuts the transport down when the core requires it, once the queue is written. True when the connection has ended.
    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>) -> bool {
        if self.link.is_closed() {
            return true;
        }
        match self.core.transport() {
            Transport::Open => false,
            // The transport itself still buffers frames, as TLS does. The close timeout ends that.
            _ if self.slow.is_waiting() && self.core.poll_timeout().is_some() => false,
            Transport::ShutdownWrite => {
                self.link.shut_down(cx);
                false
            }
            Transport::Close => {
                self.link.shut_down(cx);
                true
            }
        }
    }

    /// The end of a connection that was dropped while it could write.
    fn close_on_drop(&mut self) {
        if self.core.is_open() {
            let now = clock::now();
            // RFC 6455 §7.4.1: an unexpected condition.
            let code = if std::thread::panicking() { CloseCode::INTERNAL_ERROR } else { self.on_drop() };
            let _ = self.core.close(now, code, "");
        }
        let is_client = self.core.role() == Role::Client;
        if !self.poll_write_all(None).is_ready() || is_client && !self.link.is_tunnel() {
            return;
        }
        self.link.shut_down(&mut Context::from_waker(Waker::noop()));
        if self.core.poll_timeout().is_none() {
            return;
        }
        // `None` if the clock cannot represent it: it never passes.
        let deadline = self.poll_timeout();
        let (id, account) = (self.id(), self.account().clone());
        let make_linger = || Linger::new(self.link.take_io(), deadline);
        if is_client {
            // Dropping a stream of HTTP/2 resets it, and drops the frames that its connection has not written.
            flush::spawn_linger(make_linger);
        } else {
            flush::linger(id, &account, make_linger);
        }
    }

    #[inline]
    fn notifications(&mut self) -> Option<&mut NotificationQueue> {
        self.rare.as_mut()?.notifications.as_mut()
    }

    /// Queues an event for the observer.
    #[inline]
    pub(super) fn queue_notification(&mut self, notification: impl FnOnce() -> Notification) {
        if let Some(queue) = self.notifications() {
            queue.push(notification());
        }
    }

    /// Queues events for frames that were read.
    pub(super) fn queue_frames(&mut self, frames: Vec<Header>) {
        for frame in frames {
            self.queue_notification(|| Notification::FrameRead(frame));
        }
    }

    /// Queues an event that is traced too, also without an observer.
    pub(super) fn queue_traced(&mut self, notification: Notification) {
        if cfg!(feature = "tracing") || self.notifications().is_some() {
            self.rare.get_or_insert_default().notifications.get_or_insert_default().push(notification);
        }
    }

    /// Queues events for the frames that were queued, and for the end of the connection, and delivers them after the unlock.
    #[cold]
    pub(super) fn queue_notifications(&mut self) {
        let end = self.core.end().cloned().filter(|_| {
            (cfg!(feature = "tracing") || self.notifications().is_some())
                && self.rare.get_or_insert_default().notifications.get_or_insert_default().begin_close()
        });
        let Some(queue) = self.rare.as_mut().and_then(|rare| rare.notifications.as_mut()) else { return };
        queue.push_written(self.core.take_headers(), end);
        if queue.is_waiting()
            && let Some(shared) = self.shared.upgrade()
        {
            self.deferred.call(move || notify_observer(&shared));
        }
    }
}

impl Drop for State {
    /// Both halves were dropped: sends the Close frame if the transport accepts it at once.
    fn drop(&mut self) {
        if self.link.write_error().is_none() {
            self.close_on_drop();
        }
        self.return_read_buffer();
        // A task that waits to flush ends.
        self.wake();
    }
}
