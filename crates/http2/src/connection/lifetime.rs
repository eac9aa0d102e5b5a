//! How streams end, what an error costs, and deadlines (RFC 9113 §5.1, §5.4).

use core::time::Duration;

use super::Connection;
use super::since::Since;
use crate::error::{Error, ErrorCode, Exceeded, Misuse, Scope, Violation};
use crate::event::PendingEvent;
use crate::frame::{RstStream, StreamId};
use crate::rate_limit::Charge;
use crate::stream::{CloseCause, CloseEffects, SendPhase, StreamKey, millis};
use crate::{Limits, Role};

impl Connection {
    /// Acts on the end of a stream: RST_STREAM leaves first, and requests that waited for its place are opened when the
    /// output is filled the next time.
    #[inline]
    pub(super) fn apply(&mut self, closed: CloseEffects) {
        if let Some(reset) = closed.reset {
            self.write_reset(reset);
        }
        if closed.removed {
            self.rates.stream_finished(&self.config.limits);
            self.check_drained();
            if closed.released {
                // What the caller of a closed stream holds is its own; the window goes back.
                self.release_connection();
            }
        }
    }

    fn write_reset(&mut self, reset: RstStream) {
        // RFC 9113 §6.8: nothing follows the GOAWAY that ends the connection.
        if !self.has_ended() {
            reset.encode(&mut self.out.bytes);
        }
    }

    /// DATA or HEADERS on a stream that is not open: `Ok` when they are to be ignored.
    #[cold]
    pub(super) fn absent(&mut self, id: StreamId, headers: bool) -> Result<(), Error> {
        let connection = StreamId::CONNECTION;
        let is_local = self.streams.is_local(id);
        if self.streams.is_idle(id) {
            // RFC 9113 §5.1.1, §8.4: HEADERS open no stream of a server; it promises them.
            let parity = headers && id.opener() == Some(Role::Server);
            let violation = if parity { Violation::StreamIdParity } else { Violation::FrameOnIdleStream };
            return Err(Error::peer(violation, connection));
        }
        match self.streams.close_cause(id) {
            // RFC 9113 §5.1, §5.4.2: it may have been in flight when this side sent RST_STREAM.
            Some(CloseCause::LocalReset) if self.was_just_reset(id) => Ok(()),
            Some(CloseCause::LocalReset) => self.charge(Charge::UnknownFrame),
            // RFC 9113 §5.1 (closed): after RST_STREAM a stream error, STREAM_CLOSED.
            Some(CloseCause::PeerReset) => Err(Error::peer(Violation::FrameAfterReset, id)),
            // RFC 9113 §5.1 (closed): after END_STREAM a connection error, STREAM_CLOSED.
            Some(CloseCause::EndStream) => Err(Error::peer(Violation::FrameOnClosedStream, connection)),
            // RFC 9113 §6.8: streams above the last one of GOAWAY were never taken up.
            None if !is_local && self.closing.ignores(id) => Ok(()),
            // RFC 9113 §5.1.1: a new stream below one that was used.
            None if headers && !is_local => Err(Error::peer(Violation::StreamIdNotIncreasing, connection)),
            // Forgotten: an honest peer may still be sending what it did not know to be unwanted.
            None => Err(Error::peer(Violation::FrameAfterReset, id)),
        }
    }

    /// Whether this side reset the stream so recently that the peer may not have known when it sent a frame.
    pub(super) fn was_just_reset(&self, id: StreamId) -> bool {
        let grace = Limits::reset_grace(self.exchange.round_trip);
        let grace_ms = u32::try_from(grace.as_millis()).unwrap_or(u32::MAX);
        self.streams.was_just_reset(id, millis(self.now), grace_ms)
    }

    /// Answers an error of a stream with RST_STREAM (RFC 9113 §5.4.2); passes on those of the connection.
    #[cold]
    pub(super) fn stream_error(&mut self, error: Error) -> Result<Option<PendingEvent>, Error> {
        let (Some(Scope::Stream(id)), Some(code)) = (error.scope(), error.code()) else {
            return Err(error);
        };
        let slot = self.streams.find(id);
        // RFC 9113 §5.1 (idle), §6.4: RST_STREAM MUST NOT be sent on an idle stream, which is what a request that waits
        // to open is for the peer.
        if self.streams.is_idle(id) || slot.is_some_and(|slot| self.streams.get(slot).is_waiting()) {
            return Err(error.for_connection());
        }
        // CVE-2025-8671: each reset that the peer brings about is counted.
        self.charge(Charge::StreamError)?;
        if let Some(slot) = slot {
            let stream = self.streams.key(slot);
            let closed = self.streams.reset(slot, code, millis(self.now));
            self.apply(closed);
            self.out.answers_len += 13;
            return Ok(Some(PendingEvent::Reset { stream, code, error: Some(error) }));
        }
        if self.streams.close_cause(id) != Some(CloseCause::LocalReset) {
            // RFC 9113 §5.4.2: not twice for one stream.
            self.streams.remember_refused(id, true, millis(self.now));
            self.write_reset(RstStream { stream_id: id, code });
            self.out.answers_len += 13;
        }
        Ok(None)
    }

    pub(super) fn receive_reset(&mut self, reset: RstStream) -> Result<Option<PendingEvent>, Error> {
        let id = reset.stream_id;
        // RFC 9113 §6.4: on an idle stream a connection error, PROTOCOL_ERROR.
        if self.streams.is_idle(id) {
            return Err(Error::peer(Violation::FrameOnIdleStream, StreamId::CONNECTION));
        }
        let Some(slot) = self.streams.find(id) else {
            // Both sides may reset a stream at the same time, and some clients reset a stream that has ended.
            if !self.streams.crossed_reset(id) {
                self.charge(Charge::LateReset)?;
            }
            return Ok(None);
        };
        let stream = self.streams.key(slot);
        let record = self.streams.get(slot);
        if record.is_waiting() {
            return Err(Error::peer(Violation::FrameOnIdleStream, StreamId::CONNECTION));
        }
        let is_local = self.streams.is_local(id);
        if !is_local && record.send != SendPhase::End {
            // CVE-2023-44487: a request that is withdrawn before it was answered.
            self.charge(Charge::PeerReset)?;
        }
        let closed = self.streams.reset_by_peer(slot, millis(self.now));
        self.apply(closed);
        if is_local && reset.code == ErrorCode::REFUSED_STREAM {
            // RFC 9113 §8.7: REFUSED_STREAM means that nothing was done.
            return Ok(Some(PendingEvent::Refused { stream }));
        }
        Ok(Some(PendingEvent::Reset { stream, code: reset.code, error: None }))
    }

    /// Ends a stream at once (RFC 9113 §6.4). What is queued on it is dropped, and no event of it follows.
    ///
    /// For how long frames that were in flight are ignored counts from the last time that was passed: after a pause, call
    /// [`Connection::handle_timeout`] first.
    ///
    /// # Errors
    /// [`Misuse::StreamGone`]
    pub fn reset(&mut self, stream: StreamKey, code: ErrorCode) -> Result<(), Error> {
        let slot = self.streams.slot(stream).ok_or(Misuse::StreamGone)?;
        let closed = self.streams.reset(slot, code, millis(self.now));
        self.apply(closed);
        Ok(())
    }

    // ---- deadlines

    #[inline]
    pub(super) fn update_now(&mut self, now: Duration) {
        self.now = self.now.max(now);
        if self.is_untimed || self.streams.has_pending_clock() {
            self.start_clocks();
        }
    }

    /// Commands are passed no time, and the connection may have been idle for hours before one. What they begin lasts from
    /// the next time that is passed.
    fn start_clocks(&mut self) {
        self.is_untimed = false;
        self.exchange.start_clocks(self.now);
        self.stalled.start(self.now);
        self.reader.incomplete_since.start(self.now);
        self.streams.start_clocks(self.now, self.config.limits.stall_timeout);
    }

    /// Whether a clock is to start at the next time that is passed.
    pub(super) fn awaits_time(&self) -> bool {
        self.stalled == Since::Next
            || self.reader.incomplete_since == Since::Next
            || self.exchange.awaits_time()
            || self.streams.has_pending_clock()
    }

    /// The first deadline.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let limits = self.limits();
        let deadlines = [
            self.exchange.settings_deadline(limits.settings_timeout),
            self.stalled.deadline(limits.stall_timeout),
            self.streams.stall_deadline(),
            self.incomplete_deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// When a frame or a field block must be complete; `None` while no input is taken.
    fn incomplete_deadline(&self) -> Option<Duration> {
        let deadline = self.reader.incomplete_since.deadline(self.limits().field_block_timeout);
        deadline.filter(|_| self.wants_read())
    }

    pub(super) fn check_deadlines(&mut self) -> Result<(), Error> {
        let (now, limits) = (self.now, self.config.limits);
        let has_passed = |deadline: Option<Duration>| deadline.is_some_and(|deadline| deadline <= now);
        if has_passed(self.exchange.settings_deadline(limits.settings_timeout)) {
            // RFC 9113 §6.5.3: SETTINGS_TIMEOUT.
            return Err(Error::peer(Violation::SettingsTimeout, StreamId::CONNECTION));
        }
        if has_passed(self.incomplete_deadline()) {
            return Err(Error::limit(Exceeded::FieldBlockTime, StreamId::CONNECTION));
        }
        if self.out.is_empty() && !self.streams.is_window_shut() {
            self.stalled = Since::Never;
        }
        if has_passed(self.stalled.deadline(limits.stall_timeout)) {
            return Err(Error::limit(Exceeded::Stalled, StreamId::CONNECTION));
        }
        for stream in self.streams.stalled(now, limits.stall_timeout) {
            // CVE-2019-9517: one window kept shut costs its stream, not the others.
            let (code, _) = Exceeded::Stalled.answer();
            let scope = Scope::Stream(stream.stream_id());
            let error = Error::Limit { exceeded: Exceeded::Stalled, scope };
            self.reset(stream, code)?;
            self.pending.push_back(PendingEvent::Reset { stream, code, error: Some(error) });
        }
        Ok(())
    }
}
