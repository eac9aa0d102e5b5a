//! The task of a connection: moves bytes between the transport and the core, and acts on deadlines.

use std::future::{Future as _, poll_fn};
use std::io::{self, IoSlice};
use std::pin::pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Instant;
use wireloom_http2::error::{Error as CoreError, ErrorCode, Exceeded};
use wireloom_http2::{Config, Ended, Role};
use wireloom_ws::Keepalive;

use super::deadlines::{Deadlines, Timer};
use super::driver_handle::DriverState;
use super::incoming::{Incoming, IncomingRequests};
use super::memory_report::{MemoryReport, Reported};
use super::read_buffer::ReadBuffer;
use super::requests::Requests;
use super::shared::Shared;
use super::state::State;
use super::timers::{Drain, IdleTimer, KeepaliveAction, KeepaliveTimer, ShrinkTimer};
use crate::error::HttpError;
use crate::guard::Guard;
use crate::memory::{Account, Evict};
use crate::sync::Arc;
use crate::transport::budget::Budget;
use crate::transport::{BUFFERED_LEN_MAX, Io};

/// Slices of one vectored write: a header and a payload for each frame that the core prepares.
const SLICES_MAX: usize = 64;

/// The limit on unsent bytes in the kernel's buffer (`TCP_NOTSENT_LOWAT`). Urgent frames wait for them: 33 ms at 2 MB/s.
const UNSENT_MAX: u32 = 64 << 10;

/// The time for which the transport is read after the end of the connection, so that the peer receives GOAWAY instead of a reset.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);

/// The maximum number of bytes that are read in this time.
const LINGER_LEN_MAX: usize = 1 << 20;

/// Reads after a write has failed: a peer that has closed cannot have sent more than the kernel has buffered.
const READS_AFTER_FAILURE_MAX: usize = 64;

/// The payload of keepalive PINGs.
const KEEPALIVE_PING: [u8; 8] = *b"wl alive";

/// Owns the transport of a connection.
pub(crate) struct Driver {
    io: Io,
    shared: Arc<Shared>,
    input: ReadBuffer,
    /// Bytes to write before the output of the core.
    prefix: &'static [u8],
    /// The transport did not accept all of the last write, or buffers some of it.
    blocked: bool,
    deadlines: Deadlines,
    idle: IdleTimer,
    drain: Drain,
    keepalive: Option<KeepaliveTimer>,
    shrink: ShrinkTimer,
    memory: MemoryReport,
    budget: Budget,
    /// The number of tasks that were woken since the driver last yielded.
    woken_len: usize,
    /// The transport is not read, for lack of memory or of processor time.
    is_stopped: bool,
    /// The peer sends no more.
    is_half_closed: bool,
    /// The transport has failed, or what is left has no receiver.
    is_disconnected: bool,
    ended: bool,
}

/// Why [`Driver::poll`] is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Requests have arrived.
    Incoming,
    /// The connection has ended.
    Ended,
}

/// The outcome of a pass of the read side.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Read {
    /// Bytes arrived or were buffered.
    Some,
    /// The transport has none, and wakes the driver when it does.
    Pending,
    /// The connection may not read now, for lack of processor time: the peer may have sent something.
    Stopped,
    /// As `Stopped`, for lack of memory: the connection holds some that it has received, and none that the peer has yet to grant window for.
    OutOfMemory,
    /// Output must leave before more is read.
    Paused,
    /// End of stream, or the transport failed.
    Eof,
}

/// What the core wants of the transport, when the mutex was last held.
#[derive(Clone, Copy)]
struct Wants {
    read: bool,
    /// Content is queued that the peer may have to grant window for.
    window: bool,
}

impl Wants {
    fn of(state: &State) -> Self {
        Self { read: state.core.wants_read(), window: state.core.memory().queued > 0 }
    }
}

impl Driver {
    /// Speaks HTTP/2 over a transport, from the preface on.
    ///
    /// # Errors
    /// A setting is out of range.
    pub(crate) fn new(io: Io, role: Role, config: Config) -> Result<Self, HttpError> {
        Ok(Self::with_shared(io, Shared::new(role, config)?))
    }

    /// Drives a connection that exists already.
    pub(crate) fn with_shared(io: Io, shared: Arc<Shared>) -> Self {
        io.limit_unsent(UNSENT_MAX);
        Self {
            io,
            shared,
            input: ReadBuffer::default(),
            prefix: &[],
            blocked: false,
            deadlines: Deadlines::default(),
            idle: IdleTimer::default(),
            drain: Drain::NotStarted,
            keepalive: None,
            shrink: ShrinkTimer::default(),
            memory: MemoryReport::default(),
            budget: Budget::default(),
            woken_len: 0,
            is_stopped: false,
            is_half_closed: false,
            is_disconnected: false,
            ended: false,
        }
    }

    /// Writes `prefix` before anything else.
    pub(crate) fn with_prefix(mut self, prefix: &'static [u8]) -> Self {
        self.prefix = prefix;
        self
    }

    /// Handles `bytes` before reading from the transport.
    pub(crate) fn with_read_ahead(mut self, bytes: &[u8]) -> Self {
        self.input = ReadBuffer::from_slice(bytes);
        self
    }

    /// Shuts down gracefully when there was no stream for `timeout`.
    pub(crate) fn with_idle_timeout(mut self, timeout: Duration) -> Self {
        self.idle.timeout = Some(timeout);
        self
    }

    /// Sends a PING to a silent peer, and ends the connection if there is no answer.
    pub(crate) fn with_keepalive(mut self, keepalive: Option<Keepalive>) -> Self {
        self.keepalive = keepalive.map(|config| KeepaliveTimer::new(config, Instant::now()));
        self
    }

    /// Reports the connection's memory to a server's accountant.
    pub(crate) fn with_account(mut self, account: &Account) -> Self {
        let shared: Arc<dyn Evict> = self.shared.clone();
        account.on_evict(Arc::downgrade(&shared));
        self.shared.lock().reported = Reported::Memory { total: 0, is_queued: false };
        self.memory = MemoryReport::new(account.clone());
        self
    }

    /// Memory is freed after `interval` without a write.
    #[cfg(test)]
    pub(super) fn with_shrink_interval(mut self, interval: Duration) -> Self {
        self.shrink.interval = interval;
        self
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The handle with which a client opens requests.
    pub(crate) fn requests(&self) -> Requests {
        Requests::new(self.shared.clone())
    }

    /// Drives a client's connection to its end.
    pub(crate) async fn run(mut self) {
        let mut incoming = Vec::new();
        while poll_fn(|cx| self.poll(cx, &mut incoming)).await == Progress::Incoming {
            incoming.clear();
        }
        self.linger().await;
    }

    /// Moves bytes until the transport is exhausted in both directions.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, incoming: &mut Vec<Incoming>) -> Poll<Progress> {
        if self.ended {
            return Poll::Ready(Progress::Ended);
        }
        let shared = self.shared.clone();
        let mut incoming = IncomingRequests::new(&shared, incoming);
        let mut wants = {
            let mut state = shared.lock();
            let previous = std::mem::replace(&mut state.driver.state, DriverState::Running);
            // One of several tasks that the last read woke has sent something. The others run before the driver writes, so that their
            // output leaves in the same write.
            if previous == DriverState::WokenByCommand && self.woken_len > 1 {
                self.woken_len = 0;
                drop(state);
                return yield_now(cx);
            }
            state.advance_clock();
            Wants::of(&state)
        };
        loop {
            // Without the mutex, so that other tasks can use the handles of the connection meanwhile.
            let read = if wants.read { self.read(cx, wants) } else { Ok(Read::Paused) };
            let mut state = shared.lock();
            if read.is_err() {
                // Those of TLS fail when a peer that still reads ends its side without `close_notify`: what is queued is offered once.
                let _ = self.write(cx, &mut state);
            }
            let read = self.handle_read(&mut state, read, &mut incoming);
            state.handle_events();
            if !incoming.is_empty() {
                self.idle.handle_request();
                // Handlers that answer at once do so in this task.
                self.budget.spend(incoming.len() * Budget::REQUEST);
                self.unlock(state);
                return Poll::Ready(Progress::Incoming);
            }
            let written = self.write(cx, &mut state);
            if let Err(error) = &written {
                self.read_rest(cx, &mut state, &mut incoming);
                self.disconnect(&mut state, transport_error(error));
            }
            if read == Read::Eof {
                self.is_half_closed = true;
            }
            if self.is_half_closed && state.core.role() == Role::Client {
                self.disconnect(&mut state, HttpError::ConnectionLost);
            } else if self.is_half_closed && state.handlers > 0 {
                // A client that sends no more has disconnected for handlers that wait, as over HTTP/1.1. It receives what is ready.
                state.fail_unanswered();
            }
            state.handle_events();
            if self.has_ended(&state) {
                self.end(state);
                return Poll::Ready(Progress::Ended);
            }
            let now = state.now();
            let State { unread, core, .. } = &mut *state;
            unread.reset_due(core, now);
            wants = Wants::of(&state);
            let again = read == Read::Some
                || (read == Read::OutOfMemory && wants.window)
                || (wants.read && (read == Read::Paused || !self.input.is_empty()))
                || !incoming.is_empty()
                || (!self.blocked && state.core.wants_write());
            if !again && self.poll_deadlines(cx, &mut state).is_pending() {
                let is_timed_when_idle = self.idle.timeout.is_some() || state.core.is_going_away();
                state.park_driver(cx, self.deadlines.armed(), is_timed_when_idle);
                self.unlock(state);
                return Poll::Pending;
            }
            self.unlock(state);
            // The tasks that read this content run first: content that they do not read must be copied before the next read.
            if read == Read::Some && self.input.is_empty() && self.input.is_borrowed() {
                return yield_now(cx);
            }
        }
    }

    fn unlock(&mut self, mut state: Guard<'_, State>) {
        let memory = state.core.memory();
        state.reported.set(&memory);
        if state.deferred.wakers_len() > 0 {
            self.woken_len = state.deferred.wakers_len();
        }
        drop(state);
        // What TLS buffers for a peer that does not read is in no queue of the core.
        let is_buffered = self.blocked && self.io.left_len().is_some();
        self.memory.report(&memory, if is_buffered { BUFFERED_LEN_MAX } else { 0 });
    }

    /// Reads once if nothing is buffered. With or without the mutex.
    fn read(&mut self, cx: &mut Context<'_>, wants: Wants) -> io::Result<Read> {
        if !self.input.is_empty() {
            return Ok(Read::Some);
        }
        // Other connections first, once the tasks of this one have had their share.
        let stopped = if self.budget.poll_paid(self.memory.account(), cx).is_pending() {
            Some(Read::Stopped)
        // What is read may grant the window without which queued content is never freed.
        } else if self.memory.poll_read_allowed(cx).is_pending() && !wants.window {
            Some(Read::OutOfMemory)
        } else {
            None
        };
        if let Some(stopped) = stopped {
            if let Some(keepalive) = &mut self.keepalive {
                keepalive.handle_activity(Instant::now());
            }
            return Ok(stopped);
        }
        match self.input.poll_fill(cx, &mut self.io)? {
            Poll::Ready(0) => Ok(Read::Eof),
            Poll::Ready(len) => {
                self.budget.spend(len);
                if let Some(keepalive) = &mut self.keepalive {
                    keepalive.handle_activity(Instant::now());
                }
                Ok(Read::Some)
            }
            Poll::Pending => {
                // An idle connection holds no read buffer.
                self.input.clear();
                Ok(Read::Pending)
            }
        }
    }

    /// Passes the bytes that were read to the core.
    fn handle_read(
        &mut self,
        state: &mut State,
        read: io::Result<Read>,
        incoming: &mut IncomingRequests<'_>,
    ) -> Read {
        let is_stopped = matches!(read, Ok(Read::Stopped | Read::OutOfMemory));
        if is_stopped != self.is_stopped {
            // A peer that is not read cannot be late.
            self.is_stopped = is_stopped;
            state.core.set_reading(state.now(), !is_stopped);
        }
        match read {
            Ok(Read::Some) => {}
            Ok(Read::Eof) => {
                state.core.handle_eof();
                return Read::Eof;
            }
            Err(error) => {
                self.disconnect(state, transport_error(&error));
                return Read::Eof;
            }
            Ok(read) => return read,
        }
        if self.input.is_borrowed() {
            state.slots.copy_borrowed();
        }
        self.input.share();
        let (bytes, buffer) = self.input.bytes();
        state.peer_preface.handle_input(bytes);
        match incoming.handle_input(state, bytes, buffer) {
            Ok(consumed) => self.input.consume(consumed),
            Err(error) => {
                // GOAWAY is in the output, and further input is ignored.
                self.input.clear();
                state.fail(error);
            }
        }
        Read::Some
    }

    /// Nothing more is written.
    fn disconnect(&mut self, state: &mut State, error: HttpError) {
        self.is_disconnected = true;
        state.core.handle_disconnect();
        state.fail(error);
    }

    /// Reads what the peer had sent when a write failed: it may have sent GOAWAY with the reason before it closed.
    fn read_rest(&mut self, cx: &mut Context<'_>, state: &mut State, incoming: &mut IncomingRequests<'_>) {
        for _ in 0..READS_AFTER_FAILURE_MAX {
            let wants = Wants::of(state);
            if state.core.ended().is_some() || !wants.read {
                return;
            }
            let read = self.read(cx, wants);
            if !matches!(read, Ok(Read::Some)) {
                return;
            }
            self.handle_read(state, read, incoming);
        }
    }

    /// Writes until the core has no output and the transport has none, or it accepts no more.
    fn write(&mut self, cx: &mut Context<'_>, state: &mut State) -> io::Result<()> {
        let was_blocked = std::mem::take(&mut self.blocked);
        let left_before = self.io.left_len();
        let mut accepted = 0;
        let written = self.poll_write(cx, state, &mut accepted);
        self.blocked = written.is_pending();
        // Of a transport that buffers, bytes count when they leave it.
        let len = match (left_before, self.io.left_len()) {
            (Some(before), Some(left)) => usize::try_from(left - before).unwrap_or(usize::MAX),
            _ => accepted,
        };
        if len > 0 {
            self.drain.handle_written(len, state.core.limits());
            if was_blocked && let Some(keepalive) = &mut self.keepalive {
                // The transport has room again: the peer has read. A PING is behind what it has not read.
                keepalive.handle_activity(Instant::now());
            }
        }
        match written {
            Poll::Ready(written) => written,
            Poll::Pending => Ok(()),
        }
    }

    /// Ready when all output has left. Adds the number of bytes that the transport accepts to `accepted`.
    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        state: &mut State,
        accepted: &mut usize,
    ) -> Poll<io::Result<()>> {
        loop {
            state.defer_spent();
            let now = state.now();
            let mut slices: [&[u8]; SLICES_MAX] = [&[]; SLICES_MAX];
            let (first, rest) = slices.split_at_mut(1);
            let count = if self.prefix.is_empty() {
                state.core.poll_transmit(now, &mut slices)
            } else {
                first[0] = self.prefix;
                1 + state.core.poll_transmit(now, rest)
            };
            if count == 0 {
                return self.io.poll_flush(cx);
            }
            let offered = slices[..count].iter().map(|slice| slice.len()).sum::<usize>() - self.prefix.len();
            let written = if count == 1 {
                self.io.poll_write(cx, &[IoSlice::new(slices[0])])
            } else {
                self.io.poll_write(cx, &slices.map(IoSlice::new)[..count])
            };
            match ready!(written) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(len) => {
                    self.shrink.handle_written();
                    *accepted += len;
                    let prefix_len = len.min(self.prefix.len());
                    self.prefix = &self.prefix[prefix_len..];
                    state.core.transmitted(now, len - prefix_len);
                }
                Err(error) => {
                    if self.io.may_write_before_error() {
                        // A request among them may have reached the server.
                        state.core.transmitted(now, offered);
                    }
                    return Poll::Ready(Err(error));
                }
            }
        }
    }

    /// Whether the core has ended, and its output is written or will not be read.
    fn has_ended(&mut self, state: &State) -> bool {
        if state.is_aborted {
            self.blocked = true;
            return true;
        }
        let Some(ended) = state.core.ended() else { return false };
        if self.is_disconnected || !(state.core.wants_write() || self.blocked) {
            return true;
        }
        let now = Instant::now();
        self.drain.update(&state.core, 0, self.blocked, now);
        let stalled = matches!(ended, Ended::Failed(CoreError::Limit { exceeded: Exceeded::Stalled, .. }));
        stalled || self.drain.deadline(&state.core).is_some_and(|deadline| deadline <= now)
    }

    fn end(&mut self, mut state: Guard<'_, State>) {
        self.ended = true;
        if self.blocked {
            // The peer does not read: the kernel need not keep the rest for it.
            self.io.abandon();
        }
        self.input.clear();
        self.deadlines.clear();
        // Nothing is written any more, also if the server has aborted the connection.
        state.core.handle_disconnect();
        let error = match state.core.ended() {
            Some(Ended::Failed(error)) => HttpError::Http2(error),
            Some(Ended::Drained) => HttpError::Closed,
            _ => HttpError::ConnectionLost,
        };
        state.fail(error);
        self.unlock(state);
    }

    /// Ready when a deadline has expired and was acted on.
    fn poll_deadlines(&mut self, cx: &mut Context<'_>, state: &mut State) -> Poll<()> {
        let now = self.update_deadlines(state);
        let Poll::Ready(now) = self.deadlines.poll(cx, now) else { return Poll::Pending };
        while let Some(timer) = self.deadlines.take_expired(now) {
            self.handle_deadline(timer, now, state);
        }
        Poll::Ready(())
    }

    /// Returns the current time.
    fn update_deadlines(&mut self, state: &State) -> Instant {
        let (now, core, streams) = (Instant::now(), &state.core, state.streams());
        self.idle.update(streams, now);
        self.drain.update(core, streams, self.blocked, now);
        let is_going_away = core.is_going_away();
        self.deadlines.set(Timer::Core, state.deadline().map(|deadline| state.instant(deadline)));
        self.deadlines.set(Timer::Keepalive, self.keepalive.as_ref().map(KeepaliveTimer::deadline));
        self.deadlines.set(Timer::Idle, self.idle.deadline().filter(|_| !is_going_away));
        self.deadlines.set(Timer::Drain, self.drain.deadline(core));
        self.deadlines.set(Timer::Shrink, self.shrink.deadline(now));
        now
    }

    fn handle_deadline(&mut self, timer: Timer, now: Instant, state: &mut State) {
        match timer {
            Timer::Core => state.handle_timeout(),
            Timer::Keepalive => self.handle_silence(now, state),
            Timer::Idle => state.core.shutdown(),
            Timer::Drain => match self.drain {
                Drain::AwaitingPeer { .. } => state.core.abort(ErrorCode::NO_ERROR, b""),
                Drain::Flushing { .. } if state.core.ended().is_none() => {
                    // The peer does not read: `end` abandons the transport.
                    self.disconnect(state, HttpError::ConnectionLost);
                }
                // `has_ended` compares the time.
                Drain::NotStarted | Drain::Flushing { .. } | Drain::Failing { .. } => {}
            },
            Timer::Shrink => {
                if self.shrink.handle_deadline() {
                    state.shrink();
                }
            }
        }
    }

    fn handle_silence(&mut self, now: Instant, state: &mut State) {
        let Some(keepalive) = &mut self.keepalive else { return };
        if !state.core.wants_read() {
            // Nothing was read: the peer may have sent something.
            keepalive.handle_activity(now);
        }
        match keepalive.handle_deadline(now) {
            KeepaliveAction::Wait => {}
            KeepaliveAction::SendPing => {
                // Fails when the connection has ended, or the peer has acknowledged none of many: that one is dead if it stays
                // silent.
                let _ = state.core.send_ping(state.now(), KEEPALIVE_PING);
            }
            KeepaliveAction::PeerDead => {
                self.keepalive = None;
                self.io.abandon();
                self.disconnect(state, HttpError::KeepaliveTimeout);
            }
        }
    }

    /// Ends the write side and reads until the peer closes, so that it receives GOAWAY instead of a reset.
    pub(crate) async fn linger(mut self) {
        let work = async {
            poll_fn(|cx| self.io.poll_shutdown(cx)).await?;
            let mut total = 0;
            while total < LINGER_LEN_MAX {
                let len = poll_fn(|cx| self.input.poll_fill(cx, &mut self.io)).await?;
                if len == 0 {
                    break;
                }
                self.input.consume(len);
                total += len;
            }
            io::Result::Ok(())
        };
        let _ = tokio::time::timeout(LINGER_TIMEOUT, work).await;
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.budget.reset(self.memory.account());
        let mut state = self.shared.lock();
        state.core.handle_disconnect();
        state.fail(HttpError::ConnectionLost);
    }
}

fn transport_error(error: &io::Error) -> HttpError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe => HttpError::ConnectionLost,
        kind => HttpError::Io(kind.into()),
    }
}

/// Polls the driver again once the other tasks that can run have run.
fn yield_now<T>(cx: &mut Context<'_>) -> Poll<T> {
    let _ = pin!(tokio::task::yield_now()).poll(cx);
    Poll::Pending
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use std::pin::Pin;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
    use wireloom_http2::field::{Field, Token};
    use wireloom_testing::http2::{Frame, GET, PREFACE, code, join};

    use super::*;
    use crate::memory::{Category, Memory};
    use crate::transport::counted::Counted;
    use crate::transport::tls::{ServerTls, provider};

    /// A client that sends PING as fast as it is read.
    struct Flood {
        opening: &'static [u8],
    }

    impl AsyncRead for Flood {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let budget = std::task::ready!(tokio::task::coop::poll_proceed(cx));
            budget.made_progress();
            let opening = std::mem::take(&mut self.opening);
            buf.put_slice(if opening.is_empty() { b"\0\0\x08\x06\0\0\0\0\0question" } else { opening });
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Flood {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_never_stops_sending_does_not_postpone_deadlines() {
        const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 4, 1, 0, 0, 0, 0];
        let opening = Vec::leak([PREFACE, SETTINGS].concat());
        let mut driver =
            Driver::new(Io::Other(Box::new(Flood { opening })), Role::Server, Config::new(Role::Server))
                .unwrap()
                .with_idle_timeout(Duration::from_secs(60));
        let shared = driver.shared().clone();
        let driving = tokio::spawn(async move {
            let mut incoming = Vec::new();
            poll_fn(|cx| driver.poll(cx, &mut incoming)).await
        });
        let start = Instant::now();
        let is_going_away = || shared.lock().core.is_going_away();
        while start.elapsed() < Duration::from_secs(58) {
            assert!(!is_going_away());
            // Each poll reads until its budget is used up.
            tokio::time::advance(Duration::from_secs(2)).await;
        }
        for _ in 0..3 {
            tokio::time::advance(Duration::from_secs(2)).await;
        }
        assert!(is_going_away(), "the idle timeout of 60 s has passed");
        driving.abort();
    }

    /// A server that sends GOAWAY and closes when `closes` is set.
    struct Closing {
        input: Vec<u8>,
        closes: Arc<AtomicBool>,
        /// A byte was accepted since then.
        has_accepted: bool,
    }

    impl AsyncRead for Closing {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            if self.input.is_empty() {
                return Poll::Pending;
            }
            buf.put_slice(&std::mem::take(&mut self.input));
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Closing {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            if self.closes.load(Ordering::Relaxed) {
                // The request has begun to leave.
                if !std::mem::replace(&mut self.has_accepted, true) {
                    return Poll::Ready(Ok(1));
                }
                self.input = Frame::goaway(1, code::ENHANCE_YOUR_CALM, "").to_bytes();
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn the_reason_of_a_server_that_has_closed_is_read_after_a_failed_write() {
        let closes = Arc::new(AtomicBool::new(false));
        let input = Frame::settings(&[]).to_bytes();
        let io = Closing { input, closes: closes.clone(), has_accepted: false };
        let driver = Driver::new(Io::Other(Box::new(io)), Role::Client, Config::new(Role::Client)).unwrap();
        let requests = driver.requests();
        tokio::spawn(driver.run());
        requests.ready().await.unwrap();
        closes.store(true, Ordering::Relaxed);
        let fields = GET.iter().map(|(name, value)| Field::new(name.as_bytes(), value.as_bytes()));
        let (_send, mut recv) = requests.open(fields, true).unwrap();
        assert_eq!(recv.head().await.unwrap_err(), HttpError::GoAway(ErrorCode::ENHANCE_YOUR_CALM));
    }

    // Its requests are answered within one poll, so that no stream is open whenever the driver waits.
    #[tokio::test(start_paused = true)]
    async fn a_busy_connection_is_not_idle() {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        let opening = [Frame::settings(&[]), Frame::settings_ack()];
        client.write_all(&[PREFACE, &join(&opening)].concat()).await.unwrap();
        let timeout = Duration::from_secs(60);
        let mut driver =
            Driver::new(Io::Other(Box::new(server)), Role::Server, Config::new(Role::Server)).unwrap();
        driver = driver.with_idle_timeout(timeout);
        let shared = driver.shared().clone();
        let answering = shared.clone();
        tokio::spawn(async move {
            let mut incoming = Vec::new();
            while poll_fn(|cx| driver.poll(cx, &mut incoming)).await == Progress::Incoming {
                for request in incoming.drain(..) {
                    answering
                        .send_response(request.key, [Field::known(Token::Status, b"200")], "a".into())
                        .unwrap();
                }
            }
        });
        for stream in 0..20 {
            client.write_all(&Frame::get(1 + 2 * stream).to_bytes()).await.unwrap();
            tokio::time::sleep(timeout / 6).await;
            assert!(!shared.lock().core.is_going_away(), "{stream}");
        }
        tokio::time::sleep(timeout).await;
        assert!(shared.lock().core.is_going_away());
    }

    // The driver waits again before the task of the handler learns that its stream was reset.
    #[tokio::test(start_paused = true)]
    async fn a_connection_whose_last_request_is_reset_is_idle() {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        let opening = [Frame::settings(&[]), Frame::settings_ack(), Frame::get(1)];
        client.write_all(&[PREFACE, &join(&opening)].concat()).await.unwrap();
        let timeout = Duration::from_secs(60);
        let mut driver =
            Driver::new(Io::Other(Box::new(server)), Role::Server, Config::new(Role::Server)).unwrap();
        driver = driver.with_idle_timeout(timeout);
        let shared = driver.shared().clone();
        let handling = shared.clone();
        tokio::spawn(async move {
            let mut incoming = Vec::new();
            while poll_fn(|cx| driver.poll(cx, &mut incoming)).await == Progress::Incoming {
                for request in incoming.drain(..) {
                    let handler = handling.handler_of(request.key).unwrap();
                    tokio::spawn(async move { poll_fn(|cx| handler.poll_failed(cx)).await });
                }
            }
        });
        // Nothing is left that would wake the driver.
        tokio::time::sleep(timeout).await;
        client.write_all(&Frame::rst_stream(1, code::CANCEL).to_bytes()).await.unwrap();
        tokio::time::sleep(timeout - Duration::from_secs(1)).await;
        assert!(!shared.lock().core.is_going_away());
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(shared.lock().core.is_going_away());
    }

    // Its acknowledgement of SETTINGS and the rest of its frame are not read, and arrive in time.
    #[tokio::test(start_paused = true)]
    async fn a_peer_that_is_not_read_for_lack_of_memory_is_not_late() {
        const MAX: usize = 64 << 20;
        let memory = Memory::new(MAX);
        let account = memory.account();
        let (mut client, server) = tokio::io::duplex(1 << 20);
        let get = Frame::get(1).to_bytes();
        client.write_all(&[PREFACE, &Frame::settings(&[]).to_bytes(), &get[..5]].concat()).await.unwrap();
        let mut driver =
            Driver::new(Io::Other(Box::new(server)), Role::Server, Config::new(Role::Server)).unwrap();
        driver = driver.with_account(&account);
        let shared = driver.shared().clone();
        let (answered, answering) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            let mut incoming = Vec::new();
            let progress = poll_fn(|cx| driver.poll(cx, &mut incoming)).await;
            answered.send((progress, driver)).ok().unwrap();
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut held = account.reservation(Category::Body);
        held.set(MAX - 1);
        client.write_all(&[&get[5..], &Frame::settings_ack().to_bytes()].concat()).await.unwrap();
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert_eq!(shared.lock().core.ended(), None);
        }
        drop(held);
        let (progress, _driver) = answering.await.unwrap();
        assert_eq!(progress, Progress::Incoming);
        assert_eq!(shared.lock().core.ended(), None);
    }

    /// A client of a server that is near its memory limit, whose connection holds `queued` bytes of a response and nothing else. Returns
    /// how much of it arrives at a client that grants window for what it has read.
    async fn content_read_near_the_limit(queued: usize, is_queued_first: bool) -> usize {
        const MAX: usize = 64 << 20;
        let memory = Memory::new(MAX);
        let (account, other) = (memory.account(), memory.account());
        let (mut client, server) = tokio::io::duplex(1 << 20);
        let opening = [Frame::settings(&[]), Frame::settings_ack(), Frame::get(1)];
        client.write_all(&[PREFACE, &join(&opening)].concat()).await.unwrap();
        let driver =
            Driver::new(Io::Other(Box::new(server)), Role::Server, Config::new(Role::Server)).unwrap();
        let mut driver = driver.with_account(&account);
        let shared = driver.shared().clone();
        let (requested, request) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            let (mut incoming, mut requested) = (Vec::new(), Some(requested));
            while poll_fn(|cx| driver.poll(cx, &mut incoming)).await == Progress::Incoming {
                requested.take().unwrap().send(incoming.pop().unwrap()).ok().unwrap();
            }
        });
        let mut send = shared.send_stream(request.await.unwrap().key);
        // All of the window.
        let window = 65_535;
        send.send_response([Field::known(Token::Status, b"200")], false).unwrap();
        send.send(vec![CONTENT; window].into(), false).unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (mut held, mut of_connection) =
            (other.reservation(Category::Body), account.reservation(Category::Body));
        let mut rest = Some(vec![CONTENT; queued - window]);
        if is_queued_first {
            send.send(rest.take().unwrap().into(), true).unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        held.set(MAX / 4 * 3);
        // What only reading can free is not all that the connection holds.
        of_connection.set(100_000);
        let (mut total, mut bytes) = (0, vec![0; 1 << 16]);
        while total < queued {
            let Ok(read) = tokio::time::timeout(Duration::from_secs(100), client.read(&mut bytes)).await
            else {
                break;
            };
            let bytes = &bytes[..read.unwrap()];
            let len = bytes.iter().filter(|&&byte| byte == CONTENT).count();
            total += len;
            if len > 0 {
                let grants = [Frame::window_update(0, len as u32), Frame::window_update(1, len as u32)];
                client.write_all(&join(&grants)).await.unwrap();
            }
            if total == window
                && let Some(rest) = rest.take()
            {
                // The server does not read any more.
                tokio::time::sleep(Duration::from_secs(1)).await;
                send.send(rest.into(), true).unwrap();
            }
        }
        total
    }

    // The rest of what has arrived is read under the mutex.
    #[test]
    fn near_the_memory_limit_a_write_that_fails_ends_the_connection() {
        let (ended, has_ended) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                const MAX: usize = 64 << 20;
                let memory = Memory::new(MAX);
                let (account, other) = (memory.account(), memory.account());
                let (mut client, server) = tokio::io::duplex(1 << 20);
                let opening = [Frame::settings(&[]), Frame::settings_ack(), Frame::get(1)];
                client.write_all(&[PREFACE, &join(&opening)].concat()).await.unwrap();
                let driver =
                    Driver::new(Io::Other(Box::new(server)), Role::Server, Config::new(Role::Server))
                        .unwrap();
                let mut driver = driver.with_account(&account);
                let shared = driver.shared().clone();
                let mut incoming = Vec::new();
                assert!(poll_fn(|cx| driver.poll(cx, &mut incoming)).await == Progress::Incoming);
                let mut send = shared.send_stream(incoming.pop().unwrap().key);
                let mut held = other.reservation(Category::Body);
                held.set(MAX / 4 * 3);
                let mut of_connection = account.reservation(Category::Body);
                of_connection.set(100_000);
                drop(client);
                send.send_response([Field::known(Token::Status, b"204")], true).unwrap();
                assert!(poll_fn(|cx| driver.poll(cx, &mut incoming)).await == Progress::Ended);
            });
            ended.send(()).unwrap();
        });
        match has_ended.recv_timeout(Duration::from_secs(60)) {
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("a deadlock"),
            _ => thread.join().unwrap(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn near_the_memory_limit_the_windows_for_queued_content_are_read() {
        for is_queued_first in [true, false] {
            for queued in [1 << 20, 70_000] {
                assert_eq!(content_read_near_the_limit(queued, is_queued_first).await, queued);
            }
        }
    }

    // It receives what it can, although one of its requests is never answered.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_sends_no_more_receives_what_is_ready() {
        const LEN: usize = 60_000;
        for waits in [false, true] {
            let (mut client, server) = tokio::io::duplex(1_000);
            let mut opening = vec![Frame::settings(&[]), Frame::settings_ack(), Frame::get(1)];
            opening.extend(waits.then(|| Frame::get(3)));
            client.write_all(&[PREFACE, &join(&opening)].concat()).await.unwrap();
            client.shutdown().await.unwrap();
            let mut driver =
                Driver::new(Io::Other(Box::new(server)), Role::Server, Config::new(Role::Server)).unwrap();
            let shared = driver.shared().clone();
            let driving = tokio::spawn(async move {
                let (mut incoming, mut handlers, mut is_answered) = (Vec::new(), Vec::new(), false);
                while poll_fn(|cx| driver.poll(cx, &mut incoming)).await == Progress::Incoming {
                    for request in incoming.drain(..) {
                        if !std::mem::replace(&mut is_answered, true) {
                            let status = [Field::known(Token::Status, b"200")];
                            shared.send_response(request.key, status, vec![CONTENT; LEN].into()).unwrap();
                            continue;
                        }
                        let handler = shared.handler_of(request.key).unwrap();
                        handlers
                            .push(tokio::spawn(async move { poll_fn(|cx| handler.poll_failed(cx)).await }));
                    }
                }
                driver.linger().await;
                assert!(handlers.iter().all(tokio::task::JoinHandle::is_finished));
            });
            let (mut received, mut bytes) = (Vec::new(), [0; 1_000]);
            while let Ok(len @ 1..) = client.read(&mut bytes).await {
                received.extend_from_slice(&bytes[..len]);
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            driving.await.unwrap();
            assert_eq!(received.iter().filter(|&&byte| byte == CONTENT).count(), LEN, "{waits}");
            let has = |frame: Frame| received.windows(13).any(|bytes| frame.to_bytes().starts_with(bytes));
            assert!(has(Frame::goaway(if waits { 3 } else { 1 }, code::NO_ERROR, "")), "{waits}");
            assert_eq!(has(Frame::rst_stream(3, code::CANCEL)), waits);
        }
    }

    // The driver lives for a while after the end, so that the peer receives GOAWAY.
    #[tokio::test]
    async fn a_connection_that_is_evicted_frees_what_was_not_read_at_once() {
        let memory = Memory::new(64 << 20);
        let account = memory.account();
        let (mut client, server) = tokio::io::duplex(1 << 20);
        let opening = [Frame::settings(&[]), Frame::settings_ack(), Frame::post(1)];
        let content: Vec<_> = (0..3).map(|_| Frame::data(1, vec![CONTENT; 16_384])).collect();
        client.write_all(&[PREFACE, &join(&opening), &join(&content)].concat()).await.unwrap();
        let mut driver =
            Driver::new(Io::Other(Box::new(server)), Role::Server, Config::new(Role::Server)).unwrap();
        driver = driver.with_account(&account);
        let shared = driver.shared().clone();
        let (mut requests, mut incoming) = (Vec::new(), Vec::new());
        let drive = async |driver: &mut Driver, incoming: &mut Vec<Incoming>| {
            let driven = poll_fn(|cx| driver.poll(cx, incoming));
            tokio::time::timeout(Duration::from_millis(20), driven).await.ok()
        };
        while drive(&mut driver, &mut incoming).await.is_some() {
            requests.append(&mut incoming);
        }
        assert_eq!(requests.len(), 1);
        assert!(memory.stats().http2_windows > 40_000, "{:?}", memory.stats());
        shared.evict();
        assert_eq!(drive(&mut driver, &mut incoming).await, Some(Progress::Ended));
        assert_eq!(memory.stats().total, 0, "{:?}", memory.stats());
    }

    /// A byte that no head has.
    const CONTENT: u8 = 0xfe;

    /// The two ends of a connection over TCP or TLS, on which `step` bytes pass to the client every second.
    async fn slow_link(tls: bool, step: usize) -> (Io, Io) {
        let (server, near) = tokio::io::duplex(1_000);
        let (far, client) = tokio::io::duplex(1 << 20);
        let (mut from_server, mut to_server) = tokio::io::split(near);
        let (mut from_client, mut to_client) = tokio::io::split(far);
        tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
        tokio::spawn(async move {
            let mut bytes = vec![0; step];
            while let Ok(len @ 1..) = from_server.read(&mut bytes).await {
                to_client.write_all(&bytes[..len]).await.unwrap();
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            to_client.shutdown().await.unwrap();
        });
        let (client, server) = (Io::of(client), Io::of(server));
        if tls { over_tls(client, server).await } else { (client, server) }
    }

    async fn over_tls(client: Io, server: Io) -> (Io, Io) {
        let name = "localhost";
        let (tls, certificate) = ServerTls::self_signed(&[name]).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(certificate.der().into()).unwrap();
        let config = rustls::ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connecting = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config))
            .connect(name.try_into().unwrap(), Counted::new(client));
        let (client, server) = tokio::join!(connecting, tls.accept(Counted::new(server)));
        let tls = |stream: tokio_rustls::TlsStream<Counted>| Io::Tls(Box::new(stream));
        (tls(client.unwrap().into()), tls(server.unwrap().into()))
    }

    /// A server that responds with 40,000 bytes to a request and shuts down, and a client that reads `step` bytes every second.
    /// Returns how much of the content has arrived, and the maximum of memory that the server has counted for it.
    async fn content_read_after_shutdown(tls: bool, step: usize, stall_timeout: Duration) -> (usize, usize) {
        let (client, server) = slow_link(tls, step).await;
        let mut client = client.into_transport();
        let opening = [Frame::settings(&[]), Frame::settings_ack(), Frame::get(1)];
        client.write_all(&[PREFACE, &join(&opening)].concat()).await.unwrap();
        client.flush().await.unwrap();
        let mut config = Config::new(Role::Server);
        config.limits.stall_timeout = stall_timeout;
        let memory = Memory::new(64 << 20);
        let account = memory.account();
        let mut driver = Driver::new(server, Role::Server, config).unwrap().with_account(&account);
        let shared = driver.shared().clone();
        tokio::spawn(async move {
            let mut incoming = Vec::new();
            while poll_fn(|cx| driver.poll(cx, &mut incoming)).await == Progress::Incoming {
                let key = incoming.pop().unwrap().key;
                let status = [Field::known(Token::Status, b"200")];
                shared.send_response(key, status, vec![CONTENT; 40_000].into()).unwrap();
                shared.shut_down();
            }
            driver.linger().await;
        });
        let (mut received, mut counted, mut bytes) = (0, 0, vec![0; 1 << 16]);
        while let Ok(len @ 1..) = client.read(&mut bytes).await {
            received += bytes[..len].iter().filter(|&&byte| byte == CONTENT).count();
            counted = counted.max(memory.stats().send_queues);
        }
        (received, counted)
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_client_receives_its_response_although_the_server_goes_away() {
        let timeout = Duration::from_secs(60);
        for tls in [false, true] {
            for step in [1_000, 100] {
                let (received, counted) = content_read_after_shutdown(tls, step, timeout).await;
                assert_eq!(received, 40_000, "{tls} {step}");
                // What TLS holds counts too.
                assert!(counted >= 20_000, "{tls} {step}: {counted}");
            }
            // A client that takes less than 1,024 bytes in each timeout is stalled.
            let (received, _) = content_read_after_shutdown(tls, 10, timeout).await;
            assert!(received < 40_000, "{tls}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_reads_steadily_is_alive_without_an_answer() {
        // It reads output that precedes the PING, and has no reason to send anything.
        let (client, mut server) = tokio::io::duplex(1_000);
        let window = 1 << 20;
        let opening =
            [Frame::settings(&[(4, window)]), Frame::settings_ack(), Frame::window_update(0, window)];
        server.write_all(&join(&opening)).await.unwrap();
        let keepalive =
            Keepalive { ping_after: Duration::from_secs(10), dead_after: Duration::from_secs(25) };
        let driver = Driver::new(Io::Other(Box::new(client)), Role::Client, Config::new(Role::Client))
            .unwrap()
            .with_keepalive(Some(keepalive));
        let requests = driver.requests();
        tokio::spawn(driver.run());
        requests.ready().await.unwrap();
        let fields = GET.iter().map(|(name, value)| Field::new(name.as_bytes(), value.as_bytes()));
        let (mut send, _recv) = requests.open(fields, false).unwrap();
        send.send(vec![CONTENT; 200_000].into(), true).unwrap();
        for _ in 0..100 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            server.read_exact(&mut [0; 100]).await.unwrap();
            assert!(requests.is_open());
        }
        // One that does not read is dead.
        tokio::time::sleep(Duration::from_secs(24)).await;
        assert!(requests.is_open());
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(!requests.is_open());
    }
}
