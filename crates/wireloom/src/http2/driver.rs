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
use crate::transport::{BUFFERED_LEN_MAX, Io, Linger, is_lost};

/// Slices of one vectored write: a header and a payload for each frame that the core prepares.
const SLICES_MAX: usize = 64;

/// The limit on unsent bytes in the kernel's buffer (`TCP_NOTSENT_LOWAT`). Urgent frames wait for them: 33 ms at 2 MB/s.
const UNSENT_MAX: u32 = 64 << 10;

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
    phase: Phase,
}

/// How far the connection is on its way to the end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Open,
    /// The peer sends no more.
    HalfClosed,
    /// The transport has failed, or what is left has no receiver.
    Disconnected,
    Ended,
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

/// The core's interest in the transport, as of the last time the mutex was held.
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
            phase: Phase::Open,
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
        if self.phase == Phase::Ended {
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
                self.phase = self.phase.max(Phase::HalfClosed);
            }
            if self.phase == Phase::HalfClosed {
                match state.core.role() {
                    Role::Client => self.disconnect(&mut state, HttpError::ConnectionLost),
                    // For handlers that wait the client has disconnected, as over HTTP/1.1. It receives what is ready.
                    Role::Server if state.handlers > 0 => state.fail_unanswered(),
                    Role::Server => {}
                }
            }
            state.handle_events();
            if self.has_ended(&state) {
                self.end(state);
                return Poll::Ready(Progress::Ended);
            }
            if read != Read::Some && self.input.is_empty() {
                // Otherwise the end of a request may be among what is read next: the peer is not late if this process is.
                state.reset_unread();
            }
            wants = Wants::of(&state);
            let again = read == Read::Some
                || (read == Read::OutOfMemory && wants.window)
                || (wants.read && read != Read::Stopped && (read == Read::Paused || !self.input.is_empty()))
                || !incoming.is_empty()
                || (!self.blocked && state.core.wants_write());
            if !again && self.poll_deadlines(cx, &mut state).is_pending() {
                let is_timed_when_idle = self.idle.timeout.is_some() || state.core.is_going_away();
                state.park_driver(cx, self.deadlines.armed(), is_timed_when_idle);
                self.unlock(state);
                return Poll::Pending;
            }
            self.unlock(state);
            // The tasks that read this content run first: content that they do not read must be copied before the next read. So do others
            // where the core has decoded many fields, or its output was too long.
            if read == Read::Some && (!self.input.is_empty() || self.input.is_borrowed()) {
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
        // Bytes that TLS buffers for a peer that does not read have left the core's queues.
        let is_buffered = self.blocked && self.io.left_len().is_some();
        self.memory.report(&memory, if is_buffered { BUFFERED_LEN_MAX } else { 0 });
    }

    /// Reads once if nothing is buffered. With or without the mutex.
    fn read(&mut self, cx: &mut Context<'_>, wants: Wants) -> io::Result<Read> {
        // Other connections first, once the tasks of this one have had their share.
        let stopped = if self.budget.poll_paid(self.memory.account(), cx).is_pending() {
            Some(Read::Stopped)
        } else if !self.input.is_empty() {
            return Ok(Read::Some);
        // The input may grant the window without which queued content is never freed.
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
        let is_client = !self.memory.account().has_turns();
        match self.input.poll_fill(cx, &mut self.io, is_client)? {
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
        state.set_reading(!matches!(read, Ok(Read::Stopped | Read::OutOfMemory)));
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
        self.budget.spend(state.core.take_decoded_len());
        Read::Some
    }

    /// Nothing more is written.
    fn disconnect(&mut self, state: &mut State, error: HttpError) {
        self.phase = self.phase.max(Phase::Disconnected);
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
                ready!(self.io.poll_flush(cx))?;
                state.note_left(0);
                return Poll::Ready(Ok(()));
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
                    state.transmitted(now, len - prefix_len);
                    if let Some(buffered_len) = self.io.buffered_len_max() {
                        state.note_left(buffered_len);
                    }
                }
                Err(error) => {
                    if self.io.may_write_before_error() {
                        // A request among them may have reached the server.
                        state.transmitted(now, offered);
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
        if self.phase >= Phase::Disconnected || !(state.core.wants_write() || self.blocked) {
            return true;
        }
        let now = Instant::now();
        self.drain.update(&state.core, 0, self.blocked, now);
        let stalled = matches!(ended, Ended::Failed(CoreError::Limit { exceeded: Exceeded::Stalled, .. }));
        stalled || self.drain.deadline(&state.core).is_some_and(|deadline| deadline <= now)
    }

    fn end(&mut self, mut state: Guard<'_, State>) {
        self.phase = Phase::Ended;
        if self.blocked {
            // The peer does not read: the kernel need not keep the rest for it.
            self.io.abandon();
        }
        self.input.clear();
        self.deadlines.clear();
        // Nothing is written any more, also if the server has aborted the connection.
        state.core.handle_disconnect();
        state.driver.state = DriverState::Ended;
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
                self.shrink.handle_deadline();
                state.shrink();
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
        let mut linger = Linger::http2().with_account(self.memory.account());
        poll_fn(|cx| linger.poll(&mut self.io, cx)).await;
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.budget.reset(self.memory.account());
        let mut state = self.shared.lock();
        state.core.handle_disconnect();
        state.driver.state = DriverState::Ended;
        state.fail(HttpError::ConnectionLost);
    }
}

fn transport_error(error: &io::Error) -> HttpError {
    if is_lost(error) { HttpError::ConnectionLost } else { HttpError::Io(error.kind().into()) }
}

/// Polls the driver again once the other tasks that can run have run.
fn yield_now<T>(cx: &mut Context<'_>) -> Poll<T> {
    let _ = pin!(tokio::task::yield_now()).poll(cx);
    Poll::Pending
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests;
