//! How streams open, end and are reset, and what an error costs (RFC 9113 §5.1, §5.4).
//!
//! Owns the counts of open streams and the only place where a stream is forgotten. A closed stream leaves nothing but
//! its number in a bounded memory.

use core::time::Duration;

use super::Connection;
use super::since::Since;
use crate::error::{Error, ErrorCode, Exceeded, Misuse, Scope, Violation};
use crate::event::Step;
use crate::flow_control::window;
use crate::frame::{RstStream, StreamId};
use crate::rate_limit::Charge;
use crate::stream::{self, Ended, NONE, State, StreamKey, flag};
use crate::{Limits, Role};

impl Connection {
    /// A stream moves on; it is forgotten when it is closed thereby. The step is allowed.
    #[inline]
    pub(super) fn step(&mut self, slot: u32, step: stream::Step, ended: Ended) {
        let stream = self.slab.get_mut(slot);
        let Some(state) = stream.state.after(step) else {
            debug_assert!(false, "{:?} {step:?}", stream.state);
            return;
        };
        stream.state = state;
        if state == State::Closed {
            self.forget(slot, ended, true);
        }
    }

    /// Forgets a stream, whatever its state; `counted` when it was open.
    fn forget(&mut self, slot: u32, ended: Ended, counted: bool) {
        self.scheduler.remove(&mut self.slab, slot);
        let stream = self.slab.get_mut(slot);
        let (id, flags, held, parked) = (stream.id, stream.flags, stream.held, stream.parked);
        if stream.last_chunk != NONE {
            self.chunks.clear(stream);
        }
        let mut waiting = parked;
        while waiting != NONE {
            waiting = self.parked.remove(waiting);
        }
        self.slab.remove(slot);
        self.recent.remember(id, ended, self.now_ms());
        if counted {
            if flags & flag::LOCAL != 0 {
                self.open_local -= 1;
                self.open_waiting();
            } else {
                self.open_peer -= 1;
            }
        }
        if held > 0 {
            // What the caller of a stream that is gone holds is its own; the window goes back.
            self.held -= u64::from(held);
            self.release_connection();
        }
        self.check_drained();
    }

    /// Ends a stream at once, on this side: without a word when `code` is `None`.
    pub(super) fn drop_stream(&mut self, slot: u32, code: Option<ErrorCode>, ended: Ended) {
        let stream = self.slab.get(slot);
        let (id, state, flags) = (stream.id, stream.state, stream.flags);
        let reserved = matches!(state, State::ReservedLocal | State::ReservedRemote);
        if reserved {
            self.reserved -= 1;
        }
        // A request that waits to open was never heard of: RFC 9113 §6.4 forbids RST_STREAM on an idle stream.
        let waiting = flags & flag::IN_OPENING != 0;
        debug_assert!(waiting || state.after(stream::Step::Reset) == Some(State::Closed));
        self.forget(slot, ended, state.is_counted());
        if let (Some(code), false, Some(stream_id)) = (code, waiting, StreamId::new(id)) {
            RstStream { stream_id, code }.encode(&mut self.out.bytes);
        }
    }

    /// Whether a stream was never used, by either side (RFC 9113 §5.1.1).
    pub(super) fn is_idle(&self, id: StreamId) -> bool {
        if id.opener() == Some(self.role) {
            id.get() >= self.next_local
        } else {
            id.get() > self.highest_peer
        }
    }

    /// DATA or HEADERS on a stream that is not there: `Ok` when they are to be ignored.
    #[cold]
    pub(super) fn absent(&mut self, id: StreamId, headers: bool) -> Result<(), Error> {
        let connection = StreamId::CONNECTION;
        let ours = id.opener() == Some(self.role);
        if self.is_idle(id) {
            // RFC 9113 §5.1.1, §8.4: HEADERS open no stream of a server; it promises them.
            let parity = headers && id.opener() == Some(Role::Server);
            let violation = if parity { Violation::StreamIdParity } else { Violation::FrameOnIdleStream };
            return Err(Error::peer(violation, connection));
        }
        match self.recent.find(id.get()) {
            // RFC 9113 §5.1, §5.4.2: it may have been under way when this side sent RST_STREAM.
            Some(Ended::ResetHere) if self.was_just_reset(id) => Ok(()),
            Some(Ended::ResetHere) => self.charge(Charge::UnknownFrame),
            // RFC 9113 §5.1 (closed): after RST_STREAM a stream error, STREAM_CLOSED.
            Some(Ended::ResetByPeer) => Err(Error::peer(Violation::FrameAfterReset, id)),
            // RFC 9113 §5.1 (closed): after END_STREAM a connection error, STREAM_CLOSED.
            Some(Ended::Finished) => Err(Error::peer(Violation::FrameOnClosedStream, connection)),
            // RFC 9113 §6.8: streams above the last one of GOAWAY were never taken up.
            None if !ours && self.closing.ignores(id) => Ok(()),
            // RFC 9113 §5.1.1: a new stream below one that was used.
            None if headers && !ours => Err(Error::peer(Violation::StreamIdNotIncreasing, connection)),
            // Forgotten: an honest peer may still be sending what it did not know to be unwanted.
            None => Err(Error::peer(Violation::FrameAfterReset, id)),
        }
    }

    /// Whether this side reset the stream so recently that the peer's frames on it are no fault of its.
    pub(super) fn was_just_reset(&self, id: StreamId) -> bool {
        let grace = Limits::reset_grace(self.exchange.round_trip);
        let grace_ms = u32::try_from(grace.as_millis()).unwrap_or(u32::MAX);
        self.recent.was_just_reset(id.get(), self.now_ms(), grace_ms)
    }

    /// Answers an error of a stream with RST_STREAM (RFC 9113 §5.4.2); passes on those of the connection.
    #[cold]
    pub(super) fn stream_error(&mut self, error: Error) -> Result<Option<Step>, Error> {
        let (Some(Scope::Stream(id)), Some(code)) = (error.scope(), error.code()) else {
            return Err(error);
        };
        // CVE-2025-8671: each reset that the peer brings about is counted.
        self.charge(Charge::StreamError)?;
        if let Some(slot) = self.slab.find(id.get()) {
            let stream = self.slab.key(slot);
            self.drop_stream(slot, Some(code), Ended::ResetHere);
            self.out.answers_len += 13;
            return Ok(Some(Step::Reset { stream, code, error: Some(error) }));
        }
        if self.is_idle(id) {
            // RFC 9113 §6.4: RST_STREAM MUST NOT be sent on an idle stream.
            return Err(error.for_connection());
        }
        if self.recent.find(id.get()) != Some(Ended::ResetHere) {
            // RFC 9113 §5.4.2: not twice for one stream.
            self.recent.remember(id.get(), Ended::ResetHere, self.now_ms());
            RstStream { stream_id: id, code }.encode(&mut self.out.bytes);
            self.out.answers_len += 13;
        }
        Ok(None)
    }

    pub(super) fn receive_reset(&mut self, reset: RstStream) -> Result<Option<Step>, Error> {
        let id = reset.stream_id;
        // RFC 9113 §6.4: on an idle stream a connection error, PROTOCOL_ERROR.
        if self.is_idle(id) {
            return Err(Error::peer(Violation::FrameOnIdleStream, StreamId::CONNECTION));
        }
        let Some(slot) = self.slab.find(id.get()) else {
            // Both sides may reset a stream at the same time.
            if !self.recent.crossed_reset(id.get()) {
                self.charge(Charge::UnknownFrame)?;
            }
            return Ok(None);
        };
        let stream = self.slab.key(slot);
        let record = self.slab.get(slot);
        if record.has(flag::IN_OPENING) {
            return Err(Error::peer(Violation::FrameOnIdleStream, StreamId::CONNECTION));
        }
        let ours = record.has(flag::LOCAL);
        if !ours {
            // CVE-2023-44487: a request that is withdrawn before it was answered.
            self.charge(Charge::PeerReset)?;
        }
        self.drop_stream(slot, None, Ended::ResetByPeer);
        if ours && reset.code == ErrorCode::REFUSED_STREAM {
            // RFC 9113 §8.7: REFUSED_STREAM says that nothing was done.
            return Ok(Some(Step::Refused { stream }));
        }
        Ok(Some(Step::Reset { stream, code: reset.code, error: None }))
    }

    /// Ends a stream at once (RFC 9113 §6.4). What is queued on it is dropped; the caller hears no more of it.
    ///
    /// How long frames that were under way are borne with counts from the time that was told last: behind a pause,
    /// [`Connection::handle_timeout`] tells it first.
    ///
    /// # Errors
    /// [`Misuse::StreamGone`]
    pub fn reset(&mut self, stream: StreamKey, code: ErrorCode) -> Result<(), Error> {
        let slot = self.slab.slot(stream).ok_or(Misuse::StreamGone)?;
        self.drop_stream(slot, Some(code), Ended::ResetHere);
        Ok(())
    }

    // ---- deadlines

    #[inline]
    pub(super) fn tell_time(&mut self, now: Duration) {
        self.now = self.now.max(now);
        if self.untimed {
            self.begin_clocks();
        }
    }

    /// What was begun since the caller told the time before lasts from now on.
    fn begin_clocks(&mut self) {
        self.untimed = false;
        self.exchange.tell_time(self.now);
        self.stalled.tell(self.now);
        let now_ms = self.now_ms();
        let mut at = self.scheduler.last_blocked();
        while let Some(slot) = at {
            let stream = self.slab.get_mut(slot);
            if !stream.has(flag::UNTIMED) {
                break;
            }
            stream.clear(flag::UNTIMED);
            stream.stalled_at_ms = now_ms;
            at = (stream.prev != NONE).then_some(stream.prev);
        }
    }

    /// Whether something lasts of which it is not known since when.
    pub(super) fn awaits_time(&self) -> bool {
        let blocked = self.scheduler.last_blocked();
        self.stalled == Since::Next
            || self.exchange.awaits_time()
            || blocked.is_some_and(|slot| self.slab.get(slot).has(flag::UNTIMED))
    }

    /// Progress below this does not set the clock of a stalled stream back, in bytes.
    pub(super) const PROGRESS_MIN: i64 = 1024;

    pub(super) fn stall_deadline(&self) -> Option<Duration> {
        let timeout = self.limits().stall_timeout;
        let connection = self.stalled.deadline(timeout);
        let stream = self.scheduler.first_blocked().map(|slot| {
            let age = self.now_ms().wrapping_sub(self.slab.get(slot).stalled_at_ms);
            self.now.saturating_sub(Duration::from_millis(u64::from(age))).saturating_add(timeout)
        });
        match (connection, stream) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Milliseconds, wrapping after 49 days: for differences.
    pub(super) const fn now_ms(&self) -> u32 {
        self.now.as_millis() as u32
    }

    pub(super) fn check_deadlines(&mut self) -> Result<(), Error> {
        if self.settings_deadline().is_some_and(|deadline| deadline <= self.now) {
            // RFC 9113 §6.5.3: SETTINGS_TIMEOUT.
            return Err(Error::peer(Violation::SettingsTimeout, StreamId::CONNECTION));
        }
        let timeout = self.limits().stall_timeout;
        if self.out.is_empty() && (self.send_window > 0 || self.scheduler.is_idle()) {
            self.stalled = Since::Never;
        }
        if self.stalled.deadline(timeout).is_some_and(|deadline| deadline <= self.now) {
            return Err(Error::limit(Exceeded::Stalled, StreamId::CONNECTION));
        }
        let timeout_ms = timeout.as_millis();
        while let Some(slot) = self.scheduler.first_blocked() {
            let age = self.now_ms().wrapping_sub(self.slab.get(slot).stalled_at_ms);
            if u128::from(age) < timeout_ms {
                break;
            }
            // CVE-2019-9517: one window kept shut costs its stream, not the others.
            let stream = self.slab.key(slot);
            let (code, _) = Exceeded::Stalled.verdict();
            let stream_id = StreamId::new(stream.id()).unwrap_or_default();
            let error = Error::Limit { exceeded: Exceeded::Stalled, scope: Scope::Stream(stream_id) };
            self.drop_stream(slot, Some(code), Ended::ResetHere);
            self.pending.push_back(Step::Reset { stream, code, error: Some(error) });
        }
        Ok(())
    }

    /// A stream has DATA queued: puts it into the list where it belongs.
    pub(super) fn schedule(&mut self, slot: u32) {
        let initial = self.exchange.peer.initial_window_size;
        let stream = self.slab.get_mut(slot);
        if stream.has(flag::IN_LIST) {
            return;
        }
        if window(initial, stream.send_delta) > 0 {
            return self.scheduler.add_ready(&mut self.slab, slot);
        }
        // The clock goes on over windows that were opened by a crumb.
        let running = stream.has(flag::STALL_CLOCK) && !stream.has(flag::UNTIMED);
        if !running {
            stream.set(flag::STALL_CLOCK | flag::UNTIMED);
            self.untimed = true;
        }
        self.scheduler.add_blocked(&mut self.slab, slot, running);
    }
}
