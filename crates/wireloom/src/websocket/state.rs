//! What both halves of a WebSocket share: the sending half of the core and the transport. A lock guards it, which is taken
//! for every read and every write, not for every message; none is ever held while waiting.

use std::io::{self, IoSlice};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::time::Instant;

use wireloom_ws::{CloseCode, IdleInbound, Initiator, Kind, Outbound, Role, Transport};

use super::config::SlowPeer;
use super::observer::{Observed, Watch};
use super::slow::{Slow, SlowTally};
use super::stage;
use crate::error::Error;
use crate::transport::Io;

/// The most slices that are written at once.
const SLICES_MAX: usize = 32;

/// What one WebSocket has moved through its transport, in bytes: frame headers and control frames too, before TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Bytes read.
    pub bytes_received: u64,
    /// Bytes written.
    pub bytes_sent: u64,
}

pub(crate) struct Shared {
    state: Mutex<State>,
    /// More has arrived than was handed out, so that what is being sent can wait for its answer.
    at_hand: AtomicBool,
    /// Nothing is queued, and whole messages can be sent.
    clear: AtomicBool,
    /// What has gathered on a thread's stage has been taken from there so often.
    unloads: AtomicU32,
    /// The receiver is to give back what memory it can.
    pub(super) release: AtomicBool,
    observer: Watch,
    /// What the receiving half is made of again, where that can be.
    pub(super) idle: Option<IdleInbound>,
    pub(super) subprotocol: Option<Box<str>>,
    pub(super) compressed: bool,
}

impl Shared {
    pub(super) fn new(
        core: Outbound,
        io: Io,
        slow_peer: SlowPeer,
        observer: Watch,
        idle: Option<IdleInbound>,
        subprotocol: Option<String>,
        compressed: bool,
    ) -> Arc<Self> {
        let state = State {
            core,
            io,
            epoch: Instant::now(),
            moves: 0,
            moves_seen: 0,
            released: false,
            deferred: 0,
            watched: false,
            dropped: 0,
            traffic: Traffic::default(),
            slow: Slow::new(slow_peer),
            waiting: None,
            receiver: None,
            shut: false,
            ending: false,
            over: false,
            broken: None,
            on_drop: CloseCode::GOING_AWAY,
            close_at: None,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            at_hand: AtomicBool::new(false),
            clear: AtomicBool::new(true),
            unloads: AtomicU32::new(0),
            release: AtomicBool::new(false),
            observer,
            idle,
            subprotocol: subprotocol.map(String::into_boxed_str),
            compressed,
        })
    }

    /// What tells connections apart while they live.
    #[inline]
    pub(super) fn id(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self).addr()
    }

    /// The state, with what has gathered on this thread's stage in its queue.
    pub(super) fn lock(self: &Arc<Self>) -> Locked<'_> {
        let mut locked = self.lock_alone();
        if let Some(frames) = stage::take(self.id()) {
            // What is sent after the closing handshake has begun is not sent.
            let _ = locked.core.send_frames(frames.as_slice());
            stage::put_back(frames);
            self.count_unload();
        }
        locked
    }

    /// The state, with what has gathered on this thread's stage written, as far as the transport takes it at once.
    pub(super) fn lock_written(self: &Arc<Self>) -> Locked<'_> {
        let mut locked = self.lock_alone();
        if let Some(frames) = stage::take(self.id()) {
            locked.write_frames(frames.as_slice());
            stage::put_back(frames);
            self.count_unload();
        }
        locked
    }

    /// A panic while it was held is one in this crate or in an allocation; the state is still one of the core's.
    fn lock_alone(&self) -> Locked<'_> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Locked { shared: self, state }
    }

    fn count_unload(&self) {
        self.unloads.store(self.unloads.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// See [`Shared::unloads`]; what was put on the stage before it grew is in the queue after.
    #[inline]
    pub(super) fn unloads(&self) -> u32 {
        self.unloads.load(Ordering::Acquire)
    }

    #[inline]
    pub(super) fn is_at_hand(&self) -> bool {
        self.at_hand.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn set_at_hand(&self, at_hand: bool) {
        self.at_hand.store(at_hand, Ordering::Relaxed);
    }

    /// Whether frames and messages are watched.
    #[inline]
    pub(super) fn is_watched(&self) -> bool {
        self.observer.0.is_some()
    }

    /// Tells whoever watches.
    pub(super) fn tell(&self, event: &Observed<'_>) {
        self.observer.tell(event);
    }

    /// Tells whoever watches what has been queued, and that the connection is to end, if that is news.
    #[inline]
    pub(super) fn tell_news(&self, state: &mut State) {
        let ends = !state.ending && state.core.end().is_some();
        if ends || self.is_watched() {
            self.tell_written(state, ends);
        }
    }

    #[cold]
    fn tell_written(&self, state: &mut State, ends: bool) {
        state.ending |= ends;
        // The peer's Close frame has come before this end's went.
        let by_peer = state.core.end().is_some_and(|end| end.by == Initiator::Peer);
        let tell_end = |state: &State| {
            if let Some(end) = state.core.end().filter(|_| ends) {
                self.tell(&Observed::CloseBegun(end));
            }
        };
        if by_peer {
            tell_end(state);
        }
        for frame in state.core.frames_seen() {
            self.tell(&Observed::FrameWritten(frame));
        }
        if !by_peer {
            tell_end(state);
        }
    }

    #[inline]
    pub(super) fn is_clear(&self) -> bool {
        self.clear.load(Ordering::Relaxed)
    }

    /// Writes what a poll of the task has sent and not written; whether some of it has to wait.
    pub(super) fn write_gathered(self: &Arc<Self>, cx: Option<&Context<'_>>) -> bool {
        let mut state = self.lock_written();
        state.core.wants_write() && state.poll_flush(cx.map(|cx| (Half::Task, cx))).is_pending()
    }

    /// Begins the closing handshake from outside of both halves.
    pub(crate) fn go_away(self: &Arc<Self>, code: CloseCode, reason: &str) {
        let mut state = self.lock();
        let now = state.now();
        // The code and reason are this crate's own.
        let _ = state.core.close(now, code, reason);
        // Whoever receives drives the rest; until then as much leaves as the transport takes.
        let _ = state.poll_flush(None);
        state.wake();
    }

    /// Writes what was deferred, unless that has left by then: at the next turn of the runtime, or `after` some time.
    pub(super) async fn flush_deferred(shared: Weak<Self>, after: Option<Duration>) {
        if let Some(after) = after {
            tokio::time::sleep(after).await;
        }
        let Some(shared) = shared.upgrade() else { return };
        let mut state = shared.lock();
        state.watched = false;
        if std::mem::take(&mut state.deferred) > 0 && state.poll_flush(None).is_pending() {
            // Whoever receives goes on writing.
            state.wake();
        }
    }

    /// Counts what its peer's slowness comes to there too.
    pub(crate) fn count_slow_in(self: &Arc<Self>, tally: Arc<SlowTally>) {
        self.lock().slow.count_in(tally);
    }

    /// Gives back what a connection can do without on which nothing has moved since this was asked before.
    pub(crate) fn release_if_quiet(self: &Arc<Self>) {
        let mut state = self.lock();
        let moves = state.moves;
        let is_quiet = std::mem::replace(&mut state.moves_seen, moves) == moves;
        if !is_quiet || std::mem::replace(&mut state.released, true) {
            return;
        }
        state.core.release_buffers();
        if self.compressed {
            self.release.store(true, Ordering::Relaxed);
            state.wake();
        }
    }
}

/// The state, locked.
pub(super) struct Locked<'a> {
    shared: &'a Shared,
    state: MutexGuard<'a, State>,
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let state = &mut *self.state;
        self.shared.tell_news(state);
        let core = &state.core;
        let clear =
            core.queued_len() == 0 && core.is_open() && !core.is_under_way() && state.broken.is_none();
        if clear != self.shared.is_clear() {
            self.shared.clear.store(clear, Ordering::Relaxed);
        }
    }
}

pub(super) struct State {
    pub(super) core: Outbound,
    pub(super) io: Io,
    epoch: Instant,
    /// Reads that brought something and writes that took something, and how many there were when this was last found quiet.
    pub(super) moves: u32,
    moves_seen: u32,
    /// What can be done without has been given back since.
    released: bool,
    /// Messages that were sent without a write since the last write.
    pub(super) deferred: u32,
    /// A task looks after what is deferred; see [`Shared::flush_deferred`].
    pub(super) watched: bool,
    pub(super) dropped: u64,
    pub(super) traffic: Traffic,
    pub(super) slow: Slow,
    /// Made when a write first has to wait.
    waiting: Option<Arc<Waiting>>,
    /// Whoever waits for a message.
    pub(super) receiver: Option<Waker>,
    /// The writing side has been ended.
    shut: bool,
    /// That the connection ends has been told.
    ending: bool,
    /// Nothing is to be read or written any more.
    over: bool,
    /// Why nothing can be written any more.
    broken: Option<Box<Error>>,
    pub(super) on_drop: CloseCode,
    /// When the closing handshake is to begin on its own, and with what code.
    pub(super) close_at: Option<Box<(Duration, CloseCode)>>,
}

/// Who waits.
#[derive(Clone, Copy)]
pub(super) enum Half {
    Receiver,
    Sender,
    /// The task that both are used in.
    Task,
}

impl State {
    pub(super) fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// Why nothing can be written any more.
    pub(super) fn broken(&self) -> Option<&Error> {
        self.broken.as_deref()
    }

    /// Nothing can be written any more, for this reason unless there is one already.
    pub(super) fn set_broken(&mut self, error: Error) -> &Error {
        self.broken.get_or_insert_with(|| Box::new(error))
    }

    /// Bytes have come or gone.
    pub(super) fn count_move(&mut self) {
        self.moves = self.moves.wrapping_add(1);
        self.released = false;
    }

    /// Writes what waits. `who` is woken when more can be written; nobody is when there is no one.
    pub(super) fn poll_flush(&mut self, who: Option<(Half, &Context<'_>)>) -> Poll<Result<(), Error>> {
        if let Some(error) = self.broken() {
            return Poll::Ready(Err(error.clone()));
        }
        if !self.core.wants_write() && !self.io.holds_back() {
            return Poll::Ready(Ok(()));
        }
        let waits = self.slow.waits();
        // Most writes are taken at once; a waker is made when one is not.
        match self.poll_write_all(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => {}
            ready => {
                // Those who wait for it. When nobody does, whoever asks is not to wake itself, or it would go round for ever.
                if let Some(waiting) = self.waiting.as_ref().filter(|_| waits) {
                    waiting.wake_all();
                }
                return ready;
            }
        }
        let waker = self.waker_for(who);
        let mut cx = Context::from_waker(&waker);
        match self.poll_write_all(&mut cx) {
            // Without a task there is no timer: the receiver has been called for it.
            Poll::Pending => self.poll_patience(who.is_some().then_some(&mut cx)),
            ready => ready,
        }
    }

    /// Something has to wait for the peer: ready when that has been slow for too long.
    fn poll_patience(&mut self, cx: Option<&mut Context<'_>>) -> Poll<Result<(), Error>> {
        let now = self.now();
        if self.slow.wait(now, self.core.queued_len())
            && let Some(receiver) = self.receiver.take()
        {
            // It goes on writing and minds the time, also when the future that sends is dropped.
            receiver.wake();
        }
        if self.slow.poll_cut(cx, self.epoch).is_pending() {
            return Poll::Pending;
        }
        self.cut_slow();
        Poll::Ready(Err(Error::SlowPeer))
    }

    /// Whether what is sent now would wait too long.
    pub(super) fn is_slow(&self) -> bool {
        self.core.is_congested() || self.slow.is_late(|| self.now())
    }

    fn poll_write_all(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let mut wrote = false;
        loop {
            let mut slices: [&[u8]; SLICES_MAX] = [&[]; SLICES_MAX];
            let count = self.core.poll_transmit(&mut slices);
            if count == 0 {
                break;
            }
            let written = if count == 1 {
                self.io.poll_write(cx, &[IoSlice::new(slices[0])])
            } else {
                let io_slices = slices.map(IoSlice::new);
                self.io.poll_write(cx, &io_slices[..count])
            };
            match written {
                Poll::Ready(Ok(0)) => {
                    return Poll::Ready(Err(self.fail_write(&io::ErrorKind::WriteZero.into())));
                }
                Poll::Ready(Ok(len)) => {
                    wrote = true;
                    self.count_sent(len);
                    self.core.transmitted(len);
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(self.fail_write(&error))),
                Poll::Pending => {
                    if wrote {
                        self.count_move();
                    }
                    return Poll::Pending;
                }
            }
        }
        if wrote {
            self.deferred = 0;
            self.count_move();
        }
        match self.io.poll_flush(cx) {
            Poll::Ready(Ok(())) => {
                self.slow.clear();
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(self.fail_write(&error))),
            Poll::Pending => Poll::Pending,
        }
    }

    /// The transport has taken so many bytes.
    fn count_sent(&mut self, len: usize) {
        self.traffic.bytes_sent += len as u64;
        self.slow.taken(len);
    }

    /// Writes whole frames past the queue, if it is empty; what the transport does not take at once is queued.
    fn write_frames(&mut self, frames: &[u8]) {
        if self.broken.is_some() || !self.core.is_open() {
            return;
        }
        let mut written = 0;
        if self.core.queued_len() == 0 {
            written = self.write_past(&[IoSlice::new(frames)]);
        }
        if written < frames.len() {
            let _ = self.core.send_frames(&frames[written..]);
        }
    }

    /// Sends a message of which the transport takes as much as it does from where it lies.
    pub(super) fn send_through(&mut self, kind: Kind, payload: &[u8]) -> Result<(), wireloom_ws::Error> {
        let (mut failed, mut taken) = (None, 0);
        let Self { core, io, .. } = self;
        core.send_through(kind, payload, |header, payload| {
            let slices = [IoSlice::new(header), IoSlice::new(payload)];
            match io.poll_write(&mut Context::from_waker(Waker::noop()), &slices) {
                Poll::Ready(Ok(written)) => {
                    taken = written;
                    written
                }
                Poll::Ready(Err(error)) => {
                    failed = Some(error);
                    0
                }
                Poll::Pending => 0,
            }
        })?;
        self.count_sent(taken);
        if let Some(error) = failed {
            self.fail_write(&error);
        }
        self.count_move();
        Ok(())
    }

    /// Writes this now; how much of it the transport took.
    fn write_past(&mut self, slices: &[IoSlice<'_>]) -> usize {
        match self.io.poll_write(&mut Context::from_waker(Waker::noop()), slices) {
            Poll::Ready(Ok(written)) => {
                self.count_sent(written);
                self.count_move();
                written
            }
            Poll::Ready(Err(error)) => {
                self.fail_write(&error);
                0
            }
            Poll::Pending => 0,
        }
    }

    /// The next time to call [`State::handle_timeout`].
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let close_at = self.close_at.as_ref().map(|close_at| close_at.0);
        let next = self.core.poll_timeout().into_iter().chain(close_at).min()?;
        Some(self.epoch + next)
    }

    pub(super) fn handle_timeout(&mut self) {
        let now = self.now();
        if let Some(close_at) = self.close_at.take_if(|close_at| close_at.0 <= now) {
            // The code was judged when it was chosen.
            let _ = self.core.close(now, close_at.1, "");
        }
        self.core.handle_timeout(now);
    }

    /// A waker that wakes everyone who waits, this one among them: the transport remembers one alone.
    pub(super) fn waker_for(&mut self, who: Option<(Half, &Context<'_>)>) -> Waker {
        let waiting = self.waiting.get_or_insert_default();
        if let Some((half, cx)) = who {
            waiting.register(half, cx.waker());
        }
        Waker::from(waiting.clone())
    }

    /// Nothing can be written any more. What the peer has sent before is still read: its Close frame may be among it.
    fn fail_write(&mut self, error: &io::Error) -> Error {
        let error = failure(error);
        let error = self.set_broken(error).clone();
        let now = self.now();
        self.core.handle_write_failed(now);
        self.wake();
        error
    }

    /// Nothing more will arrive, and nothing leaves.
    pub(super) fn fail_read(&mut self, error: &io::Error) {
        self.cut(failure(error));
    }

    /// Nothing is to be read or written any more.
    pub(super) fn cut(&mut self, error: Error) {
        self.core.handle_eof();
        self.set_broken(error);
        self.over = true;
        self.wake();
    }

    /// Ends a connection whose peer is too slow. It is reset, so that neither is what the kernel holds kept for that.
    pub(super) fn cut_slow(&mut self) {
        #[cfg(feature = "tracing")]
        tracing::debug!(queued = self.core.queued_len(), "the peer is slow and is cut");
        self.slow.count_cut();
        self.io.abandon();
        self.cut(Error::SlowPeer);
    }

    pub(super) fn wake(&mut self) {
        if let Some(receiver) = self.receiver.take() {
            receiver.wake();
        }
        if let Some(waiting) = &self.waiting {
            waiting.wake_all();
        }
    }

    /// Does with the transport what the core says, once nothing is left to write. True when all is over.
    pub(super) fn settle(&mut self, cx: &mut Context<'_>) -> bool {
        if self.over {
            return true;
        }
        match self.core.transport() {
            Transport::Open => false,
            Transport::ShutdownWrite => {
                self.shut_down(cx);
                false
            }
            Transport::Close => {
                self.shut_down(cx);
                true
            }
        }
    }

    fn shut_down(&mut self, cx: &mut Context<'_>) {
        if !self.shut {
            self.shut = self.io.poll_shutdown(cx).is_ready();
        }
    }
}

impl Drop for State {
    /// Nobody will receive or send any more: says so as far as that is possible without waiting.
    fn drop(&mut self) {
        if self.broken.is_some() {
            return;
        }
        if self.core.is_open() {
            let now = self.now();
            // RFC 6455 §7.4.1: an end that nobody expected.
            let code = if std::thread::panicking() { CloseCode::INTERNAL_ERROR } else { self.on_drop };
            let _ = self.core.close(now, code, "");
        }
        let cx = &mut Context::from_waker(Waker::noop());
        if self.poll_write_all(cx).is_ready() && self.core.role() == Role::Server {
            self.shut_down(cx);
        }
    }
}

/// What a transport's failure is called.
fn failure(error: &io::Error) -> Error {
    match error.kind() {
        // TLS calls an end without close_notify unexpected; so do resets.
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe => Error::Cut,
        kind => Error::Io(kind.into()),
    }
}

/// Those who wait for the transport.
#[derive(Default)]
struct Waiting {
    halves: Mutex<[Option<Waker>; 3]>,
}

impl Waiting {
    fn register(&self, half: Half, waker: &Waker) {
        let mut halves = self.halves.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = &mut halves[half as usize];
        if !slot.as_ref().is_some_and(|old| old.will_wake(waker)) {
            *slot = Some(waker.clone());
        }
    }

    fn wake_all(&self) {
        let halves = std::mem::take(&mut *self.halves.lock().unwrap_or_else(PoisonError::into_inner));
        halves.into_iter().flatten().for_each(Waker::wake);
    }
}

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        self.wake_all();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_all();
    }
}
