//! Closing of streams, stream errors, and deadlines (RFC 9113 §5.1, §5.4).

use core::time::Duration;

use super::Connection;
use crate::error::{Error, ErrorCode, Exceeded, Misuse, Scope, Violation};
use crate::event::Event;
use crate::frame::{RstStream, StreamId};
use crate::rate_limit::Charge;
use crate::stream::{Answer, CloseEffects, Closed, LateFrame, SendPhase, StreamKey};

impl Connection {
    /// Completes the closing of a stream. RST_STREAM is written at once. Waiting requests open when the output is filled the next
    /// time.
    #[inline]
    pub(super) fn apply_close(&mut self, closed: CloseEffects) {
        if let Some(reset) = closed.reset {
            self.write_reset(reset);
        }
        if closed.removed {
            self.rates.stream_finished(&self.config.limits);
            self.check_drained();
            if closed.released {
                // DATA of a closed stream that the caller holds no longer counts, so its window is released.
                self.release_connection();
            }
        }
    }

    fn write_reset(&mut self, reset: RstStream) {
        // RFC 9113 §6.8: nothing follows the GOAWAY that ends the connection.
        if !self.has_ended() {
            reset.encode(self.out.frames());
        }
    }

    /// Why a stream has no record.
    fn closed(&self, id: StreamId) -> Closed {
        match self.streams.closed(id) {
            // This side passes none of its streams over.
            Closed::Skipped if self.streams.is_local(id) || self.closing.ignores(id) => Closed::Ignored,
            closed => closed,
        }
    }

    /// Handles a frame on a stream that has no record. `Ok` if it is ignored.
    #[cold]
    pub(super) fn receive_late(&mut self, id: StreamId, frame: LateFrame) -> Result<(), Error> {
        match self.closed(id).answer(frame) {
            Answer::Error(violation) => return Err(Error::peer(violation, id)),
            Answer::Charge(charge) => self.charge(charge)?,
            Answer::ChargeLen(len) => self.charge_len(len)?,
            Answer::Ignore => {}
        }
        self.streams.ignored(id, frame);
        Ok(())
    }

    /// Answers a stream error with RST_STREAM (RFC 9113 §5.4.2), and returns connection errors.
    #[cold]
    pub(super) fn stream_error(&mut self, error: Error) -> Result<Option<Event<'static>>, Error> {
        let (Some(Scope::Stream(id)), Some(code)) = (error.scope(), error.code()) else {
            return Err(error);
        };
        let slot = self.streams.find(id);
        // RFC 9113 §5.1 (idle), §6.4: RST_STREAM MUST NOT be sent on an idle stream.
        if self.streams.is_idle(id) {
            return Err(error.for_connection());
        }
        // CVE-2025-8671: each reset that the peer causes is counted.
        self.charge(Charge::StreamError)?;
        if let Some(slot) = slot {
            let stream = self.streams.key(slot);
            let mut closed = self.streams.reset(slot, code);
            if let Some(reset) = closed.reset.take() {
                self.out.answer(|out| reset.encode(out));
            }
            self.apply_close(closed);
            return Ok(Some(Event::Reset { stream, code, error: Some(error) }));
        }
        if !matches!(self.closed(id), Closed::LocalReset(_) | Closed::Ignored) {
            // RFC 9113 §5.4.2: at most one RST_STREAM for each stream.
            self.streams.remember_reset(id);
            self.out.answer(|out| RstStream { stream_id: id, code }.encode(out));
        }
        Ok(None)
    }

    pub(super) fn receive_reset(&mut self, reset: RstStream) -> Result<Option<Event<'static>>, Error> {
        let id = reset.stream_id;
        let Some(slot) = self.streams.find(id) else {
            self.receive_late(id, LateFrame::RstStream)?;
            return Ok(None);
        };
        let stream = self.streams.key(slot);
        let record = self.streams.get(slot);
        let is_local = self.streams.is_local(id);
        if !is_local && record.send != SendPhase::End {
            // CVE-2023-44487: a request that is cancelled before its response is complete.
            self.charge(Charge::PeerReset)?;
        }
        let closed = self.streams.reset_by_peer(slot);
        self.apply_close(closed);
        if is_local && reset.code == ErrorCode::REFUSED_STREAM {
            // RFC 9113 §8.7: REFUSED_STREAM means that the request was not processed.
            return Ok(Some(Event::Refused { stream }));
        }
        Ok(Some(Event::Reset { stream, code: reset.code, error: None }))
    }

    /// Resets a stream (RFC 9113 §6.4). Its queued DATA is discarded (see [`Connection::take_spent`]), and it has no further events.
    ///
    /// # Errors
    /// [`Misuse::StreamGone`]
    pub fn reset(&mut self, stream: StreamKey, code: ErrorCode) -> Result<(), Error> {
        let slot = self.streams.slot(stream).ok_or(Misuse::StreamGone)?;
        let closed = self.streams.reset(slot, code);
        self.apply_close(closed);
        Ok(())
    }

    // ---- deadlines

    /// Sets the clock, from which the deadlines of what follows are counted, and acts on none. The clock does not go back.
    ///
    /// Call it before commands after a time in which nothing else took the time as an argument.
    #[inline]
    pub fn advance_clock(&mut self, now: Duration) {
        self.now = self.now.max(now);
    }

    /// The earliest deadline.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let limits = self.limits();
        let deadlines = [
            self.settings_deadline(),
            self.drain_deadline(),
            self.timers.write_deadline(limits.stall_timeout),
            self.connection_window_deadline(),
            self.window_deadline(self.streams.stall_deadline()),
            self.incomplete_deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Whether input is read and handled, so that the peer may be late.
    pub(super) fn takes_input(&self) -> bool {
        self.reader.clock().is_running() && self.wants_read()
    }

    /// The time that counts for window that the peer has yet to grant.
    #[inline]
    pub(super) fn input_time(&self) -> Duration {
        self.reader.clock().time(self.now)
    }

    /// When `deadline`, on the clock of input, is reached; `None` while no input is taken.
    fn window_deadline(&self, deadline: Option<Duration>) -> Option<Duration> {
        let deadline = deadline.filter(|_| self.takes_input())?;
        Some(self.reader.clock().instant(deadline))
    }

    /// When the peer must have granted window of the connection; `None` if no DATA waits for it, as after the reset of the last stream that had
    /// some.
    fn connection_window_deadline(&self) -> Option<Duration> {
        let deadline = self.timers.window_deadline(self.limits().stall_timeout);
        self.window_deadline(deadline.filter(|_| self.streams.has_ready()))
    }

    /// Starts the timeouts of the peer again if input was not taken before and is now.
    pub(super) fn input_resumed(&mut self, took_input: bool) {
        if !took_input && self.takes_input() {
            self.reader.restart_timer(self.now);
            self.control.restart(self.now);
        }
    }

    /// When SETTINGS must be acknowledged; `None` while no input is taken.
    fn settings_deadline(&self) -> Option<Duration> {
        let deadline = self.control.settings_deadline(self.limits().settings_timeout);
        deadline.filter(|_| self.takes_input())
    }

    /// When the peer's time for reading the first GOAWAY is over; `None` while no input is taken.
    fn drain_deadline(&self) -> Option<Duration> {
        let deadline = self.control.drain_deadline(self.limits().settings_timeout);
        deadline.filter(|_| self.closing.is_announced() && self.takes_input())
    }

    /// When a frame or a field block must be complete; `None` while no input is taken.
    fn incomplete_deadline(&self) -> Option<Duration> {
        let deadline = self.reader.deadline(self.limits().field_block_timeout);
        deadline.filter(|_| self.takes_input())
    }

    pub(super) fn check_deadlines(&mut self) -> Result<(), Error> {
        let (now, limits) = (self.now, self.config.limits);
        let has_passed = |deadline: Option<Duration>| deadline.is_some_and(|deadline| deadline <= now);
        if has_passed(self.settings_deadline()) {
            // RFC 9113 §6.5.3: SETTINGS_TIMEOUT.
            return Err(Error::peer(Violation::SettingsTimeout, StreamId::CONNECTION));
        }
        if has_passed(self.incomplete_deadline()) {
            return Err(Error::limit(Exceeded::FieldBlockTime, StreamId::CONNECTION));
        }
        if has_passed(self.timers.write_deadline(limits.stall_timeout))
            || has_passed(self.connection_window_deadline())
        {
            return Err(Error::limit(Exceeded::Stalled, StreamId::CONNECTION));
        }
        if has_passed(self.drain_deadline()) {
            self.finish_drain();
        }
        if !self.takes_input() {
            return Ok(());
        }
        for stream in self.streams.stalled(self.input_time()) {
            // CVE-2019-9517: a window that stays closed resets its stream, not the others.
            let (code, _) = Exceeded::Stalled.answer();
            let scope = Scope::Stream(stream.stream_id());
            let error = Error::Limit { exceeded: Exceeded::Stalled, scope };
            self.reset(stream, code)?;
            self.pending.push_back(Event::Reset { stream, code, error: Some(error) });
        }
        Ok(())
    }
}
