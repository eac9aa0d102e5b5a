//! The task of a connection: reads, gives to the core, writes, minds deadlines. See [`super`] for its place.

use std::future::{Future as _, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use tokio::time::{Instant, Sleep};
use wireloom_http2::error::{Error as CoreError, ErrorCode, Exceeded};
use wireloom_http2::{Config, Ended, Role};
use wireloom_ws::Keepalive;

use super::handles::Requests;
use super::head::Incoming;
use super::shared::{Shared, State};
use crate::error::{Error, Stage};
use crate::transport::Io;
use crate::transport::buffer::Buffer;

/// The most slices that are written at once: a header and a payload for each of the frames that the core prepares.
const SLICES_MAX: usize = 64;

/// A read that brought so much may be lent from: it is bulk.
const LENT_READ_MIN: usize = 32 << 10;

/// A connection that has been quiet for so long gives back what it can.
const QUIET: Duration = Duration::from_secs(5);

/// How long a peer that has no streams, or broke a rule, may take to read GOAWAY.
const FAREWELL: Duration = Duration::from_secs(5);

/// How long the transport may go on after the end, so that the peer reads GOAWAY and not a reset.
const LINGER: Duration = Duration::from_secs(1);

/// How much of that is read.
const LINGER_LEN_MAX: usize = 1 << 20;

/// Owns the transport of a connection.
pub(crate) struct Driver {
    io: Io,
    shared: Arc<Shared>,
    /// Held while bytes are in flight.
    buffer: Option<Buffer>,
    /// What is left of a large read, parts of which may have been lent.
    lender: Bytes,
    /// What is left to write before the output of the core.
    prefix: &'static [u8],
    /// The last write was not taken in full.
    blocked: bool,
    sleep: Option<Pin<Box<Sleep>>>,
    /// How long it may be without streams.
    idle_timeout: Option<Duration>,
    /// Since when it has been.
    idle_since: Option<Instant>,
    /// Since when it has nothing to do but to end.
    leaving_since: Option<Instant>,
    /// Since when the core has ended and its last words wait to be written.
    ended_since: Option<Instant>,
    /// Whether and when silence is asked about.
    keepalive: Option<Keepalive>,
    /// When the peer was last heard, and whether it was asked to answer since; kept up with `keepalive` alone.
    heard_at: Instant,
    asked: bool,
    /// When to look whether it has been quiet; `None` when it holds nothing that it could give back.
    look_at: Option<Instant>,
    /// Something has moved since then.
    moved: bool,
    /// Whoever is to be woken outside of the lock.
    woken: Vec<Waker>,
    /// How many tasks the last read woke.
    woken_len: usize,
    over: bool,
}

/// Why [`Driver::poll`] is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    /// Requests have come.
    Incoming,
    /// The connection has ended.
    Ended,
}

impl Driver {
    /// Speaks HTTP/2 over a transport, from the preface on.
    ///
    /// # Errors
    /// A setting is out of range.
    pub(crate) fn new(io: Io, role: Role, config: Config) -> Result<Self, Error> {
        Ok(Self::over(io, Shared::new(role, config)?))
    }

    /// Moves the bytes of a connection that is there already.
    pub(crate) fn over(io: Io, shared: Arc<Shared>) -> Self {
        Self {
            io,
            shared,
            buffer: None,
            lender: Bytes::new(),
            prefix: &[],
            blocked: false,
            sleep: None,
            idle_timeout: None,
            idle_since: None,
            leaving_since: None,
            ended_since: None,
            keepalive: None,
            heard_at: Instant::now(),
            asked: false,
            look_at: None,
            moved: false,
            woken: Vec::new(),
            woken_len: 0,
            over: false,
        }
    }

    /// Bytes to write before everything else.
    pub(crate) fn preceded_by(mut self, prefix: &'static [u8]) -> Self {
        self.prefix = prefix;
        self
    }

    /// Bytes that were read before.
    pub(crate) fn arrived(mut self, bytes: &[u8]) -> Self {
        self.buffer = (!bytes.is_empty()).then(|| Buffer::holding(bytes));
        self
    }

    /// Ends gracefully when there was no stream for so long.
    pub(crate) fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.idle_timeout = Some(timeout);
        self
    }

    /// Asks a silent peer whether it is there, and gives up one that says nothing (RFC 9113 §6.7).
    pub(crate) fn keepalive(mut self, keepalive: Option<Keepalive>) -> Self {
        self.keepalive = keepalive;
        self
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// What a client asks by.
    pub(crate) fn requests(&self) -> Requests {
        Requests::new(self.shared.clone())
    }

    /// Drives to the end: for clients, whose peer asks for nothing.
    pub(crate) async fn run(mut self) {
        let mut incoming = Vec::new();
        while poll_fn(|cx| self.poll(cx, &mut incoming)).await == Moved::Incoming {
            incoming.clear();
        }
        self.linger().await;
    }

    /// Moves bytes until nothing moves.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, incoming: &mut Vec<Incoming>) -> Poll<Moved> {
        if self.over {
            return Poll::Ready(Moved::Ended);
        }
        let shared = self.shared.clone();
        {
            let mut state = shared.lock();
            // A task that was woken by the last read has something to write, and others are to run yet: they go first.
            state.driver = None;
            if std::mem::take(&mut state.nudged) && self.woken_len > 1 {
                self.woken_len = 0;
                drop(state);
                let _ = pin!(tokio::task::yield_now()).poll(cx);
                return Poll::Pending;
            }
            state.tick();
        }
        loop {
            let mut state = shared.lock();
            let read = self.read(cx, &mut state, incoming);
            state.collect(incoming, &mut self.woken);
            if !incoming.is_empty() {
                drop(state);
                self.wake();
                return Poll::Ready(Moved::Incoming);
            }
            let written = self.write(cx, &mut state);
            state.collect(incoming, &mut self.woken);
            if written.is_err() || self.is_over(&state, read) {
                self.end(state);
                return Poll::Ready(Moved::Ended);
            }
            state.reset_unread();
            let left = self.has_left() && state.core.wants_read();
            let again = read == Read::Some
                || (read == Read::Held && state.core.wants_read())
                || left
                || !incoming.is_empty()
                || (!self.blocked && state.core.wants_write());
            if !again && self.poll_deadline(cx, &mut state).is_pending() {
                state.driver = Some(cx.waker().clone());
                state.nudged = false;
                drop(state);
                self.wake();
                return Poll::Pending;
            }
            drop(state);
            self.wake();
        }
    }

    fn wake(&mut self) {
        if !self.woken.is_empty() {
            self.woken_len = self.woken.len();
            self.woken.drain(..).for_each(Waker::wake);
        }
    }

    fn read(&mut self, cx: &mut Context<'_>, state: &mut State, incoming: &mut Vec<Incoming>) -> Read {
        if !state.core.wants_read() {
            return Read::Held;
        }
        if !self.has_left() {
            match self.fill(cx) {
                Poll::Ready(Ok(1..)) => {}
                Poll::Ready(Ok(0)) => {
                    state.core.handle_eof();
                    return Read::End;
                }
                Poll::Ready(Err(error)) => {
                    state.core.handle_eof();
                    state.fail(broken(&error));
                    return Read::End;
                }
                Poll::Pending => {
                    // Nothing is in flight: nothing is held.
                    self.buffer = None;
                    return Read::Nothing;
                }
            }
            // Large content is handed on where it lies.
            if self.buffer.as_mut().is_some_and(|buffer| buffer.waiting().len() >= LENT_READ_MIN)
                && let Some(buffer) = self.buffer.take()
            {
                self.lender = Bytes::from_owner(buffer);
            }
        }
        let received = if !self.lender.is_empty() {
            let received = state.receive(&self.lender, Some(&self.lender), incoming, &mut self.woken);
            received.map(|taken| {
                self.lender.advance(taken);
                if self.lender.is_empty() {
                    self.lender = Bytes::new();
                }
            })
        } else if let Some(buffer) = &mut self.buffer {
            let received = state.receive(buffer.waiting(), None, incoming, &mut self.woken);
            received.map(|taken| buffer.taken(taken))
        } else {
            Ok(())
        };
        if let Err(error) = received {
            // What is left is passed over; GOAWAY is in the output.
            self.buffer = None;
            self.lender = Bytes::new();
            state.fail(error);
        }
        Read::Some
    }

    /// Whether something was read and not taken.
    fn has_left(&self) -> bool {
        !self.lender.is_empty() || self.buffer.as_ref().is_some_and(|buffer| !buffer.is_empty())
    }

    fn fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        ready!(self.io.poll_read_ready(cx))?;
        let buffer = self.buffer.get_or_insert_with(Buffer::take);
        let len = ready!(self.io.poll_read(cx, buffer.space()))?;
        buffer.filled(len);
        if self.keepalive.is_some() {
            self.heard_at = Instant::now();
            self.asked = false;
        }
        Poll::Ready(Ok(len))
    }

    /// Writes until nothing is left or the transport is full.
    fn write(&mut self, cx: &mut Context<'_>, state: &mut State) -> io::Result<()> {
        self.blocked = false;
        loop {
            let mut slices: [&[u8]; SLICES_MAX] = [&[]; SLICES_MAX];
            let (first, rest) = slices.split_at_mut(1);
            let count = if self.prefix.is_empty() {
                state.core.poll_transmit(&mut slices)
            } else {
                first[0] = self.prefix;
                1 + state.core.poll_transmit(rest)
            };
            if count == 0 {
                break;
            }
            let written = if count == 1 {
                self.io.poll_write(cx, &[IoSlice::new(slices[0])])
            } else {
                self.io.poll_write(cx, &slices.map(IoSlice::new)[..count])
            };
            match written {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(len)) => {
                    self.moved = true;
                    let before = len.min(self.prefix.len());
                    self.prefix = &self.prefix[before..];
                    state.core.transmitted(len - before);
                }
                Poll::Ready(Err(error)) => {
                    state.core.handle_eof();
                    state.fail(broken(&error));
                    return Err(error);
                }
                Poll::Pending => {
                    self.blocked = true;
                    return Ok(());
                }
            }
        }
        match self.io.poll_flush(cx) {
            Poll::Ready(flushed) => flushed,
            Poll::Pending => Ok(()),
        }
    }

    /// Whether all is over: the core has ended and what it had to say is written, or nobody reads it.
    fn is_over(&mut self, state: &State, read: Read) -> bool {
        let Some(ended) = state.core.ended() else { return false };
        // A peer that has gone reads nothing any more.
        if read == Read::End || ended == Ended::Eof || !(state.core.wants_write() || self.blocked) {
            return true;
        }
        let since = *self.ended_since.get_or_insert_with(Instant::now);
        let stalls = matches!(ended, Ended::Failed(CoreError::Limit { exceeded: Exceeded::Stalled, .. }));
        stalls || since.elapsed() >= FAREWELL
    }

    fn end(&mut self, mut state: std::sync::MutexGuard<'_, State>) {
        self.over = true;
        if self.blocked {
            // What it does not take is not kept for it.
            self.io.abandon();
        }
        self.buffer = None;
        self.lender = Bytes::new();
        self.sleep = None;
        let error = match state.core.ended() {
            Some(Ended::Failed(error)) => Error::Http2(error),
            Some(Ended::Drained) => Error::Closed,
            _ => Error::Cut,
        };
        state.fail(error);
        drop(state);
        self.wake();
    }

    /// Ready when a deadline has passed.
    fn poll_deadline(&mut self, cx: &mut Context<'_>, state: &mut State) -> Poll<()> {
        let core = state.core.poll_timeout().into_iter().chain(state.unread_deadline()).min();
        let core = core.map(|at| state.epoch + at);
        let idle = self.idle_deadline(state);
        let look = self.look_deadline();
        let farewell = self.ended_since.map(|since| since + FAREWELL);
        let silence = self.silence_deadline();
        let deadlines = core.into_iter().chain(idle).chain(look).chain(farewell).chain(silence);
        let Some(deadline) = deadlines.min() else {
            self.sleep = None;
            state.armed = None;
            return Poll::Pending;
        };
        let sleep = match &mut self.sleep {
            Some(sleep) => {
                // Activity moves most deadlines back; the timer is moved when it goes off.
                if sleep.deadline() > deadline || sleep.is_elapsed() {
                    sleep.as_mut().reset(deadline);
                }
                sleep
            }
            none => none.insert(Box::pin(tokio::time::sleep_until(deadline))),
        };
        state.armed = Some(sleep.deadline().saturating_duration_since(state.epoch));
        ready!(sleep.as_mut().poll(cx));
        self.pass(state);
        Poll::Ready(())
    }

    /// When something is to be done about a connection without streams.
    fn idle_deadline(&mut self, state: &State) -> Option<Instant> {
        if state.streams() > 0 {
            self.idle_since = None;
            self.leaving_since = None;
            return None;
        }
        let since = *self.idle_since.get_or_insert_with(Instant::now);
        if state.core.is_going_away() {
            return Some(*self.leaving_since.get_or_insert_with(Instant::now) + FAREWELL);
        }
        self.idle_timeout.map(|timeout| since + timeout)
    }

    /// When something is to be done about a peer that says nothing.
    fn silence_deadline(&self) -> Option<Instant> {
        let keepalive = self.keepalive?;
        let patience = if self.asked { keepalive.dead_after } else { keepalive.ping_after };
        Some(self.heard_at + patience)
    }

    /// Asks a peer that has been silent, or gives it up.
    fn mind_silence(&mut self, state: &mut State, now: Instant) {
        let Some(Keepalive { ping_after, dead_after }) = self.keepalive else { return };
        if !state.core.wants_read() {
            // It was not listened to.
            self.heard_at = now;
        }
        let silence = now - self.heard_at;
        if silence >= dead_after {
            self.keepalive = None;
            self.io.abandon();
            state.core.handle_eof();
            state.fail(Error::Timeout(Stage::Silence));
        } else if silence >= ping_after && !self.asked {
            self.asked = true;
            // When the connection has ended nothing is to be asked.
            let _ = state.core.send_ping(state.now(), *b"wl alive");
        }
    }

    /// When it is to be seen whether the connection is quiet.
    fn look_deadline(&mut self) -> Option<Instant> {
        if self.moved && self.look_at.is_none() {
            self.moved = false;
            self.look_at = Some(Instant::now() + QUIET);
        }
        self.look_at
    }

    /// A deadline has passed: does what is due.
    fn pass(&mut self, state: &mut State) {
        state.tick();
        let now = Instant::now();
        self.mind_silence(state, now);
        if self.look_at.is_some_and(|at| at <= now) {
            self.look_at = None;
            if !self.moved {
                state.core.shrink();
            }
        }
        let Some(since) = self.idle_since else { return };
        if self.leaving_since.is_some_and(|since| since + FAREWELL <= now) {
            state.core.abort(ErrorCode::NO_ERROR, b"");
        } else if self.idle_timeout.is_some_and(|timeout| since + timeout <= now) {
            // Once is enough: it does nothing when it has been said.
            state.core.shutdown();
        }
    }

    /// Ends the writing side and reads on for a while, so that the peer gets to read GOAWAY instead of a reset.
    pub(crate) async fn linger(mut self) {
        let work = async {
            poll_fn(|cx| self.io.poll_shutdown(cx)).await?;
            let mut total = 0;
            while total < LINGER_LEN_MAX {
                let len = poll_fn(|cx| self.fill(cx)).await?;
                if let Some(buffer) = &mut self.buffer {
                    buffer.taken(len);
                }
                if len == 0 {
                    break;
                }
                total += len;
            }
            io::Result::Ok(())
        };
        let _ = tokio::time::timeout(LINGER, work).await;
    }
}

impl Drop for Driver {
    /// Nobody moves anything any more: whoever waits is told.
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.core.handle_eof();
        state.fail(Error::Cut);
    }
}

/// What a read brought.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Read {
    Some,
    Nothing,
    /// Nobody asked the transport: output has to leave first.
    Held,
    End,
}

fn broken(error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe => Error::Cut,
        kind => Error::Io(kind),
    }
}
