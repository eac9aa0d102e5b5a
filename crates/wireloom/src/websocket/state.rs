//! What both halves of a WebSocket share: the core and the transport. A lock guards it; none is ever held while waiting.

use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::time::Instant;

use wireloom_ws::{CloseCode, Connection, Role, Transport};

use super::config::SlowPeer;
use crate::error::Error;
use crate::io::Io;

/// The most slices that are written at once.
const SLICES_MAX: usize = 32;

pub(crate) struct Shared {
    state: Mutex<State>,
    /// Another message has arrived already, so that what is being sent can wait for its answer.
    pub(super) at_hand: AtomicBool,
}

impl Shared {
    pub(super) fn new(core: Connection, io: Io, epoch: Instant, slow_peer: SlowPeer) -> Arc<Self> {
        let now = Instant::now();
        let state = State {
            core,
            io,
            epoch,
            read_at: now,
            written_at: now,
            deferred: 0,
            watched: false,
            dropped: 0,
            slow_peer,
            waiting: None,
            receiver: None,
            shut: false,
            broken: None,
            on_drop: CloseCode::GOING_AWAY,
        };
        Arc::new(Self { state: Mutex::new(state), at_hand: AtomicBool::new(false) })
    }

    /// A panic while it was held is one in this crate or in an allocation; the state is still one of the core's.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_at_hand(&self) -> bool {
        self.at_hand.load(Ordering::Relaxed)
    }

    /// Begins the closing handshake from outside of both halves.
    pub(crate) fn go_away(&self, code: CloseCode, reason: &str) {
        let mut state = self.lock();
        let now = state.now();
        // The code and reason are this crate's own.
        let _ = state.core.close(now, code, reason);
        // Whoever receives drives the rest; until then as much leaves as the transport takes.
        let _ = state.poll_flush(None);
        state.wake();
    }

    /// Writes what was deferred when its sender does not come back for so long. It ends with the first quiet period.
    pub(super) async fn flush_soon(shared: Weak<Self>, period: Duration) {
        let mut seen = Instant::now();
        loop {
            tokio::time::sleep(period).await;
            let Some(shared) = shared.upgrade() else { return };
            let mut state = shared.lock();
            if state.deferred > 0 {
                if state.poll_flush(None).is_pending() {
                    // Whoever receives goes on writing.
                    state.wake();
                }
                state.deferred = 0;
            } else if state.written_at <= seen {
                state.watched = false;
                return;
            }
            seen = Instant::now();
        }
    }

    /// Gives back what a connection that was quiet for so long can do without.
    pub(crate) fn release_after(&self, quiet: Duration) {
        let mut state = self.lock();
        if state.read_at.elapsed() > quiet && state.written_at.elapsed() > quiet {
            state.core.release_buffers();
        }
    }
}

pub(super) struct State {
    pub(super) core: Connection,
    pub(super) io: Io,
    epoch: Instant,
    /// When the last read brought something.
    pub(super) read_at: Instant,
    pub(super) written_at: Instant,
    /// Messages that were sent without a write since the last write.
    pub(super) deferred: u32,
    /// A task looks after what is deferred; see [`Shared::flush_soon`].
    pub(super) watched: bool,
    pub(super) dropped: u64,
    pub(super) slow_peer: SlowPeer,
    /// Made when a write first has to wait.
    waiting: Option<(Arc<Waiting>, Waker)>,
    /// Whoever waits for a message.
    pub(super) receiver: Option<Waker>,
    /// The writing side has been ended.
    shut: bool,
    /// The transport failed.
    pub(super) broken: Option<Error>,
    pub(super) on_drop: CloseCode,
}

/// Which half waits.
#[derive(Clone, Copy)]
pub(super) enum Half {
    Receiver,
    Sender,
}

impl State {
    pub(super) fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    pub(super) fn time(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.epoch)
    }

    pub(super) fn instant(&self, time: Duration) -> Instant {
        self.epoch + time
    }

    /// Writes what waits. `who` is woken when more can be written; nobody is when there is no one.
    pub(super) fn poll_flush(&mut self, who: Option<(Half, &Context<'_>)>) -> Poll<Result<(), Error>> {
        if let Some(error) = &self.broken {
            return Poll::Ready(Err(error.clone()));
        }
        // Most writes are taken at once; a waker is made when one is not.
        match self.poll_write_all(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => {}
            ready => {
                if let Some((waiting, _)) = &self.waiting {
                    waiting.wake_all();
                }
                return ready;
            }
        }
        let waker = self.waker_for(who);
        self.poll_write_all(&mut Context::from_waker(&waker))
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
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(self.fail(&io::ErrorKind::WriteZero.into()))),
                Poll::Ready(Ok(len)) => {
                    wrote = true;
                    self.core.transmitted(len);
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(self.fail(&error))),
                Poll::Pending => {
                    if wrote {
                        self.written_at = Instant::now();
                    }
                    return Poll::Pending;
                }
            }
        }
        if wrote {
            self.deferred = 0;
            self.written_at = Instant::now();
        }
        match self.io.poll_flush(cx) {
            Poll::Ready(Ok(())) => Poll::Ready(Ok(())),
            Poll::Ready(Err(error)) => Poll::Ready(Err(self.fail(&error))),
            Poll::Pending => Poll::Pending,
        }
    }

    /// A waker that wakes every half that waits, this one among them: the transport remembers one alone.
    pub(super) fn waker_for(&mut self, who: Option<(Half, &Context<'_>)>) -> Waker {
        let (waiting, waker) = self.waiting.get_or_insert_with(|| {
            let waiting = Arc::new(Waiting::default());
            let waker = Waker::from(waiting.clone());
            (waiting, waker)
        });
        if let Some((half, cx)) = who {
            waiting.register(half, cx.waker());
        }
        waker.clone()
    }

    /// The transport failed: nothing can be read or written any more.
    pub(super) fn fail(&mut self, error: &io::Error) -> Error {
        let error = match error.kind() {
            // TLS calls an end without close_notify unexpected; so do resets, and the peer's Close frame may have been
            // read before.
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe => Error::Cut,
            kind => Error::Io(kind),
        };
        self.cut(error.clone());
        error
    }

    /// Nothing is to be read or written any more.
    pub(super) fn cut(&mut self, error: Error) {
        self.core.handle_eof();
        self.broken.get_or_insert(error);
        self.wake();
    }

    pub(super) fn wake(&mut self) {
        if let Some(receiver) = self.receiver.take() {
            receiver.wake();
        }
        if let Some((waiting, _)) = &self.waiting {
            waiting.wake_all();
        }
    }

    /// Does with the transport what the core says, once nothing is left to write. True when all is over.
    pub(super) fn settle(&mut self, cx: &mut Context<'_>) -> bool {
        if self.broken.is_some() {
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
            let _ = self.core.close(now, self.on_drop, "");
        }
        let cx = &mut Context::from_waker(Waker::noop());
        if self.poll_write_all(cx).is_ready() && self.core.role() == Role::Server {
            self.shut_down(cx);
        }
    }
}

/// The halves that wait for the transport.
#[derive(Default)]
struct Waiting {
    halves: Mutex<[Option<Waker>; 2]>,
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
